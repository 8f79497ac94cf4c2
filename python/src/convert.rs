//! Conversions between Python's values and netcl's.

use crate::device::DeviceLike;
use netcl::prelude::{DType, Device, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

/// Parses a storage type: any common name, or an object with such a name (`netcl.float32`, `numpy.float32`, `torch.float32`).
pub fn dtype(object: &Bound<'_, PyAny>) -> PyResult<DType> {
    let text = match object.getattr("__name__") {
        Ok(name) => name.extract::<String>()?,
        Err(_) => object.str()?.extract::<String>()?,
    };
    DType::parse(&text).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "no dtype {text:?}; expected float32, float16, bfloat16, int32, uint32 or bool"
        ))
    })
}

/// Returns the name that Python shows.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::I32 => "int32",
        DType::U32 => "uint32",
        DType::Bool => "bool",
    }
}

/// Storage type as an argument.
pub struct DTypeLike(pub DType);

impl<'py> FromPyObject<'_, 'py> for DTypeLike {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        dtype(&object).map(Self)
    }
}

/// One or several sizes: an integer, a tuple or a list.
pub struct Ints(pub Vec<i64>);

impl<'py> FromPyObject<'_, 'py> for Ints {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyInt>() {
            return Ok(Self(vec![object.extract()?]));
        }
        let numbers: PyResult<Vec<i64>> = object.try_iter()?.map(|item| item?.extract()).collect();
        numbers.map(Self)
    }
}

/// Nonnegative sizes.
pub struct Sizes(pub Vec<usize>);

impl<'py> FromPyObject<'_, 'py> for Sizes {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let Ints(numbers) = object.extract()?;
        let sizes: Option<Vec<usize>> = numbers.iter().map(|n| usize::try_from(*n).ok()).collect();
        sizes.map(Self).ok_or_else(|| PyTypeError::new_err(format!("shape {numbers:?} has a negative size")))
    }
}

/// Converts a shape to a Python tuple.
pub fn shape<'py>(py: Python<'py>, dims: &[usize]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, dims)
}

/// Device and storage type of a new tensor.
pub struct Place {
    pub device: Option<DeviceLike>,
    pub dtype: DType,
}

impl Place {
    pub fn new(device: Option<DeviceLike>, dtype: Option<DTypeLike>) -> Self {
        Self { device, dtype: dtype.map_or(DType::F32, |dtype| dtype.0) }
    }
    pub fn open(self) -> Result<(Device, DType)> {
        Ok((DeviceLike::open(self.device)?, self.dtype))
    }
}
