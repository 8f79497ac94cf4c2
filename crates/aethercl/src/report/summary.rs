//! The summary of a run: kernels, transfers, findings and failures. It decides the exit code.

use super::data::{ReportedFinding, RunReport};
use super::fill;
use crate::machine::Completion;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Exit code of a run with findings in which no command failed.
pub const FOUND: u8 = 7;
/// Exit code of a run in which a kernel or a transfer failed.
pub const FAILED: u8 = 6;

/// Maximum number of failures, and of findings, that are kept.
const MAX_KEPT_FAILURES: usize = 1000;

/// A kernel on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRow {
    /// Profile name of the device.
    pub device: String,
    /// Its name.
    pub kernel: String,
    /// Number of launches.
    pub launches: u64,
    /// Modeled time of all launches, ns.
    pub ns: u64,
    /// The limiting resource of its longest launch.
    pub bound: String,
    /// Modeled time of its longest launch, ns.
    pub longest_ns: u64,
}

/// Transfers of one kind on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferRow {
    /// Profile name of the device.
    pub device: String,
    /// `write`, `read`, `copy` or `fill`.
    pub kind: String,
    /// Number of transfers.
    pub count: u64,
    /// Bytes moved by all.
    pub bytes: u64,
    /// Modeled time of all, ns.
    pub ns: u64,
}

/// The summary of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Kernels, the longest first.
    pub kernels: Vec<KernelRow>,
    /// Transfers.
    pub transfers: Vec<TransferRow>,
    /// Findings in the order of detection.
    pub findings: Vec<ReportedFinding>,
    /// Descriptions of failed commands.
    pub failures: Vec<String>,
    /// Leaked objects by kind.
    pub leaked: BTreeMap<String, usize>,
    /// Data of the HTML page, if a detailed report was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<RunReport>,
}

