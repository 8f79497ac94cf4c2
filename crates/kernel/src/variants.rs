//! Several texts for the same job.

use crate::kernel::Kernel;

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
}
