//! The layers of a decoder: norms, projections, attention, MLP, and the transformer block.

use super::activation::Activation;
use super::config::{
    AttentionConfig, DecoderConfig, LayerKind, MlpConfig, NormConfig, NormKind, Placement, QkNorm,
};
use super::mixture::Mixture;
use super::shapes::{packed_name, parameter};
use super::weight::{RowMajor, Weight};
use crate::layers::Recompute;
use crate::layers::{Mode, dropout};
use crate::params::Params;
use netcl_tensor::ops::attention::{AttentionOptions, attention, attention_qkv};
use netcl_tensor::ops::decode_attention::{CacheAt, DecodeOptions, HeadNorm, decode_attention};
use netcl_tensor::ops::decode_step::{Layer, Map};
use netcl_tensor::ops::feed_forward::{feed_forward, feed_forward_again};
use netcl_tensor::ops::fused_linear::Around;
use netcl_tensor::ops::gated::gated;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::layer_norm::layer_norm;
use netcl_tensor::ops::paged_cache::{TextPages, cache_append, cache_gather};
use netcl_tensor::ops::residual_norm::{residual_layer_norm, residual_rms_norm};
use netcl_tensor::ops::rms_norm::rms_norm;
use netcl_tensor::ops::rope::rope;
use netcl_tensor::{Error, Result, Tensor};

/// Inputs of a decoding step (one new token per text) that all blocks share.
pub(super) struct StepAt<'a> {
    /// Rotary tables for each set of frequencies, with a row for each position of the cache.
    pub(super) angles: &'a [Angles],
    /// Key/value cache of each layer (B, S, 2 KH, D), or (P, page, 2 KH, D) in pages.
    pub(super) layers: &'a [Tensor],
    /// Number of tokens before, u32 (1) or (B) in device memory.
    pub(super) position: &'a Tensor,
    /// u32 (B, M): the pages of each text, if the cache has pages.
    pub(super) pages: Option<&'a Tensor>,
}

impl StepAt<'_> {
    /// Destination of the new keys and values of layer `index`.
    pub(super) fn cache(&self, index: usize) -> Result<CacheAt<'_>> {
        let rows =
            self.layers.get(index).ok_or_else(|| Error::internal(format!("cache: no layer {index}")))?;
        Ok(CacheAt { rows, position: self.position, pages: self.pages })
    }
}

/// A layer norm or RMS norm, by configuration.
#[derive(Clone)]
pub(super) struct Norm {
    weight: Tensor,
    bias: Option<Tensor>,
    config: NormConfig,
}

impl Norm {
    pub(super) fn new(params: &Params, name: &str, config: NormConfig) -> Result<Self> {
        let weight = parameter(params, &format!("{name}.weight"))?;
        let bias = match config.kind {
            NormKind::Rms => None,
            NormKind::Layer if config.bias => Some(parameter(params, &format!("{name}.bias"))?),
            // The kernel needs a bias: a constant zero.
            NormKind::Layer => Some(Tensor::zeros(params.device(), weight.shape(), params.dtype())?),
        };
        Ok(Self { weight, bias, config })
    }
    pub(super) fn config(&self) -> NormConfig {
        self.config
    }
    /// Weight, and bias for a layer norm.
    pub(super) fn parts(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }
    fn gain(&self) -> Result<Tensor> {
        if self.config.unit_offset { self.weight.add_scalar(1.0) } else { Ok(self.weight.clone()) }
    }
    /// x `(.., N)` → `(.., N)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm(x, &self.gain()?, bias, self.config.eps),
            None => rms_norm(x, &self.gain()?, self.config.eps),
        }
    }
    /// x itself (for the residual stream) and its norm; the backward pass adds the gradients of both in one kernel. With `again` the norm is not
    /// kept but recomputed from x in the backward pass.
    fn forward_residual(&self, x: &Tensor, again: bool) -> Result<(Tensor, Tensor)> {
        let (gain, eps) = (self.gain()?, self.config.eps);
        match &self.bias {
            Some(bias) => {
                let (x, y) = residual_layer_norm(x, &gain, bias, eps)?;
                let norm = move |[x, gain, bias]: [&Tensor; 3]| layer_norm(x, gain, bias, eps);
                let y = if again { y.recomputed_by([&x, &gain, bias], norm) } else { y };
                Ok((x, y))
            }
            None => {
                let (x, y) = residual_rms_norm(x, &gain, eps)?;
                let norm = move |[x, gain]: [&Tensor; 2]| rms_norm(x, gain, eps);
                let y = if again { y.recomputed_by([&x, &gain], norm) } else { y };
                Ok((x, y))
            }
        }
    }
}

