//! The report as text.

use super::summary::Summary;
use crate::counted;
use crate::machine::human_ns;
use std::fmt::Write;

/// Findings, each followed by a blank line.
pub fn findings(summary: &Summary) -> String {
    summary.findings.iter().map(|finding| format!("{}\n\n", finding.text)).collect()
}

/// Returns the whole report, with at most `top` kernels.
pub fn text(summary: &Summary, top: usize) -> String {
    let mut out = format!("\n== aethercl ==\n{}", findings(summary));
    for failure in &summary.failures {
        let _ = writeln!(out, "failed: {failure}\n");
    }
    kernels(&mut out, summary, top);
    transfers(&mut out, summary);
    if !summary.leaked.is_empty() {
        let list: Vec<String> = summary.leaked.iter().map(|(name, n)| format!("{name} {n}")).collect();
        let _ = writeln!(out, "not released at the end: {}", list.join(", "));
    }
    let _ = writeln!(out, "{}", summary.verdict());
    out
}

fn kernels(out: &mut String, summary: &Summary, top: usize) {
    if summary.kernels.is_empty() {
        let _ = writeln!(out, "no kernel ran to its end");
        return;
    }
    let total: u64 = summary.kernels.iter().map(|k| k.ns).sum();
    let width = summary.kernels.iter().take(top).map(|k| k.kernel.len()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "{:<width$}  {:<12} {:>9} {:>12} {:>12} {:>6}  bound by",
        "kernel", "device", "launches", "time", "longest", "share"
    );
    for k in summary.kernels.iter().take(top) {
        let share = k.ns as f64 * 100.0 / total.max(1) as f64;
        let _ = writeln!(
            out,
            "{:<width$}  {:<12} {:>9} {:>12} {:>12} {share:>5.1}%  {}",
            k.kernel,
            k.device,
            k.launches,
            human_ns(k.ns),
            human_ns(k.longest_ns),
            k.bound
        );
    }
    let rest = summary.kernels.len().saturating_sub(top);
    if rest > 0 {
        let _ = writeln!(out, "… and {}", counted(rest, "more kernel"));
    }
    let _ = writeln!(out, "kernels take {} of modeled time", human_ns(total));
}

fn transfers(out: &mut String, summary: &Summary) {
    for t in &summary.transfers {
        let rate = t.bytes as f64 / t.ns.max(1) as f64;
        let _ = writeln!(
            out,
            "{} {} on {}: {} bytes in {} ({rate:.2} GB/s)",
            t.count,
            if t.count == 1 { t.kind.clone() } else { plural(&t.kind) },
            t.device,
            t.bytes,
            human_ns(t.ns)
        );
    }
}

fn plural(kind: &str) -> String {
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{KernelRow, ReportedFinding, TransferRow};

    #[test]
    fn a_summary_is_readable() {
        let finding = ReportedFinding {
            kind: "race-in-group".into(),
            kernel: "k".into(),
            file: "<source>".into(),
            line: 1,
            column: 2,
            message: "m".into(),
            object: "o".into(),
            offset: 4,
            count: 1,
            text: "<source>:1:2: race-in-group: m".into(),
            ..ReportedFinding::default()
        };
        let kernel = |name: &str, ns| KernelRow {
            device: "h200".into(),
            kernel: name.into(),
            launches: 2,
            ns,
            bound: "latency".into(),
            longest_ns: ns / 2,
        };
        let copies = TransferRow { device: "h200".into(), kind: "copy".into(), count: 2, bytes: 100, ns: 50 };
        let summary = Summary {
            kernels: vec![kernel("long_name", 3000), kernel("b", 1000), kernel("c", 0)],
            transfers: vec![copies],
            findings: vec![finding],
            ..Summary::default()
        };
        let text = text(&summary, 2);
        assert!(text.contains("<source>:1:2: race-in-group: m"), "{text}");
        assert!(text.contains("75.0%  latency") && text.contains("… and 1 more kernel"), "{text}");
        assert!(text.contains("2 copies on h200: 100 bytes in 50 ns (2.00 GB/s)"), "{text}");
        assert!(text.ends_with("1 finding\n"), "{text}");
    }
}
