//! Concatenation of tensors along an axis, and splitting.

use super::prelude::*;
use super::view::FAR;
use super::view::place;
use crate::tape;

/// Operation that concatenates inputs along an axis.
#[derive(Clone)]
pub struct Cat {
    pub(super) axis: usize,
}

impl Cat {
    fn join(&self, inputs: &[&Tensor]) -> Result<Tensor> {
        let Some((first, rest)) = inputs.split_first() else { return Err(Error::shape("cat: no tensors")) };
        let axis = self.axis;
        let mut dims = first.dims().to_vec();
        for (i, input) in rest.iter().enumerate() {
            let others = |t: &Tensor| [&t.dims()[..axis], &t.dims()[axis + 1..]].concat();
            if input.dtype() != first.dtype() {
                let (a, b) = (first.dtype(), input.dtype());
                return Err(Error::dtype(format!("cat: tensor {} is {b}, but tensor 0 is {a}", i + 1)));
            }
            if input.shape().rank() != dims.len() || others(input) != others(first) {
                return Err(Error::shape(format!(
                    "cat: tensor {} has shape {}, expected {} but for axis {axis}",
                    i + 1,
                    input.shape(),
                    first.shape()
                )));
            }
            dims[axis] += input.dims()[axis];
        }
        let y = Tensor::empty(first.device(), dims, first.dtype())?;
        let mut at = 0;
        for input in inputs {
            place(input, &y, axis, at)?;
            at += input.dims()[axis];
        }
        Ok(y)
    }
    /// Returns each input's window of `dy`.
    fn part(&self, inputs: &[&Tensor], dy: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut at = 0;
        let mut out = Vec::with_capacity(inputs.len());
        for input in inputs {
            let n = input.dims()[self.axis];
            out.push(Some(dy.slice(self.axis.cast_signed(), at..at + n)?));
            at += n;
        }
        Ok(out)
    }
}

