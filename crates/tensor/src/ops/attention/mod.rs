//! Scaled dot-product attention as one operation: `softmax(scale * q kᵀ + mask) v`. The T×S scores are never stored (Dao et al. 2022, with the
//! softmax statistics of Milakov and Gimelshein 2018).

use super::algorithms::Row;
use super::prelude::*;
use crate::random::{self, DropMask, Generator};
use algorithms::{AttentionBackward, BACKWARD, FORWARD, Forward};
use problem::{AttentionProblem, ForwardResults, View};

mod algorithms;
mod options;
mod problem;
#[cfg(test)]
mod tests;

/// Largest head size.
pub(super) const MAX_SIZE: usize = 256;

/// Options of attention.
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    /// Causal mask: query t sees only keys s <= t + S - T, so the last query sees all keys. A query that sees no key gives 0.
    pub causal: bool,
    /// Factor of the scores [default: 1/√D].
    pub scale: Option<f32>,
    /// Sliding window: a causal query sees only the last `window` keys, including its own (Beltagy et al. 2020).
    pub window: Option<usize>,
    /// Soft cap: a score s becomes `cap * tanh(s / cap)` (Gemma 2).
    pub softcap: Option<f32>,
    /// Drops probabilities after the softmax.
    pub dropout: Option<DropMask>,
    /// Documents in a row: u32 (B, T) with the position of each token in its document, from 0. A causal query sees only keys of the same document.
    /// T must be equal to S. Saved graphs and calls by name do not support it.
    pub positions: Option<Tensor>,
}

impl AttentionOptions {
    /// Returns the options of a GPT: causal, scale 1/√D, no dropout.
    pub fn causal() -> Self {
        Self { causal: true, ..Self::default() }
    }
    fn check(&self) -> Result<()> {
        match (self.window, self.softcap) {
            (Some(_), _) if !self.causal => Err(Error::unsupported(
                "attention: a window requires causal attention; set `causal` or remove the window",
            )),
            _ if self.positions.is_some() && !self.causal => Err(Error::unsupported(
                "attention: documents require causal attention; set `causal` or remove the positions",
            )),
            (Some(0), _) => Err(Error::shape("attention: a window of 0 keys, expected at least 1")),
            (_, Some(cap)) if !(cap > 0.0 && cap.is_finite()) => {
                Err(Error::format(format!("attention: softcap is {cap}, expected a number above 0")))
            }
            _ => Ok(()),
        }
    }
    /// Returns the positions in documents in the form that kernels read.
    fn docs(&self, batch: usize, [queries, keys]: [usize; 2]) -> Result<Option<Tensor>> {
        let Some(positions) = &self.positions else { return Ok(None) };
        if positions.dtype() != DType::U32 || positions.dims() != [batch, queries] || queries != keys {
            return Err(Error::shape(format!(
                "attention: positions {} {} for {queries} queries and {keys} keys: expected u32 ({batch},{queries}) and as many queries as keys",
                positions.shape(),
                positions.dtype()
            )));
        }
        positions.contiguous().map(Some)
    }
    /// Returns the options with dropout for probabilities of a (B, H, T, S) attention; draws from `generator`. Probability 0 changes nothing.
    ///
    /// # Errors
    /// `Format` if the probability is not in `0..=1`.
    pub fn drop(
        mut self,
        probability: f32,
        [b, h, t, s]: [usize; 4],
        generator: &mut Generator,
    ) -> Result<Self> {
        let mask = generator.mask(probability, (b * h * t * s.div_ceil(4)) as u64)?;
        self.dropout = (probability > 0.0).then_some(mask);
        Ok(self)
    }
}

/// Computes attention of q (B,H,T,D), k and v (B,KH,S,D) → (B,H,T,D), stored as (B,T,H,D), so that merging the heads needs no copy. H is a multiple
/// of KH; query head h reads key head h / (H / KH). Inputs are read in place if D is contiguous.
///
/// # Errors
/// `Shape` if the shapes do not fit together, `Unsupported` if D is above 256.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, options: AttentionOptions) -> Result<Tensor> {
    Attention::checked([q, k, v], options)?.apply([q, k, v])
}

