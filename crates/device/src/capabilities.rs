//! What a device is and can do: the record that kernels' predicates, `netcl devices` and the tuner read.

use crate::Architecture;
use serde::Serialize;

/// Kind of device, in the order `auto` prefers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A graphics processor.
    Gpu,
    /// Some other accelerator.
    Accelerator,
    /// The host's processor.
    Cpu,
}

/// What a device reports of itself.
#[derive(Clone, Debug, Serialize)]
pub struct Capabilities {
    /// `<platform>:<index>`, as `--device` takes it.
    pub id: String,
    /// The vendor's name of the device.
    pub name: String,
    /// Vendor of the device.
    pub vendor: String,
    /// Name of the platform (driver) that offers it.
    pub platform: String,
    /// Version text of the platform.
    pub platform_version: String,
    /// Version text of the driver.
    pub driver_version: String,
    /// OpenCL version text of the device.
    pub version: String,
    /// OpenCL C version text.
    pub c_version: String,
    /// Kind of device.
    pub kind: DeviceKind,
    /// Compute units (CPU cores, multiprocessors).
    pub compute_units: u32,
    /// Highest clock in MHz.
    pub clock_mhz: u32,
    /// Work-items a group at most.
    pub max_group: usize,
    /// Local memory a group, bytes.
    pub local_mem: u64,
    /// Device memory, bytes.
    pub global_mem: u64,
    /// Last-level cache, bytes; 0 when unknown.
    pub cache: u64,
    /// Largest single allocation, bytes.
    pub max_alloc: u64,
    /// Sub-buffer alignment, bytes.
    pub base_align: usize,
    /// Lanes of a hardware float vector; 1 on scalar GPUs.
    pub float_lanes: u32,
    /// f64 arithmetic.
    pub fp64: bool,
    /// f16 arithmetic. Storage as f16 needs nothing.
    pub fp16: bool,
    /// A simulated device, which `auto` takes only where there is no other.
    pub simulated: bool,
    /// Subgroup functions.
    pub subgroups: bool,
    /// Host and device share memory.
    pub unified_memory: bool,
    /// Architecture, whoever made the device.
    pub architecture: Architecture,
    /// Extensions, sorted.
    pub extensions: Vec<String>,
}

impl Capabilities {
    /// The least that a device of this kind offers: OpenCL 1.2 without options, 32 KiB of local memory, 1 GiB of memory.
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
    /// The host's processor: rows are given to cores, not to work-groups.
    pub fn is_cpu(&self) -> bool {
        self.kind == DeviceKind::Cpu
    }
    /// NVIDIA's compute capability; see [`Architecture::sm`].
    pub fn sm(&self) -> Option<u32> {
        self.architecture.sm()
    }
    /// Lanes for explicit vectors: the hardware's width on CPUs, at least 8 there; 4 elsewhere.
    pub fn vector_lanes(&self) -> usize {
        if !self.is_cpu() {
            return 4;
        }
        if self.float_lanes >= 16 { 16 } else { 8 }
    }
    /// Short name of the platform for device ids: `nvidia`, `pocl`, `intel`, `amd`, …
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
