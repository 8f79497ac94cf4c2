//! Inputs that share memory with the output of an element-wise kernel.

use super::super::prelude::*;

/// Returns whether two tensors are parts of one allocation, possibly through windows.
fn same_memory(x: &Tensor, y: &Tensor) -> bool {
    x.storage().whole().same(y.storage().whole())
}

/// Returns the bytes of the allocation from the first element to the end of the last; an empty range for an empty tensor.
fn span(x: &Tensor) -> std::ops::Range<usize> {
    let (layout, size) = (x.layout(), x.dtype().size());
    let start = x.storage().start() + layout.offset * size;
    if x.count() == 0 {
        return start..start;
    }
    let last: usize = x.dims().iter().zip(&layout.strides).map(|(n, stride)| (n - 1) * stride).sum();
    start..start + (last + 1) * size
}

/// Returns whether two tensors may have an element in common.
pub(super) fn overlap(x: &Tensor, y: &Tensor) -> bool {
    if !same_memory(x, y) {
        return false;
    }
    let (a, b) = (span(x), span(y));
    !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
}

/// Returns whether element i of x, broadcast to y's shape, is element i of y.
fn same_place(x: &Tensor, y: &Tensor) -> bool {
    let seen = x.layout().expand(y.shape());
    let axes = || y.dims().iter().zip(&y.layout().strides);
    x.dtype().size() == y.dtype().size()
        && span(x).start == span(y).start
        && seen.is_some_and(|seen| axes().zip(&seen.strides).all(|((n, a), b)| *n == 1 || a == b))
}

/// Returns whether a kernel would overwrite elements of x before it reads them: x shares memory with y, with a different layout.
pub(super) fn must_be_copied(x: &Tensor, y: &Tensor) -> bool {
    overlap(x, y) && !same_place(x, y)
}

#[cfg(test)]
mod tests {
    use super::super::{Number, map_into, map_typed_into};
    use super::*;
    use crate::suite::test_device;

    fn numbers(device: &Device) -> Tensor {
        let data: Vec<f32> = (0..4096).map(|i| (i * 37 % 1009) as f32).collect();
        Tensor::from_f32(device, [64, 64], &data, DType::F32).unwrap()
    }

    /// Tests inputs in place, transposed, shifted, broadcast from a part of the output, and from its other half. All must act as copies.
    #[test]
    fn inputs_that_share_memory_with_the_output_count_as_they_were() {
        for device in
            [test_device().unwrap(), Device::open("sim", &netcl_device::Settings::default()).unwrap()]
        {
            type View = fn(&Tensor) -> Result<Tensor>;
            let views: [(&str, View, View); 5] = [
                ("in place", |x| Ok(x.clone()), |x| Ok(x.clone())),
                ("transposed", |x| x.permute(&[1, 0]), |x| Ok(x.clone())),
                (
                    "shifted",
                    |x| x.reshape([4096])?.slice(0, 0..4090),
                    |x| x.reshape([4096])?.slice(0, 6..4096),
                ),
                ("a row for all rows", |x| x.slice(0, 3..4), |x| Ok(x.clone())),
                ("the other half", |x| x.slice(0, 0..32), |x| x.slice(0, 32..64)),
            ];
            for (name, input, output) in views {
                let expected: Vec<f32> = {
                    let x = numbers(&device);
                    let copy = map("x0", &[&input(&x).unwrap()], &[], input(&x).unwrap().shape(), DType::F32)
                        .unwrap();
                    let y = output(&x).unwrap();
                    let sum = map("x0 + x1 * 2.0f", &[&y, &copy], &[], y.shape(), DType::F32).unwrap();
                    sum.to_vec().unwrap()
                };
                for typed in [false, true] {
                    let x = numbers(&device);
                    let (a, y) = (input(&x).unwrap(), output(&x).unwrap());
                    match typed {
                        false => map_into("x0 + x1 * 2.0f", &[&y, &a], &[], &y).unwrap(),
                        true => map_typed_into("x0 + x1 * s0", &[&y, &a], &[Number::Float(2.0)], &y).unwrap(),
                    }
                    assert_eq!(y.to_vec().unwrap(), expected, "{name}, typed {typed}");
                }
            }
        }
    }

    /// Detects that two windows, which are buffers over the memory of another buffer, share memory.
    #[test]
    fn windows_of_one_buffer_share_memory() {
        let device = test_device().unwrap();
        let x = numbers(&device);
        let align = device.capabilities().base_align;
        let window = |from: usize| {
            let buffer = x.storage().window(from, 1024).unwrap();
            Tensor::from_parts(buffer, Layout::contiguous([256].into()), DType::F32, None)
        };
        let (a, b, far) = (window(0), window(align.min(512)), window(8192));
        assert!(overlap(&a, &b) && overlap(&a, &x) && !overlap(&a, &far) && same_place(&a, &a));
        let expected: Vec<f32> = a.to_vec().unwrap().iter().map(|v| v + 1.0).collect();
        map_into("x0 + 1.0f", &[&a], &[], &b).unwrap();
        assert_eq!(b.to_vec().unwrap(), expected);
    }

    /// Tests that tensors of different element sizes over one buffer never count as in place.
    #[test]
    fn a_result_of_another_size_is_no_place_of_its_input() {
        let device = test_device().unwrap();
        let x = numbers(&device);
        assert!(same_place(&x, &x) && overlap(&x, &x));
        let row = x.slice(0, 3..4).unwrap();
        assert!(!same_place(&row, &x) && overlap(&row, &x));
        assert!(!overlap(&x.slice(0, 0..3).unwrap(), &row));
        assert!(!overlap(&x.slice(0, 3..3).unwrap(), &x));
    }
}
