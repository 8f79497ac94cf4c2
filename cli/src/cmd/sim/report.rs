//! What `netcl sim run` and `netcl sim check` print.

use super::arg::KernelArg;
use super::number::Number;
use crate::out;
use aethercl::Finding;
use aethercl::counters::Counters;
use aethercl::machine::{Completion, Outcome, human_ns};
use aethercl::model::{Bound, Profile};
use netcl::device::counted;
use netcl::prelude::*;
use serde::Serialize;

/// Exit code where a kernel ran and the checks found something.
const FINDINGS: u8 = 7;

/// A run of one kernel.
#[derive(Serialize)]
pub struct Report {
    kernel: String,
    profile: String,
    pub findings: Vec<FindingReport>,
    pub buffers: Vec<BufferReport>,
    printed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<TimeReport>,
    #[serde(skip)]
    shown: Vec<String>,
    #[serde(skip)]
    counters: Option<Counters>,
}

/// One finding.
#[derive(Serialize)]
pub struct FindingReport {
    check: String,
    kernel: String,
    file: String,
    line: u32,
    column: u32,
    message: String,
    /// Buffer or variable, and the byte in it.
    object: String,
    offset: i64,
    /// How often it happened there.
    count: u64,
    /// What usually helps.
    hint: &'static str,
    /// What memory held and what was to be stored, the first time.
    values: Vec<String>,
    /// Who did what, the first time.
    items: Vec<ItemReport>,
    /// As it is printed for people.
    text: String,
}

/// A work-item of a finding.
#[derive(Serialize)]
struct ItemReport {
    global: [u64; 3],
    local: [u64; 3],
    group: [u64; 3],
    did: &'static str,
}

/// What the model says.
#[derive(Serialize)]
struct TimeReport {
    ns: u64,
    bound_by: String,
    /// What each part would take alone, ns.
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
        let none = Outcome::default();
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
        Self {
            kernel: kernel.into(),
            profile: profile.name.clone(),
            findings: outcome.done.findings.iter().map(FindingReport::new).collect(),
            buffers: Vec::new(),
            printed: outcome.done.printed.clone(),
            time,
            shown: outcome.done.findings.iter().map(ToString::to_string).collect(),
            counters,
        }
    }

    /// For people; without `all` only what was found.
    pub fn text(&self, all: bool) -> String {
        let mut lines: Vec<String> = self.shown.clone();
        if !self.printed.is_empty() {
            lines.push(self.printed.trim_end().into());
        }
        if !all {
            lines.push(match self.findings.len() {
                0 => format!("{}: nothing found", self.kernel),
                n => format!("{}: {}", self.kernel, counted(n, "finding")),
            });
            return lines.join("\n");
        }
        lines.extend(self.buffers.iter().map(BufferReport::text));
        if let (Some(time), Some(counters)) = (&self.time, &self.counters) {
            lines.extend(time.lines(&self.kernel, &self.profile, counters));
        }
        lines.join("\n")
    }

    /// An error with an exit code of its own where something was found.
    pub fn verdict(&self) -> Result<()> {
        match self.findings.len() {
            0 => Ok(()),
            n => Err({
                out::end_with(FINDINGS);
                Error::launch(format!("{} in kernel {}", counted(n, "finding"), self.kernel))
            }),
        }
    }
}

impl FindingReport {
    fn new(f: &Finding) -> Self {
        Self {
            check: f.kind.name().into(),
            kernel: f.kernel.clone(),
            file: f.file.clone(),
            line: f.line,
            column: f.column,
            object: f.object.clone(),
            offset: f.offset,
            count: f.count,
            message: f.message.clone(),
            hint: f.kind.hint(),
            values: f.values.clone(),
            items: f.items.iter().map(ItemReport::new).collect(),
            text: f.to_string(),
        }
    }
}

impl ItemReport {
    fn new(item: &aethercl::Item) -> Self {
        Self { global: item.global, local: item.local, group: item.group, did: item.did }
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
                "groups      {} of {}, {} at a time on a unit (limited by {}), {} of its waves",
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
                "instructions {} issued, {} of their lanes masked off, {} done once for a group",
                self.instructions_issued,
                percent(self.lanes_idle),
                counters.uniform
            ),
            format!(
                "global      {} bytes loaded, {} stored, {} of what was moved was asked for; {} bytes of device memory",
                counters.global_load.bytes,
                counters.global_store.bytes,
                percent(self.coalescing),
                self.dram_bytes
            ),
            format!(
                "local       {} requests in {:.2} passes each, {} bytes a group",
                counters.local_requests, self.bank_conflicts, counters.local_bytes
            ),
        ]
    }
}
