//! Losses, numbers and gradients of TRL's trainers (`tools/golden_preferences.py`).

use super::*;
use crate::config::{Overlay, TrainConfig};
use crate::data::{Loader, Position};
use crate::evaluate::PreferenceMetrics;
use crate::train::open_inputs;
use crate::train::uploads::Uploads;
use netcl_model::checkpoint::{TensorData, read_tensors};
use netcl_model::decoder::{Decoder, Freeze, ModelFolder};
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/preferences").join(name)
}

/// Returns the settings of a case.
fn config_of(case: &Value) -> TrainConfig {
    let mut flags = Overlay {
        init: Some(golden("model").display().to_string()),
        data: Some(vec![golden(case["file"].as_str().unwrap()).display().to_string()]),
        batch: Some(case["batch"].as_u64().unwrap() as usize),
        context: Some(128),
        val_split: Some(0.0),
        ..Overlay::default()
    };
    flags.set("objective", &[case["objective"].as_str().unwrap()]).unwrap();
    for (name, value) in case["settings"].as_object().unwrap() {
        let word = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        flags.set(name, &[word.as_str()]).unwrap();
    }
    TrainConfig::resolve(None, &flags).unwrap()
}

/// Returns the settings that follow from the data, and its batches with the log probabilities of the reference.
fn batches(config: &TrainConfig, model: &Decoder) -> (TrainConfig, Loader) {
    let inputs = open_inputs(config, None, None, &mut |_| true).unwrap();
    let config = inputs.settled(config).unwrap();
    let (mut loader, _) = inputs.batches(&config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let references = References { model, is_loaded: true, folder: folder.path() };
    prepare(&references, &config, &mut loader, None).unwrap();
    (config, loader)
}

/// Compares numbers; those smaller than `size` have the error of numbers of this size.
fn near(found: f64, expected: f64, size: f64, what: &str) {
    let bound = 1e-5 * expected.abs().max(size);
    assert!((found - expected).abs() <= bound, "{what}: {found}, TRL has {expected}");
}

fn check(case: (&str, &Value), device: &Device, policy: &[TensorData], gradients: &[TensorData]) {
    let (name, expected) = case;
    let folder = ModelFolder::open(&golden("model")).unwrap();
    let model = folder.decoder(device, Some(DType::F32), &Freeze::default()).unwrap();
    let (config, loader) = batches(&config_of(expected), &model);
    model.load_state(&policy.iter().map(TensorData::view).collect::<Vec<_>>()).unwrap();

    let batch = loader.batch(Position::default()).unwrap();
    let sizes = [batch.rows, config.context, 1];
    let mut uploads = Uploads::new(device, sizes, [true, false], batch.values.len()).unwrap();
    let inputs = uploads.send(&batch, 1.0 / batch.step_targets.unwrap() as f32, false).unwrap();
    let comparison = PreferenceObjective::of(&config, device).unwrap().unwrap();
    let loss = comparison.loss(&model, &inputs, Mode::eval()).unwrap();
    loss.backward().unwrap();
    near(loss.item().unwrap().into(), expected["loss"].as_f64().unwrap(), 0.0, name);

    comparison.enqueued(0).unwrap();
    let found: PreferenceMetrics = comparison.of_step(0, &device.mark().unwrap()).unwrap();
    let of_trl = |key: &str| expected["metrics"][key].as_f64();
    let mut compared = 0;
    for (key, value) in found.named() {
        if let (Some(value), Some(expected)) = (value, of_trl(key)) {
            // Rewards are differences of sums of log probabilities.
            near(value, expected, 1.0, &format!("{name}, {key}"));
            compared += 1;
        }
    }
    assert!(compared >= 5, "{name}: {found:?}");

    let named = |piece: &str| {
        let key = format!("{name}.{piece}");
        gradients.iter().find(|tensor| tensor.name == key).unwrap().floats().unwrap()
    };
    for (shape, parameter) in model.shapes().iter().zip(model.params().list()) {
        let expected: Vec<f32> = shape.pieces.iter().flat_map(|(piece, _)| named(piece)).collect();
        let found = parameter.grad().unwrap().to_vec().unwrap();
        assert_eq!(found.len(), expected.len());
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let off = norm(&mut found.iter().zip(&expected).map(|(a, b)| f64::from(a - b)));
        let size = norm(&mut expected.iter().map(|v| f64::from(*v)));
        assert!(off <= 1e-5 * size, "{name}, {}: off by {off:e} of {size:e}", shape.name);
    }
}

#[test]
fn losses_numbers_and_gradients_are_those_of_trl() {
    let device = test_device().unwrap();
    let cases: Value = serde_json::from_str(&std::fs::read_to_string(golden("cases.json")).unwrap()).unwrap();
    let policy = read_tensors(&golden("policy.safetensors")).unwrap();
    let gradients = read_tensors(&golden("gradients.safetensors")).unwrap();
    let cases = cases.as_object().unwrap();
    assert_eq!(cases.len(), 20);
    for (name, case) in cases {
        check((name, case), &device, &policy, &gradients);
    }
}
