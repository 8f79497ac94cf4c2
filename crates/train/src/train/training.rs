//! The training loop of every task, and the state of a run.
//!
//! ```text
//! Run ─ Task       batches, loss, metrics, evaluation and samples: texts, images
//!     └ Training ─ Loop          step, position in the data, best result, learning rate
//!                ├ Accumulation  forward and backward of micro-batches, their sums, captured steps
//!                ├ Ranks         the other ranks, and what is divided between them
//!                └ Reporting     run folder, records, checkpoints being written, profile
//! ```
//!
//! [`run`] is the loop, and [`step`] is one of its steps. A task has access to [`Training`]; the parts know only the trait [`Task`].
//!
//! [`Objective`] is the part of a task that forward and backward need. It is enough to compile the kernels before a run.

mod accumulation;
mod passes;
mod progress;
mod ranks;
mod reporting;
mod resuming;
mod resync;
mod run;
mod saving;
mod sharded;
mod step;

pub(crate) use accumulation::Accumulation;
pub(super) use passes::{Collect, StepSlice, collected, gradients, warm};
pub(crate) use progress::Loop;
pub(crate) use ranks::{ObserverRequests, Ranks};
pub(crate) use reporting::Reporting;
pub(crate) use resuming::{newest, tell_changes};
pub use run::Outcome;
pub use sharded::Sharding;
pub(crate) use sharded::Zero;
pub(crate) use step::{StepResults, divergence};

use super::observer::Observer;
pub(crate) use super::parallel::{Parallel, agree};
use crate::data::Position;
use crate::optim::Optimizer;
use crate::run::Record;
use netcl_model::checkpoint::{State, TensorData, TensorToWrite};
use netcl_model::params::Params;
use netcl_tensor::{Device, Error, Result, Tensor};
use std::ops::Range;

/// The state of a run of any task.
pub(crate) struct Training<R> {
    pub device: Device,
    pub optimizer: Optimizer,
    pub progress: Loop,
    pub passes: Accumulation,
    pub ranks: Ranks,
    pub report: Reporting<R>,
}

/// A run of a task.
pub(crate) struct Run<T: Task> {
    pub task: T,
    pub training: Training<T::Record>,
}

/// Weights and optimizer state of a whole model, on the host.
pub(crate) type Gathered = (Vec<TensorData>, Vec<TensorData>);

/// The position of a batch in a run.
#[derive(Clone, Copy)]
pub(crate) struct At {
    /// Steps before it.
    pub step: u64,
    /// Micro-batches of its step before it.
    pub micro: u32,
    /// Whether it goes to the buffer that a captured pass reads.
    pub fixed: bool,
}

/// The loss of a forward pass.
pub(crate) trait Objective {
    /// A batch on the device, as a pass reads it.
    type Inputs;

    /// Returns the number of micro-batches per step.
    fn micros(&self) -> u32;
    /// Returns the parameters, and their device.
    fn params(&self) -> &Params;
    /// Returns the mean loss of a pass over `inputs`, a scalar. Other ranks have the first `rows_before` rows of the batch.
    fn loss(&self, inputs: &Self::Inputs, rows_before: usize) -> Result<Tensor>;
    /// Returns inputs of one row, in separate memory, for a pass that allocates what outlives a step.
    fn one_row(&self, inputs: &Self::Inputs) -> Result<Self::Inputs>;
    /// Returns state that forward passes change, such as running statistics.
    fn buffers(&self) -> Vec<Tensor> {
        Vec::new()
    }
    /// Returns the embedding table that is also the output head.
    fn tied(&self) -> Option<Tensor> {
        None
    }
}

/// The subject of a run. A task supplies batches, the loss of a pass, metrics of a step, evaluation and samples. Accumulation, capture, sharding,
/// several devices, checkpoints, resumption, profiles and the run folder belong to [`Run`] and exist once.
///
/// | task | batch | loss | between steps |
/// | --- | --- | --- | --- |
/// | texts ([`Trainer`](super::Trainer)) | windows of tokens | cross entropy of the next token | validation loss, a sampled text |
/// | images | images with labels, moved and mixed | cross entropy of the class | test after an epoch |
/// | texts, with an objective that compares answers | prompts with chosen and rejected answers | −log σ(β · margin) | validation margin and accuracy, samples |
/// | rollouts (GRPO) | groups of answers with their rewards | clipped policy ratio, by the advantage in the group | mean reward, samples |
///
/// Preference pairs: [`Batch`](Self::Batch) has both answers as rows of one batch. The log probabilities of the reference are computed before the run,
/// and [`send`](Self::send) uploads them with the tokens: a captured pass reads them at fixed addresses. [`loss`](Objective::loss) is a scalar
/// like any other. [`enqueued`](Self::enqueued) keeps the sums of rewards of a step. [`Record`](Self::Record) also has margin and accuracy.
///
/// Rollouts: [`source`](Self::source) holds prompts, and [`take`](Self::take) requests a group of answers from the engine of `netcl-llm`, with the
/// weights after the last update. So `ahead` prepares only prompts, and nothing that depends on weights. Advantages and the log probabilities of the
/// sampling policy are uploaded by `send`. Ranks sample their own prompts. [`review`](Self::review) evaluates on held-out prompts.
pub(crate) trait Task: Objective + Sized {
    /// A batch on the host.
    type Batch;
    /// The source of batches, from a step on.
    type Source;
    /// Batches computed ahead.
    type Feed;
    /// Results of a step, until they are recorded.
    type Metrics;
    /// A line of `metrics.jsonl`.
    type Record: Record;
    /// The observer of the run.
    type Watch<'w>: Observer + ?Sized;

