//! One measurement, as JSON for programs and as a row for people.

use super::measure::Times;
use crate::out;
use crate::profile::Costs;
use netcl::kernel::ceiling::Ceilings;
use netcl::prelude::*;
use serde::Serialize;

/// One measurement. Absent fields were not measured or do not apply to the op.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Line {
    pub op: String,
    /// `[m, n, k]` of a matrix product, `[B, H, T, D]` of attention, or the first input's shape.
    pub shape: Vec<usize>,
    /// Layout of a matrix product: NN, NT, TN.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub layout: String,
    /// `fwd`, `bwd` or both.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub pass: &'static str,
    pub dtype: String,
    pub device: String,
    pub median_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gflops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbps: Option<f64>,
    /// Share of the device's measured peak in arithmetic or copying, whichever is larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The implementation that the peer chose, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_backend: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_median_ms: Option<f64>,
    /// Peak device memory of the peer in bytes, if it reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_memory: Option<u64>,
    /// The peer's time divided by netcl's: above 1, netcl is faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Why the peer's result is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_error: Option<String>,
    /// Whether the result was compared with a reference before it was timed.
    pub checked: bool,
    /// Additional information about the case.
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
    /// Op and shape as text, if the fields above are not sufficient.
    #[serde(skip)]
    pub shown: Option<[String; 2]>,
    #[serde(skip)]
    pub flops: u64,
    #[serde(skip)]
    pub bytes: u64,
}

impl Line {
    /// Computes the fields that follow from the times.
    pub fn complete(&mut self, times: &Times, ceilings: &Ceilings) {
        self.median_ms = times.median_ms;
        let rate = |n: u64| (n > 0 && times.median_ms > 0.0).then(|| n as f64 / times.median_ms * 1e-6);
        self.gflops = rate(self.flops);
        self.gbps = rate(self.bytes);
        let shares = [self.gflops.map(|g| g / ceilings.gflops), self.gbps.map(|g| g / ceilings.gbps)];
        self.share = shares.into_iter().flatten().reduce(f64::max);
        self.peer_error = times.refused.clone();
        if let Some((peer, ms)) = &times.peer {
            self.peer = Some(peer.clone());
            self.peer_backend.clone_from(&times.backend);
            self.peer_memory = times.memory;
            self.peer_median_ms = Some(*ms);
            self.ratio = Some(ms / times.median_ms.max(1e-9));
        }
    }
}

/// A printer of measurements: prints each when it is done, so that results are kept if a later one fails.
pub struct Printer {
    pub json: bool,
    header: bool,
}

impl Printer {
    pub fn new(json: bool) -> Self {
        Self { json, header: false }
    }

    /// Prints the line that the shares refer to.
    pub fn ceilings(&mut self, device: &Device, c: &Ceilings) -> Result<()> {
        let id = &device.capabilities().id;
        if self.json {
            let Ceilings { gflops, gbps } = c;
            return out::json(
                &serde_json::json!({ "op": "ceiling", "device": id, "gflops": gflops, "gbps": gbps }),
            );
        }
        out::result(&format!(
            "{id}: {}. Peak {:.0} GFLOP/s (from registers, or a large product) and {:.1} GB/s (copy)",
            device.capabilities().name,
            c.gflops,
            c.gbps
        ))
    }

    /// Prints the time per kernel of some steps.
    pub fn profile(&mut self, costs: &Costs<'_>) -> Result<()> {
        if self.json {
            return costs.json().iter().try_for_each(out::json);
        }
        costs.lines().iter().for_each(|line| out::note(line));
        Ok(())
    }

    pub fn line(&mut self, line: &Line) -> Result<()> {
        if self.json {
            return out::json(line);
        }
        if !self.header {
            self.header = true;
            out::result(&row(&[
                "op", "shape", "", "dtype", "ms", "GFLOP/s", "GB/s", "share", "peer ms", "ratio",
            ]))?;
        }
        let shape: Vec<String> = line.shape.iter().map(ToString::to_string).collect();
        let [op, shape] = line.shown.clone().unwrap_or_else(|| [line.op.clone(), shape.join("×")]);
        let number = |n: Option<f64>, digits: usize| n.map_or("".into(), |n| format!("{n:.digits$}"));
        let refused = line.peer_error.as_ref().map(|_| "refused".to_owned());
        let row = row(&[
            &op,
            &shape,
            if line.layout.is_empty() { line.pass } else { &line.layout },
            &line.dtype,
            &number(Some(line.median_ms), 3),
            &number(line.gflops, 1),
            &number(line.gbps, 1),
            &line.share.map_or("".into(), |s| format!("{:.0} %", 100.0 * s)),
            &refused.unwrap_or_else(|| number(line.peer_median_ms, 3)),
            &number(line.ratio, 2),
        ]);
        let backend = line.peer_backend.as_ref().map_or(String::new(), |name| format!("  {name}"));
        out::result(&format!("{row}{backend}"))
    }
}

fn row(cells: &[&str; 10]) -> String {
    let [op, shape, pass, dtype, rest @ ..] = cells;
    let numbers: String = rest.iter().map(|c| format!("{c:>10}")).collect();
    format!("{op:<20}{shape:<20}{pass:<8}{dtype:<6}{numbers}").trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_ratio_follow_from_the_times() {
        let mut line = Line { op: "gemm".into(), flops: 2_000_000_000, bytes: 1_000_000, ..Line::default() };
        line.shown = Some(["product".into(), "any".into()]);
        let backend = Some("flash".into());
        let times = Times { median_ms: 10.0, peer: Some(("torch".into(), 8.0)), backend, ..Times::default() };
        line.complete(&times, &Ceilings { gflops: 400.0, gbps: 20.0 });
        assert!((line.gflops.unwrap() - 200.0).abs() < 1e-9);
        assert!((line.share.unwrap() - 0.5).abs() < 1e-9);
        assert!((line.ratio.unwrap() - 0.8).abs() < 1e-9);
        let json = serde_json::to_value(&line).unwrap();
        assert!(json.get("layout").is_none() && json["peer_median_ms"] == 8.0, "{json}");
        assert!(json.get("shown").is_none() && json["peer_backend"] == "flash", "{json}");
    }
}
