//! Training runs. The same settings give the same bits as `netcl train`.
//!
//! A run is the `Trainer` of netcl-train with an observer that calls Python. Parameters of `nn.Decoder` are the leaves of the decoder
//! itself.

use crate::edge::{keep_exception, raised, run};
use crate::files::{Stored, stored};
use crate::ranks::PyGroup;
use crate::tensor::PyTensor;
use crate::trainer_ranks::{self, Beginning};
use netcl::model::checkpoint::TensorToWrite;
use netcl::prelude::{Error, Result};
use netcl::train::config::{Overlay, TrainConfig};
use netcl::train::data::DataProgress;
use netcl::train::evaluate::Score;
use netcl::train::run::StepMetrics;
use netcl::train::{Observer, Outcome, RunInfo, Trainer};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};

/// Completed steps, whether the run is finished, best validation loss with its step, tokens per second.
type State = (u64, bool, Option<(f64, u64)>, f64);

/// A training run.
#[pyclass(name = "Training", module = "netcl", frozen)]
pub struct PyTraining {
    /// The ranks of this process, the reporting one first; none after closing.
    ranks: Mutex<Vec<Trainer>>,
    folder: PathBuf,
}

/// Parses settings by name, given as JSON.
fn overlay(settings: &str) -> Result<Overlay> {
    serde_json::from_str(settings).map_err(|e| {
        let message = e.to_string();
        Error::format(format!("settings: {}", message.split(" at line").next().unwrap_or(&message)))
    })
}

fn as_json<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("cannot write JSON: {e}")))
}

/// Reports the events of a run to Python. `tell` is called with the event's name and its values as JSON. If it returns true, the run ends.
struct EventReporter {
    tell: Option<Py<PyAny>>,
    /// Whether the run must end. `exception` is the reason, if a callback or a signal raised one.
    stop: bool,
    exception: Option<PyErr>,
}

impl EventReporter {
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

impl Observer for EventReporter {
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
    /// Calls `work` with the trainer of the first rank, unless the trainer is busy.
    fn with<T>(&self, work: impl FnOnce(&mut Trainer) -> Result<T>) -> Result<T> {
        self.with_all(|ranks| work(ranks.first_mut().ok_or_else(|| Error::format("the trainer is closed"))?))
    }
    /// Calls `work` with the trainers of all ranks.
    fn with_all<T>(&self, work: impl FnOnce(&mut Vec<Trainer>) -> Result<T>) -> Result<T> {
        let mut place = match self.ranks.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(place)) => place.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::format("the trainer is busy; its events report the progress"));
            }
        };
        if place.is_empty() {
            return Err(Error::format("the trainer is closed"));
        }
        work(&mut place)
    }
}

#[pymethods]
impl PyTraining {
    /// Starts a run in the folder `out`, or in `runs/<preset>-<n>`. With `resume`, continues the run in `out`. With several devices, each is a rank in
    /// a thread; the shares divide the batch. With `group`, this process is one of its ranks.
    #[new]
    #[pyo3(signature = (settings, file=None, out=None, resume=false, devices=(Vec::new(), None), group=None))]
    fn new(
        py: Python<'_>,
        settings: &str,
        file: Option<PathBuf>,
        out: Option<PathBuf>,
        resume: bool,
        devices: (Vec<String>, Option<String>),
        group: Option<&PyGroup>,
    ) -> PyResult<Self> {
        let given = overlay(settings).map_err(|e| raised(py, &e))?;
        let (devices, shares) = devices;
        let group = group.map(|group| group.get(py)).transpose()?;
        let ranks = run(py, || {
            let mut exception = None;
            let mut watch = |_: &DataProgress| match Python::attach(|py| py.check_signals()) {
                Ok(()) => true,
                Err(e) => {
                    exception = Some(e);
                    false
                }
            };
            let begun = Beginning { given: &given, file: file.as_deref(), out: out.as_deref(), resume };
            let made = match trainer_ranks::groups(&devices, group) {
                groups if groups.is_empty() => begun.alone(&mut watch).map(|trainer| vec![trainer]),
                groups => begun.together((groups, &devices), shares.as_deref(), &mut watch),
            };
            match exception {
                Some(e) => Err(Python::attach(|py| keep_exception(py, e))),
                None => made,
            }
        })?;
        let folder = ranks.first().map(|trainer| trainer.folder().to_owned()).unwrap_or_default();
        Ok(Self { ranks: Mutex::new(ranks), folder })
    }
    /// Trains until all steps are complete (`finished`) or `tell` requests the end (`stopped`). Ctrl-C ends the run after the current step,
    /// with a checkpoint.
    #[pyo3(signature = (tell=None, detect_anomaly=false))]
    fn run(&self, py: Python<'_>, tell: Option<Py<PyAny>>, detect_anomaly: bool) -> PyResult<&'static str> {
        let mut reporter = EventReporter { tell, stop: false, exception: None };
        let outcome = run(py, || {
            self.with_all(|ranks| {
                if detect_anomaly {
                    ranks.iter_mut().for_each(|trainer| trainer.detect_anomaly(true));
                }
                match ranks.as_mut_slice() {
                    [trainer] => trainer.run(&mut reporter),
                    _ => trainer_ranks::run(ranks, &mut reporter),
                }
            })
        });
        if let Some(exception) = reporter.exception {
            return Err(exception);
        }
        Ok(match outcome? {
            Outcome::Finished => "finished",
            Outcome::Stopped => "stopped",
        })
    }
    /// Frees the model and releases the run folder.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || {
            let place = self.ranks.try_lock();
            let mut place = place.map_err(|_| Error::format("the trainer is busy and cannot be closed"))?;
            place.clear();
            Ok(())
        })
    }
    /// The run folder.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }
    /// Returns the settings as JSON.
    fn config(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || self.with(|trainer| as_json(trainer.config())))
    }
    /// Completed steps, whether the run is finished, best validation loss with its step, tokens per second.
    fn state(&self, py: Python<'_>) -> PyResult<State> {
        run(py, || self.with(|t| Ok((t.step(), t.is_finished(), t.best(), t.tokens_per_s()))))
    }
    /// Returns the metrics of the last step as JSON, or `null` before the first step.
    fn last_metrics(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || self.with(|trainer| as_json(&trainer.last_metrics())))
    }
    /// Returns the model's parameters by name. They share memory with the run.
    fn parameters(&self, py: Python<'_>) -> PyResult<Vec<(String, PyTensor)>> {
        let list = run(py, || {
            self.with_all(|ranks| {
                let stages = trainer_ranks::stages(ranks)?.iter();
                let all = stages.flat_map(|trainer| trainer.model().params().list().to_vec());
                Ok(trainer_ranks::once(all, |t| t.name().unwrap_or_default().to_owned()))
            })
        })?;
        Ok(list.into_iter().map(|t| (t.name().unwrap_or_default().to_owned(), t.detach().into())).collect())
    }
    /// Returns the model's weights under the names that its family's files use.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let tensors = run(py, || {
            self.with_all(|ranks| {
                let mut all = Vec::new();
                for trainer in trainer_ranks::stages(ranks)? {
                    for tensor in trainer.model().state() {
                        all.push(TensorToWrite::take(&tensor)?);
                    }
                }
                Ok(trainer_ranks::once(all, |t| t.view().name.to_string()))
            })
        })?;
        Ok(tensors.iter().map(|t| stored(py, &t.view())).collect())
    }
}

/// Returns the names of the presets.
#[pyfunction]
fn presets() -> Vec<&'static str> {
    netcl::train::config::PRESETS.to_vec()
}

/// Returns all settings of a run as JSON, resolved from the given ones.
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
