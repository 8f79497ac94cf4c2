//! Streams: commands that overlap with those of the device's own queue, ordered by events only on request.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used)] // tests

use netcl_device::driver::{Access, Driver, KernelHandle, QueueKind, Range};
use netcl_device::fault::{FaultDriver, Plan};
use netcl_device::null::NullDriver;
use netcl_device::record::{Argument, Mode};
use netcl_device::sim::SimDriver;
use netcl_device::{Buffer, Capabilities, Device, DeviceKind, Effects, ErrorKind, Label, Settings, Timeline};
use std::sync::Arc;

const TEXT: &str = "
__kernel void turns(__global const float *x, __global float *y, uint n) {
    float v = x[get_global_id(0)];
    for (uint i = 0; i < n; i++) v = v * 0.5f + 1.0f;
    y[get_global_id(0)] = v;
}
__kernel void plus(__global const float *x, __global float *y, uint n) {
    y[get_global_id(0)] = x[get_global_id(0)] + (float)n;
}";

const ITEMS: usize = 4096;

fn sim() -> Device {
    Device::open("sim", &Settings::default()).unwrap()
}

fn kernel(device: &Device, name: &str) -> KernelHandle {
    let program = device.driver().build(TEXT, "").unwrap();
    device.driver().kernel(&program, name).unwrap()
}

fn launch(device: &Device, kernel: &KernelHandle, x: &Buffer, y: &Buffer, n: u32) {
    let mut scalar = [0; 8];
    scalar[..4].copy_from_slice(&n.to_ne_bytes());
    let args = [
        Argument::Memory(x.clone(), Access::Read),
        Argument::Memory(y.clone(), Access::Write),
        Argument::Scalar(scalar, 4),
    ];
    let label = Label { name: "test", variant: "test", bytes: 0, flops: 0 };
    let range = Range { global: [ITEMS, 1, 1], local: [64, 1, 1] };
    device.launch(kernel, &args, range, label, Effects::default()).unwrap();
}

fn buffer(device: &Device) -> Buffer {
    let buffer = device.allocate(4 * ITEMS).unwrap();
    device.fill(&buffer, &1.0f32.to_ne_bytes()).unwrap();
    buffer
}

fn first(device: &Device, buffer: &Buffer) -> f32 {
    let mut bytes = [0; 4];
    device.download(buffer, 0, &mut bytes).unwrap();
    f32::from_ne_bytes(bytes)
}

/// Returns the time span of the upload in a stream, and those of the launches in the device's own queue.
fn times(timeline: &Timeline) -> ((u64, u64), Vec<(u64, u64)>) {
    let upload = timeline.transfers.iter().find(|t| matches!(t.queue, QueueKind::Stream(_))).unwrap();
    let launches = timeline.launches.iter().map(|l| (l.start_ns, l.end_ns)).collect();
    ((upload.start_ns, upload.end_ns), launches)
}

/// Traces a launch, then an upload in a stream, then another launch. `before` and `after` may order them.
fn traced(
    before: impl Fn(&Device, &netcl_device::Stream),
    after: impl Fn(&netcl_device::Stream),
) -> Timeline {
    let device = sim();
    let (x, y, next) = (buffer(&device), buffer(&device), device.allocate(1 << 20).unwrap());
    let turns = kernel(&device, "turns");
    let stream = device.stream().unwrap();
    device.start_timeline().unwrap();
    launch(&device, &turns, &x, &y, 2000);
    before(&device, &stream);
    stream.run(|| device.upload(&next, 0, &vec![7; 1 << 20])).unwrap();
    after(&stream);
    launch(&device, &turns, &x, &y, 2000);
    device.stop_timeline().unwrap()
}

#[test]
fn a_copy_in_a_stream_runs_beside_a_kernel() {
    let ((start, end), launches) = times(&traced(|_, _| {}, |_| {}));
    let (first, last) = (launches[0], launches[1]);
    assert!(start < first.1 && first.0 < end, "{start}..{end} does not overlap with {first:?}");
    assert!(last.0 >= first.1, "the device's own queue is in order");
}

#[test]
fn events_order_a_stream_and_the_device() {
    let waits =
        |device: &Device, stream: &netcl_device::Stream| stream.wait(&device.mark().unwrap()).unwrap();
    let ((start, _), launches) = times(&traced(waits, |_| {}));
    assert!(start >= launches[0].1, "{start} is before the end of {:?}", launches[0]);
    let ((_, end), launches) = times(&traced(|_, _| {}, |stream| stream.join().unwrap()));
    assert!(launches[1].0 >= end, "{:?} begins before {end}", launches[1]);
}

