//! The host's side: pinned memory that copy engines reach by bus address, and launch descriptors, which lie there too.

use super::Work;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// First bus address; far from every device address, so that one taken for the other is found.
const FIRST: u64 = 0x8000_0000_0000;

/// Pinned host memory and descriptors by bus address.
#[derive(Default)]
pub struct HostMemory {
    next: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Those that stay where they are when a copy engine has used them.
    kept: BTreeSet<u64>,
    descriptors: BTreeMap<u64, Arc<dyn Work>>,
}

impl HostMemory {
    fn address(&mut self, bytes: u64) -> u64 {
        let at = FIRST + self.next;
        self.next += (bytes + 1).next_multiple_of(4096);
        at
    }
    /// Pins bytes; the copy engine sees them at this address until they are taken.
    pub fn pin(&mut self, data: Vec<u8>) -> u64 {
        let at = self.address(data.len() as u64);
        self.blocks.insert(at, data);
        at
    }
    /// Pins bytes until [`HostMemory::unpin`]; copy engines reach each part of them, as often as a program says.
    pub fn keep(&mut self, data: Vec<u8>) -> u64 {
        let at = self.pin(data);
        self.kept.insert(at);
        at
    }
    /// Takes pinned bytes back.
    pub fn unpin(&mut self, at: u64) -> Option<Vec<u8>> {
        self.kept.remove(&at);
        self.blocks.remove(&at)
    }
    /// Start of the block that stays and has these bytes.
    fn block(&self, at: u64, bytes: u64) -> Option<u64> {
        let start = *self.kept.range(..=at).next_back()?;
        let end = (at - start).checked_add(bytes)?;
        (end <= self.blocks.get(&start)?.len() as u64).then_some(start)
    }
    /// What a copy to the device reads: a whole block that is used up by that, or part of one that stays.
    pub fn source(&mut self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let Some(start) = self.block(at, bytes) else { return self.used_up(at, bytes) };
        let from = (at - start) as usize;
        self.blocks.get(&start).map(|block| block[from..from + bytes as usize].to_vec())
    }
    /// Room for what a copy from the device brings.
    pub fn room(&mut self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        if self.block(at, bytes).is_some() { Some(vec![0; bytes as usize]) } else { self.used_up(at, bytes) }
    }
    /// Puts into a block that stays what a copy brought there; what is left for whoever asked for it.
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
    /// Takes a launch's description.
    pub fn take(&mut self, at: u64) -> Option<Arc<dyn Work>> {
        self.descriptors.remove(&at)
    }
    /// Blocks and descriptors that nobody took yet.
    pub fn waiting(&self) -> usize {
        self.blocks.len() + self.descriptors.len()
    }
}
