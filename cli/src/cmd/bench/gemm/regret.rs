//! `netcl bench gemm --regret N`: products drawn at random.

use super::Product;
use crate::cmd::bench::Bench;
use crate::cmd::bench::choice::{Regrets, axis, drawn, mixed};
use netcl::prelude::*;

const LARGEST: f64 = 8192.0;
const LAYOUTS: [&str; 4] = ["NN", "NT", "TN", "TT"];

pub fn run(bench: &Bench, count: usize, seed: u64) -> Result<()> {
    // Multiply-adds that keep a sample short on a slow device.
    let most = if bench.device.capabilities().is_cpu() { 2e9 } else { 4e11 };
    let mut regrets = Regrets::new("shape (m, n, k)", "layout");
    let mut n = 0u64;
    while regrets.count() < count {
        let size = [0, 1, 2].map(|i| axis(drawn(seed, n, i), LARGEST));
        let layout = LAYOUTS[(mixed(seed ^ n.wrapping_mul(31)) % 4) as usize];
        n += 1;
        if size.iter().map(|n| *n as f64).product::<f64>() <= most {
            let product = Product::new(&bench.device, size, layout, bench.dtype)?;
            regrets.measure(bench, &product.choice()?)?;
        }
    }
    regrets.finish(bench, "products", seed)
}
