//! Intel's GPUs. Their compilers, NEO's and Mesa's, get no options of their own today: OpenCL's queries say all that kernels ask for.

use super::Hooks;
use netcl_device::{Architecture, Capabilities, IntelGeneration};

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| generation(device).is_some(),
    options: |_| String::new(),
    keeps_kernels: false,
    header: || None,
};

/// The generation: what a kernel asks for that is made for such devices.
pub fn generation(device: &Capabilities) -> Option<IntelGeneration> {
    match device.architecture {
        Architecture::Intel { generation } => Some(generation),
        _ => None,
    }
}
