//! Sums over ranks within a pass: the statistics of batch normalization over all images (`--sync-batch-norm`).
//!
//! The tensors are in separate buffers from the first pass on, the same in every pass. A captured pass writes and reads them, and its replay stops
//! after each write while the ranks sum the values.

use super::reducer::Reducer;
use super::stepper::Stepper;
use netcl_device::{Error, Result};
use netcl_model::layers::RankGroup;
use netcl_tensor::{DType, Device, Shape, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// This rank's side.
pub(crate) struct Statistics {
    reducer: Arc<Reducer>,
    device: Device,
    place: (usize, usize),
    shares: Tensor,
    share: f64,
    calls: Mutex<Calls>,
}

/// Returns the ranks' shares of the images as f32 (ranks, 1, 1).
fn column(device: &Device, shares: &[f64]) -> Result<Tensor> {
    let rounded: Vec<f32> = shares.iter().map(|share| *share as f32).collect();
    Tensor::from_f32(device, [shares.len(), 1, 1], &rounded, DType::F32)
}

#[derive(Default)]
struct Calls {
    /// Number of calls in this pass so far.
    made: usize,
    /// The buffer that each call of a pass sums.
    buffers: Vec<Tensor>,
    /// Whether this pass runs without the other ranks.
    alone: bool,
    /// Time that this rank has waited for others.
    waited: Duration,
}

impl Statistics {
    /// Creates it for ranks with these shares of the images.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(reducer: &Arc<Reducer>, device: &Device, rank: usize, shares: &[f64]) -> Result<Self> {
        Ok(Self {
            reducer: reducer.clone(),
            device: device.clone(),
            place: (rank, shares.len()),
            shares: column(device, shares)?,
            share: shares.get(rank).copied().unwrap_or(1.0),
            calls: Mutex::default(),
        })
    }

    /// Returns the same buffers for ranks whose shares have changed.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn with_shares(&self, shares: &[f64]) -> Result<Self> {
        let new = Self::new(&self.reducer, &self.device, self.place.0, shares)?;
        new.calls().buffers.clone_from(&self.calls().buffers);
        Ok(new)
    }

    /// Runs a pass without the other ranks: it allocates the memory, and its results are not used.
    pub fn alone<T>(&self, pass: impl FnOnce() -> T) -> T {
        self.calls().alone = true;
        let made = pass();
        self.calls().alone = false;
        made
    }

    /// Returns the time that this rank has waited for others since the last call.
    pub fn take_waited(&self) -> Duration {
        std::mem::take(&mut self.calls().waited)
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a pass, forward and backward.
    pub fn begin(&self) {
        self.calls().made = 0;
    }

    /// Returns the points at which a captured pass has written each buffer: numbers of the following commands.
    ///
    /// # Errors
    /// `Internal` if the pass does not write one.
    pub fn stops(&self, stepper: &Stepper) -> Result<Vec<usize>> {
        let behind = |x: &Tensor| stepper.last_write(x).map(|at| at + 1);
        let all: Option<Vec<usize>> = self.calls().buffers.iter().map(behind).collect();
        all.filter(|all| all.is_sorted())
            .ok_or_else(|| Error::internal("a captured pass computes its statistics in another order"))
    }

    /// Sums the values that a captured pass has written for call `i`.
    ///
    /// # Errors
    /// Errors of the ranks and the device.
    pub fn exchange(&self, i: usize) -> Result<()> {
        let buffer = self.calls().buffers.get(i).cloned();
        buffer.map_or(Ok(()), |x| self.summed(x))
    }

    fn summed(&self, x: Tensor) -> Result<()> {
        let waited = self.reducer.exchange(x)?;
        self.calls().waited += waited;
        Ok(())
    }

    /// Returns the buffer of the next call.
    fn next(&self, shape: &Shape) -> Result<Tensor> {
        let mut calls = self.calls();
        let at = calls.made;
        calls.made += 1;
        match calls.buffers.get(at) {
            Some(buffer) if buffer.shape() == shape => Ok(buffer.clone()),
            None if !self.device.is_capturing() => {
                let _tag = self.device.tag("statistics of all ranks");
                let buffer = Tensor::zeros(&self.device, shape.clone(), DType::F32)?;
                calls.buffers.push(buffer.clone());
                Ok(buffer)
            }
            _ => Err(Error::unsupported("capture: a pass has different statistics than the one before")),
        }
    }
}

impl RankGroup for Statistics {
    fn place(&self) -> (usize, usize) {
        self.place
    }

    fn shares(&self) -> &Tensor {
        &self.shares
    }

    fn share(&self) -> f64 {
        self.share
    }

    fn sum(&self, shape: &Shape, write: &dyn Fn(&Tensor) -> Result<()>) -> Result<Tensor> {
        let x = self.next(shape)?;
        write(&x)?;
        let alone = self.calls().alone;
        if !alone && !self.device.is_capturing() {
            self.summed(x.clone())?;
        }
        Ok(x)
    }
}
