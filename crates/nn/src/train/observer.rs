//! Who watches a run: the command line draws a progress bar, a test draws nothing.

use crate::evaluate::Score;
use crate::run::StepMetrics;
use netcl_device::{KernelTime, Timeline};
use std::path::{Path, PathBuf};

/// What is known when a run starts.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Trained parameters.
    pub parameters: usize,
    /// Vocabulary of the model.
    pub vocab: usize,
    /// Tokens of the tokenizer, where there is one: ids beyond are padding.
    pub known: Option<usize>,
    /// Training and validation tokens.
    pub tokens: [usize; 2],
    /// Device id and name.
    pub device: String,
    /// Measured FLOP/s of a large matrix product.
    pub peak_flops: f64,
    /// Steps done before, when resumed.
    pub from_step: u64,
    /// Steps in all.
    pub steps: u64,
    /// The run folder.
    pub folder: PathBuf,
}

/// How far a checkpoint's way to the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// The step whose state it is.
    pub step: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes in all.
    pub total: u64,
    /// Whether training waits for it.
    pub waiting: bool,
}

/// What profiling some steps found.
#[derive(Debug)]
pub struct Profile {
    /// The first and the last step.
    pub steps: (u64, u64),
    /// Time per kernel, the most expensive first; that of evaluations and samples within the steps is among it.
    pub kernels: Vec<KernelTime>,
    /// Every launch and transfer.
    pub timeline: Timeline,
    /// Whether the steps were replayed from a graph.
    pub replayed: bool,
    /// Where the trace is.
    pub file: PathBuf,
}

/// Hears of every event of a run. All methods but one do nothing unless overridden.
pub trait Observer {
    /// The run begins.
    fn started(&mut self, _info: &RunInfo) {}
    /// A step is done and its loss is known.
    fn step(&mut self, _metrics: &StepMetrics) {}
    /// What validation came to after `step`; `best` if its loss is the lowest so far.
    fn evaluated(&mut self, _step: u64, _score: &Score, _best: bool) {}
    /// A text drawn after `step`.
    fn sample(&mut self, _step: u64, _text: &str) {}
    /// A checkpoint is being written, beside training or while it waits. Said after steps, and now and then while it waits.
    fn saving(&mut self, _saving: &Saving) {}
    /// A checkpoint was written; `step` is the one whose state it holds, which may be some steps ago.
    fn saved(&mut self, _step: u64, _path: &Path) {}
    /// Where a step's memory goes, in words, as soon as it is known; said once.
    fn memory_explained(&mut self, _text: &str) {}
    /// The steps to be profiled are done; said once.
    fn profiled(&mut self, _profile: &Profile) {}
    /// Whether to write a checkpoint after this step and go on.
    fn should_save(&mut self) -> bool {
        false
    }
    /// Whether to write a checkpoint and stop after this step.
    fn should_stop(&mut self) -> bool;
    /// Whether to stop before this step is done. Asked between the micro-batches of a step: those it has done are thrown away, and the
    /// run stops after the step before, whose checkpoint is written; it goes on from there with the same bits. Unless overridden, a
    /// run stops between steps only.
    fn should_stop_within_step(&mut self) -> bool {
        false
    }
}

/// Watches nothing and never stops.
pub struct Silent;

impl Observer for Silent {
    fn should_stop(&mut self) -> bool {
        false
    }
}