/// A linear map with optional bias.
#[derive(Clone)]
struct Projection {
    weight: Weight,
    bias: Option<Tensor>,
}

impl Projection {
    fn new(params: &Params, name: &str, bias: bool, transposed: bool) -> Result<Self> {
        let weight = Weight::of(params, &format!("{name}.weight"), transposed)?;
        let bias = if bias { Some(parameter(params, &format!("{name}.bias"))?) } else { None };
        Ok(Self { weight, bias })
    }
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.weight.forward(x, self.bias.as_ref())
    }
    /// The map fused with the operations before and after it, in one launch for few rows.
    fn around(&self, x: &Tensor, around: Around<'_>) -> Result<Tensor> {
        self.weight.around(x, Around { bias: self.bias.as_ref(), ..around })
    }
    fn forward_add(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.weight.forward_add(residual, x, self.bias.as_ref())
    }
}

/// Cosines and sines (T, R/2) of one set of rotary frequencies for the positions of a pass.
pub(super) type Angles = [Tensor; 2];

/// Inputs of a forward pass that all blocks share.
pub(super) struct Pass<'a> {
    pub(super) mode: Mode<'a>,
    /// Rotary tables for each set of frequencies.
    pub(super) angles: Vec<Angles>,
    /// Key/value cache, if there is one.
    pub(super) past: Option<Past<'a>>,
}

/// The key/value cache of a pass, which writes after `start` tokens: for each layer (B, S, 2 KH, D), keys before values.
#[derive(Clone, Copy)]
pub(super) struct Past<'a> {
    pub(super) layers: &'a [Tensor],
    pub(super) start: usize,
    /// u32 (M): the pages of the only text, if the cache has pages: layers are (P, page, 2 KH, D) then, or in 8 bits.
    pub(super) pages: Option<&'a Tensor>,
}

/// Self-attention.
#[derive(Clone)]
struct Attention {
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

impl Attention {
    /// x `(B, T, C)` → concatenated heads `(B, T, H*D)`.
    fn heads(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
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
        };
        let qkv = self.qkv.forward(x)?; // (B, T, (H + 2 KH) D)
        let angles = self.kind.rotary.and_then(|set| pass.angles.get(set));
        let rotated = |x: Tensor, n: usize| match angles {
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
                let [k, v] = past.with(self.index, &rows, self.kind.window)?;
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
                        let [k, v] = past.with(self.index, &cat(&[&k?, &v?], 2)?, self.kind.window)?;
                        [q, k, v]
                    }
                }
            }
        };
        let o = attention(&q, &k, &v, options)?;
        o.permute(&[0, 2, 1, 3])?.reshape([b, t, heads * size])
    }
}

impl Attention {
    /// Decoding step: x `(B, 1, C)`, before the norm if there is one → `(B, 1, H*D)`.
    fn step(&self, x: &Tensor, norm: Option<&Norm>, at: &StepAt<'_>) -> Result<Tensor> {
        let AttentionConfig { heads, kv_heads, size, softcap, .. } = self.config;
        let mut qkv = self.qkv.around(x, Around { norm: norm.map(Norm::before), ..Around::default() })?;
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
        decode_attention(&qkv, at.cache(self.index)?, rotary, norm, options)
            .map_err(|e| e.context(format!("layer {}, heads of {size}", self.index)))
    }

    /// qkv `(B, T, (H + 2 KH) D)` → normalised queries and keys, and values, `(B, T, n*D)` each.
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

impl Past<'_> {
    /// Writes keys and values (B, T, 2 KH, D) of this pass into the cache. Keys and values (B, KH, S, D) of the tokens so far: all, or at least those
    /// that a window lets the new ones see.
    fn with(&self, layer: usize, rows: &Tensor, window: Option<usize>) -> Result<[Tensor; 2]> {
        let ([_, t, all, size], cache) = (rows.dims4()?, self.layer(layer)?);
        let seen = match self.pages {
            None => {
                cache.write_slice(1, self.start, rows)?;
                cache.slice(1, 0..self.start + t)?
            }
            Some(pages) => {
                let text = TextPages { rows: cache, pages };
                cache_append(&rows.reshape([t, all, size])?, text, self.start)?;
                let first = window.map_or(0, |window| (self.start + 1).saturating_sub(window));
                match self.start == 0 && cache.dtype() == rows.dtype() {
                    true => rows.clone(),
                    false => {
                        let rows = cache_gather(text, first..self.start + t, size, rows.dtype())?;
                        rows.reshape([1, self.start + t - first, all, size])?
                    }
                }
            }
        };
        let heads = |range| seen.slice(2, range)?.permute(&[0, 2, 1, 3]);
        Ok([heads(0..all / 2)?, heads(all / 2..all)?])
    }
    fn layer(&self, layer: usize) -> Result<&Tensor> {
        self.layers.get(layer).ok_or_else(|| Error::internal(format!("cache: no layer {layer}")))
    }
}

