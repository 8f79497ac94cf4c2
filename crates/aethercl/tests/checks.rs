//! Each check finds its defect and names it. It reports nothing in a correct kernel.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use aethercl::{
    Access, Arg, Checks, Finding, FindingKind, Includes, LaunchOptions, Memory, NdRange, Program, Source,
};

struct Bench {
    memory: Memory,
    program: Program,
}

impl Bench {
    fn new(text: &str) -> Bench {
        let program = Program::build(&Source { name: "check.cl", text }, "", &Includes::none());
        Bench { memory: Memory::new(1 << 20), program: program.unwrap_or_else(|e| panic!("{}", e.log)) }
    }

    fn buffer(&self, tag: &str, words: u64, access: Access) -> Arg<'static> {
        let address = self.memory.allocate(words * 4, tag).unwrap();
        if access == Access::Read {
            self.memory.fill(address, &[1, 0, 0, 0], words * 4).unwrap();
        }
        Arg::Buffer { address, bytes: words * 4, access }
    }

    fn run(&self, args: &[Arg<'_>], range: NdRange) -> Vec<Finding> {
        let options = LaunchOptions { checks: Checks::ALL, ..LaunchOptions::default() };
        self.program.launch(&self.memory, "k", args, range, &options).unwrap().findings
    }
}

/// Runs `k(in, out)` with 16 work-items in groups of 8. Each buffer has 16 words.
fn findings(text: &str) -> Vec<Finding> {
    let bench = Bench::new(text);
    let args = [bench.buffer("in", 16, Access::Read), bench.buffer("out", 16, Access::Write)];
    bench.run(&args, NdRange::line(16, 8))
}

fn one(text: &str, kind: FindingKind) -> Finding {
    let found = findings(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].kind, kind, "{}", found[0]);
    found[0].clone()
}

const SIGNATURE: &str = "__kernel void k(__global int *in, __global int *out)";

#[test]
fn a_clean_kernel_has_no_findings() {
    let found = findings(
        "__kernel void k(__global const int *in, __global int *out) {
           __local int s[8];
           int l = get_local_id(0);
           s[l] = in[get_global_id(0)];
           barrier(CLK_LOCAL_MEM_FENCE);
           int t[4] = {1, 2, 3, 4};
           int sum = 0;
           for (int i = 0; i < 8; i++) sum += s[i] * t[i & 3];
           barrier(CLK_LOCAL_MEM_FENCE);
           if (l == 0) s[0] = sum;
           barrier(CLK_LOCAL_MEM_FENCE);
           out[get_global_id(0)] = s[0] / (l + 1);
         }",
    );
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn reads_and_writes_outside_are_found() {
    let f = one(
        &format!("{SIGNATURE} {{ out[get_global_id(0)] = in[get_global_id(0) + 1]; }}"),
        FindingKind::ReadOutside,
    );
    assert_eq!((f.line, f.object.as_str(), f.offset, f.bytes, f.count), (1, "in", 64, 4, 1));
    assert_eq!(f.items[0].global[0], 15);
    assert_eq!((f.items[0].local[0], f.items[0].group[0]), (7, 1));
    assert!(f.text.contains("which has 64 bytes") && f.text.contains('^'), "{f}");
    let f = one(&format!("{SIGNATURE} {{ out[get_global_id(0) * 2] = 1; }}"), FindingKind::WriteOutside);
    assert_eq!((f.offset, f.count), (64, 8));
    one(
        &format!("{SIGNATURE} {{ __local int s[8]; s[get_local_id(0) + 1] = 1; }}"),
        FindingKind::WriteOutside,
    );
    let f = one(
        &format!("{SIGNATURE} {{ int p[4] = {{1,2,3,4}}; out[get_global_id(0)] = p[get_local_id(0) & 4]; }}"),
        FindingKind::ReadOutside,
    );
    assert_eq!(f.object, "p");
    one(&format!("{SIGNATURE} {{ out[get_global_id(0)] = in[-1]; }}"), FindingKind::ReadOutside);
}

#[test]
fn misaligned_accesses_are_found() {
    let f = one(
        &format!("{SIGNATURE} {{ out[get_global_id(0)] = *(__global int *)((__global char *)in + 2); }}"),
        FindingKind::Misaligned,
    );
    assert_eq!(f.offset, 2);
    let found = findings(&format!(
        "{SIGNATURE} {{ if (get_global_id(0) < 3) vstore4((int4)(1), get_global_id(0), out + 1); }}"
    ));
    assert!(found.is_empty(), "vstore only requires the element's alignment: {found:#?}");
}

