//! The Python class of a language model: its properties, and requests to its thread.

use super::sampling::{RequestedSampling, role, stop_texts};
use super::stream::{Message, PyStream, next_message};
use super::worker::{Listener, Opening, Task, Worker, serve};
use crate::convert::{DTypeLike, dtype_name};
use crate::device::DeviceLike;
use crate::edge::{raised, run, wait};
use netcl::llm::LoadedModel;
use netcl::llm::engine::{Job, Request};
use netcl::llm::sampler::StopTexts;
use netcl::llm::tokenizer::Specials;
use netcl::model::model::Model as _;
use netcl::prelude::{Error, Result};
use netcl::tensor::quant::Activations;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Properties of a loaded model.
struct Facts {
    path: PathBuf,
    family: &'static str,
    context: usize,
    trained_context: usize,
    vocab: usize,
    width: usize,
    parameters: usize,
    dtype: &'static str,
    device: String,
    chat: bool,
}

fn facts(model: &LoadedModel) -> Facts {
    let decoder = model.decoder();
    let config = decoder.config();
    let devices: Vec<String> = decoder.spans().map(|span| span.device.capabilities().id.clone()).collect();
    Facts {
        path: model.path().into(),
        family: config.family.model_type,
        context: model.context(),
        trained_context: model.trained_context(),
        vocab: config.vocab,
        width: config.width,
        parameters: config.parameters(),
        dtype: dtype_name(model.dtype()),
        device: devices.join(","),
        chat: model.template().is_ok(),
    }
}

/// A model that runs in a separate thread.
#[pyclass(name = "Model", module = "netcl", frozen)]
pub struct PyModel {
    tasks: Mutex<Option<Sender<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    facts: Facts,
}

/// Builds a request: maximum number of new tokens, stop strings, whether end tokens are ignored, and whether a full context is shifted (the
/// last half of the text is processed again).
fn request(max: Option<usize>, stop: Vec<String>, ignore_eos: bool, slide: bool) -> Result<Request> {
    let stops = StopTexts::new(stop)?;
    Ok(Request { max, stops, ignore_ends: ignore_eos, slide, ..Request::default() })
}

fn activations(name: Option<String>) -> PyResult<Option<Activations>> {
    let named = |name: String| {
        name.parse().map_err(|_| {
            let names: Vec<&str> = Activations::NAMES.iter().map(|(name, _)| *name).collect();
            PyTypeError::new_err(format!("activations {name:?}, expected one of {}", names.join(", ")))
        })
    };
    name.map(named).transpose()
}

/// A prompt: text or token ids.
#[derive(FromPyObject)]
enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

impl Prompt {
    fn ids(&self, model: &LoadedModel, special: bool) -> Result<Vec<u32>> {
        match self {
            Self::Ids(ids) => Ok(ids.clone()),
            Self::Text(text) => {
                let specials = if special { Specials::Parsed } else { Specials::Plain };
                let ids = model.tokenizer()?.encode_prompt(text, specials)?;
                if ids.is_empty() { model.beginning() } else { Ok(ids) }
            }
        }
    }
}

impl PyModel {
    fn send(&self, task: Task) -> Result<()> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = tasks.as_ref().map(|tasks| tasks.send(task).is_ok());
        match sent {
            Some(true) => Ok(()),
            Some(false) => Err(Error::internal("the model's thread has ended")),
            None => Err(Error::format("the model is closed")),
        }
    }

    /// Starts a request whose text is streamed.
    fn stream(
        &self,
        py: Python<'_>,
        texts: usize,
        work: impl for<'m> FnOnce(&mut Worker<'m>, &Listener) -> Result<()> + Send + 'static,
    ) -> PyResult<PyStream> {
        let (tell, receiver) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let listener = Listener { tell, stop: stop.clone() };
        run(py, || {
            self.send(Box::new(move |worker: &mut Worker<'_>| {
                if !listener.stop.load(Ordering::Relaxed) {
                    listener.guard(|| work(worker, &listener));
                }
            }))
        })?;
        Ok(PyStream::new(receiver, stop, texts))
    }

    /// Runs a request that returns one result.
    fn ask<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl for<'m> FnOnce(&mut Worker<'m>) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let (tell, receiver) = channel();
        run(py, || {
            self.send(Box::new(move |worker: &mut Worker<'_>| {
                drop(tell.send(crate::edge::guarded(|| work(worker))));
            }))
        })?;
        wait(py, move || {
            receiver
                .recv()
                .unwrap_or_else(|_| Err(Error::internal("the model's thread ended without a result")))
        })
    }
}

