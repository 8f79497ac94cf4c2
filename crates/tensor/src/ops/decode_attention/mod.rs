//! A step of decoding: the queries of a few new tokens over a cache of keys and values, whose length lies in device memory. So a captured step
//! can be replayed for every position. Norms of the heads, rotary positions and the writing of the cache are in the same launch.

use super::MultiOp;
use super::attention::MAX_SIZE;
use super::counters::zeroed;
use super::prelude::*;
use crate::tape;
use netcl_kernel::{Launch, Variants};

const ROWS: &str = cl_file!("decode_attention_rows.cl");

static VECTOR: Kernel = Kernel::new("decode_attention_vector", cl_file!("decode_attention_vector.cl"))
    .include(&[ROWS])
    .tune(&[("VW", &[0])])
    .requires(|device| device.is_cpu());
static SPLIT: Kernel = Kernel::new("decode_attention_split", cl_file!("decode_attention_split.cl"))
    .include(&[cl_file!("../include/tickets.cl"), ROWS])
    .tune(&[("WG", &[256, 128])])
    .requires(|device| device.max_group >= 64 && device.local_mem >= 32 << 10);
static VARIANTS: Variants = Variants::new("decode_attention", &[&VECTOR, &SPLIT]);

/// New tokens of a text at most.
pub const MOST_TOKENS: usize = 8;

/// Rows, query heads of a key head over all new tokens, that a work-group takes at most: their sums are registers.
const MOST_ROWS: usize = 8;

/// Keys that a work-group should at least get before they are shared out.
const LEAST_KEYS: usize = 256;

/// Counters for groups that add up the shares of others.
const TURNS: usize = 4096;

/// What a decoder fixes about its attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOptions {
    /// Query heads (H).
    pub heads: usize,
    /// Key and value heads (KH), which divide H.
    pub kv_heads: usize,
    /// Factor of the scores; 1/√D when `None`.
    pub scale: Option<f32>,
    /// Keys that a query sees at most, its own among them (sliding window, Beltagy et al. 2020).
    pub window: Option<usize>,
    /// A score s becomes `cap * tanh(s / cap)` (Gemma 2).
    pub softcap: Option<f32>,
}

/// A root mean square norm of each query and each key head, before they are rotated.
#[derive(Clone, Copy)]
pub struct HeadNorm<'a> {
    /// (D).
    pub query: &'a Tensor,
    /// (D).
    pub key: &'a Tensor,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Whether the factor is 1 + weight.
    pub unit_offset: bool,
}

/// Where new tokens go: their keys and values behind those of the tokens before.
#[derive(Clone, Copy)]
pub struct CacheAt<'a> {
    /// (B, S, 2 KH, D), keys before values; the last axis without gaps. Rows from the position on are written.
    pub rows: &'a Tensor,
    /// u32 (1) or (B): the tokens before. With (1) all texts have as many.
    pub position: &'a Tensor,
}

/// qkv `(B, T, (H + 2 KH) D)`, the projection of T new tokens, 1 to [`MOST_TOKENS`], → `(B, T, H D)`. Token t of a text sees the rows of the cache
/// before its position + t, and the new tokens up to itself. `rotary` has cosines and sines (S or more, R/2) f32 of all positions: queries
/// and keys are rotated as by [`rope`](super::rope::rope()). A token that the cache has no room for is not kept, and its result is NaN.
///
/// # Errors
/// `Shape` and `DType` where the parts do not fit each other; `Unsupported` for heads above 256, more tokens, and where a gradient is wanted: there is
/// none.
pub fn decode_attention(
    qkv: &Tensor,
    cache: CacheAt<'_>,
    rotary: Option<[&Tensor; 2]>,
    norm: Option<HeadNorm<'_>>,
    options: DecodeOptions,
) -> Result<Tensor> {
    let op = DecodeAttention {
        options,
        rotary: rotary.is_some(),
        norm: norm.map(|norm| (norm.eps, norm.unit_offset)),
    };
    let [cosines, sines] = rotary.unwrap_or([qkv; 2]);
    let [query, key] = norm.map_or([qkv; 2], |norm| [norm.query, norm.key]);
    let inputs = [qkv, cache.rows, cache.position, cosines, sines, query, key];
    op.check(&inputs)?;
    if tape::records(&inputs) {
        return Err(Error::unsupported("decode_attention has no gradient; call it within `no_grad`"));
    }
    let [o, _] = op.apply(inputs)?;
    Ok(o)
}

