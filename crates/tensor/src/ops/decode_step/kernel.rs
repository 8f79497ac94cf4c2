//! The kernel's text, and where it runs.

use crate::ops::prelude::*;
use crate::quant::PLANES;

/// Lanes of work that are not the ring's.
pub(super) const ITEMS: usize = 512;

const SM90: &str = concat!(cl_file!("decode_step_stages.cl"), cl_file!("decode_step.cl"));
pub(super) static KERNEL: Kernel = Kernel::new("decode_step_sm90", SM90)
    .include(&[
        cl_file!("../include/sm90.cl"),
        cl_file!("../include/activation.cl"),
        cl_file!("decode_step_sm90.cl"),
        PLANES,
        cl_file!("planes_dot.cl"),
    ])
    .requires(|device| device.sm() == Some(90));
/// The same text with rows read where they lie, for a single group: tests run it on processors whose sub-groups exchange values.
#[cfg(test)]
pub(super) static DIRECT: Kernel = Kernel::new("decode_step", SM90)
    .include(&[
        cl_file!("../include/activation.cl"),
        cl_file!("decode_step_sm90.cl"),
        PLANES,
        cl_file!("planes_dot.cl"),
    ])
    .requires(|device| device.is_cpu() && device.subgroups && device.max_group >= ITEMS);

/// The kernel, or what tests run of it.
pub(super) fn kernel() -> &'static Kernel {
    #[cfg(test)]
    return &DIRECT;
    #[cfg(not(test))]
    return &KERNEL;
}

/// Whether the kernel runs on a device at all.
pub(crate) fn runs_on(device: &Device) -> bool {
    Tuning::of(device).allows(device, &KERNEL)
}
