//! Whole kernels from source to result.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use aethercl::{
    Access, Arg, Checks, Includes, LaunchOptions, LaunchOutcome, Memory, NdRange, Program, Source,
};

fn build(text: &str) -> Program {
    build_with(text, "")
}

fn build_with(text: &str, options: &str) -> Program {
    Program::build(&Source { name: "test.cl", text }, options, &Includes::none())
        .unwrap_or_else(|e| panic!("{}", e.log))
}

fn upload(memory: &Memory, tag: &str, data: &[f32]) -> u64 {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = memory.allocate(bytes.len() as u64, tag).unwrap();
    memory.write(at, &bytes).unwrap();
    at
}

fn download(memory: &Memory, at: u64, n: usize) -> Vec<f32> {
    let mut bytes = vec![0; n * 4];
    memory.read(at, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

fn launch(p: &Program, m: &Memory, name: &str, args: &[Arg<'_>], range: NdRange) -> LaunchOutcome {
    p.launch(m, name, args, range, &LaunchOptions { threads: 2, ..LaunchOptions::default() }).unwrap()
}

#[test]
fn a_matrix_product_from_text_to_result() {
    let program = build(
        "__kernel void matmul(__global const float *a, __global const float *b, __global float *c, int n) {
           int row = get_global_id(1), col = get_global_id(0);
           float acc = 0.0f;
           for (int k = 0; k < n; k++) acc += a[row * n + k] * b[k * n + col];
           c[row * n + col] = acc;
         }",
    );
    let n = 48usize;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 5) as f32 - 2.0).collect();
    let memory = Memory::new(1 << 20);
    let (da, db, dc) =
        (upload(&memory, "a", &a), upload(&memory, "b", &b), upload(&memory, "c", &vec![9.0; n * n]));
    let bytes = (n * n * 4) as u64;
    let size = (n as i32).to_le_bytes();
    let args = [
        Arg::Buffer { address: da, bytes, access: Access::Read },
        Arg::Buffer { address: db, bytes, access: Access::Read },
        Arg::Buffer { address: dc, bytes, access: Access::Write },
        Arg::Scalar(&size),
    ];
    launch(&program, &memory, "matmul", &args, NdRange::plane([48, 48], [16, 16]));
    let c = download(&memory, dc, n * n);
    for row in 0..n {
        for col in 0..n {
            let exact: f32 = (0..n).map(|k| a[row * n + k] * b[k * n + col]).sum();
            assert_eq!(c[row * n + col], exact, "{row} {col}");
        }
    }
}

#[test]
fn variables_of_program_scope_keep_what_launches_write() {
    let text = "__global int counter = 5; __global float last[2];
         __kernel void count(void) { atomic_inc(&counter); last[1] = 2.5f; }
         __kernel void read(__global float *out) { out[0] = counter; out[1] = last[1]; }";
    let read = |program: &Program| {
        let memory = Memory::new(1 << 16);
        let out = upload(&memory, "out", &[0.0; 2]);
        let args = [Arg::Buffer { address: out, bytes: 8, access: Access::Write }];
        launch(program, &memory, "read", &args, NdRange::line(1, 1));
        download(&memory, out, 2)
    };
    let program = build_with(text, "-cl-std=CL2.0");
    assert_eq!(read(&program), [5.0, 0.0]);
    for _ in 0..2 {
        launch(&program, &Memory::new(1 << 16), "count", &[], NdRange::line(8192, 64));
    }
    assert_eq!(read(&program), [5.0 + 2.0 * 8192.0, 2.5]);
    // Another build of the same source has its own variables.
    assert_eq!(read(&build_with(text, "-cl-std=CL2.0")), [5.0, 0.0]);
}

