//! Batches on their way to the device: a ring of buffers that the copy queue fills while the device computes, and the place
//! where a captured step looks for them.

use crate::data::Batch;
use netcl_device::driver::Event;
use netcl_tensor::{Device, Result, Tensor};

/// Batches made ahead.
pub(super) const PREFETCH: usize = 4;

/// Batches that are on the device at once: the one that is computed with, the one behind it in the queue, and the one being uploaded.
const SLOTS: usize = 3;
/// Targets start at a multiple of this many indices after the ids: any device may make a sub-buffer there.
const ALIGN: usize = 1024;

/// Ids and targets of a batch, `(B, T)` each.
pub(super) type Inputs = (Tensor, Tensor);

struct Slot {
    both: Tensor,
    inputs: Inputs,
    /// Comes when the batch that lies here is no longer needed.
    used: Option<Event>,
}

/// The ring.
pub(super) struct Uploads {
    slots: Vec<Slot>,
    next: usize,
    fixed: Slot,
    /// Whether a step has more than one batch.
    several: bool,
}

impl Uploads {
    /// Bytes on the device of [`Uploads::new`] with the same arguments; saturates.
    pub fn planned(rows: usize, context: usize) -> u64 {
        let ids = (rows as u64).saturating_mul(context as u64);
        let slot = ids.saturating_mul(2).saturating_add(ALIGN as u64).saturating_mul(4);
        slot.saturating_mul(SLOTS as u64 + 1)
    }

    /// For steps of `micros` batches of `rows` sequences of `context` tokens. Takes the same memory for any number of them.
    pub fn new(device: &Device, rows: usize, context: usize, micros: usize) -> Result<Self> {
        let _tag = device.tag("inputs");
        let second = (rows * context).next_multiple_of(ALIGN);
        let zeros = vec![0; second + rows * context];
        let make = || -> Result<Slot> {
            let both = Tensor::from_u32(device, [zeros.len()], &zeros)?;
            let inputs = (both.window(0, [rows, context])?, both.window(second, [rows, context])?);
            Ok(Slot { both, inputs, used: None })
        };
        let slots = (0..SLOTS).map(|_| make()).collect::<Result<_>>()?;
        let fixed = make()?;
        device.finish()?;
        Ok(Self { slots, next: 0, fixed, several: micros > 1 })
    }

    /// Sends a batch on its way; what is enqueued from now on sees it. `fixed`: always in the same place. Waits until the batch before
    /// the last was computed with, so that never more than a few are enqueued.
    pub fn send(&mut self, batch: &Batch, fixed: bool) -> Result<Inputs> {
        let slot = &mut self.slots[self.next];
        if let Some(used) = slot.used.take() {
            slot.both.device().wait(&used)?;
        }
        let mut data = vec![0; slot.both.count()];
        let (x, y) = data.split_at_mut(slot.both.count() - batch.y.len());
        x[..batch.x.len()].copy_from_slice(&batch.x);
        y.copy_from_slice(&batch.y);
        slot.both.set_u32_beside(&data)?;
        if !fixed {
            return Ok(slot.inputs.clone());
        }
        let (from, to) = (slot.both.storage(), self.fixed.both.storage());
        to.device().copy(from, 0, to, 0, to.bytes())?;
        Ok(self.fixed.inputs.clone())
    }

    /// Everything that reads the batch sent last is enqueued, and goes to the device now.
    pub fn sent(&mut self) -> Result<()> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        // With one batch a step, the loop reads the results of a step before it enqueues the second after it.
        if self.several {
            let device = slot.both.device();
            slot.used = Some(device.mark()?);
            device.flush()?;
        }
        Ok(())
    }
}
