//! The simulated GPU as a machine: memory by address, command rings, registers, kernels and schedulers, for `netcl.aethercl`.
//!
//! Every call locks the machine without the interpreter's lock. Functions of the program that the machine calls, such as a scheduler, run under
//! the machine's lock, so they must not call the machine.

use pyo3::prelude::*;

mod callbacks;
mod commands;
mod launch;
mod state;
mod window;

/// Adds the classes to the module.
pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<commands::PyMachine>()?;
    m.add_class::<commands::PyReadBack>()?;
    m.add_class::<launch::PyProgram>()?;
    m.add_class::<window::PyWindow>()?;
    m.add("DISPATCH_SCHEDULERS", aethercl::machine::scheduling::DISPATCH_NAMES.to_vec())?;
    m.add("MEMORY_SCHEDULERS", aethercl::machine::scheduling::MEMORY_NAMES.to_vec())
}
