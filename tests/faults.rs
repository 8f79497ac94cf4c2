//! Makes every driver call of a training step fail once: each failure is an error, nothing is lost, and the next step is correct.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use netcl::device::fault::{FaultDriver, Plan};
use netcl::device::open_driver;
use netcl::model::decoder::{Decoder, DecoderConfig, Sizes};
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::prelude::*;
use netcl::tensor::suite::test_device;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use std::sync::Arc;

/// Opens the test device with a driver that fails on request.
fn faulty() -> (Device, Arc<Plan>) {
    // Every build is repeated many times.
    let settings = Settings { build_options: "-cl-opt-disable".into(), ..Settings::from_env() };
    let id = test_device().unwrap().capabilities().id.clone();
    let plan = Arc::new(Plan::default());
    let inner = open_driver(&id, &settings).unwrap();
    (Device::from_driver(Box::new(FaultDriver::new(inner, Arc::clone(&plan))), settings), plan)
}

fn adam(gpt: &Decoder) -> Result<Optimizer> {
    let rule = Arc::new(AdamW { betas: [0.9, 0.999], eps: 1e-8 });
    Optimizer::new(rule, ParamGroup::gpt(gpt.params().list(), 0.1))
}

struct Training {
    gpt: Decoder,
    adam: Optimizer,
}

impl Training {
    fn new(device: &Device) -> Result<Self> {
        let config = DecoderConfig::of(
            "gpt2",
            &Sizes { layers: 1, heads: 2, width: 16, context: 8, vocab: 5, ..Sizes::default() },
        )
        .unwrap();
        let gpt = Decoder::new(device, config, DType::F32, 7)?;
        let adam = adam(&gpt)?;
        Ok(Self { gpt, adam })
    }
    fn gradients(&self) -> Result<f32> {
        let device = self.gpt.params().device();
        let ids = Tensor::from_u32(device, [1, 8], &[0, 1, 2, 3, 4, 0, 1, 2])?;
        let next = Tensor::from_u32(device, [1, 8], &[1, 2, 3, 4, 0, 1, 2, 3])?;
        let mode = Mode { dropout: 0.1, seed: 1, ..Mode::eval() };
        let loss = self.gpt.loss(&ids, &next, mode)?;
        loss.backward()?;
        loss.item()
    }
    fn step(&mut self) -> Result<f32> {
        let loss = self.gradients()?;
        self.adam.step(1e-3)?;
        self.adam.zero_grad();
        self.gpt.params().device().finish()?;
        Ok(loss)
    }
}

#[test]
fn every_call_of_a_step_may_fail() {
    let (device, plan) = faulty();
    let mut training = Training::new(&device).unwrap();
    training.step().unwrap();
    let loss = training.gradients().unwrap();
    training.adam.zero_grad();
    let alive = device.memory().buffers;
    device.release_cached_memory();
    plan.arm(0);
    training.gradients().unwrap();
    let calls = plan.calls();
    assert!(calls > 50, "a step makes {calls} calls");
    for n in 1..=calls {
        training.adam.zero_grad();
        // Cached blocks would prevent allocations.
        device.release_cached_memory();
        plan.arm(n);
        plan.lasting(2);
        let Err(e) = training.gradients() else { panic!("call {n} of {calls} failed without an error") };
        assert!(e.message().contains("injected failure"), "call {n}: {e}");
        plan.arm(0);
        training.adam.zero_grad();
        assert_eq!(device.memory().buffers, alive, "call {n} leaks: {e}");
        assert_eq!(training.gradients().unwrap().to_bits(), loss.to_bits(), "after call {n}: {e}");
    }
}

#[test]
fn an_allocation_that_fails_once_is_tried_again_without_cached_blocks() {
    let (device, plan) = faulty();
    let cached = device.allocate(1 << 20).unwrap();
    drop(cached);
    plan.arm_only("allocate", 1);
    let larger = device.allocate(2 << 20).unwrap();
    assert_eq!((larger.bytes(), plan.calls()), (2 << 20, 2));
}

