//! Failing captures, threads that share a graph, and operations that are not allowed while a step is captured.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use netcl::device::fault::{FaultDriver, Plan as Faults};
use netcl::device::open_driver;
use netcl::prelude::*;
use netcl::tensor::graph::{BufferPlan, Graph, Trace};
use netcl::tensor::suite::optimized;
use netcl::tensor::unfused;
use netcl::train::Stepper;
use netcl::train::config::GraphMode;
use netcl::train::optim::{AdamW, Optimizer, ParamGroup};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A parameter with a collected gradient of -0.25, to which each pass adds the same.
struct Weight {
    w: Tensor,
    x: Tensor,
}

impl Weight {
    fn new(device: &Device) -> Self {
        let w = Tensor::full(device, [64], 2.0, DType::F32).unwrap().parameter("w");
        let weight = Self { w, x: Tensor::full(device, [64], -0.25, DType::F32).unwrap() };
        weight.pass().unwrap();
        weight
    }
    fn pass(&self) -> Result<Tensor> {
        let loss = self.w.mul(&self.x)?.sum(&[0], false)?;
        loss.backward()?;
        Ok(loss.detach())
    }
    fn collected(&self) -> f32 {
        let grad = self.w.grad().unwrap().to_vec().unwrap();
        assert!(grad.iter().all(|g| *g == grad[0]), "{grad:?}");
        grad[0]
    }
}

/// A pass that fails during the capture, because it reads its loss on the host.
fn looks(weight: &Weight) -> Result<Tensor> {
    let loss = weight.pass()?;
    loss.item()?;
    Ok(loss)
}

#[test]
fn gradients_after_a_capture_that_failed_are_those_before_it() {
    let device = optimized().unwrap();
    let weight = Weight::new(&device);
    let e = Graph::capture(&device, || looks(&weight)).err().unwrap();
    assert!(e.message().contains("read it after the replay"), "{e}");
    assert_eq!(weight.collected(), -0.25);

    let (trace, _) = Trace::of(&device, || weight.pass()).unwrap();
    assert_eq!(weight.collected(), -0.5);
    let plan = BufferPlan::new(&device, &trace).unwrap();
    assert!(Graph::planned(&device, &plan, || looks(&weight)).is_err());
    assert_eq!(weight.collected(), -0.5);
    // Fails after the step is complete, because its buffers are in use at other times.
    let longer = || -> Result<[Tensor; 3]> { Ok([weight.pass()?, weight.pass()?, weight.x.exp()?]) };
    assert!(Graph::planned(&device, &plan, longer).is_err());
    assert_eq!(weight.collected(), -0.5);

    let refused = Trace::of(&device, || weight.pass().and_then(|_| Err::<(), _>(Error::unsupported("no"))));
    assert!(refused.is_err());
    assert_eq!(weight.collected(), -0.5);
    // A dry run changes nothing, even if it succeeds.
    Trace::dry_run(&device, || weight.pass().map(|_| weight.w.set_grad(None))).unwrap();
    assert_eq!(weight.collected(), -0.5);
    Trace::dry_run(&device, || weight.pass().map(drop)).unwrap();
    assert_eq!(weight.collected(), -0.5);
}

#[test]
fn gradients_are_those_before_a_capture_whichever_call_of_the_driver_fails() {
    let settings = Settings::from_env();
    let id = optimized().unwrap().capabilities().id.clone();
    let faults = Arc::new(Faults::default());
    let inner = open_driver(&id, &settings).unwrap();
    let device = Device::from_driver(Box::new(FaultDriver::new(inner, Arc::clone(&faults))), settings);
    let weight = Weight::new(&device);
    let mut failed = 0;
    loop {
        faults.arm(failed + 1);
        faults.lasting(2);
        let captured = Graph::capture(&device, || weight.pass()).is_ok();
        faults.arm(0);
        if captured {
            break;
        }
        failed += 1;
        assert_eq!(weight.collected(), -0.25, "call {failed}");
    }
    assert!(failed >= 3, "only {failed} calls of the driver");
}

