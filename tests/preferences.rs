//! Objectives that compare answers: the same step for every division, resumption, stored log probabilities, evaluation and refusals.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::ranks::{alone, lines, on, opened, weights};
use netcl::model::checkpoint::read_tensors;
use netcl::tensor::suite::test_device;
use netcl::train::config::{GraphMode, ObjectiveName, OptimizerName, Overlay, TrainConfig};
use netcl::train::{Observer, Outcome, Silent, Trainer};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn model() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/preferences/model").display().to_string()
}

/// Writes preference pairs of unequal length and returns the file.
fn pairs(dir: &Path, name: &str, count: usize) -> PathBuf {
    let pair = |i: usize| {
        let chosen = format!(" The number is {}", "one ".repeat(i % 4 + 1));
        json!({ "prompt": format!("Count {i}."), "chosen": chosen, "rejected": format!(" I {}", "no ".repeat(i % 3)) })
    };
    let path = dir.join(name);
    fs::write(&path, (0..count).map(|i| format!("{}\n", pair(i))).collect::<String>()).unwrap();
    path
}

/// Returns the settings of a short run with these flags.
fn config_of(dir: &Path, flags: &[(&str, &str)]) -> TrainConfig {
    let data = pairs(dir, "pairs.jsonl", 8);
    let mut all = Overlay {
        init: Some(model()),
        data: Some(vec![data.display().to_string()]),
        context: Some(64),
        lr: Some(1e-3),
        warmup: Some(0),
        batch: Some(4),
        steps: Some(4),
        val_split: Some(0.0),
        eval_every: Some(0),
        sample_every: Some(0),
        checkpoint_every: Some(0),
        ..Overlay::default()
    };
    for (name, word) in [("objective", "dpo")].iter().chain(flags) {
        all.set(name, &[word]).unwrap();
    }
    TrainConfig::resolve(None, &all).unwrap()
}

fn series(run: &Path, key: &str) -> Vec<f64> {
    let of = |line: &Value| match line.get(key) {
        Some(value) => value.as_f64().unwrap(),
        None => line["preference"][key].as_f64().unwrap(),
    };
    lines(run).iter().map(of).collect()
}

