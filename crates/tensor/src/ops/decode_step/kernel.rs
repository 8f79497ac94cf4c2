//! The kernel's text, and where it runs.

use crate::ops::prelude::*;
use crate::quant::{FORMAT_LIST, PLANES, texts};
use netcl_device::Capabilities;

/// Lanes of work that are not the ring's.
pub(super) const ITEMS: usize = 512;

const TEXT: &str = concat!(
    cl_file!("planes_dot.cl"),
    cl_file!("decode_step_input.cl"),
    cl_file!("decode_step_norms.cl"),
    cl_file!("decode_step_rows.cl"),
    cl_file!("decode_step_attention.cl"),
    cl_file!("decode_step.cl")
);
const RING_PARTS: &[&str] = &[
    cl_file!("../include/sm90.cl"),
    cl_file!("../include/activation.cl"),
    cl_file!("decode_step_sm90.cl"),
    PLANES[0],
    PLANES[1],
];
const DIRECT_PARTS: &[&str] =
    &[cl_file!("../include/activation.cl"), cl_file!("decode_step_sm90.cl"), PLANES[0], PLANES[1]];
static RING: Kernel =
    Kernel::new("decode_step_sm90", TEXT).include(RING_PARTS).choose(FORMAT_LIST, texts).requires(has_ring);
static DIRECT: Kernel =
    Kernel::new("decode_step", TEXT).include(DIRECT_PARTS).choose(FORMAT_LIST, texts).requires(runs_directly);
/// Of several texts: proven apart.
static RING_OF_TEXTS: Kernel = Kernel::new("decode_step_texts_sm90", TEXT)
    .include(RING_PARTS)
    .choose(FORMAT_LIST, texts)
    .requires(has_ring);
static DIRECT_OF_TEXTS: Kernel = Kernel::new("decode_step_texts", TEXT)
    .include(DIRECT_PARTS)
    .choose(FORMAT_LIST, texts)
    .requires(runs_directly);

/// Texts of a launch at most: each has sums of its own in registers, and its activations in local memory.
pub const MOST_TEXTS: usize = 4;

fn has_ring(device: &Capabilities) -> bool {
    device.sm() == Some(90)
}

fn runs_directly(device: &Capabilities) -> bool {
    (device.is_cpu() || device.simulated) && device.subgroups && device.max_group >= ITEMS
}

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
    /// The kernel for one text, or for several.
    pub(super) fn kernel(self, texts: usize) -> &'static Kernel {
        match (self, texts) {
            (Self::Ring, 0 | 1) => &RING,
            (Self::Ring, _) => &RING_OF_TEXTS,
            (Self::Direct, 0 | 1) => &DIRECT,
            (Self::Direct, _) => &DIRECT_OF_TEXTS,
        }
    }

    /// Whether it runs on a device at all, for so many texts.
    pub fn runs_on(self, device: &Device, texts: usize) -> bool {
        (1..=MOST_TEXTS).contains(&texts) && Tuning::of(device).allows(device, self.kernel(texts))
    }

    /// Whether it is made for such a device, self-tests apart.
    pub fn is_for(self, device: &Capabilities) -> bool {
        self.kernel(1).runs_on(device)
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
    Text::Ring.runs_on(device, 1)
}
