//! Bandwidth of ops that move data, compared with the device's copy bandwidth, and with PyTorch's time if its interpreter is given.
//!
//!     cargo run --release -p netcl-tensor --example bandwidth [-- FILTER [PYTHON]]
//!
//! Bytes are the minimum: every input read once, every output written once. All sizes exceed a CPU's last-level cache, except those of the
//! norms. PYTHON runs `tools/peer.py`; its samples and netcl's alternate.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::panic)] // a program, not a library

use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::ops::join::cat;
use netcl_tensor::ops::layer_norm::layer_norm;
use netcl_tensor::ops::rms_norm::rms_norm;
use netcl_tensor::{DType, Device, Result, Settings, Tensor};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Seconds of rounds for each case, alternating between copy, netcl and the peer. The best sample of each counts, because other work on the
/// machine can only make it slower.
const SECONDS: f64 = 3.0;

type Run = Box<dyn Fn() -> Result<()>>;

/// A line of the table: name, bytes moved, the op, and the request to the peer.
struct Case {
    name: String,
    bytes: usize,
    run: Run,
    peer: Option<String>,
}

struct Peer {
    child: Child,
    replies: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(python: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/peer.py");
        let mut command = Command::new(python);
        let mut child = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        Self { child, replies }
    }
    fn ms(&mut self, request: &str) -> f64 {
        writeln!(self.child.stdin.as_mut().unwrap(), "{request}").unwrap();
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&line).unwrap();
        reply["min_ms"].as_f64().unwrap_or_else(|| panic!("{request}: {line}"))
    }
}

/// Returns the milliseconds per call, from enough calls to fill 2 ms.
fn sample(device: &Device, run: &Run) -> Result<f64> {
    let mut calls = 1;
    loop {
        let start = Instant::now();
        for _ in 0..calls {
            run()?;
        }
        device.finish()?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        if ms > 2.0 || calls > 1000 {
            return Ok(ms / f64::from(calls));
        }
        calls *= 4;
    }
}

fn random(device: &Device, shape: &[usize]) -> Result<Tensor> {
    let mut from = netcl_tensor::random::Generator::new(1);
    Tensor::normal(device, shape, 0.0, 1.0, DType::F32, &mut from)
}

fn case(name: impl Into<String>, bytes: usize, run: impl Fn() -> Result<Tensor> + 'static) -> Case {
    Case { name: name.into(), bytes, run: Box::new(move || run().map(drop)), peer: None }
}

