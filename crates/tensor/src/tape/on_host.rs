//! Tensors that the tape keeps in host memory from the forward to the backward pass (Rajbhandari et al. 2021, "ZeRO-Infinity").
//!
//! A driver may reserve as much device memory as host memory is pinned (NVIDIA's driver 580 does). So only a few pieces of tensors at a time are in
//! pinned memory, and a thread copies them to and from ordinary memory while the device computes. The backward pass reads pieces in reverse order, so
//! each read requests the next one.

use crate::tensor::autograd::Autograd;
use crate::{Device, Error, Result, Tensor};
use netcl_device::driver::Event;
use netcl_device::{Pinned, SharedMemory};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of a piece of a tensor.
#[cfg(not(test))]
const PIECE: usize = 64 << 20;
/// Tests have small tensors.
#[cfg(test)]
const PIECE: usize = 256;
/// Pieces in pinned memory at a time: one that is copied from the device, one to ordinary memory, and one that waits for the backward pass.
const SLOTS: usize = 3;

/// Host memory for tensors of the tape. Steps after the first one reuse it.
#[derive(Default)]
pub struct HostMemory {
    ring: Arc<Ring>,
    /// The copying thread's requests, and the piece that was kept last.
    last: Mutex<Option<(Sender<Job>, Weak<HostCopy>)>>,
}

/// Pinned and ordinary memory that is not in use.
#[derive(Default)]
struct Ring {
    state: Mutex<RingState>,
    freed: Condvar,
}

#[derive(Default)]
struct RingState {
    slots: Vec<Slot>,
    /// Slots in use and not.
    made: usize,
    buffers: Vec<Vec<u8>>,
}

/// Pinned memory, with the copy to the device that may still read it.
struct Slot {
    memory: Pinned,
    read: Option<Event>,
}

