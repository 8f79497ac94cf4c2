//! Computes the time of a launch from its counters.
//!
//! The parts of a device are issue slots, each class of arithmetic, local memory with its bank conflicts, the caches, and device memory. Each part
//! would finish its share of a launch in some time if nothing else limited it. Waves move from part to part. Resident waves share each part, queue
//! for it, and in between wait for their own results. That is a closed queueing network, whose time mean value analysis computes. With few waves,
//! the time is the sum of a wave's own times. With many, it is that of the slowest part. In between it is more than either. Waves of a group do the
//! same work at the same time, so parts overlap less than in such a network: a fraction of the time of the other parts is added.
//!
//! The model ignores exact cache contents: traffic is classified by footprint and reuse. It ignores compilers: the instructions are those of this
//! crate. It also ignores clocks that drop under load, memory channel conflicts, and concurrent launches.

use super::{Occupancy, Profile};
use crate::counters::{Counters, DISTANCES};
use std::fmt;

/// A possible bottleneck of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// Instructions a clock.
    Issue,
    /// f32 arithmetic.
    Float,
    /// f64 arithmetic.
    Double,
    /// Integer arithmetic.
    Integer,
    /// Division, roots, exponentials.
    Special,
    /// Local memory and its banks.
    Local,
    /// Addresses of global accesses, and a unit's own cache.
    L1,
    /// The shared cache.
    L2,
    /// Device memory.
    Dram,
    /// Atomic operations.
    Atomics,
    /// Waiting for the wave's own results.
    Latency,
    /// Assigning groups to units.
    Dispatch,
}

impl Bound {
    /// All, in the order of [`Estimate::bounds`].
    pub const ALL: [Self; 12] = [
        Self::Issue,
        Self::Float,
        Self::Double,
        Self::Integer,
        Self::Special,
        Self::Local,
        Self::L1,
        Self::L2,
        Self::Dram,
        Self::Atomics,
        Self::Latency,
        Self::Dispatch,
    ];
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Issue => "issue slots",
            Self::Float => "f32 arithmetic",
            Self::Double => "f64 arithmetic",
            Self::Integer => "integer arithmetic",
            Self::Special => "special functions",
            Self::Local => "local memory",
            Self::L1 => "L1 cache",
            Self::L2 => "L2 cache",
            Self::Dram => "device memory",
            Self::Atomics => "atomics",
            Self::Latency => "latency",
            Self::Dispatch => "group dispatch",
        })
    }
}

/// Estimate for a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Time on the compute units, ns, without command overhead.
    pub ns: u64,
    /// Time of each part alone, ns, in the order of [`Bound::ALL`].
    pub bounds: [f64; 12],
    /// Occupancy of the units.
    pub occupancy: Occupancy,
    /// Resident waves of a unit divided by the maximum.
    pub occupied: f64,
    /// Bytes through the L2 cache.
    pub l2_bytes: u64,
    /// Bytes to and from device memory.
    pub dram_bytes: u64,
    /// Groups of the launch.
    pub groups: u64,
}

impl Estimate {
    /// Returns the longest bound.
    pub fn bound(&self) -> Bound {
        let longest = (0..Bound::ALL.len()).max_by(|a, b| self.bounds[*a].total_cmp(&self.bounds[*b]));
        Bound::ALL[longest.unwrap_or(0)]
    }
}

/// Fraction of a unit's other parts that does not overlap with the slowest part.
const UNHIDDEN: f64 = 0.25;

