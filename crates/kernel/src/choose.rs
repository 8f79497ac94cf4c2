//! Chooses the kernel variant for a launch.

use crate::kernel::Kernel;
use crate::tune::Tuning;
use crate::variants::{Usable, Variants};
use netcl_device::{Device, Error, Result};
use std::sync::Arc;

impl Variants {
    /// Returns the variants that can be used for a class of shapes on a device, in order of preference.
    pub fn usable(&'static self, device: &Device, bucket: u64) -> Arc<Usable> {
        Tuning::of(device).usable(device, self, bucket)
    }
    /// Returns the variant for a class of shapes on a device.
    ///
    /// # Errors
    /// `Unsupported` if no variant runs on the device.
    pub fn choose(&'static self, device: &Device, bucket: u64) -> Result<&'static Kernel> {
        self.choose_where(device, bucket, |_| true)
    }
    /// Returns the best variant that `fits` accepts. `fits` checks the shapes of a launch, not the device.
    ///
    /// # Errors
    /// `Unsupported` if no variant fits.
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
                "{}: none of its variants ({}) supports this shape on {}",
                self.name(),
                names.join(", "),
                device.capabilities().id
            ))
        })
    }
}