#[test]
fn uninitialised_reads_are_found_in_every_space() {
    let f = one(
        &format!("{SIGNATURE} {{ if (in[0] == 2) out[0] = 1; printf(\"%d\", out[get_global_id(0)]); }}"),
        FindingKind::Uninitialized,
    );
    assert_eq!((f.object.as_str(), f.count), ("out", 16));
    let f = one(
        &format!("{SIGNATURE} {{ __local int s[8]; out[get_global_id(0)] = s[get_local_id(0)]; }}"),
        FindingKind::Uninitialized,
    );
    assert_eq!(f.object, "s");
    let f = one(
        &format!("{SIGNATURE} {{ int x; if (in[0] == 7) x = 1; out[get_global_id(0)] = x; }}"),
        FindingKind::Uninitialized,
    );
    assert_eq!(f.object, "x");
    let f = one(
        &format!(
            "{SIGNATURE} {{ int p[4]; p[0] = 1; p[get_local_id(0) & 1] = 2; out[get_global_id(0)] = p[1]; }}"
        ),
        FindingKind::Uninitialized,
    );
    assert_eq!((f.object.as_str(), f.offset, f.count), ("p", 4, 8));
}

#[test]
fn a_variable_set_on_every_way_is_no_finding() {
    let found = findings(&format!(
        "{SIGNATURE} {{ int x; if (in[0] == 7) x = 1; else x = 2; float3 v; v.xy = (float2)(1.0f); v.z = 2.0f;
           int a[2]; a[0] = 1; a[1] = x; out[get_global_id(0)] = x + a[1] + (int)v.z; }}"
    ));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn races_in_a_group_are_found() {
    let f = one(
        &format!(
            "{SIGNATURE} {{ __local int s[8]; int l = get_local_id(0); s[l] = l; out[get_global_id(0)] = s[7 - l]; }}"
        ),
        FindingKind::RaceInGroup,
    );
    assert_eq!((f.object.as_str(), f.items.len()), ("s", 2));
    let f = one(
        &format!(
            "{SIGNATURE} {{ __local int s[8]; int l = get_local_id(0); s[0] = l; barrier(CLK_LOCAL_MEM_FENCE); out[get_global_id(0)] = s[0]; }}"
        ),
        FindingKind::RaceInGroup,
    );
    assert_eq!(f.count, 14);
}

#[test]
fn races_between_groups_are_found() {
    let f = one(
        &format!("{SIGNATURE} {{ out[get_local_id(0)] = get_group_id(0); }}"),
        FindingKind::RaceBetweenGroups,
    );
    assert_eq!((f.object.as_str(), f.count), ("out", 8));
    let same = findings(&format!("{SIGNATURE} {{ out[0] = 5; }}"));
    assert!(same.is_empty(), "all write the same value: {same:#?}");
    let atomic = findings(&format!("{SIGNATURE} {{ if (in[0]) atomic_xchg(out, 1); atomic_inc(out); }}"));
    assert!(atomic.is_empty(), "{atomic:#?}");
    let halves = findings(&format!(
        "{SIGNATURE} {{ ((__global ushort *)out)[get_global_id(0)] = get_global_id(0); }}"
    ));
    assert!(halves.is_empty(), "writes to neighbors in one word are not a race: {halves:#?}");
}

#[test]
fn a_local_fence_does_not_order_global_memory() {
    let text = |fence| {
        format!(
            "{SIGNATURE} {{ out[get_global_id(0)] = 1 + get_local_id(0); barrier({fence}); int x = out[get_global_id(0) ^ 1]; printf(\"%d\", x); }}"
        )
    };
    one(&text("CLK_LOCAL_MEM_FENCE"), FindingKind::RaceInGroup);
    assert!(findings(&text("CLK_GLOBAL_MEM_FENCE")).is_empty());
}

#[test]
fn a_divergent_barrier_is_found() {
    let f = one(
        &format!("{SIGNATURE} {{ if (get_local_id(0) < 4) barrier(CLK_LOCAL_MEM_FENCE); }}"),
        FindingKind::DivergentBarrier,
    );
    assert_eq!((f.items[0].local[0], f.items[1].local[0], f.count), (0, 4, 2));
    one(
        &format!("{SIGNATURE} {{ if (get_local_id(0) == 3) return; barrier(CLK_LOCAL_MEM_FENCE); }}"),
        FindingKind::DivergentBarrier,
    );
}