/// Returns every algorithm for [`attention`] and for its gradients, with its estimate or the reason why it does not apply. Nothing runs.
///
/// # Errors
/// Errors of [`attention`].
pub fn explain(q: &Tensor, k: &Tensor, v: &Tensor, options: AttentionOptions) -> Result<[Vec<Row>; 2]> {
    let op = Attention::checked([q, k, v], options)?;
    let mut rows = [Vec::new(), Vec::new()];
    let results = op.forward_by([q, k, v], |request| {
        rows[0] = FORWARD.explain(request);
        Ok(())
    })?;
    op.backward_by([q, k, v], &results, &results.0, |request| {
        rows[1] = BACKWARD.explain(request);
        Ok(())
    })?;
    Ok(rows)
}

/// Computes [`attention`] off the tape by the algorithm with this name. Returns its result, and the (B,H,T) logarithms of the sums of exponentials,
/// which [`attention_gradients_by`] needs.
///
/// # Errors
/// Errors of [`attention`]; `Unsupported` if the algorithm does not apply.
pub fn attention_by(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    options: AttentionOptions,
    name: &str,
) -> Result<(Tensor, Tensor)> {
    let op = Attention::checked([q, k, v], options)?;
    op.forward_by([&q.detach(), &k.detach(), &v.detach()], |request| FORWARD.with(name, request))
}

/// Computes the gradients of q, k and v off the tape by the algorithm with this name. The inputs include the results of [`attention_by`], by any
/// algorithm, and the gradient of its first result.
///
/// # Errors
/// Errors of [`attention`]; `Shape` if `dy` has a different shape than the result; `Unsupported` if the algorithm does not apply.
pub fn attention_gradients_by(
    [q, k, v]: [&Tensor; 3],
    results: &(Tensor, Tensor),
    dy: &Tensor,
    options: AttentionOptions,
    name: &str,
) -> Result<[Tensor; 3]> {
    let op = Attention::checked([q, k, v], options)?;
    check::same_float("attention", &[("q", q), ("dy", dy)])?;
    if dy.shape() != q.shape() || results.0.shape() != q.shape() {
        return Err(Error::shape(format!(
            "attention: dy {} and the result {}, expected the shape of q {} for both",
            dy.shape(),
            results.0.shape(),
            q.shape()
        )));
    }
    let inputs = [&q.detach(), &k.detach(), &v.detach()];
    op.backward_by(inputs, results, &dy.detach(), |request| BACKWARD.with(name, request))
}

/// Computes attention of qkv (B,T,(H+2*KH)*D), the projection with H query heads, KH key heads and KH value heads → (B,T,H*D). Nothing is copied;
/// the backward writes the three gradients to the corresponding parts of qkv's gradient.
///
/// # Errors
/// `Shape` if the heads do not divide the width, `Unsupported` if D is above 256.
pub fn attention_qkv(
    qkv: &Tensor,
    heads: usize,
    kv_heads: usize,
    options: AttentionOptions,
) -> Result<Tensor> {
    check::float("attention", "qkv", qkv)?;
    let [_, _, width] = qkv.dims3().map_err(|e| e.context("attention: qkv"))?;
    let all = heads + 2 * kv_heads;
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) || !width.is_multiple_of(all) {
        return Err(Error::shape(format!(
            "attention: qkv {} with {heads} query and {kv_heads} key heads: expected (B,T,({heads}+2*{kv_heads})*D) and query \
             heads a multiple of key heads",
            qkv.shape()
        )));
    }
    check_size(width / all)?;
    options.check()?;
    AttentionQkv { options, heads, kv_heads }.apply([qkv])
}

