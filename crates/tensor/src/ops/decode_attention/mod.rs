//! A decoding step of attention: queries of a few new tokens over a cache of keys and values. The cache's length is in device memory, so a captured
//! step can be replayed for every position. The same launch normalizes the heads, applies rotary positions and writes the cache.

mod samples;

use super::MultiOp;
use super::attention::MAX_SIZE;
use super::counters::zeroed;
use super::paged_cache::q8_words;
use super::prelude::*;
use crate::tape;
use netcl_kernel::{Launch, Variants};

const ROWS: &str = cl_file!("decode_attention_rows.cl");
const Q8_ROW: &str = cl_file!("../include/q8_row.cl");

static VECTOR: Kernel = Kernel::new("decode_attention_vector", cl_file!("decode_attention_vector.cl"))
    .include(&[ROWS, Q8_ROW])
    .tune(&[("VW", &[0])])
    .requires(|device| device.is_cpu());
static SPLIT: Kernel = Kernel::new("decode_attention_split", cl_file!("decode_attention_split.cl"))
    .include(&[cl_file!("../include/tickets.cl"), ROWS, Q8_ROW])
    .tune(&[("WG", &[256, 128])])
    .requires(|device| device.max_group >= 64 && device.local_mem >= 32 << 10);
static VARIANTS: Variants = Variants::new("decode_attention", &[&VECTOR, &SPLIT]);

/// Maximum number of new tokens per text.
pub const MAX_TOKENS: usize = 8;

/// Maximum rows of a work-group (query heads of a key head, over all new tokens). Their sums are in registers.
const MAX_ROWS: usize = 8;

/// Minimum keys of a work-group before keys are divided, if a second launch combines the shares.
const MIN_KEYS: usize = 256;

/// The same minimum if the last group combines the shares: the keys of one hardware group.
const MIN_KEYS_FOR_LAST_GROUP: usize = 32;

/// Maximum number of shares of the keys.
const MAX_SHARES: usize = 64;

/// Counters for groups that combine the shares of others.
const TURNS: usize = 4096;

/// Settings of a decoder's attention that are the same for all steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeOptions {
    /// Query heads (H).
    pub heads: usize,
    /// Key and value heads (KH), which divide H.
    pub kv_heads: usize,
    /// Factor of the scores [default: 1/√D].
    pub scale: Option<f32>,
    /// Maximum number of keys that a query sees, including its own (sliding window, Beltagy et al. 2020).
    pub window: Option<usize>,
    /// Soft cap: a score s becomes `cap * tanh(s / cap)` (Gemma 2).
    pub softcap: Option<f32>,
}

/// Root-mean-square norm of each query head and each key head, applied before rotation.
#[derive(Clone, Copy)]
pub struct HeadNorm<'a> {
    /// Weight (D) of the queries' norm.
    pub query: &'a Tensor,
    /// Weight (D) of the keys' norm.
    pub key: &'a Tensor,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Whether the factor is 1 + weight instead of weight.
    pub unit_offset: bool,
}

/// The cache and the position in it to which the new keys and values are written.
#[derive(Clone, Copy)]
pub struct CacheAt<'a> {
    /// Rows (B, S, 2 KH, D), keys before values; the last axis is contiguous. Rows from the position on are written. With `pages` the shape is (P,
    /// page, 2 KH, D). If they are u32 with a last axis of [`q8_words`] words, keys and values are stored in 8 bits (q8_0).
    pub rows: &'a Tensor,
    /// Number of earlier tokens, u32 (1) or (B). With (1) all texts have the same number.
    pub position: &'a Tensor,
    /// Pages of each text in order, u32 (B, M), so S is M * page. Entries for unused pages may have any value below P.
    pub pages: Option<&'a Tensor>,
}