/// x `(B, T, n*D)` → `(B, n, T, D)`; a view if the last axis is contiguous.
fn by_heads(x: &Tensor, n: usize) -> Result<Tensor> {
    let [b, t, width] = x.dims3()?;
    x.reshape([b, t, n, width / n])?.permute(&[0, 2, 1, 3])
}

/// The MLP (feed-forward part).
#[derive(Clone)]
struct Mlp {
    up: Projection,
    down: Projection,
    config: MlpConfig,
    site: u64,
}

impl Mlp {
    /// x `(.., C)` → input of the second map `(.., hidden)`.
    fn hidden(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let MlpConfig { activation, gated: by_gate, .. } = self.config;
        let apply = move |x: &Tensor| match activation.gate().filter(|_| by_gate) {
            Some(gate) => gated(x, gate),
            None => activation.apply(x),
        };
        let x = self.up.forward(x)?;
        let y = apply(&x)?;
        let again = mode.recompute >= Recompute::Gelu;
        Ok(if again { y.recomputed_by([&x], move |[x]| apply(x)) } else { y })
    }

    /// `residual + MLP(x)` in two launches, if the MLP is two maps with biases and a GELU.
    fn fused(&self, residual: &Tensor, x: &Tensor, mode: Mode<'_>) -> Option<Result<Tensor>> {
        let plain = !self.config.gated && self.config.activation == Activation::GeluTanh;
        let (b1, b2) = self.up.bias.as_ref().zip(self.down.bias.as_ref()).filter(|_| plain)?;
        let (w1, w2) = self.up.weight.matrix().zip(self.down.weight.matrix())?;
        let whole = || {
            let (w1, w2) = (w1?, w2?);
            let maps = [&w1, b1, &w2, b2];
            match mode.recompute >= Recompute::Gelu {
                true => feed_forward_again(residual, x, maps),
                false => feed_forward(residual, x, maps),
            }
        };
        Some(whole().map_err(|e| self.up.weight.named(e)))
    }
}

impl Mlp {
    /// Decoding step: x `(B, 1, C)`, before the norm if there is one → input of the second map.
    fn step(&self, x: &Tensor, norm: Option<&Norm>) -> Result<Tensor> {
        let MlpConfig { activation, gated, .. } = self.config;
        let gate = activation.gate().map(|gate| (gate, gated));
        let around = Around { norm: norm.map(Norm::before), activation: gate, ..Around::default() };
        let y = self.up.around(x, around)?;
        if gate.is_some() { Ok(y) } else { activation.apply(&y) }
    }
}

/// Second part of a block: an MLP or a mixture of experts.
#[derive(Clone)]
enum Feed {
    Dense(Mlp),
    Sparse(Mixture),
}

/// A transformer block.
#[derive(Clone)]
pub(super) struct Block {
    pre: Option<[Norm; 2]>,
    post: Option<[Norm; 2]>,
    attention: Attention,
    feed: Feed,
    parallel: bool,
    residual_scale: f32,
}

