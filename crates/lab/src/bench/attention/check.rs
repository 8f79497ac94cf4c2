//! Reference values of attention and its gradients, in f64 on the host: some rows, and sums that two results share.
//!
//! With P the probabilities, dP = dy vᵀ and S the scores: y = P v, dv = Pᵀ dy, dS = P (dP - dy·y), dq = dS k / √D, dk = dSᵀ q / √D.

use super::Shape;
use netcl::prelude::*;

/// One sequence of the batch, in its memory layout.
pub struct Sequence {
    pub shape: Shape,
    pub causal: bool,
    pub dtype: DType,
    /// (T, (H + 2 KV) D): queries, keys and values.
    pub qkv: Vec<f32>,
    /// (T, H D), the gradient of the result.
    pub dy: Vec<f32>,
}

/// The results of a device.
pub struct Results {
    /// (T, H D)
    pub y: Vec<f32>,
    /// Laid out like `qkv`.
    pub dqkv: Option<Vec<f32>>,
}

/// The error, if there is one.
type Verdict = Result<(), String>;

/// A value, and the allowed error of kernels.
#[derive(Clone, Copy, Default)]
struct Estimate {
    value: f64,
    /// Sum of squares of the values that kernels may round to the storage type on the way.
    rounded: f64,
    /// Sum of the sizes of terms in f32 sums.
    summed: f64,
}

/// Maximum error of rounding, in units of the distance between adjacent values of the type. Rounding errors are independent, so their squares add
/// up. One rounding is off by at most half a unit, with a standard deviation of a fifth. Up to 36 roundings never exceed this bound, and more do
/// not by chance.
const ROUNDINGS: f64 = 3.0;
/// Maximum error of a sum in f32, relative to its terms' sizes.
const SUMS: f64 = 8.0 * f32::EPSILON as f64;

impl Estimate {
    fn bound(&self, dtype: DType) -> f64 {
        let rounded = (self.rounded + normal(self.value, dtype).powi(2)).sqrt();
        ROUNDINGS * dtype.epsilon() * rounded + SUMS * self.summed
    }
}

/// Returns the size of a rounded value. Below its smallest normal number a type rounds as at that number.
fn normal(value: f64, dtype: DType) -> f64 {
    let least = if dtype == DType::F16 { 1.0 / 16384.0 } else { f64::from(f32::MIN_POSITIVE) };
    value.abs().max(least)
}

fn compare(got: &[f32], expected: &[Estimate], dtype: DType) -> Verdict {
    for (j, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, bound) = (f64::from(*got), expected.bound(dtype));
        // Not `>`, because NaN is wrong.
        let near = (got - expected.value).abs() <= bound;
        if !near {
            let value = expected.value;
            return Err(format!("element {j} is {got}, expected {value}; allowed difference {bound:.2e}"));
        }
    }
    Ok(())
}

/// Returns a dot product, from four independent sums that can run in parallel.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let (mut lanes, mut rest) = ([0.0; 4], 0.0);
    let (a4, b4) = (a.chunks_exact(4), b.chunks_exact(4));
    for (x, y) in a4.remainder().iter().zip(b4.remainder()) {
        rest += f64::from(*x) * f64::from(*y);
    }
    for (x, y) in a4.zip(b4) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += f64::from(*x) * f64::from(*y);
        }
    }
    rest + lanes.iter().sum::<f64>()
}

fn length(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}

/// The probabilities of one query.
struct Query {
    /// Probability of each visible key.
    p: Vec<f64>,
    /// Maximum size of the terms of a score together.
    most: f64,
}

