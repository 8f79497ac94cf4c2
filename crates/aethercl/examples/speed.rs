//! Kernel speed: million operations per second for kernels of the usual kinds.
//!
//! `cargo run --release -p aethercl --example speed -- [threads] [kernel|all] [checks]`
//! `cargo run --release -p aethercl --example speed -- peer [threads]`: compared with `oclgrind-kernel` on the same kernels and inputs,
//! without checks, and with the race and memory checks on both sides. Oclgrind's time to start, to compile and to
//! read its inputs is subtracted: the time of a launch of one group of the same file.

use aethercl::{Access, Arg, Checks, Includes, LaunchOptions, Memory, NdRange, Program, Source};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const TEXT: &str = r"
#define N 128
__kernel void matmul(__global const float *a, __global const float *b, __global float *c, int n) {
  int row = get_global_id(1), col = get_global_id(0);
  float acc = 0.0f;
  for (int k = 0; k < n; k++) acc += a[row * n + k] * b[k * n + col];
  c[row * n + col] = acc;
}
__kernel void matmul_tile(__global const float *a, __global const float *b, __global float *c, int n) {
  __local float as[16][16], bs[16][16];
  int y = get_local_id(1), x = get_local_id(0), row = get_global_id(1), col = get_global_id(0);
  float acc = 0.0f;
  for (int t = 0; t < n; t += 16) {
    as[y][x] = a[row * n + t + x];
    bs[y][x] = b[(t + y) * n + col];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int k = 0; k < 16; k++) acc = fma(as[y][k], bs[k][x], acc);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c[row * n + col] = acc;
}
__kernel void row_sum(__global const float *a, __global const float *b, __global float *c, int n) {
  __local float s[64];
  int l = get_local_id(0);
  float sum = 0.0f;
  for (int i = l; i < n; i += 64) sum += a[get_group_id(0) * n + i];
  s[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = 32; h > 0; h >>= 1) {
    if (l < h) s[l] += s[l + h];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (l == 0) c[get_group_id(0)] = s[0];
}
__kernel void softmax(__global const float *a, __global const float *b, __global float *c, int n) {
  __local float s[64];
  int l = get_local_id(0);
  a += get_group_id(0) * n;
  c += get_group_id(0) * n;
  float top = -INFINITY, sum = 0.0f;
  for (int i = l; i < n; i += 64) top = fmax(top, a[i]);
  s[l] = top;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 64; i++) top = fmax(top, s[i]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = l; i < n; i += 64) sum += exp(a[i] - top);
  s[l] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  sum = 0.0f;
  for (int i = 0; i < 64; i++) sum += s[i];
  for (int i = l; i < n; i += 64) c[i] = exp(a[i] - top) / sum;
}
__kernel void layer_norm(__global const float *a, __global const float *b, __global float *c, int n) {
  int row = get_global_id(0);
  float mean = 0.0f, var = 0.0f;
  for (int i = 0; i < n; i++) mean += a[row * n + i];
  mean /= n;
  for (int i = 0; i < n; i++) { float d = a[row * n + i] - mean; var += d * d; }
  float r = rsqrt(var / n + 1e-5f);
  for (int i = 0; i < n; i++) c[row * n + i] = (a[row * n + i] - mean) * r * b[i];
}
__kernel void gelu(__global const float *a, __global const float *b, __global float *c, int n) {
  int i = get_global_id(0);
  float x = a[i];
  c[i] = 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}
