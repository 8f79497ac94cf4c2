//! The loss of a batch of records whose answers are compared.

use super::loss::{PreferenceLoss, RecordNumbers};
use super::statistics::PreferenceSums;
use crate::config::TrainConfig;
use crate::data::records::{VALUES, value};
use crate::data::{Batch, Eval};
use crate::evaluate::{PreferenceMetrics, Score};
use crate::train::uploads::UploadedBatch;
use netcl_device::driver::Event;
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::{DType, Device, Error, Result, Tensor, no_grad};

/// An objective that compares answers, and its state on the device.
pub(in crate::train) struct PreferenceObjective {
    loss: PreferenceLoss,
    statistics: PreferenceSums,
    /// Positions of a row (1, T), f32, to select the answers of rows whose prompts are also targets.
    positions: Tensor,
}

impl PreferenceObjective {
    /// Creates the objective of a run; `None` for one that does not compare answers.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn of(config: &TrainConfig, device: &Device) -> Result<Option<Self>> {
        let Some(loss) = PreferenceLoss::of(config)? else { return Ok(None) };
        let positions: Vec<f32> = (0..config.context).map(|at| at as f32).collect();
        Ok(Some(Self {
            loss,
            statistics: PreferenceSums::new(device)?,
            positions: Tensor::from_f32(device, [1, config.context], &positions, DType::F32)?,
        }))
    }

    /// Returns the tensor that passes change.
    pub fn buffer(&self) -> Tensor {
        self.statistics.buffer().clone()
    }

    /// Returns the mean loss of a pass, a scalar, and adds its numbers to those of the step.
    ///
    /// # Errors
    /// Errors of the model and of the device.
    pub fn loss(&self, model: &dyn Model, batch: &UploadedBatch, mode: Mode<'_>) -> Result<Tensor> {
        let (Some(values), Some(weight)) = (&batch.values, &batch.weight) else {
            return Err(Error::internal("a batch without the numbers of its records"));
        };
        let (sum, balance) = self.sum(model, [&batch.x, &batch.y], values, mode)?;
        let loss = sum.mul(&weight.reshape([])?)?;
        balance.map_or(Ok(loss.clone()), |balance| loss.add(&balance))
    }

    /// Returns the sum of the losses of a batch's records, and the balance loss of a mixture of experts.
    fn sum(
        &self,
        model: &dyn Model,
        [x, y]: [&Tensor; 2],
        values: &Tensor,
        mode: Mode<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let numbers = RecordNumbers(values);
        let records = values.dims()[1];
        let (tokens, balance) = if self.loss.is_labeled() {
            let rows = |ids: &Tensor, from: usize| ids.slice(0, from..from + records)?.contiguous();
            let (own, balance) = model.token_losses(&rows(x, 0)?, &rows(y, 0)?, mode)?;
            // The divergence does not have a gradient.
            let other = match self.loss.needs_divergence() {
                true => {
                    no_grad(|| model.token_losses(&rows(x, records)?, &rows(y, records)?, Mode::eval()))?.0
                }
                false => own.detach(),
            };
            ([own, other], balance)
        } else {
            let (all, balance) = model.token_losses(x, y, mode)?;
            ([all.slice(0, 0..records)?, all.slice(0, records..2 * records)?], balance)
        };
        let answer = |side: usize| -> Result<Tensor> {
            let tokens = &tokens[side];
            let of_answer = match self.loss.includes_prompts() {
                false => tokens.clone(),
                true => {
                    let start = numbers.at(value::START[side])?.reshape([records, 1])?;
                    tokens.masked_fill(&self.positions.lt(&start)?, 0.0)?
                }
            };
            of_answer.sum_f32(&[1], false)?.neg()
        };
        let found = self.loss.of_records([answer(0)?, answer(1)?], numbers)?;
        let likelihood = match self.loss.likelihood() > 0.0 {
            true => Some(tokens[0].sum_f32(&[1], false)?),
            false => None,
        };
        self.statistics.add(&self.loss, &found, numbers, likelihood.as_ref())?;
        let mut losses = found.losses.mul(&numbers.at(value::PRESENT)?)?;
        if let Some(sums) = likelihood {
            let scaled = numbers.at(value::LIKELIHOOD)?.mul(&sums)?.mul_scalar(self.loss.likelihood())?;
            losses = losses.add(&scaled)?;
        }
        Ok((losses.sum_f32(&[], false)?, balance))
    }

    /// Returns the inputs of one record, in separate memory.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn one_record(batch: &UploadedBatch) -> Result<UploadedBatch> {
        let Some(values) = &batch.values else {
            return Err(Error::internal("a batch without the numbers of its records"));
        };
        let records = values.dims()[1];
        let rows = |ids: &Tensor| {
            let (bytes, row) = (ids.to_bytes()?, ids.dims()[1] * 4);
            let both = [&bytes[..row], &bytes[records * row..(records + 1) * row]].concat();
            Tensor::from_bytes(ids.device(), [2, ids.dims()[1]], &both, ids.dtype())
        };
        let first: Vec<f32> = values.to_vec()?.chunks(records).map(|row| row[0]).collect();
        let weight = |x: &Tensor| Tensor::from_bytes(x.device(), [1], &x.to_bytes()?, x.dtype());
        Ok(UploadedBatch {
            positions: None,
            x: rows(&batch.x)?,
            y: rows(&batch.y)?,
            weight: batch.weight.as_ref().map(weight).transpose()?,
            values: Some(Tensor::from_f32(values.device(), [VALUES, 1], &first, DType::F32)?),
        })
    }

    /// Discards the numbers of an incomplete step.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn reset(&self) -> Result<()> {
        self.statistics.reset()
    }

    /// Called when all passes of step `step` are enqueued, counted from 0.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn enqueued(&self, step: u64) -> Result<()> {
        self.statistics.keep(step)
    }

    /// Returns the numbers of step `step`, counted from 0, once `done` has happened.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn of_step(&self, step: u64, done: &Event) -> Result<PreferenceMetrics> {
        self.statistics.of_step(step, done, &self.loss)
    }

    /// Evaluates the model on records. The loss is their mean.
    ///
    /// # Errors
    /// Errors of the data, the model and the device.
    pub fn evaluate(&self, model: &dyn Model, eval: &Eval) -> Result<Score> {
        let device = model.params().device();
        let mut score = Score::default();
        for batch in eval.batches() {
            let batch = batch?;
            let [x, y, values] = uploaded(device, &batch)?;
            let (sum, _) = no_grad(|| self.sum(model, [&x, &y], &values, Mode::eval()))?;
            let records = batch.values.len() / VALUES;
            score.nll += f64::from(sum.item()?);
            score.tokens += records as u64;
            score.windows += records as u64;
        }
        score.preference = Some(self.statistics.take(&self.loss)?);
        Ok(score)
    }
}

/// Uploads ids, targets and numbers of a batch.
pub(super) fn uploaded(device: &Device, batch: &Batch) -> Result<[Tensor; 3]> {
    let shape = [batch.rows, batch.context];
    Ok([
        Tensor::from_u32(device, shape, &batch.x)?,
        Tensor::from_u32(device, shape, &batch.y)?,
        Tensor::from_f32(device, [VALUES, batch.values.len() / VALUES], &batch.values, DType::F32)?,
    ])
}
