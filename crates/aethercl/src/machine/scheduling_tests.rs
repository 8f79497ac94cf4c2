//! Tests schedulers: the order of commands, places of allocations, and moves to host memory. Results never depend on them.

use super::scheduling::{DISPATCH_NAMES, MEMORY_NAMES, dispatch_by_name, memory_by_name};
use super::*;
use crate::model::Profile;
use std::sync::{Arc, Mutex};

fn gpu(memory: u64) -> Gpu {
    let options = MachineOptions { memory: Some(memory), ..MachineOptions::default() };
    Gpu::new(Profile::named("teaching").unwrap(), options)
}

/// Records every question and answers with the highest queue.
struct Highest(Arc<Mutex<Vec<Vec<usize>>>>);

impl DispatchScheduler for Highest {
    fn choose(&mut self, ready: &[ReadyQueue]) -> usize {
        self.0.lock().unwrap().push(ready.iter().map(|q| q.queue).collect());
        ready.len() - 1
    }
}

/// Announces two commands in each of three queues and returns the order in which they completed.
fn order(scheduler: Option<Box<dyn DispatchScheduler>>) -> Vec<usize> {
    let mut gpu = gpu(1 << 20);
    gpu.set_dispatch_scheduler(scheduler);
    let done = Arc::new(Mutex::new(Vec::new()));
    let at = gpu.allocate(64, "x").unwrap();
    for _ in 0..3 {
        gpu.open_queue().unwrap();
    }
    for queue in 0..3 {
        for _ in 0..2 {
            let done = Arc::clone(&done);
            let callback: Callback = Box::new(move |_| done.lock().unwrap().push(queue));
            let packet = Packet::Fill { to: at, bytes: 64, pattern: [1; 16], length: 16 };
            gpu.submit(queue, packet, Some(callback)).unwrap();
        }
    }
    (0..3).for_each(|queue| gpu.doorbell(queue).unwrap());
    gpu.run().unwrap();
    let done = done.lock().unwrap();
    done.clone()
}

#[test]
fn a_dispatch_scheduler_chooses_the_next_queue() {
    assert_eq!(order(dispatch_by_name("round-robin")), [0, 1, 2, 0, 1, 2]);
    assert_eq!(order(dispatch_by_name("priority")), [0, 0, 1, 1, 2, 2]);
    assert_eq!(order(dispatch_by_name("earliest")), order(None));
    let asked = Arc::new(Mutex::new(Vec::new()));
    assert_eq!(order(Some(Box::new(Highest(Arc::clone(&asked))))), [2, 2, 1, 1, 0, 0]);
    let expected: [&[usize]; 6] = [&[0, 1, 2], &[0, 1, 2], &[0, 1], &[0, 1], &[0], &[0]];
    assert_eq!(*asked.lock().unwrap(), expected);
    assert!(DISPATCH_NAMES.iter().all(|name| dispatch_by_name(name).is_some()));
    assert!(dispatch_by_name("fair").is_none());
}

/// An index out of range must not stop the machine.
struct Wrong;

impl DispatchScheduler for Wrong {
    fn choose(&mut self, _ready: &[ReadyQueue]) -> usize {
        usize::MAX
    }
}

impl MemoryScheduler for Wrong {
    fn place(&mut self, _pages: u64, _free: &[PageRun]) -> Option<u64> {
        Some(u64::MAX)
    }
    fn evict(&mut self, _pages: u64, _resident: &[Resident]) -> Option<u64> {
        Some(12_345)
    }
}

#[test]
fn wrong_answers_select_the_default() {
    assert_eq!(order(Some(Box::new(Wrong))), order(None));
    let mut gpu = gpu(2 * PAGE);
    gpu.set_memory_scheduler(Some(Box::new(Wrong)));
    assert!(gpu.allocate(PAGE, "a").is_ok());
    assert!(matches!(gpu.allocate(2 * PAGE, "b"), Err(GpuError::OutOfMemory { .. })));
    assert!(gpu.allocate(PAGE, "c").is_ok());
}

