//! Time per kernel, from events of timed launches. Nothing is recorded unless asked.

use crate::driver::{Driver, Event, Range};
use crate::{Label, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What all launches of one kernel took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KernelTime {
    /// Kernel name.
    pub name: String,
    /// Launches.
    pub count: u64,
    /// Device time, seconds.
    pub seconds: f64,
    /// Bytes of all arguments, each counted once a launch.
    pub bytes: u64,
    /// Floating-point operations, where the op says how many.
    pub flops: u64,
}

/// What one launch took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchTime {
    /// Kernel name.
    pub name: &'static str,
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items of a group in each dimension.
    pub local: [usize; 3],
    /// Device time, seconds.
    pub seconds: f64,
}

#[derive(Default)]
pub(crate) struct Profiler {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<Pending>,
    totals: BTreeMap<&'static str, KernelTime>,
}

/// A launch whose time was not read yet.
struct Pending {
    name: &'static str,
    event: Event,
    range: Range,
    bytes: u64,
    flops: u64,
}

impl Pending {
    fn seconds(&self, driver: &dyn Driver) -> Result<f64> {
        driver.wait(&self.event)?;
        let (start, end) = driver.times(&self.event)?;
        Ok(end.saturating_sub(start) as f64 * 1e-9)
    }
}

/// Events held before their times are read; bounds what a long profiled run keeps alive.
const HARVEST: usize = 4096;

impl Profiler {
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    pub fn record(&self, driver: &dyn Driver, label: Label, event: Event, range: Range) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Label { name, bytes, flops } = label;
        state.pending.push(Pending { name, event, range, bytes, flops });
        if state.pending.len() >= HARVEST { state.harvest(driver) } else { Ok(()) }
    }

    /// Stops and returns the totals since the start, most expensive first.
    pub fn stop(&self, driver: &dyn Driver) -> Result<Vec<KernelTime>> {
        self.on.store(false, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.harvest(driver)?;
        let mut out: Vec<KernelTime> = std::mem::take(&mut state.totals).into_values().collect();
        out.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(out)
    }

    /// Stops and returns each launch since the start, in order; of more than [`HARVEST`], the last.
    pub fn stop_each(&self, driver: &dyn Driver) -> Result<Vec<LaunchTime>> {
        self.on.store(false, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.totals.clear();
        let each = |p: Pending| {
            let seconds = p.seconds(driver)?;
            Ok(LaunchTime { name: p.name, global: p.range.global, local: p.range.local, seconds })
        };
        state.pending.drain(..).map(each).collect()
    }
}

impl State {
    fn harvest(&mut self, driver: &dyn Driver) -> Result<()> {
        for launch in self.pending.drain(..) {
            let seconds = launch.seconds(driver)?;
            let total = self
                .totals
                .entry(launch.name)
                .or_insert_with(|| KernelTime { name: launch.name.into(), ..Default::default() });
            total.count += 1;
            total.seconds += seconds;
            total.bytes += launch.bytes;
            total.flops += launch.flops;
        }
        Ok(())
    }
}
