//! Keys and values of a text in pages (Kwon et al. 2023, "PagedAttention"): new rows are written to the text's pages, and rows of a prompt are
//! gathered from them. [`decode_attention`](super::decode_attention) reads single rows.

use super::map::row_grid;
use super::prelude::*;
use crate::tape;
use netcl_kernel::Launch;
use std::ops::Range;

static KERNEL: Kernel = Kernel::new("paged_cache", cl_file!("paged_cache.cl"))
    .include(&[Q8_DEFAULTS, cl_file!("../include/q8_row.cl")])
    .tune(&[("WG", &[128, 256]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);
const Q8_DEFAULTS: &str = "#ifndef D\n#define D 64\n#endif\n";

/// Elements of a row that share a scale in 8 bits.
const GROUP: usize = 32;

/// Returns the 32-bit words for `size` elements in 8 bits (q8_0): one byte each, then one half per 32 elements, their scale.
pub fn q8_words(size: usize) -> usize {
    size.div_ceil(4) + size.div_ceil(2 * GROUP)
}

/// The pages of one text.
#[derive(Clone, Copy)]
pub struct TextPages<'a> {
    /// Cache (P, page, 2 KH, D) of a floating-point type, or u32 (P, page, 2 KH, [`q8_words`] of D); the last axis is contiguous.
    pub rows: &'a Tensor,
    /// The text's pages in order, u32 (M), contiguous.
    pub pages: &'a Tensor,
}

/// Writes rows x `(N, 2 KH, D)` to positions `first` to `first + N - 1` of a text, rounded to the cache's storage.
///
/// # Errors
/// `Shape` and `DType` if the operands do not fit together or the pages do not have these positions; `Unsupported` if a gradient is recorded.
pub fn cache_append(x: &Tensor, to: TextPages<'_>, first: usize) -> Result<()> {
    let op = CacheAppend { first };
    op.check([x, to.rows, to.pages])?;
    if tape::records(&[x, to.rows]) {
        return Err(Error::unsupported("cache_append does not have a gradient; call it within `no_grad`"));
    }
    op.apply([x, to.rows, to.pages]).map(drop)
}

/// Returns the rows of a text at `places`, `(N, 2 KH, D)`, in `dtype`, which is the cache's type unless that has 8 bits; heads have `size` elements
/// D.
///
/// # Errors
/// Errors of [`cache_append`].
pub fn cache_gather(from: TextPages<'_>, places: Range<usize>, size: usize, dtype: DType) -> Result<Tensor> {
    let op = CacheGather { first: places.start, count: places.len(), size, dtype };
    op.check([from.rows, from.pages])?;
    if tape::records(&[from.rows]) {
        return Err(Error::unsupported("cache_gather does not have a gradient; call it within `no_grad`"));
    }
    op.apply([from.rows, from.pages])
}

/// Operation of [`cache_append`].
#[derive(Clone)]
pub struct CacheAppend {
    pub(super) first: usize,
}

/// Operation of [`cache_gather`].
#[derive(Clone)]
pub struct CacheGather {
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) size: usize,
    pub(super) dtype: DType,
}

/// Checks a text's pages for `count` rows from `first` on, and returns the heads of a row.
fn checked(
    op: &str,
    [cache, pages]: [&Tensor; 2],
    size: usize,
    (first, count): (usize, usize),
) -> Result<usize> {
    let [_, page, heads, last] = cache.dims4().map_err(|e| e.context(format!("{op}: cache")))?;
    let expected = if cache.dtype() == DType::U32 { q8_words(size) } else { size };
    let order = cache.layout().strides.last() == Some(&1) || last <= 1;
    if last != expected || !order {
        return Err(Error::shape(format!(
            "{op}: the last axis of cache {} {}, expected {expected}, contiguous, for heads of {size}",
            cache.dtype(),
            cache.shape()
        )));
    }
    check::indices(op, "pages", pages)?;
    if pages.shape().rank() != 1 || !pages.is_dense() {
        return Err(Error::shape(format!("{op}: pages {}, expected a contiguous (M)", pages.shape())));
    }
    let room = pages.count().saturating_mul(page);
    let end = first.saturating_add(count);
    if count > 0 && (end > room || u32::try_from(end).is_err()) {
        return Err(Error::shape(format!("{op}: rows {first} to {end} of a text with pages for {room}")));
    }
    Ok(heads)
}

impl CacheAppend {
    fn check(&self, [x, cache, pages]: [&Tensor; 3]) -> Result<[usize; 3]> {
        let op = Self::NAME;
        let [n, heads, size] = x.dims3().map_err(|e| e.context("cache_append: x"))?;
        match cache.dtype() {
            DType::U32 => check::float(op, "x", x)?,
            _ => check::same_float(op, &[("x", x), ("cache", cache)])?,
        }
        let all = checked(op, [cache, pages], size, (self.first, n))?;
        if all != heads {
            return Err(Error::shape(format!(
                "{op}: x {} has {heads} heads, but cache {} has {all}",
                x.shape(),
                cache.shape()
            )));
        }
        Ok([n, heads, size])
    }
}