impl Block {
    pub(super) fn new(params: &Params, config: &DecoderConfig, index: usize) -> Result<Self> {
        let names = config.family.names;
        let place = format!("{}{}{index}.", names.prefix, names.layer);
        let norm = |name: &str| Norm::new(params, &format!("{place}{name}"), config.norm);
        let two = |[a, b]: [&'static str; 2]| -> Result<[Norm; 2]> { Ok([norm(a)?, norm(b)?]) };
        let map =
            |name: &str, bias| Projection::new(params, &format!("{place}{name}"), bias, names.transposed);
        let a = config.attention;
        let factor = if a.scale_by_layer { 1.0 / (index as f32 + 1.0) } else { 1.0 };
        let plain = || 1.0 / (a.size as f32).sqrt();
        let scale = (a.scale.is_some() || a.scale_by_layer).then(|| a.scale.unwrap_or_else(plain) * factor);
        // Sites 0 to 3 belong to the embedding; each block has four.
        let site = 4 + 4 * index as u64;
        let kind = config.kind(index);
        Ok(Self {
            pre: if config.placement == Placement::Post { None } else { Some(two(names.pre_norms)?) },
            post: if config.placement == Placement::Pre { None } else { Some(two(names.post_norms)?) },
            attention: Attention {
                qkv: map(&packed_name(names.qkv, "qkv_proj"), a.qkv_bias)?,
                norms: if a.qk_norm == QkNorm::None { None } else { Some(two(names.qk_norms)?) },
                out: map(names.out, a.out_bias)?,
                config: a,
                kind,
                scale,
                index,
                site,
            },
            feed: match Mixture::new(params, config, (index, &place), site + 3)? {
                Some(mixture) => Feed::Sparse(mixture),
                None => Feed::Dense(Mlp {
                    up: map(&packed_name(names.up, "gate_up_proj"), config.mlp.bias)?,
                    down: map(names.down, config.mlp.bias)?,
                    config: config.mlp,
                    site: site + 3,
                }),
            },
            parallel: config.parallel,
            residual_scale: config.residual_scale,
        })
    }

    /// The quantised matrix of this name, if it is one of its maps'.
    pub(super) fn blocks_of(&mut self, name: &str) -> Option<&mut Weight> {
        let attention = &mut self.attention;
        let mut all = vec![&mut attention.qkv.weight, &mut attention.out.weight];
        if let Feed::Dense(mlp) = &mut self.feed {
            all.extend([&mut mlp.up.weight, &mut mlp.down.weight]);
        }
        all.into_iter().find(|weight| weight.is_blocks_of(name))
    }

    /// Copies as rows of its dense matrices that are stored (in, out); of mixtures of experts there are none.
    pub(super) fn row_major(&self) -> Result<RowMajor> {
        let Feed::Dense(mlp) = &self.feed else { return Ok(RowMajor::default()) };
        let copy = |map: &Projection| map.weight.row_major();
        let attention = &self.attention;
        Ok([copy(&attention.qkv)?, copy(&attention.out)?, copy(&mlp.up)?, copy(&mlp.down)?])
    }

    /// Its tensors, with the layer's cache, for a step in one launch; `Unsupported` says why there is none.
    pub(super) fn whole<'a>(&'a self, cache: &'a Tensor, copies: &RowMajor) -> Result<Layer<'a>> {
        let no = |why: &str| Err(Error::unsupported(format!("decode_step: {why}")));
        let Feed::Dense(mlp) = &self.feed else { return no("mixtures of experts") };
        let attention = &self.attention;
        let AttentionConfig { size, .. } = attention.config;
        let of_blocks = self.pre.iter().chain(&self.post).flatten().map(Norm::config).next();
        let head_norms = attention.norms.as_ref();
        if head_norms.is_some_and(|norms| norms.iter().any(|norm| Some(norm.config()) != of_blocks)) {
            return no("norms of heads other than the blocks'");
        }
        fn two(norms: Option<&[Norm; 2]>) -> Option<[(&Tensor, Option<&Tensor>); 2]> {
            norms.map(|[first, second]| [first.parts(), second.parts()])
        }
        let map = |map: &'a Projection, copy: &Option<Tensor>| -> Result<Map<'a>> {
            Ok(Map { rows: map.weight.parts(copy.as_ref())?, bias: map.bias.as_ref() })
        };
        let [qkv, out, up, down] = copies;
        Ok(Layer {
            norms: two(self.pre.as_ref()),
            post_norms: two(self.post.as_ref()),
            qkv: map(&attention.qkv, qkv)?,
            head_norms: head_norms.map(|[query, key]| [query.parts().0, key.parts().0]),
            out: map(&attention.out, out)?,
            up: map(&mlp.up, up)?,
            down: map(&mlp.down, down)?,
            cache,
            scale: attention.scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt()),
            window: attention.kind.window,
            rotary: attention.kind.rotary,
        })
    }