/// See [`decode_attention()`].
#[derive(Clone)]
pub struct DecodeAttention {
    options: DecodeOptions,
    /// Whether inputs 3 and 4 are cosines and sines.
    rotary: bool,
    /// Where inputs 5 and 6 are factors of a norm: its eps, and whether the factor is 1 + those.
    norm: Option<(f32, bool)>,
}

/// Sizes of a step.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    tokens: usize,
    size: usize,
    room: usize,
}

impl DecodeAttention {
    /// One head, rotated.
    #[cfg(test)]
    pub(super) fn of_one_head() -> Self {
        let options = DecodeOptions { heads: 1, kv_heads: 1, scale: None, window: None, softcap: None };
        Self { options, rotary: true, norm: None }
    }

    fn sizes(&self, qkv: &Tensor, cache: &Tensor) -> Result<Sizes> {
        let name = "decode_attention";
        let ([batch, tokens, width], [b, room, all, size]) = (
            qkv.dims3().map_err(|e| e.context("decode_attention: qkv"))?,
            cache.dims4().map_err(|e| e.context("decode_attention: cache"))?,
        );
        let DecodeOptions { heads, kv_heads, .. } = self.options;
        let fits = kv_heads > 0 && heads.is_multiple_of(kv_heads) && all == 2 * kv_heads && b == batch;
        let widths = heads.checked_add(2 * kv_heads).and_then(|n| n.checked_mul(size));
        if !fits || widths != Some(width) {
            return Err(Error::shape(format!(
                "{name}: qkv {} and cache {} with {heads} query and {kv_heads} key heads: expected (B,T,({heads}+2*{kv_heads})*D) \
                 and (B,S,2*{kv_heads},D), query heads a multiple of key heads",
                qkv.shape(),
                cache.shape()
            )));
        }
        if size > MAX_SIZE || tokens > MOST_TOKENS {
            return Err(Error::unsupported(format!(
                "{name}: {tokens} new tokens and heads of {size}, at most {MOST_TOKENS} and {MAX_SIZE}"
            )));
        }
        Ok(Sizes { batch, tokens, size, room })
    }

    fn check(&self, [qkv, cache, position, cosines, sines, query, key]: &[&Tensor; 7]) -> Result<()> {
        let name = "decode_attention";
        check::same_float(name, &[("qkv", qkv), ("cache", cache)])?;
        let Sizes { batch, size, room, .. } = self.sizes(qkv, cache)?;
        if cache.layout().strides.last() != Some(&1) && size > 1 {
            return Err(Error::shape(format!(
                "{name}: the last axis of cache {} does not lie in order",
                cache.shape()
            )));
        }
        check::indices(name, "position", position)?;
        if position.shape().rank() != 1 || ![1, batch].contains(&position.count()) {
            return Err(Error::shape(format!(
                "{name}: position has shape {}, expected [1] or [{batch}], the texts of qkv {}",
                position.shape(),
                qkv.shape()
            )));
        }
        if self.rotary {
            for (what, table) in [("cosines", cosines), ("sines", sines)] {
                if table.dtype() != DType::F32 {
                    return Err(Error::dtype(format!("{name}: {what} are {}, expected f32", table.dtype())));
                }
            }
            let [rows, half] = cosines.dims2().map_err(|e| e.context("decode_attention: cosines"))?;
            if cosines.shape() != sines.shape() || rows < room || 2 * half > size {
                return Err(Error::shape(format!(
                    "{name}: cosines {} and sines {}, expected ({room} or more, R/2) for the rows of cache {}, R at most {size}",
                    cosines.shape(),
                    sines.shape(),
                    cache.shape()
                )));
            }
        }
        if self.norm.is_some() {
            check::same_float(name, &[("qkv", qkv), ("the queries' norm", query), ("the keys' norm", key)])?;
            for (what, gamma) in [("queries", query), ("keys", key)] {
                if gamma.dims() != [size] {
                    return Err(Error::shape(format!(
                        "{name}: the {what}' norm has shape {}, expected [{size}], the last axis of cache {}",
                        gamma.shape(),
                        cache.shape()
                    )));
                }
            }
        }
        match (self.options.window, self.options.softcap) {
            (Some(0), _) => Err(Error::shape("decode_attention: a window of 0 keys, expected at least 1")),
            (_, Some(cap)) if !(cap > 0.0 && cap.is_finite()) => {
                Err(Error::format(format!("decode_attention: softcap is {cap}, expected a number above 0")))
            }
            _ => Ok(()),
        }
    }