impl Sequence {
    fn scale(&self) -> f64 {
        1.0 / (self.shape.size as f64).sqrt()
    }
    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }
    /// Returns row `t` of part `head` of a tensor with `heads` parts.
    fn row<'a>(&self, x: &'a [f32], heads: usize, t: usize, head: usize) -> &'a [f32] {
        let at = (t * heads + head) * self.shape.size;
        x.get(at..at + self.shape.size).unwrap_or_default()
    }
    /// Returns row `t` of query head `head` in a tensor laid out like the result.
    fn result<'a>(&self, y: &'a [f32], t: usize, head: usize) -> &'a [f32] {
        self.row(y, self.shape.heads, t, head)
    }
    /// Does the same in a tensor laid out like `qkv`.
    fn query<'a>(&self, x: &'a [f32], t: usize, head: usize) -> &'a [f32] {
        self.row(x, self.shape.heads + 2 * self.shape.kv_heads, t, head)
    }
    fn key<'a>(&self, x: &'a [f32], t: usize, kv_head: usize) -> &'a [f32] {
        self.query(x, t, self.shape.heads + kv_head)
    }
    fn value<'a>(&self, x: &'a [f32], t: usize, kv_head: usize) -> &'a [f32] {
        self.query(x, t, self.shape.heads + self.shape.kv_heads + kv_head)
    }

    /// Computes the probabilities of a query; `longest` is the length of the longest key.
    fn look(&self, head: usize, t: usize, longest: f64) -> Query {
        let (scale, query) = (self.scale(), self.query(&self.qkv, t, head));
        let seen = if self.causal { t + 1 } else { self.shape.tokens };
        let score = |s| scale * dot(query, self.key(&self.qkv, s, head / self.group()));
        let mut p: Vec<f64> = (0..seen).map(score).collect();
        let top = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|x| *x = (*x - top).exp());
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|x| *x /= sum);
        Query { p, most: scale * length(query) * longest }
    }

    fn longest_key(&self, kv_head: usize) -> f64 {
        (0..self.shape.tokens).map(|t| length(self.key(&self.qkv, t, kv_head))).fold(0.0, f64::max)
    }

    /// Returns a row of the result.
    fn forward(&self, head: usize, look: &Query) -> Vec<Estimate> {
        let mut row = vec![Estimate::default(); self.shape.size];
        for (s, p) in look.p.iter().enumerate() {
            let rounded = normal(*p, self.dtype);
            for (sum, v) in row.iter_mut().zip(self.value(&self.qkv, s, head / self.group())) {
                let v = f64::from(*v);
                sum.value += p * v;
                sum.rounded += (rounded * v).powi(2);
                sum.summed += p * v.abs() * (1.0 + look.most);
            }
        }
        row
    }

    /// Returns the gradient of the score of query `t` with key `s`, and the size of its terms. `delta` is dy·y.
    fn score_gradient(&self, look: &Query, [head, t, s]: [usize; 3], delta: f64, y: &[f32]) -> [f64; 2] {
        let (dy, v) = (self.result(&self.dy, t, head), self.value(&self.qkv, s, head / self.group()));
        let p = look.p.get(s).copied().unwrap_or(0.0);
        let ds = p * (dot(dy, v) - delta);
        [ds, p * length(dy) * (length(v) + length(y)) + ds.abs() * (2.0 + look.most)]
    }

    /// Returns a row of the queries' gradient; `y` is that row of the device's result.
    fn query_gradient(&self, head: usize, t: usize, look: &Query, y: &[f32]) -> Vec<Estimate> {
        let delta = dot(self.result(&self.dy, t, head), y);
        let mut row = vec![Estimate::default(); self.shape.size];
        for s in 0..look.p.len() {
            let [ds, size] = self.score_gradient(look, [head, t, s], delta, y);
            self.add(&mut row, ds, size, self.key(&self.qkv, s, head / self.group()));
        }
        row
    }

    /// Adds one term to a row of a gradient of queries or keys.
    fn add(&self, row: &mut [Estimate], ds: f64, size: f64, other: &[f32]) {
        let rounded = normal(ds, self.dtype);
        for (sum, x) in row.iter_mut().zip(other) {
            let x = self.scale() * f64::from(*x);
            sum.value += ds * x;
            sum.rounded += (rounded * x).powi(2);
            sum.summed += size * x.abs();
        }
    }

    /// Returns these rows of the gradients of a key head and its values, for the device's result `y`.
    fn key_gradients(&self, kv_head: usize, keys: &[usize], y: &[f32]) -> Vec<[Vec<Estimate>; 2]> {
        let none = || vec![Estimate::default(); self.shape.size];
        let mut rows: Vec<_> = keys.iter().map(|_| [none(), none()]).collect();
        let longest = self.longest_key(kv_head);
        let first = if self.causal { keys.iter().copied().min().unwrap_or(0) } else { 0 };
        for head in kv_head * self.group()..(kv_head + 1) * self.group() {
            for t in first..self.shape.tokens {
                let (look, y) = (self.look(head, t, longest), self.result(y, t, head));
                let dy = self.result(&self.dy, t, head);
                let delta = dot(dy, y);
                for (s, [dk, dv]) in keys.iter().zip(&mut rows).filter(|(s, _)| **s < look.p.len()) {
                    let [ds, size] = self.score_gradient(&look, [head, t, *s], delta, y);
                    self.add(dk, ds, size, self.query(&self.qkv, t, head));
                    let p = look.p[*s];
                    for (sum, x) in dv.iter_mut().zip(dy) {
                        let x = f64::from(*x);
                        sum.value += p * x;
                        sum.rounded += (normal(p, self.dtype) * x).powi(2);
                        sum.summed += p * x.abs() * (1.0 + look.most);
                    }
                }
            }
        }
        rows
    }
}

