//! Lists the available devices and finds a device by name.

#[cfg(feature = "sim")]
use crate::SimSettings;
use crate::driver::Driver;
use crate::opencl::{self, OpenClDriver};
use crate::{Capabilities, DeviceKind, Error, Result, Settings, did_you_mean};

/// Returns the devices of OpenCL drivers in numbering order. `sim::profiles` lists the simulated devices.
pub fn list(settings: &Settings) -> Result<Vec<Capabilities>> {
    Ok(opencl::devices(settings)?.into_iter().map(|d| d.capabilities).collect())
}

/// Returns an error if OpenCL is present but does not have a device.
///
/// # Errors
/// `Device` if `devices` is empty.
pub fn at_least_one(devices: &[Capabilities]) -> Result<()> {
    if !devices.is_empty() {
        return Ok(());
    }
    Err(Error::device(
        "OpenCL is installed, but no device with a compiler was found. Install your device's driver; for CPUs, on Debian and Ubuntu: apt-get \
         install pocl-opencl-icd. `netcl doctor` gives details",
    ))
}

/// Returns the driver of the device called `name`, in the form that [`Device::open`](crate::Device::open) takes.
///
/// # Errors
/// Same as [`Device::open`](crate::Device::open).
pub fn open_driver(name: &str, settings: &Settings) -> Result<Box<dyn Driver>> {
    if name == "sim" || name.starts_with("sim:") {
        return simulated(name, settings);
    }
    let devices = match opencl::devices(settings) {
        Ok(found) if found.is_empty() && name == "auto" && SIMULATES => {
            tracing::warn!("OpenCL finds no device, so this runs on sim, a simulated GPU: correct and slow");
            return simulated("sim", settings);
        }
        Err(e) if name == "auto" && SIMULATES => {
            tracing::warn!("{e}. So this runs on sim, a simulated GPU: correct and slow");
            return simulated("sim", settings);
        }
        found => found?,
    };
    if devices.is_empty() {
        at_least_one(&[])?;
    }
    let records: Vec<&Capabilities> = devices.iter().map(|d| &d.capabilities).collect();
    let index = choose(name, &records)?;
    // On the queues we measured, profiling costs 0.05 µs per launch if no event is attached.
    let mut device = devices[index].clone();
    if let Some(limit) = settings.memory_for_buffers() {
        device.capabilities.global_mem = device.capabilities.global_mem.min(limit);
    }
    Ok(Box::new(OpenClDriver::open(&device, true)?))
}

/// Whether this build includes the simulated GPU.
const SIMULATES: bool = cfg!(feature = "sim");

#[cfg(feature = "sim")]
fn simulated(name: &str, settings: &Settings) -> Result<Box<dyn Driver>> {
    let (given, limit) = (settings.sim.memory, settings.memory_for_buffers());
    let memory = given.into_iter().chain(limit).min();
    Ok(Box::new(crate::sim::SimDriver::open(name, &SimSettings { memory, ..settings.sim.clone() })?))
}

#[cfg(not(feature = "sim"))]
fn simulated(name: &str, _: &Settings) -> Result<Box<dyn Driver>> {
    Err(Error::unsupported(format!(
        "device {name}: this program was built without the simulated GPU. It requires the feature `sim` of the crate netcl (or netcl-device): \
         remove default-features = false, or add features = [\"sim\"]"
    )))
}

/// Returns the index of the device called `name`.
fn choose(name: &str, devices: &[&Capabilities]) -> Result<usize> {
    let list = || {
        let lines: Vec<String> =
            devices.iter().enumerate().map(|(i, d)| format!("  {i}  {}  {}", d.id, d.name)).collect();
        lines.join("\n")
    };
    let found = match name {
        "auto" => {
            let rank = |d: &Capabilities| match d.kind {
                DeviceKind::Gpu => 0,
                DeviceKind::Accelerator => 2,
                DeviceKind::Cpu => 1,
            };
            (0..devices.len()).min_by_key(|i| rank(devices[*i]))
        }
        _ => match name.parse::<usize>() {
            Ok(index) => (index < devices.len()).then_some(index),
            Err(_) => devices.iter().position(|d| d.id == name || d.id == format!("{name}:0")),
        },
    };
    found.ok_or_else(|| {
        let ids = devices
            .iter()
            .map(|d| d.id.as_str())
            .chain(if SIMULATES { &["auto", "sim"][..] } else { &["auto"] }.iter().copied());
        let hint = did_you_mean(name, ids);
        Error::device(format!(
            "no device {name:?}{hint}{} There are:\n{}",
            if hint.is_empty() { "." } else { "" },
            list()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Architecture;

    fn record(id: &str, kind: DeviceKind) -> Capabilities {
        Capabilities {
            id: id.into(),
            name: format!("name of {id}"),
            vendor: String::new(),
            platform: String::new(),
            platform_version: String::new(),
            driver_version: String::new(),
            version: String::new(),
            c_version: String::new(),
            kind,
            compute_units: 1,
            clock_mhz: 1,
            max_group: 1,
            local_mem: 0,
            global_mem: 0,
            cache: 0,
            max_alloc: 0,
            base_align: 128,
            float_lanes: 1,
            simulated: false,
            fp64: false,
            fp16: false,
            subgroups: false,
            unified_memory: false,
            architecture: Architecture::Unknown,
            extensions: vec![],
        }
    }

    #[cfg(not(feature = "sim"))]
    #[test]
    fn a_build_without_the_simulated_gpu_says_how_to_get_it() {
        for name in ["sim", "sim:h200"] {
            let e = open_driver(name, &Settings::default()).err().unwrap();
            assert_eq!(e.kind(), crate::ErrorKind::Unsupported);
            assert!(
                e.message().contains("device sim") && e.message().contains("features = [\"sim\"]"),
                "{e}"
            );
        }
        // Without a fallback, the error names what OpenCL lacks.
        let settings = Settings { opencl_library: Some("no-such-library".into()), ..Settings::default() };
        assert_eq!(open_driver("auto", &settings).err().unwrap().kind(), crate::ErrorKind::Device);
    }

    #[test]
    fn names_choose_devices_and_unknown_ones_list_them() {
        let all = [
            record("pocl:0", DeviceKind::Cpu),
            record("nvidia:0", DeviceKind::Gpu),
            record("nvidia:1", DeviceKind::Gpu),
        ];
        let refs: Vec<&Capabilities> = all.iter().collect();
        for (name, expected) in
            [("auto", 1), ("0", 0), ("2", 2), ("pocl:0", 0), ("nvidia:1", 2), ("nvidia", 1)]
        {
            assert_eq!(choose(name, &refs).unwrap(), expected, "{name}");
        }
        for bad in ["3", "amd:0", "nvidia:2", ""] {
            let e = choose(bad, &refs).unwrap_err();
            assert_eq!(e.kind(), crate::ErrorKind::Device);
            assert!(e.message().contains("nvidia:1"), "{e}");
        }
        assert!(choose("auto", &[]).is_err());
    }
}