/// Computes attention of T new tokens, 1 to [`MAX_TOKENS`]: qkv `(B, T, (H + 2 KH) D)`, their projection → `(B, T, H D)`.
///
/// Token t of a text sees the cache rows before its position, and the new tokens up to itself, as stored in the cache. `rotary` has cosines and
/// sines (S or more, R/2) f32 of all positions: queries and keys are rotated as in [`rope`](super::rope::rope()). A token without room in the cache
/// is not stored, and its result is NaN.
///
/// # Errors
/// `Shape` and `DType` if the operands do not fit together; `Unsupported` for heads above 256, for more tokens, and if a gradient is recorded.
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
        paged: cache.pages.is_some(),
    };
    let [cosines, sines] = rotary.unwrap_or([qkv; 2]);
    let [query, key] = norm.map_or([qkv; 2], |norm| [norm.query, norm.key]);
    let inputs =
        [qkv, cache.rows, cache.position, cosines, sines, query, key, cache.pages.unwrap_or(cache.position)];
    op.check(&inputs)?;
    if tape::records(&inputs) {
        return Err(Error::unsupported(
            "decode_attention does not have a gradient; call it within `no_grad`",
        ));
    }
    let [o, _] = op.apply(inputs)?;
    Ok(o)
}

/// Operation of [`decode_attention()`].
#[derive(Clone)]
pub struct DecodeAttention {
    options: DecodeOptions,
    /// Whether inputs 3 and 4 are cosines and sines.
    rotary: bool,
    /// Set if inputs 5 and 6 are weights of a norm: its eps, and whether the factor is 1 + weight.
    norm: Option<(f32, bool)>,
    /// Whether input 7 is a table of pages.
    paged: bool,
}

/// Sizes of a step.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    tokens: usize,
    size: usize,
    /// Maximum number of rows of a text.
    room: usize,
    /// Rows of a page; 0 without pages.
    page: usize,
}

impl DecodeAttention {
    /// Builds the operation for one rotated head.
    #[cfg(test)]
    pub(super) fn of_one_head() -> Self {
        let options = DecodeOptions { heads: 1, kv_heads: 1, scale: None, window: None, softcap: None };
        Self { options, rotary: true, norm: None, paged: false }
    }

    fn sizes(&self, qkv: &Tensor, cache: &Tensor, pages: &Tensor) -> Result<Sizes> {
        let name = "decode_attention";
        let ([batch, tokens, width], [b, mut room, all, last]) = (
            qkv.dims3().map_err(|e| e.context("decode_attention: qkv"))?,
            cache.dims4().map_err(|e| e.context("decode_attention: cache"))?,
        );
        let DecodeOptions { heads, kv_heads, .. } = self.options;
        let all_heads = heads.saturating_add(2 * kv_heads);
        let size = width.checked_div(all_heads).unwrap_or(0);
        let (wanted, what) = match cache.dtype() {
            DType::U32 => (q8_words(size), "the words of D elements in 8 bits"),
            _ => (size, "D"),
        };
        let fits = kv_heads > 0 && heads.is_multiple_of(kv_heads) && all == 2 * kv_heads;
        if !fits
            || all_heads.checked_mul(size) != Some(width)
            || last != wanted
            || (!self.paged && b != batch)
        {
            let first = if self.paged { "P,page" } else { "B,S" };
            return Err(Error::shape(format!(
                "{name}: qkv {} and cache {} with {heads} query and {kv_heads} key heads: expected (B,T,({heads}+2*{kv_heads})*D) \
                 and ({first},2*{kv_heads},{what}), query heads a multiple of key heads",
                qkv.shape(),
                cache.shape()
            )));
        }
        let page = if self.paged { room } else { 0 };
        if self.paged {
            let [lines, most] = pages.dims2().map_err(|e| e.context("decode_attention: pages"))?;
            check::indices(name, "pages", pages)?;
            if lines != batch || page == 0 {
                return Err(Error::shape(format!(
                    "{name}: pages {} of {page} rows, expected ({batch}, M) for qkv {}, with at least one row per page",
                    pages.shape(),
                    qkv.shape()
                )));
            }
            room = most.saturating_mul(page);
        }
        if size > MAX_SIZE || tokens > MAX_TOKENS {
            return Err(Error::unsupported(format!(
                "{name}: {tokens} new tokens and head size {size}, expected at most {MAX_TOKENS} and {MAX_SIZE}"
            )));
        }
        Ok(Sizes { batch, tokens, size, room, page })
    }

