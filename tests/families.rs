//! Trains from a model folder of every family. Replayed steps have the bits of eager ones with any number of micro-batches. 16-bit weights
//! agree within their rounding. `transformers` computes the same logits from the files of a run. `tests/decoder.rs` compares the families'
//! logits and gradients.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl::model::checkpoint::read_tensors;
use netcl::model::decoder::{Decoder, DecoderConfig};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::model::tokenizer::Tokenizer;
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl::train::config::{GraphMode, Overlay, TrainConfig};
use netcl::train::{Silent, Trainer};
use std::path::{Path, PathBuf};
use std::process::Command;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoder")
}

const TEXT: &str = "the quick brown fox jumps over the lazy dog\n";

/// Creates a user's model folder: a family's configuration and weights, with a tokenizer.
fn model(name: &str, dir: &Path) -> PathBuf {
    let folder = dir.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(goldens().join(name).join(file), folder.join(file)).unwrap();
    }
    Tokenizer::char_from_text([TEXT]).unwrap().save(&folder).unwrap();
    std::fs::write(dir.join("text.txt"), TEXT.repeat(40)).unwrap();
    folder
}

/// Trains from that folder. Returns the last checkpoint.
fn trained(device: &Device, name: &str, dir: &Path, graph: GraphMode, micros: u32) -> PathBuf {
    let flags = Overlay {
        init: Some(model(name, dir).display().to_string()),
        data: Some(vec![dir.join("text.txt").display().to_string()]),
        context: Some(12),
        batch: Some(2),
        grad_accum: Some(micros),
        steps: Some(3),
        warmup: Some(1),
        checkpoint_every: Some(3),
        eval_every: Some(0),
        sample_every: Some(0),
        graph: Some(graph),
        lr: Some(1e-3),
        dtype: Some(DType::F32),
        ..Overlay::default()
    };
    let config = TrainConfig::resolve(None, &flags).unwrap();
    let out = dir.join(format!("{name}-{graph}-{micros}"));
    Trainer::create(device, config, &out).unwrap_or_else(|e| panic!("{name}: {e}")).run(&mut Silent).unwrap();
    out.join("checkpoints/last")
}

fn replays(name: &str) {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    for micros in [1, 3, 32] {
        let [eager, replayed] =
            [GraphMode::Off, GraphMode::On].map(|graph| trained(&device, name, dir.path(), graph, micros));
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let [eager, replayed] = [&eager, &replayed].map(|run| std::fs::read(run.join(file)).unwrap());
            assert!(eager == replayed, "{name}: {file} differs with {micros} micro-batches");
        }
    }
}

/// Returns the root mean square of the difference, relative to that of the expected values.
fn difference(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |x: f64| x * x;
    let off: f64 = got.iter().zip(expected).map(|(g, e)| square(f64::from(g - e))).sum();
    (off / expected.iter().map(|e| square(f64::from(*e))).sum::<f64>().max(1e-30)).sqrt()
}

