//! What all work-groups of a launch share: code, memory, arguments and limits.

use super::bytecode::Code;
use super::lower::Constants;
use crate::image::Image;
use crate::memory::{Allocation, Memory};
use std::sync::Arc;
use std::time::Duration;

/// A buffer argument, or a program-scope variable, as kernels see it.
#[derive(Debug)]
pub struct Buffer {
    /// The allocation that holds it.
    pub allocation: Arc<Allocation>,
    /// The first byte of the buffer in the allocation.
    pub start: u64,
    /// The buffer's size.
    pub bytes: u64,
    /// The kernel may write to it.
    pub writable: bool,
}

/// What all groups of a launch share.
pub struct Shared<'a> {
    /// The kernel.
    pub code: &'a Code,
    /// Program-scope constants.
    pub constants: &'a Constants,
    /// Device memory.
    pub memory: &'a Memory,
    /// Buffers by argument number, behind them the program-scope variables that kernels may write, then what kernels reach by addresses that
    /// they read.
    pub buffers: Vec<Option<Buffer>>,
    /// Images by argument number.
    pub images: Vec<Option<Image>>,
    /// Values of the uniform registers when a group starts.
    pub uniforms: Vec<u64>,
    /// Bytes of arguments in private memory: (offset, bytes).
    pub private_arguments: Vec<(u32, Vec<u8>)>,
    /// Global offset, global size, group size.
    pub range: [[u64; 3]; 3],
    /// Bytes of local memory of a group, with what the arguments ask for.
    pub local_bytes: u32,
    /// Local memory of arguments: (offset, bytes, argument).
    pub local_arguments: Vec<(u32, u32, usize)>,
    /// Instructions a group may execute.
    pub max_steps: u64,
    /// Processor time a group may take.
    pub max_time: Option<Duration>,
    /// Groups may wait for one another.
    pub together: bool,
    /// Work-items of a sub-group.
    pub sub_group: u32,
}
