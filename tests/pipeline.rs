//! Pipeline training: a run whose layers are divided between ranks matches the run of one device, except for the order of sums.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests

use netcl::dist::Group;
use netcl::model::checkpoint::read_tensors;
use netcl::model::layers::Recompute;
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl::train::config::{GraphMode, TrainConfig};
use netcl::train::schedule::Schedule;
use netcl::train::{Shares, Silent, Trainer};
use std::path::Path;

use crate::ranks;
use ranks::{alone, lines, on, tiny};

fn config(dir: &Path, steps: u64) -> TrainConfig {
    TrainConfig { layers: 3, batch: 3, grad_accum: 4, eval_every: 0, ..tiny(dir, steps) }
}

/// Opens this rank of a run in `out`, on a separate device.
fn opened(rank: &Group, config: &TrainConfig, out: &Path, resume: bool) -> Result<Trainer> {
    ranks::opened(rank, &quickly_built().unwrap(), config, (out, resume))
}

/// Trains on `n` ranks in pipelines of `stages`.
fn run_ranks((n, stages): (usize, usize), config: &TrainConfig, out: &Path, resume: bool) {
    let config = TrainConfig { pipeline: stages, ..config.clone() };
    for done in on(n, |rank| {
        let mut trainer = opened(rank, &config, out, resume)?;
        trainer.run(&mut Silent).map(|_| trainer.step())
    }) {
        assert_eq!(done.unwrap(), config.steps);
    }
}

/// Returns the losses of the steps, the norms of the gradients, then the validation losses.
fn losses(run: &Path) -> Vec<f64> {
    let lines = lines(run);
    let of = |name: &'static str| lines.iter().filter_map(move |line| line[name].as_f64());
    of("loss").chain(of("grad_norm")).chain(of("val_loss")).collect()
}

/// Returns every tensor of the last checkpoint: the model's, then the optimizer's.
fn state(run: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let tensors = read_tensors(&run.join("checkpoints/last").join(file)).unwrap();
        let mut named: Vec<_> = tensors.into_iter().map(|t| (t.name, t.bytes)).collect();
        named.sort();
        all.extend(named);
    }
    all
}

fn close(found: &Path, expected: &Path, tolerance: [f64; 2]) {
    let (found_losses, expected_losses) = (losses(found), losses(expected));
    assert_eq!(found_losses.len(), expected_losses.len());
    for (i, (a, b)) in found_losses.iter().zip(&expected_losses).enumerate() {
        assert!((a - b).abs() <= tolerance[0] * b.abs(), "number {i}: {a}, expected {b}");
    }
    let (found, expected) = (state(found), state(expected));
    let names = |all: &[(String, Vec<u8>)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for ((name, a), (_, b)) in found.iter().zip(&expected) {
        assert_eq!(a.len(), b.len(), "{name}");
        if !name.contains("exp_avg") && a.len() >= 8 && tolerance[1] > 0.0 {
            let floats = |bytes: &[u8]| -> Vec<f32> {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            };
            let near = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) <= tolerance[1];
            assert!(floats(a).iter().zip(&floats(b)).all(near), "{name} differs, or does not have numbers");
        }
    }
}

const F32: [f64; 2] = [1e-5, 1e-4];

/// Two and three stages, more and fewer micro-batches than stages, replicas with different numbers of rows, a tied and an untied head, and
/// dropout.
#[test]
fn runs_of_several_stages_are_that_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let plain = TrainConfig { eval_every: 10, sample_every: 25, ..config(dir.path(), 50) };
    let untied = TrainConfig { tied: Some(false), dropout: 0.2, grad_accum: 2, ..config(dir.path(), 12) };
    let single = TrainConfig { family: "llama".into(), grad_accum: 1, ..config(dir.path(), 6) };
    type Case<'a> = (&'a str, TrainConfig, &'a [(usize, usize)]);
    let cases: [Case<'_>; 3] = [
        ("plain", plain, &[(2, 2), (3, 3), (4, 2)]),
        ("untied", untied, &[(3, 3), (4, 2)]),
        ("single", single, &[(2, 2)]),
    ];
    for (name, config, shapes) in cases {
        let one = dir.path().join(name);
        alone(&config, &one);
        for (ranks, stages) in shapes {
            let out = dir.path().join(format!("{name}-{ranks}-{stages}"));
            run_ranks((*ranks, *stages), &config, &out, false);
            close(&out, &one, F32);
            let sampled = |run: &Path| lines(run).iter().filter(|line| line["sample"].is_string()).count();
            assert_eq!(sampled(&out), sampled(&one));
        }
    }
}

