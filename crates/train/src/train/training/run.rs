//! The training loop.

use super::step::{Enqueued, Pending};
use super::{ObserverRequests, Ranks, Run, Task, Training};
use crate::run::Record;
use crate::train::observer::Observer;
use netcl_tensor::{Error, Result};
use std::time::Instant;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps were done.
    Finished,
    /// The observer stopped the run; a checkpoint was written.
    Stopped,
}

/// Reason why the batches computed ahead ended.
enum Went {
    /// The run is at its end.
    ToTheEnd,
    /// The observer stopped it.
    Stopped,
    /// This rank has other rows now.
    Divided,
}

/// State of the loop in one session.
struct Session {
    /// Steps before it.
    begun: u64,
    /// Whether the memory use was reported.
    explained: bool,
    /// Whether a profile was requested; the report then uses its times of kernels.
    profiled: bool,
}

impl<R: Record> Training<R> {
    /// Records a host activity since `start`.
    pub fn host_did(&mut self, name: &'static str, start: Instant) {
        self.report.host_did(name, self.progress.step, start);
    }
}

impl<T: Task> Run<T> {
    /// Trains until all steps are done or the observer stops the run.
    ///
    /// # Errors
    /// The error that ended it; an error of a single rank has that rank's name.
    pub fn train(&mut self, watch: &mut T::Watch<'_>) -> Result<Outcome> {
        self.train_all(watch).map_err(|e| self.named(e))
    }

    /// Adds this rank's name to an error that only it has.
    fn named(&self, error: Error) -> Error {
        let Ranks { parallel, failed_together, .. } = &self.training.ranks;
        match parallel {
            Some(parallel) if !failed_together && !error.message().starts_with("rank ") => {
                let error = super::accumulation::less_memory(&self.task, parallel, error);
                if T::NAMES_RANK { error.context(parallel.balance.name()) } else { error }
            }
            _ => error,
        }
    }

    fn train_all(&mut self, watch: &mut T::Watch<'_>) -> Result<Outcome> {
        self.task.started(&mut self.training, watch)?;
        let mut pending: Option<Pending> = None;
        let mut session = Session {
            begun: self.training.progress.step,
            explained: false,
            profiled: self.training.report.is_profiled(),
        };
        let outcome = loop {
            let source = self.task.source(&self.training);
            match T::ahead(source, |feed| self.steps(feed, &mut pending, &mut session, watch))? {
                Went::ToTheEnd => break Outcome::Finished,
                Went::Stopped => break Outcome::Stopped,
                Went::Divided => self.rows_changed()?,
            }
        };
        self.end_profile(true, watch)?;
        self.training.report.finish_saving(watch)?;
        Ok(outcome)
    }

    /// Trains on batches that are computed ahead, with the current division.
    fn steps(
        &mut self,
        feed: &mut T::Feed,
        pending: &mut Option<Pending>,
        session: &mut Session,
        watch: &mut T::Watch<'_>,
    ) -> Result<Went> {
        while !self.training.progress.is_finished() {
            self.begin_profile(session)?;
            match self.enqueue(feed, pending, watch)? {
                Enqueued::Step(next) => {
                    self.same_weights_in_time()?;
                    let divided = self.training.ranks.rebalance(T::WATCHED);
                    if let Some(before) = pending.replace(next) {
                        self.finish_step(&before, watch)?;
                    }
                    if self.after_step(pending, session, watch)? {
                        return Ok(Went::Stopped);
                    }
                    if !divided {
                        continue;
                    }
                }
                Enqueued::Stopped => {
                    self.stop_within_step(pending.take(), watch)?;
                    return Ok(Went::Stopped);
                }
                Enqueued::Again => {}
            }
            // Commands that read the old batches and the captured step may still run.
            self.training.device.finish()?;
            return Ok(Went::Divided);
        }
        Ok(Went::ToTheEnd)
    }

