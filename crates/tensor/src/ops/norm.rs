//! What layer norm and root-mean-square norm share: how their kernels (`norm.cl`) are laid over a device.

use super::prelude::*;
use netcl_kernel::Launch;

/// Blocks of rows in the backward; each adds up its rows' share of the parameters' gradients by itself.
pub fn blocks(device: &Device, rows: usize, n: usize) -> usize {
    if device.capabilities().is_cpu() {
        return row_groups(device, rows, n).max(1);
    }
    rows.div_ceil(4).clamp(1, 8 * device.capabilities().compute_units as usize)
}

/// Items of the group that adds the blocks' shares up: 8 vectors side by side, so that a narrow row still makes many groups.
const COLUMNS_GROUP: usize = 256;

/// Lays `norm_bwd_params` over `n` columns.
pub fn columns(
    kernel: &'static Kernel,
    device: &Device,
    launch: Launch<'static>,
    n: usize,
) -> Launch<'static> {
    let vectors = n.div_ceil(Tuning::value(device, kernel, 0, "VW"));
    if device.capabilities().is_cpu() {
        return launch.groups(vectors);
    }
    let group = COLUMNS_GROUP.min(largest_group(device));
    let across = group.min(8);
    let launch = launch.define("WG", group).local([across, group / across, 1]);
    launch.groups(vectors.div_ceil(across))
}
