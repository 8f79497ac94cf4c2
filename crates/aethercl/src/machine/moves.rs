//! Records of allocations: their last use, and the bytes that a memory scheduler moved.

use std::collections::BTreeMap;

/// Uses of allocations, and the bytes moved.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    /// Size and last use by address.
    pub live: BTreeMap<u64, Live>,
    /// Commands so far.
    pub commands: u64,
    /// Number of allocations in host memory.
    pub evicted: usize,
    /// Bytes moved so far.
    pub moves: Moves,
}

/// Size and last use of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Live {
    /// Bytes.
    pub bytes: u64,
    /// Number of the last command that used it.
    pub last_use: u64,
}

/// Bytes that a memory scheduler moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moves {
    /// From device memory to host memory.
    pub out_bytes: u64,
    /// Back to device memory.
    pub in_bytes: u64,
}
