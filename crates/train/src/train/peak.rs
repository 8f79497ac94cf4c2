//! Measures the device's peak: FLOP/s of a large matrix product, the reference for the utilization of a training run.

use netcl_tensor::ops::matmul::matmul;
use netcl_tensor::{DType, Device, Result, Tensor};
use std::time::Instant;

/// Returns the FLOP/s of the fastest of a few square matrix products. Takes a fraction of a second; the simulated GPU measures a small one.
pub fn measure(device: &Device, dtype: DType) -> Result<f64> {
    let n = match device.capabilities() {
        c if c.simulated => 64,
        c if c.is_cpu() => 768,
        _ => 4096,
    };
    let data: Vec<f32> = (0..n * n).map(|i| ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5).collect();
    let a = Tensor::from_f32(device, [n, n], &data, dtype)?;
    matmul(&a, &a)?;
    device.finish()?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let started = Instant::now();
        matmul(&a, &a)?;
        device.finish()?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(2.0 * (n as f64).powi(3) / best)
}
