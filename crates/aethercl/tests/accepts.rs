//! Constructs that other compilers accept and existing programs use, from source to result.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use aethercl::{Access, Arg, Includes, LaunchOptions, Memory, NdRange, Program, Source};

/// Returns the first integers of a buffer of 16 zeroes after kernel `k`.
fn run(text: &str, options: &str, count: usize) -> Vec<i32> {
    let source = Source { name: "test.cl", text };
    let program = Program::build(&source, options, &Includes::none()).unwrap_or_else(|e| panic!("{}", e.log));
    let memory = Memory::new(1 << 20);
    let at = memory.allocate(64, "x").unwrap();
    memory.write(at, &[0; 64]).unwrap();
    let args = [Arg::Buffer { address: at, bytes: 64, access: Access::Write }];
    program.launch(&memory, "k", &args, NdRange::line(1, 1), &LaunchOptions::default()).unwrap();
    let mut bytes = vec![0; count * 4];
    memory.read(at, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn enumerators_have_the_type_that_holds_them() {
    let text = "enum a { A = 0x80000000, B, C = 1 };
        enum b { D = -1, E = 0xffffffff, F };
        typedef enum { G = 0xffffffffffffffff } c;
        kernel void k(global int *x) {
            x[0] = A == 2147483648u; x[1] = sizeof(A) == 4 && sizeof(C) == 4 && B - A == 1; x[2] = -C < 0;
            x[3] = sizeof(enum b) == 8; x[4] = E + 1 == 4294967296L; x[5] = F == 4294967296L; x[6] = D < 0;
            c g = G; x[7] = g == ULONG_MAX; x[8] = A > 0;
        }";
    assert_eq!(run(text, "", 9), [1; 9]);
}

#[test]
fn infinities_and_nans_are_constants() {
    let text = "constant float a[] = { INFINITY, -INFINITY, NAN, HUGE_VALF };
        constant float4 q = (float4)(INFINITY);
        constant int bits = as_int(1.0f);
        kernel void k(global int *x) {
            const float t[2] = { INFINITY, NAN };
            x[0] = isinf(a[0]) && a[0] > 0; x[1] = a[1] < 0; x[2] = isnan(a[2]) && isnan(t[1]) && 128ULL == 128UL && sizeof(1ll) == 8;
            x[3] = a[3] == q.w && t[0] == q.x; x[4] = bits == 0x3f800000;
        }";
    assert_eq!(run(text, "", 5), [1; 5]);
}

#[test]
fn a_mark_of_utf8_is_passed_over() {
    assert_eq!(run("\u{feff}kernel void k(global int *x) { x[0] = 7; }", "", 1), [7]);
}

#[test]
fn pointers_of_another_type_are_warnings() {
    let text = "void f(global uint *p) { p[0] = 1; }
        kernel void k(global int *x) {
            f(x);
            global float *z = x + 1; z[0] = 1.0f;
            x[2] = x == (global float *)x;
            global short *s; s = x + 3; s[1] = 1;
        }";
    assert_eq!(run(text, "", 4), [1, 0x3f80_0000, 1, 1 << 16]);
    let source = Source { name: "t.cl", text };
    let log = Program::build(&source, "-Wall", &Includes::none()).unwrap().hir().warnings.clone();
    assert!(log.contains("incompatible pointer types initializing '__global float *'"), "{log}");
    assert!(log.contains("pointer type mismatch"), "{log}");
    let spaces = "kernel void k(global int *x) { local int *y = x; }";
    let refused = Program::build(&Source { name: "t.cl", text: spaces }, "", &Includes::none());
    assert!(refused.unwrap_err().log.contains("changes address space of pointer"));
}

#[test]
fn bytes_of_words_are_multiplied() {
    // Bytes, lowest first: 1, -1, 2, 127 and 2, 3, -4, 127.
    let text = "kernel void k(global int *x) {
            uint a = 0x7f02ff01, b = 0x7ffc0302;
            x[0] = dot_4x8packed_ss_int(a, b);
            x[1] = dot_4x8packed_uu_uint(a, b);
            x[2] = dot_4x8packed_su_int(a, b);
            x[3] = dot_4x8packed_us_int(a, b);
            x[4] = dot_acc_sat_4x8packed_ss_int(a, b, INT_MAX);
            x[5] = dot_acc_sat_4x8packed_uu_uint(a, b, 0xffffffffu) == UINT_MAX;
        }";
    let (a, b) = ([1i32, -1, 2, 127], [2i32, 3, -4, 127]);
    let (ua, ub) = (a.map(|v| v & 255), b.map(|v| v & 255));
    let dot = |a: [i32; 4], b: [i32; 4]| (0..4).map(|i| a[i] * b[i]).sum::<i32>();
    let want = [dot(a, b), dot(ua, ub), dot(a, ub), dot(ua, b), i32::MAX, 1];
    assert_eq!(run(text, "", 6), want);
    // A program's function takes precedence over a built-in function of that name.
    let own = "int dot_4x8packed_ss_int(uint a, uint b) { return 5; }
        kernel void k(global int *x) { x[0] = dot_4x8packed_ss_int(1, 2); }";
    assert_eq!(run(own, "", 1), [5]);
}

#[test]
fn vectors_of_three_have_the_room_of_four() {
    let text = "kernel void k(global int *x) {
            char3 c = (char3)(1, 2, 3); short2 s = as_short2(c);
            x[0] = s.x; x[1] = s.y & 0xff; char3 d = as_char3((short2)(0x0201, 3)); x[2] = d.x + 10 * d.y + 100 * d.z;
        }";
    assert_eq!(run(text, "", 3), [0x0201, 3, 321]);
}