__kernel void transpose(__global const float *a, __global const float *b, __global float *c, int n) {
  __local float t[16][17];
  int x = get_local_id(0), y = get_local_id(1), gx = get_group_id(0) * 16, gy = get_group_id(1) * 16;
  t[y][x] = a[(gy + y) * n + gx + x];
  barrier(CLK_LOCAL_MEM_FENCE);
  c[(gx + y) * n + gy + x] = t[x][y];
}
__kernel void histogram(__global const float *a, __global const float *b, __global uint *c, int n) {
  __local uint bins[64];
  int l = get_local_id(0);
  if (l < 64) bins[l] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 16; i++) atomic_inc(&bins[(int)(a[get_group_id(0) * 4096 + i * 256 + l] * 64.0f) & 63]);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (l < 64) atomic_add(&c[l], bins[l]);
}
__kernel void attention(__global const float *a, __global const float *b, __global float *c, int n) {
  int t = get_global_id(0);
  float q[16], o[16], top = -1e30f, sum = 0.0f;
  for (int d = 0; d < 16; d++) { q[d] = a[t * 16 + d]; o[d] = 0.0f; }
  for (int s = 0; s <= t; s++) {
    float score = 0.0f;
    for (int d = 0; d < 16; d++) score += q[d] * b[s * 16 + d];
    float high = fmax(top, score), by = exp(top - high), e = exp(score - high);
    sum = sum * by + e;
    for (int d = 0; d < 16; d++) o[d] = o[d] * by + e * b[s * 16 + d];
    top = high;
  }
  for (int d = 0; d < 16; d++) c[t * 16 + d] = o[d] / sum;
}
";

struct Case {
    name: &'static str,
    range: NdRange,
    n: i32,
    /// Operations of one launch: multiply-adds, or elements.
    operations: f64,
    unit: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |name, range, n, operations, unit| Case { name, range, n, operations, unit };
    vec![
        case("matmul", NdRange::plane([128, 128], [16, 16]), 128, 128f64.powi(3), "multiply-adds"),
        case("matmul_tile", NdRange::plane([128, 128], [16, 16]), 128, 128f64.powi(3), "multiply-adds"),
        case("row_sum", NdRange::line(64 * 256, 64), 1024, 256.0 * 1024.0, "elements"),
        case("softmax", NdRange::line(64 * 256, 64), 1024, 256.0 * 1024.0, "elements"),
        case("layer_norm", NdRange::line(512, 64), 256, 512.0 * 256.0, "elements"),
        case("gelu", NdRange::line(1 << 18, 256), 0, 262_144.0, "elements"),
        case("transpose", NdRange::plane([512, 512], [16, 16]), 512, 262_144.0, "elements"),
        case("histogram", NdRange::line(64 * 256, 256), 0, 262_144.0, "elements"),
        case("attention", NdRange::line(1024, 64), 0, 1024.0 * 1025.0 / 2.0 * 32.0, "multiply-adds"),
    ]
}

/// Elements of each of the three buffers.
const ELEMENTS: usize = 1 << 18;

fn inputs() -> Vec<f32> {
    (0..ELEMENTS).map(|i| (i * 37 % 1000) as f32 / 1000.0).collect()
}

/// The program and its buffers.
struct Bench {
    program: Program,
    memory: Memory,
    buffers: Vec<u64>,
    bytes: u64,
}

impl Bench {
    fn new() -> Result<Bench, String> {
        let program = Program::build(&Source { name: "speed.cl", text: TEXT }, "", &Includes::none());
        let program = program.map_err(|e| e.log)?;
        let memory = Memory::new(64 << 20);
        let data: Vec<u8> = inputs().iter().flat_map(|v| v.to_le_bytes()).collect();
        let bytes = data.len() as u64;
        let mut buffers = Vec::new();
        for tag in ["a", "b", "c"] {
            let at = memory.allocate(bytes, tag).map_err(|e| e.to_string())?;
            memory.write(at, &data).map_err(|e| e.to_string())?;
            buffers.push(at);
        }
        Ok(Bench { program, memory, buffers, bytes })
    }

    /// Returns the seconds of the fastest launch in 0.7 s of launches.
    fn seconds(&self, case: &Case, threads: usize, checks: Checks) -> Result<f64, String> {
        let n = case.n.to_le_bytes();
        let buffer = |i: usize, access| Arg::Buffer { address: self.buffers[i], bytes: self.bytes, access };
        let args =
            [buffer(0, Access::Read), buffer(1, Access::Read), buffer(2, Access::Write), Arg::Scalar(&n)];
        let options = LaunchOptions { threads, checks, ..LaunchOptions::default() };
        let (mut best, start) = (f64::MAX, Instant::now());
        while start.elapsed().as_secs_f64() < 0.7 {
            let begin = Instant::now();
            let launched = self.program.launch(&self.memory, case.name, &args, case.range, &options);
            let outcome = launched.map_err(|e| format!("{}: {e}", case.name))?;
            best = best.min(begin.elapsed().as_secs_f64());
            if let Some(finding) = outcome.findings.first() {
                return Err(finding.to_string());
            }
        }
        Ok(best)
    }
}

