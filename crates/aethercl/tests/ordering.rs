//! Atomic operations and fences order memory for the race check, exactly by OpenCL's memory model.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use aethercl::{
    Access, Arg, Checks, Finding, FindingKind, Includes, LaunchOptions, Memory, NdRange, Program, Source,
};

/// Runs `k(data, flag)` with `groups` groups of 64 work-items in sub-groups of 32. Each buffer has 256 zeroed words.
fn run(text: &str, options: &str, groups: u64) -> Vec<Finding> {
    let source = Source { name: "order.cl", text };
    let program = Program::build(&source, options, &Includes::none()).unwrap_or_else(|e| panic!("{}", e.log));
    let memory = Memory::new(1 << 20);
    let buffer = |tag: &str| {
        let address = memory.allocate(1024, tag).unwrap();
        memory.fill(address, &[0], 1024).unwrap();
        Arg::Buffer { address, bytes: 1024, access: Access::Write }
    };
    let args = [buffer("data"), buffer("flag")];
    let options = LaunchOptions { checks: Checks::ALL, threads: 2, ..LaunchOptions::default() };
    program.launch(&memory, "k", &args, NdRange::line(groups * 64, 64), &options).unwrap().findings
}

const CL2: &str = "-cl-std=CL2.0";

fn races(text: &str, options: &str, groups: u64) -> usize {
    let found = run(text, options, groups);
    let race = |f: &&Finding| matches!(f.kind, FindingKind::RaceInGroup | FindingKind::RaceBetweenGroups);
    assert!(found.iter().all(|f| race(&f)), "{found:#?}");
    found.len()
}

/// Group 0 writes data and then a flag. Group 1 waits for the flag and reads the data.
fn passing(write: &str, read: &str) -> String {
    format!(
        "kernel void k(global int *data, global atomic_int *flag) {{
           if (get_global_id(0) == 5) {{ data[7] = 42; {write} }}
           if (get_global_id(0) == 70) {{ {read} data[8] = data[7]; }}
         }}"
    )
}

#[test]
fn a_message_is_passed_by_release_and_acquire_alone() {
    let store = |o: &str| format!("atomic_store_explicit(flag, 1, memory_order_{o}, memory_scope_device);");
    let wait =
        |o: &str| format!("while (atomic_load_explicit(flag, memory_order_{o}, memory_scope_device) == 0);");
    let fence = |o: &str| {
        format!("atomic_work_item_fence(CLK_GLOBAL_MEM_FENCE, memory_order_{o}, memory_scope_device);")
    };
    let within = |text: String| text.replace("memory_scope_device", "memory_scope_work_group");
    for (write, read, found) in [
        (store("release"), wait("acquire"), 0),
        (store("seq_cst"), wait("seq_cst"), 0),
        ("atomic_store(flag, 1);".into(), "while (atomic_load(flag) == 0);".into(), 0),
        ("atomic_fetch_add_explicit(flag, 1, memory_order_acq_rel);".into(), wait("acquire"), 0),
        (format!("{} {}", fence("release"), store("relaxed")), wait("acquire"), 0),
        (store("release"), format!("{} {}", wait("relaxed"), fence("acquire")), 0),
        (format!("{} {}", fence("acq_rel"), store("relaxed")), wait("relaxed") + &fence("acq_rel"), 0),
        // A read-modify-write in between continues the release sequence. A store ends it.
        (store("release") + "atomic_fetch_add_explicit(flag, 1, memory_order_relaxed);", wait("acquire"), 0),
        (store("release") + &store("relaxed"), wait("acquire"), 1),
        // Too weak on one side or both, or in too small a scope.
        (store("relaxed"), wait("relaxed"), 1),
        (store("relaxed"), wait("acquire"), 1),
        (store("release"), wait("relaxed"), 1),
        (within(store("release")), wait("acquire"), 1),
        (store("release"), within(wait("acquire")), 1),
        // The fence is on the wrong side of the access that it must order.
        (format!("{} {}", store("relaxed"), fence("release")), wait("acquire"), 1),
        (store("release"), format!("{} {}", fence("acquire"), wait("relaxed")), 1),
        // This kernel uses only local memory.
        (fence("release").replace("GLOBAL", "LOCAL") + &store("relaxed"), wait("acquire"), 1),
    ] {
        assert_eq!(races(&passing(&write, &read), CL2, 2), found, "{write} / {read}");
    }
}

#[test]
fn the_other_side_is_named_with_its_values_and_a_hint() {
    let text = passing(
        "atomic_store_explicit(flag, 1, memory_order_relaxed);",
        "while (atomic_load_explicit(flag, memory_order_acquire) == 0);",
    );
    let found = run(&text, CL2, 2);
    let f = &found[0];
    assert_eq!(f.kind, FindingKind::RaceBetweenGroups);
    let who: Vec<(u64, &str)> = f.items.iter().map(|i| (i.global[0], i.did)).collect();
    assert_eq!(who, [(70, "read"), (5, "written")]);
    assert_eq!(f.values, ["memory holds 42"]);
    let shown = f.to_string();
    assert!(shown.contains("memory holds 42") && shown.contains("hint: "), "{shown}");
}