#[pymethods]
impl PyModel {
    /// Loads a GGUF file, a folder in the Hugging Face layout or a run folder. `progress` is called with parameter, device, number of
    /// loaded elements, and number of all elements.
    #[new]
    #[pyo3(signature = (path, devices, dtype=None, context=None, dequantise=false, activations=None, layers=None, adapters=Vec::new(), progress=None))]
    #[allow(clippy::too_many_arguments)] // the signature in Python
    fn new(
        py: Python<'_>,
        path: PathBuf,
        devices: Vec<DeviceLike>,
        dtype: Option<DTypeLike>,
        context: Option<usize>,
        dequantise: bool,
        activations: Option<String>,
        layers: Option<Vec<usize>>,
        adapters: Vec<(PathBuf, f32)>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let activations = self::activations(activations)?;
        let devices = run(py, move || {
            devices.into_iter().map(|device| DeviceLike::open(Some(device))).collect::<Result<Vec<_>>>()
        })?;
        let dtype = dtype.map(|dtype| dtype.0);
        let opening = Opening { path, adapters, devices, dtype, context, dequantise, activations, layers };
        let (tell, receiver) = channel();
        let (tasks, todo) = channel();
        let (found, known) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let listener = Listener { tell, stop: stop.clone() };
        let work = move || {
            serve(opening, listener, todo, |model| drop(found.send(facts(model))));
        };
        let thread = std::thread::Builder::new().name("netcl-model".into()).spawn(work);
        let thread = thread
            .map_err(|e| raised(py, &Error::internal(format!("cannot start a thread for the model: {e}"))))?;
        let receiver = Mutex::new(receiver);
        while let Some(message) = next_message(py, &receiver, &stop)? {
            if let (Message::Loading(name, device, done, total), Some(progress)) = (message, &progress) {
                let heard = progress.call1(py, (name, device, done, total));
                heard.inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
            }
        }
        let facts = known.try_recv();
        let facts =
            facts.map_err(|_| raised(py, &Error::internal("the model's thread ended while loading")))?;
        Ok(Self { tasks: Mutex::new(Some(tasks)), thread: Mutex::new(Some(thread)), facts })
    }
    /// The file, or the folder that contains `config.json`.
    #[getter]
    fn path(&self) -> PathBuf {
        self.facts.path.clone()
    }
    /// The model's family, a `model_type`.
    #[getter]
    fn family(&self) -> &'static str {
        self.facts.family
    }
    /// Context length in tokens.
    #[getter]
    fn context(&self) -> usize {
        self.facts.context
    }
    /// Context length in tokens, according to the model's files.
    #[getter]
    fn trained_context(&self) -> usize {
        self.facts.trained_context
    }
    /// Number of tokens in the vocabulary.
    #[getter]
    fn vocab(&self) -> usize {
        self.facts.vocab
    }
    /// Width of the residual stream.
    #[getter]
    fn width(&self) -> usize {
        self.facts.width
    }
    /// Number of parameters.
    #[getter]
    fn parameters(&self) -> usize {
        self.facts.parameters
    }
    #[getter]
    fn _dtype(&self) -> &'static str {
        self.facts.dtype
    }
    /// Its device, or several devices separated by commas.
    #[getter]
    fn device(&self) -> &str {
        &self.facts.device
    }
    /// Whether the model's files contain a chat template.
    #[getter]
    fn has_chat_template(&self) -> bool {
        self.facts.chat
    }
    /// Generates continuations of prompts.
    #[pyo3(signature = (prompts, max, stop, ignore_eos, special, parallel, sampling))]
    #[allow(clippy::too_many_arguments)] // the signature in Python
    fn generate(
        &self,
        py: Python<'_>,
        prompts: Vec<Prompt>,
        max: Option<usize>,
        stop: Option<&Bound<'_, PyAny>>,
        ignore_eos: bool,
        special: bool,
        parallel: usize,
        sampling: &Bound<'_, PyDict>,
    ) -> PyResult<PyStream> {
        let (stop, asked) = (stop_texts(stop)?, RequestedSampling::new(sampling)?);
        self.stream(py, prompts.len(), move |worker, listener| {
            let model = worker.model;
            let sampler = asked.sampler(model.sampling(), model.tokenizer()?)?;
            let ids = prompts.iter().map(|p| p.ids(model, special)).collect::<Result<Vec<_>>>()?;
            match ids.as_slice() {
                [one] => {
                    let request = request(max, stop, ignore_eos, max.is_some())?;
                    worker.continue_one(one, sampler, request, listener)
                }
                _ => {
                    let request = request(max, stop, ignore_eos, false)?;
                    let job = |ids: Vec<u32>| Job::new(ids, sampler.clone(), request.clone());
                    worker.continue_all(ids.into_iter().map(job).collect(), parallel.max(1), listener)
                }
            }
        })
    }
    /// Answers the last of the given messages. Each is a pair of role and text.
    #[pyo3(signature = (messages, max, stop, ignore_eos, sampling))]
    fn answer(
        &self,
        py: Python<'_>,
        messages: Vec<(String, String)>,
        max: Option<usize>,
        stop: Option<&Bound<'_, PyAny>>,
        ignore_eos: bool,
        sampling: &Bound<'_, PyDict>,
    ) -> PyResult<PyStream> {
        let (stop, asked) = (stop_texts(stop)?, RequestedSampling::new(sampling)?);
        self.stream(py, 1, move |worker, listener| {
            let model = worker.model;
            let sampler = asked.sampler(model.sampling(), model.tokenizer()?)?;
            let one = |(name, text): (String, String)| role(&name).map(|role| (role, text));
            let messages = messages.into_iter().map(one).collect::<Result<Vec<_>>>()?;
            worker.answer(messages, sampler, request(max, stop, ignore_eos, false)?, listener)
        })
    }
    /// Computes the hidden states after the last norm for a text's tokens: f32 as bytes, (T, C).
    fn features<'py>(&self, py: Python<'py>, prompt: Prompt, special: bool) -> PyResult<Bound<'py, PyBytes>> {
        let rows = self.ask(py, move |worker| {
            let ids = prompt.ids(worker.model, special)?;
            worker.features(&ids)
        })?;
        let bytes: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(PyBytes::new(py, &bytes))
    }
    /// Tokenizes a text. With `special`, names of control tokens are parsed as these tokens. With `prompt`, the result starts with the
    /// tokens that the tokenizer puts before every text.
    fn tokenize(&self, py: Python<'_>, text: String, special: bool, prompt: bool) -> PyResult<Vec<u32>> {
        self.ask(py, move |worker| {
            let specials = if special { Specials::Parsed } else { Specials::Plain };
            let tokenizer = worker.model.tokenizer()?;
            if prompt { tokenizer.encode_prompt(&text, specials) } else { tokenizer.encode(&text, specials) }
        })
    }
    /// Converts ids to text.
    fn detokenize(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<String> {
        self.ask(py, move |worker| worker.model.tokenizer()?.decode(&ids))
    }
    /// Frees the model after its current work.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        drop(self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Ok(()) };
        wait(py, move || thread.join().map_err(|_| Error::internal("the model's thread failed")))
    }
}