#[test]
fn checks_change_neither_counters_nor_results() {
    let p = build(
        "kernel void k(global float *x, global int *n) {
           local float t[4][8];
           int l = get_local_id(0);
           t[l / 8][l % 8] = x[l] / (l + 1);
           barrier(CLK_LOCAL_MEM_FENCE);
           x[l] = t[3 - l / 8][7 - l % 8];
           atomic_inc(n);
         }",
    );
    let run = |checks: Checks| {
        let m = Memory::new(1 << 20);
        let (x, n) = (upload(&m, "x", &[3.0; 32]), upload(&m, "n", &[0.0]));
        let buffer = |address, bytes| Arg::Buffer { address, bytes, access: Access::Write };
        let options = LaunchOptions { checks, counters: true, ..LaunchOptions::default() };
        let args = [buffer(x, 128), buffer(n, 4)];
        let done = p.launch(&m, "k", &args, NdRange::line(32, 32), &options).unwrap();
        (done.counters, download(&m, x, 32), download(&m, n, 1)[0].to_bits(), done.findings)
    };
    let (plain, checked) = (run(Checks::NONE), run(Checks::ALL));
    assert_eq!((plain.2, checked.2), (32, 32));
    assert_eq!(plain, checked);
}

/// Returns the counters of 32 work-items of `k(z, x)`. Each buffer has 32 * 64 floats.
fn counted(text: &str) -> aethercl::counters::Counters {
    let program = build(text);
    let memory = Memory::new(1 << 20);
    let [z, x] = ["z", "x"].map(|tag| upload(&memory, tag, &[1.0; 32 * 64]));
    let bytes = 32 * 64 * 4;
    let args = [
        Arg::Buffer { address: z, bytes, access: Access::Write },
        Arg::Buffer { address: x, bytes, access: Access::Read },
    ];
    let options = LaunchOptions { counters: true, ..LaunchOptions::default() };
    program.launch(&memory, "k", &args, NdRange::line(32, 32), &options).unwrap().counters
}

/// A load stays after a store that may be to the same address. `restrict` rules that out for other pointers.
#[test]
fn loads_wait_for_stores_that_may_alias() {
    let copy = |restrict: &str| {
        counted(&format!(
            "kernel void k(global float *{restrict} z, global const float *{restrict} x) {{
               uint i = get_global_id(0);
               for (uint n = 0; n < 64 + (uint)(x[0] > 5.0f); n++) z[n * 32 + i] = x[n * 32 + i] + 1.0f;
             }}"
        ))
    };
    let (apart, together) = (copy("restrict").chain.global_loads, copy("").chain.global_loads);
    assert!((16..=18).contains(&apart), "{apart}: four loads of a loop are on their way at a time");
    assert!((64..=66).contains(&together), "{together}: one after the other");
    let sum = "kernel void k(global float *restrict z, global const float *restrict x) {
      uint i = get_global_id(0);
      for (uint n = 0; n < 64; n++) z[i] += x[n * 32 + i];
    }";
    let sum = counted(sum).chain.global_loads;
    assert!((64..=65).contains(&sum), "{sum}: each sum begins with the one before");
}

/// `*(a + i)` is `a[i]`: an array used this way needs no memory.
#[test]
fn sums_of_arrays_and_indices_keep_arrays_in_registers() {
    for element in ["*(a + 1)", "*(1 + a)", "a[1]", "1[a]"] {
        let c = counted(&format!(
            "kernel void k(global float *z, global const float *x) {{
               float a[2]; *(a + 0) = x[get_global_id(0)]; {element} = 2.0f;
               for (int n = 0; n < 8; n++) *(a + 0) += {element};
               z[get_global_id(0)] = *(a + 0);
             }}"
        ));
        assert_eq!((c.operations.load_private, c.operations.store_private), (0, 0), "{element}");
    }
    // An index that is unknown at compile time needs memory. A sum that is not an element reference does not count as one.
    let c = counted(
        "kernel void k(global float *z, global const float *x) {
           float a[2] = { 1.0f, 2.0f };
           z[get_global_id(0)] = *(a + ((int)x[get_global_id(0)] & 1)) + *(1 + (a + 0));
         }",
    );
    assert!(c.operations.load_private > 0);
}
