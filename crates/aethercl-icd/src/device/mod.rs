//! Devices: a profile each, with a machine of its own.

mod info;

pub use info::{device_info, max_alloc, platform_info};

use crate::cl;
use crate::cl::{Code, Result};
use crate::raw::Handle;
use crate::registry::{self, Object, Tag};
use crate::report;
use crate::settings::settings;
use aethercl::machine::{Callback, Completion, Fence, Gpu, GpuError, Options, Packet};
use aethercl::model::Profile;
use aethercl::report::Device as Journal;
use aethercl::{LaunchOptions, Target};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Queues of the machine that a device opens; further ones of the program share them.
const QUEUES: usize = 8;

/// The one platform.
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
    /// What it models.
    pub profile: Profile,
    /// What its compiler offers.
    pub target: Target,
    /// How its launches run.
    pub launch: LaunchOptions,
    gpu: Mutex<Gpu>,
    /// Queues that objects of the program stand for, by queue of the machine.
    users: Mutex<[usize; QUEUES]>,
    /// The host's clock, ns: what it spent on commands, and what it waited for.
    clock: AtomicU64,
    /// When the program enqueued the command at hand, by that clock.
    asked: AtomicU64,
}

impl Object for Device {
    const INVALID: Code = cl::INVALID_DEVICE;
    const NAME: &'static str = "device";
    fn tag(&self) -> &Tag {
        &self.tag
    }
}

/// When a command was what, ns of the device's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Given to the queue.
    pub queued: u64,
    /// Announced to the device.
    pub submitted: u64,
    /// Begun.
    pub start: u64,
    /// Ended.
    pub end: u64,
    /// Where it is on the machine; none for what only the host does.
    pub fence: Option<Fence>,
}

impl Times {
    /// Of a command of the machine.
    pub fn of((fence, done): &(Fence, Completion)) -> Self {
        let (submitted, start, end) = (done.queued_ns, done.start_ns, done.end_ns);
        Self { queued: 0, submitted, start, end, fence: Some(*fence) }
    }
    /// Of something that takes no time.
    pub fn at(moment: u64) -> Self {
        Self { queued: moment, submitted: moment, start: moment, end: moment, fence: None }
    }
}

static ALL: OnceLock<(Arc<Platform>, Vec<Arc<Device>>)> = OnceLock::new();

fn all() -> &'static (Arc<Platform>, Vec<Arc<Device>>) {
    ALL.get_or_init(|| {
        report::begin();
        let platform = Arc::new(Platform { tag: Tag::default() });
        registry::publish(&platform);
        let devices: Vec<_> = settings().profiles.iter().map(|p| Arc::new(Device::new(p.clone()))).collect();
        devices.iter().for_each(|d| {
            registry::publish(d);
        });
        (platform, devices)
    })
}

/// The platform's handle.
pub fn platform() -> Handle {
    all().0.tag.handle()
}

/// Every device.
pub fn devices() -> &'static [Arc<Device>] {
    &all().1
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
        // A program that asks for no times should not pay for them.
        let count_none = settings().report.is_none();
        let options = Options { count_none, journal: settings().detail, ..Options::default() };
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

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.tag.handle()
    }

    /// The machine. Nothing else is locked while it is.
    pub fn gpu(&self) -> MutexGuard<'_, Gpu> {
        self.gpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue of the machine for a queue of the program: one of its own as long as there are some.
    ///
    /// # Errors
    /// `CL_OUT_OF_RESOURCES` where the machine gives none.
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

    /// Gives a queue of [`Device::open_queue`] back.
    pub fn close_queue(&self, queue: usize) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)[queue] -= 1;
    }

    /// The host's clock.
    pub fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The host enqueues a command: the moment it did.
    pub fn enqueued(&self) -> u64 {
        self.clock.fetch_add(self.profile.launch.submit_ns, Ordering::Relaxed)
    }

    /// What is computed next was enqueued then.
    pub fn asked(&self, ns: u64) {
        self.asked.store(ns, Ordering::Relaxed);
    }

    /// What the device did, where a report with details is asked for; none while it is at work, for as long as `patience`.
    pub fn journal(&self, patience: Duration) -> Option<Journal> {
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

    /// The host has waited until then.
    pub fn waited(&self, until: u64) {
        self.clock.fetch_max(until, Ordering::Relaxed);
    }

    /// Announces a command to the machine and computes it.
    ///
    /// # Errors
    /// What went wrong, as the machine says it.
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
            None => Err(ran.err().unwrap_or(GpuError::Unknown("a command was not done".into()))),
        }
    }

    /// The same with a packet of a transfer; `kind` and `bytes` for the report.
    ///
    /// # Errors
    /// The code that the command ends with. What went wrong is noted.
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

    /// Has a queue of the machine wait for commands of other ones, and for a moment of the host's clock.
    ///
    /// # Errors
    /// `CL_OUT_OF_RESOURCES` where the machine does not go on.
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
