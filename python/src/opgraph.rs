//! Graphs of operations: what a function of Python computes, shown, saved and run elsewhere.

use crate::convert::dtype_name;
use crate::device::{DeviceLike, PyDevice};
use crate::edge::{keep_exception, run, wait};
use crate::tensor::PyTensor;
use netcl::prelude::{Error, Result, Tensor};
use netcl::tensor::opgraph::spec::{Form, Size};
use netcl::tensor::opgraph::{Memory, OpGraph, read_spec};
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::path::PathBuf;
use std::sync::Arc;

/// A graph of operations with its weights, on a device.
#[pyclass(name = "Operations", module = "netcl", frozen)]
pub struct PyOpGraph(Arc<OpGraph>);

/// Name, sizes and dtype of an input or a result; a size is a number, or a word for one that grows with the rows.
type Described = (String, Vec<SizeOf>, &'static str);

/// A size for Python.
#[derive(IntoPyObject)]
enum SizeOf {
    Fixed(i64),
    Rows(String),
}

fn described(name: String, form: &Form) -> Described {
    let size = |size: &Size| match size {
        Size::Fixed(n) => SizeOf::Fixed(*n),
        Size::Rows(_) => SizeOf::Rows(size.to_string()),
    };
    (name, form.sizes.iter().map(size).collect(), dtype_name(form.dtype))
}

/// Calls a function of Python with a list of tensors, which returns one.
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
    /// Notes what `function` computes of tensors with names: it takes a list of them and returns one.
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
    /// Layers by name, one after the other, for any number of rows. Each takes a list of one tensor and returns one.
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
                made.into_iter().next().ok_or_else(|| Error::format("a layer without a result"))
            };
            let calls: Vec<_> = layers.iter().map(|(_, layer)| move |x: &Tensor| one(layer, x)).collect();
            type Call<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;
            let named: Vec<(&str, Call<'_>)> =
                layers.iter().zip(&calls).map(|((name, _), call)| (name.as_str(), call as _)).collect();
            bucketed(OpGraph::from_layers(&x, &named)?, buckets)
        })
    }
    /// What a file holds, for a device.
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
    /// What the graph in a file is, as text. Needs no device.
    #[staticmethod]
    fn describe(py: Python<'_>, path: PathBuf) -> PyResult<String> {
        run(py, move || read_spec(&path).map(|spec| spec.to_string()))
    }
    /// Writes it into one file, whole or not at all.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let graph = Arc::clone(&self.0);
        wait(py, move || graph.save(&path))
    }
    /// Results for inputs in their order.
    fn run(&self, py: Python<'_>, inputs: Vec<PyRef<'_, PyTensor>>) -> PyResult<Vec<PyTensor>> {
        let inputs: Vec<Tensor> = inputs.iter().map(|x| x.inner.clone()).collect();
        let graph = Arc::clone(&self.0);
        let made = run(py, move || graph.run(&inputs.iter().collect::<Vec<_>>()))?;
        Ok(made.into_iter().map(PyTensor::from).collect())
    }
    /// The device it runs on.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.0.device().clone())
    }
    /// Whether it takes any number of rows.
    #[getter]
    fn any_rows(&self) -> bool {
        self.0.spec().any_rows
    }
    /// Inputs: name, sizes, dtype.
    #[getter]
    fn inputs(&self) -> Vec<Described> {
        self.0.spec().inputs.iter().map(|input| described(input.name.clone(), &input.form)).collect()
    }
    /// Results: the name in the text of the graph, sizes, dtype.
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
    /// A line an operation.
    fn text(&self) -> String {
        self.0.to_string()
    }
    /// For Graphviz.
    fn dot(&self) -> String {
        self.0.spec().to_dot()
    }
    /// An SVG document.
    fn svg(&self) -> String {
        self.0.spec().to_svg()
    }
    /// The description as JSON.
    fn json(&self) -> String {
        self.0.spec().to_json().to_string()
    }
    /// The plan of memory for so many rows: as text, and bytes planned, at the fullest moment, of all buffers together, of weights, of inputs.
    fn memory(&self, py: Python<'_>, rows: usize) -> PyResult<(String, [usize; 5])> {
        let graph = Arc::clone(&self.0);
        run(py, move || {
            let memory = graph.memory(rows)?;
            let Memory { plan, weights, inputs, .. } = &memory;
            Ok((memory.to_string(), [plan.bytes, plan.peak.0, memory.unshared(), *weights, *inputs]))
        })
    }
}
