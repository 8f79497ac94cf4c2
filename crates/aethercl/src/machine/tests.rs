//! Tests the machine from doorbell to interrupt, with a kernel in Rust that doubles the floats of one buffer.

use super::registers::{offset, status};
use super::*;
use crate::counters::{Counters, Traffic};
use crate::memory::Memory;
use crate::model::Profile;
use std::sync::{Arc, Mutex};

/// Doubles `n` floats.
struct Double {
    at: u64,
    n: u64,
    groups: u64,
}

impl Work for Double {
    fn name(&self) -> &'static str {
        "double"
    }
    fn signature(&self) -> u64 {
        self.n << 32 | self.groups
    }
    fn run(&self, memory: &Memory, count: bool) -> Result<Done, Failure> {
        let mut bytes = vec![0; self.n as usize * 4];
        memory.read(self.at, &mut bytes).map_err(|e| Failure::Trap(e.to_string()))?;
        for word in bytes.chunks_exact_mut(4) {
            let value = f32::from_le_bytes([word[0], word[1], word[2], word[3]]) * 2.0;
            word.copy_from_slice(&value.to_le_bytes());
        }
        memory.write(self.at, &bytes).map_err(|e| Failure::Trap(e.to_string()))?;
        let moved =
            Traffic { requests: self.n / 8, bytes: 4 * self.n, sectors: self.n / 8, lines: self.n / 32 };
        let counters = Counters {
            simd_width: 8,
            groups: self.groups,
            items: self.n,
            simd_groups: self.n / 8,
            issued: self.n / 8 * 6,
            global_load: moved.clone(),
            global_store: moved,
            global_footprint: 4 * self.n,
            ..Counters::default()
        };
        Ok(Done { counters: count.then_some(counters), ..Done::default() })
    }
}

fn gpu(options: MachineOptions) -> Gpu {
    Gpu::new(Profile::named("teaching").unwrap(), options)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Returns logged lines and a sink for them.
fn listener(level: TraceLevel) -> (Arc<Mutex<Vec<String>>>, Narrator) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&lines);
    let sink: Sink = Box::new(move |line| heard.lock().unwrap().push(line.to_owned()));
    (lines, Narrator::new(level, Some(sink)))
}

#[test]
fn a_buffer_goes_in_is_doubled_and_comes_back_through_a_callback() {
    let (lines, narrator) = listener(TraceLevel::All);
    let mut gpu = gpu(MachineOptions { narrator, timeline: true, ..MachineOptions::default() });
    let q = gpu.open_queue().unwrap();
    let at = gpu.allocate(1024, "x").unwrap();
    let input: Vec<f32> = (0..256u16).map(f32::from).collect();
    gpu.write(q, at, bytes(&input), None).unwrap();
    gpu.launch(q, Arc::new(Double { at, n: 256, groups: 8 }), None).unwrap();
    let got = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&got);
    let fence = gpu.read(q, at, 1024, Some(Box::new(move |c| *slot.lock().unwrap() = Some(c)))).unwrap();
    // Nothing was announced, so nothing has begun.
    gpu.run().unwrap();
    assert!(got.lock().unwrap().is_none());
    assert_eq!(gpu.read_register(offset::STATUS), 0);
    gpu.doorbell(q).unwrap();
    assert_eq!(gpu.read_register(offset::STATUS) & status::BUSY, status::BUSY);
    gpu.wait(fence).unwrap();
    let completion = got.lock().unwrap().take().unwrap();
    let doubled: Vec<f32> = input.iter().map(|v| v * 2.0).collect();
    assert_eq!(floats(&completion.outcome.unwrap().data), doubled);
    assert!(completion.queued_ns <= completion.start_ns && completion.start_ns < completion.end_ns);
    assert_eq!(gpu.now(), completion.end_ns);
    let fence_register = offset::QUEUES + offset::FENCE;
    assert_eq!(gpu.read_register(fence_register), 3);
    gpu.free(at).unwrap();
    assert!(gpu.leaks().is_empty() && gpu.vram().used() == 0);
    let told = lines.lock().unwrap().join("\n");
    for step in [
        "allocates 1024 bytes for x",
        "rings the doorbell",
        "copy in 1024 bytes",
        "kernel double, 8 groups on 4 units",
        "unit 3: 2 groups",
        "interrupt of queue 0",
        "frees",
    ] {
        assert!(told.contains(step), "{step}:\n{told}");
    }
    let trace = gpu.timeline().unwrap().json();
    for track in ["host", "queue 0", "copy engine 0", "copy engine 1", "compute unit 3"] {
        assert!(trace.contains(&format!("\"name\":\"{track}\"")), "{track}");
    }
}

