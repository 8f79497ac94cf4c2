//! Builds the kernels of a job before it runs, in several processes.
//!
//! Many drivers build one program at a time per process: NVIDIA's driver takes the same 20 s for 40 programs with one thread as with sixteen. So the
//! job first runs once on a device that computes nothing ([`NullDriver`]), which lists the required builds. Processes of [`Settings::builders`] build
//! those that the disk cache lacks. The job then finds them in the cache.

use crate::cache::DiskCache;
use crate::order::{BUILT, Line, Order, READY, entries};
use crate::programs::Programs;
use crate::vendors;
use netcl_device::null::NullDriver;
use netcl_device::{Builders, Device, Error, Result, Settings};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Device memory for each process in addition to this one: a driver's context takes several hundred megabytes.
const MEMORY: u64 = 8 << 30;

/// Result of building ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// Number of programs that the job needs.
    pub programs: usize,
    /// Number of programs that were built.
    pub built: usize,
    /// Number of processes that built them.
    pub processes: usize,
}

/// Returns a device with the capabilities and choices of `device` that computes and stores nothing.
pub fn twin(device: &Device) -> Device {
    twin_with(device, |settings| settings)
}

/// Does the same as [`twin`] with changed settings.
pub fn twin_with(device: &Device, change: impl FnOnce(Settings) -> Settings) -> Device {
    let settings =
        Settings { no_binary_cache: true, no_results: true, builders: None, ..device.settings().clone() };
    Device::from_driver(Box::new(NullDriver::new(device.capabilities().clone())), change(settings))
}

