//! The simulated GPU through the driver trait: transfers, launches, checks, the clock, and injected faults.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use aethercl::machine::Faults;
use netcl_device::driver::{Access, Arg, Driver, Memory, QueueKind, Range};
use netcl_device::sim::SimDriver;
use netcl_device::{Device, ErrorKind, Settings, SimSettings};
use std::sync::Arc;

const SCALE: &str = "
__kernel void scale(__global const float *x, __global float *y, float by, uint n) {
  const uint i = get_global_id(0);
  if (i < n) y[i] = by * x[i];
}
__kernel void past(__global float *y) { y[get_global_id(0) + 1] = 1.0f; }
__kernel void writes(__global float *x, __global float *y) { x[get_global_id(0)] = y[get_global_id(0)] = 2.0f; }
__kernel void endless(__global int *x) { while (x[0] == 0) {} }
__kernel void follow(__global const ulong *table, __global float *y) {
  __global float *x = (__global float *)(table[0] & 0xffffffffffffUL);
  y[get_global_id(0)] = x[get_global_id(0)], x[get_global_id(0)] = 7.0f;
}
__kernel void relay(volatile __global int *turn, __global float *y) {
  const int group = (int)get_group_id(0);
  while (turn[0] != (int)get_num_groups(0) - 1 - group) {}
  y[group] = (float)turn[0];
  turn[0] += 1;
}
__kernel void where(__global float *x, __global ulong *y) { y[0] = (ulong)x; }
__kernel __attribute__((intel_reqd_sub_group_size(16))) void widths(__global float *y) { y[get_global_id(0)] = get_sub_group_size(); }
__kernel void race(__global int *y) { y[0] = (int)get_global_id(0); }
__kernel void sums(__global const float *x, __global float *y) {
  __local float part[64];
  const uint l = get_local_id(0);
  part[l] = x[get_global_id(0)];
  for (uint h = 32; h > 0; h >>= 1) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l < h) part[l] += part[l + h];
  }
  if (l == 0) y[get_group_id(0)] = part[0];
}
";

fn range(global: usize, local: usize) -> Range {
    Range { global: [global, 1, 1], local: [local, 1, 1] }
}

fn open(check: &str) -> SimDriver {
    open_with(check, Arc::default())
}

fn open_with(check: &str, faults: Arc<Faults>) -> SimDriver {
    let check = check.split(',').filter(|c| !c.is_empty()).map(String::from).collect();
    SimDriver::with_faults("sim", &SimSettings { check, ..SimSettings::default() }, faults).unwrap()
}

fn floats(d: &dyn Driver, values: &[f32]) -> Memory {
    let memory = d.allocate(values.len() * 4, "test").unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    d.write(QueueKind::Compute, &memory, 0, &bytes).unwrap();
    memory
}

