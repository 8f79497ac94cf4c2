//! Linear maps of a decoder.

use super::lister::parameter;
use super::low_rank::LowRankMap;
use super::weight::Weight;
use crate::params::Params;
use netcl_tensor::ops::decode_step::Map;
use netcl_tensor::ops::fused_linear::FusedOps;
use netcl_tensor::ops::gated::gated;
use netcl_tensor::{Error, Result, Tensor};

/// A linear map with optional bias, and optionally a trained adapter.
#[derive(Clone)]
pub(super) struct Projection {
    pub(super) weight: Weight,
    pub(super) bias: Option<Tensor>,
    pub(super) low_rank: Option<LowRankMap>,
}

impl Projection {
    pub(super) fn new(params: &Params, name: &str, bias: bool, transposed: bool) -> Result<Self> {
        let weight = Weight::of(params, &format!("{name}.weight"), transposed)?;
        let bias = if bias { Some(parameter(params, &format!("{name}.bias"))?) } else { None };
        Ok(Self { weight, bias, low_rank: None })
    }
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.adapted(self.weight.forward(x, self.bias.as_ref())?, x)
    }
    /// Returns the map fused with the operations before and after it, in one launch for few rows.
    pub(super) fn around(&self, x: &Tensor, around: FusedOps<'_>) -> Result<Tensor> {
        let Some(low_rank) = &self.low_rank else {
            return self.weight.around(x, FusedOps { bias: self.bias.as_ref(), ..around });
        };
        let x = &around.norm.map_or_else(|| Ok(x.clone()), |norm| norm.apply(x))?;
        let y = self.weight.around(x, FusedOps { bias: self.bias.as_ref(), ..FusedOps::default() })?;
        let y = low_rank.added(&y, x)?;
        let y = match around.activation {
            None => y,
            Some((gate, true)) => gated(&y, gate)?,
            Some((gate, false)) => gate.apply(&y)?,
        };
        around.residual.map_or_else(|| Ok(y.clone()), |residual| residual.add(&y))
    }
    pub(super) fn forward_add(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor> {
        self.adapted(self.weight.forward_add(residual, x, self.bias.as_ref())?, x)
    }
    /// Returns the map's result y for x, with the adapter's product.
    fn adapted(&self, y: Tensor, x: &Tensor) -> Result<Tensor> {
        match &self.low_rank {
            Some(low_rank) => low_rank.added(&y, x).map_err(|e| self.weight.named(e)),
            None => Ok(y),
        }
    }

    /// Returns the map in the form for a step in one launch; `copy` has the rows of a matrix that is stored as (in, out).
    pub(super) fn map(&self, copy: Option<&Tensor>) -> Result<Map<'_>> {
        if self.low_rank.is_some() {
            return Err(Error::unsupported("decode_step: maps with an adapter that is being trained"));
        }
        Ok(Map { rows: self.weight.parts(copy)?, bias: self.bias.as_ref() })
    }
}