/// Returns the estimate for a launch with these counters.
pub fn kernel(profile: &Profile, counters: &Counters) -> Estimate {
    let occupancy = Occupancy::of(profile, counters);
    let traffic = Traffic::of(profile, counters);
    let bounds = bounds(profile, counters, &occupancy, &traffic);
    let parts = parts(&bounds);
    let slowest = parts.iter().copied().fold(0.0, f64::max);
    let hidden = parts.iter().sum::<f64>() - slowest;
    let units = queued(&parts, bounds[Bound::Latency as usize], &occupancy) + UNHIDDEN * hidden;
    // Groups are assigned while others run.
    let together = units.max(bounds[Bound::Dispatch as usize]);
    // A unit receives its groups in sequence.
    let dealt = profile.launch.group_ns * occupancy.groups_of_busiest as f64;
    Estimate {
        ns: ((together + dealt).ceil() as u64).max(1),
        bounds,
        occupied: occupancy.waves() as f64 / f64::from(profile.compute.waves_per_unit),
        occupancy,
        l2_bytes: traffic.l2 as u64,
        dram_bytes: traffic.dram as u64,
        groups: counters.groups,
    }
}

/// Returns the shared parts, ns. Arithmetic and its issue slots are one part, because an instruction uses both at the same time.
fn parts(bounds: &[f64; 12]) -> [f64; 6] {
    use Bound::{Atomics, Double, Dram, Float, Integer, Issue, L1, L2, Local, Special};
    let of = |b: Bound| bounds[b as usize];
    let compute = [Issue, Float, Double, Integer, Special].into_iter().map(of).fold(0.0, f64::max);
    [compute, of(Local), of(L1), of(L2), of(Dram), of(Atomics)]
}

/// Returns the time of all waves of the busiest unit, at its occupancy; the last round may be smaller.
fn queued(parts: &[f64; 6], latency: f64, occupancy: &Occupancy) -> f64 {
    let waves = (occupancy.groups_of_busiest * occupancy.waves_per_group).max(1);
    let resident = occupancy.waves().clamp(1, waves);
    let demands = parts.map(|p| p / waves as f64);
    // The dependency chain of a wave also contains its own instructions.
    let own = demands.iter().sum::<f64>();
    let waiting = (latency / occupancy.rounds().max(1) as f64 - own).max(0.0);
    let (full, rest) = (waves / resident, waves % resident);
    let last = if rest > 0 { round(&demands, waiting, rest) } else { 0.0 };
    full as f64 * round(&demands, waiting, resident) + last
}

/// Mean value analysis: returns the time until this many waves have passed all parts. Each part serves a wave for its `demands`, and each wave waits
/// for `waiting` in addition. An arriving wave finds the average queue of one wave less.
fn round(demands: &[f64; 6], waiting: f64, waves: u64) -> f64 {
    let mut found = [0.0; 6];
    let mut time = 0.0;
    for n in 1..=waves {
        let mut at = [0.0; 6];
        at.iter_mut().zip(demands).zip(&found).for_each(|((t, d), others)| *t = d * (1.0 + others));
        time = waiting + at.iter().sum::<f64>();
        let rate = if time > 0.0 { n as f64 / time } else { 0.0 };
        found = at.map(|t| t * rate);
    }
    time
}

/// Bytes at each level of memory.
struct Traffic {
    /// Sectors that the requests touched.
    l1: f64,
    /// Misses of the L1 caches, and every store.
    l2: f64,
    /// Misses of the L2 cache.
    dram: f64,
}

impl Traffic {
    fn of(profile: &Profile, counters: &Counters) -> Self {
        let cache = &profile.cache;
        // Counted in sectors of 32 bytes; a device with longer sectors also moves the bytes in between, at most one line per sector.
        let sector = f64::from(cache.sector_bytes.max(32));
        let moved = |t: &crate::counters::Traffic| {
            (t.sectors as f64 * sector).min(t.lines as f64 * 128.0).max(t.sectors as f64 * 32.0)
        };
        let (loads, stores) = (moved(&counters.global_load), moved(&counters.global_store));
        // A repeated access of one group hits a cache if the group's share of it holds the data accessed in between.
        let occupancy = Occupancy::of(profile, counters);
        let resident = occupancy.groups as f64;
        let running = resident * f64::from(profile.compute.units).min(counters.groups.max(1) as f64);
        let (l1, l2) = (cache.l1_bytes as f64 / resident, cache.l2_bytes as f64 / running);
        let from_l1 = within(&counters.load_again, l1).min(loads);
        let past_l2 = beyond(&counters.load_again, l2.max(l1));
        let (footprint, groups) = (counters.global_footprint as f64, counters.group_footprint as f64);
        // Data of other groups hits if the cache holds everything that the launch reads, and partly if it holds a part.
        let l2_kept = (cache.l2_bytes as f64 / footprint.max(1.0)).min(1.0);
        let dram_loads = footprint + (groups - footprint).max(0.0) * (1.0 - l2_kept) + past_l2;
        // A partly written sector that leaves the cache is read, completed and written again.
        let torn = 2.0 * beyond(&counters.store_again, l2);
        let dram_stores = (counters.store_footprint as f64).min(stores) + torn;
        Self { l1: loads + stores, l2: loads - from_l1 + stores, dram: dram_loads + dram_stores }
    }
}

