//! Launches and transfers of a stretch of time, on the host's clock.
//!
//! Events tell times of the device's clock. A fill of a few bytes between two readings of the host's clock shows where the one
//! stands on the other; it is done at the start and at the end, and what the clocks drifted apart meanwhile counts as error.

use crate::driver::{Driver, QueueKind, Transfer};
use crate::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// What happened on a device, with times in nanoseconds since [`Timeline::begun`].
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Time 0.
    pub begun: Instant,
    /// When it ended.
    pub end_ns: u64,
    /// Launches in the order they were enqueued.
    pub launches: Vec<LaunchTime>,
    /// Transfers and fills in the order they were enqueued.
    pub transfers: Vec<Transfer>,
    /// How far device times may be off host times, nanoseconds: half the time between the two readings of the host's clock, and
    /// the drift. On a simulated device, whose clock is its own, it says nothing.
    pub clock_error_ns: u64,
}

impl Timeline {
    /// Time per kernel, the most expensive first.
    pub fn kernels(&self) -> Vec<KernelTime> {
        totals(&self.launches)
    }
}

/// Pairs of readings; the closest counts.
const READINGS: usize = 8;

/// One moment on both clocks.
#[derive(Clone, Copy)]
struct Moment {
    host: Instant,
    device_ns: u64,
    /// How far both may be apart.
    error_ns: u64,
}

impl Moment {
    fn read(driver: &dyn Driver) -> Result<Self> {
        let memory = driver.allocate(256, "profile")?;
        let mut best: Option<Self> = None;
        for _ in 0..READINGS {
            driver.time_transfers(true)?;
            let before = Instant::now();
            driver.fill(QueueKind::Compute, &memory, 0, 16, &[0; 4])?;
            driver.finish(QueueKind::Compute)?;
            let window = before.elapsed();
            let Some(fill) = driver.time_transfers(false)?.pop() else {
                return Err(Error::unsupported("profile: the device does not tell when its commands ran"));
            };
            // Begun after the first reading and ended before the second.
            let length = fill.end_ns.saturating_sub(fill.start_ns);
            let slack = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).saturating_sub(length);
            let host = before + std::time::Duration::from_nanos(slack / 2);
            let moment = Self { host, device_ns: fill.start_ns, error_ns: slack / 2 };
            if best.is_none_or(|b| moment.error_ns < b.error_ns) {
                best = Some(moment);
            }
        }
        best.ok_or_else(|| Error::internal("profile: no reading of the clocks"))
    }
}

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
    /// Name of the `__kernel` function.
    pub name: &'static str,
    /// Name of the text that it is in: the variant.
    pub variant: &'static str,
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items of a group in each dimension.
    pub local: [usize; 3],
    /// Device time, seconds.
    pub seconds: f64,
    /// Bytes of all arguments, each counted once.
    pub bytes: u64,
    /// Floating-point operations, 0 where unknown.
    pub flops: u64,
    /// When it began, nanoseconds of the device's clock; in a [`Timeline`](crate::Timeline), since that began.
    pub start_ns: u64,
    /// When it ended, likewise.
    pub end_ns: u64,
}

/// Times by kernel while they are added up.
pub(crate) type Totals = BTreeMap<&'static str, KernelTime>;

pub(crate) fn add(totals: &mut Totals, launch: &LaunchTime) {
    let total = totals
        .entry(launch.name)
        .or_insert_with(|| KernelTime { name: launch.name.into(), ..Default::default() });
    total.count += 1;
    total.seconds += launch.seconds;
    total.bytes += launch.bytes;
    total.flops += launch.flops;
}

pub(crate) fn sorted(totals: Totals) -> Vec<KernelTime> {
    let mut out: Vec<KernelTime> = totals.into_values().collect();
    out.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    out
}

/// Time per kernel, the most expensive first.
fn totals(launches: &[LaunchTime]) -> Vec<KernelTime> {
    let mut totals = Totals::new();
    launches.iter().for_each(|launch| add(&mut totals, launch));
    sorted(totals)
}

/// Where a timeline begins.
pub(crate) struct Start {
    begun: Instant,
    moment: Moment,
}

impl Start {
    pub fn now(driver: &dyn Driver) -> Result<Self> {
        let moment = Moment::read(driver)?;
        Ok(Self { begun: Instant::now(), moment })
    }

    /// The timeline that ends now.
    pub fn conclude(
        self,
        driver: &dyn Driver,
        mut launches: Vec<LaunchTime>,
        mut transfers: Vec<Transfer>,
    ) -> Result<Timeline> {
        let nanos = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier).as_nanos();
        let end_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let last = Moment::read(driver)?;
        let by_device = last.device_ns.saturating_sub(self.moment.device_ns);
        let by_host = u64::try_from(nanos(last.host, self.moment.host)).unwrap_or(u64::MAX);
        let clock_error_ns = self.moment.error_ns.saturating_add(by_device.abs_diff(by_host));
        // The moment lies before the beginning.
        let before = u64::try_from(nanos(self.begun, self.moment.host)).unwrap_or(u64::MAX);
        let zero = self.moment.device_ns.saturating_add(before);
        for launch in &mut launches {
            launch.start_ns = launch.start_ns.saturating_sub(zero);
            launch.end_ns = launch.end_ns.saturating_sub(zero);
        }
        for transfer in &mut transfers {
            transfer.start_ns = transfer.start_ns.saturating_sub(zero);
            transfer.end_ns = transfer.end_ns.saturating_sub(zero);
        }
        Ok(Timeline { begun: self.begun, end_ns, launches, transfers, clock_error_ns })
    }
}
