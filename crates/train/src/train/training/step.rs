//! One optimizer step; its results are read while the next step runs.

use super::accumulation::Work;
use super::{At, Run, Task, Training};
use crate::data::Position;
use crate::train::observer::Observer;
use netcl_device::driver::Event;
use netcl_tensor::ops::optimizer::Report;
use netcl_tensor::{Error, Result, Tensor};
use std::time::Instant;

/// An enqueued step whose results were not read yet.
pub(super) struct Pending {
    step: u64,
    lr: f64,
    loss: Tensor,
    report: Report,
    done: Event,
}

/// Results of a step.
pub(crate) struct StepResults<'a> {
    pub step: u64,
    pub lr: f64,
    pub loss: f64,
    report: &'a Report,
    /// Event after which results can be read.
    pub done: &'a Event,
    /// Time at which the host read them.
    pub at: Instant,
}

impl StepResults<'_> {
    /// Returns the norm of the gradients, before clipping.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn norm(&self) -> Result<f64> {
        Ok(f64::from(self.report.read()?.norm))
    }
}

/// The outcome of enqueuing a step.
pub(super) enum Enqueued {
    /// It is enqueued.
    Step(Pending),
    /// The observer stopped the run within it.
    Stopped,
    /// A rank had too little memory for its rows; rows were divided again, and the step must be repeated.
    Again,
}

/// The outcome of the passes and the update of a step.
enum StepOutcome {
    /// They are enqueued: the loss, and the next position in the data.
    Done(Tensor, Position),
    /// See [`Enqueued::Stopped`].
    Stopped,
    /// See [`Enqueued::Again`].
    Again,
}

impl<T: Task> Run<T> {
    /// Enqueues the next step. If that takes long, the results of the previous step `before` are read meanwhile. A step that is stopped has no
    /// effect.
    ///
    /// # Errors
    /// Errors of the step, and of reading the one before.
    pub(super) fn enqueue(
        &mut self,
        feed: &mut T::Feed,
        before: &mut Option<Pending>,
        watch: &mut T::Watch<'_>,
    ) -> Result<Enqueued> {
        let Training { progress, optimizer, ranks, .. } = &mut self.training;
        let lr = progress.rate.at(progress.step);
        optimizer.set_rate(lr)?;
        let made = if ranks.is_piped() {
            self.enqueue_stage(feed, before, watch)
        } else if self.task.micros() == 1 && ranks.is_alone() {
            self.enqueue_whole(feed)
        } else {
            self.enqueue_micros(feed, before, watch)
        };
        // Gradients of an incomplete step must not be added to those of the next.
        let (loss, after) = match made.inspect_err(|_| self.training.optimizer.zero_grad())? {
            StepOutcome::Done(loss, after) => (loss, after),
            StepOutcome::Stopped => {
                self.training.optimizer.zero_grad();
                return Ok(Enqueued::Stopped);
            }
            StepOutcome::Again => return Ok(Enqueued::Again),
        };
        let begun = Instant::now();
        let Training { device, progress, optimizer, passes, .. } = &mut self.training;
        optimizer.count();
        let report = optimizer.report()?;
        let loss = passes.keep_loss(&loss, progress.step)?;
        self.task.enqueued(progress.step)?;
        progress.step += 1;
        progress.position = after;
        let step = progress.step;
        let done = device.mark()?;
        device.flush()?;
        self.host_did("enqueue", begun);
        Ok(Enqueued::Step(Pending { step, lr, loss, report, done }))
    }

    /// Enqueues a step with one batch on one device: forward, backward and update.
    fn enqueue_whole(&mut self, feed: &mut T::Feed) -> Result<StepOutcome> {
        let (inputs, after) = self.batch(feed, 0)?;
        let begun = Instant::now();
        let (passes, work) = self.work();
        let loss = passes.whole(work, &inputs)?;
        T::sent(feed)?;
        self.host_did("enqueue", begun);
        Ok(StepOutcome::Done(loss, after))
    }

    /// Enqueues a step of several micro-batches or ranks: forward and backward of each micro-batch, then the update.
    fn enqueue_micros(
        &mut self,
        feed: &mut T::Feed,
        before: &mut Option<Pending>,
        watch: &mut T::Watch<'_>,
    ) -> Result<StepOutcome> {
        let mut total: Option<Tensor> = None;
        let mut after = self.training.progress.position;
        self.training.passes.begin(&self.training.ranks)?;
        let micros = self.task.micros();
        for micro in 0..micros {
            // Ranks stop together, after a step.
            if self.training.ranks.is_alone() && watch.should_stop_within_step() {
                return Ok(StepOutcome::Stopped);
            }
            let (inputs, next) = self.batch(feed, micro)?;
            after = next;
            let begun = Instant::now();
            let (passes, work) = self.work();
            if micro == 0 && !passes.has_memory(work, &inputs)? {
                return Ok(StepOutcome::Again);
            }
            let loss = self.enqueue_pass(&inputs, micro + 1 == micros)?;
            // The pass has used all parameters that could be in flight; this thread may now exchange what follows.
            self.settle_parameters()?;
            total = Some(match total {
                Some(sum) if self.training.passes.sums.is_none() => sum.add(&loss)?,
                _ => loss,
            });
            T::sent(feed)?;
            self.host_did("enqueue", begun);
            // Its results are available as soon as the device starts this micro-batch.
            if let Some(before) = before.take() {
                self.finish_step(&before, watch)?;
            }
        }
        let loss = total.ok_or_else(|| Error::internal("a step without batches"))?;
        self.reduce(&loss, watch)?;
        if self.training.ranks.zero.is_some() {
            let begun = Instant::now();
            let Training { ranks, optimizer, passes, .. } = &mut self.training;
            ranks.update_part(optimizer, &mut passes.update, &loss)?;
            self.host_did("update of a part", begun);
        } else {
            let Training { optimizer, passes, .. } = &mut self.training;
            passes.update(optimizer, &loss)?;
        }
        Ok(StepOutcome::Done(loss, after))
    }

