//! Decoders of every family as models to be trained or asked from Python.

use crate::convert::DTypeLike;
use crate::device::DeviceLike;
use crate::edge::{raised, run};
use crate::files::{Stored, from_stored, stored};
use crate::tensor::PyTensor;
use netcl::model::decoder::{DecoderConfig, FAMILIES, FileFacts, Freeze, ModelFolder, Sizes};
use netcl::model::layers::Mode;
use netcl::model::layers::Recompute;
use netcl::model::model::Model as _;
use netcl::prelude::{DType, Decoder, Error, Result};
use pyo3::prelude::*;
use serde::Deserialize;
use std::path::PathBuf;

/// A decoder. Its parameters are tensors whose gradients `loss` and `forward` reach.
#[pyclass(name = "DecoderModel", module = "netcl", frozen)]
pub struct PyDecoder(Decoder);

/// Sizes by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    layers: usize,
    heads: usize,
    kv_heads: Option<usize>,
    head_size: Option<usize>,
    width: usize,
    mlp: Option<usize>,
    context: usize,
    vocab: usize,
    rope_theta: Option<f64>,
    tied: Option<bool>,
    bias: Option<bool>,
}

fn config(family: &str, sizes: &str) -> Result<DecoderConfig> {
    let given: Given = serde_json::from_str(sizes).map_err(|e| {
        let message = e.to_string();
        Error::format(format!("decoder: {}", message.split(" at line").next().unwrap_or(&message)))
    })?;
    let Given { layers, heads, kv_heads, head_size, width, mlp, context, vocab, rope_theta, tied, bias } =
        given;
    let sizes = Sizes { layers, heads, kv_heads, head_size, width, mlp, context, vocab, rope_theta, tied };
    let config = DecoderConfig::of(family, &sizes)?;
    match bias {
        None => Ok(config),
        Some(bias) if family == "gpt2" => Ok(config.with_biases(bias)),
        Some(_) => Err(Error::format(format!("decoder: biases of {family} are fixed; `bias` is for gpt2"))),
    }
}

/// Dropout, its stream, and what backward computes again.
fn mode(py: Python<'_>, dropout: f32, seed: u64, pass: u64, recompute: &str) -> PyResult<Mode<'static>> {
    let recompute: Recompute = recompute.parse().map_err(|e| raised(py, &e))?;
    Ok(Mode { dropout, seed, pass, counter: None, recompute, ..Mode::eval() })
}

#[pymethods]
impl PyDecoder {
    /// A new one with sizes by name as JSON.
    #[new]
    #[pyo3(signature = (family, sizes, dtype=None, device=None, seed=0, freeze=Vec::new()))]
    fn new(
        py: Python<'_>,
        family: &str,
        sizes: &str,
        dtype: Option<DTypeLike>,
        device: Option<DeviceLike>,
        seed: u64,
        freeze: Vec<String>,
    ) -> PyResult<Self> {
        let dtype = dtype.map_or(DType::F32, |dtype| dtype.0);
        run(py, move || {
            let config = config(family, sizes)?;
            let device = DeviceLike::open(device)?;
            Decoder::partly_frozen(&device, config, dtype, Some(seed), &Freeze::new(&freeze)?)
        })
        .map(Self)
    }
    /// From a folder in the Hugging Face layout, or a run folder.
    #[staticmethod]
    #[pyo3(signature = (path, dtype=None, device=None, freeze=Vec::new()))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        dtype: Option<DTypeLike>,
        device: Option<DeviceLike>,
        freeze: Vec<String>,
    ) -> PyResult<Self> {
        run(py, move || {
            let folder = ModelFolder::open(&path)?;
            let device = DeviceLike::open(device)?;
            folder.decoder(&device, dtype.map(|dtype| dtype.0), &Freeze::new(&freeze)?)
        })
        .map(Self)
    }
    /// The parameters by name, in order.
    fn parameters(&self) -> Vec<(String, PyTensor)> {
        let list = self.0.params().list().iter();
        list.map(|t| (t.name().unwrap_or_default().to_owned(), t.clone().into())).collect()
    }
    /// ids (B, T) → logits (B, T, V).
    #[pyo3(signature = (ids, dropout, seed, pass, recompute, /))]
    fn forward(
        &self,
        py: Python<'_>,
        ids: PyRef<'_, PyTensor>,
        dropout: f32,
        seed: u64,
        pass: u64,
        recompute: &str,
    ) -> PyResult<PyTensor> {
        let (ids, mode) = (ids.inner.clone(), mode(py, dropout, seed, pass, recompute)?);
        run(py, || self.0.forward(&ids, mode)).map(PyTensor::from)
    }
    /// ids (B, T) → hidden states behind the last norm (B, T, C).
    #[pyo3(signature = (ids, dropout, seed, pass, recompute, /))]
    fn features(
        &self,
        py: Python<'_>,
        ids: PyRef<'_, PyTensor>,
        dropout: f32,
        seed: u64,
        pass: u64,
        recompute: &str,
    ) -> PyResult<PyTensor> {
        let (ids, mode) = (ids.inner.clone(), mode(py, dropout, seed, pass, recompute)?);
        run(py, || self.0.features(&ids, mode)).map(PyTensor::from)
    }
    /// Mean cross entropy of targets (B, T) behind ids (B, T).
    #[pyo3(signature = (ids, targets, dropout, seed, pass, recompute, /))]
    #[allow(clippy::too_many_arguments)] // as Python calls it
    fn loss(
        &self,
        py: Python<'_>,
        ids: PyRef<'_, PyTensor>,
        targets: PyRef<'_, PyTensor>,
        dropout: f32,
        seed: u64,
        pass: u64,
        recompute: &str,
    ) -> PyResult<PyTensor> {
        let (ids, targets) = (ids.inner.clone(), targets.inner.clone());
        let mode = mode(py, dropout, seed, pass, recompute)?;
        run(py, || self.0.loss(&ids, &targets, mode)).map(PyTensor::from)
    }
    /// The weights under the names of the family's files.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let tensors = run(py, || self.0.tensors())?;
        Ok(tensors.iter().map(|t| stored(py, &t.view())).collect())
    }
    /// Takes weights over by those names.
    fn load_tensors(&self, py: Python<'_>, tensors: Vec<Stored<'_>>) -> PyResult<()> {
        let tensors = from_stored(py, tensors)?;
        run(py, || self.0.load_tensors(&tensors))
    }
    /// The content of its `config.json`.
    fn config_json(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(self.0.config_json(&FileFacts::default())?.to_string()))
    }
    /// Floating-point operations of a training step on `tokens` tokens in texts of `length` tokens.
    fn flops(&self, tokens: usize, length: usize) -> f64 {
        self.0.flops(tokens, length)
    }
    /// Its family.
    #[getter]
    fn family(&self) -> &'static str {
        self.0.config().family.model_type
    }
    /// Tokens that it can look at, of the vocabulary, and the width.
    fn sizes(&self) -> (usize, usize, usize) {
        let config = self.0.config();
        (config.context, config.vocab, config.width)
    }
}

/// Names of the families.
#[pyfunction]
fn families() -> Vec<&'static str> {
    FAMILIES.iter().map(|row| row.family.model_type).collect()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDecoder>()?;
    m.add_function(wrap_pyfunction!(families, m)?)
}
