//! The largest elements of each row, in order.

use super::gather::gather;
use super::prelude::*;

static KERNEL: Kernel =
    Kernel::new("topk", cl_file!("topk.cl")).tune(&[("WG", &[256])]).tune_cpu(&[("WG", &[1])]);

/// Maximum k: keys and indices of all kept elements are in local memory.
const LARGEST_K: usize = 2048;

/// Operation over the last axis: x `(.., N)` → indices, u32 `(.., K)`; saves the values. No gradient.
#[derive(Clone)]
pub struct TopK {
    pub(super) k: usize,
}

impl Op<1> for TopK {
    const NAME: &'static str = "topk";
    /// Values `(.., K)`.
    type Saved = Tensor;
    fn forward(&self, [x]: [&Tensor; 1]) -> Result<(Tensor, Tensor)> {
        check::float("topk", "x", x)?;
        let (x, (rows, n)) = (x.contiguous()?, x.shape().rows_cols());
        let Some((_, outer)) = x.dims().split_last().filter(|_| self.k <= n) else {
            return Err(Error::shape(format!(
                "topk: k is {}, but rows of x {} have {}",
                self.k,
                x.shape(),
                counted(n, "element")
            )));
        };
        if self.k > LARGEST_K {
            return Err(Error::unsupported(format!(
                "topk: k is {}, at most {LARGEST_K} are supported",
                self.k
            )));
        }
        let shape = [outer, &[self.k]].concat();
        let values = Tensor::empty(x.device(), shape.clone(), x.dtype())?;
        let indices = Tensor::empty(x.device(), shape, DType::U32)?;
        if values.count() > 0 {
            let launch =
                KERNEL.launch("topk").define("DTYPE", x.dtype().code()).define("K", self.k).groups(rows);
            launch.read(&x).write(&values).write(&indices).scalar(n).run()?;
        }
        Ok((indices, values))
    }
    fn backward(&self, _: [&Tensor; 1], _: &Tensor, _: &Tensor) -> Result<[Option<Tensor>; 1]> {
        Ok([None])
    }
    fn reference(&self, [x]: [&Array; 1]) -> Array {
        let dims = x.shape.dims();
        let mut out = Vec::new();
        for row in x.rows() {
            let mut order: Vec<usize> = (0..row.len()).collect();
            // A NaN of either sign is the largest, and -0 equals 0.
            let key = |i: &usize| if row[*i].is_nan() { f64::NAN } else { row[*i] + 0.0 };
            order.sort_by(|a, b| key(b).total_cmp(&key(a)).then(a.cmp(b)));
            out.extend(order[..self.k].iter().map(|i| *i as f64));
        }
        Array::new([&dims[..dims.len() - 1], &[self.k]].concat(), out)
    }
    fn calls() -> Vec<Call> {
        let doc = "The k largest elements of the last axis and their indices, u32, both `(.., k)`. The largest is first. Equal elements are in the \
                   order of their indices. A NaN is larger than any number. The gradient of a value flows to its element.";
        let call = Call::new(Self::NAME, doc).inputs(&["x"]).required("k", AttributeKind::Int);
        vec![call.results(&["values", "indices"]).run_all(|a| {
            let (values, indices) = a.inputs::<1>()?[0].topk(a.get("k")?)?;
            Ok(vec![values, indices])
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("k", self.k.into())]
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |k, shape: &[usize]| Sample::new(Self { k }, [SampleInput::distinct(shape)]).exact();
        let tied = SampleInput::values(&[2, 700], &[1.0, 2.0, 3.0, 3.0, -1.0, 2.0, 3.0], None);
        vec![
            sample(8, &[3, 65]).bench(&[&[64, 50_304]]),
            Sample::new(Self { k: 8 }, [tied]).exact().light(),
            Sample::new(Self { k: 8 }, [SampleInput::uniform(&[3, 65], -3e38, 3e38)])
                .exact()
                .extreme()
                .light(),
            sample(1, &[1]).light(),
            sample(8, &[0, 9]).light(),
            sample(0, &[2, 3]).light(),
        ]
    }
}

impl Tensor {
    /// Returns the `k` largest elements of the last axis and their indices (u32), both `(.., k)`, largest first, and among equal elements the
    /// lowest index first. A NaN is larger than any number. The gradient of a value flows to its element.
    pub fn topk(&self, k: usize) -> Result<(Self, Self)> {
        let (indices, values) = crate::no_grad(|| TopK { k }.forward([self]))?;
        // Only values with a recorded gradient are read once more, by their index.
        let values = if crate::tape::records(&[self]) { gather(self, -1, &indices)? } else { values };
        Ok((values, indices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_of_a_value_is_that_of_its_element() {
        let device = crate::suite::test_device().unwrap();
        let x = Tensor::from_f32(&device, [2, 3], &[1.0, 5.0, 3.0, 4.0, 0.0, 2.0], DType::F32).unwrap();
        let x = x.parameter("x");
        let (values, _) = x.topk(2).unwrap();
        values.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec().unwrap(), [0.0, 10.0, 6.0, 8.0, 0.0, 4.0]);
    }

    #[test]
    fn values_come_with_their_indices_and_ties_by_index() {
        let device = crate::suite::test_device().unwrap();
        let data: Vec<f32> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as f32 - 100.0).collect();
        let x = Tensor::from_f32(&device, [5000], &data, DType::F32).unwrap();
        for k in [1, 50, 777] {
            let mut order: Vec<usize> = (0..5000).collect();
            order.sort_by(|a, b| data[*b].total_cmp(&data[*a]).then(a.cmp(b)));
            let (values, indices) = x.topk(k).unwrap();
            let expected: Vec<u32> = order[..k].iter().map(|i| *i as u32).collect();
            assert_eq!(indices.to_u32().unwrap(), expected);
            assert_eq!(values.to_vec().unwrap(), order[..k].iter().map(|i| data[*i]).collect::<Vec<_>>());
        }
        let data = [0.0, -0.0, f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 1.0];
        let x = Tensor::from_f32(&device, [6], &data, DType::F32).unwrap();
        assert_eq!(x.topk(6).unwrap().1.to_u32().unwrap(), [2, 4, 5, 0, 1, 3]);
    }
}
