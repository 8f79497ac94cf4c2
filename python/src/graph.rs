//! Steps that are captured once and replayed.

use crate::device::PyDevice;
use crate::edge::{keep_exception, run};
use netcl::tensor::graph::Graph;
use pyo3::prelude::*;

/// The recorded commands of a step, ready to be enqueued again.
#[pyclass(name = "Captured", module = "netcl", frozen)]
pub struct PyGraph(Graph);

#[pymethods]
impl PyGraph {
    /// Calls `step` and records its commands on the device instead of running them. Returns the graph and the result of `step`.
    #[staticmethod]
    fn capture(py: Python<'_>, device: &PyDevice, step: Py<PyAny>) -> PyResult<(Self, Py<PyAny>)> {
        let device = device.0.clone();
        let called = move || Python::attach(|py| step.call0(py).map_err(|e| keep_exception(py, e)));
        run(py, move || Graph::capture(&device, called)).map(|(graph, made)| (Self(graph), made))
    }
    /// Enqueues the recorded commands.
    fn replay(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.replay())
    }
    /// Number of commands of a replay: kernels, and all commands.
    #[getter]
    fn commands(&self) -> (usize, usize) {
        self.0.commands()
    }
    /// Memory that the graph holds, in bytes.
    #[getter]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }
}