#[test]
fn a_step_that_cannot_be_captured_is_repeated_with_the_gradients_it_would_have_had() {
    let device = optimized().unwrap();
    let weight = Weight::new(&device);
    let mut stepper = Stepper::new(&device, GraphMode::Auto);
    for step in 2..8u8 {
        stepper.run(|| looks(&weight)).unwrap();
        assert_eq!(weight.collected(), f32::from(step) * -0.25);
    }
    assert!(stepper.is_eager());
    let mut stepper = Stepper::new(&device, GraphMode::On);
    let before = weight.collected();
    let failed = (0..4).find_map(|_| stepper.run(|| looks(&weight)).err().map(|_| weight.collected()));
    // One or two steps ran before the capture was attempted.
    assert!([before - 0.25, before - 0.5].map(Some).contains(&failed), "{failed:?} after {before}");
    let mut stepper = Stepper::new(&device, GraphMode::Off);
    let before = weight.collected();
    let half = || weight.pass().and_then(|_| Err::<Tensor, _>(Error::unsupported("half-way")));
    assert!(stepper.run(half).is_err());
    assert_eq!(weight.collected(), before, "half a step leaves nothing behind");
}

#[test]
fn an_optimizer_survives_a_capture_that_failed() {
    let device = optimized().unwrap();
    let train = |fail: bool| {
        let data: Vec<f32> = (0..300).map(|i| (i as f32).sin()).collect();
        let w = Tensor::from_f32(&device, [300], &data, DType::Bf16).unwrap().parameter("w");
        let rule = Arc::new(AdamW { betas: [0.9, 0.95], eps: 1e-8 });
        let mut optimizer =
            Optimizer::new(rule, vec![ParamGroup::new(std::slice::from_ref(&w), 0.1)]).unwrap();
        optimizer.set_rate(1e-2).unwrap();
        let mut step = |capture: bool| {
            optimizer.zero_grad();
            w.mul(&w)?.sum(&[0], false)?.backward()?;
            optimizer.apply()?;
            // Memory that others reuse if the capture kept buffers for the next step.
            if capture { Err(Error::unsupported("half-way")) } else { Ok(()) }
        };
        if fail {
            assert!(Graph::capture(&device, || step(true)).is_err());
            drop(Tensor::full(&device, [4096], f32::NAN, DType::F32).unwrap());
        }
        step(false).unwrap();
        w.to_bytes().unwrap()
    };
    assert!(train(true) == train(false));
}

#[test]
fn two_threads_replay_one_graph() {
    let device = optimized().unwrap();
    let x = Tensor::zeros(&device, [100], DType::F32).unwrap();
    // Reads x, uses separate memory, and writes x. An update in between would be lost.
    let add = |x: &Tensor| -> Result<()> {
        let y = x.mul_scalar(2.0)?.add_scalar(2.0)?.mul_scalar(0.5)?;
        device.copy(y.storage(), 0, x.storage(), 0, y.storage().bytes())
    };
    add(&x).unwrap();
    let (graph, ()) = Graph::capture(&device, || add(&x)).unwrap();
    let (other, ()) = Graph::capture(&device, || add(&x)).unwrap();
    let replay = |graph: &Graph| (0..500).for_each(|_| graph.replay().unwrap());
    std::thread::scope(|s| {
        s.spawn(|| replay(&graph));
        s.spawn(|| replay(&graph));
        s.spawn(|| replay(&other));
    });
    assert_eq!(x.to_vec().unwrap(), vec![1501.0; 100]);
}

#[test]
fn a_replay_within_a_step_that_is_recorded_is_refused() {
    let device = optimized().unwrap();
    let x = Tensor::zeros(&device, [100], DType::F32).unwrap();
    let add = || netcl::tensor::ops::map::map_into("x0 + s0", &[&x], &[1.0], &x);
    add().unwrap();
    let (graph, ()) = Graph::capture(&device, add).unwrap();
    for refused in [
        Graph::capture(&device, || graph.replay()).err(),
        Trace::of(&device, || graph.replay()).err(),
        Trace::dry_run(&device, || graph.replay()).err(),
    ] {
        let e = refused.unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.message().contains("replays a graph"), "{e}");
    }
    assert_eq!(x.to_vec().unwrap(), vec![1.0; 100], "nothing ran meanwhile");
    // Another thread is not part of the step.
    let (both, ()) = Graph::capture(&device, || {
        std::thread::scope(|s| s.spawn(|| graph.replay()).join().unwrap())?;
        add()
    })
    .unwrap();
    assert_eq!((both.commands().0, x.to_vec().unwrap()[0]), (1, 2.0));
}

