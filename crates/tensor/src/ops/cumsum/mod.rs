//! Cumulative sums along an axis.

use super::prelude::*;

static KERNEL: Kernel =
    Kernel::new("cumsum", cl_file!("cumsum.cl")).tune(&[("WG", &[256, 128])]).tune_cpu(&[("WG", &[1])]);

/// Operation over the last axis; see [`Tensor::cumsum`].
#[derive(Clone)]
pub struct CumSum;

fn summed(x: &Tensor, reverse: bool) -> Result<Tensor> {
    let (x, (rows, n)) = (x.contiguous()?, x.shape().rows_cols());
    let y = x.empty_like()?;
    if y.count() > 0 {
        let launch = KERNEL.launch("cumsum").define("DTYPE", x.dtype().code()).define("REVERSE", reverse);
        let launch = launch.groups(row_groups(x.device(), rows, n));
        launch.read(&x).write(&y).scalar(rows).scalar(n).run()?;
    }
    Ok(y)
}

impl Op<1> for CumSum {
    const NAME: &'static str = "cumsum";
    type Saved = ();
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, ())> {
        check::float("cumsum", "x", x)?;
        Ok((summed(x, false)?, ()))
    }
    fn backward(&self, _: [&Tensor; 1], (): &(), dy: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([Some(summed(dy, true)?)])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let sums = |row: &[f64]| {
            let add = |sum: &mut f64, v: &f64| {
                *sum += v;
                Some(*sum)
            };
            row.iter().scan(0.0, add).collect::<Vec<_>>()
        };
        Array::new(x.shape.clone(), x.rows().flat_map(sums).collect())
    }
    fn calls() -> Vec<Call> {
        let doc = "Cumulative sums: of all elements of an axis up to and including each. Rounding errors are compensated, so the error does not \
                   grow with the length.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).default("axis", -1);
        vec![call.run(|a| a.inputs::<1>()?[0].cumsum(a.get("axis")?))]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample =
            |shape: &[usize]| Sample::new(Self, [SampleInput::normal(shape)]).sums(shape.iter().product());
        vec![
            sample(&[3, 65]).bench(&[&[4096, 4096]]),
            sample(&[2, 2, 9]),
            sample(&[2, 700]).light(),
            Sample::new(Self, [SampleInput::uniform(&[3, 65], -1e30, 1e30)]).sums(65).extreme().light(),
            sample(&[1]).light(),
            sample(&[0, 4]).light(),
            sample(&[2, 0]).light(),
        ]
    }
}

impl Tensor {
    /// Returns the cumulative sums along an axis: of all elements up to and including each, in the same shape. They are f32 with compensated
    /// rounding errors, so the error does not grow with the length of the axis.
    ///
    /// # Errors
    /// `Shape` if the axis does not exist; `DType` if x does not have a float type.
    pub fn cumsum(&self, axis: isize) -> Result<Self> {
        let axis = self.shape().axis("cumsum", axis)?.cast_signed();
        let last = -1;
        CumSum.apply([&self.transpose(axis, last)?])?.transpose(axis, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;

    /// Tests a million positive numbers: a plain f32 sum has an error of 8e-5 of the largest.
    #[test]
    fn a_million_numbers_are_summed_to_the_last_digit() {
        let data: Vec<f32> =
            (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1.6e7).collect();
        let mut sum = 0.0;
        let exact: Vec<f64> = data
            .iter()
            .map(|v| {
                sum += f64::from(*v);
                sum
            })
            .collect();
        for device in
            [test_device().unwrap(), Device::open("sim", &netcl_device::Settings::default()).unwrap()]
        {
            // Interpreters, such as Oclgrind, take half an hour for all of them.
            let interpreted = device.capabilities().simulated || device.settings().exact_memory;
            let n = if interpreted { 50_000 } else { data.len() };
            let x = Tensor::from_f32(&device, [n], &data[..n], DType::F32).unwrap();
            let got = x.cumsum(0).unwrap().to_vec().unwrap();
            let wrong = got.iter().zip(&exact).map(|(g, e)| (f64::from(*g) - e).abs() / e.max(1e-3));
            let worst = wrong.fold(0.0, f64::max);
            assert!(worst < 1.3e-7, "{}: {worst:.1e}", device.capabilities().id);
        }
    }
}