fn check_size(size: usize) -> Result<()> {
    if size <= MAX_SIZE {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "attention: head size {size}, expected at most {MAX_SIZE}; use more, smaller heads"
    )))
}

/// Returns the tensor itself if its last axis is contiguous, otherwise a copy.
fn rows_without_gaps(x: &Tensor) -> Result<Tensor> {
    let fits = x.shape().last() <= 1 || x.layout().strides.last() == Some(&1);
    if fits { Ok(x.clone()) } else { x.contiguous() }
}

/// Allocates an uninitialized (B,H,T,D) tensor, stored as (B,T,H,D).
fn heads_inside(like: &Tensor, [b, h, t, d]: [usize; 4]) -> Result<Tensor> {
    Tensor::empty(like.device(), [b, t, h, d], like.dtype())?.permute(&[0, 2, 1, 3])
}

fn zeroed(x: Tensor) -> Result<Tensor> {
    x.device().fill(x.storage(), &[0])?;
    Ok(x)
}

fn default_scale(options: &AttentionOptions, size: usize) -> f32 {
    options.scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt())
}

/// Operation of [`attention`].
#[derive(Clone)]
pub struct Attention {
    pub(super) options: AttentionOptions,
}

impl Attention {
    /// Returns the operation if the inputs fit it.
    fn checked([q, k, v]: [&Tensor; 3], options: AttentionOptions) -> Result<Self> {
        check::same_float("attention", &[("q", q), ("k", k), ("v", v)])?;
        let axes = |name: &str, x: &Tensor| x.dims4().map_err(|e| e.context(format!("attention: {name}")));
        let ([b, h, _, d], [kb, kh, _, kd]) = (axes("q", q)?, axes("k", k)?);
        if k.shape() != v.shape() || (b, d) != (kb, kd) || kh == 0 || !h.is_multiple_of(kh) {
            return Err(Error::shape(format!(
                "attention: q {}, k {}, v {}: expected q (B,H,T,D) and k, v (B,KH,S,D) with H a multiple of KH",
                q.shape(),
                k.shape(),
                v.shape()
            )));
        }
        check_size(d)?;
        options.check()?;
        Ok(Self { options })
    }
    fn problem(&self, q: &Tensor, k: &Tensor) -> Result<AttentionProblem> {
        let ([batch, heads, queries, size], [_, kv_heads, keys, _]) = (q.dims4()?, k.dims4()?);
        let docs = self.options.docs(batch, [queries, keys])?;
        let AttentionOptions { causal, window, softcap, dropout: mask, .. } = self.options.clone();
        let (scale, window) = (default_scale(&self.options, size), window.filter(|w| *w < keys));
        let dtype = q.dtype();
        Ok(AttentionProblem {
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            size,
            causal,
            window,
            softcap,
            scale,
            mask,
            docs,
            dtype,
        })
    }
}

