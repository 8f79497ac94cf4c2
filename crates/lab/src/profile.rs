//! Time per kernel, as a table for people and as objects for programs.

use crate::table::Table;
use netcl::device::KernelTime;
use netcl::kernel::ceiling::{self, Ceilings};
use netcl::prelude::*;
use netcl::train::{Profile, matmul_peak};
use serde_json::{Value, json};

/// Kernels of some steps, compared with the device's peak rates.
pub struct Costs<'a> {
    /// Times of kernels, the most expensive first.
    pub kernels: &'a [KernelTime],
    /// Number of steps.
    pub steps: u64,
    /// Peak rates measured on the device; `None` if its time is modeled.
    pub ceilings: Option<Ceilings>,
}

/// Measures the device's peak rates for products stored in `dtype`: the faster of f32 multiply-adds from registers and a large product, which may use
/// tensor cores; and copying. Frees the memory it used.
pub fn ceilings(device: &Device, dtype: DType) -> Result<Option<Ceilings>> {
    if device.capabilities().simulated {
        return Ok(None);
    }
    let Ceilings { gflops, gbps } = ceiling::measure(device)?;
    let gflops = gflops.max(matmul_peak(device, dtype)? * 1e-9);
    device.finish()?;
    device.release_cached_memory();
    device.reset_memory_peak();
    Ok(Some(Ceilings { gflops, gbps }))
}

/// Formats a profile: the table of its kernels, and the path of the trace.
pub fn summary(profile: &Profile, ceilings: Option<Ceilings>) -> String {
    let (first, last) = profile.steps;
    let costs = Costs { kernels: &profile.kernels, steps: last + 1 - first, ceilings };
    let replayed = if profile.replayed { ", replayed from a graph" } else { "" };
    format!(
        "profile of steps {first} to {last}{replayed}\n{}\ntrace: {} (ui.perfetto.dev opens it; clocks agree within {:.1} µs)",
        costs.lines().join("\n"),
        profile.file.display(),
        profile.timeline.clock_error_ns as f64 * 1e-3
    )
}

fn rate(n: u64, seconds: f64) -> Option<f64> {
    (n > 0 && seconds > 0.0).then(|| n as f64 / seconds * 1e-9)
}

impl Costs<'_> {
    /// Returns the device time of all kernels in seconds.
    fn total(&self) -> f64 {
        self.kernels.iter().map(|k| k.seconds).sum()
    }

    /// Returns lines for people.
    pub fn lines(&self) -> Vec<String> {
        let header =
            [">ms", ">ms/step", ">share", ">calls", ">GB/s", ">of copy", ">GFLOP/s", ">of peak", "kernel"];
        let mut table = Table::new(&header);
        let (total, steps) = (self.total(), self.steps.max(1) as f64);
        let number = |n: Option<f64>| n.map_or_else(String::new, |n| format!("{n:.1}"));
        let percent = |n: Option<f64>| n.map_or_else(String::new, |n| format!("{:.0} %", 100.0 * n));
        for k in self.kernels {
            let (gbps, gflops) = (rate(k.bytes, k.seconds), rate(k.flops, k.seconds));
            let (of_copy, of_peak) = self.shares(k);
            table.row([
                format!("{:.3}", k.seconds * 1e3),
                format!("{:.3}", k.seconds * 1e3 / steps),
                format!("{:.1} %", 100.0 * k.seconds / total.max(1e-12)),
                k.count.to_string(),
                number(gbps),
                percent(of_copy),
                number(gflops),
                percent(of_peak),
                k.name.clone(),
            ]);
        }
        let mut lines = table.lines();
        let calls: u64 = self.kernels.iter().map(|k| k.count).sum();
        lines.push(format!(
            "{:.3} ms of kernels in {calls} launches, {:.3} ms per step",
            total * 1e3,
            total * 1e3 / steps
        ));
        lines.push(match &self.ceilings {
            Some(c) => {
                format!("measured ceilings: {:.1} GB/s copying, {:.1} GFLOP/s multiplying", c.gbps, c.gflops)
            }
            None => "no shares: the device is simulated, so its time is modeled".into(),
        });
        lines
    }

    /// Returns the shares of copying and of arithmetic.
    fn shares(&self, k: &KernelTime) -> (Option<f64>, Option<f64>) {
        let Some(c) = &self.ceilings else { return (None, None) };
        (rate(k.bytes, k.seconds).map(|r| r / c.gbps), rate(k.flops, k.seconds).map(|r| r / c.gflops))
    }

    /// Returns one object per kernel.
    pub fn json(&self) -> Vec<Value> {
        let object = |k: &KernelTime| {
            let (of_copy, of_peak) = self.shares(k);
            json!({
                "op": "profile", "kernel": k.name, "calls": k.count, "steps": self.steps, "ms": k.seconds * 1e3,
                "bytes": k.bytes, "flops": k.flops, "gbps": rate(k.bytes, k.seconds), "gflops": rate(k.flops, k.seconds),
                "share_of_copy": of_copy, "share_of_peak": of_peak,
            })
        };
        self.kernels.iter().map(object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_ceilings() {
        let kernel = |name: &str, seconds, flops| KernelTime {
            name: name.into(),
            count: 20,
            seconds,
            bytes: 2_000_000_000,
            flops,
        };
        let kernels = [kernel("matmul", 0.5, 40_000_000_000), kernel("add", 0.25, 0)];
        let ceilings = Some(Ceilings { gflops: 160.0, gbps: 10.0 });
        let costs = Costs { kernels: &kernels, steps: 10, ceilings };
        let lines = costs.lines();
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(
            words,
            ["500.000", "50.000", "66.7", "%", "20", "4.0", "40", "%", "80.0", "50", "%", "matmul"]
        );
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        assert_eq!(words, ["250.000", "25.000", "33.3", "%", "20", "8.0", "80", "%", "add"]);
        assert!(
            lines[3].starts_with("750.000 ms of kernels in 40 launches, 75.000 ms per step"),
            "{}",
            lines[3]
        );
        assert_eq!(costs.json()[0]["share_of_peak"], 0.5);
        assert!(costs.json()[1]["gflops"].is_null());
    }
}
