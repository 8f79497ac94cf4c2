//! A step of a rank that has a stage of the model: micro-batches go through the stages one after the other (1F1B).

use super::Trainer;
use super::step::Pending;
use crate::data::{Position, Prefetch};
use crate::train::observer::Observer;
use crate::train::parallel::Parallel;
use crate::train::passes::{Collect, collected};
use crate::train::pipeline::{Inputs, Passes, Pipe, Rows, Slot, Slots, Task, tasks};
use crate::train::sums::Sums;
use netcl_model::decoder::{Decoder, decoder_of};
use netcl_model::layers::Mode;
use netcl_model::model::Model as _;
use netcl_tensor::{DType, Device, Error, Lazy, Result, Tensor, detect_anomaly};
use std::collections::VecDeque;
use std::time::Instant;

impl Trainer {
    /// The forward and backward passes of this rank's stage, the sums of gradients among replicas, and the update. Returns the loss of the step and
    /// the next position in the data.
    pub(super) fn enqueue_piped(
        &mut self,
        batches: &mut Prefetch,
        before: &mut Option<Pending>,
        observer: &mut dyn Observer,
    ) -> Result<(Tensor, Position)> {
        // A loss that is not finite ends all ranks, none of which may wait for another one then.
        if let Some(before) = before.take() {
            self.finish_step(&before, observer)?;
        }
        if self.sums.is_none() {
            self.start_piped_sums()?;
        }
        if let Some(sums) = &self.sums {
            sums.begin()?;
        }
        let mut slots = std::mem::take(&mut self.slots);
        let passed = self.capture_passes(&mut slots).and_then(|()| self.run_passes(&slots, batches));
        self.slots = slots;
        let (loss, after) = passed?;
        self.reduce_piped(&loss, observer)?;
        self.update_piped()?;
        Ok((loss, after))
    }

    /// The passes of all micro-batches of a step. Returns the loss, which is 0 but in the last stage, and the next position in the data.
    fn run_passes(&mut self, slots: &Slots, batches: &mut Prefetch) -> Result<(Tensor, Position)> {
        let (stage, stages) = self.pipe(|pipe| (pipe.stage(), pipe.stages()))?;
        let (rows, mut after) = (self.rows()?, self.position);
        let micros = u64::from(self.config.grad_accum);
        let order = tasks(stage, stages, self.config.grad_accum as usize);
        // Outputs of forward passes that run as they are called, the oldest first.
        let mut live: VecDeque<Tensor> = VecDeque::new();
        self.exchange((None, None), (order.first().copied(), slots), &rows)?;
        for (i, task) in order.iter().copied().enumerate() {
            let begun = Instant::now();
            let slot = slots.of(task.micro()).ok_or_else(no_pipe)?;
            let result = match task {
                Task::Forward(micro) => {
                    let next = batches.next();
                    let (at, batch) = next.unwrap_or_else(|| Err(Error::internal("the batches ended")))?;
                    after = self.loader.next(at);
                    slot.fill(&batch, self.step * micros + micro as u64)?;
                    let output = match slot.replay_forward()? {
                        Some(output) => output,
                        None => {
                            let output = self.forward_pass(slot)?;
                            live.push_back(output.clone());
                            output.detach()
                        }
                    };
                    (stage + 1 < stages).then_some(output)
                }
                Task::Backward(_) => match slot.replay_backward()? {
                    Some(gradient) => gradient,
                    None => {
                        let output = live.pop_front();
                        let output =
                            output.ok_or_else(|| Error::internal("a backward pass without a forward"))?;
                        self.backward_pass(slot, &output)?
                    }
                },
            };
            self.host_did("enqueue", begun);
            let begun = Instant::now();
            let next = (order.get(i + 1).copied(), slots);
            self.exchange((Some(task), result.as_ref()), next, &rows)?;
            self.host_did("exchange", begun);
        }
        let loss = self.sums.as_ref().map(Sums::loss).ok_or_else(no_pipe)?;
        Ok((loss, after))
    }

