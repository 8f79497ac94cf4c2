//! Work-groups that wait for other groups. Groups that would finish on a device finish here. The others are named with the object they wait for.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use aethercl::{
    Access, Arg, Checks, Includes, LaunchError, LaunchOptions, LaunchOutcome, Memory, NdRange, Program,
    Source,
};
use std::time::{Duration, Instant};

/// Runs `k(data, flag)` with `groups` groups of 8 work-items. Returns the first word of `data`.
fn run(text: &str, groups: u64, options: &LaunchOptions) -> Result<(u32, LaunchOutcome), LaunchError> {
    let source = Source { name: "wait.cl", text };
    let program =
        Program::build(&source, "-cl-std=CL2.0", &Includes::none()).unwrap_or_else(|e| panic!("{}", e.log));
    let memory = Memory::new(1 << 24);
    let buffer = |tag: &str| {
        let address = memory.allocate(8192, tag).unwrap();
        memory.fill(address, &[0], 8192).unwrap();
        address
    };
    let addresses = [buffer("data"), buffer("flag")];
    let args = addresses.map(|address| Arg::Buffer { address, bytes: 8192, access: Access::Write });
    let outcome = program.launch(&memory, "k", &args, NdRange::line(groups * 8, 8), options)?;
    let mut word = [0; 4];
    memory.read(addresses[0], &mut word).unwrap();
    Ok((u32::from_le_bytes(word), outcome))
}

fn options(checks: &str) -> LaunchOptions {
    LaunchOptions {
        checks: Checks::parse(checks).unwrap(),
        threads: 2,
        max_time: Some(Duration::from_millis(300)),
        ..LaunchOptions::default()
    }
}

/// The first group waits for the last one.
const BACKWARDS: &str = "kernel void k(global uint *data, global atomic_int *flag) {
  if (get_global_id(0) == 0) {
    while (atomic_load_explicit(flag, memory_order_acquire, memory_scope_device) == 0)
      ;
    data[0] = data[1] + 1;
  }
  if (get_global_id(0) == get_global_size(0) - 1) {
    data[1] = 41;
    atomic_store_explicit(flag, 1, memory_order_release, memory_scope_device);
  }
}";

/// All groups meet, three times.
const MEETING: &str = "kernel void k(global uint *data, global int *flag) {
  for (int round = 1; round <= 3; round++) {
    barrier(CLK_GLOBAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
      atomic_inc(flag);
      while (atomic_or(flag, 0) < round * (int)get_num_groups(0))
        ;
      atomic_add(data, round);
    }
  }
}";

#[test]
fn a_group_may_wait_for_a_later_one() {
    for checks in ["none", "bounds", "barriers,division"] {
        for counters in [false, true] {
            let options = LaunchOptions { counters, lines: counters, ..options(checks) };
            let (word, outcome) = run(BACKWARDS, 20, &options).unwrap();
            assert_eq!((word, outcome.findings.len()), (42, 0), "{checks}");
            if counters {
                let c = &outcome.counters;
                assert_eq!((c.groups, c.items), (20, 160));
                let issued: u64 = c.lines.iter().map(|l| l.tally.issued).sum();
                assert_eq!(issued, c.issued);
            }
        }
    }
}

#[test]
fn all_groups_may_meet_as_long_as_a_device_holds_them() {
    let some = LaunchOptions { max_time: Some(Duration::from_secs(20)), ..options("none") };
    assert_eq!(run(MEETING, 1, &some).unwrap().0, 6);
    assert_eq!(run(MEETING, 40, &some).unwrap().0, 240);
}

#[test]
fn volatile_flags_of_many_groups_are_waited_for() {
    let text = "kernel void k(global uint *data, volatile global int *flag) {
      if (get_global_id(0) == 0) { while (flag[0] == 0); data[0] = 42; }
      if (get_global_id(0) == get_global_size(0) - 1) flag[0] = 1;
    }";
    assert_eq!(run(text, 100, &options("none")).unwrap().0, 42);
}

/// Groups that take turns all end late. The time limit applies to each group separately.
#[test]
fn groups_that_compute_for_long_do_not_count_as_hanging_because_of_the_others() {
    let text = "kernel void k(global uint *data, global int *flag) {
      uint x = get_global_id(0);
      for (uint i = 0; i < 100000u + flag[0]; i++) x = x * 1664525u + 1013904223u;
      data[get_global_id(0)] = x;
    }";
    let mut x = 0u32;
    (0..100_000).for_each(|_| x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    assert_eq!(run(text, 100, &options("none")).unwrap().0, x);
}

#[test]
fn what_never_comes_is_named() {
    let text = BACKWARDS.replace("get_global_size(0) - 1", "get_global_size(0)");
    for checks in ["none", "all"] {
        let began = Instant::now();
        let Err(LaunchError::Stopped(why)) = run(&text, 4, &options(checks)) else {
            panic!("{checks}: it ends")
        };
        for part in [
            "wait.cl:3:",
            "endless-wait: work-group (0,0,0) waits here",
            "offset 0 of global `flag`",
            "global (0,0,0)",
            "memory holds 0",
            "in kernel k",
        ] {
            assert!(why.contains(part), "{checks}: no {part:?} in\n{why}");
        }
        let others = if checks == "none" {
            "all 4 work-groups have begun"
        } else {
            "none of the 3 later ones has begun"
        };
        assert!(why.contains(others), "{why}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}

#[test]
fn a_lock_that_is_never_given_back_is_a_wait_and_a_long_loop_is_none() {
    let lock = "kernel void k(global uint *data, global int *flag) {
      if (get_local_id(0) == 0) { while (atomic_cmpxchg(flag, 0, 1) != 0); data[0] += 1; }
    }";
    let Err(LaunchError::Stopped(why)) = run(lock, 2, &options("none")) else { panic!("it ends") };
    assert!(why.contains("work-group (1,0,0) waits here") && why.contains("memory holds 1"), "{why}");
    let long = "kernel void k(global uint *data, global int *flag) {
      for (int i = 0; flag[0] == 0; i++) { data[i % 8] = i; atomic_inc(flag + 1); }
    }";
    let Err(LaunchError::Stopped(why)) = run(long, 2, &options("none")) else { panic!("it ends") };
    assert!(!why.contains("endless-wait") && why.contains("was still running here"), "{why}");
}

#[test]
fn prints_of_groups_in_turns_stay_in_their_order() {
    let text = "kernel void k(global uint *data, global int *flag) {
      if (get_local_id(0) == 0) {
        printf(\"a%d \", (int)get_group_id(0));
        atomic_inc(flag);
        while (atomic_or(flag, 0) < (int)get_num_groups(0));
        printf(\"b%d \", (int)get_group_id(0));
      }
    }";
    let outcome = run(text, 3, &options("none")).unwrap().1;
    assert_eq!(outcome.printf, "a0 b0 a1 b1 a2 b2 ");
}
