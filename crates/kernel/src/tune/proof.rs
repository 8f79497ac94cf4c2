//! Self-test of a kernel variant before its first use, for variants that rely on behaviour OpenCL does not guarantee (vendor instructions,
//! binary layouts, barriers between work-groups).

use super::{Suspect, Tuning};
use crate::kernel::Kernel;
use netcl_device::{Device, Result};
use std::sync::PoisonError;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Reason recorded for a variant while its self-test runs; it stays in the file if the process dies during the test.
const UNFINISHED: &str = "it did not come back from the test before its first use";
/// Number of consecutive processes that died during the self-test from which on the variant counts as hanging.
const AVOIDED: u32 = 2;
/// Time limit of a self-test, compilation included. A test takes milliseconds, so one that exceeds this is taken as a hang.
const PATIENCE: Duration = Duration::from_secs(60);

impl Tuning {
    /// Whether a kernel may be used on the device: it runs there, no self-test of it failed, and `NETCL_DISABLE` does not list it.
    pub fn allows(&self, device: &Device, kernel: &Kernel) -> bool {
        kernel.runs_on(device.capabilities()) && self.quarantine().allows(device, kernel)
    }

    /// Whether `kernel` passes `test` on this device. The test runs at the first call; later calls return the stored outcome. A variant
    /// that fails is put into quarantine, with a warning, as `netcl doctor` does.
    ///
    /// A wrong barrier or tensor map can hang the command queue, so that no call returns. Therefore the variant is entered in the
    /// quarantine file before the test and removed after it. A test that exceeds the time limit makes the entry permanent: the
    /// process may have to be killed, and the next one does not use the variant. A process that dies within the time limit may have
    /// been stopped by its user: the next process tests once more, and a second death in a row counts as a hang.
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
        if device.settings().no_results {
            if let Err(e) = test() {
                tracing::debug!("the test of {}: {e}", kernel.name);
            }
            return true;
        }
        let before = self.ended_in_test(kernel);
        self.hold(kernel, UNFINISHED, before + 1);
        let hangs = || self.hold(kernel, UNFINISHED, AVOIDED.max(before + 1));
        let outcome = device.outside_capture(|| watched(kernel.name, PATIENCE, hangs, test));
        match &outcome {
            Ok(()) => self.release(kernel),
            Err(e) => self.retire(device, kernel, &format!("the test before its first use: {}", e.message())),
        }
        self.settle(key, outcome.is_ok());
        outcome.is_ok()
    }

    /// Puts a variant that failed in use into quarantine, with a warning.
    pub fn retire(&self, device: &Device, kernel: &'static Kernel, why: &str) {
        let short = why.lines().next().unwrap_or(why);
        tracing::warn!(
            "kernel {} on {} is not used from now on: {short}",
            kernel.name,
            device.capabilities().id
        );
        self.hold(kernel, why, 0);
        self.refresh();
    }

    fn settle(&self, key: usize, proven: bool) {
        self.proofs.write().unwrap_or_else(PoisonError::into_inner).insert(key, proven);
    }

    /// Number of consecutive processes that died during the self-test of this kernel text.
    fn ended_in_test(&self, kernel: &Kernel) -> u32 {
        let text = kernel.fingerprint();
        let suspects = self.quarantine().suspects().into_iter();
        let mut mine = suspects.filter(|s| s.kernel == kernel.name && s.params.is_none());
        mine.find(|s| s.text.as_ref() == Some(&text)).map_or(0, |s| s.ended())
    }

    fn hold(&self, kernel: &Kernel, why: &str, unfinished: u32) {
        self.set(
            kernel,
            Some(Suspect {
                kernel: kernel.name.into(),
                params: None,
                text: Some(kernel.fingerprint()),
                why: why.into(),
                unfinished,
                process: (unfinished > 0).then(std::process::id),
                started: netcl_device::files::started(std::process::id()).filter(|_| unfinished > 0),
            }),
        );
    }

    fn release(&self, kernel: &Kernel) {
        self.set(kernel, None);
    }

    fn set(&self, kernel: &Kernel, suspect: Option<Suspect>) {
        if let Err(e) = self.quarantine().set(kernel, suspect) {
            tracing::warn!("{e}");
        }
    }
}

