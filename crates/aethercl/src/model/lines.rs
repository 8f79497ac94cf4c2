//! Attributes the modeled time of a launch to source lines.
//!
//! The model gives the time that each part of the device would need alone; the counters give the work of each line for that part. A line gets its
//! share of the work of each part, weighted with the part's time. This is an attribution, not a measurement. The cache misses of individual lines are
//! unknown, so the traffic of all cache levels is attributed by sectors.

use super::{Bound, Estimate, Profile};
use crate::counters::{Counters, Tally};

/// Returns the share of each line in the time of the launch, in the order of `counters.lines`. The sum is 1, or 0 if no work was counted.
pub fn line_shares(profile: &Profile, counters: &Counters, estimate: &Estimate) -> Vec<f64> {
    let mut shares = vec![0.0; counters.lines.len()];
    let mut total = 0.0;
    let latency = latency(profile, counters, estimate);
    let compute = [Bound::Issue, Bound::Float, Bound::Double, Bound::Integer, Bound::Special];
    // Issue slots and arithmetic units are used at the same time, so only the slowest of them counts.
    let slowest = compute.into_iter().max_by(|a, b| of(estimate, *a).total_cmp(&of(estimate, *b)));
    let rest = [Bound::Local, Bound::L1, Bound::L2, Bound::Dram, Bound::Atomics, Bound::Latency];
    for part in slowest.into_iter().chain(rest) {
        let asked: Vec<f64> =
            counters.lines.iter().map(|l| asks(part, &l.tally, estimate, &latency)).collect();
        let all: f64 = asked.iter().sum();
        let ns = of(estimate, part);
        if all > 0.0 && ns > 0.0 {
            shares.iter_mut().zip(asked).for_each(|(s, a)| *s += ns * a / all);
            total += ns;
        }
    }
    if total > 0.0 {
        shares.iter_mut().for_each(|s| *s /= total);
    }
    shares
}

fn of(estimate: &Estimate, part: Bound) -> f64 {
    estimate.bounds[part as usize]
}

/// Latencies in clocks: global load, local access, barrier, instruction.
type Waits = [f64; 4];

fn latency(profile: &Profile, counters: &Counters, estimate: &Estimate) -> Waits {
    let l = &profile.latency;
    let sectors = 32.0 * (counters.global_load.sectors + counters.global_store.sectors) as f64;
    let missed = |next: u64, bytes: f64| (next as f64 / bytes.max(1.0)).min(1.0);
    let dram = missed(estimate.dram_bytes, estimate.l2_bytes as f64) * f64::from(l.dram_ns);
    let beyond = f64::from(l.l2_clocks) + dram * profile.clocks_per_ns();
    let load = f64::from(l.l1_clocks) + missed(estimate.l2_bytes, sectors) * beyond;
    let alone = f64::from(l.arithmetic_clocks) / f64::from(l.independent_arithmetic);
    [load, l.local_clocks.into(), l.barrier_clocks.into(), alone]
}

/// Returns the work of a line for a part of the device, in arbitrary units.
fn asks(part: Bound, tally: &Tally, estimate: &Estimate, [load, local, barrier, alone]: &Waits) -> f64 {
    let o = &tally.operations;
    let issued = (tally.issued + tally.uniform * estimate.occupancy.waves_per_group) as f64;
    let sectors = (tally.global_load.sectors + tally.global_store.sectors) as f64;
    match part {
        Bound::Issue => issued,
        Bound::Float => o.float as f64,
        Bound::Double => o.double as f64,
        Bound::Integer => (o.integer + o.branch) as f64,
        Bound::Special => o.special as f64,
        Bound::Local => tally.local_passes as f64,
        Bound::L1 => sectors + tally.texture_steps as f64,
        Bound::L2 | Bound::Dram => sectors,
        Bound::Atomics => o.atomic_global as f64,
        Bound::Latency => {
            let loads = tally.global_load.requests as f64 * load;
            loads + tally.local_requests as f64 * local + o.barrier as f64 / 32.0 * barrier + issued * alone
        }
        Bound::Dispatch => 0.0,
    }
}