impl Ring {
    fn state(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns pinned memory of `bytes` that is not in use; `None` if all is.
    fn take_unused(state: &mut RingState, device: &Device, bytes: usize) -> Result<Option<Slot>> {
        let fits = |slot: &Slot| slot.memory.memory().bytes() == bytes && slot.memory.is_of(device);
        if let Some(at) = state.slots.iter().position(fits) {
            return Ok(Some(state.slots.swap_remove(at)));
        }
        if state.made == SLOTS {
            if state.slots.pop().is_none() {
                return Ok(None);
            }
            state.made -= 1;
        }
        let memory = device.pin(&Arc::new(SharedMemory::new(bytes)?));
        state.made += 1;
        Ok(Some(Slot { memory, read: None }))
    }

    /// Does the same, and waits until some is free.
    fn take(&self, device: &Device, bytes: usize) -> Result<Slot> {
        let mut state = self.state();
        loop {
            if let Some(slot) = Self::take_unused(&mut state, device, bytes)? {
                return Ok(slot);
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, slot: Option<Slot>) {
        self.state().slots.extend(slot);
        self.freed.notify_all();
    }

    fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut state = self.state();
        let at = state.buffers.iter().position(|buffer| buffer.len() == bytes);
        at.map_or_else(|| vec![0; bytes], |at| state.buffers.swap_remove(at))
    }
}

/// A request to the copying thread.
enum Job {
    /// Copy from pinned memory, after the event.
    Save(Arc<HostCopy>, Event),
    /// Copy to pinned memory.
    Load(Arc<HostCopy>),
}

/// A piece of a tensor in host memory.
struct HostCopy {
    device: Device,
    bytes: usize,
    /// First byte of the tensor that it has.
    start: usize,
    ring: Arc<Ring>,
    state: Mutex<CopyState>,
    changed: Condvar,
    jobs: Sender<Job>,
    /// The piece that was kept before.
    previous: Weak<HostCopy>,
}

struct CopyState {
    stage: Stage,
    /// Pinned memory, while it has the copy.
    slot: Option<Slot>,
    /// Ordinary memory, once it has the copy.
    buffer: Option<Vec<u8>>,
}

/// Where a copy is.
enum Stage {
    /// On the way to ordinary memory.
    Saving,
    /// In ordinary memory.
    Kept,
    /// On the way to pinned memory.
    Loading,
    /// In pinned memory too.
    Loaded,
    /// Nowhere: a copy failed.
    Lost(Error),
}

impl HostCopy {
    fn state(&self) -> MutexGuard<'_, CopyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a request, on the copying thread.
    fn serve(&self, saved: Option<&Event>) {
        let moved = self.moved(saved);
        let mut state = self.state();
        state.stage = match (moved, saved.is_some()) {
            (Err(e), _) => Stage::Lost(e),
            (Ok(()), true) => Stage::Kept,
            (Ok(()), false) => Stage::Loaded,
        };
        if !matches!(state.stage, Stage::Loaded) {
            self.ring.give(state.slot.take());
        }
        drop(state);
        self.changed.notify_all();
    }

    fn moved(&self, saved: Option<&Event>) -> Result<()> {
        // No one else changes the state meanwhile.
        let (slot, buffer) = {
            let mut state = self.state();
            (state.slot.take(), state.buffer.take())
        };
        let missing = || Error::internal("host memory: a copy without memory");
        let slot = slot.ok_or_else(missing)?;
        let mut buffer = buffer.unwrap_or_else(|| self.ring.buffer(self.bytes));
        let moved = match (saved, &slot.read) {
            (Some(event), _) => {
                self.device.wait(event).and_then(|()| slot.memory.memory().read(0, &mut buffer))
            }
            (None, read) => {
                let free = read.as_ref().map_or(Ok(()), |event| self.device.wait(event));
                free.and_then(|()| slot.memory.memory().write(0, &buffer))
            }
        };
        let mut state = self.state();
        (state.slot, state.buffer) = (Some(slot), Some(buffer));
        moved
    }

    /// Requests the copy in pinned memory.
    fn load(self: &Arc<Self>, state: &mut CopyState, slot: Slot) {
        (state.stage, state.slot) = (Stage::Loading, Some(slot));
        if self.jobs.send(Job::Load(Arc::clone(self))).is_err() {
            state.stage = Stage::Lost(Error::internal("host memory: the copying thread has ended"));
        }
    }

    /// Copies it into `y`, and requests the piece that was kept before.
    fn read(self: &Arc<Self>, y: &Tensor) -> Result<()> {
        let mut slot = None;
        let mut state = self.state();
        loop {
            match &state.stage {
                Stage::Loaded => break,
                Stage::Lost(e) => return Err(e.clone()),
                Stage::Kept => match slot.take() {
                    Some(slot) => self.load(&mut state, slot),
                    // Not while the state is locked: others may have to change it to free memory.
                    None => {
                        drop(state);
                        slot = Some(self.ring.take(&self.device, self.bytes)?);
                        state = self.state();
                    }
                },
                Stage::Saving | Stage::Loading => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        self.ring.give(slot);
        state.stage = Stage::Kept;
        let from = state.slot.take();
        drop(state);
        let Some(mut from) = from else { return Err(Error::internal("host memory: a copy without memory")) };
        let offset = y.layout().offset * y.dtype().size() + self.start;
        let copied = self.device.upload_from((&from.memory, 0), (y.storage(), offset), self.bytes);
        let copied = copied.and_then(|event| self.device.flush().map(|()| event));
        from.read = copied.as_ref().ok().cloned();
        self.ring.give(Some(from));
        copied?;
        self.request_previous()
    }

    fn request_previous(&self) -> Result<()> {
        let Some(previous) = self.previous.upgrade() else { return Ok(()) };
        let mut state = previous.state();
        if !matches!(state.stage, Stage::Kept) {
            return Ok(());
        }
        let slot = Ring::take_unused(&mut self.ring.state(), &self.device, previous.bytes)?;
        if let Some(slot) = slot {
            previous.load(&mut state, slot);
        }
        Ok(())
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        let mut state = self.state();
        let (slot, buffer) = (state.slot.take(), state.buffer.take());
        drop(state);
        self.ring.state().buffers.extend(buffer);
        self.ring.give(slot);
    }
}

/// Serves requests until no one can send more.
fn serve(jobs: &Receiver<Job>) {
    for job in jobs {
        match job {
            Job::Save(copy, event) => copy.serve(Some(&event)),
            Job::Load(copy) => copy.serve(None),
        }
    }
}

impl HostMemory {
    /// Returns the same tensor, of which the tape keeps only a copy in host memory. The backward pass copies it back when it reads it. A tensor that no
    /// recorded operation has computed is returned unchanged.
    ///
    /// # Errors
    /// `Memory` if the host has none; driver errors; `Unsupported` within a captured step.
    pub fn keep(&self, x: &Tensor) -> Result<Tensor> {
        let Some(Autograd { node: Some(_), .. }) = &x.0.autograd else { return Ok(x.clone()) };
        let from = x.detach().contiguous()?;
        let (device, shape, dtype) = (x.device().clone(), x.shape().clone(), x.dtype());
        let all = x.count() * dtype.size();
        let pieces = (0..all).step_by(PIECE).map(|at| self.save(&from, at..all.min(at + PIECE)));
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        let again = move || {
            let y = Tensor::empty(&device, shape.clone(), dtype)?;
            // The last piece first: each requests the one before.
            pieces.iter().rev().try_for_each(|piece| piece.read(&y))?;
            Ok(y)
        };
        Ok(x.on_tape(x, Some(Arc::new(again)), false))
    }

    /// Starts the copy of bytes of a contiguous tensor.
    fn save(&self, from: &Tensor, range: Range<usize>) -> Result<Arc<HostCopy>> {
        let (device, bytes) = (from.device(), range.len());
        let slot = self.ring.take(device, bytes)?;
        let start = from.layout().offset * from.dtype().size() + range.start;
        let saved = device.download_into((from.storage(), start), (&slot.memory, 0), bytes);
        let saved = match saved.and_then(|event| device.flush().map(|()| event)) {
            Ok(event) => event,
            Err(e) => {
                self.ring.give(Some(slot));
                return Err(e);
            }
        };
        let copy = self.started(device, range, slot)?;
        let save = Job::Save(Arc::clone(&copy), saved);
        copy.jobs.send(save).map_err(|_| Error::internal("host memory: the copying thread has ended"))?;
        Ok(copy)
    }

    /// Returns a copy that is on its way, and starts the thread if it does not run.
    fn started(&self, device: &Device, range: Range<usize>, slot: Slot) -> Result<Arc<HostCopy>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (jobs, previous) = match last.take() {
            Some(last) => last,
            None => {
                let (jobs, requests) = channel();
                let thread = std::thread::Builder::new().name("host memory".into());
                let started = thread.spawn(move || serve(&requests));
                started.map_err(|e| Error::memory(format!("starting a thread: {e}")))?;
                (jobs, Weak::new())
            }
        };
        let state = CopyState { stage: Stage::Saving, slot: Some(slot), buffer: None };
        let copy = Arc::new(HostCopy {
            device: device.clone(),
            bytes: range.len(),
            start: range.start,
            ring: Arc::clone(&self.ring),
            state: Mutex::new(state),
            changed: Condvar::new(),
            jobs: jobs.clone(),
            previous,
        });
        *last = Some((jobs, Arc::downgrade(&copy)));
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use crate::tape::checkpoint;
    use crate::{DType, no_grad};

    /// The gradients have the bits of those without host memory, and a second step takes no more of it.
    #[test]
    fn gradients_of_tensors_that_were_on_the_host_have_the_same_bits() {
        let device = test_device().unwrap();
        let values: Vec<f32> = (0..96).map(|i| (i as f32 * 0.37).sin()).collect();
        let host = HostMemory::default();
        let step = |keep: bool| {
            let w = Tensor::from_f32(&device, [8, 12], &values, DType::F32).unwrap().parameter("w");
            let mut x = w.mul_scalar(0.5).unwrap();
            for _ in 0..3 {
                let inner = if keep { host.keep(&x).unwrap() } else { x.clone() };
                let w = w.clone();
                x = checkpoint("block", &inner, move |x| x.exp()?.mul(&w)?.mul_scalar(0.1)).unwrap();
            }
            x.sum(&[], false).unwrap().backward().unwrap();
            w.grad().unwrap().to_vec().unwrap()
        };
        let expected = step(false);
        for _ in 0..2 {
            assert_eq!(step(true), expected);
            assert_eq!(host.ring.state().buffers.len(), 6);
        }
        let leaf = Tensor::ones(&device, [4], DType::F32).unwrap();
        no_grad(|| host.keep(&leaf)).unwrap();
        assert_eq!(host.ring.state().buffers.len(), 6);
    }
}