/// Returns the bytes of repeated accesses with at most `bytes` other bytes in between.
fn within(again: &[u64; DISTANCES], bytes: f64) -> f64 {
    let near = |class: &(usize, &u64)| 1.5 * 32.0 * 2f64.powi(class.0 as i32) <= bytes;
    again.iter().enumerate().filter(near).map(|(_, n)| *n as f64 * 32.0).sum()
}

/// Returns the remaining repeated accesses.
fn beyond(again: &[u64; DISTANCES], bytes: f64) -> f64 {
    again.iter().sum::<u64>() as f64 * 32.0 - within(again, bytes)
}

fn bounds(profile: &Profile, counters: &Counters, occupancy: &Occupancy, traffic: &Traffic) -> [f64; 12] {
    let (c, r) = (&profile.compute, &profile.rates);
    let ops = &counters.operations;
    let clocks = profile.clocks_per_ns();
    // The busiest unit's share of all work.
    let share = occupancy.groups_of_busiest as f64 / counters.groups.max(1) as f64;
    // Masked-off lanes occupy their slots.
    let masked = 1.0 / (1.0 - counters.divergence()).max(1.0 / f64::from(c.simd_width));
    let lanes = |n: u64, rate: u32| n as f64 * masked * share / f64::from(rate.max(1)) / clocks;
    let issued = (counters.issued + counters.uniform * occupancy.waves_per_group) as f64 * share;
    let width = f64::from(counters.simd_width.max(1));
    // Passes are counted on 32 banks of 4 bytes.
    let pass = 128.0 / f64::from(profile.local.banks * profile.local.bank_bytes);
    let local_lanes = f64::from(r.local) / width;
    let local = (counters.local_passes as f64 * pass).max(counters.local_requests as f64 / local_lanes);
    let addresses = (counters.global_load.requests + counters.global_store.requests) as f64 * width;
    let l1 = (addresses / f64::from(r.global)).max(traffic.l1 / f64::from(profile.cache.l1_bytes_per_clock));
    // Texture units use the same cache.
    let l1 = l1.max(counters.texture_steps as f64 / f64::from(r.texture.max(1)));
    let atomics = (ops.atomic_global as f64) / f64::from(profile.cache.l2_atomics_per_clock) / clocks;
    [
        issued / f64::from(c.schedulers) / clocks,
        lanes(ops.float, r.float),
        lanes(ops.double, r.double),
        lanes(ops.integer, r.integer).max(lanes(ops.branch, r.branch)),
        lanes(ops.special, r.special),
        local * share / clocks,
        l1 * share / clocks,
        traffic.l2 / profile.cache.l2_gb_per_s,
        traffic.dram / (profile.memory.gb_per_s * profile.memory.efficiency),
        atomics,
        latency_ns(profile, counters, occupancy, traffic),
        profile.launch.dispatch_ns * counters.groups as f64,
    ]
}

