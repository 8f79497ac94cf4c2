//! Host addresses of the simulated GPU's memory.
//!
//! `simulated_kernel_allocate` returns a pointer to the bytes of the allocation, which the program may read and write itself. The machine computes on
//! the same bytes, so both always see the same content. Commands use device addresses: each call translates the addresses that it is given. If device
//! memory is full, the machine's memory scheduler moves allocations to host memory and back, which takes simulated time and changes no pointer.

use crate::machine::state::Machine;
use crate::status::{Failure, NetclStatus, Result};
use aethercl::memory::Allocation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An allocation with its bytes, which live as long as this.
struct Mapping {
    device: u64,
    block: Arc<Allocation>,
}

/// Allocations of a machine by their host addresses.
#[derive(Default)]
pub struct Mappings(BTreeMap<u64, Mapping>);

/// Address of an allocation for the program and for commands.
#[derive(Clone, Copy)]
pub struct Mapped {
    pub host: u64,
    pub device: u64,
}

/// Allocates memory of the machine and finds its bytes.
pub fn allocate(machine: &Machine, bytes: usize, tag: &str) -> Result<(Mapped, Arc<Allocation>)> {
    if cfg!(target_endian = "big") {
        let message = "the words of the simulated GPU are little-endian, and this system is big-endian";
        return Err(Failure::new(NetclStatus::Unsupported, message));
    }
    // Checked because a system may promise more memory than it has.
    let there = netcl::device::available_memory().unwrap_or(u64::MAX);
    if bytes as u64 > there {
        let message = format!("cannot allocate {bytes} bytes: {there} bytes of host memory are available");
        return Err(Failure::new(NetclStatus::Memory, message));
    }
    let device = machine.with(|gpu| gpu.allocate(bytes as u64, tag))?;
    let (block, _) = machine.gpu().memory().find(device).ok_or_else(|| {
        Failure::new(NetclStatus::Internal, "a new allocation of the simulated GPU has no bytes")
    })?;
    // The machine cannot see the writes of the program, so every byte counts as written.
    block.mark_written(0, bytes);
    let host = block.words.as_ptr().expose_provenance() as u64;
    Ok((Mapped { host, device }, block))
}

impl Mappings {
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub fn insert(&mut self, at: Mapped, block: Arc<Allocation>) {
        self.0.insert(at.host, Mapping { device: at.device, block });
    }

    /// Returns the device address of `bytes` bytes at a host address. They must be within one allocation.
    pub fn device(&self, host: u64, bytes: u64) -> Result<u64> {
        let wrong = |what: &str| {
            Failure::argument(format!("{bytes} bytes at {host:#x} are not within an allocation: {what}"))
        };
        let found = self.0.range(..=host).next_back();
        let (start, found) = found
            .filter(|(start, m)| host - **start < m.block.bytes)
            .ok_or_else(|| wrong("simulated_kernel_allocate did not return memory there, or it was freed"))?;
        let offset = host - start;
        if bytes <= found.block.bytes - offset {
            return Ok(found.device + offset);
        }
        Err(wrong(&format!("offset {offset} of `{}` ({} bytes)", found.block.tag, found.block.bytes)))
    }

    /// Removes the allocation that starts at a host address, and returns its device address.
    pub fn remove(&mut self, host: u64) -> Result<u64> {
        let found = self.0.remove(&host).map(|mapping| mapping.device);
        found.ok_or_else(|| Failure::argument(format!("{host:#x} is not the start of an allocation")))
    }
}
