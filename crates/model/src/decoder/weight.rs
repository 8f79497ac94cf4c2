//! The matrix of a linear map: a dense, trainable tensor, or read-only quantized blocks in GGUF format.
//!
//! Several matrices in one map, such as queries, keys and values, may each have a different format.

use super::lister::parameter;
use crate::layers::in_layer;
use crate::params::Params;
use netcl_tensor::ops::decode_embedding::decode_embedding;
use netcl_tensor::ops::decode_step::WeightRows;
use netcl_tensor::ops::feed_forward::{linear_add, linear_residual};
use netcl_tensor::ops::fused_linear::{
    FusedOps, fused_linear, fused_linear_of_blocks, fused_linear_of_parts,
};
use netcl_tensor::ops::gated::gated;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::linear_of_blocks::linear_of_blocks;
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::quant::Blocks;
use netcl_tensor::tape::records_gradient;
use netcl_tensor::{DType, Device, Error, Result, Tensor};

/// Such a matrix.
#[derive(Clone)]
pub(super) enum Weight {
    /// Dense: (out, in), or (in, out) if `transposed`.
    Dense { tensor: Tensor, transposed: bool },
    /// Quantized: one or several matrices (out, in), stacked along the rows, each with its own format.
    Blocks { name: String, parts: Vec<Blocks>, beside: Option<LowRankProduct> },
}

/// A product of two small matrices that is added to that of a large one: `x aᵀ bᵀ`.
#[derive(Clone)]
pub(super) struct LowRankProduct {
    /// (r, in).
    a: Tensor,
    /// (out, r).
    b: Tensor,
}

impl Weight {
    /// Returns the parameter with this name, or the quantized blocks that replace it.
    pub(super) fn of(params: &Params, name: &str, transposed: bool) -> Result<Self> {
        match params.blocks(name) {
            Some(parts) => Ok(Self::Blocks { name: name.to_owned(), parts: parts.to_vec(), beside: None }),
            None => Ok(Self::Dense { tensor: parameter(params, name)?, transposed }),
        }
    }

    /// Returns the matrix as (in, out), if it is dense.
    pub(super) fn matrix(&self) -> Option<Result<Tensor>> {
        match self {
            Self::Dense { tensor, transposed: true } => Some(Ok(tensor.clone())),
            Self::Dense { tensor, transposed: false } => Some(tensor.transpose(0, 1)),
            Self::Blocks { .. } => None,
        }
    }