    fn check(&self, [qkv, cache, position, cosines, sines, query, key, pages]: &[&Tensor; 8]) -> Result<()> {
        let name = "decode_attention";
        match cache.dtype() {
            DType::U32 => check::float(name, "qkv", qkv)?,
            _ => check::same_float(name, &[("qkv", qkv), ("cache", cache)])?,
        }
        let Sizes { batch, size, room, .. } = self.sizes(qkv, cache, pages)?;
        if cache.layout().strides.last() != Some(&1) && size > 1 {
            return Err(Error::shape(format!(
                "{name}: the last axis of cache {} is not contiguous",
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

    /// Adds the defines of all functions in both kernels.
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
        let launch = if s.page > 0 { launch.define("PAGE", s.page) } else { launch };
        if softcap.is_some() { launch.define("SOFTCAP", 1) } else { launch }
    }
}

impl DecodeAttention {
    /// Binds the tables of angles, head norms and pages.
    fn tables(
        &self,
        mut launch: Launch<'static>,
        [_, _, _, cosines, sines, query, key, pages]: [&Tensor; 8],
    ) -> Result<Launch<'static>> {
        if self.rotary {
            launch = launch.define("HALF", cosines.shape().last());
            launch = launch.read(&cosines.contiguous()?).read(&sines.contiguous()?);
        }
        if let Some((eps, unit)) = self.norm {
            launch = launch.define("QK_NORM", 1).define("UNIT", unit);
            launch = launch.read(&query.contiguous()?).read(&key.contiguous()?).scalar(eps);
        }
        if self.paged {
            let pages = if pages.layout().strides[1] == 1 { pages.clone() } else { pages.contiguous()? };
            let at = pages.layout();
            launch = launch.read_base(&pages).scalar(at.offset as u32).scalar(at.strides[0] as u32);
        }
        Ok(launch)
    }
}

impl MultiOp<8, 2> for DecodeAttention {
    const NAME: &'static str = "decode_attention";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("qkv holds a query, a key and a value at least");
    type Saved = ();
    fn forward(&self, inputs: [&Tensor; 8]) -> Result<([Tensor; 2], ())> {
        self.check(&inputs)?;
        let [qkv, cache, position, .., pages] = inputs;
        let s = self.sizes(qkv, cache, pages)?;
        let in_8_bits = cache.dtype() == DType::U32;
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
        let pairs = s.batch * kv_heads;
        let mut group = Group::of(kernel, device, s, heads / kv_heads, in_8_bits);
        group.fill(device, pairs, s.room);
        let splits = group.splits(device, pairs, s.room);
        let last = splits > 1 && joins_itself(device) && pairs * group.chunks <= TURNS;
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
        let fours = s.size.is_multiple_of(4) && starts.iter().all(|n| n.is_multiple_of(4));
        let launch = group.define(launch, fours || in_8_bits);
        let launch = if in_8_bits { launch.define("Q8", 1) } else { launch };
        let launch = if last { launch.define("LAST", 1) } else { launch };
        let launch = launch.groups3([splits * group.chunks, kv_heads, s.batch]);
        let launch = launch.read_base(&qkv).write_base(cache).read_base(position).write(&o).write(&part);
        let launch = at(starts.into_iter().fold(launch, Launch::scalar));
        let mut launch = launch.scalar(scale.unwrap_or_else(|| 1.0 / (s.size as f32).sqrt()));
        launch = softcap.into_iter().fold(launch, Launch::scalar);
        launch = self.tables(launch, inputs)?;
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
    fn backward(&self, _: [&Tensor; 8], (): &(), _: [Option<&Tensor>; 2]) -> Result<[Option<Tensor>; 8]> {
        Ok([const { None }; 8])
    }
    fn reference(&self, inputs: [&Array; 8]) -> [Array; 2] {
        samples::reference(self, inputs)
    }
    fn calls() -> Vec<Call> {
        let doc = "A decoding step. Takes qkv `(B, T, (H + 2 KH) D)`, the projection of T new tokens, 1 to 8, and a cache of keys and values `(B, \
                   S, 2 KH, D)`. Returns `(B, T, H D)`. The new rows are written to the cache from `position` on, u32 `(1)` or `(B)`. With \
                   `cosines` and `sines` queries and keys are rotated. With `query` and `key` `(D)` their heads are normalized before that. With \
                   `pages`, u32 `(B, M)`, the cache is `(P, page, 2 KH, D)`. No gradient.";
        let call = Call::new(Self::NAME, doc).inputs(&["qkv", "cache", "position"]);
        let call = call.optional_inputs(&["cosines", "sines", "query", "key", "pages"]);
        let call = call
            .required("heads", AttributeKind::Int)
            .optional("kv_heads", AttributeKind::Int)
            .optional("scale", AttributeKind::Float);
        let call = call.optional("window", AttributeKind::Int).optional("softcap", AttributeKind::Float);
        vec![call.default("eps", 1e-6).default("unit_offset", false).run(|a| {
            let ([qkv, rows, position], heads) = (a.inputs()?, a.get("heads")?);
            let kv_heads = a.find("kv_heads")?.unwrap_or(heads);
            let (scale, window, softcap) = (a.find("scale")?, a.find("window")?, a.find("softcap")?);
            let options = DecodeOptions { heads, kv_heads, scale, window, softcap };
            let rotary = a.optional("cosines").zip(a.optional("sines")).map(<[&Tensor; 2]>::from);
            let (eps, unit_offset) = (a.get("eps")?, a.get("unit_offset")?);
            let norm = a.optional("query").zip(a.optional("key"));
            let norm = norm.map(|(query, key)| HeadNorm { query, key, eps, unit_offset });
            decode_attention(
                qkv,
                CacheAt { rows, position, pages: a.optional("pages") },
                rotary,
                norm,
                options,
            )
        })]
    }
    fn attributes(&self) -> Attributes {
        let DecodeOptions { heads, kv_heads, scale, window, softcap } = self.options;
        let (eps, unit_offset) = self.norm.unwrap_or((1e-6, false));
        vec![
            ("heads", heads.into()),
            ("kv_heads", kv_heads.into()),
            ("scale", scale.into()),
            ("window", window.into()),
            ("softcap", softcap.into()),
            ("eps", eps.into()),
            ("unit_offset", unit_offset.into()),
        ]
    }
    fn given<'a>(&self, inputs: [&'a Tensor; 8]) -> Vec<Option<&'a Tensor>> {
        let (rotary, norm) = (self.rotary, self.norm.is_some());
        let used = [true, true, true, rotary, rotary, norm, norm, self.paged];
        inputs.into_iter().zip(used).map(|(input, used)| used.then_some(input)).collect()
    }
    fn samples() -> Vec<Sample<Self, 8>> {
        samples::all()
    }
}

/// Division of the rows of a key head between work-groups.
struct Group {
    /// Items of a group; 1 if a group has a single item.
    items: usize,
    /// Rows of a group.
    rows: usize,
    /// Number of groups for all rows.
    chunks: usize,
    /// All rows.
    all: usize,
}

impl Group {
    fn of(kernel: &'static Kernel, device: &Device, s: Sizes, heads: usize, in_8_bits: bool) -> Self {
        let items = if kernel.name == SPLIT.name {
            Tuning::value(device, kernel, 0, "WG").min(largest_group(device))
        } else {
            1
        };
        let all = s.tokens * heads;
        let room = usize::try_from(device.capabilities().local_mem).unwrap_or(usize::MAX);
        // Local memory: queries and new keys, a probability for each item and row, and two numbers for each item.
        let fresh = if in_8_bits { 2 * s.tokens } else { s.tokens };
        let bytes = |rows: usize| 4 * ((rows + fresh) * s.size.next_multiple_of(4) + (rows + 8) * items);
        let mut rows = all.min(MAX_ROWS);
        while items > 1 && rows > 1 && bytes(rows) > room {
            rows = rows.div_ceil(2);
        }
        Self { items, rows, chunks: all.div_ceil(rows), all }
    }
    /// Reduces the rows per group if shares of the keys alone leave units of a GPU idle. The groups then read keys from the GPU's caches.
    fn fill(&mut self, device: &Device, pairs: usize, room: usize) {
        let (units, shares) = (units(device), (room / least_keys(device)).clamp(1, MAX_SHARES));
        while self.items > 1 && self.rows > 1 && pairs * self.chunks * shares * 2 <= units {
            self.rows = self.rows.div_ceil(2);
            self.chunks = self.all.div_ceil(self.rows);
        }
    }
    /// Returns the number of shares of the keys: on GPUs enough to keep every unit busy. On CPUs the number does not depend on the cores, so that
    /// results do not.
    fn splits(&self, device: &Device, pairs: usize, room: usize) -> usize {
        let wanted = if self.items == 1 { 8 } else { units(device) };
        (wanted / (pairs * self.chunks)).min(room / least_keys(device)).clamp(1, MAX_SHARES)
    }
    fn define(&self, launch: Launch<'static>, fours: bool) -> Launch<'static> {
        if self.items == 1 {
            return launch;
        }
        launch.define("WG", self.items).define("VEC", if fours { 4 } else { 1 }).local([self.items, 1, 1])
    }
}

/// Returns whether the last group of a launch can read what other groups wrote.
fn joins_itself(device: &Device) -> bool {
    device.capabilities().sm() >= Some(70)
}

fn least_keys(device: &Device) -> usize {
    if joins_itself(device) { MIN_KEYS_FOR_LAST_GROUP } else { MIN_KEYS }
}

fn units(device: &Device) -> usize {
    device.capabilities().compute_units.max(1) as usize
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
            SampleInput::normal(shape).draw(seed, DType::F32).data.iter().map(|v| *v as f32).collect();
        Tensor::from_f32(device, shape, &data, DType::F32).unwrap()
    }

