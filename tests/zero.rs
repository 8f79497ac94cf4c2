//! The optimizer's state and gradients are divided between ranks: runs match those of one rank, with less memory per device.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use netcl::dist::Group;
use netcl::model::checkpoint::{Checkpoint, OPTIMIZER_INDEX};
use netcl::model::layers::Recompute;
use netcl::prelude::*;
use netcl::tensor::suite::test_device;
use netcl::train::Observer;
use netcl::train::config::TrainConfig;
use std::path::Path;

use crate::ranks;
use ranks::{alone, lines, on, opened, tiny, weights};

fn config(dir: &Path, steps: u64, zero: u8) -> TrainConfig {
    TrainConfig { width: 48, batch: 6, zero, ..tiny(dir, steps) }
}

/// State of a rank after a run.
#[derive(Debug)]
struct Ended {
    steps: u64,
    /// Bytes of the device's memory, by purpose.
    memory: Vec<(&'static str, usize)>,
    /// Bytes of the optimizer's state, if it is divided.
    state: Option<usize>,
}

impl Ended {
    fn tagged(&self, tag: &str) -> usize {
        self.memory.iter().find(|(other, _)| *other == tag).map_or(0, |(_, bytes)| *bytes)
    }
}

/// Trains on `n` ranks in `out`; stops after `until` steps, if the run is that long.
fn run_ranks(n: usize, config: &TrainConfig, out: &Path, (resume, until): (bool, u64)) -> Vec<Ended> {
    struct Until(u64);
    impl Observer for Until {
        fn step(&mut self, metrics: &netcl::train::run::StepMetrics) {
            self.0 = self.0.saturating_sub(u64::from(metrics.step > 0));
        }
        fn should_stop(&mut self) -> bool {
            self.0 <= 1
        }
    }
    let run = |rank: &Group| -> Result<Ended> {
        let device = test_device().unwrap();
        let mut trainer = opened(rank, &device, config, (out, resume))?;
        trainer.run(&mut Until(until))?;
        let state = trainer.sharding().map(|sharding| sharding.state);
        Ok(Ended { steps: trainer.step(), memory: device.memory().by_tag, state })
    };
    on(n, run).into_iter().map(Result::unwrap).collect()
}

const WHOLE: (bool, u64) = (false, u64::MAX);

/// Returns a metric for every step; `None` if it is not a number in JSON.
fn numbers(run: &Path, name: &str) -> Vec<Option<f64>> {
    lines(run).iter().filter(|line| line.get("loss").is_some()).map(|line| line[name].as_f64()).collect()
}

/// Checks that losses agree within 1e-5, and weights within `bound`.
fn close(found: &Path, expected: &Path, bound: f32) {
    for name in ["loss", "val_loss"] {
        let (found, expected) = (numbers(found, name), numbers(expected, name));
        assert_eq!(found.len(), expected.len());
        for (i, pair) in found.into_iter().zip(expected).enumerate() {
            let near = match pair {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-5 * b.abs(),
                (a, b) => a.is_none() && b.is_none(),
            };
            assert!(near, "{name} {i}: {pair:?}");
        }
    }
    let (found, expected) = (weights(found), weights(expected));
    assert_eq!(found.len(), expected.len());
    let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most <= bound, "weights differ by {most}");
}

#[test]
fn runs_with_divided_state_are_that_of_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    // With recomputation, gradients also reach the inputs of recomputed blocks, which are not parameters.
    for (grad_accum, recompute, steps) in [(1, Recompute::None, 50), (2, Recompute::Block, 6)] {
        let plain = TrainConfig { grad_accum, recompute, eval_every: 25, ..config(dir.path(), steps, 0) };
        let one = dir.path().join(format!("one-{grad_accum}"));
        alone(&plain, &one);
        let all = [(1, 2), (1, 3), (2, 2), (2, 3)];
        for (zero, n) in all.into_iter().skip(if grad_accum > 1 { 2 } else { 0 }) {
            let out = dir.path().join(format!("{grad_accum}-{zero}-{n}"));
            for ended in run_ranks(n, &TrainConfig { zero, ..plain.clone() }, &out, WHOLE) {
                assert_eq!(ended.steps, steps);
            }
            close(&out, &one, 1e-4);
        }
    }
}

