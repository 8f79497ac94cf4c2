//! One optimizer step; its results are read while the next step runs.

use super::sharded::{Arriving, Zero};
use super::{Trainer, less_memory};
use crate::config::{GraphMode, TrainConfig};
use crate::data::{Position, Prefetch};
use crate::optim::Optimizer;
use crate::train::observer::Observer;
use crate::train::parallel::Parallel;
use crate::train::passes::{Collect, Part, gradients, warm};
use crate::train::stepper::Stepper;
use crate::train::sums::{Sums, exchange_fits};
use crate::train::uploads::{Inputs, Uploads};
use netcl_device::driver::Event;
use netcl_model::decoder::broken_weights;
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::graph::Between;
use netcl_tensor::ops::optimizer::Report;
use netcl_tensor::random::set_counter;
use netcl_tensor::{Error, Result, Tensor, detect_anomaly};
use std::path::Path;
use std::time::Instant;

/// An enqueued step whose results were not read yet.
pub(super) struct Pending {
    pub step: u64,
    pub lr: f64,
    loss: Tensor,
    report: Report,
    done: Event,
}

/// Results of a step.
pub(super) struct Done {
    pub step: u64,
    pub lr: f64,
    pub loss: f64,
    pub norm: f64,
    /// Time at which the host read them.
    pub at: Instant,
}

/// How a step of several batches went.
enum Micros {
    /// It is enqueued: its loss, and the next position in the data.
    Done(Tensor, Position),
    /// The observer stopped the run within it.
    Stopped,
    /// A rank had no memory for its rows; rows were divided anew, and the step is to be made again.
    Again,
}

impl Trainer {
    /// Enqueues the step after `self.step`. If that takes long, the results of the previous step `before` are read meanwhile. `None` if the
    /// observer stopped the run within the step, which then has no effect.
    pub(super) fn enqueue(
        &mut self,
        (batches, uploads): (&mut Prefetch, &mut Uploads),
        before: &mut Option<Pending>,
        observer: &mut dyn Observer,
    ) -> Result<Option<Pending>> {
        let device = self.model.params().device().clone();
        let lr = self.rate.at(self.step);
        self.optimizer.set_rate(lr)?;
        // Between the backward passes and the update of a step of several ranks the host has work.
        let piped = self.parallel.as_ref().is_some_and(|parallel| parallel.pipe().is_some());
        let made = match self.config.grad_accum {
            _ if piped => self.enqueue_piped(batches, before, observer).map(Some),
            1 if self.parallel.is_none() => self.enqueue_whole(batches, uploads).map(Some),
            _ => loop {
                match self.enqueue_micros((batches, uploads), before, observer) {
                    Ok(Micros::Done(loss, after)) => break Ok(Some((loss, after))),
                    Ok(Micros::Stopped) => break Ok(None),
                    Ok(Micros::Again) => self.rows_changed((batches, uploads))?,
                    Err(e) => break Err(e),
                }
            },
        };
        // Gradients of an incomplete step must not be added to those of the next.
        let Some((loss, after)) = made.inspect_err(|_| self.optimizer.zero_grad())? else {
            self.optimizer.zero_grad();
            return Ok(None);
        };
        let begun = Instant::now();
        self.optimizer.count();
        let report = self.optimizer.report()?;
        let loss = self.keep_loss(&loss)?;
        self.step += 1;
        self.position = after;
        let done = device.mark()?;
        device.flush()?;
        self.host_did("enqueue", begun);
        Ok(Some(Pending { step: self.step, lr, loss, report, done }))
    }

