//! Text on its way from the model's thread to Python.

use crate::edge::{raised, run};
use netcl::device::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long Ctrl-C may go unnoticed.
const SIGNALS: Duration = Duration::from_millis(50);

/// What a text became.
#[derive(Clone, Debug, Default)]
pub struct Made {
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish: &'static str,
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache already.
    pub reused_tokens: usize,
    pub prompt_seconds: f64,
    pub seconds: f64,
}

/// What the model's thread tells.
pub enum Told {
    /// Text of the n-th prompt.
    Text(usize, String),
    /// How far loading is: parameter, device, elements on their device, of all.
    Loading(String, String, u64, u64),
    /// The n-th prompt is done.
    Done(usize, Made),
    /// It went wrong.
    Failed(Error),
}

/// The next thing that is told, or an exception: that of Ctrl-C, of an error, or none at the end.
pub fn hear(py: Python<'_>, receiver: &Mutex<Receiver<Told>>, stop: &AtomicBool) -> PyResult<Option<Told>> {
    loop {
        let heard =
            py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS));
        match heard {
            Ok(Told::Failed(error)) => return Err(raised(py, &error)),
            Ok(told) => return Ok(Some(told)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| stop.store(true, Ordering::Relaxed))?
            }
        }
    }
}

/// Text as it comes: pairs of the prompt's number and text. Ended early, or dropped, the model stops behind the token it is at.
#[pyclass(name = "Stream", module = "netcl", frozen)]
pub struct PyStream {
    receiver: Mutex<Receiver<Told>>,
    stop: Arc<AtomicBool>,
    made: Mutex<Vec<Option<Made>>>,
}

impl PyStream {
    pub fn new(receiver: Receiver<Told>, stop: Arc<AtomicBool>, texts: usize) -> Self {
        Self { receiver: Mutex::new(receiver), stop, made: Mutex::new(vec![None; texts]) }
    }
}

impl Drop for PyStream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[pymethods]
impl PyStream {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(usize, String)>> {
        run(py, || Ok(()))?;
        loop {
            match hear(py, &self.receiver, &self.stop)? {
                Some(Told::Text(at, text)) => return Ok(Some((at, text))),
                Some(Told::Done(at, made)) => {
                    if let Some(place) = self.made.lock().unwrap_or_else(PoisonError::into_inner).get_mut(at)
                    {
                        *place = Some(made);
                    }
                }
                Some(Told::Loading(..) | Told::Failed(_)) => {}
                None => return Ok(None),
            }
        }
    }
    /// The model stops behind the token it is at.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
    /// What the texts became, `None` for those that are not done.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyDict>>>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |made: &Made| {
            let out = PyDict::new(py);
            out.set_item("text", &made.text)?;
            out.set_item("tokens", &made.tokens)?;
            out.set_item("finish", made.finish)?;
            out.set_item("prompt_tokens", made.prompt_tokens)?;
            out.set_item("reused_tokens", made.reused_tokens)?;
            out.set_item("prompt_seconds", made.prompt_seconds)?;
            out.set_item("seconds", made.seconds)?;
            Ok(out)
        };
        made.iter().map(|made| made.as_ref().map(one).transpose()).collect()
    }
}
