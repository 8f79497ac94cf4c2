//! Limits of programs: beyond a limit, an error names the function, the variable or the line, and the limit.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use aethercl::{
    Access, Arg, Checks, Includes, LaunchError, LaunchOptions, LaunchOutcome, Memory, NdRange, Program,
    Source,
};
use std::fmt::Write;
use std::time::{Duration, Instant};

fn build(text: &str) -> Program {
    Program::build(&Source { name: "limits.cl", text }, "-cl-std=CL2.0", &Includes::none())
        .unwrap_or_else(|e| panic!("{}", e.log))
}

/// Runs `k` on one buffer of 64 words, all of them zero.
fn launch(text: &str, range: NdRange, options: &LaunchOptions) -> Result<LaunchOutcome, LaunchError> {
    let memory = Memory::new(1 << 20);
    let address = memory.allocate(256, "x").unwrap();
    memory.fill(address, &[0; 4], 256).unwrap();
    let args = [Arg::Buffer { address, bytes: 256, access: Access::Write }];
    build(text).launch(&memory, "k", &args, range, options)
}

/// Returns the error of a launch, which must arrive soon.
fn refused(text: &str) -> String {
    let start = Instant::now();
    let error = launch(text, NdRange::line(8, 8), &LaunchOptions::default()).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}: {error}", start.elapsed());
    error.to_string()
}

/// Returns `k` and `depth` functions, each of which calls the previous one twice.
fn doubling(depth: usize, first: &str, call: impl Fn(usize) -> String) -> String {
    let mut text = format!("int f0(int x) {{ {first} }}\n");
    for i in 1..=depth {
        writeln!(text, "int f{i}(int x) {{ {} }}", call(i - 1)).unwrap();
    }
    text + &format!("kernel void k(global int *x) {{ x[0] = f{depth}(x[0]); }}")
}

#[test]
fn functions_that_call_each_other_twice_end_in_an_error_that_names_one_and_the_budget() {
    let sums = |i: usize| format!("return f{i}(x) + f{i}(x + 1);");
    for depth in [17, 40] {
        let error = refused(&doubling(depth, "return x + 1;", sums));
        assert!(error.contains("kernel `k`") && error.contains("call of `f"), "{error}");
        assert!(error.contains("65535") || error.contains("4000000"), "{error}");
        assert!(error.contains("limits.cl:"), "{error}");
    }
    // Statements free their registers, and empty functions leave no instructions. The work still counts.
    let statements = |i: usize| format!("int y = f{i}(x); x = y; y = f{i}(x + 1); return y;");
    for text in [
        doubling(40, "return x + 1;", statements),
        doubling(40, "return 1;", sums),
        doubling(40, "for (int i = 0; i < 8; i++) x += i; return x;", |i| {
            format!("for (int i = 0; i < 64; i++) f{i}(i); return x;")
        }),
        doubling(40, "return 3;", |i| {
            format!("int n = 0; for (int i = 0; i < f{i}(i); i++) n++; return n > 0 ? 3 : n;")
        }),
    ] {
        let error = refused(&text);
        assert!(error.contains("kernel `k`") && error.contains("call of `f"), "{error}");
    }
}

#[test]
fn functions_that_call_each_other_twice_a_few_deep_run() {
    let text = doubling(10, "return x + 1;", |i| format!("return f{i}(x) + f{i}(x);"));
    launch(&text, NdRange::line(1, 1), &LaunchOptions::default()).unwrap();
}

