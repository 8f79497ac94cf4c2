//! Report data: figures by source line that are known by construction, memory over time, and command times.
#![allow(clippy::unwrap_used)] // tests

use aethercl::counters::{Counters, Tally};
use aethercl::machine::{Binding, Faults, Fence, Gpu, KernelLaunch, MachineOptions};
use aethercl::model::Profile;
use aethercl::report::{Device, Figures, KernelSummary};
use aethercl::{Access, Includes, LaunchOptions, NdRange, Program, Source};
use std::sync::Arc;

const TEXT: &str = "\
#define TWICE(a) ((a) * 2)
int helper(int a) {
  return a * a + 7;
}
kernel void divides(global int *x) {
  int i = get_global_id(0);
  if (i % 2 == 0)
    x[i] = x[i] * 3 + helper(i);
  x[i] += TWICE(i);
}
kernel void banks(global int *x) {
  local int t[1024];
  int l = get_local_id(0);
  t[l * 32] = x[l];
  barrier(CLK_LOCAL_MEM_FENCE);
  int straight = t[l];
  int column = t[l * 32];
  int all = t[0];
  x[l] = straight + column + all;
}
kernel void strides(global int *x) {
  int i = get_global_id(0);
  int far = x[i * 32];
  int near = x[i];
  int same = x[5];
  x[i] = far + near + same;
}
";

struct Machine {
    gpu: Gpu,
    program: Arc<Program>,
    queue: usize,
    buffer: u64,
}

const BYTES: u64 = 1 << 16;

impl Machine {
    fn new(count_all: bool) -> Self {
        Self::with(count_all, &Arc::default())
    }

    fn with(count_all: bool, faults: &Arc<Faults>) -> Self {
        let source = Source { name: "t.cl", text: TEXT };
        let program = Arc::new(Program::build(&source, "", &Includes::none()).unwrap());
        let options = MachineOptions {
            journal: true,
            count_all,
            faults: Arc::clone(faults),
            ..MachineOptions::default()
        };
        let mut gpu = Gpu::new(Profile::named("h200").unwrap(), options);
        let queue = gpu.open_queue().unwrap();
        let buffer = gpu.allocate(BYTES, "x").unwrap();
        gpu.write(queue, buffer, vec![0; BYTES as usize], None).unwrap();
        Self { gpu, program, queue, buffer }
    }

    fn launch(&mut self, kernel: &str, items: u64, threads: usize) {
        let fence = self.enqueue(kernel, items, threads);
        self.gpu.wait(fence).unwrap();
    }

    fn enqueue(&mut self, kernel: &str, items: u64, threads: usize) -> Fence {
        let options = LaunchOptions { lines: true, threads, ..LaunchOptions::default() };
        let buffer = Binding::Buffer { address: self.buffer, bytes: BYTES, access: Access::Write };
        let range = NdRange::line(items, 32);
        let work = KernelLaunch::new(&self.program, kernel, vec![buffer], range, options);
        self.gpu.launch(self.queue, Arc::new(work), None).unwrap()
    }

    fn device(&self) -> Device {
        self.gpu.journal().unwrap()
    }
}

fn kernel(kernel: &str, items: u64) -> KernelSummary {
    let mut machine = Machine::new(false);
    machine.launch(kernel, items, 1);
    machine.device().kernels.remove(0)
}

fn line(kernel: &KernelSummary, line: u32) -> Figures {
    kernel.lines.iter().find(|l| l.line == line && l.file == "t.cl").map(|l| l.did).unwrap_or_default()
}

fn counted(kernel: &str, items: u64, threads: usize, sample: Option<u64>) -> Counters {
    let source = Source { name: "t.cl", text: TEXT };
    let program = Program::build(&source, "", &Includes::none()).unwrap();
    let memory = aethercl::Memory::new(1 << 30);
    let address = memory.allocate(BYTES, "x").unwrap();
    memory.write(address, &vec![0; BYTES as usize]).unwrap();
    let options = LaunchOptions { counters: true, lines: true, threads, sample, ..LaunchOptions::default() };
    let args = [aethercl::Arg::Buffer { address, bytes: BYTES, access: Access::Write }];
    program.launch(&memory, kernel, &args, NdRange::line(items, 32), &options).unwrap().counters
}

