//! Bandwidth of generated kernels compared with a copy of the same bytes: `fuse_bandwidth [device] [dtype]`.

#![allow(clippy::print_stdout)] // a program, not a library

use netcl_tensor::expr::Expr;
use netcl_tensor::{DType, Device, Error, Result, Settings, Tensor, fuse, no_grad};
use std::time::Instant;

/// 128 MiB in f32, which exceeds the caches.
const ROWS: usize = 32_768;
const N: usize = 1024;

type Tree = (&'static str, usize, fn(&[Expr]) -> Result<Expr>);

/// Name, number of inputs with the whole shape, tree. Input 2 is a row.
const TREES: [Tree; 8] = [
    ("x + y", 2, |t| t[0].add(&t[1])),
    ("relu(x * w + y)", 2, |t| t[0].mul(&t[2])?.add(&t[1])?.relu()),
    ("clamp, abs, where: 8 nodes", 2, |t| {
        let a = t[0].clamp(-0.5, 0.7)?.mul_scalar(1.5)?.add(&t[1].abs()?)?;
        t[0].lt(&t[1])?.where_cond(&a, &t[1].square()?)?.sub(&t[2])
    }),
    ("silu(x) * y", 2, |t| t[0].silu()?.mul(&t[1])),
    ("12 nodes over 3 inputs", 2, |t| {
        let a = t[0].mul(&t[2])?.add(&t[1])?.mul_scalar(0.5)?.maximum(&t[0])?;
        let b = a.square()?.add_scalar(1.0)?.sqrt()?;
        b.sub(&t[1])?.mul(&t[0])?.minimum(&t[2])?.abs()?.neg()
    }),
    ("sum of squares of rows", 1, |t| t[0].square()?.sum(&[-1])),
    ("softmax", 1, |t| t[0].softmax()),
    ("layer norm", 1, |t| {
        let d = t[0].sub(&t[0].mean(&[-1])?)?;
        d.mul(&d.square()?.mean(&[-1])?.add_scalar(1e-5)?.rsqrt()?)?.mul(&t[2])
    }),
];

/// Returns the shortest time of `runs` runs in seconds.
fn seconds(device: &Device, runs: usize, f: impl Fn() -> Result<Tensor>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        drop(f()?);
        device.finish()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("auto", String::as_str);
    let dtype = arguments.get(1).map_or("f32", String::as_str);
    let dtype = DType::parse(dtype).ok_or_else(|| Error::dtype(format!("no storage type {dtype}")))?;
    let device = Device::open(name, &Settings::from_env())?;
    let data: Vec<f32> = (0..ROWS * N).map(|i| (i * 37 % 1009) as f32 / 500.0 - 1.0).collect();
    let x = Tensor::from_f32(&device, [ROWS, N], &data, dtype)?;
    let y = x.mul_scalar(-0.7)?;
    let w = Tensor::from_f32(&device, [N], &data[..N], dtype)?;
    let whole = (ROWS * N * dtype.size()) as f64;
    no_grad(|| {
        println!("{} {dtype} [{ROWS}, {N}]", device.capabilities().id);
        for (name, inputs, tree) in TREES {
            let result = fuse(&[&x, &y, &w], tree)?;
            let bytes = whole * inputs as f64 + (result.count() * dtype.size()) as f64;
            let copy = 2.0 * whole / seconds(&device, 8, || x.mul_scalar(1.0))? / 1e9;
            let rate = bytes / seconds(&device, 8, || fuse(&[&x, &y, &w], tree))? / 1e9;
            println!("{name:28} {rate:8.2} GB/s  {:5.1} % of the copy's {copy:.2}", 100.0 * rate / copy);
        }
        Ok(())
    })
}
