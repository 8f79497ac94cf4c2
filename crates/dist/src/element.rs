//! Element-wise reduction of vectors.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use netcl_device::{Error, Result};
use netcl_tensor::DType;

/// Reduction operation over the ranks' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum. Integers wrap modulo 2^32; for masks, whether any is set.
    Sum,
    /// The sum divided by the number of ranks; floats only.
    Mean,
    /// The largest; NaN if any is.
    Max,
}

/// A type that can be reduced, and its accumulator type.
pub trait Element: bytemuck::Pod {
    /// Accumulator type: f32 for floats.
    type Sum: Copy;
    /// The storage type.
    const DTYPE: DType;
    /// Converts to the accumulator type.
    fn widen(self) -> Self::Sum;
    /// Rounds to the storage type.
    fn narrow(sum: Self::Sum) -> Self;
    /// Converts all elements of `from` to accumulators; both slices have the same length.
    fn widen_all(from: &[Self], sums: &mut [Self::Sum]) {
        sums.iter_mut().zip(from).for_each(|(sum, x)| *sum = x.widen());
    }
    /// Rounds all accumulators to elements; both slices have the same length.
    fn narrow_all(sums: &[Self::Sum], to: &mut [Self]) {
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = Self::narrow(*sum));
    }
    /// Returns `a + b`.
    fn add(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// Returns the larger value, or NaN.
    fn max(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    /// Returns `sum / n`; `None` for integers and masks.
    fn divide(sum: Self::Sum, n: usize) -> Option<Self::Sum>;
}

macro_rules! float {
    ($type:ty, $dtype:ident, $widen:expr, $narrow:expr $(, $widen_all:ident, $narrow_all:ident)?) => {
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
            $(
                // Converts several at a time if the processor can. This is optimized even in an unoptimized build of this crate.
                fn widen_all(from: &[Self], sums: &mut [f32]) {
                    from.$widen_all(sums);
                }
                fn narrow_all(sums: &[f32], to: &mut [Self]) {
                    to.$narrow_all(sums);
                }
            )?
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
float!(f16, F16, f16::to_f32, f16::from_f32, convert_to_f32_slice, convert_from_f32_slice);
float!(bf16, Bf16, bf16::to_f32, bf16::from_f32, convert_to_f32_slice, convert_from_f32_slice);
integer!(i32, I32);
integer!(u32, U32);

/// A mask byte: sum and maximum both give whether any is set.
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

/// Reduces `parts`, one vector of `out.len()` bytes per rank in rank order, into `out`.
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

/// Number of elements that are reduced at a time, so that accumulators stay in the L1 cache.
const BLOCK: usize = 2048;

fn typed<T: Element>(how: Reduction, parts: &[&[u8]], out: &mut [u8]) -> Result<()> {
    if how == Reduction::Mean && !T::DTYPE.is_float() {
        return Err(Error::dtype(format!("a mean of {} across ranks: expected floats", T::DTYPE)));
    }
    let size = size_of::<T>();
    let Some((first, others)) = parts.split_first() else { return Ok(()) };
    let zero = T::widen(T::zeroed());
    let most = BLOCK.min(out.len() / size);
    let (mut sums, mut terms) = (vec![zero; most], vec![zero; most]);
    for (block, out) in out.chunks_mut(BLOCK * size).enumerate() {
        let range = block * BLOCK * size..block * BLOCK * size + out.len();
        let count = out.len() / size;
        let (sums, terms) = (&mut sums[..count], &mut terms[..count]);
        widen::<T>(&first[range.clone()], sums);
        for part in others {
            widen::<T>(&part[range.clone()], terms);
            let both = sums.iter_mut().zip(&*terms);
            match how {
                Reduction::Max => both.for_each(|(sum, x)| *sum = T::max(*sum, *x)),
                _ => both.for_each(|(sum, x)| *sum = T::add(*sum, *x)),
            }
        }
        if how == Reduction::Mean {
            sums.iter_mut().for_each(|sum| *sum = T::divide(*sum, parts.len()).unwrap_or(*sum));
        }
        match bytemuck::try_cast_slice_mut::<u8, T>(out) {
            Ok(out) => T::narrow_all(sums, out),
            Err(_) => {
                let values = out.chunks_exact_mut(size).zip(&*sums);
                values.for_each(|(out, sum)| out.copy_from_slice(bytemuck::bytes_of(&T::narrow(*sum))));
            }
        }
    }
    Ok(())
}

/// Converts the elements of `bytes`, aligned or not.
fn widen<T: Element>(bytes: &[u8], sums: &mut [T::Sum]) {
    match bytemuck::try_cast_slice::<u8, T>(bytes) {
        Ok(all) => T::widen_all(all, sums),
        Err(_) => {
            let all = bytes.chunks_exact(size_of::<T>()).zip(sums);
            all.for_each(|(x, sum)| *sum = bytemuck::pod_read_unaligned::<T>(x).widen());
        }
    }
}
