//! Activations of an MLP.

use netcl_tensor::ops::gated::Gate;
use netcl_tensor::{Result, Tensor};

/// The function between the maps of a feed-forward part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// GELU by its approximation with tanh, GPT-2's.
    #[default]
    GeluTanh,
    /// GELU by the error function.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Of each element.
    ///
    /// # Errors
    /// `DType` when x is not of floats.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::GeluTanh => x.gelu_tanh(),
            Self::Gelu => x.gelu(),
            Self::Relu => x.relu(),
            Self::Silu => x.silu(),
            Self::Tanh => x.tanh(),
        }
    }
    /// The same as a gate; there is none of tanh.
    pub fn gate(self) -> Option<Gate> {
        match self {
            Self::GeluTanh => Some(Gate::GeluTanh),
            Self::Gelu => Some(Gate::Gelu),
            Self::Relu => Some(Gate::Relu),
            Self::Silu => Some(Gate::Silu),
            Self::Tanh => None,
        }
    }
}
