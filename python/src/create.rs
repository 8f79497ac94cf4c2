//! New tensors.

use crate::convert::{DTypeLike, Place, Sizes};
use crate::device::DeviceLike;
use crate::edge::run;
use crate::tensor::PyTensor;
use netcl::prelude::{DType, Tensor};
use netcl::tensor::Generator;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Creates a tensor with `value` in every element.
#[pyfunction]
#[pyo3(signature = (shape, value, dtype=None, device=None))]
fn full(
    py: Python<'_>,
    shape: Sizes,
    value: f64,
    dtype: Option<DTypeLike>,
    device: Option<DeviceLike>,
) -> PyResult<PyTensor> {
    let place = Place::new(device, dtype);
    let made = run(py, move || {
        let (device, dtype) = place.open()?;
        // f32 cannot represent all integers.
        let pattern = match dtype {
            DType::I32 => (value as i32).to_le_bytes(),
            DType::U32 => (value as u32).to_le_bytes(),
            _ => return Tensor::full(&device, shape.0, value as f32, dtype),
        };
        let made = Tensor::empty(&device, shape.0, dtype)?;
        device.fill(made.storage(), &pattern)?;
        Ok(made)
    });
    made.map(PyTensor::from)
}

/// Allocates a tensor whose elements must be written before they are read.
#[pyfunction]
#[pyo3(signature = (shape, dtype, device=None))]
fn uninitialised(
    py: Python<'_>,
    shape: Sizes,
    dtype: DTypeLike,
    device: Option<DeviceLike>,
) -> PyResult<PyTensor> {
    let place = Place::new(device, Some(dtype));
    let made = run(py, move || {
        let (device, dtype) = place.open()?;
        Tensor::empty(&device, shape.0, dtype)
    });
    made.map(PyTensor::from)
}

/// Creates a tensor from bytes in the storage type's little-endian layout.
#[pyfunction]
#[pyo3(signature = (data, shape, dtype, device=None))]
fn from_bytes(
    py: Python<'_>,
    data: &[u8],
    shape: Sizes,
    dtype: DTypeLike,
    device: Option<DeviceLike>,
) -> PyResult<PyTensor> {
    let place = Place::new(device, Some(dtype));
    let made = run(py, move || {
        let (device, dtype) = place.open()?;
        Tensor::from_bytes(&device, shape.0, data, dtype)
    });
    made.map(PyTensor::from)
}

/// A stream of random numbers, given by its seed and the number of draws used.
#[pyclass(module = "netcl", name = "Generator", frozen)]
pub struct PyGenerator(Mutex<Generator>);

impl PyGenerator {
    /// Locks the stream. A draw does this without the interpreter's lock, so that threads cannot wait for each other.
    fn stream(&self) -> MutexGuard<'_, Generator> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyGenerator {
    #[new]
    #[pyo3(signature = (seed=0))]
    fn new(seed: u64) -> Self {
        Self(Mutex::new(Generator::new(seed)))
    }
    /// Key of the stream.
    #[getter]
    fn seed(&self) -> u64 {
        self.stream().seed
    }
    /// Number of draws used so far. Seed and offset together restore a generator.
    #[getter]
    fn offset(&self) -> u64 {
        self.stream().offset
    }
    #[setter]
    fn set_offset(&self, offset: u64) {
        self.stream().offset = offset;
    }
    /// Restarts with the stream of `seed`.
    fn manual_seed(&self, seed: u64) {
        *self.stream() = Generator::new(seed);
    }
    /// Draws a seed for a separate stream.
    fn draw_seed(&self) -> i64 {
        self.stream().draw_seed()
    }
    /// Returns the numbers below `n` in a random order.
    fn permutation(&self, py: Python<'_>, n: usize) -> Vec<usize> {
        py.detach(|| self.stream().permutation(n))
    }
    /// Draws uniform numbers in `[low, high)`.
    #[pyo3(signature = (shape, low=0.0, high=1.0, dtype=None, device=None))]
    fn uniform(
        &self,
        py: Python<'_>,
        shape: Sizes,
        low: f32,
        high: f32,
        dtype: Option<DTypeLike>,
        device: Option<DeviceLike>,
    ) -> PyResult<PyTensor> {
        let place = Place::new(device, dtype);
        let made = run(py, move || {
            let (device, dtype) = place.open()?;
            Tensor::uniform(&device, shape.0, low, high, dtype, &mut self.stream())
        });
        made.map(PyTensor::from)
    }
    /// Draws integers from `low` (inclusive) to `high` (exclusive), as int32 or uint32.
    #[pyo3(signature = (shape, low, high, unsigned=false, device=None))]
    fn integers(
        &self,
        py: Python<'_>,
        shape: Sizes,
        low: i64,
        high: i64,
        unsigned: bool,
        device: Option<DeviceLike>,
    ) -> PyResult<PyTensor> {
        let place = Place::new(device, None);
        let made = run(py, move || {
            let (device, _) = place.open()?;
            let drawn = self.stream().integers(shape.0.iter().product(), low, high);
            match unsigned {
                true => {
                    Tensor::from_u32(&device, shape.0, &drawn.iter().map(|v| *v as u32).collect::<Vec<_>>())
                }
                false => {
                    Tensor::from_i32(&device, shape.0, &drawn.iter().map(|v| *v as i32).collect::<Vec<_>>())
                }
            }
        });
        made.map(PyTensor::from)
    }
    /// Draws normally distributed numbers.
    #[pyo3(signature = (shape, mean=0.0, std=1.0, dtype=None, device=None))]
    fn normal(
        &self,
        py: Python<'_>,
        shape: Sizes,
        mean: f32,
        std: f32,
        dtype: Option<DTypeLike>,
        device: Option<DeviceLike>,
    ) -> PyResult<PyTensor> {
        let place = Place::new(device, dtype);
        let made = run(py, move || {
            let (device, dtype) = place.open()?;
            Tensor::normal(&device, shape.0, mean, std, dtype, &mut self.stream())
        });
        made.map(PyTensor::from)
    }
    fn __repr__(&self) -> String {
        let stream = self.stream();
        format!("Generator(seed={}, offset={})", stream.seed, stream.offset)
    }
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGenerator>()?;
    m.add_function(wrap_pyfunction!(full, m)?)?;
    m.add_function(wrap_pyfunction!(uninitialised, m)?)?;
    m.add_function(wrap_pyfunction!(from_bytes, m)?)
}