fn read(d: &dyn Driver, memory: &Memory, n: usize) -> Vec<f32> {
    let mut bytes = vec![0; n * 4];
    d.read(QueueKind::Compute, memory, 0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Launches a kernel on one buffer.
fn launch_one(d: &dyn Driver, name: &str, y: &Memory, items: usize) -> netcl_device::Result<()> {
    let program = d.build(SCALE, "").unwrap();
    let kernel = d.kernel(&program, name).unwrap();
    d.launch(&kernel, &[Arg::Memory(y, Access::Write)], range(items, items), false).map(|_| ())
}

#[test]
fn a_kernel_runs_and_its_time_is_that_of_the_model() {
    let d = open("");
    let program = d.build(SCALE, "-cl-std=CL1.2").unwrap();
    let kernel = d.kernel(&program, "scale").unwrap();
    assert_eq!(d.kernel_group_limit(&kernel).unwrap(), d.capabilities().max_group);
    let x = floats(&d, &(0..1000).map(|i| i as f32).collect::<Vec<_>>());
    let y = floats(&d, &[0.0; 1000]);
    let run = |items: usize| {
        let (by, n) = (3.0f32.to_le_bytes(), 1000u32.to_le_bytes());
        let args = [
            Arg::Memory(&x, Access::Read),
            Arg::Memory(&y, Access::Write),
            Arg::Scalar(&by),
            Arg::Scalar(&n),
        ];
        let event = d.launch(&kernel, &args, range(items, 64), true).unwrap().unwrap();
        d.wait(&event).unwrap();
        let (start, end) = d.times(&event).unwrap();
        assert!(start > 0 && end > start);
        end - start
    };
    let short = run(1024);
    assert_eq!(read(&d, &y, 1000), (0..1000).map(|i| 3.0 * i as f32).collect::<Vec<_>>());
    assert_eq!(short, run(1024), "the same launch takes the same time");
    assert!(run(64 << 10) > short, "more groups take longer");
}

#[test]
fn local_memory_and_barriers_work() {
    let d = open("all");
    let program = d.build(SCALE, "").unwrap();
    let kernel = d.kernel(&program, "sums").unwrap();
    let x = floats(&d, &(0..256).map(|i| i as f32).collect::<Vec<_>>());
    let y = d.allocate(16, "y").unwrap();
    d.launch(
        &kernel,
        &[Arg::Memory(&x, Access::Read), Arg::Memory(&y, Access::Write)],
        range(256, 64),
        false,
    )
    .unwrap();
    let sums: Vec<f32> = (0..4).map(|g| (64 * g..64 * (g + 1)).map(|i| i as f32).sum()).collect();
    assert_eq!(read(&d, &y, 4), sums);
}

#[test]
fn copies_fills_and_parts() {
    let d = open("all");
    let a = d.allocate(1024, "a").unwrap();
    d.fill(QueueKind::Compute, &a, 0, 1024, &1.5f32.to_le_bytes()).unwrap();
    let part = d.sub_allocate(&a, 512, 64).unwrap();
    d.fill(QueueKind::Copy, &part, 0, 64, &[0]).unwrap();
    let b = d.allocate(1024, "b").unwrap();
    let done = d.mark(QueueKind::Copy).unwrap();
    d.wait_for(QueueKind::Compute, &done).unwrap();
    d.copy(QueueKind::Compute, (&a, 256), (&b, 0), 512).unwrap();
    let got = read(&d, &b, 128);
    assert!(got.iter().enumerate().all(|(i, v)| *v == if (64..80).contains(&i) { 0.0 } else { 1.5 }));
    for bad in [
        d.copy(QueueKind::Compute, (&a, 1020), (&b, 0), 8),
        d.fill(QueueKind::Compute, &part, 60, 8, &[0]),
        d.write(QueueKind::Compute, &a, 1024, &[0]),
    ] {
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::Launch);
    }
    d.finish(QueueKind::Compute).unwrap();
    drop((a, part));
    let mut byte = [0];
    d.read(QueueKind::Compute, &b, 0, &mut byte).unwrap();
}

#[test]
fn checks_name_kernel_line_and_buffer() {
    let d = open("all");
    let y = floats(&d, &[0.0; 64]);
    let e = launch_one(&d, "past", &y, 64).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Launch);
    for part in ["past", "test", "y[get_global_id(0) + 1]", "^"] {
        assert!(e.message().contains(part), "{part}: {e}");
    }
    assert!(launch_one(&d, "race", &y, 64).unwrap_err().message().contains("race"));
    let program = d.build(SCALE, "").unwrap();
    let kernel = d.kernel(&program, "writes").unwrap();
    let x = floats(&d, &[0.0; 64]);
    let args = [Arg::Memory(&x, Access::Read), Arg::Memory(&y, Access::Write)];
    let e = d.launch(&kernel, &args, range(64, 64), false).err().unwrap();
    assert!(e.message().contains("read"), "{e}");
    // The memory is read before it is written.
    let (fresh, scale) = (d.allocate(256, "fresh").unwrap(), d.kernel(&program, "scale").unwrap());
    let (by, n) = (3.0f32.to_le_bytes(), 64u32.to_le_bytes());
    let args = [
        Arg::Memory(&fresh, Access::Read),
        Arg::Memory(&y, Access::Write),
        Arg::Scalar(&by),
        Arg::Scalar(&n),
    ];
    let e = d.launch(&scale, &args, range(64, 64), false).err().unwrap();
    assert!(e.message().contains("fresh"), "{e}");
}

#[test]
fn a_failed_build_shows_the_line() {
    let e = open("").build("__kernel void f(__global int *x) {\n  x[0] = nothing;\n}", "").err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Build);
    assert!(e.message().contains("nothing") && e.message().contains(":2:"), "{e}");
}