#[test]
fn division_by_zero_is_found() {
    let f = one(
        &format!("{SIGNATURE} {{ out[get_global_id(0)] = 8 / (int)get_local_id(0); }}"),
        FindingKind::DivisionByZero,
    );
    assert_eq!((f.items[0].local[0], f.count), (0, 2));
}

#[test]
fn the_contract_of_a_launch_is_held() {
    let f = one(&format!("{SIGNATURE} {{ in[get_global_id(0)] = 1; }}"), FindingKind::WriteToRead);
    assert_eq!((f.object.as_str(), f.count), ("in", 16));
}

#[test]
fn freed_memory_and_leaks_are_found() {
    let bench = Bench::new("__kernel void k(__global ulong *p) { *(__global int *)p[0] = 1; }");
    let freed = bench.memory.allocate(64, "gone").unwrap();
    let holder = bench.memory.allocate(8, "holder").unwrap();
    bench.memory.write(holder, &freed.to_le_bytes()).unwrap();
    bench.memory.free(freed).unwrap();
    let args = [Arg::Buffer { address: holder, bytes: 8, access: Access::Read }];
    let found = bench.run(&args, NdRange::line(1, 1));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].kind, FindingKind::UseAfterFree);
    assert!(found[0].message.contains("`gone`"), "{}", found[0]);
    let leaks = aethercl::check::leaks(&bench.memory);
    assert_eq!(leaks.len(), 1);
    assert_eq!(leaks[0].object, "holder");
}

#[test]
fn a_kernel_that_hangs_is_stopped() {
    let bench = Bench::new("__kernel void k(__global volatile int *p) {\n  while (p[0] == 1) ;\n}");
    let args = [bench.buffer("flag", 1, Access::Read)];
    let options = LaunchOptions { max_steps: 10_000, ..LaunchOptions::default() };
    let error = bench.program.launch(&bench.memory, "k", &args, NdRange::line(1, 1), &options).unwrap_err();
    assert!(error.to_string().contains("check.cl:2:"), "{error}");
}

/// Runs `k(in, out)` with one group of 64 work-items, two sub-groups. Each buffer has 64 words.
fn in_sub_groups(text: &str) -> Vec<Finding> {
    let bench = Bench::new(text);
    let args = [bench.buffer("in", 64, Access::Read), bench.buffer("out", 64, Access::Write)];
    bench.run(&args, NdRange::line(64, 64))
}

#[test]
fn barriers_of_sub_groups_order_what_is_within_one() {
    let kernel = |between: &str, partner: &str| {
        format!(
            "{SIGNATURE} {{
               local int s[64];
               int l = get_local_id(0);
               s[l] = in[l] + l;
               {between}
               int t = s[{partner}];
               {between}
               s[l] = t;
               {between}
               out[l] = s[{partner}] + s[{partner} & ~1];
             }}"
        )
    };
    let (barrier, neighbour) = ("sub_group_barrier(CLK_LOCAL_MEM_FENCE);", "(l ^ 5)");
    assert_eq!(in_sub_groups(&kernel(barrier, neighbour)), []);
    // Without the barrier, with a fence of the other memory, and between sub-groups, it is a race.
    for (between, partner) in [
        ("", neighbour),
        ("sub_group_barrier(CLK_GLOBAL_MEM_FENCE);", neighbour),
        (barrier, "(l ^ 32)"),
        (barrier, "((l + 1) & 63)"),
    ] {
        let found = in_sub_groups(&kernel(between, partner));
        assert!(found.iter().any(|f| f.kind == FindingKind::RaceInGroup), "{between} {partner}: {found:#?}");
    }
    let all = "barrier(CLK_LOCAL_MEM_FENCE);";
    assert_eq!(in_sub_groups(&kernel(all, "(l ^ 32)")), []);
}

#[test]
fn a_sub_group_that_passed_its_barrier_races_with_the_other() {
    // Every item of both sub-groups reads the same word. An item of the first sub-group writes it after a barrier of that sub-group.
    let text = |barrier: &str| {
        format!(
            "{SIGNATURE} {{
               local int s[2];
               int l = get_local_id(0);
               if (l == 0) s[0] = 1;
               barrier(CLK_LOCAL_MEM_FENCE);
               out[l] = s[0] + in[l];
               {barrier}
               if (l == 0) s[0] = 2;
             }}"
        )
    };
    let found = in_sub_groups(&text("sub_group_barrier(CLK_LOCAL_MEM_FENCE);"));
    assert_eq!(found.iter().map(|f| f.kind).collect::<Vec<_>>(), [FindingKind::RaceInGroup]);
    assert_eq!(in_sub_groups(&text("barrier(CLK_LOCAL_MEM_FENCE);")), []);
}