/// Runs the test on this thread; if it exceeds the time limit, another thread calls `hangs` and logs an error.
fn watched(
    name: &'static str,
    patience: Duration,
    hangs: impl FnOnce() + Send,
    test: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (done, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if waiting.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                hangs();
                tracing::error!(
                    "the test of kernel {name} has not ended for {} s, so the device hangs. Stop this program; the next one avoids \
                     the kernel",
                    patience.as_secs()
                );
            }
        });
        let outcome = test();
        drop(done);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::null::NullDriver;
    use netcl_device::{Capabilities, DeviceKind, Settings};
    use std::sync::atomic::{AtomicBool, Ordering};

    static KERNEL: Kernel = Kernel::new("proof_test", "__kernel void f(__global float *x) { x[0] = 1; }");

    /// The device as one process opens it: with the quarantine file that earlier processes left.
    fn program(settings: &Settings) -> Device {
        let capabilities = Capabilities::floor("gpu:0", DeviceKind::Gpu);
        Device::from_driver(Box::new(NullDriver::new(capabilities)), settings.clone())
    }

    fn avoided(settings: &Settings) -> bool {
        let device = program(settings);
        let tuning = Tuning::of(&device);
        let found = tuning.quarantine().suspects();
        found.iter().any(|s| s.kernel == KERNEL.name && s.is_avoided())
    }

    /// A process killed during the self-test: the next process finds the file as it was at that moment.
    fn killed(settings: &Settings, hang: bool) {
        let device = program(settings);
        let tuning = Tuning::of(&device);
        let path = tuning.quarantine().path().unwrap().to_owned();
        let mut left = String::new();
        assert!(tuning.proven(&device, &KERNEL, || {
            if hang {
                tuning.hold(&KERNEL, UNFINISHED, AVOIDED);
            }
            let mine = format!("\"process\": {}", std::process::id());
            left = std::fs::read_to_string(&path).unwrap().replace(&mine, "\"process\": null");
            Ok(())
        }));
        std::fs::write(&path, left).unwrap();
    }

    #[test]
    fn a_program_stopped_in_the_test_gives_one_more_try_and_two_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
        killed(&settings, false);
        assert!(!avoided(&settings), "stopped once: perhaps by Ctrl-C");
        killed(&settings, false);
        assert!(avoided(&settings), "stopped twice");
        // A test that comes back takes the mark away.
        let device = program(&settings);
        assert!(Tuning::of(&device).proven(&device, &KERNEL, || Ok(())));
        assert!(!avoided(&settings));
        killed(&settings, false);
        assert!(!avoided(&settings), "the count began anew");
    }

    #[test]
    fn a_hang_that_was_seen_is_avoided_at_once_and_another_text_starts_anew() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
        killed(&settings, true);
        assert!(avoided(&settings));
        static EDITED: Kernel = Kernel::new("proof_test", "__kernel void f(__global float *x) { x[0] = 2; }");
        let device = program(&settings);
        assert_eq!(Tuning::of(&device).ended_in_test(&EDITED), 0);
        assert_eq!(Tuning::of(&device).ended_in_test(&KERNEL), AVOIDED);
    }

    #[test]
    fn the_watchdog_tells_a_long_test_from_one_that_ends() {
        let told = AtomicBool::new(false);
        let hangs = || told.store(true, Ordering::SeqCst);
        watched("quick", Duration::from_secs(600), hangs, || Ok(())).unwrap();
        assert!(!told.load(Ordering::SeqCst));
        let long = || {
            while !told.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Ok(())
        };
        watched("long", Duration::from_millis(1), hangs, long).unwrap();
        assert!(told.load(Ordering::SeqCst));
    }

    /// A second device of the process, or a second process, that starts during a self-test neither counts that test as interrupted nor
    /// writes its entry back after it was removed.
    #[test]
    fn tests_at_one_time_leave_no_mark() {
        static OTHER: Kernel =
            Kernel::new("proof_test_other", "__kernel void g(__global float *x) { x[0] = 2; }");
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
        let first = program(&settings);
        let mut second = None;
        assert!(Tuning::of(&first).proven(&first, &KERNEL, || {
            let device = program(&settings);
            let tuning = Tuning::of(&device);
            assert!(tuning.proven(&device, &KERNEL, || {
                assert!(!avoided(&settings), "tested twice at one time");
                Ok(())
            }));
            second = Some((program(&settings), device));
            Ok(())
        }));
        let (second, _) = second.unwrap();
        assert!(Tuning::of(&second).proven(&second, &OTHER, || Ok(())));
        assert!(Tuning::of(&program(&settings)).quarantine().suspects().is_empty());
    }
}
