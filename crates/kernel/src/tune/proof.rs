//! Variants that rely on more than OpenCL promises prove themselves before their first use.

use super::{Suspect, Tuning};
use crate::kernel::Kernel;
use netcl_device::{Device, Result};
use std::sync::PoisonError;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// A test of milliseconds, and compiling its kernels, that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(60);

impl Tuning {
    /// Whether `kernel` passes `test` on this device. The test runs once, at the first question; a variant that fails it is
    /// avoided from now on, with a line that says so, as `netcl doctor` would have it.
    ///
    /// A wrong barrier or tensor map hangs the queue and no call ever returns. So the variant is quarantined on disk before the test
    /// and released after it: a program that had to be killed meets it no second time.
    pub fn proven(
        &self,
        device: &Device,
        kernel: &'static Kernel,
        test: impl FnOnce() -> Result<()>,
    ) -> bool {
        if device.settings().trust_kernels {
            return true;
        }
        let key = std::ptr::from_ref(kernel) as usize;
        if let Some(proven) = self.proofs.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return *proven;
        }
        // The test launches the kernel itself.
        self.settle(key, true);
        self.hold(kernel, "it did not come back from the test before its first use");
        let outcome = device.aside(|| watched(kernel.name, test));
        match &outcome {
            Ok(()) => self.release(kernel),
            Err(e) => self.retire(device, kernel, &format!("the test before its first use: {}", e.message())),
        }
        self.settle(key, outcome.is_ok());
        outcome.is_ok()
    }

    /// Avoids a variant from now on, with a warning: it failed after it was chosen.
    pub fn retire(&self, device: &Device, kernel: &'static Kernel, why: &str) {
        let short = why.lines().next().unwrap_or(why);
        tracing::warn!(
            "kernel {} on {} is avoided from now on: {short}",
            kernel.name,
            device.capabilities().id
        );
        self.hold(kernel, why);
        self.refresh();
    }

    fn settle(&self, key: usize, proven: bool) {
        self.proofs.write().unwrap_or_else(PoisonError::into_inner).insert(key, proven);
    }

    fn hold(&self, kernel: &Kernel, why: &str) {
        let mut suspects = self.others(kernel);
        let text = Some(kernel.fingerprint());
        suspects.push(Suspect { kernel: kernel.name.into(), params: None, text, why: why.into() });
        self.keep(suspects);
    }

    fn release(&self, kernel: &Kernel) {
        self.keep(self.others(kernel));
    }

    fn others(&self, kernel: &Kernel) -> Vec<Suspect> {
        let all = self.quarantine().suspects().into_iter();
        all.filter(|s| s.kernel != kernel.name || s.params.is_some()).collect()
    }

    fn keep(&self, suspects: Vec<Suspect>) {
        self.quarantine().replace(suspects);
        if let Err(e) = self.quarantine().save() {
            tracing::warn!("{e}");
        }
    }
}

/// Runs the test; says so when it does not end.
fn watched(name: &'static str, test: impl FnOnce() -> Result<()>) -> Result<()> {
    let (done, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                tracing::error!(
                    "the test of kernel {name} has not ended for {} s, so the device hangs. Stop this program; the next one avoids \
                     the kernel",
                    PATIENCE.as_secs()
                );
            }
        });
        let outcome = test();
        drop(done);
        outcome
    })
}