/// Starts one of the two kernels with its defines and groups, over `rows` rows of `heads` heads.
fn launch(
    entry: &'static str,
    dtype: DType,
    cache: &Tensor,
    [rows, heads, size]: [usize; 3],
) -> Launch<'static> {
    let device = cache.device();
    let value = |name| Tuning::value(device, &KERNEL, 0, name);
    let in_8_bits = cache.dtype() == DType::U32;
    let across = if in_8_bits && entry == "cache_append" { size.div_ceil(GROUP) } else { size };
    let lanes = if in_8_bits { 1 } else { value("VW") };
    let (local, groups) = row_grid(device, value("WG"), lanes, rows * heads, across);
    let launch = KERNEL.launch(entry).define("DTYPE", dtype.code()).define("D", size).define("HEADS", heads);
    let launch = launch.define("PAGE", cache.shape().dims()[1]).define("Q8", in_8_bits);
    launch.local(local).groups3(groups)
}

/// Binds the positions of the cache and of the text's pages, the first row, and the number of rows' heads.
fn places(
    launch: Launch<'static>,
    cache: &Tensor,
    pages: &Tensor,
    first: usize,
    rows: usize,
) -> Launch<'static> {
    let at = cache.layout();
    let launch =
        [at.offset, at.strides[0], at.strides[1], at.strides[2]].into_iter().fold(launch, Launch::scalar);
    launch.scalar(pages.layout().offset as u32).scalar(first as u32).scalar(rows)
}

