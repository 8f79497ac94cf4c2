//! Forward and backward passes of the micro-batches of a step, sums of their gradients, and the update.

use super::Task;
use super::passes::{Collect, StepSlice, gradients, warm};
use super::ranks::Ranks;
use super::sharded::{Arriving, Zero};
use crate::config::GraphMode;
use crate::optim::Optimizer;
use crate::train::losses::Losses;
use crate::train::parallel::Parallel;
use crate::train::statistics::Statistics;
use crate::train::stepper::Stepper;
use crate::train::sums::{Sums, exchange_fits};
use netcl_tensor::graph::Between;
use netcl_tensor::{Device, Error, Result, Tensor, detect_anomaly};

/// Execution of passes and updates.
pub(crate) struct Accumulation {
    /// Executes steps of one batch, or forward and backward of a micro-batch.
    pub stepper: Stepper,
    /// Executes the update after several micro-batches.
    pub update: Stepper,
    /// Accumulators of gradients, if passes share them: with several micro-batches, or ranks.
    pub sums: Option<Sums>,
    /// Losses of the last steps.
    losses: Losses,
    /// Whether every result is checked.
    pub detect_anomaly: bool,
}

/// Everything that a pass uses.
pub(super) struct Work<'a, T> {
    pub task: &'a T,
    pub optimizer: &'a mut Optimizer,
    pub ranks: &'a mut Ranks,
}