/// Returns the seconds of `oclgrind-kernel` for a case: the whole launch minus a launch of a single group, which has the other costs.
fn peer_seconds(folder: &Path, case: &Case, values: &str, flags: &[&str]) -> Result<f64, String> {
    let run = |global: [u64; 3]| -> Result<f64, String> {
        let three = |v: [u64; 3]| format!("{} {} {}", v[0], v[1], v[2]);
        let mut sim = format!("speed.cl\n{}\n{}\n{}\n", case.name, three(global), three(case.range.local));
        for _ in 0..3 {
            let _ = write!(sim, "<size={} float>\n{values}\n", 4 * ELEMENTS);
        }
        let _ = write!(sim, "<size=4 int>\n{}\n", case.n);
        std::fs::write(folder.join("speed.sim"), sim).map_err(|e| e.to_string())?;
        let mut command = Command::new("oclgrind-kernel");
        command.args(flags).arg("speed.sim").current_dir(folder).stdout(Stdio::null());
        let begin = Instant::now();
        let status = command.status().map_err(|e| format!("oclgrind-kernel: {e}"))?;
        if status.success() {
            Ok(begin.elapsed().as_secs_f64())
        } else {
            Err(format!("{}: {status}", case.name))
        }
    };
    // The shorter of two: other load on the machine can only make it longer.
    let start = run(case.range.local)?.min(run(case.range.local)?);
    Ok(run(case.range.global)? - start)
}

/// Prints a table of both simulators, in seconds per launch and as a ratio.
#[allow(clippy::print_stdout, reason = "a program that prints its result")]
fn compare_with_peer(threads: usize) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("aethercl-speed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    std::fs::write(folder.join("speed.cl"), TEXT).map_err(|e| e.to_string())?;
    let values: String = inputs().iter().map(|v| format!("{v} ")).collect();
    let bench = Bench::new()?;
    println!("| kernel | Oclgrind, s | here, ms | times | with checks: Oclgrind, s | here, ms | times |");
    println!("|---|---|---|---|---|---|---|");
    for case in cases() {
        let plain = bench.seconds(&case, threads, Checks::NONE)?;
        let peer = peer_seconds(&folder, &case, &values, &[])?;
        let checked = bench.seconds(&case, threads, Checks::ALL)?;
        let flags = ["--data-races", "--uninitialized"];
        let peer_checked = peer_seconds(&folder, &case, &values, &flags)?;
        println!(
            "| {} | {peer:.2} | {:.2} | {:.0} | {peer_checked:.2} | {:.2} | {:.0} |",
            case.name,
            plain * 1e3,
            peer / plain,
            checked * 1e3,
            peer_checked / checked
        );
    }
    std::fs::remove_dir_all(&folder).map_err(|e| e.to_string())
}

#[allow(clippy::print_stdout, reason = "a program that prints its result")]
fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1).peekable();
    let peer = arguments.next_if(|a| a == "peer").is_some();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.next().and_then(|t| t.parse().ok()).unwrap_or(cores);
    if peer {
        return compare_with_peer(threads);
    }
    let only = arguments.next().filter(|o| o != "all");
    let checks = if arguments.next().is_some() { Checks::ALL } else { Checks::NONE };
    let bench = Bench::new()?;
    for case in cases().iter().filter(|c| only.as_ref().is_none_or(|o| o == c.name)) {
        let best = bench.seconds(case, threads, checks)?;
        let rate = case.operations / best / 1e6;
        println!("{:<12} {:>9.1} million {}/s  ({:.3} ms)", case.name, rate, case.unit, best * 1e3);
    }
    Ok(())
}
