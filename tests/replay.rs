//! Captured and replayed steps have the bits of eager steps, whatever happens around them.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use netcl::device::fault::{FaultDriver, Plan as Faults};
use netcl::device::open_driver;
use netcl::model::decoder::{Decoder, DecoderConfig, Sizes};
use netcl::model::layers::Mode;
use netcl::model::layers::Recompute;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::graph::{Between, BufferPlan, Graph, Trace};
use netcl::tensor::ops::attention::{AttentionOptions, attention};
use netcl::tensor::ops::dropout::masked;
use netcl::tensor::random::{DropMask, counter, set_counter};
use netcl::tensor::suite::optimized;
use netcl::tensor::unfused;
use netcl::train::config::{GraphMode, TrainConfig};
use netcl::train::{Silent, Trainer};
use std::path::Path;
use std::sync::Arc;

fn config(dir: &Path, graph: GraphMode) -> TrainConfig {
    let text = dir.join("text.txt");
    let line = "the quick brown fox jumps over the lazy dog\n";
    std::fs::write(&text, line.repeat(40)).unwrap();
    TrainConfig {
        layers: 2,
        heads: 2,
        width: 16,
        context: 16,
        batch: 2,
        grad_accum: 2,
        dropout: 0.2,
        steps: 9,
        warmup: 2,
        eval_every: 4,
        eval_batches: 2,
        sample_every: 0,
        checkpoint_every: 5,
        keep: 5,
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
        format!("{} {} {} {}\n", all["step"], all["loss"], all["grad_norm"], all["val_loss"])
    });
    let read = |name: &str| std::fs::read(last.join(name)).unwrap();
    [read("model.safetensors"), read("optimizer.safetensors"), numbers.collect::<String>().into_bytes()]
}

fn same_bits(device: &Device, edit: impl Fn(&mut TrainConfig)) {
    let dir = tempfile::tempdir().unwrap();
    let run = |graph: GraphMode, name: &str| {
        let mut config = config(dir.path(), graph);
        edit(&mut config);
        let out = dir.path().join(name);
        Trainer::create(device, config, &out).unwrap().run(&mut Silent).unwrap();
        results(&out)
    };
    let eager = run(GraphMode::Off, "off");
    for name in ["on", "again"] {
        let replayed = run(GraphMode::On, name);
        assert_eq!(String::from_utf8_lossy(&replayed[2]), String::from_utf8_lossy(&eager[2]));
        assert!(replayed == eager, "weights or moments differ");
    }
}

/// A sample has a separate captured step and cache. Training steps before and after it are still replayed, with the bits of a run without
/// samples, and its memory is freed.
#[test]
fn samples_between_replayed_steps_change_nothing() {
    let device = optimized().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = |every: u64, name: &str| {
        let config = TrainConfig { sample_every: every, ..config(dir.path(), GraphMode::On) };
        let before = device.memory().live;
        Trainer::create(&device, config, &dir.path().join(name)).unwrap().run(&mut Silent).unwrap();
        (results(&dir.path().join(name)), device.memory().live - before)
    };
    let (without, _) = run(0, "without");
    for name in ["with", "again"] {
        let (with, left) = run(2, name);
        assert!(with == without, "weights, moments or losses differ");
        assert_eq!(left, 0);
        let metrics = std::fs::read_to_string(dir.path().join(name).join("metrics.jsonl")).unwrap();
        assert!(metrics.contains("\"sample\":\""), "{metrics}");
    }
}

/// Checks at each checkpoint with which step the metrics end.
struct AtCheckpoints(std::path::PathBuf, usize);

impl netcl::train::Observer for AtCheckpoints {
    fn saved(&mut self, step: u64, _path: &Path) {
        let lines = std::fs::read_to_string(self.0.join("metrics.jsonl")).unwrap();
        let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
        // The checkpoint is written in parallel with the following steps.
        let last = last["step"].as_u64().unwrap();
        assert!(last >= step, "a run resumed from here would never record step {step}, only {last}");
        self.1 += 1;
    }
    fn should_stop(&mut self) -> bool {
        false
    }
}

