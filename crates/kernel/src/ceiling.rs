//! Measures the peak performance of a device: multiply-adds from registers and copying between large buffers. Other measurements are reported as
//! fractions of these.

use crate::kernel::Kernel;
use crate::launch::Launch;
use crate::tune::Tuning;
use netcl_device::{Buffer, Device, Result};
use std::time::Instant;

static KERNEL: Kernel = Kernel::new("ceiling", crate::cl_file!("ceiling.cl"))
    .tune(&[("WG", &[256]), ("VW", &[4]), ("CHAINS", &[8])])
    .tune_cpu(&[("VW", &[0]), ("CHAINS", &[12])]);

const ROUNDS: usize = 1024;
const REPEATS: usize = 5;

/// Peak performance of one device.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Ceilings {
    /// f32 multiply-adds from registers, GFLOP/s.
    pub gflops: f64,
    /// Bytes read and written by a copy far larger than the caches, GB/s.
    pub gbps: f64,
}

/// Measures both, in about half a second. The best of several runs counts, because a ceiling only has to be reached once.
pub fn measure(device: &Device) -> Result<Ceilings> {
    Ok(Ceilings { gflops: gflops(device)?, gbps: gbps(device)? })
}

fn value(device: &Device, name: &str) -> usize {
    Tuning::value(device, &KERNEL, 0, name)
}

/// Begins a launch. Both kernels have the same defines, so that one build serves both.
fn begin(entry: &'static str, device: &Device) -> Launch<'static> {
    KERNEL.launch(entry).define("ROUNDS", ROUNDS).define("CHUNKED", device.capabilities().is_cpu())
}

fn gflops(device: &Device) -> Result<f64> {
    let c = device.capabilities();
    let (lanes, chains, wg) = (value(device, "VW"), value(device, "CHAINS"), value(device, "WG"));
    let units = c.compute_units.max(1) as usize;
    let mut groups = units * 16;
    let y = device.allocate(groups * wg * 64 * size_of::<f32>())?;
    let run = |groups: usize| {
        let launch = begin("peak", device).groups(groups).write(&y);
        launch.scalar(0.999_f32).scalar(1e-3_f32).run()
    };
    // Long enough to make the launch overhead negligible.
    let most = groups * 64;
    while groups < most && best(device, || run(groups), 2)? < 4e-3 {
        groups *= 2;
    }
    let flops = 2 * chains * ROUNDS * lanes * wg * groups;
    Ok(flops as f64 / best(device, || run(groups), REPEATS)? * 1e-9)
}

fn gbps(device: &Device) -> Result<f64> {
    let c = device.capabilities();
    let (lanes, units) = (value(device, "VW"), c.compute_units.max(1) as usize);
    // Exceeds the last-level cache: a copy's two buffers together are eight times as large if memory allows.
    let most = (c.max_alloc / 2).min(c.global_mem / 8).clamp(1 << 20, 256 << 20);
    let bytes = usize::try_from((c.cache * 4).clamp(64 << 20, 256 << 20).min(most)).unwrap_or(1 << 20);
    let bytes = bytes / (lanes * 4) * (lanes * 4);
    let (x, y) = (device.allocate(bytes)?, device.allocate(bytes)?);
    device.fill(&x, &0f32.to_ne_bytes())?;
    device.fill(&y, &0f32.to_ne_bytes())?;
    let groups = if c.is_cpu() { units * 4 } else { units * 32 };
    let kernel = |x: &Buffer, y: &Buffer| {
        let launch =
            KERNEL.launch("copy").define("ROUNDS", ROUNDS).define("CHUNKED", c.is_cpu()).groups(groups);
        launch.read(x).write(y).scalar(bytes / (lanes * 4)).run()
    };
    let by_kernel = best_in_a_row(device, || kernel(&x, &y))?;
    let by_driver = best_in_a_row(device, || device.copy(&x, 0, &y, 0, bytes))?;
    Ok(2.0 * bytes as f64 / by_kernel.min(by_driver) * 1e-9)
}

/// Returns the [`best`] time per run of a sequence of runs, long enough to make starting and waiting negligible.
fn best_in_a_row(device: &Device, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let runs = (4e-3 / best(device, &mut run, 1)?.max(1e-6)).ceil().clamp(1.0, 256.0);
    Ok(best(device, || (0..runs as usize).try_for_each(|_| run()), REPEATS)? / runs)
}

/// Returns the shortest time of a run in seconds, after one warm-up run.
fn best(device: &Device, mut run: impl FnMut() -> Result<()>, repeats: usize) -> Result<f64> {
    run()?;
    device.finish()?;
    let mut best = f64::INFINITY;
    for _ in 0..repeats {
        let started = Instant::now();
        run()?;
        device.finish()?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best)
}
