//! Machines in Python: memory, queues, commands, registers and results.

use super::callbacks::{PyDispatch, PyMemory, narrator};
use super::launch::{GivenLaunch, PyProgram, given_launch};
use super::state::{LaunchResults, Machine, failure, lock, profile};
use super::window::PyWindow;
use crate::edge::run;
use aethercl::Checks;
use aethercl::machine::scheduling::{dispatch_by_name, memory_by_name};
use aethercl::machine::{Callback, Fence, GpuError, MachineOptions, Narrator, Packet, Timeline, TraceLevel};
use netcl::prelude::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyBytesMethods};
use std::sync::{Arc, Mutex};

/// Maximum number of compute units that a program may set.
const MAX_UNITS: u32 = 65_536;

/// A simulated GPU. `netcl.aethercl.GPU` is its interface for programs.
#[pyclass(name = "Machine", module = "netcl.aethercl", frozen)]
pub struct PyMachine(Arc<Machine>);

/// The bytes of a read-back, or the error of its command; `None` until it is complete.
type Arrived = Arc<Mutex<Option<Result<Vec<u8>, GpuError>>>>;

/// A copy from the device to the host that was enqueued.
#[pyclass(name = "MachineReadBack", module = "netcl.aethercl", frozen)]
pub struct PyReadBack {
    /// Its queue.
    #[pyo3(get)]
    queue: usize,
    /// The fence value that marks its completion.
    #[pyo3(get)]
    value: u64,
    arrived: Arrived,
}

#[pymethods]
impl PyReadBack {
    /// Returns the bytes once, or `None` if the copy is not complete.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let arrived = lock(&self.arrived).take();
        let data = run(py, move || arrived.transpose().map_err(|e| failure(&e)))?;
        Ok(data.map(|data| PyBytes::new(py, &data)))
    }
}

/// A pair of queue and fence value.
type Command = (usize, u64);

fn command(fence: Fence) -> Command {
    (fence.queue, fence.value)
}

#[pymethods]
impl PyMachine {
    #[new]
    #[pyo3(signature = (profile_name, memory, checks, ring_words, timeline, compute_units))]
    fn new(
        py: Python<'_>,
        profile_name: String,
        memory: Option<u64>,
        checks: String,
        ring_words: Option<usize>,
        timeline: bool,
        compute_units: Option<u32>,
    ) -> PyResult<Self> {
        run(py, move || {
            let checks = Checks::parse(&checks).map_err(|e| Error::format(e.to_string()))?;
            let defaults = MachineOptions::default();
            let options = MachineOptions {
                memory,
                timeline,
                ring_words: ring_words.unwrap_or(defaults.ring_words),
                count_all: true,
                ..defaults
            };
            let mut profile = profile(&profile_name)?;
            match compute_units {
                Some(n @ 1..=MAX_UNITS) => profile.compute.units = n,
                Some(n) => {
                    return Err(Error::format(format!("{n} compute units, expected 1 to {MAX_UNITS}")));
                }
                None => {}
            }
            Ok(Self(Machine::new(profile, options, checks)))
        })
    }

    fn allocate(&self, py: Python<'_>, bytes: u64, tag: String) -> PyResult<u64> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| gpu.allocate(bytes, &tag)))
    }

    fn free(&self, py: Python<'_>, address: u64) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| gpu.free(address)))
    }

    fn check_range(&self, py: Python<'_>, address: u64, bytes: u64) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || machine.check_range(address, bytes))
    }

    /// Returns bytes in use, the peak, the capacity, and the bytes that a memory scheduler moved out and in.
    fn memory(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
        let machine = &self.0;
        run(py, move || {
            machine.with(|gpu| {
                let (vram, moves) = (gpu.vram(), gpu.moves());
                Ok((vram.used(), vram.peak(), vram.capacity(), moves.out_bytes, moves.in_bytes))
            })
        })
    }

    /// Returns the free runs of pages: first page and count.
    fn free_runs(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        let machine = &self.0;
        run(py, move || {
            machine.with(|gpu| Ok(gpu.vram().free_runs().iter().map(|r| (r.start, r.pages)).collect()))
        })
    }

    /// Returns the allocations in device memory: address, pages and last use.
    fn resident(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64, u64)>> {
        let machine = &self.0;
        run(py, move || {
            machine.with(|gpu| Ok(gpu.resident().iter().map(|r| (r.address, r.pages, r.last_use)).collect()))
        })
    }

    /// Returns the name of the profile and its number of compute units.
    fn describe(&self, py: Python<'_>) -> PyResult<(String, u32)> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| Ok((gpu.profile().name.clone(), gpu.profile().compute.units))))
    }

    fn open_queue(&self, py: Python<'_>) -> PyResult<usize> {
        let machine = &self.0;
        run(py, move || machine.with(aethercl::machine::Gpu::open_queue))
    }

