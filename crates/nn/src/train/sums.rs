//! What the micro-batches of one step add up to: gradients and loss, in memory of their own. A captured micro-batch finds them
//! where the one before left them, so that one graph does for all of them.

use netcl_tensor::ops::map::map_into;
use netcl_tensor::{DType, Device, Result, Tensor};

/// The sums of one step.
pub(super) struct Sums {
    /// Parameters, and the sums of their gradients.
    gradients: Vec<(Tensor, Tensor)>,
    loss: Tensor,
}

impl Sums {
    /// Of the parameters that have a gradient by now; the sums have the gradients' types.
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

    /// Empties them and puts them where a backward adds to them.
    ///
    /// Nothing is -0: added to it, every number stays what it is, -0 included, so that the first micro-batch needs no graph of
    /// its own that sets instead of adding.
    pub fn begin(&self) -> Result<()> {
        for (param, sum) in &self.gradients {
            clear(sum)?;
            param.set_grad(Some(sum.clone()));
        }
        clear(&self.loss)
    }

    /// Adds the loss of a micro-batch; the sum.
    pub fn add_loss(&self, loss: &Tensor) -> Result<Tensor> {
        map_into("x0 + x1", &[&self.loss, loss], &[], &self.loss)?;
        Ok(self.loss.clone())
    }

    /// Takes them away from the parameters.
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
