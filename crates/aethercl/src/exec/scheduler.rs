//! Distributes the work-groups of a launch over threads.

use super::group::Group;
use super::observer::{Looked, Observer};
use super::run::Stop;
use super::shared::{Buffer, Shared};
use super::turns::{Ended, in_turns};
use crate::check::{Details, FindingCollector, FindingKind};
use crate::counters::{Counters, Tally};
use crate::launch::{LaunchOptions, NdRange};
use crate::memory::{Allocation, Saved};
use rayon_core::{ThreadPool, ThreadPoolBuilder};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Work-items per thread: with fewer, saving memory for checks costs more than a thread saves.
const ITEMS_PER_THREAD: u64 = 2048;

/// Minimum total time of work-groups to use more threads. Waking a thread takes at most a tenth of it.
const WORTH_THREADS: Duration = Duration::from_micros(100);

/// Maximum number of work-groups that get a separate thread because they may wait for one another.
const MAX_WAITING_GROUPS: u64 = 64;

/// Result of all work-groups.
#[derive(Default)]
pub struct Ran {
    /// Findings of the checks.
    pub report: FindingCollector,
    /// Counters of the whole launch.
    pub counters: Counters,
    /// Counters by instruction, if counters by line were requested.
    pub tallies: Vec<Tally>,
    /// Output of `printf`, in the order of the work-groups.
    pub printf: String,
}

/// Results shared by the threads.
#[derive(Default)]
struct Results {
    stopped: Option<(u64, Stop)>,
    printed: Vec<(u64, String)>,
    looked: Option<Looked>,
    /// The value that the timed-out work-group waits for, and the instruction.
    awaited: Option<(usize, Details)>,
}

/// The work-groups that run: all of them, or a sample.
struct Picked {
    counts: [u64; 3],
    groups: u64,
    /// Number of work-groups that run.
    run: u64,
}

impl Picked {
    fn of(range: &NdRange, sample: Option<u64>) -> Picked {
        let counts: [u64; 3] = std::array::from_fn(|d| range.global[d].div_ceil(range.local[d]));
        let groups = counts.iter().product();
        Picked { counts, groups, run: sample.unwrap_or(groups).max(1).min(groups) }
    }

    /// Returns the `i`-th work-group to run. A sample takes one work-group from each of `run` equal intervals, at a pseudo-random position, so that
    /// it does not alias with a period of the launch.
    fn group(&self, i: u64) -> [u64; 3] {
        let at = |i: u64| (u128::from(i) * u128::from(self.groups) / u128::from(self.run.max(1))) as u64;
        let (start, length) = (at(i), at(i + 1) - at(i));
        let fraction = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = start + ((u128::from(fraction) * u128::from(length)) >> 64) as u64;
        let [x, y, _] = self.counts;
        [number % x, number / x % y, number / (x * y)]
    }
}

