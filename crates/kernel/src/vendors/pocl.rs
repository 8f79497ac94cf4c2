//! PoCL, OpenCL on processors.

use super::Hooks;
use netcl_device::Capabilities;

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| device.id.starts_with("pocl:"),
    options: |_| String::new(),
    keeps_kernels: true,
};

/// Whether texts may have AVX-512 VNNI instructions: PoCL's compiler passes those of x86 on, and the processor that it runs on has them. The
/// device's name says for which processor it compiles, which may be an older one that has 512-bit registers.
pub fn has_vnni(device: &Capabilities) -> bool {
    device.id.starts_with("pocl:") && device.is_cpu() && processor_has_vnni()
}

#[cfg(target_arch = "x86_64")]
fn processor_has_vnni() -> bool {
    std::is_x86_feature_detected!("avx512vnni") && std::is_x86_feature_detected!("avx512bw")
}

#[cfg(not(target_arch = "x86_64"))]
fn processor_has_vnni() -> bool {
    false
}
