//! What training comes to.

use serde::{Deserialize, Serialize};

/// What an epoch came to; a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Epochs done, from 1 on.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Seconds since training began, tests included.
    pub elapsed: f64,
    /// Mean loss of the epoch's steps.
    pub loss: f64,
    /// Mean loss of the test images.
    pub test_loss: f64,
    /// Share of the test images whose likeliest class is theirs.
    pub accuracy: f64,
    /// Images a second of training, without the test.
    pub images_per_s: f64,
    /// Learning rate of the last step.
    pub lr: f64,
}

/// How training ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Every epoch.
    pub epochs: Vec<Epoch>,
    /// Whether it was asked to stop before the last.
    pub stopped: bool,
    /// Numbers of test images of class `i` that were taken for class `j`, at `[i][j]`.
    pub confusion: Vec<Vec<u64>>,
}
