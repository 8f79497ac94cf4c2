//! Lists devices and reads their properties.

use super::load::{Platform, ids, platforms};
use super::result::{info_bytes, need, number, text};
use super::sys::{self, Ptr, info};
use crate::architecture::Reported;
use crate::{Architecture, Capabilities, DeviceKind, Result, Settings};
use std::sync::{Mutex, PoisonError};

/// A device that can be opened.
#[derive(Clone)]
pub struct OpenClDevice {
    pub(super) platform: Platform,
    pub(super) id: Ptr,
    /// Properties of the device.
    pub capabilities: Capabilities,
}

// SAFETY: device ids are opaque and usable from every thread (OpenCL 1.2 appendix A.2).
unsafe impl Send for OpenClDevice {}
// SAFETY: same as above.
unsafe impl Sync for OpenClDevice {}

/// Serializes device discovery. A driver's first device query writes process-wide tables, without a lock in PoCL 3.1. Two threads that open their
/// first device at the same time crash there or find no device.
static DISCOVERY: Mutex<()> = Mutex::new(());

/// Returns every usable device of every platform, in the loader's order. Devices without a compiler are omitted.
pub fn devices(settings: &Settings) -> Result<Vec<OpenClDevice>> {
    let _alone = DISCOVERY.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out: Vec<OpenClDevice> = Vec::new();
    for platform in platforms(settings)? {
        let get = need(platform.table.clGetDeviceIDs, "clGetDeviceIDs")?;
        // SAFETY: `ids` passes valid pointers; the platform is live.
        let found = ids(|n, list, count| unsafe { get(platform.id, sys::DEVICE_TYPE_ALL, n, list, count) });
        let name = platform_text(&platform, info::PLATFORM_NAME)?;
        let slug = Capabilities::platform_slug(&name);
        for id in found {
            let probe = Probe { platform: &platform, id };
            if probe.number(info::AVAILABLE) == 0 || probe.number(info::COMPILER_AVAILABLE) == 0 {
                tracing::debug!("{name}: skipping a device without a compiler, or one that is not available");
                continue;
            }
            let index = out.iter().filter(|d| d.capabilities.id.split(':').next() == Some(&slug)).count();
            let capabilities = describe(&probe, format!("{slug}:{index}"), &name)?;
            out.push(OpenClDevice { platform, id, capabilities });
        }
    }
    Ok(out)
}

fn platform_text(platform: &Platform, key: u32) -> Result<String> {
    let get = need(platform.table.clGetPlatformInfo, "clGetPlatformInfo")?;
    // SAFETY: `info_bytes` passes a buffer of the size it names.
    Ok(text(&info_bytes("clGetPlatformInfo", |n, p, s| unsafe { get(platform.id, key, n, p.cast(), s) })?))
}

struct Probe<'a> {
    platform: &'a Platform,
    id: Ptr,
}

impl Probe<'_> {
    /// Returns the raw bytes of a property; empty if the driver does not support it.
    fn bytes(&self, key: u32) -> Vec<u8> {
        let Some(get) = self.platform.table.clGetDeviceInfo else { return Vec::new() };
        // SAFETY: `info_bytes` passes a buffer of the size it names.
        info_bytes("clGetDeviceInfo", |n, p, s| unsafe { get(self.id, key, n, p.cast(), s) })
            .unwrap_or_default()
    }
    fn number(&self, key: u32) -> u64 {
        number(&self.bytes(key))
    }
    fn text(&self, key: u32) -> String {
        text(&self.bytes(key))
    }
}

fn describe(probe: &Probe<'_>, id: String, platform: &str) -> Result<Capabilities> {
    let small = |key| u32::try_from(probe.number(key)).unwrap_or(u32::MAX);
    let size = |key| usize::try_from(probe.number(key)).unwrap_or(usize::MAX);
    let mut extensions: Vec<String> =
        probe.text(info::EXTENSIONS).split_whitespace().map(Into::into).collect();
    extensions.sort();
    let has = |name: &str| extensions.iter().any(|e| e == name);
    let kind = match probe.number(info::TYPE) {
        t if t & 4 != 0 => DeviceKind::Gpu,
        t if t & 2 != 0 => DeviceKind::Cpu,
        _ => DeviceKind::Accelerator,
    };
    let (name, vendor, version) =
        (probe.text(info::NAME), probe.text(info::VENDOR), probe.text(info::VERSION));
    let architecture = Architecture::of(&Reported {
        name: &name,
        vendor: &vendor,
        version: &version,
        processor: kind == DeviceKind::Cpu,
        compute_capability: has("cl_nv_device_attribute_query")
            .then(|| [info::NV_COMPUTE_CAPABILITY_MAJOR, info::NV_COMPUTE_CAPABILITY_MINOR].map(small)),
        intel_ip: has("cl_intel_device_attribute_query").then(|| small(info::INTEL_IP_VERSION)),
    });
    Ok(Capabilities {
        id,
        name,
        vendor,
        platform: platform.into(),
        platform_version: platform_text(probe.platform, info::PLATFORM_VERSION)?,
        driver_version: probe.text(info::DRIVER_VERSION),
        version,
        c_version: probe.text(info::OPENCL_C_VERSION),
        kind,
        compute_units: small(info::MAX_COMPUTE_UNITS),
        clock_mhz: small(info::MAX_CLOCK_FREQUENCY),
        max_group: size(info::MAX_WORK_GROUP_SIZE),
        local_mem: probe.number(info::LOCAL_MEM_SIZE),
        global_mem: probe.number(info::GLOBAL_MEM_SIZE),
        cache: probe.number(info::GLOBAL_MEM_CACHE_SIZE),
        max_alloc: probe.number(info::MAX_MEM_ALLOC_SIZE),
        // The driver reports this value in bits.
        base_align: (size(info::MEM_BASE_ADDR_ALIGN) / 8).max(128),
        float_lanes: small(info::NATIVE_VECTOR_WIDTH_FLOAT).max(1),
        simulated: false,
        fp64: has("cl_khr_fp64"),
        fp16: has("cl_khr_fp16"),
        subgroups: has("cl_khr_subgroups") || has("cl_intel_subgroups"),
        unified_memory: probe.number(info::HOST_UNIFIED_MEMORY) != 0,
        architecture,
        extensions,
    })
}