#[test]
fn call_graphs_of_any_shape_end() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let options = LaunchOptions {
        max_steps: 1_000_000,
        max_time: Some(Duration::from_secs(2)),
        ..LaunchOptions::default()
    };
    let (mut ran, mut refused) = (0, 0);
    for round in 0..20 {
        let functions = 2 + below(30);
        let mut text = "int f0(int x, global int *p) { return p[x & 7] + x; }\n".to_string();
        for i in 1..=functions {
            let mut body = String::from("int y = x;");
            for _ in 0..1 + below(3) {
                let (callee, n) = (below(i), below(100) + 2);
                let call = format!("f{callee}(y + {n}, p)");
                body += &match below(6) {
                    0 => format!(" y += {call};"),
                    1 => format!(" if (p[y & 7] > {n}) y = {call}; else y = {call};"),
                    2 => format!(" for (int i = 0; i < {n}; i++) y += {call};"),
                    3 => format!(" {{ int a[{n}]; a[y & 1] = {call}; y = a[y & 1]; }}"),
                    4 => format!(" while (y < {n}) y += 1 + ({call} & 3);"),
                    _ => format!(" y = p[0] ? {call} : y; p[1] = y;"),
                };
            }
            writeln!(text, "int f{i}(int x, global int *p) {{ {body} return y; }}").unwrap();
        }
        writeln!(text, "kernel void k(global int *x) {{ x[get_global_id(0)] = f{functions}(x[0], x); }}")
            .unwrap();
        let start = Instant::now();
        match launch(&text, NdRange::line(8, 8), &options) {
            Ok(_) => ran += 1,
            Err(_) => refused += 1,
        }
        assert!(start.elapsed() < Duration::from_secs(60), "round {round}:\n{text}");
    }
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} were refused");
}

#[test]
fn more_constants_than_registers_are_an_error() {
    let sums: String = (0..66_000).map(|i| format!("s += x[i] ^ {};\n", i * 7 + 100)).collect();
    let error = refused(&format!(
        "kernel void k(global int *x) {{ int i = get_global_id(0), s = 0; {sums} x[i] = s; }}"
    ));
    assert!(error.contains("65535 constants") && error.contains("kernel `k`"), "{error}");
}

#[test]
fn a_printf_of_more_values_than_an_instruction_counts_is_an_error() {
    let print = |n: usize| {
        format!(
            "kernel void k(global int *x) {{ int16 v = (int16)(x[0]); printf(\"{}\\n\", {}); }}",
            "%v16d ".repeat(n),
            vec!["v"; n].join(", ")
        )
    };
    let error = refused(&print(16));
    assert!(error.contains("256 values") && error.contains("255"), "{error}");
    let outcome = launch(&print(15), NdRange::line(1, 1), &LaunchOptions::default()).unwrap();
    assert_eq!(outcome.printf.matches('0').count(), 240);
}

