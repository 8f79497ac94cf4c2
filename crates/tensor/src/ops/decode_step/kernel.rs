//! The kernel's source, and the devices that it runs on.

use crate::ops::prelude::*;
use crate::quant::{FORMAT_LIST, PLANES, texts};
use netcl_device::Capabilities;

/// Work-items of a group, without the warp that fills the ring.
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
/// The kernel for several texts, which has a separate proof.
static RING_OF_TEXTS: Kernel = Kernel::new("decode_step_texts_sm90", TEXT)
    .include(RING_PARTS)
    .choose(FORMAT_LIST, texts)
    .requires(has_ring);
static DIRECT_OF_TEXTS: Kernel = Kernel::new("decode_step_texts", TEXT)
    .include(DIRECT_PARTS)
    .choose(FORMAT_LIST, texts)
    .requires(runs_directly);

/// Maximum number of texts per launch. Each has its own sums in registers, and its activations in local memory.
pub const MAX_TEXTS: usize = 4;

fn has_ring(device: &Capabilities) -> bool {
    device.sm() == Some(90)
}

fn runs_directly(device: &Capabilities) -> bool {
    (device.is_cpu() || device.simulated) && device.subgroups && device.max_group >= ITEMS
}

/// Two ways to compile and run the same source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightPath {
    /// One group per multiprocessor, with weights through a ring of bulk copies: sm_90.
    Ring,
    /// Groups that read weights in place: one group on CPUs, which may run a group only after the previous one has ended, and two on simulated
    /// devices whose sub-groups exchange values. This is slow. It checks the source on machines without an sm_90 GPU.
    Direct,
}

impl WeightPath {
    /// Returns the kernel for one text, or for several.
    pub(super) fn kernel(self, texts: usize) -> &'static Kernel {
        match (self, texts) {
            (Self::Ring, 0 | 1) => &RING,
            (Self::Ring, _) => &RING_OF_TEXTS,
            (Self::Direct, 0 | 1) => &DIRECT,
            (Self::Direct, _) => &DIRECT_OF_TEXTS,
        }
    }

    /// Returns whether it runs on a device for this number of texts.
    pub fn runs_on(self, device: &Device, texts: usize) -> bool {
        (1..=MAX_TEXTS).contains(&texts) && Tuning::of(device).allows(device, self.kernel(texts))
    }

    /// Returns whether the device has the required capabilities, apart from self-tests.
    pub fn is_for(self, device: &Capabilities) -> bool {
        self.kernel(1).runs_on(device)
    }

    /// Returns the maximum number of groups.
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

    /// Returns the work-items of a group.
    pub(super) fn items(self) -> usize {
        ITEMS + if self == Self::Ring { 32 } else { 0 }
    }
}

/// Returns whether a single-launch step runs on a device.
pub(crate) fn runs_on(device: &Device) -> bool {
    WeightPath::Ring.runs_on(device, 1)
}
