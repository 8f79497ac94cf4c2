//! Batches on the device: a ring of buffers that the copy queue fills while the device computes, and the buffer from which a captured step reads its
//! batch.

use super::batches::ImageBatch;
use netcl_device::Buffer;
use netcl_tensor::{DType, Device, Result, Tensor};

/// Buffers of the ring: for the batch in use, the next one in the queue, and the one being uploaded.
const SLOTS: usize = 3;

/// The inputs of a step.
#[derive(Clone)]
pub(super) struct ImageInputs {
    /// `(N, C, H, W)`, with channels adjacent in memory.
    pub images: Tensor,
    /// `(N)`.
    pub labels: Tensor,
    /// Labels `(N)` of the partner images, and each image's own share, an f32 scalar.
    pub mixed: Option<(Tensor, Tensor)>,
}

impl ImageInputs {
    /// Creates zeros of this shape.
    pub fn new(device: &Device, dtype: DType, [n, c, h, w]: [usize; 4], mixed: bool) -> Result<Self> {
        let zeros = vec![0u32; n];
        let labels = || Tensor::from_u32(device, [n], &zeros);
        let share = || Tensor::zeros(device, [], DType::F32);
        let images = Tensor::zeros(device, [n, h, w, c], dtype)?.permute(&[0, 3, 1, 2])?;
        let mixed = if mixed { Some((labels()?, share()?)) } else { None };
        Ok(Self { images, labels: labels()?, mixed })
    }
    fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let mixed = self.mixed.iter().flat_map(|(labels, share)| [labels, share]);
        [&self.images, &self.labels].into_iter().chain(mixed).map(Tensor::storage)
    }
}

/// The ring of input buffers.
pub(super) struct Ring {
    device: Device,
    /// The buffers of the ring, followed by the one from which a captured step reads its batch.
    slots: Vec<ImageInputs>,
    next: usize,
}

impl Ring {
    /// Allocates buffers for batches of images `(N, C, H, W)`, which are mixed or not.
    pub fn new(device: &Device, dtype: DType, images: [usize; 4], mixed: bool) -> Result<Self> {
        let mut ring = Self { device: device.clone(), slots: Vec::new(), next: 0 };
        ring.resize(dtype, images, mixed)?;
        Ok(ring)
    }

    /// Switches to batches of another size. The old buffers, which are no longer in use, are freed first.
    pub fn resize(&mut self, dtype: DType, images: [usize; 4], mixed: bool) -> Result<()> {
        let _tag = self.device.tag("inputs");
        self.slots.clear();
        let make = || ImageInputs::new(&self.device, dtype, images, mixed);
        self.slots = (0..=SLOTS).map(|_| make()).collect::<Result<_>>()?;
        self.device.finish()
    }

    /// Enqueues the upload of a batch; commands enqueued later see it. `fixed` selects the buffer that a captured step reads. The caller has waited
    /// for the step before the last.
    pub fn send(&mut self, batch: &ImageBatch, fixed: bool) -> Result<ImageInputs> {
        let slot = &self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        let (mut others, mut share) = (&[][..], [0; 4]);
        if let Some((labels, part)) = &batch.mixed {
            (others, share) = (bytemuck::cast_slice(labels), part.to_le_bytes());
        }
        let data: [&[u8]; 4] = [&batch.images, bytemuck::cast_slice(&batch.labels), others, &share];
        for (buffer, bytes) in slot.buffers().zip(data) {
            self.device.upload_overlapped(buffer, 0, bytes)?;
        }
        if !fixed {
            return Ok(slot.clone());
        }
        let place = &self.slots[SLOTS];
        for (from, to) in slot.buffers().zip(place.buffers()) {
            self.device.copy(from, 0, to, 0, to.bytes())?;
        }
        Ok(place.clone())
    }
}