/// Every group writes a partial sum. The group that increments the count last adds them.
fn last_group(fence: &str, count: &str) -> String {
    format!(
        "kernel void k(global int *data, global {} *flag) {{
           local int last;
           if (get_local_id(0) == 0) {{
             data[get_group_id(0)] = get_group_id(0) + 1;
             {fence}
             last = {count} == get_num_groups(0) - 1;
           }}
           barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
           if (last && get_local_id(0) < get_num_groups(0)) {{
             data[64 + get_local_id(0)] = data[get_local_id(0)];
           }}
         }}",
        if count.contains("explicit") { "atomic_int" } else { "int" }
    )
}

#[test]
fn the_last_group_sees_what_all_others_wrote() {
    let acq_rel = "atomic_fetch_add_explicit(flag, 1, memory_order_acq_rel)";
    assert_eq!(races(&last_group("", acq_rel), CL2, 6), 0);
    assert_ne!(races(&last_group("", &acq_rel.replace("acq_rel", "relaxed")), CL2, 6), 0);
    assert_ne!(races(&last_group("", &acq_rel.replace("acq_rel", "release")), CL2, 6), 0);
    // A fence of OpenCL C 1.2 does not have a scope. A fence of 2.0 has work-group scope.
    let full = "mem_fence(CLK_GLOBAL_MEM_FENCE);";
    let both = |text: String| text.replace("barrier(", &format!("if (get_local_id(0) == 0) {full} barrier("));
    assert_eq!(races(&both(last_group(full, "atomic_inc(flag)")), "", 6), 0);
    assert_ne!(races(&both(last_group(full, "atomic_inc(flag)")), CL2, 6), 0);
    assert_ne!(races(&last_group("", "atomic_inc(flag)"), "", 6), 0);
}

#[test]
fn a_lock_orders_those_who_hold_it() {
    let text = |order: &str| {
        format!(
            "kernel void k(global int *data, global atomic_int *flag) {{
               if (get_local_id(0) != 0) return;
               int zero = 0;
               while (!atomic_compare_exchange_strong_explicit(flag, &zero, 1, memory_order_{order},
                        memory_order_relaxed, memory_scope_device)) zero = 0;
               data[3] = data[3] + 1;
               atomic_store_explicit(flag, 0, memory_order_release, memory_scope_device);
             }}"
        )
    };
    assert_eq!(races(&text("acquire"), CL2, 4), 0);
    assert_ne!(races(&text("relaxed"), CL2, 4), 0);
}

#[test]
fn local_memory_is_ordered_by_atomics_on_local_memory() {
    let text = |order: &str| {
        format!(
            "kernel void k(global int *data, global int *flag) {{
               local atomic_int ready;
               local int value;
               int l = get_local_id(0);
               if (l == 0) atomic_init(&ready, 0);
               barrier(CLK_LOCAL_MEM_FENCE);
               if (l == 40) {{ value = 9; atomic_store_explicit(&ready, 1, memory_order_{order}, memory_scope_work_group); }}
               else if (l == 3) {{
                 while (atomic_load_explicit(&ready, memory_order_acquire, memory_scope_work_group) == 0);
                 data[0] = value;
               }}
             }}"
        )
    };
    assert_eq!(races(&text("release"), CL2, 1), 0);
    assert_eq!(races(&text("relaxed"), CL2, 1), 1);
}

#[test]
fn barriers_still_order_where_atomics_do() {
    // An atomic operation with an order makes the check store more. Accesses that barriers order stay ordered.
    let text = |between: &str, partner: &str| {
        format!(
            "kernel void k(global int *data, global atomic_int *flag) {{
               local int s[64];
               int l = get_local_id(0);
               s[l] = l;
               {between}
               int t = s[{partner}];
               {between}
               s[l] = t;
               atomic_fetch_add(flag, t);
               data[get_global_id(0)] = t;
             }}"
        )
    };
    let sub = "sub_group_barrier(CLK_LOCAL_MEM_FENCE);";
    let all = "barrier(CLK_LOCAL_MEM_FENCE);";
    assert_eq!(races(&text(sub, "(l ^ 5)"), CL2, 2), 0);
    assert_ne!(races(&text(sub, "(l ^ 32)"), CL2, 2), 0);
    assert_eq!(races(&text(all, "(l ^ 32)"), CL2, 2), 0);
    assert_ne!(races(&text("", "(l ^ 1)"), CL2, 2), 0);
    assert_ne!(races(&text("barrier(CLK_GLOBAL_MEM_FENCE);", "(l ^ 1)"), CL2, 2), 0);
}

#[test]
fn atomic_loads_race_with_plain_writes_only() {
    let text = |other: &str| {
        format!(
            "kernel void k(global int *data, global atomic_int *flag) {{
               if (get_local_id(0) == 0) data[get_group_id(0)] = atomic_load(flag);
               if (get_global_id(0) == 69) {other};
             }}"
        )
    };
    assert_eq!(races(&text("data[9] = *(global int *)flag"), CL2, 2), 0);
    assert_ne!(races(&text("*(global int *)flag = 1"), CL2, 2), 0);
}