    /// Does the work between two steps: explanation, profile, and evaluation, sample and checkpoint if due. Returns whether the run stops.
    fn after_step(
        &mut self,
        pending: &mut Option<Pending>,
        session: &mut Session,
        watch: &mut T::Watch<'_>,
    ) -> Result<bool> {
        if !session.explained
            && let Some(text) = self.task.explain(&self.training)
        {
            watch.memory_explained(&text);
            session.explained = true;
        }
        if self.training.progress.step - session.begun == T::PROFILED.end && !session.profiled {
            let kernels = self.training.device.stop_profile();
            let report = &mut self.training.report;
            report.kernels = report.spare("the time of each kernel", kernels).unwrap_or_default();
        }
        self.training.report.watch_saving(watch)?;
        let asked = self.asked(watch);
        let due = asked.stop || asked.save || self.task.due(&self.training.progress).contains(&true);
        let mut stop = asked.stop;
        if due && let Some(last) = pending.take() {
            let metrics = self.finish_step_quietly(&last, watch)?;
            stop = self.pause(metrics, asked, watch)?;
        }
        self.end_profile(stop, watch)?;
        Ok(stop)
    }

    /// Starts timing kernels, if the next step is the first timed one.
    fn begin_profile(&mut self, session: &Session) -> Result<()> {
        let Training { device, progress, report, .. } = &mut self.training;
        let done = progress.step - session.begun;
        if !T::PROFILED.is_empty() && done == T::PROFILED.start && !session.profiled {
            device.start_profile();
        }
        report.begin_profile(device, progress.step, done)
    }

    /// Ends a profile after its last step, or at the end of the run.
    fn end_profile(&mut self, ended: bool, watch: &mut T::Watch<'_>) -> Result<()> {
        let about = (self.training.progress.step, self.task.is_captured(&self.training));
        let Training { device, report, .. } = &mut self.training;
        report.end_profile(device, about, ended, watch)
    }

    /// Switches to the rows that this rank has now, from the next step on.
    fn rows_changed(&mut self) -> Result<()> {
        let Training { device, passes, ranks, .. } = &mut self.training;
        let Some(parallel) = &mut ranks.parallel else { return Ok(()) };
        // The memory of the old step is freed first, because memory may have been insufficient.
        passes.rows_changed(device);
        self.task.rows_changed(parallel)
    }

    /// Returns the requests of this observer, or of any rank's, in this step.
    fn asked(&self, watch: &mut T::Watch<'_>) -> ObserverRequests {
        let [stop, save] = match &self.training.ranks.parallel {
            Some(parallel) => parallel.balance.asked(),
            None => [watch.should_stop(), watch.should_save()],
        };
        ObserverRequests { stop, save }
    }

    /// Reports the ranks' requests to the task.
    pub(super) fn pass_request(&self, watch: &mut T::Watch<'_>) {
        if let Some(parallel) = &self.training.ranks.parallel {
            let [stop, save] = parallel.balance.asked();
            T::on_request(watch, ObserverRequests { stop, save });
        }
    }

    /// Ends a run within a step: the previous step is the last one, and is saved if it was not.
    fn stop_within_step(&mut self, last: Option<Pending>, watch: &mut T::Watch<'_>) -> Result<()> {
        if let Some(last) = last {
            let metrics = self.finish_step_quietly(&last, watch)?;
            return self.pause(metrics, ObserverRequests { stop: true, save: false }, watch).map(drop);
        }
        let progress = &self.training.progress;
        if progress.step > progress.saved_step { self.save(false, watch) } else { Ok(()) }
    }

    /// Evaluates, samples, notifies the observer and saves after a step, as due. Returns whether the run stops.
    fn pause(
        &mut self,
        metrics: T::Metrics,
        asked: ObserverRequests,
        watch: &mut T::Watch<'_>,
    ) -> Result<bool> {
        self.settle_parameters()?;
        let Training { progress, ranks, .. } = &mut self.training;
        let due @ [.., checkpoint] = self.task.due(progress);
        ranks.pausing(due);
        let last = progress.is_last();
        let best = self.task.review(&mut self.training, metrics, asked, watch)?;
        if asked.stop || asked.save || last || best || checkpoint {
            self.resync_weights()?;
            let begun = Instant::now();
            self.save(best, watch)?;
            self.host_did("checkpoint", begun);
        }
        self.task.paused(&mut self.training, asked, watch)
    }

    /// Waits, before parameters are used, until later work of the device runs after the updates of all ranks.
    pub(super) fn settle_parameters(&mut self) -> Result<()> {
        let begun = Instant::now();
        if self.training.ranks.settle_parameters()? {
            self.host_did("all_gather", begun);
        }
        Ok(())
    }
}
