//! Advantages, losses and gradients of TRL's GRPOTrainer (`tools/golden_grpo.py`).

use super::*;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device, Tensor};
use serde_json::Value;
use std::path::Path;

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/grpo.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap_or(f64::NAN)).collect()
}

fn near(found: f64, expected: f64, size: f64, what: &str) {
    assert!(
        (found - expected).abs() <= 1e-5 * size.max(expected.abs()),
        "{what}: {found}, TRL has {expected}"
    );
}

#[test]
fn advantages_are_those_of_trl() {
    let golden = golden();
    let cases = golden["advantages"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        let scale = match case["scale"].as_str().unwrap() {
            "group" => RewardScale::Group,
            "batch" => RewardScale::Batch,
            _ => RewardScale::None,
        };
        let group = case["group"].as_u64().unwrap() as usize;
        let found = group_advantages(&numbers(&case["rewards"]), group, scale).unwrap();
        for (found, expected) in found.iter().zip(numbers(&case["advantages"])) {
            near(*found, expected, 0.1, &format!("{scale:?} {group}"));
        }
    }
    for (count, group) in [(5, 2), (3, 1), (4, 0)] {
        let message = group_advantages(&vec![0.0; count], group, RewardScale::Group).unwrap_err().to_string();
        assert!(message.contains("whole groups of at least two answers"), "{message}");
    }
}

fn loss_of(settings: &Value, length: usize) -> GrpoLoss {
    let number = |key: &str| settings[key].as_f64().map(|n| n as f32);
    let usual = GrpoLoss::default();
    GrpoLoss {
        variant: match settings["loss_type"].as_str().unwrap() {
            "dapo" => GrpoVariant::Dapo,
            "grpo" => GrpoVariant::Grpo,
            "bnpo" => GrpoVariant::Bnpo,
            _ => GrpoVariant::DrGrpo,
        },
        epsilon: number("epsilon").unwrap_or(usual.epsilon),
        epsilon_high: number("epsilon_high"),
        delta: number("delta"),
        beta: number("beta").unwrap_or(usual.beta),
        use_bias_correction_kl: settings["use_bias_correction_kl"].as_bool().unwrap_or(true),
        max_completion_length: length,
    }
}

fn uploaded(device: &Device, golden: &Value, key: &str) -> Tensor {
    let values: Vec<f32> = numbers(&golden["rollouts"][key]).into_iter().map(|n| n as f32).collect();
    let length = golden["length"].as_u64().unwrap() as usize;
    let dims = if key == "advantages" { vec![values.len()] } else { vec![values.len() / length, length] };
    Tensor::from_f32(device, dims.as_slice(), &values, DType::F32).unwrap()
}

#[test]
fn losses_and_gradients_of_rollouts_are_those_of_trl() {
    let (device, golden) = (test_device().unwrap(), golden());
    let length = golden["length"].as_u64().unwrap() as usize;
    let [old, reference, mask, advantages] =
        ["old", "reference", "mask", "advantages"].map(|key| uploaded(&device, &golden, key));
    let step_tokens = mask.to_vec().unwrap().iter().sum();
    let cases = golden["losses"].as_array().unwrap();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let what = case["settings"].to_string();
        let policy = uploaded(&device, &golden, "policy").parameter("policy");
        let rollouts = Rollouts {
            policy: &policy,
            sampling: Some(&old),
            reference: Some(&reference),
            mask: &mask,
            advantages: &advantages,
            step_tokens,
        };
        let found = loss_of(&case["settings"], length).of(rollouts).unwrap();
        near(found.loss.item().unwrap().into(), case["loss"].as_f64().unwrap(), 1e-2, &what);
        found.loss.backward().unwrap();
        let gradient = policy.grad().unwrap().to_vec().unwrap();
        let expected = numbers(&case["gradient"]);
        let size = expected.iter().fold(0.0, |size: f64, g| size.max(g.abs()));
        for (found, expected) in gradient.iter().zip(&expected) {
            near((*found).into(), *expected, size, &format!("{what}, gradient"));
        }
        let numbers =
            [("clip_ratio/low_mean", &found.clipped[0]), ("clip_ratio/high_mean", &found.clipped[1])];
        let numbers = numbers.into_iter().chain(found.divergence.as_ref().map(|kl| ("kl", kl)));
        for (key, value) in numbers {
            near(
                value.item().unwrap().into(),
                case["metrics"][key].as_f64().unwrap(),
                1e-2,
                &format!("{what}, {key}"),
            );
        }
    }
    let policy = uploaded(&device, &golden, "policy");
    let wrong = |loss: GrpoLoss, advantages: &Tensor| {
        let rollouts = Rollouts {
            policy: &policy,
            sampling: None,
            reference: None,
            mask: &mask,
            advantages,
            step_tokens,
        };
        loss.of(rollouts).map(drop).unwrap_err().to_string()
    };
    assert!(wrong(GrpoLoss { beta: 0.1, ..GrpoLoss::default() }, &advantages).contains("reference"));
    assert!(wrong(GrpoLoss::default(), &policy).contains("advantages [6]"));
}
