//! Self-test of a kernel variant before its first use. It covers variants that rely on behavior that OpenCL does not guarantee: vendor instructions,
//! binary layouts, barriers between work-groups.
//!
//! During the test the variant is in quarantine on disk, because a wrong barrier can hang a device without an error.

use super::{Suspect, Tuning};
use crate::kernel::Kernel;
use netcl_device::{Device, Error, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Reason recorded for a variant while its self-test runs. It stays in the file if the process dies during the test.
const UNFINISHED: &str = "it did not come back from the test before its first use";
/// Number of consecutive processes that died during the self-test after which the variant counts as hanging.
const AVOIDED: u32 = 2;
/// Time limit of a self-test, including compilation. A test takes milliseconds, so a longer one counts as a hang.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

impl Tuning {
    /// Returns true if a kernel may be used on the device: it runs there, no self-test of it failed, and `NETCL_DISABLE` does not list it.
    pub fn allows(&self, device: &Device, kernel: &Kernel) -> bool {
        kernel.runs_on(device.capabilities()) && self.quarantine().allows(device, kernel)
    }

    /// Returns true if `kernel` passes `test` on this device. The first call runs the test. Calls of other threads wait for it, and later calls
    /// return the stored outcome. A variant that fails, or whose test panics, is quarantined with a warning, the same as in `netcl doctor`.
    ///
    /// A wrong barrier or tensor map can hang the command queue, so that no call returns. Therefore the variant is entered in the quarantine file
    /// before the test and removed after it. A test that exceeds the time limit makes the entry permanent. The process may then have to be killed,
    /// and the next one does not use the variant. A process that dies within the time limit may have been stopped by its user. The next process tests
    /// once more, and a second consecutive death counts as a hang.
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
        if let Some(proven) = self.outcome(key) {
            return proven;
        }
        let mut turn = match self.begin_test(key) {
            Ok(turn) => turn,
            Err(answer) => return answer,
        };
        if device.settings().no_results {
            if let Err(e) = test() {
                tracing::debug!("the test of {}: {e}", kernel.name);
            }
            turn.proven = true;
            return true;
        }
        let before = self.ended_in_test(kernel);
        self.hold(kernel, UNFINISHED, before + 1);
        let hangs = || self.hold(kernel, UNFINISHED, AVOIDED.max(before + 1));
        let outcome = device.outside_capture(|| watched(kernel.name, TEST_TIMEOUT, hangs, test));
        match &outcome {
            Ok(()) => self.release(kernel),
            Err(e) => self.retire(device, kernel, &format!("the test before its first use: {}", e.message())),
        }
        turn.proven = outcome.is_ok();
        turn.proven
    }

    /// Returns the outcome of a kernel's test after it has ended.
    fn outcome(&self, key: usize) -> Option<bool> {
        self.proofs.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
    }

    /// Claims the kernel's test, or waits until another thread has ended it. The error is the answer if no test is needed.
    ///
    /// The test itself launches the kernel, so the testing thread gets `true`. A thread that is testing another kernel does not wait, because two
    /// such threads could deadlock. It gets `false` and uses another variant.
    fn begin_test(&self, key: usize) -> std::result::Result<Turn<'_>, bool> {
        let me = std::thread::current().id();
        let mut testing = self.testing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(proven) = self.outcome(key) {
                return Err(proven);
            }
            match testing.get(&key) {
                None => break,
                Some(thread) if *thread == me => return Err(true),
                Some(_) if testing.values().any(|thread| *thread == me) => return Err(false),
                Some(_) => testing = self.tested.wait(testing).unwrap_or_else(PoisonError::into_inner),
            }
        }
        testing.insert(key, me);
        Ok(Turn { tuning: self, key, proven: false })
    }

    /// Quarantines a variant that failed in use, with a warning.
    pub fn retire(&self, device: &Device, kernel: &'static Kernel, why: &str) {
        let short = why.lines().next().unwrap_or(why);
        tracing::warn!("kernel {} on {} is no longer used: {short}", kernel.name, device.capabilities().id);
        self.hold(kernel, why, 0);
        self.refresh();
    }

    /// Quarantines a variant whose build ended the compiling process. The caller can retry the launch with another variant; [`take_crash`] reports
    /// this.
    pub(crate) fn retire_crashing(&self, device: &Device, kernel: &Kernel, why: &str) {
        CRASHED.set(Some(kernel.name));
        if self.quarantine().allows(device, kernel) {
            tracing::warn!("kernel {} on {} is no longer used: {why}", kernel.name, device.capabilities().id);
            self.hold(kernel, why, 0);
            self.refresh();
        }
    }

    /// Returns the number of consecutive processes that died during the self-test of this kernel source.
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

