//! Wait timeout of a rank, display names of ranks, and the time spent in operations.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest interval between two clock readings that counts as waiting. A process that was stopped, or a machine that slept, has not waited.
const MAX_CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// One rank's wait timeout and wait statistics.
#[derive(Debug)]
pub struct Watch {
    patience_ns: AtomicU64,
    names: OnceLock<Vec<String>>,
    busy_ns: AtomicU64,
}

impl Watch {
    /// Returns a watch with the timeout `patience`; see [`Watch::set_patience`].
    pub fn new(patience: Duration) -> Self {
        let watch =
            Self { patience_ns: AtomicU64::new(0), names: OnceLock::new(), busy_ns: AtomicU64::new(0) };
        watch.set_patience(patience);
        watch
    }

    /// Returns the wait time for a message after which its sender counts as hung.
    pub fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience_ns.load(Ordering::Relaxed))
    }

    /// Sets the timeout from now on, also for a wait that has already begun. Ranks may have different timeouts: the shortest one ends the group.
    pub fn set_patience(&self, patience: Duration) {
        let ns = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        self.patience_ns.store(ns, Ordering::Relaxed);
    }

    /// Sets what each rank runs on, for messages. Only the first call counts.
    pub fn name_ranks(&self, names: Vec<String>) {
        let _ = self.names.set(names);
    }

    /// Returns the display name of a rank: `rank 3`, or `rank 3 (nvidia:1)`.
    pub fn name(&self, rank: usize) -> String {
        match self.names.get().and_then(|names| names.get(rank)) {
            Some(name) => format!("rank {rank} ({name})"),
            None => format!("rank {rank}"),
        }
    }

    /// Returns the time that this rank has spent in operations of its groups, which is mostly waiting for the others.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn was_busy(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the message about ranks that did not answer for `waited`.
    pub(crate) fn silent(&self, waited: Duration, absent: &[usize]) -> String {
        let seconds = waited.as_secs_f64();
        let seconds = if seconds < 1.0 { format!("{seconds:.2}") } else { format!("{seconds:.0}") };
        let names: Vec<String> = absent.iter().map(|rank| self.name(*rank)).collect();
        match names.as_slice() {
            [] => format!(
                "all ranks have waited for each other for {seconds} s: they do not call the same operations"
            ),
            [one] => format!(
                "{one} does not answer for {seconds} s: it hangs, or takes longer than the others wait (--watchdog)"
            ),
            more => format!(
                "{} do not answer for {seconds} s: they hang, or take longer than the others wait (--watchdog)",
                more.join(", ")
            ),
        }
    }
}

/// Time spent waiting, measured by clock readings.
pub(crate) struct Waiting {
    last: Instant,
    waited: Duration,
}

impl Waiting {
    pub fn begin() -> Self {
        Self { last: Instant::now(), waited: Duration::ZERO }
    }

    /// Returns the time since the start or since the last reading.
    pub fn elapsed(&self) -> Duration {
        self.last.elapsed()
    }

    /// Reads the clock and returns the total wait time so far.
    pub fn look(&mut self) -> Duration {
        let now = Instant::now();
        self.waited += now.duration_since(self.last).min(MAX_CLOCK_INTERVAL);
        self.last = now;
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_has_not_waited() {
        let Some(before) = Instant::now().checked_sub(Duration::from_secs(3600)) else { return };
        let mut waiting = Waiting { last: before, waited: Duration::ZERO };
        assert!(waiting.look() <= MAX_CLOCK_INTERVAL);
    }

    #[test]
    fn ranks_are_called_by_number_and_device() {
        let watch = Watch::new(Duration::from_secs(2));
        let one = watch.silent(Duration::from_secs(2), &[1]);
        assert!(one.starts_with("rank 1 does not answer for 2 s"), "{one}");
        watch.name_ranks(vec!["pocl:0".into(), "sim".into()]);
        assert_eq!(watch.name(1), "rank 1 (sim)");
        assert_eq!(watch.name(7), "rank 7");
        let two = watch.silent(Duration::from_millis(250), &[0, 1]);
        assert!(two.starts_with("rank 0 (pocl:0), rank 1 (sim) do not answer for 0.25 s"), "{two}");
        assert!(watch.silent(Duration::from_secs(1), &[]).contains("the same operations"));
    }
}
