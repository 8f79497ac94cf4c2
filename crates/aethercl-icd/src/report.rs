//! Collects what the program does, and writes it as JSON at process exit: kernels, transfers, findings, leaked objects.

use crate::calls;
use crate::raw;
use crate::registry;
use crate::settings::{say, settings};
use crate::summary::{KernelRow, Summary, TransferRow};
use aethercl::machine::Completion;
use aethercl::report::{self, Report};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

static REPORT: Mutex<Summary> = Mutex::new(Summary {
    kernels: Vec::new(),
    transfers: Vec::new(),
    findings: Vec::new(),
    failures: Vec::new(),
    leaked: BTreeMap::new(),
    report: None,
});

fn report() -> MutexGuard<'static, Summary> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of failures, and of findings, that are kept.
const KEPT: usize = 1000;

/// Returns the name of every device, and its data for the page unless the device is still busy.
pub type Journals = fn() -> Vec<(String, Option<aethercl::report::Device>)>;

static JOURNALS: OnceLock<Journals> = OnceLock::new();

/// Registers the exit handler that writes the report, if one was requested.
pub fn begin(journals: Journals) {
    if settings().report.is_some() {
        JOURNALS.get_or_init(|| {
            raw::at_exit(write);
            journals
        });
    }
}

extern "C" fn write() {
    let Some(path) = &settings().report else { return };
    // Child processes inherit the setting; `%p` gives each its own file.
    let path = PathBuf::from(path.to_string_lossy().replace("%p", &std::process::id().to_string()));
    let mut report = report().clone();
    report.kernels.sort_by_key(|k| std::cmp::Reverse(k.ns));
    // Platform and devices always exist; they are not leaks.
    let made = registry::held().into_iter().filter(|(name, _)| !matches!(*name, "platform" | "device"));
    report.leaked = made.map(|(name, n)| (name.to_string(), n)).collect();
    if settings().detail {
        report.report = Some(detailed(&report));
    }
    let text = serde_json::to_string_pretty(&report).unwrap_or_default();
    if let Err(e) = std::fs::write(&path, text) {
        say(&format!("the report cannot be written to {}: {e}", path.display()));
    }
}

/// The data of the HTML page.
fn detailed(summary: &Summary) -> Report {
    let mut out = calls::report();
    for (name, journal) in JOURNALS.get().map(|journals| journals()).unwrap_or_default() {
        match journal {
            Some(one) if one.commands.is_empty() && one.memory.events.is_empty() => {}
            Some(one) => out.devices.push(one),
            None => say(&format!("{name} is still at work: the report lacks it")),
        }
    }
    out.findings.clone_from(&summary.findings);
    out.failures.clone_from(&summary.failures);
    out.leaked.clone_from(&summary.leaked);
    out
}

/// Records a successful launch.
pub fn launch(device: &str, name: &str, done: &Completion) {
    let mut report = report();
    let at = report.kernels.iter().position(|k| k.device == device && k.kernel == name);
    let at = at.unwrap_or_else(|| {
        let (device, kernel) = (device.to_string(), name.to_string());
        report.kernels.push(KernelRow { device, kernel, ..KernelRow::default() });
        report.kernels.len() - 1
    });
    let ns = done.end_ns.saturating_sub(done.start_ns);
    let row = &mut report.kernels[at];
    row.launches += 1;
    row.ns += ns;
    let estimate = done.outcome.as_ref().ok().and_then(|o| o.estimate.clone());
    if let Some(estimate) = estimate.filter(|_| ns >= row.longest_ns) {
        (row.longest_ns, row.bound) = (ns, estimate.bound().to_string());
    }
}

/// Records a successful transfer.
pub fn transfer(device: &str, kind: &str, bytes: usize, ns: u64) {
    let mut report = report();
    let at = report.transfers.iter().position(|t| t.device == device && t.kind == kind);
    let at = at.unwrap_or_else(|| {
        let (device, kind) = (device.to_string(), kind.to_string());
        report.transfers.push(TransferRow { device, kind, ..TransferRow::default() });
        report.transfers.len() - 1
    });
    let row = &mut report.transfers[at];
    row.count += 1;
    row.bytes += bytes as u64;
    row.ns += ns;
}

/// Records findings of a launch; new ones are printed at once if no report was requested.
pub fn findings(found: &[aethercl::Finding]) {
    let mut report = report();
    for finding in found {
        let same = |f: &&mut report::Finding| {
            f.kind == finding.kind.name()
                && f.kernel == finding.kernel
                && (&f.file, f.line, f.column) == (&finding.file, finding.line, finding.column)
                && f.object == finding.object
        };
        if let Some(known) = report.findings.iter_mut().find(same) {
            known.count += finding.count;
            continue;
        }
        if report.findings.len() < KEPT {
            report.findings.push(report::finding(finding));
            tell(&finding.to_string());
        }
    }
}

/// Records a failed command; it is printed at once if no report was requested.
pub fn failure(why: &str) {
    let mut report = report();
    if report.failures.len() < KEPT {
        report.failures.push(why.to_string());
        tell(why);
    }
}

/// Prints a message, unless a report will contain it.
fn tell(text: &str) {
    if !settings().quiet && settings().report.is_none() {
        say(text);
    }
}
