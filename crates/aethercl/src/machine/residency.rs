//! Allocations and their pages: [`Gpu::allocate`], [`Gpu::free`], and moves between device memory and host memory.
//!
//! Without a memory scheduler, every allocation stays in device memory. A scheduler may evict one: the copy engine moves its bytes to host memory,
//! and its pages become free. Before a command that uses it runs, the bytes come back. The address never changes. A command's own allocations are
//! not evicted while it runs.

use super::engines::CopyDirection;
use super::gpu::Gpu;
use super::moves::{Live, Moves};
use super::narrate::TraceLevel;
use super::scheduling::{DispatchScheduler, MemoryScheduler, Resident};
use super::{GpuError, Packet};
use crate::model;

impl Gpu {
    /// Replaces the choice of the next queue; `None` restores the default.
    pub fn set_dispatch_scheduler(&mut self, scheduler: Option<Box<dyn DispatchScheduler>>) {
        self.schedulers.dispatch = scheduler;
    }

    /// Replaces the choice of pages; `None` restores the default. Allocations that were evicted still come back when a command uses them.
    pub fn set_memory_scheduler(&mut self, scheduler: Option<Box<dyn MemoryScheduler>>) {
        self.schedulers.memory = scheduler;
    }

    /// Returns the bytes that the memory scheduler moved so far.
    pub fn moves(&self) -> Moves {
        self.residency.moves
    }

    /// Returns the allocations in device memory, by address.
    pub fn resident(&self) -> Vec<Resident> {
        let mapped = self.vram.mapped();
        mapped
            .filter_map(|(address, pages)| {
                let live = self.residency.live.get(&address)?;
                Some(Resident { address, pages, last_use: live.last_use })
            })
            .collect()
    }

    /// Allocates uninitialized memory; `tag` names it in findings and traces.
    ///
    /// # Errors
    /// If there are not enough free pages, and the memory scheduler frees none, or the device is lost.
    pub fn allocate(&mut self, bytes: u64, tag: &str) -> Result<u64, GpuError> {
        self.alive()?;
        let moved = self.make_room(bytes, &[])?;
        self.host_reaches(moved);
        let full = self.out_of_memory(bytes);
        let address = self.memory.allocate(bytes, tag).map_err(|_| full.clone())?;
        let runs = self.map_pages(address, bytes).ok_or(full)?;
        let last_use = self.residency.commands;
        self.residency.live.insert(address, Live { bytes, last_use });
        if let Some(journal) = &mut self.journal {
            journal.allocated(self.host_ns, address, bytes, tag);
        }
        self.narrator.say(TraceLevel::Steps, self.host_ns, || {
            format!("host: allocates {bytes} bytes for {tag} at {address:#x}, pages {runs}")
        });
        Ok(address)
    }

    /// Frees memory. Commands announced earlier have completed by then.
    ///
    /// # Errors
    /// If no allocation starts there.
    pub fn free(&mut self, address: u64) -> Result<(), GpuError> {
        self.memory.free(address).map_err(|e| GpuError::Address(e.to_string()))?;
        if !self.vram.unmap(address) && self.residency.live.contains_key(&address) {
            self.residency.evicted -= 1;
        }
        self.residency.live.remove(&address);
        if let Some(journal) = &mut self.journal {
            journal.freed(self.host_ns, address);
        }
        self.narrator.say(TraceLevel::Steps, self.host_ns, || format!("host: frees {address:#x}"));
        Ok(())
    }

    /// Returns allocations that were never freed: bytes and tag.
    pub fn leaks(&self) -> Vec<(u64, String)> {
        self.memory.live().into_iter().map(|(_, bytes, tag)| (bytes, tag)).collect()
    }

    fn out_of_memory(&self, asked: u64) -> GpuError {
        let capacity = self.faults.memory_limit().unwrap_or(u64::MAX).min(self.vram.capacity());
        GpuError::OutOfMemory { asked, free: capacity.saturating_sub(self.vram.used()), capacity }
    }

    /// Maps pages where the memory scheduler places them, and describes the runs.
    fn map_pages(&mut self, address: u64, bytes: u64) -> Option<String> {
        let start = match &mut self.schedulers.memory {
            Some(scheduler) => scheduler.place(super::vram::pages(bytes), &self.vram.free_runs()),
            None => None,
        };
        let runs = self.vram.map_at(address, bytes, start)?;
        let runs: Vec<String> = runs.iter().map(|(start, n)| format!("{start}..{}", start + n)).collect();
        Some(runs.join(", "))
    }

