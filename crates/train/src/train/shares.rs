//! Division of batch rows between ranks, or replicas of a pipeline: equally, by given weights, or by measured speed, within the limits of each one's
//! memory.

use super::rank_stats::RankTimes;
use netcl_dist::shard;
use netcl_tensor::{Error, Result};
use std::cell::Cell;
use std::ops::Range;

/// A way to divide batches between ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Shares {
    /// Equal numbers of rows.
    Equal,
    /// By speed, measured in the first steps and corrected later. The sums of a rank then depend on times, so the bits of two runs differ.
    BySpeed,
    /// In these proportions.
    Weights(Vec<f64>),
}

impl Shares {
    /// Checks that the shares are valid for this number of ranks, or pipelines of ranks.
    ///
    /// # Errors
    /// `Format` for another number of weights than ranks, or ones that are not positive.
    pub fn check(&self, ranks: usize) -> Result<()> {
        let Self::Weights(weights) = self else { return Ok(()) };
        if weights.len() == ranks && weights.iter().all(|w| w.is_finite() && *w > 0.0) {
            return Ok(());
        }
        Err(Error::format(format!(
            "--shares has {} numbers for {ranks} ranks (pipelines, with --pipeline); expected one positive number each",
            weights.len()
        )))
    }
}

/// Number of counted steps between two divisions by speed.
const STEPS_BETWEEN_DIVISIONS: u64 = 8;
/// Minimum saving of a new division, as a fraction of a step's time.
const MIN_SAVING: f64 = 0.05;

/// Maximum number of attempts to start with rows divided by memory, and to run a step.
const MAX_DIVISIONS: usize = 8;

/// A rank's report after it prepared its part of a run, or failed to.
pub(super) struct PreparationReport {
    /// Whether it failed for another reason than memory.
    pub failed: bool,
    /// Whether memory was insufficient.
    pub short: bool,
    /// Number of rows that fit in memory.
    pub room: usize,
}

/// The rows of a batch per replica.
pub(super) struct Division {
    batch: usize,
    parts: Vec<usize>,
    /// Maximum rows that fit in each one's memory, if that was found to matter.
    most: Vec<usize>,
    /// Rows that fit in this rank's memory according to the plan of its last attempt to start, and the number of attempts.
    room: Cell<usize>,
    attempts: usize,
    /// Whether the user specified the rows.
    given: bool,
    /// Whether rows are divided by speed.
    pub by_speed: bool,
    /// Per rank at the last check of speeds: rows and seconds that were counted.
    since: Vec<(u64, f64)>,
    /// Number of counted steps at the last check of speeds.
    looked: u64,
}

impl Division {
    /// Divides `batch` rows equally among `replicas`.
    pub fn new(batch: usize, replicas: usize) -> Self {
        Self {
            batch,
            parts: (0..replicas).map(|rank| shard(batch, replicas, rank).len()).collect(),
            most: vec![usize::MAX; replicas],
            room: Cell::new(usize::MAX),
            attempts: 0,
            given: false,
            by_speed: false,
            since: Vec::new(),
            looked: 0,
        }
    }

    /// Returns the rows of a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the rows of a replica.
    pub fn rows(&self, replica: usize) -> Range<usize> {
        let begin = self.parts.iter().take(replica).sum();
        begin..begin + self.parts.get(replica).copied().unwrap_or(0)
    }

    /// Returns all rows as text.
    pub fn words(&self) -> String {
        self.parts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Divides the batch.
    ///
    /// # Errors
    /// Errors of [`Shares::check`].
    pub fn divide(&mut self, shares: &Shares) -> Result<()> {
        shares.check(self.parts.len())?;
        self.by_speed = *shares == Shares::BySpeed;
        self.given = matches!(shares, Shares::Weights(_));
        match shares {
            Shares::Equal => self.parts = netcl_dist::divide(self.batch, &vec![1.0; self.parts.len()]),
            Shares::BySpeed => self.divide_within_memory(),
            Shares::Weights(weights) => self.parts = netcl_dist::divide(self.batch, weights),
        }
        Ok(())
    }

    fn divide_within_memory(&mut self) {
        let equal = vec![1.0; self.parts.len()];
        if let Some(parts) = netcl_dist::divide_within(self.batch, &equal, &self.most) {
            self.parts = parts;
        }
    }

    /// Records the number of rows for which this rank has memory, according to memory plans.
    pub fn has_room_for(&self, rows: usize) {
        self.room.set(rows);
    }

    /// Records that memory was insufficient for `rows`, regardless of plans: a quarter fewer rows are tried next.
    pub fn has_no_room_for(&self, rows: usize) {
        self.room.set(self.room.get().min(rows.saturating_sub((rows / 4).max(1))));
    }

    /// Returns the number of rows for which this rank has memory.
    pub fn room(&self) -> usize {
        self.room.get().min(self.batch)
    }

    /// Divides the rows again if a rank has too little memory for its own and others have more than theirs need; `stages` consecutive ranks form a
    /// replica. Returns whether it did.
    pub fn make_room(&mut self, ranks: &[PreparationReport], stages: usize) -> bool {
        let (failed, short) = (ranks.iter().any(|rank| rank.failed), ranks.iter().any(|rank| rank.short));
        // Stages of a pipeline have the same rows.
        let least = |of: &[PreparationReport]| of.iter().map(|rank| rank.room).min().unwrap_or(0);
        let most: Vec<usize> = ranks.chunks(stages.max(1)).map(least).collect();
        let smaller = most.iter().zip(&self.parts).any(|(most, rows)| most < rows);
        let enough = most.iter().sum::<usize>() >= self.batch && !most.contains(&0);
        // Available host memory fluctuates.
        self.attempts += 1;
        if failed || !short || !smaller || !enough || self.given || self.attempts > MAX_DIVISIONS {
            return false;
        }
        self.most = most;
        self.divide_within_memory();
        true
    }

    /// Divides the batch again if ranks wait for slower ones; returns whether it did. The same `times` give the same rows.
    pub fn rebalance(&mut self, times: &[RankTimes]) -> bool {
        let steps = times.first().map_or(0, |t| t.steps);
        if !self.by_speed || steps < self.looked + STEPS_BETWEEN_DIVISIONS {
            return false;
        }
        self.looked = steps;
        let now: Vec<(u64, f64)> = times.iter().map(|t| (t.rows, t.computing)).collect();
        let before = if self.since.is_empty() { vec![(0, 0.0); now.len()] } else { self.since.clone() };
        // Rows per second since the last division.
        let speed =
            now.iter().zip(&before).map(|(now, then)| (now.0 - then.0) as f64 / (now.1 - then.1).max(1e-9));
        let speed: Vec<f64> = speed.collect();
        self.since = now;
        let Some(parts) = netcl_dist::divide_within(self.batch, &speed, &self.most) else { return false };
        let time = |parts: &[usize]| {
            parts.iter().zip(&speed).map(|(rows, speed)| *rows as f64 / speed).fold(0.0, f64::max)
        };
        let worth = time(&parts) <= (1.0 - MIN_SAVING) * time(&self.parts);
        if parts == self.parts || !worth || !speed.iter().all(|speed| *speed > 0.0) {
            return false;
        }
        self.parts = parts;
        true
    }
}
