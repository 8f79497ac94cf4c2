//! Devices that `initialize_gpu` opened, by index, and their buffers.

use super::check::{Report, check};
use crate::handles::Table;
use crate::status::{Failure, NetclStatus, Result};
use netcl::device::{Buffer, Device, Settings};
use netcl::tensor::{DType, Tensor};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers created by `allocate_gpu_memory`.
pub static BUFFERS: Table<Buffer> = Table::new("GPU buffer", 0xb1);

/// A device with its name, and the result of its check.
#[derive(Clone)]
struct Gpu {
    name: String,
    device: Device,
    report: Report,
}

/// Devices by index, names set for an index, and the index that was initialized last.
#[derive(Default)]
struct Gpus {
    open: BTreeMap<c_int, Gpu>,
    names: BTreeMap<c_int, String>,
    latest: Option<c_int>,
}

static GPUS: Mutex<Gpus> = Mutex::new(Gpus { open: BTreeMap::new(), names: BTreeMap::new(), latest: None });

fn gpus() -> MutexGuard<'static, Gpus> {
    GPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpus {
    /// Returns the device name of an index: the one that was set, or the OpenCL device with that number. An invalid index is index 0.
    /// Without an OpenCL device, the name selects the simulated GPU.
    fn name(&self, gpu_index: c_int) -> String {
        if let Some(name) = self.names.get(&gpu_index) {
            return name.clone();
        }
        let count = netcl::device::list(&Settings::from_env()).map_or(0, |devices| devices.len());
        if usize::try_from(gpu_index).is_ok_and(|index| index < count) {
            return gpu_index.to_string();
        }
        let first = self.names.get(&0).cloned();
        first.unwrap_or_else(|| if count == 0 { "auto".into() } else { "0".into() })
    }
}

/// Opens and checks the device of an index. A device that is already open stays open. Indices with the same name share a device.
pub fn initialize(gpu_index: c_int) -> Result<()> {
    let mut gpus = gpus();
    if !gpus.open.contains_key(&gpu_index) {
        let name = gpus.name(gpu_index);
        let known = gpus.open.values().find(|gpu| gpu.name == name).cloned();
        let gpu = known.map_or_else(|| opened(name), Ok)?;
        gpus.open.insert(gpu_index, gpu);
    }
    gpus.latest = Some(gpu_index);
    Ok(())
}

fn opened(name: String) -> Result<Gpu> {
    let device = Device::open(&name, &Settings::from_env())?;
    let report = check(&device)?;
    Ok(Gpu { name, device, report })
}

/// Sets the device name of an index for the next [`initialize`].
pub fn name(gpu_index: c_int, device: &str) -> Result<()> {
    let mut gpus = gpus();
    if gpus.open.contains_key(&gpu_index) {
        return Err(Failure::argument(format!(
            "GPU {gpu_index} is already open; set its device before initialize_gpu"
        )));
    }
    gpus.names.insert(gpu_index, device.to_owned());
    Ok(())
}

/// Returns the device of an index. An index that was never initialized selects the device initialized last, because a program with one GPU
/// may pass any index.
pub fn device(gpu_index: c_int) -> Result<Device> {
    gpu(gpu_index).map(|gpu| gpu.device)
}

/// Returns the device of an index, like [`device`], and the result of its check.
pub fn checked(gpu_index: c_int) -> Result<(Device, Report)> {
    gpu(gpu_index).map(|gpu| (gpu.device, gpu.report))
}

fn gpu(gpu_index: c_int) -> Result<Gpu> {
    let gpus = gpus();
    let found = gpus.open.get(&gpu_index).or_else(|| gpus.open.get(&gpus.latest?));
    found
        .cloned()
        .ok_or_else(|| Failure::new(NetclStatus::Device, "no GPU is initialized; call initialize_gpu first"))
}

/// Closes every device and frees every buffer.
pub fn shutdown() {
    let open = std::mem::take(&mut gpus().open);
    gpus().latest = None;
    drop(BUFFERS.clear());
    drop(open);
}

/// Converts sizes of axes; negative sizes are errors.
pub fn sizes(given: &[c_int]) -> Result<Vec<usize>> {
    let size =
        |n: &c_int| usize::try_from(*n).map_err(|_| Failure::argument(format!("size {n} is negative")));
    given.iter().map(size).collect()
}

/// Tensor views of the buffers of one call. All buffers are on one device.
pub struct Views {
    device: Device,
}

impl Views {
    /// Starts with the device of `buffer`, whatever GPU index the call names.
    pub fn of(what: &str, buffer: *const c_void) -> Result<Self> {
        let buffer = BUFFERS.get(buffer).map_err(|e| named(what, e))?;
        Ok(Self { device: buffer.device().clone() })
    }

    /// Returns their device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the first elements of a buffer as f32.
    pub fn floats(&self, what: &str, handle: *const c_void, shape: &[usize]) -> Result<Tensor> {
        self.tensor(what, handle, shape, DType::F32)
    }

    /// Returns the first elements of a buffer as int32.
    pub fn ids(&self, what: &str, handle: *const c_void, shape: &[usize]) -> Result<Tensor> {
        self.tensor(what, handle, shape, DType::I32)
    }

    /// Returns a view like [`Self::floats`], or `None` for NULL, which marks a result that is not needed.
    pub fn wanted(&self, what: &str, handle: *const c_void, shape: &[usize]) -> Result<Option<Tensor>> {
        if handle.is_null() { Ok(None) } else { self.floats(what, handle, shape).map(Some) }
    }

    fn tensor(&self, what: &str, handle: *const c_void, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let buffer = BUFFERS.get(handle).map_err(|e| named(what, e))?;
        if !buffer.device().same(&self.device) {
            return Err(Failure::new(
                NetclStatus::Device,
                format!("{what} is on another device than the first buffer"),
            ));
        }
        let wanted = shape.iter().try_fold(4usize, |bytes, n| bytes.checked_mul(*n));
        if wanted.is_none_or(|wanted| wanted > buffer.bytes()) {
            let there = buffer.bytes();
            return Err(Failure::argument(format!(
                "{what} of shape {shape:?} does not fit its buffer of {there} bytes"
            )));
        }
        Ok(Tensor::over(&buffer, shape, dtype)?)
    }
}

fn named(what: &str, failure: Failure) -> Failure {
    Failure::new(failure.status, format!("{what}: {}", failure.message))
}

/// Stores a result in a buffer of the program. Both may share memory.
pub fn store(result: &Tensor, to: &Tensor) -> Result<()> {
    let dense = result.detach().contiguous()?;
    let bytes = to.count() * to.dtype().size();
    if dense.dtype() != to.dtype() || dense.count() != to.count() {
        let message = format!("the result has shape {dense:?}, the output has {to:?}");
        return Err(Failure::new(NetclStatus::Internal, message));
    }
    let from = dense.layout().offset * dense.dtype().size();
    if dense.storage().same(to.storage()) && from == 0 {
        return Ok(());
    }
    Ok(to.device().copy(dense.storage(), from, to.storage(), 0, bytes)?)
}
