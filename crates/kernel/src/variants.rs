//! Which of several texts for the same job a launch uses.

use crate::kernel::Kernel;
use crate::tune::Tuning;
use netcl_device::{Device, Error, Result};
use std::sync::Arc;

/// Which kernels of a job can be used.
pub struct Usable {
    /// Those that run on the device and are neither disabled nor in quarantine: the wanted one, then the others in their own order.
    pub kernels: Vec<&'static Kernel>,
    /// Whether the first is wanted: tried out, named in `NETCL_PREFER`, or measured as fastest for the class of shapes.
    pub wanted: bool,
}

/// Kernels that do the same job under different assumptions, the preferred first. They are candidates of one search: what
/// was measured fastest goes first, what failed its self-test or is disabled (`NETCL_DISABLE`) is left out.
///
/// ```
/// use netcl_kernel::{Kernel, Variants};
/// static TILE: Kernel = Kernel::new("sum_tile", "…").requires(|c| c.local_mem >= 32 << 10);
/// static PLAIN: Kernel = Kernel::new("sum_plain", "…");
/// static SUM: Variants = Variants::new("sum", &[&TILE, &PLAIN]);
/// // SUM.choose(&device, 0)?.launch("sum_fwd")…
/// ```
pub struct Variants {
    name: &'static str,
    kernels: &'static [&'static Kernel],
}

impl Variants {
    /// Variants of the job `name`.
    pub const fn new(name: &'static str, kernels: &'static [&'static Kernel]) -> Self {
        Self { name, kernels }
    }
    /// The job's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// All of them, in order of preference.
    pub fn kernels(&self) -> &'static [&'static Kernel] {
        self.kernels
    }
    /// Changes when one of their texts does: which is fastest was found about these.
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for kernel in self.kernels {
            hash.update(kernel.name.as_bytes());
            hash.update(kernel.fingerprint().as_bytes());
        }
        hash.finalize().to_hex()[..16].into()
    }
    /// Those that can be used for a class of shapes on a device, in order of preference.
    pub fn usable(&'static self, device: &Device, bucket: u64) -> Arc<Usable> {
        Tuning::of(device).usable(device, self, bucket)
    }
    /// The variant for a class of shapes on a device.
    ///
    /// # Errors
    /// `Unsupported` when none runs there.
    pub fn choose(&'static self, device: &Device, bucket: u64) -> Result<&'static Kernel> {
        self.choose_where(device, bucket, |_| true)
    }
    /// The same among those that `fits` accepts: what depends on a launch's shapes, not on the device.
    ///
    /// # Errors
    /// `Unsupported` when there is none.
    pub fn choose_where(
        &'static self,
        device: &Device,
        bucket: u64,
        fits: impl Fn(&Kernel) -> bool,
    ) -> Result<&'static Kernel> {
        let usable = Tuning::of(device).usable(device, self, bucket);
        usable.kernels.iter().copied().find(|k| fits(k)).ok_or_else(|| {
            let names: Vec<&str> = self.kernels.iter().map(|k| k.name).collect();
            Error::unsupported(format!(
                "{}: none of its variants ({}) runs on {} for this shape",
                self.name,
                names.join(", "),
                device.capabilities().id
            ))
        })
    }
}