#[test]
fn lines_sum_up_to_the_launch() {
    for name in ["divides", "banks", "strides"] {
        let threaded = counted(name, 512, 4, None);
        assert_eq!(threaded.lines, counted(name, 512, 1, None).lines, "{name}");
        let sum = |of: fn(&Tally) -> u64| threaded.lines.iter().map(|l| of(&l.tally)).sum::<u64>();
        assert_eq!(sum(|t| t.issued), threaded.issued, "{name}");
        assert_eq!(sum(|t| t.lanes_idle), threaded.lanes_idle, "{name}");
        assert_eq!(sum(|t| t.uniform), threaded.uniform, "{name}");
        assert_eq!(sum(|t| t.local_requests), threaded.local_requests, "{name}");
        assert_eq!(sum(|t| t.local_passes), threaded.local_passes, "{name}");
        assert_eq!(sum(|t| t.global_load.sectors), threaded.global_load.sectors, "{name}");
        assert_eq!(sum(|t| t.global_store.bytes), threaded.global_store.bytes, "{name}");
        assert_eq!(sum(|t| t.operations.integer), threaded.operations.integer, "{name}");
        assert!(threaded.issued > 0 && threaded.lines.len() > 3, "{name}");
        // A request for line figures does not change the launch.
        let plain = {
            let mut c = counted(name, 512, 1, None);
            c.lines.clear();
            c
        };
        assert_eq!(Counters { lines: Vec::new(), ..threaded }, plain, "{name}");
    }
    // A sample of half of the groups represents all groups.
    let (some, all) = (counted("strides", 512, 1, Some(8)), counted("strides", 512, 1, None));
    let executions = |c: &Counters| c.lines.iter().map(|l| l.tally.executions).collect::<Vec<_>>();
    assert_eq!(executions(&some), executions(&all));
}

#[test]
fn divergence_is_that_of_the_branch() {
    let k = kernel("divides", 64);
    // Every other lane is in the branch, and in the function that it calls.
    for n in [8, 3] {
        let l = line(&k, n);
        assert!(l.issued > 0 && 2 * l.lanes_active == l.lanes_issued, "line {n}: {l:?}");
        assert_eq!(l.executions, 32, "line {n}");
    }
    let l = line(&k, 9);
    assert_eq!(
        (l.lanes_active, l.executions),
        (l.lanes_issued, 64),
        "what comes out of a macro counts where it is used"
    );
    assert_eq!(line(&k, 1), Figures::default());
    assert_eq!(line(&k, 7).branches, 64);
    assert!(k.all.lanes_active < k.all.lanes_issued);
    assert!(k.lines.iter().all(|l| l.file == "t.cl"), "{:?}", k.lines);
}

#[test]
fn bank_conflicts_are_those_of_the_addresses() {
    let k = kernel("banks", 32);
    let passes = |n| (line(&k, n).local_requests, line(&k, n).local_passes);
    assert_eq!([14, 16, 17, 18].map(passes), [(1, 32), (1, 1), (1, 32), (1, 1)]);
    assert_eq!((k.all.local_requests, k.all.local_passes), (4, 66));
    assert_eq!(line(&k, 15).barriers, 32);
}

#[test]
fn transactions_stand_beside_the_ideal_ones() {
    let k = kernel("strides", 32);
    let sectors = |n| (line(&k, n).global_sectors, line(&k, n).ideal_sectors);
    // 32 words of 4 bytes are 4 sectors; one word for all is one.
    assert_eq!([23, 24, 25, 26].map(sectors), [(32, 4), (4, 4), (1, 1), (4, 4)]);
    assert_eq!(line(&k, 23).global_bytes, 128);
}

#[test]
fn time_is_divided_among_lines_and_launches_add_up() {
    let mut machine = Machine::new(false);
    (0..3).for_each(|_| machine.launch("strides", 1024, 1));
    machine.launch("strides", 512, 1);
    machine.launch("banks", 32, 1);
    let device = machine.device();
    let k = device.kernels.iter().find(|k| k.name == "strides").unwrap();
    assert_eq!((k.launches, line(k, 23).executions), (4, 3 * 1024 + 512));
    let clocks = k.ns as f64 * f64::from(device.clock_mhz) / 1000.0;
    let lines: f64 = k.lines.iter().map(|l| l.did.cycles).sum();
    assert!((lines - clocks).abs() < 1e-6 * clocks && (k.all.cycles - clocks).abs() < 1e-6 * clocks);
    // The line whose lanes access distant addresses costs most.
    let dearest = k.lines.iter().max_by(|a, b| a.did.cycles.total_cmp(&b.did.cycles)).unwrap();
    assert_eq!(dearest.line, 23);
    assert_eq!((k.longest.global, k.longest.local, k.longest.groups), ([1024, 1, 1], [32, 1, 1], 32));
    assert!(
        k.longest.limits.iter().any(|l| l.name == k.longest.limit && l.groups == Some(k.longest.resident))
    );
    assert!(
        k.longest.parts.windows(2).all(|w| w[0].ns >= w[1].ns) && k.longest.parts[0].name == k.longest.bound
    );
    assert!(
        device
            .sources
            .iter()
            .any(|s| s.name == "t.cl" && s.text == TEXT && s.whole && s.program == k.program)
    );
    // Counters taken anew for each launch give the same sums.
    let mut anew = Machine::new(true);
    (0..3).for_each(|_| anew.launch("strides", 1024, 1));
    anew.launch("strides", 512, 1);
    let again = anew.device().kernels.remove(0);
    assert_eq!((again.launches, again.all.issued), (4, k.all.issued));
}

