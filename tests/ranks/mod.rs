//! Runs of several ranks in one process, for the tests of all kinds of parallelism.
#![allow(dead_code)] // each test uses a part

use netcl::dist::{Group, local};
use netcl::model::checkpoint::read_tensors;
use netcl::prelude::*;
use netcl::tensor::suite::test_device;
use netcl::train::config::TrainConfig;
use netcl::train::run::RunFolder;
use netcl::train::{Silent, Trainer};
use std::path::Path;
use std::time::Duration;

/// Timeout of ranks that wait for each other.
pub const RANK_TIMEOUT: Duration = Duration::from_secs(120);

/// Configures a tiny model on a text that is written to `dir`.
pub fn tiny(dir: &Path, steps: u64) -> TrainConfig {
    let text = dir.join("text.txt");
    std::fs::write(&text, "the quick brown fox jumps over the lazy dog; ".repeat(60)).unwrap();
    TrainConfig {
        layers: 2,
        heads: 2,
        width: 32,
        context: 16,
        batch: 5,
        steps,
        warmup: 2,
        eval_every: 10,
        eval_batches: 3,
        sample_every: 0,
        checkpoint_every: 0,
        data: vec![text.display().to_string()],
        ..TrainConfig::preset("demo-tiny").unwrap()
    }
}

/// Runs `f` on each of `n` ranks and returns the results.
pub fn on<T: Send>(n: usize, f: impl Fn(&Group) -> T + Sync) -> Vec<T> {
    let f = &f;
    std::thread::scope(|scope| {
        let start = |rank: Group| scope.spawn(move || f(&rank));
        let threads: Vec<_> = local(n, RANK_TIMEOUT).into_iter().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Opens this rank of a run in `out`.
pub fn opened(
    rank: &Group,
    device: &Device,
    config: &TrainConfig,
    (out, resume): (&Path, bool),
) -> Result<Trainer> {
    let claim = match (rank.leads(), resume) {
        (false, _) => None,
        (true, false) => Some(RunFolder::claim(out)?),
        (true, true) => Some(RunFolder::reopen(out)?),
    };
    rank.barrier()?;
    Trainer::create_distributed(rank, device, config.clone(), (claim, out, resume), &mut |_| true)
}

/// Runs the same training on one rank.
pub fn alone(config: &TrainConfig, out: &Path) {
    Trainer::create(&test_device().unwrap(), config.clone(), out).unwrap().run(&mut Silent).unwrap();
}

/// Reads the lines of a run's metrics.
pub fn lines(run: &Path) -> Vec<serde_json::Value> {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Reads all weights of the last checkpoint.
pub fn weights(run: &Path) -> Vec<f32> {
    let tensors = read_tensors(&run.join("checkpoints/last/model.safetensors")).unwrap();
    tensors.iter().flat_map(|t| t.floats().unwrap()).collect()
}
