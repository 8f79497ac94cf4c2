//! Functions of a Python program that the machine calls: the trace, and the schedulers.

use aethercl::machine::{
    DispatchScheduler, MemoryScheduler, Narrator, PageRun, ReadyQueue, Resident, Sink, TraceLevel,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

thread_local! {
    /// Whether a function of the program runs on this thread, under a machine's lock.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a machine is calling a function of the program on this thread.
pub fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// The first exception of a function that the machine called; raised by the call of the machine that is in progress.
#[derive(Clone, Default)]
pub struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Returns the exception and removes it.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Calls a function of the program. If it raises an exception, stores it and returns `None`.
    fn call<T>(&self, function: impl FnOnce(Python<'_>) -> PyResult<T>) -> Option<T> {
        let before = IN_CALLBACK.replace(true);
        let done = Python::attach(function);
        IN_CALLBACK.set(before);
        done.map_err(|e| {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        })
        .ok()
    }
}

/// Returns a narrator that passes lines to a function of the program.
pub fn narrator(level: TraceLevel, function: Py<PyAny>, raised: Raised) -> Narrator {
    let sink: Sink = Box::new(move |line: &str| {
        raised.call(|py| function.call1(py, (line,)).map(|_| ()));
    });
    Narrator::new(level, Some(sink))
}

/// A dispatch scheduler in Python: gets `(queue, ready_ns, announced_ns, command)` of each ready queue, and returns the number of a queue.
pub struct PyDispatch {
    pub function: Py<PyAny>,
    pub raised: Raised,
}

impl DispatchScheduler for PyDispatch {
    fn choose(&mut self, ready: &[ReadyQueue]) -> usize {
        let rows: Vec<_> =
            ready.iter().map(|r| (r.queue, r.ready_ns, r.announced_ns, r.packet.describe())).collect();
        let chosen = self.raised.call(|py| {
            let queue: usize = self.function.call1(py, (rows,))?.extract(py)?;
            ready.iter().position(|r| r.queue == queue).ok_or_else(|| {
                let queues: Vec<usize> = ready.iter().map(|r| r.queue).collect();
                PyValueError::new_err(format!(
                    "the dispatch scheduler returned queue {queue}, expected one of {queues:?}"
                ))
            })
        });
        // The default is used for this command; the exception ends the call.
        chosen.unwrap_or(usize::MAX)
    }
}

/// A memory scheduler in Python.
pub struct PyMemory {
    /// Gets the number of pages and `(start, pages)` of each free run; returns the first page, or `None` for the default.
    pub place: Py<PyAny>,
    /// Gets the number of missing pages and `(address, pages, last_use)` of each resident allocation; returns an address, or `None`.
    pub evict: Option<Py<PyAny>>,
    pub raised: Raised,
}

impl MemoryScheduler for PyMemory {
    fn place(&mut self, pages: u64, free: &[PageRun]) -> Option<u64> {
        let runs: Vec<_> = free.iter().map(|run| (run.start, run.pages)).collect();
        let chosen = self.raised.call(|py| {
            let start: Option<u64> = self.place.call1(py, (pages, runs))?.extract(py)?;
            let Some(start) = start else { return Ok(None) };
            let fits = |run: &PageRun| {
                run.start <= start && start.checked_add(pages).is_some_and(|end| end <= run.start + run.pages)
            };
            match free.iter().any(fits) {
                true => Ok(Some(start)),
                false => Err(PyValueError::new_err(format!(
                    "the memory scheduler returned page {start}, but {pages} pages are not free from there on"
                ))),
            }
        });
        chosen.flatten()
    }

    fn evict(&mut self, pages: u64, resident: &[Resident]) -> Option<u64> {
        let evict = self.evict.as_ref()?;
        let rows: Vec<_> = resident.iter().map(|r| (r.address, r.pages, r.last_use)).collect();
        let chosen = self.raised.call(|py| {
            let address: Option<u64> = evict.call1(py, (pages, rows))?.extract(py)?;
            let Some(address) = address else { return Ok(None) };
            match resident.iter().any(|r| r.address == address) {
                true => Ok(Some(address)),
                false => Err(PyValueError::new_err(format!(
                    "the memory scheduler returned address {address:#x}, at which no resident allocation starts"
                ))),
            }
        });
        chosen.flatten()
    }
}
