//! Measures the cost of `a + b` on small tensors, and the driver's share of it: `cargo run --release --example call_overhead -- pocl:0`.
//!
//! Prints nanoseconds per call, minimum and median over rounds of 2000: the whole operation; allocating a result; and the driver's launch
//! of the kernel with fixed arguments, which is the lower bound.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program

use netcl_device::record::Mode;
use netcl_tensor::{DType, Device, Settings, Tensor};
use std::time::Instant;

const CALLS: u32 = 2000;

/// Returns the minimum and the median of `rounds`. The device is idle before each round.
fn nanoseconds(rounds: usize, device: &Device, mut call: impl FnMut()) -> String {
    let mut each: Vec<f64> = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let started = Instant::now();
        (0..CALLS).for_each(|_| call());
        each.push(started.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
        device.finish().unwrap();
    }
    each.sort_by(f64::total_cmp);
    format!("{:.0} ({:.0})", each[0], each[rounds / 2])
}

fn main() {
    let name = std::env::args().nth(1).unwrap_or_else(|| "auto".into());
    let rounds = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(60);
    let device = Device::open(&name, &Settings::from_env()).unwrap();
    let a = Tensor::full(&device, [4, 4], 1.0, DType::F32).unwrap();
    let b = Tensor::full(&device, [4, 4], 2.0, DType::F32).unwrap();
    let whole = nanoseconds(rounds, &device, || drop(a.add(&b).unwrap()));
    let memory = nanoseconds(rounds, &device, || drop(Tensor::empty(&device, [4, 4], DType::F32).unwrap()));
    let session = device.record(Mode::Watch).unwrap();
    let kept = a.add(&b).unwrap();
    let recording = session.stop().unwrap();
    let netcl_device::record::Command::Launch { kernel, args, range, .. } = &recording.commands[0] else {
        return;
    };
    let args: Vec<_> = args.iter().map(|arg| arg.arg()).collect();
    let launch = nanoseconds(rounds, &device, || {
        device.driver().launch(kernel, &args, *range, false).unwrap();
    });
    drop(kept);
    println!(
        "{}: a + b {whole} ns, memory {memory} ns, the driver's launch {launch} ns",
        device.capabilities().id
    );
}
