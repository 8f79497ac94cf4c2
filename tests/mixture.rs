//! Training of decoders with experts: graphs, recomputation, freezing, runs that start from a model, and their files. `tests/decoder.rs`
//! compares them with `transformers`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl::model::checkpoint::read_tensors;
use netcl::model::decoder::{Decoder, DecoderConfig, Freeze, ModelFolder};
use netcl::model::layers::Mode;
use netcl::model::layers::Recompute;
use netcl::model::model::Model;
use netcl::model::tokenizer::Tokenizer;
use netcl::prelude::*;
use netcl::tensor::graph::{BufferPlan, Trace};
use netcl::tensor::suite::quickly_built;
use netcl::train::config::{GraphMode, Overlay, TrainConfig};
use netcl::train::{MemoryPlan, Observer, Silent, Trainer};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoder").join(name)
}

const TEXT: &str = "the quick brown fox jumps over the lazy dog\n";

/// Configures a small Mixtral with eight experts, trained with its balance loss.
fn config(dir: &Path, graph: GraphMode, micros: u32) -> TrainConfig {
    let text = dir.join("text.txt");
    std::fs::write(&text, TEXT.repeat(40)).unwrap();
    TrainConfig {
        family: "mixtral".into(),
        layers: 2,
        heads: 2,
        width: 16,
        mlp: Some(24),
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

#[test]
fn replayed_steps_have_the_bits_of_eager_ones() {
    for (device, micros) in [
        (quickly_built().unwrap(), &[1, 3, 32][..]),
        (Device::open("sim", &Settings::default()).unwrap(), &[2]),
    ] {
        for micros in micros.iter().copied() {
            let dir = tempfile::tempdir().unwrap();
            let run = |graph: GraphMode| {
                trained(&device, config(dir.path(), graph, micros), &dir.path().join(graph.to_string()))
            };
            let (eager, replayed) = (run(GraphMode::Off), run(GraphMode::On));
            assert_eq!(String::from_utf8_lossy(&replayed[2]), String::from_utf8_lossy(&eager[2]), "{micros}");
            assert!(replayed == eager, "weights or moments differ with {micros}");
        }
    }
}

#[test]
fn recomputing_changes_no_bit() {
    let device = quickly_built().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = |recompute: Recompute, graph: GraphMode| {
        let config = TrainConfig { recompute, ..config(dir.path(), graph, 1) };
        trained(&device, config, &dir.path().join(recompute.to_string()))
    };
    let expected = run(Recompute::None, GraphMode::Off);
    for recompute in [Recompute::Gelu, Recompute::Norm, Recompute::Block] {
        assert!(run(recompute, GraphMode::On) == expected, "{recompute}");
    }
    assert!(run(Recompute::Offload, GraphMode::Auto) == expected, "offload");
}

struct StopAfter(u64);

impl Observer for StopAfter {
    fn should_stop(&mut self) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}

/// Qwen 3 with a list of dense and sparse layers. Frozen weights keep their bits, and a resumed run equals an uninterrupted one.
#[test]
fn a_run_starts_from_a_model_with_experts_and_goes_on() {
    let device = quickly_built().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden("qwen3_moe").join(file), model.join(file)).unwrap();
    }
    Tokenizer::char_from_text([TEXT]).unwrap().save(&model).unwrap();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, TEXT.repeat(40)).unwrap();
    let flags = Overlay {
        init: Some(model.display().to_string()),
        data: Some(vec![text.display().to_string()]),
        freeze: Some(vec!["model.layers.0.mlp.experts.*".into(), "*.gate.weight".into()]),
        context: Some(16),
        batch: Some(2),
        steps: Some(4),
        checkpoint_every: Some(2),
        eval_every: Some(0),
        sample_every: Some(0),
        graph: Some(GraphMode::On),
        lr: Some(1e-3),
        dtype: Some(DType::F32),
        ..Overlay::default()
    };
    let config = TrainConfig::resolve(None, &flags).unwrap();
    let whole = trained(&device, config.clone(), &dir.path().join("whole"));
    let parts = dir.path().join("parts");
    Trainer::create(&device, config.clone(), &parts).unwrap().run(&mut StopAfter(3)).unwrap();
    Trainer::resume(&device, config, &parts).unwrap().run(&mut Silent).unwrap();
    assert!(results(&parts)[..2] == whole[..2], "weights or moments differ");

    let last = dir.path().join("whole/checkpoints/last");
    let [before, after] =
        [&model, &last].map(|folder| read_tensors(&folder.join("model.safetensors")).unwrap());
    let frozen = |name: &str| name.contains("layers.0.mlp.experts.") || name.ends_with(".gate.weight");
    for tensor in &before {
        let now = after.iter().find(|t| t.name == tensor.name).unwrap();
        assert_eq!(now.bytes == tensor.bytes, frozen(&tensor.name), "{}", tensor.name);
    }
    assert_eq!(before.len(), after.len());
    let config = |folder: &Path| DecoderConfig::of_folder(folder).unwrap();
    assert_eq!(config(&last), config(&model));
}

