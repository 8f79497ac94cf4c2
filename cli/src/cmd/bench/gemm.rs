//! `netcl bench gemm`: C (m,n) = A (m,k) · B (k,n), with either operand stored transposed.

use super::{Bench, Common, Line};
use netcl::prelude::*;
use serde_json::json;

/// Flags of `bench gemm`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,
    /// Sizes: `768` for a square product, `512x768x3072` for m, n, k
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "768,1536,2304")]
    sizes: Vec<[usize; 3]>,
    /// NN, NT (B stored (n,k)), TN (A stored (k,m))
    #[arg(long, value_delimiter = ',', default_value = "NN,NT,TN", value_parser = ["NN", "NT", "TN", "TT"])]
    layouts: Vec<String>,
}

fn size(text: &str) -> Result<[usize; 3], String> {
    let parts: Vec<usize> = text.split('x').map(|p| p.parse().unwrap_or(0)).collect();
    match parts[..] {
        [n] if n > 0 => Ok([n, n, n]),
        [m, n, k] if m > 0 && n > 0 && k > 0 => Ok([m, n, k]),
        _ => Err("expected a size like 768 or 512x768x3072 (m, n, k)".into()),
    }
}

pub fn run(args: &Args, bench: &mut Bench) -> Result<()> {
    for &[m, n, k] in &args.sizes {
        for layout in &args.layouts {
            let a = operand(bench, [m, k], layout.starts_with('T'))?;
            let b = operand(bench, [k, n], layout.ends_with('T'))?;
            let request = json!({ "op": "gemm", "shape": [m, n, k], "layout": layout, "dtype": bench.kind });
            let line = Line {
                op: "gemm".into(),
                shape: vec![m, n, k],
                layout: layout.clone(),
                flops: 2 * (m * n * k) as u64,
                bytes: ((m * k + k * n + m * n) * bench.dtype.size()) as u64,
                ..Line::default()
            };
            bench.measure(line, Some(request), &mut || no_grad(|| a.matmul(&b)).map(|_| ()))?;
        }
    }
    Ok(())
}

/// A matrix of this shape, in memory as it is or transposed. Values between -1 and 1, none of them special.
fn operand(bench: &Bench, [rows, cols]: [usize; 2], transposed: bool) -> Result<Tensor> {
    let data: Vec<f32> = (0..rows * cols).map(|i| ((i * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
    if transposed {
        return Tensor::from_f32(&bench.device, [cols, rows], &data, bench.dtype)?.permute(&[1, 0]);
    }
    Tensor::from_f32(&bench.device, [rows, cols], &data, bench.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("768"), Ok([768; 3]));
        assert_eq!(size("1x2x3"), Ok([1, 2, 3]));
        for bad in ["", "0", "2x3", "axb", "1x2x3x4"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
