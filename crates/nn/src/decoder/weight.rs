//! The matrix of a linear map: a dense, trainable tensor, or read-only quantised blocks as in a GGUF file.

use super::shapes::parameter;
use crate::layers::in_layer;
use crate::params::Params;
use netcl_tensor::ops::decode_step::Rows;
use netcl_tensor::ops::feed_forward::{linear_add, linear_residual};
use netcl_tensor::ops::fused_linear::{Around, fused_linear, fused_linear_of_blocks, fused_linear_of_parts};
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::quant::Blocks;
use netcl_tensor::{DType, Error, Result, Tensor};

/// Such a matrix.
#[derive(Clone)]
pub(super) enum Weight {
    /// Dense: (out, in), or (in, out) if `transposed`.
    Dense { tensor: Tensor, transposed: bool },
    /// Quantised: one or several matrices (out, in), stacked along the rows, each with its own format.
    Blocks { name: String, parts: Vec<Blocks> },
}

impl Weight {
    /// The parameter with this name, or the quantised blocks that replace it.
    pub(super) fn of(params: &Params, name: &str, transposed: bool) -> Result<Self> {
        match params.blocks(name) {
            Some(parts) => Ok(Self::Blocks { name: name.to_owned(), parts: parts.to_vec() }),
            None => Ok(Self::Dense { tensor: parameter(params, name)?, transposed }),
        }
    }

    /// The matrix as (in, out), if it is dense.
    pub(super) fn matrix(&self) -> Option<Result<Tensor>> {
        match self {
            Self::Dense { tensor, transposed: true } => Some(Ok(tensor.clone())),
            Self::Dense { tensor, transposed: false } => Some(tensor.transpose(0, 1)),
            Self::Blocks { .. } => None,
        }
    }

    /// The matrix as a dense tensor (out, in); quantised blocks are dequantised for this call.
    pub(super) fn rows(&self, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Dense { tensor, transposed: false } => Ok(tensor.clone()),
            Self::Dense { tensor, transposed: true } => tensor.transpose(0, 1),
            Self::Blocks { parts, .. } => {
                let parts = parts.iter().map(|part| part.dense(dtype)).collect::<Result<Vec<_>>>()?;
                cat(&parts.iter().collect::<Vec<_>>(), 0)
            }
        }
    }

    /// Embedding lookup in a quantised matrix, times `by`: ids (..) → (.., in).
    pub(super) fn gather(&self, ids: &Tensor, by: f32, dtype: DType) -> Result<Tensor> {
        let rows = match self {
            Self::Blocks { parts, .. } => parts.first().filter(|_| parts.len() == 1),
            Self::Dense { .. } => None,
        };
        let rows = rows.ok_or_else(|| Error::internal("rows by number of no single matrix of blocks"));
        rows.and_then(|rows| rows.gather(ids, by, dtype)).map_err(|e| self.named(e))
    }

    /// x `(.., in)` → `x w + bias` `(.., out)`.
    pub(super) fn forward(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.matrix() {
            Some(matrix) => linear(x, &matrix?, bias),
            None => self.around(x, Around { bias, ..Around::default() }),
        }
        .map_err(|e| self.named(e))
    }

    /// The map fused with the operations before and after it, in one launch for few rows.
    pub(super) fn around(&self, x: &Tensor, around: Around<'_>) -> Result<Tensor> {
        let y = match self {
            Self::Dense { tensor, transposed: true } => fused_linear(x, tensor, around),
            Self::Dense { tensor, .. } => fused_linear(x, &tensor.transpose(0, 1)?, around),
            Self::Blocks { parts, .. } => match parts.as_slice() {
                [one] => fused_linear_of_blocks(x, one, around),
                parts => fused_linear_of_parts(x, parts, around),
            },
        };
        y.map_err(|e| self.named(e))
    }

    /// The map's result added to the residual stream.
    pub(super) fn forward_add(&self, residual: &Tensor, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let y = match (self.matrix(), bias) {
            (Some(matrix), Some(bias)) => linear_add(residual, x, &matrix?, bias),
            (Some(matrix), None) => linear_residual(residual, x, &matrix?),
            (None, bias) => {
                return self.around(x, Around { bias, residual: Some(residual), ..Around::default() });
            }
        };
        y.map_err(|e| self.named(e))
    }

    /// Adds the matrix's name to an error.
    pub(super) fn named(&self, error: netcl_tensor::Error) -> netcl_tensor::Error {
        match self {
            Self::Dense { tensor, .. } => in_layer(error, tensor),
            Self::Blocks { name, .. } => error.context(name),
        }
    }
}

/// Copies as rows (out, in) of a block's dense matrices that are stored (in, out): queries with keys and values, output, up, down.
pub(super) type RowMajor = [Option<Tensor>; 4];

impl Weight {
    /// A copy as rows of a dense matrix that is stored (in, out).
    pub(super) fn row_major(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Dense { tensor, transposed: true } => {
                Ok(Some(tensor.transpose(0, 1)?.contiguous()?.detach()))
            }
            _ => Ok(None),
        }
    }

    /// The matrix's parts as the kernel takes them; `copy` has the rows of one that is stored (in, out).
    pub(super) fn parts(&self, copy: Option<&Tensor>) -> Result<Vec<Rows<'_>>> {
        match (self, copy) {
            (Self::Dense { tensor, transposed: false }, _) => Ok(vec![Rows::Dense(tensor.clone())]),
            (Self::Dense { .. }, Some(copy)) => Ok(vec![Rows::Dense(copy.clone())]),
            (Self::Dense { .. }, None) => {
                Err(Error::internal("decode_step: no copy of weights stored (in, out)"))
            }
            (Self::Blocks { parts, .. }, _) => Ok(parts.iter().map(Rows::Blocks).collect()),
        }
    }
}
