//! The tests that the sm_90 kernels pass before their first use: a small problem gives what the portable kernels give.

use super::kernels::{Known, Problem, View, backward_tile, forward_tile};
use super::sm90;
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
    scale: 0.125,
    mask: None,
    dtype: DType::Bf16,
};
/// Of the largest value: results are bf16, and the gradients pass through it several times.
const ALLOWED: f32 = 0.03;

pub(super) fn forward(device: &Device) -> bool {
    Tuning::of(device).proven(device, &sm90::WGMMA, || {
        let (inputs, got) = (Inputs::new(device)?, Results::new(device)?);
        sm90::forward(&PROBLEM, inputs.views(), &got.o, &got.lse)?;
        let Some(expected) = inputs.portable()? else { return Ok(()) };
        near("o", &got.o, &expected.o)?;
        near("lse", &got.lse, &expected.lse)
    })
}

pub(super) fn backward(device: &Device) -> bool {
    Tuning::of(device).proven(device, &sm90::WGMMA_BWD, || {
        let inputs = Inputs::new(device)?;
        let (Some(tile), Some(known)) = (PROBLEM.backward_tile(device), inputs.portable()?) else { return Ok(()) };
        let (got, expected) = (Inputs::new(device)?, Inputs::new(device)?);
        let [q, k, v] = inputs.views();
        let known = Known { q, k, v, o: &known.o, lse: &known.lse, dy: View::heads(&inputs.dy) };
        sm90::backward(&PROBLEM, &known, got.views())?;
        backward_tile(&PROBLEM, &known, expected.views(), tile)?;
        near("dq", &got.q, &expected.q)?;
        near("dk", &got.k, &expected.k)?;
        near("dv", &got.v, &expected.v)
    })
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
    fn new(device: &Device) -> Result<Self> {
        let make = |heads: usize, step: usize| {
            let dims = [PROBLEM.batch, heads, PROBLEM.queries, PROBLEM.size];
            let value = |i: usize| ((i * step + i / 64 * 31) % 2003) as f32 / 1001.0 - 1.0;
            let data: Vec<f32> = (0..dims.iter().product()).map(value).collect();
            Tensor::from_f32(device, dims, &data, PROBLEM.dtype)
        };
        let (heads, kv) = (PROBLEM.heads, PROBLEM.kv_heads);
        Ok(Self { q: make(heads, 7919)?, k: make(kv, 6101)?, v: make(kv, 4517)?, dy: make(heads, 3313)? })
    }
    fn views(&self) -> [View<'_>; 3] {
        [View::heads(&self.q), View::heads(&self.k), View::heads(&self.v)]
    }
    /// The forward of the portable kernel, where this device has room for its tile.
    fn portable(&self) -> Result<Option<Results>> {
        let Some(tile) = PROBLEM.forward_tile(self.q.device()) else { return Ok(None) };
        let results = Results::new(self.q.device())?;
        forward_tile(&PROBLEM, self.views(), &results.o, &results.lse, tile)?;
        Ok(Some(results))
    }
}

struct Results {
    /// (B,T,H,D)
    o: Tensor,
    lse: Tensor,
}

impl Results {
    fn new(device: &Device) -> Result<Self> {
        let Problem { batch, heads, queries, size, dtype, .. } = PROBLEM;
        Ok(Self {
            o: Tensor::full(device, [batch, queries, heads, size], f32::NAN, dtype)?,
            lse: Tensor::full(device, [batch, heads, queries], f32::NAN, DType::F32)?,
        })
    }
}

fn near(what: &str, got: &Tensor, expected: &Tensor) -> Result<()> {
    let (got, expected) = (got.to_vec()?, expected.to_vec()?);
    let largest = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    // NaN is near nothing.
    let close = |(g, e): &(&f32, &f32)| (*g - *e).abs() <= ALLOWED * largest;
    match got.iter().zip(&expected).enumerate().find(|(_, pair)| !close(pair)) {
        None => Ok(()),
        Some((i, (g, e))) => {
            Err(Error::launch(format!("element {i} of {what} is {g}, by the portable kernel {e}")))
        }
    }
}
