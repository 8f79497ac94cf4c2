//! The tests that the sm_90 kernels pass before their first use: a small problem gives what the portable kernels give.

use super::kernels::{Known, Problem, View, backward_tile, forward_tile};
use super::{bf16x3, sm90};
use crate::ops::prelude::*;

/// Causal, several blocks of keys and an edge, two query heads a key head.
const PROBLEM: Problem = Problem {
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
    dtype: DType::Bf16,
};
/// Wider heads.
const WIDE: Problem = Problem { size: 128, ..PROBLEM };
/// The same in f32.
const IN_F32: Problem = Problem { dtype: DType::F32, ..PROBLEM };

type Forward = fn(&Problem, [View<'_>; 3], &Tensor, &Tensor) -> Result<()>;
pub(super) type Backward = fn(&Problem, &Known<'_>, [View<'_>; 3]) -> Result<()>;

/// Of the largest value. Results of bf16 are rounded, and the gradients pass through it several times.
fn allowed(dtype: DType) -> f32 {
    if dtype == DType::F32 { 1e-5 } else { 0.03 }
}

pub(super) fn forward(device: &Device) -> bool {
    Tuning::of(device).proven(device, &sm90::WGMMA, || same_forward(device, &PROBLEM, sm90::forward))
}
pub(super) fn bf16x3_forward(device: &Device) -> bool {
    Tuning::of(device).proven(device, &bf16x3::BF16X3, || same_forward(device, &IN_F32, bf16x3::forward))
}
pub(super) fn backward(device: &Device) -> bool {
    Tuning::of(device).proven(device, &sm90::WGMMA_BWD, || same_backward(device, &PROBLEM, sm90::backward))
}
pub(super) fn ordered_backward(device: &Device) -> bool {
    Tuning::of(device)
        .proven(device, &sm90::ORDERED_BWD, || same_backward(device, &WIDE, sm90::ordered_backward))
}
pub(super) fn bf16x3_backward(device: &Device) -> bool {
    Tuning::of(device)
        .proven(device, &bf16x3::BF16X3_BWD, || same_backward(device, &IN_F32, bf16x3::backward))
}

/// Whether `run` gives what the portable kernel gives.
pub(super) fn same_forward(device: &Device, p: &Problem, run: Forward) -> Result<()> {
    let (inputs, got) = (Inputs::new(device, p)?, Results::new(device, p)?);
    run(p, inputs.views(), &got.o, &got.lse)?;
    let Some(expected) = inputs.portable(p)? else { return Ok(()) };
    near("o", p, &got.o, &expected.o)?;
    near("lse", p, &got.lse, &expected.lse)
}

/// The same for the gradients.
pub(super) fn same_backward(device: &Device, p: &Problem, run: Backward) -> Result<()> {
    let inputs = Inputs::new(device, p)?;
    let (Some(tile), Some(known)) = (p.backward_tile(device), inputs.portable(p)?) else { return Ok(()) };
    let (got, expected) = (Inputs::new(device, p)?, Inputs::new(device, p)?);
    let [q, k, v] = inputs.views();
    let known = Known { q, k, v, o: &known.o, lse: &known.lse, dy: View::heads(&inputs.dy) };
    run(p, &known, got.views())?;
    backward_tile(p, &known, expected.views(), tile)?;
    near("dq", p, &got.q, &expected.q)?;
    near("dk", p, &got.k, &expected.k)?;
    near("dv", p, &got.v, &expected.v)
}

/// q, k, v and the gradient of the result, or the first three's gradients.
struct Inputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dy: Tensor,
}

impl Inputs {
    /// (B,H,T,D) with values between -1 and 1, in no order.
    fn new(device: &Device, p: &Problem) -> Result<Self> {
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
    /// The forward of the portable kernel, where this device has room for its tile.
    fn portable(&self, p: &Problem) -> Result<Option<Results>> {
        let Some(tile) = p.forward_tile(self.q.device()) else { return Ok(None) };
        let results = Results::new(self.q.device(), p)?;
        forward_tile(p, self.views(), &results.o, &results.lse, tile)?;
        Ok(Some(results))
    }
}

struct Results {
    /// (B,T,H,D)
    o: Tensor,
    lse: Tensor,
}

impl Results {
    fn new(device: &Device, p: &Problem) -> Result<Self> {
        let Problem { batch, heads, queries, size, dtype, .. } = *p;
        Ok(Self {
            o: Tensor::full(device, [batch, queries, heads, size], f32::NAN, dtype)?,
            lse: Tensor::full(device, [batch, heads, queries], f32::NAN, DType::F32)?,
        })
    }
}

fn near(what: &str, p: &Problem, got: &Tensor, expected: &Tensor) -> Result<()> {
    if got.device().settings().no_results {
        return Ok(());
    }
    let (got, expected) = (got.to_vec()?, expected.to_vec()?);
    let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    // NaN is near nothing.
    let close = |(g, e): &(&f32, &f32)| (*g - *e).abs() <= allowed(p.dtype) * largest;
    match got.iter().zip(&expected).enumerate().find(|(_, pair)| !close(pair)) {
        None => Ok(()),
        Some((i, (g, e))) => {
            Err(Error::launch(format!("element {i} of {what} is {g}, by the portable kernel {e}")))
        }
    }
}