    fn write(
        &self,
        py: Python<'_>,
        queue: usize,
        address: u64,
        data: &Bound<'_, PyBytes>,
    ) -> PyResult<Command> {
        let (machine, data) = (&self.0, data.as_bytes().to_vec());
        run(py, move || {
            machine.check_range(address, data.len() as u64)?;
            machine.with(|gpu| gpu.write(queue, address, data, None)).map(command)
        })
    }

    fn read(&self, py: Python<'_>, queue: usize, address: u64, bytes: u64) -> PyResult<PyReadBack> {
        let machine = &self.0;
        run(py, move || {
            machine.check_range(address, bytes)?;
            let arrived = Arrived::default();
            let slot = Arc::clone(&arrived);
            let callback: Callback =
                Box::new(move |done| *lock(&slot) = Some(done.outcome.map(|outcome| outcome.data)));
            let (queue, value) =
                command(machine.with(|gpu| gpu.read(queue, address, bytes, Some(callback)))?);
            Ok(PyReadBack { queue, value, arrived })
        })
    }

    fn copy(&self, py: Python<'_>, queue: usize, to: u64, from_: u64, bytes: u64) -> PyResult<Command> {
        self.submit(py, queue, Packet::Copy { to, from: from_, bytes })
    }

    fn fill(
        &self,
        py: Python<'_>,
        queue: usize,
        to: u64,
        bytes: u64,
        pattern: &Bound<'_, PyBytes>,
    ) -> PyResult<Command> {
        let given = pattern.as_bytes();
        let mut pattern = [0; 16];
        let length = given.len();
        let fits = [1, 2, 4, 8, 16].contains(&length) && bytes.is_multiple_of(length as u64);
        if !fits {
            return run(py, move || {
                Err(Error::format(format!(
                    "cannot fill {bytes} bytes with a pattern of {length} bytes; use a pattern of 1, 2, 4, 8 or 16 bytes that divides the size"
                )))
            });
        }
        pattern[..length].copy_from_slice(given);
        self.submit(py, queue, Packet::Fill { to, bytes, pattern, length: length as u32 })
    }

    fn wait_for(&self, py: Python<'_>, queue: usize, other: usize, value: u64) -> PyResult<Command> {
        self.submit(py, queue, Packet::Wait { queue: other as u32, value })
    }

    /// Enqueues the launch of a kernel.
    fn launch(
        &self,
        py: Python<'_>,
        queue: usize,
        program: &PyProgram,
        call: GivenLaunch,
    ) -> PyResult<Command> {
        let (machine, program) = (&self.0, &program.0);
        run(py, move || {
            let work = given_launch(machine, program, call)?;
            machine.with(|gpu| gpu.launch(queue, work, Some(machine.keeper()))).map(command)
        })
    }

    /// Stores a launch descriptor for a LAUNCH packet that the program writes itself, and returns its bus address.
    fn launch_descriptor(&self, py: Python<'_>, program: &PyProgram, call: GivenLaunch) -> PyResult<u64> {
        let (machine, program) = (&self.0, &program.0);
        run(py, move || {
            let work = given_launch(machine, program, call)?;
            machine.with(|gpu| Ok(gpu.describe(work)))
        })
    }

    fn doorbell(&self, py: Python<'_>, queue: usize) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| gpu.doorbell(queue)))
    }

