//! `netcl bench gemm`: C (m,n) = A (m,k) · B (k,n), with either operand stored transposed.

use super::choice::{Choice, mixed};
use super::{Bench, Common, Line};
use netcl::prelude::*;
use netcl::tensor::Generator;
use netcl::tensor::ops::Row;
use netcl::tensor::ops::matmul::{explain, matmul_by};
use serde_json::json;

pub mod regret;

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
    /// Print errors against f64, of netcl and of the peer on the same inputs, instead of times
    #[arg(long)]
    pub errors: bool,
    /// Print each algorithm's estimate, or why it does not apply, instead of timing
    ///
    /// For these sizes, or those of --sizes, in each layout.
    #[arg(long, value_name = "MxNxK", value_delimiter = ',', num_args = 0.., value_parser = size)]
    explain: Option<Vec<[usize; 3]>>,
    /// Draw this many random products; print the chosen algorithm's time divided by the fastest one's
    ///
    /// Sizes 1 to 8192, including odd ones, in every layout. Every applicable algorithm is timed. With 0, the products of --sizes and --layouts are
    /// timed.
    #[arg(long, value_name = "N")]
    regret: Option<usize>,
    /// Draw this many products like --regret, and measure them instead of --sizes and --layouts
    #[arg(long, value_name = "N", conflicts_with_all = ["sizes", "layouts", "regret"])]
    drawn: Option<usize>,
    /// Seed; the same seed draws the same products
    #[arg(long, default_value_t = 0)]
    seed: u64,
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
    if let Some(count) = args.regret {
        let drawn = regret::draw(&bench.device, count, args.seed);
        let products = if count > 0 { drawn } else { args.of(&args.sizes).collect() };
        return regret::run(bench, products, args.seed);
    }
    if let Some(sizes) = &args.explain {
        let sizes = if sizes.is_empty() { &args.sizes } else { sizes };
        return args.of(sizes).try_for_each(|(size, layout)| {
            Operands::random(&bench.device, size, layout, bench.dtype)?.choice()?.explain(bench)
        });
    }
    for (size, layout) in args.products(&bench.device) {
        let [m, n, k] = size;
        let product = Product::new(&bench.device, size, layout, bench.dtype)?;
        product.check(&bench.kind)?;
        let request = json!({ "op": "gemm", "shape": size, "layout": layout, "dtype": bench.kind });
        let line = Line {
            op: "gemm".into(),
            shape: size.into(),
            layout: layout.into(),
            flops: 2 * (m * n * k) as u64,
            bytes: ((m * k + k * n + m * n) * bench.dtype.size()) as u64,
            checked: true,
            ..Line::default()
        };
        bench.measure(line, Some(request), &mut || product.run().map(|_| ()))?;
    }
    Ok(())
}

impl Args {
    /// Returns every size in every layout, or random products.
    pub fn products(&self, device: &Device) -> Vec<([usize; 3], &str)> {
        match self.drawn {
            Some(count) => regret::draw(device, count, self.seed),
            None => self.of(&self.sizes).collect(),
        }
    }
    /// Returns these sizes in every layout.
    fn of<'a>(&'a self, sizes: &'a [[usize; 3]]) -> impl Iterator<Item = ([usize; 3], &'a str)> {
        sizes.iter().flat_map(|size| self.layouts.iter().map(|layout| (*size, layout.as_str())))
    }
}

/// Checks whether the device has memory for a product.
fn fits(device: &Device, [m, n, k]: [usize; 3], dtype: DType) -> Result<()> {
    super::fits(device, &format!("a product of {m}x{n}x{k}"), &[&[m, k], &[k, n], &[m, n]], dtype)
}

/// Two matrices to multiply, on the device.
pub struct Operands {
    /// m, n, k.
    pub size: [usize; 3],
    pub layout: String,
    a: Tensor,
    b: Tensor,
}

impl Operands {
    /// Creates operands; `make` returns operand 0 or 1, stored as `[rows, columns]`.
    fn new(
        device: &Device,
        [m, n, k]: [usize; 3],
        layout: &str,
        dtype: DType,
        mut make: impl FnMut(usize, [usize; 2]) -> Result<Tensor>,
    ) -> Result<Self> {
        fits(device, [m, n, k], dtype)?;
        let mut place = |i: usize, [rows, cols]: [usize; 2], transposed: bool| {
            if transposed { make(i, [cols, rows])?.permute(&[1, 0]) } else { make(i, [rows, cols]) }
        };
        let a = place(0, [m, k], layout.starts_with('T'))?;
        let b = place(1, [k, n], layout.ends_with('T'))?;
        Ok(Self { size: [m, n, k], layout: layout.into(), a, b })
    }

    /// Draws values between -1 and 1 on the device.
    pub fn random(device: &Device, size: [usize; 3], layout: &str, dtype: DType) -> Result<Self> {
        let mut from = Generator::new(1);
        Self::new(device, size, layout, dtype, |_, shape| {
            Tensor::uniform(device, shape, -1.0, 1.0, dtype, &mut from)
        })
    }

    /// Returns the choice between its algorithms.
    pub fn choice(&self) -> Result<Choice<'_>> {
        let ([m, n, k], layout) = (self.size, self.layout.as_str());
        Ok(Choice {
            about: json!({ "op": "gemm", "shape": self.size, "layout": layout }),
            shown: [format!("{m}x{n}x{k}"), layout.into()],
            rows: explain(&self.a, &self.b)?,
            run: Box::new(|name| no_grad(|| matmul_by(&self.a, &self.b, name)).map(drop)),
        })
    }

    /// Returns every algorithm with its estimate for such a product on an empty device.
    ///
    /// # Errors
    /// Errors of `explain`.
    pub fn explain_on(twin: &Device, size: [usize; 3], layout: &str, dtype: DType) -> Result<Vec<Row>> {
        let both = Self::new(twin, size, layout, dtype, |_, shape| Tensor::empty(twin, shape, dtype))?;
        explain(&both.a, &both.b)
    }
}

