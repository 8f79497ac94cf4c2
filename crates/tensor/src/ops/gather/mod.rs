//! Reads and writes by index along an axis: gather, scatter, scatter with sums. Results do not depend on the device's order of work: sums are
//! computed in the order of positions, and if several positions name one element, the last one is kept.

use super::prelude::*;

mod launch;
use launch::GatherAxis;

/// Gathers elements of an axis by index: `y[.., m, ..] = x[.., ids[.., m, ..], ..]`. ids, u32 or i32, have the axes of x, none but `axis` longer.
/// An invalid index gives NaN. The gradient is summed in the order of the positions.
///
/// # Errors
/// `Shape` if the axes do not fit; `DType` if x does not have a float type or ids are not integers.
pub fn gather(x: &Tensor, axis: isize, ids: &Tensor) -> Result<Tensor> {
    let axis = checked("gather", x, axis, ids)?;
    let mut window = x.clone();
    for (d, n) in ids.dims().iter().enumerate().filter(|(d, n)| *d != axis && **n < x.dims()[*d]) {
        window = window.slice(d.cast_signed(), 0..*n)?;
    }
    Gather { axis }.apply([&window, ids])
}

/// Returns x with `source` added by index: `y[.., ids[.., m, ..], ..] += source[.., m, ..]`, with f32 sums in the order of positions. ids, u32 or
/// i32, and source have one shape, with the axes of x, none but `axis` longer. An invalid index adds nothing.
///
/// # Errors
/// Errors of [`gather`]; `Shape` or `DType` if the source does not fit.
pub fn scatter_add(x: &Tensor, axis: isize, ids: &Tensor, source: &Tensor) -> Result<Tensor> {
    let (axis, ids, source) = scattered("scatter_add", x, axis, ids, source)?;
    ScatterAdd { axis }.apply([x, &ids, &source])
}

/// Returns x with elements replaced by index: `y[.., ids[.., m, ..], ..] = source[.., m, ..]`, from the last position that names the element.
/// Otherwise like [`scatter_add`].
///
/// # Errors
/// Errors of [`scatter_add`].
pub fn scatter(x: &Tensor, axis: isize, ids: &Tensor, source: &Tensor) -> Result<Tensor> {
    let (axis, ids, source) = scattered("scatter", x, axis, ids, source)?;
    Scatter { axis }.apply([x, &ids, &source])
}

fn checked(op: &str, x: &Tensor, axis: isize, ids: &Tensor) -> Result<usize> {
    check::float(op, "x", x)?;
    check::indices(op, "ids", ids)?;
    let axis = x.shape().axis(op, axis)?;
    let fits = |(d, (n, of)): (usize, (&usize, &usize))| d == axis || n <= of;
    let fit = ids.shape().rank() == x.shape().rank() && ids.dims().iter().zip(x.dims()).enumerate().all(fits);
    if fit {
        return Ok(axis);
    }
    Err(Error::shape(format!(
        "{op}: ids have shape {}, expected the axes of x {}, none longer but axis {axis}",
        ids.shape(),
        x.shape()
    )))
}

/// Returns indices and source extended to the size of x except along the axis, padded with invalid indices.
fn scattered(
    op: &str,
    x: &Tensor,
    axis: isize,
    ids: &Tensor,
    source: &Tensor,
) -> Result<(usize, Tensor, Tensor)> {
    let axis = checked(op, x, axis, ids)?;
    check::same_float(op, &[("x", x), ("source", source)])?;
    if source.shape() != ids.shape() {
        return Err(Error::shape(format!(
            "{op}: source has shape {}, expected {}, the shape of ids",
            source.shape(),
            ids.shape()
        )));
    }
    let (mut ids, mut source) = (ids.clone(), source.clone());
    for d in (0..x.shape().rank()).filter(|d| *d != axis) {
        let missing = x.dims()[d] - ids.dims()[d];
        if missing > 0 {
            let mut dims = ids.dims().to_vec();
            dims[d] = missing;
            let outside = vec![u32::MAX; dims.iter().product()];
            let outside = match ids.dtype() {
                DType::I32 => Tensor::from_i32(x.device(), &dims[..], &vec![-1; outside.len()])?,
                _ => Tensor::from_u32(x.device(), &dims[..], &outside)?,
            };
            ids = super::join::cat(&[&ids, &outside], d.cast_signed())?;
            let nothing = Tensor::zeros(x.device(), dims, x.dtype())?;
            source = super::join::cat(&[&source, &nothing], d.cast_signed())?;
        }
    }
    Ok((axis, ids, source))
}

