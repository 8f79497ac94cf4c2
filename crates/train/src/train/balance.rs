//! The ranks' knowledge of each other's speed and memory, and the division of batch rows by it, for texts and images.
//!
//! Before a pass with new rows runs, ranks exchange whether its capture had enough memory. If one had not, they divide the rows again.

use super::rank_stats::{RankStage, RankStats, RankTimes, SpeedUnit};
use super::shares::{Division, PreparationReport, Shares};
use super::watchdog::{Pause, Watchdog};
use netcl_device::human;
use netcl_dist::Group;
use netcl_tensor::{Device, Error, ErrorKind, Result, Tensor};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Maximum number of steps after which unlike devices get the same weights again.
const SAME_EVERY: u64 = 1000;

/// A rank's knowledge of all ranks of a run.
pub(crate) struct Balance {
    group: Group,
    /// Number of consecutive ranks with the same rows: the stages of a pipeline, otherwise 1.
    stages: usize,
    /// Rows of each replica of the model.
    division: Division,
    /// The devices of all ranks.
    devices: Vec<String>,
    /// Whether the ranks have several kinds of devices or drivers.
    unlike: bool,
    /// Values that the ranks have exchanged.
    pub(super) told: RankStats,
    pub(super) watchdog: Watchdog,
}

impl Balance {
    /// Divides `batch` rows equally among the ranks of `group`; each group of `stages` consecutive ranks has the same rows.
    pub fn new(group: &Group, batch: usize, stages: usize) -> Self {
        Self {
            group: group.clone(),
            stages,
            division: Division::new(batch, group.size() / stages.max(1)),
            devices: Vec::new(),
            unlike: false,
            told: RankStats::default(),
            watchdog: Watchdog::default(),
        }
    }