/// A product whose values are also known on the host.
pub struct Product {
    pub operands: Operands,
    /// The operands in memory order; each axis order follows from the layout.
    pub stored: [Vec<f32>; 2],
}

/// Entries of a product to compare.
const SAMPLES: usize = 64;

impl Product {
    /// Creates values between -1 and 1, without special values.
    pub fn new(device: &Device, size: [usize; 3], layout: &str, dtype: DType) -> Result<Self> {
        fits(device, size, dtype)?;
        let [m, n, k] = size;
        let stored = [m * k, k * n].map(|count| -> Vec<f32> {
            (0..count).map(|i| dtype.round(((i * 7919) % 2003) as f64 / 1001.0 - 1.0) as f32).collect()
        });
        let operands = Operands::new(device, size, layout, dtype, |i, shape| {
            Tensor::from_f32(device, shape, &stored[i], dtype)
        })?;
        Ok(Self { operands, stored })
    }

    pub fn run(&self) -> Result<Tensor> {
        no_grad(|| self.operands.a.matmul(&self.operands.b))
    }

    /// Returns one entry in f64, and the sum of the absolute values of its terms.
    pub fn entry(&self, i: usize, j: usize) -> (f64, f64) {
        let [m, n, k] = self.operands.size;
        let at = |data: &[f32], transposed: bool, row: usize, col: usize, [rows, cols]: [usize; 2]| {
            f64::from(if transposed { data[col * rows + row] } else { data[row * cols + col] })
        };
        let [a, b] = &self.stored;
        let (ta, tb) = (self.operands.layout.starts_with('T'), self.operands.layout.ends_with('T'));
        (0..k).fold((0.0, 0.0), |(sum, size), l| {
            let term = at(a, ta, i, l, [m, k]) * at(b, tb, l, j, [k, n]);
            (sum + term, size + term.abs())
        })
    }

    /// Returns `count` entries: the corners, and others at random positions.
    pub fn places(&self, count: usize) -> Vec<(usize, usize)> {
        let [m, n, _] = self.operands.size;
        let corners = [(0, 0), (0, n - 1), (m - 1, 0), (m - 1, n - 1)];
        let anywhere =
            (0u64..).map(mixed).map(|bits| ((bits >> 33) as usize % m, (bits & 0xFFFF_FFFF) as usize % n));
        corners.into_iter().chain(anywhere).take(count.min(m * n).max(4)).collect()
    }

    /// Reads entries of a product on the device.
    pub fn read(&self, c: &Tensor, places: &[(usize, usize)]) -> Result<Vec<f32>> {
        places.iter().map(|&(i, j)| c.slice(0, i..i + 1)?.slice(1, j..j + 1)?.to_vec()).map(first).collect()
    }

    /// Compares some entries with f64. A sum of k terms in f32 may be off by some units of f32 relative to the terms' sizes. Operands in tf32 add
    /// their error, and the stored result is rounded once more.
    ///
    /// # Errors
    /// `Internal` naming the first wrong entry.
    pub fn check(&self, kind: &str) -> Result<()> {
        let c = self.run()?;
        let places = self.places(SAMPLES);
        let sums = if kind == "tf32" { TF32 } else { 8.0 * f64::from(f32::EPSILON) };
        for (&(i, j), got) in places.iter().zip(self.read(&c, &places)?) {
            let ((expected, size), got) = (self.entry(i, j), f64::from(got));
            let bound = c.dtype().epsilon() * expected.abs() + sums * size + f64::from(f32::MIN_POSITIVE);
            // Not `>`, because NaN is wrong.
            let near = (got - expected).abs() <= bound;
            if !near {
                let [m, n, k] = self.operands.size;
                return Err(Error::internal(format!(
                    "bench gemm: {} of {m}×{n}×{k} in {kind} is wrong: entry ({i}, {j}) is {got}, expected {expected}; allowed \
                     difference {bound:.2e}",
                    self.operands.layout
                )));
            }
        }
        Ok(())
    }
}

/// Maximum error of two operands rounded to 11 bits.
const TF32: f64 = 1.0 / 1024.0;

fn first(values: Result<Vec<f32>>) -> Result<f32> {
    values.map(|v| v.first().copied().unwrap_or(f32::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::tests;

    #[test]
    fn sizes() {
        assert_eq!(size("768"), Ok([768; 3]));
        assert_eq!(size("1x2x3"), Ok([1, 2, 3]));
        for bad in ["", "0", "2x3", "axb", "1x2x3x4"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_product_is_checked_in_every_layout_and_a_wrong_kernel_is_found() {
        let device = tests::device(|text| text.to_owned());
        for layout in ["NN", "NT", "TN", "TT"] {
            for (dtype, kind) in [(DType::F32, "f32"), (DType::Bf16, "bf16")] {
                Product::new(&device, [17, 40, 33], layout, dtype).unwrap().check(kind).unwrap();
            }
        }
        let broken = tests::device(|text| {
            let vector = text.replace("acc[x][y] *= alpha", "acc[x][y] *= 0.5f * alpha");
            vector.replace("n0 + column, acc[i][j], alpha", "n0 + column, 0.5f * acc[i][j], alpha")
        });
        let wrong = Product::new(&broken, [17, 40, 33], "NN", DType::F32).unwrap().check("f32");
        let message = wrong.unwrap_err().to_string();
        assert!(message.contains("NN of 17×40×33 in f32 is wrong: entry ("), "{message}");
    }
}
