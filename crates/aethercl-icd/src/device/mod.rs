//! Devices: each has a profile and a separate simulated GPU.

mod info;

pub use info::{device_info, max_alloc, platform_info};

use crate::cl;
use crate::cl::{Code, Result};
use crate::raw::Handle;
use crate::registry::{self, Object, Tag};
use crate::report;
use crate::settings::settings;
use aethercl::machine::{Callback, Completion, Fence, Gpu, GpuError, MachineOptions, Packet};
use aethercl::model::Profile;
use aethercl::report::Device as Journal;
use aethercl::{LaunchOptions, Target};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Number of hardware queues that a device opens. If a program creates more command queues, they share these.
const QUEUES: usize = 8;

/// The platform object.
pub struct Platform {
    tag: Tag,
}

impl Object for Platform {
    const INVALID: Code = cl::INVALID_PLATFORM;
    const NAME: &'static str = "platform";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

/// A simulated GPU.
pub struct Device {
    tag: Tag,
    /// Figures of the modeled GPU.
    pub profile: Profile,
    /// Target of its compiler, with the extensions.
    pub target: Target,
    /// Default options of launches.
    pub launch: LaunchOptions,
    gpu: Mutex<Gpu>,
    /// Number of command queues that use each hardware queue.
    users: Mutex<[usize; QUEUES]>,
    /// The modeled host clock, ns: time to submit commands and time spent waiting for them.
    clock: AtomicU64,
    /// Time at which the program enqueued the current command, on the modeled host clock.
    asked: AtomicU64,
}

impl Object for Device {
    const INVALID: Code = cl::INVALID_DEVICE;
    const NAME: &'static str = "device";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

/// Profiling times of a command, ns of the device clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// `CL_PROFILING_COMMAND_QUEUED`.
    pub queued: u64,
    /// `CL_PROFILING_COMMAND_SUBMIT`.
    pub submitted: u64,
    /// `CL_PROFILING_COMMAND_START`.
    pub start: u64,
    /// `CL_PROFILING_COMMAND_END`.
    pub end: u64,
    /// Its fence on the simulated GPU; `None` for commands that only the host executes.
    pub fence: Option<Fence>,
}

impl Times {
    /// Converts the completion of a command.
    pub fn of((fence, done): &(Fence, Completion)) -> Self {
        let (submitted, start, end) = (done.queued_ns, done.start_ns, done.end_ns);
        Self { queued: 0, submitted, start, end, fence: Some(*fence) }
    }
    /// Returns the times of an operation that takes no time.
    pub fn at(moment: u64) -> Self {
        Self { queued: moment, submitted: moment, start: moment, end: moment, fence: None }
    }
}

static ALL: OnceLock<(Arc<Platform>, Vec<Arc<Device>>)> = OnceLock::new();

fn all() -> &'static (Arc<Platform>, Vec<Arc<Device>>) {
    ALL.get_or_init(|| {
        report::begin(journals);
        let platform = Arc::new(Platform { tag: Tag::default() });
        registry::publish(&platform);
        let devices: Vec<_> = settings().profiles.iter().map(|p| Arc::new(Device::new(p.clone()))).collect();
        devices.iter().for_each(|d| {
            registry::publish(d);
        });
        (platform, devices)
    })
}

/// Returns the platform's handle.
pub fn platform() -> Handle {
    all().0.tag.handle()
}

/// Returns all devices.
pub fn devices() -> &'static [Arc<Device>] {
    &all().1
}

/// Maximum time that the exit handler waits for a device that is still executing a command.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns name and report data of every device; no data for a device that is still busy.
fn journals() -> Vec<(String, Option<Journal>)> {
    devices().iter().map(|d| (d.profile.name.clone(), d.journal(EXIT_TIMEOUT))).collect()
}

impl Device {
    fn new(profile: Profile) -> Self {
        let launch = LaunchOptions {
            checks: settings().checks,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            sub_group: profile.compute.simd_width,
            max_time: settings().timeout,
            lines: settings().detail,
            ..LaunchOptions::default()
        };
        // Counting is slow, so launches are not timed unless the program or the report needs it.
        let count_none = settings().report.is_none();
        let options = MachineOptions { count_none, journal: settings().detail, ..MachineOptions::default() };
        Self {
            tag: Tag::default(),
            target: Target { extensions: info::extensions(&profile) },
            launch,
            gpu: Mutex::new(Gpu::new(profile.clone(), options)),
            users: Mutex::default(),
            clock: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            profile,
        }
    }

