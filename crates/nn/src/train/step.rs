//! One optimizer step, and reading its results while the next one runs.

use super::stepper::Stepper;
use super::trainer::Trainer;
use super::uploads::{Inputs, Uploads};
use crate::config::TrainConfig;
use crate::data::{Batch, Position, Prefetch};
use crate::gpt::Gpt;
use crate::layers::Mode;
use crate::optim::Optimizer;
use netcl_device::driver::Event;
use netcl_tensor::ops::optimizer::Report;
use netcl_tensor::random::set_counter;
use netcl_tensor::{Error, Result, Tensor, detect_anomaly};
use std::time::Instant;

/// A step that is enqueued and whose numbers are still on the device.
pub(super) struct Pending {
    pub step: u64,
    pub lr: f64,
    loss: Tensor,
    report: Report,
    done: Event,
}

/// A step's numbers.
pub(super) struct Done {
    pub step: u64,
    pub lr: f64,
    pub loss: f64,
    pub norm: f64,
    /// When the host learned of them.
    pub at: Instant,
}

impl Trainer {
    /// Enqueues the step after `self.step`.
    pub(super) fn enqueue(&mut self, batches: &mut Prefetch, uploads: &mut Uploads) -> Result<Pending> {
        let device = self.model.params().device().clone();
        let begun = Instant::now();
        let (data, after) = self.batches(batches)?;
        self.host_did("data", begun);
        let begun = Instant::now();
        let inputs = uploads.send(&data, !self.stepper.is_eager())?;
        self.host_did("upload", begun);
        let begun = Instant::now();
        let lr = self.rate.at(self.step);
        self.optimizer.set_rate(lr)?;
        if self.config.dropout > 0.0 {
            set_counter(&self.draws, Mode::draws(self.step * u64::from(self.config.grad_accum)))?;
        }
        let Self { stepper, model, optimizer, config, draws, detect_anomaly: on, .. } = self;
        if stepper.is_cold() {
            rehearse(stepper, model, optimizer, config, draws, &inputs);
        }
        let made = stepper.run(|| {
            let loss = detect_anomaly(*on, || gradients(model, optimizer, config, draws, &inputs))?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss)
        });
        // Half a step leaves gradients behind that belong to no other.
        let loss = made.inspect_err(|_| self.optimizer.zero_grad())?;
        self.optimizer.count();
        let report = self.optimizer.report()?;
        let loss = self.keep_loss(&loss)?;
        self.step += 1;
        self.position = after;
        let done = device.mark()?;
        device.flush()?;
        self.host_did("enqueue", begun);
        Ok(Pending { step: self.step, lr, loss, report, done })
    }

    /// The batches of one step, and where the data goes on.
    fn batches(&self, from: &mut Prefetch) -> Result<(Vec<Batch>, Position)> {
        let mut after = self.position;
        let mut data = Vec::with_capacity(self.config.grad_accum as usize);
        for _ in 0..self.config.grad_accum {
            let next = from.next().unwrap_or_else(|| Err(Error::internal("the batches ended")));
            let (at, batch) = next?;
            after = self.loader.next(at);
            data.push(batch);
        }
        Ok((data, after))
    }

    /// The loss of a replay lies where the next replay puts its own: a copy, for the host to read while that runs.
    fn keep_loss(&mut self, loss: &Tensor) -> Result<Tensor> {
        if !self.stepper.is_captured() {
            return Ok(loss.clone());
        }
        let slot = &self.losses[self.step as usize % self.losses.len()];
        let (from, to) = (loss.storage(), slot.storage());
        to.device().copy(from, loss.layout().offset * loss.dtype().size(), to, 0, to.bytes())?;
        Ok(slot.clone())
    }

    /// Reads a step's numbers as soon as that step is done.
    pub(super) fn collect(&self, pending: &Pending) -> Result<Done> {
        let device = self.model.params().device();
        let loss = f64::from(pending.loss.item_after(&pending.done)?);
        let norm = f64::from(pending.report.read()?.norm);
        if !loss.is_finite() {
            return Err(Error::launch(format!(
                "the loss of step {} on {} is {loss}: training diverged. Lower --lr (now {:.1e}), lengthen --warmup, or clip with \
                 --clip; --detect-anomaly names the op that made it. The checkpoints before this step are intact",
                pending.step,
                device.capabilities().id,
                pending.lr
            )));
        }
        Ok(Done { step: pending.step, lr: pending.lr, loss, norm, at: Instant::now() })
    }
}

/// Adds up the gradients of one step's batches; the mean loss.
fn gradients(
    model: &Gpt,
    optimizer: &Optimizer,
    config: &TrainConfig,
    draws: &Tensor,
    batches: &[Inputs],
) -> Result<Tensor> {
    let micros = batches.len();
    let mut total: Option<Tensor> = None;
    for (micro, (x, y)) in batches.iter().enumerate() {
        let mode = Mode {
            dropout: config.dropout as f32,
            seed: config.seed,
            pass: micro as u64,
            counter: (config.dropout > 0.0).then_some(draws),
            recompute: config.recompute,
        };
        let device = model.params().device();
        let tag = device.tag("activations");
        let mut loss = model.loss(x, y, mode)?;
        if micros > 1 {
            loss = loss.mul_scalar(1.0 / micros as f32)?;
        }
        drop(tag);
        let tag = device.tag("gradients");
        optimizer.backward(&loss)?;
        drop(tag);
        let loss = loss.detach();
        total = Some(match total {
            Some(sum) => sum.add(&loss)?,
            None => loss,
        });
    }
    total.ok_or_else(|| Error::internal("a step without batches"))
}

/// Plans a step's memory before it runs. One sequence of one batch goes forward and back first: what outlives a step is made
/// from its gradients, which are thrown away.
fn rehearse(
    stepper: &mut Stepper,
    model: &Gpt,
    optimizer: &mut Optimizer,
    config: &TrainConfig,
    draws: &Tensor,
    batches: &[Inputs],
) {
    // Both closures need the optimizer, one after the other.
    let optimizer = std::cell::RefCell::new(optimizer);
    let warm = || -> Result<()> {
        let mut optimizer = optimizer.borrow_mut();
        let first = batches.first().ok_or_else(|| Error::internal("a step without batches"))?;
        // Rows of their own: parts of the inputs would not live as long as those.
        let row = |ids: &Tensor| {
            let bytes = ids.to_bytes()?;
            let one = bytes.len() / ids.dims()[0].max(1);
            Tensor::from_bytes(ids.device(), [1, config.context], &bytes[..one], ids.dtype())
        };
        gradients(model, &optimizer, config, draws, &[(row(&first.0)?, row(&first.1)?)])?;
        optimizer.prepare()
    };
    let step = || {
        let mut optimizer = optimizer.borrow_mut();
        optimizer.zero_grad();
        let loss = gradients(model, &optimizer, config, draws, batches)?;
        optimizer.apply()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    stepper.rehearse(warm, step);
    optimizer.borrow().zero_grad();
}
