//! Which of several texts for the same job a launch uses.

use crate::kernel::Kernel;
use crate::tune::Tuning;
use crate::variants::{Usable, Variants};
use netcl_device::{Device, Error, Result};
use std::sync::Arc;

impl Variants {
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
            let names: Vec<&str> = self.kernels().iter().map(|k| k.name).collect();
            Error::unsupported(format!(
                "{}: none of its variants ({}) runs on {} for this shape",
                self.name(),
                names.join(", "),
                device.capabilities().id
            ))
        })
    }
}