    /// Returns its handle.
    pub fn handle(&self) -> Handle {
        self.tag.handle()
    }

    /// Locks the simulated GPU. To avoid deadlocks, take no other lock while it is locked.
    pub fn gpu(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns a hardware queue to a new command queue: the one with the fewest users.
    ///
    /// # Errors
    /// `CL_OUT_OF_RESOURCES` if the simulated GPU cannot open one.
    pub fn open_queue(&self) -> Result<usize> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let least = (0..QUEUES).min_by_key(|q| users[*q]).unwrap_or(0);
        let mut gpu = self.gpu();
        while gpu.last_fence(least).is_err() {
            gpu.open_queue().map_err(|_| cl::OUT_OF_RESOURCES)?;
        }
        users[least] += 1;
        Ok(least)
    }

    /// Releases a queue of [`Device::open_queue`].
    pub fn close_queue(&self, queue: usize) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)[queue] -= 1;
    }

    /// Returns the modeled host clock, ns.
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Advances the host clock by the cost of submitting a command and returns the time before it.
    pub fn enqueued(&self) -> u64 {
        self.clock.fetch_add(self.profile.launch.submit_ns, Ordering::Relaxed)
    }

    /// Sets the enqueue time of the command that is executed next.
    pub fn asked(&self, ns: u64) {
        self.asked.store(ns, Ordering::Relaxed);
    }

    /// Returns the report data; `None` if it is not recorded, or if the device is still busy after `patience`.
    fn journal(&self, patience: Duration) -> Option<Journal> {
        let until = Instant::now() + patience;
        loop {
            match self.gpu.try_lock() {
                Ok(gpu) => return gpu.journal(),
                Err(TryLockError::Poisoned(gpu)) => return gpu.into_inner().journal(),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Advances the host clock to the end of a wait.
    pub fn waited(&self, until: u64) {
        self.clock.fetch_max(until, Ordering::Relaxed);
    }

    /// Submits a command to the simulated GPU and executes it.
    ///
    /// # Errors
    /// The error of the simulated GPU.
    pub fn compute(
        &self,
        submit: impl FnOnce(&mut Gpu, Callback) -> std::result::Result<Fence, GpuError>,
    ) -> std::result::Result<(Fence, Completion), GpuError> {
        let slot = Arc::new(Mutex::new(None));
        let into = Arc::clone(&slot);
        let callback: Callback =
            Box::new(move |done| *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(done));
        let mut gpu = self.gpu();
        gpu.asked(self.asked.load(Ordering::Relaxed));
        let fence = submit(&mut gpu, callback)?;
        gpu.doorbell(fence.queue)?;
        let ran = gpu.run();
        drop(gpu);
        let done = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        match done {
            Some(done) => Ok((fence, done)),
            None => Err(ran.err().unwrap_or(GpuError::Unknown("a command did not run".into()))),
        }
    }

    /// Executes a transfer; `kind` and `bytes` go into the report.
    ///
    /// # Errors
    /// The error code of the command. The reason is recorded as a failure.
    pub fn transfer(
        &self,
        queue: usize,
        (kind, bytes): (&str, usize),
        submit: impl FnOnce(&mut Gpu, usize, Callback) -> std::result::Result<Fence, GpuError>,
    ) -> Result<(Times, Vec<u8>)> {
        let done = self.compute(|gpu, callback| submit(gpu, queue, callback));
        let times = done.as_ref().map(Times::of).unwrap_or_default();
        let outcome = done.and_then(|(_, done)| done.outcome).map_err(|e| {
            report::failure(&format!("{kind} of {bytes} bytes: {e}"));
            cl::OUT_OF_RESOURCES
        })?;
        report::transfer(&self.profile.name, kind, bytes, times.end - times.start);
        Ok((times, outcome.data))
    }

    /// Makes a hardware queue wait for commands of other queues and for a host time.
    ///
    /// # Errors
    /// `CL_OUT_OF_RESOURCES` if the simulated GPU does not accept the command.
    pub fn order(&self, queue: usize, after: &[Fence], moment: u64) -> Result<()> {
        self.gpu().host_reaches(moment);
        for Fence { queue: other, value } in after.iter().copied().filter(|f| f.queue != queue) {
            let packet = Packet::Wait { queue: other as u32, value };
            self.compute(|gpu, callback| gpu.submit(queue, packet, Some(callback)))
                .map_err(|_| cl::OUT_OF_RESOURCES)?;
        }
        Ok(())
    }
}
