//! Steps that are captured once and replayed.

use crate::device::PyDevice;
use crate::edge::{keep_exception, run};
use netcl::tensor::graph::Graph;
use pyo3::prelude::*;

/// What a step enqueued, ready to be enqueued again.
#[pyclass(name = "Captured", module = "netcl", frozen)]
pub struct PyGraph(Graph);

#[pymethods]
impl PyGraph {
    /// Calls `step`, noting what it enqueues on the device instead of running it; the graph, and what `step` returned.
    #[staticmethod]
    fn capture(py: Python<'_>, device: &PyDevice, step: Py<PyAny>) -> PyResult<(Self, Py<PyAny>)> {
        let device = device.0.clone();
        let called = move || Python::attach(|py| step.call0(py).map_err(|e| keep_exception(py, e)));
        run(py, move || Graph::capture(&device, called)).map(|(graph, made)| (Self(graph), made))
    }
    /// Enqueues it.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.replay())
    }
    /// Commands that a replay enqueues: kernels, and everything.
    #[getter]
    fn commands(&self) -> (usize, usize) {
        self.0.commands()
    }
    /// Bytes of memory that it keeps.
    #[getter]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }
}
