//! Layers: parameters with a forward. Each follows the PyTorch layer of its name, and its parameters have the same names.

mod attention;
mod block;
mod embedding;
mod linear;
mod norm;

pub use attention::MultiHeadAttention;
pub use block::{Activation, BlockOptions, Mlp, TransformerBlock};
pub use embedding::{Embedding, sinusoidal_positions};
pub use linear::{Conv1D, Linear};
pub use norm::{LayerNorm, RmsNorm};

use crate::config::Recompute;
use netcl_tensor::random::DropMask;
use netcl_tensor::{Result, Tensor};

/// What a forward needs besides its input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mode<'a> {
    /// Dropout probability; 0 when evaluating.
    pub dropout: f32,
    /// Seed of this run's random numbers.
    pub seed: u64,
    /// Number of this forward pass: every pass draws other masks, the same pass always the same.
    pub pass: u64,
    /// A [`counter`](netcl_tensor::random::counter) of draws that come before this pass. A captured step draws other masks as it
    /// changes: [`Mode::draws`] gives the number of a pass.
    pub counter: Option<&'a Tensor>,
    /// What the backward pass computes again.
    pub recompute: Recompute,
}

impl<'a> Mode<'a> {
    /// No dropout.
    pub fn eval() -> Self {
        Self::default()
    }
    /// Draws before pass number `pass`. Sites are 2³² draws apart, passes 2⁴⁴.
    pub fn draws(pass: u64) -> u64 {
        pass.wrapping_shl(44)
    }
    /// What the `site`-th dropout of this pass drops.
    pub(crate) fn mask(&self, site: u64) -> DropMask {
        let offset = Self::draws(self.pass).wrapping_add(site << 32);
        DropMask { probability: self.dropout, seed: self.seed, offset, counter: self.counter.cloned() }
    }
}

/// Zeroes elements with the mode's probability and scales the rest, drawn from the stream of `site`.
pub(crate) fn dropout(x: &Tensor, mode: Mode<'_>, site: u64) -> Result<Tensor> {
    if mode.dropout <= 0.0 {
        return Ok(x.clone());
    }
    netcl_tensor::ops::dropout::masked(x, mode.mask(site))
}
