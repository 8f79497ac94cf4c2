//! Validation loss and samples during training, without recording gradients.

use super::texts::Texts;
use crate::data::Scored;
use crate::evaluate::{Score, evaluate};
use crate::run::StepMetrics;
use crate::train::observer::Observer;
use crate::train::parallel::Parallel;
use crate::train::pipeline::{Piped, Served, follow};
use crate::train::training::Training;
use netcl_model::generate::{Generation, Sampling};
use netcl_model::model::Model;
use netcl_model::tokenizer::Tokenizer;
use netcl_tensor::Result;
use std::time::Instant;

/// Length of a sample in tokens.
const SAMPLE_TOKENS: usize = 200;

impl Texts {
    /// Evaluates the model, adds the result to the metrics of the step and notifies the observer; returns whether it is the best so far.
    pub(super) fn evaluated(
        &self,
        training: &mut Training<StepMetrics>,
        metrics: &mut StepMetrics,
        watch: &mut (dyn Observer + '_),
    ) -> Result<bool> {
        let begun = Instant::now();
        let score = self.evaluate(training)?;
        training.host_did("evaluation", begun);
        let Some(score) = score else {
            training.progress.val_loss = None;
            return Ok(false);
        };
        metrics.evaluated(&score);
        let best = training.progress.evaluated(score.loss());
        watch.evaluated(training.progress.step, &score, best);
        Ok(best)
    }

    /// Evaluates the model on the validation batches. `None` without validation data.
    fn evaluate(&self, training: &Training<StepMetrics>) -> Result<Option<Score>> {
        let Some(eval) = &self.eval else { return Ok(None) };
        if let Some(comparison) = &self.comparison {
            return comparison.evaluate(&*self.model, eval).map(Some);
        }
        let lengths = self.lengths.as_ref();
        let Some(parallel) = &training.ranks.parallel else {
            let batches = eval.batches().map(|batch| batch.map(Scored::from));
            return evaluate(&*self.model, batches, lengths, &mut |_| true).map(Some);
        };
        let batches = parallel.part_of(eval).map(|batch| batch.map(Scored::from));
        let own = match parallel.pipe() {
            None => evaluate(&*self.model, batches, lengths, &mut |_| true)?,
            Some(pipe) => {
                let score = evaluate(&Piped::new(&*self.model, pipe)?, batches, lengths, &mut |_| true)?;
                // The last stage has the loss, and counts for all.
                let none = Score { bytes: score.bytes.map(|_| 0), ..Score::default() };
                if pipe.is_last() { score } else { none }
            }
        };
        parallel.total(&own).map(Some)
    }

    /// Returns whether this rank takes part in samples: the first one, and in a pipeline the later stages.
    pub(super) fn samples(&self, training: &Training<StepMetrics>) -> bool {
        let pipe = training.ranks.parallel.as_ref().and_then(Parallel::pipe);
        !training.report.folder.follows() || pipe.is_some_and(|pipe| pipe.replica() == 0)
    }

    /// Samples a text from the model; returns an empty one without a tokenizer, and on later stages of a pipeline.
    pub(super) fn sample(&self, training: &Training<StepMetrics>) -> Result<Option<String>> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(None) };
        let Some(pipe) = training.ranks.parallel.as_ref().and_then(Parallel::pipe) else {
            return self.sampled(&*self.model, tokenizer);
        };
        if pipe.stage() > 0 {
            return follow(&*self.model, pipe).map(|()| None);
        }
        let text = self.sampled(&Piped::new(&*self.model, pipe)?, tokenizer);
        Served::end(pipe)?;
        text
    }

    fn sampled(&self, model: &dyn Model, tokenizer: &Tokenizer) -> Result<Option<String>> {
        let sampling = Sampling { seed: self.config.seed, ..Sampling::default() };
        let mut ids = self.prompt.clone();
        let drawn = Generation::new(model, &self.prompt, sampling)?.within(tokenizer)?;
        for id in drawn.up_to(SAMPLE_TOKENS) {
            ids.push(id?);
        }
        tokenizer.decode(&ids).map(Some)
    }
}