impl Op<3> for CacheAppend {
    const NAME: &'static str = "cache_append";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("a row holds a key and a value");
    type Saved = ();
    fn forward(&self, [x, cache, pages]: [&Tensor; 3]) -> Result<(Tensor, ())> {
        let [n, heads, size] = self.check([x, cache, pages])?;
        if x.count() > 0 {
            let x = if x.layout().strides[2] == 1 { x.clone() } else { x.contiguous()? };
            let from = x.layout();
            let launch = launch("cache_append", x.dtype(), cache, [n, heads, size]);
            let launch = launch.read_base(&x).write_base(cache).read_base(pages);
            let launch =
                [from.offset, from.strides[0], from.strides[1]].into_iter().fold(launch, Launch::scalar);
            places(launch, cache, pages, self.first, n * heads).run()?;
        }
        Ok((cache.detach(), ()))
    }
    fn backward(&self, _: [&Tensor; 3], (): &(), _: &Tensor) -> Result<[Option<Tensor>; 3]> {
        Ok([const { None }; 3])
    }
    fn reference(&self, [x, cache, pages]: [&Array; 3]) -> Array {
        let [_, page, heads, last] = dims4(cache);
        let mut out = cache.clone();
        for (i, row) in x.rows().enumerate() {
            let (place, h) = (self.first + i / heads, i % heads);
            let at = ((pages.data[place / page] as usize * page + place % page) * heads + h) * last;
            let to = &mut out.data[at..at + last];
            match last == row.len() {
                true => to.copy_from_slice(row),
                false => q8_row_of(row, to),
            }
        }
        out
    }
    fn calls() -> Vec<Call> {
        let doc = "Writes rows x `(N, 2 KH, D)` to positions `first..first + N` of a text and returns the cache. The text's pages, u32 `(M)`, are \
                   in a cache `(P, page, 2 KH, D)`. No gradient.";
        let call =
            Call::new(Self::NAME, doc).inputs(&["x", "cache", "pages"]).required("first", AttributeKind::Int);
        vec![call.results(&["cache"]).run(|a| {
            let [x, rows, pages] = a.inputs()?;
            cache_append(x, TextPages { rows, pages }, a.get("first")?)?;
            Ok(rows.detach())
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("first", self.first.into())]
    }
    fn samples() -> Vec<Sample<Self, 3>> {
        let sample = |[n, heads, size]: [usize; 3], [p, page]: [usize; 2], q8: bool, pages: &[f64], first| {
            let cache = match q8 {
                true => q8_input(&[p, page, heads], size),
                false => SampleInput::normal(&[p, page, heads, size]),
            };
            let pages = SampleInput::values(&[pages.len()], pages, Some(DType::U32));
            Sample::new(Self { first }, [SampleInput::normal(&[n, heads, size]), cache, pages])
                .in_order()
                .exact()
        };
        let mut far = sample([3, 2, 8], [2, 4], false, &[1.0], 0);
        far.inputs[0] = SampleInput::values(&[3, 2, 8], &[3e4, -3e4, 1e-5, 0.0], None);
        vec![
            sample([5, 4, 20], [4, 3], false, &[2.0, 0.0, 3.0], 2),
            sample([3, 2, 64], [3, 4], true, &[1.0, 2.0], 3).named("8 bits").light(),
            sample([2, 2, 37], [2, 4], true, &[1.0], 1).named("8 bits, with a partial group").light(),
            far.extreme().light(),
            sample([0, 2, 8], [2, 4], false, &[1.0], 0).light(),
        ]
    }
}

impl CacheGather {
    fn check(&self, [cache, pages]: [&Tensor; 2]) -> Result<usize> {
        let op = Self::NAME;
        if cache.dtype() != DType::U32 && cache.dtype() != self.dtype || !self.dtype.is_float() {
            return Err(Error::dtype(format!(
                "{op}: rows of a cache of {} as {}",
                cache.dtype(),
                self.dtype
            )));
        }
        checked(op, [cache, pages], self.size, (self.first, self.count))
    }
}

impl Op<2> for CacheGather {
    const NAME: &'static str = "cache_gather";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("a row holds a key and a value");
    type Saved = ();
    fn forward(&self, [cache, pages]: [&Tensor; 2]) -> Result<(Tensor, ())> {
        let heads = self.check([cache, pages])?;
        let y = Tensor::empty(cache.device(), [self.count, heads, self.size], self.dtype)?;
        if y.count() > 0 {
            let launch = launch("cache_gather", self.dtype, cache, [self.count, heads, self.size]);
            let launch = launch.read_base(cache).read_base(pages).write(&y);
            places(launch, cache, pages, self.first, self.count * heads).run()?;
        }
        Ok((y, ()))
    }
    fn backward(&self, _: [&Tensor; 2], (): &(), _: &Tensor) -> Result<[Option<Tensor>; 2]> {
        Ok([const { None }; 2])
    }
    fn reference(&self, [cache, pages]: [&Array; 2]) -> Array {
        let [_, page, heads, last] = dims4(cache);
        let row = |i: usize| -> Vec<f64> {
            let (place, h) = (self.first + i / heads, i % heads);
            let at = ((pages.data[place / page] as usize * page + place % page) * heads + h) * last;
            let row = &cache.data[at..at + last];
            if last == self.size { row.to_vec() } else { q8_row(row, self.size) }
        };
        let data = (0..self.count * heads).flat_map(row).collect();
        Array::new([self.count, heads, self.size], data)
    }
    fn calls() -> Vec<Call> {
        let doc = "Rows `first..first + count` of a text `(count, 2 KH, D)` from its pages in a cache, in `dtype`; heads have `size` elements. No \
                   gradient.";
        let call =
            Call::new(Self::NAME, doc).inputs(&["cache", "pages"]).required("first", AttributeKind::Int);
        let call = call
            .required("count", AttributeKind::Int)
            .required("size", AttributeKind::Int)
            .required("dtype", AttributeKind::DType);
        vec![call.run(|a| {
            let ([rows, pages], first) = (a.inputs()?, a.get::<usize>("first")?);
            let end = first.saturating_add(a.get("count")?);
            cache_gather(TextPages { rows, pages }, first..end, a.get("size")?, a.get("dtype")?)
        })]
    }
    fn attributes(&self) -> Attributes {
        let Self { first, count, size, dtype } = self;
        vec![
            ("first", (*first).into()),
            ("count", (*count).into()),
            ("size", (*size).into()),
            ("dtype", (*dtype).into()),
        ]
    }
    fn samples() -> Vec<Sample<Self, 2>> {
        let sample = |[p, page, heads, size]: [usize; 4], dtype, pages: &[f64], range: Range<usize>| {
            let cache = match dtype {
                None => q8_input(&[p, page, heads], size),
                Some(_) => SampleInput::normal(&[p, page, heads, size]),
            };
            let pages = SampleInput::values(&[pages.len()], pages, Some(DType::U32));
            let dtype = dtype.unwrap_or(DType::F32);
            let op = Self { first: range.start, count: range.len(), size, dtype };
            Sample::new(op, [cache, pages]).in_order().exact().only(dtype)
        };
        let f32 = Some(DType::F32);
        let mut far = sample([2, 4, 2, 8], f32, &[1.0], 0..3);
        far.inputs[0] = SampleInput::values(&[2, 4, 2, 8], &[3e38, -3e38, 1e-38, 0.0], None);
        vec![
            sample([4, 3, 4, 20], f32, &[2.0, 0.0, 3.0], 2..7),
            sample([4, 3, 4, 20], Some(DType::F16), &[2.0, 0.0, 3.0], 2..7).named("f16"),
            sample([4, 3, 4, 20], Some(DType::Bf16), &[2.0, 0.0, 3.0], 2..7).named("bf16"),
            sample([3, 4, 2, 64], None, &[1.0, 2.0], 3..8).named("8 bits"),
            sample([2, 4, 2, 37], None, &[1.0], 0..3).named("8 bits, with a partial group"),
            far.extreme(),
            sample([0, 4, 2, 8], f32, &[], 0..0),
        ]
    }
}

fn dims4(x: &Array) -> [usize; 4] {
    std::array::from_fn(|i| x.shape.dims().get(i).copied().unwrap_or(1))
}

/// Returns 8-bit rows with scales around 0.02, as a sample's input.
pub(super) fn q8_input(before: &[usize], size: usize) -> SampleInput {
    let (bytes, words) = (size.div_ceil(4), q8_words(size));
    let count = before.iter().product::<usize>() * words;
    let word = |i: usize| {
        let drawn = (i as u32 + 1).wrapping_mul(2_654_435_761).rotate_left(11);
        let (at, group) = (i % words, 2 * (i % words).saturating_sub(bytes));
        if at >= bytes {
            let scale = |g: usize| {
                u32::from(half::f16::from_f32(0.01 + (drawn >> (7 * g) & 63) as f32 * 3e-4).to_bits())
            };
            return scale(0) | if GROUP * (group + 1) < size { scale(1) << 16 } else { 0 };
        }
        let there = (size - 4 * at).min(4);
        let mask = if there == 4 { u32::MAX } else { (1 << (8 * there)) - 1 };
        // Never -128, which rounding never gives.
        let byte = |b: usize| ((drawn >> (8 * b) & 0xff) as i32 - 128).max(-127) as u8;
        u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]) & mask
    };
    let values: Vec<f64> = (0..count).map(|i| f64::from(word(i))).collect();
    SampleInput::values(&[before, &[words]].concat(), &values, Some(DType::U32))
}

