//! The register window: registers and rings as memory that a program accesses directly.

use super::state::Machine;
use aethercl::machine::window::RINGS;
use netcl::prelude::Result;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Memory that the program and the machine share. It is valid as long as this object exists, even after the machine is closed.
#[pyclass(name = "MachineWindow", module = "netcl.aethercl", frozen)]
pub struct PyWindow {
    words: Arc<[AtomicU32]>,
    stride: usize,
}

impl PyWindow {
    /// Maps the window and starts the thread that polls it.
    pub fn map(machine: &Arc<Machine>) -> Result<Self> {
        let window = machine.with(|gpu| {
            let window = gpu.map_window();
            Ok(Self { words: Arc::clone(window.words()), stride: window.stride() })
        })?;
        machine.poll();
        Ok(window)
    }
}

#[pymethods]
impl PyWindow {
    /// Address of the first word in this process.
    #[getter]
    fn address(&self) -> usize {
        self.words.as_ptr().addr()
    }

    /// Number of 32-bit words.
    #[getter]
    fn words(&self) -> usize {
        self.words.len()
    }

    /// Offset of the ring of queue 0 in bytes.
    #[getter]
    fn rings(&self) -> usize {
        RINGS
    }

    /// Distance between the rings of consecutive queues in bytes.
    #[getter]
    fn ring_stride(&self) -> usize {
        self.stride
    }
}
