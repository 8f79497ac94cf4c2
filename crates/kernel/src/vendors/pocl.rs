//! PoCL, OpenCL on processors.

use super::Hooks;

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| device.id.starts_with("pocl:"),
    options: |_| String::new(),
    keeps_kernels: true,
};