fn words_of(row: &[f64]) -> Vec<u8> {
    row.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect()
}

/// Returns the elements of an 8-bit row from its words.
pub(super) fn q8_row(row: &[f64], size: usize) -> Vec<f64> {
    let bytes = words_of(row);
    let scales = 4 * size.div_ceil(4);
    let scale =
        |g: usize| half::f16::from_le_bytes([bytes[scales + 2 * g], bytes[scales + 2 * g + 1]]).to_f64();
    (0..size).map(|d| f64::from(bytes[d] as i8) * scale(d / GROUP)).collect()
}

/// Rounds x to the words of an 8-bit row, in f32 like the kernels.
pub(super) fn q8_row_of(x: &[f64], row: &mut [f64]) {
    let mut bytes = words_of(row);
    let scales = 4 * x.len().div_ceil(4);
    bytes[..scales].fill(0);
    for (g, group) in x.chunks(GROUP).enumerate() {
        let most = group.iter().fold(0.0f32, |most, v| most.max(v.abs() as f32));
        let scale = half::f16::from_f32(most / 127.0);
        bytes[scales + 2 * g..][..2].copy_from_slice(&scale.to_le_bytes());
        for (d, v) in group.iter().enumerate() {
            let q = if scale.to_f32() == 0.0 { 0.0 } else { *v as f32 / scale.to_f32() };
            bytes[GROUP * g + d] = q.round_ties_even().clamp(-128.0, 127.0) as i8 as u8;
        }
    }
    for (word, four) in row.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = f64::from(u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the error of a group is at most half a step of its scale, and that a group with a number that is not finite is NaN.
    #[test]
    fn rows_in_8_bits_are_near() {
        let device = crate::suite::test_device().unwrap();
        let (heads, size) = (2, 70);
        let cache =
            Tensor::from_u32(&device, [2, 4, heads, q8_words(size)], &vec![0; 8 * heads * q8_words(size)]);
        let (cache, pages) = (cache.unwrap(), Tensor::from_u32(&device, [1], &[1]).unwrap());
        let mut x: Vec<f32> =
            (0..3 * heads * size).map(|i| (i as f32 * 0.7).sin() * (1 + i % 7) as f32).collect();
        let text = TextPages { rows: &cache, pages: &pages };
        for wrong in [f32::NAN, f32::INFINITY, 1.0] {
            x[40] = wrong;
            let rows = Tensor::from_f32(&device, [3, heads, size], &x, DType::F32).unwrap();
            cache_append(&rows, text, 1).unwrap();
            let back = cache_gather(text, 1..4, size, DType::F32).unwrap().to_vec().unwrap();
            for (row, found) in x.chunks(size).zip(back.chunks(size)) {
                for (group, found) in row.chunks(GROUP).zip(found.chunks(GROUP)) {
                    let most = group.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                    if group.iter().all(|v| v.is_finite()) {
                        let off = group.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(off <= most / 127.0 * 0.51, "{off}, {most}");
                    } else {
                        assert!(found.iter().all(|v| v.is_nan()), "{found:?}");
                    }
                }
            }
        }
    }
}
