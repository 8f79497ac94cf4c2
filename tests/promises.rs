//! Promises of the design documents that no other test measures: few transfers, asynchronous commands, GPUs of phones.

use netcl::model::decoder::{Decoder, DecoderConfig, Sizes};
use netcl::model::generate::{Generation, Sampling};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::suite::test_device;
use std::sync::Arc;
use std::time::Instant;

const IDS: [u32; 8] = [0, 1, 2, 3, 4, 0, 1, 2];
const NEXT: [u32; 8] = [1, 2, 3, 4, 0, 1, 2, 3];

fn gpt(device: &Device) -> Decoder {
    let sizes = Sizes { layers: 2, heads: 2, width: 32, context: 16, vocab: 50, ..Sizes::default() };
    Decoder::new(device, DecoderConfig::of("gpt2", &sizes).unwrap(), DType::F32, 7).unwrap()
}

fn optimizer(gpt: &Decoder) -> Optimizer {
    let rule = Arc::new(AdamW { betas: [0.9, 0.999], eps: 1e-8 });
    Optimizer::new(rule, ParamGroup::gpt(gpt.params().list(), 0.1)).unwrap()
}

fn step(gpt: &Decoder, optimizer: &mut Optimizer, device: &Device) -> Tensor {
    let ids = Tensor::from_u32(device, [1, 8], &IDS).unwrap();
    let next = Tensor::from_u32(device, [1, 8], &NEXT).unwrap();
    let loss = gpt.loss(&ids, &next, Mode::eval()).unwrap();
    loss.backward().unwrap();
    optimizer.step(1e-2).unwrap();
    optimizer.zero_grad();
    loss
}

/// A training step uploads its batch and downloads nothing. Reading the loss downloads its four bytes.
#[test]
fn row_221_and_237_a_training_step_moves_its_batch_and_the_loss() {
    let device = test_device().unwrap();
    let gpt = gpt(&device);
    let mut optimizer = optimizer(&gpt);
    step(&gpt, &mut optimizer, &device);
    let (uploaded, downloaded) = device.transferred();
    let mut loss = None;
    for _ in 0..10 {
        loss = Some(step(&gpt, &mut optimizer, &device));
    }
    let (up, down) = device.transferred();
    let batch = 2 * size_of_val(&IDS) as u64;
    // The optimizer may upload its step and rates.
    assert!(
        (10 * batch..=10 * (batch + 64)).contains(&(up - uploaded)),
        "{} bytes in ten steps",
        up - uploaded
    );
    assert_eq!(down, downloaded, "a step waits for no result");
    assert!(loss.unwrap().item().unwrap().is_finite());
    assert_eq!(device.transferred().1 - down, 4);
}

/// The keys and values of earlier tokens stay on the device: a token moves a few bytes, however long the text is.
#[test]
fn row_217_a_token_moves_no_keys_or_values() {
    let device = test_device().unwrap();
    let gpt = gpt(&device);
    let mut text = Generation::new(&gpt, &[0, 1], Sampling { seed: 1, ..Sampling::default() }).unwrap();
    text.next().unwrap().unwrap();
    let before = device.transferred();
    let tokens = text.by_ref().take(12).map(Result::unwrap).count() as u64;
    let after = device.transferred();
    // Token ids and positions, but no keys and values: two layers with 32 of each are 512 bytes for each earlier token.
    let moved = after.0 - before.0 + after.1 - before.1;
    assert!(tokens == 12 && moved <= 64 * tokens, "{moved} bytes for {tokens} tokens");
}

/// Commands return before they have run; only a read waits. The simulated GPU computes at once, so it has nothing to wait for.
#[test]
fn row_117_commands_return_before_they_have_run() {
    let device = test_device().unwrap();
    if device.capabilities().simulated {
        return;
    }
    let x = Tensor::ones(&device, [768, 768], DType::F32).unwrap();
    let next = |y: &Tensor| x.matmul(y).unwrap().mul_scalar(1.0 / 768.0).unwrap();
    // Builds the kernels.
    next(&x).to_vec().unwrap();
    let started = Instant::now();
    let mut y = x.clone();
    for _ in 0..12 {
        y = next(&y);
    }
    let enqueued = started.elapsed();
    let sum = y.to_vec().unwrap()[0];
    let finished = started.elapsed();
    assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    assert!(enqueued * 2 < finished, "enqueued in {enqueued:?}, finished in {finished:?}");
}

/// Trains on simulated GPUs with the sizes of an Adreno and of a Mali GPU, with bounds checks. The losses are those of the teaching GPU.
#[test]
fn row_223_profiles_of_phones_train_the_same_model() {
    let losses = |name: &str| -> Vec<f32> {
        let device = Device::open(name, &Settings::from_env()).unwrap();
        let gpt = gpt(&device);
        let mut optimizer = optimizer(&gpt);
        (0..12).map(|_| step(&gpt, &mut optimizer, &device).item().unwrap()).collect()
    };
    let expected = losses("sim");
    assert!(expected[11] < 0.5 * expected[0], "{expected:?}");
    for profile in ["sim:adreno-750", "sim:mali-g720"] {
        let found = losses(profile);
        let is_near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3 * (1.0 + b.abs());
        assert!(found.iter().zip(&expected).all(is_near), "{profile}: {found:?}, expected {expected:?}");
    }
}
