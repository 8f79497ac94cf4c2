//! From what a launch did to the time it would take.
//!
//! Each part of a device could finish its share of a launch in some time if nothing else held it up: issue slots, each class
//! of arithmetic, local memory with its bank conflicts, the caches, device memory. Waves go from part to part: those that are
//! resident share each of them, wait where others are before them, and between that for their own results. That is a closed
//! queueing network, whose time mean value analysis gives: few waves wait for themselves, many for the slowest part, and in between
//! it is more than either. Waves of a group do the same at the same time, so parts overlap less than in such a network: a share of
//! what is not the slowest part is added.
//!
//! What it does not know: which lines a cache really holds (traffic is told apart by footprint and reuse), compilers (the
//! instructions are this crate's), clocks that fall under load, memory channels that collide, other launches beside.

use super::{Occupancy, Profile};
use crate::counters::{Counters, DISTANCES};
use std::fmt;

/// What can hold a launch up.
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
    /// Waiting for one's own results.
    Latency,
    /// Handing groups to units.
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

/// What the model says of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Time on the compute units, ns. What commands cost comes on top.
    pub ns: u64,
    /// What each part would take alone, ns, in the order of [`Bound::ALL`].
    pub bounds: [f64; 12],
    /// How the launch fills the units.
    pub occupancy: Occupancy,
    /// Waves a unit holds at a time, over those it could.
    pub occupied: f64,
    /// Bytes through the shared cache.
    pub l2_bytes: u64,
    /// Bytes to and from device memory.
    pub dram_bytes: u64,
    /// Groups of the launch.
    pub groups: u64,
}

impl Estimate {
    /// The longest bound.
    pub fn bound(&self) -> Bound {
        let longest = (0..Bound::ALL.len()).max_by(|a, b| self.bounds[*a].total_cmp(&self.bounds[*b]));
        Bound::ALL[longest.unwrap_or(0)]
    }
}

/// Share of what is not the slowest part of a unit that is not hidden behind it.
const UNHIDDEN: f64 = 0.25;

/// Time of a launch that did this.
pub fn kernel(profile: &Profile, counters: &Counters) -> Estimate {
    let occupancy = Occupancy::of(profile, counters);
    let traffic = Traffic::of(profile, counters);
    let bounds = bounds(profile, counters, &occupancy, &traffic);
    let parts = parts(&bounds);
    let slowest = parts.iter().copied().fold(0.0, f64::max);
    let hidden = parts.iter().sum::<f64>() - slowest;
    let units = queued(&parts, bounds[Bound::Latency as usize], &occupancy) + UNHIDDEN * hidden;
    // Groups are handed out while others run.
    let together = units.max(bounds[Bound::Dispatch as usize]);
    // A unit takes its groups one after the other.
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

/// What waves share, ns: arithmetic and the slots that it is issued in are one part, as an instruction takes both at once.
fn parts(bounds: &[f64; 12]) -> [f64; 6] {
    use Bound::{Atomics, Double, Dram, Float, Integer, Issue, L1, L2, Local, Special};
    let of = |b: Bound| bounds[b as usize];
    let compute = [Issue, Float, Double, Integer, Special].into_iter().map(of).fold(0.0, f64::max);
    [compute, of(Local), of(L1), of(L2), of(Dram), of(Atomics)]
}

/// All waves of the busiest unit, as many at a time as it holds; the last round may be a smaller one.
fn queued(parts: &[f64; 6], latency: f64, occupancy: &Occupancy) -> f64 {
    let waves = (occupancy.groups_of_busiest * occupancy.waves_per_group).max(1);
    let resident = occupancy.waves().clamp(1, waves);
    let demands = parts.map(|p| p / waves as f64);
    // The chain of a wave's results holds its own instructions too.
    let own = demands.iter().sum::<f64>();
    let waiting = (latency / occupancy.rounds().max(1) as f64 - own).max(0.0);
    let (full, rest) = (waves / resident, waves % resident);
    let last = if rest > 0 { round(&demands, waiting, rest) } else { 0.0 };
    full as f64 * round(&demands, waiting, resident) + last
}

/// Mean value analysis: how long it takes until so many waves have been through all parts, each of which gives a wave its
/// `demands` while `waiting` passes beside them. A wave that comes to a part finds there what one wave less leaves on average.
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
    /// What the units' own caches did not have, and every store.
    l2: f64,
    /// What the shared cache did not have.
    dram: f64,
}

