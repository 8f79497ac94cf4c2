//! A sum followed by ReLU in one pass, as at the end of a residual block (He et al. 2015).

use super::elementwise::map_as_they_lie;
use super::prelude::*;

/// Computes `max(a + b, 0)` of two tensors of one shape. Both have the same gradient, which is computed once.
///
/// # Errors
/// `Shape` or `DType` if they differ.
pub fn add_relu(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check::same_float("add_relu", &[("a", a), ("b", b)])?;
    if a.shape() != b.shape() {
        return Err(Error::shape(format!(
            "add_relu: b has shape {}, expected {}, the shape of a",
            b.shape(),
            a.shape()
        )));
    }
    AddRelu.apply([a, b])
}

/// Operation of [`add_relu`].
#[derive(Clone)]
pub struct AddRelu;

impl Op<2> for AddRelu {
    const NAME: &'static str = "add_relu";
    /// The result of the forward.
    type Saved = Tensor;
    fn forward(&self, [a, b]: [&Tensor; 2]) -> Result<(Tensor, Tensor)> {
        let y = "x0 + x1 < 0.0f ? (FV)(0.0f) : x0 + x1";
        let y = map_as_they_lie(y, &[a, b], &[], a.shape(), a.dtype())?;
        Ok((y.clone(), y))
    }
    fn backward(&self, _: [&Tensor; 2], y: &Tensor, dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let d = map_as_they_lie("x0 <= 0.0f ? (FV)(0.0f) : x1", &[y, dy], &[], y.shape(), y.dtype())?;
        Ok([Some(d.clone()), Some(d)])
    }
    fn reference(&self, [a, b]: [&Array; 2]) -> Array {
        a.zip(b, &a.shape, |a, b| if a + b < 0.0 { 0.0 } else { a + b })
    }
    fn calls() -> Vec<Call> {
        let doc = "`max(a + b, 0)` of two tensors of one shape, in one pass.";
        vec![
            Call::new(Self::NAME, doc)
                .inputs(&["a", "b"])
                .run(|a| a.inputs().and_then(|[a, b]| add_relu(a, b))),
        ]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample =
            |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape), SampleInput::normal(shape)]);
        let far = SampleInput::uniform(&[3, 37], -1e30, 1e30);
        vec![
            sample(&[3, 37]).bench(&[&[64, 64, 32, 32], &[64, 64, 32, 32]]),
            sample(&[2, 3, 2, 5]),
            Sample::new(Self, [far.clone(), far]).extreme().light(),
            sample(&[1]).light(),
            sample(&[4, 0]).light(),
        ]
    }
}
