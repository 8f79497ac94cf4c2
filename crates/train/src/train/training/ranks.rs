//! The other ranks of a run, and the state divided between them.

use super::sharded::{Arriving, Zero};
use crate::optim::Optimizer;
use crate::train::gathered::{TensorPiece, gather};
use crate::train::parallel::Parallel;
use crate::train::rank_stats::RankTimes;
use crate::train::stepper::Stepper;
use crate::train::sums::Sums;
use netcl_model::checkpoint::{Bytes, FileDtype, TensorData, TensorToWrite};
use netcl_tensor::{Device, Error, Result, Tensor};

/// Requests of the observers of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObserverRequests {
    /// Write a checkpoint and stop.
    pub stop: bool,
    /// Write a checkpoint and continue.
    pub save: bool,
}

/// The ranks of a run; all fields are `None` for a single rank.
#[derive(Default)]
pub(crate) struct Ranks {
    /// This rank's part of a run of several ranks.
    pub parallel: Option<Parallel>,
    /// This rank's part of divided state.
    pub zero: Option<Zero>,
    /// Whether the run failed in the same way on every rank.
    pub failed_together: bool,
}

impl Ranks {
    /// Returns whether this rank is the only one.
    pub fn is_alone(&self) -> bool {
        self.parallel.is_none()
    }

    /// Returns whether the layers are divided between ranks.
    pub fn is_piped(&self) -> bool {
        self.parallel.as_ref().is_some_and(|parallel| parallel.pipe().is_some())
    }

    /// Returns the times of each rank; empty for a single rank.
    pub fn times(&self) -> &[RankTimes] {
        self.parallel.as_ref().map_or(&[], |parallel| parallel.balance.times())
    }

    /// Records that ranks evaluate, sample or save next.
    pub fn pausing(&mut self, what: [bool; 3]) {
        if let Some(parallel) = &mut self.parallel {
            parallel.balance.pausing(what);
        }
    }

    /// Called after a step of several ranks: divides batches again if that pays off, and sets the patience of ranks that are `watched`. Returns
    /// whether this rank's rows changed.
    pub fn rebalance(&mut self, watched: bool) -> bool {
        let Some(parallel) = &mut self.parallel else { return false };
        if watched {
            parallel.balance.stepped();
        }
        parallel.balance.rebalance()
    }

    /// Returns the location of a failed step as text.
    pub fn place(&self, device: &Device) -> String {
        match &self.parallel {
            Some(parallel) => parallel.balance.whose(),
            None => device.capabilities().id.clone(),
        }
    }

    /// Makes this rank update from the accumulators.
    ///
    /// # Errors
    /// Errors of [`Zero::begin`].
    pub fn begin(&self, sums: &Sums) -> Result<()> {
        self.zero.as_ref().map_or(Ok(()), |zero| zero.begin(sums))
    }

    /// Returns parameters in flight, for a replay that waits for them where it uses them.
    pub fn take_arriving(&mut self, stepper: &Stepper) -> Option<Arriving> {
        let zero = self.zero.as_mut().filter(|_| stepper.is_captured())?;
        zero.take_arriving(stepper)
    }

    /// Returns the parameters taken with [`Ranks::take_arriving`].
    pub fn return_arriving(&mut self, arriving: Option<Arriving>) {
        if let Some((zero, arriving)) = self.zero.as_mut().zip(arriving) {
            zero.return_arriving(arriving);
        }
    }

    /// Makes later work of the device run after the updates of all ranks; returns whether there was something to wait for.
    ///
    /// # Errors
    /// Errors of the exchange and the device.
    pub fn settle_parameters(&mut self) -> Result<bool> {
        self.zero.as_mut().map_or(Ok(false), Zero::settle)
    }

    /// Updates this rank's part of the parameters from the sums of its gradients, and starts to exchange parts with the others; `update` executes it.
    ///
    /// # Errors
    /// Errors of the ranks and the device.
    pub fn update_part(
        &mut self,
        optimizer: &mut Optimizer,
        update: &mut Stepper,
        loss: &Tensor,
    ) -> Result<()> {
        let (Some(zero), Some(parallel)) = (&mut self.zero, &mut self.parallel) else {
            return Err(Error::internal("an update of a part on a rank without one"));
        };
        zero.update(parallel, optimizer, update, loss)
    }

    /// Collects the state of a partitioned optimizer on rank 0 from all ranks' parts; returns `None` on the others. All ranks call it.
    ///
    /// # Errors
    /// Errors of the ranks and the device.
    pub fn gathered_state(&self, optimizer: &Optimizer) -> Result<Option<Vec<TensorData>>> {
        let Some((_, parallel)) = self.zero.as_ref().zip(self.parallel.as_ref()) else { return Ok(None) };
        let parts = optimizer.state_parts()?.into_iter().map(|part| {
            let (first, tensor) = (part.first, part.tensor);
            let elements = first..first + tensor.count();
            let bytes = Bytes::Later(Box::new(move || tensor.to_bytes()));
            TensorPiece::new(part.name, FileDtype::F32, part.shape, elements, bytes)
        });
        let pieces: Vec<TensorPiece<'_>> = parts.collect();
        let Some(mut all) = gather(parallel.group(), &pieces)? else { return Ok(None) };
        all.extend(
            optimizer.planned_counters()?.iter().map(TensorToWrite::take).collect::<Result<Vec<_>>>()?,
        );
        Ok(Some(all))
    }
}
