//! A locked machine, the results of its launches, and the thread that polls its register window.

use super::callbacks::{Raised, in_callback};
use crate::edge::keep_exception;
use aethercl::machine::{Callback, Completion, Gpu, GpuError, MachineOptions};
use aethercl::model::{Estimate, Profile};
use aethercl::{Checks, Counters, Finding, LaunchOptions};
use netcl::prelude::{Error, Result};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Maximum number of findings that are kept, so that a defect in a loop of launches does not fill the memory.
const MAX_KEPT_FINDINGS: usize = 1000;

/// Results of launches: all findings and output, and the counters of the last launch.
#[derive(Default)]
pub struct LaunchResults {
    pub findings: Vec<Finding>,
    pub printed: String,
    pub last: Option<(Option<Counters>, Option<Arc<Estimate>>)>,
}

/// A simulated GPU that several threads may use.
pub struct Machine {
    gpu: Mutex<Gpu>,
    pub results: Arc<Mutex<LaunchResults>>,
    pub launch: LaunchOptions,
    pub raised: Raised,
    poller: Mutex<Option<Poller>>,
}

/// The thread that polls the register window.
struct Poller {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts an error of the machine to the error kind that Python raises.
pub fn failure(error: &GpuError) -> Error {
    let message = error.to_string();
    match error {
        GpuError::OutOfMemory { .. } => Error::memory(message),
        GpuError::Lost => Error::device(message),
        GpuError::Unknown(_) | GpuError::Address(_) => Error::format(message),
        _ => Error::launch(message),
    }
}

/// Loads the profile with this name, or from a file whose name ends in `.toml`.
pub fn profile(name: &str) -> Result<Profile> {
    let wrong = |e: String| Error::format(format!("profile {name}: {e}"));
    if !name.ends_with(".toml") {
        return Profile::named(name).map_err(|e| wrong(e.to_string()));
    }
    let text = std::fs::read_to_string(name).map_err(|e| wrong(e.to_string()))?;
    Profile::parse(&text).map_err(|e| wrong(e.to_string()))
}

impl Machine {
    pub fn new(profile: Profile, options: MachineOptions, checks: Checks) -> Arc<Self> {
        let launch = LaunchOptions {
            checks,
            threads: std::thread::available_parallelism().map_or(1, Into::into),
            sub_group: profile.compute.simd_width,
            ..LaunchOptions::default()
        };
        let gpu = Mutex::new(Gpu::new(profile, options));
        Arc::new(Self {
            gpu,
            results: Arc::default(),
            launch,
            raised: Raised::default(),
            poller: Mutex::new(None),
        })
    }

    /// Locks the machine for `f`. Raises the exception of a function that the machine called.
    pub fn with<T>(&self, f: impl FnOnce(&mut Gpu) -> Result<T, GpuError>) -> Result<T> {
        if in_callback() {
            return Err(Error::unsupported(
                "a scheduler or trace function must not call a machine: it runs while the machine is locked",
            ));
        }
        let done = f(&mut lock(&self.gpu));
        if let Some(exception) = self.raised.take() {
            return Err(Python::attach(|py| keep_exception(py, exception)));
        }
        done.map_err(|e| failure(&e))
    }

    /// Returns the callback that stores the results of a completed launch.
    pub fn keeper(&self) -> Callback {
        let results = Arc::clone(&self.results);
        Box::new(move |done| keep(&results, done))
    }

    /// Checks that `bytes` bytes at `address` are within one allocation.
    pub fn check_range(&self, address: u64, bytes: u64) -> Result<()> {
        self.with(|gpu| {
            let there = gpu.memory().find(address);
            if there.is_some_and(|(block, offset)| bytes <= block.bytes - offset) {
                return Ok(());
            }
            let what = gpu.memory().describe(address);
            Err(GpuError::Address(format!(
                "{bytes} bytes at {address:#x} are not within an allocation: {what}"
            )))
        })
    }

    /// Starts a thread that polls the register window.
    pub fn poll(self: &Arc<Self>) {
        let mut poller = lock(&self.poller);
        if poller.is_some() {
            return;
        }
        let (machine, stop) = (Arc::downgrade(self), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut idle = 0u32;
            while !stopped.load(Ordering::Acquire) {
                let Some(machine) = machine.upgrade() else { return };
                let busy = lock(&machine.gpu).sync_window();
                drop(machine);
                idle = if busy { 0 } else { idle.saturating_add(1) };
                // Poll quickly while the program is active, and a thousand times per second while it is idle.
                match idle {
                    0..100 => std::thread::yield_now(),
                    100..200 => std::thread::sleep(Duration::from_micros(50)),
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        *poller = Some(Poller { stop, thread });
    }

    /// Stops the polling thread.
    pub fn stop_polling(&self) {
        let Some(Poller { stop, thread }) = lock(&self.poller).take() else { return };
        stop.store(true, Ordering::Release);
        // The thread ends on its own; a panic in it was already reported.
        let _ = thread.join();
    }
}

fn keep(results: &Mutex<LaunchResults>, done: Completion) {
    let Ok(outcome) = done.outcome else { return };
    let mut results = lock(results);
    results.printed.push_str(&outcome.done.printed);
    results.last = Some((outcome.done.counters, outcome.estimate));
    let room = MAX_KEPT_FINDINGS.saturating_sub(results.findings.len());
    results.findings.extend(outcome.done.findings.into_iter().take(room));
}