impl Summary {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            kernels: Vec::new(),
            transfers: Vec::new(),
            findings: Vec::new(),
            failures: Vec::new(),
            leaked: BTreeMap::new(),
            report: None,
        }
    }

    /// Returns 0, or [`FAILED`], or [`FOUND`].
    pub fn exit_code(&self) -> u8 {
        match (self.failures.len(), self.findings.len()) {
            (0, 0) => 0,
            (0, _) => FOUND,
            _ => FAILED,
        }
    }

    /// Returns the numbers of findings and failures as text.
    pub fn verdict(&self) -> String {
        let found = crate::counted(self.findings.len(), "finding");
        match (self.failures.len(), self.findings.len()) {
            (0, 0) => "nothing found".into(),
            (0, _) => found,
            (failed, _) => format!("{found}, {}", crate::counted(failed, "failed command")),
        }
    }

    /// Copies findings, failures and leaks into the page's data.
    pub fn copy_to(&self, report: &mut RunReport) {
        report.findings.clone_from(&self.findings);
        report.failures.clone_from(&self.failures);
        report.leaked.clone_from(&self.leaked);
    }

    /// Records a successful launch of the kernel called `name`.
    pub fn launch(&mut self, device: &str, name: &str, done: &Completion) {
        let at = self.kernels.iter().position(|k| k.device == device && k.kernel == name);
        let at = at.unwrap_or_else(|| {
            let (device, kernel) = (device.to_string(), name.to_string());
            self.kernels.push(KernelRow { device, kernel, ..KernelRow::default() });
            self.kernels.len() - 1
        });
        let ns = done.end_ns.saturating_sub(done.start_ns);
        let row = &mut self.kernels[at];
        row.launches += 1;
        row.ns += ns;
        let estimate = done.outcome.as_ref().ok().and_then(|o| o.estimate.as_ref());
        if let Some(estimate) = estimate.filter(|_| ns >= row.longest_ns) {
            (row.longest_ns, row.bound) = (ns, estimate.bound().to_string());
        }
    }

    /// Records a successful transfer.
    pub fn transfer(&mut self, device: &str, kind: &str, bytes: u64, ns: u64) {
        let at = self.transfers.iter().position(|t| t.device == device && t.kind == kind);
        let at = at.unwrap_or_else(|| {
            let (device, kind) = (device.to_string(), kind.to_string());
            self.transfers.push(TransferRow { device, kind, ..TransferRow::default() });
            self.transfers.len() - 1
        });
        let row = &mut self.transfers[at];
        row.count += 1;
        row.bytes += bytes;
        row.ns += ns;
    }

    /// Records findings of a launch. Those at a known place only raise its count; the others are returned.
    pub fn found<'f>(&mut self, findings: &'f [crate::Finding]) -> Vec<&'f crate::Finding> {
        let mut fresh = Vec::new();
        for finding in findings {
            let same = |f: &&mut ReportedFinding| {
                f.kind == finding.kind.name()
                    && f.kernel == finding.kernel
                    && (&f.file, f.line, f.column) == (&finding.file, finding.line, finding.column)
                    && f.object == finding.object
            };
            if let Some(known) = self.findings.iter_mut().find(same) {
                known.count += finding.count;
            } else if self.findings.len() < MAX_KEPT_FAILURES {
                self.findings.push(fill::finding(finding));
                fresh.push(finding);
            }
        }
        fresh
    }

    /// Records a failed command; returns whether it was kept.
    pub fn failed(&mut self, why: &str) -> bool {
        let kept = self.failures.len() < MAX_KEPT_FAILURES;
        if kept {
            self.failures.push(why.to_string());
        }
        kept
    }

    /// Merges the report of another process.
    pub fn add(&mut self, other: Self) {
        for row in other.kernels {
            let same = |k: &&mut KernelRow| k.device == row.device && k.kernel == row.kernel;
            match self.kernels.iter_mut().find(same) {
                Some(own) => {
                    own.launches += row.launches;
                    own.ns += row.ns;
                    if row.longest_ns > own.longest_ns {
                        (own.longest_ns, own.bound) = (row.longest_ns, row.bound);
                    }
                }
                None => self.kernels.push(row),
            }
        }
        for row in other.transfers {
            let same = |t: &&mut TransferRow| t.device == row.device && t.kind == row.kind;
            match self.transfers.iter_mut().find(same) {
                Some(own) => {
                    own.count += row.count;
                    own.bytes += row.bytes;
                    own.ns += row.ns;
                }
                None => self.transfers.push(row),
            }
        }
        self.findings.extend(other.findings);
        self.failures.extend(other.failures);
        for (name, count) in other.leaked {
            *self.leaked.entry(name).or_default() += count;
        }
        match (&mut self.report, other.report) {
            (Some(own), Some(theirs)) => own.add(theirs),
            (own @ None, theirs) => *own = theirs,
            _ => {}
        }
        self.kernels.sort_by_key(|k| std::cmp::Reverse(k.ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_are_one_summary() {
        let kernel = |ns: u64, bound: &str| KernelRow {
            device: "d".into(),
            kernel: "k".into(),
            launches: 1,
            ns,
            bound: bound.into(),
            longest_ns: ns,
        };
        let of = |row: KernelRow| Summary {
            leaked: BTreeMap::from([("event".to_string(), 2)]),
            kernels: vec![row],
            ..Summary::default()
        };
        let mut all = of(kernel(5, "latency"));
        all.add(of(kernel(7, "issue slots")));
        let want = KernelRow { launches: 2, ns: 12, longest_ns: 7, ..kernel(7, "issue slots") };
        assert_eq!(all.kernels, [want]);
        assert_eq!(all.leaked["event"], 4);
    }

    #[test]
    fn a_failure_outweighs_findings() {
        let mut summary = Summary::new();
        assert_eq!((summary.exit_code(), summary.verdict().as_str()), (0, "nothing found"));
        summary.findings.push(ReportedFinding::default());
        assert_eq!((summary.exit_code(), summary.verdict().as_str()), (FOUND, "1 finding"));
        assert!(summary.failed("why"));
        assert_eq!(summary.exit_code(), FAILED);
        assert_eq!(summary.verdict(), "1 finding, 1 failed command");
    }
}
