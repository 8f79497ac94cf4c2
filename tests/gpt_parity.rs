//! Compares a tiny GPT-2 with PyTorch: logits, loss, every gradient, ten losses in a row, the weights after them, and loading in
//! `transformers`. `tools/golden_gpt.py` wrote the files and describes their contents.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl::model::checkpoint::{FileDtype, TensorData, read_tensors, write_tensors};
use netcl::model::decoder::{Decoder, DecoderConfig, FileFacts, Sizes};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const LR: f64 = 1e-3;
const STEPS: usize = 10;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/gpt_parity")
}

/// Results of PyTorch.
struct Expected(Vec<TensorData>);

impl Expected {
    fn open() -> Self {
        Self(read_tensors(&folder().join("parity.safetensors")).unwrap())
    }
    fn get(&self, name: &str) -> &TensorData {
        self.0.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("parity.safetensors has no {name}"))
    }
    fn floats(&self, name: &str) -> Vec<f32> {
        let tensor = self.get(name);
        let four = |c: &[u8]| f32::from_le_bytes(c.try_into().unwrap());
        let eight = |c: &[u8]| f64::from_le_bytes(c.try_into().unwrap()) as f32;
        match tensor.dtype {
            FileDtype::F64 => tensor.bytes.chunks_exact(8).map(eight).collect(),
            _ => tensor.bytes.chunks_exact(4).map(four).collect(),
        }
    }
    fn ids(&self, device: &Device, name: &str) -> Tensor {
        let tensor = self.get(name);
        Tensor::from_bytes(device, tensor.shape.as_slice(), &tensor.bytes, DType::I32).unwrap()
    }
}

fn load(device: &Device, model: &str, dtype: DType) -> Decoder {
    let folder = folder().join(model);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config = DecoderConfig::from_json(&serde_json::from_str(&config).unwrap()).unwrap();
    let gpt = Decoder::new(device, config, dtype, 0).unwrap();
    gpt.load_tensors(&read_tensors(&folder.join("model.safetensors")).unwrap()).unwrap();
    gpt
}

/// Returns the largest difference, as a share of the largest expected value.
fn difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0.0, |m: f32, d| {
        assert!(!d.is_nan());
        m.max(d)
    });
    worst / largest
}

#[test]
fn logits_loss_and_every_gradient() {
    let (device, expected) = (quickly_built().unwrap(), Expected::open());
    let (tokens, targets) = (expected.ids(&device, "tokens"), expected.ids(&device, "targets"));
    let gpt = load(&device, "model", DType::F32);
    let logits = gpt.forward(&tokens, Mode::eval()).unwrap();
    assert_eq!(logits.dims(), expected.get("logits").shape);
    let off = difference(&logits.to_vec().unwrap(), &expected.floats("logits"));
    assert!(off <= 1e-5, "logits: off by {off:.1e}");
    let loss = gpt.loss(&tokens, &targets, Mode::eval()).unwrap();
    let off = difference(&[loss.item().unwrap()], &expected.floats("loss"));
    assert!(off <= 1e-6, "loss: off by {off:.1e}");
    loss.backward().unwrap();
    let mut worst = (0.0, String::new());
    for parameter in gpt.params().list() {
        let name = parameter.name().unwrap();
        let grad = parameter.grad().unwrap_or_else(|| panic!("{name} got no gradient"));
        let off = difference(&grad.to_vec().unwrap(), &expected.floats(&format!("grad.{name}")));
        assert!(off <= 1e-4, "gradient of {name}: off by {off:.1e}");
        if off > worst.0 {
            worst = (off, name.into());
        }
    }
    let count = expected.0.iter().filter(|t| t.name.starts_with("grad.")).count();
    assert_eq!(gpt.params().list().len(), count, "a gradient was not compared");
    println!("farthest gradient: {} by {:.1e}", worst.1, worst.0);
}

/// Returns the losses before each of ten updates, the gradients' norms, and the updated model.
fn ten_updates(device: &Device, expected: &Expected, dtype: DType) -> (Vec<f32>, Vec<f32>, Decoder) {
    let (tokens, targets) = (expected.ids(device, "tokens"), expected.ids(device, "targets"));
    let gpt = load(device, "model", dtype);
    let rule = Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 });
    let mut optimizer = Optimizer::new(rule, ParamGroup::gpt(gpt.params().list(), 0.1)).unwrap();
    optimizer.clip_grad_norm(1.0);
    optimizer.load_master(&read_tensors(&folder().join("model/model.safetensors")).unwrap()).unwrap();
    let (mut losses, mut norms) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        optimizer.zero_grad();
        let loss = gpt.loss(&tokens, &targets, Mode::eval()).unwrap();
        optimizer.backward(&loss).unwrap();
        optimizer.step(LR).unwrap();
        losses.push(loss.item().unwrap());
        norms.push(optimizer.report().unwrap().read().unwrap().norm);
    }
    (losses, norms, gpt)
}

