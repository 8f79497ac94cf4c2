//! `aethercl compare`: runs one program on several profiles, optionally with changed figures.

use super::start::{Failure, How, start};
use aethercl::machine::human_ns;
use aethercl::model::Profile;
use aethercl::report::Summary;
use std::fmt::Write;
use std::process::ExitStatus;

#[derive(clap::Args)]
pub struct Compare {
    /// Devices, comma-separated: profile names, or files that end in .toml.
    #[arg(long, default_value = "h200,rx7900xtx,arc-a770,adreno-750")]
    profile: String,
    /// Profile figure to change, as NAME=VALUE (l2=100MB, units=64, memory.gb_per_s=2000); repeatable. All changes together add one device per
    /// profile.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Time limit of a work-group in seconds; 0 for no limit.
    #[arg(long)]
    timeout: Option<f64>,
    /// Number of kernels to show.
    #[arg(long, default_value_t = 20)]
    top: usize,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

impl Compare {
    /// Returns the table, and the exit status of the first run that failed.
    pub fn run(&self) -> Result<(String, Option<ExitStatus>), Failure> {
        let folder = tempfile::tempdir().map_err(|e| format!("cannot create a temporary folder: {e}"))?;
        // Value of `AETHERCL_PROFILES`, and column heading.
        let mut devices: Vec<(String, String)> = Vec::new();
        for name in self.profile.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            let text = match Profile::text(name) {
                Some(text) => text.to_string(),
                None if name.ends_with(".toml") => {
                    std::fs::read_to_string(name).map_err(|e| format!("{name}: {e}"))?
                }
                None => {
                    return Err(Profile::named(name)
                        .err()
                        .map_or_else(String::new, |e| e.to_string())
                        .into());
                }
            };
            devices.push((name.into(), Profile::parse(&text).map_err(|e| e.to_string())?.name));
            if !self.set.is_empty() {
                let text = Profile::changed(&text, &self.set).map_err(|e| e.to_string())?;
                let path = folder.path().join(format!("{}.toml", devices.len()));
                std::fs::write(&path, &text).map_err(|e| format!("{}: {e}", path.display()))?;
                let called = Profile::parse(&text).map_err(|e| e.to_string())?.name;
                devices.push((path.display().to_string(), called));
            }
        }
        let mut columns = Vec::new();
        let mut bad = None;
        for (i, (device, called)) in devices.into_iter().enumerate() {
            let (status, summary) = start(
                &self.program,
                How {
                    check: "none",
                    profiles: Some(&device),
                    timeout: self.timeout,
                    silent: i > 0,
                    detail: false,
                },
            )?;
            if !status.success() {
                bad = bad.or(Some(status));
            }
            columns.push((called, summary.unwrap_or_default()));
        }
        Ok((table(&columns, self.top), bad))
    }
}

/// Formats kernels ordered by their time on the first device, with one column per device.
fn table(columns: &[(String, Summary)], top: usize) -> String {
    let mut names: Vec<&str> = Vec::new();
    for kernel in columns.iter().flat_map(|(_, summary)| &summary.kernels) {
        if !names.contains(&kernel.kernel.as_str()) {
            names.push(&kernel.kernel);
        }
    }
    let cell = |summary: &Summary, name: &str| match summary.kernels.iter().find(|k| k.kernel == name) {
        Some(k) => format!("{} ({})", human_ns(k.ns), k.bound),
        None => "-".into(),
    };
    let total = |summary: &Summary| summary.kernels.iter().map(|k| k.ns).sum::<u64>();
    let first = columns.first().map_or(0, |(_, summary)| total(summary));
    let mut rows: Vec<Vec<String>> = vec![vec!["kernel".into()]];
    rows[0].extend(columns.iter().map(|(name, _)| name.clone()));
    for name in names.iter().take(top) {
        let cells = columns.iter().map(|(_, summary)| cell(summary, name));
        rows.push([name.to_string()].into_iter().chain(cells).collect());
    }
    let all = columns.iter().map(|(_, summary)| {
        let times = total(summary) as f64 / first.max(1) as f64;
        format!("{} ({times:.2} times)", human_ns(total(summary)))
    });
    rows.push(["all kernels".to_string()].into_iter().chain(all).collect());
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=columns.len()).map(width).collect();
    let mut out = String::from("\n== aethercl ==\n");
    for row in &rows {
        let mut line = String::new();
        for (text, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{text:<width$}  ");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    if names.len() > top {
        let _ = writeln!(out, "… and {}", aethercl::counted(names.len() - top, "more kernel"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use aethercl::report::KernelRow;

    #[test]
    fn devices_stand_side_by_side() {
        let row = |kernel: &str, ns| KernelRow {
            kernel: kernel.into(),
            ns,
            bound: "latency".into(),
            ..KernelRow::default()
        };
        let of = |kernels| Summary { kernels, ..Summary::default() };
        let columns = [
            ("a".to_string(), of(vec![row("long", 2000), row("short", 1000)])),
            ("b l2=1MB".to_string(), of(vec![row("long", 6000)])),
        ];
        let text = table(&columns, 20);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert!(lines[0].ends_with("b l2=1MB"), "{text}");
        assert!(lines[1].contains("2.00 µs (latency)") && lines[1].contains("6.00 µs (latency)"), "{text}");
        assert!(lines[2].ends_with('-'), "{text}");
        assert!(lines[3].contains("(1.00 times)") && lines[3].ends_with("(2.00 times)"), "{text}");
    }
}
