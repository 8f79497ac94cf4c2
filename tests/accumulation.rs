//! Steps of several micro-batches: one graph for all of them, with the same bits, memory and behavior as without a graph.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use netcl::model::checkpoint::read_tensors;
use netcl::prelude::*;
use netcl::tensor::suite::{optimized, test_device};
use netcl::train::config::{GraphMode, TrainConfig};
use netcl::train::{Observer, Outcome, Silent, Trainer};
use std::path::Path;

fn config(dir: &Path, graph: GraphMode, micros: u32) -> TrainConfig {
    let text = dir.join("text.txt");
    std::fs::write(&text, "the quick brown fox jumps over the lazy dog\n".repeat(40)).unwrap();
    TrainConfig {
        layers: 1,
        heads: 2,
        width: 16,
        context: 16,
        batch: 2,
        grad_accum: micros,
        dropout: 0.2,
        steps: 4,
        warmup: 2,
        eval_every: 0,
        sample_every: 0,
        checkpoint_every: 2,
        data: vec![text.display().to_string()],
        graph,
        ..TrainConfig::preset("demo-tiny").unwrap()
    }
}

/// Returns weights, moments and losses of a finished run.
fn results(run: &Path) -> [Vec<u8>; 3] {
    let last = run.join("checkpoints/last");
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let numbers = metrics.lines().map(|line| {
        let all: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{} {} {}\n", all["step"], all["loss"], all["grad_norm"])
    });
    let read = |name: &str| std::fs::read(last.join(name)).unwrap();
    [read("model.safetensors"), read("optimizer.safetensors"), numbers.collect::<String>().into_bytes()]
}

fn trained(device: &Device, config: TrainConfig, out: &Path) -> [Vec<u8>; 3] {
    Trainer::create(device, config, out).unwrap().run(&mut Silent).unwrap();
    results(out)
}

fn same_bits(device: &Device, micros: u32, edit: impl Fn(&mut TrainConfig)) {
    let dir = tempfile::tempdir().unwrap();
    let run = |graph: GraphMode| {
        let mut config = config(dir.path(), graph, micros);
        edit(&mut config);
        trained(device, config, &dir.path().join(graph.to_string()))
    };
    let (eager, replayed) = (run(GraphMode::Off), run(GraphMode::On));
    assert_eq!(String::from_utf8_lossy(&replayed[2]), String::from_utf8_lossy(&eager[2]), "{micros}");
    assert!(replayed == eager, "weights or moments differ with {micros}");
}

#[test]
fn replayed_micro_batches_have_the_bits_of_eager_ones() {
    let device = test_device().unwrap();
    for micros in [1, 2, 3, 32] {
        same_bits(&device, micros, |_| {});
    }
}

#[test]
fn four_hundred_micro_batches_have_the_bits_of_eager_ones() {
    same_bits(&optimized().unwrap(), 400, |c| (c.steps, c.checkpoint_every) = (2, 0));
}

#[test]
fn replayed_micro_batches_have_the_bits_of_eager_ones_on_the_simulated_device() {
    same_bits(&Device::open("sim", &Settings::default()).unwrap(), 3, |c| c.steps = 3);
}

#[test]
fn skipped_steps_under_a_loss_scale_are_the_same_with_accumulation() {
    let device = test_device().unwrap();
    for micros in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let run = |graph: GraphMode| {
            let mut config = config(dir.path(), graph, micros);
            // Gradients of single tokens are the largest that a mean over tokens has: too large for f16 with the first loss scale.
            config = TrainConfig {
                dtype: DType::F16,
                dropout: 0.0,
                batch: 1,
                context: 1,
                width: 64,
                steps: 6,
                ..config
            };
            let out = dir.path().join(graph.to_string());
            let results = trained(&device, config, &out);
            let state = read_tensors(&out.join("checkpoints/last/optimizer.safetensors")).unwrap();
            let step = state.iter().find(|t| t.name == "step").unwrap().bytes.clone();
            (results, i64::from_le_bytes(step[..8].try_into().unwrap()))
        };
        let (eager, replayed) = (run(GraphMode::Off), run(GraphMode::On));
        assert!(eager.1 < 6, "no step was skipped: {}", eager.1);
        assert!(replayed == eager, "with {micros}");
    }
}

