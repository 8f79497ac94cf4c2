//! Linear maps of a decoder.

use super::lister::parameter;
use super::weight::Weight;
use crate::params::Params;
use netcl_tensor::ops::decode_step::Map;
use netcl_tensor::ops::fused_linear::FusedOps;
use netcl_tensor::{Result, Tensor};

/// A linear map with optional bias.
#[derive(Clone)]
pub(super) struct Projection {
    pub(super) weight: Weight,
    pub(super) bias: Option<Tensor>,
}

impl Projection {
    pub(super) fn new(params: &Params, name: &str, bias: bool, transposed: bool) -> Result<Self> {
        let weight = Weight::of(params, &format!("{name}.weight"), transposed)?;
        let bias = if bias { Some(parameter(params, &format!("{name}.bias"))?) } else { None };
        Ok(Self { weight, bias })
    }
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.weight.forward(x, self.bias.as_ref())
    }
    /// Returns the map fused with the operations before and after it, in one launch for few rows.
    pub(super) fn around(&self, x: &Tensor, around: FusedOps<'_>) -> Result<Tensor> {
        self.weight.around(x, FusedOps { bias: self.bias.as_ref(), ..around })
    }
    pub(super) fn forward_add(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.weight.forward_add(residual, x, self.bias.as_ref())
    }

    /// Returns the map in the form for a step in one launch; `copy` has the rows of a matrix that is stored as (in, out).
    pub(super) fn map(&self, copy: Option<&Tensor>) -> Result<Map<'_>> {
        Ok(Map { rows: self.weight.parts(copy)?, bias: self.bias.as_ref() })
    }
}