/// Pairs count the same in any micro-batch, captured or not, with activations recomputed or not; so do the tokens of orpo's likelihood.
#[test]
fn a_step_is_the_same_however_it_is_divided() {
    let dir = tempfile::tempdir().unwrap();
    for objective in ["dpo", "orpo"] {
        let base = config_of(dir.path(), &[("objective", objective), ("beta", "0.5")]);
        // Adam divides a gradient by its size, so rounding errors of gradients near 0 would show.
        let sgd = OptimizerName::parse("sgd").unwrap();
        let base = TrainConfig { optimizer: sgd, lr: 0.05, min_lr: 0.05, graph: GraphMode::Off, ..base };
        let run = |name: &str, edit: &dyn Fn(&mut TrainConfig)| {
            let (mut config, out) = (base.clone(), dir.path().join(format!("{objective}-{name}")));
            edit(&mut config);
            alone(&config, &out);
            let keys = ["loss", "grad_norm", "rewards/margins", "logps/chosen"];
            (keys.map(|key| series(&out, key)), weights(&out))
        };
        let whole = run("4x1", &|_| ());
        assert!(whole.0[0][0] != whole.0[0][3], "the loss changes");
        for (name, edit) in [
            ("2x2", &(|c: &mut TrainConfig| (c.batch, c.grad_accum) = (2, 2)) as &dyn Fn(&mut TrainConfig)),
            ("1x4 captured", &|c| (c.batch, c.grad_accum, c.graph) = (1, 4, GraphMode::On)),
            ("4x1 captured", &|c| c.graph = GraphMode::On),
            ("4x1 recomputed", &|c| c.recompute = netcl::model::layers::Recompute::Block),
        ] {
            let found = run(name, edit);
            for (found, expected) in found.0.iter().zip(&whole.0) {
                for (a, b) in found.iter().zip(expected) {
                    assert!(
                        (a - b).abs() <= 1e-5 * b.abs().max(0.1),
                        "{objective} {name}: {a}, expected {b}"
                    );
                }
            }
            let worst = found.1.iter().zip(&whole.1).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= 1e-6, "{objective} {name}: weights differ by {worst:.1e}");
        }
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

fn bits(run: &Path) -> Vec<(String, Vec<u8>)> {
    let last = run.join("checkpoints/last");
    let files = ["model.safetensors", "adapter_model.safetensors", "optimizer.safetensors"];
    let files = files.iter().map(|name| last.join(name)).filter(|path| path.exists());
    files.flat_map(|path| read_tensors(&path).unwrap()).map(|t| (t.name, t.bytes)).collect()
}

/// The reference of a resumed run is that of its folder; adapters can be left out to compute it again.
#[test]
fn a_run_resumes_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let device = test_device().unwrap();
    for (name, flags) in
        [("dpo", &[][..]), ("kto", &[("objective", "kto")]), ("adapters", &[("lora", "2"), ("lr", "0.01")])]
    {
        let mut config = config_of(dir.path(), flags);
        (config.batch, config.steps) = (3, 5);
        let whole = dir.path().join(format!("{name}-whole"));
        alone(&config, &whole);
        let out = dir.path().join(format!("{name}-stopped"));
        let mut trainer = Trainer::create(&device, config, &out).unwrap();
        assert_eq!(trainer.run(&mut StopAfter(2)).unwrap(), Outcome::Stopped);
        drop(trainer);
        let again = || TrainConfig::of_run(&out, &Overlay::default()).unwrap();
        let stored = out.join("reference.safetensors");
        fs::rename(&stored, dir.path().join("aside")).unwrap();
        if name == "adapters" {
            Trainer::resume(&device, again(), &out).unwrap();
            assert_eq!(fs::read(&stored).unwrap(), fs::read(dir.path().join("aside")).unwrap());
        } else {
            let message = Trainer::resume(&device, again(), &out).map(drop).unwrap_err().to_string();
            assert!(message.contains("reference.safetensors") && message.contains("missing"), "{message}");
            fs::rename(dir.path().join("aside"), &stored).unwrap();
        }
        Trainer::resume(&device, again(), &out).unwrap().run(&mut Silent).unwrap();
        assert!(!bits(&whole).is_empty() && bits(&out) == bits(&whole), "{name}");
        let numbers = |run: &Path| {
            lines(run)
                .iter()
                .map(|line| [line["loss"].clone(), line["preference"].clone()])
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(&out), numbers(&whole), "{name}");
    }
    // Log probabilities of other answers are not used.
    let out = dir.path().join("changed");
    let mut trainer = Trainer::create(&device, config_of(dir.path(), &[]), &out).unwrap();
    trainer.run(&mut StopAfter(2)).unwrap();
    drop(trainer);
    fs::copy(dir.path().join("kto-whole/reference.safetensors"), out.join("reference.safetensors")).unwrap();
    let again = TrainConfig::of_run(&out, &Overlay::default()).unwrap();
    let message = Trainer::resume(&device, again, &out).map(drop).unwrap_err().to_string();
    assert!(message.contains("other data"), "{message}");
}

