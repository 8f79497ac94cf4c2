//! Token mixers of a layer, such as attention. Each is a folder and an entry in [`MIXERS`]: parameters, forward pass, decoding step and state size.
//! The tape computes the gradient. All other code uses mixers only through [`MixerKind`] and [`Mixer`].

pub mod attention;
mod moving_average;
pub mod name;

pub use attention::{AttentionConfig, Fused, QkNorm};
pub use moving_average::MOVING_AVERAGE;
pub use name::MixerName;

use super::config::{DecoderConfig, LayerKind, NormConfig};
use super::lister::Lister;
use super::norm::Norm;
use super::pass::{Pass, StepAt};
use super::projection::Projection;
use super::state::{LayerState, StateSpec};
use crate::params::Params;
use netcl_tensor::{Error, Result, Tensor};

/// All mixers. A layer's [`LayerKind::mixer`] is the name of one.
static MIXERS: &[&dyn MixerKind] = &[&attention::KIND, &moving_average::KIND];

/// Returns the mixer with this name. [`DecoderConfig::check`] rejects unknown names.
pub(in crate::decoder) fn of(name: MixerName) -> &'static dyn MixerKind {
    find(name).unwrap_or(&attention::KIND)
}

/// Does the same; `None` for an unknown name.
pub(in crate::decoder) fn find(name: MixerName) -> Option<&'static dyn MixerKind> {
    MIXERS.iter().copied().find(|kind| kind.name() == name)
}

/// Memory per token in a layer's mixer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixerCosts {
    /// Elements of its first projection per token.
    pub projected: usize,
    /// Elements in the type of the weights that training keeps for the backward pass.
    pub kept: usize,
    /// Additional f32 numbers that training keeps.
    pub statistics: usize,
}

/// A kind of mixer.
pub(in crate::decoder) trait MixerKind: Sync {
    /// Returns its name.
    fn name(&self) -> MixerName;

    /// Returns sizes in a configuration that must be positive, by name.
    fn sizes(&self, config: &DecoderConfig) -> Vec<(&'static str, usize)>;

    /// # Errors
    /// `Shape` or `Unsupported` for inconsistent sizes.
    fn check(&self, config: &DecoderConfig) -> Result<()>;

    /// # Errors
    /// The same for layer `i`.
    fn check_layer(&self, config: &DecoderConfig, i: usize, kind: LayerKind) -> Result<()>;

    /// Lists the parameters of layer `i`.
    fn parameters(&self, lister: &mut Lister<'_>, i: usize);

    /// Creates the mixer of layer `i` with the dropout site `site`.
    ///
    /// # Errors
    /// `Internal` for missing parameters.
    fn make(&self, params: &Params, config: &DecoderConfig, i: usize, site: u64) -> Result<Box<dyn Mixer>>;

    /// Returns the decoding state of a text.
    fn state(&self, config: &DecoderConfig, kind: LayerKind) -> StateSpec;

    /// Returns the memory per token.
    fn costs(&self, config: &DecoderConfig) -> MixerCosts;

    /// Returns the weights per token in matrix products.
    fn weights(&self, config: &DecoderConfig) -> f64;

    /// Returns the floating-point operations per token of a sequence of `t` in training, in addition to those of the weights.
    fn flops(&self, config: &DecoderConfig, kind: LayerKind, t: usize) -> f64;
}

/// The mixer of a layer without its last map ([`out`](Self::out)), whose output is added to the residual stream.
pub(in crate::decoder) trait Mixer: Send + Sync {
    /// Takes x `(B, T, C)` → input of the last map `(B, T, N)`. A [past](Pass::past) has the layer's state, which these tokens extend.
    ///
    /// # Errors
    /// Errors of the operations.
    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor>;

    /// Decoding step of the next tokens of each text: x `(B, T, C)`, before the norm if there is one → input of the last map.
    ///
    /// # Errors
    /// Errors of the operations.
    fn step(&self, x: &Tensor, norm: Option<&Norm>, at: &StepAt<'_>) -> Result<Tensor>;

    /// Returns the map into the residual stream.
    fn out(&self) -> &Projection;

    /// Returns its linear maps, which take adapters, and whose matrices quantized blocks may replace.
    fn maps(&mut self) -> Vec<&mut Projection>;

    /// Returns its part of a step in one launch, in blocks with norms of `norm`; `copies` are those of [`row_major`](Self::row_major).
    ///
    /// # Errors
    /// `Unsupported` with the reason why a step takes several launches.
    fn fused<'a>(
        &'a self,
        _state: &'a LayerState,
        _copies: [&Option<Tensor>; 2],
        _norm: Option<NormConfig>,
    ) -> Result<Fused<'a>> {
        Err(Error::unsupported("decode_step: layers without attention"))
    }

    /// Returns transposed copies of its first and last matrix if they are stored as (in, out), for a step in one launch.
    ///
    /// # Errors
    /// Device errors.
    fn row_major(&self) -> Result<[Option<Tensor>; 2]> {
        Ok([None, None])
    }

    /// Returns another handle of the same mixer.
    fn boxed(&self) -> Box<dyn Mixer>;
}

impl Clone for Box<dyn Mixer> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}