#[test]
fn variables_of_more_bytes_than_an_offset_holds_are_errors() {
    for (text, wanted) in [
        // 2^32 bytes, which is 0 in 32 bits.
        (
            "kernel void k(global int *x) { local int a[1 << 30]; a[x[0]] = 1; x[0] = a[x[1]]; }",
            "`a` has 4294967296",
        ),
        (
            "kernel void k(global int *x) { int a[1 << 30]; a[x[0]] = 1; x[0] = a[x[1]]; }",
            "`a` has 4294967296",
        ),
        (
            "kernel void k(global int *x) { local int a[1 << 27], b[1 << 27], c[4]; a[x[0]] = b[x[0]] = c[x[0]] = 1; x[0] = a[x[1]] + b[x[1]] + c[x[1]]; }",
            "1073741824 bytes of local variables",
        ),
        (
            "kernel void k(global int *x) { int a[1 << 27]; a[x[0]] = 1; x[0] = a[x[1]]; }",
            "536870912 bytes of private memory per work-item",
        ),
        (
            "struct s { int a[1 << 20]; }; kernel void k(global struct s *x) { x[0] = x[1]; }",
            "a value of 1048576 elements",
        ),
    ] {
        let error = refused(text);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn local_memory_beyond_32_bits_is_an_error_and_not_cut() {
    let memory = Memory::new(1 << 20);
    let program = build("kernel void k(local int *a) { a[get_local_id(0)] = 1; }");
    for bytes in [1usize << 32, (1 << 32) + 64, usize::MAX] {
        let error = program.launch(
            &memory,
            "k",
            &[Arg::Local(bytes)],
            NdRange::line(8, 8),
            &LaunchOptions::default(),
        );
        assert!(error.unwrap_err().to_string().contains("local memory"));
    }
}

#[test]
fn ranges_that_64_bits_do_not_count_are_errors() {
    let text = "kernel void k(global int *x) { x[0] = 1; }";
    for range in [
        NdRange::plane([1 << 40, 1 << 40], [1, 1]),
        NdRange { offset: [u64::MAX, 0, 0], ..NdRange::line(8, 8) },
    ] {
        let error = launch(text, range, &LaunchOptions::default()).unwrap_err().to_string();
        assert!(error.contains("64 bits"), "{error}");
    }
}

#[test]
fn arguments_behind_those_that_an_address_can_name_are_their_own() {
    let parameters: Vec<String> = (0..300).map(|i| format!("global int *a{i}")).collect();
    let program =
        build(&format!("kernel void k({}) {{ a299[0] = a298[0] + a254[0]; }}", parameters.join(", ")));
    let memory = Memory::new(1 << 20);
    let args: Vec<Arg<'_>> = (0..300u32)
        .map(|i| {
            let address = memory.allocate(4, "a").unwrap();
            memory.write(address, &i.to_le_bytes()).unwrap();
            Arg::Buffer { address, bytes: 4, access: Access::Write }
        })
        .collect();
    let outcome =
        program.launch(&memory, "k", &args, NdRange::line(1, 1), &LaunchOptions::default()).unwrap();
    assert!(outcome.findings.is_empty());
    let Arg::Buffer { address, .. } = args[299] else { panic!("a buffer") };
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes).unwrap();
    assert_eq!(u32::from_le_bytes(bytes), 298 + 254);
}

const ENDLESS: &str =
    "kernel void k(global volatile int *x) {\n  int i = get_global_id(0);\n  while (x[i] == 0);\n}";

#[test]
fn an_endless_loop_ends_at_the_limit_of_steps() {
    let options = LaunchOptions { max_steps: 100_000, max_time: None, ..LaunchOptions::default() };
    let error = launch(ENDLESS, NdRange::line(64, 8), &options).unwrap_err().to_string();
    assert!(error.contains("after 100000 instructions") && error.contains("limits.cl:3:"), "{error}");
}

#[test]
fn an_endless_loop_ends_at_the_limit_of_time() {
    for (checks, threads) in [(Checks::NONE, 1), (Checks::ALL, 2)] {
        let options = LaunchOptions {
            max_steps: u64::MAX,
            max_time: Some(Duration::from_millis(200)),
            counters: true,
            checks,
            threads,
            ..LaunchOptions::default()
        };
        let start = Instant::now();
        let error = launch(ENDLESS, NdRange::line(64, 8), &options).unwrap_err().to_string();
        assert!(error.contains("after 200ms") && error.contains("limits.cl:3:"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
}

#[test]
fn the_limits_are_there_without_being_asked_for() {
    let options = LaunchOptions::default();
    assert!(options.max_steps <= 1_000_000_000);
    assert!(options.max_time.is_some_and(|t| t <= Duration::from_secs(60)));
}

#[test]
fn a_copy_of_more_elements_than_steps_are_left_is_stopped() {
    let text = "kernel void k(global int *x) { local int a[8]; event_t e = async_work_group_copy(a, x, (size_t)1 << 60, 0); wait_group_events(1, &e); }";
    let error = launch(text, NdRange::line(8, 8), &LaunchOptions::default()).unwrap_err().to_string();
    assert!(error.contains("still running"), "{error}");
}

#[test]
fn an_endless_printf_does_not_fill_memory() {
    let text = "kernel void k(global volatile int *x) { while (x[0] == 0) printf(\"%1000d\\n\", x[0]); }";
    let options = LaunchOptions { max_steps: 200_000, ..LaunchOptions::default() };
    assert!(launch(text, NdRange::line(64, 64), &options).is_err());
    let text = "kernel void k(global int *x) { for (int i = 0; i < 5000; i++) printf(\"%1000d\\n\", i); }";
    let outcome = launch(text, NdRange::line(1, 1), &LaunchOptions::default()).unwrap();
    assert!(outcome.printf.len() < 2 << 20 && outcome.printf.contains("the rest is left out"));
}
