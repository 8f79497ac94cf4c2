//! Conversion between storage types.

use super::elementwise::map_as_they_lie;
use super::map::map_typed;
use super::prelude::*;

/// Operation that rounds values to another storage type.
#[derive(Clone)]
pub struct Cast {
    pub(super) dtype: DType,
}

impl Op<1> for Cast {
    const NAME: &'static str = "cast";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        let floats = x.dtype().is_float() && self.dtype.is_float();
        let y = match floats {
            true => map_as_they_lie("x0", &[x], &[], x.shape(), self.dtype)?,
            false => map_typed("x0", &[x], &[], x.shape(), self.dtype)?,
        };
        Ok((y, ()))
    }
    fn term(&self, [x]: [&Tensor; 1]) -> Result<Option<Term>> {
        Ok((x.dtype().is_float() && self.dtype.is_float()).then_some(Term::Cast(self.dtype)))
    }
    fn backward(&self, [x]: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(dy.to_dtype(x.dtype())?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        x.clone()
    }
    fn calls() -> Vec<Call> {
        let doc = "The same values in another storage type, rounded to nearest even; floats become integers by truncation, and a mask is set \
                   where a value is not 0.";
        let call = Call::new("cast", doc).inputs(&["x"]).required("dtype", AttributeKind::DType);
        vec![call.run(|a| a.inputs::<1>()?[0].to_dtype(a.get("dtype")?))]
    }
    fn attributes(&self) -> Attributes {
        vec![("dtype", self.dtype.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize], dtype| {
            Sample::new(Self { dtype }, [SampleInput::normal(shape)]).as_coarse_as(dtype)
        };
        // The first two overflow f16, the third underflows it.
        let far = SampleInput::values(&[3, 33], &[3e38, -1e6, 1e-9, 65_504.0, -60_000.0], None);
        let far = |dtype| {
            Sample::new(Self { dtype }, [far.clone()]).as_coarse_as(dtype).extreme().pointwise().light()
        };
        vec![
            far(DType::F16),
            far(DType::Bf16),
            sample(&[3, 33], DType::F16),
            sample(&[3, 33], DType::Bf16),
            sample(&[5, 7], DType::F32),
            sample(&[1], DType::F32),
            sample(&[0], DType::F16),
        ]
    }
}

impl Tensor {
    /// Converts the values to another storage type, rounded to nearest even. Floats become integers by truncation, and a mask is set where a value
    /// is not 0.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype() { Ok(self.clone()) } else { Cast { dtype }.apply([self]) }
    }
}
