//! The kernel's text, and where it runs.

use crate::ops::prelude::*;
use crate::quant::PLANES;
use netcl_device::Capabilities;

/// Lanes of work that are not the ring's.
pub(super) const ITEMS: usize = 512;

const TEXT: &str = concat!(
    cl_file!("decode_step_input.cl"),
    cl_file!("decode_step_norms.cl"),
    cl_file!("decode_step_rows.cl"),
    cl_file!("decode_step_attention.cl"),
    cl_file!("decode_step.cl")
);
static RING: Kernel = Kernel::new("decode_step_sm90", TEXT)
    .include(&[
        cl_file!("../include/sm90.cl"),
        cl_file!("../include/activation.cl"),
        cl_file!("decode_step_sm90.cl"),
        PLANES,
        cl_file!("planes_dot.cl"),
    ])
    .requires(|device| device.sm() == Some(90));
static DIRECT: Kernel = Kernel::new("decode_step", TEXT)
    .include(&[
        cl_file!("../include/activation.cl"),
        cl_file!("decode_step_sm90.cl"),
        PLANES,
        cl_file!("planes_dot.cl"),
    ])
    .requires(|device| {
        (device.is_cpu() || device.simulated) && device.subgroups && device.max_group >= ITEMS
    });

/// Two ways to run the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// As many groups as the device has multiprocessors, with weights through a ring of bulk copies: sm_90.
    Ring,
    /// Groups that read weights where they lie, on processors (one group: a processor may run the next one only when the first has ended) and
    /// simulated devices (two) whose sub-groups exchange values. It is slow: it is for checks of the text where there is no such GPU.
    Direct,
}

impl Text {
    pub(super) fn kernel(self) -> &'static Kernel {
        match self {
            Self::Ring => &RING,
            Self::Direct => &DIRECT,
        }
    }

    /// Whether it runs on a device at all.
    pub fn runs_on(self, device: &Device) -> bool {
        Tuning::of(device).allows(device, self.kernel())
    }

    /// Whether it is made for such a device, self-tests apart.
    pub fn is_for(self, device: &Capabilities) -> bool {
        self.kernel().runs_on(device)
    }

    /// Groups at most.
    pub(super) fn groups(self, device: &Capabilities) -> usize {
        match self {
            Self::Ring => device.compute_units.max(1) as usize,
            Self::Direct => {
                if device.simulated {
                    2
                } else {
                    1
                }
            }
        }
    }

    /// Work-items of a group.
    pub(super) fn items(self) -> usize {
        ITEMS + if self == Self::Ring { 32 } else { 0 }
    }
}

/// Whether a step of one launch runs on a device at all.
pub(crate) fn runs_on(device: &Device) -> bool {
    Text::Ring.runs_on(device)
}
