//! The JSON report that the driver writes at process exit and `aethercl run` reads.

use aethercl::report::{Finding, Report};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A kernel on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRow {
    /// Profile name of the device.
    pub device: String,
    /// Its name.
    pub kernel: String,
    /// Number of launches.
    pub launches: u64,
    /// Modelled time of all launches, ns.
    pub ns: u64,
    /// The limiting resource of its longest launch.
    pub bound: String,
    /// Modelled time of its longest launch, ns.
    pub longest_ns: u64,
}

/// Transfers of one kind on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferRow {
    /// Device, as its profile is called.
    pub device: String,
    /// `write`, `read`, `copy` or `fill`.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// Bytes moved by all.
    pub bytes: u64,
    /// Modelled time of all, ns.
    pub ns: u64,
}

/// The report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Kernels, the longest first.
    pub kernels: Vec<KernelRow>,
    /// Transfers.
    pub transfers: Vec<TransferRow>,
    /// Findings in the order they were made.
    pub findings: Vec<Finding>,
    /// Commands that failed, in words.
    pub failures: Vec<String>,
    /// Objects that the program still held at the end, by kind.
    pub leaked: BTreeMap<String, usize>,
    /// Data of the HTML page, if a detailed report was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

impl Summary {
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
}