/// Stops the run at the n-th query, after a step or within one.
#[derive(Default)]
struct StopAt {
    after: Option<u64>,
    within: Option<u64>,
    saved: Vec<u64>,
}

impl StopAt {
    fn count(left: &mut Option<u64>) -> bool {
        *left = left.map(|n| n.saturating_sub(1));
        *left == Some(0)
    }
}

impl Observer for StopAt {
    fn should_stop(&mut self) -> bool {
        Self::count(&mut self.after)
    }
    fn should_stop_within_step(&mut self) -> bool {
        Self::count(&mut self.within)
    }
    fn saved(&mut self, step: u64, _: &Path) {
        self.saved.push(step);
    }
}

#[test]
fn a_run_stopped_between_micro_batches_goes_on_with_the_same_bits() {
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let whole = trained(&device, config(dir.path(), GraphMode::Off, 3), &dir.path().join("whole"));
    for (graph, at) in [(GraphMode::On, 8), (GraphMode::On, 9), (GraphMode::Off, 5), (GraphMode::On, 2)] {
        let out = dir.path().join(format!("{graph}-{at}"));
        let config = config(dir.path(), graph, 3);
        let mut stop = StopAt { within: Some(at), ..StopAt::default() };
        let mut trainer = Trainer::create(&device, config.clone(), &out).unwrap();
        assert_eq!(trainer.run(&mut stop).unwrap(), Outcome::Stopped);
        // The run queries before each of the three micro-batches of a step. Queries within the unfinished step do not count.
        let done = (at - 1) / 3;
        assert_eq!(trainer.step(), done);
        assert_eq!(stop.saved.last().copied(), (done > 0).then_some(done), "{graph} {at}");
        drop(trainer);
        Trainer::resume(&device, config, &out).unwrap().run(&mut Silent).unwrap();
        assert!(results(&out) == whole, "{graph}, stopped when asked for the {at}th time");
    }
}

#[test]
fn a_run_with_accumulation_that_is_resumed_is_the_same() {
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let whole = trained(&device, config(dir.path(), GraphMode::Off, 3), &dir.path().join("whole"));
    let parts = dir.path().join("parts");
    let config = config(dir.path(), GraphMode::On, 3);
    let mut stop = StopAt { after: Some(3), ..StopAt::default() };
    Trainer::create(&device, config.clone(), &parts).unwrap().run(&mut stop).unwrap();
    Trainer::resume(&device, config, &parts).unwrap().run(&mut Silent).unwrap();
    assert!(results(&parts) == whole);
}

/// Resets the peak at the first step, because measuring the product's speed needs more memory than a small model.
struct FromFirstStep(Device);

impl Observer for FromFirstStep {
    fn started(&mut self, _: &netcl::train::RunInfo) {
        self.0.finish().unwrap();
        self.0.reset_memory_peak();
    }
    fn should_stop(&mut self) -> bool {
        false
    }
}

/// Returns the peak memory of a run in bytes, and the bytes of its parameters.
fn peak(device: &Device, graph: GraphMode, micros: u32) -> (usize, usize) {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig {
        layers: 2,
        width: 64,
        context: 64,
        batch: 4,
        steps: 2,
        checkpoint_every: 0,
        ..config(dir.path(), graph, micros)
    };
    let before = device.memory().live;
    let mut trainer = Trainer::create(device, config, &dir.path().join("run")).unwrap();
    trainer.run(&mut FromFirstStep(device.clone())).unwrap();
    (device.memory().peak - before, trainer.model().params().count() * 4)
}

#[test]
fn memory_does_not_grow_with_the_micro_batches() {
    let device = test_device().unwrap();
    let (few, parameters) = peak(&device, GraphMode::On, 2);
    let (many, _) = peak(&device, GraphMode::On, 32);
    assert_eq!(few, many);
    let (one, _) = peak(&device, GraphMode::On, 1);
    let (eager, _) = peak(&device, GraphMode::Off, 32);
    assert!(many <= one + parameters + parameters / 4, "{many} with 32, {one} with one of {parameters}");
    assert!(many as f64 <= 1.1 * eager as f64, "{many} replayed, {eager} eager");
}