    /// Returns the matrix as a dense tensor (out, in); quantized blocks are dequantized for this call.
    pub(super) fn rows(&self, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Dense { tensor, transposed: false } => Ok(tensor.clone()),
            Self::Dense { tensor, transposed: true } => tensor.transpose(0, 1),
            Self::Blocks { parts, beside, .. } => {
                let parts = parts.iter().map(|part| part.dense(dtype)).collect::<Result<Vec<_>>>()?;
                let rows = match &parts[..] {
                    [one] => one.clone(),
                    parts => cat(&parts.iter().collect::<Vec<_>>(), 0)?,
                };
                match beside {
                    Some(LowRankProduct { a, b }) => linear_residual(&rows, b, a),
                    None => Ok(rows),
                }
            }
        }
    }

    /// Returns the quantized matrix, if it is a single one without another product.
    pub(super) fn blocks_alone(&self) -> Option<&Blocks> {
        match self {
            Self::Blocks { parts, beside: None, .. } => parts.first().filter(|_| parts.len() == 1),
            Self::Blocks { .. } | Self::Dense { .. } => None,
        }
    }

    /// Looks up embeddings in a quantized matrix, times `by`: ids (..) → (.., in).
    pub(super) fn gather(&self, ids: &Tensor, by: f32, dtype: DType) -> Result<Tensor> {
        let (rows, beside) = match self {
            Self::Blocks { parts, beside, .. } => {
                (parts.first().filter(|_| parts.len() == 1), beside.as_ref())
            }
            Self::Dense { .. } => (None, None),
        };
        let rows = rows.ok_or_else(|| Error::internal("rows by number require a single matrix of blocks"));
        let rows = rows.and_then(|rows| rows.gather(ids, by, dtype)).map_err(|e| self.named(e))?;
        match beside {
            Some(LowRankProduct { a, b }) => {
                let factors = decode_embedding(b, ids, by, None)?;
                let around = FusedOps { residual: Some(&rows), ..FusedOps::default() };
                fused_linear(&factors, a, around).map_err(|e| self.named(e))
            }
            None => Ok(rows),
        }
    }

    /// Takes x `(.., in)` → `x w + bias` `(.., out)`.
    pub(super) fn forward(&self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.matrix() {
            Some(matrix) => linear(x, &matrix?, bias),
            None => self.around(x, FusedOps { bias, ..FusedOps::default() }),
        }
        .map_err(|e| self.named(e))
    }

    /// Returns the map fused with the operations before and after it, in one launch for few rows.
    pub(super) fn around(&self, x: &Tensor, around: FusedOps<'_>) -> Result<Tensor> {
        let y = match self {
            Self::Dense { tensor, transposed: true } => fused_linear(x, tensor, around),
            Self::Dense { tensor, .. } => fused_linear(x, &tensor.transpose(0, 1)?, around),
            Self::Blocks { parts, beside: None, .. } => of_blocks(x, parts, around),
            Self::Blocks { parts, beside: Some(beside), .. } => beside.added(x, parts, around),
        };
        y.map_err(|e| self.named(e))
    }

    /// Returns the map's result added to the residual stream.
    pub(super) fn forward_add(&self, residual: &Tensor, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let y = match (self.matrix(), bias) {
            (Some(matrix), Some(bias)) => linear_add(residual, x, &matrix?, bias),
            (Some(matrix), None) => linear_residual(residual, x, &matrix?),
            (None, bias) => {
                return self.around(x, FusedOps { bias, residual: Some(residual), ..FusedOps::default() });
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

fn of_blocks(x: &Tensor, parts: &[Blocks], around: FusedOps<'_>) -> Result<Tensor> {
    if records_gradient(x) {
        return trained(x, parts, around);
    }
    match parts {
        [one] => fused_linear_of_blocks(x, one, around),
        parts => fused_linear_of_parts(x, parts, around),
    }
}

/// Computes the map with a gradient of x, operation by operation.
fn trained(x: &Tensor, parts: &[Blocks], around: FusedOps<'_>) -> Result<Tensor> {
    let x = &around.norm.map_or_else(|| Ok(x.clone()), |norm| norm.apply(x))?;
    let y = linear_of_blocks(x, parts, around.bias)?;
    let y = match around.activation {
        None => y,
        Some((gate, true)) => gated(&y, gate)?,
        Some((gate, false)) => gate.apply(&y)?,
    };
    around.residual.map_or_else(|| Ok(y.clone()), |residual| residual.add(&y))
}

impl LowRankProduct {
    /// Computes the map with the blocks and the two small matrices, including the fused operations: two more launches, and one for an activation.
    fn added(&self, x: &Tensor, parts: &[Blocks], around: FusedOps<'_>) -> Result<Tensor> {
        let FusedOps { norm, activation, residual, .. } = around;
        let small = fused_linear(x, &self.a.transpose(0, 1)?, FusedOps { norm, ..FusedOps::default() })?;
        // A residual cannot be added before an activation.
        let early = residual.filter(|_| activation.is_none());
        let y = of_blocks(x, parts, FusedOps { activation: None, residual: early, ..around })?;
        let b = self.b.transpose(0, 1)?;
        let y = fused_linear(&small, &b, FusedOps { residual: Some(&y), ..FusedOps::default() })?;
        let y = match activation {
            None => return Ok(y),
            Some((gate, true)) => gated(&y, gate)?,
            Some((gate, false)) => gate.apply(&y)?,
        };
        match residual {
            Some(residual) => residual.add(&y),
            None => Ok(y),
        }
    }
}

impl Weight {
    /// Returns true if it is the matrix with this name.
    pub(super) fn is_called(&self, own: &str) -> bool {
        match self {
            Self::Dense { tensor, .. } => tensor.name() == Some(own),
            Self::Blocks { name, .. } => name == own,
        }
    }

    /// Returns true if it is the quantized matrix with this name.
    pub(super) fn is_blocks_of(&self, own: &str) -> bool {
        matches!(self, Self::Blocks { name, .. } if name == own)
    }

    /// Adds a product of a (r, in) and b (out, r) to quantized blocks.
    pub(super) fn add_low_rank(
        &mut self,
        rank: usize,
        [a, b]: [&[f32]; 2],
        (device, dtype): (&Device, DType),
    ) -> Result<()> {
        let Self::Blocks { name, parts, beside } = self else {
            return Err(Error::internal("a product with an adapter for a dense matrix"));
        };
        let rows: usize = parts.iter().map(|part| part.dims()[0]).sum();
        let columns = parts.first().map_or(0, |part| part.dims()[1]);
        if a.len() != rank * columns || b.len() != rows * rank || beside.is_some() {
            return Err(Error::shape(format!(
                "{name}: a product of {} and {} elements of rank {rank} for a matrix ({rows}, {columns})",
                a.len(),
                b.len()
            )));
        }
        let tensor = |dims: [usize; 2], values: &[f32]| Tensor::from_f32(device, dims, values, dtype);
        *beside = Some(LowRankProduct { a: tensor([rank, columns], a)?, b: tensor([rows, rank], b)? });
        Ok(())
    }
}

/// Transposed copies (out, in) of a block's dense matrices that are stored as (in, out): queries with keys and values, output, up, down.
pub(super) type RowMajor = [Option<Tensor>; 4];

impl Weight {
    /// Returns a transposed copy of a dense matrix that is stored as (in, out).
    pub(super) fn row_major(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Dense { tensor, transposed: true } => {
                Ok(Some(tensor.transpose(0, 1)?.contiguous()?.detach()))
            }
            _ => Ok(None),
        }
    }

    /// Returns the matrix's parts in the form of the kernel; `copy` has the rows of one that is stored as (in, out).
    pub(super) fn parts(&self, copy: Option<&Tensor>) -> Result<Vec<WeightRows<'_>>> {
        match (self, copy) {
            (Self::Dense { tensor, transposed: false }, _) => Ok(vec![WeightRows::Dense(tensor.clone())]),
            (Self::Dense { .. }, Some(copy)) => Ok(vec![WeightRows::Dense(copy.clone())]),
            (Self::Dense { .. }, None) => {
                Err(Error::internal("decode_step: no copy of weights stored (in, out)"))
            }
            (Self::Blocks { beside: Some(_), .. }, _) => {
                Err(Error::unsupported("decode_step does not support adapters of quantized matrices"))
            }
            (Self::Blocks { parts, .. }, _) => Ok(parts.iter().map(WeightRows::Blocks).collect()),
        }
    }
}
