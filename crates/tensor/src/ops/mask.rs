//! Masks and selection. Comparisons give masks of type bool, one byte per element. In a tensor of any type, an element that is not 0 is set.

use super::map::{Number, map_typed};
use super::prelude::*;
use super::view::FAR;
use crate::tape;
use std::ops::Range;

/// Operation that selects `a` if the mask is set, otherwise `b`; all three broadcast.
#[derive(Clone)]
pub struct Where;

impl Op<3> for Where {
    const NAME: &'static str = "where_cond";
    type Saved = ();
    fn forward(&self, [mask, a, b]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        let shape = a.shape().broadcast(b.shape(), "where_cond")?.broadcast(mask.shape(), "where_cond")?;
        let y = match a.dtype().is_float() {
            true => map(WHERE, &[mask, a, b], &[], &shape, a.dtype())?,
            false => map_typed("x0 != 0 ? x1 : x2", &[mask, a, b], &[], &shape, a.dtype())?,
        };
        Ok((y, ()))
    }
    fn term(&self, [_, a, b]: [&Tensor; 3]) -> Result<Option<Term>> {
        Ok((a.dtype().is_float() && a.dtype() == b.dtype()).then_some(Term::Where))
    }
    fn backward(&self, [mask, a, b]: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let gradient = |of: &Tensor, expression| -> Result<Option<Tensor>> {
            if !of.requires_grad() {
                return Ok(None);
            }
            map(expression, &[mask, dy], &[], dy.shape(), dy.dtype())?.sum_to(of.shape()).map(Some)
        };
        let (set, unset) = ("x0 != 0.0f ? x1 : (FV)(0.0f)", "x0 != 0.0f ? (FV)(0.0f) : x1");
        Ok([None, gradient(a, set)?, gradient(b, unset)?])
    }
    fn reference(&self, [mask, a, b]: [&Array; 3]) -> Array {
        let shape =
            a.shape.broadcast(&b.shape, "").and_then(|s| s.broadcast(&mask.shape, "")).unwrap_or_default();
        let (mask, a, b) = (mask.expand(&shape), a.expand(&shape), b.expand(&shape));
        Array::from_fn(shape, |i| if mask.data[i] == 0.0 { b.data[i] } else { a.data[i] })
    }
    fn calls() -> Vec<Call> {
        let compare = |name, doc| Call::new(name, doc).inputs(&["a", "b"]);
        vec![
            Call::new(
                "where_cond",
                "`a` where the mask is not 0, otherwise `b`. All broadcast; a and b have one type.",
            )
            .inputs(&["mask", "a", "b"])
            .run(|a| {
                let [mask, x, y] = a.inputs()?;
                mask.where_cond(x, y)
            }),
            compare(
                "eq",
                "Returns a bool mask that is true where `a == b`. Two integers are compared exactly, an integer with a float as f32.",
            )
            .run(|a| a.inputs().and_then(|[a, b]| a.eq(b))),
            compare("lt", "Returns a bool mask that is true where `a < b`.")
                .run(|a| a.inputs().and_then(|[a, b]| a.lt(b))),
            compare("le", "Returns a bool mask that is true where `a <= b`.")
                .run(|a| a.inputs().and_then(|[a, b]| a.le(b))),
            compare("gt", "Returns a bool mask that is true where `a > b`.")
                .run(|a| a.inputs().and_then(|[a, b]| a.gt(b))),
            compare("ge", "Returns a bool mask that is true where `a >= b`.")
                .run(|a| a.inputs().and_then(|[a, b]| a.ge(b))),
            Call::new("tril", "The lower triangle of the last two axes: 0 where `column > row + diagonal`.")
                .inputs(&["x"])
                .default("diagonal", 0)
                .run(|a| a.inputs::<1>()?[0].tril(a.get("diagonal")?)),
        ]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let mask =
            |shape: &[usize], dtype| SampleInput::values(shape, &[0.0, 1.0, 3.0, 0.0, 0.0], Some(dtype));
        let sample = |m: &[usize], a: &[usize], b: &[usize]| {
            Sample::new(Self, [mask(m, DType::U32), SampleInput::normal(a), SampleInput::normal(b)])
        };
        vec![
            sample(&[3, 37], &[3, 37], &[3, 37]).in_order().bench(&[
                &[4096, 4096],
                &[4096, 4096],
                &[4096, 4096],
            ]),
            sample(&[4, 1], &[2, 1, 5], &[]).light(),
            Sample::new(
                Self,
                [
                    mask(&[3, 37], DType::U32),
                    SampleInput::values(&[3, 37], FAR, None),
                    SampleInput::normal(&[3, 37]),
                ],
            )
            .extreme()
            .pointwise()
            .light(),
            Sample::new(
                Self,
                [mask(&[7], DType::I32), SampleInput::normal(&[2, 7]), SampleInput::normal(&[7])],
            )
            .light(),
            Sample::new(Self, [mask(&[7], DType::F32), SampleInput::normal(&[7]), SampleInput::normal(&[7])])
                .light(),
            Sample::new(
                Self,
                [mask(&[3, 37], DType::Bool), SampleInput::normal(&[3, 37]), SampleInput::normal(&[37])],
            ),
            sample(&[1], &[1], &[1]).light(),
            sample(&[0, 3], &[3], &[0, 1]).light(),
        ]
    }
}

