//! Time per kernel, from events of timed launches. Nothing is recorded unless requested.

use crate::driver::{Driver, Event, Range};
use crate::timeline::{KernelTime, LaunchTime, Start, Totals, add, sorted};
use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Name and cost of a launch, for the profiler: bytes moved and operations computed.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Name of the `__kernel` function.
    pub name: &'static str,
    /// Name of the kernel source (the variant).
    pub variant: &'static str,
    /// Bytes of all arguments.
    pub bytes: u64,
    /// Floating-point operations; 0 if unknown.
    pub flops: u64,
}

#[derive(Default)]
pub(crate) struct Profiler {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: Vec<Pending>,
    totals: Totals,
    /// While a timeline is recorded: its start and the launches whose times were read.
    timeline: Option<(Start, Vec<LaunchTime>)>,
}

/// A launch whose time has not been read yet.
struct Pending {
    label: Label,
    event: Event,
    range: Range,
}

impl Pending {
    fn read(&self, driver: &dyn Driver) -> Result<LaunchTime> {
        driver.wait(&self.event)?;
        let (start_ns, end_ns) = driver.times(&self.event)?;
        let Label { name, variant, bytes, flops } = self.label;
        let Range { global, local } = self.range;
        let seconds = end_ns.saturating_sub(start_ns) as f64 * 1e-9;
        Ok(LaunchTime { name, variant, global, local, seconds, bytes, flops, start_ns, end_ns })
    }
}

/// Events kept before their times are read. It bounds the number of events that a long profiled run keeps alive.
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
        state.pending.push(Pending { label, event, range });
        if state.pending.len() >= HARVEST { state.harvest(driver) } else { Ok(()) }
    }

    /// Stops profiling and returns the totals since the start, most expensive first.
    pub fn stop(&self, driver: &dyn Driver) -> Result<Vec<KernelTime>> {
        self.on.store(false, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.harvest(driver)?;
        Ok(sorted(std::mem::take(&mut state.totals)))
    }

    /// Records each launch from now on. `start` is called after any other profiling has ended.
    pub fn start_timeline(&self, start: impl FnOnce() -> Result<Start>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.timeline.is_some() || self.is_on() {
            return Err(Error::unsupported("this device is already being profiled"));
        }
        state.timeline = Some((start()?, Vec::new()));
        self.on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Stops and returns the start and each launch, in order.
    pub fn stop_timeline(&self, driver: &dyn Driver) -> Result<(Start, Vec<LaunchTime>)> {
        self.on.store(false, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let read = state.harvest(driver);
        let timeline = state.timeline.take();
        *state = State::default();
        read?;
        timeline.ok_or_else(|| Error::internal("profile: no timeline was started"))
    }

    /// Stops and returns each launch since the start, in order. With more than [`HARVEST`] launches, returns only the last ones.
    pub fn stop_each(&self, driver: &dyn Driver) -> Result<Vec<LaunchTime>> {
        self.on.store(false, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.totals.clear();
        state.pending.drain(..).map(|p| p.read(driver)).collect()
    }
}

/// Maximum number of launches in a timeline, about 130 bytes each.
const MAX_LAUNCHES: usize = 1 << 20;

impl State {
    fn harvest(&mut self, driver: &dyn Driver) -> Result<()> {
        for launch in self.pending.drain(..) {
            let launch = launch.read(driver)?;
            match &mut self.timeline {
                Some((_, each)) if each.len() < MAX_LAUNCHES => each.push(launch),
                Some(_) => {
                    return Err(Error::unsupported(
                        "profile: more than a million launches; profile fewer steps",
                    ));
                }
                None => add(&mut self.totals, &launch),
            }
        }
        Ok(())
    }
}