impl Accumulation {
    /// Creates the state before the first step.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device, graph: GraphMode) -> Result<Self> {
        Ok(Self {
            stepper: Stepper::new(device, graph),
            update: Stepper::without_plan(device, graph),
            sums: None,
            losses: Losses::new(device)?,
            detect_anomaly: false,
        })
    }

    /// Starts or stops checking every result.
    pub fn set_detect_anomaly(&mut self, device: &Device, on: bool) {
        self.detect_anomaly = on;
        if on {
            // The check reads results on the host.
            self.stepper = Stepper::new(device, GraphMode::Off);
            self.update = Stepper::new(device, GraphMode::Off);
            if let Some(sums) = self.sums.take() {
                sums.end();
            }
        }
    }

    /// Prepares for passes with other rows.
    pub fn rows_changed(&mut self, device: &Device) {
        self.stepper = Stepper::new(device, self.stepper.mode());
    }

    /// Starts a step by resetting the accumulators.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn begin(&self, ranks: &Ranks) -> Result<()> {
        let Some(sums) = &self.sums else { return Ok(()) };
        sums.begin()?;
        ranks.begin(sums)
    }

    /// Runs a step with one batch: forward, backward and update; returns its loss.
    ///
    /// # Errors
    /// Errors of the step.
    pub(super) fn whole<T: Task>(&mut self, work: Work<'_, T>, inputs: &T::Inputs) -> Result<Tensor> {
        let Self { stepper, detect_anomaly: on, .. } = self;
        let Work { task, optimizer, ranks } = work;
        let part = part_of(task, ranks.parallel.as_ref());
        if T::PLANS_AHEAD && stepper.is_cold() {
            dry_run(stepper, task, optimizer, part, inputs)?;
        }
        stepper.run(|| {
            let loss = detect_anomaly(*on, || gradients(task, optimizer, part, inputs, Collect::New))?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss)
        })
    }

    /// Returns whether every rank has memory for a pass of its rows. If one does not, rows are divided again, if others have room for them. Captured
    /// passes already have their memory. All ranks call it, while nothing is exchanged.
    ///
    /// # Errors
    /// `Memory` on every rank, if rows cannot be divided.
    pub(super) fn has_memory<T: Task>(&mut self, work: Work<'_, T>, inputs: &T::Inputs) -> Result<bool> {
        let Work { task, optimizer, ranks } = work;
        if ranks.is_alone() || ranks.zero.is_some() || !self.stepper.is_cold() {
            return Ok(true);
        }
        let made = match self.sums {
            None => self.start_sums(Work { task, optimizer, ranks: &mut *ranks }, inputs),
            Some(_) => Ok(()),
        };
        let Self { stepper, sums, detect_anomaly: on, .. } = self;
        let Some(parallel) = ranks.parallel.as_mut() else { return Ok(true) };
        let (sums, optimizer) = (sums.as_ref(), &*optimizer);
        let prepared = made.and_then(|()| {
            let part = StepSlice { apart: sums.and_then(Sums::apart), ..part_of(task, Some(parallel)) };
            let step = || {
                let collect = Collect::into_sums(sums);
                let loss = detect_anomaly(*on, || gradients(task, optimizer, part, inputs, collect))?;
                sums.map_or(Ok(loss.clone()), |sums| sums.add_loss(&loss))
            };
            stepper.dry_run(|| Ok(()), step)?;
            stepper.prepare(step)?;
            exchange_fits(task.params().device(), sums, (parallel.size(), parallel.one_machine))
        });
        let prepared = prepared.map_err(|e| less_memory(task, parallel, e));
        let room = parallel.balance.make_room_for_step(prepared);
        ranks.failed_together |= room.is_err();
        Ok(room?.is_some())
    }

    /// Runs forward and backward of a micro-batch after parameters that are `arriving`; the last one of a step sends gradients to the other ranks
    /// meanwhile.
    ///
    /// # Errors
    /// Errors of the pass, the ranks and the device.
    pub(super) fn pass<T: Task>(
        &mut self,
        mut work: Work<'_, T>,
        (inputs, last): (&T::Inputs, bool),
        mut arriving: Option<&mut Arriving>,
    ) -> Result<Tensor> {
        // Ranks reduce gradients in the accumulators, captured or not.
        if (self.stepper.is_cold() || !work.ranks.is_alone()) && self.sums.is_none() {
            self.start_sums(
                Work { ranks: &mut *work.ranks, optimizer: &mut *work.optimizer, ..work },
                inputs,
            )?;
        }
        let Self { stepper, sums, detect_anomaly: on, .. } = self;
        let Work { task, optimizer, ranks } = &mut work;
        let Ranks { parallel, zero, .. } = &mut **ranks;
        let sums = sums.as_ref();
        let zero = zero.as_ref();
        let optimizer = &**optimizer;
        let task = *task;
        let apart = sums.and_then(Sums::apart);
        if let (true, Some((table, _)), Some(parallel)) = (last, apart, parallel.as_mut()) {
            parallel.begin_rows(table)?;
        }
        let statistics = parallel.as_ref().and_then(|parallel| parallel.statistics.clone());
        let part = StepSlice { apart, statistics: statistics.as_ref(), ..part_of(task, parallel.as_ref()) };
        let divided = zero.and_then(Zero::divided);
        let collect = divided.map_or(Collect::into_sums(sums), Collect::Give);
        let mut step = || {
            let loss = detect_anomaly(*on, || gradients(task, optimizer, part, inputs, collect))?;
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
        match &statistics {
            Some(statistics) => with_statistics(stepper, statistics, &mut step, parts, done),
            None => stepper.run_between(step, &mut Between { uses, before, parts, done }),
        }
    }

    /// Updates from the accumulated gradients, or from those in separate memory.
    ///
    /// # Errors
    /// Errors of the update.
    pub fn update(&mut self, optimizer: &mut Optimizer, loss: &Tensor) -> Result<()> {
        let collected = self.sums.is_some();
        let updated = self.update.run(|| {
            optimizer.apply()?;
            // The accumulators keep their memory and are reset at the beginning of the next step.
            if !collected {
                optimizer.zero_grad();
            }
            Ok(loss.clone())
        });
        updated.map(drop)
    }

    /// Determines shapes and types of the gradients with a dry run, and allocates accumulators at fixed addresses. If that fails, steps are not
    /// captured.
    fn start_sums<T: Task>(&mut self, work: Work<'_, T>, inputs: &T::Inputs) -> Result<()> {
        let Work { task, optimizer, ranks } = work;
        let Ranks { parallel, zero, .. } = ranks;
        let several = task.micros() > 1;
        let divided = zero.as_ref().and_then(Zero::divided);
        let part = part_of(task, parallel.as_ref());
        let statistics = part.statistics.cloned();
        let part = StepSlice { statistics: statistics.as_ref(), ..part };
        let made = warm(task, optimizer, part, inputs, divided).and_then(|loss| {
            let device = loss.device();
            let staying = if divided.is_some() { Vec::new() } else { task.params().trained() };
            let tied = task.tied().filter(|_| parallel.is_some() && zero.is_none());
            let sums = Sums::like(device, staying.iter(), tied.as_ref(), loss.dtype(), several)?;
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
                self.stepper.stay_eager(e)?;
                self.update = Stepper::new(task.params().device(), GraphMode::Off);
            }
        }
        Ok(())
    }

    /// Copies the loss of a replay, which the next replay overwrites, so that the host can read it during that replay.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn keep_loss(&self, loss: &Tensor, step: u64) -> Result<Tensor> {
        if !self.stepper.is_captured() && self.sums.is_none() {
            return Ok(loss.clone());
        }
        self.losses.keep(loss, step)
    }
}

