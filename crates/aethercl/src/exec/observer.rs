//! The checks and counters that look on while groups run, and what the threads' observers saw together.

use super::count::Counting;
use super::shared::Shared;
use crate::check::{Check, Checks, Report, Touch, checks};

/// The checks and counters of one thread.
pub struct Observer {
    pub(super) checks: Vec<Box<dyn Check>>,
    pub(super) report: Report,
    pub(super) counting: Option<Counting>,
    pub(super) touches: Vec<Touch>,
    /// By check: it has to look at the lanes of the access at hand.
    pub(super) open: Vec<bool>,
}

impl Observer {
    /// The checks and counters that were asked for, these by line where `lines` says so; none if none were.
    pub fn new(which: &Checks, (count, lines): (bool, bool), shared: &Shared<'_>) -> Option<Box<Observer>> {
        if !which.any() && !count {
            return None;
        }
        Some(Box::new(Observer {
            open: Vec::new(),
            checks: checks(which, shared),
            report: Report::default(),
            counting: count.then(|| Counting::new(shared, lines)),
            touches: Vec::new(),
        }))
    }

    /// What was found and counted.
    pub fn finish(self) -> Looked {
        Looked { report: self.report, counting: self.counting, checks: vec![self.checks] }
    }
}

/// What one thread's observer saw.
#[derive(Default)]
pub struct Looked {
    /// What the checks found.
    pub report: Report,
    /// What was counted.
    pub counting: Option<Counting>,
    /// The checks of each thread, with what they remember.
    checks: Vec<Vec<Box<dyn Check>>>,
}

impl Looked {
    /// With what another thread saw.
    pub fn and(mut self, other: Looked) -> Looked {
        self.counting = match (self.counting, other.counting) {
            (Some(a), Some(b)) => Some(a.and(b)),
            (a, b) => a.or(b),
        };
        self.report.join(other.report);
        self.checks.extend(other.checks);
        self
    }

    /// Nothing was found, and no thread's groups touched what another's wrote.
    pub fn is_clean(&self) -> bool {
        let races: Vec<_> = self.checks.iter().flatten().filter_map(|c| c.races()).collect();
        let clash = |i: usize| races[i + 1..].iter().any(|other| races[i].conflicts(other));
        self.report.is_empty() && !(0..races.len()).any(clash)
    }
}