/// Returns the position in x of element `e` of ids in `x[o, ids[o, m, i], i]`, for f64 arrays.
fn place(x: &Array, ids: &Array, axis: usize, e: usize) -> Option<usize> {
    let mut at = unravel(e, &ids.shape);
    let id = ids.data[e];
    at[axis] = id as usize;
    let inside = id >= 0.0 && at[axis] < x.shape.dims()[axis];
    inside.then(|| at.iter().zip(x.shape.strides()).map(|(a, s)| a * s).sum())
}

/// Operation of [`gather`]; x is not longer than ids except along the axis.
#[derive(Clone)]
pub struct Gather {
    pub(super) axis: usize,
}

impl Op<2> for Gather {
    const NAME: &'static str = "gather";
    type Saved = ();
    fn forward(&self, [x, ids]: [&Tensor; 2]) -> Result<(Tensor, ())> {
        let (x, ids) = (x.contiguous()?, ids.contiguous()?);
        let y = Tensor::empty(x.device(), ids.shape(), x.dtype())?;
        GatherAxis::of(&x, &ids, self.axis).gather(&x, &ids, &y, true)?;
        Ok((y, ()))
    }
    fn backward(&self, [x, ids]: [&Tensor; 2], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 2]> {
        let sums = Tensor::zeros(x.device(), x.shape(), DType::F32)?;
        GatherAxis::of(x, ids, self.axis).add(&ids.contiguous()?, &dy.contiguous()?, &sums)?;
        Ok([Some(sums.to_dtype(x.dtype())?), None])
    }
    fn reference(&self, [x, ids]: [&Array; 2]) -> Array {
        Array::from_fn(ids.shape.clone(), |e| place(x, ids, self.axis, e).map_or(f64::NAN, |at| x.data[at]))
    }
    fn calls() -> Vec<Call> {
        let doc = "Elements of an axis by index: `y[.., m, ..] = x[.., ids[.., m, ..], ..]`. ids have the axes of x, none but `axis` longer; an \
                   invalid index gives NaN.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "ids"]).default("axis", -1);
        vec![call.run(|a| a.inputs().and_then(|[x, ids]| gather(x, a.get("axis")?, ids)))]
    }
    fn attributes(&self) -> Attributes {
        vec![("axis", self.axis.into())]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample = |axis, x: &[usize], ids: &[usize]| {
            let numbers = SampleInput::indices(ids, x[axis] as u32);
            Sample::new(Self { axis }, [SampleInput::normal(x), numbers]).sums(8)
        };
        let far = SampleInput::values(&[7, 5], &[3e38, -1e30, 1e-30], None);
        vec![
            sample(1, &[3, 11, 5], &[3, 4, 5]).bench(&[&[64, 1000, 64], &[64, 1000, 64]]),
            sample(0, &[4, 7], &[9, 7]),
            sample(1, &[1, 5], &[1, 300]).light(),
            Sample::new(Self { axis: 0 }, [far, SampleInput::indices(&[2, 5], 7)])
                .extreme()
                .pointwise()
                .light(),
            sample(0, &[1], &[1]).light(),
            sample(1, &[2, 3], &[2, 0]).light(),
        ]
    }
}

/// Operation of [`scatter_add`]; all axes but one agree.
#[derive(Clone)]
pub struct ScatterAdd {
    pub(super) axis: usize,
}

