//! A step of a rank that has a stage of the model: micro-batches go through the stages one after the other (1F1B).

use super::Trainer;
use super::step::Pending;
use crate::data::{Batch, Position, Prefetch};
use crate::decoder::{Decoder, decoder_of};
use crate::layers::Mode;
use crate::model::Model as _;
use crate::train::observer::Observer;
use crate::train::parallel::Parallel;
use crate::train::passes::{Collect, collected};
use crate::train::pipeline::{Pipe, Rows, Task, tasks};
use crate::train::sums::Sums;
use netcl_tensor::{DType, Device, Error, Result, Shape, Tensor, detect_anomaly};
use std::collections::VecDeque;
use std::time::Instant;

/// A micro-batch between its forward and its backward pass through a stage.
struct Live {
    /// What came from the stage before; its gradient goes back there.
    input: Option<Tensor>,
    /// What went to the stage behind, or the loss.
    output: Tensor,
}

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
        let (stage, stages) = self.pipe(|pipe| (pipe.stage(), pipe.stages()))?;
        let rows = self.rows()?;
        let mut loss = Tensor::zeros(&rows.device, Shape::default(), DType::F32)?;
        let mut after = self.position;
        let mut live: VecDeque<Live> = VecDeque::new();
        let order = tasks(stage, stages, self.config.grad_accum as usize);
        let mut received = self.exchange((None, None), order.first().copied(), &rows)?;
        for (i, task) in order.iter().copied().enumerate() {
            let begun = Instant::now();
            let result = match task {
                Task::Forward(micro) => {
                    let (at, batch) =
                        batches.next().unwrap_or_else(|| Err(Error::internal("the batches ended")))?;
                    after = self.loader.next(at);
                    let passed = self.forward_pass(&batch, micro, received.take())?;
                    let output = passed.output.detach();
                    live.push_back(passed);
                    if stage + 1 == stages {
                        loss = loss.add(&output)?;
                        None
                    } else {
                        Some(output)
                    }
                }
                Task::Backward(_) => {
                    let passed = live.pop_front();
                    let passed =
                        passed.ok_or_else(|| Error::internal("a backward pass without a forward"))?;
                    self.backward_pass(passed, received.take())?
                }
            };
            self.host_did("enqueue", begun);
            let begun = Instant::now();
            let next = order.get(i + 1).copied();
            received = self.exchange((Some(task), result.as_ref()), next, &rows)?;
            self.host_did("exchange", begun);
        }
        self.reduce_piped(&loss, observer)?;
        self.update_piped()?;
        Ok((loss, after))
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
        next: Option<Task>,
        rows: &Rows,
    ) -> Result<Option<Tensor>> {
        let pipe = self.parallel.as_mut().and_then(Parallel::pipe_mut).ok_or_else(no_pipe)?;
        pipe.pass(done, next, rows)
    }

    /// The forward pass of a micro-batch, from `received` rows or, in the first stage, from its tokens.
    fn forward_pass(&self, batch: &Batch, micro: usize, received: Option<Tensor>) -> Result<Live> {
        let decoder = self.stage()?;
        let device = decoder.params().device();
        let _tag = device.tag("activations");
        let (share, rows_before) = self.parallel.as_ref().map_or((1.0, 0), |p| (p.share(), p.rows().start));
        let mode = Mode {
            dropout: self.config.dropout as f32,
            seed: self.config.seed,
            // Nothing is captured, so masks need no counter in device memory.
            pass: self.step * u64::from(self.config.grad_accum) + micro as u64,
            counter: None,
            recompute: self.config.recompute,
            rows_before,
        };
        let shape = [batch.rows, batch.context];
        detect_anomaly(self.detect_anomaly, || {
            let input = received.map(|rows| rows.parameter("rows of the stage before"));
            let x = match &input {
                Some(rows) => decoder.through(rows, mode)?,
                None => {
                    let ids = Tensor::from_u32(device, shape, &batch.x)?;
                    decoder.through(&decoder.entered(&ids, mode)?, mode)?
                }
            };
            if !self.pipe(Pipe::is_last)? {
                return Ok(Live { input, output: x });
            }
            let loss = decoder.loss_behind(&x, &Tensor::from_u32(device, shape, &batch.y)?)?;
            let part = share / self.config.grad_accum as f32;
            let output = if part < 1.0 { loss.mul_scalar(part)? } else { loss };
            Ok(Live { input, output })
        })
    }

    /// The backward pass of a micro-batch, from the `received` gradient of its rows or, in the last stage, from its loss. Returns the gradient
    /// for the stage before.
    fn backward_pass(&self, passed: Live, received: Option<Tensor>) -> Result<Option<Tensor>> {
        let collect = Collect::into_sums(self.sums.as_ref());
        let Live { input, output } = passed;
        detect_anomaly(self.detect_anomaly, || {
            collected(&self.optimizer, collect, || match &received {
                Some(dy) => output.backward_with(dy),
                None => self.optimizer.backward(&output),
            })
        })?;
        let dtype = self.model.params().dtype();
        let gradient = input.map(|input| {
            let gradient = input.grad().ok_or_else(|| Error::internal("rows without a gradient"))?;
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
