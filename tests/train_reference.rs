//! Two recorded training runs of Llamas, from initial weights and from a trained model. Learning rates, losses, gradient norms, first
//! gradients and final weights are compared step by step, within 1e-4 of f64. The recordings are in the folder next to the repository.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl::model::checkpoint::{TensorData, read_tensors};
use netcl::model::decoder::{Decoder, DecoderConfig};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::suite::test_device;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use netcl::train::schedule::{LearningRate, Schedule};
use netcl_test_data::{needs_data, test_data};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

const BOUND: f64 = 1e-4;

/// A recorded training run.
struct Record {
    dir: PathBuf,
    run: Value,
    tokens: Vec<u32>,
}

impl Record {
    fn open(name: &str) -> Self {
        let dir = test_data!().join("refs/train").join(name);
        let run = serde_json::from_str(&std::fs::read_to_string(dir.join("run.json")).unwrap()).unwrap();
        let bytes = std::fs::read(dir.join("tokens.u16")).unwrap();
        let tokens = bytes.as_chunks::<2>().0.iter().map(|id| u16::from_le_bytes(*id).into()).collect();
        Self { dir, run, tokens }
    }

    fn numbers(&self, key: &str) -> Vec<f64> {
        self.run[key].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
    }
    fn whole(&self, key: &str) -> usize {
        self.run[key].as_u64().unwrap() as usize
    }
    fn tensors(&self, name: &str) -> Vec<TensorData> {
        read_tensors(&self.dir.join(name)).unwrap()
    }

    /// Returns the batch of a step: adjacent rows of the tokens, and the tokens after them.
    fn batch(&self, device: &Device, step: usize) -> [Tensor; 2] {
        let shape = [self.whole("B"), self.whole("T")];
        let (size, at) = (shape[0] * shape[1], step * shape[0] * shape[1]);
        [at, at + 1].map(|at| Tensor::from_u32(device, shape, &self.tokens[at..at + size]).unwrap())
    }

    /// Returns the learning rate of each step as the library computes it. The recorded warm-up ends at step `warmup` - 1, and its cosine
    /// begins at step `warmup`. netcl has one formula, which contains both.
    fn rates(&self) -> Vec<f64> {
        let (recorded, warmup) = (self.numbers("lr"), self.run["warmup"].as_u64().unwrap());
        let highest = recorded.iter().copied().fold(0.0, f64::max);
        let rate = |schedule, warmup, min_lr| LearningRate {
            schedule,
            lr: highest,
            min_lr,
            warmup,
            decay: recorded.len() as u64,
        };
        let up = rate(Schedule::Constant, warmup.saturating_sub(1), highest);
        let down = match self.run["cosine_to"].as_f64() {
            Some(lowest) => rate(Schedule::Cosine, warmup, lowest),
            None => rate(Schedule::Constant, warmup, highest),
        };
        let rates: Vec<_> = (0..recorded.len() as u64)
            .map(|step| if step < warmup { up.at(step) } else { down.at(step) })
            .collect();
        for (step, (ours, theirs)) in rates.iter().zip(&recorded).enumerate() {
            assert!(
                (ours - theirs).abs() <= 1e-12 * theirs,
                "rate of step {step}: {ours}, recorded {theirs}"
            );
        }
        rates
    }
}

/// Creates AdamW as recorded: matrices have weight decay, norms do not; gradients are clipped or only measured.
fn optimizer(record: &Record, model: &Decoder) -> Optimizer {
    let adam = &record.run["adamw"];
    let number = |key: &str| adam[key].as_f64().unwrap();
    let rule = Arc::new(AdamW {
        betas: [adam["betas"][0].as_f64().unwrap(), adam["betas"][1].as_f64().unwrap()],
        eps: number("eps"),
    });
    let groups = ParamGroup::gpt(model.params().list(), number("weight_decay"));
    let mut optimizer = Optimizer::new(rule, groups).unwrap();
    optimizer.clip_grad_norm(record.run["grad_clip_global_norm"].as_f64().unwrap_or(0.0));
    optimizer
}