#[test]
fn a_checkpoint_is_written_after_the_metrics_of_its_step() {
    let (device, dir) = (optimized().unwrap(), tempfile::tempdir().unwrap());
    let out = dir.path().join("run");
    let mut observer = AtCheckpoints(out.clone(), 0);
    Trainer::create(&device, config(dir.path(), GraphMode::Auto), &out).unwrap().run(&mut observer).unwrap();
    assert!(observer.1 >= 3);
}

#[test]
fn training_is_the_same_with_dropout_accumulation_and_evaluation() {
    same_bits(&optimized().unwrap(), |_| {});
}

#[test]
fn training_is_the_same_in_f16_under_a_loss_scale() {
    same_bits(&optimized().unwrap(), |c| (c.dtype, c.dropout, c.grad_accum) = (DType::F16, 0.0, 1));
}

#[test]
fn training_is_the_same_on_the_simulated_device() {
    same_bits(&Device::open("sim", &Settings::default()).unwrap(), |c| c.steps = 6);
}

#[test]
fn a_run_that_is_resumed_is_the_same() {
    let device = optimized().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    Trainer::create(&device, config(dir.path(), GraphMode::Off), &whole).unwrap().run(&mut Silent).unwrap();
    let parts = dir.path().join("parts");
    let config = config(dir.path(), GraphMode::On);
    Trainer::create(&device, config.clone(), &parts).unwrap().run(&mut StopAfter(5)).unwrap();
    Trainer::resume(&device, config, &parts).unwrap().run(&mut Silent).unwrap();
    assert!(results(&parts)[..2] == results(&whole)[..2], "weights or moments differ");
}

#[test]
fn recomputing_changes_no_bit() {
    let device = optimized().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (bias, dropout) in [(false, 0.2), (true, 0.0)] {
        let run = |recompute: Recompute, graph: GraphMode| {
            let out = dir.path().join(format!("{recompute}-{bias}"));
            let base = config(dir.path(), graph);
            let config = TrainConfig { recompute, bias, dropout, steps: 6, eval_every: 0, ..base };
            Trainer::create(&device, config, &out).unwrap().run(&mut Silent).unwrap();
            results(&out)
        };
        let expected = run(Recompute::None, GraphMode::Off);
        for (recompute, graph) in [
            (Recompute::Gelu, GraphMode::On),
            (Recompute::Norm, GraphMode::On),
            (Recompute::Block, GraphMode::On),
        ] {
            assert!(run(recompute, graph) == expected, "{recompute} with bias {bias}");
        }
    }
}

#[test]
fn recomputing_saves_memory() {
    let device = optimized().unwrap();
    let shape = DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 4, heads: 2, width: 16, context: 64, vocab: 5, ..Sizes::default() },
    )
    .unwrap();
    let gpt = Decoder::new(&device, shape, DType::F32, 7).unwrap();
    let ids = Tensor::from_u32(&device, [4, 64], &[1; 256]).unwrap();
    let peak = |recompute: Recompute| {
        let step = || gpt.loss(&ids, &ids, Mode { recompute, ..Mode::eval() })?.backward();
        step().unwrap();
        gpt.params().list().iter().for_each(|p| p.set_grad(None));
        let plan = BufferPlan::new(&device, &Trace::of(&device, step).unwrap().0).unwrap();
        gpt.params().list().iter().for_each(|p| p.set_grad(None));
        plan.bytes
    };
    let [none, gelu, norm, block] =
        [Recompute::None, Recompute::Gelu, Recompute::Norm, Recompute::Block].map(peak);
    // An activation of (4, 64, 16) in f32. The last layer's activations are in use at the peak, whatever is recomputed.
    let unit = 4 * 64 * 16 * 4;
    assert!(none >= gelu + 3 * 4 * unit, "{none} without, {gelu} with gelu");
    assert!(gelu >= norm + 3 * 2 * unit, "{gelu} with gelu, {norm} with norm");
    assert!(norm >= block + 3 * 8 * unit, "{norm} with norm, {block} with block");
}

struct StopAfter(u64);

impl netcl::train::Observer for StopAfter {
    fn should_stop(&mut self) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}

/// A model, its inputs, and its forward and backward.
struct Pass {
    gpt: Decoder,
    ids: Tensor,
    next: Tensor,
}

