//! Sizes, parameters and costs of attention.

use super::Attention;
use super::config::{AttentionConfig, MAX_HEAD, QkNorm};
use crate::decoder::config::{DecoderConfig, LayerKind};
use crate::decoder::lister::{Lister, Map, STD, packed_name};
use crate::decoder::mixer::name::ATTENTION;
use crate::decoder::mixer::{Mixer, MixerCosts, MixerKind, MixerName};
use crate::decoder::norm::Norm;
use crate::decoder::projection::Projection;
use crate::decoder::state::StateSpec;
use crate::params::Params;
use netcl_tensor::{Error, Result};

/// Attention as a [mixer](MixerKind).
pub struct AttentionKind;

/// See [`AttentionKind`].
pub static KIND: AttentionKind = AttentionKind;

impl MixerKind for AttentionKind {
    fn name(&self) -> MixerName {
        ATTENTION
    }

    fn sizes(&self, config: &DecoderConfig) -> Vec<(&'static str, usize)> {
        let AttentionConfig { heads, kv_heads, size, .. } = config.attention;
        vec![("number of heads", heads), ("number of key and value heads", kv_heads), ("head size", size)]
    }

    fn check(&self, config: &DecoderConfig) -> Result<()> {
        let AttentionConfig { heads, kv_heads, size, .. } = config.attention;
        if size > MAX_HEAD {
            return Err(Error::shape(format!("heads have size {size}, but at most {MAX_HEAD} is supported")));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::shape(format!(
                "{heads} query heads are not a multiple of {kv_heads} key and value heads"
            )));
        }
        Ok(())
    }

    fn check_layer(&self, config: &DecoderConfig, i: usize, kind: LayerKind) -> Result<()> {
        let Some(set) = kind.rotary else { return Ok(()) };
        let (size, dims) = (config.attention.size, config.rotary.get(set).map_or(0, |rotary| rotary.dims));
        if dims == 0 || dims % 2 == 1 || dims > size {
            return Err(Error::shape(format!(
                "layer {i} rotates {dims} elements of heads of {size}, expected an even number up to {size}"
            )));
        }
        Ok(())
    }

    fn parameters(&self, lister: &mut Lister<'_>, i: usize) {
        let c = lister.config;
        let (names, a) = (c.family.names, c.attention);
        let place = names.place(i);
        let (queries, keys) = (a.heads.saturating_mul(a.size), a.kv_heads.saturating_mul(a.size));
        let first = lister.list.len();
        let outputs = [queries, keys, keys];
        let (parts, inputs, bias) = (names.qkv, c.width, a.qkv_bias);
        lister.linear(&place, &Map { parts, packed: "qkv_proj", outputs: &outputs, inputs, bias, std: STD });
        if names.qkv_by_head {
            lister.list[first..].iter_mut().for_each(|shape| shape.by_head = Some([a.heads, a.size]));
        }
        if a.qk_norm != QkNorm::None {
            let full = a.qk_norm == QkNorm::Full;
            for (name, n) in names.qk_norms.iter().zip([queries, keys]) {
                lister.norm(&format!("{place}{name}"), if full { n } else { a.size });
            }
        }
        lister.residual_map(&place, (names.out, queries, a.out_bias));
    }

    fn make(&self, params: &Params, config: &DecoderConfig, i: usize, site: u64) -> Result<Box<dyn Mixer>> {
        let (names, a) = (config.family.names, config.attention);
        let place = names.place(i);
        let map =
            |name: &str, bias| Projection::new(params, &format!("{place}{name}"), bias, names.transposed);
        let norm = |name: &str| Norm::new(params, &format!("{place}{name}"), config.norm);
        let factor = if a.scale_by_layer { 1.0 / (i as f32 + 1.0) } else { 1.0 };
        let plain = || 1.0 / (a.size as f32).sqrt();
        let [query, key] = names.qk_norms;
        Ok(Box::new(Attention {
            qkv: map(&packed_name(names.qkv, "qkv_proj"), a.qkv_bias)?,
            norms: if a.qk_norm == QkNorm::None { None } else { Some([norm(query)?, norm(key)?]) },
            out: map(names.out, a.out_bias)?,
            config: a,
            kind: config.kind(i),
            scale: (a.scale.is_some() || a.scale_by_layer).then(|| a.scale.unwrap_or_else(plain) * factor),
            index: i,
            site,
        }))
    }

    fn state(&self, config: &DecoderConfig, kind: LayerKind) -> StateSpec {
        let a = &config.attention;
        StateSpec::Rows { rows: a.kv_heads.saturating_mul(2), size: a.size, window: kind.window }
    }

    fn costs(&self, config: &DecoderConfig) -> MixerCosts {
        let a = &config.attention;
        let heads = |n: usize| n.saturating_mul(a.size);
        // Queries, keys and values (twice if they are normalized), and the output of attention; one number per head and row.
        let normed = if a.qk_norm == QkNorm::None { 0 } else { heads(a.heads.saturating_add(a.kv_heads)) };
        let kept = a.packed().saturating_add(normed).saturating_add(heads(a.heads));
        MixerCosts { projected: a.packed(), kept, statistics: a.heads }
    }

    fn weights(&self, config: &DecoderConfig) -> f64 {
        let a = &config.attention;
        config.width as f64 * ((2 * a.heads + 2 * a.kv_heads) as f64 * a.size as f64)
    }

    fn flops(&self, config: &DecoderConfig, kind: LayerKind, t: usize) -> f64 {
        let a = &config.attention;
        // A query at position i sees min(i + 1, window) keys; of all of them half, by the usual count.
        let seen = match kind.window.filter(|w| *w < t) {
            Some(w) => w as f64 * (1.0 - 0.5 * w as f64 / t as f64),
            None => t as f64 / 2.0,
        };
        12.0 * seen * (a.heads * a.size) as f64
    }
}
