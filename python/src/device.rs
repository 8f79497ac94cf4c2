//! Devices by name. An opened device stays open, so that the tensors of different calls are on the same device.

use crate::edge::{raised, run, wait};
use netcl::device::{Builders, at_least_one, list};
use netcl::kernel::ahead;
use netcl::prelude::{Device, Error, Result, Settings};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Process-wide state: open devices by requested name, and the default name.
struct Open {
    devices: BTreeMap<String, Device>,
    default: Option<String>,
}

/// Command that starts another Python process to build kernels for this one.
static BUILDER: Mutex<Option<Builders>> = Mutex::new(None);

static OPEN: Mutex<Open> = Mutex::new(Open { devices: BTreeMap::new(), default: None });

/// Returns the device with this name, or the default device.
pub fn by_name(name: Option<&str>) -> Result<Device> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let from_environment = || std::env::var("NETCL_DEVICE").ok().filter(|name| !name.is_empty());
    let name = name.map(str::to_owned).or_else(|| open.default.clone());
    let name = name.or_else(from_environment).unwrap_or_else(|| "auto".into());
    if let Some(device) = open.devices.get(&name) {
        return Ok(device.clone());
    }
    let device = Device::open(&name, &settings())?;
    // `auto` and the name that it resolves to are the same device.
    let id = device.capabilities().id.clone();
    let device = open.devices.entry(id).or_insert(device).clone();
    open.devices.insert(name, device.clone());
    Ok(device)
}

/// Opens the device with this name once more, with its own queue and memory.
pub fn opened_again(name: &str) -> Result<Device> {
    Device::open(name, &settings())
}

/// Reads settings from the environment. If a driver's compiler may crash the calling process, another Python process builds kernels first.
fn settings() -> Settings {
    let mut settings = Settings::from_env();
    if settings.builders.is_none() {
        settings.builders = BUILDER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    }
    settings
}

/// Sets the program and arguments that build kernels for this process. The program calls [`serve_builds`] with the device, which follows
/// the arguments.
#[pyfunction]
fn set_builder(program: PathBuf, arguments: Vec<std::ffi::OsString>) {
    *BUILDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Builders::new(program, arguments));
}

/// Builds kernels for another process, which sends requests on stdin, until that process ends.
#[pyfunction]
fn serve_builds(py: Python<'_>, device: String) -> PyResult<()> {
    run(py, move || ahead::serve(&Device::open(&device, &Settings::from_env())?))
}

/// Name, launches, seconds, bytes and floating-point operations of a kernel.
type Times = (String, u64, f64, u64, u64);

/// Name of a command, its start and end in nanoseconds, its bytes and floating-point operations.
type Span = (String, u64, u64, u64, u64);

/// Opens a simulated device that reports findings about a launch as errors.
fn checked(name: &str, check: &str) -> Result<Device> {
    if !name.starts_with("sim") {
        return Err(Error::unsupported(format!(
            "device {name:?} with check {check:?}: checks need the simulated GPU, `sim`"
        )));
    }
    let mut settings = Settings::from_env();
    settings.sim.check = check.split(',').map(|name| name.trim().to_owned()).collect();
    settings.exact_memory = true;
    Device::open(name, &settings)
}

/// A device for tensors: an OpenCL device or a simulated GPU.
#[pyclass(name = "Device", module = "netcl", frozen, weakref)]
pub struct PyDevice(pub Device);