/// A comparison of two numbers: 1 if it holds, otherwise 0.
pub struct Comparison {
    /// Name.
    pub name: &'static str,
    /// Expression of the result in `x0` and `x1`, floats.
    pub y: &'static str,
    /// Exact expression for integers of any types.
    exact: &'static str,
    /// Returns whether it holds.
    pub f: fn(f64, f64) -> bool,
}

/// All comparisons; the others are these with exchanged operands.
pub static COMPARISONS: [Comparison; 3] = [
    Comparison {
        name: "eq",
        y: "x0 == x1 ? (FV)(1.0f) : (FV)(0.0f)",
        exact: "(long)x0 == (long)x1",
        f: |a, b| a == b,
    },
    Comparison {
        name: "lt",
        y: "x0 < x1 ? (FV)(1.0f) : (FV)(0.0f)",
        exact: "(long)x0 < (long)x1",
        f: |a, b| a < b,
    },
    Comparison {
        name: "le",
        y: "x0 <= x1 ? (FV)(1.0f) : (FV)(0.0f)",
        exact: "(long)x0 <= (long)x1",
        f: |a, b| a <= b,
    },
];

/// C expression of [`Where`] over mask, a and b.
pub static WHERE: &str = "x0 != 0.0f ? x1 : x2";

/// Operation that keeps the input where the mask is not set, and writes a value elsewhere; the mask broadcasts to the input.
#[derive(Clone)]
pub struct MaskedFill {
    pub(super) value: f32,
}

