//! Tensors in files: safetensors.

use crate::edge::{raised, run};
use netcl::model::checkpoint::{FileDtype, TensorData, TensorView, read_tensors, write_tensors};
use netcl::prelude::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods};
use std::path::PathBuf;

/// Name, dtype under its file name, shape and bytes of a tensor.
pub type Stored<'py> = (String, String, Vec<usize>, Bound<'py, PyBytes>);

const DTYPES: [FileDtype; 9] = [
    FileDtype::F32,
    FileDtype::F16,
    FileDtype::BF16,
    FileDtype::F64,
    FileDtype::I32,
    FileDtype::U32,
    FileDtype::I64,
    FileDtype::U64,
    FileDtype::BOOL,
];

pub fn stored<'py>(py: Python<'py>, view: &TensorView<'_>) -> Stored<'py> {
    (view.name.into(), view.dtype.to_string(), view.shape.to_vec(), PyBytes::new(py, view.bytes))
}

pub fn from_stored(py: Python<'_>, tensors: Vec<Stored<'_>>) -> PyResult<Vec<TensorData>> {
    let one = |(name, dtype, shape, bytes): Stored<'_>| {
        let found = DTYPES.into_iter().find(|known| known.to_string() == dtype);
        let dtype = found.ok_or_else(|| {
            raised(py, &Error::dtype(format!("{name}: cannot store {dtype} in a safetensors file")))
        })?;
        Ok(TensorData { name, dtype, shape, bytes: bytes.as_bytes().to_vec() })
    };
    tensors.into_iter().map(one).collect()
}

/// Writes a safetensors file atomically.
#[pyfunction]
fn write_safetensors(py: Python<'_>, path: PathBuf, tensors: Vec<Stored<'_>>) -> PyResult<()> {
    let tensors = from_stored(py, tensors)?;
    run(py, move || write_tensors(&path, &tensors).map(drop))
}

/// Reads the tensors of a safetensors file.
#[pyfunction]
fn read_safetensors(py: Python<'_>, path: PathBuf) -> PyResult<Vec<Stored<'_>>> {
    let tensors = run(py, move || read_tensors(&path))?;
    Ok(tensors.iter().map(|t| stored(py, &t.view())).collect())
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(write_safetensors, m)?)?;
    m.add_function(wrap_pyfunction!(read_safetensors, m)?)
}
