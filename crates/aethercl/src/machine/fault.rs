//! Fault injection, so that tests can show a program's behavior when a device fails: a command that fails, memory that runs out early, a kernel that
//! hangs, a device that disappears.

use std::sync::atomic::{AtomicU64, Ordering};

/// Faults to inject and their times. A test and its device share it; everything may be set while the device is in use.
#[derive(Debug, Default)]
pub struct Faults {
    commands: AtomicU64,
    launches: AtomicU64,
    fail_at: AtomicU64,
    hang_at: AtomicU64,
    lose_at: AtomicU64,
    memory: AtomicU64,
}

/// Outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing.
    Runs,
    /// It reports a failure and does nothing.
    Fails,
    /// It never ends; the watchdog stops it.
    Hangs,
    /// The device is lost before it.
    Lost,
}

impl Faults {
    /// Makes the `n`-th command from now fail, counted from 1; 0 disables the fault.
    pub fn fail_command(&self, n: u64) {
        arm(&self.fail_at, &self.commands, n);
    }
    /// Makes the `n`-th kernel from now hang; 0 disables the fault.
    pub fn hang_launch(&self, n: u64) {
        arm(&self.hang_at, &self.launches, n);
    }
    /// Makes the device disappear at the `n`-th command from now, permanently; 0 disables the fault.
    pub fn disappear_at(&self, n: u64) {
        arm(&self.lose_at, &self.commands, n);
    }
    /// Limits allocations to this many bytes in total; 0 for the profile's size.
    pub fn limit_memory(&self, bytes: u64) {
        self.memory.store(bytes, Ordering::SeqCst);
    }
    /// Returns the limit, if set.
    pub fn memory_limit(&self) -> Option<u64> {
        Some(self.memory.load(Ordering::SeqCst)).filter(|bytes| *bytes > 0)
    }
    /// Returns the number of commands that the device has begun.
    pub fn commands(&self) -> u64 {
        self.commands.load(Ordering::SeqCst)
    }
    /// Returns the number of these commands that are kernels.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::SeqCst)
    }

    /// Counts a command and returns its outcome.
    pub(crate) fn next(&self, launch: bool) -> Fate {
        let command = self.commands.fetch_add(1, Ordering::SeqCst) + 1;
        let launched = if launch { self.launches.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        let at = |slot: &AtomicU64| slot.load(Ordering::SeqCst);
        let lose = at(&self.lose_at);
        if lose > 0 && command >= lose {
            Fate::Lost
        } else if at(&self.fail_at) == command {
            Fate::Fails
        } else if launch && at(&self.hang_at) == launched {
            Fate::Hangs
        } else {
            Fate::Runs
        }
    }
}

fn arm(slot: &AtomicU64, counter: &AtomicU64, n: u64) {
    let at = if n == 0 { 0 } else { counter.load(Ordering::SeqCst) + n };
    slot.store(at, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_from_when_it_is_armed() {
        let faults = Faults::default();
        assert_eq!(faults.next(false), Fate::Runs);
        faults.fail_command(2);
        assert_eq!(
            [faults.next(false), faults.next(true), faults.next(false)],
            [Fate::Runs, Fate::Fails, Fate::Runs]
        );
        faults.hang_launch(1);
        assert_eq!(
            [faults.next(false), faults.next(true), faults.next(true)],
            [Fate::Runs, Fate::Hangs, Fate::Runs]
        );
        faults.disappear_at(1);
        assert_eq!([faults.next(false), faults.next(true)], [Fate::Lost, Fate::Lost]);
        assert_eq!((faults.commands(), faults.launches()), (9, 4));
        faults.limit_memory(10);
        assert_eq!(faults.memory_limit(), Some(10));
    }
}