#[test]
fn more_signatures_than_are_held_lose_nothing() {
    let mut machine = Machine::new(false);
    for _ in 0..2 {
        (1..=70).for_each(|n| machine.launch("divides", 32 * n, 1));
    }
    let k = machine.device().kernels.remove(0);
    let items = 2 * 32 * (1..=70).sum::<u64>();
    assert_eq!((k.launches, line(&k, 9).executions, line(&k, 8).executions), (140, items, items / 2));
}

#[test]
fn memory_and_times_are_told_in_order() {
    let mut machine = Machine::new(false);
    machine.gpu.asked(1000);
    let other = machine.gpu.allocate(5000, "other").unwrap();
    machine.launch("banks", 32, 1);
    machine.gpu.free(other).unwrap();
    let fence = machine.gpu.read(machine.queue, machine.buffer, 64, None).unwrap();
    machine.gpu.wait(fence).unwrap();
    let device = machine.device();
    let events = &device.memory.events;
    let seen: Vec<(i64, u64, &str)> = events.iter().map(|e| (e.bytes, e.used, e.name.as_str())).collect();
    let one = BYTES as i64;
    assert_eq!(seen, [(one, BYTES, "x"), (5000, BYTES + 5000, "other"), (-5000, BYTES, "other")]);
    assert!(events.windows(2).all(|w| w[0].at_ns <= w[1].at_ns) && events[1].at_ns >= 1000);
    assert_eq!((device.memory.peak, device.memory.left_out), (BYTES + 5000, 0));
    let kinds: Vec<(&str, Option<u32>)> =
        device.commands.iter().map(|c| (c.kind.as_str(), c.engine)).collect();
    assert_eq!(kinds, [("copy in", Some(0)), ("kernel", None), ("copy out", Some(1))]);
    for c in &device.commands {
        assert!(
            c.queued_ns <= c.submitted_ns && c.submitted_ns <= c.start_ns && c.start_ns < c.end_ns,
            "{c:?}"
        );
    }
    assert!(device.commands.windows(2).all(|w| w[0].end_ns <= w[1].start_ns), "one queue, in order");
    assert_eq!(
        device.transfers.iter().map(|t| (t.count, t.bytes)).collect::<Vec<_>>(),
        [(1, BYTES), (1, 64)]
    );
}

#[test]
fn units_run_all_groups_of_a_launch_and_the_last_round_leaves_some_idle() {
    let mut machine = Machine::new(false);
    machine.launch("divides", 32 * 200, 1);
    machine.launch("divides", 32 * 3, 1);
    let device = machine.device();
    let launches: Vec<_> = device.commands.iter().filter(|c| c.kind == "kernel").collect();
    // 200 groups on 132 units: 68 units have two groups.
    let shares: Vec<_> = launches[0].units.iter().map(|r| (r.first, r.last, r.groups)).collect();
    assert_eq!(shares, [(0, 67, 2), (68, 131, 1)]);
    let [two, one] = launches[0].units[..] else { panic!() };
    assert_eq!(two.end_ns - two.start_ns, device.kernels[0].longest.ns);
    assert_eq!(one.end_ns - one.start_ns, (two.end_ns - two.start_ns).div_ceil(2));
    assert_eq!(launches[0].resident, device.kernels[0].longest.resident);
    for launch in &launches {
        assert!(launch.units.iter().all(|r| r.start_ns == launch.start_ns && r.end_ns < launch.end_ns));
    }
    // Three groups take three units. The other units stay idle.
    let small: Vec<_> = launches[1].units.iter().map(|r| (r.first, r.last, r.groups)).collect();
    assert_eq!(small, [(0, 2, 1)]);
    assert!(device.commands[0].units.is_empty(), "a copy runs on no unit");
}

#[test]
fn a_launch_that_hangs_keeps_every_unit_until_the_watchdog() {
    let faults = Arc::new(Faults::default());
    let mut machine = Machine::with(false, &faults);
    faults.hang_launch(1);
    let fence = machine.enqueue("banks", 32, 1);
    assert!(machine.gpu.wait(fence).is_err());
    let device = machine.device();
    let hung = device.commands.last().unwrap();
    let [all] = hung.units[..] else { panic!("{hung:?}") };
    assert_eq!((all.first, all.last, all.groups), (0, 131, 0));
    assert_eq!((all.start_ns, all.end_ns), (hung.start_ns, hung.end_ns));
    assert_eq!(all.end_ns - all.start_ns, 10_000_000_000, "the profile's watchdog");
}