fn results(device: &Device) {
    let plus = kernel(device, "plus");
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    for round in 0..20u32 {
        let x = buffer(device);
        let (y, z, last) = (buffer(device), buffer(device), buffer(device));
        // `a` runs after the device, `b` after `a`, the device after `b`.
        a.wait(&device.mark().unwrap()).unwrap();
        a.run(|| {
            launch(device, &plus, &x, &y, round);
            Ok(())
        })
        .unwrap();
        b.wait(&a.record().unwrap()).unwrap();
        b.run(|| {
            assert_eq!(device.queue(), b.queue());
            launch(device, &plus, &y, &z, 100);
            device.copy(&z, 0, &last, 0, 4 * ITEMS)
        })
        .unwrap();
        device.wait_for(&b.record().unwrap()).unwrap();
        assert_eq!(device.queue(), QueueKind::Compute);
        launch(device, &plus, &last, &x, 1000);
        assert_eq!(first(device, &x), 1101.0 + round as f32);
        a.join().unwrap();
        b.join().unwrap();
    }
}

#[test]
fn results_follow_the_events() {
    results(&sim());
    let name = std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into());
    results(&Device::open(&name, &Settings::from_env()).unwrap());
}

#[test]
fn what_a_stream_touches_is_no_one_elses_before_it_is_joined() {
    let device = sim();
    let stream = device.stream().unwrap();
    let made = stream.run(|| device.allocate(1000)).unwrap();
    let buffer = device.allocate(5000).unwrap();
    let live = device.memory().live;
    stream.run(|| device.fill(&buffer, &[1])).unwrap();
    drop(buffer);
    assert_eq!(device.memory().live, live, "the fill may still be running");
    stream.join().unwrap();
    assert!(device.memory().live < live);
    // The stream gets separate memory, not memory from the pool.
    stream.run(|| device.fill(&made, &[1])).unwrap();
    drop(made);
    stream.finish().unwrap();
    drop(stream);
    assert_eq!(device.memory().live, 0);
}

#[test]
fn what_comes_before_an_event_is_free_when_the_device_waits_for_it() {
    let device = sim();
    let stream = device.stream().unwrap();
    let live = device.memory().live;
    let touched = |bytes: usize| {
        let buffer = device.allocate(bytes).unwrap();
        stream.run(|| (0..3).try_for_each(|_| device.fill(&buffer, &[1]))).unwrap();
    };
    touched(1000);
    let first = stream.record().unwrap();
    touched(5000);
    let second = stream.record().unwrap();
    touched(9000);
    let all = device.memory().live;
    // A wait by another stream frees nothing: the device's own queue could reuse the memory.
    let other = device.stream().unwrap();
    other.run(|| device.wait_for(&second)).unwrap();
    assert_eq!(device.memory().live, all);
    device.wait_for(&first).unwrap();
    let later = device.memory().live;
    assert!(live < later && later < all, "{live} < {later} < {all}");
    device.wait_for(&second).unwrap();
    assert!(live < device.memory().live && device.memory().live < later);
    // An earlier event, or an event of the device, changes nothing.
    device.wait_for(&first).unwrap();
    device.wait_for(&device.mark().unwrap()).unwrap();
    assert!(live < device.memory().live);
    stream.join().unwrap();
    assert_eq!(device.memory().live, live);
}

#[test]
fn streams_come_and_go_and_are_refused_where_commands_are_recorded() {
    let device = sim();
    for _ in 0..100 {
        drop((device.stream().unwrap(), device.stream().unwrap()));
    }
    let stream = device.stream().unwrap();
    let session = device.record(Mode::Capture(None)).unwrap();
    let error = stream.run(|| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    drop(session.stop().unwrap());
    let replay = stream.run(|| device.start_replay().map(drop)).unwrap_err();
    assert_eq!(replay.kind(), ErrorKind::Unsupported);
    drop(device.start_replay().unwrap());
    // Commands of another device stay in its own queue.
    let other = sim();
    let queue = stream.run(|| Ok(other.queue())).unwrap();
    assert_eq!(queue, QueueKind::Compute);
    // The driver refuses a queue, and a launch fails.
    let plan = Arc::new(Plan::default());
    let inner = Box::new(SimDriver::open("sim", &Settings::default().sim).unwrap());
    let faulty =
        Device::from_driver(Box::new(FaultDriver::new(inner, Arc::clone(&plan))), Settings::default());
    plan.arm_only("open_queue", 1);
    assert!(faulty.stream().is_err());
    let stream = faulty.stream().unwrap();
    plan.arm_only("fill", 1);
    let buffer = faulty.allocate(64).unwrap();
    assert!(stream.run(|| faulty.fill(&buffer, &[1])).is_err());
    stream.run(|| faulty.fill(&buffer, &[1])).unwrap();
    stream.join().unwrap();
    let nothing: Box<dyn Driver> = Box::new(NullDriver::new(Capabilities::floor("gpu:0", DeviceKind::Gpu)));
    let nothing = Device::from_driver(nothing, Settings::default());
    let stream = nothing.stream().unwrap();
    stream.run(|| nothing.fill(&nothing.allocate(64)?, &[1])).unwrap();
    stream.join().unwrap();
}
