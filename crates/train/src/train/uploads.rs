//! Uploads batches: a ring of device buffers that the copy queue fills while the device computes, and the fixed buffer that a captured step reads.

use crate::data::Batch;
use crate::data::records::VALUES;
use netcl_device::driver::Event;
use netcl_tensor::{DType, Device, Result, Tensor};

/// Batches computed ahead on the host.
pub(super) const PREFETCH: usize = 4;

/// Buffers of the ring: for the batch in use, the next one in the queue, and the one being uploaded.
const SLOTS: usize = 3;
/// Targets and weight begin at a multiple of this many elements, an alignment that every device accepts for sub-buffers.
const ALIGN: usize = 1024;

/// A batch in device memory.
#[derive(Clone)]
pub(crate) struct UploadedBatch {
    /// Ids `(B, T)`.
    pub x: Tensor,
    /// Targets `(B, T)`.
    pub y: Tensor,
    /// Weight (1) f32 of the sum of the batch's losses; `None` if the loss is their mean.
    pub weight: Option<Tensor>,
    /// Position of each token in its record, u32 (B, T); `None` if a row has one record.
    pub positions: Option<Tensor>,
    /// Numbers of each record (VALUES, records) f32, if the loss compares answers.
    pub values: Option<Tensor>,
}

struct Slot {
    both: Tensor,
    inputs: UploadedBatch,
    /// Event after which the buffer may be overwritten.
    used: Option<Event>,
}

/// The ring of upload buffers.
pub(super) struct Uploads {
    slots: Vec<Slot>,
    next: usize,
    fixed: Slot,
    /// Whether a step has several micro-batches.
    several: bool,
}

impl Uploads {
    /// Returns the device memory in bytes that [`Uploads::new`] allocates for the same arguments; saturating.
    pub fn planned(rows: usize, context: usize, packed: bool) -> u64 {
        let ids = (rows as u64).saturating_mul(context as u64);
        let slot = ids
            .saturating_mul(2 + u64::from(packed))
            .saturating_add((2 + u64::from(packed)) * ALIGN as u64)
            .saturating_mul(4);
        slot.saturating_mul(SLOTS as u64 + 1)
    }

    /// Allocates buffers for steps of `micros` batches of `rows` sequences of `context` tokens, which have a weight if `weighted`, and positions if
    /// `packed`. A loss that compares answers also has `values` numbers. The memory does not depend on `micros`.
    pub fn new(
        device: &Device,
        [rows, context, micros]: [usize; 3],
        [weighted, packed]: [bool; 2],
        values: usize,
    ) -> Result<Self> {
        let _tag = device.tag("inputs");
        let second = (rows * context).next_multiple_of(ALIGN);
        let third = 2 * second;
        let last = if packed { third + second } else { third };
        let length = match (weighted, values) {
            (false, _) => last - second + rows * context,
            (true, 0) => last + 1,
            (true, values) => last + ALIGN + values,
        };
        let zeros = vec![0; length];
        let make = || -> Result<Slot> {
            let both = Tensor::from_u32(device, [zeros.len()], &zeros)?;
            let weight = || both.window(last, [1])?.bits_as(DType::F32);
            let numbers = || both.window(last + ALIGN, [VALUES, values / VALUES])?.bits_as(DType::F32);
            let inputs = UploadedBatch {
                x: both.window(0, [rows, context])?,
                y: both.window(second, [rows, context])?,
                weight: weighted.then(weight).transpose()?,
                positions: packed.then(|| both.window(third, [rows, context])).transpose()?,
                values: (values > 0).then(numbers).transpose()?,
            };
            Ok(Slot { both, inputs, used: None })
        };
        let slots = (0..SLOTS).map(|_| make()).collect::<Result<_>>()?;
        let fixed = make()?;
        device.finish()?;
        Ok(Self { slots, next: 0, fixed, several: micros > 1 })
    }

    /// Enqueues the upload of a batch; commands enqueued later see it. `fixed` selects the fixed buffer. Waits until the last batch but one is no
    /// longer used, which bounds the number of enqueued steps. `weight` is written if batches have one.
    pub fn send(&mut self, batch: &Batch, weight: f32, fixed: bool) -> Result<UploadedBatch> {
        let slot = &mut self.slots[self.next];
        if let Some(used) = slot.used.take() {
            slot.both.device().wait(&used)?;
        }
        let mut data = vec![0; slot.both.count()];
        let second = batch.x.len().next_multiple_of(ALIGN);
        data[..batch.x.len()].copy_from_slice(&batch.x);
        data[second..second + batch.y.len()].copy_from_slice(&batch.y);
        let mut last = 2 * second;
        if let (Some(_), Some(positions)) = (&slot.inputs.positions, &batch.positions) {
            data[last..last + positions.len()].copy_from_slice(positions);
            last += second;
        }
        if slot.inputs.weight.is_some() {
            data[last] = weight.to_bits();
            for (place, value) in data.iter_mut().skip(last + ALIGN).zip(&batch.values) {
                *place = value.to_bits();
            }
        }
        slot.both.set_u32_overlapped(&data)?;
        if !fixed {
            return Ok(slot.inputs.clone());
        }
        let (from, to) = (slot.both.storage(), self.fixed.both.storage());
        to.device().copy(from, 0, to, 0, to.bytes())?;
        Ok(self.fixed.inputs.clone())
    }

    /// Flushes the queue. Call it when all commands that read the last batch are enqueued.
    pub fn sent(&mut self) -> Result<()> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        // With one batch per step, the training loop reads the results of a step before it enqueues the next but one.
        if self.several {
            let device = slot.both.device();
            slot.used = Some(device.mark()?);
            device.flush()?;
        }
        Ok(())
    }
}
