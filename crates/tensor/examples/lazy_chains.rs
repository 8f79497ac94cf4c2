//! Compares chains of ops: one by one, fused in a lazy scope, and as the library's hand-written op if it exists: `lazy_chains [device]
//! [dtype]`. Prints milliseconds, the minimum of several alternating calls.

#![allow(clippy::print_stdout)] // a program, not a library

use netcl_tensor::ops::add_relu::add_relu;
use netcl_tensor::ops::gated::{Gate, gated};
use netcl_tensor::ops::matmul::linear;
use netcl_tensor::{DType, Device, Error, Result, Settings, Tensor, lazy, no_grad};
use std::time::Instant;

const ROWS: usize = 4096;
const N: usize = 1024;
const ROUNDS: usize = 7;

type Run<'a> = Box<dyn Fn() -> Result<Tensor> + 'a>;

/// A chain, and the op that computes the same.
struct Case<'a> {
    name: &'static str,
    chain: Run<'a>,
    op: Option<Run<'a>>,
}

fn cases(t: &[Tensor]) -> Vec<Case<'_>> {
    let [x, y, v, w, both] = [&t[0], &t[1], &t[2], &t[3], &t[4]];
    let half = |from: usize| both.slice(-1, from..from + N);
    vec![
        Case {
            name: "8 ops over 3 inputs",
            chain: Box::new(move || {
                x.mul(v)?.add(y)?.mul_scalar(0.5)?.gelu()?.square()?.add_scalar(1.0)?.sqrt()?.sub(y)
            }),
            op: None,
        },
        Case {
            name: "norm of rows",
            chain: Box::new(move || {
                let d = x.sub(&x.mean(&[-1], true)?)?;
                d.mul(&d.square()?.mean(&[-1], true)?.add_scalar(1e-5)?.rsqrt()?)?.mul(v)
            }),
            op: None,
        },
        Case {
            name: "product, bias, GELU, scale, residual",
            chain: Box::new(move || linear(x, w, Some(v))?.gelu()?.mul_scalar(0.5)?.add(y)),
            op: None,
        },
        Case {
            name: "product of 32 terms, bias, ReLU, residual",
            chain: Box::new(move || linear(&t[6], &t[7], Some(v))?.relu()?.add(y)),
            op: None,
        },
        Case {
            name: "exp(x - max) / sum",
            chain: Box::new(move || {
                let e = x.sub(&x.max(&[-1], true)?)?.exp()?;
                e.div(&e.sum(&[-1], true)?)
            }),
            op: Some(Box::new(move || x.softmax(-1))),
        },
        Case {
            name: "silu(a) b of halves of rows",
            chain: Box::new(move || half(0)?.silu()?.mul(&half(N)?)),
            op: Some(Box::new(move || gated(both, Gate::Silu))),
        },
        Case {
            name: "8 ops of 256 elements",
            chain: Box::new(move || {
                let s = &t[5];
                s.mul(s)?.add(s)?.mul_scalar(0.5)?.gelu()?.square()?.add_scalar(1.0)?.sqrt()?.sub(s)
            }),
            op: None,
        },
        Case {
            name: "relu(x + y)",
            chain: Box::new(move || x.add(y)?.relu()),
            op: Some(Box::new(move || add_relu(x, y))),
        },
    ]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let device = Device::open(arguments.first().map_or("auto", String::as_str), &Settings::from_env())?;
    let dtype = arguments.get(1).map_or("f32", String::as_str);
    let dtype = DType::parse(dtype).ok_or_else(|| Error::dtype(format!("no storage type {dtype}")))?;
    let tensor = |dims: &[usize], first: usize| {
        let count: usize = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|i| ((first + i) * 37 % 1009) as f32 / 500.0 - 1.0).collect();
        Tensor::from_f32(&device, dims, &data, dtype)
    };
    let t = [
        tensor(&[ROWS, N], 0)?,
        tensor(&[ROWS, N], 5)?,
        tensor(&[N], 7)?,
        tensor(&[N, N], 9)?,
        tensor(&[ROWS, 2 * N], 11)?,
        tensor(&[256], 13)?,
        tensor(&[ROWS, 32], 15)?,
        tensor(&[32, N], 17)?,
    ];
    println!("{:42} {:>9} {:>9} {:>9} {:>8}", "ms", "ops", "lazy", "own op", "launches");
    for Case { name, chain, op } in cases(&t) {
        let ops = || chain();
        let waits = || lazy(&chain);
        let own = || op.as_ref().map_or_else(&chain, |op| op());
        let runs: [&dyn Fn() -> Result<Tensor>; 3] = [&ops, &waits, &own];
        let mut best = [f64::INFINITY; 3];
        for _ in 0..ROUNDS {
            for (best, run) in best.iter_mut().zip(runs) {
                let start = Instant::now();
                drop(no_grad(run)?);
                device.finish()?;
                *best = best.min(1e3 * start.elapsed().as_secs_f64());
            }
        }
        let before = device.launches();
        no_grad(waits)?;
        let own = if op.is_some() { format!("{:.3}", best[2]) } else { "-".into() };
        println!("{name:42} {:9.3} {:9.3} {own:>9} {:8}", best[0], best[1], device.launches() - before);
    }
    Ok(())
}
