//! Collective operations on tensors, through host memory.

use crate::{Group, Reduction};
use netcl_device::Result;
use netcl_tensor::Tensor;

impl Group {
    /// Replaces the values of contiguous `x` with the reduction over all ranks.
    ///
    /// # Errors
    /// Same as [`Group::all_reduce`]; device errors.
    pub fn all_reduce_tensor(&self, x: &Tensor, how: Reduction) -> Result<()> {
        let mut values = x.to_bytes()?;
        self.all_reduce_bytes(x.dtype(), &mut values, how)?;
        x.write_bytes(0, &values)
    }

    /// Replaces the values of contiguous `x` with those of the rank `root`.
    ///
    /// # Errors
    /// Same as [`Group::broadcast`]; device errors.
    pub fn broadcast_tensor(&self, x: &Tensor, root: usize) -> Result<()> {
        if self.rank() == root {
            return self.broadcast_bytes(&mut x.to_bytes()?, root);
        }
        let mut values = vec![0; x.count() * x.dtype().size()];
        self.broadcast_bytes(&mut values, root)?;
        x.write_bytes(0, &values)
    }
}
