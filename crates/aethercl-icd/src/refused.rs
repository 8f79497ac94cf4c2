//! What the devices do not have: pipes, shared virtual memory, native kernels. Every call says so with the code that the
//! standard has for it, after it has looked at its handles.

use crate::cl;
use crate::cl::Result;
use crate::context::Context;
use crate::kernel::Kernel;
use crate::queue::Queue;
use crate::raw::{Handle, In};
use crate::registry;

/// A context, in which no device supports what is to be made.
pub fn in_context(context: Handle) -> Result<Handle> {
    registry::get::<Context>(context)?;
    Err(cl::INVALID_OPERATION)
}

/// A query or command of a memory object that would have to be a pipe.
pub fn not_of_buffers(_mem: Handle) -> Result<()> {
    Err(cl::INVALID_MEM_OBJECT)
}

/// A command that no device executes.
pub fn command(queue: Handle) -> Result<()> {
    registry::get::<Queue>(queue)?;
    Err(cl::INVALID_OPERATION)
}

/// `clSetKernelArgSVMPointer` and `clSetKernelExecInfo`.
pub fn kernel_call(kernel: Handle) -> Result<()> {
    registry::get::<Kernel>(kernel)?;
    Err(cl::INVALID_OPERATION)
}

/// `clSetKernelExecInfo`.
pub fn exec_info(kernel: Handle, value: In<u8>) -> Result<()> {
    registry::get::<Kernel>(kernel)?;
    if value.is_null() { Err(cl::INVALID_VALUE) } else { Err(cl::INVALID_OPERATION) }
}

/// A query about objects of another interface, which nothing is shared with.
pub fn no_sharing() -> Result<()> {
    Err(cl::INVALID_OPERATION)
}
