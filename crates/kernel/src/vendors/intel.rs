//! Intel GPUs. The NEO and Mesa compilers get no extra options today: OpenCL's queries report everything that kernels ask for.

use super::Hooks;
use netcl_device::{Architecture, Capabilities, IntelGeneration};

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| generation(device).is_some(),
    options: |_| String::new(),
    keeps_kernels: false,
    header: || None,
};

/// Returns the GPU generation. Kernels for such devices check it.
pub fn generation(device: &Capabilities) -> Option<IntelGeneration> {
    match device.architecture {
        Architecture::Intel { generation } => Some(generation),
        _ => None,
    }
}
