//! Checks and counters of a thread, and merging the results of all threads.

use super::count::Counting;
use super::shared::Shared;
use crate::check::{Check, Checks, FindingCollector, Touch, checks};

/// The checks and counters of one thread.
pub struct Observer {
    pub(super) checks: Vec<Box<dyn Check>>,
    pub(super) report: FindingCollector,
    pub(super) counting: Option<Counting>,
    pub(super) touches: Vec<Touch>,
    /// For each check: whether it has to examine the current access lane by lane.
    pub(super) open: Vec<bool>,
}

impl Observer {
    /// Returns the requested checks and counters, the latter by instruction with `lines`; `None` if neither is requested.
    pub fn new(which: &Checks, (count, lines): (bool, bool), shared: &Shared<'_>) -> Option<Box<Observer>> {
        if !which.any() && !count {
            return None;
        }
        Some(Box::new(Observer {
            open: Vec::new(),
            checks: checks(which, shared),
            report: FindingCollector::default(),
            counting: count.then(|| Counting::new(shared, lines)),
            touches: Vec::new(),
        }))
    }

    /// Returns the results.
    pub fn finish(self) -> Looked {
        Looked { report: self.report, counting: self.counting, checks: vec![self.checks] }
    }
}

/// Results of the observer of one thread, or of several merged.
#[derive(Default)]
pub struct Looked {
    /// Findings of the checks.
    pub report: FindingCollector,
    /// Counters.
    pub counting: Option<Counting>,
    /// The checks of each thread with their state.
    checks: Vec<Vec<Box<dyn Check>>>,
}

impl Looked {
    /// Merges the results of another thread.
    pub fn and(mut self, other: Looked) -> Looked {
        self.counting = match (self.counting, other.counting) {
            (Some(a), Some(b)) => Some(a.and(b)),
            (a, b) => a.or(b),
        };
        self.report.join(other.report);
        self.checks.extend(other.checks);
        self
    }

    /// Returns true without findings and conflicts between work-groups of different threads.
    pub fn is_clean(&self) -> bool {
        let races: Vec<_> = self.checks.iter().flatten().filter_map(|c| c.races()).collect();
        let clash = |i: usize| races[i + 1..].iter().any(|other| races[i].conflicts(other));
        self.report.is_empty() && !(0..races.len()).any(clash)
    }
}
