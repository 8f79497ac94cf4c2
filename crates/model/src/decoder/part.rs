//! Consecutive layers of a decoder, for a rank of a training pipeline. The input is tokens or rows of the residual stream; the output is rows or the
//! loss. This module does not handle the transfer of rows and gradients between parts.

use super::lister::ParamShape;
use super::shapes;
use super::stage::Span;
use super::{Decoder, DecoderConfig, Freeze};
use crate::layers::{Mode, dropout};
use crate::model::Model;
use netcl_tensor::{DType, Error, Result, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;

/// Returns for each of the parameters `here` whether it is frozen. Patterns are checked against the whole model, because they may match nothing in a
/// part of it.
pub(super) fn frozen(config: &DecoderConfig, here: &[ParamShape], freeze: &Freeze) -> Result<Vec<bool>> {
    let all: Vec<ParamShape> = shapes::all(config).collect();
    let flags = freeze.frozen(&all)?;
    let by_name: BTreeMap<&str, bool> = all.iter().map(|shape| shape.name.as_str()).zip(flags).collect();
    let table = all.first().map_or("", |shape| shape.name.as_str());
    let of = |shape: &ParamShape| {
        let name = if shape.is_copy(config) { table } else { shape.name.as_str() };
        by_name.get(name).copied().unwrap_or(false)
    };
    Ok(here.iter().map(of).collect())
}

/// Returns the decoder that a model contains, for callers that run its layers in sequence.
pub fn decoder_of(model: &dyn Model) -> Option<&Decoder> {
    model.as_any()?.downcast_ref()
}

impl Decoder {
    /// Creates layers of a model on their device, with the embedding before the first one and the head after the last one. For a tied model whose
    /// embedding is elsewhere, the head must be given the embedding's values. Without a seed all weights are zero, to be loaded afterwards.
    ///
    /// # Errors
    /// Same as [`partly_frozen`](Self::partly_frozen); `Shape` for layers that do not exist.
    pub fn part(
        span: &Span,
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        freeze: &Freeze,
    ) -> Result<Self> {
        config.check().map_err(|e| e.context("decoder"))?;
        if span.layers.is_empty() || span.layers.end > config.layers {
            return Err(Error::shape(format!(
                "decoder: layers {:?} of a model of {}",
                span.layers, config.layers
            )));
        }
        Self::made(std::slice::from_ref(span), config, dtype, seed, freeze, BTreeMap::new())
    }

    /// Returns the local layers, numbered from 0 in the whole model.
    pub fn layers(&self) -> Range<usize> {
        let all = || self.stages.iter().map(|stage| &stage.span.layers);
        let start = all().map(|layers| layers.start).min().unwrap_or(0);
        start..all().map(|layers| layers.end).max().unwrap_or(start)
    }

    /// Takes ids `(B, T)` → rows `(B, T, C)` before the first layer, with dropout.
    ///
    /// # Errors
    /// `Shape` if T exceeds the context; `Internal` without the embedding.
    pub fn entered(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        dropout(&self.first()?.embedded(ids, 0, mode.positions)?.0, mode, 0)
    }

    /// Takes rows `(B, T, C)` before the local layers → after them.
    ///
    /// # Errors
    /// Errors of the operations.
    pub fn through(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.blocks(x, mode)?.0)
    }

    /// Takes rows `(B, T, C)` after the last layer and targets `(B, T)` → mean cross entropy, a scalar, or with a `weight` the sum times it, as
    /// [`Mode::loss_weight`] says. The balance loss of a mixture of experts is not included.
    ///
    /// # Errors
    /// Same as [`Model::loss`](crate::model::Model::loss); `Internal` without the head.
    pub fn loss_behind(&self, x: &Tensor, targets: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
        self.cross_entropy(&self.last()?.normed(x)?, targets, weight)
    }

    /// Takes rows `(.., C)` after the last layer → logits `(.., V)`.
    ///
    /// # Errors
    /// Errors of the operations; `Internal` without the head.
    pub fn logits_behind(&self, x: &Tensor) -> Result<Tensor> {
        let last = self.last()?;
        last.logits(&last.normed(x)?)
    }

    /// Returns the embedding of a tied model, or its copy after the last layer, if there is one; `None` if they are not tied or not local.
    pub fn tied_table(&self) -> Option<&Tensor> {
        let all = self.shapes.iter().zip(self.params.list());
        let table = shapes::outside(&self.config).into_iter().next().filter(|_| self.config.tied)?;
        all.filter(|(shape, _)| shape.pieces == table.pieces).map(|(_, parameter)| parameter).next()
    }

    /// Returns the parameter that is a copy of the embedding of a tied model, and the name of the embedding.
    pub fn copied_table(&self) -> Option<(&Tensor, String)> {
        let mut all = self.shapes.iter().zip(self.params.list());
        let (shape, copy) = all.find(|(shape, _)| shape.is_copy(&self.config))?;
        Some((copy, shape.pieces.first()?.0.clone()))
    }
}
