//! A model whose stages are on several ranks, for evaluation: every rank calls the same functions, and the last one has the loss.

use super::pipe::{Pipe, StageFormat, rows_for_next, rows_from_before};
use super::sample::Served;
use netcl_dist::Group;
use netcl_model::checkpoint::{TensorToWrite, TensorView};
use netcl_model::decoder::{Decoder, DecoderConfig, decoder_of};
use netcl_model::layers::Mode;
use netcl_model::model::{Continuation, Model};
use netcl_model::params::Params;
use netcl_tensor::{DType, Error, Result, Shape, Tensor};

/// This rank's stage of the model.
pub struct Piped<'a> {
    decoder: &'a Decoder,
    along: &'a Group,
}

impl<'a> Piped<'a> {
    /// Creates the stage of `model` in `pipe`.
    ///
    /// # Errors
    /// `Internal` for a model that is not a decoder.
    pub fn new(model: &'a dyn Model, pipe: &'a Pipe) -> Result<Self> {
        let decoder = decoder_of(model)
            .ok_or_else(|| Error::internal("a pipeline of a model that is not a decoder"))?;
        Ok(Self { decoder, along: pipe.along() })
    }

    fn is_first(&self) -> bool {
        self.along.rank() == 0
    }

    fn is_last(&self) -> bool {
        self.along.rank() + 1 == self.along.size()
    }
}

impl Model for Piped<'_> {
    fn config(&self) -> &DecoderConfig {
        self.decoder.config()
    }
    fn params(&self) -> &Params {
        self.decoder.params()
    }
    fn forward(&self, _: &Tensor, _: Mode<'_>) -> Result<Tensor> {
        Err(Error::unsupported("logits of a model whose layers are on several ranks"))
    }
    /// Returns the loss on the last stage, 0 on the others.
    fn loss(&self, ids: &Tensor, targets: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (decoder, device) = (self.decoder, self.params().device());
        let x = match self.is_first() {
            true => decoder.entered(ids, mode)?,
            false => {
                let [b, t] = ids.dims2()?;
                let shape = [b, t, self.config().width].into();
                let rows = StageFormat { device: device.clone(), shape, dtype: self.params().dtype() };
                rows_from_before(self.along, &rows)?
            }
        };
        let x = decoder.through(&x, mode)?;
        if self.is_last() {
            return decoder.loss_behind(&x, targets, mode.loss_weight);
        }
        rows_for_next(self.along, &x)?;
        Tensor::zeros(device, Shape::default(), DType::F32)
    }
    fn state(&self) -> Vec<TensorToWrite<'static>> {
        self.decoder.state()
    }
    fn load_state(&self, tensors: &[TensorView<'_>]) -> Result<()> {
        self.decoder.load_state(tensors)
    }
    /// Starts a text on the first stage, while the others [`follow`](super::follow).
    fn continuation(&self) -> Result<Box<dyn Continuation + '_>> {
        Ok(Box::new(Served::new(self.decoder, self.along)))
    }
}
