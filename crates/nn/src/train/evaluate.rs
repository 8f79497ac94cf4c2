//! Validation loss and samples during training, without recording gradients.

use super::trainer::Trainer;
use crate::data::Scored;
use crate::evaluate::{Score, evaluate};
use crate::generate::{Generation, Sampling};
use netcl_tensor::Result;

/// Length of a sample in tokens.
const SAMPLE_TOKENS: usize = 200;

impl Trainer {
    /// Evaluates the model on the validation batches. `None` without validation data.
    pub(super) fn evaluate(&self) -> Result<Option<Score>> {
        let Some(eval) = &self.eval else { return Ok(None) };
        let lengths = self.lengths.as_ref();
        let Some(parallel) = &self.parallel else {
            let batches = eval.batches().map(|batch| batch.map(Scored::from));
            return evaluate(&*self.model, batches, lengths, &mut |_| true).map(Some);
        };
        let batches = parallel.part_of(eval).map(|batch| batch.map(Scored::from));
        let own = evaluate(&*self.model, batches, lengths, &mut |_| true)?;
        parallel.total(&own).map(Some)
    }

    /// A text sampled from the model; empty without a tokenizer.
    pub(super) fn sample(&self) -> Result<Option<String>> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(None) };
        let sampling = Sampling { seed: self.config.seed, ..Sampling::default() };
        let mut ids = self.prompt.clone();
        let drawn = Generation::new(&*self.model, &self.prompt, sampling)?.within(tokenizer)?;
        for id in drawn.up_to(SAMPLE_TOKENS) {
            ids.push(id?);
        }
        tokenizer.decode(&ids).map(Some)
    }
}