    /// A step with one batch: forward, backward and update. Returns its loss and the next position in the data.
    fn enqueue_whole(&mut self, batches: &mut Prefetch, uploads: &mut Uploads) -> Result<(Tensor, Position)> {
        let (inputs, after) = self.batch(batches, uploads, 0)?;
        let begun = Instant::now();
        let Self { stepper, model, optimizer, config, draws, detect_anomaly: on, .. } = self;
        let (model, part) = (&**model, Part { config, draws, share: 1.0, rows_before: 0, apart: None });
        if stepper.is_cold() {
            dry_run(stepper, model, optimizer, part, &inputs)?;
        }
        let loss = stepper.run(|| {
            let loss = detect_anomaly(*on, || gradients(model, optimizer, part, &inputs, Collect::New))?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss)
        })?;
        uploads.sent()?;
        self.host_did("enqueue", begun);
        Ok((loss, after))
    }

    /// A step with gradient accumulation: forward and backward of each micro-batch, then the update.
    fn enqueue_micros(
        &mut self,
        (batches, uploads): (&mut Prefetch, &mut Uploads),
        before: &mut Option<Pending>,
        observer: &mut dyn Observer,
    ) -> Result<Micros> {
        let mut total: Option<Tensor> = None;
        let mut after = self.position;
        if let Some(sums) = &self.sums {
            sums.begin()?;
            self.zero.as_ref().map_or(Ok(()), |zero| zero.begin(sums))?;
        }
        for micro in 0..self.config.grad_accum {
            // Ranks stop together, after a step.
            if self.parallel.is_none() && observer.should_stop_within_step() {
                return Ok(Micros::Stopped);
            }
            let (inputs, next) = self.batch(batches, uploads, micro)?;
            after = next;
            let begun = Instant::now();
            if micro == 0 && !self.has_memory(&inputs)? {
                return Ok(Micros::Again);
            }
            let loss = self.enqueue_pass(&inputs, micro + 1 == self.config.grad_accum)?;
            // All that could be missing was used by the pass; what comes next may be exchanged by this thread.
            self.settle_parameters()?;
            total = Some(match total {
                Some(sum) if self.sums.is_none() => sum.add(&loss)?,
                _ => loss,
            });
            uploads.sent()?;
            self.host_did("enqueue", begun);
            // Its results are available as soon as the device starts this micro-batch.
            if let Some(before) = before.take() {
                self.finish_step(&before, observer)?;
            }
        }
        let loss = total.ok_or_else(|| Error::internal("a step without batches"))?;
        self.reduce(&loss, observer)?;
        if self.zero.is_some() {
            self.update_part(&loss)?;
            return Ok(Micros::Done(loss, after));
        }
        let (optimizer, collected) = (&mut self.optimizer, self.sums.is_some());
        self.update.run(|| {
            optimizer.apply()?;
            // The accumulators keep their memory and are reset at the beginning of the next step.
            if !collected {
                optimizer.zero_grad();
            }
            Ok(loss.clone())
        })?;
        Ok(Micros::Done(loss, after))
    }

    /// Whether every rank has memory for a pass of its rows; where one has not, rows are divided anew, if others have room for them. Passes that
    /// are captured have it. All ranks call it, while nothing is exchanged.
    ///
    /// # Errors
    /// `Memory` at every rank, where rows cannot be divided.
    fn has_memory(&mut self, inputs: &Inputs) -> Result<bool> {
        if self.parallel.is_none() || self.zero.is_some() || !self.stepper.is_cold() {
            return Ok(true);
        }
        let made = match self.sums {
            None => self.start_sums(inputs),
            Some(_) => Ok(()),
        };
        let Self { stepper, model, optimizer, config, draws, sums, detect_anomaly: on, parallel, .. } = self;
        let (Some(parallel), model) = (parallel.as_mut(), &**model) else { return Ok(true) };
        let sums = sums.as_ref();
        let part = Part { apart: sums.and_then(Sums::apart), ..part_of(Some(parallel), config, draws) };
        let step = || {
            let collect = Collect::into_sums(sums);
            let loss = detect_anomaly(*on, || gradients(model, optimizer, part, inputs, collect))?;
            sums.map_or(Ok(loss.clone()), |sums| sums.add_loss(&loss))
        };
        let prepared = made.and_then(|()| {
            stepper.dry_run(|| Ok(()), step)?;
            stepper.prepare(step)?;
            exchange_fits(model.params().device(), sums, (parallel.size(), parallel.one_machine))
        });
        let prepared = prepared.map_err(|e| less_memory(parallel, config, model.params().device(), e));
        let room = parallel.balance.make_room_for_step(prepared);
        self.failed_together |= room.is_err();
        Ok(room?.is_some())
    }

    /// Forward and backward of a micro-batch; of the last one of a step, gradients go to the other ranks meanwhile.
    fn enqueue_pass(&mut self, inputs: &Inputs, last: bool) -> Result<Tensor> {
        // A replay waits for the parameters of other ranks where it uses them.
        let mut arriving = match (self.stepper.is_captured(), &mut self.zero) {
            (true, Some(zero)) => zero.take_arriving(&self.stepper),
            _ => None,
        };
        if arriving.is_none() {
            self.settle_parameters()?;
        }
        let loss = self.enqueue_pass_behind(inputs, last, arriving.as_mut());
        if let (Some(zero), Some(arriving)) = (&mut self.zero, arriving) {
            zero.return_arriving(arriving);
        }
        loss
    }

    fn enqueue_pass_behind(
        &mut self,
        inputs: &Inputs,
        last: bool,
        mut arriving: Option<&mut Arriving>,
    ) -> Result<Tensor> {
        // Ranks reduce gradients in the accumulators, captured or not.
        if (self.stepper.is_cold() || self.parallel.is_some()) && self.sums.is_none() {
            self.start_sums(inputs)?;
        }
        let Self {
            stepper, model, optimizer, config, draws, sums, detect_anomaly: on, parallel, zero, ..
        } = self;
        let (sums, zero) = (sums.as_ref(), zero.as_ref());
        let apart = sums.and_then(Sums::apart);
        let (model, part) = (&**model, Part { apart, ..part_of(parallel.as_ref(), config, draws) });
        if let (true, Some((table, _)), Some(parallel)) = (last, apart, parallel.as_mut()) {
            parallel.begin_rows(table)?;
        }
        let divided = zero.and_then(Zero::divided);
        let collect = divided.map_or(Collect::into_sums(sums), Collect::Give);
        let step = || {
            let loss = detect_anomaly(*on, || gradients(model, optimizer, part, inputs, collect))?;
            match sums {
                Some(sums) => sums.add_loss(&loss),
                None => Ok(loss),
            }
        };
        if stepper.is_cold() && sums.is_some() {
            stepper.dry_run(|| Ok(()), step)?;
        }
        let uses = arriving.as_ref().map_or_else(Vec::new, |arriving| arriving.uses().to_vec());
        let (uses, before) =
            (&uses[..], &mut |i| arriving.as_mut().map_or(Ok(()), |arriving| arriving.need(i)));
        if let Some(divided) = divided {
            let (parts, done) = (&divided.marks()[..], &mut |i| divided.reached(i));
            let loss = stepper.run_between(step, &mut Between { uses, before, parts, done })?;
            divided.passed();
            return Ok(loss);
        }
        let parts = &if last { reduced(sums, parallel.as_ref()) } else { Vec::new() }[..];
        let done = &mut |i: usize| begin_reduction(parallel.as_mut(), (parts[i], i), zero);
        stepper.run_between(step, &mut Between { uses, before, parts, done })
    }

    /// Waits for the sums of all ranks' gradients; `loss` becomes the sum of all ranks'.
    fn reduce(&mut self, loss: &Tensor, observer: &mut dyn Observer) -> Result<()> {
        let Some(parallel) = &mut self.parallel else { return Ok(()) };
        let begun = Instant::now();
        let apart = self.sums.as_ref().and_then(Sums::apart);
        parallel.finish_reductions(loss, [observer.should_stop(), observer.should_save()], apart)?;
        self.host_did("all_reduce", begun);
        Ok(())
    }

    /// Determines shapes and types of the gradients with a dry run, and allocates accumulators at fixed addresses. If that fails, steps are not
    /// captured.
    fn start_sums(&mut self, inputs: &Inputs) -> Result<()> {
        let Self { model, optimizer, config, draws, stepper, update, parallel, zero, .. } = self;
        let (model, part) = (&**model, part_of(parallel.as_ref(), config, draws));
        let several = config.grad_accum > 1;
        let divided = zero.as_ref().and_then(Zero::divided);
        let made = warm(model, optimizer, part, inputs, divided).and_then(|loss| {
            let device = loss.device();
            let staying = if divided.is_some() { Vec::new() } else { model.params().trained() };
            let tied = model.tied_embedding().filter(|_| parallel.is_some() && zero.is_none());
            let sums = Sums::like(device, staying.iter(), tied, loss.dtype(), several)?;
            if let (Some(divided), Some(parallel)) = (divided, parallel.as_mut()) {
                divided.start(parallel.reducer(device)?.clone(), several)?;
            }
            zero.as_ref().map_or(Ok(()), |zero| zero.begin(&sums))?;
            optimizer.prepare()?;
            Ok(sums)
        });
        match made {
            Ok(sums) => self.sums = Some(sums),
            Err(e) if parallel.is_some() => return Err(e),
            Err(e) => {
                optimizer.zero_grad();
                stepper.stay_eager(e)?;
                *update = Stepper::new(model.params().device(), GraphMode::Off);
            }
        }
        Ok(())
    }

    /// Enqueues the upload of the next batch; returns it and the position after it.
    fn batch(
        &mut self,
        from: &mut Prefetch,
        uploads: &mut Uploads,
        micro: u32,
    ) -> Result<(Inputs, Position)> {
        let begun = Instant::now();
        let next = from.next().unwrap_or_else(|| Err(Error::internal("the batches ended")));
        let (at, batch) = next?;
        self.host_did("data", begun);
        let begun = Instant::now();
        if let Some(rows) = self.parallel.as_mut().and_then(|parallel| parallel.rows.as_mut()) {
            if micro == 0 {
                rows.clear();
            }
            rows.add(&batch.x);
        }
        let inputs = uploads.send(&batch, !self.stepper.is_eager())?;
        if self.config.dropout > 0.0 {
            let pass = self.step * u64::from(self.config.grad_accum) + u64::from(micro);
            set_counter(&self.draws, Mode::draws(pass))?;
        }
        self.host_did("upload", begun);
        Ok((inputs, self.loader.next(at)))
    }

    /// Copies the loss of a replay, which the next replay overwrites, so that the host can read it while that runs.
    fn keep_loss(&mut self, loss: &Tensor) -> Result<Tensor> {
        if !self.stepper.is_captured() && self.sums.is_none() {
            return Ok(loss.clone());
        }
        self.losses.keep(loss, self.step)
    }

    /// The error for a step whose loss is not finite.
    pub(super) fn diverged(&self, done: &Done) -> Error {
        let place = match &self.parallel {
            Some(parallel) => parallel.balance.whose(),
            None => self.model.params().device().capabilities().id.clone(),
        };
        let init = self.config.init.as_deref().filter(|_| done.step == 1);
        if let Some((dir, tensor)) = init.and_then(|dir| Some((dir, broken_weights(Path::new(dir))?))) {
            return Error::format(format!(
                "--init {dir}: {tensor}; a model with such weights cannot be trained. They are damaged, or the training that wrote them \
                 diverged: start from an earlier checkpoint"
            ));
        }
        Error::launch(format!(
            "the loss of step {} on {place} is {}: training diverged. Lower --lr (now {:.1e}), lengthen --warmup, or clip with \
             --clip; --detect-anomaly names the op that made it. The checkpoints before this step are intact",
            done.step, done.loss, done.lr
        ))
    }

    /// Waits for a step and reads its results.
    pub(super) fn collect(&self, pending: &Pending) -> Result<Done> {
        let loss = f64::from(pending.loss.item_after(&pending.done)?);
        let norm = f64::from(pending.report.read()?.norm);
        Ok(Done { step: pending.step, lr: pending.lr, loss, norm, at: Instant::now() })
    }
}

