//! Reductions in the elements' own type: sums and products of integers that wrap, extremes, and whether any or all are set. No gradients.

use super::super::map::CPU_CHUNK;
use super::super::prelude::*;
use super::{Slab, axes_of};

static KERNEL: Kernel =
    Kernel::new("fold", cl_file!("fold.cl")).tune(&[("WG", &[64])]).tune_cpu(&[("WG", &[1])]);

/// Combination of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// The larger one; NaN if one is NaN.
    Max,
    /// The smaller one; NaN if one is NaN.
    Min,
    /// Whether at least one is not 0: a mask.
    Any,
    /// Whether both are not 0: a mask.
    All,
}

impl Fold {
    /// Parses its name in Python.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "sum" => Self::Sum,
            "prod" => Self::Prod,
            "max" => Self::Max,
            "min" => Self::Min,
            "any" => Self::Any,
            "all" => Self::All,
            _ => return None,
        })
    }
    fn op(self) -> &'static str {
        match self {
            Self::Sum => "SUM",
            Self::Prod => "PROD",
            Self::Max => "MAX",
            Self::Min => "MIN",
            Self::Any => "ANY",
            Self::All => "ALL",
        }
    }
    /// Returns the accumulator type for elements of this type, and the storage type of a part's result.
    fn accumulator(self, dtype: DType) -> (&'static str, DType) {
        match (self, dtype) {
            (Self::Any | Self::All, DType::F32 | DType::F16 | DType::Bf16) => ("float", DType::F32),
            (_, DType::F32 | DType::F16 | DType::Bf16) => ("float", DType::F32),
            (Self::Sum | Self::Prod, _) | (_, DType::U32 | DType::Bool) => ("uint", DType::U32),
            (_, DType::I32) => ("int", DType::I32),
        }
    }
}

/// Reduces `x` over `axes` [default: all], which stay as size 1 with `keep`. Floats are accumulated in f32, integers wrap.
///
/// # Errors
/// `Shape` for an axis that does not exist, and for the maximum or minimum of an empty axis; `DType` for sums and products of a mask.
pub fn fold(how: Fold, x: &Tensor, axes: &[isize], keep: bool) -> Result<Tensor> {
    let name = how.op().to_ascii_lowercase();
    let logical = matches!(how, Fold::Any | Fold::All);
    if x.dtype() == DType::Bool && matches!(how, Fold::Sum | Fold::Prod) {
        return Err(Error::dtype(format!("{name}: x is bool, expected numbers; convert it with `to_dtype`")));
    }
    let axes = if axes.is_empty() { (0..x.shape().rank()).collect() } else { axes_of(&name, x, axes)? };
    let slab = Slab::of(&x.detach(), &axes, keep)?;
    let [outer, axis, inner] = slab.sizes;
    if axis == 0 && outer * inner > 0 && matches!(how, Fold::Max | Fold::Min) {
        return Err(Error::shape(format!("{name}: cannot reduce an empty axis of shape {}", x.shape())));
    }
    let dtype = if logical { DType::Bool } else { x.dtype() };
    // With few results, parts of the axis are reduced first, enough to keep a device busy.
    let wanted = sum_parts(x.device(), x.count()).div_ceil((outer * inner).max(1));
    let parts = wanted.min(axis / (CPU_CHUNK / 16)).max(1);
    let per = axis.div_ceil(parts).max(1);
    let parts = axis.div_ceil(per).max(1);
    let (_, between) = how.accumulator(x.dtype());
    let (x, sizes) = match parts {
        1 => (slab.x, slab.sizes),
        _ => (launch(how, &slab.x, slab.sizes, (parts, per), between)?, [outer, parts, inner]),
    };
    launch(how, &x, sizes, (1, sizes[1].max(1)), dtype)?.reshape(slab.out)
}

/// Reduces x `(outer, axis, inner)` → `(outer, parts, inner)`.
fn launch(
    how: Fold,
    x: &Tensor,
    [outer, axis, inner]: [usize; 3],
    (parts, per): (usize, usize),
    dtype: DType,
) -> Result<Tensor> {
    let y = Tensor::empty(x.device(), [outer, parts, inner], dtype)?;
    let total = y.count();
    if total == 0 {
        return Ok(y);
    }
    let capabilities = x.device().capabilities();
    let units = capabilities.compute_units.max(1) as usize;
    let groups =
        if capabilities.is_cpu() { total.min(4 * units) } else { total.div_ceil(64).min(32 * units) };
    let launch = KERNEL.launch("fold").define("IN", x.dtype().code()).define("RES", dtype.code());
    let launch = launch.define("OP", how.op()).define("ACC", how.accumulator(x.dtype()).0).groups(groups);
    let launch = launch.read_base(x).write(&y).scalar(x.layout().offset).scalar(axis).scalar(inner);
    launch.scalar(parts).scalar(per).scalar(total).run()?;
    Ok(y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use netcl_device::Settings;

    #[test]
    fn integers_masks_and_floats() {
        for device in [test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()] {
            let signed = |t: Result<Tensor>| -> Vec<i32> {
                t.unwrap().to_u32().unwrap().into_iter().map(u32::cast_signed).collect()
            };
            let x = Tensor::from_i32(&device, [2, 3], &[16_777_217, -5, 3, 7, i32::MAX, 1]).unwrap();
            assert_eq!(signed(fold(Fold::Sum, &x, &[1], false)), [16_777_215, i32::MIN + 7]);
            assert_eq!(signed(fold(Fold::Max, &x, &[0], true)), [16_777_217, i32::MAX, 3]);
            assert_eq!(signed(fold(Fold::Min, &x, &[], false)), [-5]);
            assert_eq!(
                signed(fold(Fold::Prod, &x, &[-1], false)),
                [16_777_217i32.wrapping_mul(-15), i32::MAX.wrapping_mul(7)]
            );
            let mask = x.gt(&Tensor::from_i32(&device, [3], &[0, 0, 2]).unwrap()).unwrap();
            assert_eq!(signed(fold(Fold::All, &mask, &[1], false)), [0, 0]);
            assert_eq!(signed(fold(Fold::Any, &mask, &[0], false)), [1, 1, 1]);
            assert_eq!(fold(Fold::All, &mask, &[], false).unwrap().dtype(), DType::Bool);
            let none = Tensor::from_i32(&device, [0, 2], &[]).unwrap();
            assert_eq!(signed(fold(Fold::Prod, &none, &[0], false)), [1, 1]);
            assert!(
                fold(Fold::Max, &none, &[0], false).is_err() && fold(Fold::Sum, &mask, &[], false).is_err()
            );
            let f = Tensor::from_f32(&device, [3], &[0.5, f32::NAN, 2.0], DType::F16).unwrap();
            assert!(fold(Fold::Min, &f, &[], false).unwrap().item().unwrap().is_nan());
            assert_eq!(signed(fold(Fold::Any, &f, &[], false)), [1]);
        }
    }

    #[test]
    fn long_axes_are_taken_in_parts() {
        let device = test_device().unwrap();
        let numbers: Vec<i32> = (0..100_003).map(|i| i * 7919 % 10_007 - 5000).collect();
        let x = Tensor::from_i32(&device, [100_003], &numbers).unwrap();
        let sum = fold(Fold::Sum, &x, &[], false).unwrap().to_u32().unwrap()[0].cast_signed();
        assert_eq!(sum, numbers.iter().sum::<i32>());
        let max = fold(Fold::Max, &x, &[], false).unwrap().to_u32().unwrap()[0].cast_signed();
        assert_eq!(Some(max), numbers.iter().copied().max());
    }
}
