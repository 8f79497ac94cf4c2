//! Validation loss and samples, off the tape.

use super::trainer::Trainer;
use crate::data::Batch;
use crate::generate::{Generation, Sampling};
use crate::layers::Mode;
use crate::model::Model;
use netcl_tensor::{Result, Tensor, no_grad};

/// Tokens of a sample shown while training.
const SAMPLE_TOKENS: usize = 200;

/// A batch on the device: ids and targets, `(B, T)` each.
fn upload(model: &dyn Model, batch: &Batch) -> Result<(Tensor, Tensor)> {
    let device = model.params().device();
    let shape = [batch.rows, batch.context];
    Ok((Tensor::from_u32(device, shape, &batch.x)?, Tensor::from_u32(device, shape, &batch.y)?))
}

impl Trainer {
    /// Mean loss over the evaluation batches, each weighted by its rows. `None` without validation data.
    pub(super) fn evaluate(&self) -> Result<Option<f64>> {
        let Some(eval) = &self.eval else { return Ok(None) };
        let mut losses = Vec::with_capacity(eval.len());
        no_grad(|| {
            for batch in eval.batches() {
                let batch = batch?;
                let (x, y) = upload(&*self.model, &batch)?;
                losses.push((self.model.loss(&x, &y, Mode::eval())?, batch.rows));
            }
            let rows: usize = losses.iter().map(|(_, rows)| rows).sum();
            let mut sum = 0.0;
            for (loss, rows) in &losses {
                sum += f64::from(loss.item()?) * *rows as f64;
            }
            Ok(Some(sum / rows.max(1) as f64))
        })
    }

    /// A text drawn from the model as it stands, or nothing without a tokenizer.
    pub(super) fn sample(&self) -> Result<Option<String>> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(None) };
        let sampling = Sampling { seed: self.config.seed, ..Sampling::default() };
        let mut ids = self.prompt.clone();
        let drawn = Generation::new(&*self.model, &self.prompt, sampling)?.within(tokenizer)?;
        for id in drawn.take(SAMPLE_TOKENS) {
            ids.push(id?);
        }
        tokenizer.decode(&ids).map(Some)
    }
}
