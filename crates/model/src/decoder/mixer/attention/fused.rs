//! Attention in the form of a step in one launch.

use super::Attention;
use crate::decoder::config::NormConfig;
use crate::decoder::norm::Norm;
use crate::decoder::state::LayerState;
use netcl_tensor::ops::decode_step::Map;
use netcl_tensor::{Error, Result, Tensor};

/// Tensors and settings of a layer's attention.
pub struct Fused<'a> {
    /// Queries, keys and values.
    pub qkv: Map<'a>,
    /// Factors of the norms of queries and of keys.
    pub head_norms: Option<[&'a Tensor; 2]>,
    /// The projection into the residual stream.
    pub out: Map<'a>,
    /// Keys and values.
    pub cache: &'a Tensor,
    /// Factor of the scores.
    pub scale: f32,
    /// Number of keys that a query attends to.
    pub window: Option<usize>,
    /// Index of the rotary angles for queries and keys.
    pub rotary: Option<usize>,
}

impl<'a> Fused<'a> {
    pub(super) fn of(
        attention: &'a Attention,
        state: &'a LayerState,
        [qkv, out]: [&Option<Tensor>; 2],
        norm: Option<NormConfig>,
    ) -> Result<Self> {
        let head_norms = attention.norms.as_ref();
        if head_norms.is_some_and(|norms| norms.iter().map(Norm::config).any(|own| Some(own) != norm)) {
            return Err(Error::unsupported("decode_step: norms of heads other than the blocks'"));
        }
        Ok(Self {
            qkv: attention.qkv.map(qkv.as_ref())?,
            head_norms: head_norms.map(|[query, key]| [query.parts().0, key.parts().0]),
            out: attention.out.map(out.as_ref())?,
            cache: state.rows(),
            scale: attention.scale.unwrap_or_else(|| 1.0 / (attention.config.size as f32).sqrt()),
            window: attention.kind.window,
            rotary: attention.kind.rotary,
        })
    }
}
