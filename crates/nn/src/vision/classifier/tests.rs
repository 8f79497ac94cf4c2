//! Training on images drawn here: captured steps and others, storage types, images mixed in pairs.
#![allow(clippy::unwrap_used)] // tests

use super::super::data::{Dataset, Images};
use super::{ClassifierConfig, Outcome, Progress, train};
use crate::config::GraphMode;
use crate::run::RunFolder;
use netcl_tensor::{DType, ErrorKind};

const SIDE: usize = 8;

/// Bright upper halves, and bright left halves.
fn drawn(count: usize) -> Images {
    let bright = |i: usize, at: usize| if i.is_multiple_of(2) { at / SIDE < 4 } else { at % SIDE < 4 };
    let pixel = |i: usize, at: usize| 40 * u8::from(bright(i, at)) + ((i * 37 + at * 11) % 60) as u8;
    let pixels = (0..count).flat_map(|i| (0..SIDE * SIDE).map(move |at| pixel(i, at))).collect();
    Images { size: [1, SIDE, SIDE], pixels, labels: (0..count as u32).map(|i| i % 2).collect() }
}

/// What training came to, its steps, and the bytes of the weights.
fn trained(change: &dyn Fn(&mut ClassifierConfig)) -> (Outcome, Vec<(u64, f32)>, Vec<u8>) {
    let device = netcl_tensor::suite::test_device().unwrap();
    let mut config = ClassifierConfig::preset("mnist-cnn").unwrap();
    (config.epochs, config.batch, config.shift) = (2, 10, 1);
    change(&mut config);
    let classes = ["upper", "left"].map(String::from).to_vec();
    let images = Dataset { classes, train: drawn(64), test: drawn(20) };
    let dir = tempfile::tempdir().unwrap();
    let claim = RunFolder::claim(&dir.path().join("run")).unwrap();
    let mut steps = Vec::new();
    let mut watch = |progress: Progress<'_>| {
        if let Progress::Step { step, steps: all, loss, images_per_s, .. } = progress {
            assert!(all == 12 && images_per_s > 0.0);
            steps.push((step, loss));
        }
        true
    };
    let outcome = train(&device, &config, &images, &claim, &mut watch).unwrap();
    let weights = std::fs::read(dir.path().join("run/model.safetensors")).unwrap();
    (outcome, steps, weights)
}

#[test]
fn captured_steps_have_the_bits_of_others() {
    for (dtype, mixup) in [(DType::F32, 0.3), (DType::Bf16, 0.0), (DType::F16, 0.0)] {
        let with = |graph: GraphMode| {
            trained(&|config| (config.dtype, config.mixup, config.graph) = (dtype, mixup, graph))
        };
        let (eager, captured) = (with(GraphMode::Off), with(GraphMode::On));
        // Six whole batches an epoch, each told of once, in order, when it is done.
        assert!(eager.1.iter().map(|(step, _)| *step).eq(1..=12), "{:?}", eager.1);
        assert_eq!(eager.1, captured.1, "losses in {dtype}");
        assert!(eager.2 == captured.2, "weights in {dtype}");
    }
}

#[test]
fn storage_of_16_bits_learns_as_f32_does() {
    let loss = |dtype| {
        let (outcome, _, _) = trained(&|config| config.dtype = dtype);
        outcome.epochs.last().unwrap().loss
    };
    let whole = loss(DType::F32);
    assert!(whole < 0.6, "{whole}");
    for dtype in [DType::Bf16, DType::F16] {
        let half = loss(dtype);
        assert!((half - whole).abs() < 0.05, "{dtype}: {half}, f32 {whole}");
    }
}

#[test]
fn divergence_is_an_error_that_says_what_to_do() {
    let device = netcl_tensor::suite::test_device().unwrap();
    let mut config = ClassifierConfig::preset("mnist-cnn").unwrap();
    (config.epochs, config.batch, config.lr) = (4, 10, 1e30);
    let classes = ["upper", "left"].map(String::from).to_vec();
    let images = Dataset { classes, train: drawn(64), test: drawn(20) };
    let dir = tempfile::tempdir().unwrap();
    let claim = RunFolder::claim(&dir.path().join("run")).unwrap();
    let error = train(&device, &config, &images, &claim, &mut |_| true).unwrap_err();
    assert!(error.kind() == ErrorKind::Launch && error.message().contains("Lower --lr"), "{error}");
}
