//! Generates texts with a model whose stages are on several ranks: the first stage requests the logits after a text, and the others follow.
//! The whole text goes through the stages for each token, without a KV cache.

use super::pipe::{Pipe, StageFormat, rows_for_next, rows_from_before};
use netcl_dist::Group;
use netcl_model::decoder::{Decoder, decoder_of};
use netcl_model::layers::Mode;
use netcl_model::model::{Continuation, Model};
use netcl_tensor::{Result, Tensor, no_grad};

/// The first stage's side of a text.
pub struct Served<'a> {
    decoder: &'a Decoder,
    along: &'a Group,
}

impl<'a> Served<'a> {
    /// Creates it with this stage of `along`.
    pub fn new(decoder: &'a Decoder, along: &'a Group) -> Self {
        Self { decoder, along }
    }

    /// Reports to the other stages that no more text follows.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn end(pipe: &Pipe) -> Result<()> {
        pipe.along().broadcast(&mut [0u64], 0)
    }
}

impl Continuation for Served<'_> {
    fn logits_after(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let config = self.decoder.config();
        let ids = &ids[ids.len().saturating_sub(config.context)..];
        let device = self.decoder.params().device();
        let rows = no_grad(|| {
            let ids = Tensor::from_u32(device, [1, ids.len()], ids)?;
            self.decoder.through(&self.decoder.entered(&ids, Mode::eval())?, Mode::eval())
        })?;
        self.along.broadcast(&mut [ids.len() as u64], 0)?;
        rows_for_next(self.along, &rows)?;
        let mut logits = vec![0.0f32; config.vocab];
        self.along.recv(self.along.size() - 1, &mut logits)?;
        Ok(logits)
    }
}

/// Computes what the first stage requests from this one, until it ends.
///
/// # Errors
/// Errors of the group and the device.
pub fn follow(model: &dyn Model, pipe: &Pipe) -> Result<()> {
    let along = pipe.along();
    let Some(decoder) = decoder_of(model) else { return Ok(()) };
    let (device, dtype) = (decoder.params().device(), decoder.params().dtype());
    loop {
        let mut length = [0u64];
        along.broadcast(&mut length, 0)?;
        let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
        if length == 0 {
            return Ok(());
        }
        let width = decoder.config().width;
        let rows = StageFormat { device: device.clone(), shape: [1, length, width].into(), dtype };
        let x = no_grad(|| decoder.through(&rows_from_before(along, &rows)?, Mode::eval()))?;
        if !pipe.is_last() {
            rows_for_next(along, &x)?;
            continue;
        }
        let last = x.slice(1, length - 1..length)?.reshape([1, width])?;
        let logits = no_grad(|| decoder.logits_behind(&last))?;
        along.send(0, &logits.to_vec()?)?;
    }
}
