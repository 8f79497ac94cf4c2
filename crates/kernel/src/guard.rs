//! Crash guard for builds. On a driver that has not passed a self-test, a first build runs in another process. A compiler that aborts, exits or
//! crashes ends only that process, and this one learns which kernel caused it.
//!
//! `netcl doctor` records a driver whose self-test passed ([`DriverRecord`]). From then on, builds run only in this process.

use crate::order::{BUILT, Line, Order, READY};
use netcl_device::{Builders, Capabilities, Device, Error, Result, Settings, files};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Number of lines of a process's standard error that an error quotes.
const QUOTED_LINES: usize = 4;

/// Outcome of a build in another process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BuildOutcome {
    /// The compiler returned a program, or an error that a build here repeats.
    Returned,
    /// The process ended. Contains how it ended and its last output.
    Ended(String),
}

/// Returns true if builds on a device must first run in a separate process.
pub(crate) fn wanted(device: &Device) -> bool {
    let (settings, capabilities) = (device.settings(), device.capabilities());
    let own = capabilities.simulated || settings.no_results || settings.trust_driver;
    settings.builders.is_some() && !own && !DriverRecord::of(settings, capabilities).has_passed()
}

/// A build process, kept between builds.
#[derive(Default)]
pub(crate) struct Guard {
    process: Mutex<Option<Process>>,
    /// Set if processes cannot start.
    given_up: AtomicBool,
}

impl Guard {
    /// Builds an order in the other process and starts that process if necessary. If it ends, the compiler is blamed only if a fresh process ends at
    /// the same order.
    pub fn build(&self, builders: &Builders, device: &str, order: &Order) -> BuildOutcome {
        if self.given_up.load(Ordering::Relaxed) {
            return BuildOutcome::Returned;
        }
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = false;
        loop {
            let mut running = match process.take() {
                Some(running) => running,
                None => match Process::start(builders, device) {
                    Ok(started) => {
                        fresh = true;
                        started
                    }
                    Err(e) => {
                        tracing::warn!(
                            "{device}: kernels are built in this process, because no other process starts: {e}"
                        );
                        self.given_up.store(true, Ordering::Relaxed);
                        return BuildOutcome::Returned;
                    }
                },
            };
            match running.ask(order) {
                Ok(answer) => {
                    if answer != BUILT {
                        tracing::debug!("{}: {answer}", order.kernel);
                    }
                    *process = Some(running);
                    return BuildOutcome::Returned;
                }
                Err(_) if fresh => return running.end(),
                // The process may have ended since its last order, by an idle timeout or a signal.
                Err(_) => {}
            }
        }
    }
}

struct Process {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    errors: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    fn start(builders: &Builders, device: &str) -> std::io::Result<Self> {
        let mut command = builders.command(device);
        // A terminal signal is intended for this process, which may finish its work before it ends.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let gone = || std::io::Error::other("no pipe");
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        let stderr = BufReader::new(child.stderr.take().ok_or_else(gone)?);
        let errors: Arc<Mutex<VecDeque<String>>> = Arc::default();
        let lines = Arc::clone(&errors);
        let reader = std::thread::spawn(move || {
            for line in stderr.split(b'\n').map_while(std::result::Result::ok) {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push_back(String::from_utf8_lossy(&line).trim().to_owned());
                if lines.len() > QUOTED_LINES {
                    lines.pop_front();
                }
            }
        });
        let mut process = Self { child, to, from, errors, reader: Some(reader) };
        // The device is now open; a process that ended earlier did not end because of a kernel.
        match process.answer() {
            Ok(line) if line == READY => Ok(process),
            Ok(line) => Err(std::io::Error::other(line)),
            Err(_) => Err(std::io::Error::other(process.last_words().1)),
        }
    }

    fn ask(&mut self, order: &Order) -> std::io::Result<String> {
        let gone = || std::io::Error::other("the process ended");
        let to = self.to.as_mut().ok_or_else(gone)?;
        let mut line = Line::from(order.clone());
        line.entries = true;
        let line = serde_json::to_string(&line).map_err(std::io::Error::other)?;
        writeln!(to, "{line}").and_then(|()| to.flush())?;
        self.answer()
    }

    fn answer(&mut self) -> std::io::Result<String> {
        let mut answer = String::new();
        match self.from.read_line(&mut answer)? {
            0 => Err(std::io::Error::other("the process ended")),
            _ => Ok(answer.trim().to_owned()),
        }
    }

    /// Returns the outcome of an order at which the process ended. An external signal says nothing about the compiler.
    fn end(self) -> BuildOutcome {
        let (sent, words) = self.last_words();
        if sent { BuildOutcome::Returned } else { BuildOutcome::Ended(words) }
    }

    /// Returns whether an external signal ended the process, and how it ended with its last output.
    fn last_words(mut self) -> (bool, String) {
        self.to = None;
        let status = self.child.wait();
        let sent = status.as_ref().is_ok_and(was_stopped);
        let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        if let Some(reader) = self.reader.take() {
            // The reader ends with the pipe; a panic in it carries no information.
            let _ = reader.join();
        }
        let lines = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        (sent, if lines.is_empty() { status } else { format!("{status}: {}", lines.join(" / ")) })
    }
}

/// Returns true if a process was ended by a signal that users and systems send: SIGHUP, SIGINT, SIGKILL, SIGTERM.
#[cfg(unix)]
fn was_stopped(status: &std::process::ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(status)
        .is_some_and(|signal| [1, 2, 9, 15].contains(&signal))
}

