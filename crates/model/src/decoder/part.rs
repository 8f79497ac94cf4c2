//! Consecutive layers of a decoder alone, for a rank of a training pipeline: tokens or rows of the residual stream go in, rows or the loss
//! come out. What carries rows and their gradients from one part to the next is not known here.

use super::lister::ParamShape;
use super::shapes;
use super::stage::Span;
use super::{Decoder, DecoderConfig, Freeze};
use crate::layers::{Mode, dropout};
use crate::model::Model;
use netcl_tensor::{DType, Error, Result, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;

/// For each of the parameters `here`, whether it is frozen. Patterns are checked with the whole model: in a part of it they may match nothing.
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

/// The decoder that a model is, for whoever runs its layers one after the other.
pub fn decoder_of(model: &dyn Model) -> Option<&Decoder> {
    model.as_any()?.downcast_ref()
}

impl Decoder {
    /// Layers of a model on their device, with the embedding before the first one and the head behind the last one; of a tied model whose
    /// embedding is elsewhere, the head has to be given the embedding's values. Without a seed all weights are zero, to be loaded afterwards.
    ///
    /// # Errors
    /// As [`partly_frozen`](Self::partly_frozen); `Shape` for layers that are not there.
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

    /// The layers that are here, numbered from 0 in the whole model.
    pub fn layers(&self) -> Range<usize> {
        let all = || self.stages.iter().map(|stage| &stage.span.layers);
        let start = all().map(|layers| layers.start).min().unwrap_or(0);
        start..all().map(|layers| layers.end).max().unwrap_or(start)
    }

    /// ids `(B, T)` → rows `(B, T, C)` before the first layer, with dropout.
    ///
    /// # Errors
    /// `Shape` when T is longer than the context; `Internal` without the embedding.
    pub fn entered(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        dropout(&self.first()?.embedded(ids, 0)?.0, mode, 0)
    }

    /// Rows `(B, T, C)` before the layers that are here → behind them.
    ///
    /// # Errors
    /// Those of the operations.
    pub fn through(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.blocks(x, mode)?.0)
    }

    /// Rows `(B, T, C)` behind the last layer and targets `(B, T)` → mean cross entropy, a scalar, without the balance loss of a mixture of
    /// experts.
    ///
    /// # Errors
    /// As [`Model::loss`](crate::model::Model::loss); `Internal` without the head.
    pub fn loss_behind(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.cross_entropy(&self.last()?.normed(x)?, targets)
    }

    /// Rows `(.., C)` behind the last layer → logits `(.., V)`.
    ///
    /// # Errors
    /// Those of the operations; `Internal` without the head.
    pub fn logits_behind(&self, x: &Tensor) -> Result<Tensor> {
        let last = self.last()?;
        last.logits(&last.normed(x)?)
    }

    /// The embedding of a tied model, or its copy behind the last layer, where that is one; `None` if they are not tied or not here.
    pub fn tied_table(&self) -> Option<&Tensor> {
        let all = self.shapes.iter().zip(self.params.list());
        let table = shapes::outside(&self.config).into_iter().next().filter(|_| self.config.tied)?;
        all.filter(|(shape, _)| shape.pieces == table.pieces).map(|(_, parameter)| parameter).next()
    }

    /// The parameter that is a copy of the embedding of a tied model, and the name of the embedding.
    pub fn copied_table(&self) -> Option<(&Tensor, String)> {
        let mut all = self.shapes.iter().zip(self.params.list());
        let (shape, copy) = all.find(|(shape, _)| shape.is_copy(&self.config))?;
        Some((copy, shape.pieces.first()?.0.clone()))
    }
}
