//! `netcl sim run`: every kind of `--arg`, and the errors for those that do not fit.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts};
use serde_json::Value;
use std::path::Path;

fn run(file: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = netcl();
    command.args(["sim", "run"]).arg(file).args(["--global", "4"]);
    args.iter().for_each(|a| _ = command.args(["--arg", a]));
    let output = command.arg("--json").output().unwrap();
    let (out, err) = texts(&output);
    (output.status.code().unwrap_or(-1), out, err)
}

#[test]
fn every_kind_of_argument_reaches_the_kernel() {
    let dir = folder("sim-args");
    let data = dir.join("data.bin");
    std::fs::write(&data, [7u8, 0, 8, 0, 9, 0, 10, 0, 11, 0]).unwrap();
    let file = format!("buffer:i16:4:@{}:read", data.display());
    // Type in OpenCL C, the argument, the first values of `out`: `out[i] = (float)x` for each way to pass x.
    for (parameter, value, arg, expected) in [
        ("__global const int *x", "x[i]", "buffer:i32:4:iota:read", "0 1 2 3"),
        ("__global const uchar *x", "x[i]", "buffer:u8:4:200:read", "200 200 200 200"),
        ("__global const float *x", "x[i]", "buffer:f32:4:-1.5", "-1.5 -1.5 -1.5 -1.5"),
        ("__global const double *x", "x[i]", "buffer:f64:4:iota", "0 1 2 3"),
        ("__global const half *x", "vload_half(i, x)", "buffer:f16:4:0.25:read", "0.25 0.25 0.25 0.25"),
        ("__global const long *x", "x[i]", "buffer:i64:4:zero", "0 0 0 0"),
        ("__global const ulong *x", "x[i]", "buffer:u64:4:5", "5 5 5 5"),
        ("__constant short *x", "x[i]", file.as_str(), "7 8 9 10"),
        ("__global const float *x", "x[i] >= -1.0f && x[i] < 1.0f", "buffer:f32:4:random:read", "1 1 1 1"),
        ("__global const uint *x", "x[i] < 100", "buffer:u32:4:read", "1 1 1 1"),
        ("__global int *x", "(x[i] = i + 1)", "buffer:i32:4", "1 2 3 4"),
        ("__global int *x", "(x[i] = i)", "buffer:i32:4:unwritten", "0 1 2 3"),
        ("int x", "x", "i32:-7", "-7 -7 -7 -7"),
        ("uchar x", "x", "u8:255", "255 255 255 255"),
        ("char x", "x", "i8:-128", "-128 -128 -128 -128"),
        ("ushort x", "x", "u16:65535", "65535 65535 65535 65535"),
        ("short x", "x", "i16:-3", "-3 -3 -3 -3"),
        ("uint x", "x", "u32:12", "12 12 12 12"),
        ("long x", "x", "i64:-9", "-9 -9 -9 -9"),
        ("ulong x", "x", "u64:6", "6 6 6 6"),
        ("float x", "x", "f32:1e-2", "0.01 0.01 0.01 0.01"),
        ("double x", "x", "f64:0.5", "0.5 0.5 0.5 0.5"),
        ("float4 x", "((float *)&x)[i]", "f32x4:1,2,3,4.5", "1 2 3 4.5"),
        ("int3 x", "x.z * 10 + x.x", "i32x3:1,2,3", "31 31 31 31"),
        ("uchar2 x", "x.y", "u8x2: 3, 4", "4 4 4 4"),
        ("__local int *x", "(x[i] = i * 2)", "local:i32:4", "0 2 4 6"),
    ] {
        let kernel = format!(
            "__kernel void k(__global float *out, {parameter}) {{ int i = get_global_id(0); out[i] = (float)({value}); }}"
        );
        let path = dir.join("k.cl");
        std::fs::write(&path, kernel).unwrap();
        let (code, out, err) = run(&path, &["buffer:f32:4", arg]);
        assert_eq!(code, 0, "{arg}: {out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        let first: Vec<String> = report["buffers"][0]["first"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap().to_string())
            .collect();
        assert_eq!(first.join(" "), expected, "{parameter} {arg}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    let dir = folder("sim-wrong-args");
    let path = dir.join("k.cl");
    let kernel = "__kernel void k(__global int *out, int n, __local float *t, float4 v) { out[get_global_id(0)] = n; }";
    std::fs::write(&path, kernel).unwrap();
    let fits = ["buffer:i32:4", "i32:1", "local:f32:4", "f32x4:1,2,3,4"];
    let (code, out, err) = run(&path, &fits);
    assert_eq!(code, 0, "{out}{err}");
    let short = dir.join("short.bin");
    std::fs::write(&short, [1u8, 2, 3]).unwrap();
    let short = format!("buffer:i32:4:@{}", short.display());
    // Index of the replaced argument, its replacement, the exit code, part of the message.
    for (at, arg, code, part) in [
        (0, "buffer:i33:4", 2, "unknown type \"i33\"; the types are i8"),
        (0, "buffer:i32:many", 2, "\"many\" is not a number of elements"),
        (0, "buffer:i32:4:loud", 2, "a buffer's content is unwritten, random, iota, zero, a value, or @FILE"),
        (0, "buffer:i32:4:zero:write", 2, "only read is possible"),
        (0, "buffer:i32", 2, "expected buffer:<type>:<count>"),
        (0, "i32:4", 1, "argument 0 of kernel k is "),
        (0, short.as_str(), 1, "3 bytes, but the buffer has 16"),
        (0, "buffer:i32:4:@/nonexistent/file", 1, "/nonexistent/file"),
        (1, "i32:4.5", 2, "\"4.5\" is not of type i32"),
        (1, "i32:5000000000", 2, "is not of type i32"),
        (1, "i64:4", 1, "argument 1 of kernel k is int n"),
        (1, "buffer:i32:4", 1, "argument 1 of kernel k is int n"),
        (2, "local:f32", 2, "expected local:<type>:<count>"),
        (2, "local:f99:4", 2, "unknown type \"f99\""),
        (2, "buffer:f32:4", 1, "argument 2 of kernel k is "),
        (3, "f32x4:1,2,3", 2, "3 values for 4 lanes"),
        (3, "f32x2:1,2", 1, "argument 3 of kernel k is float4 v"),
        (3, "seven", 2, "<type>:<value>, {"),
    ] {
        let mut args = fits;
        args[at] = arg;
        let (got, out, err) = run(&path, &args);
        assert!(got == code && err.contains(part), "{arg}: exit code {got}, {out}{err}");
    }
    let (code, _, err) = run(&path, &fits[..3]);
    assert!(
        code == 1 && err.contains("3 arguments for kernel k, which takes 4: int* out")
            || err.contains("which takes 4"),
        "{code} {err}"
    );
    std::fs::remove_dir_all(dir).unwrap();
}

/// Runs the only kernel of a source in a separate folder, whose name contains a space.
fn text(name: &str, kernel: &str, args: &[&str]) -> (i32, String, String, std::path::PathBuf) {
    let dir = folder(name).join("a folder");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("k.h"), "#define FROM_HEADER 5\n").unwrap();
    let path = dir.join("k.cl");
    std::fs::write(&path, kernel).unwrap();
    let output = netcl().args(["sim", "run"]).arg(&path).args(args).output().unwrap();
    let (out, err) = texts(&output);
    (output.status.code().unwrap_or(-1), out, err, dir)
}

#[test]
fn types_are_compared_with_the_kernels() {
    let kernel = "kernel void k(global float *x, uint n) { x[get_global_id(0)] = n; }";
    for (args, wanted) in [
        (["buffer:f64:4", "u32:3"], "buffer:f32"),
        (["buffer:f32:4", "f32:3"], "u32:<value>"),
        (["buffer:f32:4", "u32x2:3,4"], "u32:<value>"),
        (["f32:1", "u32:3"], "buffer"),
        (["buffer:i32:4", "u32:3"], "buffer:f32"),
    ] {
        let given = ["--global", "4", "--arg", args[0], "--arg", args[1]];
        let (code, out, err, dir) = text("sim-types", kernel, &given);
        assert!(code == 1 && err.contains(wanted), "{args:?}: {code} {out}{err}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn structures_null_offsets_dimensions_and_macros_with_blanks_reach_the_kernel() {
    let kernel = "#include \"k.h\"
        typedef struct { char c; float4 v; struct { short a[2]; } in; } S;
        kernel void k(global float *y, S s, global int *none, T plus) {
          y[get_global_id(0)] = s.c + s.v.w + s.in.a[1] + (none == 0) * 1000 + plus + FROM_HEADER + 10000 * get_work_dim();
        }";
    let args = [
        "-D",
        "T=unsigned int",
        "--global",
        "4,1",
        "--offset",
        "2,0",
        "--arg",
        "buffer:f32:6:zero",
        "--arg",
        "{i8:1,f32x4:0 0 0 2,{{i16:0,i16:3}}}",
        "--arg",
        "null",
        "--arg",
        "u32:4",
        "--json",
    ];
    let (code, out, err, dir) = text("sim-struct", kernel, &args);
    assert_eq!(code, 0, "{out}{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    let sum = 21015.0;
    assert_eq!(json["buffers"][0]["first"], serde_json::json!([0.0, 0.0, sum, sum, sum, sum]));
    std::fs::remove_dir_all(dir).unwrap();
    let wrong = [
        "-D",
        "T=int",
        "--global",
        "4",
        "--arg",
        "buffer:f32:6",
        "--arg",
        "{i8:1,f32:2}",
        "--arg",
        "null",
        "--arg",
        "u32:4",
    ];
    let (code, _, err, dir) = text("sim-struct-wrong", kernel, &wrong);
    assert!(code == 1 && err.contains("{i8:<value>,f32x4:<values>,"), "{err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn buffers_go_to_files_and_come_from_them() {
    let kernel = "kernel void k(global const float *x, global float *y) { y[get_global_id(0)] = 2 * x[get_global_id(0)]; }";
    let dir = folder("sim-out");
    let (npy, raw) = (dir.join("y.npy"), dir.join("x.bin"));
    let given = [format!("y={}", npy.display()), format!("x={}", raw.display())];
    let args = [
        "--global",
        "4",
        "--arg",
        "buffer:f32:4:iota:read",
        "--arg",
        "buffer:f32:4",
        "--out",
        &given[0],
        "--out",
        &given[1],
    ];
    let (code, out, err, one) = text("sim-out-run", kernel, &args);
    assert_eq!(code, 0, "{out}{err}");
    let bytes = std::fs::read(&npy).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY") && bytes.ends_with(&6f32.to_le_bytes()));
    assert_eq!(std::fs::read(&raw).unwrap().len(), 16);
    let again = format!("buffer:f32:4:@{}:read", npy.display());
    let args = ["--global", "4", "--arg", &again, "--arg", "buffer:f32:4"];
    let (code, out, err, two) = text("sim-out-again", kernel, &args);
    assert!(code == 0 && out.contains("y (4 elements): 0 4 8 12"), "{out}{err}");
    for dir in [dir, one, two] {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn an_access_outside_is_found_without_asking_and_a_launch_that_fails_is_another_code() {
    let kernel = "kernel void k(global int *x) { x[get_global_id(0) + 1] = 7; }";
    let (code, out, err, dir) = text("sim-bounds", kernel, &["--global", "4", "--arg", "buffer:i32:4:zero"]);
    assert!(code == 7 && out.contains("write-outside") && err.contains("1 finding in"), "{code}: {out}{err}");
    assert!(out.contains("the store writes 7") && out.contains("hint: "), "{out}");
    std::fs::remove_dir_all(dir).unwrap();
    let none = ["--global", "4", "--arg", "buffer:i32:4:zero", "--check", "none"];
    let (code, _, _, dir) = text("sim-bounds-none", kernel, &none);
    assert_eq!(code, 0);
    std::fs::remove_dir_all(dir).unwrap();
    // One of eight work-items never ends.
    let endless = "kernel void k(global int *x) {\n  if (get_global_id(0) == 3) while (x[0] == 0);\n}";
    let args = ["--global", "8", "--arg", "buffer:i32:8:zero", "--timeout", "0.3", "--check", "all"];
    let (code, _, err, dir) = text("sim-endless", endless, &args);
    assert!(code == 6 && err.contains("kernel k") && err.contains("k.cl:2:"), "{code}: {err}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn images_and_samplers_are_arguments() {
    let kernel = "kernel void k(read_only image2d_t a, sampler_t s, write_only image1d_t b) {
      int i = get_global_id(0);
      write_imageui(b, i, (uint4)(255.0f * read_imagef(a, s, (int2)(i, 1)).y + 0.5f));
    }";
    let args = ["image:rgba:unorm8:2x2:iota:read", "sampler:edge", "image:r:u16:4"];
    let launch = |args: [&str; 3]| {
        let with = args.iter().flat_map(|a| ["--arg", a]);
        let all: Vec<&str> = ["--global", "4"].into_iter().chain(with).chain(["--json"]).collect();
        let (code, out, err, dir) = text("sim-images", kernel, &all);
        std::fs::remove_dir_all(dir.parent().unwrap()).unwrap();
        (code, out, err)
    };
    let (code, out, err) = launch(args);
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    // Rows have 8 numbers: the second channel of the second row's two texels, then the last texel again beyond the edge.
    assert_eq!(report["buffers"][0]["name"], "b");
    assert_eq!(report["buffers"][0]["first"].to_string(), "[9,13,13,13]");
    for (at, arg, part) in [
        (0, "image:rgba:unorm8:4:iota", "an image2d_t has 2 sizes"),
        (1, "u32:1", "sampler:<mode>"),
        (2, "buffer:u16:4", "image:<channels>:<type>:<width>"),
    ] {
        let mut wrong = args;
        wrong[at] = arg;
        let (code, out, err) = launch(wrong);
        assert!(code == 1 && err.contains(part), "{arg}: {code} {out}{err}");
    }
}

#[test]
fn a_page_has_the_run() {
    let kernel = "kernel void k(global float *x) {\n  x[get_global_id(0)] *= 2; // </script>\n}";
    let dir = folder("sim-page");
    let page = dir.join("report.html");
    let args = ["--global", "4", "--arg", "buffer:f32:4:iota", "--html", page.to_str().unwrap()];
    let (code, out, err, own) = text("sim-page-kernel", kernel, &args);
    assert_eq!(code, 0, "{out}{err}");
    let text = std::fs::read_to_string(&page).unwrap();
    let data = text.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>")).unwrap().0;
    let report: Value = serde_json::from_str(data).unwrap();
    let device = &report["devices"][0];
    let line = &device["kernels"][0]["lines"][0];
    assert_eq!((line["line"].as_u64(), line["did"]["executions"].as_u64()), (Some(2), Some(4)));
    assert!(device["sources"][0]["text"].as_str().unwrap().contains("</script>"));
    assert_eq!(device["commands"].as_array().unwrap().len(), 3);
    std::fs::remove_dir_all(own.parent().unwrap()).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
