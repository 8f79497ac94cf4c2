//! Results have the same bits for any number of PoCL's threads: the tests run themselves again with 1, 2 and 3 threads.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, which clippy takes for production code

use super::attention::{AttentionOptions, attention};
use super::cross_entropy::{CrossEntropy, cross_entropy};
use super::embedding::embedding;
use super::feed_forward::feed_forward;
use super::layer_norm::layer_norm;
use super::matmul::linear;
use super::optimizer::{AdamW, Entry, Update};
use super::rms_norm::rms_norm;
use crate::random::Generator;
use crate::{DType, Device, Tensor};
use netcl_device::Settings;
use std::process::Command;
use std::sync::Arc;

/// Environment variable of the child processes: the file that they write fingerprints to.
const RESULTS: &str = "THREADS_RESULTS";

fn random(device: &Device, shape: &[usize], seed: u64) -> Tensor {
    Tensor::normal(device, shape, 0.0, 1.0, DType::F32, &mut Generator::new(seed)).unwrap()
}

/// Returns the FNV-1a hash of the bytes.
fn fingerprint(x: &Tensor) -> String {
    let bytes = x.to_bytes().unwrap();
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// Returns named fingerprints of results and gradients of operations with many terms, at sizes that are divided into parts.
fn sums(device: &Device) -> Vec<String> {
    let mut lines = Vec::new();
    let mut note = |name: &str, y: &Tensor, inputs: &[&Tensor]| {
        if y.requires_grad() {
            y.backward_with(&random(device, y.dims(), 99)).unwrap();
        }
        let grads: Vec<_> = inputs.iter().map(|x| fingerprint(&x.grad().unwrap())).collect();
        lines.push(format!("{name} {} {}", fingerprint(y), grads.join(" ")));
    };
    for (shape, axes) in [([1, 300_000], [1]), ([40_000, 7], [0]), ([500, 700], [0]), ([3, 70_001], [1])] {
        let x = random(device, &shape, 1);
        note(&format!("sum {shape:?}"), &x.sum(&axes, false).unwrap(), &[]);
        note(&format!("mean {shape:?}"), &x.mean(&axes, false).unwrap(), &[]);
    }
    let parameter = |shape: &[usize], seed| random(device, shape, seed).parameter("p");
    let (x, gamma, beta) = (parameter(&[3000, 96], 2), parameter(&[96], 3), parameter(&[96], 4));
    note("layer_norm", &layer_norm(&x, &gamma, &beta, 1e-5).unwrap(), &[&x, &gamma, &beta]);
    let (x, gamma) = (parameter(&[900, 70], 5), parameter(&[70], 6));
    note("rms_norm", &rms_norm(&x, &gamma, 1e-6).unwrap(), &[&x, &gamma]);
    let [q, k, v] = [7, 8, 9].map(|seed| parameter(&[1, 2, 200, 16], seed));
    note("attention", &attention(&q, &k, &v, AttentionOptions::causal()).unwrap(), &[&q, &k, &v]);
    let (x, w, b) = (parameter(&[700, 130], 10), parameter(&[130, 90], 11), parameter(&[90], 12));
    note("linear", &linear(&x, &w, Some(&b)).unwrap(), &[&x, &w, &b]);
    let (x, row) = (parameter(&[2000, 60], 13), parameter(&[60], 14));
    note("broadcast", &x.mul(&row).unwrap(), &[&x, &row]);
    lines
}

/// Runs three steps of a small model that uses these operations.
fn training(device: &Device) -> Vec<String> {
    let shapes: [&[usize]; 8] = [&[65, 48], &[48], &[48], &[48, 128], &[128], &[128, 48], &[48], &[48, 65]];
    let params: Vec<Tensor> = (0..)
        .zip(shapes)
        .map(|(i, s)| random(device, s, 20 + i).mul_scalar(0.1).unwrap().parameter("p"))
        .collect();
    let entry = |p: &Tensor| Entry { param: p.clone(), weight_decay: 0.1, lr_scale: 1.0 };
    let rule = Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 });
    let mut update = Update::new(rule, params.iter().map(entry).collect(), None).unwrap();
    let ids: Vec<i32> = (0..2048).map(|i| i * 31 % 65).collect();
    let (ids, targets) =
        (Tensor::from_i32(device, [16, 128], &ids).unwrap(), Tensor::from_i32(device, [2048], &ids).unwrap());
    let mut lines = Vec::new();
    for step in 0..3 {
        let [table, gamma, beta, w1, b1, w2, b2, head] = &params[..] else { panic!("eight parameters") };
        params.iter().for_each(|p| p.set_grad(None));
        let x = embedding(table, &ids).unwrap();
        let heads = x.reshape([16, 128, 4, 12]).unwrap().permute(&[0, 2, 1, 3]).unwrap();
        let mixed = attention(&heads, &heads, &heads, AttentionOptions::causal()).unwrap();
        let mixed = mixed.permute(&[0, 2, 1, 3]).unwrap().reshape([2048, 48]).unwrap();
        let h = layer_norm(&mixed, gamma, beta, 1e-5).unwrap();
        let h = feed_forward(&mixed, &h, [w1, b1, w2, b2]).unwrap();
        let loss =
            cross_entropy(&linear(&h, head, None).unwrap(), &targets, CrossEntropy::default()).unwrap();
        loss.backward().unwrap();
        update.step(1e-2, Some(1.0)).unwrap();
        let params: Vec<_> = params.iter().map(fingerprint).collect();
        lines.push(format!(
            "training, step {step}: loss {} parameters {}",
            fingerprint(&loss),
            params.join(" ")
        ));
    }
    lines
}

/// Returns the results of a process with this number of threads, or `None` without PoCL.
fn with_threads(test: &str, threads: usize) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(RESULTS, &results)
        .env("POCL_MAX_PTHREAD_COUNT", threads.to_string())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(results).unwrap();
    let mut lines = text.lines().map(str::to_owned);
    let units = lines.next().filter(|units| units != "none")?;
    eprintln!("{threads} threads: {units} compute units");
    Some(lines.collect())
}

/// Computes and returns `true` in a process that was started for this.
fn computed(run: fn(&Device) -> Vec<String>) -> bool {
    let Some(results) = std::env::var_os(RESULTS) else { return false };
    let lines = match Device::open("pocl:0", &Settings::from_env()) {
        Ok(device) => [vec![device.capabilities().compute_units.to_string()], run(&device)].concat(),
        Err(_) => vec!["none".to_owned()],
    };
    std::fs::write(results, lines.join("\n")).unwrap();
    true
}

fn same_bits(test: &str, run: fn(&Device) -> Vec<String>) {
    if computed(run) {
        return;
    }
    let Some(one) = with_threads(test, 1) else {
        eprintln!("skipped: no device pocl:0");
        return;
    };
    assert!(one.len() > 2);
    for threads in [2, 3] {
        for (one, other) in one.iter().zip(with_threads(test, threads).unwrap()) {
            assert_eq!(*one, other, "one thread, then {threads}");
        }
    }
}

#[test]
fn sums_have_the_same_bits_for_any_number_of_threads() {
    same_bits("ops::threads::sums_have_the_same_bits_for_any_number_of_threads", sums);
}

#[test]
fn training_has_the_same_bits_for_any_number_of_threads() {
    same_bits("ops::threads::training_has_the_same_bits_for_any_number_of_threads", training);
}