/// Three inputs represent any number: [`cat`] runs the same code.
impl Op<3> for Cat {
    const NAME: &'static str = "cat";
    type Saved = ();
    fn forward(&self, inputs: [&Tensor; 3]) -> Result<(Tensor, ())> {
        Ok((self.join(&inputs)?, ()))
    }
    fn backward(&self, inputs: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let parts = self.part(&inputs, dy)?;
        parts.try_into().map_err(|_| Error::internal("cat: as many gradients as inputs"))
    }
    fn reference(&self, inputs: [&Array; 3]) -> Array {
        let mut dims = inputs[0].shape.dims().to_vec();
        dims[self.axis] = inputs.iter().map(|i| i.shape.dims()[self.axis]).sum();
        let shape = Shape::from(dims);
        Array::from_fn(shape.clone(), |i| {
            let mut at = unravel(i, &shape);
            for input in inputs {
                let n = input.shape.dims()[self.axis];
                if at[self.axis] < n {
                    return input.data
                        [at.iter().zip(input.shape.strides()).map(|(a, s)| a * s).sum::<usize>()];
                }
                at[self.axis] -= n;
            }
            f64::NAN
        })
    }
    fn calls() -> Vec<Call> {
        let take = |name, doc| Call::new(name, doc).inputs(&["x"]);
        vec![
            Call::new("cat", "Concatenates tensors along an axis; their other axes must agree. A negative axis counts from the end.")
                .list("tensors")
                .default("axis", 0)
                .run(|a| cat(&a.list(), a.get("axis")?)),
            Call::new("stack", "Stacks tensors of one shape along a new axis, inserted before `axis`; a negative one counts from after the last.")
                .list("tensors")
                .default("axis", 0)
                .run(|a| {
                    let (tensors, axis) = (a.list(), a.get("axis")?);
                    let first = tensors.first().ok_or_else(|| Error::shape("stack: got 0 tensors, expected at least 1"))?;
                    stack(&tensors, first.shape().new_axis("stack", axis)?)
                }),
            take("split", "Views of these lengths along an axis, in order; they must add up to its size.")
                .required("lengths", AttributeKind::Ints)
                .default("axis", 0)
                .results(&["parts"])
                .run_many(|a| a.inputs::<1>()?[0].split(&a.get::<Vec<_>>("lengths")?, a.get("axis")?)),
            take("chunk", "`count` views of equal length along an axis.")
                .required("count", AttributeKind::Int)
                .default("axis", 0)
                .results(&["parts"])
                .run_many(|a| a.inputs::<1>()?[0].chunk(a.get("count")?, a.get("axis")?)),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("axis", self.axis.into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |axis, a: &[usize], b: &[usize], c: &[usize]| {
            Sample::new(Self { axis }, [a, b, c].map(SampleInput::normal)).exact()
        };
        let half: &[usize] = &[4096, 2048];
        vec![
            sample(1, &[3, 5], &[3, 40], &[3, 1]).bench(&[half, half, half]),
            sample(0, &[2, 3, 4], &[1, 3, 4], &[5, 3, 4]),
            Sample::new(
                Self { axis: 0 },
                [[2, 3, 4], [1, 3, 4], [5, 3, 4]].map(|s| SampleInput::values(&s, FAR, None)),
            )
            .exact()
            .extreme()
            .pointwise()
            .light(),
            sample(0, &[1], &[1], &[1]).light(),
            sample(1, &[2, 0], &[2, 3], &[2, 0]).light(),
            sample(0, &[0, 2], &[0, 2], &[0, 2]).light(),
        ]
    }
}

/// Concatenates tensors along `axis`; their other axes must agree. A negative axis counts from the end.
///
/// # Errors
/// `Shape` or `DType` that names the tensor that does not fit.
pub fn cat(inputs: &[&Tensor], axis: isize) -> Result<Tensor> {
    let Some(first) = inputs.first() else {
        return Err(Error::shape("cat: no tensors, expected at least one"));
    };
    check::one_device(Cat::NAME, inputs)?;
    let op = Cat { axis: first.shape().axis("cat", axis)? };
    let axis = op.axis;
    observe::noted(
        Cat::NAME,
        inputs,
        || vec![("axis", axis.into())],
        || {
            let y = tape::no_grad(|| op.join(inputs))?;
            tape::record(Cat::NAME, inputs, y, move |inputs, dy| {
                op.part(&inputs.iter().collect::<Vec<_>>(), dy)
            })
        },
    )
}

/// Stacks tensors of one shape along a new axis, which is inserted before `axis`.
pub fn stack(inputs: &[&Tensor], axis: usize) -> Result<Tensor> {
    if let Some((i, other)) = inputs.iter().enumerate().find(|(_, t)| t.shape() != inputs[0].shape()) {
        let (a, b) = (other.shape(), inputs[0].shape());
        return Err(Error::shape(format!(
            "stack: tensor {i} has shape {a}, expected {b}, the shape of tensor 0"
        )));
    }
    let parts = inputs.iter().map(|t| t.unsqueeze(axis)).collect::<Result<Vec<_>>>()?;
    cat(&parts.iter().collect::<Vec<_>>(), axis.cast_signed())
}

impl Tensor {
    /// Returns views of these lengths along `axis`, in order; they must add up to its size.
    pub fn split(&self, lengths: &[usize], axis: isize) -> Result<Vec<Self>> {
        let at = self.shape().axis("split", axis)?;
        let sum = lengths.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        if sum != Some(self.dims()[at]) {
            return Err(Error::shape(format!(
                "split: lengths {lengths:?} of axis {axis} of shape {} do not add up to {}",
                self.shape(),
                self.dims()[at]
            )));
        }
        let starts = lengths.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum - n)
        });
        starts.zip(lengths).map(|(start, n)| self.slice(at.cast_signed(), start..start + n)).collect()
    }
    /// Returns `count` views of equal length along `axis`.
    ///
    /// # Errors
    /// `Shape` if `count` does not divide the axis.
    pub fn chunk(&self, count: usize, axis: isize) -> Result<Vec<Self>> {
        let at = self.shape().axis("chunk", axis)?;
        let size = self.dims()[at];
        if count == 0 || !size.is_multiple_of(count) {
            return Err(Error::shape(format!(
                "chunk: axis {axis} of shape {} does not divide into {count} equal parts",
                self.shape()
            )));
        }
        self.split(&vec![size / count; count], axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_parts_stack_split_and_send_gradients_back() {
        let device = crate::suite::test_device().unwrap();
        let make = |i: usize| Tensor::full(&device, [2, 3], i as f32, DType::F32).unwrap().parameter("part");
        let parts: Vec<Tensor> = (0..5).map(make).collect();
        let all = stack(&parts.iter().collect::<Vec<_>>(), 1).unwrap();
        assert_eq!(all.dims(), [2, 5, 3]);
        let back = all.chunk(5, 1).unwrap();
        for (i, part) in back.iter().enumerate() {
            assert_eq!(part.to_vec().unwrap(), [i as f32; 6]);
        }
        back[3].sum(&[], false).unwrap().backward().unwrap();
        for (i, part) in parts.iter().enumerate() {
            let grad = part.grad().unwrap().to_vec().unwrap();
            assert_eq!(grad, [if i == 3 { 1.0 } else { 0.0 }; 6]);
        }
        let ids = Tensor::arange(&device, 0..6).unwrap();
        let parts = ids.split(&[1, 3, 2], 0).unwrap();
        let again = cat(&[&parts[2], &parts[0], &parts[1]], 0).unwrap();
        assert_eq!(again.to_u32().unwrap(), [4, 5, 0, 1, 2, 3]);
    }
}