fn moves(device: &Device) -> Result<Vec<Case>> {
    let x = random(device, &[4096, 4096])?;
    let (y, n) = (x.empty_like()?, x.count() * 4);
    let mut cases = Vec::new();
    let (a, b) = (x.clone(), y.clone());
    cases.push(Case {
        name: "copy 4096x4096".into(),
        bytes: 2 * n,
        run: Box::new(move || a.device().copy(a.storage(), 0, b.storage(), 0, n)),
        peer: Some(r#"{"op":"copy","shape":[4096,4096]}"#.into()),
    });
    let a = x.clone();
    cases.push(case("x * 2 4096x4096", 2 * n, move || a.mul_scalar(2.0)));
    let (a, b) = (x.clone(), y.clone());
    cases.push(case("x + y", 3 * n, move || a.add(&b)));
    let (a, b) = (x.reshape([4 << 20, 4])?.reshape([16_384, 1024])?, random(device, &[1024])?);
    cases.push(case("x + bias 16384x1024", 2 * n, move || a.add(&b)));
    let a = x.transpose(0, 1)?;
    let mut transpose = case("transpose 4096x4096", 2 * n, move || a.contiguous());
    transpose.peer = Some(r#"{"op":"transpose","shape":[4096,4096]}"#.into());
    cases.push(transpose);
    let a = random(device, &[16_384, 1000])?;
    let bytes = a.count() * 8;
    let t = a.transpose(0, 1)?;
    cases.push(case("transpose 16384x1000", bytes, move || t.contiguous()));
    // Has the same number of bytes as the others.
    let long = random(device, &[8192, 4096])?;
    let a = long.to_dtype(DType::Bf16)?;
    cases.push(case("x * 2 bf16 8192x4096", 2 * n, move || a.mul_scalar(2.0)));
    let a = long.to_dtype(DType::F16)?;
    cases.push(case("x * 2 f16", 2 * n, move || a.mul_scalar(2.0)));
    let a = long.to_dtype(DType::Bf16)?.transpose(0, 1)?;
    cases.push(case("transpose bf16 8192x4096", 2 * n, move || a.contiguous()));
    let a = x.reshape([16, 1024, 16, 64])?.permute(&[0, 2, 1, 3])?;
    cases.push(case("B,T,H,D to B,H,T,D", 2 * n, move || a.contiguous()));
    let a = x.slice(1, 512..3584)?;
    cases.push(case("slice of columns", n * 3 / 2, move || a.contiguous()));
    let a = x.slice(1, 0..2048)?.contiguous()?;
    cases.push(case("cat of columns", 2 * n, move || cat(&[&a, &a], 1)));
    let a = x.slice(0, 0..2048)?;
    cases.push(case("cat of rows", 2 * n, move || cat(&[&a, &a], 0)));
    Ok(cases)
}

fn tables(device: &Device) -> Result<Vec<Case>> {
    let (v, c, n) = (50_304, 768, 16_384);
    let host: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % v as u32).collect();
    let (table, ids) = (random(device, &[v, c])?, Tensor::from_u32(device, [n], &host)?);
    let mut cases = Vec::new();
    let (a, b) = (table.clone(), ids.clone());
    cases.push(case("embedding 50304x768, 16384", 2 * n * c * 4, move || embedding(&a, &b)));
    let (a, b, dy) = (table.parameter("table"), ids, random(device, &[n, c])?);
    cases.push(case("embedding both", (v + 3 * n) * c * 4, move || {
        embedding(&a, &b)?.backward_with(&dy)?;
        a.set_grad(None);
        Ok(a.clone())
    }));
    let a = random(device, &[n, 1024])?;
    let bytes = a.count() * 4;
    let x = a.clone();
    cases.push(case("sum of rows 16384x1024", bytes, move || x.sum(&[1], false)));
    let x = a.clone();
    cases.push(case("sum of columns", bytes, move || x.sum(&[0], false)));
    let x = a.clone();
    cases.push(case("mean of all", bytes, move || x.mean(&[], false)));
    let x = a.clone();
    let mut softmax = case("softmax 16384x1024", 2 * bytes, move || x.softmax(-1));
    softmax.peer = Some(r#"{"op":"softmax","shape":[16384,1024]}"#.into());
    cases.push(softmax);
    let x = a;
    cases.push(case("argmax 16384x1024", bytes, move || x.argmax(-1)));
    Ok(cases)
}

/// Builds a case for forward and backward of `op` with random x of `shape`, in netcl and in the peer.
fn both(
    device: &Device,
    op: &str,
    shape: [usize; 2],
    f: impl Fn(&Tensor) -> Result<Tensor> + 'static,
) -> Result<Case> {
    let x = random(device, &shape)?;
    let (x, dy) = (x.parameter("x"), f(&x)?.detach());
    let bytes = x.count() * 4 * 5;
    let [r, n] = shape;
    let mut case = case(format!("{op} both {r}x{n}"), bytes, move || {
        f(&x)?.backward_with(&dy)?;
        x.set_grad(None);
        Ok(x.clone())
    });
    case.peer = Some(format!(r#"{{"op":"{op}","pass":"fwd+bwd","shape":[{r},{n}]}}"#));
    Ok(case)
}

fn rows(device: &Device) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for shape in [[768, 128], [2048, 384], [16_384, 768]] {
        let gamma = Tensor::ones(device, [shape[1]], DType::F32)?.parameter("gamma");
        let beta = Tensor::zeros(device, [shape[1]], DType::F32)?.parameter("beta");
        cases.push(both(device, "layer_norm", shape, move |x| {
            gamma.set_grad(None);
            beta.set_grad(None);
            layer_norm(x, &gamma, &beta, 1e-5)
        })?);
    }
    let gamma = Tensor::ones(device, [384], DType::F32)?.parameter("gamma");
    cases.push(both(device, "rms_norm", [2048, 384], move |x| {
        gamma.set_grad(None);
        rms_norm(x, &gamma, 1e-5)
    })?);
    for [r, v] in [[768, 65], [512, 50_304]] {
        let host: Vec<u32> = (0..r as u32).map(|i| i.wrapping_mul(2_654_435_761) % v as u32).collect();
        let targets = Tensor::from_u32(device, [r], &host)?;
        cases.push(both(device, "cross_entropy", [r, v], move |x| {
            cross_entropy(x, &targets, CrossEntropy::default())
        })?);
    }
    Ok(cases)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let filter = arguments.next().unwrap_or_default();
    let mut peer = arguments.next().map(|python| Peer::start(&python));
    let device = Device::open("auto", &Settings::from_env())?;
    let capabilities = device.capabilities();
    println!("{} ({}), {} compute units", capabilities.id, capabilities.name, capabilities.compute_units);
    println!("{:<30} {:>9} {:>8} {:>7} {:>9} {:>6}", "", "ms", "GB/s", "of copy", "peer ms", "ratio");
    // The device's copy is the faster of the driver's copy and a kernel's copy.
    let mut copies = moves(&device)?;
    copies.truncate(2);
    for make in [moves, tables, rows] {
        for case in make(&device)?.iter().filter(|c| c.name.contains(&filter)) {
            sample(&device, &case.run)?; // builds kernels, warms buffers
            let mut ours = f64::MAX;
            let mut theirs = f64::MAX;
            let mut copied = f64::MAX;
            let start = Instant::now();
            while start.elapsed().as_secs_f64() < SECONDS {
                for copy in &copies {
                    copied = copied.min(sample(&device, &copy.run)?);
                }
                ours = ours.min(sample(&device, &case.run)?);
                if let (Some(peer), Some(request)) = (&mut peer, &case.peer) {
                    theirs = theirs.min(peer.ms(request));
                }
            }
            let gbps = |case: &Case, ms: f64| case.bytes as f64 / ms * 1e-6;
            let (speed, of) = (gbps(case, ours), gbps(case, ours) / gbps(&copies[0], copied) * 100.0);
            print!("{:<30} {ours:>9.3} {speed:>8.1} {of:>6.0}%", case.name);
            if theirs < f64::MAX { println!(" {theirs:>9.3} {:>6.2}", theirs / ours) } else { println!() }
        }
    }
    Ok(())
}