/// A sum of products of a rounded tensor with another.
#[derive(Default)]
struct Product {
    value: f64,
    squares: f64,
    sizes: f64,
}

impl Product {
    fn add(&mut self, rounded: &[f32], other: &[f32], dtype: DType) {
        for (a, b) in rounded.iter().zip(other) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            self.value += a * b;
            self.squares += (normal(a, dtype) * b).powi(2);
            self.sizes += (a * b).abs();
        }
    }
}

impl Results {
    /// Makes all checks below: for these rows of heads and queries, and this many rows of a key head.
    pub fn verify(&self, sequence: &Sequence, rows: &[[usize; 2]], keys: usize) -> Verdict {
        self.finite(sequence)?;
        self.rows(sequence, rows)?;
        self.sums(sequence)?;
        self.keys(sequence, keys)
    }

    /// Checks for NaNs and infinities, and for results that are all zeros.
    fn finite(&self, sequence: &Sequence) -> Verdict {
        let Shape { heads, kv_heads, tokens, size, .. } = sequence.shape;
        let look = |name: &str, x: &mut dyn Iterator<Item = &f32>, zeros: bool| {
            let mut nothing = true;
            for value in x {
                if !value.is_finite() {
                    return Err(format!("{name} has a {value}"));
                }
                nothing &= *value == 0.0;
            }
            if nothing && !zeros { Err(format!("{name} is all zeros")) } else { Ok(()) }
        };
        look("the result", &mut self.y.iter(), false)?;
        let Some(dqkv) = &self.dqkv else { return Ok(()) };
        let parts = [
            ("queries", 0..heads),
            ("keys", heads..heads + kv_heads),
            ("values", heads + kv_heads..heads + 2 * kv_heads),
        ];
        for (name, part) in parts {
            let part = part.start * size..part.end * size;
            let rows = dqkv.chunks_exact((heads + 2 * kv_heads) * size);
            let mut values = rows.flat_map(|row| row.get(part.clone()).unwrap_or_default());
            // A single token has probability 1, whatever its score.
            let zeros = tokens == 1 && name != "values";
            look(&format!("the gradient of the {name}"), &mut values, zeros)?;
        }
        Ok(())
    }

