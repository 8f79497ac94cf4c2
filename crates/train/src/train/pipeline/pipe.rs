//! A rank's position in a pipeline, and its exchange with the adjacent stages.

use super::layers::divided;
use super::schedule::{Exchange, PipelineTask};
use crate::train::rank_stats::RankStage;
use netcl_dist::{Group, Mailbox, Relay, RelaySettings};
use netcl_model::decoder::DecoderConfig;
use netcl_tensor::{DType, Device, Error, Result, Shape, Tensor};
use std::ops::Range;
use std::time::{Duration, Instant};

/// One stage of one replica of the model.
pub struct Pipe {
    /// The stages of this replica, in order.
    along: Group,
    /// The first and the last stage; for other stages, the stages between them.
    ends: Group,
    /// Sums the gradients of the two copies of a tied embedding; created on first use.
    relay: Option<Relay>,
    /// Carries rows and their gradients; created on first use.
    mail: Option<Mailbox>,
    /// Number of this rank's replica.
    replica: usize,
    /// Relative speeds of the devices of each stage.
    speeds: Vec<f64>,
    /// Time of this step in which this stage waited for others.
    waited: Duration,
}

/// Format of the data that stages exchange.
#[derive(Clone)]
pub struct StageFormat {
    /// Device that receives it.
    pub device: Device,
    /// (B, T, C).
    pub shape: Shape,
    /// Storage type.
    pub dtype: DType,
}

impl StageFormat {
    /// Returns the bytes as a tensor.
    fn tensor(&self, bytes: &[u8]) -> Result<Tensor> {
        Tensor::from_bytes(&self.device, self.shape.clone(), bytes, self.dtype)
    }

    fn bytes(&self) -> usize {
        self.shape.count() * self.dtype.size()
    }
}

impl Pipe {
    /// Splits `group` into pipelines with as many stages as there are `speeds`; returns this rank's position, and the ranks that have the same stage
    /// of other replicas. All ranks of `group` call it.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn split(group: &Group, speeds: Vec<f64>) -> Result<(Self, Group)> {
        let stages = speeds.len();
        let (stage, replica) = (group.rank() % stages, group.rank() / stages);
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let along = group.split(number(replica))?;
        let across = group.split(number(stage))?;
        let ends = along.split(u32::from(stage > 0 && stage + 1 < stages))?;
        Ok((Self { along, ends, relay: None, mail: None, replica, speeds, waited: Duration::ZERO }, across))
    }

    /// Returns the number of stages.
    pub fn stages(&self) -> usize {
        self.along.size()
    }

    /// Returns the number of this stage, from 0.
    pub fn stage(&self) -> usize {
        self.along.rank()
    }

    /// Returns the number of this rank's replica of the model, from 0.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// Returns whether the loss is computed here.
    pub fn is_last(&self) -> bool {
        self.stage() + 1 == self.stages()
    }

    /// Returns the stages of this replica.
    pub fn along(&self) -> &Group {
        &self.along
    }

    /// Returns the layers of every stage.
    ///
    /// # Errors
    /// `Format` for more stages than layers.
    pub fn layers(&self, model: &DecoderConfig) -> Result<Vec<Range<usize>>> {
        divided(model, &self.speeds)
    }

    /// Returns the layers of this stage.
    ///
    /// # Errors
    /// Errors of [`Pipe::layers`].
    pub fn own_layers(&self, model: &DecoderConfig) -> Result<Range<usize>> {
        Ok(self.layers(model)?.swap_remove(self.stage()))
    }

    /// Returns all stages; a rank's stage has its number modulo the number of stages.
    ///
    /// # Errors
    /// Errors of [`Pipe::layers`].
    pub fn all_stages(&self, model: &DecoderConfig) -> Result<Vec<RankStage>> {
        let (all, stages) = (self.layers(model)?, self.stages());
        Ok(all.into_iter().enumerate().map(|(stage, layers)| RankStage { stage, stages, layers }).collect())
    }

    /// Sends `result` of the pass `done`, if an adjacent stage needs it, and receives the input of `next` into `room`.
    ///
    /// # Errors
    /// Errors of the group and the device; `Internal` without room for the input.
    pub fn pass(
        &mut self,
        (done, result): (Option<PipelineTask>, Option<&Tensor>),
        (next, room): (Option<PipelineTask>, Option<&Tensor>),
        rows: &StageFormat,
    ) -> Result<()> {
        let Exchange { to, from } = Exchange::between(done, next, (self.stage(), self.stages()));
        let mail = match &mut self.mail {
            Some(mail) => mail,
            // At most as many micro-batches are in flight to the next stage as there are stages, and a gradient comes back for each.
            none => {
                none.insert(Mailbox::new(&self.along, &rows.device, rows.bytes(), self.along.size() + 1)?)
            }
        };
        let to = to.filter(|_| result.is_some());
        if let Some((to, result)) = to.zip(result) {
            // Waits for the device's results; from here on this rank waits for others.
            mail.put(to, result)?;
        }
        let no_room = || Error::internal("a pass without room for its input");
        let from = from.map(|from| room.map(|room| (from, room)).ok_or_else(no_room)).transpose()?;
        let begun = Instant::now();
        match (to, from) {
            // First the stage that waits for this one.
            (Some(to), Some((from, room))) if to != from => {
                mail.exchange(Some(to), None)?;
                mail.exchange(None, Some((from, room)))?;
            }
            (to, from) => mail.exchange(to, from)?,
        }
        self.waited += begun.elapsed();
        Ok(())
    }

    /// Returns the time that this stage has waited for others since the last call.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Replaces the gradient of the first or the last stage's copy of a tied embedding by the sum of both, with the same bits in both.
    ///
    /// # Errors
    /// Errors of the group and the device.
    pub fn sum_tied(&mut self, gradient: &Tensor) -> Result<()> {
        let device = gradient.device();
        let relay = match &mut self.relay {
            Some(relay) => relay,
            none => none.insert(Relay::new(&self.ends, device, RelaySettings::default())?),
        };
        let begun = Instant::now();
        relay.all_reduce_in_order(gradient)?;
        self.waited += begun.elapsed();
        Ok(())
    }

    /// Copies the first stage's embedding values to the last stage's copy.
    ///
    /// # Errors
    /// Errors of the group and the device.
    pub fn copy_tied(&self, table: &Tensor) -> Result<()> {
        self.ends.broadcast_tensor(table, 0)
    }

    /// Returns the sum of all stages' values, in the order of stages.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn total(&self, own: f64) -> Result<f64> {
        Ok(self.along.all_gather(&[own])?.iter().sum())
    }
}

/// Receives rows from the stage before this one in `along`.
///
/// # Errors
/// Errors of the group and the device.
pub(super) fn rows_from_before(along: &Group, rows: &StageFormat) -> Result<Tensor> {
    let mut room = vec![0; rows.bytes()];
    along.recv(along.rank().saturating_sub(1), &mut room)?;
    rows.tensor(&room)
}

/// Sends rows to the next stage.
///
/// # Errors
/// Errors of the group and the device.
pub(super) fn rows_for_next(along: &Group, rows: &Tensor) -> Result<()> {
    along.send(along.rank() + 1, &rows.to_bytes()?)
}