/// 16-bit storage; in f16, with a loss scale on which all stages must agree.
#[test]
fn runs_in_16_bits_have_the_same_bits_twice() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::Bf16, DType::F16] {
        let config = TrainConfig { dtype, ..config(dir.path(), 6) };
        let [one, a, b] = ["one", "a", "b"].map(|name| dir.path().join(format!("{name}-{dtype}")));
        alone(&config, &one);
        for out in [&a, &b] {
            run_ranks((2, 2), &config, out, false);
        }
        assert_eq!((losses(&a), state(&a)), (losses(&b), state(&b)));
        close(&a, &one, [2e-2, 0.0]);
    }
}

/// Replayed passes have the bits of eager ones: with dropout, recomputation, 16 bits, one micro-batch, and more micro-batches than a stage
/// holds at a time. This also holds for a run that resumes without graphs.
#[test]
fn replayed_passes_have_the_bits_of_those_that_are_called() {
    let dir = tempfile::tempdir().unwrap();
    let whole = TrainConfig { schedule: Schedule::Constant, eval_every: 3, ..config(dir.path(), 6) };
    let base = TrainConfig { dropout: 0.1, sample_every: 3, ..whole };
    let block = TrainConfig { recompute: Recompute::Block, dtype: DType::Bf16, ..base.clone() };
    let f16 = TrainConfig { dtype: DType::F16, tied: Some(false), grad_accum: 1, ..base.clone() };
    let cases = [(2, 2, base.clone()), (3, 3, base), (4, 2, block), (2, 2, f16)];
    for (i, (ranks, stages, config)) in cases.into_iter().enumerate() {
        let run = |graph, steps, out: &Path, resume: bool| {
            let config = TrainConfig { pipeline: stages, graph, steps, ..config.clone() };
            for (explained, eager) in on(ranks, |rank| {
                let mut trainer = opened(rank, &config, out, resume).unwrap();
                trainer.run(&mut Silent).unwrap();
                (trainer.explain_memory(), trainer.is_eager())
            }) {
                let captured = graph == GraphMode::On;
                assert_eq!((explained.is_some(), eager), (captured, !captured));
                assert!(explained.is_none_or(|text| text.contains("at a time, each with such buffers")));
            }
        };
        let [called, replayed, mixed] =
            ["called", "replayed", "mixed"].map(|n| dir.path().join(format!("{n}-{i}")));
        run(GraphMode::Off, 6, &called, false);
        run(GraphMode::On, 6, &replayed, false);
        run(GraphMode::On, 3, &mixed, false);
        run(GraphMode::Off, 6, &mixed, true);
        assert_eq!((losses(&called), state(&called)), (losses(&replayed), state(&replayed)), "case {i}");
        assert_eq!(state(&called), state(&mixed), "case {i}");
    }
}

/// A checkpoint equals that of a run on one device, and does not depend on stages.
#[test]
fn a_run_goes_on_with_other_stages() {
    let dir = tempfile::tempdir().unwrap();
    let whole = TrainConfig { schedule: Schedule::Constant, ..config(dir.path(), 12) };
    let half = TrainConfig { steps: 6, ..whole.clone() };
    let one = dir.path().join("one");
    alone(&whole, &one);
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    run_ranks((2, 2), &half, &first, false);
    let device = quickly_built().unwrap();
    Trainer::resume(&device, whole.clone(), &first).unwrap().run(&mut Silent).unwrap();
    close(&first, &one, F32);
    alone(&half, &second);
    run_ranks((3, 3), &TrainConfig { steps: 9, ..whole.clone() }, &second, true);
    run_ranks((4, 2), &whole, &second, true);
    close(&second, &one, F32);
}

