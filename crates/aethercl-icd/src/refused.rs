//! Unsupported features: pipes, shared virtual memory, native kernels. Each function validates its handles first and then returns the
//! error code that the standard defines for devices without the feature.

use crate::cl;
use crate::cl::Result;
use crate::context::Context;
use crate::kernel::Kernel;
use crate::queue::Queue;
use crate::raw::Handle;
use crate::registry;

/// Handles functions that create objects which no device of the context supports.
pub fn in_context(context: Handle) -> Result<Handle> {
    registry::get::<Context>(context)?;
    Err(cl::INVALID_OPERATION)
}

/// Handles functions that take a pipe.
pub fn not_of_buffers(_mem: Handle) -> Result<()> {
    Err(cl::INVALID_MEM_OBJECT)
}

/// Handles commands that no device supports.
pub fn command(queue: Handle) -> Result<()> {
    registry::get::<Queue>(queue)?;
    Err(cl::INVALID_OPERATION)
}

/// `clSetKernelArgSVMPointer` and `clSetKernelExecInfo`.
pub fn kernel_call(kernel: Handle) -> Result<()> {
    registry::get::<Kernel>(kernel)?;
    Err(cl::INVALID_OPERATION)
}

/// Handles queries about objects shared with another API.
pub fn no_sharing() -> Result<()> {
    Err(cl::INVALID_OPERATION)
}
