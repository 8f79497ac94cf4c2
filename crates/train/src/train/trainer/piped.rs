//! A step of a rank with a stage of the model: micro-batches go through the stages one after the other (1F1B).

use super::texts::Texts;
use crate::data::{Position, Prefetch};
use crate::run::StepMetrics;
use crate::train::parallel::Parallel;
use crate::train::pipeline::{Passes, Pipe, PipelineTask, Slot, SlotInputs, Slots, StageFormat, tasks};
use crate::train::sums::Sums;
use crate::train::training::{Collect, Training, collected};
use netcl_model::decoder::{Decoder, decoder_of};
use netcl_model::layers::Mode;
use netcl_model::model::Model as _;
use netcl_tensor::{DType, Device, Error, Lazy, Result, Tensor, detect_anomaly};
use std::collections::VecDeque;
use std::time::Instant;

/// A stage of the model, and the run that it belongs to.
struct Stage<'a> {
    texts: &'a Texts,
    training: &'a mut Training<StepMetrics>,
}

impl Texts {
    /// Runs the forward and backward passes of this rank's stage, the sums of gradients between replicas, and the update. Returns the loss of the
    /// step and the next position in the data.
    ///
    /// # Errors
    /// Errors of the data, the ranks and the device.
    pub(super) fn piped(
        &mut self,
        training: &mut Training<StepMetrics>,
        batches: &mut Prefetch,
        asked: &mut dyn FnMut() -> [bool; 2],
    ) -> Result<(Tensor, Position)> {
        let mut slots = std::mem::take(&mut self.slots);
        let mut stage = Stage { texts: self, training };
        let passed = stage.pass(&mut slots, batches);
        let made = passed.and_then(|(loss, after)| {
            stage.reduce(&loss, asked)?;
            stage.update()?;
            Ok((loss, after))
        });
        self.slots = slots;
        made
    }
}