/// Returns the latency of the rounds of groups through a unit, each as long as its longest dependency chain.
fn latency_ns(profile: &Profile, counters: &Counters, occupancy: &Occupancy, traffic: &Traffic) -> f64 {
    let l = &profile.latency;
    let clocks = profile.clocks_per_ns();
    let missed_l1 = (traffic.l2 / traffic.l1.max(1.0)).min(1.0);
    let missed_l2 = (traffic.dram / traffic.l2.max(1.0)).min(1.0);
    let beyond_l1 = f64::from(l.l2_clocks) + missed_l2 * f64::from(l.dram_ns) * clocks;
    let load = f64::from(l.l1_clocks) + missed_l1 * beyond_l1;
    let groups = counters.groups.max(1) as f64;
    let each = |n: u64, clocks: f64| n as f64 / groups * clocks;
    let chain = &counters.chain;
    let loads = each(chain.global_loads, load) + each(chain.local_loads, f64::from(l.local_clocks));
    let barriers = each(chain.barriers, f64::from(l.barrier_clocks));
    // A wave also issues its other instructions in sequence.
    let issued =
        counters.issued as f64 / counters.simd_groups.max(1) as f64 + counters.uniform as f64 / groups;
    let alone = f64::from(l.arithmetic_clocks) / f64::from(l.independent_arithmetic);
    let operations = each(chain.operations, f64::from(l.arithmetic_clocks)).max(issued * alone);
    (loads + barriers + operations) / clocks * occupancy.rounds() as f64
}

/// Returns the time of a copy between host and device, ns.
pub fn copy_ns(profile: &Profile, bytes: u64) -> u64 {
    profile.link.latency_ns + (bytes as f64 / profile.link.gb_per_s).ceil() as u64
}

