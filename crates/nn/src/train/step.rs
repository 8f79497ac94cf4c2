//! One optimizer step, and reading its results while the next one runs.

use super::trainer::Trainer;
use super::uploads::Uploads;
use crate::data::{Position, Prefetch};
use crate::layers::Mode;
use netcl_device::driver::Event;
use netcl_tensor::ops::optimizer::Report;
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
        let on = self.detect_anomaly;
        let (loss, position) = detect_anomaly(on, || self.gradients(batches, uploads))?;
        let lr = self.rate.at(self.step);
        self.optimizer.step(lr)?;
        let report = self.optimizer.report()?;
        self.optimizer.zero_grad();
        self.step += 1;
        self.position = position;
        let done = self.model.params().device().mark()?;
        self.model.params().device().flush()?;
        Ok(Pending { step: self.step, lr, loss, report, done })
    }

    /// Adds up the gradients of one step's batches; returns the mean loss and where the data goes on.
    fn gradients(&self, batches: &mut Prefetch, uploads: &mut Uploads) -> Result<(Tensor, Position)> {
        let micros = self.config.grad_accum;
        let scale = 1.0 / micros as f32;
        let mut total: Option<Tensor> = None;
        let mut after = self.position;
        for _ in 0..micros {
            let next = batches.next().unwrap_or_else(|| Err(Error::internal("the batches ended")));
            let (at, batch) = next?;
            let (x, y) = uploads.send(&batch)?;
            let pass = at.step * u64::from(micros) + u64::from(at.micro);
            let mode = Mode { dropout: self.config.dropout as f32, seed: self.config.seed, pass };
            let mut loss = self.model.loss(&x, &y, mode)?;
            if micros > 1 {
                loss = loss.mul_scalar(scale)?;
            }
            self.optimizer.backward(&loss)?;
            let loss = loss.detach();
            total = Some(match total {
                Some(sum) => sum.add(&loss)?,
                None => loss,
            });
            after = self.loader.next(at);
        }
        total.map(|t| (t, after)).ok_or_else(|| Error::internal("a step without batches"))
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