    /// Evicts allocations other than `used` until `bytes` fit. Returns the time at which the last one has moved.
    fn make_room(&mut self, bytes: u64, used: &[u64]) -> Result<u64, GpuError> {
        let limit = self.faults.memory_limit();
        let capacity = limit.unwrap_or(u64::MAX).min(self.vram.capacity());
        if bytes > capacity {
            return Err(self.out_of_memory(bytes));
        }
        let mut ready = self.host_ns;
        while !self.vram.fits(bytes, limit) {
            let full = self.out_of_memory(bytes);
            let mut resident = self.resident();
            resident.retain(|r| !used.contains(&r.address));
            let Some(scheduler) = &mut self.schedulers.memory else { return Err(full) };
            let chosen = scheduler.evict(super::vram::pages(bytes), &resident);
            let chosen = chosen.filter(|address| resident.iter().any(|r| r.address == *address));
            ready = self.evict(chosen.ok_or(full)?, ready);
        }
        Ok(ready)
    }

    /// Moves an allocation to host memory, after the commands so far. Returns the end of the copy.
    fn evict(&mut self, address: u64, ready: u64) -> u64 {
        let bytes = self.residency.live.get(&address).map_or(0, |live| live.bytes);
        let busy = self.queues.iter().map(|queue| queue.ready_ns).max().unwrap_or(0);
        self.vram.unmap(address);
        self.residency.moves.out_bytes += bytes;
        self.residency.evicted += 1;
        self.move_bytes(CopyDirection::Out, ready.max(busy), address, bytes)
    }

    fn move_bytes(&mut self, direction: CopyDirection, ready: u64, address: u64, bytes: u64) -> u64 {
        let ns = model::copy_ns(&self.profile, bytes);
        let out = matches!(direction, CopyDirection::Out);
        let what = if out { "evict" } else { "restore" };
        self.narrator.say(TraceLevel::Steps, ready, || {
            let to = if out { "to host memory" } else { "back to device memory" };
            format!("memory scheduler: moves {bytes} bytes of {address:#x} {to}")
        });
        let end = self.transfer(direction, ready, what, bytes, ns).1;
        // The engine of the move is not the engine of the command that caused it.
        if let Some(journal) = &mut self.journal {
            journal.engine = None;
        }
        end
    }

    /// Brings the allocations that a command uses to device memory. Returns the end of the last move.
    pub(super) fn make_resident(&mut self, packet: &Packet, ready: u64) -> Result<u64, GpuError> {
        if self.schedulers.memory.is_none() && self.residency.evicted == 0 {
            return Ok(ready);
        }
        self.residency.commands += 1;
        let now = self.residency.commands;
        let starts: Vec<u64> =
            self.addresses(packet).into_iter().filter_map(|at| self.start_of(at)).collect();
        let mut ready = ready;
        for address in &starts {
            let Some(live) = self.residency.live.get_mut(address) else { continue };
            live.last_use = now;
            let bytes = live.bytes;
            if self.vram.is_mapped(*address) {
                continue;
            }
            let free = self.make_room(bytes, &starts)?;
            self.map_pages(*address, bytes).ok_or_else(|| self.out_of_memory(bytes))?;
            self.residency.moves.in_bytes += bytes;
            self.residency.evicted -= 1;
            ready = self.move_bytes(CopyDirection::In, ready.max(free), *address, bytes);
        }
        Ok(ready)
    }

    /// Returns the first address of the allocation that contains an address.
    fn start_of(&self, address: u64) -> Option<u64> {
        let (start, live) = self.residency.live.range(..=address).next_back()?;
        (address - start < live.bytes.max(1)).then_some(*start)
    }

    /// Returns the device addresses that a command uses.
    fn addresses(&self, packet: &Packet) -> Vec<u64> {
        match packet {
            Packet::CopyIn { to, .. } | Packet::Fill { to, .. } => vec![*to],
            Packet::CopyOut { from, .. } => vec![*from],
            Packet::Copy { to, from, .. } => vec![*to, *from],
            Packet::Launch { descriptor } => {
                self.host.work(*descriptor).map(|work| work.addresses()).unwrap_or_default()
            }
            Packet::Pad { .. } | Packet::Signal { .. } | Packet::Wait { .. } => Vec::new(),
        }
    }
}
