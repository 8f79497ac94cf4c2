//! Kernels that run models and do not belong to an op of the list, because they do not have a gradient. Each has its own test.

use crate::ops::decode_step;
use crate::ops::experts::{ExpertMap, experts, experts_of_blocks};
use crate::ops::fused_linear::{FusedOps, fused_linear_of_blocks};
use crate::ops::gated::Gate;
use crate::quant::{self, Activations, Blocks, FORMATS, Format};
use crate::random::Generator;
use crate::{DType, Device, Error, Result, Tensor};

/// An inference kernel, or several of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Inference {
    /// Name of the kernel.
    pub name: &'static str,
    /// Compares it with exact arithmetic on a device. Returns the number of cases, which is 0 if the device does not run it.
    pub check: fn(&Device) -> Result<usize>,
}

/// All inference kernels.
pub static INFERENCE: [Inference; 3] = [
    Inference { name: "decode_step", check: decode_step::check::check },
    Inference { name: "matmul_int8", check: integer_products },
    Inference { name: "experts_of_blocks", check: quantised_experts },
];

/// Numbers of rows of the products.
const ROWS: [usize; 3] = [1, 3, 8];

/// Tests products of few rows with matrices of all device formats. Rounding to bytes does not change the activations.
fn integer_products(device: &Device) -> Result<usize> {
    let formats = FORMATS.into_iter().filter(|format| format.on_devices());
    let mut cases = 0;
    for format in formats {
        for rows in ROWS {
            integer_product(device, format, rows)?;
            cases += 1;
        }
    }
    Ok(cases)
}

fn integer_product(device: &Device, format: &'static Format, rows: usize) -> Result<()> {
    let (n, k) = (70, 512);
    let mut bytes = vec![0; format.size(n * k).unwrap_or(0)];
    let values = Generator::new(u64::from(format.number)).normal(n * k, 0.0, 1.0);
    format.quantise(&values, k, None, &mut bytes)?;
    let w = format.dequantised(&bytes, n * k)?;
    let blocks = Blocks::with_activations(device, format, [n, k], &bytes, Activations::Int8)?;
    // Groups of 32 are integers times a power of two, and include 127.
    let code = |i: usize| if i % 32 == 9 { 127.0 } else { ((i * 7919 + i / 32 * 31) % 255) as f32 - 127.0 };
    let x: Vec<f32> = (0..rows * k).map(|i| code(i) * [0.5, 0.03125, 4.0][i / 32 % 3]).collect();
    let input = Tensor::from_f32(device, [rows, k], &x, DType::F32)?;
    let got = fused_linear_of_blocks(&input, &blocks, FusedOps::default())?.to_vec()?;
    if device.settings().no_results {
        return Ok(());
    }
    for (i, got) in got.into_iter().enumerate() {
        let products =
            x[i / n * k..][..k].iter().zip(&w[i % n * k..][..k]).map(|(x, w)| f64::from(*x) * f64::from(*w));
        let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
        // NaN fails too.
        let near = (f64::from(got) - sum).abs() <= 1e-5 * size;
        if !near {
            return Err(Error::launch(format!(
                "matmul_int8: element {i} of a product of {rows} rows by {format} is {got}, expected {sum}"
            )));
        }
    }
    Ok(())
}

/// Compares quantized experts with dense ones of the same values, for a few tokens and for many.
fn quantised_experts(device: &Device) -> Result<usize> {
    let [e, c, h, k] = [4, 256, 512, 2];
    let mut cases = 0;
    for format in [&quant::Q4_0, &quant::Q4_K, &quant::Q8_0] {
        let mut generator = Generator::new(u64::from(format.number));
        let mut made = |n: usize, k: usize| {
            let values = generator.normal(e * n * k, 0.0, 0.1);
            let mut bytes = vec![0; format.size(values.len()).unwrap_or(0)];
            format.quantise(&values, k, None, &mut bytes)?;
            let dense =
                Tensor::from_f32(device, [e, n, k], &format.dequantised(&bytes, values.len())?, DType::F32)?;
            let usual = Activations::usual(device);
            Ok::<_, Error>((Blocks::with_activations(device, format, [e * n, k], &bytes, usual)?, dense))
        };
        let (gates, dense_gates) = made(2 * h, c)?;
        let (back, dense_back) = made(c, h)?;
        for (tokens, dtype) in [1, 70].into_iter().flat_map(|n| [DType::F32, DType::F16].map(|t| (n, t))) {
            let ids: Vec<u32> = (0..k * tokens).map(|p| ((p * p + 1) % e) as u32).collect();
            let ids = Tensor::from_u32(device, [tokens, k], &ids)?;
            let [x, weights] = [c, k].map(|n| {
                Tensor::normal(device, [tokens, n], 0.0, 1.0, DType::F32, &mut Generator::new(n as u64))
            });
            let (x, weights) = (x?, weights?);
            let expected = experts(&x, &ids, &weights, [&dense_gates, &dense_back], Gate::Silu)?.to_vec()?;
            let [x, weights] = [&x, &weights].map(|t| t.to_dtype(dtype));
            let (x, weights) = (x?, weights?);
            let maps = [ExpertMap::Blocks(&gates), ExpertMap::Blocks(&back)];
            let got = experts_of_blocks(&x, &ids, &weights, maps, Gate::Silu)?.to_vec()?;
            let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
            // Rounding to bytes loses at most 1/254 of the largest of 32 values in each of two products. NaN fails too.
            let wrong = got.iter().zip(&expected).position(|(a, b)| {
                let near = (a - b).abs() <= 2e-2 * most;
                !near
            });
            if let Some(i) = wrong.filter(|_| !device.settings().no_results) {
                return Err(Error::launch(format!(
                    "experts_of_blocks: element {i} of {tokens} tokens in {dtype} by {format} is {}, expected {}, largest {most}",
                    got[i], expected[i]
                )));
            }
            cases += 1;
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use netcl_device::Settings;

    #[test]
    fn kernels_for_models_pass_here_and_on_a_simulated_gpu() {
        for device in [test_device().unwrap(), Device::open("sim:rx7900xtx", &Settings::default()).unwrap()] {
            let cases = INFERENCE
                .map(|kernel| (kernel.check)(&device).unwrap_or_else(|e| panic!("{}: {e}", kernel.name)));
            assert!(cases[1] >= 42 && cases[2] == 12, "{cases:?}");
        }
    }
}
