//! Twenty tests that cover the whole public interface in a few seconds. Read them first.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use netcl::model::decoder::{Decoder, DecoderConfig, Sizes};
use netcl::model::generate::{Generation, Sampling};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::ops::attention::{AttentionOptions, attention};
use netcl::tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl::tensor::ops::embedding::embedding;
use netcl::tensor::ops::layer_norm::layer_norm;
use netcl::tensor::ops::matmul::{linear, matmul};
use netcl::tensor::suite::test_device;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use std::sync::Arc;

fn tensor(device: &Device, shape: &[usize], data: &[f32]) -> Tensor {
    Tensor::from_f32(device, shape, data, DType::F32).unwrap()
}

fn close(a: &Tensor, b: &[f32]) {
    let a = a.to_vec().unwrap();
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "{a:?} != {b:?}");
}

fn tiny_gpt(device: &Device) -> Decoder {
    let config = DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 1, heads: 2, width: 16, context: 8, vocab: 5, ..Sizes::default() },
    )
    .unwrap();
    Decoder::new(device, config, DType::F32, 7).unwrap()
}

fn adam(gpt: &Decoder) -> Result<Optimizer> {
    let rule = Arc::new(AdamW { betas: [0.9, 0.999], eps: 1e-8 });
    Optimizer::new(rule, ParamGroup::gpt(gpt.params().list(), 0.1))
}

#[test]
fn t01_there_is_a_device_and_it_says_what_it_is() {
    let device = test_device().unwrap();
    assert!(device.capabilities().id.contains(':') && device.capabilities().compute_units > 0);
}

#[test]
fn t02_a_device_that_does_not_exist_is_an_error_with_a_list() {
    let Err(e) = Device::open("nowhere:9", &Settings::from_env()) else { panic!("opened nowhere:9") };
    assert_eq!(e.kind(), ErrorKind::Device);
    assert!(e.message().contains("no device \"nowhere:9\"") && e.message().contains(':'), "{e}");
}

#[test]
fn t03_data_goes_there_and_back_in_every_type() {
    let device = test_device().unwrap();
    for dtype in DType::FLOATS {
        let x = Tensor::from_f32(&device, [2, 2], &[1.0, -2.0, 0.5, 8.0], dtype).unwrap();
        assert_eq!(x.to_vec().unwrap(), [1.0, -2.0, 0.5, 8.0]);
    }
    assert_eq!(Tensor::from_u32(&device, [2], &[7, u32::MAX]).unwrap().to_u32().unwrap(), [7, u32::MAX]);
}

#[test]
fn t04_arithmetic_broadcasts() {
    let device = test_device().unwrap();
    let (a, b) = (tensor(&device, &[2, 2], &[1.0, 2.0, 3.0, 4.0]), tensor(&device, &[2], &[10.0, 20.0]));
    close(&a.add(&b).unwrap(), &[11.0, 22.0, 13.0, 24.0]);
    close(&a.mul(&b).unwrap().sum(&[0], false).unwrap(), &[40.0, 120.0]);
}

#[test]
fn t05_a_wrong_shape_is_an_error_that_says_which() {
    let device = test_device().unwrap();
    let (a, b) = (tensor(&device, &[3], &[0.0; 3]), tensor(&device, &[2], &[0.0; 2]));
    let e = a.add(&b).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    assert!(e.message().contains("[3] and [2] do not broadcast"), "{e}");
}

#[test]
fn t06_views_do_not_copy() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let before = device.memory().buffers;
    let y = x.transpose(0, 1).unwrap().slice(0, 1..3).unwrap().reshape([2, 2]);
    assert!(y.is_ok() && x.transpose(0, 1).unwrap().storage().same(x.storage()));
    close(&y.unwrap(), &[1.0, 4.0, 2.0, 5.0]);
    assert_eq!(device.memory().buffers, before, "temporary copies are freed");
}

#[test]
fn t07_matrices_multiply_transposed_or_not() {
    let device = test_device().unwrap();
    let a = tensor(&device, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    close(&matmul(&a, &a.transpose(0, 1).unwrap()).unwrap(), &[14.0, 32.0, 32.0, 77.0]);
}

#[test]
fn t08_gradients_flow_back() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[3], &[1.0, 2.0, 3.0]).parameter("x");
    x.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
    close(&x.grad().unwrap(), &[2.0, 4.0, 6.0]);
}

#[test]
fn t09_gradients_add_up_over_uses_and_calls() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[1], &[3.0]).parameter("x");
    for _ in 0..2 {
        x.mul(&x).unwrap().add(&x).unwrap().backward().unwrap();
    }
    close(&x.grad().unwrap(), &[14.0]);
}

#[test]
fn t10_no_grad_records_nothing() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[1], &[3.0]).parameter("x");
    assert!(!no_grad(|| x.exp()).unwrap().requires_grad());
    assert!(x.exp().unwrap().requires_grad() && !x.exp().unwrap().detach().requires_grad());
}

