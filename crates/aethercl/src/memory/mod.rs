//! Device memory: an address space, named allocations, and the host's operations on them.

pub mod address;
mod allocation;

pub use allocation::{Allocation, Saved, store_part};

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The first address. Null and small integers are never inside an allocation.
const FIRST: u64 = 0x1_0000;
/// Alignment of allocations in bytes, and the minimum gap between them.
const ALIGN: u64 = 256;
/// Number of freed allocations whose names are kept to report a use after free.
const REMEMBERED: usize = 65_536;

/// Device memory. Shared by reference between host, queues and kernels.
#[derive(Debug)]
pub struct Memory {
    table: RwLock<Table>,
    capacity: u64,
}

#[derive(Debug, Default)]
struct Table {
    live: BTreeMap<u64, Arc<Allocation>>,
    freed: BTreeMap<u64, (u64, String)>,
    next: u64,
    used: u64,
    peak: u64,
}

/// Reason why a call on [`Memory`] failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryError {
    /// Not enough free memory.
    Full {
        /// Bytes asked for.
        requested: u64,
        /// Free bytes.
        free: u64,
    },
    /// The range is not inside one live allocation.
    Outside {
        /// First byte of the range.
        address: u64,
        /// Length of the range.
        bytes: u64,
        /// Description of the content there.
        what: String,
    },
    /// Not the start of a live allocation.
    NotAllocated {
        /// The address given.
        address: u64,
        /// Description of the content there.
        what: String,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::Full { requested, free } => {
                write!(f, "out of device memory: {requested} bytes requested, {free} free")
            }
            MemoryError::Outside { address, bytes, what } => {
                write!(f, "{bytes} bytes at {address:#x} are not inside one allocation: {what}")
            }
            MemoryError::NotAllocated { address, what } => {
                write!(f, "{address:#x} is not the start of an allocation: {what}")
            }
        }
    }
}

impl std::error::Error for MemoryError {}

impl Memory {
    /// Returns device memory of `capacity` bytes; host memory is allocated on demand.
    pub fn new(capacity: u64) -> Memory {
        Memory { table: RwLock::new(Table { next: FIRST, ..Table::default() }), capacity }
    }