    /// Whether the memory of a step is planned before the first one.
    const PLANS_AHEAD: bool;
    /// Steps whose kernels are timed for the report.
    const PROFILED: Range<u64>;
    /// Whether the error of a single rank starts with that rank's name.
    const NAMES_RANK: bool;
    /// Whether ranks derive their patience from the time of steps. Otherwise they keep the initial one.
    const WATCHED: bool;

    /// Returns the source of this rank's batches from the next step on.
    fn source(&self, training: &Training<Self::Record>) -> Self::Source;
    /// Runs `work` with batches that threads compute ahead.
    fn ahead<O>(source: Self::Source, work: impl FnOnce(&mut Self::Feed) -> Result<O>) -> Result<O>;
    /// Returns the next batch.
    fn take(feed: &mut Self::Feed) -> Result<Self::Batch>;
    /// Enqueues the upload of a batch; returns the inputs of a pass, and the position after the batch.
    fn send(
        &mut self,
        feed: &mut Self::Feed,
        batch: Self::Batch,
        at: At,
        ranks: &mut Ranks,
    ) -> Result<(Self::Inputs, Position)>;
    /// Called when all commands that read the last batch are enqueued.
    fn sent(_feed: &mut Self::Feed) -> Result<()> {
        Ok(())
    }
    /// Called when all passes and the update of step `step` are enqueued, counted from 0.
    fn enqueued(&mut self, _step: u64) -> Result<()> {
        Ok(())
    }
    /// Called when this rank has other rows of each batch from the next step on.
    fn rows_changed(&mut self, parallel: &mut Parallel) -> Result<()>;
    /// Returns the share of this rank's rows in the mean over a batch.
    fn share(&self, parallel: &Parallel) -> f32 {
        parallel.share()
    }
    /// Returns this rank's part of a batch as text, and advice for reducing it if memory is insufficient.
    fn part(&self, parallel: &Parallel) -> (String, &'static str);
    /// Runs a step of a rank with a stage of the model; returns its loss, and the position after its batches. `asked` polls the observer.
    fn step_of_stage(
        &mut self,
        _training: &mut Training<Self::Record>,
        _feed: &mut Self::Feed,
        _asked: &mut dyn FnMut() -> [bool; 2],
    ) -> Result<(Tensor, Position)> {
        Err(Error::unsupported("--pipeline: the layers of this task cannot be divided"))
    }

    /// Called when the run starts in this process.
    fn started(&mut self, training: &mut Training<Self::Record>, watch: &mut Self::Watch<'_>) -> Result<()>;
    /// Returns the results of a step whose loss is finite.
    fn measure(
        &mut self,
        training: &mut Training<Self::Record>,
        done: &StepResults<'_>,
        watch: &mut Self::Watch<'_>,
    ) -> Result<Self::Metrics>;
    /// Returns the error of a step whose loss is not finite. `place` is the device, or the ranks whose part of the loss is not finite.
    fn diverged(
        &mut self,
        training: &mut Training<Self::Record>,
        done: &StepResults<'_>,
        place: &str,
    ) -> Result<Error>;
    /// Records the results of a step, and notifies the observer.
    fn publish(
        &mut self,
        training: &mut Training<Self::Record>,
        metrics: Self::Metrics,
        watch: &mut Self::Watch<'_>,
    ) -> Result<()>;
    /// Returns a text with the memory of a step, once one was planned.
    fn explain(&self, training: &Training<Self::Record>) -> Option<String>;
    /// Returns whether steps are replayed.
    fn is_captured(&self, training: &Training<Self::Record>) -> bool {
        training.passes.stepper.is_captured()
    }

    /// Returns what is due after the step enqueued last: evaluation, sample, checkpoint.
    fn due(&self, progress: &Loop) -> [bool; 3];
    /// Called when ranks have exchanged their requests; `asked` is the result.
    fn on_request(_watch: &mut Self::Watch<'_>, _asked: ObserverRequests) {}
    /// Evaluates and samples as due after the step just done, and publishes its `metrics`. Returns whether the result is the best so far.
    fn review(
        &mut self,
        training: &mut Training<Self::Record>,
        metrics: Self::Metrics,
        asked: ObserverRequests,
        watch: &mut Self::Watch<'_>,
    ) -> Result<bool>;
    /// Called after evaluation, sample and checkpoint. Returns whether the run ends here.
    fn paused(
        &mut self,
        training: &mut Training<Self::Record>,
        asked: ObserverRequests,
        watch: &mut Self::Watch<'_>,
    ) -> Result<bool>;

    /// Returns the weights as in checkpoints; they are still on the device.
    fn planned(&self) -> Vec<TensorToWrite<'static>>;
    /// Returns tensors that are equal on all ranks, in addition to the optimizer's state.
    fn alike(&self) -> Vec<Tensor>;
    /// Returns the additional files of a checkpoint.
    fn files(&self) -> Result<Vec<(String, Vec<u8>)>>;
    /// Adds the task's own state to that of a checkpoint.
    fn note(&self, _state: &mut State) {}
    /// Collects the weights and optimizer state of all stages of a pipeline on rank 0.
    fn gathered(&self, _training: &Training<Self::Record>) -> Result<Option<Gathered>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