/// Runs all work-groups, or a sample of them. If the kernel has a pointer to volatile global memory, work-groups may wait for one another,
/// so they run concurrently.
///
/// Checks also run on several threads. If they find anything, memory is restored and the work-groups run again in order on one thread, so
/// that findings are deterministic.
pub fn run_groups(shared: &Shared<'_>, range: &NdRange, options: &LaunchOptions) -> (Ran, Option<Stop>) {
    let picked = Picked::of(range, options.sample);
    let lanes = range.local.iter().product::<u64>();
    let useful = (picked.run.saturating_mul(lanes) / ITEMS_PER_THREAD).max(1).min(picked.run.max(1));
    let checks = &options.checks;
    // Several threads are only possible if the check for races detects conflicts between work-groups of different threads. It does not for ordered
    // atomics, whose order is tracked within one thread.
    let ordered = checks.races && shared.code.orders();
    let alone = shared.code.global_atomics || ordered || (checks.uninitialized && !checks.races);
    let together = shared.together && picked.run == picked.groups && picked.run <= MAX_WAITING_GROUPS;
    // Too many work-groups for a thread each: one thread runs them in turns.
    let turns = shared.together && !whole(options);
    let most = (options.threads.max(1) as u64).min(picked.run.max(1));
    let threads = match (together, alone || turns) {
        (true, _) => Threads { own: true, ..Threads::all(picked.run) },
        (false, true) => Threads::all(1),
        // With checks, memory is saved before several threads run; this pays off only for many work-items.
        (false, false) if checks.any() => Threads::all(most.min(useful)),
        (false, false) if shared.code.took.groups(picked.run) > WORTH_THREADS => Threads::all(most),
        (false, false) => Threads { first: 1, ..Threads::all(most) },
    };
    // Work-groups that wait for one another cannot run in sequence.
    let in_order = if together { threads } else { Threads::all(1) };
    let mut results = if threads.most > 1 && checks.any() {
        let saved = save(shared, checks.contract);
        let results = on_threads(shared, &picked, options, threads);
        // After a timeout the second run would take just as long.
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

/// Returns true if work-groups have to run one after another, because a check depends on their order.
fn whole(options: &LaunchOptions) -> bool {
    options.checks.races || options.checks.uninitialized
}

/// Describes the other work-groups, for the message about a waiting work-group.
fn describe_other_groups(threads: u64, begun: u64, count: u64) -> String {
    match count - begun.min(count) {
        0 => String::new(),
        rest if threads == 1 => format!(
            "; work-groups run one after another under the checks for races and uninitialized memory, so none of the {rest} later ones has begun"
        ),
        _ => format!("; work-groups are assigned to {threads} threads in order"),
    }
}

/// Saves the contents of all buffers that the kernel may write. With the `contract` check, writes to other buffers are findings and need no copy.
pub fn save<'a>(shared: &'a Shared<'_>, contract: bool) -> Vec<(&'a Allocation, Saved)> {
    let buffers = shared.buffers.iter().flatten().filter(|b| b.writable || !contract);
    let save = |b: &'a Buffer| (&*b.allocation, b.allocation.save(b.start as usize, b.bytes as usize));
    buffers.map(save).collect()
}

/// Returns the number of processors of this machine. Queried once, because the answer is read from several files.
fn processors() -> u64 {
    static COUNT: OnceLock<u64> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u64))
}

/// Returns the threads that launches of this process share; `None` if the system cannot create any.
///
/// A forked child has the memory of its parent but not the parent's threads, so it creates a separate pool. It never drops the parent's pool, whose
/// threads cannot answer.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: RwLock<Option<(u32, &'static ThreadPool)>> = RwLock::new(None);
    let process = std::process::id();
    let own = |pool: &Option<(u32, &'static ThreadPool)>| pool.filter(|(owner, _)| *owner == process);
    // Never block: at the fork another thread may have held the lock, which is then never released. A launch that finds it locked, which only happens
    // while a pool is created, uses one thread.
    if let Some((_, pool)) = own(&*POOL.try_read().ok()?) {
        return Some(pool);
    }
    let mut pool = POOL.try_write().ok()?;
    if let Some((_, pool)) = own(&pool) {
        return Some(pool);
    }
    let made: &'static ThreadPool = Box::leak(Box::new(ThreadPoolBuilder::new().build().ok()?));
    *pool = Some((process, made));
    Some(made)
}

/// Threads of a launch.
#[derive(Clone, Copy)]
struct Threads {
    /// Threads that are started at once.
    first: u64,
    /// Maximum number of threads after the first work-group has taken long.
    most: u64,
    /// Whether they are started for this launch and not taken from the pool: work-groups that wait for one another block them.
    own: bool,
}

impl Threads {
    fn all(n: u64) -> Threads {
        Threads { first: n, most: n, own: false }
    }
    /// Returns the CPU time of a thread on `processors` while all of them take `time`.
    fn share(self, time: Duration, processors: u64) -> Duration {
        time.mul_f64((processors as f64 / self.most as f64).min(1.0))
    }
}