#[test]
fn faults_on_purpose() {
    let faults = Arc::new(Faults::default());
    let d = open_with("", Arc::clone(&faults));
    let y = floats(&d, &[0.0; 64]);
    faults.fail_command(1);
    assert_eq!(launch_one(&d, "race", &y, 64).unwrap_err().kind(), ErrorKind::Launch);
    launch_one(&d, "race", &y, 64).unwrap();
    faults.hang_launch(1);
    let e = launch_one(&d, "race", &y, 64).unwrap_err();
    assert!(e.kind() == ErrorKind::Launch && e.message().contains("did not end"), "{e}");
    // The error belonged to the launch; the queue stays usable.
    d.finish(QueueKind::Compute).unwrap();
    faults.limit_memory(1 << 20);
    assert_eq!(d.allocate(2 << 20, "much").err().unwrap().kind(), ErrorKind::Memory);
    faults.disappear_at(2);
    launch_one(&d, "race", &y, 64).unwrap();
    for _ in 0..2 {
        assert_eq!(launch_one(&d, "race", &y, 64).unwrap_err().kind(), ErrorKind::Device);
    }
    assert_eq!(d.finish(QueueKind::Compute).unwrap_err().kind(), ErrorKind::Device);
}

#[test]
fn a_kernel_that_never_ends_is_ended() {
    let d = open("");
    let x = floats(&d, &[0.0; 1]);
    let e = launch_one(&d, "endless", &x, 1).unwrap_err();
    assert!(e.message().contains("endless") && e.message().contains("did not end"), "{e}");
}

#[test]
fn names_and_settings() {
    let settings = Settings::default();
    assert_eq!(Device::open("sim", &settings).unwrap().capabilities().id, "sim:teaching");
    let h200 = Device::open("sim:h200", &settings).unwrap();
    assert!(h200.capabilities().compute_units == 132 && h200.capabilities().simulated);
    let e = Device::open("sim:voodoo", &settings).unwrap_err();
    assert!(e.kind() == ErrorKind::Device && e.message().contains("rx7900xtx"), "{e}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("own.toml");
    let text = include_str!("../../aethercl/profiles/teaching.toml")
        .replace("name = \"teaching\"", "name = \"own\"");
    std::fs::write(&file, text).unwrap();
    assert_eq!(
        Device::open(&format!("sim:{}", file.display()), &settings).unwrap().capabilities().id,
        "sim:own"
    );
    let trace = folder.path().join("trace.json");
    let sim = SimSettings { trace: Some(trace.clone()), memory: Some(8 << 20), ..SimSettings::default() };
    let device = Device::open("sim", &Settings { sim, ..Settings::default() }).unwrap();
    assert!(device.allocate(16 << 20).is_err());
    let x = device.allocate(1 << 10).unwrap();
    device.fill(&x, &[0; 4]).unwrap();
    drop((x, device));
    assert!(std::fs::read_to_string(trace).unwrap().contains("\"fill\""));
    for (check, level) in [("everything", ""), ("", "loud")] {
        let sim = SimSettings {
            check: vec![check.into()].into_iter().filter(|c: &String| !c.is_empty()).collect(),
            trace_level: level.into(),
            ..SimSettings::default()
        };
        assert_eq!(SimDriver::open("sim", &sim).err().unwrap().kind(), ErrorKind::Format);
    }
}

/// A launch with too much local memory fails, as with CL_OUT_OF_RESOURCES of a driver. Formerly it ran.
#[test]
fn local_memory_beyond_the_devices_is_refused_with_both_sizes() {
    let text = "
__kernel void tiles(__global float *y, __local float *more) {
  __local float a[4096];
  __local float4 b[1024];
  const uint l = get_local_id(0);
  a[l] = more[l] = 1.0f;
  b[l] = (float4)(2.0f);
  y[get_global_id(0)] = a[l] + more[l] + b[l].x;
}
__kernel void wide(__global float *y) { __local float a[12289]; a[0] = 1.0f; y[0] = a[0]; }
";
    let run = |device: &str, kernel: &str, local: usize| {
        let d = SimDriver::open(device, &SimSettings::default()).unwrap();
        let y = floats(&d, &[0.0; 64]);
        let program = d.build(text, "").unwrap();
        let kernel_handle = d.kernel(&program, kernel).unwrap();
        let args = [Arg::Memory(&y, Access::Write), Arg::Local(local)];
        let args = if kernel == "wide" { &args[..1] } else { &args[..] };
        let ran = d.launch(&kernel_handle, args, range(64, 64), false).map(drop);
        ran.map(|()| read(&d, &y, 64)[0])
    };
    // The kernel has 32 KiB of static local memory; 16 KiB more fills this device exactly.
    assert_eq!(run("sim:teaching", "tiles", 16 << 10).unwrap(), 4.0);
    let error = run("sim:teaching", "tiles", (16 << 10) + 4).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Launch);
    for part in [
        "kernel tiles: CL_OUT_OF_RESOURCES: ",
        "a work-group of `tiles` takes 49160 bytes of local memory",
        "(argument 1 `more` 16388, `a` 16384, `b` 16384), teaching has 49152",
    ] {
        assert!(error.message().contains(part), "{error} has not: {part}");
    }
    assert!(run("sim:adreno-750", "tiles", 4).unwrap_err().message().contains("adreno-750 has 32768"));
    assert_eq!(run("sim:arc-a770", "tiles", 32 << 10).unwrap(), 4.0);
    let error = run("sim:teaching", "wide", 0).unwrap_err();
    for part in
        ["kernel.cl:10:", "takes 49160 bytes of local memory (`a` 49156)", "__local float a[12289]", "^"]
    {
        assert!(error.message().contains(part), "{error} has not: {part}");
    }
}

