//! The suite with every variant of every kernel and every value of every tuned parameter, on the test device and on the simulated GPU,
//! compared with the f64 reference.
//!
//! The device's default choices on the test device are tested by the tests `ops::suite` of the library, in the same cases.
//!
//! `make candidates` runs every combination of the values as well, in every storage type.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a test

use netcl_tensor::ops::OPS;
use netcl_tensor::suite::{Findings, Reach, examine, test_device, threads, unoptimized};
use netcl_tensor::{Device, Result, Settings};

fn examined(open: fn() -> Result<Device>, reach: Reach) -> Findings {
    let found = examine(&open, OPS, reach, threads(), &|_| ()).unwrap();
    println!("{} cases, {} kernels, {} candidates", found.cases, found.kernels.len(), found.candidates);
    found
}

fn check(open: fn() -> Result<Device>, reach: Reach) {
    let found = examined(open, reach);
    assert!(found.healthy(), "{:#?} {:#?}", found.suspects, found.failures);
    assert!(found.idle.is_empty(), "no sample has a shape for {:?}", found.idle);
    assert!(found.candidates > 0, "no alternatives to the device's choices were tried");
}

/// Opens a large simulated GPU: the smallest has too little local memory for some variants. `make sim` turns its checks on.
fn sim() -> Result<Device> {
    Device::open("sim:h200", &Settings { cache_dir: None, ..Settings::from_env() })
}

#[test]
fn every_variant_and_tuned_value_agrees_with_the_reference() {
    check(unoptimized, Reach::Alternatives);
}

#[test]
fn every_variant_and_tuned_value_agrees_with_the_reference_on_the_simulated_gpu() {
    check(sim, Reach::Values);
}

#[test]
#[ignore = "half an hour: make candidates"]
fn every_combination_of_tuned_values_agrees_with_the_reference() {
    check(test_device, Reach::Combinations);
    check(sim, Reach::Combinations);
}
