//! The index of the largest element of each row.

use super::prelude::*;

static KERNEL: Kernel =
    Kernel::new("argmax", cl_file!("argmax.cl")).tune(&[("VW", &[4])]).tune_cpu(&[("VW", &[0])]);

/// Operation of argmax over the last axis: x `(.., N)` → u32 `(..)`. No gradient.
#[derive(Clone)]
pub struct ArgMax;

impl Op<1> for ArgMax {
    const NAME: &'static str = "argmax";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        check::float("argmax", "x", x)?;
        let Some((n, outer)) = x.dims().split_last() else {
            return Err(Error::shape("argmax: x is a scalar, expected at least one axis"));
        };
        let y = Tensor::empty(x.device(), outer, DType::U32)?;
        let (x, rows) = (x.contiguous()?, y.count());
        if *n == 0 && rows > 0 {
            return Err(Error::shape(format!(
                "argmax: cannot choose from an empty axis of shape {}",
                x.shape()
            )));
        }
        let wg = row_group(&KERNEL, x.device(), *n);
        let launch = KERNEL.launch("argmax").define("DTYPE", x.dtype().code()).define("WG", wg);
        let launch = launch.groups(row_groups(x.device(), rows, *n)).read(&x).write(&y);
        launch.scalar(rows).scalar(*n).run()?;
        Ok((y, ()))
    }
    fn backward(&self, _: [&Tensor; 1], (): &(), _: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([None])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let dims = x.shape.dims();
        let before = |a: f64, b: f64| a > b || a.is_nan() && !b.is_nan();
        let first =
            |row: &[f64]| (1..row.len()).fold(0, |best, i| if before(row[i], row[best]) { i } else { best });
        Array::new(&dims[..dims.len() - 1], x.rows().map(|row| first(row) as f64).collect())
    }
    fn calls() -> Vec<Call> {
        let doc = "Indices, u32, of the largest elements along an axis, which is removed. Equal elements give the lowest index; a NaN is larger than \
                   any number. No gradient.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1);
        vec![call.run(|a| a.inputs::<1>()?[0].argmax(a.get("axis")?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |shape: &[usize]| Sample::new(Self, [SampleInput::distinct(shape)]).exact();
        let tied = SampleInput::values(&[4, 50], &[1.0, 0.0, 3.0, 3.0, -1.0, 2.0, 3.0], None);
        vec![
            sample(&[3, 65]).bench(&[&[4096, 50_304]]),
            sample(&[2, 2, 9]).light(),
            Sample::new(Self, [tied]).exact().light(),
            Sample::new(Self, [SampleInput::uniform(&[3, 65], -3e38, -1e38)]).exact().extreme().light(),
            sample(&[1]).light(),
            sample(&[0, 4]).light(),
        ]
    }
}

impl Tensor {
    /// Returns the indices, u32, of the largest elements along `axis`, which is removed. Equal elements give the lowest index; a NaN is larger than
    /// any number.
    pub fn argmax(&self, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("argmax", axis)?.cast_signed();
        let rank = self.shape().rank().cast_signed();
        let x = self.detach();
        let mut order: Vec<usize> = (0..rank.cast_unsigned()).filter(|a| a.cast_signed() != axis).collect();
        order.push(axis.cast_unsigned());
        ArgMax.apply([&x.permute(&order)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_infinity_have_their_order() {
        let device = crate::suite::test_device().unwrap();
        let mut data = vec![f32::NEG_INFINITY; 3 * 40];
        (data[40 + 17], data[40 + 30], data[40 + 2]) = (f32::NAN, f32::NAN, f32::INFINITY);
        (data[80 + 39], data[80 + 38]) = (5.0, 5.0);
        let x = Tensor::from_f32(&device, [3, 40], &data, DType::F32).unwrap();
        assert_eq!(x.argmax(-1).unwrap().to_u32().unwrap(), [0, 17, 38]);
        let columns = x.transpose(0, 1).unwrap().argmax(0).unwrap();
        assert_eq!(columns.to_u32().unwrap(), [0, 17, 38]);
    }
}