impl Pass {
    fn new(device: &Device) -> Self {
        let config = DecoderConfig::of(
            "gpt2",
            &Sizes { layers: 2, heads: 2, width: 16, context: 8, vocab: 5, ..Sizes::default() },
        )
        .unwrap();
        let ids = |first: u32| {
            let ids: Vec<u32> = (0..16).map(|i| (first + i) % 5).collect();
            Tensor::from_u32(device, [2, 8], &ids).unwrap()
        };
        Self { gpt: Decoder::new(device, config, DType::F32, 7).unwrap(), ids: ids(0), next: ids(1) }
    }
    fn clear(&self) {
        self.gpt.params().list().iter().for_each(|p| p.set_grad(None));
    }
    /// Computes the loss and every gradient on the device.
    fn run(&self) -> Result<Vec<Tensor>> {
        self.clear();
        let outcome = self.gpt.loss(&self.ids, &self.next, Mode::eval()).and_then(|loss| {
            loss.backward()?;
            let grads = self.gpt.params().list().iter().filter_map(Tensor::grad);
            Ok([loss.detach()].into_iter().chain(grads).collect())
        });
        self.clear();
        outcome
    }
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_bytes().unwrap()).collect()
}

#[test]
fn a_plan_takes_no_more_than_the_pool_and_nobody_else_gets_its_memory() {
    let device = optimized().unwrap();
    let pass = Pass::new(&device);
    let expected = bits(&pass.run().unwrap());
    let before = device.memory().live;
    device.reset_memory_peak();
    let (trace, out) = Trace::of(&device, || pass.run()).unwrap();
    let pool = device.memory().peak - before;
    drop(out);
    let plan = BufferPlan::new(&device, &trace).unwrap();
    assert!(plan.peak.0 <= plan.bytes && plan.bytes <= pool, "{} of {pool}, {:?}", plan.bytes, plan.peak);
    let (graph, out) = Graph::planned(&device, &plan, || pass.run()).unwrap();
    assert_eq!(device.memory().live, before + plan.bytes);
    // Allocations made now must not overlap the graph's memory.
    let others: Vec<Tensor> =
        (1..40).map(|i| Tensor::full(&device, [i * 100], f32::NAN, DType::F32).unwrap()).collect();
    for _ in 0..2 {
        out.iter().for_each(|t| device.fill(t.storage(), &[0xFF]).unwrap());
        graph.replay().unwrap();
        assert!(bits(&out) == expected);
    }
    assert!(others.iter().all(|t| t.to_vec().unwrap().iter().all(|x| x.is_nan())));
    drop((graph, out));
    assert_eq!(device.memory().live, before + others.iter().map(pooled).sum::<usize>());
}

#[test]
fn a_dry_run_notes_what_the_step_does_and_takes_no_memory() {
    let device = optimized().unwrap();
    let pass = Pass::new(&device);
    let expected = bits(&pass.run().unwrap());
    let (trace, out) = Trace::of(&device, || pass.run()).unwrap();
    drop(out);
    device.reset_memory_peak();
    let before = (device.memory().live, device.memory().peak, device.launches());
    let dry = Trace::dry_run(&device, || pass.run()).unwrap();
    assert_eq!((device.memory().live, device.memory().peak, device.launches()), before);
    assert_eq!(dry.names, trace.names);
    // Results do not outlive a dry run, because they do not have memory.
    for (a, b) in dry.ranges.iter().zip(&trace.ranges) {
        assert_eq!(
            (a.bytes, a.op, a.layer, a.made_by, a.survives),
            (b.bytes, b.op, b.layer, b.made_by, b.survives)
        );
        assert_eq!(a.commands, b.commands);
    }
    let plan = BufferPlan::new(&device, &dry).unwrap();
    let (graph, out) = Graph::planned(&device, &plan, || pass.run()).unwrap();
    graph.replay().unwrap();
    assert!(bits(&out) == expected);
    let mut kept = None;
    let keep = || {
        kept = Some(pass.gpt.params().list()[0].detach().exp()?);
        Ok(())
    };
    let e = Trace::dry_run(&device, keep).err().unwrap();
    assert!(e.message().contains("keeps buffers"), "{e}");
}

