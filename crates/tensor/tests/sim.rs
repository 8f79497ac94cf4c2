//! The suite of every op on the simulated GPU with every check: results compared with the f64 reference, no access outside of a buffer, no
//! race, no uninitialized read, and no write to a read-only argument.
//!
//! It covers every storage type. `make sim` also runs every other test that opens a device.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use netcl_device::{Settings, SimSettings};
use netcl_tensor::ops::OPS;
use netcl_tensor::{DType, Device};

fn device() -> Device {
    let sim = SimSettings { check: vec!["all".into()], ..SimSettings::default() };
    Device::open("sim", &Settings { sim, ..Settings::default() }).unwrap()
}

/// Runs every third op from `first` on, so that three threads share the work.
fn suite(first: usize) {
    for op in OPS.iter().skip(first).step_by(3) {
        let device = device();
        for dtype in DType::FLOATS {
            let cases = op.suite(&device, dtype).unwrap_or_else(|e| panic!("{e}"));
            assert!(cases > 0, "{} in {dtype}", op.name);
        }
        device.finish().unwrap();
        assert_eq!(device.memory().buffers, 0, "{} leaves buffers alive", op.name);
    }
}

#[test]
fn a_third_of_the_ops_with_every_check() {
    suite(0);
}
#[test]
fn another_third_of_the_ops_with_every_check() {
    suite(1);
}
#[test]
fn the_last_third_of_the_ops_with_every_check() {
    suite(2);
}
