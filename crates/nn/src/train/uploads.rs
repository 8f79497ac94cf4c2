//! Batches on their way to the device: a ring of buffers that the copy queue fills while the device computes, and the place
//! where a captured step looks for them.

use crate::data::Batch;
use netcl_tensor::{Device, Result, Tensor};

/// Steps whose batches are on the device at once: the one that runs, the one behind it in the queue, and the one being
/// uploaded. The loop reads the results of a step before it enqueues the second after it, so the third slot is free.
const STEPS: usize = 3;
/// Targets start at a multiple of this many indices after the ids: any device may make a sub-buffer there.
const ALIGN: usize = 1024;

/// Ids and targets of a batch, `(B, T)` each.
pub(super) type Inputs = (Tensor, Tensor);

struct Slot {
    both: Tensor,
    inputs: Inputs,
}

/// The ring.
pub(super) struct Uploads {
    slots: Vec<Slot>,
    next: usize,
    /// One for each batch of a step.
    fixed: Vec<Slot>,
}

impl Uploads {
    /// Bytes on the device of [`Uploads::new`] with the same arguments; saturates.
    pub fn planned(rows: usize, context: usize, micros: usize) -> u64 {
        let ids = (rows as u64).saturating_mul(context as u64);
        let slot = ids.saturating_mul(2).saturating_add(ALIGN as u64).saturating_mul(4);
        slot.saturating_mul((STEPS as u64 + 1).saturating_mul(micros as u64))
    }

    /// For steps of `micros` batches of `rows` sequences of `context` tokens.
    pub fn new(device: &Device, rows: usize, context: usize, micros: usize) -> Result<Self> {
        let _tag = device.tag("inputs");
        let second = (rows * context).next_multiple_of(ALIGN);
        let zeros = vec![0; second + rows * context];
        let make = || -> Result<Slot> {
            let both = Tensor::from_u32(device, [zeros.len()], &zeros)?;
            let inputs = (both.window(0, [rows, context])?, both.window(second, [rows, context])?);
            Ok(Slot { both, inputs })
        };
        let slots = (0..STEPS * micros).map(|_| make()).collect::<Result<_>>()?;
        let fixed = (0..micros).map(|_| make()).collect::<Result<_>>()?;
        device.finish()?;
        Ok(Self { slots, next: 0, fixed })
    }

    /// Sends a step's batches on their way; what is enqueued from now on sees them. `fixed`: always in the same place.
    pub fn send(&mut self, batches: &[Batch], fixed: bool) -> Result<Vec<Inputs>> {
        let mut sent = Vec::with_capacity(batches.len());
        for (batch, place) in batches.iter().zip(&self.fixed) {
            let slot = &self.slots[self.next];
            self.next = (self.next + 1) % self.slots.len();
            let mut data = vec![0; slot.both.count()];
            let (x, y) = data.split_at_mut(slot.both.count() - batch.y.len());
            x[..batch.x.len()].copy_from_slice(&batch.x);
            y.copy_from_slice(&batch.y);
            slot.both.set_u32_beside(&data)?;
            if fixed {
                let (from, to) = (slot.both.storage(), place.both.storage());
                to.device().copy(from, 0, to, 0, to.bytes())?;
            }
            sent.push(if fixed { place.inputs.clone() } else { slot.inputs.clone() });
        }
        Ok(sent)
    }
}
