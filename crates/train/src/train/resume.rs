//! Content of a run's checkpoints, and continuation from one.

use super::gathered::{Piece, gather};
use super::pipeline::{own_state, whole_state};
use super::trainer::Trainer;
use crate::data::{DATA_FILE, Position};
use netcl_model::checkpoint::{Checkpoint, Plan, Planned, Rng, STATE_FILE, State, TensorData};
use netcl_model::decoder::{FileFacts, decoder_of};
use netcl_tensor::{Error, Result};

impl Trainer {
    /// The checkpoint of the step just done; its tensors are still on the device.
    pub(super) fn checkpoint(&self) -> Result<Plan<'static>> {
        let facts = FileFacts {
            dtype: Some(self.model.params().dtype()),
            dropout: self.config.dropout,
            tokens: self.companions.tokens.clone(),
        };
        let config = serde_json::to_vec_pretty(&self.model.config_json(&facts)?)
            .map_err(|e| Error::internal(format!("config.json: {e}")))?;
        let mut files = vec![("config.json".to_string(), config), (DATA_FILE.to_string(), self.data.clone())];
        files.extend(self.companions.files.clone());
        if let Some(tokenizer) = &self.tokenizer {
            let new =
                |(name, _): &(String, Vec<u8>)| !self.companions.files.iter().any(|(own, _)| own == name);
            files.extend(tokenizer.files()?.into_iter().filter(new));
        }
        let mut state = State::default();
        state.step = self.step;
        state.position = self.position;
        state.rng = Rng { seed: self.config.seed, counter: self.step * u64::from(self.config.grad_accum) };
        state.val_loss = self.val_loss;
        state.best_loss = self.best.map(|(loss, _)| loss);
        state.best_step = self.best.map(|(_, step)| step);
        // What is divided among ranks comes from all of them.
        let optimizer = match self.zero {
            Some(_) => Vec::new(),
            None => self.optimizer.planned_state()?,
        };
        Ok(Plan { state, model: self.model.state(), optimizer, optimizer_files: 0, files })
    }

    /// Of a run whose layers are divided the weights and the optimizer's state of all stages, at the first rank.
    pub(super) fn gathered(&self) -> Result<Option<(Vec<TensorData>, Vec<TensorData>)>> {
        let Some(parallel) = &self.parallel else { return Ok(None) };
        let Some((pipe, decoder)) = parallel.pipe().zip(decoder_of(&*self.model)) else { return Ok(None) };
        // Other replicas have the same.
        let (model, optimizer) = match pipe.replica() {
            0 => (self.model.state(), self.optimizer.planned_state()?),
            _ => (Vec::new(), Vec::new()),
        };
        let optimizer = whole_state(decoder, optimizer, pipe.stage() == 0);
        let of = |all: Vec<Planned<'static>>| {
            gather(parallel.group(), &all.into_iter().map(Piece::from).collect::<Vec<_>>())
        };
        Ok(of(model)?.zip(of(optimizer)?))
    }

    /// Restores weights, moments and data position from a checkpoint.
    pub(super) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let state = &checkpoint.state;
        // The checksum is valid, but another program could have written the file.
        let expected = Position { seed: self.config.seed, step: state.step, micro: 0 };
        if state.step > self.config.steps || state.position != expected {
            return Err(Error::format(format!(
                "{STATE_FILE} is of step {} and {:?}, expected {expected:?} and at most step {}",
                state.step, state.position, self.config.steps
            )));
        }
        let views: Vec<_> = checkpoint.model.iter().map(TensorData::view).collect();
        self.model.load_state(&views)?;
        match (decoder_of(&*self.model), self.config.pipeline > 1) {
            (Some(decoder), true) => {
                self.optimizer.load_state_dict(&own_state(decoder, &checkpoint.optimizer))?
            }
            _ => self.optimizer.load_state_dict(&checkpoint.optimizer)?,
        }
        self.step = state.step;
        self.saved_step = state.step;
        self.position = state.position;
        if self.history.last().is_none_or(|m| m.step != state.step) {
            // The metrics are lost: assume that all steps had the present batch size.
            self.trained = state.step.saturating_mul(self.config.tokens_a_step());
        }
        self.val_loss = state.val_loss;
        self.best = state.best_loss.zip(state.best_step);
        Ok(())
    }
}