/// Builds the programs that `job` needs and the disk cache lacks, in several processes, if the settings name them. `watch` receives the number of
/// finished programs and the total, and returns whether to continue. Does nothing if the driver caches its kernels itself, the device is simulated,
/// or the disk cache is disabled. A program that cannot be built here is built when the job launches it, which then reports the error.
///
/// # Errors
/// Errors of the job on a device that computes nothing.
pub fn build(
    device: &Device,
    job: impl FnOnce(&Device) -> Result<()>,
    watch: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Ahead> {
    let capabilities = device.capabilities();
    let programs = Programs::of(device);
    let (Some(builders), Some(disk)) = (&device.settings().builders, programs.disk(device)) else {
        return Ok(Ahead::default());
    };
    if capabilities.simulated || capabilities.is_cpu() || vendors::keeps_kernels(capabilities) {
        return Ok(Ahead::default());
    }
    let orders = orders(device, job)?;
    let all = orders.len();
    let mut lacking = lacking(disk, device, orders);
    let room = usize::try_from(capabilities.global_mem / MEMORY).unwrap_or(usize::MAX);
    let processes = builders.most.min(lacking.len()).min(room);
    if processes < 2 {
        return Ok(Ahead { programs: all, ..Ahead::default() });
    }
    // Long sources take longest: the last one to start should be short.
    lacking.sort_by_key(|order| order.source.len());
    let built = share_out(builders, processes, &capabilities.id, lacking, &mut |built, of| {
        watch(all - of + built, all)
    });
    Ok(Ahead { programs: all, built, processes })
}

/// Returns the programs that a job would build, in launch order.
///
/// # Errors
/// Errors of the job on a device that computes nothing.
pub fn orders(device: &Device, job: impl FnOnce(&Device) -> Result<()>) -> Result<Vec<Order>> {
    let twin = twin(device);
    let programs = Programs::of(&twin);
    programs.start_recording();
    let outcome = job(&twin);
    let orders = programs.stop_recording();
    outcome.map(|()| orders)
}

/// Returns the orders that the cache does not have, without duplicates.
fn lacking(disk: &DiskCache, device: &Device, orders: Vec<Order>) -> Vec<Order> {
    let mut seen = BTreeSet::new();
    let new = |order: &Order| {
        let key = DiskCache::key(order, device.capabilities());
        !disk.knows(&key) && seen.insert(key)
    };
    orders.into_iter().filter(new).collect()
}

/// Distributes `orders` to processes; each process takes the last order when it has finished one. Returns the number of programs built.
fn share_out(
    builders: &Builders,
    processes: usize,
    device: &str,
    orders: Vec<Order>,
    watch: &mut dyn FnMut(usize, usize) -> bool,
) -> usize {
    let all = orders.len();
    let queue = Mutex::new(orders);
    let (done, heard): (Sender<bool>, Receiver<bool>) = channel();
    std::thread::scope(|scope| {
        for _ in 0..processes {
            let (queue, done) = (&queue, done.clone());
            scope.spawn(move || {
                if let Err(e) = feed(builders, device, queue, &done) {
                    tracing::debug!("a process that builds kernels ended: {e}");
                }
            });
        }
        drop(done);
        let mut built = 0;
        for ok in heard {
            built += usize::from(ok);
            if !watch(built, all) {
                queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
        }
        built
    })
}

/// Starts a process and gives it orders until none are left.
fn feed(
    builders: &Builders,
    device: &str,
    queue: &Mutex<Vec<Order>>,
    done: &Sender<bool>,
) -> std::io::Result<()> {
    let mut command = builders.command(device);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let gone = || std::io::Error::other("no pipe");
    let (mut to, from) = (child.stdin.take().ok_or_else(gone)?, child.stdout.take().ok_or_else(gone)?);
    let mut answers = BufReader::new(from).lines();
    let mut talk = || -> std::io::Result<()> {
        loop {
            let Some(order) = queue.lock().unwrap_or_else(PoisonError::into_inner).pop() else {
                return Ok(());
            };
            let line = serde_json::to_string(&Line::from(order)).map_err(std::io::Error::other)?;
            writeln!(to, "{line}")?;
            let answer = loop {
                match answers.next().ok_or_else(gone)?? {
                    line if line == READY => {}
                    answer => break answer,
                }
            };
            // No receiver remains if the program is ending.
            let _ = done.send(answer == BUILT);
        }
    };
    let outcome = talk();
    // The process ends when its input ends.
    drop(to);
    if outcome.is_err() {
        let _ = child.kill();
    }
    child.wait()?;
    outcome
}

/// Idle time after which a build process ends, because its context occupies device memory. The next order starts another process.
const IDLE: Duration = Duration::from_secs(60);

/// Builds the orders on stdin into the disk cache and answers each with one line. Ends with its input, or a minute after its last order. The
/// processes of [`Settings::builders`] run this.
///
/// # Errors
/// `Io` if stdin or stdout fails, `Format` for a line that is not an order.
pub fn serve(device: &Device) -> Result<()> {
    let programs = Programs::of(device);
    let broken = |e: &std::io::Error| Error::io("reading", Path::new("stdin"), e);
    say(READY)?;
    for line in until_idle(std::io::stdin(), IDLE) {
        let line = line.map_err(|e| broken(&e))?;
        let line: Line = serde_json::from_str(&line).map_err(|e| Error::format(format!("an order: {e}")))?;
        let every = line.entries;
        let order = line.order()?;
        let answer = match programs.build(device, &order) {
            Ok(program) => {
                // An entry that cannot be created causes an error at its launch.
                for entry in entries(&order.source).into_iter().filter(|_| every) {
                    drop(device.driver().kernel(&program, &entry));
                }
                BUILT.to_owned()
            }
            Err(e) => e.message().lines().next().unwrap_or_default().to_owned(),
        };
        say(&answer)?;
    }
    Ok(())
}

/// Returns lines of `input` until it ends, or until no line has arrived for the given time.
fn until_idle(
    input: impl Read + Send + 'static,
    idle: Duration,
) -> impl Iterator<Item = std::io::Result<String>> {
    let (to, lines) = channel();
    // The thread blocks on its input, so it cannot be joined.
    std::thread::spawn(move || BufReader::new(input).lines().try_for_each(|line| to.send(line)));
    std::iter::from_fn(move || lines.recv_timeout(idle).ok())
}

fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    written.map_err(|e| Error::io("writing to", Path::new("stdout"), &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use netcl_device::{Capabilities, DeviceKind};

    #[test]
    fn a_process_that_builds_ends_when_it_is_idle() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writeln!(writer, "first").unwrap();
        let mut lines = until_idle(reader, Duration::from_millis(200));
        assert_eq!(lines.next().unwrap().unwrap(), "first");
        // The writer still exists.
        assert!(lines.next().is_none());
        drop(writer);
        let both = until_idle(&b"a\nb"[..], Duration::from_secs(60)).collect::<std::io::Result<Vec<_>>>();
        assert_eq!(both.unwrap(), ["a", "b"]);
    }

    static KERNEL: Kernel = Kernel::new("ahead_test", "__kernel void k(__global float *x) { x[0] = N; }");

    /// Returns a GPU that builds nothing and stores its "builds" under `cache`.
    fn device(cache: &Path, builders: Option<Builders>) -> Device {
        let mut card = Capabilities::floor("card:0", DeviceKind::Gpu);
        card.global_mem = 64 << 30;
        let settings = Settings { cache_dir: Some(cache.into()), builders, ..Settings::default() };
        Device::from_driver(Box::new(NullDriver::new(card)), settings)
    }

    fn job(device: &Device) -> Result<()> {
        let x = device.allocate(64)?;
        // The last one is the first again.
        [1, 2, 3, 1].into_iter().try_for_each(|n| KERNEL.launch("k").define("N", n).write(&x).groups(1).run())
    }

    #[cfg(unix)]
    fn shell(script: &str, most: usize) -> Option<Builders> {
        Some(Builders { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()], most })
    }

    #[test]
    #[cfg(unix)]
    fn every_program_is_ordered_once_and_none_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        // Each answer also writes the number of orders to a log.
        let log = folder.path().join("log");
        let script = format!("while read -r line; do echo x >> {}; echo built; done", log.display());
        let device = device(folder.path(), shell(&script, 2));
        let mut seen = Vec::new();
        let ahead = build(&device, job, &mut |done, all| {
            seen.push((done, all));
            true
        })
        .unwrap();
        assert_eq!(ahead, Ahead { programs: 3, built: 3, processes: 2 });
        assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 3);
        assert_eq!(seen, [(1, 3), (2, 3), (3, 3)]);
        // One is now in the cache: two are left.
        let disk = DiskCache::of(device.settings()).unwrap();
        let orders = orders(&device, job).unwrap();
        disk.note(&DiskCache::key(&orders[0], device.capabilities()), "ahead_test", device.capabilities());
        assert_eq!(build(&device, job, &mut |_, _| true).unwrap().built, 2);
    }

    /// A build that has started is completed.
    #[test]
    #[cfg(unix)]
    fn who_watches_may_stop_it() {
        let folder = tempfile::tempdir().unwrap();
        let device = device(folder.path(), shell("while read -r line; do sleep 0.05; echo built; done", 2));
        let many = |device: &Device| {
            let x = device.allocate(64)?;
            (0..40).try_for_each(|n| KERNEL.launch("k").define("N", n).write(&x).groups(1).run())
        };
        let stopped = build(&device, many, &mut |_, _| false).unwrap();
        assert!(stopped.programs == 40 && stopped.built < 20, "{stopped:?}");
    }

    #[test]
    #[cfg(unix)]
    fn processes_that_end_or_fail_are_no_error() {
        let folder = tempfile::tempdir().unwrap();
        for script in ["exit 3", "read -r line; exit 0", "while read -r line; do echo no; done"] {
            let device = device(folder.path(), shell(script, 2));
            assert_eq!(build(&device, job, &mut |_, _| true).unwrap().built, 0, "{script}");
        }
        let missing = Builders { program: "/no/such/program".into(), arguments: Vec::new(), most: 4 };
        assert_eq!(build(&device(folder.path(), Some(missing)), job, &mut |_, _| true).unwrap().built, 0);
        // Without builders or without a cache, the job does not run at all.
        let never = |_: &Device| -> Result<()> { panic!("tried") };
        assert_eq!(build(&device(folder.path(), None), never, &mut |_, _| true).unwrap(), Ahead::default());
    }
}
