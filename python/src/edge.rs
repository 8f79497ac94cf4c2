//! The boundary between Python and netcl: every call into the libraries passes through [`run`].
//!
//! It releases the interpreter's lock and catches panics. It raises an error as the exception that one table assigns to its kind, and
//! re-raises an exception of a Python function that netcl called. Waiting for the device happens on a separate thread, so that Ctrl-C is
//! handled.

use crate::ids;
use netcl::device::Stream;
use netcl::prelude::{Error, ErrorKind, Result, no_grad};
use netcl::tensor::Lazy;
use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

thread_local! {
    /// Whether this thread records operations on the tape.
    static RECORDING: Cell<bool> = const { Cell::new(true) };
    /// An exception that passes from Python through netcl back to Python.
    static PASSING: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Set in the child of a fork, which cannot use its parent's devices.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Maximum delay before Ctrl-C is noticed while the device works.
const SIGNALS: Duration = Duration::from_millis(50);

/// Returns the exception class in `netcl.errors` for a kind of error.
fn exception(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Shape => "ShapeError",
        ErrorKind::DType => "DTypeError",
        ErrorKind::Device => "DeviceError",
        ErrorKind::Memory => "OutOfMemoryError",
        ErrorKind::Build => "BuildError",
        ErrorKind::Launch => "LaunchError",
        ErrorKind::Unsupported => "UnsupportedError",
        ErrorKind::Format => "FormatError",
        ErrorKind::Io => "IoError",
        ErrorKind::Internal => "InternalError",
    }
}

static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Converts an error to a Python exception with the same message.
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let module = ERRORS.get_or_try_init(py, || PyModule::import(py, "netcl.errors").map(Bound::unbind));
    let class = module.and_then(|module| module.bind(py).getattr(exception(error.kind())));
    match class.and_then(|class| class.call1((error.message(),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(error.message().to_owned()),
    }
}

/// Returns the exception for an index that is out of range.
pub fn out_of_bounds(py: Python<'_>, words: String) -> PyErr {
    let class = PyModule::import(py, "netcl.errors").and_then(|module| module.getattr("IndexOutOfBounds"));
    match class.and_then(|class| class.call1((&words,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyIndexError::new_err(words),
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

pub fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|panic| {
        Err(Error::internal(format!("a defect of netcl, please report it: {}", words(panic.as_ref()))))
    })
}

fn refuse_fork() -> Result<()> {
    match FORKED.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(Error::unsupported(
            "netcl was imported before this process was forked, and drivers do not survive a fork; start processes with \
             multiprocessing.set_start_method(\"spawn\")",
        )),
    }
}

/// Runs `work` without the interpreter's lock. A panic becomes an error, and an error becomes the exception of its kind.
pub fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    let done = py.detach(|| {
        refuse_fork()?;
        match RECORDING.get() {
            true => guarded(work),
            false => no_grad(|| guarded(work)),
        }
    });
    done.map_err(|e| match PASSING.take() {
        Some(exception) => exception,
        None => raised(py, &e),
    })
}

/// Stores an exception raised by a function that netcl called, and returns an error to pass through netcl. The caller of netcl then gets
/// the original exception.
pub fn keep_exception(py: Python<'_>, exception: PyErr) -> Error {
    let words = exception.value(py).to_string();
    PASSING.set(Some(exception));
    Error::format(words)
}

/// Like [`run`], for work that waits for the device. Ctrl-C interrupts the waiting. The work continues in the background, and the device
/// stays usable.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let checks = ids::take();
    let work = move || Ok((work()?, ids::failed(&checks)?));
    let waiter = run(py, move || {
        // Operations pending in a lazy scope of this thread must be computed by this thread.
        Lazy::settle()?;
        // The other thread is not inside this thread's streams, and would not wait for them.
        Stream::wait_for_entered()?;
        let waiter = waiter()?;
        let sent = waiter.send(Box::new(move || drop(sender.send(guarded(work)))));
        sent.map_err(|_| Error::internal("a waiting thread has ended"))?;
        Ok(waiter)
    })?;
    loop {
        let (done, back) = py.detach(move || (next(&receiver), receiver));
        receiver = back;
        match done {
            Some(done) => {
                IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(waiter);
                let (made, failed) = done.map_err(|e| raised(py, &e))?;
                return failed.map_or(Ok(made), |words| Err(out_of_bounds(py, words)));
            }
            // If a signal interrupts the loop, the waiter is dropped, and its thread ends after the work.
            None => py.check_signals()?,
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Idle threads that can run the next waiting job. Starting a thread costs more than most reads take.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// Takes an idle thread or starts a new one. The thread ends when its sender is dropped.
fn waiter() -> Result<Sender<Job>> {
    if let Some(idle) = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
        return Ok(idle);
    }
    let (sender, receiver) = channel::<Job>();
    let work = move || receiver.into_iter().for_each(|job| job());
    let thread = std::thread::Builder::new().name("netcl-wait".into()).spawn(work);
    thread.map_err(|e| Error::internal(format!("cannot start a waiting thread: {e}")))?;
    Ok(sender)
}

fn next<T>(receiver: &Receiver<Result<T>>) -> Option<Result<T>> {
    match receiver.recv_timeout(SIGNALS) {
        Ok(done) => Some(done),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            Some(Err(Error::internal("a waiting thread ended without a result")))
        }
    }
}

/// Sets whether operations of this thread are recorded. Returns the previous setting.
#[pyfunction]
pub fn set_recording(on: bool) -> bool {
    RECORDING.replace(on)
}

/// Returns whether operations of this thread are recorded.
#[pyfunction]
fn is_recording() -> bool {
    RECORDING.get()
}

/// Marks this process as the child of a fork.
#[pyfunction]
fn after_fork_in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Returns the names of the exceptions, for a test that all of them exist.
#[pyfunction]
fn exceptions() -> Vec<(String, &'static str)> {
    ErrorKind::ALL.iter().map(|kind| (format!("{kind:?}"), exception(*kind))).collect()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(set_recording, m)?)?;
    m.add_function(wrap_pyfunction!(is_recording, m)?)?;
    m.add_function(wrap_pyfunction!(after_fork_in_child, m)?)?;
    m.add_function(wrap_pyfunction!(exceptions, m)?)
}
