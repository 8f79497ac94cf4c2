//! The product of a trained adapter in the forward pass of a linear map.

use netcl_tensor::ops::feed_forward::linear_residual;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::{Result, Tensor};

/// A trained adapter of a linear map.
#[derive(Clone)]
pub(super) struct LowRankMap {
    /// (k r, in).
    pub(super) a: Tensor,
    pub(super) parts: Vec<LowRankRows>,
    pub(super) factor: f32,
}

/// Rows of the matrix (out, k r) that multiplies `x Aᵀ`. Each part of a map has its own columns, and the others are zero.
#[derive(Clone)]
pub(super) struct LowRankRows {
    /// B (rows, r), if the part is adapted.
    pub(super) b: Option<Tensor>,
    /// The columns before and after those of B.
    pub(super) zeros: [Option<Tensor>; 2],
}

impl LowRankMap {
    /// Takes the map's result y `(.., out)` and its input x `(.., in)` → `y + s B A x`.
    pub(super) fn added(&self, y: &Tensor, x: &Tensor) -> Result<Tensor> {
        let mut small = linear(x, &self.a.transpose(0, 1)?, None)?;
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.factor != 1.0 {
            small = small.mul_scalar(self.factor)?;
        }
        linear_residual(y, &small, &self.b()?.transpose(0, 1)?)
    }

    /// Returns the matrix (out, k r). It is small, so that copying its parts takes less time than adding each part to its columns of y.
    fn b(&self) -> Result<Tensor> {
        let rows = |part: &LowRankRows| {
            let [before, after] = &part.zeros;
            joined(&before.iter().chain(&part.b).chain(after).collect::<Vec<_>>(), 1)
        };
        let parts = self.parts.iter().map(rows).collect::<Result<Vec<_>>>()?;
        joined(&parts.iter().collect::<Vec<_>>(), 0)
    }
}

/// Concatenates tensors; a single one is not copied.
fn joined(parts: &[&Tensor], axis: isize) -> Result<Tensor> {
    match parts {
        [one] => Ok((*one).clone()),
        parts => cat(parts, axis),
    }
}