#[test]
fn a_missing_type_is_int() {
    let text =
        "kernel void k(global int *x) { const y = 3; static constant int z[1] = {4}; x[0] = y + z[0]; }";
    assert_eq!(run(text, "-cl-std=CL3.0", 1), [7]);
    let typo = "kernel void k(global int *x) { flot y = 3; }";
    assert!(Program::build(&Source { name: "t.cl", text: typo }, "", &Includes::none()).is_err());
}

#[test]
fn formats_have_the_lengths_of_c() {
    let text = "kernel void k(global int *x) { printf(\"%zu %lld\", get_global_id(0), 5L); }";
    let program = Program::build(&Source { name: "t.cl", text }, "", &Includes::none()).unwrap();
    let memory = Memory::new(1 << 20);
    let at = memory.allocate(64, "x").unwrap();
    let args = [Arg::Buffer { address: at, bytes: 64, access: Access::Write }];
    let out = program.launch(&memory, "k", &args, NdRange::line(1, 1), &LaunchOptions::default()).unwrap();
    assert_eq!(out.printf, "0 5");
}

#[test]
fn long_sums_and_long_chains_of_choices_build() {
    let sum: Vec<String> = (0..900).map(|i| format!("x[{}]", i % 16)).collect();
    let chain: String = (1..900).map(|i| format!("else if (a == {i}) x[2] = {i};\n")).collect();
    let text = format!(
        "kernel void k(global int *x) {{ for (int i = 0; i < 16; i++) x[i] = 1; x[0] = {}; int a = x[0] - 100; if (a == 0) x[2] = 5;\n{chain} }}",
        sum.join(" + ")
    );
    assert_eq!(run(&text, "", 3), [900, 1, 800]);
}

#[test]
fn sizes_are_asked_for_by_a_variable() {
    let text = "kernel void k(global int *x) { for (int d = 0; d < 4; d++) { x[d] = get_global_size(d); x[d + 4] = get_local_id(d) + get_group_id(d) + get_global_id(d) + get_num_groups(d) + get_local_size(d) + get_global_offset(d); } }";
    assert_eq!(run(text, "", 8), [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn lists_of_values_stand_in_blocks_with_labels() {
    let text = "kernel void k(global int *x) {
            int n = 0, rounds = 0;
            {
                int t[3] = { 1, 2, 3 };
                struct { int a, b; } p = { 10, 20 };
            again:
                n += t[rounds]; t[2] += 100; p.a++;
                if (++rounds < 3) goto again;
                x[0] = n; x[1] = t[2]; x[2] = p.a; x[3] = p.b;
            }
            int round = 0;
        anew:
            { int u[2] = { 5 }; u[1] += u[0] + round; x[4 + round] = u[1]; }
            int w[2] = { round, 7 };
            x[7 + round] = w[0] + w[1];
            w[1] = 50;
            if (++round < 3) goto anew;
            goto end;
            x[0] = -1;
        end:
            x[10] = w[1];
        }";
    assert_eq!(run(text, "", 11), [1 + 2 + 203, 303, 13, 20, 5, 6, 7, 7, 8, 9, 50]);
}

#[test]
fn constants_of_double_and_atomic_variables() {
    let text = "constant double h = HUGE_VAL;
        global atomic_uint a = ATOMIC_VAR_INIT(5); atomic_long b = 7;
        kernel void k(global int *x) {
            x[0] = sizeof(HUGE_VAL) == 8 && sizeof(INFINITY) == 4 && as_ulong(h) == 0x7ff0000000000000UL;
            x[1] = atomic_load(&a); x[2] = (int)atomic_load(&b);
        }";
    assert_eq!(run(text, "-cl-std=CL3.0", 3), [1, 5, 7]);
}

#[test]
fn a_vector_chooses_between_scalars_of_its_width() {
    let text = "kernel void k(global int *x) {
            char2 m = (char2)(-1, 0); char a = 3, b = 4; char2 r = m ? a : b;
            x[0] = r.x; x[1] = r.y;
            ushort4 w = (short4)(0, -1, 0, -1) ? (ushort)1 : (ushort)65535; x[2] = w.x; x[3] = w.w;
        }";
    assert_eq!(run(text, "", 4), [3, 4, 65535, 1]);
}

#[test]
fn lengths_of_doubles_neither_overflow_nor_vanish() {
    let text = "kernel void k(global int *x) {
            x[0] = length((double2)(3e300, 4e300)) == 5e300; x[1] = fabs(length((double3)(3e-300, 0, 4e-300)) / 5e-300 - 1) < 1e-15;
            x[2] = distance((double2)(1e308, 0), (double2)(-5e307, 0)) == 1.5e308;
            double2 n = normalize((double2)(3e-310, -4e-310)); x[3] = fabs(n.x - 0.6) < 1e-12 && fabs(n.y + 0.8) < 1e-12;
            x[4] = isinf(length((double2)(INFINITY, 1))) && length((double2)(0, 0)) == 0;
            x[5] = normalize((double2)(0, 0)).x == 0 && isinf(length((double2)(1.7e308, 1.7e308)));
        }";
    assert_eq!(run(text, "", 6), [1; 6]);
}

