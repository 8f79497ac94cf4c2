//! The host's side: pinned memory that copy engines reach by bus address, and launch descriptors, which lie there too.

use super::Work;
use std::collections::BTreeMap;
use std::sync::Arc;

/// First bus address; far from every device address, so that one taken for the other is found.
const FIRST: u64 = 0x8000_0000_0000;

/// Pinned host memory and descriptors by bus address.
#[derive(Default)]
pub struct HostMemory {
    next: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
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
    /// Takes pinned bytes back.
    pub fn unpin(&mut self, at: u64) -> Option<Vec<u8>> {
        self.blocks.remove(&at)
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
