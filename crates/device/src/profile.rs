//! Time per kernel, from events of timed launches. Nothing is recorded unless asked.

use crate::Result;
use crate::driver::{Driver, Event};
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

#[derive(Default)]
pub(crate) struct Profiler {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<(&'static str, Event, u64, u64)>,
    totals: BTreeMap<&'static str, KernelTime>,
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

    pub fn record(
        &self,
        driver: &dyn Driver,
        name: &'static str,
        event: Event,
        bytes: u64,
        flops: u64,
    ) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pending.push((name, event, bytes, flops));
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
}

impl State {
    fn harvest(&mut self, driver: &dyn Driver) -> Result<()> {
        for (name, event, bytes, flops) in self.pending.drain(..) {
            driver.wait(&event)?;
            let (start, end) = driver.times(&event)?;
            let total = self
                .totals
                .entry(name)
                .or_insert_with(|| KernelTime { name: name.into(), ..Default::default() });
            total.count += 1;
            total.seconds += end.saturating_sub(start) as f64 * 1e-9;
            total.bytes += bytes;
            total.flops += flops;
        }
        Ok(())
    }
}
