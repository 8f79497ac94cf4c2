//! The layers of a decoder: a mixer of tokens, an MLP, and the transformer block of both.

use super::activation::Activation;
use super::config::{DecoderConfig, MlpConfig, Placement};
use super::lister::packed_name;
use super::mixer::{self, Fused, Mixer};
use super::mixture::Mixture;
use super::norm::Norm;
use super::pass::{Pass, StepAt};
use super::projection::Projection;
use super::state::LayerState;
use super::weight::{RowMajor, Weight};
use crate::layers::Recompute;
use crate::layers::{Mode, dropout};
use crate::params::Params;
use netcl_tensor::ops::decode_step::DecodeLayer;
use netcl_tensor::ops::feed_forward::{feed_forward, feed_forward_again};
use netcl_tensor::ops::fused_linear::FusedOps;
use netcl_tensor::ops::gated::gated;
use netcl_tensor::tape::checkpoint_rows;
use netcl_tensor::{Error, Result, Tensor};

/// The MLP (feed-forward part).
#[derive(Clone)]
struct Mlp {
    up: Projection,
    down: Projection,
    config: MlpConfig,
    site: u64,
}

impl Mlp {
    /// Takes x `(.., C)` → input of the second map `(.., hidden)`.
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

    /// Computes `residual + MLP(x)` in two launches, if the MLP has two maps with biases and a GELU.
    fn fused(&self, residual: &Tensor, x: &Tensor, mode: Mode<'_>) -> Option<Result<Tensor>> {
        let plain = !self.config.gated && self.config.activation == Activation::GeluTanh;
        let adapted = self.up.low_rank.is_some() || self.down.low_rank.is_some();
        let (b1, b2) = self.up.bias.as_ref().zip(self.down.bias.as_ref()).filter(|_| plain && !adapted)?;
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
    /// Decoding step: takes x `(B, 1, C)`, before the norm if there is one → input of the second map.
    fn step(&self, x: &Tensor, norm: Option<&Norm>) -> Result<Tensor> {
        let MlpConfig { activation, gated, .. } = self.config;
        let gate = activation.gate().map(|gate| (gate, gated));
        let around = FusedOps { norm: norm.map(Norm::before), activation: gate, ..FusedOps::default() };
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

/// Returns the rows of a batch of `all` that an MLP computes at a time if memory is short. Large products need many rows. There are few parts, because
/// their gradients are added in the storage type.
pub fn rows_at_a_time(all: usize) -> usize {
    const LEAST: usize = 2048;
    const PARTS: usize = 8;
    all.div_ceil(PARTS).max(LEAST)
}

/// A transformer block.
#[derive(Clone)]
pub(super) struct Block {
    pre: Option<[Norm; 2]>,
    post: Option<[Norm; 2]>,
    mixer: Box<dyn Mixer>,
    /// First of four dropout sites.
    site: u64,
    feed: Feed,
    parallel: bool,
    residual_scale: f32,
}

impl Block {
    pub(super) fn new(params: &Params, config: &DecoderConfig, index: usize) -> Result<Self> {
        let names = config.family.names;
        let place = names.place(index);
        let norm = |name: &str| Norm::new(params, &format!("{place}{name}"), config.norm);
        let two = |[a, b]: [&'static str; 2]| -> Result<[Norm; 2]> { Ok([norm(a)?, norm(b)?]) };
        let map =
            |name: &str, bias| Projection::new(params, &format!("{place}{name}"), bias, names.transposed);
        // Sites 0 to 3 belong to the embedding; each block has four.
        let site = 4 + 4 * index as u64;
        Ok(Self {
            pre: if config.placement == Placement::Post { None } else { Some(two(names.pre_norms)?) },
            post: if config.placement == Placement::Pre { None } else { Some(two(names.post_norms)?) },
            mixer: mixer::of(config.kind(index).mixer).make(params, config, index, site)?,
            site,
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

    /// Returns the quantized matrix with this name, if it belongs to the layer's maps.
    pub(super) fn blocks_of(&mut self, name: &str) -> Option<&mut Weight> {
        self.maps().into_iter().map(|map| &mut map.weight).find(|weight| weight.is_blocks_of(name))
    }

    /// Returns its linear maps, without those of experts.
    pub(super) fn maps(&mut self) -> Vec<&mut Projection> {
        let mut all = self.mixer.maps();
        if let Feed::Dense(mlp) = &mut self.feed {
            all.extend([&mut mlp.up, &mut mlp.down]);
        }
        all
    }

    /// Returns transposed copies of its dense matrices that are stored as (in, out); mixtures of experts have none.
    pub(super) fn row_major(&self) -> Result<RowMajor> {
        let Feed::Dense(mlp) = &self.feed else { return Ok(RowMajor::default()) };
        let copy = |map: &Projection| map.weight.row_major();
        let [first, out] = self.mixer.row_major()?;
        Ok([first, out, copy(&mlp.up)?, copy(&mlp.down)?])
    }

    /// Returns its tensors, with the layer's state, for a step in one launch; `Unsupported` with the reason if it takes several.
    pub(super) fn whole<'a>(&'a self, state: &'a LayerState, copies: &RowMajor) -> Result<DecodeLayer<'a>> {
        let Feed::Dense(mlp) = &self.feed else {
            return Err(Error::unsupported("decode_step: mixtures of experts"));
        };
        fn two(norms: Option<&[Norm; 2]>) -> Option<[(&Tensor, Option<&Tensor>); 2]> {
            norms.map(|[first, second]| [first.parts(), second.parts()])
        }
        let norm = self.pre.iter().chain(&self.post).flatten().map(Norm::config).next();
        let [qkv, out, up, down] = copies;
        let Fused { qkv, head_norms, out, cache, scale, window, rotary } =
            self.mixer.fused(state, [qkv, out], norm)?;
        Ok(DecodeLayer {
            norms: two(self.pre.as_ref()),
            post_norms: two(self.post.as_ref()),
            qkv,
            head_norms,
            out,
            up: mlp.up.map(up.as_ref())?,
            down: mlp.down.map(down.as_ref())?,
            cache,
            scale,
            window,
            rotary,
        })
    }

    /// Returns true if its MLP is a mixture of experts.
    pub(super) fn is_sparse(&self) -> bool {
        matches!(self.feed, Feed::Sparse(_))
    }

    /// Takes x `(B, T, C)` → `(B, T, C)`, and the router's logits (B, T, E) of a mixture of experts.
    pub(super) fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<(Tensor, Option<Tensor>)> {
        let mode = pass.mode;
        if let (true, Some([first, second]), Feed::Dense(mlp)) = (self.parallel, &self.pre, &self.feed) {
            let mixed = self.mixed(x, &first.forward(x)?, pass)?;
            let hidden = mlp.hidden(&second.forward(x)?, mode)?;
            return Ok((self.add(&mixed, &hidden, (1, &mlp.down, mlp.site), mode)?, None));
        }
        let (x, h) = self.before(0, x, mode)?;
        let x = self.mixed(&x, &h, pass)?;
        let mlp = match &self.feed {
            Feed::Dense(mlp) => mlp,
            Feed::Sparse(mixture) => {
                let (x, h) = self.before(1, &x, mode)?;
                let (y, logits) = mixture.forward(&h)?;
                return Ok((self.join(&x, y, (1, mixture.site), mode)?, Some(logits)));
            }
        };
        if mode.recompute < Recompute::Offload || mode.dropout > 0.0 {
            return Ok((self.second(mlp, &x, mode)?, None));
        }
        let (rows, block, mlp) = (rows_at_a_time(x.shape().rows_cols().0), self.clone(), mlp.clone());
        Ok((checkpoint_rows("mlp", &x, rows, move |x| block.second(&mlp, x, Mode::eval()))?, None))
    }

    /// Returns the residual stream after the MLP.
    fn second(&self, mlp: &Mlp, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, h) = self.before(1, x, mode)?;
        match self.plain(mode).then(|| mlp.fused(&x, &h, mode)).flatten() {
            Some(y) => y,
            None => self.add(&x, &mlp.hidden(&h, mode)?, (1, &mlp.down, mlp.site), mode),
        }
    }

    /// Returns the residual stream after the mixer with input `h`.
    fn mixed(&self, residual: &Tensor, h: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let y = self.mixer.forward(h, pass)?;
        self.add(residual, &y, (0, self.mixer.out(), self.site + 1), pass.mode)
    }

    /// Decoding step: takes x `(B, 1, C)` → `(B, 1, C)`.
    pub(super) fn step(&self, x: &Tensor, at: &StepAt<'_>) -> Result<Tensor> {
        let norm = |part: usize| self.pre.as_ref().map(|norms| &norms[part]);
        let y = self.mixer.step(x, norm(0), at)?;
        let mixed = self.map_step(x, &y, (0, self.mixer.out(), self.site + 1))?;
        let read = if self.parallel && self.pre.is_some() { x } else { &mixed };
        match &self.feed {
            Feed::Dense(mlp) => self.map_step(&mixed, &mlp.step(read, norm(1))?, (1, &mlp.down, mlp.site)),
            Feed::Sparse(mixture) => {
                let read = norm(1).map_or_else(|| Ok(read.clone()), |norm| norm.forward(read))?;
                self.join(&mixed, mixture.forward(&read)?.0, (1, mixture.site), Mode::eval())
            }
        }
    }

    /// Decoding step: applies a part's last map to `y` and adds the result to the residual stream.
    fn map_step(&self, residual: &Tensor, y: &Tensor, of: (usize, &Projection, u64)) -> Result<Tensor> {
        match self.plain(Mode::eval()) {
            true => of.1.around(y, FusedOps { residual: Some(residual), ..FusedOps::default() }),
            false => {
                let y = of.1.around(y, FusedOps::default())?;
                self.join(residual, y, (of.0, of.2), Mode::eval())
            }
        }
    }

    /// Returns true if the output of a part's last map is added to the residual stream directly (no norm, dropout or factor).
    fn plain(&self, mode: Mode<'_>) -> bool {
        #[allow(clippy::float_cmp)] // a setting, not a result
        let unscaled = self.residual_scale == 1.0;
        self.post.is_none() && unscaled && mode.dropout <= 0.0
    }

    /// x for the residual stream, and the input of part 0 (mixer) or 1 (MLP).
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
