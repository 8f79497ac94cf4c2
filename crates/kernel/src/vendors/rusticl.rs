//! Mesa's rusticl: its compiler (22.3) crashes the process on clang's built-in for prefetching.

use super::Hooks;

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| device.id.starts_with("rusticl:"),
    options: |_| "-DNO_PREFETCH".into(),
    keeps_kernels: false,
    header: || None,
};