    /// Learns which devices the ranks have. If they are of several kinds, and layers are not divided, rows are divided by speed unless
    /// [`Balance::divide`] changes it later. `of_stages` are the stages of a pipeline, and `row` gives the number of units per row of a batch. All
    /// ranks call it.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn meet(&mut self, device: &Device, of_stages: &[RankStage], row: (u64, SpeedUnit)) -> Result<()> {
        let c = device.capabilities();
        let unlike = |own: &str| {
            let all = self.group.all_gather_bytes(own.as_bytes())?;
            Ok::<_, Error>(all.iter().any(|other| *other != all[0]))
        };
        self.division.by_speed = unlike(&c.name)? && of_stages.is_empty();
        self.unlike = unlike(&format!("{} {} {}", c.name, c.platform_version, c.driver_version))?;
        let all = self.group.all_gather_bytes(c.id.as_bytes())?;
        self.devices = all.iter().map(|id| String::from_utf8_lossy(id).into_owned()).collect();
        let stages = of_stages.iter().map(Some).cycle().chain(std::iter::repeat(None));
        let of_rank: Vec<(&String, Option<&RankStage>)> = self.devices.iter().zip(stages).collect();
        let name = |(device, stage): &(&String, Option<&RankStage>)| match stage {
            Some(stage) => format!("{device}, {stage}"),
            None => (*device).clone(),
        };
        self.group.watch().name_ranks(of_rank.iter().map(name).collect());
        let (row_units, unit) = row;
        let times = |(device, stage): &(&String, Option<&RankStage>)| RankTimes {
            device: (*device).clone(),
            stage: stage.cloned(),
            row_units,
            unit,
            ..RankTimes::default()
        };
        self.told.times = of_rank.iter().map(times).collect();
        self.told.stages = of_stages.len().max(1) as u64;
        Ok(())
    }

    /// Returns the devices as text: `0 nvidia:0, 1 nvidia:1`.
    pub fn devices(&self) -> String {
        let all: Vec<String> = self.devices.iter().enumerate().map(|(i, id)| format!("{i} {id}")).collect();
        all.join(", ")
    }

    /// Returns whether the ranks have several kinds of devices or drivers, whose updates may round differently.
    pub fn is_unlike(&self) -> bool {
        self.unlike
    }

    /// Returns whether unlike devices must get the same weights after this step, independent of checkpoints.
    pub fn same_is_due(&self, step: u64) -> bool {
        self.unlike && step.is_multiple_of(SAME_EVERY)
    }

    /// Gives all ranks of `among` the first one's values, if some devices are unlike.
    ///
    /// # Errors
    /// Errors of the group and the device.
    pub fn take_first(&self, among: &Group, mut tensors: impl Iterator<Item = Tensor>) -> Result<()> {
        if !self.unlike || among.size() < 2 {
            return Ok(());
        }
        tensors.try_for_each(|x| among.broadcast_tensor(&x, 0))
    }

    /// Returns the rows of a batch.
    pub fn batch(&self) -> usize {
        self.division.batch()
    }

    /// Returns this rank's rows of a batch.
    pub fn rows(&self) -> Range<usize> {
        self.rows_of(self.group.rank() / self.stages.max(1))
    }

    /// Returns the rows of a replica, which without a pipeline is a rank.
    pub fn rows_of(&self, replica: usize) -> Range<usize> {
        self.division.rows(replica)
    }

    /// Returns the rows of each replica as text.
    #[cfg(test)]
    pub fn words(&self) -> String {
        self.division.words()
    }

    /// Divides the batch. All ranks call it, before the first step.
    ///
    /// # Errors
    /// Errors of [`Shares::check`].
    pub fn divide(&mut self, shares: &Shares) -> Result<()> {
        self.division.divide(shares)
    }

    /// Records the number of rows for which this rank has memory, according to memory plans.
    pub fn has_room_for(&self, rows: usize) {
        self.division.has_room_for(rows);
    }

    /// Returns the results of all ranks. Returns `None` if one has too little memory for its rows and others have more than theirs need: rows are
    /// divided again, and all ranks start over. All ranks call it.
    ///
    /// # Errors
    /// The failure with the rank's number, as in [`Group::all_succeed`].
    pub fn make_room<T>(&mut self, made: Result<T>) -> Result<Option<T>> {
        let out_of_memory = made.as_ref().err().map(|e| e.kind() == ErrorKind::Memory);
        let (failed, short) =
            (u64::from(out_of_memory == Some(false)), u64::from(out_of_memory == Some(true)));
        let all = self.group.all_gather(&[failed, short, self.division.room() as u64])?;
        let of = |rank: &[u64]| PreparationReport {
            failed: rank[0] > 0,
            short: rank[1] > 0,
            room: rank[2] as usize,
        };
        let ranks: Vec<PreparationReport> = all.chunks_exact(3).map(of).collect();
        if !self.division.make_room(&ranks, self.stages) {
            return self.group.all_succeed(made).map(Some);
        }
        self.divided_anew("available memory", "");
        Ok(None)
    }

    /// Does the same for a step that each rank has prepared but not started; `prepared` reports a lack of memory.
    ///
    /// # Errors
    /// Errors of [`Balance::make_room`].
    pub fn make_room_for_step(&mut self, prepared: Result<()>) -> Result<Option<()>> {
        if prepared.as_ref().is_err_and(|e| e.kind() == ErrorKind::Memory) {
            self.division.has_no_room_for(self.rows().len());
        }
        self.make_room(prepared)
    }

    /// Divides the batch again if ranks wait for slower ones; returns whether this rank's rows changed. All ranks get the same result from the
    /// exchanged values.
    pub fn rebalance(&mut self) -> bool {
        if !self.division.rebalance(&self.told.times) {
            return false;
        }
        self.divided_anew("speed", "; the next step compiles kernels for these sizes");
        true
    }

    fn divided_anew(&mut self, by: &str, more: &str) {
        if self.group.leads() {
            tracing::info!("rows of a batch per rank, by {by}: {}{more}", self.division.words());
        }
        self.told.restart();
        self.watchdog.restart(self.group.watch());
    }

    /// Exchanges this rank's part of a step's loss, the time it waited for others, and its requests (to stop, to save); returns the whole loss. All
    /// ranks call it.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn exchange(&mut self, loss: f32, waited: Duration, asked: [bool; 2]) -> Result<f32> {
        let rows = self.rows().len();
        self.told.exchange(&self.group, loss, (rows, waited), asked)
    }

    /// Returns whether a rank was asked to stop, and to save, in the last step.
    pub fn asked(&self) -> [bool; 2] {
        self.told.asked
    }

    /// Returns the times of each rank.
    pub fn times(&self) -> &[RankTimes] {
        &self.told.times
    }

    /// Updates the time that ranks wait for each other, after a step.
    pub fn stepped(&mut self) {
        self.watchdog.exchanged(self.group.watch(), Instant::now());
    }

    /// Does the same before ranks evaluate, sample or save.
    pub fn pausing(&mut self, what: Pause) {
        self.told.pausing();
        self.watchdog.pausing(self.group.watch(), what);
    }

    /// Returns this rank's name for messages: `rank 1 (nvidia:1)`.
    pub fn name(&self) -> String {
        self.group.watch().name(self.group.rank())
    }

    /// Returns the names of the ranks whose part of the loss was not finite.
    pub fn whose(&self) -> String {
        let ranks = &self.told.not_finite;
        if ranks.len() == self.group.size() {
            return "all ranks".into();
        }
        ranks.iter().map(|rank| self.group.watch().name(*rank)).collect::<Vec<_>>().join(", ")
    }

    /// Adds this rank's memory use and the advice `change` to an error due to lack of memory for `part`, its part of a batch; returns other errors
    /// unchanged.
    pub fn less_memory(&self, device: &Device, error: Error, (part, change): (&str, &str)) -> Error {
        if error.kind() != ErrorKind::Memory {
            return error;
        }
        let live = human(device.memory().live as u64);
        Error::memory(format!(
            "{}. This rank has {live} in use, and {part}: {change}; the run can resume from its last checkpoint",
            error.message()
        ))
    }
}
