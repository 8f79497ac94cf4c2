//! What ranks know of each other's speed and memory, and how they divide the rows of batches by it: of texts and of images alike.

use super::shares::{Division, Made, Shares};
use super::told::{RankStage, RankTimes, Told, Unit};
use super::watchdog::{Pause, Watchdog};
use netcl_device::human;
use netcl_dist::Group;
use netcl_tensor::{Device, Error, ErrorKind, Result, Tensor};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Steps after which unlike devices have the same weights again, at the latest.
const SAME_EVERY: u64 = 1000;

/// What a rank of a run knows of all of them.
pub(crate) struct Balance {
    group: Group,
    /// Ranks that follow each other and have the same rows: the stages of a pipeline, else 1.
    stages: usize,
    /// Rows of each replica of the model.
    division: Division,
    /// The devices of all ranks.
    devices: Vec<String>,
    /// Whether ranks have devices or drivers of several kinds.
    unlike: bool,
    /// What ranks have told each other.
    pub(super) told: Told,
    pub(super) watchdog: Watchdog,
}

impl Balance {
    /// Of `batch` rows, equally among the ranks of `group`, of which `stages` that follow each other have the same ones.
    pub fn new(group: &Group, batch: usize, stages: usize) -> Self {
        Self {
            group: group.clone(),
            stages,
            division: Division::new(batch, group.size() / stages.max(1)),
            devices: Vec::new(),
            unlike: false,
            told: Told::default(),
            watchdog: Watchdog::default(),
        }
    }

