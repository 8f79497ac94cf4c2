//! Activations of an MLP.

use netcl_tensor::ops::gated::Gate;
use netcl_tensor::{Result, Tensor};

/// The activation function of an MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh approximation, as in GPT-2.
    #[default]
    GeluTanh,
    /// GELU with the error function.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

impl Activation {
    /// Applies the function to each element.
    ///
    /// # Errors
    /// `DType` if x is not of a floating-point type.
    pub fn apply(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::GeluTanh => x.gelu_tanh(),
            Self::Gelu => x.gelu(),
            Self::Relu => x.relu(),
            Self::Silu => x.silu(),
            Self::Tanh => x.tanh(),
        }
    }
    /// Returns the corresponding gate; `None` for tanh.
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