#[test]
fn ten_losses_in_a_row() {
    let (device, expected) = (quickly_built().unwrap(), Expected::open());
    let (losses, norms, gpt) = ten_updates(&device, &expected, DType::F32);
    println!("losses {losses:?}");
    for (what, got) in [("f32.losses", losses), ("f32.norms", norms)] {
        for (i, (g, e)) in got.iter().zip(expected.floats(what)).enumerate() {
            assert!((g - e).abs() <= 1e-4, "{what}[{i}]: {g}, PyTorch has {e}");
        }
    }
    for parameter in gpt.params().list() {
        let name = parameter.name().unwrap();
        let (mut got, mut wanted) =
            (parameter.to_vec().unwrap(), expected.floats(&format!("f32.final.{name}")));
        if name.ends_with("c_attn.bias") {
            // The key's bias only has a gradient of rounding errors, which AdamW divides by their own magnitude.
            let third = got.len() / 3;
            let pairs = got.drain(third..2 * third).zip(wanted.drain(third..2 * third));
            pairs.for_each(|(g, e)| assert!((g - e).abs() <= (LR * STEPS as f64) as f32, "{name}: {g}, {e}"));
        }
        let off = difference(&got, &wanted);
        assert!(off <= 1e-4, "{name} after ten updates: off by {off:.1e}");
    }
}

#[test]
fn ten_losses_in_bf16() {
    let (device, expected) = (quickly_built().unwrap(), Expected::open());
    let (losses, norms, _) = ten_updates(&device, &expected, DType::Bf16);
    println!("losses {losses:?}\nnorms {norms:?}");
    // Eight bits of mantissa: a weight, an activation or a logit has an error of 2^-9, and a loss averages 64 of those.
    let wanted = expected.floats("bf16.losses");
    for (i, (g, e)) in losses.iter().zip(&wanted).enumerate() {
        assert!((g - e).abs() <= 2e-3, "loss {i}: {g}, PyTorch has {e} in bf16");
    }
    for (i, (g, e)) in norms.iter().zip(expected.floats("bf16.norms")).enumerate() {
        assert!((g - e).abs() <= 0.02, "norm {i}: {g}, PyTorch has {e} in bf16");
    }
}

#[test]
fn the_first_layout_of_gpt2_files_gives_the_same_model() {
    let device = quickly_built().unwrap();
    let (with, bare) = (load(&device, "model", DType::F32), load(&device, "model_bare", DType::F32));
    assert_eq!(with.tensors().unwrap(), bare.tensors().unwrap());
}

#[test]
fn transformers_opens_what_is_saved_here() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/check_hf.py");
    let python = std::env::var("NETCL_PYTHON").unwrap_or_else(|_| "python3".into());
    let device = quickly_built().unwrap();
    let config = DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 2, heads: 4, width: 32, context: 16, vocab: 29, ..Sizes::default() },
    )
    .unwrap();
    let gpt = Decoder::new(&device, config.clone(), DType::F32, 11).unwrap();
    let saved = tempfile::tempdir().unwrap();
    let text = gpt.config_json(&FileFacts::default()).unwrap().to_string();
    std::fs::write(saved.path().join("config.json"), text).unwrap();
    write_tensors(&saved.path().join("model.safetensors"), &gpt.tensors().unwrap()).unwrap();
    let ids = [3u32, 1, 28, 0, 7, 7, 12];
    let mut command = Command::new(&python);
    let out = command.arg(tool).arg(saved.path()).arg("--ids").args(ids.map(|i| i.to_string())).output();
    let out = match out {
        Ok(out) if out.status.code() != Some(3) => out,
        _ => {
            println!("skipped: {python} cannot import transformers; set NETCL_PYTHON to a Python that can");
            return;
        }
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let reply: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((reply["missing"].to_string(), reply["unexpected"].to_string()), ("[]".into(), "[]".into()));
    assert_eq!(reply["parameters"].as_u64().unwrap() as usize, config.parameters());
    assert!(reply["tied"].as_bool().unwrap());
    let rows = reply["logits"].as_array().unwrap();
    let theirs: Vec<f32> =
        rows.iter().flat_map(|r| r.as_array().unwrap()).map(|v| v.as_f64().unwrap() as f32).collect();
    let input = Tensor::from_u32(&device, [1, ids.len()], &ids).unwrap();
    let ours = gpt.forward(&input, Mode::eval()).unwrap().to_vec().unwrap();
    let off = difference(&ours, &theirs);
    assert!(off <= 1e-5, "logits: off by {off:.1e}");
}