#[cfg(not(unix))]
fn was_stopped(_: &std::process::ExitStatus) -> bool {
    false
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process ends with its input. If it is still building, do not wait for it.
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Records of drivers that passed a self-test: one file per device, driver and netcl version under `<cache>/drivers`.
pub struct DriverRecord(Option<PathBuf>);

impl DriverRecord {
    /// Returns the record of a device's driver.
    pub fn of(settings: &Settings, device: &Capabilities) -> Self {
        let mut hash = blake3::Hasher::new();
        let version = env!("CARGO_PKG_VERSION");
        for part in [version, &device.id, &device.name, &device.driver_version, &device.platform_version] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let name = hash.finalize().to_hex()[..32].to_string();
        Self(settings.cache_dir.as_ref().map(|dir| dir.join("drivers").join(name)))
    }

    /// Returns true if the driver has passed.
    pub fn has_passed(&self) -> bool {
        self.0.as_ref().is_some_and(|path| path.is_file())
    }

    /// Records the outcome of a self-test.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn set(&self, passed: bool) -> Result<()> {
        let Some(path) = &self.0 else { return Ok(()) };
        if !passed {
            return match std::fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("removing", path, &e)),
                _ => Ok(()),
            };
        }
        let folder = path.parent().unwrap_or(path);
        files::create_private(folder).map_err(|e| Error::io("creating", folder, &e))?;
        files::replace(path, b"passed\n").map_err(|e| Error::io("writing", path, &e))
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // helpers of tests
mod tests {
    use super::*;
    use crate::tune::Tuning;
    use crate::{Kernel, Variants};
    use netcl_device::{DeviceKind, ErrorKind, null::NullDriver};

    static FAST: Kernel = Kernel::new("guard_fast", "__kernel void job(__global float *x) { x[0] = 1; }");
    static PLAIN: Kernel = Kernel::new("guard_plain", "__kernel void job(__global float *x) { x[0] = 2; }");
    static JOB: Variants = Variants::new("guard_job", &[&FAST, &PLAIN]);

    /// Returns a device whose build process is a shell with this script.
    fn device(folder: &std::path::Path, script: &str) -> Device {
        let builders =
            Builders { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()], most: 1 };
        let settings =
            Settings { cache_dir: Some(folder.into()), builders: Some(builders), ..Settings::default() };
        Device::from_driver(
            Box::new(NullDriver::new(Capabilities::floor("odd:0", DeviceKind::Gpu))),
            settings,
        )
    }

    fn run(device: &Device) -> Result<()> {
        let x = device.allocate(64)?;
        JOB.choose(device, 0)?.launch("job").write(&x).groups(1).run()
    }

    /// Ends like a compiler crash at each source of the first variant.
    const CRASHES: &str = "echo ready; while read -r line; do case \"$line\" in *'// guard_fast'*) \
        echo 'unknown intrinsic' >&2; kill -SEGV $$;; *) echo built;; esac; done";

    #[test]
    fn a_compiler_that_crashes_ends_another_process_and_the_next_variant_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let device = device(folder.path(), CRASHES);
        let error = run(&device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Build);
        for part in ["guard_fast", "odd:0", "signal", "unknown intrinsic", "netcl devices"] {
            assert!(error.message().contains(part), "{part} is missing in: {error}");
        }
        assert_eq!(JOB.choose(&device, 0).unwrap().name, "guard_plain");
        run(&device).unwrap();
        // Later programs avoid it too.
        let tuning = Tuning::of(&super::tests::device(folder.path(), CRASHES));
        assert!(tuning.quarantine().suspects()[0].why.contains("unknown intrinsic"));
    }

    #[test]
    fn a_driver_that_passed_its_self_test_builds_in_this_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut device = device(folder.path(), "echo ready; read -r line; exit 3");
        assert!(wanted(&device) && run(&device).is_err());
        let record = DriverRecord::of(device.settings(), device.capabilities());
        record.set(true).unwrap();
        device = super::tests::device(folder.path(), "echo ready; read -r line; exit 3");
        Tuning::of(&device).quarantine().replace(Vec::new());
        assert!(!wanted(&device));
        run(&device).unwrap();
        record.set(false).unwrap();
        record.set(false).unwrap();
        assert!(wanted(&device));
    }

    /// Blames no kernel if the device does not open in the process, the process was idle for too long, or a user stopped it.
    #[test]
    fn ends_that_are_not_the_compilers_blame_no_kernel() {
        let once = "read -r line; echo built; exit 0";
        let killed = "read -r line; kill -KILL $$";
        for script in [
            "exit 1".to_owned(),
            "echo no such device; exit 1".into(),
            format!("echo ready; {once}"),
            format!("echo ready; {killed}"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let device = device(folder.path(), &script);
            let x = device.allocate(64).unwrap();
            for n in 0..3 {
                FAST.launch("job").define("N", n).write(&x).groups(1).run().unwrap();
            }
            assert_eq!(Tuning::of(&device).quarantine().suspects(), [], "{script}");
        }
    }

    #[test]
    fn a_process_that_cannot_be_started_is_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = device(folder.path(), "").settings().clone();
        settings.builders.as_mut().unwrap().program = "/no/such/program".into();
        let driver = NullDriver::new(Capabilities::floor("odd:0", DeviceKind::Gpu));
        run(&Device::from_driver(Box::new(driver), settings)).unwrap();
    }
}