#[test]
fn a_variable_declared_extern_is_the_one_defined() {
    let text = "extern constant int later[];
        kernel void k(global int *x) {
            extern constant int before; x[0] = later[1]; x[1] = before;
        }
        constant int later[2] = { 1, 2 };
        constant int before = 3;";
    assert_eq!(run(text, "", 2), [2, 3]);
    let text = "constant struct p { int a; } q = { 4 }; struct p { int a; }; kernel void k(global int *x) { x[0] = q.a; }";
    assert_eq!(run(text, "", 1), [4]);
    let other = "struct p { int a; }; struct p { uint a; }; kernel void k(global int *x) { x[0] = 1; }";
    let source = Source { name: "test.cl", text: other };
    let refused = Program::build(&source, "", &Includes::none()).err().unwrap();
    assert!(refused.log.contains("redefinition of 'struct p'"), "{}", refused.log);
}

#[test]
fn labels_of_a_switch_may_stand_in_inner_blocks() {
    // Duff's device, a label in an `if`, a label after a `goto` label, a body without braces.
    let text = "int copy(int n) {
            int done = 0; int k = (n + 3) / 4;
            switch (n % 4) { case 0: do { done++; case 3: done++; case 2: done++; case 1: done++; } while (--k > 0); }
            return done;
        }
        int way(int n) {
            int r = 0;
            for (int i = 0; i < 3; i++) {
                switch (n) {
                    int hidden;
                    case 1: r += 1; if (n == 7) { case 2: hidden = 10; r += hidden; break; } else { default: r += 100; }
                    switch (r) { case 5: break; }
                    if (i == 1) continue;
                    { case 3 ... 4: r += 1000; }
                    while (1) { case 9: break; }
                }
            }
            return r;
        }
        kernel void k(global int *x) {
            for (int n = 1; n < 6; n++) x[n - 1] = copy(n) == n;
            for (int n = 1; n < 5; n++) x[n + 4] = way(n);
            x[9] = way(9); x[10] = way(50);
            switch (x[0]) case 1: x[11] = 5;
            switch (x[0]) { case 0: { case 2: x[12] = 5; } }
        }";
    let want = [1, 1, 1, 1, 1, 3 + 300 + 2000, 30, 3000, 3000, 0, 300 + 2000, 5, 0];
    assert_eq!(run(text, "", 13), want);
}

#[test]
fn variables_of_the_constant_space_are_constants() {
    let text = "constant float a = 16.0f, b = 255.0f; constant float c = a / b; constant int4 v = (int4)(1, 2, 3, 4);
        constant int4 u = v * 2; constant int n = 3;
        kernel void k(global int *x) { x[0] = c == 16.0f / 255.0f; x[1] = u.z; switch (x[1]) { case n + 3: x[2] = 1; } }";
    assert_eq!(run(text, "", 3), [1, 6, 1]);
}
