//! The content of a run's checkpoints, and resumption from one.

use super::texts::Texts;
use crate::run::StepMetrics;
use crate::train::gathered::{TensorPiece, gather};
use crate::train::pipeline::{own_state, whole_state};
use crate::train::training::{Gathered, Training};
use netcl_model::checkpoint::{Checkpoint, TensorData, TensorToWrite};
use netcl_model::decoder::{FileFacts, decoder_of};
use netcl_tensor::{Error, Result};

impl Texts {
    /// Returns the model's `config.json`.
    pub(super) fn config_json(&self) -> Result<Vec<u8>> {
        let facts = FileFacts {
            dtype: Some(self.model.params().dtype()),
            dropout: self.config.dropout,
            tokens: self.companions.tokens.clone(),
        };
        serde_json::to_vec_pretty(&self.model.config_json(&facts)?)
            .map_err(|e| Error::internal(format!("config.json: {e}")))
    }

    /// Collects the weights and optimizer state of all stages of a pipeline on the first rank.
    pub(super) fn gathered_stages(&self, training: &Training<StepMetrics>) -> Result<Option<Gathered>> {
        let Some(parallel) = &training.ranks.parallel else { return Ok(None) };
        let Some((pipe, decoder)) = parallel.pipe().zip(decoder_of(&*self.model)) else { return Ok(None) };
        // Other replicas have the same.
        let (model, optimizer) = match pipe.replica() {
            0 => (self.model.state(), training.optimizer.planned_state()?),
            _ => (Vec::new(), Vec::new()),
        };
        let optimizer = whole_state(decoder, optimizer, pipe.stage() == 0);
        let of = |all: Vec<TensorToWrite<'static>>| {
            gather(parallel.group(), &all.into_iter().map(TensorPiece::from).collect::<Vec<_>>())
        };
        Ok(of(model)?.zip(of(optimizer)?))
    }

    /// Restores weights, moments and data position from a checkpoint.
    pub(super) fn restore(
        &mut self,
        training: &mut Training<StepMetrics>,
        checkpoint: &Checkpoint,
    ) -> Result<()> {
        let state = &checkpoint.state;
        training.progress.check(state)?;
        let views: Vec<_> = checkpoint.model.iter().map(TensorData::view).collect();
        self.model.load_state(&views)?;
        match (decoder_of(&*self.model), self.config.pipeline > 1) {
            (Some(decoder), true) => {
                training.optimizer.load_state_dict(&own_state(decoder, &checkpoint.optimizer))?
            }
            _ => training.optimizer.load_state_dict(&checkpoint.optimizer)?,
        }
        training.progress.restore(state);
        if training.report.history.last().is_none_or(|m| m.step != state.step) {
            // The metrics are lost; this assumes that all steps had the present batch size.
            self.clock.trained = state.step.saturating_mul(self.config.tokens_a_step());
        }
        Ok(())
    }
}
