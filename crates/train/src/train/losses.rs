//! Losses of the last steps, stored where the next replay does not overwrite them.

use netcl_device::Result;
use netcl_tensor::{DType, Device, Shape, Tensor};

/// Number of losses kept on the device: of the running step, of the previous one, which is being read, and one more.
const LOSSES: usize = 3;

/// A ring of f32 scalars on the device.
pub(crate) struct Losses {
    slots: Vec<Tensor>,
}

impl Losses {
    /// Creates an empty ring.
    pub fn new(device: &Device) -> Result<Self> {
        let slots = (0..LOSSES).map(|_| Tensor::zeros(device, Shape::default(), DType::F32));
        Ok(Self { slots: slots.collect::<Result<_>>()? })
    }

    /// Copies the f32 loss of step `step`, which the next replay overwrites, so that the host can read it during the replay.
    pub fn keep(&self, loss: &Tensor, step: u64) -> Result<Tensor> {
        let slot = &self.slots[step as usize % self.slots.len()];
        let (from, to) = (loss.storage(), slot.storage());
        to.device().copy(from, loss.layout().offset * loss.dtype().size(), to, 0, to.bytes())?;
        Ok(slot.clone())
    }
}
