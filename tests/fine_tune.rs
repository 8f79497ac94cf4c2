//! Fine-tuning on conversations: the losses of PyTorch, the same update for every division of a step, and resumption within an epoch.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::ranks::{alone, lines, on, opened, weights};
use netcl::model::checkpoint::read_tensors;
use netcl::tensor::suite::test_device;
use netcl::train::config::{GraphMode, OptimizerName, Overlay, TrainConfig, TrainOn};
use netcl::train::schedule::Schedule;
use netcl::train::{Observer, Outcome, Silent, Trainer};
use netcl_test_data::{needs_data, test_data};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/sft/run.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(golden: &Value, key: &str) -> Vec<f64> {
    golden[key].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

/// Writes the model with the golden's chat template, and its conversations; returns the settings of the golden's run.
fn run_of(golden: &Value, dir: &Path) -> TrainConfig {
    let model = dir.join("model");
    if !model.exists() {
        fs::create_dir(&model).unwrap();
        for file in fs::read_dir(test_data!().join("models/stories260K/hf")).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), model.join(file.file_name())).unwrap();
        }
        fs::write(model.join("chat_template.jinja"), golden["template"].as_str().unwrap()).unwrap();
    }
    let records = golden["records"].as_array().unwrap().iter();
    let records: String =
        records.map(|messages| format!("{}\n", serde_json::json!({ "messages": messages }))).collect();
    fs::write(dir.join("chat.jsonl"), records).unwrap();
    let flags = Overlay {
        init: Some(model.display().to_string()),
        data: Some(vec![dir.join("chat.jsonl").display().to_string()]),
        lr: golden["lr"].as_f64(),
        min_lr: golden["lr"].as_f64(),
        warmup: Some(0),
        schedule: Some(Schedule::Constant),
        clip: golden["clip"].as_f64(),
        eps: golden["eps"].as_f64(),
        batch: Some(golden["batch"].as_u64().unwrap() as usize),
        grad_accum: Some(golden["grad_accum"].as_u64().unwrap() as u32),
        steps: golden["steps"].as_u64(),
        val_split: Some(0.0),
        eval_every: Some(0),
        sample_every: Some(0),
        checkpoint_every: Some(0),
        ..Overlay::default()
    };
    TrainConfig::resolve(None, &flags).unwrap()
}

fn series(run: &Path, key: &str) -> Vec<f64> {
    lines(run).iter().map(|line| line[key].as_f64().unwrap()).collect()
}

fn near(found: &[f64], expected: &[f64], bound: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= bound * b.abs(), "{what}, step {}: {a}, expected {b}", step + 1);
    }
}

/// tools/golden_sft.py has the loop of PyTorch. The loss of the answers falls to a tenth.
#[needs_data("models/stories260K/hf")]
#[test]
fn losses_and_norms_are_those_of_pytorch() {
    let (golden, dir) = (golden(), tempfile::tempdir().unwrap());
    let config = run_of(&golden, dir.path());
    let out = dir.path().join("run");
    alone(&config, &out);
    let (loss, norm) = (series(&out, "loss"), series(&out, "grad_norm"));
    near(&loss, &numbers(&golden, "loss"), 1e-4, "loss");
    near(&norm, &numbers(&golden, "norm"), 1e-3, "norm");
    assert!(loss[9] < 0.2 * loss[0], "{loss:?}");
    let trained = series(&out, "trained_tokens");
    assert!(trained.iter().all(|n| *n == golden["trained_tokens"].as_f64().unwrap()), "{trained:?}");
    let config = TrainConfig::of_run(&out, &Overlay::default()).unwrap();
    assert_eq!(config.context, 64, "the longest record has {}", golden["longest"]);
    let last = out.join("checkpoints/last");
    assert_eq!(
        fs::read_to_string(last.join("chat_template.jinja")).unwrap(),
        golden["template"].as_str().unwrap()
    );
}

/// Rows of a step have unequal numbers of answers' tokens. However they are divided into micro-batches and between ranks, each token counts the same.
#[needs_data("models/stories260K/hf")]
#[test]
fn a_step_is_the_same_however_it_is_divided() {
    let (golden, dir) = (golden(), tempfile::tempdir().unwrap());
    // Adam divides a gradient by its size, so rounding errors of gradients near 0 would show.
    let (optimizer, lr) = (OptimizerName::parse("sgd").unwrap(), 0.1);
    let config = TrainConfig { steps: 4, seed: 3, optimizer, lr, min_lr: lr, ..run_of(&golden, dir.path()) };
    let run = |name: &str,
               (batch, grad_accum): (usize, u32),
               graph: GraphMode,
               (ranks, pipeline): (usize, usize)| {
        let config = TrainConfig { batch, grad_accum, graph, pipeline, ..config.clone() };
        let out = dir.path().join(name);
        match ranks {
            1 => alone(&config, &out),
            _ => on(ranks, |rank| {
                let device = test_device().unwrap();
                opened(rank, &device, &config, (&out, false)).unwrap().run(&mut Silent).unwrap();
            })
            .into_iter()
            .collect(),
        }
        (series(&out, "loss"), series(&out, "grad_norm"), weights(&out))
    };
    let whole = run("8x1", (8, 1), GraphMode::Off, (1, 1));
    for (name, division, graph, ranks) in [
        ("1x8", (1, 8), GraphMode::Off, (1, 1)),
        ("2x4", (2, 4), GraphMode::Auto, (1, 1)),
        ("8x1 captured", (8, 1), GraphMode::Auto, (1, 1)),
        ("8x1 on 2", (8, 1), GraphMode::Auto, (2, 1)),
        ("4x2 on 3", (4, 2), GraphMode::Auto, (3, 1)),
        ("4x2 in 2 stages", (4, 2), GraphMode::Auto, (2, 2)),
    ] {
        let found = run(name, division, graph, ranks);
        near(&found.0, &whole.0, 1e-6, &format!("{name}: loss"));
        near(&found.1, &whole.1, 1e-5, &format!("{name}: norm"));
        let worst = found.2.iter().zip(&whole.2).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-6, "{name}: weights differ by {worst:.1e}");
    }
}

