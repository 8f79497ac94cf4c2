//! Tensors: made from the host's memory, read back, freed; gradients.

use super::state::{DEVICES, TENSORS, dtype, netcl_device, netcl_tensor, number};
use crate::edge::edge;
use crate::pointers;
use crate::status::{Failure, NetclStatus, Result};
use netcl::tensor::{DType, Tensor};
use std::ffi::{c_char, c_int, c_void};

/// Axes of a tensor at most.
const MOST_AXES: usize = 64;

/// Hands a tensor out.
///
/// # Safety
/// `out` has room for a handle.
unsafe fn give(out: *mut *mut netcl_tensor, tensor: Tensor) -> Result<()> {
    pointers::check_out("out", out)?;
    // SAFETY: as the caller vouches.
    unsafe { pointers::put("out", out, TENSORS.insert(tensor)?) }
}

/// The bytes that elements take.
fn bytes_of(shape: &[usize], dtype: DType) -> Result<usize> {
    let bytes = shape.iter().try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n));
    bytes.ok_or_else(|| Failure::argument(format!("shape {shape:?} has more elements than memory can hold")))
}

/// A tensor with the elements at `data`, without gaps, the last axis fastest: `rank` sizes at `shape`, and exactly as many `bytes` as they take. With
/// `data` NULL, and `bytes` 0, its elements are zeros. `dtype` is `NETCL_F32`, ….
///
/// # Safety
/// `shape` points to `rank` sizes, `data` to `bytes` bytes; `out` has room for a handle.
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
        if rank > MOST_AXES {
            return Err(Failure::argument(format!("{rank} axes; at most {MOST_AXES} are possible")));
        }
        // SAFETY: as this function's caller vouches.
        let shape = unsafe { pointers::slice("shape", shape, rank) }?;
        let expected = bytes_of(shape, dtype)?;
        let made = if data.is_null() && bytes == 0 {
            Tensor::zeros(&device, shape, dtype)?
        } else if bytes != expected {
            let message = format!("{bytes} bytes for shape {shape:?} of {dtype}, expected {expected}");
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

/// Frees a tensor's handle. Its memory goes back when nothing else uses it: another handle, a view, or a result that still needs it for a gradient.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_tensor_free(tensor: *mut netcl_tensor) -> NetclStatus {
    edge("netcl_tensor_free", || TENSORS.remove(tensor).map(|_| ()))
}

/// Another handle of the same tensor: one memory, one gradient.
///
/// # Safety
/// `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_clone(
    tensor: *mut netcl_tensor,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_clone", || {
        // SAFETY: as this function's caller vouches.
        unsafe { give(out, TENSORS.get(tensor)?) }
    })
}

/// The same elements apart from what made them: no gradient flows through it.
///
/// # Safety
/// `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_detach(
    tensor: *mut netcl_tensor,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_detach", || {
        // SAFETY: as this function's caller vouches.
        unsafe { give(out, TENSORS.get(tensor)?.detach()) }
    })
}

/// The same memory as a parameter, which collects its gradient. `name` appears in errors.
///
/// # Safety
/// `name` is a text; `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_parameter(
    tensor: *mut netcl_tensor,
    name: *const c_char,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_parameter", || {
        let tensor = TENSORS.get(tensor)?;
        if !tensor.dtype().is_float() {
            let message = format!("a tensor of {} takes no gradient; floats do", tensor.dtype());
            return Err(Failure::new(NetclStatus::Dtype, message));
        }
        // SAFETY: as this function's caller vouches.
        let name = unsafe { pointers::text("name", name) }?;
        // SAFETY: likewise.
        unsafe { give(out, tensor.parameter(name)) }
    })
}

/// The number of axes in `rank`, and their sizes at `shape`, which has room for `room` of them. `shape` NULL asks only for the number.
///
/// # Safety
/// `shape` has room for `room` sizes or is NULL; `rank` has room for a number.
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
        // SAFETY: as this function's caller vouches.
        unsafe { pointers::put("rank", rank, dims.len()) }?;
        if shape.is_null() {
            return Ok(());
        }
        if room < dims.len() {
            return Err(Failure::argument(format!("room for {room} sizes, there are {}", dims.len())));
        }
        // SAFETY: likewise.
        unsafe { pointers::slice_mut("shape", shape, dims.len()) }?.copy_from_slice(dims);
        Ok(())
    })
}

/// The storage type, `NETCL_F32`, ….
///
/// # Safety
/// `dtype` has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_dtype(tensor: *mut netcl_tensor, dtype: *mut c_int) -> NetclStatus {
    edge("netcl_tensor_dtype", || {
        let found = number(TENSORS.get(tensor)?.dtype());
        // SAFETY: as this function's caller vouches.
        unsafe { pointers::put("dtype", dtype, found) }
    })
}

/// The elements, in order, to `data`, which has room for exactly their `bytes`. Waits for what makes them.
///
/// # Safety
/// `data` has room for `bytes` bytes.
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
                "{bytes} bytes for a tensor of shape {} and type {}, which has {expected}",
                tensor.shape(),
                tensor.dtype()
            )));
        }
        // SAFETY: as this function's caller vouches.
        let room = unsafe { pointers::slice_mut("data", data.cast::<u8>(), bytes) }?;
        room.copy_from_slice(&tensor.to_bytes()?);
        Ok(())
    })
}

/// Overwrites the elements of a tensor without gaps with exactly as many `bytes` at `data`. A result that needs the old ones for its gradient then has
/// none: that is an error of `netcl_backward`.
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
        // SAFETY: as this function's caller vouches.
        let data = unsafe { pointers::slice("data", data.cast::<u8>(), bytes) }?;
        Ok(tensor.set_bytes(data)?)
    })
}

/// The gradient that a parameter has collected; NULL in `out` where there is none.
///
/// # Safety
/// `out` has room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn netcl_tensor_grad(
    tensor: *mut netcl_tensor,
    out: *mut *mut netcl_tensor,
) -> NetclStatus {
    edge("netcl_tensor_grad", || {
        pointers::check_out("out", out)?;
        match TENSORS.get(tensor)?.grad() {
            // SAFETY: as this function's caller vouches.
            Some(grad) => unsafe { give(out, grad) },
            // SAFETY: likewise.
            None => unsafe { pointers::put("out", out, std::ptr::null_mut()) },
        }
    })
}

/// Forgets the gradient that a parameter has collected.
#[unsafe(no_mangle)]
pub extern "C" fn netcl_tensor_zero_grad(tensor: *mut netcl_tensor) -> NetclStatus {
    edge("netcl_tensor_zero_grad", || {
        TENSORS.get(tensor)?.set_grad(None);
        Ok(())
    })
}

/// Gradients of a result with respect to every parameter that it was made of, added to what they have collected. `gradient` is that of the result itself;
/// NULL for a result of one element, whose gradient is 1.
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
