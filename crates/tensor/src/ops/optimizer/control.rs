//! Values that change from step to step, in a small buffer on the device: learning rate, step, loss scale, clipping, reports.

use crate::ops::prelude::*;
use netcl_device::driver::Event;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words of the buffer; the positions are those of `CONTROL` in the kernel.
const WORDS: usize = REPORTS + RING * 4;
const STEP: usize = 2;
const SCALE: usize = 3;
const REPORTS: usize = 16;
const RING: usize = 8;

/// Dynamic loss scaling for f16, whose gradients would otherwise underflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// Initial scale.
    pub initial: f32,
    /// Consecutive good steps after which the scale doubles.
    pub growth_interval: u32,
}

impl Default for LossScale {
    /// Returns PyTorch's defaults: 65536, doubled every 2000 steps.
    fn default() -> Self {
        Self { initial: 65_536.0, growth_interval: 2000 }
    }
}

/// State that a run needs to continue with the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Steps done, without skipped steps.
    pub step: u32,
    /// Loss scale; 1 without scaling.
    pub scale: f32,
    /// Good steps since the scale last changed.
    pub good: u32,
}

/// Results of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInfo {
    /// Norm of all gradients before clipping, without the loss scale; 0 if it was not requested.
    pub norm: f32,
    /// Steps done.
    pub step: u32,
    /// Loss scale of this step.
    pub scale: f32,
    /// Whether gradients were not finite under a loss scale, so that only the scale changed.
    pub skipped: bool,
}

/// A future [`StepInfo`]. It can be read until eight later steps were enqueued.
pub struct Report {
    event: Event,
    memory: Tensor,
    slot: usize,
}

impl Report {
    /// Waits for its step, but not for later commands, and returns its results.
    pub fn read(&self) -> Result<StepInfo> {
        let mut bytes = [0; 16];
        let at = (REPORTS + self.slot * 4) * 4;
        self.memory.device().download_after(&self.event, self.memory.storage(), at, &mut bytes)?;
        let [norm, step, scale, skipped] = words(&bytes);
        Ok(StepInfo { norm: f32::from_bits(norm), step, scale: f32::from_bits(scale), skipped: skipped != 0 })
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| u32::from_le_bytes(std::array::from_fn(|k| bytes[i * 4 + k])))
}

pub(super) struct Control {
    pub memory: Tensor,
    scaling: Option<LossScale>,
    /// Last values that the host wrote: bits of the learning rate and of the largest norm.
    written: [u32; 2],
    /// Steps enqueued, including those that the device will skip.
    attempts: AtomicU32,
}

impl Control {
    pub fn new(device: &Device, scaling: Option<LossScale>) -> Result<Self> {
        let mut start = [0; WORDS];
        start[SCALE] = scaling.map_or(1.0, |s| s.initial).to_bits();
        let memory = Tensor::from_u32(device, [WORDS], &start)?;
        Ok(Self { memory, scaling, written: [0; 2], attempts: AtomicU32::new(0) })
    }

    /// Returns whether there is a loss scale.
    pub fn scales(&self) -> bool {
        self.scaling.is_some()
    }
    /// Returns the good steps after which the scale doubles; 0 without scaling.
    pub fn growth(&self) -> u32 {
        self.scaling.map_or(0, |s| s.growth_interval.max(1))
    }
    /// Returns the loss scale, one f32.
    pub fn scale(&self) -> Tensor {
        let layout = Layout { offset: SCALE, ..Layout::contiguous(Shape::default()) };
        Tensor::from_parts(self.memory.storage().clone(), layout, DType::F32, None)
    }

    /// Sets learning rate and largest norm of the next step; uploads them only if they changed.
    pub fn set(&mut self, lr: f64, max_norm: Option<f64>) -> Result<()> {
        let new = [lr, max_norm.unwrap_or(0.0)].map(|x| (x as f32).to_bits());
        if new != self.written {
            self.memory.device().upload(self.memory.storage(), 0, bytemuck::cast_slice(&new))?;
            self.written = new;
        }
        Ok(())
    }

    /// Records that a step was enqueued.
    pub fn count(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    pub fn report(&self) -> Result<Report> {
        let Some(last) = self.attempts.load(Ordering::Relaxed).checked_sub(1) else {
            return Err(Error::unsupported("optimizer: cannot report a step before the first one"));
        };
        let event = self.memory.device().mark()?;
        Ok(Report { event, memory: self.memory.clone(), slot: last as usize % RING })
    }

    pub fn counters(&self) -> Result<Counters> {
        let mut bytes = [0; 12];
        self.memory.device().download(self.memory.storage(), STEP * 4, &mut bytes)?;
        let [step, scale, good] = words(&bytes);
        Ok(Counters { step, scale: f32::from_bits(scale), good })
    }

    pub fn set_counters(&mut self, counters: Counters) -> Result<()> {
        let words = [counters.step, counters.scale.to_bits(), counters.good];
        self.memory.device().upload(self.memory.storage(), STEP * 4, bytemuck::cast_slice(&words))
    }
}