    /// Captures the passes of this stage, unless that was done or is not to be.
    fn capture_passes(&mut self, slots: &mut Slots) -> Result<()> {
        if slots.is_empty() {
            *slots = self.new_slots()?;
        }
        if self.stepper.is_eager() {
            return Ok(());
        }
        let device = self.model.params().device();
        let captured = slots.capture(device, |slot| {
            let output = self.forward_pass(slot)?;
            Lazy::settle()?;
            let forward = device.commands_noted();
            let gradient = self.backward_pass(slot, &output)?;
            Ok(Passes { output: output.detach(), gradient, forward })
        });
        captured.or_else(|e| self.stepper.stay_eager(e))
    }

    fn new_slots(&self) -> Result<Slots> {
        let (stage, stages) = self.pipe(|pipe| (pipe.stage(), pipe.stages()))?;
        let inputs =
            Inputs { first: stage == 0, last: stage + 1 == stages, dropout: self.config.dropout > 0.0 };
        Slots::new(&self.rows()?, inputs, (stages - stage).min(self.config.grad_accum as usize).max(1))
    }

    fn pipe<T>(&self, of: impl FnOnce(&Pipe) -> T) -> Result<T> {
        self.parallel.as_ref().and_then(Parallel::pipe).map(of).ok_or_else(no_pipe)
    }

    /// The form of what this rank exchanges with the stages beside it.
    fn rows(&self) -> Result<Rows> {
        let rows = self.parallel.as_ref().map(|parallel| parallel.rows().len()).ok_or_else(no_pipe)?;
        let params = self.model.params();
        let shape = [rows, self.config.context, self.model.config().width].into();
        Ok(Rows { device: params.device().clone(), shape, dtype: params.dtype() })
    }

    fn exchange(
        &mut self,
        done: (Option<Task>, Option<&Tensor>),
        (next, slots): (Option<Task>, &Slots),
        rows: &Rows,
    ) -> Result<()> {
        let slot = next.and_then(|next| slots.of(next.micro()));
        let room = slot.zip(next).and_then(|(slot, next)| match next {
            Task::Forward(_) => slot.input.as_ref(),
            Task::Backward(_) => slot.dy.as_ref(),
        });
        let pipe = self.parallel.as_mut().and_then(Parallel::pipe_mut).ok_or_else(no_pipe)?;
        pipe.pass(done, (next, room), rows)
    }

    /// The forward pass of a micro-batch, from the rows of the stage before or, in the first stage, from its tokens.
    fn forward_pass(&self, slot: &Slot) -> Result<Tensor> {
        let decoder = self.stage()?;
        let _tag = decoder.params().device().tag("activations");
        let (share, rows_before) = self.parallel.as_ref().map_or((1.0, 0), |p| (p.share(), p.rows().start));
        let mode = Mode {
            dropout: self.config.dropout as f32,
            seed: self.config.seed,
            pass: 0,
            // Of its own, because the backward pass comes after the forward passes of other micro-batches.
            counter: slot.draws.as_ref(),
            recompute: self.config.recompute,
            rows_before,
        };
        detect_anomaly(self.detect_anomaly, || {
            let x = match (&slot.input, &slot.ids) {
                (Some(rows), _) => decoder.through(rows, mode)?,
                (None, Some(ids)) => decoder.through(&decoder.entered(ids, mode)?, mode)?,
                (None, None) => return Err(no_pipe()),
            };
            let Some(targets) = &slot.targets else { return Ok(x) };
            let loss = decoder.loss_behind(&x, targets)?;
            let part = share / self.config.grad_accum as f32;
            let loss = if part < 1.0 { loss.mul_scalar(part)? } else { loss };
            self.sums.as_ref().map_or(Ok(()), |sums| sums.add_loss(&loss).map(drop))?;
            Ok(loss)
        })
    }

