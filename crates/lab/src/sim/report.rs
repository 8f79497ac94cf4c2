//! The output of `netcl sim run` and `netcl sim check`.

use super::arg::KernelArg;
use super::number::Number;
use crate::out;
use aethercl::counters::Counters;
use aethercl::machine::{CommandOutcome, Completion, human_ns};
use aethercl::model::{Bound, Profile};
use aethercl::report::{self, Summary};
use netcl::device::counted;
use netcl::prelude::*;
use serde::Serialize;

/// A run of one kernel: the summary of `aethercl run`, buffers and figures of the launch.
#[derive(Default, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "String::is_empty")]
    kernel: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    profile: String,
    /// The part that `aethercl run` also reports.
    #[serde(flatten)]
    pub summary: Summary,
    pub buffers: Vec<BufferReport>,
    printed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<TimeReport>,
    #[serde(skip)]
    counters: Option<Counters>,
}

/// The result of the time model.
#[derive(Serialize)]
struct TimeReport {
    ns: u64,
    bound_by: String,
    /// Time of each part alone, in ns.
    bounds: Vec<(String, f64)>,
    groups: u64,
    groups_resident: u64,
    limited_by: String,
    waves_resident: f64,
    l2_bytes: u64,
    dram_bytes: u64,
    instructions_issued: u64,
    lanes_idle: f64,
    coalescing: f64,
    bank_conflicts: f64,
}

/// The first elements of a buffer after the launch.
#[derive(Serialize)]
pub struct BufferReport {
    name: String,
    elements: usize,
    first: Vec<serde_json::Value>,
    #[serde(skip)]
    shown: Vec<String>,
}

impl BufferReport {
    pub fn new(name: &str, arg: &KernelArg, data: &[u8], show: usize) -> Self {
        let number = match arg {
            KernelArg::Buffer { number, .. } => *number,
            KernelArg::Image(image) => image.number(),
            _ => Number::U8,
        };
        let values = data.chunks_exact(number.size());
        let first = values.clone().take(show).map(|v| number.json(v)).collect();
        let shown = values.clone().take(show).map(|v| number.show(v)).collect();
        Self { name: name.into(), elements: values.len(), first, shown }
    }

    fn text(&self) -> String {
        let more = if self.elements > self.first.len() { " …" } else { "" };
        format!("{} ({}): {}{more}", self.name, counted(self.elements, "element"), self.shown.join(" "))
    }
}

impl Report {
    pub fn new(kernel: &str, profile: &Profile, completion: &Completion) -> Self {
        let none = CommandOutcome::default();
        let outcome = completion.outcome.as_ref().unwrap_or(&none);
        let counters = outcome.done.counters.clone();
        let time = outcome.estimate.as_ref().zip(counters.as_ref()).map(|(e, c)| TimeReport {
            ns: e.ns,
            bound_by: e.bound().to_string(),
            bounds: Bound::ALL.iter().zip(e.bounds).map(|(b, ns)| (b.to_string(), ns)).collect(),
            groups: e.groups,
            groups_resident: e.occupancy.groups,
            limited_by: e.occupancy.limit.to_string(),
            waves_resident: e.occupied,
            l2_bytes: e.l2_bytes,
            dram_bytes: e.dram_bytes,
            instructions_issued: c.issued,
            lanes_idle: c.divergence(),
            coalescing: c.coalescing(),
            bank_conflicts: c.bank_conflicts(),
        });
        let mut summary = Summary::default();
        match &completion.outcome {
            Ok(_) => summary.launch(&profile.name, kernel, completion),
            Err(why) => _ = summary.failed(&why.to_string()),
        }
        summary.found(&outcome.done.findings);
        Self {
            kernel: kernel.into(),
            profile: profile.name.clone(),
            summary,
            buffers: Vec::new(),
            printed: outcome.done.printed.clone(),
            time,
            counters,
        }
    }

    /// Formats the report for people; without `all`, only the findings.
    pub fn text(&self, all: bool) -> String {
        let found = report::findings(&self.summary);
        let mut lines: Vec<String> = Vec::new();
        if !found.is_empty() {
            lines.push(found.trim_end().into());
        }
        if !self.printed.is_empty() {
            lines.push(self.printed.trim_end().into());
        }
        if !all {
            lines.push(format!("{}: {}", self.kernel, self.summary.verdict()));
            return lines.join("\n");
        }
        lines.extend(self.buffers.iter().map(BufferReport::text));
        if let (Some(time), Some(counters)) = (&self.time, &self.counters) {
            lines.extend(time.lines(&self.kernel, &self.profile, counters));
        }
        lines.join("\n")
    }

    /// Returns an error with the summary's exit code if the launch failed or the checks found something.
    pub fn verdict(&self) -> Result<()> {
        match self.summary.exit_code() {
            0 => Ok(()),
            code => {
                out::end_with(code);
                Err(Error::launch(match self.summary.failures.first() {
                    Some(why) => why.clone(),
                    None => format!("{} in kernel {}", self.summary.verdict(), self.kernel),
                }))
            }
        }
    }
}

impl TimeReport {
    fn lines(&self, kernel: &str, profile: &str, counters: &Counters) -> Vec<String> {
        let o = &counters.operations;
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let mut bounds: Vec<&(String, f64)> = self.bounds.iter().filter(|(_, ns)| *ns > 0.0).collect();
        bounds.sort_by(|a, b| b.1.total_cmp(&a.1));
        let parts: Vec<String> =
            bounds.iter().take(4).map(|(name, ns)| format!("{name} {}", human_ns(*ns as u64))).collect();
        vec![
            format!(
                "time        {kernel} would take {} on {profile}, bound by {}",
                human_ns(self.ns),
                self.bound_by
            ),
            format!("alone       {}", parts.join(", ")),
            format!(
                "groups      {} of {}, {} at a time per unit (limited by {}), {} of its waves",
                self.groups,
                counted(counters.items / counters.groups.max(1), "item"),
                self.groups_resident,
                self.limited_by,
                percent(self.waves_resident)
            ),
            format!(
                "operations  {} f32 ({} of them fused), {} f64, {} integer, {} special, {} branches",
                o.float, o.fma, o.double, o.integer, o.special, o.branch
            ),
            format!(
                "instructions {} issued, {} of their lanes masked off, {} executed once per group",
                self.instructions_issued,
                percent(self.lanes_idle),
                counters.uniform
            ),
            format!(
                "global      {} bytes loaded, {} stored, {} of the moved bytes were requested; {} bytes of device memory",
                counters.global_load.bytes,
                counters.global_store.bytes,
                percent(self.coalescing),
                self.dram_bytes
            ),
            format!(
                "local       {} requests in {:.2} passes each, {} bytes per group",
                counters.local_requests, self.bank_conflicts, counters.local_bytes
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_launch_has_the_exit_code_of_its_kind() {
        assert_eq!(report::FAILED, Error::launch("why").kind().exit_code());
    }
}
