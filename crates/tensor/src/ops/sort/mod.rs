//! Sorting of the elements of an axis.

use super::MultiOp;
use super::copy::storage;
use super::map::CPU_CHUNK;
use super::prelude::*;

static KERNEL: Kernel = Kernel::new("sort", cl_file!("sort.cl"))
    .tune(&[("WG", &[128, 64, 256]), ("BITS", &[4])])
    .tune_cpu(&[("WG", &[1]), ("BITS", &[8])]);

/// Operation that sorts the last axis: x `(.., N)` → values, and indices u32, both `(.., N)`. See [`Tensor::sort`].
#[derive(Clone)]
pub struct Sort {
    pub(super) descending: bool,
}

impl MultiOp<1, 2> for Sort {
    const NAME: &'static str = "sort";
    /// The indices.
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<([Tensor; 2], Tensor)> {
        let (x, (rows, n)) = (x.contiguous()?, x.shape().rows_cols());
        if u32::try_from(n).is_err() {
            return Err(Error::unsupported(format!(
                "sort: rows of {n} elements, whose indices do not fit in u32"
            )));
        }
        let values = x.empty_like()?;
        let number = |count| Tensor::empty(x.device(), [count], DType::U32);
        let indices = number(x.count())?.reshape(x.shape())?;
        if x.count() > 0 {
            let (keys, order) = (number(2 * x.count())?, number(x.count())?);
            let moved = storage(x.dtype()).code();
            let launch = KERNEL.launch("sort").define("DTYPE", moved).define("OUT", x.dtype().code());
            let launch = launch.define("DESCENDING", self.descending).groups(rows);
            launch.read(&x).write(&keys).write(&order).write(&values).write(&indices).scalar(n).run()?;
        }
        Ok(([values, indices.clone()], indices))
    }
    fn backward(
        &self,
        [x]: [&Tensor; 1],
        indices: &Tensor,
        [dvalues, _]: [Option<&Tensor>; 2],
    ) -> Result<[Option<Tensor>; 1]> {
        let Some(dvalues) = dvalues else { return Ok([None]) };
        let (dvalues, (rows, n)) = (dvalues.contiguous()?, x.shape().rows_cols());
        let dx = dvalues.empty_like()?;
        if dx.count() > 0 {
            let wg = Tuning::value(x.device(), &KERNEL, 0, "WG");
            let each = if x.device().capabilities().is_cpu() { CPU_CHUNK } else { wg };
            let launch = KERNEL.launch("unsort").define("DTYPE", dx.dtype().code());
            let launch = launch.groups(dx.count().div_ceil(each).min(1 << 16));
            launch.read(&dvalues).read(indices).write(&dx).scalar(rows).scalar(n).run()?;
        }
        Ok([Some(dx)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> [Array; 2] {
        let (mut values, mut indices) = (Vec::new(), Vec::new());
        for row in x.rows() {
            let mut order: Vec<usize> = (0..row.len()).collect();
            // A NaN of either sign is the largest, and -0 equals 0.
            let key = |i: &usize| if row[*i].is_nan() { f64::NAN } else { row[*i] + 0.0 };
            order.sort_by(|a, b| match self.descending {
                true => key(b).total_cmp(&key(a)),
                false => key(a).total_cmp(&key(b)),
            });
            values.extend(order.iter().map(|i| row[*i]));
            indices.extend(order.into_iter().map(|i| i as f64));
        }
        [Array::new(x.shape.clone(), values), Array::new(x.shape.clone(), indices)]
    }
    fn calls() -> Vec<Call> {
        let doc = "Sorts the elements of an axis; also returns their indices, u32. Equal elements keep their order, also with `descending`; a NaN \
                   is larger than any number.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1).default("descending", false);
        vec![call.results(&["values", "indices"]).run_all(|a| {
            let (values, indices) = a.inputs::<1>()?[0].sort(a.get("axis")?, a.get("descending")?)?;
            Ok(vec![values, indices])
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("descending", self.descending.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let of = |descending, x: SampleInput| Sample::new(Self { descending }, [x]).exact();
        // Not differentiable: the order of equal elements changes at an infinitesimal step.
        let tied =
            SampleInput::values(&[2, 300], &[1.0, 2.0, 3.0, 3.0, -1.0, 0.0, -0.0, 2.0], Some(DType::F32));
        let numbers = SampleInput::indices(&[3, 130], 1 << 20);
        vec![
            of(false, SampleInput::distinct(&[3, 65])).bench(&[&[64, 50_304]]),
            of(true, SampleInput::distinct(&[2, 2, 19])),
            of(true, tied).named("tied").light(),
            of(false, numbers).named("integers").light(),
            of(false, SampleInput::uniform(&[3, 65], -3e38, 3e38)).extreme().light(),
            of(false, SampleInput::distinct(&[1])).light(),
            of(false, SampleInput::distinct(&[0, 9])).light(),
            of(true, SampleInput::distinct(&[2, 0])).light(),
        ]
    }
}

impl Tensor {
    /// Sorts the elements of an axis. Returns them and their indices (u32), in the same shape. Equal elements keep their order, also with
    /// `descending`; a NaN is larger than any number, -0 equals 0. Gradients flow from the values.
    ///
    /// # Errors
    /// `Shape` if the axis does not exist.
    pub fn sort(&self, axis: isize, descending: bool) -> Result<(Self, Self)> {
        let axis = self.shape().axis("sort", axis)?.cast_signed();
        let last = -1;
        let [values, indices] = Sort { descending }.apply([&self.transpose(axis, last)?])?;
        Ok((values.transpose(axis, last)?, indices.detach().transpose(axis, last)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_device::Settings;

    #[test]
    fn any_axis_and_type_and_nan_last() {
        for device in
            [crate::suite::test_device().unwrap(), Device::open("sim", &Settings::default()).unwrap()]
        {
            let data = [0.0, -0.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 1.0];
            let x = Tensor::from_f32(&device, [6, 1], &data, DType::F32).unwrap();
            assert_eq!(x.sort(0, false).unwrap().1.to_u32().unwrap(), [3, 0, 1, 5, 4, 2]);
            assert_eq!(x.sort(-2, true).unwrap().1.to_u32().unwrap(), [2, 4, 5, 0, 1, 3]);
            let x = Tensor::from_i32(&device, [5], &[3, -7, i32::MIN, i32::MAX, 0]).unwrap();
            let (_, indices) = x.sort(0, false).unwrap();
            assert_eq!(indices.to_u32().unwrap(), [2, 1, 4, 0, 3]);
        }
    }
}