/// The gradients that ranks reduce while a backward pass goes on, in the order in which it is done with them.
fn reduced<'a>(sums: Option<&'a Sums>, parallel: Option<&Parallel>) -> Vec<&'a Tensor> {
    sums.filter(|_| parallel.is_some()).map_or_else(Vec::new, |sums| sums.buckets().iter().collect())
}

/// Begins the reduction of gradients that nothing writes any more.
fn begin_reduction(
    parallel: Option<&mut Parallel>,
    (bucket, i): (&Tensor, usize),
    zero: Option<&Zero>,
) -> Result<()> {
    let Some(parallel) = parallel else { return Ok(()) };
    let device = bucket.device();
    let ready = device.mark()?;
    // Drivers hand over launches in batches; nobody waits for one that was not.
    device.flush()?;
    match zero {
        Some(zero) => parallel.begin_scatter(bucket, zero.bounds(i), ready),
        None => parallel.begin_reduction(bucket, ready),
    }
}

/// What this rank computes of a batch.
fn part_of<'a>(parallel: Option<&Parallel>, config: &'a TrainConfig, draws: &'a Tensor) -> Part<'a> {
    let (share, rows_before) = parallel.map_or((1.0, 0), |p| (p.share(), p.rows().start));
    Part { config, draws, share, rows_before, apart: None }
}

/// Plans the memory of a step before the first one runs.
fn dry_run(
    stepper: &mut Stepper,
    model: &dyn Model,
    optimizer: &mut Optimizer,
    part: Part<'_>,
    inputs: &Inputs,
) -> Result<()> {
    // Both closures need the optimizer, one after the other.
    let optimizer = std::cell::RefCell::new(optimizer);
    let made = || -> Result<()> {
        let mut optimizer = optimizer.borrow_mut();
        warm(model, &optimizer, part, inputs, None)?;
        optimizer.prepare()
    };
    let step = || {
        let mut optimizer = optimizer.borrow_mut();
        optimizer.zero_grad();
        let loss = gradients(model, &optimizer, part, inputs, Collect::New)?;
        optimizer.apply()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    let planned = stepper.dry_run(made, step);
    optimizer.borrow().zero_grad();
    planned
}