impl Attention {
    /// Allocates o and lse, and fills them by `run`.
    fn forward_by(
        &self,
        [q, k, v]: [&Tensor; 3],
        run: impl FnOnce(&Forward<'_>) -> Result<()>,
    ) -> Result<(Tensor, Tensor)> {
        let (q, k, v) = (rows_without_gaps(q)?, rows_without_gaps(k)?, rows_without_gaps(v)?);
        let p = self.problem(&q, &k)?;
        let o = heads_inside(&q, [p.batch, p.heads, p.queries, p.size])?;
        let lse = q.empty_f32([p.batch, p.heads, p.queries])?;
        if q.count() == 0 || k.count() == 0 {
            return Ok((zeroed(o)?, lse));
        }
        let inputs = [View::heads(&q), View::heads(&k), View::heads(&v)];
        run(&Forward { p: &p, inputs, o: &o, lse: &lse })?;
        Ok((o, lse))
    }
    /// Allocates dq, dk and dv, and fills them by `run`.
    fn backward_by(
        &self,
        [q, k, v]: [&Tensor; 3],
        (o, lse): &(Tensor, Tensor),
        dy: &Tensor,
        run: impl FnOnce(&AttentionBackward<'_>) -> Result<()>,
    ) -> Result<[Tensor; 3]> {
        let (q, k, v) = (rows_without_gaps(q)?, rows_without_gaps(k)?, rows_without_gaps(v)?);
        let (p, dy) = (self.problem(&q, &k)?, rows_without_gaps(dy)?);
        let (dq, dk, dv) =
            (heads_inside(&q, q.dims4()?)?, heads_inside(&k, k.dims4()?)?, heads_inside(&k, k.dims4()?)?);
        if q.count() == 0 || k.count() == 0 {
            return Ok([zeroed(dq)?, zeroed(dk)?, zeroed(dv)?]);
        }
        let known = ForwardResults {
            q: View::heads(&q),
            k: View::heads(&k),
            v: View::heads(&v),
            o,
            lse,
            dy: View::heads(&dy),
        };
        let grads = [View::heads(&dq), View::heads(&dk), View::heads(&dv)];
        run(&AttentionBackward { p: &p, known: &known, grads })?;
        Ok([dq, dk, dv])
    }
}

impl Op<3> for Attention {
    const NAME: &'static str = "attention";
    type Saved = (Tensor, Tensor);
    fn forward(&self, inputs: [&Tensor; 3]) -> Result<(Tensor, Self::Saved)> {
        let (o, lse) = self.forward_by(inputs, |request| FORWARD.run(request))?;
        Ok((o.clone(), (o, lse)))
    }
    fn backward(
        &self,
        inputs: [&Tensor; 3],
        saved: &Self::Saved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        self.backward_by(inputs, saved, dy, |request| BACKWARD.run(request)).map(|grads| grads.map(Some))
    }
    fn reference(&self, [q, k, v]: [&Array; 3]) -> Array {
        textbook(&self.options, q, k, v)
    }
    fn calls() -> Vec<Call> {
        let doc = "Scaled dot-product attention in one pass: q `(B, H, T, D)`, k and v `(B, KH, S, D)` → `softmax(scale * q kᵀ) v` `(B, H, T, \
                   D)`. Query head h reads key head `h / (H / KH)`. `causal`: query t sees keys up to `t + S - T`, with `window` only the last \
                   ones. `scale` is 1/√D by default; with `softcap` a score s becomes `softcap * tanh(s / softcap)`; `dropout` drops \
                   probabilities.";
        vec![options::declared(Call::new(Self::NAME, doc).inputs(&["q", "k", "v"])).run(|a| {
            let [q, k, v] = a.inputs()?;
            let keys = |axis: usize| k.dims().get(axis).copied().unwrap_or(0);
            let dims = q.dims4().map_err(|e| e.context("attention: q"))?;
            attention(q, k, v, options::given(a, [dims[0], dims[1], dims[2], keys(2)])?)
        })]
    }
    fn attributes(&self) -> Attributes {
        options::attributes(&self.options)
    }
    #[allow(clippy::too_many_lines)] // a table
    fn samples() -> Vec<Sample<Self, 3>> {
        let causal = AttentionOptions::causal();
        let full = AttentionOptions::default();
        let sample = |options: &AttentionOptions, [b, h, kh, t, s, d]: [usize; 6]| {
            let inputs = [
                SampleInput::normal(&[b, h, t, d]),
                SampleInput::normal(&[b, kh, s, d]),
                SampleInput::normal(&[b, kh, s, d]),
            ];
            Sample::new(Self { options: options.clone() }, inputs).sums(s)
        };
        let dropping = |offset| Some(DropMask { probability: 0.3, seed: 7, offset, counter: None });
        let large = [
            SampleInput::uniform(&[1, 2, 9, 8], -40.0, 40.0),
            SampleInput::uniform(&[1, 2, 9, 8], -40.0, 40.0),
            SampleInput::normal(&[1, 2, 9, 8]),
        ];
        // Scores around -220: 2^-score of a padded key, whose score is 0, is infinite.
        let low = [
            SampleInput::uniform(&[1, 1, 9, 72], 4.9, 5.1),
            SampleInput::uniform(&[1, 1, 11, 72], -5.1, -4.9),
            SampleInput::normal(&[1, 1, 11, 72]),
        ];
        vec![
            sample(&causal, [2, 2, 2, 7, 7, 8]).bench(&[
                &[8, 6, 256, 64],
                &[8, 6, 256, 64],
                &[8, 6, 256, 64],
            ]),
            sample(&causal, [1, 8, 2, 5, 5, 8]).named("grouped"),
            sample(&causal, [1, 3, 1, 4, 13, 8]).named("more keys than queries"),
            sample(&causal, [1, 1, 1, 6, 4, 8]).named("queries that see no key"),
            sample(&causal, [2, 2, 1, 1, 9, 8]).named("one query"),
            sample(&causal, [1, 1, 1, 1, 1, 8]),
            sample(&causal, [1, 1, 1, 1, 1, 1]).light(),
            sample(&causal, [1, 2, 1, 40, 60, 8]).named("several blocks").light(),
            sample(&causal, [1, 2, 2, 0, 5, 8]).named("no queries"),
            sample(&full, [1, 2, 2, 3, 0, 8]).named("no keys"),
            sample(&full, [2, 3, 1, 5, 11, 20]).light(),
            sample(&AttentionOptions { scale: Some(0.3), ..full.clone() }, [1, 1, 1, 1, 1, 20]).light(),
            sample(&causal, [1, 2, 1, 5, 6, 1]).named("head size 1").light(),
            sample(&causal, [1, 1, 1, 20, 20, 80]),
            sample(&causal, [1, 1, 1, 4, 9, 100]).light(),
            sample(&causal, [1, 1, 1, 3, 5, 256]).light(),
            // Kernels for wide heads take only 16-bit elements.
            sample(&causal, [1, 1, 1, 3, 5, 136]).named("wide heads").only(DType::Bf16).in_order(),
            sample(&AttentionOptions { dropout: dropping(0), ..causal.clone() }, [1, 4, 2, 9, 11, 8])
                .named("dropout")
                .light(),
            sample(
                &AttentionOptions { dropout: dropping(u64::from(u32::MAX) - 3), ..full.clone() },
                [1, 1, 1, 5, 6, 8],
            )
            .named("dropout")
            .light(),
            sample(&AttentionOptions { window: Some(3), ..causal.clone() }, [1, 4, 2, 9, 11, 8])
                .named("window"),
            sample(&AttentionOptions { window: Some(50), ..causal.clone() }, [1, 2, 1, 70, 130, 8])
                .named("window over several blocks")
                .light(),
            sample(&AttentionOptions { window: Some(1), ..causal.clone() }, [1, 1, 1, 4, 3, 8])
                .named("window")
                .light(),
            sample(&AttentionOptions { softcap: Some(1.5), ..causal.clone() }, [1, 4, 2, 9, 9, 8])
                .named("softcap"),
            sample(
                &AttentionOptions {
                    softcap: Some(2.0),
                    window: Some(5),
                    dropout: dropping(3),
                    ..causal.clone()
                },
                [1, 2, 1, 20, 20, 12],
            )
            .named("softcap, window and dropout")
            .light(),
            // A score of 1000 has a rounding error of 6e-5 in f32, which the exponential passes on.
            Sample::new(Self { options: AttentionOptions { scale: Some(1.0), ..causal.clone() } }, large)
                .named("scores above 1000")
                .extreme()
                .looser(2000.0)
                .light(),
            Sample::new(Self { options: full.clone() }, low)
                .named("scores far below 0")
                .extreme()
                .looser(2000.0)
                .light(),
        ]
    }
}

/// Operation of [`attention_qkv`].
#[derive(Clone)]
pub struct AttentionQkv {
    pub(super) options: AttentionOptions,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
}

impl AttentionQkv {
    fn problem(&self, qkv: &Tensor) -> Result<AttentionProblem> {
        let [batch, queries, width] = qkv.dims3()?;
        let size = width / (self.heads + 2 * self.kv_heads);
        let docs = self.options.docs(batch, [queries; 2])?;
        let AttentionOptions { causal, window, softcap, dropout: mask, .. } = self.options.clone();
        let window = window.filter(|w| *w < queries);
        let (heads, kv_heads, scale) = (self.heads, self.kv_heads, default_scale(&self.options, size));
        Ok(AttentionProblem {
            batch,
            heads,
            kv_heads,
            queries,
            keys: queries,
            size,
            causal,
            window,
            softcap,
            scale,
            mask,
            docs,
            dtype: qkv.dtype(),
        })
    }
    /// Returns the views of the query, key and value heads.
    fn parts<'a>(&self, qkv: &'a Tensor, size: usize) -> [View<'a>; 3] {
        [0, self.heads, self.heads + self.kv_heads].map(|first| View::packed(qkv, first, size))
    }
}

impl Op<1> for AttentionQkv {
    const NAME: &'static str = "attention_qkv";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("qkv holds a query, a key and a value at least");
    type Saved = (Tensor, Tensor);
    fn forward(&self, [qkv]: [&Tensor; 1]) -> Result<(Tensor, Self::Saved)> {
        let qkv = rows_without_gaps(qkv)?;
        let p = self.problem(&qkv)?;
        let o = Tensor::empty(qkv.device(), [p.batch, p.queries, p.heads * p.size], qkv.dtype())?;
        let lse = qkv.empty_f32([p.batch, p.heads, p.queries])?;
        if o.count() > 0 {
            FORWARD.run(&Forward { p: &p, inputs: self.parts(&qkv, p.size), o: &o, lse: &lse })?;
        }
        Ok((o.clone(), (o, lse)))
    }
    fn backward(
        &self,
        [qkv]: [&Tensor; 1],
        (o, lse): &Self::Saved,
        dy: &Tensor,
    ) -> Result<[Option<Tensor>; 1]> {
        let (qkv, dy) = (rows_without_gaps(qkv)?, rows_without_gaps(dy)?);
        let p = self.problem(&qkv)?;
        let dqkv = qkv.empty_like()?;
        if o.count() > 0 {
            let [q, k, v] = self.parts(&qkv, p.size);
            let known = ForwardResults { q, k, v, o, lse, dy: View::packed(&dy, 0, p.size) };
            BACKWARD.run(&AttentionBackward { p: &p, known: &known, grads: self.parts(&dqkv, p.size) })?;
        }
        Ok([Some(dqkv)])
    }
    fn reference(&self, [qkv]: [&Array; 1]) -> Array {
        let width = qkv.shape.last();
        let size = width / (self.heads + 2 * self.kv_heads);
        let (b, t) = (qkv.shape.dims()[0], qkv.shape.dims()[1]);
        // Heads `first` .. `first + count` of every token, as (B,T,count,D).
        let heads = |first: usize, count: usize| {
            let part = |row: &[f64]| row[first * size..(first + count) * size].to_vec();
            Array::new([b, t, count, size], qkv.rows().flat_map(part).collect()).permute(&[0, 2, 1, 3])
        };
        let (q, k) = (heads(0, self.heads), heads(self.heads, self.kv_heads));
        let o = textbook(&self.options, &q, &k, &heads(self.heads + self.kv_heads, self.kv_heads));
        Array::new([b, t, self.heads * size], o.permute(&[0, 2, 1, 3]).data)
    }
    fn calls() -> Vec<Call> {
        let doc = "attention of a packed projection: qkv `(B, T, (H + 2 KH) D)` with H query heads, KH key heads and KH value heads → `(B, T, H \
                   D)`. KH is H by default. Nothing is copied.";
        let call = Call::new(Self::NAME, doc).inputs(&["qkv"]).required("heads", AttributeKind::Int);
        vec![options::declared(call.optional("kv_heads", AttributeKind::Int)).run(|a| {
            let ([qkv], heads) = (a.inputs()?, a.get("heads")?);
            let [b, t, _] = qkv.dims3().map_err(|e| e.context("attention: qkv"))?;
            attention_qkv(
                qkv,
                heads,
                a.find("kv_heads")?.unwrap_or(heads),
                options::given(a, [b, heads, t, t])?,
            )
        })]
    }
    fn attributes(&self) -> Attributes {
        let heads: Attributes = vec![("heads", self.heads.into()), ("kv_heads", self.kv_heads.into())];
        [heads, options::attributes(&self.options)].concat()
    }
    fn samples() -> Vec<Sample<Self, 1>> {
        let sample = |options: &AttentionOptions, [b, t, heads, kv_heads, d]: [usize; 5]| {
            let input = SampleInput::normal(&[b, t, (heads + 2 * kv_heads) * d]);
            Sample::new(Self { options: options.clone(), heads, kv_heads }, [input]).sums(t)
        };
        let causal = AttentionOptions::causal();
        vec![
            sample(&causal, [2, 5, 2, 2, 8]).bench(&[&[8, 256, 1152]]),
            sample(&causal, [1, 5, 4, 2, 8]),
            sample(&causal, [1, 1, 1, 1, 8]),
            sample(&causal, [0, 3, 2, 2, 8]),
            sample(&AttentionOptions::default(), [1, 9, 3, 1, 20]).light(),
            // A score of 4000 has a rounding error of 2e-4 in f32, which the exponential passes on.
            Sample::new(
                Self { options: causal.clone(), heads: 2, kv_heads: 2 },
                [SampleInput::uniform(&[2, 5, 48], -40.0, 40.0)],
            )
            .named("scores of thousands")
            .extreme()
            .looser(2000.0)
            .light(),
        ]
    }
}

/// Computes attention row by row, by its definition.
fn textbook(options: &AttentionOptions, q: &Array, k: &Array, v: &Array) -> Array {
    let (heads, t, d) = (q.shape.dims()[1], q.shape.dims()[2], q.shape.dims()[3]);
    let (kv_heads, s) = (k.shape.dims()[1], k.shape.dims()[2]);
    let scale = f64::from(default_scale(options, d));
    let mut out = Array::zeros(q.shape.clone());
    for row in 0..out.data.len() / d.max(1) {
        let (head, ti) = (row / t, row % t); // head counts over (B,H)
        let kv = head / heads * kv_heads + head % heads / (heads / kv_heads);
        let seen = if options.causal { (ti + 1 + s).saturating_sub(t).min(s) } else { s };
        let at = |i: usize| (kv * s + i) * d..(kv * s + i + 1) * d;
        let query = &q.data[row * d..(row + 1) * d];
        let score = |i| {
            let score = scale * k.data[at(i)].iter().zip(query).map(|(a, b)| a * b).sum::<f64>();
            options.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        };
        // First key of the window. The sum is ordered so that it never becomes negative.
        let begin = options.window.map_or(0, |window| (ti + 1 + s).saturating_sub(t + window).min(seen));
        let scores: Vec<f64> = (begin..seen).map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|x| (x - top).exp()).sum();
        for (i, x) in (begin..).zip(&scores) {
            let factor = options.dropout.as_ref().map_or(1.0, |m| {
                let n = (row * s.div_ceil(4) + i / 4) as u64;
                m.factor(random::draw(m.seed, m.offset, n)[i % 4])
            });
            let weight = (x - top).exp() / sum * factor;
            for (sum, value) in out.data[row * d..][..d].iter_mut().zip(&v.data[at(i)]) {
                *sum += weight * value;
            }
        }
    }
    out
}
