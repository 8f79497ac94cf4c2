//! The groups of a launch, dealt to threads.

use super::group::Group;
use super::observer::{Looked, Observer};
use super::run::Stop;
use super::shared::{Buffer, Shared};
use super::turns::{Ended, in_turns};
use crate::check::{Details, FindingKind, Report};
use crate::counters::{Counters, Tally};
use crate::launch::{LaunchOptions, NdRange};
use crate::memory::{Allocation, Saved};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Below so many work-items another thread costs more than it helps.
const ITEMS_PER_THREAD: u64 = 2048;

/// Groups that wait for one another have a thread each, up to so many.
const MOST_TOGETHER: u64 = 64;

/// What the groups leave behind.
#[derive(Default)]
pub struct Ran {
    /// What the checks found.
    pub report: Report,
    /// What was counted, for the whole launch.
    pub counters: Counters,
    /// The same by instruction, where lines were asked for.
    pub tallies: Vec<Tally>,
    /// What was printed, in the order of the groups.
    pub printf: String,
}

/// What threads hand over.
#[derive(Default)]
struct Results {
    stopped: Option<(u64, Stop)>,
    printed: Vec<(u64, String)>,
    looked: Option<Looked>,
    /// What the group that stopped all waits for, and where.
    awaited: Option<(usize, Details)>,
}

/// Which groups of a launch run.
struct Picked {
    counts: [u64; 3],
    groups: u64,
    /// How many of them.
    run: u64,
}

impl Picked {
    fn of(range: &NdRange, sample: Option<u64>) -> Picked {
        let counts: [u64; 3] = std::array::from_fn(|d| range.global[d].div_ceil(range.local[d]));
        let groups = counts.iter().product();
        Picked { counts, groups, run: sample.unwrap_or(groups).max(1).min(groups) }
    }

    /// The `i`-th. Of a sample each comes from a stretch of its own, at a place in it that repeats no period of the launch.
    fn group(&self, i: u64) -> [u64; 3] {
        let at = |i: u64| (u128::from(i) * u128::from(self.groups) / u128::from(self.run.max(1))) as u64;
        let (start, length) = (at(i), at(i + 1) - at(i));
        let fraction = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = start + ((u128::from(fraction) * u128::from(length)) >> 64) as u64;
        let [x, y, _] = self.counts;
        [number % x, number / x % y, number / (x * y)]
    }
}

/// Runs all groups, or a sample of them. Groups that may wait for one another, of a kernel with a parameter in volatile device memory, run side by
/// side, as those do that a device has room for.
///
/// With checks, too, on several threads: where these find nothing there is nothing to find. Where they find something, memory
/// goes back to what it was, and the groups run again in order, so that the findings are the same every time.
pub fn run_groups(shared: &Shared<'_>, range: &NdRange, options: &LaunchOptions) -> (Ran, Option<Stop>) {
    let picked = Picked::of(range, options.sample);
    let lanes = range.local.iter().product::<u64>();
    let useful = (picked.run.saturating_mul(lanes) / ITEMS_PER_THREAD).max(1).min(picked.run.max(1));
    let checks = &options.checks;
    // Whether a group reads what another one writes, or reads it unwritten, is seen by the check for races alone.
    // With orders of memory it sees that in one thread only.
    let ordered = checks.races && shared.code.orders();
    let alone = shared.code.global_atomics || ordered || (checks.uninitialized && !checks.races);
    let together = shared.together && picked.run == picked.groups && picked.run <= MOST_TOGETHER;
    // Too many for a thread each: in turns.
    let turns = shared.together && !whole(options);
    let threads = match (together, alone || turns) {
        (true, _) => picked.run,
        (false, true) => 1,
        (false, false) => (options.threads.max(1) as u64).min(useful),
    };
    // In order they would wait for ever.
    let in_order = if together { threads } else { 1 };
    let mut results = if threads > 1 && checks.any() {
        let saved = save(shared, checks.contract);
        let results = on_threads(shared, &picked, options, threads);
        // A group that took too long takes as long again.
        let timed_out = matches!(results.stopped, Some((_, Stop::Time(_))));
        if timed_out || results.stopped.is_none() && results.looked.as_ref().is_none_or(Looked::is_clean) {
            results
        } else {
            saved.iter().for_each(|(allocation, saved)| allocation.restore(saved));
            on_threads(shared, &picked, options, in_order)
        }
    } else {
        on_threads(shared, &picked, options, threads)
    };
    results.printed.sort_by_key(|(number, _)| *number);
    let printf = results.printed.into_iter().map(|(_, text)| text).collect();
    let mut looked = results.looked.unwrap_or_default();
    if let Some((pc, details)) = results.awaited {
        looked.report.add(FindingKind::EndlessWait, pc, || details);
    }
    let (counters, tallies) = looked.counting.map(|c| c.finish(picked.groups, range)).unwrap_or_default();
    (Ran { report: looked.report, counters, tallies, printf }, results.stopped.map(|(_, stop)| stop))
}

