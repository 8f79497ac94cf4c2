//! Decoders of every family, for training and inference from Python.

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

/// A decoder. Its parameters are tensors that receive gradients from `loss` and `forward`.
#[pyclass(name = "DecoderModel", module = "netcl", frozen)]
pub struct PyDecoder(Decoder);

/// Sizes of a decoder by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenConfig {
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
    let given: GivenConfig = serde_json::from_str(sizes).map_err(|e| {
        let message = e.to_string();
        Error::format(format!("decoder: {}", message.split(" at line").next().unwrap_or(&message)))
    })?;
    let GivenConfig {
        layers,
        heads,
        kv_heads,
        head_size,
        width,
        mlp,
        context,
        vocab,
        rope_theta,
        tied,
        bias,
    } = given;
    let sizes = Sizes { layers, heads, kv_heads, head_size, width, mlp, context, vocab, rope_theta, tied };
    let config = DecoderConfig::of(family, &sizes)?;
    match bias {
        None => Ok(config),
        Some(bias) if family == "gpt2" => Ok(config.with_biases(bias)),
        Some(_) => Err(Error::format(format!(
            "decoder: `bias` is only supported for gpt2; the biases of {family} are fixed"
        ))),
    }
}

/// Builds the mode: dropout, its random stream, and what the backward recomputes.
fn mode(py: Python<'_>, dropout: f32, seed: u64, pass: u64, recompute: &str) -> PyResult<Mode<'static>> {
    let recompute: Recompute = recompute.parse().map_err(|e| raised(py, &e))?;
    Ok(Mode { dropout, seed, pass, counter: None, recompute, ..Mode::eval() })
}

#[pymethods]
impl PyDecoder {
    /// Creates a decoder with sizes by name, given as JSON.
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
    /// Opens a folder in the Hugging Face layout, or a run folder.
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
    /// Computes logits (B, T, V) from ids (B, T).
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
    /// Computes hidden states (B, T, C) after the last norm from ids (B, T).
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
    /// Computes the mean cross entropy of targets (B, T) for ids (B, T).
    #[pyo3(signature = (ids, targets, dropout, seed, pass, recompute, /))]
    #[allow(clippy::too_many_arguments)] // the signature in Python
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
    /// Returns the weights under the names that the family's files use.
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Vec<Stored<'py>>> {
        let tensors = run(py, || self.0.tensors())?;
        Ok(tensors.iter().map(|t| stored(py, &t.view())).collect())
    }
    /// Replaces the weights, given under those names.
    fn load_tensors(&self, py: Python<'_>, tensors: Vec<Stored<'_>>) -> PyResult<()> {
        let tensors = from_stored(py, tensors)?;
        run(py, || self.0.load_tensors(&tensors))
    }
    /// Returns the contents of its `config.json`.
    fn config_json(&self, py: Python<'_>) -> PyResult<String> {
        run(py, || Ok(self.0.config_json(&FileFacts::default())?.to_string()))
    }
    /// Returns the number of floating-point operations of a training step on `tokens` tokens in sequences of `length` tokens.
    fn flops(&self, tokens: usize, length: usize) -> f64 {
        self.0.flops(tokens, length)
    }
    /// The decoder's family.
    #[getter]
    fn family(&self) -> &'static str {
        self.0.config().family.model_type
    }
    /// Context length in tokens, vocabulary size, and width.
    fn sizes(&self) -> (usize, usize, usize) {
        let config = self.0.config();
        (config.context, config.vocab, config.width)
    }
}

/// Returns the names of the families.
#[pyfunction]
fn families() -> Vec<&'static str> {
    FAMILIES.iter().map(|row| row.family.model_type).collect()
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDecoder>()?;
    m.add_function(wrap_pyfunction!(families, m)?)
}
