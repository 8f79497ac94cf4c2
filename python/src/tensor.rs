//! The tensor class: properties, memory, gradient, and conversions to and from the host.
//!
//! `Tensor._result` is `None`. A derived class that defines it as `_result(cls, made, given)` gets the results of its instances: it
//! receives the plain result and the operation's tensors, and returns the object that Python gets.

use crate::convert::{DTypeLike, dtype_name, shape};
use crate::device::{DeviceLike, PyDevice};
use crate::edge::{raised, run, wait};
use crate::observation::refuse_read;
use crate::scope;
use netcl::prelude::{DType, Error, Result, Tensor};
use netcl::tensor::ops::join::cat;
use netcl::tensor::tape::accumulate_in_place;
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyModule, PyTuple};

/// An array on a device, with its position on the tape.
#[pyclass(name = "Tensor", module = "netcl", subclass, weakref)]
pub struct PyTensor {
    pub inner: Tensor,
}

impl From<Tensor> for PyTensor {
    fn from(inner: Tensor) -> Self {
        scope::note(&inner);
        Self { inner }
    }
}

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

/// Copies a tensor by concatenating it with nothing else: the only operation that always copies, for every type.
fn copy(x: &Tensor) -> Result<Tensor> {
    match x.shape().rank() {
        0 => cat(&[&x.reshape([1])?], 0)?.reshape(Vec::new()),
        _ => cat(&[x], 0),
    }
}

