//! Streams: queues of a device in addition to its own.

use crate::device::PyDevice;
use crate::edge::{run, wait};
use netcl::device::Stream;
use netcl::device::driver::Event;
use netcl::prelude::{Device, Result};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A point in a queue.
#[pyclass(name = "QueueEvent", module = "netcl", frozen)]
pub struct PyEvent {
    device: Device,
    event: Event,
}

#[pymethods]
impl PyEvent {
    /// Waits until all commands before this point are complete.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let (device, event) = (self.device.clone(), self.event.clone());
        wait(py, move || device.wait(&event))
    }
}

/// An additional queue of a device. In a `with` block, the commands of this thread on this device go into it.
#[pyclass(name = "DeviceStream", module = "netcl", frozen)]
pub struct PyDeviceStream {
    stream: Mutex<Stream>,
    device: Device,
    ordered: bool,
}

impl PyDeviceStream {
    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyDeviceStream {
    /// Opens a stream. With `ordered`, a block waits for earlier commands of the device, and later commands of the device wait for the block.
    #[new]
    #[pyo3(signature = (device, ordered=true))]
    fn new(py: Python<'_>, device: &PyDevice, ordered: bool) -> PyResult<Self> {
        let device = device.0.clone();
        let stream = run(py, || device.stream())?;
        Ok(Self { stream: Mutex::new(stream), device, ordered })
    }
    /// The device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice(self.device.clone())
    }
    /// Whether blocks are ordered relative to the device's own queue.
    #[getter]
    fn ordered(&self) -> bool {
        self.ordered
    }
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let this = slf.get();
        run(slf.py(), || {
            let stream = this.stream();
            if this.ordered {
                stream.wait(&this.device.mark()?)?;
            }
            stream.enter()
        })?;
        Ok(slf)
    }
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        run(py, || {
            let stream = self.stream();
            stream.leave()?;
            if self.ordered { stream.join() } else { stream.flush() }
        })
    }
    /// Returns an event after all commands in the stream so far.
    fn record(&self, py: Python<'_>) -> PyResult<PyEvent> {
        let event = run(py, || self.stream().record())?;
        Ok(PyEvent { device: self.device.clone(), event })
    }
    /// Makes later commands of the stream wait for an event of the device or another stream [default: the current point of the device].
    #[pyo3(signature = (event=None))]
    fn wait(&self, py: Python<'_>, event: Option<&PyEvent>) -> PyResult<()> {
        run(py, || {
            let event = event.map_or_else(|| self.device.mark(), |given| Ok(given.event.clone()))?;
            self.stream().wait(&event)
        })
    }
    /// Makes later commands of the device wait for all commands in the stream so far.
    fn join(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.stream().join())
    }
    /// Waits until the stream is empty.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.stream().finish())
    }
}

#[pymethods]
impl PyDevice {
    /// Opens another queue: in `with device.stream():`, the commands of this thread on this device go into it. A block waits for earlier commands of
    /// the device, and later commands wait for the block. With `ordered=False`, the stream's `wait` and `join` determine the order.
    #[pyo3(signature = (ordered=true))]
    fn stream(&self, py: Python<'_>, ordered: bool) -> PyResult<PyDeviceStream> {
        PyDeviceStream::new(py, self, ordered)
    }
    /// Returns an event after all commands of the current queue so far.
    fn record(&self, py: Python<'_>) -> PyResult<PyEvent> {
        let event = run(py, || {
            let event = self.0.mark()?;
            self.0.flush()?;
            Ok(event)
        })?;
        Ok(PyEvent { device: self.0.clone(), event })
    }
    /// Makes later commands of the current queue wait for an event.
    fn wait_for(&self, py: Python<'_>, event: &PyEvent) -> PyResult<()> {
        run(py, || -> Result<()> { self.0.wait_for(&event.event) })
    }
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyDeviceStream>()?;
    m.add_class::<PyEvent>()
}
