//! Classes of results. `Tensor._result` is `None`. A derived class that defines it as `_result(cls, made, given)` gets the results of its
//! instances: it receives the plain result and the operation's tensors, and returns the object that Python gets.

use crate::tensor::PyTensor;
use netcl::prelude::Tensor;
use pyo3::PyTypeInfo;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// The tensors of an operation, from the first instance of a class with `_result` on.
#[derive(Default)]
pub struct Given<'py>(Vec<Bound<'py, PyAny>>);

impl<'py> Given<'py> {
    /// Adds an object. Objects that are not tensors, and plain tensors before the first instance of such a class, are ignored.
    pub fn see(&mut self, object: &Bound<'py, PyAny>) -> PyResult<()> {
        let class = object.get_type();
        if self.0.is_empty() {
            let plain = class.is(PyTensor::type_object(object.py())) || !object.is_instance_of::<PyTensor>();
            if plain || class.getattr(intern!(object.py(), "_result"))?.is_none() {
                return Ok(());
            }
        }
        if object.is_instance_of::<PyTensor>() {
            self.0.push(object.clone());
        }
        Ok(())
    }

    /// Collects the operands of an operation.
    pub fn of(objects: &[&Bound<'py, PyAny>]) -> PyResult<Self> {
        let mut given = Self::default();
        objects.iter().try_for_each(|object| given.see(object))?;
        Ok(given)
    }

    /// Converts a result to the object that Python gets.
    pub fn result(&self, py: Python<'py>, made: Tensor) -> PyResult<Bound<'py, PyAny>> {
        self.convert(py, PyTensor::from(made))
    }

    /// Converts a tensor that Python gets without owning it, such as a gradient. It does not belong to a scope.
    pub fn view(&self, py: Python<'py>, made: Tensor) -> PyResult<Bound<'py, PyAny>> {
        self.convert(py, PyTensor { inner: made })
    }

    fn convert(&self, py: Python<'py>, made: PyTensor) -> PyResult<Bound<'py, PyAny>> {
        let plain = Bound::new(py, made)?.into_any();
        match self.0.first() {
            None => Ok(plain),
            Some(first) => {
                let given = PyTuple::new(py, &self.0)?;
                first.get_type().call_method1(intern!(py, "_result"), (plain, given))
            }
        }
    }
}
