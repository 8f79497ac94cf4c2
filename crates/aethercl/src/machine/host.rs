//! Host memory: pinned memory that copy engines access by bus address, and launch descriptors.

use super::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// First bus address; far from every device address, so that confusing the two is detected.
const FIRST: u64 = 0x8000_0000_0000;

/// Pinned host memory and descriptors by bus address.
#[derive(Default)]
pub struct HostMemory {
    next: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Blocks that stay in place after a copy engine has used them.
    kept: BTreeSet<u64>,
    descriptors: BTreeMap<u64, Arc<dyn Work>>,
}

impl HostMemory {
    fn address(&mut self, bytes: u64) -> u64 {
        let at = FIRST + self.next;
        self.next += (bytes + 1).next_multiple_of(4096);
        at
    }
    /// Pins bytes at the returned address until a copy engine takes them.
    pub fn pin(&mut self, data: Vec<u8>) -> u64 {
        let at = self.address(data.len() as u64);
        self.blocks.insert(at, data);
        at
    }
    /// Pins bytes until [`HostMemory::unpin`]; copy engines may access any part of them repeatedly.
    pub fn keep(&mut self, data: Vec<u8>) -> u64 {
        let at = self.pin(data);
        self.kept.insert(at);
        at
    }
    /// Returns pinned bytes.
    pub fn unpin(&mut self, at: u64) -> Option<Vec<u8>> {
        self.kept.remove(&at);
        self.blocks.remove(&at)
    }
    /// Returns the start of the permanent block that contains these bytes.
    fn block(&self, at: u64, bytes: u64) -> Option<u64> {
        let start = *self.kept.range(..=at).next_back()?;
        let end = (at - start).checked_add(bytes)?;
        (end <= self.blocks.get(&start)?.len() as u64).then_some(start)
    }
    /// Returns the source of a copy to the device: a whole block, which is consumed, or part of a permanent one.
    pub fn source(&mut self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let Some(start) = self.block(at, bytes) else { return self.used_up(at, bytes) };
        let from = (at - start) as usize;
        self.blocks.get(&start).map(|block| block[from..from + bytes as usize].to_vec())
    }
    /// Returns memory for the result of a copy from the device.
    pub fn room(&mut self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        if self.block(at, bytes).is_some() { Some(vec![0; bytes as usize]) } else { self.used_up(at, bytes) }
    }
    /// Stores the result of a copy in a permanent block; returns the bytes that no block takes.
    pub fn arrived(&mut self, at: u64, data: Vec<u8>) -> Vec<u8> {
        let Some(start) = self.block(at, data.len() as u64) else { return data };
        if let Some(block) = self.blocks.get_mut(&start) {
            block[(at - start) as usize..][..data.len()].copy_from_slice(&data);
        }
        Vec::new()
    }
    fn used_up(&mut self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let fits = !self.kept.contains(&at) && self.blocks.get(&at)?.len() as u64 == bytes;
        if fits { self.blocks.remove(&at) } else { None }
    }
    /// Describes a launch.
    pub fn describe(&mut self, work: Arc<dyn Work>) -> u64 {
        let at = self.address(64);
        self.descriptors.insert(at, work);
        at
    }
    /// Returns the work of a launch descriptor that was not taken yet.
    pub fn work(&self, at: u64) -> Option<&Arc<dyn Work>> {
        self.descriptors.get(&at)
    }
    /// Takes a launch descriptor.
    pub fn take(&mut self, at: u64) -> Option<Arc<dyn Work>> {
        self.descriptors.remove(&at)
    }
    /// Returns the number of blocks and descriptors that were not taken yet.
    pub fn waiting(&self) -> usize {
        self.blocks.len() + self.descriptors.len()
    }
}
