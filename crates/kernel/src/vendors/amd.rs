//! AMD's GPUs. Their compilers, ROCm's and Mesa's, get no options of their own today: OpenCL's queries say all that kernels ask for.

use super::Hooks;
use netcl_device::{Architecture, Capabilities};

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| gfx(device).is_some(),
    options: |_| String::new(),
    keeps_kernels: false,
    header: || None,
};

/// The instruction set as LLVM names it, `gfx90a`: what a kernel asks for that is made for such devices.
pub fn gfx(device: &Capabilities) -> Option<&str> {
    match &device.architecture {
        Architecture::Amd { gfx } => Some(gfx),
        _ => None,
    }
}