/// Frees two runs, of three pages and of one page, and returns the free runs after one page was allocated.
fn places(name: &str) -> Vec<PageRun> {
    let mut gpu = gpu(8 * PAGE);
    gpu.set_memory_scheduler(memory_by_name(name));
    let at: Vec<u64> = (0..8).map(|_| gpu.allocate(PAGE, "x").unwrap()).collect();
    [1, 2, 3, 5].iter().for_each(|i| gpu.free(at[*i]).unwrap());
    gpu.allocate(PAGE, "y").unwrap();
    gpu.vram().free_runs()
}

#[test]
fn a_memory_scheduler_chooses_the_pages() {
    let run = |start, pages| PageRun { start, pages };
    assert_eq!(places("first-fit"), [run(2, 2), run(5, 1)]);
    assert_eq!(places("best-fit"), [run(1, 3)]);
    assert_eq!(places("worst-fit"), [run(2, 2), run(5, 1)]);
    assert_eq!(places("lru"), places("first-fit"));
    assert!(MEMORY_NAMES.iter().all(|name| memory_by_name(name).is_some()) && memory_by_name("x").is_none());
}

fn read(gpu: &mut Gpu, at: u64, bytes: u64) -> Vec<u8> {
    let fence = gpu.read(0, at, bytes, None).unwrap();
    gpu.wait(fence).unwrap().outcome.unwrap().data
}

#[test]
fn more_allocations_than_memory_take_turns_and_keep_their_content() {
    let mut gpu = gpu(4 * PAGE);
    gpu.open_queue().unwrap();
    let fill = |gpu: &mut Gpu, to: u64, byte: u8| {
        let packet = Packet::Fill { to, bytes: 2 * PAGE, pattern: [byte; 16], length: 1 };
        let fence = gpu.submit(0, packet, None).unwrap();
        gpu.wait(fence).unwrap();
    };
    let first = gpu.allocate(2 * PAGE, "0").unwrap();
    fill(&mut gpu, first, 1);
    gpu.set_memory_scheduler(memory_by_name("lru"));
    let mut at = vec![first];
    for byte in 2..=5 {
        at.push(gpu.allocate(2 * PAGE, "more").unwrap());
        fill(&mut gpu, at[at.len() - 1], byte);
    }
    assert_eq!(gpu.resident().iter().map(|r| r.address).collect::<Vec<_>>(), [at[3], at[4]]);
    assert_eq!(gpu.moves(), Moves { out_bytes: 6 * PAGE, in_bytes: 0 });
    let before = gpu.now();
    for (i, address) in at.iter().enumerate() {
        assert_eq!(read(&mut gpu, address + PAGE, 16), [i as u8 + 1; 16]);
    }
    assert_eq!(gpu.moves(), Moves { out_bytes: 16 * PAGE, in_bytes: 10 * PAGE });
    // Five restores and five evictions at 1 GB/s, partly at the same time.
    assert!(gpu.now() - before > 10 * PAGE);
    // One command that uses two of them evicts neither; one that needs more than the memory fails.
    let fence = gpu.submit(0, Packet::Copy { to: at[0], from: at[1], bytes: 8 }, None).unwrap();
    gpu.wait(fence).unwrap();
    assert_eq!(read(&mut gpu, at[0], 9), [2, 2, 2, 2, 2, 2, 2, 2, 1]);
    assert!(matches!(gpu.allocate(5 * PAGE, "huge"), Err(GpuError::OutOfMemory { .. })));
    assert_eq!([3, 4].map(|i| read(&mut gpu, at[i], 1)[0]), [4, 5]);
    // Without the scheduler, evicted allocations still come back if there is room.
    gpu.set_memory_scheduler(None);
    at.iter().skip(1).for_each(|address| gpu.free(*address).unwrap());
    assert_eq!(read(&mut gpu, at[0], 1), [2]);
    gpu.free(at[0]).unwrap();
    assert_eq!((gpu.vram().used(), gpu.leaks().len()), (0, 0));
}
