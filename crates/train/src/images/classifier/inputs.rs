//! Batches on the device: a ring of buffers that the copy queue fills while the device computes, and the place where a captured step looks for
//! its batch.

use super::batches::Batch;
use netcl_device::Buffer;
use netcl_tensor::{DType, Device, Result, Tensor};

/// Buffers of the ring: for the batch in use, the next one in the queue, and the one being uploaded.
const SLOTS: usize = 3;

/// What a step reads.
#[derive(Clone)]
pub(super) struct Inputs {
    /// `(N, C, H, W)`, of which channels are neighbours in memory.
    pub images: Tensor,
    /// `(N)`.
    pub labels: Tensor,
    /// Labels `(N)` of the images that are mixed in, and the share, an f32 scalar, that is left of each.
    pub mixed: Option<(Tensor, Tensor)>,
}

impl Inputs {
    /// Zeros of this shape.
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

/// The ring.
pub(super) struct Ring {
    device: Device,
    /// Those of the ring, and behind them the place where a captured step looks for its batch.
    slots: Vec<Inputs>,
    next: usize,
}

impl Ring {
    /// Buffers for batches of images `(N, C, H, W)`, which are mixed or not.
    pub fn new(device: &Device, dtype: DType, images: [usize; 4], mixed: bool) -> Result<Self> {
        let mut ring = Self { device: device.clone(), slots: Vec::new(), next: 0 };
        ring.resize(dtype, images, mixed)?;
        Ok(ring)
    }

    /// The same for batches of another size from now on: the old buffers, which nothing uses any more, make room first.
    pub fn resize(&mut self, dtype: DType, images: [usize; 4], mixed: bool) -> Result<()> {
        let _tag = self.device.tag("inputs");
        self.slots.clear();
        let make = || Inputs::new(&self.device, dtype, images, mixed);
        self.slots = (0..=SLOTS).map(|_| make()).collect::<Result<_>>()?;
        self.device.finish()
    }

    /// Enqueues the upload of a batch; commands enqueued later see it. `fixed`: into the place where a captured step looks for it. The caller has
    /// waited for the step before the last.
    pub fn send(&mut self, batch: &Batch, fixed: bool) -> Result<Inputs> {
        let slot = &self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        let (mut others, mut share) = (&[][..], [0; 4]);
        if let Some((labels, part)) = &batch.mixed {
            (others, share) = (bytemuck::cast_slice(labels), part.to_le_bytes());
        }
        let data: [&[u8]; 4] = [&batch.images, bytemuck::cast_slice(&batch.labels), others, &share];
        for (buffer, bytes) in slot.buffers().zip(data) {
            self.device.upload_beside(buffer, 0, bytes)?;
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
