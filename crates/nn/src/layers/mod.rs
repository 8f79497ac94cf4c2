//! Layers: parameters with a forward. Each follows the PyTorch layer of its name, and its parameters have the same names.

mod attention;
mod block;
mod embedding;
mod linear;
mod norm;

pub use attention::MultiHeadAttention;
pub use block::{BlockOptions, Mlp, TransformerBlock};
pub use embedding::{Embedding, sinusoidal_positions};
pub use linear::{Conv1D, Linear};
pub use norm::{LayerNorm, RmsNorm};

use netcl_tensor::random::Generator;
use netcl_tensor::{Result, Tensor};

/// What a forward needs besides its input.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mode {
    /// Dropout probability; 0 when evaluating.
    pub dropout: f32,
    /// Seed of this run's random numbers.
    pub seed: u64,
    /// Number of this forward pass: every pass draws other masks, the same pass always the same.
    pub pass: u64,
}

impl Mode {
    /// No dropout.
    pub fn eval() -> Self {
        Self::default()
    }
    /// The random numbers of the `site`-th dropout of this pass. Sites are 2³² draws apart, passes 2⁴⁴.
    pub(crate) fn generator(&self, site: u64) -> Generator {
        Generator { seed: self.seed, offset: self.pass.wrapping_shl(44).wrapping_add(site << 32) }
    }
}

/// Zeroes elements with the mode's probability and scales the rest, drawn from the stream of `site`.
pub(crate) fn dropout(x: &Tensor, mode: Mode, site: u64) -> Result<Tensor> {
    if mode.dropout <= 0.0 {
        return Ok(x.clone());
    }
    netcl_tensor::ops::dropout::dropout(x, mode.dropout, &mut mode.generator(site))
}