/// Before the first step policy and reference are equal. Training separates the answers, also those of records that were held out.
#[test]
fn training_prefers_the_chosen_answers() {
    let dir = tempfile::tempdir().unwrap();
    let held = pairs(dir.path(), "held.jsonl", 12).display().to_string();
    let run = |objective: &str, more: &[(&str, &str)]| {
        let flags =
            [&[("objective", objective), ("steps", "12"), ("eval_data", &held), ("eval_every", "6")], more];
        let out = dir.path().join(format!("{objective}-{}", more.len()));
        let config = TrainConfig { lr: 5e-3, ..config_of(dir.path(), &flags.concat()) };
        alone(&config, &out);
        (lines(&out), out)
    };
    for (objective, more) in [
        ("dpo", &[][..]),
        ("dpo", &[("lora", "4")]),
        ("ipo", &[]),
        ("simpo", &[("beta", "2.0")]),
        ("orpo", &[]),
        ("kto", &[]),
    ] {
        let (found, out) = run(objective, more);
        let (first, last) = (&found[0], &found[11]);
        let margin = |line: &Value, part: &str| line[part]["rewards/margins"].as_f64().unwrap();
        if ["dpo", "ipo", "kto"].contains(&objective) {
            assert!(margin(first, "preference").abs() < 1e-6, "{objective}: {first}");
            assert!(out.join("reference.safetensors").exists());
        }
        assert!(margin(last, "preference") > margin(first, "preference"), "{objective}: {first} {last}");
        assert!(margin(last, "val_preference") > margin(&found[5], "val_preference"), "{objective}: {last}");
        assert!(last["val_loss"].as_f64() < found[5]["val_loss"].as_f64(), "{objective}: {last}");
        assert!(last.get("val_perplexity").is_none());
        if objective != "kto" {
            assert_eq!(last["preference"]["rewards/accuracies"], 1.0, "{objective}: {last}");
            assert_eq!(last["val_preference"]["rewards/accuracies"], 1.0, "{objective}: {last}");
        }
        assert!(fs::read_to_string(out.join("report.html")).unwrap().contains("Reward"), "{objective}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let flags = |words: &[(&str, &str)]| {
        let mut flags = Overlay {
            init: Some(model()),
            data: Some(vec![pairs(dir.path(), "pairs.jsonl", 2).display().to_string()]),
            ..Overlay::default()
        };
        words.iter().for_each(|(name, word)| flags.set(name, &[word]).unwrap());
        TrainConfig::resolve(None, &flags)
    };
    for (words, part) in [
        (&[("beta", "0.3")][..], "--beta has no effect on --objective sft"),
        (&[("objective", "dpo"), ("simpo_gamma", "1")], "--simpo-gamma has no effect on --objective dpo"),
        (&[("objective", "dpo"), ("label_smoothing", "0.1")], "use --loss-type robust"),
        (&[("objective", "dpo"), ("loss_type", "aot")], "--loss-type aot is unknown; it is one of sigmoid"),
        (&[("objective", "ipo"), ("loss_type", "hinge")], "--loss-type has no effect on --objective ipo"),
        (&[("objective", "dpo"), ("loss_type", "exo_pair")], "--label-smoothing above 0"),
        (
            &[("objective", "dpo"), ("loss_type", "robust"), ("label_smoothing", "0.5")],
            "--label-smoothing 0.5 is not below 0.5",
        ),
        (&[("objective", "kto"), ("batch", "1")], "--objective kto with --batch 1"),
        (&[("objective", "dpo"), ("dropout", "0.1")], "--objective dpo with --dropout"),
        (&[("objective", "dpo"), ("pipeline", "2")], "--objective dpo with --pipeline"),
        (&[("objective", "dpo"), ("train_on", "last")], "--objective dpo with --train-on"),
        (&[("objective", "dpo"), ("as_text", "true")], "--objective dpo with --as-text"),
    ] {
        let message = flags(words).unwrap_err().to_string();
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let lone = TrainConfig { init: None, ..flags(&[("objective", "dpo")]).unwrap() };
    assert!(lone.validate().unwrap_err().message().contains("--objective dpo without --init"));
    // TRL's rate, and ten times that for adapters.
    assert_eq!(flags(&[("objective", "dpo")]).unwrap().lr, 1e-6);
    assert_eq!(flags(&[("objective", "orpo"), ("lora", "2")]).unwrap().lr, 1e-5);
    assert_eq!(flags(&[]).unwrap().objective, ObjectiveName::Sft);

    let two = flags(&[("objective", "dpo")]).unwrap();
    let out = dir.path().join("two");
    for refused in on(2, |rank| opened(rank, &test_device().unwrap(), &two, (&out, false)).map(drop)) {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("--objective dpo on several devices"), "{message}");
    }
    let text = dir.path().join("text.txt");
    fs::write(&text, "words and more words ".repeat(100)).unwrap();
    let text = TrainConfig { data: vec![text.display().to_string()], context: 32, ..two };
    let made = Trainer::create(&test_device().unwrap(), text, &dir.path().join("text"));
    let message = made.map(drop).unwrap_err().to_string();
    assert!(message.contains("--objective dpo needs records that compare answers"), "{message}");
}