    /// Learns which devices the ranks have; where they are of several kinds, and layers are not divided, rows are divided by speed unless
    /// [`Balance::divide`] says otherwise later. `of_stages` are the stages of a pipeline, `row` what a row of a batch counts. All ranks call it.
    ///
    /// # Errors
    /// Those of the group.
    pub fn meet(&mut self, device: &Device, of_stages: &[RankStage], row: (u64, Unit)) -> Result<()> {
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

    /// The devices, for people: `0 nvidia:0, 1 nvidia:1`.
    pub fn devices(&self) -> String {
        let all: Vec<String> = self.devices.iter().enumerate().map(|(i, id)| format!("{i} {id}")).collect();
        all.join(", ")
    }

    /// Whether ranks have devices or drivers of several kinds, whose updates may round differently.
    pub fn is_unlike(&self) -> bool {
        self.unlike
    }

    /// Whether unlike devices take the same weights after so many steps, wherever the next checkpoint is.
    pub fn same_is_due(&self, step: u64) -> bool {
        self.unlike && step.is_multiple_of(SAME_EVERY)
    }

    /// Gives the ranks `among`, where some are unlike, the values that the first of them has.
    ///
    /// # Errors
    /// Those of the group and the device.
    pub fn take_first(&self, among: &Group, mut tensors: impl Iterator<Item = Tensor>) -> Result<()> {
        if !self.unlike || among.size() < 2 {
            return Ok(());
        }
        tensors.try_for_each(|x| among.broadcast_tensor(&x, 0))
    }

    /// Rows of a batch.
    pub fn batch(&self) -> usize {
        self.division.batch()
    }

    /// This rank's rows of a batch.
    pub fn rows(&self) -> Range<usize> {
        self.rows_of(self.group.rank() / self.stages.max(1))
    }

    /// The rows of a replica, which without a pipeline is a rank.
    pub fn rows_of(&self, replica: usize) -> Range<usize> {
        self.division.rows(replica)
    }

    /// Rows of each replica, for people.
    #[cfg(test)]
    pub fn words(&self) -> String {
        self.division.words()
    }

    /// Divides the batch. All ranks call it, before the first step.
    ///
    /// # Errors
    /// As [`Shares::check`].
    pub fn divide(&mut self, shares: &Shares) -> Result<()> {
        self.division.divide(shares)
    }

    /// Tells of how many rows this rank has memory for, as far as plans of memory say.
    pub fn has_room_for(&self, rows: usize) {
        self.division.has_room_for(rows);
    }

    /// What all ranks have made; `None` where one has no memory for its rows and others have more than theirs: rows are divided anew, and all
    /// ranks begin again. All ranks call it.
    ///
    /// # Errors
    /// What failed, with the rank's number, as [`Group::all_succeed`].
    pub fn make_room<T>(&mut self, made: Result<T>) -> Result<Option<T>> {
        let out_of_memory = made.as_ref().err().map(|e| e.kind() == ErrorKind::Memory);
        let (failed, short) =
            (u64::from(out_of_memory == Some(false)), u64::from(out_of_memory == Some(true)));
        let all = self.group.all_gather(&[failed, short, self.division.room() as u64])?;
        let of = |rank: &[u64]| Made { failed: rank[0] > 0, short: rank[1] > 0, room: rank[2] as usize };
        let ranks: Vec<Made> = all.chunks_exact(3).map(of).collect();
        if !self.division.make_room(&ranks, self.stages) {
            return self.group.all_succeed(made).map(Some);
        }
        self.divided_anew("what its memory has room for", "");
        Ok(None)
    }

    /// The same for a step that each rank has prepared but not begun: `prepared` says for which there was no memory.
    ///
    /// # Errors
    /// As [`Balance::make_room`].
    pub fn make_room_for_step(&mut self, prepared: Result<()>) -> Result<Option<()>> {
        if prepared.as_ref().is_err_and(|e| e.kind() == ErrorKind::Memory) {
            self.division.has_no_room_for(self.rows().len());
        }
        self.make_room(prepared)
    }

    /// Divides the batch anew where ranks wait for slower ones; whether this rank's rows are others now. All ranks come to the same result,
    /// from what they have told each other.
    pub fn rebalance(&mut self) -> bool {
        if !self.division.rebalance(&self.told.times) {
            return false;
        }
        self.divided_anew("their speed", "; the next step compiles kernels for them");
        true
    }

    fn divided_anew(&mut self, by: &str, more: &str) {
        if self.group.leads() {
            tracing::info!("rows of a batch for each rank, by {by}: {}{more}", self.division.words());
        }
        self.told.restart();
        self.watchdog.restart(self.group.watch());
    }

    /// Tells the others this rank's part of the loss of a step, how long it waited for them, and what it was asked for (to stop, to save); gives the
    /// whole loss. All ranks call it.
    ///
    /// # Errors
    /// Those of the group.
    pub fn exchange(&mut self, loss: f32, waited: Duration, asked: [bool; 2]) -> Result<f32> {
        let rows = self.rows().len();
        self.told.exchange(&self.group, loss, (rows, waited), asked)
    }

    /// Whether a rank was asked to stop, and to save, in the last step.
    pub fn asked(&self) -> [bool; 2] {
        self.told.asked
    }

    /// How the time of each rank went.
    pub fn times(&self) -> &[RankTimes] {
        &self.told.times
    }

    /// Sets how long ranks wait for each other, after a step.
    pub fn stepped(&mut self) {
        self.watchdog.exchanged(self.group.watch(), Instant::now());
    }

    /// The same before ranks evaluate, sample or save.
    pub fn pausing(&mut self, what: Pause) {
        self.told.pausing();
        self.watchdog.pausing(self.group.watch(), what);
    }

    /// This rank for people: `rank 1 (nvidia:1)`.
    pub fn name(&self) -> String {
        self.group.watch().name(self.group.rank())
    }

    /// Whose part of the loss was not finite, for people.
    pub fn whose(&self) -> String {
        let ranks = &self.told.not_finite;
        if ranks.len() == self.group.size() {
            return "all ranks".into();
        }
        ranks.iter().map(|rank| self.group.watch().name(*rank)).collect::<Vec<_>>().join(", ")
    }

    /// An error of a rank without memory for `part`, its part of a batch, says what else it has, and what to change; other errors stay as they are.
    pub fn less_memory(&self, device: &Device, error: Error, (part, change): (&str, &str)) -> Error {
        if error.kind() != ErrorKind::Memory {
            return error;
        }
        let live = human(device.memory().live as u64);
        Error::memory(format!(
            "{}. This rank has {live} in use, and {part}: {change}; the run goes on from its last checkpoint",
            error.message()
        ))
    }
}
