//! State that all work-groups of a launch share: code, memory, arguments and limits.

use super::bytecode::Code;
use super::lower::Constants;
use crate::image::Image;
use crate::memory::{Allocation, Memory};
use std::sync::Arc;
use std::time::Duration;

/// A buffer argument or a program-scope variable from the view of kernels.
#[derive(Debug)]
pub struct Buffer {
    /// The allocation that holds it.
    pub allocation: Arc<Allocation>,
    /// Offset of the buffer in the allocation.
    pub start: u64,
    /// The buffer's size.
    pub bytes: u64,
    /// Whether the kernel may write to it.
    pub writable: bool,
}

/// State that all groups of a launch share.
pub struct Shared<'a> {
    /// The kernel.
    pub code: &'a Code,
    /// Program-scope constants.
    pub constants: &'a Constants,
    /// Device memory.
    pub memory: &'a Memory,
    /// Buffers by argument index, followed by writable program-scope variables, then memory that kernels reach through loaded addresses.
    pub buffers: Vec<Option<Buffer>>,
    /// Images by argument index.
    pub images: Vec<Option<Image>>,
    /// Values of the uniform registers when a group starts.
    pub uniforms: Vec<u64>,
    /// Bytes of arguments in private memory: (offset, bytes).
    pub private_arguments: Vec<(u32, Vec<u8>)>,
    /// Global offset, global size, group size.
    pub range: [[u64; 3]; 3],
    /// Bytes of local memory per group, including arguments.
    pub local_bytes: u32,
    /// Local memory of arguments: (offset, bytes, argument).
    pub local_arguments: Vec<(u32, u32, usize)>,
    /// Maximum number of instructions per group.
    pub max_steps: u64,
    /// Maximum CPU time per group.
    pub max_time: Option<Duration>,
    /// Whether groups may wait for one another.
    pub together: bool,
    /// Work-items per sub-group.
    pub sub_group: u32,
}