    /// The defines that all functions of both texts take.
    fn defined(
        &self,
        kernel: &'static Kernel,
        entry: &'static str,
        qkv: &Tensor,
        s: Sizes,
        rows: usize,
    ) -> Launch<'static> {
        let DecodeOptions { heads, kv_heads, window, softcap, .. } = self.options;
        let launch = kernel.launch(entry).define("DTYPE", qkv.dtype().code()).define("D", s.size);
        let launch = launch.define("GROUP", heads / kv_heads).define("T_LEN", s.tokens).define("ROWS", rows);
        let launch = window.filter(|w| *w < s.room).into_iter().fold(launch, |l, w| l.define("WINDOW", w));
        if softcap.is_some() { launch.define("SOFTCAP", 1) } else { launch }
    }
}

impl MultiOp<7, 2> for DecodeAttention {
    const NAME: &'static str = "decode_attention";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("qkv holds a query, a key and a value at least");
    type Saved = ();
    fn forward(&self, inputs: [&Tensor; 7]) -> Result<([Tensor; 2], ())> {
        self.check(&inputs)?;
        let [qkv, cache, position, cosines, sines, query, key] = inputs;
        let s = self.sizes(qkv, cache)?;
        let DecodeOptions { heads, kv_heads, scale, softcap, .. } = self.options;
        let o = Tensor::empty(qkv.device(), [s.batch, s.tokens, heads * s.size], qkv.dtype())?;
        if o.count() == 0 {
            return Ok(([o, cache.detach()], ()));
        }
        if s.room == 0 {
            return Ok(([Tensor::full(qkv.device(), o.shape(), f32::NAN, o.dtype())?, cache.detach()], ()));
        }
        let device = qkv.device();
        let kernel = VARIANTS.choose(device, 0)?;
        let group = Group::of(kernel, device, s, heads / kv_heads);
        let pairs = s.batch * kv_heads;
        let splits = group.splits(device, pairs, s.room);
        let last = splits > 1 && device.capabilities().sm() >= Some(70) && pairs * group.chunks <= TURNS;
        let joins = splits > 1 && !(last && kernel.name == SPLIT.name);

        let qkv = if qkv.layout().strides[2] == 1 { qkv.clone() } else { qkv.contiguous()? };
        let (q, c) = (qkv.layout(), cache.layout());
        let starts =
            [q.offset, q.strides[0], q.strides[1], c.offset, c.strides[0], c.strides[1], c.strides[2]];
        let rows = s.tokens * heads / kv_heads;
        let part = if splits > 1 { vec![splits, pairs, rows, s.size + 2] } else { vec![1] };
        let part = qkv.empty_f32(part)?;
        let position_step = if position.count() > 1 { position.layout().strides[0] } else { 0 };
        let at = |launch: Launch<'static>| {
            let launch = launch.scalar(position.layout().offset as u32).scalar(position_step as u32);
            launch.scalar(i32::try_from(s.room).unwrap_or(i32::MAX)).scalar(splits as u32)
        };

        let launch = self.defined(kernel, "decode_attention", &qkv, s, group.rows);
        let launch =
            group.define(launch, s.size.is_multiple_of(4) && starts.iter().all(|n| n.is_multiple_of(4)));
        let launch = if self.rotary { launch.define("HALF", cosines.shape().last()) } else { launch };
        let launch = match self.norm {
            Some((_, unit)) => launch.define("QK_NORM", 1).define("UNIT", unit),
            None => launch,
        };
        let launch = if last { launch.define("LAST", 1) } else { launch };
        let launch = launch.groups3([splits * group.chunks, kv_heads, s.batch]);
        let launch = launch.read_base(&qkv).write_base(cache).read_base(position).write(&o).write(&part);
        let launch = at(starts.into_iter().fold(launch, Launch::scalar));
        let mut launch = launch.scalar(scale.unwrap_or_else(|| 1.0 / (s.size as f32).sqrt()));
        launch = softcap.into_iter().fold(launch, Launch::scalar);
        if self.rotary {
            launch = launch.read(&cosines.contiguous()?).read(&sines.contiguous()?);
        }
        if let Some((eps, _)) = self.norm {
            launch = launch.read(&query.contiguous()?).read(&key.contiguous()?).scalar(eps);
        }
        if last && kernel.name == SPLIT.name {
            launch = launch.write_base(&zeroed(device, "decode_attention", TURNS)?);
        }
        launch.run()?;
        if joins {
            let launch = self.defined(kernel, "decode_attention_join", &qkv, s, group.rows);
            let launch = group.define(launch, false).groups3([group.chunks, kv_heads, s.batch]);
            at(launch.read(&part).read_base(position).write(&o)).run()?;
        }
        Ok(([o, cache.detach()], ()))
    }
    fn backward(&self, _: [&Tensor; 7], (): &(), _: [Option<&Tensor>; 2]) -> Result<[Option<Tensor>; 7]> {
        Ok([const { None }; 7])
    }
    fn reference(&self, inputs: [&Array; 7]) -> [Array; 2] {
        reference(self, inputs)
    }
    fn samples() -> Vec<Sample<Self, 7>> {
        samples()
    }
}

