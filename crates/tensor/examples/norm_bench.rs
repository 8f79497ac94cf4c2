//! Measures norms and sums over rows, per kernel, with default and other tuned values.
//!
//!     cargo run --release -p netcl-tensor --example norm_bench [DEVICE] [-- sweep]
//!
//! Each line shows microseconds per launch, and GB/s of its arguments, each counted once.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // a program, not a library

use netcl_kernel::tune::{Params, Tuning};
use netcl_tensor::ops::{layer_norm::layer_norm, rms_norm::rms_norm};
use netcl_tensor::{DType, Device, Generator, Result, Settings, Tensor};

const ROUNDS: usize = 20;

/// Runs `work` twice, then with the profiler, and prints its kernels.
fn measure(device: &Device, what: &str, work: impl Fn() -> Result<()>) -> Result<()> {
    for _ in 0..2 {
        work()?;
    }
    device.finish()?;
    device.start_profile();
    for _ in 0..ROUNDS {
        work()?;
    }
    let mut kernels = device.stop_profile()?;
    kernels.retain(|k| k.name.starts_with("norm") || k.name.starts_with("reduce"));
    for k in kernels {
        let (each, rate) = (k.seconds / k.count as f64 * 1e6, k.bytes as f64 / k.seconds / 1e9);
        println!("{what:<44} {:<16} x{:<3} {each:8.1} us {rate:7.0} GB/s", k.name, k.count / ROUNDS as u64);
    }
    Ok(())
}

fn norm(device: &Device, [rows, n]: [usize; 2], dtype: DType, center: bool, what: &str) -> Result<()> {
    let mut from = Generator::new(1);
    let mut draw = |shape: &[usize]| Tensor::normal(device, shape, 0.0, 1.0, dtype, &mut from);
    let inputs = [draw(&[rows, n])?, draw(&[n])?, draw(&[n])?].map(|x| x.parameter("x"));
    let dy = draw(&[rows, n])?;
    let [x, gamma, beta] = &inputs;
    let name = if center { "layer_norm" } else { "rms_norm" };
    measure(device, &format!("{name} {dtype} {rows} x {n} {what}"), || {
        let y = if center { layer_norm(x, gamma, beta, 1e-5)? } else { rms_norm(x, gamma, 1e-5)? };
        inputs.iter().for_each(|x| x.set_grad(None));
        y.backward_with(&dy)
    })
}

fn sum(device: &Device, [rows, n]: [usize; 2], dtype: DType, what: &str) -> Result<()> {
    let x = Tensor::normal(device, [rows, n], 0.0, 1.0, dtype, &mut Generator::new(1))?;
    measure(device, &format!("sum {dtype} {rows} x {n} {what}"), || x.sum(&[0], false).map(|_| ()))
}

/// Runs GPT-2's and Llama's sizes, and the kernel without whole rows in registers.
fn table(device: &Device) -> Result<()> {
    let tuning = Tuning::of(device);
    let plain = || Some(Params::from([("layer_norm_plain".to_owned(), 1)]));
    for dtype in [DType::Bf16, DType::F32, DType::F16] {
        norm(device, [65_536, 768], dtype, true, "")?;
    }
    for shape in [[65_536, 1024], [32_768, 1600], [8192, 4096], [8192, 5120]] {
        norm(device, shape, DType::Bf16, true, "")?;
        norm(device, shape, DType::Bf16, false, "")?;
    }
    tuning.try_out("layer_norm_variant", 0, plain());
    norm(device, [65_536, 768], DType::Bf16, true, "plain")?;
    tuning.try_out("layer_norm_variant", 0, None);
    for n in [768, 2304, 3072, 50_304] {
        sum(device, [65_536 * 768 / n.max(768), n], DType::Bf16, "")?;
    }
    sum(device, [65_536, 3072], DType::Bf16, "")?;
    sum(device, [65_536, 768], DType::F32, "")
}

fn sweep(device: &Device) -> Result<()> {
    let tuning = Tuning::of(device);
    for (vectors, group) in [(3, 128), (1, 192), (3, 64), (2, 128), (3, 256), (3, 384)] {
        for resident in [384, 512, 768, 1024] {
            let values = [("VECTORS", vectors), ("GROUP", group), ("RESIDENT", resident)];
            tuning.try_out("norm_rows", 0, Some(values.map(|(n, v)| (n.to_owned(), v)).into()));
            let forward = resident * 5 / 3;
            tuning.try_out("norm_rows_fwd", 0, Some([("RESIDENT".to_owned(), forward)].into()));
            let what = format!("V{vectors} G{group} R{resident}/{forward}");
            for rows in [16_384, 65_536] {
                norm(device, [rows, 768], DType::Bf16, true, &what)?;
            }
        }
    }
    tuning.try_out("norm_rows", 0, None);
    for resident in [4096, 16_384] {
        tuning.try_out("norm_rows_fwd", 0, Some([("RESIDENT".to_owned(), resident)].into()));
        norm(device, [65_536, 768], DType::Bf16, true, &format!("default, forward {resident}"))?;
    }
    tuning.try_out("norm_rows_fwd", 0, None);
    for (wg, aligned) in [(256, 1), (128, 1), (64, 1), (256, 0)] {
        let values = [("WG", wg), ("VW", 4), ("STREAMED", 0), ("ALIGNED", aligned)];
        tuning.try_out("reduce", 0, Some(values.map(|(n, v)| (n.to_owned(), v)).into()));
        for n in [768, 3072] {
            sum(device, [65_536, n], DType::Bf16, &format!("WG {wg} ALIGNED {aligned}"))?;
        }
    }
    tuning.try_out("reduce", 0, None);
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let named = words.iter().find(|w| *w != "sweep").map_or("auto", String::as_str);
    let device = Device::open(named, &Settings::from_env())?;
    table(&device)?;
    if words.iter().any(|w| w == "sweep") { sweep(&device) } else { Ok(()) }
}
