//! Reduction of vectors, element by element.

use half::{bf16, f16};
use netcl_device::{Error, Result};
use netcl_tensor::DType;

/// How the ranks' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum; of integers modulo 2^32, of masks whether any is set.
    Sum,
    /// The sum divided by the number of ranks; floats only.
    Mean,
    /// The largest; NaN if any is.
    Max,
}

/// A type that can be reduced, with the type that sums are kept in.
pub trait Element: bytemuck::Pod {
    /// f32 for floats.
    type Sum: Copy;
    /// The storage type.
    const DTYPE: DType;
    /// Widens.
    fn widen(self) -> Self::Sum;
    /// Rounds to storage.
    fn narrow(sum: Self::Sum) -> Self;
    /// `a + b`.
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// The larger one, or NaN.
    fn max(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// `sum / n`; `None` for integers and masks.
    fn divide(sum: Self::Sum, n: usize) -> Option<Self::Sum>;
}

macro_rules! float {
    ($type:ty, $dtype:ident, $widen:expr, $narrow:expr) => {
        impl Element for $type {
            type Sum = f32;
            const DTYPE: DType = DType::$dtype;
            fn widen(self) -> f32 {
                $widen(self)
            }
            fn narrow(sum: f32) -> Self {
                $narrow(sum)
            }
            fn add(a: f32, b: f32) -> f32 {
                a + b
            }
            fn max(a: f32, b: f32) -> f32 {
                if a.is_nan() || a > b { a } else { b }
            }
            fn divide(sum: f32, n: usize) -> Option<f32> {
                Some(sum / n as f32)
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            type Sum = Self;
            const DTYPE: DType = DType::$dtype;
            fn widen(self) -> Self {
                self
            }
            fn narrow(sum: Self) -> Self {
                sum
            }
            fn add(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }
            fn max(a: Self, b: Self) -> Self {
                Ord::max(a, b)
            }
            fn divide(_: Self, _: usize) -> Option<Self> {
                None
            }
        }
    };
}

float!(f32, F32, |x| x, |x| x);
float!(f16, F16, f16::to_f32, f16::from_f32);
float!(bf16, Bf16, bf16::to_f32, bf16::from_f32);
integer!(i32, I32);
integer!(u32, U32);

/// A mask's byte: sum and maximum say whether any is set.
impl Element for u8 {
    type Sum = bool;
    const DTYPE: DType = DType::Bool;
    fn widen(self) -> bool {
        self != 0
    }
    fn narrow(sum: bool) -> Self {
        sum.into()
    }
    fn add(a: bool, b: bool) -> bool {
        a || b
    }
    fn max(a: bool, b: bool) -> bool {
        a || b
    }
    fn divide(_: bool, _: usize) -> Option<bool> {
        None
    }
}

/// `parts` holds one vector of `out.len()` bytes for each rank, in their order; `out` becomes their reduction.
///
/// # Errors
/// `DType` for a mean of integers or masks.
pub(crate) fn reduce(dtype: DType, how: Reduction, parts: &[&[u8]], out: &mut [u8]) -> Result<()> {
    match dtype {
        DType::F32 => typed::<f32>(how, parts, out),
        DType::F16 => typed::<f16>(how, parts, out),
        DType::Bf16 => typed::<bf16>(how, parts, out),
        DType::I32 => typed::<i32>(how, parts, out),
        DType::U32 => typed::<u32>(how, parts, out),
        DType::Bool => typed::<u8>(how, parts, out),
    }
}

/// Elements that are reduced at a time, so that sums stay in the first cache.
const BLOCK: usize = 2048;

fn typed<T: Element>(how: Reduction, parts: &[&[u8]], out: &mut [u8]) -> Result<()> {
    if how == Reduction::Mean && !T::DTYPE.is_float() {
        return Err(Error::dtype(format!("a mean of {} among ranks: expected floats", T::DTYPE)));
    }
    let size = size_of::<T>();
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    let mut sums: Vec<T::Sum> = Vec::with_capacity(BLOCK);
    for (block, out) in out.chunks_mut(BLOCK * size).enumerate() {
        let range = block * BLOCK * size..block * BLOCK * size + out.len();
        sums.clear();
        each::<T>(&first[range.clone()], |_, x| sums.push(x.widen()));
        for part in others {
            let sums = sums.as_mut_slice();
            match how {
                Reduction::Max => {
                    each::<T>(&part[range.clone()], |i, x| sums[i] = T::max(sums[i], x.widen()))
                }
                _ => each::<T>(&part[range.clone()], |i, x| sums[i] = T::add(sums[i], x.widen())),
            }
        }
        if how == Reduction::Mean {
            sums.iter_mut().for_each(|sum| *sum = T::divide(*sum, parts.len()).unwrap_or(*sum));
        }
        match bytemuck::try_cast_slice_mut::<u8, T>(out) {
            Ok(out) => out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::narrow(*sum)),
            Err(_) => {
                let values = out.chunks_exact_mut(size).zip(&sums);
                values.for_each(|(out, sum)| out.copy_from_slice(bytemuck::bytes_of(&T::narrow(*sum))));
            }
        }
    }
    Ok(())
}

/// Calls `f` with the number and the value of each element of `bytes`, aligned or not.
fn each<T: Element>(bytes: &[u8], mut f: impl FnMut(usize, T)) {
    match bytemuck::try_cast_slice::<u8, T>(bytes) {
        Ok(all) => all.iter().enumerate().for_each(|(i, x)| f(i, *x)),
        Err(_) => {
            let all = bytes.chunks_exact(size_of::<T>()).enumerate();
            all.for_each(|(i, x)| f(i, bytemuck::pod_read_unaligned(x)));
        }
    }
}