/// How the rows of a text's key head are dealt to work-groups.
struct Group {
    /// Items of a group; 1 where an item is one.
    items: usize,
    /// Rows of a group.
    rows: usize,
    /// Groups that the rows take.
    chunks: usize,
}

impl Group {
    fn of(kernel: &'static Kernel, device: &Device, s: Sizes, heads: usize) -> Self {
        let items = if kernel.name == SPLIT.name {
            Tuning::value(device, kernel, 0, "WG").min(largest_group(device))
        } else {
            1
        };
        let all = s.tokens * heads;
        let room = usize::try_from(device.capabilities().local_mem).unwrap_or(usize::MAX);
        // Queries and new keys, a probability for each item and row, and two numbers for each item.
        let bytes = |rows: usize| 4 * ((rows + s.tokens) * s.size.next_multiple_of(4) + (rows + 8) * items);
        let mut rows = all.min(MOST_ROWS);
        while items > 1 && rows > 1 && bytes(rows) > room {
            rows = rows.div_ceil(2);
        }
        Self { items, rows, chunks: all.div_ceil(rows) }
    }
    /// Groups that share the keys: on GPUs as many as keep every unit busy. On CPUs they do not follow the number of cores, so that results
    /// do not.
    fn splits(&self, device: &Device, pairs: usize, room: usize) -> usize {
        let wanted = match self.items {
            1 => 8,
            _ => device.capabilities().compute_units.max(1) as usize,
        };
        (wanted / (pairs * self.chunks)).min(room / LEAST_KEYS).clamp(1, 64)
    }
    fn define(&self, launch: Launch<'static>, fours: bool) -> Launch<'static> {
        if self.items == 1 {
            return launch;
        }
        launch.define("WG", self.items).define("VEC", if fours { 4 } else { 1 }).local([self.items, 1, 1])
    }
}

/// Queries, keys and values written out, one key after the other.
fn reference(
    op: &DecodeAttention,
    [qkv, cache, position, cosines, sines, query, key]: [&Array; 7],
) -> [Array; 2] {
    let DecodeOptions { heads, kv_heads, scale, window, softcap } = op.options;
    let (tokens, room, size) = (qkv.shape.dims()[1], cache.shape.dims()[1], cache.shape.last());
    let (mut cache, mut out) = (cache.clone(), Vec::new());
    let half = if op.rotary { cosines.shape.last() } else { 0 };
    // A head after norm and rotation.
    let prepared = |head: &[f64], gamma: &Array, place: usize| -> Vec<f64> {
        let mut x = head.to_vec();
        if let Some((eps, unit)) = op.norm {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / size as f64;
            let by = 1.0 / (mean + f64::from(eps)).sqrt();
            x.iter_mut().zip(&gamma.data).for_each(|(v, g)| *v *= by * (g + if unit { 1.0 } else { 0.0 }));
        }
        let before = x.clone();
        for i in 0..half {
            let (c, s) = (cosines.data[place * half + i], sines.data[place * half + i]);
            x[i] = before[i] * c - before[i + half] * s;
            x[i + half] = before[i + half] * c + before[i] * s;
        }
        x
    };
    for (row, x) in qkv.rows().enumerate() {
        let (b, t) = (row / tokens.max(1), row % tokens.max(1));
        let place = position.data[if position.data.len() > 1 { b } else { 0 }] as usize + t;
        let head = |i: usize| &x[i * size..(i + 1) * size];
        let at = |s: usize, h: usize| ((b * room + s) * 2 * kv_heads + h) * size;
        if place >= room {
            out.extend(std::iter::repeat_n(f64::NAN, heads * size));
            continue;
        }
        for h in 0..kv_heads {
            cache.data[at(place, h)..][..size].copy_from_slice(&prepared(head(heads + h), key, place));
            cache.data[at(place, kv_heads + h)..][..size].copy_from_slice(head(heads + kv_heads + h));
        }
        for h in 0..heads {
            let (q, kh) = (prepared(head(h), query, place), h / (heads / kv_heads));
            let seen = window.map_or(0, |w| (place + 1).saturating_sub(w))..place + 1;
            let score = |s: usize| {
                let dot: f64 = q.iter().zip(&cache.data[at(s, kh)..]).map(|(a, b)| a * b).sum();
                let dot = dot * scale.map_or(1.0 / (size as f64).sqrt(), f64::from);
                softcap.map_or(dot, |cap| f64::from(cap) * (dot / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = seen.clone().map(score).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d: usize| {
                seen.clone().zip(&weights).map(|(s, w)| w * cache.data[at(s, kv_heads + kh) + d]).sum::<f64>()
            };
            out.extend((0..size).map(|d| value(d) / sum));
        }
    }
    let shape = [qkv.shape.dims()[0], tokens, heads * size];
    [Array::new(shape, out), cache]
}

fn samples() -> Vec<Sample<DecodeAttention, 7>> {
    let plain = |heads, kv_heads| DecodeOptions { heads, kv_heads, scale: None, window: None, softcap: None };
    // Texts, new tokens, room, head size; tokens before.
    let made = |options: DecodeOptions,
                [b, t, room, d]: [usize; 4],
                half: usize,
                norm: Option<(f32, bool)>,
                before: &[f64]| {
        let DecodeOptions { heads, kv_heads, .. } = options;
        let angles = || Input::values(&[room, half.max(1)], &[0.8, -0.6, 0.25, 1.0, -0.5], Some(DType::F32));
        let inputs = [
            Input::normal(&[b, t, (heads + 2 * kv_heads) * d]),
            Input::normal(&[b, room, 2 * kv_heads, d]),
            Input::values(&[before.len()], before, Some(DType::U32)),
            angles(),
            angles(),
            Input::shifted(&[d], 1.0),
            Input::shifted(&[d], 1.0),
        ];
        Sample::new(DecodeAttention { options, rotary: half > 0, norm }, inputs).sums(room).in_order()
    };
    let rms = Some((1e-6, false));
    let capped = DecodeOptions { softcap: Some(1.5), scale: Some(0.3), ..plain(4, 2) };
    let window = |heads, kv_heads, window| DecodeOptions { window: Some(window), ..plain(heads, kv_heads) };
    let mut far = made(plain(2, 2), [1, 1, 9, 8], 4, None, &[5.0]);
    far.inputs[0] = Input::uniform(&[1, 1, 48], -40.0, 40.0);
    far.inputs[1] = Input::uniform(&[1, 9, 4, 8], -40.0, 40.0);
    vec![
        made(plain(2, 2), [2, 1, 9, 8], 0, None, &[5.0]),
        made(plain(4, 2), [2, 1, 70, 20], 4, None, &[64.0, 3.0])
            .named("grouped, rotated, texts of two lengths"),
        made(plain(4, 1), [1, 1, 12, 8], 4, rms, &[7.0]).named("norms of heads"),
        made(plain(2, 1), [1, 1, 12, 8], 2, Some((1e-6, true)), &[7.0]).named("norms with 1 + gamma").light(),
        made(plain(1, 1), [1, 1, 3, 8], 4, None, &[0.0]).named("the first token").light(),
        made(plain(3, 1), [1, 3, 40, 16], 8, None, &[30.0]).named("several tokens"),
        made(plain(9, 1), [1, 8, 20, 8], 4, None, &[6.0]).named("more rows than a group takes").light(),
        made(plain(1, 1), [1, 1, 600, 8], 0, None, &[570.0]).named("shares").light(),
        made(plain(2, 1), [2, 2, 1100, 12], 6, rms, &[900.0, 20.0]).named("shares of two lengths"),
        made(window(2, 1, 5), [1, 1, 30, 8], 4, None, &[20.0]).named("window"),
        made(window(2, 1, 6), [1, 4, 30, 8], 4, None, &[3.0]).named("window over several tokens").light(),
        made(window(1, 1, 300), [1, 2, 1000, 4], 0, None, &[700.0])
            .named("window over several shares")
            .light(),
        made(capped, [1, 2, 12, 8], 4, None, &[7.0]).named("softcap").light(),
        made(plain(1, 1), [1, 1, 5, 256], 64, None, &[3.0]).named("wide heads").light(),
        made(plain(2, 2), [1, 1, 80, 7], 3, None, &[66.0]).named("odd heads").light(),
        made(plain(1, 1), [1, 1, 6, 1], 0, None, &[4.0]).named("heads of 1").light(),
        made(plain(2, 2), [0, 1, 9, 8], 0, None, &[5.0]).light(),
        // A score of 4000 has rounding of 2e-4 in f32, and the exponential passes it on.
        far.extreme().looser(2000.0).light(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::test_device;
    use crate::tape::no_grad;

    const OPTIONS: DecodeOptions =
        DecodeOptions { heads: 2, kv_heads: 1, scale: None, window: None, softcap: None };

    fn draw(device: &Device, shape: &[usize], seed: u64) -> Tensor {
        let data: Vec<f32> =
            Input::normal(shape).draw(seed, DType::F32).data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(device, shape, &data, DType::F32).unwrap()
    }

    /// A cache may be a part of something larger; what lies around it stays.
    #[test]
    fn rows_are_written_into_a_view_of_a_cache() {
        let device = test_device().unwrap();
        let (whole, qkv) = (draw(&device, &[3, 12, 2, 8], 1), draw(&device, &[2, 1, 32], 2));
        let before = whole.to_vec().unwrap();
        let rows = whole.slice(0, 1..3).unwrap().slice(1, 2..11).unwrap();
        let dense = crate::ops::copied(&rows).unwrap();
        let position = Tensor::from_u32(&device, [2], &[4, 8]).unwrap();
        let step = |rows: &Tensor| {
            decode_attention(&qkv, CacheAt { rows, position: &position }, None, None, OPTIONS).unwrap()
        };
        assert_eq!(step(&rows).to_vec().unwrap(), step(&dense).to_vec().unwrap());
        assert_eq!(rows.to_vec().unwrap(), dense.to_vec().unwrap());
        let after = whole.to_vec().unwrap();
        let changed: Vec<usize> =
            (0..after.len() / 16).filter(|i| after[i * 16..][..16] != before[i * 16..][..16]).collect();
        assert_eq!(changed, [12 + 2 + 4, 2 * 12 + 2 + 8]);
    }

    /// Three new tokens where two have room, then none has.
    #[test]
    fn tokens_without_room_are_not_kept_and_their_result_is_nan() {
        let device = test_device().unwrap();
        let (rows, qkv) = (draw(&device, &[1, 6, 2, 8], 3), draw(&device, &[1, 3, 32], 4));
        for (at, fit) in [(4u32, 2), (6, 0), (u32::MAX, 0)] {
            let position = Tensor::from_u32(&device, [1], &[at]).unwrap();
            let before = rows.to_vec().unwrap();
            let o = decode_attention(&qkv, CacheAt { rows: &rows, position: &position }, None, None, OPTIONS)
                .unwrap();
            let nan: Vec<bool> =
                o.to_vec().unwrap().chunks(16).map(|row| row.iter().all(|v| v.is_nan())).collect();
            assert_eq!(nan, (0..3).map(|t| t >= fit).collect::<Vec<_>>(), "{at}");
            let after = rows.to_vec().unwrap();
            let kept = 16 * (at as usize).min(6);
            assert_eq!(after[..kept], before[..kept]);
            assert!(kept == after.len() || after[kept..] != before[kept..]);
        }
    }

    #[test]
    fn a_gradient_is_refused() {
        let device = test_device().unwrap();
        let (rows, qkv) = (draw(&device, &[1, 6, 2, 8], 3), draw(&device, &[1, 1, 32], 4).parameter("qkv"));
        let position = Tensor::from_u32(&device, [1], &[2]).unwrap();
        let step =
            || decode_attention(&qkv, CacheAt { rows: &rows, position: &position }, None, None, OPTIONS);
        assert!(step().unwrap_err().message().contains("decode_attention has no gradient"));
        assert!(no_grad(step).is_ok());
    }
}
