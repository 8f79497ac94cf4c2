//! Launches and transfers of a period of time, on the host clock.
//!
//! Events report times of the device clock. A fill of a few bytes between two readings of the host clock relates the two clocks. It runs at the start
//! and at the end, and the drift between them counts as error.

use crate::driver::{Driver, QueueKind, Transfer};
use crate::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// Events on a device, with times in nanoseconds since [`Timeline::begun`].
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Time 0.
    pub begun: Instant,
    /// End of the timeline.
    pub end_ns: u64,
    /// Launches in the order they were enqueued.
    pub launches: Vec<LaunchTime>,
    /// Transfers and fills in the order they were enqueued.
    pub transfers: Vec<Transfer>,
    /// Maximum difference between device times and host times, in nanoseconds: half the time between the two readings of the host clock, plus the
    /// drift. On a simulated device, which has a separate clock, the value is meaningless.
    pub clock_error_ns: u64,
}

impl Timeline {
    /// Returns the time per kernel, most expensive first.
    pub fn kernels(&self) -> Vec<KernelTime> {
        totals(&self.launches)
    }
}

/// Number of pairs of readings; the closest pair is used.
const READINGS: usize = 8;

/// One moment on both clocks.
#[derive(Clone, Copy)]
struct Moment {
    host: Instant,
    device_ns: u64,
    /// Maximum difference between both clocks.
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
                return Err(Error::unsupported(
                    "profile: the device does not report the times of its commands",
                ));
            };
            // The fill began after the first reading and ended before the second.
            let length = fill.end_ns.saturating_sub(fill.start_ns);
            let slack = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).saturating_sub(length);
            let host = before + std::time::Duration::from_nanos(slack / 2);
            let moment = Self { host, device_ns: fill.start_ns, error_ns: slack / 2 };
            if best.is_none_or(|b| moment.error_ns < b.error_ns) {
                best = Some(moment);
            }
        }
        best.ok_or_else(|| Error::internal("profile: cannot read the clocks"))
    }
}

/// Total cost of all launches of one kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KernelTime {
    /// Kernel name.
    pub name: String,
    /// Number of launches.
    pub count: u64,
    /// Device time, seconds.
    pub seconds: f64,
    /// Bytes of all arguments, counted once per launch.
    pub bytes: u64,
    /// Floating-point operations, if the op reports them.
    pub flops: u64,
}

/// Cost of one launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchTime {
    /// Name of the `__kernel` function.
    pub name: &'static str,
    /// Name of the kernel source (the variant).
    pub variant: &'static str,
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items per group in each dimension.
    pub local: [usize; 3],
    /// Device time, seconds.
    pub seconds: f64,
    /// Bytes of all arguments, each counted once.
    pub bytes: u64,
    /// Floating-point operations; 0 if unknown.
    pub flops: u64,
    /// Start, in nanoseconds of the device clock; in a [`Timeline`](crate::Timeline), since the start of the timeline.
    pub start_ns: u64,
    /// End, on the same clock.
    pub end_ns: u64,
}

/// Accumulated times by kernel.
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

/// Returns the time per kernel, most expensive first.
fn totals(launches: &[LaunchTime]) -> Vec<KernelTime> {
    let mut totals = Totals::new();
    launches.iter().for_each(|launch| add(&mut totals, launch));
    sorted(totals)
}

/// Start of a timeline.
pub(crate) struct Start {
    begun: Instant,
    moment: Moment,
}

impl Start {
    pub fn now(driver: &dyn Driver) -> Result<Self> {
        let moment = Moment::read(driver)?;
        Ok(Self { begun: Instant::now(), moment })
    }

    /// Ends the timeline now and returns it.
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
        // The moment is before the start of the timeline.
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
