//! Graphs of operations: the computation of a Python function, which can be displayed, saved and run elsewhere.

use crate::convert::dtype_name;
use crate::device::{DeviceLike, PyDevice};
use crate::edge::{keep_exception, run, wait};
use crate::tensor::PyTensor;
use netcl::prelude::{Error, Result, Tensor};
use netcl::tensor::opgraph::spec::{Size, ValueType};
use netcl::tensor::opgraph::{Memory, OpGraph, read_spec};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::path::PathBuf;
use std::sync::Arc;

/// A graph of operations with its weights, on a device.
#[pyclass(name = "Operations", module = "netcl", frozen)]
pub struct PyOpGraph(Arc<OpGraph>);

/// Name, sizes and dtype of an input or a result. A size is a number, or a word if it grows with the number of rows.
type Described = (String, Vec<SizeOf>, &'static str);

/// A size, as Python receives it.
#[derive(IntoPyObject)]
enum SizeOf {
    Fixed(i64),
    Rows(String),
}

fn described(name: String, form: &ValueType) -> Described {
    let size = |size: &Size| match size {
        Size::Fixed(n) => SizeOf::Fixed(*n),
        Size::Rows(_) => SizeOf::Rows(size.to_string()),
    };
    (name, form.sizes.iter().map(size).collect(), dtype_name(form.dtype))
}

/// Calls a Python function with a list of tensors. It returns one tensor.
fn called(function: &Py<PyAny>, xs: &[Tensor]) -> Result<Vec<Tensor>> {
    let call = |py: Python<'_>| -> PyResult<Vec<Tensor>> {
        let xs: Vec<PyTensor> = xs.iter().cloned().map(PyTensor::from).collect();
        let made: Vec<PyRef<'_, PyTensor>> = function.bind(py).call1((PyList::new(py, xs)?,))?.extract()?;
        Ok(made.iter().map(|y| y.inner.clone()).collect())
    };
    Python::attach(|py| call(py).map_err(|e| keep_exception(py, e)))
}

fn bucketed(graph: OpGraph, buckets: Option<Vec<usize>>) -> Result<PyOpGraph> {
    let graph = match buckets {
        Some(rows) => graph.with_buckets(&rows)?,
        None => graph,
    };
    Ok(PyOpGraph(Arc::new(graph)))
}

#[pymethods]
impl PyOpGraph {
    /// Records what `function` computes from named tensors. It receives them as a list and returns one tensor.
    #[staticmethod]
    fn record(
        py: Python<'_>,
        inputs: Vec<(String, PyRef<'_, PyTensor>)>,
        function: Py<PyAny>,
        any_rows: bool,
        buckets: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let inputs: Vec<(String, Tensor)> = inputs.into_iter().map(|(n, x)| (n, x.inner.clone())).collect();
        run(py, move || {
            let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, x)| (n.as_str(), x)).collect();
            let f = |xs: &[Tensor]| called(&function, xs);
            let graph = if any_rows { OpGraph::for_any_rows(&inputs, f)? } else { OpGraph::of(&inputs, f)? };
            bucketed(graph, buckets)
        })
    }
    /// Records named layers in sequence, for any number of rows. Each layer receives a list of one tensor and returns one tensor.
    #[staticmethod]
    fn record_layers(
        py: Python<'_>,
        x: PyRef<'_, PyTensor>,
        layers: Vec<(String, Py<PyAny>)>,
        buckets: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let x = x.inner.clone();
        run(py, move || {
            let one = |layer: &Py<PyAny>, x: &Tensor| {
                let made = called(layer, std::slice::from_ref(x))?;
                made.into_iter().next().ok_or_else(|| Error::format("a layer returned no result"))
            };
            let calls: Vec<_> = layers.iter().map(|(_, layer)| move |x: &Tensor| one(layer, x)).collect();
            type Call<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
            let named: Vec<(&str, Call<'_>)> =
                layers.iter().zip(&calls).map(|((name, _), call)| (name.as_str(), call as _)).collect();
            bucketed(OpGraph::from_layers(&x, &named)?, buckets)
        })
    }
    /// Loads a graph from a file for a device.
    #[staticmethod]
    #[pyo3(signature = (path, device=None, buckets=None))]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        device: Option<DeviceLike>,
        buckets: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        run(py, move || bucketed(OpGraph::load(&path, &DeviceLike::open(device)?)?, buckets))
    }
    /// Describes the graph in a file as text. Does not need a device.
    #[staticmethod]
    fn describe(py: Python<'_>, path: PathBuf) -> PyResult<String> {
        run(py, move || read_spec(&path).map(|spec| spec.to_string()))
    }
    /// Writes the graph to one file atomically.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let graph = Arc::clone(&self.0);
        wait(py, move || graph.save(&path))
    }
    /// Computes the results for inputs in their order.
    fn run(&self, py: Python<'_>, inputs: Vec<PyRef<'_, PyTensor>>) -> PyResult<Vec<PyTensor>> {
        let inputs: Vec<Tensor> = inputs.iter().map(|x| x.inner.clone()).collect();
        let graph = Arc::clone(&self.0);
        let made = run(py, move || graph.run(&inputs.iter().collect::<Vec<_>>()))?;
        Ok(made.into_iter().map(PyTensor::from).collect())
    }
    /// Device of the graph.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.0.device().clone())
    }
    /// Whether the graph accepts any number of rows.
    #[getter]
    fn any_rows(&self) -> bool {
        self.0.spec().any_rows
    }
    /// Inputs: name, sizes, dtype.
    #[getter]
    fn inputs(&self) -> Vec<Described> {
        self.0.spec().inputs.iter().map(|input| described(input.name.clone(), &input.form)).collect()
    }
    /// Results: name in the graph's text, sizes, dtype.
    #[getter]
    fn outputs(&self) -> Vec<Described> {
        let (spec, forms) = (self.0.spec(), self.0.spec().forms());
        let known = spec.outputs.iter().filter_map(|id| Some((*id, forms.get(*id)?)));
        known.map(|(id, form)| described(format!("%{id}"), form)).collect()
    }
    /// Weights: name, shape, dtype.
    #[getter]
    fn weights(&self) -> Vec<(String, Vec<usize>, &'static str)> {
        let weights = self.0.spec().weights.iter();
        weights.map(|w| (w.name.clone(), w.dims.clone(), dtype_name(w.dtype))).collect()
    }
    /// Names of the operations in order.
    #[getter]
    fn operations(&self) -> Vec<String> {
        self.0.spec().nodes.iter().map(|node| node.op.clone()).collect()
    }
    /// Formats the graph as text, one line per operation.
    fn text(&self) -> String {
        self.0.to_string()
    }
    /// Formats the graph for Graphviz.
    fn dot(&self) -> String {
        self.0.spec().to_dot()
    }
    /// Draws the graph as an SVG document.
    fn svg(&self) -> String {
        self.0.spec().to_svg()
    }
    /// Returns the description as JSON.
    fn json(&self) -> String {
        self.0.spec().to_json().to_string()
    }
    /// Returns the memory plan for `rows` rows: as text, and the bytes planned, at the peak, of all buffers without sharing, of weights,
    /// and of inputs.
    fn memory(&self, py: Python<'_>, rows: usize) -> PyResult<(String, [usize; 5])> {
        let graph = Arc::clone(&self.0);
        run(py, move || {
            let memory = graph.memory(rows)?;
            let Memory { plan, weights, inputs, .. } = &memory;
            Ok((memory.to_string(), [plan.bytes, plan.peak.0, memory.unshared(), *weights, *inputs]))
        })
    }
}
