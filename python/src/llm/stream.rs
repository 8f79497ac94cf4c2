//! Streams text from the model's thread to Python.

use crate::edge::{raised, run};
use netcl::device::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum delay before Ctrl-C is noticed.
const SIGNALS: Duration = Duration::from_millis(50);

/// A generated text.
#[derive(Clone, Debug, Default)]
pub struct GeneratedText {
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish: &'static str,
    pub prompt_tokens: usize,
    /// Prompt tokens that were already in the cache.
    pub reused_tokens: usize,
    pub prompt_seconds: f64,
    pub seconds: f64,
}

/// A message from the model's thread.
pub enum Message {
    /// New text for the n-th prompt.
    Text(usize, String),
    /// Progress of loading: parameter, device, elements loaded, all elements.
    Loading(String, String, u64, u64),
    /// The n-th prompt is complete.
    Done(usize, GeneratedText),
    /// The request failed.
    Failed(Error),
}

/// Waits for the next message. Returns `None` at the end, and raises errors and Ctrl-C as exceptions.
pub fn next_message(
    py: Python<'_>,
    receiver: &Mutex<Receiver<Message>>,
    stop: &AtomicBool,
) -> PyResult<Option<Message>> {
    loop {
        let heard =
            py.detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS));
        match heard {
            Ok(Message::Failed(error)) => return Err(raised(py, &error)),
            Ok(message) => return Ok(Some(message)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| stop.store(true, Ordering::Relaxed))?
            }
        }
    }
}

/// Streams text as pairs of prompt number and text. If the stream is stopped or dropped, the model stops after the current token.
#[pyclass(name = "Stream", module = "netcl", frozen)]
pub struct PyStream {
    receiver: Mutex<Receiver<Message>>,
    stop: Arc<AtomicBool>,
    made: Mutex<Vec<Option<GeneratedText>>>,
}

impl PyStream {
    pub fn new(receiver: Receiver<Message>, stop: Arc<AtomicBool>, texts: usize) -> Self {
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
            match next_message(py, &self.receiver, &self.stop)? {
                Some(Message::Text(at, text)) => return Ok(Some((at, text))),
                Some(Message::Done(at, made)) => {
                    if let Some(place) = self.made.lock().unwrap_or_else(PoisonError::into_inner).get_mut(at)
                    {
                        *place = Some(made);
                    }
                }
                Some(Message::Loading(..) | Message::Failed(_)) => {}
                None => return Ok(None),
            }
        }
    }
    /// Stops the model after the current token.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
    /// Returns the generated texts, with `None` for those that are not complete.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Vec<Option<Bound<'py, PyDict>>>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |made: &GeneratedText| {
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