    /// Enqueues a step of a rank with a stage of the model.
    fn enqueue_stage(
        &mut self,
        feed: &mut T::Feed,
        before: &mut Option<Pending>,
        watch: &mut T::Watch<'_>,
    ) -> Result<StepOutcome> {
        // A loss that is not finite ends all ranks, so none may wait for another one then.
        if let Some(before) = before.take() {
            self.finish_step(&before, watch)?;
        }
        let asked = &mut || [watch.should_stop(), watch.should_save()];
        let (loss, after) = self.task.step_of_stage(&mut self.training, feed, asked)?;
        self.pass_request(watch);
        Ok(StepOutcome::Done(loss, after))
    }

    /// Enqueues forward and backward of a micro-batch.
    fn enqueue_pass(&mut self, inputs: &T::Inputs, last: bool) -> Result<Tensor> {
        // A replay waits for the parameters of other ranks where it uses them.
        let Training { passes, ranks, .. } = &mut self.training;
        let mut arriving = ranks.take_arriving(&passes.stepper);
        if arriving.is_none() {
            self.settle_parameters()?;
        }
        let (passes, work) = self.work();
        let loss = passes.pass(work, (inputs, last), arriving.as_mut());
        self.training.ranks.return_arriving(arriving);
        loss
    }

    /// Waits for the sums of all ranks' gradients; `loss` becomes the sum of all ranks' losses.
    fn reduce(&mut self, loss: &Tensor, watch: &mut T::Watch<'_>) -> Result<()> {
        let Training { ranks, passes, .. } = &mut self.training;
        let Some(parallel) = &mut ranks.parallel else { return Ok(()) };
        let begun = Instant::now();
        let apart = passes.sums.as_ref().and_then(|sums| sums.apart());
        parallel.finish_reductions(loss, [watch.should_stop(), watch.should_save()], apart)?;
        self.host_did("all_reduce", begun);
        self.pass_request(watch);
        Ok(())
    }

    /// Enqueues the upload of the next batch; returns it and the position after it.
    fn batch(&mut self, feed: &mut T::Feed, micro: u32) -> Result<(T::Inputs, Position)> {
        let begun = Instant::now();
        let batch = T::take(feed)?;
        self.host_did("data", begun);
        let begun = Instant::now();
        let Training { progress, passes, ranks, .. } = &mut self.training;
        let at = At { step: progress.step, micro, fixed: !passes.stepper.is_eager() };
        let sent = self.task.send(feed, batch, at, ranks)?;
        self.host_did("upload", begun);
        Ok(sent)
    }

    fn work(&mut self) -> (&mut super::Accumulation, Work<'_, T>) {
        let Training { passes, optimizer, ranks, .. } = &mut self.training;
        (passes, Work { task: &self.task, optimizer, ranks })
    }

    /// Waits for a step and reads its results.
    ///
    /// # Errors
    /// `Launch` for a loss that is not finite; those of the device.
    pub(super) fn finish_step_quietly(
        &mut self,
        pending: &Pending,
        watch: &mut T::Watch<'_>,
    ) -> Result<T::Metrics> {
        let begun = Instant::now();
        let Pending { step, lr, report, .. } = pending;
        let loss = f64::from(pending.loss.item_after(&pending.done)?);
        let done =
            StepResults { step: *step, lr: *lr, loss, report, done: &pending.done, at: Instant::now() };
        self.host_did("read loss", begun);
        if !loss.is_finite() {
            let place = self.training.ranks.place(&self.training.device);
            let error = self.task.diverged(&mut self.training, &done, &place)?;
            self.training.ranks.failed_together = !self.training.ranks.is_alone();
            return Err(error);
        }
        self.task.measure(&mut self.training, &done, watch)
    }

    /// Does the same; also records the results and notifies the observer.
    ///
    /// # Errors
    /// Errors of [`Run::finish_step_quietly`], and of preparing a resumed run's folder.
    pub(super) fn finish_step(&mut self, pending: &Pending, watch: &mut T::Watch<'_>) -> Result<()> {
        let metrics = self.finish_step_quietly(pending, watch)?;
        self.task.publish(&mut self.training, metrics, watch)
    }

    /// Records a host activity since `start`.
    pub(super) fn host_did(&mut self, name: &'static str, start: Instant) {
        self.training.host_did(name, start);
    }
}

/// Returns the beginning of an error for a step whose loss is not finite.
pub(crate) fn divergence(done: &StepResults<'_>, place: &str) -> String {
    format!(
        "the loss of step {} on {place} is {}: training diverged. Lower --lr (now {:.1e})",
        done.step, done.loss, done.lr
    )
}