    /// Whether its MLP is a mixture of experts.
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self.feed, Feed::Sparse(_))
    }

    /// x `(B, T, C)` → `(B, T, C)`, and the router's logits (B, T, E) of a mixture of experts.
    pub(super) fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let mode = pass.mode;
        if let (true, Some([first, second]), Feed::Dense(mlp)) = (self.parallel, &self.pre, &self.feed) {
            let attended = self.attended(x, &first.forward(x)?, pass)?;
            let hidden = mlp.hidden(&second.forward(x)?, mode)?;
            return Ok((self.add(&attended, &hidden, (1, &mlp.down, mlp.site), mode)?, None));
        }
        let (x, h) = self.before(0, x, mode)?;
        let x = self.attended(&x, &h, pass)?;
        let (x, h) = self.before(1, &x, mode)?;
        let mlp = match &self.feed {
            Feed::Dense(mlp) => mlp,
            Feed::Sparse(mixture) => {
                let (y, logits) = mixture.forward(&h)?;
                return Ok((self.join(&x, y, (1, mixture.site), mode)?, Some(logits)));
            }
        };
        if let Some(y) = self.plain(mode).then(|| mlp.fused(&x, &h, mode)).flatten() {
            return Ok((y?, None));
        }
        Ok((self.add(&x, &mlp.hidden(&h, mode)?, (1, &mlp.down, mlp.site), mode)?, None))
    }

    /// The residual stream after attention with input `h`.
    fn attended(&self, residual: &Tensor, h: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let attention = &self.attention;
        self.add(residual, &attention.heads(h, pass)?, (0, &attention.out, attention.site + 1), pass.mode)
    }

    /// Decoding step: x `(B, 1, C)` → `(B, 1, C)`.
    pub(super) fn step(&self, x: &Tensor, at: &StepAt<'_>) -> Result<Tensor> {
        let norm = |part: usize| self.pre.as_ref().map(|norms| &norms[part]);
        let attention = &self.attention;
        let heads = attention.step(x, norm(0), at)?;
        let attended = self.map_step(x, &heads, (0, &attention.out, attention.site + 1))?;
        let read = if self.parallel && self.pre.is_some() { x } else { &attended };
        match &self.feed {
            Feed::Dense(mlp) => self.map_step(&attended, &mlp.step(read, norm(1))?, (1, &mlp.down, mlp.site)),
            Feed::Sparse(mixture) => {
                let read = norm(1).map_or_else(|| Ok(read.clone()), |norm| norm.forward(read))?;
                self.join(&attended, mixture.forward(&read)?.0, (1, mixture.site), Mode::eval())
            }
        }
    }

    /// Decoding step: applies a part's last map to `y` and adds the result to the residual stream.
    fn map_step(&self, residual: &Tensor, y: &Tensor, of: (usize, &Projection, u64)) -> Result<Tensor> {
        match self.plain(Mode::eval()) {
            true => of.1.around(y, Around { residual: Some(residual), ..Around::default() }),
            false => {
                let y = of.1.around(y, Around::default())?;
                self.join(residual, y, (of.0, of.2), Mode::eval())
            }
        }
    }

    /// Whether the output of a part's last map is added to the residual stream directly (no norm, dropout or factor).
    fn plain(&self, mode: Mode<'_>) -> bool {
        #[allow(clippy::float_cmp)] // a setting, not a result
        let unscaled = self.residual_scale == 1.0;
        self.post.is_none() && unscaled && mode.dropout <= 0.0
    }

    /// x for the residual stream, and the input of part 0 (attention) or 1 (MLP).
    fn before(&self, part: usize, x: &Tensor, mode: Mode<'_>) -> Result<(Tensor, Tensor)> {
        match &self.pre {
            Some(norms) => norms[part].forward_residual(x, mode.recompute >= Recompute::Norm),
            None => Ok((x.clone(), x.clone())),
        }
    }

    /// Applies a part's last map to `y` and adds the result to the residual stream; one launch if it is added directly.
    fn add(
        &self,
        residual: &Tensor,
        y: &Tensor,
        (part, map, site): (usize, &Projection, u64),
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        match self.plain(mode) {
            true => map.forward_add(residual, y),
            false => self.join(residual, map.forward(y)?, (part, site), mode),
        }
    }

    /// Adds a part's output to the residual stream.
    fn join(
        &self,
        residual: &Tensor,
        mut y: Tensor,
        (part, site): (usize, u64),
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        if let Some(norms) = &self.post {
            y = norms[part].forward(&y)?;
        }
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.residual_scale != 1.0 {
            y = y.mul_scalar(self.residual_scale)?;
        }
        residual.add(&dropout(&y, mode, site)?)
    }
}
