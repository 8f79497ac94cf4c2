//! Self-attention: its state is the keys and values of every token.

mod config;
mod fused;
mod kind;
mod past;

pub use config::{AttentionConfig, QkNorm};
pub use fused::Fused;
pub use kind::KIND;

use super::Mixer;
use crate::decoder::config::{LayerKind, NormConfig};
use crate::decoder::norm::Norm;
use crate::decoder::pass::{Pass, StepAt};
use crate::decoder::projection::Projection;
use crate::decoder::state::LayerState;
use netcl_tensor::ops::attention::{AttentionOptions, attention, attention_qkv};
use netcl_tensor::ops::decode_attention::{CacheAt, DecodeOptions, HeadNorm, decode_attention};
use netcl_tensor::ops::fused_linear::FusedOps;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::rope::rope;
use netcl_tensor::{Error, Result, Tensor};
use past::with;

/// Self-attention.
#[derive(Clone)]
pub struct Attention {
    qkv: Projection,
    norms: Option<[Norm; 2]>,
    out: Projection,
    config: AttentionConfig,
    kind: LayerKind,
    /// Scale of the scores, if it is not 1/√D.
    scale: Option<f32>,
    /// Layer number, from 0.
    index: usize,
    /// First of three dropout sites.
    site: u64,
}

impl Mixer for Attention {
    /// Takes x `(B, T, C)` → concatenated heads `(B, T, H*D)`.
    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let AttentionConfig { heads, kv_heads, size, softcap, .. } = self.config;
        let [_, length, _] = x.dims3()?;
        let mask =
            (pass.mode.dropout > 0.0).then(|| pass.mode.mask(self.site, heads * length * length.div_ceil(4)));
        let options = AttentionOptions {
            causal: true,
            scale: self.scale,
            window: self.kind.window,
            softcap,
            dropout: mask,
            positions: pass.mode.positions.cloned(),
        };
        let qkv = self.qkv.forward(x)?; // (B, T, (H + 2 KH) D)
        let angles = self.kind.rotary.and_then(|set| pass.angles.get(set));
        let rotated = |x: Tensor, n: usize| match angles {
            // The tables have a row per token of the batch.
            Some([cosines, sines]) if pass.mode.positions.is_some() => {
                let [b, t, width] = x.dims3()?;
                rope(&x.reshape([1, b * t, width])?, cosines, sines, n, size)?.reshape([b, t, width])
            }
            Some([cosines, sines]) => rope(&x, cosines, sines, n, size),
            None => Ok(x),
        };
        let [b, t, _] = qkv.dims3()?;
        let [q, k, v] = match &self.norms {
            None => {
                let qkv = rotated(qkv, heads + kv_heads)?;
                let Some(past) = pass.past else { return attention_qkv(&qkv, heads, kv_heads, options) };
                let all = qkv.reshape([b, t, heads + 2 * kv_heads, size])?;
                let rows = all.slice(2, heads..heads + 2 * kv_heads)?;
                let [k, v] = with(past, self.index, &rows, self.kind.window)?;
                [all.slice(2, 0..heads)?.permute(&[0, 2, 1, 3])?, k, v]
            }
            Some(_) => {
                let [q, k, v] = self.normed(&qkv)?;
                let q = by_heads(&rotated(q, heads)?, heads)?;
                let [q, k, v] = [q, by_heads(&rotated(k, kv_heads)?, kv_heads)?, by_heads(&v, kv_heads)?];
                match pass.past {
                    None => [q, k, v],
                    Some(past) => {
                        let rows = [&k, &v].map(|x| x.permute(&[0, 2, 1, 3]));
                        let [k, v] = rows;
                        let [k, v] = with(past, self.index, &cat(&[&k?, &v?], 2)?, self.kind.window)?;
                        [q, k, v]
                    }
                }
            }
        };
        let o = attention(&q, &k, &v, options)?;
        o.permute(&[0, 2, 1, 3])?.reshape([b, t, heads * size])
    }

    /// Decoding step: takes x `(B, 1, C)`, before the norm if there is one → `(B, 1, H*D)`.
    fn step(&self, x: &Tensor, norm: Option<&Norm>, at: &StepAt<'_>) -> Result<Tensor> {
        let AttentionConfig { heads, kv_heads, size, softcap, .. } = self.config;
        let mut qkv = self.qkv.around(x, FusedOps { norm: norm.map(Norm::before), ..FusedOps::default() })?;
        let mut norm = None;
        if let Some([query, key]) = &self.norms {
            let ((q, q_shift), (k, k_shift)) = (query.parts(), key.parts());
            let rms = q_shift.is_none() && k_shift.is_none();
            if rms && self.config.qk_norm == QkNorm::Head {
                let NormConfig { eps, unit_offset, .. } = query.config();
                norm = Some(HeadNorm { query: q, key: k, eps, unit_offset });
            } else {
                let [q, k, v] = self.normed(&qkv)?;
                qkv = cat(&[&q, &k, &v], -1)?;
            }
        }
        let rotary = self.kind.rotary.and_then(|set| at.angles.get(set));
        let rotary = rotary.map(|[cosines, sines]| [cosines, sines]);
        let options = DecodeOptions { heads, kv_heads, scale: self.scale, window: self.kind.window, softcap };
        let state = at.state(self.index)?;
        let cache = CacheAt { rows: state.rows(), position: at.position, pages: at.pages };
        decode_attention(&qkv, cache, rotary, norm, options)
            .map_err(|e| e.context(format!("layer {}, heads of {size}", self.index)))
    }

    fn out(&self) -> &Projection {
        &self.out
    }
    fn maps(&mut self) -> Vec<&mut Projection> {
        vec![&mut self.qkv, &mut self.out]
    }
    fn fused<'a>(
        &'a self,
        state: &'a LayerState,
        copies: [&Option<Tensor>; 2],
        norm: Option<NormConfig>,
    ) -> Result<Fused<'a>> {
        Fused::of(self, state, copies, norm)
    }
    fn row_major(&self) -> Result<[Option<Tensor>; 2]> {
        Ok([self.qkv.weight.row_major()?, self.out.weight.row_major()?])
    }
    fn boxed(&self) -> Box<dyn Mixer> {
        Box::new(self.clone())
    }
}

impl Attention {
    /// Takes qkv `(B, T, (H + 2 KH) D)` → normalized queries and keys, and values, `(B, T, n*D)` each.
    fn normed(&self, qkv: &Tensor) -> Result<[Tensor; 3]> {
        let AttentionConfig { heads, kv_heads, size, .. } = self.config;
        let [b, t, _] = qkv.dims3()?;
        let [q, k, v]: [Tensor; 3] = qkv
            .split(&[heads * size, kv_heads * size, kv_heads * size], -1)?
            .try_into()
            .map_err(|_| Error::internal("attention: qkv has three parts"))?;
        let Some([query, key]) = &self.norms else { return Ok([q, k, v]) };
        let by = |norm: &Norm, x: &Tensor, n: usize| match self.config.qk_norm {
            QkNorm::Head => norm.forward(&x.reshape([b, t, n, size])?)?.reshape([b, t, n * size]),
            _ => norm.forward(x),
        };
        Ok([by(query, &q, heads)?, by(key, &k, kv_heads)?, v])
    }
}

/// Takes x `(B, T, n*D)` → `(B, n, T, D)`; a view if the last axis is contiguous.
fn by_heads(x: &Tensor, n: usize) -> Result<Tensor> {
    let [b, t, width] = x.dims3()?;
    x.reshape([b, t, n, width / n])?.permute(&[0, 2, 1, 3])
}
