//! Rotary position embedding (Su et al. 2021), with the pairs of GPT-NeoX and of Llama in Hugging Face's layout: element i of a head is rotated
//! with element i + R/2.

use super::map::row_grid;
use super::prelude::*;

static KERNEL: Kernel = Kernel::new("rope", cl_file!("rope.cl"))
    .tune(&[("WG", &[128, 256]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Rotates heads: x `(B, T, N)`, cosines and sines `(T, R/2)` f32 → `(B, T, N)`. A row of x consists of adjacent heads of `size` elements. In each
/// of the first `heads` heads, the first R elements are rotated by the angles of their token's row; all other elements are copied.
///
/// A decoder's packed projection needs one call: `heads` is then the number of query and key heads, and the values after them stay unchanged.
///
/// # Errors
/// `Shape` if R is above `size`, the heads are wider than N, or the number of rows in the tables differs from the number of tokens in x; `DType` if
/// x does not have a float type or a table is not f32.
pub fn rope(x: &Tensor, cosines: &Tensor, sines: &Tensor, heads: usize, size: usize) -> Result<Tensor> {
    check::float("rope", "x", x)?;
    for (name, table) in [("cosines", cosines), ("sines", sines)] {
        if table.dtype() != DType::F32 {
            return Err(Error::dtype(format!("rope: {name} are {}, expected f32", table.dtype())));
        }
    }
    let [_, t, n] = x.dims3().map_err(|e| e.context("rope: x"))?;
    let [rows, half] = cosines.dims2().map_err(|e| e.context("rope: cosines"))?;
    if cosines.shape() != sines.shape() || rows != t {
        return Err(Error::shape(format!(
            "rope: cosines {} and sines {}, expected ({t}, R/2) for {t} tokens of x {}",
            cosines.shape(),
            sines.shape(),
            x.shape()
        )));
    }
    if 2 * half > size || heads.checked_mul(size).is_none_or(|width| width > n) {
        return Err(Error::shape(format!(
            "rope: {heads} heads of {size} with {} rotated elements each do not fit x {}",
            2 * half,
            x.shape()
        )));
    }
    Rope { heads, size }.apply([x, cosines, sines])
}

/// Operation of [`rope()`].
#[derive(Clone)]
pub struct Rope {
    pub(super) heads: usize,
    pub(super) size: usize,
}

impl Rope {
    fn run(&self, x: &Tensor, cosines: &Tensor, sines: &Tensor, sign: f32) -> Result<Tensor> {
        let (x, cosines, sines) = (x.contiguous()?, cosines.contiguous()?, sines.contiguous()?);
        let y = x.empty_like()?;
        let ([_, t, n], half) = (x.dims3()?, cosines.shape().last());
        if y.count() == 0 {
            return Ok(y);
        }
        let value = |name| Tuning::value(x.device(), &KERNEL, 0, name);
        let even = |lanes: &usize| [half, self.size, n].iter().all(|size| size.is_multiple_of(*lanes));
        let lanes = [16, 8, 4, 2].into_iter().filter(|lanes| *lanes <= value("VW")).find(even).unwrap_or(1);
        let (local, groups) = row_grid(x.device(), value("WG"), lanes, x.count() / n, n);
        let launch = KERNEL.launch("rope").define("DTYPE", x.dtype().code()).define("VW", lanes);
        let launch =
            launch.define("HEADS", self.heads).define("D", self.size).define("HALF", half).define("N", n);
        let launch = launch.local(local).groups3(groups).read(&x).read(&cosines).read(&sines).write(&y);
        launch.scalar(x.count() / n).scalar(t).scalar(sign).run()?;
        Ok(y)
    }
}

impl Op<3> for Rope {
    const NAME: &'static str = "rope";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("a pair has two elements");
    type Saved = ();
    fn forward(&self, [x, cosines, sines]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        Ok((self.run(x, cosines, sines, 1.0)?, ()))
    }
    fn backward(
        &self,
        [_, cosines, sines]: [&Tensor; 3],
        (): &(),
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        Ok([Some(self.run(dy, cosines, sines, -1.0)?), None, None])
    }
    fn reference(&self, [x, cosines, sines]: [&Array; 3]) -> Array {
        let (t, n, half) = (x.shape.dims()[1], x.shape.last(), cosines.shape.last());
        let mut out = x.clone();
        for (r, row) in x.rows().enumerate() {
            for (head, i) in (0..self.heads).flat_map(|head| (0..half).map(move |i| (head, i))) {
                let (low, angle) = (head * self.size + i, r % t * half + i);
                let (c, s) = (cosines.data[angle], sines.data[angle]);
                out.data[r * n + low] = row[low] * c - row[low + half] * s;
                out.data[r * n + low + half] = row[low + half] * c + row[low] * s;
            }
        }
        out
    }
    fn calls() -> Vec<Call> {
        let doc = "Rotary position embedding (Su et al. 2021): x `(B, T, N)`, cosines and sines `(T, R/2)` f32 → `(B, T, N)`. A row consists of \
                   heads of `size` elements. In each of the first `heads` heads, the first R elements are rotated, element i with element `i + \
                   R/2`. The rest is copied.";
        let call = Call::new(Self::NAME, doc).inputs(&["x", "cosines", "sines"]);
        vec![call.required("heads", AttributeKind::Int).required("size", AttributeKind::Int).run(|a| {
            let [x, cosines, sines] = a.inputs()?;
            rope(x, cosines, sines, a.get("heads")?, a.get("size")?)
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("heads", self.heads.into()), ("size", self.size.into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |[b, t, n, half]: [usize; 4], heads, size| {
            let table = || SampleInput::values(&[t, half], &[0.8, -0.6, 0.25, 1.0, -0.5], Some(DType::F32));
            Sample::new(Self { heads, size }, [SampleInput::normal(&[b, t, n]), table(), table()])
        };
        let angles = || SampleInput::values(&[3, 4], &[0.8, -0.6, 0.25, 1.0, -0.5], Some(DType::F32));
        let far = [SampleInput::uniform(&[2, 3, 24], -3e4, 3e4), angles(), angles()];
        vec![
            Sample::new(Self { heads: 2, size: 8 }, far).extreme().light(),
            sample([2, 5, 32, 4], 3, 8).bench(&[&[8, 1024, 2304], &[1024, 32], &[1024, 32]]),
            sample([1, 3, 40, 3], 2, 10).named("part of a head"),
            sample([2, 2, 18, 3], 3, 6).named("all heads").light(),
            sample([1, 7, 96, 16], 2, 32).named("wide vectors").light(),
            sample([0, 3, 8, 2], 1, 4).light(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_named() {
        let device = crate::suite::test_device().unwrap();
        let zeros = |dims: &[usize]| Tensor::zeros(&device, dims, DType::F32).unwrap();
        let (x, table) = (zeros(&[1, 4, 24]), zeros(&[4, 4]));
        let message =
            |heads, size, table: &Tensor| rope(&x, table, table, heads, size).unwrap_err().to_string();
        assert!(
            message(4, 8, &table)
                .contains("4 heads of 8 with 8 rotated elements each do not fit x [1, 4, 24]")
        );
        assert!(message(3, 6, &table).contains("3 heads of 6 with 8 rotated elements each"));
        assert!(message(usize::MAX, 8, &table).contains("do not fit"));
        assert!(message(3, 8, &zeros(&[5, 4])).contains("expected (4, R/2) for 4 tokens of x [1, 4, 24]"));
    }
}
