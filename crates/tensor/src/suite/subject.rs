//! An op whose type is erased, so that the suite is compiled once and not for each op.

use super::sample::{Facts, Sample, SampleInput};
use crate::array::Array;
use crate::ops::MultiOp;
use crate::ops::call::{Attributes, Call};
use crate::{DType, Error, Result, Tensor};
use std::any::Any;
use std::rc::Rc;

/// The value that a forward pass keeps for the backward pass.
pub(super) type SavedValue = Box<dyn Any>;

/// [`MultiOp`] with any number of inputs and results. Slices of inputs have one entry per input.
pub(super) trait Subject {
    fn apply(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>>;
    fn forward(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, SavedValue)>;
    /// Gradients of the inputs, from those of all results.
    fn backward(&self, inputs: &[Tensor], saved: &SavedValue, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>>;
    fn reference(&self, inputs: &[&Array]) -> Vec<Array>;
    fn called(&self) -> &'static str;
    fn attributes(&self) -> Attributes;
    fn given<'a>(&self, inputs: &'a [Tensor]) -> Vec<Option<&'a Tensor>>;
    fn calls(&self) -> Vec<Call>;
}

struct Typed<O, const N: usize, const M: usize>(O);

fn refs<T, const N: usize>(inputs: &[T]) -> [&T; N] {
    std::array::from_fn(|i| &inputs[i])
}

impl<O: MultiOp<N, M>, const N: usize, const M: usize> Subject for Typed<O, N, M> {
    fn apply(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.0.clone().apply(refs(inputs)).map(Into::into)
    }
    fn forward(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, SavedValue)> {
        self.0.forward(refs(inputs)).map(|(ys, saved)| (ys.into(), Box::new(saved) as SavedValue))
    }
    fn backward(&self, inputs: &[Tensor], saved: &SavedValue, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let saved = saved.downcast_ref().ok_or_else(|| Error::internal("the forward pass of another op"))?;
        self.0.backward(refs(inputs), saved, refs(dys).map(Some)).map(Into::into)
    }
    fn reference(&self, inputs: &[&Array]) -> Vec<Array> {
        self.0.reference(std::array::from_fn(|i| inputs[i])).into()
    }
    fn called(&self) -> &'static str {
        self.0.called()
    }
    fn attributes(&self) -> Attributes {
        self.0.attributes()
    }
    fn given<'a>(&self, inputs: &'a [Tensor]) -> Vec<Option<&'a Tensor>> {
        self.0.given(refs(inputs))
    }
    fn calls(&self) -> Vec<Call> {
        O::calls()
    }
}

/// A [`Sample`] of any op.
#[derive(Clone)]
pub(super) struct Trial {
    pub op: Rc<dyn Subject>,
    /// Number of results.
    pub results: usize,
    pub inputs: Vec<SampleInput>,
    pub facts: Facts,
}

impl Trial {
    /// The samples of an op.
    pub fn all<O: MultiOp<N, M>, const N: usize, const M: usize>() -> Vec<Self> {
        O::samples().into_iter().map(Self::of::<O, N, M>).collect()
    }

    /// Draws the inputs. Sample number `seed` of an op has the same inputs in every test.
    pub fn draw(&self, seed: u64, dtype: DType) -> Vec<Array> {
        (0..).zip(&self.inputs).map(|(i, input)| input.draw(seed * 16 + i, dtype)).collect()
    }

    fn of<O: MultiOp<N, M>, const N: usize, const M: usize>(sample: Sample<O, N>) -> Self {
        let Sample { op, inputs, facts } = sample;
        Self { op: Rc::new(Typed::<O, N, M>(op)), results: M, inputs: inputs.into(), facts }
    }
}

/// Name of an op, and the kinds of samples that it lacks, with the reason.
pub(super) struct About {
    pub name: &'static str,
    pub no_empty: Option<&'static str>,
    pub no_single: Option<&'static str>,
    pub no_extreme: Option<&'static str>,
}

impl About {
    pub fn of<O: MultiOp<N, M>, const N: usize, const M: usize>() -> Self {
        Self {
            name: O::NAME,
            no_empty: O::NO_EMPTY_SAMPLE,
            no_single: O::NO_SINGLE_SAMPLE,
            no_extreme: O::NO_EXTREME_SAMPLE,
        }
    }
}