    /// Compares these rows of the result, each of a head and a query, and of the queries' gradient.
    fn rows(&self, sequence: &Sequence, rows: &[[usize; 2]]) -> Verdict {
        for &[head, t] in rows {
            let look = sequence.look(head, t, sequence.longest_key(head / sequence.group()));
            let y = sequence.result(&self.y, t, head);
            let wrong = |what: &str, why: String| format!("{what} at head {head}, query {t}: {why}");
            let same = compare(y, &sequence.forward(head, &look), sequence.dtype);
            same.map_err(|why| wrong("the result", why))?;
            if let Some(dqkv) = &self.dqkv {
                let expected = sequence.query_gradient(head, t, &look, y);
                let same = compare(sequence.query(dqkv, t, head), &expected, sequence.dtype);
                same.map_err(|why| wrong("the gradient of the queries", why))?;
            }
        }
        Ok(())
    }

    /// Compares `count` rows of the gradients of the last key head and its values, including the first and the last.
    fn keys(&self, sequence: &Sequence, count: usize) -> Verdict {
        let Some(dqkv) = self.dqkv.as_ref().filter(|_| count > 0) else { return Ok(()) };
        let Shape { kv_heads, tokens, .. } = sequence.shape;
        let (head, last) = (kv_heads - 1, tokens - 1);
        let keys: Vec<usize> = (0..count).map(|i| i * last / (count - 1).max(1)).collect();
        for (t, [dk, dv]) in keys.iter().zip(sequence.key_gradients(head, &keys, &self.y)) {
            let wrong = |what: &str, why: String| {
                format!("the gradient of the {what} at key head {head}, key {t}: {why}")
            };
            let same = compare(sequence.key(dqkv, *t, head), &dk, sequence.dtype);
            same.map_err(|why| wrong("keys", why))?;
            let same = compare(sequence.value(dqkv, *t, head), &dv, sequence.dtype);
            same.map_err(|why| wrong("values", why))?;
        }
        Ok(())
    }

    /// Compares sums over a key head and its query heads: those of dq·q and dk·k both equal that of dS·S, and those of dv·v and dy·y both equal that
    /// of P·dP. In addition to the tensors, P and dS are rounded; each enters both of its products with the same rounded values.
    fn sums(&self, sequence: &Sequence) -> Verdict {
        let Some(dqkv) = &self.dqkv else { return Ok(()) };
        let Sequence { shape, dtype, qkv, dy, .. } = sequence;
        for kv_head in 0..shape.kv_heads {
            let [mut queries, mut keys, mut values, mut results] = <[Product; 4]>::default();
            for t in 0..shape.tokens {
                keys.add(sequence.key(dqkv, t, kv_head), sequence.key(qkv, t, kv_head), *dtype);
                values.add(sequence.value(dqkv, t, kv_head), sequence.value(qkv, t, kv_head), *dtype);
                for head in kv_head * sequence.group()..(kv_head + 1) * sequence.group() {
                    queries.add(sequence.query(dqkv, t, head), sequence.query(qkv, t, head), *dtype);
                    results.add(sequence.result(&self.y, t, head), sequence.result(dy, t, head), *dtype);
                }
            }
            // The gradients of scores are differences of the terms of the other two sums.
            let sizes = values.sizes + results.sizes;
            let pairs =
                [(["dk·k", "dq·q"], [keys, queries], sizes), (["dv·v", "dy·y"], [values, results], 0.0)];
            for ([a_name, b_name], [a, b], more) in pairs {
                let rounded = ROUNDINGS * dtype.epsilon() * (a.squares + b.squares).sqrt();
                let bound = rounded + SUMS * (a.sizes + b.sizes + more);
                let near = (a.value - b.value).abs() <= bound;
                if !near {
                    return Err(format!(
                        "key head {kv_head}: {a_name} sums to {}, {b_name} to {}, which should be equal; allowed difference \
                         {bound:.2e}",
                        a.value, b.value
                    ));
                }
            }
        }
        Ok(())
    }
}