    /// The backward pass of a micro-batch, from the gradient of its rows or, in the last stage, from its loss. Returns the gradient for the
    /// stage before.
    fn backward_pass(&self, slot: &Slot, output: &Tensor) -> Result<Option<Tensor>> {
        let collect = Collect::into_sums(self.sums.as_ref());
        detect_anomaly(self.detect_anomaly, || {
            collected(&self.optimizer, collect, || match &slot.dy {
                Some(dy) => output.backward_with(dy),
                None => self.optimizer.backward(output),
            })
        })?;
        let dtype = self.model.params().dtype();
        let gradient = slot.input.as_ref().map(|input| {
            let gradient = input.grad().ok_or_else(|| Error::internal("rows without a gradient"))?;
            input.set_grad(None);
            gradient.detach().to_dtype(dtype)
        });
        gradient.transpose()
    }

    /// Sums gradients and losses of all replicas; `loss` becomes that of the step, at every rank.
    fn reduce_piped(&mut self, loss: &Tensor, observer: &mut dyn Observer) -> Result<()> {
        let begun = Instant::now();
        let asked = [observer.should_stop(), observer.should_save()];
        let parallel = self.parallel.as_mut().ok_or_else(no_pipe)?;
        let buckets = self.sums.as_ref().map_or(&[][..], Sums::buckets);
        // Not before the last pass: stages exchange rows until then.
        for bucket in buckets {
            let ready = bucket.device().mark()?;
            bucket.device().flush()?;
            parallel.begin_reduction(bucket, ready)?;
        }
        parallel.finish_reductions(loss, asked, None)?;
        self.host_did("all_reduce", begun);
        Ok(())
    }

    /// The update from the gradients of all stages: both copies of a tied embedding have the same one, which counts once in the norm of all.
    fn update_piped(&mut self) -> Result<()> {
        let begun = Instant::now();
        let Self { model, optimizer, parallel, .. } = self;
        let decoder = decoder_of(&**model).ok_or_else(no_pipe)?;
        let pipe = parallel.as_mut().and_then(Parallel::pipe_mut).ok_or_else(no_pipe)?;
        if let Some(gradient) = decoder.tied_table().and_then(Tensor::grad) {
            pipe.sum_tied(&gradient)?;
        }
        let copy = decoder.copied_table().and_then(|(copy, _)| copy.name().map(str::to_owned));
        let counts: Vec<bool> = optimizer.params().map(|p| p.name() != copy.as_deref()).collect();
        optimizer.apply_with(&mut |squares| {
            let own = squares.iter().zip(&counts).filter(|(_, counts)| **counts).map(|(sum, _)| sum);
            pipe.total(own.sum())
        })?;
        self.host_did("update", begun);
        Ok(())
    }

    fn stage(&self) -> Result<&Decoder> {
        decoder_of(&*self.model).ok_or_else(no_pipe)
    }

    /// Determines shapes and types of the gradients with passes of one sequence of zeros, and allocates accumulators for them.
    fn start_piped_sums(&mut self) -> Result<()> {
        let decoder = self.stage()?;
        let (device, params) = (decoder.params().device().clone(), decoder.params());
        let (t, last) = (self.config.context, self.pipe(Pipe::is_last)?);
        let mode = Mode { recompute: self.config.recompute, ..Mode::eval() };
        let x = match self.pipe(Pipe::stage)? {
            0 => decoder.entered(&zeros(&device, t)?, mode)?,
            _ => Tensor::zeros(&device, [1, t, decoder.config().width], params.dtype())?.parameter("rows"),
        };
        let x = decoder.through(&x, mode)?;
        match last {
            true => self.optimizer.backward(&decoder.loss_behind(&x, &zeros(&device, t)?)?)?,
            false => x.backward_with(&x.detach())?,
        }
        let several = self.config.grad_accum > 1;
        let sums = Sums::like(&device, params.trained().iter(), None, DType::F32, several)?;
        self.optimizer.prepare()?;
        self.sums = Some(sums);
        Ok(())
    }
}

/// Tokens 0 of one sequence.
fn zeros(device: &Device, context: usize) -> Result<Tensor> {
    Tensor::from_u32(device, [1, context], &vec![0; context])
}

fn no_pipe() -> Error {
    Error::internal("a step of a pipeline of a rank without a stage")
}