    /// Runs all announced commands.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || machine.with(aethercl::machine::Gpu::run))
    }

    /// Waits for a command and returns its times in ns: doorbell, start, end.
    fn wait(&self, py: Python<'_>, queue: usize, value: u64) -> PyResult<(u64, u64, u64)> {
        let machine = &self.0;
        run(py, move || {
            let done = machine.with(|gpu| gpu.wait(Fence { queue, value }))?;
            Ok((done.queued_ns, done.start_ns, done.end_ns))
        })
    }

    /// Waits for all commands of a queue.
    fn finish(&self, py: Python<'_>, queue: usize) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| gpu.finish(queue)))
    }

    /// Returns the host clock in ns.
    fn now(&self, py: Python<'_>) -> PyResult<u64> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| Ok(gpu.now())))
    }

    fn register_read(&self, py: Python<'_>, offset: u32) -> PyResult<u32> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| Ok(gpu.read_register(offset))))
    }

    fn register_write(&self, py: Python<'_>, offset: u32, value: u32) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            machine.with(|gpu| {
                gpu.write_register(offset, value);
                Ok(())
            })
        })
    }

    fn map_window(&self, py: Python<'_>) -> PyResult<PyWindow> {
        let machine = &self.0;
        run(py, move || PyWindow::map(machine))
    }

    /// Stops polling the window; later writes to it have no effect.
    fn unmap_window(&self, py: Python<'_>) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            machine.stop_polling();
            machine.with(|gpu| {
                gpu.unmap_window();
                Ok(())
            })
        })
    }

    /// Pins host memory with this content and returns its bus address.
    fn pin(&self, py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<u64> {
        let (machine, data) = (&self.0, data.as_bytes().to_vec());
        run(py, move || machine.with(|gpu| Ok(gpu.pin(data))))
    }

    /// Frees pinned memory and returns its content.
    fn unpin<'py>(&self, py: Python<'py>, bus: u64) -> PyResult<Bound<'py, PyBytes>> {
        let machine = &self.0;
        let data = run(py, move || {
            let data = machine.with(|gpu| Ok(gpu.unpin(bus)))?;
            data.ok_or_else(|| Error::format(format!("nothing is pinned at {bus:#x}")))
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// Passes lines of the trace to `function`: `level` is off, commands, steps or all.
    fn set_trace(&self, py: Python<'_>, level: String, function: Option<Py<PyAny>>) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            let level: TraceLevel = level.parse().map_err(Error::format)?;
            let raised = machine.raised.clone();
            let told = function.map_or_else(Narrator::default, |f| narrator(level, f, raised));
            machine.with(|gpu| {
                gpu.set_narrator(told);
                Ok(())
            })
        })
    }

    /// Replaces the order of commands by a named scheduler.
    fn dispatch_by_name(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            let scheduler = dispatch_by_name(&name)
                .ok_or_else(|| Error::format(format!("unknown dispatch scheduler {name:?}")))?;
            machine.with(|gpu| {
                gpu.set_dispatch_scheduler(Some(scheduler));
                Ok(())
            })
        })
    }

    /// Replaces the order of commands by a function, see [`PyDispatch`].
    fn dispatch_by_function(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            let scheduler = PyDispatch { function, raised: machine.raised.clone() };
            machine.with(|gpu| {
                gpu.set_dispatch_scheduler(Some(Box::new(scheduler)));
                Ok(())
            })
        })
    }

    /// Replaces the places of allocations by a named scheduler.
    fn memory_by_name(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            let scheduler = memory_by_name(&name)
                .ok_or_else(|| Error::format(format!("unknown memory scheduler {name:?}")))?;
            machine.with(|gpu| {
                gpu.set_memory_scheduler(Some(scheduler));
                Ok(())
            })
        })
    }

    /// Replaces the places of allocations by functions, see [`PyMemory`].
    #[pyo3(signature = (place, evict))]
    fn memory_by_function(&self, py: Python<'_>, place: Py<PyAny>, evict: Option<Py<PyAny>>) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            let scheduler = PyMemory { place, evict, raised: machine.raised.clone() };
            machine.with(|gpu| {
                gpu.set_memory_scheduler(Some(Box::new(scheduler)));
                Ok(())
            })
        })
    }

    /// Returns the findings since the last call.
    fn take_findings(&self) -> Vec<FindingRow> {
        let findings = std::mem::take(&mut lock(&self.0.results).findings);
        let row = |f: aethercl::Finding| {
            let text = f.to_string();
            (f.kind.name(), f.kernel, f.line, f.column, f.count, text)
        };
        findings.into_iter().map(row).collect()
    }

    /// Returns the output of `printf` since the last call.
    fn take_printed(&self) -> String {
        std::mem::take(&mut lock(&self.0.results).printed)
    }

    /// Returns counters of the last launch by name, its modeled time in ns, and its bottleneck; `None` before the first launch.
    fn counters(&self) -> Option<Counts> {
        counters(&lock(&self.0.results))
    }

    /// Returns the timeline as JSON, or `None` if none is recorded.
    fn timeline(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let machine = &self.0;
        run(py, move || machine.with(|gpu| Ok(gpu.timeline().map(Timeline::json))))
    }

    /// Stops the thread of the window.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let machine = &self.0;
        run(py, move || {
            machine.stop_polling();
            Ok(())
        })
    }
}

impl PyMachine {
    fn submit(&self, py: Python<'_>, queue: usize, packet: Packet) -> PyResult<Command> {
        let machine = &self.0;
        run(py, move || {
            match packet {
                Packet::Copy { to, from, bytes } => {
                    machine.check_range(to, bytes)?;
                    machine.check_range(from, bytes)?;
                }
                Packet::Fill { to, bytes, .. } => machine.check_range(to, bytes)?,
                _ => {}
            }
            machine.with(|gpu| gpu.submit(queue, packet, None)).map(command)
        })
    }
}

/// Kind, kernel, line, column, count and text.
type FindingRow = (&'static str, String, u32, u32, u64, String);
/// Counters by name, modeled time in ns, and bottleneck.
type Counts = (Vec<(&'static str, u64)>, u64, String);

fn counters(results: &LaunchResults) -> Option<Counts> {
    let (Some(c), estimate) = results.last.as_ref()? else { return None };
    let rows = vec![
        ("groups", c.groups),
        ("items", c.items),
        ("issued", c.issued),
        ("lanes_idle", c.lanes_idle),
        ("global_load_bytes", c.global_load.bytes),
        ("global_load_sectors", c.global_load.sectors),
        ("global_store_bytes", c.global_store.bytes),
        ("global_store_sectors", c.global_store.sectors),
        ("local_requests", c.local_requests),
        ("local_passes", c.local_passes),
        ("registers", u64::from(c.registers)),
    ];
    let bound = estimate.as_ref().map(|e| e.bound().to_string()).unwrap_or_default();
    Some((rows, estimate.as_ref().map_or(0, |e| e.ns), bound))
}
