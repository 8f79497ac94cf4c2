//! Runs of `netcl train`: the same settings, the same bits.

use crate::device::by_name;
use crate::edge::{keep_exception, raised, run};
use crate::files::{Stored, stored};
use crate::tensor::PyTensor;
use netcl::model::checkpoint::Planned;
use netcl::prelude::{Device, Error, Result};
use netcl::train::config::{Overlay, TrainConfig};
use netcl::train::data::Progress;
use netcl::train::evaluate::Score;
use netcl::train::run::{RunFolder, StepMetrics};
use netcl::train::{Observer, Outcome, RunInfo, Trainer};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};

/// Steps done, whether that is all, best validation loss with its step, tokens a second.
type State = (u64, bool, Option<(f64, u64)>, f64);

/// A training run.
#[pyclass(name = "Training", module = "netcl", frozen)]
pub struct PyTraining {
    /// Nothing once it is closed.
    trainer: Mutex<Option<Trainer>>,
    folder: PathBuf,
}

/// Settings by name, as JSON.
fn overlay(settings: &str) -> Result<Overlay> {
    serde_json::from_str(settings).map_err(|e| {
        let message = e.to_string();
        Error::format(format!("settings: {}", message.split(" at line").next().unwrap_or(&message)))
    })
}

fn as_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("as JSON: {e}")))
}

/// The settings of a run: a preset's, a file's over them, and those that were given over both.
fn resolved(given: &Overlay, file: Option<&Path>) -> Result<(TrainConfig, Device)> {
    let mut config = TrainConfig::resolve(file, given)?;
    let device = by_name(Some(&config.device))?;
    if device.capabilities().simulated {
        config = TrainConfig::resolve_on(file, given, true)?;
    }
    if config.data.is_empty() {
        return Err(Error::format("a run without data: say files, folders or patterns by `data`"));
    }
    Ok((config, device))
}

/// Tells Python of a run. `tell` is called with the event's name and its values as JSON; what it returns says whether the run is to end.
struct Teller {
    tell: Option<Py<PyAny>>,
    /// Whether the run is to end, and with which exception.
    stop: bool,
    exception: Option<PyErr>,
}

impl Teller {
    fn call(&mut self, name: &str, values: &Value) {
        let Some(tell) = &self.tell else { return };
        let asked = Python::attach(|py| tell.call1(py, (name, values.to_string()))?.is_truthy(py));
        match asked {
            Ok(stop) => self.stop |= stop,
            Err(e) => self.fail(e),
        }
    }
    fn fail(&mut self, exception: PyErr) {
        self.stop = true;
        self.exception.get_or_insert(exception);
    }
    fn look_for_signals(&mut self) -> bool {
        if !self.stop
            && let Err(e) = Python::attach(|py| py.check_signals())
        {
            self.fail(e);
        }
        self.stop
    }
}

impl Observer for Teller {
    fn started(&mut self, info: &RunInfo) {
        let values = json!({
            "parameters": info.parameters, "vocab": info.vocab, "known": info.known, "train_tokens": info.tokens[0],
            "val_tokens": info.tokens[1], "device": info.device, "from_step": info.from_step, "steps": info.steps, "folder": info.folder,
        });
        self.call("started", &values);
    }
    fn step(&mut self, metrics: &StepMetrics) {
        self.call("step", &json!(metrics));
    }
    fn evaluated(&mut self, step: u64, score: &Score, best: bool) {
        let values = json!({
            "step": step, "loss": score.loss(), "perplexity": score.perplexity(), "bits_per_byte": score.bits_per_byte(), "best": best,
        });
        self.call("evaluated", &values);
    }
    fn sample(&mut self, step: u64, text: &str) {
        self.call("sample", &json!({ "step": step, "text": text }));
    }
    fn saved(&mut self, step: u64, path: &Path) {
        self.call("saved", &json!({ "step": step, "path": path }));
    }
    fn memory_explained(&mut self, text: &str) {
        self.call("memory", &json!({ "text": text }));
    }
    fn should_stop(&mut self) -> bool {
        self.look_for_signals()
    }
    fn should_stop_within_step(&mut self) -> bool {
        self.look_for_signals()
    }
}

impl PyTraining {
    /// Does something with the trainer, unless that is at work.
    fn with<T>(&self, work: impl FnOnce(&mut Trainer) -> Result<T>) -> Result<T> {
        let mut place = match self.trainer.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::format("the trainer is at work; its events say how far it is"));
            }
        };
        work(place.as_mut().ok_or_else(|| Error::format("the trainer is closed"))?)
    }
}

