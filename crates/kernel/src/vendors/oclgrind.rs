//! Oclgrind, an interpreter that checks memory. It treats clang's built-in for prefetching as an unknown function.

use super::Hooks;

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| device.id.starts_with("oclgrind:"),
    options: |_| "-DNO_PREFETCH".into(),
    keeps_kernels: false,
    header: || None,
};
