//! Compares the memory estimate with the memory in use during training.

use super::*;
use crate::config::GraphMode;
use crate::train::{Silent, Trainer};
use netcl_tensor::DType;
use netcl_tensor::suite::unchecked_device;

/// Returns the estimate of a run and the peak of the memory in use during its steps, in bytes.
fn measured(change: impl FnOnce(&mut TrainConfig)) -> (MemoryPlan, u64) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("text.txt");
    let text: String =
        (0..40_000u32).map(|i| char::from(b'!' + (i.wrapping_mul(2_654_435_761) >> 26) as u8)).collect();
    std::fs::write(&data, text).unwrap();
    let mut config = TrainConfig {
        data: vec![data.display().to_string()],
        layers: 3,
        heads: 4,
        width: 128,
        context: 128,
        batch: 8,
        steps: 3,
        warmup: 1,
        eval_every: 0,
        sample_every: 0,
        checkpoint_every: 0,
        graph: GraphMode::Off,
        ..TrainConfig::preset("char-cpu").unwrap()
    };
    change(&mut config);
    let device = unchecked_device().unwrap();
    let plan = MemoryPlan::of(&config, &config.decoder(64).unwrap(), device.capabilities());
    device.reset_memory_peak();
    let mut trainer = Trainer::create(&device, config, &dir.path().join("run")).unwrap();
    trainer.run(&mut Silent).unwrap();
    (plan, device.memory().peak as u64)
}

/// The estimate is within 15 % of the peak, and the lower bound is not above it, in every storage type. Numbers of 36 runs:
/// docs/log/graphs.md.
#[test]
fn runs_take_what_the_plan_says_in_f32_and_in_16_bits() {
    let mut cases = Vec::new();
    for family in ["gpt2", "llama"] {
        for dtype in [DType::F32, DType::Bf16] {
            cases.extend([Recompute::None, Recompute::Block].map(|r| (family, dtype, r, 0.0, 1)));
        }
    }
    cases.push(("gpt2", DType::Bf16, Recompute::Norm, 0.1, 2));
    cases.push(("llama", DType::F32, Recompute::Offload, 0.0, 1));
    for (family, dtype, recompute, dropout, accum) in cases {
        for graph in [GraphMode::Off, GraphMode::On] {
            if recompute == Recompute::Offload && graph == GraphMode::On {
                continue;
            }
            let (plan, peak) = measured(|c| {
                c.family = family.into();
                (c.dtype, c.recompute, c.dropout, c.grad_accum) = (dtype, recompute, dropout, accum);
                c.graph = graph;
            });
            let case = format!("{family} {dtype:?} {recompute:?} dropout {dropout} x{accum} graph {graph:?}");
            let off = peak as f64 / plan.device() as f64;
            println!("{case}: {peak} bytes, {off:.2} of the plan");
            assert!(plan.least() <= peak, "{case}: {peak} bytes, at least {} were certain", plan.least());
            assert!((0.85..1.15).contains(&off), "{case}: {peak} bytes, {} were planned", plan.device());
        }
    }
}

/// A checkpoint's tensors are the weights and the optimizer's state; step and loss scale add a few bytes.
#[test]
fn the_hosts_copy_of_a_checkpoint_is_as_large_as_planned() {
    for dtype in [DType::F32, DType::Bf16] {
        let mut config = TrainConfig::preset("demo-tiny").unwrap();
        // Without biases, the file contains zeros in their place.
        (config.dtype, config.bias) = (dtype, true);
        let device = unchecked_device().unwrap();
        let shape = config.decoder(64).unwrap();
        let plan = MemoryPlan::of(&config, &shape, device.capabilities());
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("text.txt");
        std::fs::write(&data, ('!'..='`').collect::<String>().repeat(40)).unwrap();
        config.data = vec![data.display().to_string()];
        let trainer = Trainer::create(&device, config, &dir.path().join("run")).unwrap();
        let checkpoint = trainer.checkpoint().unwrap().take().unwrap();
        let tensors = checkpoint.model.iter().chain(&checkpoint.optimizer);
        let bytes: u64 = tensors.map(|t| t.bytes.len() as u64).sum();
        assert!(
            (plan.checkpoint..plan.checkpoint + 64).contains(&bytes),
            "{bytes}, planned {}",
            plan.checkpoint
        );
    }
}