/// Stops after a number of steps.
struct StopAfter(u64);

impl Observer for StopAfter {
    fn should_stop(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

/// 12 records in steps of 5 rows: each epoch ends within a step, and the last step of three epochs has one row.
#[needs_data("models/stories260K/hf")]
#[test]
fn a_run_resumes_within_an_epoch_with_the_same_bits() {
    let (golden, dir) = (golden(), tempfile::tempdir().unwrap());
    let device = test_device().unwrap();
    let config = TrainConfig { batch: 5, grad_accum: 1, epochs: Some(3), ..run_of(&golden, dir.path()) };
    let whole = dir.path().join("whole");
    let mut trainer = Trainer::create(&device, config.clone(), &whole).unwrap();
    assert_eq!(trainer.config().steps, 8, "36 rows in steps of 5");
    trainer.run(&mut Silent).unwrap();
    let bits = |run: &Path| {
        let last = run.join("checkpoints/last");
        let mut tensors = read_tensors(&last.join("model.safetensors")).unwrap();
        tensors.extend(read_tensors(&last.join("optimizer.safetensors")).unwrap());
        tensors.into_iter().map(|t| (t.name, t.bytes)).collect::<Vec<_>>()
    };
    for stop in [1, 3, 7] {
        let out = dir.path().join(format!("stopped-{stop}"));
        let mut trainer = Trainer::create(&device, config.clone(), &out).unwrap();
        assert_eq!(trainer.run(&mut StopAfter(stop)).unwrap(), Outcome::Stopped);
        drop(trainer);
        let again = TrainConfig::of_run(&out, &Overlay::default()).unwrap();
        Trainer::resume(&device, again.clone(), &out).unwrap().run(&mut Silent).unwrap();
        assert!(bits(&out) == bits(&whole), "stopped after {stop}");
        assert_eq!(series(&out, "loss"), series(&whole, "loss"));
    }
    // The place in the data follows from the step, so a step keeps its number of rows.
    let out = dir.path().join("other");
    let mut trainer = Trainer::create(&device, config, &out).unwrap();
    trainer.run(&mut StopAfter(2)).unwrap();
    drop(trainer);
    let other = TrainConfig { batch: 4, ..TrainConfig::of_run(&out, &Overlay::default()).unwrap() };
    let message = Trainer::resume(&device, other, &out).map(drop).unwrap_err().to_string();
    assert!(message.contains("--batch 4 times --grad-accum 1") && message.contains("5 before"), "{message}");
    // More epochs are more steps.
    let flags = Overlay { epochs: Some(4), ..Overlay::default() };
    let more = TrainConfig::of_run(&out, &flags).unwrap();
    assert_eq!(Trainer::resume(&device, more, &out).unwrap().config().steps, 10);
}

/// Validation weighs by tokens, so it does not depend on the batches; without steps and epochs a run has one epoch.
#[needs_data("models/stories260K/hf")]
#[test]
fn a_run_without_steps_is_one_epoch_and_evaluates_the_answers() {
    let (golden, dir) = (golden(), tempfile::tempdir().unwrap());
    let base = run_of(&golden, dir.path());
    let run = |name: &str, edit: &dyn Fn(&mut TrainConfig)| {
        let mut config =
            TrainConfig { val_split: 0.5, eval_every: 1, eval_batches: 9, grad_accum: 1, ..base.clone() };
        config.unset.steps = true;
        edit(&mut config);
        let out = dir.path().join(name);
        alone(&config, &out);
        (series(&out, "val_loss"), lines(&out).len())
    };
    let (whole, steps) = run("3", &|c| c.batch = 3);
    assert_eq!(steps, 2, "six records are left to train on");
    let (other, _) = run("2", &|c| (c.batch, c.grad_accum, c.eval_batches) = (1, 3, 99));
    near(&other, &whole, 1e-6, "validation loss");
    let (all, _) = run("all", &|c| (c.batch, c.train_on) = (3, TrainOn::All));
    assert!((all[0] - whole[0]).abs() > 1e-3 * whole[0], "questions count too: {} and {}", all[0], whole[0]);
    // Text is read in random windows.
    let text = dir.path().join("text.txt");
    fs::write(&text, "Once upon a time. ".repeat(200)).unwrap();
    let text = TrainConfig { data: vec![text.display().to_string()], epochs: Some(2), context: 32, ..base };
    let message =
        Trainer::create(&test_device().unwrap(), text, &dir.path().join("text")).map(drop).unwrap_err();
    assert!(
        message.message().contains("--epochs 2: text and token shards are read in random windows"),
        "{message}"
    );
}
