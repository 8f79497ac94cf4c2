//! A captured step, ready to be enqueued.

use super::plan::Plan;
use super::record::{Recorded, Trace, recorded};
use crate::{Device, Error, Result, Tensor};
use netcl_device::driver::{Access, Arg, KernelHandle, QueueKind, Range};
use netcl_device::record::{Command, Held, Mode, Recorded as Argument, Touched};
use netcl_device::{Buffer, Label};
use std::collections::HashMap;
use std::sync::Arc;

/// One command with everything it needs.
enum Step {
    Launch { kernel: KernelHandle, range: Range, label: Label },
    Fill { to: Touched, bytes: usize, pattern: Vec<u8> },
    Copy { from: (Touched, usize), to: (Touched, usize), bytes: usize },
    Write { to: (Touched, usize), data: Arc<[u8]> },
}

/// What is called between the commands of a replay.
pub struct Between<'a> {
    /// Numbers of commands, in rising order; a number behind the last command stands for the end.
    pub uses: &'a [usize],
    /// Called with `i` before command `uses[i]` is enqueued: what that command needs can be waited for by [`Device::wait_for`].
    pub before: &'a mut dyn FnMut(usize) -> Result<()>,
    /// Tensors from before the capture.
    pub parts: &'a [&'a Tensor],
    /// Called with `i` as soon as the last command is enqueued that writes the tensor `parts[i]`, in the order of `parts`: what does something
    /// with a part beside the rest of the step can begin behind a [`Device::mark`] made there. A part that the step does not write is done when
    /// those before it are.
    pub done: &'a mut dyn FnMut(usize) -> Result<()>,
}

/// Which commands touch buffers that were there before the capture, by the number of each.
#[derive(Default)]
struct Uses {
    /// The last command that writes it.
    last_writes: HashMap<u64, usize>,
    /// Which of its bytes are touched, and the first command that does.
    first: HashMap<u64, HashMap<(usize, usize), usize>>,
}

/// A step that was captured. It keeps the memory that its commands use; results are where the step's tensors are.
///
/// Threads may share a graph and replay it, or different graphs of one device, at the same time: each replay is enqueued in one
/// piece, so that n replays that add 1 to a tensor add n, however many threads make them. That holds for replays alone. What
/// a thread enqueues besides, operations and reads on the host, may come between the commands of another thread's replay: while that
/// goes on, leave alone what the graph reads and writes, and read its results when the replays are enqueued.
pub struct Graph {
    device: Device,
    steps: Vec<Step>,
    // After the commands: a kernel may be released while its memory is still there, not the other way round.
    held: Held,
    uses: Box<Uses>,
    _chunks: Vec<Buffer>,
    /// Memory objects that bound kernels do not keep by themselves.
    _memory: Vec<Touched>,
}

impl Graph {
    /// Notes what `step` enqueues on this thread, without running it, and gives freed memory to later buffers as the pool does.
    /// What the step returns has its contents after a [`Graph::replay`].
    ///
    /// Run the step once before: compiling and testing kernels is no part of it.
    ///
    /// # Errors
    /// Those of the step; `Unsupported` when it reads results on the host or replays a graph. Gradients are then what they were before,
    /// and so they are when the step panics.
    pub fn capture<T>(device: &Device, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        let Recorded { recording, out, gradients } = recorded(device, Mode::Capture(None), step)?;
        let graph = Self::bind(device, recording.commands, recording.held, Vec::new())?;
        gradients.accept();
        Ok((graph, out))
    }

    /// The same with every buffer where `plan` says. The pool's cached memory is given back first, so that plan and pool do not
    /// both keep what one of them needs.
    ///
    /// # Errors
    /// As [`Graph::capture`]; `Unsupported` also when the step is not that of the plan.
    pub fn planned<T>(device: &Device, plan: &Plan, step: impl FnOnce() -> Result<T>) -> Result<(Self, T)> {
        // The driver keeps released memory until the commands that use it are done.
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

    fn bind(device: &Device, commands: Vec<Command>, held: Held, chunks: Vec<Buffer>) -> Result<Self> {
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

    /// Enqueues the step again, in one piece: replays of this or another graph that threads start at the same time come one after the
    /// other.
    ///
    /// # Errors
    /// The driver's: the commands before the one that failed are enqueued. `Unsupported` within a step that is being recorded.
    pub fn replay(&self) -> Result<()> {
        let _alone = self.device.start_replay()?;
        self.enqueue(&self.steps)
    }

    /// Enqueues a part of the step: commands by their numbers. The parts of a step, one after the other, are the step; between them other
    /// commands may run that leave its memory alone.
    ///
    /// # Errors
    /// As [`Graph::replay`]; `Shape` for commands that it has not.
    pub fn replay_part(&self, part: std::ops::Range<usize>) -> Result<()> {
        let steps = self.steps.get(part.clone()).ok_or_else(|| {
            Error::shape(format!("graph: commands {part:?} of a step of {}", self.steps.len()))
        })?;
        let _alone = self.device.start_replay()?;
        self.enqueue(steps)
    }

    /// The same with calls between the commands: what the step shares with others is awaited where it is first used, and handed on where the
    /// step is done with it.
    ///
    /// # Errors
    /// As [`Graph::replay`]; those of the calls.
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

    /// The number of the first command that touches the memory of `x`, a tensor from before the capture, as [`Between::uses`] takes it; `None`
    /// where the step leaves it alone.
    pub fn first_use(&self, x: &Tensor) -> Option<usize> {
        let storage = x.storage();
        let (from, to) = (storage.start(), storage.start() + storage.bytes());
        let all = self.uses.first.get(&storage.whole().number())?.iter();
        all.filter(|((begin, end), _)| *begin < to && from < *end).map(|(_, at)| *at).min()
    }

    /// The number of the last command that writes the tensor `x`, one from before the capture; `None` where the step leaves it alone.
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

    /// Number of commands of a replay.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the step was without commands.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Commands of a replay: launches, and fills, copies and uploads.
    pub fn commands(&self) -> (usize, usize) {
        let launches = self.steps.iter().filter(|s| matches!(s, Step::Launch { .. })).count();
        (launches, self.steps.len() - launches)
    }

    /// Bytes of memory that only this graph uses, beside what a plan has placed.
    pub fn held_bytes(&self) -> usize {
        self.held.bytes()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The newest first: drivers keep the kernels of a program in a list and look for each from that end.
        while self.steps.pop().is_some() {}
    }
}
