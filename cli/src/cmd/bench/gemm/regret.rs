//! `netcl bench gemm --regret N`: how much longer the chosen algorithm takes than the fastest, over products drawn at random.

use super::{Bench, Product, mixed};
use crate::out;
use crate::table::Table;
use netcl::prelude::*;
use serde_json::json;
use std::time::Instant;

/// Largest size of an axis, and most multiply-adds of a product: what a device takes about a tenth of a second for.
const LARGEST: f64 = 8192.0;
const LAYOUTS: [&str; 4] = ["NN", "NT", "TN", "TT"];

/// Size i of product number n: evenly spread in its logarithm; two in three are multiples of 64 or of 8 where they are large enough.
fn axis(seed: u64, n: u64, i: u64) -> usize {
    let bits = mixed(mixed(seed.wrapping_mul(0x9E37) ^ n) ^ i);
    let size = LARGEST.powf((bits >> 11) as f64 / (1u64 << 53) as f64).round() as usize;
    match bits % 3 {
        0 if size >= 128 => size / 64 * 64,
        1 if size >= 16 => size / 8 * 8,
        _ => size.max(1),
    }
}

/// Products drawn at random, the same for the same seed: `[m, n, k]` and layout. None has more multiply-adds than keep a sample short on
/// the device.
pub fn draw(device: &Device, count: usize, seed: u64) -> Vec<([usize; 3], &'static str)> {
    let most = if device.capabilities().is_cpu() { 2e9 } else { 4e11 };
    let product = |n: u64| {
        let size = [0, 1, 2].map(|i| axis(seed, n, i));
        (size, LAYOUTS[(mixed(seed ^ n.wrapping_mul(31)) % 4) as usize])
    };
    let fits = |([m, n, k], _): &([usize; 3], _)| (m * n) as f64 * *k as f64 <= most;
    (0..).map(product).filter(fits).take(count).collect()
}

/// Milliseconds of a run: the least of several samples of at least `sample` milliseconds each.
fn time(device: &Device, sample: f64, run: &dyn Fn() -> Result<Tensor>) -> Result<f64> {
    let timed = |count: usize| -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..count {
            run()?;
        }
        device.finish()?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    timed(1)?;
    let once = timed(1)?;
    let count = (sample / once.max(1e-3)).ceil().clamp(1.0, 1000.0) as usize;
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        least = least.min(timed(count)? / count as f64);
    }
    Ok(least)
}

pub fn run(bench: &mut Bench, count: usize, seed: u64) -> Result<()> {
    let device = bench.device.clone();
    let mut table =
        Table::new(&["shape (m, n, k)", "layout", ">regret", ">chosen us", ">best us", "chosen", "best"]);
    let mut regrets = Vec::with_capacity(count);
    for (size, layout) in draw(&device, count, seed) {
        let [m, nn, k] = size;
        let product = Product::new(&device, size, layout, bench.dtype)?;
        let rows = product.explain()?;
        let mut times = Vec::new();
        for row in rows.iter().filter(|row| row.estimate.as_ref().is_ok_and(|(micros, _)| micros.is_finite()))
        {
            // A driver may refuse one of a kernel's texts; then it is no candidate.
            if let Ok(ms) = time(&device, bench.rounds.sample_ms, &|| product.run_by(row.name)) {
                times.push((ms * 1e3, row));
            }
        }
        let best = times.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let chosen = times.iter().find(|(_, row)| row.chosen);
        let (Some((best, best_row)), Some((chosen, chosen_row))) = (best, chosen) else {
            return Err(Error::internal(format!("bench gemm: nothing was chosen for {m}x{nn}x{k} {layout}")));
        };
        let regret = chosen / best;
        regrets.push(regret);
        if bench.printer.json {
            let all: Vec<_> = times
                .iter()
                .map(|(us, row)| json!({ "algorithm": row.name, "us": us, "estimate_us": row.estimate.as_ref().map_or(0.0, |e| e.0) }))
                .collect();
            out::json(
                &json!({ "op": "gemm", "shape": size, "layout": layout, "dtype": bench.kind, "regret": regret, "algorithms": all }),
            )?;
        }
        table.row([
            format!("{m}x{nn}x{k}"),
            layout.into(),
            format!("{regret:.2}"),
            format!("{chosen:.1}"),
            format!("{best:.1}"),
            chosen_row.name.into(),
            if regret > 1.0 { best_row.name.into() } else { String::new() },
        ]);
    }
    if !bench.printer.json {
        table.lines().iter().try_for_each(|line| out::result(line))?;
    }
    let mean = regrets.iter().sum::<f64>() / regrets.len().max(1) as f64;
    let worst = regrets.iter().copied().fold(0.0, f64::max);
    out::note(&format!(
        "{} products in {}, seed {seed}: regret {mean:.3} on average, {worst:.2} at worst",
        regrets.len(),
        bench.kind
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_and_repeat() {
        let sizes: Vec<usize> = (0..400).map(|n| axis(3, n, 0)).collect();
        assert!(sizes.iter().all(|s| (1..=8192).contains(s)));
        let share = |f: &dyn Fn(usize) -> bool| sizes.iter().filter(|s| f(**s)).count();
        assert!(share(&|s| s < 16) > 60 && share(&|s| s > 1000) > 60 && share(&|s| s % 2 == 1) > 60);
        assert_eq!(sizes, (0..400).map(|n| axis(3, n, 0)).collect::<Vec<_>>());
        assert_ne!(axis(3, 0, 0), axis(4, 0, 0));
    }
}