thread_local! {
    /// The kernel of this thread's last build that ended its process.
    static CRASHED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Returns and clears the kernel of this thread's last build that ended its process. A caller that checks before and after a launch knows whether to
/// retry with another variant.
pub fn take_crash() -> Option<&'static str> {
    CRASHED.take()
}

/// A thread's test of a kernel. Waiting threads are notified when it ends, even by a panic outside the test.
struct Turn<'a> {
    tuning: &'a Tuning,
    key: usize,
    proven: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let tuning = self.tuning;
        tuning.proofs.write().unwrap_or_else(PoisonError::into_inner).insert(self.key, self.proven);
        tuning.testing.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        tuning.tested.notify_all();
    }
}

/// Runs the test on this thread and converts a panic to an error. If it exceeds the time limit, another thread calls `hangs` and logs an error.
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
        let outcome = catch_unwind(AssertUnwindSafe(test));
        drop(done);
        outcome.unwrap_or_else(|_| Err(Error::internal("the test panicked")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::null::NullDriver;
    use netcl_device::{Capabilities, DeviceKind, Settings};
    use std::sync::atomic::{AtomicBool, Ordering};

    static KERNEL: Kernel = Kernel::new("proof_test", "__kernel void f(__global float *x) { x[0] = 1; }");

    /// Opens the device like a new process: with the quarantine file that earlier processes left.
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

    /// Simulates a process that is killed during the self-test: the next process finds the file in its state at that moment.
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
        assert!(!avoided(&settings), "stopped once: possibly by Ctrl-C");
        killed(&settings, false);
        assert!(avoided(&settings), "stopped twice");
        // A test that returns removes the mark.
        let device = program(&settings);
        assert!(Tuning::of(&device).proven(&device, &KERNEL, || Ok(())));
        assert!(!avoided(&settings));
        killed(&settings, false);
        assert!(!avoided(&settings), "the count started again");
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

    /// Threads that ask during the test wait for its outcome, and none uses a kernel that fails.
    #[test]
    fn no_thread_uses_a_kernel_before_its_test_has_passed() {
        static WRONG: Kernel =
            Kernel::new("proof_test_wrong", "__kernel void h(__global float *x) { x[0] = 3; }");
        let device = program(&Settings::default());
        let tuning = Tuning::of(&device);
        let (begun, go) = (std::sync::Barrier::new(2), AtomicBool::new(false));
        let answers = std::thread::scope(|scope| {
            let tester = scope.spawn(|| {
                tuning.proven(&device, &WRONG, || {
                    begun.wait();
                    assert!(tuning.proven(&device, &WRONG, || Ok(())), "the test itself launches it");
                    while !go.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    Err(Error::launch("element 7 is 2, expected 1"))
                })
            });
            begun.wait();
            let others: Vec<_> =
                (0..4).map(|_| scope.spawn(|| tuning.proven(&device, &WRONG, || Ok(())))).collect();
            std::thread::sleep(Duration::from_millis(20));
            assert!(others.iter().all(|thread| !thread.is_finished()), "answered during the test");
            go.store(true, Ordering::SeqCst);
            others.into_iter().chain([tester]).map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(answers, [false; 5]);
    }

    #[test]
    fn a_kernel_whose_test_panics_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_dir: Some(folder.path().into()), ..Settings::default() };
        let device = program(&settings);
        let tuning = Tuning::of(&device);
        let ask = |panics: bool| {
            tuning.proven(&device, &KERNEL, || {
                assert!(!panics, "on purpose");
                Ok(())
            })
        };
        assert!(!ask(true) && !ask(false));
        let found = tuning.quarantine().suspects();
        assert!(
            found.len() == 1 && found[0].why.contains("panicked") && found[0].unfinished == 0,
            "{found:?}"
        );
        assert!(avoided(&settings));
    }

    /// Two tests that launch each other's kernels at the same time both end.
    #[test]
    fn tests_that_need_each_other_end() {
        static FIRST: Kernel = Kernel::new("proof_test_first", "__kernel void a(__global float *x) {}");
        static SECOND: Kernel = Kernel::new("proof_test_second", "__kernel void b(__global float *x) {}");
        let device = program(&Settings::default());
        let (tuning, both) = (Tuning::of(&device), std::sync::Barrier::new(2));
        let test = |own: &'static Kernel, other: &'static Kernel| {
            tuning.proven(&device, own, || {
                both.wait();
                assert!(!tuning.proven(&device, other, || Ok(())), "another thread tests it");
                both.wait();
                Ok(())
            })
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| test(&SECOND, &FIRST));
            assert!(test(&FIRST, &SECOND) && second.join().unwrap());
        });
    }

    /// A second device or process may start during a self-test. It neither counts that test as interrupted nor writes its entry back after removal.
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
                assert!(!avoided(&settings), "tested twice at the same time");
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
