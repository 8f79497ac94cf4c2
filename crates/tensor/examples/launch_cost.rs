//! Measures the host's cost of enqueuing: single launches, launches of a captured graph, copies, and uploads.
//!
//!     cargo run --release -p netcl-tensor --example launch_cost [DEVICE]

#![allow(clippy::print_stdout)] // a program, not a library

use netcl_tensor::graph::Graph;
use netcl_tensor::{DType, Device, Result, Settings, Tensor};
use std::time::Instant;

/// Commands per measurement: fewer than a driver's queue can hold.
const COMMANDS: usize = 400;

fn main() -> Result<()> {
    let device =
        Device::open(&std::env::args().nth(1).unwrap_or_else(|| "auto".into()), &Settings::from_env())?;
    let (a, b) =
        (Tensor::full(&device, [4096], 1.0, DType::F32)?, Tensor::full(&device, [4096], 2.0, DType::F32)?);
    let host = vec![0u8; 256];
    let report = |what: &str, commands: usize, run: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let mut best = f64::MAX;
        for _ in 0..10 {
            device.finish()?;
            let started = Instant::now();
            run()?;
            best = best.min(started.elapsed().as_secs_f64() * 1e6 / commands as f64);
        }
        device.finish()?;
        println!("{what:<44} {best:>7.2} us");
        Ok(())
    };
    report("launch of one kernel", COMMANDS, &mut || (0..COMMANDS).try_for_each(|_| a.add(&b).map(drop)))?;
    report("launches of two kernels in turn", COMMANDS, &mut || {
        (0..COMMANDS / 2).try_for_each(|_| a.add(&b).and_then(|_| a.exp()).map(drop))
    })?;
    let step = || (0..COMMANDS / 2).try_fold(a.clone(), |x, _| x.add(&b)?.tanh());
    let (graph, _result) = Graph::capture(&device, step)?;
    report("the same, captured and replayed", graph.commands().0, &mut || graph.replay())?;
    report("copy of 256 bytes on the device", COMMANDS, &mut || {
        (0..COMMANDS).try_for_each(|_| device.copy(a.storage(), 0, b.storage(), 0, 256))
    })?;
    report("copy, then a launch", COMMANDS, &mut || {
        (0..COMMANDS / 2).try_for_each(|_| {
            device.copy(a.storage(), 0, b.storage(), 0, 256)?;
            a.add(&b).map(drop)
        })
    })?;
    report("upload of 256 bytes", COMMANDS, &mut || {
        (0..COMMANDS).try_for_each(|_| device.upload(b.storage(), 0, &host))
    })?;
    report("fill of 256 bytes", COMMANDS, &mut || {
        (0..COMMANDS).try_for_each(|_| device.fill(b.storage(), &[0; 4]))
    })
}
