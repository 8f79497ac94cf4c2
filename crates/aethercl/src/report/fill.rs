//! Converts counters and the model's results to the report's figures.

use super::data::{Ceilings, Figures, GroupLimit, LaunchEstimate, Part, ReportedFinding, WorkItem};
use crate::counters::{Counters, Tally};
use crate::model::{Bound, Estimate, Occupancy, Profile};

/// Returns the peak rates of a device.
pub fn ceilings(profile: &Profile) -> Ceilings {
    let lanes = |rate: u32| f64::from(profile.compute.units) * f64::from(rate) * profile.clocks_per_ns();
    Ceilings {
        f32: profile.peak_gflops(),
        f64: 2.0 * lanes(profile.rates.double),
        integer: lanes(profile.rates.integer),
        dram: profile.memory.gb_per_s * profile.memory.efficiency,
        l2: profile.cache.l2_gb_per_s,
        l1: lanes(profile.cache.l1_bytes_per_clock),
    }
}

/// Returns the counts of instructions in SIMD groups of `width` work-items and this many clocks.
pub fn figures(tally: &Tally, width: u32, cycles: f64) -> Figures {
    let o = &tally.operations;
    let lanes_issued = tally.issued * u64::from(width);
    Figures {
        executions: tally.executions,
        issued: tally.issued,
        lanes_issued,
        lanes_active: lanes_issued.saturating_sub(tally.lanes_idle),
        uniform: tally.uniform,
        flops: o.float + o.double + o.fma,
        integer: o.integer,
        branches: o.branch,
        barriers: o.barrier,
        atomics: o.atomic_global,
        global_bytes: tally.global_load.bytes + tally.global_store.bytes,
        global_requests: tally.global_load.requests + tally.global_store.requests,
        global_sectors: tally.global_load.sectors + tally.global_store.sectors,
        ideal_sectors: tally.ideal_sectors,
        local_requests: tally.local_requests,
        local_passes: tally.local_passes,
        cycles,
    }
}

/// Returns one launch with its estimate.
pub fn launch(
    profile: &Profile,
    counters: &Counters,
    estimate: &Estimate,
    [global, local]: [[u64; 3]; 2],
) -> LaunchEstimate {
    let o = &counters.operations;
    // For fused multiply-adds only the sum over both widths is counted.
    let double = if o.float + o.double > 0 {
        o.double + (o.fma as f64 * o.double as f64 / (o.float + o.double) as f64) as u64
    } else {
        0
    };
    let mut parts: Vec<Part> =
        Bound::ALL.iter().zip(estimate.bounds).map(|(b, ns)| Part { name: b.to_string(), ns }).collect();
    parts.retain(|p| p.ns > 0.0);
    parts.sort_by(|a, b| b.ns.total_cmp(&a.ns));
    let limits = Occupancy::limits(profile, counters);
    let allows = |groups: u64| (groups < u64::MAX).then_some(groups);
    LaunchEstimate {
        global,
        local,
        groups: estimate.groups,
        ns: estimate.ns,
        bound: estimate.bound().to_string(),
        parts,
        resident: estimate.occupancy.groups,
        waves: estimate.occupancy.waves(),
        waves_most: u64::from(profile.compute.waves_per_unit),
        limit: estimate.occupancy.limit.to_string(),
        limits: limits.iter().map(|(g, l)| GroupLimit { name: l.to_string(), groups: allows(*g) }).collect(),
        registers: u64::from(counters.registers),
        local_bytes: counters.local_bytes,
        flops: o.float + o.double + o.fma,
        f64_flops: double,
        integer: o.integer,
        l1_bytes: 32 * (counters.global_load.sectors + counters.global_store.sectors),
        l2_bytes: estimate.l2_bytes,
        dram_bytes: estimate.dram_bytes,
    }
}

/// Converts a finding of a check.
pub fn finding(f: &crate::Finding) -> ReportedFinding {
    ReportedFinding {
        kind: f.kind.name().into(),
        kernel: f.kernel.clone(),
        file: f.file.clone(),
        line: f.line,
        column: f.column,
        message: f.message.clone(),
        object: f.object.clone(),
        offset: f.offset,
        count: f.count,
        hint: f.kind.hint().into(),
        values: f.values.clone(),
        items: f
            .items
            .iter()
            .map(|i| WorkItem { global: i.global, local: i.local, group: i.group, did: i.did.into() })
            .collect(),
        text: f.to_string(),
    }
}