/// Returns the largest difference between the file's tensors and netcl's tensors with the same names, as a share of the largest recorded
/// element.
fn difference(ours: &[TensorData], recorded: &[TensorData], what: &str) -> f64 {
    assert_eq!(ours.len(), recorded.len(), "{what}");
    let mut worst = 0.0f64;
    for tensor in recorded {
        let found = ours
            .iter()
            .find(|t| t.name == tensor.name)
            .unwrap_or_else(|| panic!("{what}: no {}", tensor.name));
        let (got, expected) = (found.floats().unwrap(), tensor.floats().unwrap());
        assert_eq!(got.len(), expected.len(), "{what}: {}", tensor.name);
        let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (g, e) in got.iter().zip(&expected) {
            let off = f64::from((g - e).abs()) / f64::from(largest);
            assert!(off <= BOUND, "{what}: {} has {g}, recorded {e}: {off:.1e} of the largest", tensor.name);
            worst = worst.max(off);
        }
    }
    worst
}

/// Returns gradients under the names of the file.
fn gradients(model: &Decoder) -> Vec<TensorData> {
    let named = Decoder::new(model.params().device(), model.config().clone(), DType::F32, 0).unwrap();
    for (to, from) in named.params().list().iter().zip(model.params().list()) {
        to.set_f32(&from.grad().unwrap().to_vec().unwrap()).unwrap();
    }
    named.tensors().unwrap()
}

/// Trains as recorded, and compares.
fn follows(record: &Record, model: &Decoder) {
    let device = model.params().device();
    let (rates, mut optimizer) = (record.rates(), optimizer(record, model));
    let (losses, norms) = (record.numbers("loss_f64"), record.numbers("grad_norm_f64"));
    assert_eq!((rates.len(), losses.len(), norms.len()), (record.whole("steps"), rates.len(), rates.len()));
    let (mut worst_loss, mut worst_norm, mut first) = (0.0f64, 0.0f64, 0.0);
    for (step, rate) in rates.into_iter().enumerate() {
        let [x, y] = record.batch(device, step);
        optimizer.zero_grad();
        let loss = model.loss(&x, &y, Mode::eval()).unwrap();
        optimizer.backward(&loss).unwrap();
        if step == 0 {
            first =
                difference(&gradients(model), &record.tensors("grads_step0.safetensors"), "first gradients");
        }
        optimizer.step(rate).unwrap();
        let norm = optimizer.report().unwrap().read().unwrap().norm;
        let off = |got: f64, expected: f64| (got - expected).abs() / expected.abs();
        let (of_loss, of_norm) =
            (off(f64::from(loss.item().unwrap()), losses[step]), off(f64::from(norm), norms[step]));
        assert!(of_loss <= BOUND, "loss of step {step} is off by {of_loss:.1e}");
        assert!(of_norm <= BOUND, "gradient norm of step {step} is off by {of_norm:.1e}");
        (worst_loss, worst_norm) = (worst_loss.max(of_loss), worst_norm.max(of_norm));
    }
    let last =
        difference(&model.tensors().unwrap(), &record.tensors("final_params.safetensors"), "final weights");
    println!(
        "{}: first gradients {first:.1e}, losses {worst_loss:.1e}, gradient norms {worst_norm:.1e}, final weights {last:.1e}",
        record.run["name"]
    );
}

#[needs_data("refs/train/charllama-scratch")]
#[test]
fn a_llama_from_scratch_learns_as_recorded() {
    let record = Record::open("charllama-scratch");
    let json = std::fs::read_to_string(record.dir.join("config.json")).unwrap();
    let config = DecoderConfig::from_json(&serde_json::from_str(&json).unwrap()).unwrap();
    let model = Decoder::new(&test_device().unwrap(), config, DType::F32, 0).unwrap();
    model.load_tensors(&record.tensors("init.safetensors")).unwrap();
    follows(&record, &model);
}

#[needs_data("refs/train/stories260K-finetune", "models/stories260K/hf")]
#[test]
fn a_trained_llama_learns_on_as_recorded() {
    let record = Record::open("stories260K-finetune");
    let dir = record.dir.join("../../../models/stories260K/hf");
    follows(&record, &Decoder::open(&test_device().unwrap(), &dir, Some(DType::F32)).unwrap());
}
