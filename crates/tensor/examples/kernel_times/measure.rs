//! Times the launches of a case.

use netcl_device::fault::{FaultDriver, Plan};
use netcl_device::{LaunchTime, open_driver};
use netcl_kernel::tune::{Params, Tuning};
use netcl_tensor::{DType, Device, Error, Result, Settings, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Repetitions on a device; the median is used. A simulated device always takes the same time.
const REPEATS: usize = 9;
/// Groups of a launch that a simulated device runs.
const SAMPLE: u64 = 16;
/// Maximum number of values of one kernel's parameters to try.
const CANDIDATES: usize = 8;

/// A computation whose launches are timed.
pub struct TimedCase {
    /// Name of the case.
    pub name: String,
    /// Kernels whose parameters are swept, one after the other.
    pub sweep: Vec<&'static str>,
    /// Fixed parameters of kernels and of choices between kernels.
    pub fixed: Vec<(&'static str, Params)>,
    /// Distinguishes this case from others with the same name.
    pub variant: Params,
    /// Enqueues the computation once.
    pub run: Box<dyn Fn() -> Result<()>>,
}

impl TimedCase {
    /// Creates a case without a parameter sweep.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Result<()> + 'static) -> Self {
        Self {
            name: name.into(),
            sweep: Vec::new(),
            fixed: Vec::new(),
            variant: Params::new(),
            run: Box::new(run),
        }
    }
    /// Sweeps the parameters of these kernels.
    pub fn sweep(mut self, kernels: &[&'static str]) -> Self {
        self.sweep = kernels.to_vec();
        self
    }
    /// Fixes these parameters.
    pub fn fixed(mut self, kernel: &'static str, params: &[(&str, i64)]) -> Self {
        self.fixed.push((kernel, params.iter().map(|(n, v)| ((*n).into(), *v)).collect()));
        self
    }
}

/// One launch of a case.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    /// Name of the case.
    pub case: String,
    /// The kernel whose parameters differ from the default, or empty.
    pub swept: String,
    /// The swept parameters.
    pub variant: BTreeMap<String, i64>,
    /// Index of the launch in the case.
    pub index: usize,
    /// Name of the kernel.
    pub kernel: String,
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items of a group in each dimension.
    pub local: [usize; 3],
    /// Median in microseconds.
    pub us: f64,
    /// Minimum in microseconds.
    pub min_us: f64,
}

/// Opens the device `name` without vendor-specific instructions, and without cached results of earlier runs.
pub fn open(name: &str, settings: Settings) -> Result<Device> {
    let mut settings = Settings { cache_dir: None, ..settings };
    settings.sim.sample = settings.sim.sample.or(Some(SAMPLE));
    let driver = open_driver(name, &settings)?;
    let unknown = netcl_device::Architecture::Unknown;
    let portable = netcl_device::Capabilities { architecture: unknown, ..driver.capabilities().clone() };
    let driver = FaultDriver::new(driver, Arc::new(Plan::default())).pretending(portable);
    Ok(Device::from_driver(Box::new(driver), settings))
}

/// Memory that is read to flush the caches.
pub struct Scratch(Option<Tensor>);

impl Scratch {
    /// Allocates four times the size of the last-level cache, at least 256 MiB. A simulated device needs nothing, because its caches start
    /// empty.
    pub fn new(device: &Device) -> Result<Self> {
        let c = device.capabilities();
        if c.simulated {
            return Ok(Self(None));
        }
        let bytes = (4 * c.cache).clamp(256 << 20, 1 << 30) as usize;
        Ok(Self(Some(Tensor::ones(device, [bytes / 4096, 1024], DType::F32)?)))
    }
    fn read(&self) -> Result<()> {
        match &self.0 {
            Some(x) => x.sum(&[1], false).map(drop),
            None => Ok(()),
        }
    }
}

/// Times the case with its defaults, and with each candidate of the swept kernels.
pub fn measure(
    device: &Device,
    scratch: &Scratch,
    case: &TimedCase,
    mut line: impl FnMut(String),
) -> Result<()> {
    let tuning = Tuning::of(device);
    for (kernel, params) in &case.fixed {
        tuning.try_out(kernel, 0, Some(params.clone()));
    }
    let mut print = |lines: Vec<Line>| -> Result<()> {
        for l in lines {
            line(serde_json::to_string(&l).map_err(|e| Error::internal(e.to_string()))?);
        }
        Ok(())
    };
    if case.sweep.is_empty() {
        print(lines_of(device, scratch, case, "", &case.variant)?)?;
    } else {
        // Candidates are known after a kernel was launched once.
        (case.run)()?;
    }
    for kernel in &case.sweep {
        let all = tuning.candidates(kernel);
        let step = all.len().div_ceil(CANDIDATES).max(1);
        for params in all.into_iter().step_by(step) {
            tuning.try_out(kernel, 0, Some(params.clone()));
            print(lines_of(device, scratch, case, kernel, &params)?)?;
        }
        tuning.try_out(kernel, 0, None);
    }
    for (kernel, _) in &case.fixed {
        tuning.try_out(kernel, 0, None);
    }
    Ok(())
}

fn lines_of(
    device: &Device,
    scratch: &Scratch,
    case: &TimedCase,
    swept: &str,
    variant: &Params,
) -> Result<Vec<Line>> {
    let simulated = device.capabilities().simulated;
    let mut runs: Vec<Vec<LaunchTime>> = Vec::new();
    for i in 0..if simulated { 1 } else { REPEATS + 1 } {
        scratch.read()?;
        device.finish()?;
        device.start_profile();
        let ran = (case.run)();
        let launches = device.stop_profile_each()?;
        ran.map_err(|e| e.context(format!("{} {variant:?}", case.name)))?;
        // The first run builds kernels and warms up.
        if simulated || i > 0 {
            runs.push(launches);
        }
    }
    let count = runs.iter().map(Vec::len).min().unwrap_or(0);
    let times = |index: usize| {
        let mut us: Vec<f64> = runs.iter().map(|run| run[index].seconds * 1e6).collect();
        us.sort_by(f64::total_cmp);
        us
    };
    let line = |index: usize| {
        let (launch, us) = (&runs[0][index], times(index));
        Line {
            case: case.name.clone(),
            swept: swept.into(),
            variant: variant.clone(),
            index,
            kernel: launch.name.into(),
            global: launch.global,
            local: launch.local,
            us: us[us.len() / 2],
            min_us: us[0],
        }
    };
    Ok((0..count).map(line).collect())
}
