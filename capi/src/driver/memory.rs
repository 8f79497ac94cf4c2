//! Memory and transfers.

use super::state::{self, BUFFERS};
use crate::edge::{edge, flag, value};
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::device::Buffer;
use std::ffi::{c_int, c_void};

/// Allocates an uninitialized buffer of `size` bytes on a GPU. Returns its handle, or NULL on failure.
#[unsafe(no_mangle)]
pub extern "C" fn allocate_gpu_memory(gpu_index: c_int, size: usize) -> *mut c_void {
    value("allocate_gpu_memory", std::ptr::null_mut(), || {
        let device = state::device(gpu_index)?;
        if size == 0 {
            return Err(Failure::argument("cannot allocate a buffer of 0 bytes"));
        }
        BUFFERS.insert(device.allocate(size)?)
    })
}

/// Frees a buffer. NULL is ignored. Freeing a buffer twice only sets `netcl_last_error()`.
#[unsafe(no_mangle)]
pub extern "C" fn free_gpu_memory(_gpu_index: c_int, buffer_handle: *mut c_void) {
    edge("free_gpu_memory", || {
        if !buffer_handle.is_null() {
            BUFFERS.remove(buffer_handle)?;
        }
        Ok(())
    });
}

fn part(handle: *const c_void, offset: usize, size: usize) -> Result<Buffer> {
    let buffer = BUFFERS.get(handle)?;
    if offset.checked_add(size).is_some_and(|end| end <= buffer.bytes()) {
        return Ok(buffer);
    }
    let there = buffer.bytes();
    Err(Failure::argument(format!("{size} bytes at offset {offset} exceed a buffer of {there} bytes")))
}

/// Copies `size` bytes from the host to a buffer, starting at byte `offset`. Returns when the source may be changed.
///
/// # Safety
/// `host_source_ptr` points to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write_host_to_gpu_blocking(
    _gpu_index: c_int,
    gpu_buffer_handle: *mut c_void,
    offset: usize,
    size: usize,
    host_source_ptr: *const c_void,
) -> c_int {
    flag("write_host_to_gpu_blocking", || {
        let buffer = part(gpu_buffer_handle, offset, size)?;
        // SAFETY: guaranteed by this function's caller.
        let source = unsafe { pointers::slice("host_source_ptr", host_source_ptr.cast::<u8>(), size) }?;
        buffer.device().upload(&buffer, offset, source)?;
        Ok(buffer.device().finish()?)
    })
}

/// Copies `size` bytes from a buffer, starting at byte `offset`, to the host. Waits for all earlier operations.
///
/// # Safety
/// `host_destination_ptr` points to room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read_gpu_to_host_blocking(
    _gpu_index: c_int,
    gpu_buffer_handle: *mut c_void,
    offset: usize,
    size: usize,
    host_destination_ptr: *mut c_void,
) -> c_int {
    flag("read_gpu_to_host_blocking", || {
        let buffer = part(gpu_buffer_handle, offset, size)?;
        // SAFETY: guaranteed by this function's caller.
        let room =
            unsafe { pointers::slice_mut("host_destination_ptr", host_destination_ptr.cast::<u8>(), size) }?;
        Ok(buffer.device().download(&buffer, offset, room)?)
    })
}

/// Copies the first `size` bytes of a buffer to the start of another buffer.
#[unsafe(no_mangle)]
pub extern "C" fn execute_clone_on_gpu(
    _gpu_index: c_int,
    src_buffer: *mut c_void,
    dst_buffer: *mut c_void,
    size: usize,
) -> c_int {
    flag("execute_clone_on_gpu", || {
        let (from, to) = (part(src_buffer, 0, size)?, part(dst_buffer, 0, size)?);
        if !from.device().same(to.device()) {
            return Err(Failure::new(NetclStatus::Device, "the buffers are on different devices"));
        }
        if from.same(&to) {
            return Ok(());
        }
        from.device().copy(&from, 0, &to, 0, size)?;
        Ok(from.device().finish()?)
    })
}
