//! A driver that computes nothing: memory reads as zeros, every source builds, and launches have no effect. It shows the builds and launches of a
//! device that is not present, and the host cost of launching.

use crate::driver::Transfer;
use crate::driver::{Arg, Driver, Event, KernelHandle, Memory, Program, QueueKind, Range};
use crate::{Capabilities, Result};

/// A driver for a device with the given capabilities.
pub struct NullDriver(Capabilities);

impl NullDriver {
    /// Returns a driver that reports these capabilities.
    pub fn new(capabilities: Capabilities) -> Self {
        Self(capabilities)
    }
}

impl Driver for NullDriver {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }
    fn allocate(&self, _: usize, _: &'static str) -> Result<Memory> {
        Ok(Memory::new(()))
    }
    fn sub_allocate(&self, _: &Memory, _: usize, _: usize) -> Result<Memory> {
        Ok(Memory::new(()))
    }
    fn write(&self, _: QueueKind, _: &Memory, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: QueueKind, _: &Memory, _: usize, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }
    fn copy(&self, _: QueueKind, _: (&Memory, usize), _: (&Memory, usize), _: usize) -> Result<()> {
        Ok(())
    }
    fn fill(&self, _: QueueKind, _: &Memory, _: usize, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn build(&self, _: &str, _: &str) -> Result<Program> {
        Ok(Program::new(()))
    }
    fn load_binary(&self, _: &[u8], _: &str) -> Result<Program> {
        Ok(Program::new(()))
    }
    fn binary(&self, _: &Program) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    fn build_log(&self, _: &Program) -> Result<String> {
        Ok(String::new())
    }
    fn kernel(&self, _: &Program, _: &str) -> Result<KernelHandle> {
        Ok(KernelHandle::new(()))
    }
    fn kernel_group_limit(&self, _: &KernelHandle) -> Result<usize> {
        Ok(self.0.max_group)
    }
    fn open_queue(&self) -> Result<QueueKind> {
        Ok(QueueKind::Stream(0))
    }
    fn close_queue(&self, _: QueueKind) {}
    fn launch_in(
        &self,
        _: QueueKind,
        _: &KernelHandle,
        _: &[Arg<'_>],
        _: Range,
        timed: bool,
    ) -> Result<Option<Event>> {
        Ok(timed.then(|| Event::new(())))
    }
    fn bind(&self, _: &KernelHandle, _: &[Arg<'_>]) -> Result<KernelHandle> {
        Ok(KernelHandle::new(()))
    }
    fn launch_bound(&self, _: &KernelHandle, _: Range, timed: bool) -> Result<Option<Event>> {
        Ok(timed.then(|| Event::new(())))
    }
    fn mark(&self, _: QueueKind) -> Result<Event> {
        Ok(Event::new(()))
    }
    fn wait_for(&self, _: QueueKind, _: &Event) -> Result<()> {
        Ok(())
    }
    fn wait(&self, _: &Event) -> Result<()> {
        Ok(())
    }
    fn times(&self, _: &Event) -> Result<(u64, u64)> {
        Ok((0, 0))
    }
    fn time_transfers(&self, _: bool) -> Result<Vec<Transfer>> {
        Ok(Vec::new())
    }
    fn flush(&self, _: QueueKind) -> Result<()> {
        Ok(())
    }
    fn finish(&self, _: QueueKind) -> Result<()> {
        Ok(())
    }
    fn deferred_error(&self) -> Option<crate::Error> {
        None
    }
}