#[pymethods]
impl PyTraining {
    /// A new run in the folder `out`, or in `runs/<preset>-<n>`; with `resume` it goes on with the run in `out`.
    #[new]
    #[pyo3(signature = (settings, file=None, out=None, resume=false))]
    fn new(
        py: Python<'_>,
        settings: &str,
        file: Option<PathBuf>,
        out: Option<PathBuf>,
        resume: bool,
    ) -> PyResult<Self> {
        let given = overlay(settings).map_err(|e| raised(py, &e))?;
        let trainer = run(py, || {
            let mut exception = None;
            let mut watch = |_: &Progress| match Python::attach(|py| py.check_signals()) {
                Ok(()) => true,
                Err(e) => {
                    exception = Some(e);
                    false
                }
            };
            let made = match (&out, resume) {
                (Some(out), true) => {
                    let kept = out.join("config.toml");
                    if !kept.exists() {
                        return Err(Error::format(format!(
                            "{} is no run folder: it has no config.toml",
                            out.display()
                        )));
                    }
                    let (config, device) = resolved(&given, Some(&kept))?;
                    Trainer::resume_watched(&device, config, out, &mut watch)
                }
                (None, true) => Err(Error::format("a run to go on with needs its folder")),
                (out, false) => {
                    let (config, device) = resolved(&given, file.as_deref())?;
                    let claim = match out {
                        Some(out) => RunFolder::claim(out)?,
                        None => RunFolder::claim_fresh(Path::new("runs"), &config.preset)?,
                    };
                    Trainer::create_in(&device, config, claim, &mut watch)
                }
            };
            match exception {
                Some(e) => Err(Python::attach(|py| keep_exception(py, e))),
                None => made,
            }
        })?;
        let folder = trainer.folder().to_owned();
        Ok(Self { trainer: Mutex::new(Some(trainer)), folder })
    }
    /// Trains until all steps are done, or `tell` asks for the end: `finished` or `stopped`. Ctrl-C ends it behind the step it is at, with a checkpoint.
    #[pyo3(signature = (tell=None, detect_anomaly=false))]
    fn run(&self, py: Python<'_>, tell: Option<Py<PyAny>>, detect_anomaly: bool) -> PyResult<&'static str> {
        let mut teller = Teller { tell, stop: false, exception: None };
        let outcome = run(py, || {
            self.with(|trainer| {
                if detect_anomaly {
                    trainer.detect_anomaly(true);
                }
                trainer.run(&mut teller)
            })
        });
        if let Some(exception) = teller.exception {
            return Err(exception);
        }
        Ok(match outcome? {
            Outcome::Finished => "finished",
            Outcome::Stopped => "stopped",
        })
    }
    /// Frees the model, and the run folder for others.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || {
            let place = self.trainer.try_lock();
            let mut place =
                place.map_err(|_| Error::format("the trainer is at work and cannot be closed"))?;
            drop(place.take());
            Ok(())
        })
    }
    /// Its run folder.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }
    /// Its settings as JSON.
    fn config(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || self.with(|trainer| as_json(trainer.config())))
    }
    /// Steps done, whether that is all, best validation loss with its step, tokens a second.
    fn state(&self, py: Python<'_>) -> PyResult<State> {
        run(py, || self.with(|t| Ok((t.step(), t.is_finished(), t.best(), t.tokens_per_s()))))
    }
    /// Metrics of the last step as JSON, `null` before the first.
    fn last_metrics(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || self.with(|trainer| as_json(&trainer.last_metrics())))
    }
    /// The model's parameters by name; they share memory with the run's.
    fn parameters(&self, py: Python<'_>) -> PyResult<Vec<(String, PyTensor)>> {
        let list = run(py, || self.with(|trainer| Ok(trainer.model().params().list().to_vec())))?;
        Ok(list.into_iter().map(|t| (t.name().unwrap_or_default().to_owned(), t.detach().into())).collect())
    }
    /// The model's weights under the names of its family's files.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let tensors = run(py, || {
            self.with(|trainer| trainer.model().state().iter().map(Planned::take).collect::<Result<Vec<_>>>())
        })?;
        Ok(tensors.iter().map(|t| stored(py, &t.view())).collect())
    }
}

/// Names of the presets.
#[pyfunction]
fn presets() -> Vec<&'static str> {
    netcl::train::config::PRESETS.to_vec()
}

/// What a run would be set to: all settings as JSON, from those that are given.
#[pyfunction]
#[pyo3(signature = (settings, file=None))]
fn train_config(py: Python<'_>, settings: &str, file: Option<PathBuf>) -> PyResult<String> {
    run(py, || as_json(&TrainConfig::resolve(file.as_deref(), &overlay(settings)?)?))
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyTraining>()?;
    m.add_function(wrap_pyfunction!(presets, m)?)?;
    m.add_function(wrap_pyfunction!(train_config, m)?)
}
