//! Mixers of the tokens of a layer, such as attention. Each is a folder and an entry in [`MIXERS`]: parameters, forward pass, decoding step and the size
//! of its state. The tape gives the gradient. Everything else knows mixers by [`MixerKind`] and [`Mixer`] alone.

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
use super::state::{State, StateSpec};
use super::weight::Weight;
use crate::params::Params;
use netcl_tensor::{Error, Result, Tensor};

/// All mixers. A layer's [`LayerKind::mixer`] is the name of one.
static MIXERS: &[&dyn MixerKind] = &[&attention::KIND, &moving_average::KIND];

/// The mixer of this name. [`DecoderConfig::check`] refuses names that none has.
pub(in crate::decoder) fn of(name: MixerName) -> &'static dyn MixerKind {
    find(name).unwrap_or(&attention::KIND)
}

/// The same, if there is one.
pub(in crate::decoder) fn find(name: MixerName) -> Option<&'static dyn MixerKind> {
    MIXERS.iter().copied().find(|kind| kind.name() == name)
}

/// Memory for a token in a layer's mixer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixerCosts {
    /// Elements that its first map makes of a token.
    pub projected: usize,
    /// Elements in the type of the weights that training keeps for the backward pass.
    pub kept: usize,
    /// Numbers in f32 that training keeps besides.
    pub statistics: usize,
}

/// A kind of mixer.
pub(in crate::decoder) trait MixerKind: Sync {
    /// Its name.
    fn name(&self) -> MixerName;

    /// Sizes in a configuration that must be positive, by name.
    fn sizes(&self, config: &DecoderConfig) -> Vec<(&'static str, usize)>;

    /// # Errors
    /// `Shape` or `Unsupported` for sizes that do not fit each other.
    fn check(&self, config: &DecoderConfig) -> Result<()>;

    /// # Errors
    /// The same for layer `i`.
    fn check_layer(&self, config: &DecoderConfig, i: usize, kind: LayerKind) -> Result<()>;

    /// Lists the parameters of layer `i`.
    fn parameters(&self, lister: &mut Lister<'_>, i: usize);

    /// The mixer of layer `i`. It has the dropout site `site`.
    ///
    /// # Errors
    /// `Internal` for parameters that are not there.
    fn make(&self, params: &Params, config: &DecoderConfig, i: usize, site: u64) -> Result<Box<dyn Mixer>>;

    /// The decoding state of a text.
    fn state(&self, config: &DecoderConfig, kind: LayerKind) -> StateSpec;

    /// Memory for a token.
    fn costs(&self, config: &DecoderConfig) -> MixerCosts;

    /// Weights that a token meets in matrix products.
    fn weights(&self, config: &DecoderConfig) -> f64;

    /// Floating-point operations of a token of a sequence of `t` in training, besides those of the weights.
    fn flops(&self, config: &DecoderConfig, kind: LayerKind, t: usize) -> f64;
}

/// The mixer of a layer, without its last map ([`out`](Self::out)), which adds to the residual stream.
pub(in crate::decoder) trait Mixer: Send + Sync {
    /// x `(B, T, C)` → input of the last map `(B, T, N)`. A [past](Pass::past) has the layer's state, which these tokens extend.
    ///
    /// # Errors
    /// Those of the operations.
    fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor>;

    /// Decoding step of the next tokens of each text: x `(B, T, C)`, before the norm if there is one → input of the last map.
    ///
    /// # Errors
    /// Those of the operations.
    fn step(&self, x: &Tensor, norm: Option<&Norm>, at: &StepAt<'_>) -> Result<Tensor>;

    /// The map into the residual stream.
    fn out(&self) -> &Projection;

    /// Matrices that quantised blocks may replace.
    fn weights(&mut self) -> Vec<&mut Weight>;

    /// Its part of a step in one launch, in blocks with norms of `norm`; `copies` are those of [`row_major`](Self::row_major).
    ///
    /// # Errors
    /// `Unsupported` says why a step takes several launches.
    fn fused<'a>(
        &'a self,
        _state: &'a State,
        _copies: [&Option<Tensor>; 2],
        _norm: Option<NormConfig>,
    ) -> Result<Fused<'a>> {
        Err(Error::unsupported("decode_step: layers without attention"))
    }

    /// Copies as rows of its first and last matrix where they are stored (in, out), for a step in one launch.
    ///
    /// # Errors
    /// Those of the device.
    fn row_major(&self) -> Result<[Option<Tensor>; 2]> {
        Ok([None, None])
    }

    /// Another handle of the same mixer.
    fn boxed(&self) -> Box<dyn Mixer>;
}

impl Clone for Box<dyn Mixer> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}