/// Returns the bytes of the pool that a tensor uses.
fn pooled(tensor: &Tensor) -> usize {
    let device = tensor.device();
    let before = device.memory().live;
    let like = tensor.empty_like().unwrap();
    let bytes = device.memory().live - before;
    drop(like);
    bytes
}

#[test]
fn what_has_no_plan_gives_its_memory_back_in_the_end() {
    let device = optimized().unwrap();
    let pass = Pass::new(&device);
    let expected = bits(&pass.run().unwrap());
    let before = device.memory().live;
    let (graph, out) = Graph::capture(&device, || pass.run()).unwrap();
    assert!(graph.held_bytes() > 0 && device.memory().live >= before + graph.held_bytes());
    let others: Vec<Tensor> =
        (1..40).map(|i| Tensor::full(&device, [i * 100], f32::NAN, DType::F32).unwrap()).collect();
    graph.replay().unwrap();
    assert!(bits(&out) == expected);
    assert!(others.iter().all(|t| t.to_vec().unwrap().iter().all(|x| x.is_nan())));
    drop((graph, out, others));
    assert_eq!(device.memory().live, before);
}

#[test]
fn reading_on_the_host_is_refused_and_leaves_everything_as_it_was() {
    let device = optimized().unwrap();
    let pass = Pass::new(&device);
    let expected = bits(&pass.run().unwrap());
    let before = device.memory().live;
    let e = Graph::capture(&device, || pass.run()?[0].item()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.message().contains("read it after the replay"), "{e}");
    assert_eq!(device.memory().live, before);
    assert!(bits(&pass.run().unwrap()) == expected);
}

#[test]
fn a_step_that_differs_from_its_plan_is_refused() {
    let device = optimized().unwrap();
    let x = Tensor::full(&device, [1000], 0.5, DType::F32).unwrap();
    x.exp().unwrap();
    let (trace, _) = Trace::of(&device, || x.exp()?.exp()).unwrap();
    let plan = BufferPlan::new(&device, &trace).unwrap();
    let e = Graph::planned(&device, &plan, || x.exp()?.exp()?.exp()).err().unwrap();
    assert!(e.message().contains("differs from that of the planned step"), "{e}");
    let kept = || -> Result<[Tensor; 2]> {
        let y = x.exp()?;
        Ok([y.exp()?, y])
    };
    let e = Graph::planned(&device, &plan, kept).err();
    // Two results need the memory of one. This is rejected, unless the plan had separated both anyway.
    assert!(e.is_none_or(|e| e.message().contains("in use for longer")));
}

#[test]
fn dropout_follows_its_counter() {
    let device = optimized().unwrap();
    let x = Tensor::ones(&device, [2, 2, 9, 8], DType::F32).unwrap();
    let at = counter(&device, 0).unwrap();
    let mask = |offset, counter: Option<&Tensor>| DropMask {
        probability: 0.4,
        seed: 3,
        offset,
        counter: counter.cloned(),
    };
    let run = |mask: DropMask| -> Result<[Tensor; 2]> {
        let options = AttentionOptions { dropout: Some(mask.clone()), ..AttentionOptions::causal() };
        Ok([masked(&x, mask)?, attention(&x, &x, &x, options)?])
    };
    run(mask(5, Some(&at))).unwrap();
    let (graph, out) = Graph::capture(&device, || run(mask(5, Some(&at)))).unwrap();
    for draws in [0, 1 << 44, u64::MAX - 2] {
        set_counter(&at, draws).unwrap();
        graph.replay().unwrap();
        let expected = run(mask(draws.wrapping_add(5), None)).unwrap();
        assert!(bits(&out) == bits(&expected), "after {draws} draws");
    }
}