#[test]
fn t11_normalised_rows_have_mean_0() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let (one, zero) =
        (Tensor::ones(&device, [4], DType::F32).unwrap(), Tensor::zeros(&device, [4], DType::F32).unwrap());
    close(&layer_norm(&x, &one, &zero, 0.0).unwrap(), &[-1.341_64, -0.447_21, 0.447_21, 1.341_64]);
}

#[test]
fn t12_a_linear_map_adds_its_bias() {
    let device = test_device().unwrap();
    let (x, w) = (tensor(&device, &[1, 2], &[1.0, 2.0]), tensor(&device, &[2, 2], &[1.0, 0.0, 0.0, 1.0]));
    let b = tensor(&device, &[2], &[0.5, -0.5]);
    close(&linear(&x, &w, Some(&b)).unwrap(), &[1.5, 1.5]);
}

#[test]
fn t13_an_embedding_looks_rows_up() {
    let device = test_device().unwrap();
    let table = tensor(&device, &[3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let ids = Tensor::from_u32(&device, [2], &[2, 0]).unwrap();
    close(&embedding(&table, &ids).unwrap(), &[20.0, 21.0, 0.0, 1.0]);
}

#[test]
fn t14_the_first_token_attends_to_itself_alone() {
    let device = test_device().unwrap();
    let v: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let x = tensor(&device, &[1, 1, 4, 2], &v);
    let y = attention(&x, &x, &x, AttentionOptions { causal: true, ..AttentionOptions::default() }).unwrap();
    close(&y.slice(2, 0..1).unwrap(), &[0.0, 1.0]);
}

#[test]
fn t15_even_logits_cost_the_logarithm_of_their_number() {
    let device = test_device().unwrap();
    let targets = Tensor::from_u32(&device, [2], &[1, 3]).unwrap();
    let loss =
        cross_entropy(&tensor(&device, &[2, 4], &[0.0; 8]), &targets, CrossEntropy::default()).unwrap();
    assert!((loss.item().unwrap() - 4f32.ln()).abs() < 1e-6);
}

#[test]
fn t16_an_untrained_gpt_knows_nothing() {
    let device = test_device().unwrap();
    let ids = Tensor::from_u32(&device, [1, 8], &[0, 1, 2, 3, 4, 0, 1, 2]).unwrap();
    let next = Tensor::from_u32(&device, [1, 8], &[1, 2, 3, 4, 0, 1, 2, 3]).unwrap();
    let loss = tiny_gpt(&device).loss(&ids, &next, Mode::eval()).unwrap().item().unwrap();
    assert!((loss - 5f32.ln()).abs() < 0.1, "{loss}");
}

#[test]
fn t17_a_gpt_learns_to_count() {
    let device = test_device().unwrap();
    let gpt = tiny_gpt(&device);
    let mut optimizer = adam(&gpt).unwrap();
    let ids = Tensor::from_u32(&device, [1, 8], &[0, 1, 2, 3, 4, 0, 1, 2]).unwrap();
    let next = Tensor::from_u32(&device, [1, 8], &[1, 2, 3, 4, 0, 1, 2, 3]).unwrap();
    let mut losses = Vec::new();
    for _ in 0..40 {
        let loss = gpt.loss(&ids, &next, Mode::eval()).unwrap();
        loss.backward().unwrap();
        optimizer.step(1e-2).unwrap();
        optimizer.zero_grad();
        losses.push(loss.item().unwrap());
    }
    assert!(losses[39] < 0.1 * losses[0], "{losses:?}");
}

#[test]
fn t18_a_parameter_without_gradient_is_an_error_that_names_it() {
    let device = test_device().unwrap();
    let gpt = tiny_gpt(&device);
    let e = adam(&gpt).unwrap().step(1e-2).unwrap_err();
    assert!(e.message().contains("transformer.wte.weight"), "{e}");
}

#[test]
fn t19_the_same_seed_writes_the_same_text() {
    let device = test_device().unwrap();
    let gpt = tiny_gpt(&device);
    let text = |seed| -> Vec<u32> {
        let sampling = Sampling { seed, temperature: 1.0, ..Sampling::default() };
        Generation::new(&gpt, &[0], sampling).unwrap().take(12).map(|id| id.unwrap()).collect()
    };
    assert_eq!(text(1), text(1));
    assert_ne!(text(1), text(2));
}

#[test]
fn t20_nothing_is_left_behind() {
    let device = test_device().unwrap();
    {
        let gpt = tiny_gpt(&device);
        let ids = Tensor::from_u32(&device, [1, 4], &[0, 1, 2, 3]).unwrap();
        gpt.loss(&ids, &ids, Mode::eval()).unwrap().backward().unwrap();
    }
    device.finish().unwrap();
    let memory = device.memory();
    assert_eq!((memory.buffers, memory.live), (0, 0), "{memory:?}");
}