/// A stage only holds its own layers: weights, gradients and the optimizer's state.
#[test]
fn a_stage_takes_its_part_of_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let base = TrainConfig { layers: 4, width: 128, heads: 4, batch: 1, ..config(dir.path(), 2) };
    let untied = TrainConfig { tied: Some(false), ..base };
    let device = quickly_built().unwrap();
    let mut trainer = Trainer::create(&device, untied.clone(), &dir.path().join("one")).unwrap();
    trainer.run(&mut Silent).unwrap();
    let (whole, count) = (device.memory().live as f64, trainer.model().params().count());
    let config = TrainConfig { pipeline: 2, ..untied };
    let out = dir.path().join("two");
    let stages = on(2, |rank| {
        let mut trainer = opened(rank, &config, &out, false).unwrap();
        trainer.run(&mut Silent).unwrap();
        let params = trainer.model().params();
        (params.count(), params.device().memory().live as f64, trainer.ranks()[rank.rank()].clone())
    });
    assert_eq!(stages.iter().map(|stage| stage.0).sum::<usize>(), count);
    for (i, (own, live, times)) in stages.iter().enumerate() {
        assert!((0.4..0.6).contains(&(*own as f64 / count as f64)), "{own} of {count} parameters");
        assert!((0.35..0.65).contains(&(live / whole)), "{live} bytes, {whole} for all layers");
        let stage = times.stage.as_ref().unwrap();
        assert_eq!((stage.stage, stage.layers.clone()), (i, 2 * i..2 * i + 2));
        assert!(times.line().starts_with(&format!("stage {i} of 2, layers")), "{}", times.line());
    }
}

#[test]
fn what_cannot_be_divided_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let whole = config(dir.path(), 4);
    let refused = |n: usize, config: &TrainConfig| -> Vec<String> {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("run");
        let all = on(n, |rank| opened(rank, config, &path, false).map(drop));
        all.into_iter().map(|r| r.unwrap_err().to_string()).collect()
    };
    let frozen =
        vec!["transformer.wte.weight".into(), "transformer.wpe.weight".into(), "transformer.h.0.*".into()];
    let cases = [
        (2, TrainConfig { pipeline: 3, ..whole.clone() }, "--pipeline 3 for 2 ranks"),
        (4, TrainConfig { pipeline: 4, ..whole.clone() }, "--pipeline 4 for --layers 3"),
        (4, TrainConfig { pipeline: 2, batch: 1, ..whole.clone() }, "--batch 1 for 2 pipelines"),
        (3, TrainConfig { pipeline: 3, freeze: frozen, ..whole.clone() }, "--freeze leaves a stage"),
        (2, TrainConfig { pipeline: 2, batch: 1 << 30, ..whole.clone() }, "of memory"),
    ];
    for (n, config, words) in cases {
        for text in refused(n, &config) {
            assert!(text.contains(words), "{text}");
        }
    }
    let config = TrainConfig { pipeline: 2, ..whole };
    let device = quickly_built().unwrap();
    let text = Trainer::create(&device, config.clone(), &dir.path().join("one")).err().unwrap().to_string();
    assert!(text.contains("--pipeline 2 on one device"), "{text}");
    for text in on(2, |rank| {
        let mut trainer = opened(rank, &config, &dir.path().join("two"), false).unwrap();
        trainer.shares(&Shares::BySpeed).unwrap_err().to_string()
    }) {
        assert!(text.contains("--shares speed with --pipeline"), "{text}");
    }
}

/// All ranks name the rank that has the loss with its stage, and a rank that ends.
#[test]
fn a_stage_that_fails_is_named_with_its_layers() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { pipeline: 2, ..config(dir.path(), 6) };
    let broken = |anomaly: bool| {
        on(2, |rank| {
            let mut trainer =
                opened(rank, &config, &dir.path().join(format!("run-{anomaly}")), false).unwrap();
            trainer.detect_anomaly(anomaly);
            if rank.rank() == 1 {
                let weight = &trainer.model().params().list()[0];
                weight.write_bytes(0, &f32::NAN.to_le_bytes().repeat(weight.count())).unwrap();
            }
            let error = trainer.run(&mut Silent).unwrap_err();
            (error.to_string(), trainer.failed_together())
        })
    };
    for (error, together) in broken(false) {
        assert!(together, "{error}");
        assert!(
            error.contains("the loss of step 1 on rank 1 (") && error.contains("stage 1 of 2, layer"),
            "{error}"
        );
    }
    let found = broken(true);
    assert!(found[1].0.starts_with("rank 1 (") && found[1].0.contains("NaN"), "{found:?}");
    assert!(found[0].0.contains("stage 1 of 2") && found[0].0.contains("has ended"), "{found:?}");
}