#[test]
fn every_call_of_capture_and_replay_may_fail() {
    let settings = Settings::from_env();
    let id = optimized().unwrap().capabilities().id.clone();
    let faults = Arc::new(Faults::default());
    let inner = open_driver(&id, &settings).unwrap();
    let device = Device::from_driver(Box::new(FaultDriver::new(inner, Arc::clone(&faults))), settings);
    let pass = Pass::new(&device);
    let expected = bits(&pass.run().unwrap());
    let (trace, out) = Trace::of(&device, || pass.run()).unwrap();
    drop(out);
    let plan = BufferPlan::new(&device, &trace).unwrap();
    let (alive, live) = (device.memory().buffers, device.memory().live);
    faults.arm(0);
    let (graph, out) = Graph::planned(&device, &plan, || pass.run()).unwrap();
    let calls = faults.calls();
    assert!(calls > 50, "capturing makes {calls} calls");
    faults.arm(0);
    graph.replay().unwrap();
    let replayed = faults.calls();
    for n in 1..=replayed {
        faults.arm(n);
        let Err(e) = graph.replay() else { panic!("call {n} of {replayed} failed without an error") };
        assert!(e.message().contains("injected failure"), "{e}");
    }
    faults.arm(0);
    graph.replay().unwrap();
    assert!(bits(&out) == expected);
    drop((graph, out));
    for n in 1..=calls {
        faults.arm(n);
        faults.lasting(2);
        let captured = Graph::planned(&device, &plan, || pass.run());
        let Err(e) = captured else { panic!("call {n} of {calls} failed without an error") };
        assert!(e.message().contains("injected failure"), "call {n}: {e}");
        faults.arm(0);
        assert_eq!((device.memory().buffers, device.memory().live), (alive, live), "call {n} leaks: {e}");
    }
    assert!(bits(&pass.run().unwrap()) == expected);
}

/// Callbacks of a replay run before the step first uses their inputs, and after the last write of their outputs.
#[test]
fn a_replay_calls_before_uses_and_behind_parts() {
    let device = optimized().unwrap();
    let vector = |x: f32| Tensor::full(&device, [1000], x, DType::F32).unwrap();
    let (a, b, unused) = (vector(1.0), vector(2.0), vector(3.0));
    let arena = vector(4.0);
    let [left, right] = [0, 512].map(|at| arena.window(at, [400]).unwrap());
    let (first, second) = (vector(0.0), vector(0.0));
    let step = || {
        first.assign(&a.add_scalar(1.0)?)?;
        let sum = b.add(&first)?.slice(0, 0..400)?.add(&right)?;
        sum.add(&left)?.sum(&[], false)
    };
    no_grad(step).unwrap();
    // One kernel per operation, so that each use is a separate command.
    let (graph, sum) = no_grad(|| unfused(|| Graph::capture(&device, step))).unwrap();
    let place = |x: &Tensor| graph.first_use(x);
    assert_eq!(place(&unused), None);
    assert_eq!(place(&arena), place(&right));
    let uses = [&a, &b, &right, &left].map(|x| place(x).unwrap());
    assert!(uses.is_sorted() && uses[0] < uses[1] && uses[2] < uses[3], "{uses:?}");
    // Values written just before a command uses them arrive in time: 2 + 1, + 5, + 7, + 11.
    let calls = std::cell::RefCell::new(Vec::new());
    let set = [(&a, 2.0), (&b, 5.0), (&right, 7.0), (&left, 11.0)];
    let mut before = |i: usize| {
        calls.borrow_mut().push(format!("before {i}"));
        set[i].0.set_f32(&vec![set[i].1; set[i].0.count()])
    };
    let mut done = |i: usize| {
        calls.borrow_mut().push(format!("done {i}"));
        Ok(())
    };
    let parts = [&first, &second];
    let between = &mut Between { uses: &uses, before: &mut before, parts: &parts, done: &mut done };
    graph.replay_between(between).unwrap();
    assert_eq!(sum.item().unwrap(), 400.0 * 26.0);
    assert_eq!(*calls.borrow(), ["before 0", "done 0", "done 1", "before 1", "before 2", "before 3"]);
    // Callbacks also run after the last command, and an error ends the replay.
    let mut failed = |i: usize| if i == 1 { Err(Error::internal("not there")) } else { Ok(()) };
    let between =
        &mut Between { uses: &[0, usize::MAX], before: &mut failed, parts: &[], done: &mut |_| Ok(()) };
    assert!(graph.replay_between(between).is_err());
}