/// Runs the work-groups on this many threads.
fn on_threads(shared: &Shared<'_>, picked: &Picked, options: &LaunchOptions, threads: Threads) -> Results {
    let lanes = shared.range[2].iter().product::<u64>();
    let fresh = || {
        let observer = Observer::new(&options.checks, (options.counters, options.lines), shared);
        Group::new(shared, lanes as usize, observer)
    };
    if threads.most == 1 && !whole(options) {
        let ended = in_turns(shared, picked.run, |number| picked.group(number), fresh);
        let Ended { printed, stopped, awaited, looked } = ended;
        return Results { stopped, printed, looked, awaited };
    }
    let deal = Deal { picked, threads, next: AtomicU64::new(0), results: Mutex::default() };
    if threads.own {
        std::thread::scope(|scope| {
            (1..threads.first).for_each(|_| drop(scope.spawn(|| deal.work(fresh(), |_| ()))));
            deal.work(fresh(), |_| ());
        });
    } else if let Some(pool) = (threads.most > 1).then(pool).flatten() {
        pool.in_place_scope(|scope| {
            let (deal, fresh) = (&deal, &fresh);
            let help = move || {
                if deal.any_left() {
                    deal.work(fresh(), |_| ())
                }
            };
            let start = |n: u64| (0..n).for_each(|_| scope.spawn(move |_| help()));
            start(threads.first - 1);
            deal.work(fresh(), |first| {
                shared.code.took.set(first);
                let left = u32::try_from(picked.run - threads.first).unwrap_or(u32::MAX);
                if first.saturating_mul(left) > WORTH_THREADS {
                    start(threads.most - threads.first);
                }
            });
        });
    } else {
        deal.work(fresh(), |first| shared.code.took.set(first));
    }
    deal.results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Work-groups that threads take in sequence.
struct Deal<'a> {
    picked: &'a Picked,
    threads: Threads,
    next: AtomicU64,
    results: Mutex<Results>,
}

impl Deal<'_> {
    /// Returns true if a work-group is left that no thread has taken.
    fn any_left(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.picked.run
    }

    /// Takes and runs work-groups until none are left. Calls `after_first` after the first one, with its time.
    fn work(&self, mut group: Group<'_>, after_first: impl FnOnce(Duration)) {
        let mut after_first = Some(after_first);
        // A processor runs many waiting work-groups, each with a thread: together they take no longer than the limit.
        let most = group.shared.max_time.map(|time| self.threads.share(time, processors()));
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.picked.run {
                break;
            }
            let begun = after_first.is_some().then(Instant::now);
            group.start(self.picked.group(number));
            let mut place = group.begin();
            let ended = group.run(&mut place, most);
            let text = group.take_printed();
            if ended.is_err() || !text.is_empty() {
                let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
                results.printed.push((number, text));
                if let Err(stop) = ended {
                    self.next.store(self.picked.run, Ordering::Relaxed);
                    if results.stopped.is_none_or(|(earlier, _)| number < earlier) {
                        results.stopped = Some((number, stop));
                        let (begun, observer) = (number + 1, group.take_observer());
                        let told = |(pc, mut details): (usize, Details)| {
                            details.message +=
                                &describe_other_groups(self.threads.most, begun, self.picked.run);
                            (pc, details)
                        };
                        results.awaited = group.awaited(&mut place).map(told);
                        group.put_observer(observer);
                    }
                }
            }
            if let (Some(call), Some(begun)) = (after_first.take(), begun) {
                call(begun.elapsed());
            }
        }
        if let Some(observer) = group.take_observer() {
            let looked = observer.finish();
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results.looked = Some(match results.looked.take() {
                Some(others) => others.and(looked),
                None => looked,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_time_limit_where_they_share_processors() {
        let limit = Duration::from_secs(30);
        assert_eq!(Threads::all(64).share(limit, 2), Duration::from_secs_f64(30.0 / 32.0));
        assert_eq!(Threads::all(2).share(limit, 16), limit);
    }

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
