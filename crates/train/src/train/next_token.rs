//! The loss of the next token.

use super::training::Objective;
use super::uploads::UploadedBatch;
use crate::config::TrainConfig;
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_model::params::Params;
use netcl_tensor::{Result, Tensor};

/// A language model that learns to predict the next token.
#[derive(Clone, Copy)]
pub(super) struct NextToken<'a> {
    pub model: &'a dyn Model,
    pub config: &'a TrainConfig,
    /// Counter of random draws before the dropout of a pass.
    pub draws: &'a Tensor,
}

impl Objective for NextToken<'_> {
    type Inputs = UploadedBatch;

    fn micros(&self) -> u32 {
        self.config.grad_accum
    }

    fn params(&self) -> &Params {
        self.model.params()
    }

    fn loss(&self, batch: &UploadedBatch, rows_before: usize) -> Result<Tensor> {
        let config = self.config;
        let mode = Mode {
            dropout: config.dropout as f32,
            seed: config.seed,
            pass: 0,
            counter: (config.dropout > 0.0).then_some(self.draws),
            recompute: config.recompute,
            rows_before,
            loss_weight: batch.weight.as_ref(),
            positions: batch.positions.as_ref(),
        };
        self.model.loss(&batch.x, &batch.y, mode)
    }

    fn one_row(&self, batch: &UploadedBatch) -> Result<UploadedBatch> {
        // Copies of the rows, independent of the memory of the inputs.
        let row = |ids: &Tensor| {
            let bytes = ids.to_bytes()?;
            let one = bytes.len() / ids.dims()[0].max(1);
            Tensor::from_bytes(ids.device(), [1, self.config.context], &bytes[..one], ids.dtype())
        };
        let weight = |x: &Tensor| Tensor::from_bytes(x.device(), [1], &x.to_bytes()?, x.dtype());
        let weight = batch.weight.as_ref().map(weight).transpose()?;
        let positions = batch.positions.as_ref().map(row).transpose()?;
        Ok(UploadedBatch { x: row(&batch.x)?, y: row(&batch.y)?, weight, positions, values: None })
    }

    fn tied(&self) -> Option<Tensor> {
        self.model.tied_embedding().cloned()
    }
}
