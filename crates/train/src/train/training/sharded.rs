//! The update of a rank with a part of the optimizer's state, and related information.

use crate::config::GraphMode;
use crate::optim::Optimizer;
use crate::train::divided::Divided;
use crate::train::parallel::Parallel;
use crate::train::reducer::{Arrived, ended};
use crate::train::stepper::Stepper;
use crate::train::sums::Sums;
use crate::train::zero::Shards;
use netcl_device::human;
use netcl_tensor::{Device, Result, Tensor};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// State that is divided between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// The stage of ZeRO: 1 divides the optimizer's state, 2 gradients as well.
    pub stage: u8,
    /// Bytes of the optimizer's state on this rank.
    pub state: usize,
    /// Number of ranks.
    pub ranks: usize,
}

impl Sharding {
    /// Returns a summary as text: `ZeRO-1: 12.3 MiB of optimizer state on each of 2 ranks`.
    pub fn line(&self) -> String {
        let Self { stage, state, ranks } = self;
        format!("ZeRO-{stage}: {} of optimizer state on each of {ranks} ranks", human(*state as u64))
    }
}

/// A rank's part of a run whose state is divided.
pub(crate) struct Zero {
    shards: Shards,
    /// Gradients, if they are divided as well.
    divided: Option<Divided>,
    /// Executes the sums of squares.
    measure: Stepper,
    /// Parameters of other ranks in flight.
    arriving: Option<Arriving>,
    /// Commands at which the captured pass first uses parameters, and the bytes that it needs there: [`Shards::uses`].
    uses: Option<Arc<(Vec<usize>, Vec<usize>)>>,
}

/// Parameters of other ranks in flight to this rank's device.
pub(crate) struct Arriving {
    told: Receiver<Result<Arrived>>,
    device: Device,
    uses: Arc<(Vec<usize>, Vec<usize>)>,
    /// Bytes from the beginning of every rank's part that the device's queue has already waited for.
    bytes: usize,
}

impl Arriving {
    /// Returns the commands before which [`Arriving::need`] must be called.
    pub fn uses(&self) -> &[usize] {
        &self.uses.0
    }

    /// Makes later work of the device run after the arrival of the parameters that command `uses()[i]` uses.
    ///
    /// # Errors
    /// Errors of the exchange and the device.
    pub fn need(&mut self, i: usize) -> Result<()> {
        self.wait(self.uses.1[i])
    }

    fn wait(&mut self, bytes: usize) -> Result<()> {
        let mut last = None;
        while self.bytes < bytes {
            let told = match self.told.try_recv() {
                Ok(told) => told,
                Err(_) => {
                    // Commands enqueued so far run while the host waits.
                    self.device.flush()?;
                    self.told.recv().unwrap_or_else(|_| Err(ended()))
                }
            };
            let Arrived { bytes, there } = told?;
            self.bytes = bytes;
            // They arrive one after the other.
            last = there.or(last);
        }
        last.map_or(Ok(()), |there| self.device.wait_for(&there))
    }
}

impl Zero {
    /// Creates a part at the start of a run with this stage of ZeRO.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in crate::train) fn new(
        shards: Shards,
        device: &Device,
        (stage, graph): (u8, GraphMode),
    ) -> Result<Self> {
        let divided = (stage > 1).then(|| Divided::new(device, &shards)).transpose()?;
        let measure = Stepper::without_plan(device, graph);
        Ok(Self { shards, divided, measure, arriving: None, uses: None })
    }

    /// Returns parameters in flight, for a pass that waits for them where it uses them; `None` without such parameters.
    pub fn take_arriving(&mut self, stepper: &Stepper) -> Option<Arriving> {
        let arriving = self.arriving.take()?;
        let uses =
            self.uses.get_or_insert_with(|| Arc::new(self.shards.uses(|param| stepper.first_use(param))));
        Some(Arriving { uses: uses.clone(), ..arriving })
    }

    /// Returns the parameters taken with [`Zero::take_arriving`].
    pub fn return_arriving(&mut self, arriving: Arriving) {
        self.arriving = Some(arriving);
    }

    /// Returns the gradients that are divided.
    pub(super) fn divided(&self) -> Option<&Divided> {
        self.divided.as_ref()
    }

    /// Does the same as [`Sums::begin`] for this rank's part.
    ///
    /// # Errors
    /// Errors of [`Shards::attach`].
    pub fn begin(&self, sums: &Sums) -> Result<()> {
        match &self.divided {
            Some(divided) => {
                divided.begin();
                divided.attach(&self.shards)
            }
            None => self.shards.attach(sums),
        }
    }

    /// Returns the boundaries of the ranks' parts of a gradient buffer.
    pub fn bounds(&self, bucket: usize) -> &Arc<Vec<usize>> {
        self.shards.bounds(bucket)
    }

    /// Updates this rank's part of the parameters from the sums of its gradients, and starts to exchange parts with the others.
    ///
    /// # Errors
    /// Errors of the ranks and the device.
    pub fn update(
        &mut self,
        parallel: &mut Parallel,
        optimizer: &mut Optimizer,
        update: &mut Stepper,
        loss: &Tensor,
    ) -> Result<()> {
        self.divided.as_ref().map_or(Ok(()), Divided::finish)?;
        self.measure.run(|| optimizer.measure().map(|()| loss.clone()))?;
        let squares = parallel.sum_of(optimizer.squares()?)?;
        optimizer.set_squares(squares)?;
        update.run(|| optimizer.apply_measured().map(|()| loss.clone()))?;
        let device = loss.device();
        let ready = device.mark()?;
        device.flush()?;
        let told = parallel.begin_gather(device, self.shards.spans(), ready)?;
        let (device, uses) = (device.clone(), Arc::default());
        self.arriving = Some(Arriving { told, device, uses, bytes: 0 });
        Ok(())
    }

    /// Makes later work of the device run after the updates of all ranks; returns whether there was something to wait for.
    ///
    /// # Errors
    /// Errors of the exchange and the device.
    pub fn settle(&mut self) -> Result<bool> {
        let Some(mut arriving) = self.arriving.take() else { return Ok(false) };
        arriving.wait(usize::MAX)?;
        Ok(true)
    }
}
