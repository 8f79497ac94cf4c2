//! The results of training.

use crate::run::Record;
use crate::train::RankTimes;
use serde::{Deserialize, Serialize};

/// The results of an epoch; a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Epochs done, from 1 on.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Seconds since 1970.
    #[serde(default)]
    pub time: f64,
    /// Seconds of training so far over all sessions, including tests.
    pub elapsed: f64,
    /// Mean loss of the epoch's steps.
    pub loss: f64,
    /// Mean loss of the test images.
    pub test_loss: f64,
    /// Share of the test images whose most likely class is correct.
    pub accuracy: f64,
    /// Images per second of training, without the test.
    pub images_per_s: f64,
    /// Learning rate of the last step.
    pub lr: f64,
}

impl Record for Epoch {
    fn step(&self) -> u64 {
        self.step
    }
    fn time(&self) -> f64 {
        self.time
    }
    fn scalars(&self) -> Vec<(&'static str, Option<f64>)> {
        vec![
            ("loss/train", Some(self.loss)),
            ("loss/validation", Some(self.test_loss)),
            ("accuracy/validation", Some(self.accuracy)),
            ("optimizer/learning_rate", Some(self.lr)),
            ("speed/images_per_second", Some(self.images_per_s)),
        ]
    }
}

/// How training ended.
#[derive(Clone, Debug)]
pub struct ClassifierOutcome {
    /// Every epoch, including those of earlier sessions.
    pub epochs: Vec<Epoch>,
    /// Optimizer steps done.
    pub step: u64,
    /// Whether it was stopped before the last step.
    pub stopped: bool,
    /// Whether nothing was left to do when it was resumed.
    pub already: bool,
    /// Confusion matrix: number of test images of class `i` classified as class `j`, at `[i][j]`.
    pub confusion: Vec<Vec<u64>>,
    /// Times of each rank; empty for a run of one device.
    pub ranks: Vec<RankTimes>,
}

/// The action after a step or an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    /// Continue.
    #[default]
    GoOn,
    /// Write a checkpoint and continue.
    Save,
    /// Write a checkpoint and stop.
    Stop,
}