#[test]
fn every_read_on_the_host_is_refused_while_capturing() {
    let device = optimized().unwrap();
    let x = Tensor::full(&device, [1], 3.0, DType::F32).unwrap();
    x.exp().unwrap();
    let now = device.mark().unwrap();
    let refused = |read: &dyn Fn(&Tensor) -> Result<()>| {
        let e = Graph::capture(&device, || read(&x.exp()?)).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.message().contains("read it after the replay"), "{e}");
        // Results computed before are not available to the step's commands either.
        assert!(Graph::capture(&device, || read(&x)).is_err());
        assert!(Trace::dry_run(&device, || read(&x.exp()?)).is_err());
    };
    refused(&|y| y.item().map(drop));
    refused(&|y| y.to_vec().map(drop));
    refused(&|y| y.to_bytes().map(drop));
    refused(&|y| y.item_after(&now).map(drop));
    refused(&|y| device.download_after(&now, y.storage(), 0, &mut [0; 4]));
    refused(&|y| device.download(y.storage(), 0, &mut [0; 4]));
    refused(&|y| y.to_device(&Device::open("sim", &Settings::default())?).map(drop));
    refused(&|_| device.mark().map(drop));
    // Another thread must not read what the capture has created either.
    let across = || {
        Graph::capture(&device, || {
            let y = x.exp()?;
            std::thread::scope(|s| s.spawn(|| y.item()).join().unwrap())
        })
    };
    assert!(unfused(across).err().unwrap().message().contains("read it after the replay"));
    // Nor where it is deferred until the capture fuses it.
    assert!(across().err().unwrap().message().contains("of a captured step is used before it was computed"));
    assert_eq!(x.item_after(&device.mark().unwrap()).unwrap(), 3.0);
}

#[test]
fn a_panic_in_a_captured_step_leaves_recording_off_and_gradients_as_they_were() {
    let device = optimized().unwrap();
    let weight = Weight::new(&device);
    let before = device.memory().live;
    let panics = |aside: bool| {
        weight.pass()?;
        if aside {
            device.outside_capture(|| panic!("aside"));
        }
        panic!("in a step");
        #[allow(unreachable_code)]
        Ok::<(), Error>(())
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes = [false, true].map(|aside| {
        [
            catch_unwind(AssertUnwindSafe(|| Graph::capture(&device, || panics(aside)).map(drop))).is_err(),
            catch_unwind(AssertUnwindSafe(|| Trace::dry_run(&device, || panics(aside)).map(drop))).is_err(),
            catch_unwind(AssertUnwindSafe(|| Trace::of(&device, || panics(aside)).map(drop))).is_err(),
        ]
    });
    std::panic::set_hook(hook);
    assert_eq!(outcomes, [[true; 3]; 2]);
    assert!(!device.is_capturing() && !device.is_dry_run());
    assert_eq!((weight.collected(), device.memory().live), (-0.25, before));
    // Commands run again, and another capture succeeds.
    assert_eq!(weight.x.add_scalar(1.0).unwrap().to_vec().unwrap(), vec![0.75; 64]);
    let (graph, loss) = Graph::capture(&device, || weight.pass()).unwrap();
    graph.replay().unwrap();
    assert_eq!((loss.item().unwrap(), weight.collected()), (-32.0, -0.5));
}

/// Returns the CPU seconds of this thread, if the system reports them: other work on the machine does not count.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    (nanoseconds > 0.0).then_some(nanoseconds * 1e-9)
}

#[test]
fn the_cost_of_a_capture_grows_no_faster_than_its_launches() {
    let device = optimized().unwrap();
    let x = Tensor::zeros(&device, [100], DType::F32).unwrap();
    x.add_scalar(1.0).unwrap();
    let Some(_) = processor_seconds() else {
        return println!("skipped: the system does not report CPU times of threads");
    };
    let seconds = |launches: usize| {
        let step = || {
            let mut y = x.clone();
            // A sum that outlives temporary buffers, as gradients do.
            for _ in 0..launches / 2 {
                y = y.add_scalar(1.0)?.add(&x)?;
            }
            Ok::<_, Error>(y)
        };
        let begun = processor_seconds().unwrap();
        // If all were one kernel, the cost would not grow.
        let [planned, captured] = unfused(|| {
            let plan = BufferPlan::new(&device, &Trace::dry_run(&device, step).unwrap()).unwrap();
            let (planned, _) = Graph::planned(&device, &plan, step).unwrap();
            let (captured, _) = Graph::capture(&device, step).unwrap();
            [planned, captured]
        });
        assert_eq!((planned.commands().0, captured.commands().0), (launches, launches));
        // Drops the newest first, like a graph's own kernels.
        drop(captured);
        drop(planned);
        processor_seconds().unwrap() - begun
    };
    seconds(100);
    let (few, many) = (seconds(4000), seconds(32_000));
    // Eight times the launches. If each launch visited all others, the cost would be 64 times as high.
    assert!(many < 24.0 * few, "{few} s for 4000 launches, {many} s for 32000");
    println!("{few} s for 4000 launches, {many} s for 32000");
}
