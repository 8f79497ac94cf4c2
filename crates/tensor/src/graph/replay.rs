//! A captured step, ready to be enqueued.

use super::plan::BufferPlan;
use super::record::{Recorded, Trace, recorded};
use crate::{Device, Error, Result, Tensor};
use netcl_device::driver::{Access, Arg, KernelHandle, QueueKind, Range};
use netcl_device::record::{CaptureMemory, Command, Mode, Recorded as Argument, Touched};
use netcl_device::{Buffer, Label};
use std::collections::HashMap;
use std::sync::Arc;

/// A command with everything that it needs.
enum Step {
    Launch { kernel: KernelHandle, range: Range, label: Label },
    Fill { to: Touched, bytes: usize, pattern: Vec<u8> },
    Copy { from: (Touched, usize), to: (Touched, usize), bytes: usize },
    Write { to: (Touched, usize), data: Arc<[u8]> },
}

/// Callbacks between the commands of a replay.
pub struct Between<'a> {
    /// Command numbers in rising order. A number after the last command means the end.
    pub uses: &'a [usize],
    /// Called with `i` before command `uses[i]` is enqueued. It can wait for the command's inputs with [`Device::wait_for`].
    pub before: &'a mut dyn FnMut(usize) -> Result<()>,
    /// Tensors that existed before the capture.
    pub parts: &'a [&'a Tensor],
    /// Called with `i` as soon as the last command that writes the tensor `parts[i]` is enqueued, in the order of `parts`. Other work on a
    /// part can start after a [`Device::mark`] made there, in parallel with the rest of the step. A part that the step does not write is
    /// done when the parts before it are done.
    pub done: &'a mut dyn FnMut(usize) -> Result<()>,
}

/// Commands that use buffers from before the capture, by buffer number.
#[derive(Default)]
struct Uses {
    /// Last command that writes the buffer.
    last_writes: HashMap<u64, usize>,
    /// Byte ranges that are used, and the first command that uses each.
    first: HashMap<u64, HashMap<(usize, usize), usize>>,
}

/// A captured step. It owns the memory that its commands use. Results are in the step's tensors.
///
/// Threads may share a graph, and may replay the same or different graphs of one device at the same time. Each replay is enqueued as a
/// whole, so n replays that add 1 to a tensor add n, whichever threads run them. This only holds for replays. Other operations and host
/// reads of a thread may be enqueued between the commands of another thread's replay. Until the replays are enqueued, do not access the
/// memory that the graph reads or writes.
pub struct Graph {
    device: Device,
    steps: Vec<Step>,
    // Dropped after the commands: a kernel may only be released while its memory still exists.
    held: CaptureMemory,
    uses: Box<Uses>,
    _chunks: Vec<Buffer>,
    /// Memory objects that bound kernels do not keep alive.
    _memory: Vec<Touched>,
}