    /// Returns the bytes of this device.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.table().used
    }

    /// Returns the peak bytes in use.
    pub fn peak(&self) -> u64 {
        self.table().peak
    }

    /// Allocates `bytes` bytes (at least one) under a name that findings use.
    ///
    /// # Errors
    /// [`MemoryError::Full`] when fewer bytes are free.
    pub fn allocate(&self, bytes: u64, tag: &str) -> Result<u64, MemoryError> {
        let bytes = bytes.max(1);
        let mut table = self.table_mut();
        let free = self.capacity - table.used;
        if bytes > free {
            return Err(MemoryError::Full { requested: bytes, free });
        }
        let address = table.next;
        table.next = (address + bytes).next_multiple_of(ALIGN) + ALIGN;
        table.used += bytes;
        table.peak = table.peak.max(table.used);
        table.live.insert(address, Arc::new(Allocation::new(address, bytes, tag)));
        Ok(address)
    }

    /// Frees memory of [`Memory::allocate`].
    ///
    /// # Errors
    /// [`MemoryError::NotAllocated`] for any other address, also one freed before.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let mut table = self.table_mut();
        let Some(block) = table.live.remove(&address) else {
            let what = table.describe(address);
            return Err(MemoryError::NotAllocated { address, what });
        };
        table.used -= block.bytes;
        table.freed.insert(address, (block.bytes, block.tag.clone()));
        if table.freed.len() > REMEMBERED {
            table.freed.pop_first();
        }
        Ok(())
    }

    /// Copies device memory to the host.
    ///
    /// # Errors
    /// [`MemoryError::Outside`] when the range is not inside one allocation.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let (block, offset) = self.range(address, to.len() as u64)?;
        block.read(offset, to);
        Ok(())
    }

    /// Copies host memory to the device.
    ///
    /// # Errors
    /// Same as [`Memory::read`].
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), MemoryError> {
        let (block, offset) = self.range(address, from.len() as u64)?;
        block.write(offset, from);
        Ok(())
    }

    /// Fills `bytes` bytes with `pattern`.
    ///
    /// # Errors
    /// Same as [`Memory::read`].
    pub fn fill(&self, address: u64, pattern: &[u8], bytes: u64) -> Result<(), MemoryError> {
        let (block, offset) = self.range(address, bytes)?;
        let chunk = pattern.repeat((4096 / pattern.len().max(1)).max(1));
        let mut at = 0;
        while at < bytes as usize && !chunk.is_empty() {
            let n = chunk.len().min(bytes as usize - at);
            block.write(offset + at, &chunk[..n]);
            at += n;
        }
        Ok(())
    }

    /// Copies within device memory; overlapping ranges are copied as if through a buffer. Unwritten bytes stay unwritten.
    ///
    /// # Errors
    /// Same as [`Memory::read`].
    pub fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), MemoryError> {
        let (source, source_offset) = self.range(from, bytes)?;
        let (target, offset) = self.range(to, bytes)?;
        let mut buffer = vec![0; bytes as usize];
        source.read(source_offset, &mut buffer);
        if (0..buffer.len()).step_by(32).all(|i| {
            let n = (buffer.len() - i).min(32);
            (0..n).all(|k| source.is_written(source_offset + i + k, 1))
        }) {
            target.write(offset, &buffer);
        } else {
            let holes = Allocation::new(0, bytes, "");
            holes.copy_written(&source, source_offset, 0, buffer.len());
            for (i, byte) in buffer.iter().enumerate().filter(|(i, _)| holes.is_written(*i, 1)) {
                target.write(offset + i, &[*byte]);
            }
        }
        Ok(())
    }

    /// Returns the live allocation that holds the address, and the offset in it.
    pub fn find(&self, address: u64) -> Option<(Arc<Allocation>, u64)> {
        let table = self.table();
        let (_, block) = table.live.range(..=address).next_back()?;
        (address - block.address < block.bytes).then(|| (block.clone(), address - block.address))
    }

    /// Returns the freed allocation that held the address: its tag and the offset in it.
    pub fn find_freed(&self, address: u64) -> Option<(String, u64)> {
        let table = self.table();
        let (start, (bytes, tag)) = table.freed.range(..=address).next_back()?;
        (address - start < *bytes).then(|| (tag.clone(), address - start))
    }

    /// Describes the content at an address.
    pub fn describe(&self, address: u64) -> String {
        self.table().describe(address)
    }

    /// Returns live allocations as (address, bytes, tag), which a shutdown would leak.
    pub fn live(&self) -> Vec<(u64, u64, String)> {
        self.table().live.values().map(|b| (b.address, b.bytes, b.tag.clone())).collect()
    }

    fn range(&self, address: u64, bytes: u64) -> Result<(Arc<Allocation>, usize), MemoryError> {
        match self.find(address) {
            Some((block, offset)) if bytes <= block.bytes - offset => Ok((block, offset as usize)),
            _ => Err(MemoryError::Outside { address, bytes, what: self.describe(address) }),
        }
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn describe(&self, address: u64) -> String {
        if let Some((_, b)) = self.live.range(..=address).next_back()
            && address - b.address <= b.bytes + ALIGN
        {
            let offset = address - b.address;
            let where_ = if offset >= b.bytes { ", past its end" } else { "" };
            return format!("offset {offset} of `{}` ({} bytes){where_}", b.tag, b.bytes);
        }
        if let Some((start, (bytes, tag))) = self.freed.range(..=address).next_back()
            && address - start < *bytes
        {
            return format!("offset {} of `{tag}` ({bytes} bytes), which was freed", address - start);
        }
        "nothing was ever allocated there".to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_is_named() {
        let memory = Memory::new(1 << 20);
        let a = memory.allocate(100, "weights").unwrap();
        memory.free(a).unwrap();
        let error = memory.write(a + 4, &[1]).unwrap_err();
        assert!(error.to_string().contains("offset 4 of `weights` (100 bytes), which was freed"), "{error}");
        assert!(memory.free(a).is_err());
    }

    #[test]
    fn capacity_is_kept() {
        let memory = Memory::new(1000);
        let a = memory.allocate(600, "a").unwrap();
        assert_eq!(memory.allocate(600, "b"), Err(MemoryError::Full { requested: 600, free: 400 }));
        memory.free(a).unwrap();
        assert!(memory.allocate(1000, "b").is_ok());
        assert_eq!(memory.peak(), 1000);
    }

    #[test]
    fn copies_keep_unwritten_bytes_unwritten() {
        let memory = Memory::new(1000);
        let (a, b) = (memory.allocate(64, "a").unwrap(), memory.allocate(64, "b").unwrap());
        memory.write(a, &[1; 10]).unwrap();
        memory.copy(a, b, 20).unwrap();
        let (block, _) = memory.find(b).unwrap();
        assert!(block.is_written(9, 1) && !block.is_written(10, 1));
    }

    #[test]
    fn a_range_across_two_blocks_is_refused() {
        let memory = Memory::new(1000);
        let a = memory.allocate(64, "a").unwrap();
        memory.allocate(64, "b").unwrap();
        assert!(memory.read(a, &mut [0; 65]).is_err());
    }
}
