//! A fault-injecting driver: the n-th call returns an error. Tests use it to show that every failure is reported, leaks nothing and leaves the
//! process usable.

use crate::driver::{Arg, Driver, Event, KernelHandle, Memory, Program, QueueKind, Range};
use crate::driver::{Edit, Transfer};
use crate::{Capabilities, Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Fault plan: when to fail, and the number of calls so far. A test and its driver share it.
#[derive(Default)]
pub struct Plan {
    calls: AtomicU64,
    fail_at: AtomicU64,
    fail_times: AtomicU64,
    /// Counts only calls with this name; an empty name counts all calls.
    only: Mutex<&'static str>,
}

impl Plan {
    /// Makes the `n`-th call from now fail, counted from 1; 0 disables failures.
    pub fn arm(&self, n: u64) {
        self.arm_only("", n);
    }
    /// Does the same but counts only calls of the method `name`.
    pub fn arm_only(&self, name: &'static str, n: u64) {
        *self.only.lock().unwrap_or_else(PoisonError::into_inner) = name;
        self.fail_times.store(1, Ordering::SeqCst);
        self.calls.store(0, Ordering::SeqCst);
        self.fail_at.store(n, Ordering::SeqCst);
    }
    /// Makes `times` consecutive calls fail: an allocation is tried twice before it is reported as failed.
    pub fn lasting(&self, times: u64) {
        self.fail_times.store(times, Ordering::SeqCst);
    }
    /// Returns the number of calls since the plan was armed.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }
    fn step(&self, call: &str, error: fn(String) -> Error) -> Result<()> {
        let only = *self.only.lock().unwrap_or_else(PoisonError::into_inner);
        if !only.is_empty() && only != call {
            return Ok(());
        }
        let n = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let first = self.fail_at.load(Ordering::SeqCst);
        if first > 0 && (first..first + self.fail_times.load(Ordering::SeqCst)).contains(&n) {
            return Err(error(format!("injected failure of {call} (call {n})")));
        }
        Ok(())
    }
}

/// Forwards calls to `inner` unless the [`Plan`] makes them fail.
pub struct FaultDriver {
    inner: Box<dyn Driver>,
    plan: Arc<Plan>,
    capabilities: Capabilities,
    edit: Option<Edit>,
    group_limit: usize,
}

impl FaultDriver {
    /// Returns a driver that wraps `inner` and fails according to `plan`.
    pub fn new(inner: Box<dyn Driver>, plan: Arc<Plan>) -> Self {
        let capabilities = inner.capabilities().clone();
        Self { inner, plan, capabilities, edit: None, group_limit: usize::MAX }
    }
    /// Reports at most `limit` work-items per group for every kernel, like a compiler that uses many registers.
    #[must_use]
    pub fn limit_groups(mut self, limit: usize) -> Self {
        self.group_limit = limit;
        self
    }
    /// Passes every kernel source through `edit` before the build. Tests use it to plant defects.
    #[must_use]
    pub fn edit_sources(mut self, edit: Edit) -> Self {
        self.edit = Some(edit);
        self
    }
    /// Returns the same driver with different capabilities, for example those of a GPU without its vendor's instructions.
    #[must_use]
    pub fn pretending(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }
}

impl Driver for FaultDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn allocate(&self, bytes: usize, tag: &'static str) -> Result<Memory> {
        self.plan.step("allocate", Error::memory)?;
        self.inner.allocate(bytes, tag)
    }
    fn sub_allocate(&self, parent: &Memory, offset: usize, bytes: usize) -> Result<Memory> {
        self.plan.step("sub_allocate", Error::memory)?;
        self.inner.sub_allocate(parent, offset, bytes)
    }
    fn write(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        self.plan.step("write", Error::launch)?;
        self.inner.write(queue, to, offset, data)
    }
    fn write_now(&self, queue: QueueKind, to: &Memory, offset: usize, data: &[u8]) -> Result<()> {
        self.plan.step("write", Error::launch)?;
        self.inner.write_now(queue, to, offset, data)
    }
    fn read(&self, queue: QueueKind, from: &Memory, offset: usize, out: &mut [u8]) -> Result<()> {
        self.plan.step("read", Error::launch)?;
        self.inner.read(queue, from, offset, out)
    }
    fn copy(
        &self,
        queue: QueueKind,
        from: (&Memory, usize),
        to: (&Memory, usize),
        bytes: usize,
    ) -> Result<()> {
        self.plan.step("copy", Error::launch)?;
        self.inner.copy(queue, from, to, bytes)
    }
    fn fill(&self, queue: QueueKind, to: &Memory, offset: usize, bytes: usize, pattern: &[u8]) -> Result<()> {
        self.plan.step("fill", Error::launch)?;
        self.inner.fill(queue, to, offset, bytes, pattern)
    }
    fn build(&self, source: &str, options: &str) -> Result<Program> {
        self.plan.step("build", Error::build)?;
        let edited = self.edit.as_ref().and_then(|edit| edit(source));
        self.inner.build(edited.as_deref().unwrap_or(source), options)
    }
    fn load_binary(&self, binary: &[u8], options: &str) -> Result<Program> {
        self.plan.step("load_binary", Error::build)?;
        self.inner.load_binary(binary, options)
    }
    fn binary(&self, program: &Program) -> Result<Vec<u8>> {
        self.plan.step("binary", Error::build)?;
        self.inner.binary(program)
    }
    fn build_log(&self, program: &Program) -> Result<String> {
        self.inner.build_log(program)
    }
    fn kernel(&self, program: &Program, name: &str) -> Result<KernelHandle> {
        self.plan.step("kernel", Error::build)?;
        self.inner.kernel(program, name)
    }
    fn kernel_group_limit(&self, kernel: &KernelHandle) -> Result<usize> {
        self.plan.step("kernel_group_limit", Error::launch)?;
        Ok(self.inner.kernel_group_limit(kernel)?.min(self.group_limit))
    }
    fn open_queue(&self) -> Result<QueueKind> {
        self.plan.step("open_queue", Error::device)?;
        self.inner.open_queue()
    }
    fn close_queue(&self, queue: QueueKind) {
        self.inner.close_queue(queue);
    }
    fn launch_in(
        &self,
        queue: QueueKind,
        kernel: &KernelHandle,
        args: &[Arg<'_>],
        range: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        self.plan.step("launch", Error::launch)?;
        self.inner.launch_in(queue, kernel, args, range, timed)
    }
    fn bind(&self, kernel: &KernelHandle, args: &[Arg<'_>]) -> Result<KernelHandle> {
        self.plan.step("bind", Error::launch)?;
        self.inner.bind(kernel, args)
    }
    fn launch_bound(&self, bound: &KernelHandle, range: Range, timed: bool) -> Result<Option<Event>> {
        self.plan.step("launch_bound", Error::launch)?;
        self.inner.launch_bound(bound, range, timed)
    }
    fn mark(&self, queue: QueueKind) -> Result<Event> {
        self.plan.step("mark", Error::launch)?;
        self.inner.mark(queue)
    }
    fn wait_for(&self, queue: QueueKind, event: &Event) -> Result<()> {
        self.plan.step("wait_for", Error::launch)?;
        self.inner.wait_for(queue, event)
    }
    fn wait(&self, event: &Event) -> Result<()> {
        self.plan.step("wait", Error::launch)?;
        self.inner.wait(event)
    }
    fn has_come(&self, event: &Event) -> Result<bool> {
        self.plan.step("wait", Error::launch)?;
        self.inner.has_come(event)
    }
    fn times(&self, event: &Event) -> Result<(u64, u64)> {
        self.plan.step("times", Error::launch)?;
        self.inner.times(event)
    }
    fn time_transfers(&self, on: bool) -> Result<Vec<Transfer>> {
        self.plan.step("time_transfers", Error::launch)?;
        self.inner.time_transfers(on)
    }
    fn flush(&self, queue: QueueKind) -> Result<()> {
        self.plan.step("flush", Error::launch)?;
        self.inner.flush(queue)
    }
    fn finish(&self, queue: QueueKind) -> Result<()> {
        self.plan.step("finish", Error::launch)?;
        self.inner.finish(queue)
    }
    fn deferred_error(&self) -> Option<Error> {
        self.inner.deferred_error()
    }
}