impl Stage<'_> {
    /// Clears the sums and runs all passes of a step.
    fn pass(&mut self, slots: &mut Slots, batches: &mut Prefetch) -> Result<(Tensor, Position)> {
        if self.training.passes.sums.is_none() {
            self.start_sums()?;
        }
        if let Some(sums) = &self.training.passes.sums {
            sums.begin()?;
        }
        self.capture_passes(slots)?;
        self.run_passes(slots, batches)
    }

    /// Runs the passes of all micro-batches of a step. Returns the loss, which is 0 except in the last stage, and the next position in the data.
    fn run_passes(&mut self, slots: &Slots, batches: &mut Prefetch) -> Result<(Tensor, Position)> {
        let (stage, stages) = self.pipe(|pipe| (pipe.stage(), pipe.stages()))?;
        let (rows, mut after) = (self.rows()?, self.training.progress.position);
        let micros = u64::from(self.texts.config.grad_accum);
        let order = tasks(stage, stages, self.texts.config.grad_accum as usize);
        // Outputs of eager forward passes, the oldest first.
        let mut live: VecDeque<Tensor> = VecDeque::new();
        self.exchange((None, None), (order.first().copied(), slots), &rows)?;
        for (i, task) in order.iter().copied().enumerate() {
            let begun = Instant::now();
            let slot = slots.of(task.micro()).ok_or_else(no_pipe)?;
            let result = match task {
                PipelineTask::Forward(micro) => {
                    let next = batches.next();
                    let (at, batch) = next.unwrap_or_else(|| Err(Error::internal("the batches ended")))?;
                    after = self.texts.loader.next(at);
                    let weight = self.texts.weight(&batch, self.share());
                    slot.fill(&batch, weight, self.training.progress.step * micros + micro as u64)?;
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
                PipelineTask::Backward(_) => match slot.replay_backward()? {
                    Some(gradient) => gradient,
                    None => {
                        let output = live.pop_front();
                        let output =
                            output.ok_or_else(|| Error::internal("a backward pass without a forward"))?;
                        self.backward_pass(slot, &output)?
                    }
                },
            };
            self.training.host_did("enqueue", begun);
            let begun = Instant::now();
            let next = (order.get(i + 1).copied(), slots);
            self.exchange((Some(task), result.as_ref()), next, &rows)?;
            self.training.host_did("exchange", begun);
        }
        let loss = self.training.passes.sums.as_ref().map(Sums::loss).ok_or_else(no_pipe)?;
        Ok((loss, after))
    }

    /// Captures the passes of this stage, if that is still to be done.
    fn capture_passes(&mut self, slots: &mut Slots) -> Result<()> {
        if slots.is_empty() {
            *slots = self.new_slots()?;
        }
        if self.training.passes.stepper.is_eager() {
            return Ok(());
        }
        let device = self.texts.model.params().device();
        let captured = slots.capture(device, |slot| {
            let output = self.forward_pass(slot)?;
            Lazy::settle()?;
            let forward = device.commands_noted();
            let gradient = self.backward_pass(slot, &output)?;
            Ok(Passes { output: output.detach(), gradient, forward })
        });
        captured.or_else(|e| self.training.passes.stepper.stay_eager(e))
    }

    fn new_slots(&self) -> Result<Slots> {
        let (stage, stages) = self.pipe(|pipe| (pipe.stage(), pipe.stages()))?;
        let inputs = SlotInputs {
            first: stage == 0,
            last: stage + 1 == stages,
            dropout: self.texts.config.dropout > 0.0,
            weighted: self.texts.loader.is_weighted(),
        };
        Slots::new(&self.rows()?, inputs, (stages - stage).min(self.texts.config.grad_accum as usize).max(1))
    }

    fn pipe<T>(&self, of: impl FnOnce(&Pipe) -> T) -> Result<T> {
        self.training.ranks.parallel.as_ref().and_then(Parallel::pipe).map(of).ok_or_else(no_pipe)
    }

    /// Returns the format of the data that this rank exchanges with adjacent stages.
    fn rows(&self) -> Result<StageFormat> {
        let rows = self
            .training
            .ranks
            .parallel
            .as_ref()
            .map(|parallel| parallel.rows().len())
            .ok_or_else(no_pipe)?;
        let params = self.texts.model.params();
        let shape = [rows, self.texts.config.context, self.texts.model.config().width].into();
        Ok(StageFormat { device: params.device().clone(), shape, dtype: params.dtype() })
    }

    fn exchange(
        &mut self,
        done: (Option<PipelineTask>, Option<&Tensor>),
        (next, slots): (Option<PipelineTask>, &Slots),
        rows: &StageFormat,
    ) -> Result<()> {
        let slot = next.and_then(|next| slots.of(next.micro()));
        let room = slot.zip(next).and_then(|(slot, next)| match next {
            PipelineTask::Forward(_) => slot.input.as_ref(),
            PipelineTask::Backward(_) => slot.dy.as_ref(),
        });
        let pipe = self.training.ranks.parallel.as_mut().and_then(Parallel::pipe_mut).ok_or_else(no_pipe)?;
        pipe.pass(done, (next, room), rows)
    }

    /// Runs the forward pass of a micro-batch, from the rows of the previous stage or, in the first stage, from its tokens.
    fn forward_pass(&self, slot: &Slot) -> Result<Tensor> {
        let decoder = self.stage()?;
        let _tag = decoder.params().device().tag("activations");
        let (share, rows_before) =
            self.training.ranks.parallel.as_ref().map_or((1.0, 0), |p| (p.share(), p.rows().start));
        let mode = Mode {
            dropout: self.texts.config.dropout as f32,
            seed: self.texts.config.seed,
            pass: 0,
            // A separate counter, because the backward pass comes after the forward passes of other micro-batches.
            counter: slot.draws.as_ref(),
            recompute: self.texts.config.recompute,
            rows_before,
            loss_weight: slot.weight.as_ref(),
            positions: None,
        };
        detect_anomaly(self.training.passes.detect_anomaly, || {
            let x = match (&slot.input, &slot.ids) {
                (Some(rows), _) => decoder.through(rows, mode)?,
                (None, Some(ids)) => decoder.through(&decoder.entered(ids, mode)?, mode)?,
                (None, None) => return Err(no_pipe()),
            };
            let Some(targets) = &slot.targets else { return Ok(x) };
            let loss = decoder.loss_behind(&x, targets, slot.weight.as_ref())?;
            let part = share / self.texts.config.grad_accum as f32;
            let loss = if part < 1.0 { loss.mul_scalar(part)? } else { loss };
            self.training.passes.sums.as_ref().map_or(Ok(()), |sums| sums.add_loss(&loss).map(drop))?;
            Ok(loss)
        })
    }

    /// Runs the backward pass of a micro-batch, from the gradient of its rows or, in the last stage, from its loss. Returns the gradient for the
    /// previous stage.
    fn backward_pass(&self, slot: &Slot, output: &Tensor) -> Result<Option<Tensor>> {
        let collect = Collect::into_sums(self.training.passes.sums.as_ref());
        detect_anomaly(self.training.passes.detect_anomaly, || {
            collected(&self.training.optimizer, collect, || match &slot.dy {
                Some(dy) => output.backward_with(dy),
                None => self.training.optimizer.backward(output),
            })
        })?;
        let dtype = self.texts.model.params().dtype();
        let gradient = slot.input.as_ref().map(|input| {
            let gradient = input.grad().ok_or_else(|| Error::internal("rows without a gradient"))?;
            input.set_grad(None);
            gradient.detach().to_dtype(dtype)
        });
        gradient.transpose()
    }

    /// Sums gradients and losses of all replicas; `loss` becomes that of the step, on every rank.
    fn reduce(&mut self, loss: &Tensor, asked: &mut dyn FnMut() -> [bool; 2]) -> Result<()> {
        let begun = Instant::now();
        let asked = asked();
        let parallel = self.training.ranks.parallel.as_mut().ok_or_else(no_pipe)?;
        let buckets = self.training.passes.sums.as_ref().map_or(&[][..], Sums::buckets);
        // Not before the last pass: stages exchange rows until then.
        for bucket in buckets {
            let ready = bucket.device().mark()?;
            bucket.device().flush()?;
            parallel.begin_reduction(bucket, ready)?;
        }
        parallel.finish_reductions(loss, asked, None)?;
        self.training.host_did("all_reduce", begun);
        Ok(())
    }

    /// Updates from the gradients of all stages: both copies of a tied embedding have the same gradient, which counts once in the norm of all.
    fn update(&mut self) -> Result<()> {
        let begun = Instant::now();
        let Training { optimizer, ranks, .. } = &mut *self.training;
        let decoder = decoder_of(&*self.texts.model).ok_or_else(no_pipe)?;
        let pipe = ranks.parallel.as_mut().and_then(Parallel::pipe_mut).ok_or_else(no_pipe)?;
        if let Some(gradient) = decoder.tied_table().and_then(Tensor::grad) {
            pipe.sum_tied(&gradient)?;
        }
        let copy = decoder.copied_table().and_then(|(copy, _)| copy.name().map(str::to_owned));
        let counts: Vec<bool> = optimizer.params().map(|p| p.name() != copy.as_deref()).collect();
        optimizer.apply_with(&mut |squares| {
            let own = squares.iter().zip(&counts).filter(|(_, counts)| **counts).map(|(sum, _)| sum);
            pipe.total(own.sum())
        })?;
        self.training.host_did("update", begun);
        Ok(())
    }

    /// Returns the share of this replica's rows in the batch.
    fn share(&self) -> f32 {
        self.training.ranks.parallel.as_ref().map_or(1.0, Parallel::share)
    }

    fn stage(&self) -> Result<&Decoder> {
        decoder_of(&*self.texts.model).ok_or_else(no_pipe)
    }

    /// Determines shapes and types of the gradients with passes of one sequence of zeros, and allocates accumulators for them.
    fn start_sums(&mut self) -> Result<()> {
        let decoder = self.stage()?;
        let (device, params) = (decoder.params().device().clone(), decoder.params());
        let (t, last) = (self.texts.config.context, self.pipe(Pipe::is_last)?);
        let mode = Mode { recompute: self.texts.config.recompute, ..Mode::eval() };
        let x = match self.pipe(Pipe::stage)? {
            0 => decoder.entered(&zeros(&device, t)?, mode)?,
            _ => Tensor::zeros(&device, [1, t, decoder.config().width], params.dtype())?.parameter("rows"),
        };
        let x = decoder.through(&x, mode)?;
        match last {
            true => {
                self.training.optimizer.backward(&decoder.loss_behind(&x, &zeros(&device, t)?, None)?)?
            }
            false => x.backward_with(&x.detach())?,
        }
        let several = self.texts.config.grad_accum > 1;
        let sums = Sums::like(&device, params.trained().iter(), None, DType::F32, several)?;
        self.training.optimizer.prepare()?;
        self.training.passes.sums = Some(sums);
        Ok(())
    }
}

/// Returns tokens 0 of one sequence.
fn zeros(device: &Device, context: usize) -> Result<Tensor> {
    Tensor::from_u32(device, [1, context], &vec![0; context])
}

fn no_pipe() -> Error {
    Error::internal("a step of a pipeline on a rank without a stage")
}