/// Compares bf16 results, where each weight and intermediate result has an error of up to 2^-9, with `transformers` in the same type.
fn rounds(name: &str) {
    let (device, folder) = (quickly_built().unwrap(), goldens().join(name));
    let expected = read_tensors(&folder.join("expected.safetensors")).unwrap();
    let get = |key: &str| expected.iter().find(|t| t.name == key).unwrap();
    let ids = |key: &str| {
        Tensor::from_bytes(&device, get(key).shape.as_slice(), &get(key).bytes, DType::I32).unwrap()
    };
    let decoder = Decoder::open(&device, &folder, Some(DType::Bf16)).unwrap();
    let logits = decoder.forward(&ids("ids"), Mode::eval()).unwrap().to_vec().unwrap();
    let logits = rows_apart(&logits, &get("logits").floats().unwrap(), decoder.config());
    let loss = decoder.loss(&ids("ids"), &ids("targets"), Mode::eval()).unwrap();
    loss.backward().unwrap();
    let loss = f64::from((loss.item().unwrap() - get("loss").floats().unwrap()[0]).abs());
    let named = Decoder::new(&device, decoder.config().clone(), DType::F32, 0).unwrap();
    for (to, from) in named.params().list().iter().zip(decoder.params().list()) {
        to.set_f32(&from.grad().unwrap().to_vec().unwrap()).unwrap();
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for grad in named.tensors().unwrap() {
        ours.extend(grad.floats().unwrap());
        theirs.extend(get(&format!("grad.{}", grad.name)).floats().unwrap());
    }
    let grads = difference(&ours, &theirs);
    let text = std::fs::read_to_string(goldens().join("../decoder_bf16.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let theirs = |what: &str| all[name][what].as_f64().unwrap();
    // If a token's experts are nearly equal, another one may be chosen, and all later values differ.
    let experts = decoder.config().mlp.moe.is_some();
    for (what, ours, bound) in [
        ("logits", logits, 1.5 * theirs("logits")),
        ("gradients", grads, if experts { 5.0 } else { 1.5 } * theirs("gradients")),
        ("loss", loss, theirs("loss") + if experts { 2e-2 } else { 1e-2 }),
    ] {
        println!("{name} in bf16: {what} off by {ours:.1e}, {:.1e} in PyTorch", theirs(what));
        assert!(ours <= bound, "{name}: {what} off by {ours:.1e}, {:.1e} in PyTorch", theirs(what));
    }
}

/// Computes the [`difference`] of logits. For a mixture of experts, one token in eight is ignored.
fn rows_apart(got: &[f32], expected: &[f32], config: &DecoderConfig) -> f64 {
    let (got, expected) = (got.chunks(config.vocab), expected.chunks(config.vocab));
    let mut rows: Vec<(&[f32], &[f32])> = got.zip(expected).collect();
    if config.mlp.moe.is_some() {
        rows.sort_by(|a, b| difference(a.0, a.1).total_cmp(&difference(b.0, b.1)));
        rows.truncate(rows.len() - rows.len() / 8);
    }
    let [got, expected] = [rows.iter().map(|r| r.0).collect::<Vec<_>>(), rows.iter().map(|r| r.1).collect()];
    difference(&got.concat(), &expected.concat())
}

macro_rules! families {
    ($($name:ident)*) => {
        mod replayed {
            $(#[test] fn $name() { super::replays(stringify!($name)); })*
        }
        mod bf16 {
            $(#[test] fn $name() { super::rounds(stringify!($name)); })*
        }
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

include!("families/list.rs");
with_families!(families);

#[test]
fn every_folder_is_tested() {
    let folders = std::fs::read_dir(goldens()).unwrap().map(|entry| entry.unwrap().file_name());
    let untested: Vec<_> = folders.filter(|name| !TESTED.iter().any(|tested| name == tested)).collect();
    assert!(untested.is_empty(), "{untested:?}");
}

/// A folder that `transformers` wrote is trained with netcl and opened with `transformers` again.
#[test]
fn transformers_computes_the_same_from_what_a_run_leaves() {
    let (device, dir) = (quickly_built().unwrap(), tempfile::tempdir().unwrap());
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/check_hf.py");
    let python = std::env::var("NETCL_PYTHON").unwrap_or_else(|_| "python3".into());
    let probe = Command::new(&python).args(["-c", "import torch, transformers, tokenizers"]).output();
    if !probe.is_ok_and(|out| out.status.success()) {
        println!("skipped: {python} cannot import transformers; set NETCL_PYTHON to a Python that can");
        return;
    }
    let runs: Vec<PathBuf> =
        TESTED.iter().map(|name| trained(&device, name, dir.path(), GraphMode::Off, 1)).collect();
    let ids = [3u32, 1, 20, 0, 7, 7, 12];
    let out =
        Command::new(&python).arg(tool).args(&runs).arg("--ids").args(ids.map(|i| i.to_string())).output();
    let out = out.unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let replies: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(replies.len(), TESTED.len());
    for ((name, run), reply) in TESTED.iter().zip(&runs).zip(&replies) {
        assert_eq!(
            (reply["missing"].to_string(), reply["unexpected"].to_string()),
            ("[]".into(), "[]".into()),
            "{name}"
        );
        let rows = reply["logits"].as_array().unwrap();
        let theirs: Vec<f32> =
            rows.iter().flat_map(|r| r.as_array().unwrap()).map(|v| v.as_f64().unwrap() as f32).collect();
        let decoder = Decoder::open(&device, run, None).unwrap();
        let input = Tensor::from_u32(&device, [1, ids.len()], &ids).unwrap();
        let ours = decoder.forward(&input, Mode::eval()).unwrap().to_vec().unwrap();
        let off = difference(&ours, &theirs);
        println!("{name}: logits differ by {off:.1e}");
        assert!(off <= 1e-5, "{name}: logits differ by {off:.1e}");
    }
}
