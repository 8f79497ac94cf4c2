//! Several kernels for the same job.
//!
//! A variant is named by its assumption (`softmax_rows`) and has a predicate on the device's capabilities. A variant that `netcl tune` measured as
//! faster for a class of shapes has priority. Skipped variants cause a warning. A kernel's tuned parameters are chosen in the same way. `netcl tune
//! --list` shows the stored measurements of a choice. If sizes and layouts matter as much as the device, there is a table of algorithms with
//! estimated times instead (`netcl_tensor::ops::algorithms`).

use crate::kernel::Kernel;

/// The usable kernels of a job.
pub struct Usable {
    /// Kernels that run on the device and are neither disabled nor in quarantine: the wanted one, then the others in their order.
    pub kernels: Vec<&'static Kernel>,
    /// Whether the first kernel is wanted: tried out, named in `NETCL_PREFER`, or measured as fastest for the class of shapes.
    pub wanted: bool,
}

/// Kernels that do the same job under different assumptions, in order of preference. They are candidates of one search. The fastest measured kernel
/// goes first; kernels that failed their self-test or are disabled (`NETCL_DISABLE`) are omitted.
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
    /// Returns variants of the job `name`.
    pub const fn new(name: &'static str, kernels: &'static [&'static Kernel]) -> Self {
        Self { name, kernels }
    }
    /// Returns the job's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
    /// Returns all kernels, in order of preference.
    pub fn kernels(&self) -> &'static [&'static Kernel] {
        self.kernels
    }
    /// Returns a hash that changes if one of their sources does: a measured order is valid only for these sources.
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for kernel in self.kernels {
            hash.update(kernel.name.as_bytes());
            hash.update(kernel.fingerprint().as_bytes());
        }
        hash.finalize().to_hex()[..16].into()
    }
}
