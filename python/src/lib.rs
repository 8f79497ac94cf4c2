//! The module `netcl._netcl`: tensors, devices and every operation of the registry for the Python package beside it.
//!
//! Thin: types are checked and errors are made below; idioms, documentation and types for readers are in `python/netcl`.
//!
//! Its tests are in Python. A test program of Rust's would lack Python's symbols, so it is empty.
#![cfg(not(test))]
#![allow(unsafe_code)] // what PyO3 expands

use pyo3::prelude::*;

mod call;
mod convert;
mod create;
mod decoder;
mod device;
mod edge;
mod evaluate;
mod files;
mod function;
mod graph;
mod index;
mod kernel;
mod lazy;
mod llm;
mod memory;
mod names;
mod operators;
mod opgraph;
mod optim;
mod scope;
mod tensor;
mod trainer;

/// Fills the module.
#[pymodule]
#[pyo3(name = "_netcl")]
fn fill(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<device::PyDevice>()?;
    device::add(m)?;
    create::add(m)?;
    call::add(m)?;
    evaluate::add(m)?;
    files::add(m)?;
    function::add(m)?;
    m.add_class::<kernel::PyKernel>()?;
    m.add_class::<graph::PyGraph>()?;
    m.add_class::<opgraph::PyOpGraph>()?;
    m.add_class::<optim::PyUpdate>()?;
    decoder::add(m)?;
    trainer::add(m)?;
    scope::add(m)?;
    memory::add(m)?;
    lazy::add(m)?;
    llm::add(m)?;
    edge::add(m)
}
