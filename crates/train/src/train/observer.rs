//! Observer of a run: receives its events and can stop it. The command line draws a progress bar; tests collect events.

use crate::evaluate::Score;
use crate::run::StepMetrics;
use netcl_device::{KernelTime, Timeline};
use std::path::{Path, PathBuf};

/// Facts about a run at its start.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Number of parameters, also frozen ones.
    pub parameters: usize,
    /// Number of trained parameters; in a pipeline, of all parameters.
    pub trained: usize,
    /// Vocabulary of the model.
    pub vocab: usize,
    /// Vocabulary of the tokenizer, if there is one; ids beyond are padding.
    pub known: Option<usize>,
    /// Training and validation tokens.
    pub tokens: [usize; 2],
    /// Device id and name.
    pub device: String,
    /// A line about the memory plan, if there is something to tell.
    pub memory: Option<String>,
    /// Number of ranks, each with a device; 1 for a single rank.
    pub ranks: usize,
    /// Measured FLOP/s of a large matrix product on all devices together.
    pub peak_flops: f64,
    /// Steps done before this session, in a resumed run.
    pub from_step: u64,
    /// Total number of steps.
    pub steps: u64,
    /// The run folder.
    pub folder: PathBuf,
}

/// Progress of writing a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// The step of the checkpoint.
    pub step: u64,
    /// Bytes written so far.
    pub written: u64,
    /// Total bytes.
    pub total: u64,
    /// Whether training waits for it.
    pub waiting: bool,
}

/// Result of profiling some steps.
#[derive(Debug)]
pub struct Profile {
    /// First and last profiled step.
    pub steps: (u64, u64),
    /// Time of each kernel, longest first, including evaluations and samples between the steps.
    pub kernels: Vec<KernelTime>,
    /// Every launch and transfer.
    pub timeline: Timeline,
    /// Whether the steps were replayed from a graph.
    pub replayed: bool,
    /// Path of the trace.
    pub file: PathBuf,
}

/// Receives the events of a run. All methods except one have a default that does nothing.
pub trait Observer {
    /// Reports that the run starts.
    fn started(&mut self, _info: &RunInfo) {}
    /// Reports a step whose results are known.
    fn step(&mut self, _metrics: &StepMetrics) {}
    /// Reports a validation result after `step`; `best` if its loss is the lowest so far.
    fn evaluated(&mut self, _step: u64, _score: &Score, _best: bool) {}
    /// Reports a sample generated after `step`.
    fn sample(&mut self, _step: u64, _text: &str) {}
    /// Reports that a checkpoint is being written. Called after steps, and periodically while training waits for the write.
    fn saving(&mut self, _saving: &Saving) {}
    /// Reports that a checkpoint was written. It has the state of `step`, which may be some steps back.
    fn saved(&mut self, _step: u64, _path: &Path) {}
    /// Reports the memory of a step; called once, when it is known.
    fn memory_explained(&mut self, _text: &str) {}
    /// Reports that the profiled steps are done; called once.
    fn profiled(&mut self, _profile: &Profile) {}
    /// Returns whether to write a checkpoint after this step and continue.
    fn should_save(&mut self) -> bool {
        false
    }
    /// Returns whether to write a checkpoint and stop after this step.
    fn should_stop(&mut self) -> bool;
    /// Returns whether to stop within the current step. Called between micro-batches: the micro-batches done so far are discarded, and the checkpoint
    /// of the previous step is written, from which the run can be resumed bit-identically. By default a run stops only between steps.
    fn should_stop_within_step(&mut self) -> bool {
        false
    }
}

/// An observer that ignores all events and never stops the run.
pub struct Silent;

impl Observer for Silent {
    fn should_stop(&mut self) -> bool {
        false
    }
}
