//! Batches on their way to the device: a ring of tensors that the copy queue fills while the device computes.

use crate::data::Batch;
use netcl_tensor::{Device, Result, Tensor};

/// Steps whose batches are on the device at once: the one that runs, the one behind it in the queue, and the one being
/// uploaded. The loop reads the results of a step before it enqueues the second after it, so the third slot is free.
const STEPS: usize = 3;

/// The ring.
pub(super) struct Uploads {
    slots: Vec<(Tensor, Tensor)>,
    next: usize,
}

impl Uploads {
    /// For steps of `micros` batches of `rows` sequences of `context` tokens.
    pub fn new(device: &Device, rows: usize, context: usize, micros: usize) -> Result<Self> {
        let _tag = device.tag("inputs");
        let zeros = vec![0; rows * context];
        let make = || Tensor::from_u32(device, [rows, context], &zeros);
        let slots = (0..STEPS * micros).map(|_| Ok((make()?, make()?))).collect::<Result<_>>()?;
        device.finish()?;
        Ok(Self { slots, next: 0 })
    }

    /// Sends a batch on its way; what is enqueued from now on sees it.
    pub fn send(&mut self, batch: &Batch) -> Result<(Tensor, Tensor)> {
        let (x, y) = self.slots[self.next].clone();
        self.next = (self.next + 1) % self.slots.len();
        x.set_u32_beside(&batch.x)?;
        y.set_u32_beside(&batch.y)?;
        Ok((x, y))
    }
}
