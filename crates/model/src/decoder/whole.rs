//! A step of one or a few texts as one launch, if the device has a kernel for it and the kernel supports the model
//! ([`netcl_tensor::ops::decode_step`]).
//!
//! All families without experts are supported. Before its first use, the step is compared with the step of several launches, including keys and
//! values of every layer. A kernel that does not end is disabled from then on. It reads tensors through addresses, so the launch declares the memory
//! that it reaches.

use super::pass::Angles;
use super::stage::{Entry, Stage};
use super::store::StageStates;
use super::weight::{RowMajor, Weight};
use netcl_tensor::ops::decode_step::{DecodeLayer, DecodeStep, Model, TokenEmbedding, WeightPath};
use netcl_tensor::{Error, Result};
use std::sync::{Arc, PoisonError};

/// A step in one launch, with the copies of matrices that it reads.
pub(super) struct WholeStep {
    pub(super) step: DecodeStep,
    pub(super) texts: usize,
    _copies: Arc<Vec<RowMajor>>,
}

impl Stage {
    /// Returns copies of matrices stored as (in, out), which all steps share for the lifetime of any of them.
    fn row_major(&self) -> Result<Arc<Vec<RowMajor>>> {
        let mut kept = self.row_major.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copies) = kept.upgrade() {
            return Ok(copies);
        }
        let _tag = self.device().tag("weights as rows");
        let copies: Vec<RowMajor> =
            self.blocks.iter().map(|block| block.row_major()).collect::<Result<_>>()?;
        let copies = Arc::new(copies);
        *kept = Arc::downgrade(&copies);
        Ok(copies)
    }

    /// Returns the step of the texts of a store, or `Unsupported` with the reason.
    ///
    /// # Errors
    /// The same; `Memory`.
    pub(super) fn whole_step(
        &self,
        store: StageStates<'_>,
        angles: &[Angles],
        text: WeightPath,
    ) -> Result<WholeStep> {
        if !text.runs_on(self.device(), store.texts) {
            return Err(Error::unsupported(format!(
                "decode_step: a device that does not run the kernel for {} texts",
                store.texts
            )));
        }
        if !self.is_first() || !self.is_last() {
            return Err(Error::unsupported("decode_step: a model whose layers are on several devices"));
        }
        let config = &self.config;
        let (Entry { embedding, positions }, exit) = (self.entry()?, self.exit()?);
        let copies = self.row_major()?;
        let layers: Vec<DecodeLayer<'_>> = self
            .blocks
            .iter()
            .zip(store.states)
            .zip(copies.iter())
            .map(|((block, state), copies)| block.whole(state, copies))
            .collect::<Result<_>>()?;
        let head = match exit.head.parts(None)?.as_slice() {
            [one] => one.clone(),
            _ => return Err(Error::unsupported("decode_step: a head of several parts")),
        };
        let places = positions.as_ref().map(|(table, _)| table);
        let embedding = match embedding {
            Weight::Dense { tensor: table, .. } => {
                Some(TokenEmbedding { table, scale: config.embedding_scale, places })
            }
            Weight::Blocks { .. } => None,
        };
        let attention = config.attention;
        let step = DecodeStep::new(
            &Model {
                texts: store.texts,
                embedding,
                parallel: config.parallel && layers.iter().all(|layer| layer.norms.is_some()),
                layers,
                pages: store.pages,
                last_norm: exit.last_norm.parts(),
                head,
                angles: angles.iter().map(|[cosines, sines]| [cosines, sines]).collect(),
                heads: attention.counts(),
                hidden: config.mlp.hidden,
                activation: config.mlp.activation.gate(),
                gated: config.mlp.gated,
                heads_normed_together: attention.qk_norm == super::QkNorm::Full,
                score_cap: attention.softcap,
                residual_scale: config.residual_scale,
                logits_scale: config.logits_scale,
                logits_cap: config.logits_softcap,
                eps: config.norm.eps,
                unit_offset: config.norm.unit_offset,
            },
            text,
        )?;
        Ok(WholeStep { step, texts: store.texts, _copies: copies })
    }
}