    /// Tests that a cache may be a view of a larger tensor, whose other elements stay unchanged.
    #[test]
    fn rows_are_written_into_a_view_of_a_cache() {
        let device = test_device().unwrap();
        let (whole, qkv) = (draw(&device, &[3, 12, 2, 8], 1), draw(&device, &[2, 1, 32], 2));
        let before = whole.to_vec().unwrap();
        let rows = whole.slice(0, 1..3).unwrap().slice(1, 2..11).unwrap();
        let dense = crate::ops::copied(&rows).unwrap();
        let position = Tensor::from_u32(&device, [2], &[4, 8]).unwrap();
        let step = |rows: &Tensor| {
            decode_attention(&qkv, CacheAt { rows, position: &position, pages: None }, None, None, OPTIONS)
                .unwrap()
        };
        assert_eq!(step(&rows).to_vec().unwrap(), step(&dense).to_vec().unwrap());
        assert_eq!(rows.to_vec().unwrap(), dense.to_vec().unwrap());
        let after = whole.to_vec().unwrap();
        let changed: Vec<usize> =
            (0..after.len() / 16).filter(|i| after[i * 16..][..16] != before[i * 16..][..16]).collect();
        assert_eq!(changed, [12 + 2 + 4, 2 * 12 + 2 + 8]);
    }

    /// Tests three new tokens with room for two, then with no room.
    #[test]
    fn tokens_without_room_are_not_kept_and_their_result_is_nan() {
        let device = test_device().unwrap();
        let (rows, qkv) = (draw(&device, &[1, 6, 2, 8], 3), draw(&device, &[1, 3, 32], 4));
        for (at, fit) in [(4u32, 2), (6, 0), (u32::MAX, 0)] {
            let position = Tensor::from_u32(&device, [1], &[at]).unwrap();
            let before = rows.to_vec().unwrap();
            let o = decode_attention(
                &qkv,
                CacheAt { rows: &rows, position: &position, pages: None },
                None,
                None,
                OPTIONS,
            )
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
        let step = || {
            decode_attention(
                &qkv,
                CacheAt { rows: &rows, position: &position, pages: None },
                None,
                None,
                OPTIONS,
            )
        };
        assert!(step().unwrap_err().message().contains("decode_attention does not have a gradient"));
        assert!(no_grad(step).is_ok());
    }
}