#[test]
fn two_queues_overlap_and_the_clock_is_the_same_every_time() {
    let run = || {
        let mut gpu = gpu(MachineOptions::default());
        let (compute, copy) = (gpu.open_queue().unwrap(), gpu.open_queue().unwrap());
        let a = gpu.allocate(1 << 20, "a").unwrap();
        let b = gpu.allocate(1 << 20, "b").unwrap();
        gpu.write(compute, a, vec![0; 1 << 20], None).unwrap();
        gpu.launch(compute, Arc::new(Double { at: a, n: 1 << 18, groups: 64 }), None).unwrap();
        gpu.doorbell(compute).unwrap();
        let beside = gpu.read(copy, b, 1 << 20, None).unwrap();
        gpu.doorbell(copy).unwrap();
        let first = gpu.wait(beside).unwrap();
        let last = gpu.last_fence(compute).unwrap();
        let kernel = gpu.wait(last).unwrap();
        // The read-back ran concurrently with the upload and ended before the kernel.
        assert!(first.start_ns < kernel.start_ns && first.end_ns < kernel.end_ns);
        (first.start_ns, first.end_ns, kernel.start_ns, kernel.end_ns)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_queue_waits_for_another_and_queues_that_wait_in_a_circle_are_named() {
    let mut gpu = gpu(MachineOptions::default());
    let (a, b) = (gpu.open_queue().unwrap(), gpu.open_queue().unwrap());
    let at = gpu.allocate(1 << 16, "x").unwrap();
    let upload = gpu.write(b, at, bytes(&[1.5; 1 << 14]), None).unwrap();
    gpu.submit(a, Packet::Wait { queue: b as u32, value: upload.value }, None).unwrap();
    let kernel = gpu.launch(a, Arc::new(Double { at, n: 1 << 14, groups: 4 }), None).unwrap();
    gpu.doorbell(a).unwrap();
    // The other queue was not announced yet.
    assert!(matches!(gpu.run(), Err(GpuError::Deadlock(_))));
    gpu.doorbell(b).unwrap();
    let done = gpu.wait(kernel).unwrap();
    let uploaded = gpu.wait(upload).unwrap();
    assert!(uploaded.end_ns <= done.start_ns);
    let read = gpu.read(a, at, 4, None).unwrap();
    assert_eq!(floats(&gpu.wait(read).unwrap().outcome.unwrap().data), [3.0]);
    gpu.submit(a, Packet::Wait { queue: b as u32, value: 99 }, None).unwrap();
    gpu.submit(b, Packet::Wait { queue: a as u32, value: 99 }, None).unwrap();
    gpu.doorbell(a).unwrap();
    gpu.doorbell(b).unwrap();
    let e = gpu.run().unwrap_err().to_string();
    assert!(e.contains("queue 0 for fence 99 of queue 1") && e.contains("queue 1 for"), "{e}");
}

#[test]
fn more_commands_than_a_ring_holds_pass_through_it() {
    let mut gpu = gpu(MachineOptions { ring_words: 40, ..MachineOptions::default() });
    let q = gpu.open_queue().unwrap();
    let at = gpu.allocate(64, "x").unwrap();
    let done = Arc::new(Mutex::new(Vec::new()));
    for i in 0..500u32 {
        let order = Arc::clone(&done);
        gpu.write(q, at, i.to_le_bytes().to_vec(), Some(Box::new(move |_| order.lock().unwrap().push(i))))
            .unwrap();
    }
    gpu.finish(q).unwrap();
    assert_eq!(*done.lock().unwrap(), (0..500).collect::<Vec<u32>>());
    let read = gpu.read(q, at, 4, None).unwrap();
    assert_eq!(gpu.wait(read).unwrap().outcome.unwrap().data, 499u32.to_le_bytes());
    assert_eq!(gpu.host.waiting(), 0);
}

#[test]
fn each_fault_is_reported_and_what_can_go_on_does() {
    let faults = Arc::new(Faults::default());
    let mut gpu = gpu(MachineOptions { faults: Arc::clone(&faults), ..MachineOptions::default() });
    let q = gpu.open_queue().unwrap();
    let at = gpu.allocate(4096, "x").unwrap();
    let work = || Arc::new(Double { at, n: 1024, groups: 4 });
    let upload = gpu.write(q, at, vec![0; 4096], None).unwrap();
    gpu.wait(upload).unwrap();
    faults.fail_command(1);
    let failed = gpu.launch(q, work(), None).unwrap();
    assert_eq!(gpu.wait(failed).unwrap_err(), GpuError::Injected);
    assert_eq!(gpu.read_register(offset::FAULT), 3);
    let fine = gpu.launch(q, work(), None).unwrap();
    let before = gpu.wait(fine).unwrap().end_ns;
    faults.hang_launch(1);
    let hung = gpu.launch(q, work(), None).unwrap();
    let e = gpu.wait(hung).unwrap_err();
    assert!(matches!(e, GpuError::Hang { .. }) && e.to_string().contains("double"), "{e}");
    let after = gpu.launch(q, work(), None).unwrap();
    // The watchdog waited one second of the device clock.
    assert!(gpu.wait(after).unwrap().start_ns > before + 1_000_000_000);
    faults.limit_memory(2 * PAGE);
    assert!(gpu.allocate(PAGE, "fits").is_ok());
    assert!(matches!(gpu.allocate(1, "too much"), Err(GpuError::OutOfMemory { free: 0, .. })));
    faults.limit_memory(0);
    faults.disappear_at(2);
    let heard = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..3 {
        let heard = Arc::clone(&heard);
        gpu.launch(q, work(), Some(Box::new(move |c| heard.lock().unwrap().push(c.outcome.is_ok()))))
            .unwrap();
    }
    let last = gpu.last_fence(q).unwrap();
    assert_eq!(gpu.wait(last).unwrap_err(), GpuError::Lost);
    assert_eq!(*heard.lock().unwrap(), [true, false, false]);
    assert_eq!(gpu.allocate(1, "x").unwrap_err(), GpuError::Lost);
    assert!(gpu.is_lost() && gpu.launch(q, work(), None).is_err());
}

#[test]
fn bad_addresses_and_bad_words_fail_their_command_alone() {
    let mut gpu = gpu(MachineOptions::default());
    let q = gpu.open_queue().unwrap();
    let at = gpu.allocate(64, "x").unwrap();
    for packet in [
        Packet::Copy { to: at, from: at + 60, bytes: 8 },
        Packet::Fill { to: at + 64, bytes: 4, pattern: [0; 16], length: 4 },
        Packet::CopyIn { to: at, from: 12, bytes: 4 },
        Packet::CopyOut { to: 12, from: at, bytes: 4 },
        Packet::Launch { descriptor: 77 },
    ] {
        let fence = gpu.submit(q, packet, None).unwrap();
        assert!(matches!(gpu.wait(fence), Err(GpuError::Address(_))), "{packet:?}");
    }
    let work = Double { at: at + 4, n: 16, groups: 1 };
    let fence = gpu.launch(q, Arc::new(work), None).unwrap();
    assert!(gpu.wait(fence).unwrap_err().to_string().contains('x'));
    let bad = gpu.write(q, at, vec![1], None).unwrap();
    gpu.queues[q].ring.scribble(0x1234_5678);
    assert!(matches!(gpu.wait(bad), Err(GpuError::BadPacket { header: 0x1234_5678, .. })));
    let good = gpu.write(q, at, vec![2], None).unwrap();
    gpu.wait(good).unwrap();
    gpu.write_register(offset::CONTROL, 1);
    assert_eq!(gpu.read_register(offset::STATUS), 0);
    assert!(
        gpu.wait(Fence { queue: q, value: 99 }).is_err() && gpu.wait(Fence { queue: 7, value: 1 }).is_err()
    );
    assert!(gpu.free(at).is_ok() && gpu.free(at).is_err());
}
