//! Records the program's activity and writes it as JSON at process exit: kernels, transfers, findings, leaked objects.

use crate::calls;
use crate::raw;
use crate::registry;
use crate::settings::{say, settings};
use aethercl::machine::Completion;
use aethercl::report::{RunReport, Summary};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

static REPORT: Mutex<Summary> = Mutex::new(Summary::new());

fn report() -> MutexGuard<'static, Summary> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    // Child processes inherit the setting; `%p` gives each process a separate file.
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
        say(&format!("cannot write the report to {}: {e}", path.display()));
    }
}

/// Returns the data of the HTML page.
fn detailed(summary: &Summary) -> RunReport {
    let mut out = calls::report();
    for (name, journal) in JOURNALS.get().map(|journals| journals()).unwrap_or_default() {
        match journal {
            Some(one) if one.commands.is_empty() && one.memory.events.is_empty() => {}
            Some(one) => out.devices.push(one),
            None => say(&format!("{name} is still running: it is missing in the report")),
        }
    }
    summary.copy_to(&mut out);
    out
}

/// Records a successful launch.
pub fn launch(device: &str, name: &str, done: &Completion) {
    report().launch(device, name, done);
}

/// Records a successful transfer.
pub fn transfer(device: &str, kind: &str, bytes: usize, ns: u64) {
    report().transfer(device, kind, bytes as u64, ns);
}

/// Records findings of a launch; new ones are printed at once if no report was requested.
pub fn findings(found: &[aethercl::Finding]) {
    let mut report = report();
    for finding in report.found(found) {
        tell(&finding.to_string());
    }
}

/// Records a failed command; it is printed at once if no report was requested.
pub fn failure(why: &str) {
    if report().failed(why) {
        tell(why);
    }
}

/// Prints a message, unless a report will contain it.
fn tell(text: &str) {
    if !settings().quiet && settings().report.is_none() {
        say(text);
    }
}