#[test]
fn every_call_of_an_update_may_fail() {
    let (device, plan) = faulty();
    let mut training = Training::new(&device).unwrap();
    plan.arm(0);
    training.step().unwrap();
    training.gradients().unwrap();
    plan.arm(0);
    training.adam.step(1e-3).unwrap();
    let calls = plan.calls();
    for n in 1..=calls {
        plan.arm(n);
        let Err(e) = training.adam.step(1e-3) else { panic!("call {n} of {calls} failed without an error") };
        assert!(e.message().contains("injected failure"), "call {n}: {e}");
        plan.arm(0);
        training.adam.step(1e-3).unwrap();
    }
    device.finish().unwrap();
}

#[test]
fn every_build_may_fail() {
    let (device, plan) = faulty();
    let mut training = Training::new(&device).unwrap();
    plan.arm_only("build", 0);
    training.step().unwrap();
    let builds = plan.calls();
    assert!(builds > 5, "a step builds {builds} programs");
    for n in 1..=builds {
        // Programs are cached: only a new device builds again.
        let (device, plan) = faulty();
        plan.arm_only("build", n);
        let outcome = Training::new(&device).and_then(|mut t| t.step());
        let Err(e) = outcome else { panic!("build {n} of {builds} failed without an error") };
        assert_eq!(e.kind(), ErrorKind::Build, "{e}");
        assert!(e.message().contains("does not compile") && e.message().contains("injected failure"), "{e}");
        plan.arm(0);
        Training::new(&device).and_then(|mut t| t.step()).unwrap();
    }
}

#[test]
fn a_failed_build_shows_the_line_and_keeps_the_source() {
    static BROKEN: netcl::kernel::Kernel = netcl::kernel::Kernel::new(
        "broken",
        "/* one */\n__kernel void broken(__global float *x) {\n  x[0] = not_there;\n}\n",
    );
    let dir = std::env::temp_dir().join(format!("netcl-broken-{}", std::process::id()));
    let settings = Settings { cache_dir: Some(dir.clone()), ..Settings::from_env() };
    let device = Device::open(&test_device().unwrap().capabilities().id, &settings).unwrap();
    let x = device.allocate(4).unwrap();
    let e = BROKEN.launch("broken").groups(1).write(&x).run().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Build);
    for part in [
        "kernel broken does not compile",
        "not_there",
        "broken.cl:3 |   x[0] = not_there;",
        "broken.cl",
        "-cl-std=CL1.2",
    ] {
        assert!(e.message().contains(part), "{part} is missing: {e}");
    }
    assert!(std::fs::read_to_string(dir.join("failed/broken.cl")).unwrap().contains("not_there"));
    std::fs::remove_dir_all(dir).unwrap();
}

/// The message names the include file as in the source, with the line.
#[test]
fn a_failed_build_points_into_the_file_that_is_wrong() {
    static BROKEN: netcl::kernel::Kernel = netcl::kernel::Kernel::new(
        "broken_include",
        "__kernel void broken(__global float *x) {\n  x[0] = half_of(1.0f);\n}\n",
    )
    .include(&[netcl::kernel::cl_file!("faults/broken_include.cl")]);
    let dir = tempfile::tempdir().unwrap();
    for device in ["auto", "sim"] {
        let settings = Settings { cache_dir: Some(dir.path().into()), ..Settings::from_env() };
        let device = Device::open(device, &settings).unwrap();
        let x = device.allocate(4).unwrap();
        let e = BROKEN.launch("broken").groups(1).write(&x).run().unwrap_err();
        let line = "tests/faults/broken_include.cl:3 |   return x * not_in_the_include;";
        for part in ["kernel broken_include does not compile", "tests/faults/broken_include.cl:3:", line] {
            assert!(e.message().contains(part), "{part} is missing: {e}");
        }
        assert!(!e.message().contains("broken_include.cl:2"), "{e}");
    }
}

#[test]
fn the_first_nan_is_named() {
    let device = test_device().unwrap();
    let x = Tensor::from_f32(&device, [3], &[1.0, -1.0, 2.0], DType::F32).unwrap().parameter("x");
    let e = netcl::tensor::detect_anomaly(true, || x.log()?.exp()).unwrap_err();
    for part in ["anomaly", "forward of log", "[3]", "input 0 x [3] is finite"] {
        assert!(e.message().contains(part), "{part} is missing: {e}");
    }
}
