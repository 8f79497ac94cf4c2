//! A step of one text as one launch, where the device has a kernel for it and the model is of the kind that it knows
//! ([`netcl_tensor::ops::decode_step`]).

use super::block::{Angles, Block};
use super::weight::Weight;
use super::{Cache, Decoder};
use netcl_tensor::ops::decode_step::{DecodeStep, Layer, Model, Rows};
use netcl_tensor::{Error, Result};

impl Weight {
    /// The matrix's parts as the kernel takes them.
    pub(super) fn parts(&self) -> Result<Vec<Rows<'_>>> {
        match self {
            Self::Dense { tensor, transposed: false } => Ok(vec![Rows::Dense(tensor)]),
            Self::Dense { .. } => Err(Error::unsupported("decode_step: weights stored (in, out)")),
            Self::Blocks { parts, .. } => Ok(parts.iter().map(Rows::Blocks).collect()),
        }
    }

    /// The same of a matrix that is one part.
    pub(super) fn one(&self) -> Result<Rows<'_>> {
        match self.parts()?.as_slice() {
            [one] => Ok(*one),
            _ => Err(Error::unsupported("decode_step: a matrix of several parts")),
        }
    }
}

impl Decoder {
    /// The step of the text in a cache, or `Unsupported` that says why there is none.
    pub(super) fn whole_step(&self, cache: &Cache, angles: &[Angles]) -> Result<DecodeStep> {
        let no = |why: &str| Err(Error::unsupported(format!("decode_step: {why}")));
        let config = &self.config;
        #[allow(clippy::float_cmp)] // settings, not results
        if config.logits_scale != 1.0 || config.logits_softcap.is_some() {
            return no("scaled or capped logits");
        }
        let [[cosines, sines]] = angles else { return no("several sets of rotary frequencies") };
        let Some(gate) = config.mlp.activation.gate().filter(|_| config.mlp.gated) else {
            return no("a feed-forward map without a gate");
        };
        let (last_norm, None) = self.last_norm.parts() else { return no("layer norms") };
        let layers: Vec<Layer<'_>> = self
            .blocks
            .iter()
            .zip(&cache.layers)
            .map(|(block, rows)| block.whole(rows))
            .collect::<Result<_>>()?;
        let scale = self.blocks.first().and_then(Block::scale);
        let attention = config.attention;
        DecodeStep::new(&Model {
            layers,
            last_norm,
            head: self.head.one()?,
            angles: [cosines, sines],
            heads: [attention.heads, attention.kv_heads],
            hidden: config.mlp.hidden,
            gate,
            scale: scale.unwrap_or_else(|| 1.0 / (attention.size as f32).sqrt()),
            eps: config.norm.eps,
            unit_offset: config.norm.unit_offset,
        })
    }
}
