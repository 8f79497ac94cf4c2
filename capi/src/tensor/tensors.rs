//! Tensors: creating, reading, freeing, and gradients.

use super::state::{DEVICES, TENSORS, dtype, netcl_device, netcl_tensor, number};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::tensor::{DType, Tensor};
use std::ffi::{c_char, c_int, c_void};

/// Maximum number of axes of a tensor.
const MAX_AXES: usize = 64;

/// Stores a tensor in the table and writes its handle to `out`.
///
/// # Safety
/// `out` points to space for a handle.
unsafe fn give(out: *mut *mut netcl_tensor, tensor: Tensor) -> Result<()> {
    pointers::check_out("out", out)?;
    // SAFETY: guaranteed by the caller.
    unsafe { pointers::put("out", out, TENSORS.insert(tensor)?) }
}

/// Returns the size of the elements in bytes.
fn bytes_of(shape: &[usize], dtype: DType) -> Result<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n));
    bytes.ok_or_else(|| Failure::argument(format!("shape {shape:?} has more elements than memory can hold")))
}

/// Creates a dense tensor from the elements at `data`, in row-major order (the last axis varies fastest). `shape` has `rank` sizes, and
/// `bytes` must be the exact size of the elements. If `data` is NULL and `bytes` is 0, the elements are zeros. `dtype` is `NETCL_F32`, ….
///
/// # Safety
/// `shape` points to `rank` sizes, `data` to `bytes` bytes; `out` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_create(
    device: *mut netcl_device,
    dtype: c_int,
    shape: *const usize,
    rank: usize,
    data: *const c_void,
    bytes: usize,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_create", || {
        pointers::check_out("out", out)?;
        let (device, dtype) = (DEVICES.get(device)?, self::dtype(dtype)?);
        if rank > MAX_AXES {
            return Err(Failure::argument(format!("a tensor of {rank} axes, expected at most {MAX_AXES}")));
        }
        // SAFETY: guaranteed by this function's caller.
        let shape = unsafe { pointers::slice("shape", shape, rank) }?;
        let expected = bytes_of(shape, dtype)?;
        let made = if data.is_null() && bytes == 0 {
            Tensor::zeros(&device, shape, dtype)?
        } else if bytes != expected {
            let message = format!("data has {bytes} bytes, shape {shape:?} of {dtype} takes {expected}");
            return Err(Failure::argument(message));
        } else {
            // SAFETY: likewise.
            let data = unsafe { pointers::slice("data", data.cast::<u8>(), bytes) }?;
            Tensor::from_bytes(&device, shape, data, dtype)?
        };
        // SAFETY: likewise.
        unsafe { give(out, made) }
    })
}

/// Frees a tensor's handle. The memory is released when it has no other users: handles, views, or results that need it for a gradient.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_tensor_free(tensor: *mut netcl_tensor) -> NetclStatus {
    edge("netcl_tensor_free", || TENSORS.remove(tensor).map(|_| ()))
}

/// Creates another handle for the same tensor. Both share memory and gradient.
///
/// # Safety
/// `out` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_clone(
    tensor: *mut netcl_tensor,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_clone", || {
        // SAFETY: guaranteed by this function's caller.
        unsafe { give(out, TENSORS.get(tensor)?) }
    })
}

/// Creates a tensor that shares the elements but is detached from the recorded operations: no gradient flows through it.
///
/// # Safety
/// `out` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_detach(
    tensor: *mut netcl_tensor,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_detach", || {
        // SAFETY: guaranteed by this function's caller.
        unsafe { give(out, TENSORS.get(tensor)?.detach()) }
    })
}

/// Creates a parameter that shares the memory and collects its gradient. `name` appears in errors.
///
/// # Safety
/// `name` is a string; `out` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_parameter(
    tensor: *mut netcl_tensor,
    name: *const c_char,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_parameter", || {
        let tensor = TENSORS.get(tensor)?;
        if !tensor.dtype().is_float() {
            let message =
                format!("a tensor of {} cannot have a gradient; use a floating-point type", tensor.dtype());
            return Err(Failure::new(NetclStatus::Dtype, message));
        }
        // SAFETY: guaranteed by this function's caller.
        let name = unsafe { pointers::text("name", name) }?;
        // SAFETY: likewise.
        unsafe { give(out, tensor.parameter(name)) }
    })
}