#[pymethods]
impl PyDevice {
    /// Opens a device by a name that `netcl devices` lists: `auto`, `sim`, `sim:<profile>`, `<platform>:<index>`.
    ///
    /// With `check`, a separate simulated device is opened that checks every launch: `all`, or names of checks separated by commas.
    #[new]
    #[pyo3(signature = (name=None, check=None))]
    fn new(py: Python<'_>, name: Option<String>, check: Option<String>) -> PyResult<Self> {
        run(py, move || match check {
            None => by_name(name.as_deref()),
            Some(check) => checked(name.as_deref().unwrap_or("sim"), &check),
        })
        .map(Self)
    }
    /// The name that opens this device.
    #[getter]
    fn name(&self) -> String {
        self.0.capabilities().id.clone()
    }
    /// The driver's name for it.
    #[getter]
    fn description(&self) -> String {
        self.0.capabilities().name.clone()
    }
    /// `cpu`, `gpu`, …
    #[getter]
    fn kind(&self) -> String {
        format!("{:?}", self.0.capabilities().kind).to_lowercase()
    }
    /// Total memory in bytes.
    #[getter]
    fn total_memory(&self) -> u64 {
        self.0.capabilities().global_mem
    }
    /// Waits until all enqueued commands are complete.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let device = self.0.clone();
        wait(py, move || device.finish())
    }
    /// Returns the bytes in use, reserved and at the peak, and the number of buffers.
    fn memory(&self) -> (usize, usize, usize, usize) {
        let stats = self.0.memory();
        (stats.live, stats.reserved, stats.peak, stats.buffers)
    }
    /// Number of kernels launched so far.
    #[getter]
    fn launches(&self) -> u64 {
        self.0.launches()
    }
    /// Starts recording the time of each kernel.
    fn _start_profile(&self) {
        self.0.start_profile();
    }
    /// Returns the recorded kernels: name, launches, seconds, bytes and floating-point operations. Waits for the device.
    fn _stop_profile(&self, py: Python<'_>) -> PyResult<Vec<Times>> {
        let times = run(py, || self.0.stop_profile())?;
        Ok(times.into_iter().map(|t| (t.name, t.count, t.seconds, t.bytes, t.flops)).collect())
    }
    /// Starts recording the time of each launch and transfer.
    fn _start_timeline(&self, py: Python<'_>) -> PyResult<()> {
        run(py, || self.0.start_timeline())
    }
    /// Returns the launches and transfers since the start, in two lists in the order they were enqueued. Waits for the device.
    fn _stop_timeline(&self, py: Python<'_>) -> PyResult<(Vec<Span>, Vec<Span>)> {
        let timeline = run(py, || self.0.stop_timeline())?;
        let launches = timeline.launches.into_iter();
        let launches =
            launches.map(|l| (l.name.to_owned(), l.start_ns, l.end_ns, l.bytes, l.flops)).collect();
        let transfers = timeline.transfers.into_iter();
        let named = |kind| format!("{kind:?}").to_lowercase();
        Ok((launches, transfers.map(|t| (named(t.kind), t.start_ns, t.end_ns, t.bytes, 0)).collect()))
    }
    /// Returns cached memory that no tensor uses to the driver.
    fn release_cached_memory(&self) {
        self.0.release_cached_memory();
    }
    fn __repr__(&self) -> String {
        format!("device('{}')", self.0.capabilities().id)
    }
    fn __str__(&self) -> String {
        self.0.capabilities().id.clone()
    }
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        match other.cast::<Self>() {
            Ok(other) => self.0.same(&other.get().0),
            Err(_) => other.extract::<String>().is_ok_and(|name| name == self.0.capabilities().id),
        }
    }
    fn __hash__(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.0.capabilities().id.hash(&mut hasher);
        hasher.finish()
    }
}

/// A device argument: an open device or a name.
pub enum DeviceLike {
    /// An open device.
    Open(Device),
    /// The name of a device.
    Named(String),
}

impl<'py> FromPyObject<'_, 'py> for DeviceLike {
    type Error = PyErr;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyDevice>() {
            Ok(device) => Ok(Self::Open(device.get().0.clone())),
            Err(_) => object.extract().map(Self::Named),
        }
    }
}

impl DeviceLike {
    /// Opens the given device, or the default device.
    pub fn open(given: Option<Self>) -> Result<Device> {
        match given {
            Some(Self::Open(device)) => Ok(device),
            Some(Self::Named(name)) => by_name(Some(&name)),
            None => by_name(None),
        }
    }
}

/// Returns the names of all devices.
#[pyfunction]
fn devices(py: Python<'_>) -> PyResult<Vec<String>> {
    let found = run(py, || list(&Settings::from_env()))?;
    Ok(found.into_iter().map(|capabilities| capabilities.id).collect())
}

/// Sets the default device. It is opened at once, so that a wrong name is reported here.
#[pyfunction]
fn set_default_device(py: Python<'_>, name: DeviceLike) -> PyResult<()> {
    let device = run(py, move || DeviceLike::open(Some(name)))?;
    let id = device.capabilities().id.clone();
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).default = Some(id);
    Ok(())
}

/// Returns the default device.
#[pyfunction]
fn default_device(py: Python<'_>) -> PyResult<PyDevice> {
    run(py, || by_name(None)).map(PyDevice)
}

/// Describes what is missing to use this machine's own devices, or returns `None`.
#[pyfunction]
fn missing(py: Python<'_>) -> PyResult<Option<String>> {
    match py.detach(|| list(&Settings::from_env())) {
        Ok(devices) => Ok(at_least_one(&devices).err().map(|e| e.message().to_owned())),
        Err(e) => Err(raised(py, &e)),
    }
}

pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(devices, m)?)?;
    m.add_function(wrap_pyfunction!(set_builder, m)?)?;
    m.add_function(wrap_pyfunction!(serve_builds, m)?)?;
    m.add_function(wrap_pyfunction!(set_default_device, m)?)?;
    m.add_function(wrap_pyfunction!(default_device, m)?)?;
    m.add_function(wrap_pyfunction!(missing, m)?)
}