/// Whether a group has to come to its end before the next begins: for checks that remember what groups did in the order of the groups.
fn whole(options: &LaunchOptions) -> bool {
    options.checks.races || options.checks.uninitialized
}

/// Who else there is, for the message about a group that waits.
fn beside(threads: u64, begun: u64, count: u64) -> String {
    match count - begun.min(count) {
        0 => String::new(),
        rest if threads == 1 => format!(
            "; work-groups run one after another under the checks for races and uninitialized memory, so none of the {rest} later ones has begun"
        ),
        _ => format!("; work-groups are dealt to {threads} threads in order"),
    }
}

/// What the buffers hold that the kernel may write, to go back to; with the check of the launch's contract a write to another is found.
pub fn save<'a>(shared: &'a Shared<'_>, contract: bool) -> Vec<(&'a Allocation, Saved)> {
    let buffers = shared.buffers.iter().flatten().filter(|b| b.writable || !contract);
    let save = |b: &'a Buffer| (&*b.allocation, b.allocation.save(b.start as usize, b.bytes as usize));
    buffers.map(save).collect()
}

/// The picked groups, dealt to threads.
fn on_threads(shared: &Shared<'_>, picked: &Picked, options: &LaunchOptions, threads: u64) -> Results {
    let lanes = shared.range[2].iter().product::<u64>();
    let fresh = || {
        let observer = Observer::new(&options.checks, (options.counters, options.lines), shared);
        Group::new(shared, lanes as usize, observer)
    };
    if threads == 1 && !whole(options) {
        let ended = in_turns(shared, picked.run, |number| picked.group(number), fresh);
        let Ended { printed, stopped, awaited, looked } = ended;
        return Results { stopped, printed, looked, awaited };
    }
    let next = AtomicU64::new(0);
    let results: Mutex<Results> = Mutex::default();
    let work = || {
        let mut group = fresh();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= picked.run {
                break;
            }
            group.start(picked.group(number));
            let mut place = group.begin();
            let ended = group.run(&mut place);
            let text = group.take_printed();
            if ended.is_err() || !text.is_empty() {
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                results.printed.push((number, text));
                if let Err(stop) = ended {
                    next.store(picked.run, Ordering::Relaxed);
                    if results.stopped.is_none_or(|(earlier, _)| number < earlier) {
                        results.stopped = Some((number, stop));
                        let (begun, observer) = (number + 1, group.take_observer());
                        let told = |(pc, mut details): (usize, Details)| {
                            details.message += &beside(threads, begun, picked.run);
                            (pc, details)
                        };
                        results.awaited = group.awaited(&mut place).map(told);
                        group.put_observer(observer);
                    }
                }
            }
        }
        if let Some(observer) = group.take_observer() {
            let looked = observer.finish();
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.looked = Some(match results.looked.take() {
                Some(others) => others.and(looked),
                None => looked,
            });
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_the_launch_and_all_of_it_is_everything() {
        let range = NdRange::plane([64, 48], [8, 8]);
        let all = Picked::of(&range, None);
        let mut seen: Vec<[u64; 3]> = (0..all.run).map(|i| all.group(i)).collect();
        seen.sort_by_key(|g| (g[1], g[0]));
        assert_eq!(seen.len(), 48);
        assert!(seen.windows(2).all(|w| w[0] != w[1]));
        assert!((0..48).all(|i| all.group(i) == [i % 8, i / 8, 0]));
        let some = Picked::of(&range, Some(6));
        let rows: Vec<u64> = (0..some.run).map(|i| some.group(i)[1]).collect();
        assert_eq!(rows, [0, 1, 2, 3, 4, 5]);
        let columns: std::collections::BTreeSet<u64> = (0..6).map(|i| some.group(i)[0]).collect();
        assert!(columns.len() >= 4, "{columns:?}");
        assert_eq!(Picked::of(&range, Some(1000)).run, 48);
        assert_eq!(Picked::of(&NdRange::line(0, 8), None).run, 0);
    }
}
