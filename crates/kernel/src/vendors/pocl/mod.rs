//! PoCL, OpenCL on CPUs.

mod header;

pub(crate) use header::Header;

use super::Hooks;
use netcl_device::Capabilities;

pub(super) const HOOKS: Hooks = Hooks {
    applies: |device| device.id.starts_with("pocl:"),
    options: |_| String::new(),
    keeps_kernels: true,
    header: Header::of_driver,
};

/// x86 instructions that multiply bytes, four at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteProducts {
    /// `vpdpbusd` of 512 bits.
    Avx512Vnni,
    /// `vpdpbusd` of 256 bits.
    AvxVnni,
    /// `vpmaddubsw` and `vpmaddwd` of 256 bits.
    Avx2,
}

impl ByteProducts {
    /// Returns true if kernel sources may use the instructions. PoCL's compiler must accept x86 instructions, and the processor must support them.
    /// The device name contains the processor that PoCL compiles for, which may be an older one with equally wide registers.
    pub fn run_on(self, device: &Capabilities) -> bool {
        device.id.starts_with("pocl:") && device.is_cpu() && self.detected()
    }

    #[cfg(target_arch = "x86_64")]
    fn detected(self) -> bool {
        match self {
            Self::Avx512Vnni => {
                std::is_x86_feature_detected!("avx512vnni") && std::is_x86_feature_detected!("avx512bw")
            }
            Self::AvxVnni => std::is_x86_feature_detected!("avxvnni"),
            Self::Avx2 => std::is_x86_feature_detected!("avx2"),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detected(self) -> bool {
        false
    }
}
