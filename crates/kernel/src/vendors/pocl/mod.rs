//! PoCL, OpenCL on processors.

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

/// Instructions of x86 that multiply bytes, four at a time.
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
    /// Whether texts may have them: PoCL's compiler passes instructions of x86 on, and the processor that it runs on has these. The device's
    /// name says for which processor it compiles, which may be an older one with as wide registers.
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
