//! Tests of the sm_90 kernels before their first use: a small problem must give the results of the portable kernels.

use super::super::problem::{AttentionProblem, ForwardResults, View};
use super::tile::{portable_backward, portable_forward};
use super::{AttentionBackward, BackwardRow, Forward, ForwardRow};
use crate::ops::prelude::*;

/// Causal, several blocks of keys and an edge, two query heads per key head.
pub(super) const PROBLEM: AttentionProblem = AttentionProblem {
    batch: 2,
    heads: 2,
    kv_heads: 1,
    queries: 200,
    keys: 200,
    size: 64,
    causal: true,
    window: None,
    softcap: None,
    scale: 0.125,
    mask: None,
    docs: None,
    dtype: DType::Bf16,
};
/// The same problem with wider heads.
pub(super) const WIDE: AttentionProblem = AttentionProblem { size: 128, ..PROBLEM };
/// The same in f32.
pub(super) const IN_F32: AttentionProblem = AttentionProblem { dtype: DType::F32, ..PROBLEM };

/// Returns the allowed error, relative to the largest value. bf16 results are rounded, and the gradients pass through rounded values several times.
fn allowed(dtype: DType) -> f32 {
    if dtype == DType::F32 { 1e-5 } else { 0.03 }
}

/// Returns whether a row computes this problem like the portable kernel; tested once per device. See [`Tuning::proven`].
pub(super) fn forward(device: &Device, row: &'static ForwardRow, p: &AttentionProblem) -> bool {
    Tuning::of(device).proven(device, row.kernel, || same_forward(device, p, row))
}
/// Returns the same for the gradients.
pub(super) fn backward(device: &Device, row: &'static BackwardRow, p: &AttentionProblem) -> bool {
    Tuning::of(device).proven(device, row.kernel, || same_backward(device, p, row))
}

/// Checks that the row's result equals the portable kernel's.
pub(in crate::ops::attention) fn same_forward(
    device: &Device,
    p: &AttentionProblem,
    row: &ForwardRow,
) -> Result<()> {
    let (inputs, got) = (Inputs::new(device, p)?, Results::new(device, p)?);
    let request = got.request(p, &inputs);
    (row.run)(&request, &(row.estimate)(&request).1)?;
    let Some(expected) = inputs.portable(p)? else { return Ok(()) };
    near("o", p, &got.o, &expected.o)?;
    near("lse", p, &got.lse, &expected.lse)
}

/// Checks the same for the gradients.
pub(in crate::ops::attention) fn same_backward(
    device: &Device,
    p: &AttentionProblem,
    row: &BackwardRow,
) -> Result<()> {
    let inputs = Inputs::new(device, p)?;
    let Some(results) = inputs.portable(p)? else { return Ok(()) };
    let (got, expected) = (Inputs::new(device, p)?, Inputs::new(device, p)?);
    let [q, k, v] = inputs.views();
    let known = ForwardResults { q, k, v, o: &results.o, lse: &results.lse, dy: View::heads(&inputs.dy) };
    let request = AttentionBackward { p, known: &known, grads: got.views() };
    (row.run)(&request, &(row.estimate)(&request).1)?;
    let Some(portable) = portable_backward(&AttentionBackward { grads: expected.views(), ..request }) else {
        return Ok(());
    };
    portable?;
    near("dq", p, &got.q, &expected.q)?;
    near("dk", p, &got.k, &expected.k)?;
    near("dv", p, &got.v, &expected.v)
}

/// q, k, v and the gradient of the result; or the gradients of the first three.
struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
}

impl Inputs {
    /// Creates (B,H,T,D) tensors with unordered values between -1 and 1.
    fn new(device: &Device, p: &AttentionProblem) -> Result<Self> {
        let make = |heads: usize, rows: usize, step: usize| {
            let dims = [p.batch, heads, rows, p.size];
            let value = |i: usize| ((i * step + i / 64 * 31) % 2003) as f32 / 1001.0 - 1.0;
            let data: Vec<f32> = (0..dims.iter().product()).map(value).collect();
            Tensor::from_f32(device, dims, &data, p.dtype)
        };
        let (q, k) = (|step| make(p.heads, p.queries, step), |step| make(p.kv_heads, p.keys, step));
        Ok(Self { q: q(7919)?, k: k(6101)?, v: k(4517)?, dy: q(3313)? })
    }
    fn views(&self) -> [View<'_>; 3] {
        [View::heads(&self.q), View::heads(&self.k), View::heads(&self.v)]
    }
    /// Runs the forward of the portable kernel, or returns `None` if its tile does not fit on the device.
    fn portable(&self, p: &AttentionProblem) -> Result<Option<Results>> {
        let results = Results::new(self.q.device(), p)?;
        let done = portable_forward(&results.request(p, self)).transpose()?;
        Ok(done.map(|()| results))
    }
}

struct Results {
    /// Result (B,T,H,D).
    o: Tensor,
    lse: Tensor,
}

impl Results {
    fn request<'a>(&'a self, p: &'a AttentionProblem, inputs: &'a Inputs) -> Forward<'a> {
        Forward { p, inputs: inputs.views(), o: &self.o, lse: &self.lse }
    }
    fn new(device: &Device, p: &AttentionProblem) -> Result<Self> {
        let AttentionProblem { batch, heads, queries, size, dtype, .. } = *p;
        Ok(Self {
            o: Tensor::full(device, [batch, queries, heads, size], f32::NAN, dtype)?,
            lse: Tensor::full(device, [batch, heads, queries], f32::NAN, DType::F32)?,
        })
    }
}

fn near(what: &str, p: &AttentionProblem, got: &Tensor, expected: &Tensor) -> Result<()> {
    if got.device().settings().no_results {
        return Ok(());
    }
    let (got, expected) = (got.to_vec()?, expected.to_vec()?);
    let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    // The comparison is false for NaN.
    let close = |(g, e): &(&f32, &f32)| (*g - *e).abs() <= allowed(p.dtype) * largest;
    match got.iter().zip(&expected).enumerate().find(|(_, pair)| !close(pair)) {
        None => Ok(()),
        Some((i, (g, e))) => {
            Err(Error::launch(format!("element {i} of {what} is {g}, expected {e} from the portable kernel")))
        }
    }
}
