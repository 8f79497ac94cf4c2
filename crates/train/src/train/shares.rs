//! How the rows of a batch are divided among ranks, or replicas of a pipeline: equally, by given weights, by the speed that is measured, and
//! within what each has memory for.

use super::told::RankTimes;
use netcl_dist::shard;
use netcl_tensor::{Error, Result};
use std::cell::Cell;
use std::ops::Range;

/// How a batch is divided among ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Shares {
    /// As many rows for each.
    Equal,
    /// By their speed, measured in the first steps and corrected later. Which sums a rank makes depends on times then, so the bits of two runs
    /// differ.
    BySpeed,
    /// In these proportions.
    Weights(Vec<f64>),
}

impl Shares {
    /// Checks that they are shares for so many ranks, or pipelines of ranks.
    ///
    /// # Errors
    /// `Format` for another number of weights than ranks, or ones that are not positive.
    pub fn check(&self, ranks: usize) -> Result<()> {
        let Self::Weights(weights) = self else { return Ok(()) };
        if weights.len() == ranks && weights.iter().all(|w| w.is_finite() && *w > 0.0) {
            return Ok(());
        }
        Err(Error::format(format!(
            "--shares has {} numbers for {ranks} ranks (pipelines, with --pipeline); expected a positive number for each",
            weights.len()
        )))
    }
}

/// Steps that count between two divisions by speed.
const MEASURED: u64 = 8;
/// What a new division has to save of a step's time.
const WORTH: f64 = 0.05;

/// Attempts to begin with rows divided by memory, and to make a step.
const MOST_DIVISIONS: usize = 8;

/// What a rank says when it has made its part of a run, or could not.
pub(super) struct Made {
    /// Whether that failed for another reason than memory.
    pub failed: bool,
    /// Whether there was no memory for it.
    pub short: bool,
    /// Rows that there is memory for.
    pub room: usize,
}

/// The rows of a batch that each replica has.
pub(super) struct Division {
    batch: usize,
    parts: Vec<usize>,
    /// Rows that each has memory for, where that was found to matter.
    most: Vec<usize>,
    /// Rows that this rank has memory for, by the plan of its last attempt to begin, and attempts so far.
    room: Cell<usize>,
    attempts: usize,
    /// Whether somebody said how many rows each has.
    given: bool,
    /// Whether rows are divided by speed.
    pub by_speed: bool,
    /// Of each rank when speeds were last looked at: rows and seconds that count.
    since: Vec<(u64, f64)>,
    /// Steps that had counted when speeds were last looked at.
    looked: u64,
}

impl Division {
    /// Of `batch` rows, equally among so many.
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

    /// Rows of a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The rows of a replica.
    pub fn rows(&self, replica: usize) -> Range<usize> {
        let begin = self.parts.iter().take(replica).sum();
        begin..begin + self.parts.get(replica).copied().unwrap_or(0)
    }

    /// Rows of all, for people.
    pub fn words(&self) -> String {
        self.parts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Divides the batch.
    ///
    /// # Errors
    /// As [`Shares::check`].
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

    /// Tells of how many rows this rank has memory for, as far as plans of memory say.
    pub fn has_room_for(&self, rows: usize) {
        self.room.set(rows);
    }

    /// Tells that there was no memory for `rows`, whatever plans say: fewer by a quarter are tried next.
    pub fn has_no_room_for(&self, rows: usize) {
        self.room.set(self.room.get().min(rows.saturating_sub((rows / 4).max(1))));
    }

    /// How many rows this rank has memory for.
    pub fn room(&self) -> usize {
        self.room.get().min(self.batch)
    }

    /// Divides the rows anew where one of the ranks, of which `stages` that follow each other are a replica, has no memory for its own and others
    /// have more than theirs; whether it did.
    pub fn make_room(&mut self, ranks: &[Made], stages: usize) -> bool {
        let (failed, short) = (ranks.iter().any(|rank| rank.failed), ranks.iter().any(|rank| rank.short));
        // Stages of a pipeline have the same rows.
        let least = |of: &[Made]| of.iter().map(|rank| rank.room).min().unwrap_or(0);
        let most: Vec<usize> = ranks.chunks(stages.max(1)).map(least).collect();
        let smaller = most.iter().zip(&self.parts).any(|(most, rows)| most < rows);
        let enough = most.iter().sum::<usize>() >= self.batch && !most.contains(&0);
        // Memory of the host comes and goes.
        self.attempts += 1;
        if failed || !short || !smaller || !enough || self.given || self.attempts > MOST_DIVISIONS {
            return false;
        }
        self.most = most;
        self.divide_within_memory();
        true
    }

    /// Divides the batch anew where ranks wait for slower ones; whether it did. The same `times` give the same rows.
    pub fn rebalance(&mut self, times: &[RankTimes]) -> bool {
        let steps = times.first().map_or(0, |t| t.steps);
        if !self.by_speed || steps < self.looked + MEASURED {
            return false;
        }
        self.looked = steps;
        let now: Vec<(u64, f64)> = times.iter().map(|t| (t.rows, t.computing)).collect();
        let before = if self.since.is_empty() { vec![(0, 0.0); now.len()] } else { self.since.clone() };
        // Rows a second since the last division.
        let speed =
            now.iter().zip(&before).map(|(now, then)| (now.0 - then.0) as f64 / (now.1 - then.1).max(1e-9));
        let speed: Vec<f64> = speed.collect();
        self.since = now;
        let Some(parts) = netcl_dist::divide_within(self.batch, &speed, &self.most) else { return false };
        let time = |parts: &[usize]| {
            parts.iter().zip(&speed).map(|(rows, speed)| *rows as f64 / speed).fold(0.0, f64::max)
        };
        let worth = time(&parts) <= (1.0 - WORTH) * time(&self.parts);
        if parts == self.parts || !worth || !speed.iter().all(|speed| *speed > 0.0) {
            return false;
        }
        self.parts = parts;
        true
    }
}
