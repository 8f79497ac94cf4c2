//! The test suite of every op: samples × storage types × layouts, compared with its f64 reference.
//!
//! It compares forward values with the reference, and gradients with central differences of the reference. A second run and a replayed
//! graph must give the same bits ([`case`]). The suite tests what a device chooses by default. [`SelfTest`] tests every variant of every
//! kernel that the device can run, and every value of every tuned parameter.

use crate::ops::{MultiOp, OPS, OpEntry};
use crate::{DType, Device, Result, Settings};

mod accuracy;
mod bench;
mod called;
pub mod case;
mod compare;
mod differences;
mod examine;
mod inference;
mod overwritten;
mod quick;
mod sample;
mod select;
mod selftest;
mod subject;
mod survey;
pub use accuracy::{Accuracy, Errors, MAX_REFERENCE_ELEMENTS, ReferenceGradients};
pub use bench::{BenchCase, BenchFn, bench};
pub use case::{Case, CasesFn, Depth, cases};
pub use examine::{Event, Findings, Here, Tester, examine, examine_by, threads};
pub use inference::{INFERENCE, Inference};
pub use quick::quick;
pub use sample::{Layouts, Sample, SampleInput};
pub use select::select;
pub use selftest::{Reach, SelfTest, Verdict};
pub use survey::Owners;

/// Runs every sample of `O` in every layout. Returns the number of cases.
///
/// # Errors
/// The error of the first case that fails; `Internal` also if samples without elements or with one element are missing.
pub fn run<O: MultiOp<N, M>, const N: usize, const M: usize>(device: &Device, dtype: DType) -> Result<usize> {
    check(&cases::<O, N, M>(dtype)?, device, Depth::Replayed)
}

fn check(cases: &[Case], device: &Device, depth: Depth) -> Result<usize> {
    cases.iter().try_for_each(|case| case.check(device, depth))?;
    Ok(cases.len())
}

impl OpEntry {
    /// Builds the cases of these samples in one storage type.
    ///
    /// # Errors
    /// `Internal` if a kind of sample is missing that every op must have.
    pub fn cases(&self, dtype: DType) -> Result<Vec<Case>> {
        let mut cases = (self.make)(dtype)?;
        cases.retain(|case| self.sample.is_none_or(|sample| case.sample == sample));
        Ok(cases)
    }
    /// Runs the suite of the op on a device for one storage type. Returns the number of cases.
    ///
    /// # Errors
    /// The error of the first case that fails.
    pub fn suite(&self, device: &Device, dtype: DType) -> Result<usize> {
        check(&self.cases(dtype)?, device, Depth::Replayed)
    }
}

/// Opens the device for tests: `NETCL_TEST_DEVICE`, or `auto`. In this crate's own tests it is [`unoptimized`].
pub fn test_device() -> Result<Device> {
    if cfg!(test) { unoptimized() } else { opened(&Settings::from_env()) }
}

fn opened(settings: &Settings) -> Result<Device> {
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    Device::open(&name, settings)
}

/// Opens the test device without the simulator's checks, for tests of memory: with checks, every buffer is a separate allocation.
pub fn unchecked_device() -> Result<Device> {
    let mut settings = Settings::from_env();
    settings.sim.check.clear();
    opened(&settings)
}

/// Opens the test device with the optimizations that users have, also if `NETCL_QUICK_BUILDS` is set. For tests that compare the bits of different
/// kernels.
pub fn optimized() -> Result<Device> {
    opened(&Settings { quick_builds: false, ..Settings::from_env() })
}

/// Opens the test device with compiler optimizations on CPUs for the kernels that take most of the time of a step only. PoCL takes four times as long
/// to build an optimized program, and tests build hundreds of programs that run for milliseconds.
pub fn quickly_built() -> Result<Device> {
    opened(&Settings { quick_builds: true, ..Settings::from_env() })
}

/// Opens the test device with compiler optimizations off on CPUs, for tests that build many variants of each kernel and run each of them once.
/// `netcl doctor` builds with optimizations, like users.
pub fn unoptimized() -> Result<Device> {
    let mut settings = Settings::from_env();
    let device = opened(&settings)?;
    if !device.capabilities().is_cpu() || !settings.build_options.is_empty() {
        return Ok(device);
    }
    settings.build_options = "-cl-opt-disable".into();
    opened(&settings)
}

/// Test that `ops!` generates for each op: the suite on the test device for every float type.
#[cfg(test)]
pub(crate) fn test(name: &str) {
    let device = test_device().unwrap();
    let entry = OPS.iter().find(|e| e.name == name).unwrap();
    for dtype in DType::FLOATS {
        let cases = entry.suite(&device, dtype).unwrap_or_else(|e| panic!("{e}"));
        assert!(cases > 0, "{name} does not have cases for {dtype}");
    }
    // Devices keep a few kilobytes that launches of one kind share.
    let memory = device.memory();
    let shared =
        |(tag, bytes): &(&str, usize)| ["tensor maps", "tile counters"].contains(tag).then_some(*bytes);
    let kept: usize = memory.by_tag.iter().filter_map(shared).sum();
    assert_eq!(memory.live, kept, "{name} leaves some of {} buffers alive", memory.buffers);
}

/// Returns the names of all ops, for the self-test and the benchmark.
pub fn names() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|e| e.name)
}