/// Runs a pass that stops where ranks exchange statistics; these points are known once it is captured. `done(i)` starts the reduction of `parts[i]`.
fn with_statistics(
    stepper: &mut Stepper,
    statistics: &Statistics,
    step: &mut impl FnMut() -> Result<Tensor>,
    parts: &[&Tensor],
    done: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Tensor> {
    if stepper.is_planned() {
        stepper.prepare(&mut *step)?;
    }
    if stepper.is_planned() || parts.iter().any(|x| x.device().settings().exact_memory) {
        stepper.stay_eager(Error::unsupported("capture: batch normalization over all ranks"))?;
    }
    let uses = if stepper.is_captured() { statistics.stops(stepper)? } else { Vec::new() };
    let before = &mut |i: usize| statistics.exchange(i);
    let (uses, nothing) = (&uses[..], &mut |_: usize| Ok(()));
    let loss = stepper.run_between(step, &mut Between { uses, before, parts: &[], done: nothing })?;
    // After the last statistics: all ranks exchange everything in the same order.
    (0..parts.len()).try_for_each(done)?;
    Ok(loss)
}

/// Adds this rank's memory use and advice to an error due to lack of memory for its rows.
pub(super) fn less_memory(task: &impl Task, parallel: &Parallel, error: Error) -> Error {
    let (part, change) = task.part(parallel);
    parallel.balance.less_memory(task.params().device(), error, (&part, change))
}

/// Returns the gradients that ranks reduce during a backward pass, in the order in which it completes them.
fn reduced<'a>(sums: Option<&'a Sums>, parallel: Option<&Parallel>) -> Vec<&'a Tensor> {
    sums.filter(|_| parallel.is_some()).map_or_else(Vec::new, |sums| sums.buckets().iter().collect())
}

/// Starts the reduction of gradients that no command writes any more.
fn begin_reduction(
    parallel: Option<&mut Parallel>,
    (bucket, i): (&Tensor, usize),
    zero: Option<&Zero>,
) -> Result<()> {
    let Some(parallel) = parallel else { return Ok(()) };
    let device = bucket.device();
    let ready = device.mark()?;
    // Drivers submit launches in batches; waiting for one that was not submitted would block.
    device.flush()?;
    match zero {
        Some(zero) => parallel.begin_scatter(bucket, zero.bounds(i), ready),
        None => parallel.begin_reduction(bucket, ready),
    }
}

/// Returns this rank's part of a batch.
fn part_of<'a>(task: &impl Task, parallel: Option<&'a Parallel>) -> StepSlice<'a> {
    let (share, rows_before) = parallel.map_or((1.0, 0), |p| (task.share(p), p.rows().start));
    let statistics = parallel.and_then(|parallel| parallel.statistics.as_ref());
    StepSlice { micros: task.micros(), share, rows_before, apart: None, statistics }
}

/// Plans the memory of a step before the first one runs.
fn dry_run<T: Task>(
    stepper: &mut Stepper,
    task: &T,
    optimizer: &mut Optimizer,
    part: StepSlice<'_>,
    inputs: &T::Inputs,
) -> Result<()> {
    // Both closures need the optimizer, one after the other.
    let optimizer = std::cell::RefCell::new(optimizer);
    let made = || -> Result<()> {
        let mut optimizer = optimizer.borrow_mut();
        warm(task, &optimizer, part, inputs, None)?;
        optimizer.prepare()
    };
    let step = || {
        let mut optimizer = optimizer.borrow_mut();
        optimizer.zero_grad();
        let loss = gradients(task, &optimizer, part, inputs, Collect::New)?;
        optimizer.apply()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    let planned = stepper.dry_run(made, step);
    optimizer.borrow().zero_grad();
    planned
}