/// Without clipping, the computation equals that of a plain run with the same number of ranks: all types have its bits. Two runs with
/// clipping also have equal bits.
#[test]
fn runs_of_as_many_ranks_have_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        let plain = TrainConfig { dtype, clip: 0.0, eval_every: 0, ..config(dir.path(), 4, 0) };
        let expected = dir.path().join(format!("plain {dtype}"));
        run_ranks(2, &plain, &expected, WHOLE);
        for zero in [1, 2] {
            let out = dir.path().join(format!("{dtype} {zero}"));
            run_ranks(2, &TrainConfig { zero, ..plain.clone() }, &out, WHOLE);
            assert_eq!(numbers(&out, "loss"), numbers(&expected, "loss"), "{dtype} {zero}");
            assert_eq!(weights(&out), weights(&expected), "{dtype} {zero}");
        }
    }
    let clipped = TrainConfig { clip: 0.1, zero: 2, eval_every: 0, ..config(dir.path(), 4, 0) };
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    for out in [&a, &b] {
        run_ranks(3, &clipped, out, WHOLE);
    }
    assert_eq!(numbers(&a, "loss"), numbers(&b, "loss"));
    assert_eq!(weights(&a), weights(&b));
}

#[test]
fn each_rank_has_its_part_of_the_state() {
    let dir = tempfile::tempdir().unwrap();
    let plain = TrainConfig { width: 96, eval_every: 0, ..config(dir.path(), 4, 0) };
    let whole = run_ranks(2, &plain, &dir.path().join("whole"), WHOLE)[0].tagged("optimizer");
    for n in [2, 3] {
        let divided = TrainConfig { zero: 1, ..plain.clone() };
        let ended = run_ranks(n, &divided, &dir.path().join(format!("divided {n}")), WHOLE);
        for rank in &ended {
            let part = rank.tagged("optimizer") as f64 / whole as f64 * n as f64;
            assert!((part - 1.0).abs() < 0.02, "{n} ranks: {part} of an equal part; {rank:?}");
            assert!(rank.state.unwrap() <= rank.tagged("optimizer"));
        }
    }
    // Gradients: at stage 1 all of this rank's and its share of the other's; at stage 2 its share of the sums and three buffers of 64 KiB,
    // each with half of the other rank's gradients. Size classes add up to an eighth.
    let gradients = |zero: u8| {
        let rank = &run_ranks(
            2,
            &TrainConfig { zero, ..plain.clone() },
            &dir.path().join(format!("gradients {zero}")),
            WHOLE,
        )[1];
        [rank.tagged("gradients"), rank.tagged("gradients of other ranks"), rank.tagged("parameters")]
    };
    let [one, two] = [gradients(1), gradients(2)];
    assert!(one[0] >= one[2] && one[1] * 9 / 4 >= one[2], "{one:?}");
    assert!((two[0] as f64) < 1.126 * (two[2] as f64 / 2.0 + 3.0 * 65_536.0), "{two:?}");
    assert!((two[1] as f64) < 1.2 * 3.0 * 32_768.0, "{two:?}");
}

/// Checkpoints do not depend on ranks or on the division of state: another division can resume a run.
#[test]
fn a_run_goes_on_with_other_ranks_and_stages() {
    let dir = tempfile::tempdir().unwrap();
    let plain = config(dir.path(), 16, 0);
    let one = dir.path().join("one");
    alone(&plain, &one);
    let out = dir.path().join("run");
    let stages: [(usize, u8, u64); 6] =
        [(2, 1, 3), (3, 2, 3), (1, 1, 3), (2, 0, 3), (3, 1, 3), (2, 2, u64::MAX)];
    let mut done = 0;
    for (i, (n, zero, until)) in stages.into_iter().enumerate() {
        let config = TrainConfig { zero, ..plain.clone() };
        for ended in run_ranks(n, &config, &out, (i > 0, until)) {
            assert!(ended.steps > done && (ended.steps < 16 || i + 1 == stages.len()), "{ended:?}");
            assert_eq!(ended.state.is_some(), zero > 0 && n > 1);
        }
        let last = out.join("checkpoints/last");
        let checkpoint = Checkpoint::load(&last).unwrap();
        done = checkpoint.state.step;
        // One file per rank that has a share.
        let files = if zero > 0 && n > 1 { n } else { 0 };
        assert_eq!(checkpoint.optimizer_files, files);
        assert_eq!(last.join(OPTIMIZER_INDEX).exists(), files > 0);
        assert_eq!(last.join("optimizer.safetensors").exists(), files == 0);
    }
    assert_eq!(done, 16);
    close(&out, &one, 1e-4);
}