impl Traffic {
    fn of(profile: &Profile, counters: &Counters) -> Self {
        let cache = &profile.cache;
        // Counted in sectors of 32 bytes; a device with longer ones moves what lies between, at most a line each.
        let sector = f64::from(cache.sector_bytes.max(32));
        let moved = |t: &crate::counters::Traffic| {
            (t.sectors as f64 * sector).min(t.lines as f64 * 128.0).max(t.sectors as f64 * 32.0)
        };
        let (loads, stores) = (moved(&counters.global_load), moved(&counters.global_store));
        // What one group touches again it finds in a cache if its share of it holds what came between.
        let occupancy = Occupancy::of(profile, counters);
        let resident = occupancy.groups as f64;
        let running = resident * f64::from(profile.compute.units).min(counters.groups.max(1) as f64);
        let (l1, l2) = (cache.l1_bytes as f64 / resident, cache.l2_bytes as f64 / running);
        let from_l1 = within(&counters.load_again, l1).min(loads);
        let past_l2 = beyond(&counters.load_again, l2.max(l1));
        let (footprint, groups) = (counters.global_footprint as f64, counters.group_footprint as f64);
        // Other groups' data, if the cache holds all that the launch reads; a part of it, if it holds a part.
        let l2_kept = (cache.l2_bytes as f64 / footprint.max(1.0)).min(1.0);
        let dram_loads = footprint + (groups - footprint).max(0.0) * (1.0 - l2_kept) + past_l2;
        // A sector that leaves the cache half written is read, completed and written again.
        let torn = 2.0 * beyond(&counters.store_again, l2);
        let dram_stores = (counters.store_footprint as f64).min(stores) + torn;
        Self { l1: loads + stores, l2: loads - from_l1 + stores, dram: dram_loads + dram_stores }
    }
}

/// Bytes that are touched again before as many others as these came between.
fn within(again: &[u64; DISTANCES], bytes: f64) -> f64 {
    let near = |class: &(usize, &u64)| 1.5 * 32.0 * 2f64.powi(class.0 as i32) <= bytes;
    again.iter().enumerate().filter(near).map(|(_, n)| *n as f64 * 32.0).sum()
}

/// The rest of them.
fn beyond(again: &[u64; DISTANCES], bytes: f64) -> f64 {
    again.iter().sum::<u64>() as f64 * 32.0 - within(again, bytes)
}

fn bounds(profile: &Profile, counters: &Counters, occupancy: &Occupancy, traffic: &Traffic) -> [f64; 12] {
    let (c, r) = (&profile.compute, &profile.rates);
    let ops = &counters.operations;
    let clocks = profile.clocks_per_ns();
    // Of what is done in all, the share of the unit with most groups.
    let share = occupancy.groups_of_busiest as f64 / counters.groups.max(1) as f64;
    // Lanes masked off take their slots.
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
    // Texture units stand before the same cache.
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

/// One round of groups after the other through a unit, each as long as its longest chain of results.
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
    // A wave also issues its instructions one after the other, those beside the chain too.
    let issued =
        counters.issued as f64 / counters.simd_groups.max(1) as f64 + counters.uniform as f64 / groups;
    let alone = f64::from(l.arithmetic_clocks) / f64::from(l.independent_arithmetic);
    let operations = each(chain.operations, f64::from(l.arithmetic_clocks)).max(issued * alone);
    (loads + barriers + operations) / clocks * occupancy.rounds() as f64
}

/// Time of a copy between host and device, ns.
pub fn copy_ns(profile: &Profile, bytes: u64) -> u64 {
    profile.link.latency_ns + (bytes as f64 / profile.link.gb_per_s).ceil() as u64
}

/// Time of a fill, or, with `reads`, of a copy within the device, ns.
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

    /// `y = a x + y` over `n` floats, 256 items a group, one element an item.
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
        // Measured on the card: an addition of two arrays runs at 4362 GB/s.
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
        // One part alone: as long as all waves need it. Nothing but waiting: as long as one waits.
        assert!((round(&part(2.0), 0.0, 8) - 16.0).abs() < 1e-9);
        assert!((round(&part(0.0), 5.0, 8) - 5.0).abs() < 1e-9);
        // One wave waits for everything of its own; of two equal parts each is idle while the waves are at the other.
        assert!((round(&[2.0, 3.0, 0.0, 0.0, 0.0, 0.0], 4.0, 1) - 9.0).abs() < 1e-9);
        let two = |n| round(&[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 0.0, n) / n as f64;
        assert!((two(1) - 2.0).abs() < 1e-9 && (two(2) - 1.5).abs() < 1e-9 && two(64) < 1.02);
        // More waves at a time never make all of them slower.
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
        // One group more than units: the busiest has two.
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
