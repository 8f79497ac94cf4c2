//! AMD GPUs. The ROCm and Mesa compilers get no extra options today: OpenCL's queries report everything that kernels ask for.

use super::Hooks;
use netcl_device::{Architecture, Capabilities};

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| gfx(device).is_some(),
    options: |_| String::new(),
    keeps_kernels: false,
    header: || None,
};

/// Returns the instruction set in LLVM's notation, `gfx90a`. Kernels for such devices check it.
pub fn gfx(device: &Capabilities) -> Option<&str> {
    match &device.architecture {
        Architecture::Amd { gfx } => Some(gfx),
        _ => None,
    }
}
