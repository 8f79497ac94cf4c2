//! Accumulated gradients and loss of a step with several micro-batches, in fixed buffers: every replay of the captured micro-batch adds to the
//! same memory, so one graph serves all micro-batches.

use netcl_tensor::ops::map::map_into;
use netcl_tensor::{DType, Device, Result, Tensor};

/// The accumulators of a step.
pub(super) struct Sums {
    /// Parameters and their gradient accumulators.
    gradients: Vec<(Tensor, Tensor)>,
    loss: Tensor,
}

impl Sums {
    /// Accumulators for the parameters that have a gradient now, of the gradients' types.
    pub fn like<'a>(device: &Device, params: impl Iterator<Item = &'a Tensor>, loss: DType) -> Result<Self> {
        let _tag = device.tag("gradients");
        let mut gradients = Vec::new();
        for param in params {
            if let Some(grad) = param.grad() {
                gradients.push((param.clone(), Tensor::empty(device, param.shape(), grad.dtype())?));
            }
        }
        let sums = Self { gradients, loss: Tensor::empty(device, [], loss)? };
        sums.begin()?;
        Ok(sums)
    }

    /// Resets the accumulators and makes the backward pass add to them.
    ///
    /// They are set to -0, because -0 + x has the bits of x for every x, -0 included: the first micro-batch can add like the others and
    /// needs no graph of its own.
    pub fn begin(&self) -> Result<()> {
        for (param, sum) in &self.gradients {
            clear(sum)?;
            param.set_grad(Some(sum.clone()));
        }
        clear(&self.loss)
    }

    /// The accumulated gradients.
    pub fn gradients(&self) -> Vec<Tensor> {
        self.gradients.iter().map(|(_, sum)| sum.clone()).collect()
    }

    /// Adds the loss of a micro-batch; returns the sum.
    pub fn add_loss(&self, loss: &Tensor) -> Result<Tensor> {
        map_into("x0 + x1", &[&self.loss, loss], &[], &self.loss)?;
        Ok(self.loss.clone())
    }

    /// Detaches the accumulators from the parameters.
    pub fn end(&self) {
        self.gradients.iter().for_each(|(param, _)| param.set_grad(None));
    }
}

fn clear(sum: &Tensor) -> Result<()> {
    let nothing: &[u8] = match sum.dtype() {
        DType::F32 => &(-0.0f32).to_le_bytes(),
        _ => &[0, 0x80],
    };
    sum.device().fill(sum.storage(), nothing)
}