impl Op<3> for ScatterAdd {
    const NAME: &'static str = "scatter_add";
    type Saved = ();
    fn forward(&self, [x, ids, source]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        let sums = Tensor::empty(x.device(), x.shape(), DType::F32)?;
        if x.count() > 0 {
            map_into("x0", &[x], &[], &sums)?;
        }
        GatherAxis::of(x, ids, self.axis).add(&ids.contiguous()?, &source.contiguous()?, &sums)?;
        Ok((sums.to_dtype(x.dtype())?, ()))
    }
    fn backward(&self, [_, ids, source]: [&Tensor; 3], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 3]> {
        let (dy, ids) = (dy.contiguous()?, ids.contiguous()?);
        let dsource = Tensor::empty(dy.device(), source.shape(), dy.dtype())?;
        // Elements that added nothing have a zero gradient.
        GatherAxis::of(&dy, &ids, self.axis).gather(&dy, &ids, &dsource, false)?;
        Ok([Some(dy), None, Some(dsource)])
    }
    fn reference(&self, [x, ids, source]: [&Array; 3]) -> Array {
        let mut y = x.clone();
        for e in 0..source.data.len() {
            if let Some(at) = place(x, ids, self.axis, e) {
                y.data[at] += source.data[e];
            }
        }
        y
    }
    fn calls() -> Vec<Call> {
        let doc = "x with `source` added by index along an axis: `y[.., ids[.., m, ..], ..] += source[.., m, ..]`. Sums are f32, in the order of \
                   positions, so the bits are always the same. An invalid index adds nothing.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "ids", "source"]).default("axis", -1);
        vec![
            call.run(|a| a.inputs().and_then(|[x, ids, source]| scatter_add(x, a.get("axis")?, ids, source))),
        ]
    }
    fn attributes(&self) -> Attributes {
        vec![("axis", self.axis.into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let (wide, narrow): (&[usize], &[usize]) = (&[64, 1000, 64], &[64, 500, 64]);
        let mut out = samples(|axis| Self { axis });
        out[0] = out[0].clone().bench(&[wide, narrow, narrow]);
        out
    }
}

/// Operation of [`scatter`]; all axes but one agree.
#[derive(Clone)]
pub struct Scatter {
    pub(super) axis: usize,
}

impl Op<3> for Scatter {
    const NAME: &'static str = "scatter";
    /// For each element of the result, the position of its source counted from 1, or 0 if it comes from x.
    type Saved = Tensor;
    fn forward(&self, [x, ids, source]: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
        let (x, ids, source) = (x.contiguous()?, ids.contiguous()?, source.contiguous()?);
        let axis = GatherAxis::of(&x, &ids, self.axis);
        let (won, y) = (axis.winners(&x, &ids)?, x.empty_like()?);
        axis.pick(&x, &source, &won, &y)?;
        Ok((y, won))
    }
    fn backward(
        &self,
        [x, ids, source]: [&Tensor; 3],
        won: &Tensor,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let dy = dy.contiguous()?;
        let dsource = Tensor::empty(dy.device(), source.shape(), dy.dtype())?;
        GatherAxis::of(&dy, ids, self.axis).won_grad(&dy, &ids.contiguous()?, won, &dsource)?;
        let dx = map("x0 > 0.5f ? (FV)(0.0f) : x1", &[won, &dy], &[], x.shape(), dy.dtype())?;
        Ok([Some(dx), None, Some(dsource)])
    }
    fn reference(&self, [x, ids, source]: [&Array; 3]) -> Array {
        let mut y = x.clone();
        for e in 0..source.data.len() {
            if let Some(at) = place(x, ids, self.axis, e) {
                y.data[at] = source.data[e];
            }
        }
        y
    }
    fn calls() -> Vec<Call> {
        let doc = "x with elements replaced by index along an axis: `y[.., ids[.., m, ..], ..] = source[.., m, ..]`, from the last position that \
                   names the element. An invalid index changes nothing.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "ids", "source"]).default("axis", -1);
        vec![call.run(|a| a.inputs().and_then(|[x, ids, source]| scatter(x, a.get("axis")?, ids, source)))]
    }
    fn attributes(&self) -> Attributes {
        vec![("axis", self.axis.into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        samples(|axis| Self { axis }).into_iter().map(Sample::exact).collect()
    }
}

/// Builds samples with lines of several axes, and with few long lines and repeated indices.
fn samples<O>(op: impl Fn(usize) -> O) -> Vec<Sample<O, 3>> {
    let sample = |axis, x: &[usize], ids: &[usize]| {
        let numbers = SampleInput::indices(ids, x[axis] as u32);
        Sample::new(op(axis), [SampleInput::normal(x), numbers, SampleInput::normal(ids)]).sums(4)
    };
    let far = |shape: &[usize]| SampleInput::values(shape, &[3e30, -1e30, 2e29], None);
    let numbers = SampleInput::indices(&[2, 5], 7);
    vec![
        sample(1, &[3, 11, 5], &[3, 4, 5]),
        sample(0, &[4, 7], &[9, 7]),
        sample(1, &[2, 31], &[2, 300]).light(),
        Sample::new(op(0), [far(&[7, 5]), numbers, far(&[2, 5])]).extreme().light(),
        sample(0, &[1], &[1]).light(),
        sample(1, &[2, 3], &[2, 0]).light(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::Settings;

    fn devices() -> [Device; 2] {
        [crate::suite::test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()]
    }

    /// Tests indices of fewer lines than x has, and invalid indices, of both integer types.
    #[test]
    fn smaller_ids_and_numbers_outside() {
        for device in devices() {
            let floats = |dims: &[usize], v: &[f32]| Tensor::from_f32(&device, dims, v, DType::F32).unwrap();
            let x = floats(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).parameter("x");
            let ids = Tensor::from_i32(&device, [1, 4], &[2, -1, 0, 2]).unwrap();
            let y = gather(&x, 1, &ids).unwrap();
            let got = y.to_vec().unwrap();
            assert!(got[0] == 2.0 && got[1].is_nan() && got[2] == 0.0 && got[3] == 2.0, "{got:?}");
            y.sum(&[], false).unwrap().backward().unwrap();
            assert_eq!(x.grad().unwrap().to_vec().unwrap(), [1.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
            let source = floats(&[1, 4], &[10.0, 20.0, 30.0, 40.0]).parameter("source");
            let expected = [30.0, 1.0, 52.0, 3.0, 4.0, 5.0];
            let ids_u32 = Tensor::from_u32(&device, [1, 4], &[2, u32::MAX, 0, 2]).unwrap();
            for ids in [&ids, &ids_u32] {
                let y = scatter_add(&x, 1, ids, &source).unwrap();
                assert_eq!(y.to_vec().unwrap(), expected);
                source.set_grad(None);
                y.sum(&[], false).unwrap().backward().unwrap();
                assert_eq!(source.grad().unwrap().to_vec().unwrap(), [1.0, 0.0, 1.0, 1.0]);
                let y = scatter(&x, 1, ids, &source).unwrap();
                assert_eq!(y.to_vec().unwrap(), [30.0, 1.0, 40.0, 3.0, 4.0, 5.0]);
                source.set_grad(None);
                y.sum(&[], false).unwrap().backward().unwrap();
                assert_eq!(source.grad().unwrap().to_vec().unwrap(), [0.0, 0.0, 1.0, 1.0]);
            }
        }
    }

    /// Tests that the kernels for lines and for runs of sorted indices give the same bits.
    #[test]
    fn sums_have_the_bits_of_adding_in_order() {
        for device in devices() {
            let (n, m) = (37usize, 3000usize);
            let ids: Vec<u32> =
                (0..m as u32).map(|i| i.wrapping_mul(2_654_435_761) >> 20).map(|v| v % 40).collect();
            let source: Vec<f32> = (0..m).map(|i| (i as f32 * 0.37).sin()).collect();
            let mut expected = vec![1.0f32; n];
            for (id, v) in ids.iter().zip(&source).filter(|(id, _)| (**id as usize) < n) {
                expected[*id as usize] += v;
            }
            let x = Tensor::ones(&device, [n], DType::F32).unwrap();
            let ids = Tensor::from_u32(&device, [m], &ids).unwrap();
            let source = Tensor::from_f32(&device, [m], &source, DType::F32).unwrap();
            assert_eq!(scatter_add(&x, 0, &ids, &source).unwrap().to_vec().unwrap(), expected);
        }
    }
}