#[pymethods]
impl PyTensor {
    /// `Tensor(device, shape, dtype, data=None, requires_grad=False)` creates a tensor on a device: zeros, or a copy of host data.
    /// `Tensor(tensor)` returns a tensor that shares everything with `tensor`. Derived Python classes start with it.
    #[new]
    #[pyo3(signature = (device=None, shape=None, dtype=None, data=None, requires_grad=false))]
    fn new<'py>(
        py: Python<'py>,
        device: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        dtype: Option<Bound<'py, PyAny>>,
        data: Option<Bound<'py, PyAny>>,
        requires_grad: bool,
    ) -> PyResult<Self> {
        if let (Some(Ok(tensor)), None) = (device.as_ref().map(|given| given.cast::<Self>()), &shape) {
            return Ok(Self { inner: tensor.borrow().inner.clone() });
        }
        let module = PyModule::import(py, "netcl._create")?;
        let made = module.getattr("constructed")?.call1((device, shape, dtype, data))?;
        let inner = made.cast::<Self>()?.borrow().inner.clone();
        Ok(Self { inner: if requires_grad { inner.parameter("") } else { inner } })
    }
    /// Number and size in bytes of the device buffer that the tensor is in. Views have the number of their buffer.
    fn _buffer(&self) -> (u64, usize) {
        let buffer = self.inner.storage().whole();
        (buffer.number(), buffer.bytes())
    }
    /// Classes that get their results define this.
    #[classattr]
    #[pyo3(name = "_result")]
    const RESULT: Option<bool> = None;
    /// Makes this object another tensor: the same memory and the same place on the tape.
    fn _become(&mut self, tensor: &Self) {
        self.inner = tensor.inner.clone();
    }
    /// Number of the buffer, and position in it in bytes.
    #[getter]
    fn _place(&self) -> (u64, usize) {
        let offset = self.inner.layout().offset * self.inner.dtype().size();
        (self.inner.storage().whole().number(), offset)
    }
    /// Sizes of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape(py, self.inner.dims())
    }
    /// Strides of the axes in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape(py, &self.inner.layout().strides)
    }
    /// Number of axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.inner.shape().rank()
    }
    /// Number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.inner.count()
    }
    /// Size of an element in bytes.
    #[getter]
    fn itemsize(&self) -> usize {
        self.inner.dtype().size()
    }
    #[getter]
    fn _dtype(&self) -> &'static str {
        dtype_name(self.inner.dtype())
    }
    /// The tensor's device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.inner.device().clone())
    }
    /// Whether gradients flow to this tensor.
    #[getter]
    fn requires_grad(&self) -> bool {
        self.inner.requires_grad()
    }
    #[setter]
    fn set_requires_grad(&mut self, py: Python<'_>, on: bool) -> PyResult<()> {
        if on == self.inner.requires_grad() || self.inner.set_requires_grad(on) {
            return Ok(());
        }
        if self.inner.is_made() {
            return Err(raised(
                py,
                &Error::unsupported(
                    "requires_grad: an operation computed this tensor, and only a leaf can change; use x.detach()",
                ),
            ));
        }
        if !self.inner.dtype().is_float() {
            return Err(raised(
                py,
                &Error::dtype(format!(
                    "requires_grad: a tensor of {} cannot have a gradient, only floats can",
                    dtype_name(self.inner.dtype())
                )),
            ));
        }
        self.inner = self.inner.parameter("");
        Ok(())
    }
    /// Whether no operation on the tape computed this tensor.
    #[getter]
    fn is_leaf(&self) -> bool {
        !self.inner.is_made() || !self.inner.requires_grad()
    }
    /// Whether something other than this object can reach the elements: another tensor, a view, or an operation that saved them.
    #[getter]
    fn _is_shared(&self) -> bool {
        self.inner.is_shared()
    }
    /// Makes the tensor a leaf that collects its gradient, with this name in errors.
    fn _parameter(&mut self, name: &str) {
        self.inner = self.inner.parameter(name);
    }
    /// Whether the elements are stored in order without gaps.
    fn is_contiguous(&self) -> bool {
        self.inner.is_contiguous()
    }
    /// Gradient from the last backward, or `None`.
    #[getter]
    fn grad<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let of = slf.try_borrow()?.inner.clone();
        let Some(grad) = of.grad() else { return Ok(None) };
        scope::note_gradient(&of, &grad);
        Given::of(&[slf.as_any()])?.view(slf.py(), grad).map(Some)
    }
    #[setter]
    fn set_grad(&self, grad: Option<PyRef<'_, Self>>) {
        self.inner.set_grad(grad.map(|grad| grad.inner.clone()));
    }
    /// Keeps the gradient of a tensor that an operation computed.
    fn retain_grad(&self) {
        self.inner.retain_grad();
    }
    /// Computes the gradients of this tensor for all leaves that it depends on, and adds them to the leaves' gradients. `gradient` is the
    /// gradient of this tensor, also under the name `grad`. It is required for more than one element.
    #[pyo3(signature = (gradient=None, *, grad=None))]
    fn backward(
        &self,
        py: Python<'_>,
        gradient: Option<PyRef<'_, Self>>,
        grad: Option<PyRef<'_, Self>>,
    ) -> PyResult<()> {
        if gradient.is_some() && grad.is_some() {
            return Err(PyTypeError::new_err(
                "backward: gradient and grad are both given, expected one of them",
            ));
        }
        let (y, dy) = (self.inner.clone(), gradient.or(grad).map(|dy| dy.inner.clone()));
        run(py, move || dy.map_or_else(|| y.backward(), |dy| y.backward_with(&dy)))
    }
    /// Like `backward`, but existing gradients are added to in their memory, so that views of them see the sums.
    fn _backward_in_place(&self, py: Python<'_>, gradient: PyRef<'_, Self>) -> PyResult<()> {
        let (y, dy) = (self.inner.clone(), gradient.inner.clone());
        run(py, move || accumulate_in_place(|| y.backward_with(&dy)))
    }
    /// Returns the same elements, off the tape. Does not copy.
    fn detach<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let detached = slf.try_borrow()?.inner.detach();
        Given::of(&[slf.as_any()])?.result(slf.py(), detached)
    }
    /// Returns a copy with separate memory. Gradients flow through it.
    #[pyo3(name = "clone")]
    fn copy<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let x = slf.try_borrow()?.inner.clone();
        Given::of(&[slf.as_any()])?.result(py, run(py, move || copy(&x))?)
    }
    /// Moves the elements to another device, off the tape, or converts them to another storage type.
    #[pyo3(signature = (device=None, dtype=None))]
    fn _to<'py>(
        slf: &Bound<'py, Self>,
        py: Python<'py>,
        device: Option<DeviceLike>,
        dtype: Option<DTypeLike>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let x = slf.try_borrow()?.inner.clone();
        let moved = run(py, move || {
            let x = match device {
                None => x,
                Some(device) => {
                    let device = DeviceLike::open(Some(device))?;
                    if device.same(x.device()) { x } else { x.to_device(&device)? }
                }
            };
            dtype.map_or_else(|| Ok(x.clone()), |dtype| x.to_dtype(dtype.0))
        })?;
        Given::of(&[slf.as_any()])?.result(py, moved)
    }
    /// Returns the elements' bytes in order, little endian. Waits for the device.
    fn _bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let x = self.inner.clone();
        run(py, refuse_read)?;
        Ok(PyBytes::new(py, &wait(py, move || x.to_bytes())?))
    }
    /// Returns the element of a tensor with one element. Waits for the device.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let x = self.inner.clone();
        run(py, refuse_read)?;
        let word = wait(py, move || match x.dtype().is_float() {
            true => x.item().map(f64::from),
            false if x.count() == 1 => {
                let word = x.to_u32()?[0];
                Ok(if x.dtype() == DType::I32 { f64::from(word.cast_signed()) } else { f64::from(word) })
            }
            false => x.item().map(f64::from),
        })?;
        match self.inner.dtype() {
            DType::Bool => Ok((word != 0.0).into_pyobject(py)?.to_owned().into_any()),
            dtype if dtype.is_float() => Ok(word.into_pyobject(py)?.into_any()),
            _ => Ok((word as i64).into_pyobject(py)?.into_any()),
        }
    }
    /// Overwrites the elements of a contiguous tensor with bytes.
    fn _set_bytes(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let x = self.inner.clone();
        run(py, move || x.set_bytes(data))
    }
    /// Overwrites every element with `value`.
    fn _set_all(&self, py: Python<'_>, value: f32) -> PyResult<()> {
        let x = self.inner.clone();
        run(py, move || x.set_all(value))
    }
    /// Overwrites the elements from index `start` of `axis` on with the elements of `part`.
    fn _write_slice(&self, py: Python<'_>, axis: usize, start: usize, part: PyRef<'_, Self>) -> PyResult<()> {
        let (x, part) = (self.inner.clone(), part.inner.clone());
        run(py, move || {
            if axis >= x.shape().rank() {
                return Err(Error::shape(format!(
                    "write: axis {axis} is out of range for a tensor of shape {}",
                    x.shape()
                )));
            }
            x.write_slice(axis, start, &part)
        })
    }
}
