//! Tables of devices and tensors, and the thread's gradient recording state.

use crate::handles::Table;
use crate::status::{Failure, Result};
use netcl::device::Device;
use netcl::tensor::{DType, Tensor, no_grad};
use std::cell::Cell;
use std::ffi::c_int;

pub static DEVICES: Table<Device> = Table::new("device", 0xd1);
pub static TENSORS: Table<Tensor> = Table::new("tensor", 0xd2);

/// An opened device.
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_device(());

/// A tensor on a device.
#[allow(non_camel_case_types)] // its name in C
pub struct netcl_tensor(());

/// 32-bit float.
pub const NETCL_F32: c_int = 0;
/// 16-bit float (IEEE binary16).
pub const NETCL_F16: c_int = 1;
/// bfloat16: the upper half of a 32-bit float.
pub const NETCL_BF16: c_int = 2;
/// Signed 32-bit integer.
pub const NETCL_I32: c_int = 3;
/// Unsigned 32-bit integer.
pub const NETCL_U32: c_int = 4;
/// A mask, such as the result of a comparison: one byte per element, 0 or 1. In input data, every nonzero byte becomes 1.
pub const NETCL_MASK: c_int = 5;

/// Returns the storage type of a C constant.
pub fn dtype(number: c_int) -> Result<DType> {
    match number {
        NETCL_F32 => Ok(DType::F32),
        NETCL_F16 => Ok(DType::F16),
        NETCL_BF16 => Ok(DType::Bf16),
        NETCL_I32 => Ok(DType::I32),
        NETCL_U32 => Ok(DType::U32),
        NETCL_MASK => Ok(DType::Bool),
        _ => Err(Failure::argument(format!(
            "dtype {number}, expected 0 (f32), 1 (f16), 2 (bf16), 3 (i32), 4 (u32), 5 (mask)"
        ))),
    }
}

/// Returns the C constant of a storage type.
pub fn number(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => NETCL_F32,
        DType::F16 => NETCL_F16,
        DType::Bf16 => NETCL_BF16,
        DType::I32 => NETCL_I32,
        DType::U32 => NETCL_U32,
        DType::Bool => NETCL_MASK,
    }
}

thread_local! {
    static WITHOUT: Cell<u32> = const { Cell::new(0) };
}

/// Opens one more scope without gradients on this thread.
pub fn begin_no_grad() {
    WITHOUT.set(WITHOUT.get().saturating_add(1));
}

/// Closes the innermost scope. Returns false if no scope is open.
pub fn end_no_grad() -> bool {
    let depth = WITHOUT.get();
    WITHOUT.set(depth.saturating_sub(1));
    depth > 0
}

/// Runs an operation with or without gradient recording, depending on this thread's scopes.
pub fn recording<T>(f: impl FnOnce() -> T) -> T {
    if WITHOUT.get() > 0 { no_grad(f) } else { f() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_storage_types_go_both_ways() {
        for n in 0..6 {
            assert_eq!(number(dtype(n).unwrap()), n);
        }
        assert!(dtype(6).is_err() && dtype(-1).is_err());
    }
}
