//! Device addresses of buffers. OpenCL does not have a call for them, but a kernel can read them.

use crate::kernel::Kernel;
use crate::launch::Operand;
use netcl_device::{Buffer, Device, Result};

/// The address bits of simulated memory; the upper bits identify the argument of a pointer.
const SIMULATED: u64 = (1 << 48) - 1;

static ADDRESS: Kernel = Kernel::new("address", crate::cl_file!("address.cl"));

/// Returns the start address of an operand's data in the device's address space. The first query for a block of the pool waits for the device; its
/// result is cached.
///
/// # Errors
/// If the kernel cannot be built or run.
pub fn address(operand: &impl Operand) -> Result<u64> {
    Ok(operand.buffer().address(ask)? + operand.offset() as u64)
}

fn ask(buffer: &Buffer) -> Result<u64> {
    let device = buffer.device();
    device.outside_capture(|| ask_now(device, buffer))
}

fn ask_now(device: &Device, buffer: &Buffer) -> Result<u64> {
    let answer = device.allocate(size_of::<u64>())?;
    ADDRESS.launch("address").local([1, 1, 1]).groups(1).read_base(buffer).write(&answer).run()?;
    let mut bytes = [0; size_of::<u64>()];
    device.download(&answer, 0, &mut bytes)?;
    let address = u64::from_ne_bytes(bytes);
    Ok(if device.capabilities().simulated { address & SIMULATED } else { address })
}