impl Op<2> for MaskedFill {
    const NAME: &'static str = "masked_fill";
    type Saved = ();
    fn forward(&self, [x, mask]: [&Tensor; 2]) -> Result<(Tensor, ())> {
        Ok((map("x1 != 0.0f ? (FV)(s0) : x0", &[x, mask], &[self.value], x.shape(), x.dtype())?, ()))
    }
    fn term(&self, _: [&Tensor; 2]) -> Result<Option<Term>> {
        Ok(Some(Term::MaskedFill(self.value)))
    }
    fn backward(&self, [x, mask]: [&Tensor; 2], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        Ok([Some(map("x1 != 0.0f ? (FV)(s0) : x0", &[dy, mask], &[0.0], x.shape(), x.dtype())?), None])
    }
    fn reference(&self, [x, mask]: [&Array; 2]) -> Array {
        x.zip(mask, &x.shape, |x, m| if m == 0.0 { x } else { f64::from(self.value) })
    }
    fn calls() -> Vec<Call> {
        let call = Call::new(
            Self::NAME,
            "`value` where the mask is not 0, otherwise x; the mask broadcasts to its shape.",
        );
        vec![call.inputs(&["x", "mask"]).required("value", AttributeKind::Float).run(|a| {
            let [x, mask] = a.inputs()?;
            x.masked_fill(mask, a.get("value")?)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("value", self.value.into())]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let of = |x: &[usize], m: &[usize], value, dtype| {
            let mask = SampleInput::values(m, &[0.0, 1.0, 0.0], Some(dtype));
            Sample::new(Self { value }, [SampleInput::normal(x), mask])
        };
        let sample = |x: &[usize], m: &[usize], value| of(x, m, value, DType::U32);
        vec![
            sample(&[2, 5, 35], &[5, 35], -9.0).in_order(),
            of(&[2, 5, 35], &[5, 35], -9.0, DType::Bool),
            sample(&[3, 8], &[3, 1], 2.5).light(),
            Sample::new(
                Self { value: f32::NEG_INFINITY },
                [
                    SampleInput::values(&[2, 5, 35], FAR, None),
                    SampleInput::values(&[5, 35], &[0.0, 1.0, 0.0], Some(DType::U32)),
                ],
            )
            .extreme()
            .pointwise()
            .light(),
            sample(&[1], &[1], 1.0).light(),
            sample(&[0, 3], &[3], 0.0).light(),
        ]
    }
}

/// Masks as methods. Comparisons give masks of type bool. Two integers are compared exactly, an integer with a float as f32.
impl Tensor {
    /// Returns `a` where this mask is set, otherwise `b`. All broadcast; `a` and `b` have one type; integers do not have a gradient.
    pub fn where_cond(&self, a: &Self, b: &Self) -> Result<Self> {
        check::same_type("where_cond", ("a", a), ("b", b))?;
        Where.apply([&self.detach(), a, b])
    }
    /// Returns `value` where `mask` is set, otherwise this tensor's elements; the mask broadcasts to its shape.
    pub fn masked_fill(&self, mask: &Self, value: f32) -> Result<Self> {
        if mask.layout().expand(self.shape()).is_none() {
            return Err(Error::shape(format!(
                "masked_fill: mask has shape {}, expected one that broadcasts to {}, the shape of x",
                mask.shape(),
                self.shape()
            )));
        }
        if !self.dtype().is_float() {
            check::one_device("masked_fill", &[self, mask])?;
            if value.fract() != 0.0 || value.abs() > 4_294_967_040.0 {
                return Err(Error::dtype(format!(
                    "masked_fill: cannot fill a tensor of {} with {value}",
                    self.dtype()
                )));
            }
            let number = [Number::Int(value as i64)];
            let attributes = || vec![("value", value.into())];
            return observe::noted("masked_fill", &[self, mask], attributes, || {
                map_typed("x1 != 0 ? s0 : (long)x0", &[self, mask], &number, self.shape(), self.dtype())
            });
        }
        MaskedFill { value }.apply([self, &mask.detach()])
    }
    fn compare(&self, name: &'static str, other: &Self, number: usize) -> Result<Self> {
        check::one_device(name, &[self, other])?;
        let (shape, row) = (self.shape().broadcast(other.shape(), name)?, &COMPARISONS[number]);
        let exact = !self.dtype().is_float() && !other.dtype().is_float();
        if !exact
            && !observe::watching()
            && let Some(y) = tape::defer(name, &[self, other], &|| Ok(Some(Term::Compare(number))))?
        {
            return Ok(y);
        }
        // `gt` and `ge` call `lt` and `le` with exchanged operands.
        let called = match name {
            "gt" => "lt",
            "ge" => "le",
            same => same,
        };
        observe::noted(called, &[self, other], Vec::new, || {
            if exact {
                return map_typed(row.exact, &[self, other], &[], &shape, DType::Bool);
            }
            crate::no_grad(|| map(row.y, &[self, other], &[], &shape, DType::Bool))
        })
    }
    /// Returns the mask of `self == other`.
    pub fn eq(&self, other: &Self) -> Result<Self> {
        self.compare("eq", other, 0)
    }
    /// Returns the mask of `self < other`.
    pub fn lt(&self, other: &Self) -> Result<Self> {
        self.compare("lt", other, 1)
    }
    /// Returns the mask of `self <= other`.
    pub fn le(&self, other: &Self) -> Result<Self> {
        self.compare("le", other, 2)
    }
    /// Returns the mask of `self > other`.
    pub fn gt(&self, other: &Self) -> Result<Self> {
        other.compare("gt", self, 1)
    }
    /// Returns the mask of `self >= other`.
    pub fn ge(&self, other: &Self) -> Result<Self> {
        other.compare("ge", self, 2)
    }
    /// Returns the numbers of a range, u32 `(N)`.
    pub fn arange(device: &Device, range: Range<u32>) -> Result<Self> {
        let numbers: Vec<u32> = range.collect();
        Self::from_u32(device, [numbers.len()], &numbers)
    }
    /// Returns the mask `(rows, columns)`, u32, set where `column > row + diagonal`. With `(T, T, 0)` it hides the future from attention.
    pub fn above_diagonal(device: &Device, rows: usize, columns: usize, diagonal: i32) -> Result<Self> {
        let numbers = |n: usize| Self::arange(device, 0..u32::try_from(n).unwrap_or(u32::MAX));
        let (row, column) = (numbers(rows)?.reshape([rows, 1])?, numbers(columns)?);
        let above = "x1 > x0 + s0 ? (FV)(1.0f) : (FV)(0.0f)";
        map(above, &[&row, &column], &[diagonal as f32], &[rows, columns].into(), DType::U32)
    }
    /// Returns the lower triangle of the last two axes: 0 where `column > row + diagonal`.
    pub fn tril(&self, diagonal: i32) -> Result<Self> {
        let [.., rows, columns] = *self.dims() else {
            return Err(Error::shape(format!(
                "tril: x has shape {}, expected at least two axes",
                self.shape()
            )));
        };
        self.masked_fill(&Self::above_diagonal(self.device(), rows, columns, diagonal)?, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_and_triangles() {
        let device = crate::suite::test_device().unwrap();
        let a = Tensor::from_f32(&device, [3], &[1.0, 2.0, f32::NAN], DType::F32).unwrap();
        let b = Tensor::from_i32(&device, [2, 1], &[1, 2]).unwrap();
        let values = |t: Result<Tensor>| t.unwrap().to_u32().unwrap();
        assert_eq!(values(a.eq(&b)), [1, 0, 0, 0, 1, 0]);
        assert_eq!(values(a.lt(&b)), [0, 0, 0, 1, 0, 0]);
        assert_eq!(values(a.le(&b)), [1, 0, 0, 1, 1, 0]);
        assert_eq!(values(a.gt(&b)), [0, 1, 0, 0, 0, 0]);
        assert_eq!(values(a.ge(&b)), [1, 1, 0, 0, 1, 0]);
        assert_eq!(values(Tensor::above_diagonal(&device, 2, 3, 0)), [0, 1, 1, 0, 0, 1]);
        let ones = Tensor::ones(&device, [2, 3], DType::F32).unwrap();
        let hidden =
            ones.masked_fill(&Tensor::above_diagonal(&device, 2, 3, 0).unwrap(), f32::NEG_INFINITY).unwrap();
        let inf = f32::NEG_INFINITY;
        assert_eq!(hidden.to_vec().unwrap(), [1.0, inf, inf, 1.0, 1.0, inf]);
        assert_eq!(ones.tril(-1).unwrap().to_vec().unwrap(), [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    }
}