impl Graph {
    /// Records what `step` enqueues on this thread, without running it. Freed memory is given to later buffers, as in the pool. The result
    /// of the step has its contents after a [`Graph::replay`].
    ///
    /// Run the step once before, because compiling and verifying kernels cannot be captured.
    ///
    /// # Errors
    /// Errors of the step; `Unsupported` if it reads results on the host or replays a graph. Gradients are then restored, also if the step panics.
    pub fn capture<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let Recorded { recording, out, gradients } = recorded(device, Mode::Capture(None), step)?;
        let graph = Self::bind(device, recording.commands, recording.held, Vec::new())?;
        gradients.accept();
        Ok((graph, out))
    }

    /// Like [`Graph::capture`], with every buffer placed as in `plan`. The pool's cached memory is released first, so that plan and pool do
    /// not both hold it.
    ///
    /// # Errors
    /// Errors of [`Graph::capture`]; `Unsupported` also if the step does not match the plan.
    pub fn planned<T>(
        device: &Device,
        plan: &BufferPlan,
        step: impl FnOnce() -> Result<T>,
    ) -> Result<(Self, T)> {
        // The driver keeps released memory until the commands that use it are complete.
        device.finish()?;
        device.release_cached_memory();
        let placement = plan.allocate(device)?;
        let chunks = placement.chunks.clone();
        let Recorded { recording, out, gradients } = recorded(device, Mode::Capture(Some(placement)), step)?;
        plan.check(&Trace::from(&recording))?;
        let graph = Self::bind(device, recording.commands, recording.held, chunks)?;
        gradients.accept();
        Ok((graph, out))
    }

    fn bind(
        device: &Device,
        commands: Vec<Command>,
        held: CaptureMemory,
        chunks: Vec<Buffer>,
    ) -> Result<Self> {
        let mut steps = Vec::with_capacity(commands.len());
        let (mut memory, mut uses) = (Vec::new(), Box::<Uses>::default());
        for (at, command) in commands.into_iter().enumerate() {
            for touched in command.touched().into_iter().filter(|touched| touched.allocation.is_none()) {
                if touched.access == Access::Write {
                    uses.last_writes.insert(touched.buffer, at);
                }
                let of = uses.first.entry(touched.buffer).or_default();
                of.entry((touched.start, touched.start + touched.bytes)).or_insert(at);
            }
            steps.push(match command {
                Command::Launch { kernel, args, indirect, range, label, .. } => {
                    let reached = indirect.iter().filter(|_| device.capabilities().simulated);
                    let list: Vec<Arg<'_>> =
                        args.iter().map(Argument::arg).chain(reached.map(Touched::indirect)).collect();
                    let kernel = device.driver().bind(&kernel, &list)?;
                    memory.extend(indirect);
                    memory.extend(args.into_iter().filter_map(|arg| match arg {
                        Argument::Memory(touched) => Some(touched),
                        _ => None,
                    }));
                    Step::Launch { kernel, range, label }
                }
                Command::Fill { to, bytes, pattern } => Step::Fill { to, bytes, pattern },
                Command::Copy { from, to, bytes } => Step::Copy { from, to, bytes },
                Command::Write { to, data } => Step::Write { to, data },
            });
        }
        let device = device.clone();
        Ok(Self { device, steps, held, uses, _chunks: chunks, _memory: memory })
    }

    /// Enqueues the step again as a whole: replays that threads start at the same time run in sequence.
    ///
    /// # Errors
    /// Driver errors: commands before the failed one are enqueued. `Unsupported` within a step that is being recorded.
    pub fn replay(&self) -> Result<()> {
        let _alone = self.device.start_replay()?;
        self.enqueue(&self.steps)
    }

    /// Enqueues a part of the step, given by command numbers. All parts in sequence are equal to the step. Between them, other commands may
    /// run that do not use its memory.
    ///
    /// # Errors
    /// Errors of [`Graph::replay`]; `Shape` if the commands do not exist.
    pub fn replay_part(&self, part: std::ops::Range<usize>) -> Result<()> {
        let steps = self.steps.get(part.clone()).ok_or_else(|| {
            Error::shape(format!(
                "graph: commands {part:?} are out of range for a step of {}",
                self.steps.len()
            ))
        })?;
        let _alone = self.device.start_replay()?;
        self.enqueue(steps)
    }

    /// Like [`Graph::replay`], with callbacks between the commands: shared inputs can be awaited at their first use, and results passed on
    /// after their last write.
    ///
    /// # Errors
    /// Errors of [`Graph::replay`]; errors of the callbacks.
    pub fn replay_between(&self, between: &mut Between<'_>) -> Result<()> {
        let Between { uses, before, parts, done } = between;
        let ends = parts.iter().scan(0, |end, part| {
            let last = self.uses.last_writes.get(&part.storage().number());
            *end = last.map_or(*end, |last| (*end).max(last + 1));
            Some(*end)
        });
        let mut ends = ends.enumerate().peekable();
        let last = self.steps.len();
        let mut uses = uses.iter().map(|at| (*at).min(last)).enumerate().peekable();
        let _alone = self.device.start_replay()?;
        let mut begin = 0;
        loop {
            let next_use = uses.peek().map(|(_, at)| *at);
            let next_end = ends.peek().map(|(_, end)| *end);
            let Some(to) = next_use.into_iter().chain(next_end).min() else { break };
            let to = to.max(begin);
            self.enqueue(&self.steps[begin..to])?;
            begin = to;
            while let Some((i, _)) = ends.next_if(|(_, end)| *end <= begin) {
                done(i)?;
            }
            while let Some((i, _)) = uses.next_if(|(_, at)| *at <= begin) {
                before(i)?;
            }
        }
        self.enqueue(&self.steps[begin..])
    }

    /// Returns the number of the first command that uses the memory of `x`, a tensor from before the capture, for [`Between::uses`]. `None`
    /// if the step does not use it.
    pub fn first_use(&self, x: &Tensor) -> Option<usize> {
        let storage = x.storage();
        let (from, to) = (storage.start(), storage.start() + storage.bytes());
        let all = self.uses.first.get(&storage.whole().number())?.iter();
        all.filter(|((begin, end), _)| *begin < to && from < *end).map(|(_, at)| *at).min()
    }

    /// Returns the number of the last command that writes `x`, a tensor from before the capture. `None` if the step does not write it.
    pub fn last_write(&self, x: &Tensor) -> Option<usize> {
        self.uses.last_writes.get(&x.storage().number()).copied()
    }

    fn enqueue(&self, steps: &[Step]) -> Result<()> {
        let driver = self.device.driver();
        for step in steps {
            match step {
                Step::Launch { kernel, range, label } => {
                    tracing::trace!("replaying {} of {:?} in {:?}", label.name, range.global, range.local);
                    self.device.launch_bound(kernel, *range, *label)?;
                }
                Step::Fill { to, bytes, pattern } => {
                    driver.fill(QueueKind::Compute, &to.memory, 0, *bytes, pattern)?;
                }
                Step::Copy { from, to, bytes } => {
                    let (source, target) = ((&from.0.memory, from.1), (&to.0.memory, to.1));
                    driver.copy(QueueKind::Compute, source, target, *bytes)?;
                }
                Step::Write { to, data } => driver.write(QueueKind::Compute, &to.0.memory, to.1, data)?,
            }
        }
        Ok(())
    }

    /// Returns the number of commands of a replay.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether the step is empty.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the commands of a replay: launches; and fills, copies and uploads.
    pub fn commands(&self) -> (usize, usize) {
        let launches = self.steps.iter().filter(|s| matches!(s, Step::Launch { .. })).count();
        (launches, self.steps.len() - launches)
    }

    /// Returns the bytes of memory that only this graph uses, excluding memory placed by a plan.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Releases the newest first: drivers keep a program's kernels in a list and search it from that end.
        while self.steps.pop().is_some() {}
    }
}
