//! `netcl bench gemm --regret N`: random products.

use super::Operands;
use crate::bench::Bench;
use crate::bench::choice::{Regrets, axis, drawn, mixed};
use netcl::prelude::*;

const MAX_SIZE: f64 = 8192.0;
const LAYOUTS: [&str; 4] = ["NN", "NT", "TN", "TT"];

/// Draws random products, the same for the same seed: `[m, n, k]` and layout. Their multiply-adds are limited so that a sample is short on the
/// device.
pub fn draw(device: &Device, count: usize, seed: u64) -> Vec<([usize; 3], &'static str)> {
    drawn_up_to(if device.capabilities().is_cpu() { 2e9 } else { 4e11 }, count, seed)
}

/// Draws products with at most `most` multiply-adds.
pub fn drawn_up_to(most: f64, count: usize, seed: u64) -> Vec<([usize; 3], &'static str)> {
    let product = |n: u64| {
        let size = [0, 1, 2].map(|i| axis(drawn(seed, n, i), MAX_SIZE));
        (size, LAYOUTS[(mixed(seed ^ n.wrapping_mul(31)) % 4) as usize])
    };
    let fits = |([m, n, k], _): &([usize; 3], _)| (m * n) as f64 * *k as f64 <= most;
    (0..).map(product).filter(fits).take(count).collect()
}

/// Times every algorithm on these products, drawn from `seed` or given.
pub fn run(bench: &Bench, products: Vec<([usize; 3], &str)>, seed: u64) -> Result<()> {
    let mut regrets = Regrets::new("shape (m, n, k)", "layout");
    for (size, layout) in products {
        let operands = Operands::random(&bench.device, size, layout, bench.dtype)?;
        regrets.measure(bench, &operands.choice()?)?;
    }
    regrets.finish(bench, "products", seed)
}
