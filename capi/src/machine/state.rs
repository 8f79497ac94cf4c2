//! A machine and its handle. Commands run when a thread waits for them, rings the doorbell, or polls the register window. Callbacks run on
//! that thread after the machine is unlocked, so that they may use the machine.

use crate::handles::Table;
use crate::pointers;
use crate::status::{Failure, Result};
use aethercl::machine::{
    Callback, Completion, Fence, Gpu, GpuError, MachineOptions, Narrator, Sink, TraceLevel,
};
use aethercl::model::{Estimate, Profile};
use aethercl::{Checks, Counters, Finding, LaunchOptions};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub static MACHINES: Table<Arc<Machine>> = Table::new("machine", 0xa1);

/// A simulated GPU.
#[allow(non_camel_case_types)] // its name in C
pub struct aethercl_machine(());

/// Callback that receives a line of the trace.
#[allow(non_camel_case_types)] // its name in C
pub type aethercl_trace_callback = Option<unsafe extern "C" fn(line: *const c_char, user: *mut c_void)>;

/// Pointer that a program passes for its callbacks.
#[derive(Clone, Copy)]
pub struct UserPointer(pub *mut c_void);

// SAFETY: the pointer is only passed back. The header says that callbacks may come from other threads.
unsafe impl Send for UserPointer {}

/// An action that runs after the machine is unlocked.
pub type DeferredAction = Box<dyn FnOnce() + Send>;

/// Results of launches: all findings, and the counters of the last launch.
#[derive(Default)]
pub struct LaunchResults {
    pub findings: Vec<Arc<FindingText>>,
    pub printed: String,
    pub last: Option<(Option<Counters>, Option<Arc<Estimate>>)>,
}

/// A finding with its strings as C strings.
pub struct FindingText {
    pub finding: Finding,
    pub kernel: CString,
    pub kind: CString,
    pub text: CString,
}

/// Maximum number of findings that are kept, so that a defect in a loop of launches does not fill the memory.
const MAX_KEPT_FINDINGS: usize = 1000;

/// Results that callbacks of commands write to.
#[derive(Default)]
pub struct CallbackState {
    pub left: Mutex<LaunchResults>,
    pub later: Mutex<Vec<DeferredAction>>,
}

pub struct Machine {
    gpu: Mutex<Gpu>,
    pub mail: Arc<CallbackState>,
    pub launch: LaunchOptions,
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

/// Builds a listener for lines of the trace. Without a sink, lines go to standard error.
pub fn narrator(level: TraceLevel, sink: aethercl_trace_callback, user: UserPointer) -> Narrator {
    let tell: Sink = Box::new(move |line: &str| {
        let user = user;
        match (sink, CString::new(line.replace('\0', " "))) {
            (Some(sink), Ok(line)) => {
                // SAFETY: a function of the program, called as documented in the header.
                unsafe { sink(line.as_ptr(), user.0) }
            }
            _ => {
                use std::io::Write;
                // A closed standard error cannot be reported anywhere.
                let _ = writeln!(std::io::stderr(), "{line}");
            }
        }
    });
    Narrator::new(level, Some(tell))
}

/// Converts a number to a trace level.
pub fn level(number: c_int) -> Result<TraceLevel> {
    match number {
        0 => Ok(TraceLevel::Off),
        1 => Ok(TraceLevel::Commands),
        2 => Ok(TraceLevel::Steps),
        3 => Ok(TraceLevel::All),
        _ => Err(Failure::argument(format!("trace level {number}, expected 0 to 3"))),
    }
}

/// Loads the profile with this name, or from a file whose name ends in `.toml`.
pub fn profile(name: Option<&str>) -> Result<Profile> {
    let name = name.unwrap_or("teaching");
    let wrong = |e: String| Failure::argument(format!("profile {name}: {e}"));
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
        Arc::new(Self { gpu, mail: Arc::default(), launch, poller: Mutex::new(None) })
    }

    pub fn gpu(&self) -> MutexGuard<'_, Gpu> {
        lock(&self.gpu)
    }

    /// Locks the machine for `f`, then runs the callbacks that are due.
    pub fn with<T>(&self, f: impl FnOnce(&mut Gpu) -> Result<T, GpuError>) -> Result<T> {
        let done = f(&mut self.gpu());
        self.call_back();
        Ok(done?)
    }

    fn call_back(&self) {
        let waiting = std::mem::take(&mut *lock(&self.mail.later));
        waiting.into_iter().for_each(|later| later());
    }

    /// Returns the callback that stores the results of a completed launch.
    pub fn keeper(&self) -> Callback {
        let mail = Arc::clone(&self.mail);
        Box::new(move |done| mail.keep(done))
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
                let busy = machine.gpu().sync_window();
                machine.call_back();
                drop(machine);
                idle = if busy { 0 } else { idle.saturating_add(1) };
                // Poll quickly while the program is active, and a thousand times per second while it is idle.
                match idle {
                    0..100 => std::thread::yield_now(),
                    100..200 => std::thread::sleep(std::time::Duration::from_micros(50)),
                    _ => std::thread::sleep(std::time::Duration::from_millis(1)),
                }
            }
        });
        *poller = Some(Poller { stop, thread });
    }

    /// Stops the polling thread.
    pub fn stop_polling(&self) {
        let Some(Poller { stop, thread }) = lock(&self.poller).take() else { return };
        stop.store(true, Ordering::Release);
        // A callback that closes its own machine runs on that thread.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }

    /// Checks that `bytes` bytes at `address` are within one allocation. Called before host memory for them is allocated.
    pub fn check_range(&self, address: u64, bytes: usize) -> Result<()> {
        let gpu = self.gpu();
        let there = gpu.memory().find(address);
        let fits = there.is_some_and(|(block, offset)| bytes as u64 <= block.bytes - offset);
        if fits {
            return Ok(());
        }
        let what = gpu.memory().describe(address);
        Err(Failure::argument(format!("{bytes} bytes at {address:#x} are not within an allocation: {what}")))
    }
}

impl CallbackState {
    fn keep(&self, done: Completion) {
        let Ok(outcome) = done.outcome else { return };
        let mut left = lock(&self.left);
        left.printed.push_str(&outcome.done.printed);
        left.last = Some((outcome.done.counters, outcome.estimate));
        for finding in outcome.done.findings {
            if left.findings.len() < MAX_KEPT_FINDINGS {
                let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
                left.findings.push(Arc::new(FindingText {
                    kernel: text(finding.kernel.clone()),
                    kind: text(finding.kind.name().to_owned()),
                    text: text(finding.to_string()),
                    finding,
                }));
            }
        }
    }
}

/// Identifies a command. The command is complete when the fence of its queue has reached `value`.
#[repr(C)]
#[allow(non_camel_case_types)] // its name in C
#[derive(Clone, Copy, Debug)]
pub struct aethercl_fence {
    /// Number of the queue.
    pub queue: u32,
    /// Fence value that marks completion.
    pub value: u64,
}

impl From<Fence> for aethercl_fence {
    fn from(fence: Fence) -> Self {
        Self { queue: fence.queue as u32, value: fence.value }
    }
}

/// Writes the fence of a command to `out`, unless `out` is null.
///
/// # Safety
/// `out` is null or points to space for a fence.
pub unsafe fn tell(out: *mut aethercl_fence, fence: Fence) -> Result<()> {
    if out.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    unsafe { pointers::put("fence", out, fence.into()) }
}