/// Writes the number of axes to `rank` and their sizes to `shape`, which points to space for `room` sizes. If `shape` is NULL, only the number is
/// returned.
///
/// # Safety
/// `shape` points to space for `room` sizes or is NULL; `rank` points to space for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_shape(
    tensor: *mut netcl_tensor,
    shape: *mut usize,
    room: usize,
    rank: *mut usize,
) -> NetclStatus {
    edge("netcl_tensor_shape", || {
        let tensor = TENSORS.get(tensor)?;
        let dims = tensor.dims();
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("rank", rank, dims.len()) }?;
        if shape.is_null() {
            return Ok(());
        }
        if room < dims.len() {
            return Err(Failure::argument(format!(
                "shape has room for {room} sizes, the tensor has {}",
                dims.len()
            )));
        }
        // SAFETY: likewise.
        unsafe { pointers::slice_mut("shape", shape, dims.len()) }?.copy_from_slice(dims);
        Ok(())
    })
}

/// Writes the storage type, `NETCL_F32`, …, to `dtype`.
///
/// # Safety
/// `dtype` points to space for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_dtype(tensor: *mut netcl_tensor, dtype: *mut c_int) -> NetclStatus {
    edge("netcl_tensor_dtype", || {
        let found = number(TENSORS.get(tensor)?.dtype());
        // SAFETY: guaranteed by this function's caller.
        unsafe { pointers::put("dtype", dtype, found) }
    })
}

/// Copies the elements in row-major order to `data`. `bytes` must be their exact size. Waits until they are computed.
///
/// # Safety
/// `data` points to space for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_read(
    tensor: *mut netcl_tensor,
    data: *mut c_void,
    bytes: usize,
) -> NetclStatus {
    edge("netcl_tensor_read", || {
        let tensor = TENSORS.get(tensor)?;
        let expected = bytes_of(tensor.dims(), tensor.dtype())?;
        if bytes != expected {
            return Err(Failure::argument(format!(
                "data has {bytes} bytes, the tensor of shape {} and type {} has {expected}",
                tensor.shape(),
                tensor.dtype()
            )));
        }
        // SAFETY: guaranteed by this function's caller.
        let room = unsafe { pointers::slice_mut("data", data.cast::<u8>(), bytes) }?;
        room.copy_from_slice(&tensor.to_bytes()?);
        Ok(())
    })
}

/// Overwrites the elements of a dense tensor with the `bytes` bytes at `data`, which must be their exact size. If a recorded result needs
/// the old elements for its gradient, `netcl_backward` then returns an error.
///
/// # Safety
/// `data` points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_write(
    tensor: *mut netcl_tensor,
    data: *const c_void,
    bytes: usize,
) -> NetclStatus {
    edge("netcl_tensor_write", || {
        let tensor = TENSORS.get(tensor)?;
        // SAFETY: guaranteed by this function's caller.
        let data = unsafe { pointers::slice("data", data.cast::<u8>(), bytes) }?;
        Ok(tensor.set_bytes(data)?)
    })
}

/// Writes the accumulated gradient of a parameter to `out`, or NULL if it does not have one.
///
/// # Safety
/// `out` points to space for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_grad(
    tensor: *mut netcl_tensor,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_grad", || {
        pointers::check_out("out", out)?;
        match TENSORS.get(tensor)?.grad() {
            // SAFETY: guaranteed by this function's caller.
            Some(grad) => unsafe { give(out, grad) },
            // SAFETY: likewise.
            None => unsafe { pointers::put("out", out, std::ptr::null_mut()) },
        }
    })
}

/// Clears the accumulated gradient of a parameter.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_tensor_zero_grad(tensor: *mut netcl_tensor) -> NetclStatus {
    edge("netcl_tensor_zero_grad", || {
        TENSORS.get(tensor)?.set_grad(None);
        Ok(())
    })
}

/// Computes the gradients of a result with respect to all parameters that it depends on, and adds them to the parameters' gradients.
/// `gradient` is the gradient of the result itself. It may be NULL for a result of one element, whose gradient is then 1.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_backward(result: *mut netcl_tensor, gradient: *mut netcl_tensor) -> NetclStatus {
    edge("netcl_backward", || {
        let result = TENSORS.get(result)?;
        if gradient.is_null() {
            return Ok(result.backward()?);
        }
        Ok(result.backward_with(&TENSORS.get(gradient)?)?)
    })
}
