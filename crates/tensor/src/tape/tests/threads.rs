//! Eight threads on one device: each gets the same results as a single thread.

use super::tensor;
use crate::graph::Graph;
use crate::ops::matmul::matmul;
use crate::suite::test_device;
use crate::{DType, Device, Result, Tensor, unfused};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const THREADS: usize = 8;

/// Runs a small model with its own weights. Returns the gradients.
fn pass(x: &Tensor, w: &[Tensor; 2]) -> Result<Vec<Tensor>> {
    w.iter().for_each(|w| w.set_grad(None));
    let hidden = matmul(x, &w[0])?.gelu_tanh()?;
    matmul(&hidden, &w[1])?.softmax(-1)?.square()?.sum(&[], false)?.backward()?;
    Ok(w.iter().filter_map(Tensor::grad).collect())
}

fn weights(device: &Device, thread: usize) -> [Tensor; 2] {
    [0, 1].map(|i| tensor(device, &[16, 16], (thread * 2 + i) as f32 * 0.11).parameter("w"))
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_bytes().unwrap()).collect()
}

fn run(device: &Device, thread: usize, until: Instant, shared: &Tensor, capture: &Mutex<()>) -> usize {
    let (x, w) = (tensor(device, &[8, 16], thread as f32), weights(device, thread));
    let alone = bits(&pass(&x, &w).unwrap());
    let (graph, captured) = {
        // Concurrent captures on one device are rejected.
        let _one = capture.lock().unwrap_or_else(PoisonError::into_inner);
        Graph::capture(device, || pass(&x, &w)).unwrap()
    };
    let mut rounds = 0;
    while Instant::now() < until {
        assert!(bits(&pass(&x, &w).unwrap()) == alone, "thread {thread}, round {rounds}: eager");
        captured.iter().for_each(|t| device.fill(t.storage(), &[0xA5]).unwrap());
        graph.replay().unwrap();
        assert!(bits(&captured) == alone, "thread {thread}, round {rounds}: replayed");
        let data: Vec<f32> = (0..1000).map(|i| (thread * 1000 + i + rounds) as f32).collect();
        let there = Tensor::from_f32(device, [1000], &data, DType::F32).unwrap();
        let back = there.reshape([10, 100]).unwrap().transpose(0, 1).unwrap().contiguous().unwrap();
        assert!(
            back.transpose(0, 1).unwrap().to_vec().unwrap() == data,
            "thread {thread}, round {rounds}: round trip"
        );
        // Integers, whose sums are exact in any order.
        shared.mul_scalar(1.0 + thread as f32).unwrap().sum(&[], false).unwrap().backward().unwrap();
        rounds += 1;
    }
    rounds
}

/// `NETCL_THREAD_SECONDS` sets the duration.
#[test]
fn eight_threads_get_what_each_would_get_alone() {
    let device = test_device().unwrap();
    let seconds = std::env::var("NETCL_THREAD_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let (shared, capture) = (tensor(&device, &[64], 0.0).parameter("shared"), Mutex::new(()));
    let until = Instant::now() + Duration::from_secs(seconds);
    let (device, shared, capture) = (&device, &shared, &capture);
    let rounds: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|i| scope.spawn(move || run(device, i, until, shared, capture))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    println!("rounds of each thread: {rounds:?}");
    let expected: usize = rounds.iter().enumerate().map(|(i, n)| (1 + i) * n).sum();
    if expected > 0 {
        assert_eq!(shared.grad().unwrap().to_vec().unwrap(), [expected as f32; 64]);
    }
}

/// The original failure: 354 of 400 additions arrived.
#[test]
fn backward_of_two_threads_on_one_parameter_loses_no_addition() {
    let device = test_device().unwrap();
    let w = Tensor::zeros(&device, [4], DType::F32).unwrap().parameter("w");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..200).for_each(|_| w.sum(&[], false).unwrap().backward().unwrap()));
        }
    });
    assert_eq!(w.grad().unwrap().to_vec().unwrap(), [400.0; 4]);
}

/// A graph of operations allows one backward: the second one fails on any thread.
#[test]
fn two_threads_do_not_walk_the_same_nodes() {
    let device = test_device().unwrap();
    for _ in 0..20 {
        let w = Tensor::zeros(&device, [4], DType::F32).unwrap().parameter("w");
        let loss = w.exp().unwrap().sum(&[], false).unwrap();
        let good = std::thread::scope(|scope| {
            let walks: Vec<_> = (0..2).map(|_| scope.spawn(|| loss.backward().is_ok())).collect();
            walks.into_iter().map(|walk| usize::from(walk.join().unwrap())).sum::<usize>()
        });
        assert_eq!((good, w.grad().unwrap().to_vec().unwrap()), (1, vec![1.0; 4]));
    }
}

/// Tensors created by a capture do not have contents yet: other threads may not use them.
#[test]
fn buffers_of_another_threads_capture_are_refused() {
    let device = test_device().unwrap();
    let x = tensor(&device, &[4], 0.0);
    let step = |said: &[&str]| {
        let y = x.exp()?;
        let other = std::thread::scope(|scope| {
            let all =
                || [y.neg().err(), y.to_vec().err(), device.copy(y.storage(), 0, x.storage(), 0, 4).err()];
            scope.spawn(all).join().unwrap()
        });
        for e in other {
            let message = e.unwrap().message().to_owned();
            assert!(said.iter().any(|said| message.starts_with(said)), "{message}");
        }
        Ok(y)
    };
    // It is deferred within the step, or recorded at once.
    let lazy = Graph::capture(&device, || step(&["capture: ", "a tensor of a lazy scope"]));
    let noted = unfused(|| Graph::capture(&device, || step(&["capture: "])));
    for captured in [lazy, noted] {
        let (graph, y) = captured.unwrap();
        graph.replay().unwrap();
        assert_eq!(y.to_vec().unwrap(), x.exp().unwrap().to_vec().unwrap());
    }
}
