//! Capabilities of a device: the record that kernel predicates, `netcl devices` and the tuner read.

use crate::Architecture;
use serde::Serialize;

/// Kind of device, in order of preference for `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A graphics processor.
    Gpu,
    /// Another accelerator.
    Accelerator,
    /// The host processor.
    Cpu,
}

/// Properties that a device reports.
#[derive(Clone, Debug, Serialize)]
pub struct Capabilities {
    /// `<platform>:<index>`, the form that `--device` takes.
    pub id: String,
    /// Device name from the vendor.
    pub name: String,
    /// Vendor of the device.
    pub vendor: String,
    /// Name of the platform (driver) that offers the device.
    pub platform: String,
    /// Version string of the platform.
    pub platform_version: String,
    /// Version string of the driver.
    pub driver_version: String,
    /// OpenCL version string of the device.
    pub version: String,
    /// OpenCL C version string.
    pub c_version: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Compute units (CPU cores, multiprocessors).
    pub compute_units: u32,
    /// Maximum clock in MHz.
    pub clock_mhz: u32,
    /// Maximum number of work-items per work-group.
    pub max_group: usize,
    /// Local memory per work-group, bytes.
    pub local_mem: u64,
    /// Device memory, bytes.
    pub global_mem: u64,
    /// Last-level cache, bytes; 0 if unknown.
    pub cache: u64,
    /// Largest single allocation, bytes.
    pub max_alloc: u64,
    /// Sub-buffer alignment, bytes.
    pub base_align: usize,
    /// Lanes of a hardware float vector; 1 on scalar GPUs.
    pub float_lanes: u32,
    /// Whether the device supports f64 arithmetic.
    pub fp64: bool,
    /// Whether the device supports f16 arithmetic. Storing f16 requires no support.
    pub fp16: bool,
    /// Whether the device is simulated. `auto` chooses a simulated device only if no other exists.
    pub simulated: bool,
    /// Whether the device supports subgroup functions.
    pub subgroups: bool,
    /// Whether host and device share memory.
    pub unified_memory: bool,
    /// Architecture, for any vendor.
    pub architecture: Architecture,
    /// Extensions, sorted.
    pub extensions: Vec<String>,
}

impl Capabilities {
    /// Returns the minimum that a device of this kind offers: OpenCL 1.2 without options, 32 KiB of local memory, 1 GiB of memory.
    pub fn floor(id: &str, kind: DeviceKind) -> Self {
        Self {
            id: id.into(),
            name: format!("any {kind:?}").to_lowercase(),
            vendor: "any".into(),
            platform: "none".into(),
            platform_version: "OpenCL 1.2".into(),
            driver_version: "none".into(),
            version: "OpenCL 1.2".into(),
            c_version: "OpenCL C 1.2".into(),
            kind,
            compute_units: 4,
            clock_mhz: 1000,
            max_group: 256,
            local_mem: 32 << 10,
            global_mem: 1 << 30,
            cache: 1 << 20,
            max_alloc: 1 << 28,
            base_align: 128,
            float_lanes: if kind == DeviceKind::Cpu { 8 } else { 1 },
            simulated: false,
            fp64: false,
            fp16: false,
            subgroups: false,
            unified_memory: kind == DeviceKind::Cpu,
            architecture: if kind == DeviceKind::Cpu {
                Architecture::Processor
            } else {
                Architecture::Unknown
            },
            extensions: Vec::new(),
        }
    }
    /// Returns true for a host processor: rows are assigned to cores, not to work-groups.
    pub fn is_cpu(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }
    /// Returns NVIDIA's compute capability; see [`Architecture::sm`].
    pub fn sm(&self) -> Option<u32> {
        self.architecture.sm()
    }
    /// Returns the number of lanes for explicit vectors: the hardware width on CPUs, at least 8; 4 on other devices.
    pub fn vector_lanes(&self) -> usize {
        if !self.is_cpu() {
            return 4;
        }
        if self.float_lanes >= 16 { 16 } else { 8 }
    }
    /// Returns the short platform name for device ids: `nvidia`, `pocl`, `intel`, `amd`, …
    pub fn platform_slug(platform: &str) -> String {
        let lower = platform.to_lowercase();
        let known = [
            ("portable computing language", "pocl"),
            ("pocl", "pocl"),
            ("nvidia", "nvidia"),
            ("rusticl", "rusticl"),
            ("clover", "clover"),
            ("oclgrind", "oclgrind"),
            ("intel", "intel"),
            ("amd", "amd"),
            ("arm", "arm"),
            ("qualcomm", "qualcomm"),
            ("apple", "apple"),
        ];
        for (needle, slug) in known {
            if lower.contains(needle) {
                return slug.into();
            }
        }
        let word: String =
            lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect::<String>();
        word.split_whitespace().next().unwrap_or("opencl").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs() {
        assert_eq!(Capabilities::platform_slug("Portable Computing Language"), "pocl");
        assert_eq!(Capabilities::platform_slug("NVIDIA CUDA"), "nvidia");
        assert_eq!(Capabilities::platform_slug("Intel(R) OpenCL"), "intel");
        assert_eq!(Capabilities::platform_slug("Vivante OpenCL Platform"), "vivante");
        assert_eq!(Capabilities::platform_slug(""), "opencl");
    }
}