#[test]
fn half_an_experts_matrix_is_not_frozen() {
    let device = quickly_built().unwrap();
    let folder = ModelFolder::open(&golden("mixtral")).unwrap();
    let freeze = Freeze::new(&["*.experts.1.w1.weight".into()]).unwrap();
    let Err(e) = folder.decoder(&device, None, &freeze) else { panic!("it was frozen") };
    assert!(
        e.message().contains(
            "freeze all of the 8 from model.layers.0.block_sparse_moe.experts.0.w1.weight to \
             model.layers.0.block_sparse_moe.experts.3.w3.weight, or none"
        ),
        "{e}"
    );
}

/// Experts in one tensor, under the names that `transformers` uses in memory.
#[test]
fn experts_that_lie_in_one_tensor_are_read() {
    let device = quickly_built().unwrap();
    let folder = golden("mixtral_balanced");
    let decoder = Decoder::open(&device, &folder, None).unwrap();
    let other = Decoder::new(&device, decoder.config().clone(), DType::F32, 3).unwrap();
    let mut stacked = read_tensors(&folder.join("stacked.safetensors")).unwrap();
    assert!(
        stacked.iter().any(|t| t.name == "model.layers.1.mlp.experts.gate_up_proj" && t.shape == [5, 80, 24])
    );
    other.load_tensors(&stacked).unwrap();
    assert_eq!(other.tensors().unwrap(), decoder.tensors().unwrap());
    let at = stacked.iter().position(|t| t.name.ends_with("1.mlp.experts.down_proj")).unwrap();
    stacked[at].shape = vec![5, 40, 24];
    let e = other.load_tensors(&stacked).unwrap_err();
    assert!(e.message().contains("experts.down_proj has shape [5, 40, 24], expected [5, 24, 40]"), "{e}");
}

/// The balance loss is only for training. The evaluation of text does not include it.
#[test]
fn evaluation_leaves_the_balance_loss_out() {
    let device = quickly_built().unwrap();
    let folder = golden("mixtral_balanced");
    let expected = read_tensors(&folder.join("expected.safetensors")).unwrap();
    let ids = |key: &str| {
        let t = expected.iter().find(|t| t.name == key).unwrap();
        Tensor::from_bytes(&device, t.shape.as_slice(), &t.bytes, DType::I32).unwrap()
    };
    let with = Decoder::open(&device, &folder, None).unwrap();
    let mut config = with.config().clone();
    config.mlp.moe.as_mut().unwrap().balance = false;
    let without = Decoder::new(&device, config, DType::F32, 0).unwrap();
    without.load_tensors(&with.tensors().unwrap()).unwrap();
    let loss =
        |decoder: &Decoder| decoder.loss(&ids("ids"), &ids("targets"), Mode::eval()).unwrap().item().unwrap();
    let plain = loss(&without);
    assert!(loss(&with) > plain + 0.5, "{} with it, {plain} without", loss(&with));
    assert_eq!(no_grad(|| loss(&with)).to_bits(), plain.to_bits());
}

/// The planned memory of a step's activations matches the actual use within a factor of 1.5.
#[test]
fn memory_is_planned_as_it_is_used() {
    let device = quickly_built().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for family in ["mixtral", "qwen3_moe"] {
        for recompute in [Recompute::None, Recompute::Block] {
            let base = config(dir.path(), GraphMode::On, 1);
            let config =
                TrainConfig { family: family.into(), dropout: 0.0, batch: 4, context: 64, width: 32, ..base };
            let config = TrainConfig { layers: 4, mlp: Some(96), recompute, ..config };
            let shape = config.decoder(5).unwrap();
            let planned = MemoryPlan::of(&config, &shape, device.capabilities()).activations as usize;
            let model = Decoder::new(&device, shape, DType::F32, 7).unwrap();
            let ids = Tensor::from_u32(&device, [4, 64], &[1; 256]).unwrap();
            let step = || model.loss(&ids, &ids, Mode { recompute, ..Mode::eval() })?.backward();
            let clear = || model.params().list().iter().for_each(|p| p.set_grad(None));
            step().unwrap();
            clear();
            let plan = BufferPlan::new(&device, &Trace::of(&device, step).unwrap().0).unwrap();
            clear();
            // Gradients of parameters are allocated as activations are freed.
            let gradients = model.params().count() * 4;
            let taken = plan.bytes - gradients.min(plan.bytes);
            println!(
                "{family} {recompute}: planned {planned}, taken {} with gradients of {gradients}",
                plan.bytes
            );
            assert!(
                planned as f64 >= taken as f64 / 1.5,
                "{family} {recompute}: planned {planned}, taken {taken}"
            );
        }
    }
}
