//! Arithmetic and comparisons: tensors with tensors, whose shapes broadcast, and with numbers.

use crate::edge::run;
use crate::tensor::PyTensor;
use netcl::prelude::{Error, Result, Tensor};
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;

/// The other side of an operator.
#[derive(FromPyObject)]
enum Other<'py> {
    Tensor(PyRef<'py, PyTensor>),
    Number(f32),
}

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;
type Scalar = fn(&Tensor, f32) -> Result<Tensor>;

/// `None` where the other side is neither a tensor nor a number: Python then asks that one.
fn apply(
    py: Python<'_>,
    x: &Tensor,
    other: &Bound<'_, PyAny>,
    binary: Binary,
    scalar: Scalar,
) -> PyResult<Option<PyTensor>> {
    let x = x.clone();
    let made = match other.extract::<Other<'_>>() {
        Ok(Other::Tensor(y)) => {
            let y = y.inner.clone();
            run(py, move || binary(&x, &y))
        }
        Ok(Other::Number(s)) => run(py, move || scalar(&x, s)),
        Err(_) => return Ok(None),
    };
    made.map(|y| Some(y.into()))
}

fn or_not_implemented(py: Python<'_>, made: Option<PyTensor>) -> PyResult<Py<PyAny>> {
    match made {
        Some(made) => Ok(Py::new(py, made)?.into_any()),
        None => Ok(py.NotImplemented()),
    }
}

fn power(x: &Tensor, s: f32) -> Result<Tensor> {
    if s == 2.0 { x.square() } else { x.pow_scalar(s) }
}

fn power_of_tensors(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    match y.shape().rank() {
        0 if !y.requires_grad() => power(x, y.item()?),
        _ => {
            Err(Error::unsupported(format!("pow: exponents of shape {}; there are numbers only", y.shape())))
        }
    }
}

/// A 0-dimensional tensor of the number, of x's type.
fn like(x: &Tensor, s: f32) -> Result<Tensor> {
    Tensor::full(x.device(), Vec::new(), s, x.dtype())
}

fn unequal(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let equal = a.eq(b)?;
    equal.eq(&like(&equal, 0.0)?)
}

#[pymethods]
impl PyTensor {
    fn __add__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        or_not_implemented(py, apply(py, &self.inner, other, Tensor::add, Tensor::add_scalar)?)
    }
    fn __radd__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__add__(py, other)
    }
    fn __sub__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        or_not_implemented(py, apply(py, &self.inner, other, Tensor::sub, Tensor::sub_scalar)?)
    }
    fn __rsub__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let swapped: Binary = |x, y| y.sub(x);
        or_not_implemented(py, apply(py, &self.inner, other, swapped, Tensor::rsub_scalar)?)
    }
    fn __mul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        or_not_implemented(py, apply(py, &self.inner, other, Tensor::mul, Tensor::mul_scalar)?)
    }
    fn __rmul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.__mul__(py, other)
    }
    fn __truediv__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        or_not_implemented(py, apply(py, &self.inner, other, Tensor::div, Tensor::div_scalar)?)
    }
    fn __rtruediv__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let swapped: Binary = |x, y| y.div(x);
        or_not_implemented(py, apply(py, &self.inner, other, swapped, Tensor::rdiv_scalar)?)
    }
    fn __matmul__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let number: Scalar = |_, s| Err(Error::shape(format!("matmul: {s} is a number, expected a tensor")));
        or_not_implemented(py, apply(py, &self.inner, other, product, number)?)
    }
    fn __pow__(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        _modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        or_not_implemented(py, apply(py, &self.inner, other, power_of_tensors, power)?)
    }
    fn __rpow__(
        &self,
        py: Python<'_>,
        other: &Bound<'_, PyAny>,
        _modulo: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let swapped: Binary = |x, y| power_of_tensors(y, x);
        let exponential: Scalar = |x, s| x.mul_scalar(s.ln())?.exp();
        or_not_implemented(py, apply(py, &self.inner, other, swapped, exponential)?)
    }
    fn __neg__(&self, py: Python<'_>) -> PyResult<Self> {
        let x = self.inner.clone();
        run(py, move || x.neg()).map(Self::from)
    }
    fn __abs__(&self, py: Python<'_>) -> PyResult<Self> {
        let x = self.inner.clone();
        run(py, move || x.abs()).map(Self::from)
    }
    fn __pos__(&self) -> Self {
        self.inner.clone().into()
    }
    /// A mask: 1 where it holds.
    fn __richcmp__(&self, py: Python<'_>, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let (binary, scalar): (Binary, Scalar) = match op {
            CompareOp::Eq => (Tensor::eq, |x, s| x.eq(&like(x, s)?)),
            CompareOp::Ne => (unequal, |x, s| unequal(x, &like(x, s)?)),
            CompareOp::Lt => (Tensor::lt, |x, s| x.lt(&like(x, s)?)),
            CompareOp::Le => (Tensor::le, |x, s| x.le(&like(x, s)?)),
            CompareOp::Gt => (Tensor::gt, |x, s| x.gt(&like(x, s)?)),
            CompareOp::Ge => (Tensor::ge, |x, s| x.ge(&like(x, s)?)),
        };
        or_not_implemented(py, apply(py, &self.inner, other, binary, scalar)?)
    }
    fn __hash__(slf: &Bound<'_, Self>) -> usize {
        slf.as_ptr().addr()
    }
}

/// Vectors are rows before the product and columns behind it, as in NumPy.
fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.dims(), b.dims()) {
        ([n], [m]) => a.reshape([1, *n])?.matmul(&b.reshape([*m, 1])?)?.reshape(Vec::new()),
        ([n], _) => a.reshape([1, *n])?.matmul(b)?.squeeze(-2),
        (_, [m]) => a.matmul(&b.reshape([*m, 1])?)?.squeeze(-1),
        _ => a.matmul(b),
    }
}