/// Returns the time of a fill or, with `reads`, of a copy within the device, ns.
pub fn fill_ns(profile: &Profile, bytes: u64, reads: bool) -> u64 {
    let moved = bytes as f64 * if reads { 2.0 } else { 1.0 };
    let rate = profile.memory.gb_per_s * profile.memory.fill_efficiency;
    u64::from(profile.latency.dram_ns) + (moved / rate).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{Chain, Operations, Traffic as Counted};

    fn h200() -> Profile {
        Profile::named("h200").unwrap()
    }

    /// Returns counters of `y = a x + y` over `n` floats: 256 items per group, one element per item.
    fn axpy(n: u64) -> Counters {
        let waves = n / 32;
        let stream = Counted { requests: waves, bytes: 4 * n, sectors: n / 8, lines: n / 32 };
        Counters {
            simd_width: 32,
            groups: n / 256,
            items: n,
            simd_groups: waves,
            operations: Operations {
                float: n,
                fma: n,
                integer: 3 * n,
                load_global: 2 * n,
                ..Operations::default()
            },
            issued: waves * 7,
            global_load: Counted { requests: 2 * waves, bytes: 8 * n, sectors: n / 4, lines: n / 16 },
            global_store: stream,
            global_footprint: 8 * n,
            group_footprint: 8 * n,
            store_footprint: 4 * n,
            chain: Chain { global_loads: n / 256, operations: 8 * n / 256, ..Chain::default() },
            registers: 16,
            ..Counters::default()
        }
    }

    #[test]
    fn streaming_kernels_are_bound_by_device_memory_at_its_rate() {
        let n = 1 << 28;
        let e = kernel(&h200(), &axpy(n));
        assert_eq!(e.bound(), Bound::Dram);
        let rate = 12.0 * n as f64 / e.ns as f64;
        // Measured on the GPU: an addition of two arrays runs at 4362 GB/s.
        assert!((3000.0..4800.0).contains(&rate), "{rate} GB/s, {e:?}");
    }

    #[test]
    fn a_tiny_launch_is_bound_by_latency_and_longer_ones_take_longer() {
        let e = kernel(&h200(), &axpy(1024));
        assert_eq!(e.bound(), Bound::Latency);
        assert!(e.ns < 5_000, "{e:?}");
        let times: Vec<u64> = (10..28).map(|p| kernel(&h200(), &axpy(1 << p)).ns).collect();
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn a_round_lies_between_its_bounds_and_their_sum() {
        let part = |d: f64| [d, 0.0, 0.0, 0.0, 0.0, 0.0];
        // One part alone takes as long as all waves need it. Pure waiting takes as long as one wave waits.
        assert!((round(&part(2.0), 0.0, 8) - 16.0).abs() < 1e-9);
        assert!((round(&part(0.0), 5.0, 8) - 5.0).abs() < 1e-9);
        // One wave waits for its own results. With two equal parts, each is idle while the waves use the other.
        assert!((round(&[2.0, 3.0, 0.0, 0.0, 0.0, 0.0], 4.0, 1) - 9.0).abs() < 1e-9);
        let two = |n| round(&[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 0.0, n) / n as f64;
        assert!((two(1) - 2.0).abs() < 1e-9 && (two(2) - 1.5).abs() < 1e-9 && two(64) < 1.02);
        // More concurrent waves never increase the total time.
        let all = |n| 64.0 / n as f64 * round(&[1.0, 0.5, 0.2, 0.0, 0.0, 0.0], 20.0, n);
        let times: Vec<f64> = [1, 2, 4, 8, 16, 32, 64].map(all).to_vec();
        assert!(times.windows(2).all(|w| w[1] < w[0]), "{times:?}");
    }

    #[test]
    fn many_short_groups_wait_to_be_handed_out() {
        let mut c = axpy(1 << 20);
        c.groups = 1 << 20;
        c.items = c.groups * 32;
        c.simd_groups = c.groups;
        let e = kernel(&h200(), &c);
        assert_eq!(e.bound(), Bound::Dispatch);
        assert!(e.ns > 600_000, "{e:?}");
    }

    #[test]
    fn arithmetic_is_bound_by_its_class() {
        let base = Counters {
            simd_width: 32,
            groups: 132 * 64,
            items: 132 * 64 * 256,
            simd_groups: 132 * 64 * 8,
            registers: 32,
            ..Counters::default()
        };
        let each = 10_000;
        let with = |set: fn(&mut Operations, u64)| {
            let mut c = base.clone();
            set(&mut c.operations, each * base.items);
            c.issued = each * base.simd_groups;
            kernel(&h200(), &c)
        };
        let float = with(|o, n| (o.float, o.fma) = (n, n));
        let special = with(|o, n| o.special = n);
        assert_eq!(special.bound(), Bound::Special);
        assert!(special.ns > 4 * float.ns);
        // Two operations each, at most the peak and at least 80 % of it.
        let gflops = 2.0 * (each * base.items) as f64 / float.ns as f64;
        let peak = h200().peak_gflops();
        assert!((0.8..1.0).contains(&(gflops / peak)), "{gflops} of {peak}: {float:?}");
    }

    #[test]
    fn the_last_round_of_groups_counts_and_bank_conflicts_do() {
        let mut c = axpy(1 << 20);
        c.operations.special = 1 << 30;
        c.groups = 132;
        let full = kernel(&h200(), &c).ns;
        c.groups = 133;
        // With one more group than compute units, one unit runs two.
        let tail = kernel(&h200(), &c).ns;
        assert!(tail as f64 > 1.7 * full as f64, "{full} {tail}");
        let mut c = axpy(1 << 20);
        (c.local_requests, c.local_passes) = (1 << 24, 1 << 24);
        let free = kernel(&h200(), &c).ns;
        c.local_passes *= 8;
        assert!(kernel(&h200(), &c).ns > 4 * free);
    }

    #[test]
    fn nothing_done_takes_little_and_never_no_time() {
        for name in Profile::names() {
            let e = kernel(&Profile::named(name).unwrap(), &Counters::default());
            assert!((1..10_000).contains(&e.ns), "{name}: {e:?}");
        }
        let p = Profile::named("teaching").unwrap();
        assert_eq!(copy_ns(&p, 1000), 2000);
        assert_eq!((fill_ns(&p, 1000, false), fill_ns(&p, 1000, true)), (400, 500));
    }
}
