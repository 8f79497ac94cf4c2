//! Common imports of operations.

pub(crate) use super::RESIDENT;
pub use super::call::{Args, AttributeKind, Attributes, Call, Value};
pub use super::map::{map, map_into};
pub(crate) use super::observe;
pub use super::{
    Op, check, has_vectors_of_16_bytes, largest_group, row_group, row_groups, sum_parts, vectors_of_16_bytes,
};
pub use crate::array::{Array, unravel};
pub use crate::shape::{Layout, Shape};
pub use crate::suite::{Sample, SampleInput};
pub use crate::tape::Term;
pub use crate::{DType, Device, Error, Result, Tensor, counted};
pub use netcl_kernel::tune::Tuning;
pub use netcl_kernel::{Kernel, Operand, cl_file};