/// Memory that a kernel reaches through a loaded address is accessible if the launch names it, with the declared access.
#[test]
fn addresses_in_a_table_lead_to_memory_that_the_launch_names() {
    let d = open("all");
    let program = d.build(SCALE, "").unwrap();
    let (x, y) = (floats(&d, &[1.0, 2.0, 3.0, 4.0]), floats(&d, &[0.0; 4]));
    let table = d.allocate(8, "table").unwrap();
    let at = d.kernel(&program, "where").unwrap();
    let args = [Arg::Memory(&x, Access::Read), Arg::Memory(&table, Access::Write)];
    d.launch(&at, &args, range(1, 1), false).unwrap();
    let follow = d.kernel(&program, "follow").unwrap();
    let known = [Arg::Memory(&table, Access::Read), Arg::Memory(&y, Access::Write)];
    assert!(d.launch(&follow, &known, range(4, 4), false).is_err(), "its read was not declared");
    let read_only = [known[0], known[1], Arg::Indirect(&x, Access::Read)];
    assert!(d.launch(&follow, &read_only, range(4, 4), false).is_err(), "it writes there");
    let (x, y) = (floats(&d, &[1.0, 2.0, 3.0, 4.0]), floats(&d, &[0.0; 4]));
    d.launch(&at, &[Arg::Memory(&x, Access::Read), args[1]], range(1, 1), false).unwrap();
    let args = [known[0], Arg::Memory(&y, Access::Write), Arg::Indirect(&x, Access::Write)];
    let bound = d.bind(&follow, &args).unwrap();
    d.launch_bound(&bound, range(4, 4), false).unwrap();
    assert_eq!((read(&d, &y, 4), read(&d, &x, 4)), (vec![1.0, 2.0, 3.0, 4.0], vec![7.0; 4]));
}

#[test]
fn a_kernel_gets_the_sub_groups_that_it_requires() {
    let d = SimDriver::open("sim:rx7900xtx", &SimSettings::default()).unwrap();
    let y = floats(&d, &[0.0; 32]);
    launch_one(&d, "widths", &y, 32).unwrap();
    assert_eq!(read(&d, &y, 32), [16.0; 32]);
}

/// Checks a kernel whose groups wait for each other, with a parameter in volatile device memory. Here the last group runs first.
#[test]
fn groups_wait_for_one_another() {
    let d = open("");
    let program = d.build(SCALE, "").unwrap();
    let kernel = d.kernel(&program, "relay").unwrap();
    let (turn, y) = (floats(&d, &[0.0]), floats(&d, &[-1.0; 5]));
    let args = [Arg::Memory(&turn, Access::Write), Arg::Memory(&y, Access::Write)];
    d.launch(&kernel, &args, range(5, 1), false).unwrap();
    assert_eq!(read(&d, &y, 5), [4.0, 3.0, 2.0, 1.0, 0.0]);
}
