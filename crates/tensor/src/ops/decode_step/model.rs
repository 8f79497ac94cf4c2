//! A decoder's tensors and settings, and the kernel's defines and tables for it.

use super::kernel::{ITEMS, WeightPath};
use crate::ops::gated::Gate;
use crate::ops::join::cat;
use crate::ops::prelude::*;
use crate::quant::{Blocks, FORMAT_LIST, list_of};
use netcl_kernel::Value;
use netcl_kernel::tune::{self, Constant};
use netcl_kernel::vendors::nvidia::address;

/// Maps of a layer, and maximum parts of a map, as in the kernel.
const STAGES: usize = 4;
const PARTS: usize = 3;
/// Maximum number of shares of a context.
const SPLITS: usize = 4;
/// Local memory of a group on sm_90, in bytes (CUDA C Programming Guide, compute capability 9.0).
const LOCAL: usize = 227 << 10;
/// Maximum number of slots in the ring.
const MAX_SLOTS: usize = 16;
/// The window of a layer without a window.
const ALL_KEYS: u64 = i32::MAX as u64;

/// Sizes of the ring and of the context's shares.
static SIZES: tune::Model = tune::Model {
    name: "decode_step_sm90",
    constants: &[
        Constant::new("split_bytes", "minimum bytes of keys and values per share of the context", 65_536.0),
        Constant::new("slot_bytes", "minimum bytes of a slot of the ring", 11_264.0),
        Constant::new("in_flight_bytes", "bytes of weights that a group has in flight", 49_152.0),
    ],
};

/// Rows of a matrix (N, K).
#[derive(Clone)]
pub enum WeightRows<'a> {
    /// Contiguous rows in the type of the activations. K elements are a multiple of 16 bytes.
    Dense(Tensor),
    /// Quantized rows.
    Blocks(&'a Blocks),
}

/// A linear map: the concatenated rows of one or several matrices, and its bias (N).
#[derive(Clone)]
pub struct Map<'a> {
    /// Its matrices.
    pub rows: Vec<WeightRows<'a>>,
    /// The bias.
    pub bias: Option<&'a Tensor>,
}

/// A norm's factors and, for a layer norm, its shift.
pub type NormWeights<'a> = (&'a Tensor, Option<&'a Tensor>);

/// A layer's tensors and settings.
pub struct DecodeLayer<'a> {
    /// Norms (DIM) before attention and before the feed-forward map.
    pub norms: Option<[NormWeights<'a>; 2]>,
    /// Norms (DIM) of their results, before they are added to the residual stream.
    pub post_norms: Option<[NormWeights<'a>; 2]>,
    /// Queries, keys and values, ((H + 2 KH) D, DIM).
    pub qkv: Map<'a>,
    /// Factors of the norms of queries and of keys: (D) each, or (H D) and (KH D) with [`Model::heads_normed_together`].
    pub head_norms: Option<[&'a Tensor; 2]>,
    /// Output map (DIM, H D).
    pub out: Map<'a>,
    /// Gate and value, (2 HIDDEN, DIM), or (HIDDEN, DIM) without a gate.
    pub up: Map<'a>,
    /// Down map (DIM, HIDDEN).
    pub down: Map<'a>,
    /// Cache (B, S, 2 KH, D), keys before values, or with [pages](Model::pages) (P, page, 2 KH, D).
    pub cache: &'a Tensor,
    /// Factor of the scores.
    pub scale: f32,
    /// Number of keys that a query attends to, including its own; `None`: all.
    pub window: Option<usize>,
    /// Index of the set in [`Model::angles`] that rotates queries and keys; `None`: no rotation.
    pub rotary: Option<usize>,
}

/// Embedding of token numbers, which gives the input of the first layer.
#[derive(Clone, Copy)]
pub struct TokenEmbedding<'a> {
    /// Table (V, DIM), in the type of the activations.
    pub table: &'a Tensor,
    /// Factor of the table's rows.
    pub scale: f32,
    /// Position embeddings that are added: (S or more, DIM).
    pub places: Option<&'a Tensor>,
}

/// A decoder's tensors and settings.
pub struct Model<'a> {
    /// Number of texts B in a step, at most [`MAX_TEXTS`](super::MAX_TEXTS).
    pub texts: usize,
    /// Token embedding; `None`: a step gets the vectors.
    pub embedding: Option<TokenEmbedding<'a>>,
    /// All layers.
    pub layers: Vec<DecodeLayer<'a>>,
    /// Pages of the texts in the caches, u32 (B, M); `None`: a cache has a part for each text.
    pub pages: Option<&'a Tensor>,
    /// The last norm (DIM).
    pub last_norm: NormWeights<'a>,
    /// Output head (V, DIM).
    pub head: WeightRows<'a>,
    /// Sets of cosines and sines (S or more, R/2) f32.
    pub angles: Vec<[&'a Tensor; 2]>,
    /// Query heads, and key heads; the latter divide the former.
    pub heads: [usize; 2],
    /// Width of the feed-forward map.
    pub hidden: usize,
    /// The feed-forward map's activation; `None`: tanh.
    pub activation: Option<Gate>,
    /// Whether the activation multiplies another row (a gated map).
    pub gated: bool,
    /// Whether attention and feed-forward map have the same input, to which both results are added.
    pub parallel: bool,
    /// Whether the norms of queries and keys span all heads together instead of each head.
    pub heads_normed_together: bool,
    /// Soft cap of scores: a score s becomes `cap * tanh(s / cap)`.
    pub score_cap: Option<f32>,
    /// Factor of additions to the residual stream.
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logits_scale: f32,
    /// Soft cap of logits: a logit s, times its factor, becomes `cap * tanh(s / cap)`.
    pub logits_cap: Option<f32>,
    /// Added to the variance in norms.
    pub eps: f32,
    /// Whether a norm's factor is 1 + weight.
    pub unit_offset: bool,
}

/// Sizes that the kernel is compiled for.
#[derive(Clone, Copy)]
pub(super) struct DecodeStepSizes {
    pub(super) layers: usize,
    pub(super) width: usize,
    heads: usize,
    pub(super) kv_heads: usize,
    /// Size of a head.
    size: usize,
    hidden: usize,
    pub(super) vocab: usize,
    pub(super) texts: usize,
    /// Positions that have a row in the caches.
    pub(super) room: usize,
    /// Positions per page; 0: no pages.
    pub(super) page: usize,
    /// Rotated pairs of a head.
    half: usize,
    pub(super) groups: usize,
    splits: usize,
    /// Bytes of an activation.
    item: usize,
}

impl DecodeStepSizes {
    fn queries(&self) -> usize {
        self.heads * self.size
    }
    fn keys(&self) -> usize {
        self.kv_heads * self.size
    }
    fn qkv(&self) -> usize {
        self.queries() + 2 * self.keys()
    }
    /// Returns the length of the longest row of a map.
    fn widest(&self) -> usize {
        self.width.max(self.queries()).max(self.hidden)
    }
    /// Returns the 32-bit words of the exchange. Each text has a multiple of four numbers.
    pub(super) fn words(&self) -> usize {
        let values =
            2 * self.width + self.qkv() + self.hidden + self.splits * (self.queries() + 2 * self.heads);
        self.texts * values.next_multiple_of(4) * if self.item == 4 { 2 } else { 1 }
    }
}

/// The ring: slots, bytes per slot, and bytes that may be in flight.
pub(super) struct Ring {
    pub(super) slots: usize,
    bytes: usize,
    in_flight: usize,
}

impl WeightRows<'_> {
    pub(super) fn dims(&self) -> Result<[usize; 2]> {
        match self {
            Self::Dense(tensor) => tensor.dims2(),
            Self::Blocks(blocks) => Ok(blocks.dims()),
        }
    }
    fn row_bytes(&self) -> Result<usize> {
        match self {
            Self::Dense(tensor) => Ok(tensor.dims2()?[1] * tensor.dtype().size()),
            Self::Blocks(blocks) => Ok(blocks.row_bytes()),
        }
    }
    fn format(&self) -> u32 {
        match self {
            Self::Dense(_) => DENSE_ROWS,
            Self::Blocks(blocks) => blocks.format().number,
        }
    }
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Dense(tensor) => tensor,
            Self::Blocks(blocks) => blocks.words(),
        }
    }
    fn supports(&self, dtype: DType) -> Result<(), &'static str> {
        match self {
            Self::Dense(tensor) if tensor.dtype() != dtype => Err("dense weights of a different type"),
            Self::Dense(tensor) if !in_order(tensor) => Err("dense weights that are not contiguous"),
            Self::Dense(_) if !self.row_bytes().is_ok_and(|bytes| bytes.is_multiple_of(16)) => {
                Err("dense rows of a length that is not a multiple of 16 bytes")
            }
            Self::Blocks(blocks) if !blocks.in_planes() => Err("quantized weights that are not in planes"),
            _ => Ok(()),
        }
    }
}

/// Returns whether a tensor is contiguous and starts at a multiple of 16 bytes.
fn in_order(x: &Tensor) -> bool {
    x.is_contiguous() && (x.layout().offset * x.dtype().size()).is_multiple_of(16)
}

fn address_of(x: &Tensor) -> Result<u64> {
    Ok(address(x.storage())? + (x.layout().offset * x.dtype().size()) as u64)
}

/// Format number of dense rows, which no block format has: DENSE_ROWS in planes_dot.cl.
const DENSE_ROWS: u32 = 0;

/// Returns the table's entry for a part: rows | bytes of a row << 24 | format << 56.
fn part(rows: usize, bytes: usize, format: u32) -> u64 {
    rows as u64 | (bytes as u64) << 24 | u64::from(format) << 56
}

impl TokenEmbedding<'_> {
    fn fits(&self, dtype: DType, s: &DecodeStepSizes) -> bool {
        let lies = |x: &Tensor| x.dtype() == dtype && in_order(x);
        let places =
            self.places.is_none_or(|x| lies(x) && x.dims2().is_ok_and(|[n, c]| n >= s.room && c == s.width));
        places && lies(self.table) && self.table.dims() == [s.vocab, s.width]
    }
}

impl<'a> DecodeLayer<'a> {
    /// Returns the maps in the order of the kernel's stages.
    fn stages(&self) -> [&Map<'a>; STAGES] {
        [&self.qkv, &self.out, &self.up, &self.down]
    }
    /// Returns the set of maps with biases, as bits.
    fn biases(&self) -> usize {
        let bits = self.stages().into_iter().enumerate();
        bits.fold(0, |set, (stage, map)| set | usize::from(map.bias.is_some()) << stage)
    }
    /// Returns the layer's norms, those before the parts first.
    fn all_norms(&self) -> impl Iterator<Item = NormWeights<'a>> {
        self.norms.into_iter().chain(self.post_norms).flatten()
    }
}

impl<'a> Model<'a> {
    pub(super) fn dtype(&self) -> DType {
        self.last_norm.0.dtype()
    }
    pub(super) fn device(&self) -> &Device {
        self.last_norm.0.device()
    }

    pub(super) fn sizes(&self, text: WeightPath) -> Result<DecodeStepSizes> {
        let [vocab, width] = self.head.dims()?;
        let [heads, kv_heads] = self.heads;
        let first = self.layers.first().ok_or_else(|| Error::shape("decode_step: a model without layers"))?;
        let [_, rows, _, size] = first.cache.dims4()?;
        let (room, page) = match self.pages {
            Some(pages) => {
                let own = pages.count() / self.texts.max(1);
                (self.places().min(own.saturating_mul(rows)), rows)
            }
            None => (rows, 0),
        };
        let rotated = self.layers.iter().any(|layer| layer.rotary.is_some());
        let half = match self.angles.first().filter(|_| rotated) {
            Some([cosines, _]) => cosines.dims2()?[1],
            None => 0,
        };
        let (layers, hidden, item) = (self.layers.len(), self.hidden, self.dtype().size());
        let mut s = DecodeStepSizes {
            layers,
            width,
            heads,
            kv_heads,
            size,
            hidden,
            vocab,
            texts: self.texts,
            room,
            page,
            half,
            groups: 1,
            splits: 1,
            item,
        };
        let rows = [s.qkv(), s.width, s.hidden].into_iter().min().unwrap_or(1);
        s.groups = text.groups(self.device().capabilities()).clamp(1, rows.max(1));
        s.splits = (s.groups / heads.max(1)).clamp(1, SPLITS);
        Ok(s)
    }

    /// Returns the number of position embeddings, 0 without a table.
    fn places(&self) -> usize {
        let places = self.embedding.and_then(|embedding| embedding.places);
        places.and_then(|places| places.dims().first().copied()).unwrap_or(usize::MAX)
    }

    pub(super) fn maps(&self) -> impl Iterator<Item = &WeightRows<'a>> {
        let layers =
            self.layers.iter().flat_map(|layer| layer.stages().into_iter().flat_map(|map| &map.rows));
        layers.chain([&self.head])
    }

    /// Returns the kernel's list of the formats in use.
    fn formats(&self) -> Value {
        list_of(|number| self.maps().any(|map| map.format() == number))
    }

    fn is_quantised(&self) -> bool {
        self.maps().any(|map| map.format() != DENSE_ROWS)
    }

    /// Returns whether any rows are dense.
    fn has_dense(&self) -> bool {
        self.maps().any(|map| map.format() == DENSE_ROWS)
    }

    /// Returns the relative rounding error of a value in the first layer. It includes the rounding of activations to bytes if weights are
    /// quantized, and of values that are stored and exchanged.
    pub(super) fn rounding(&self) -> f64 {
        let stored = match self.dtype() {
            DType::F16 => 5e-4,
            DType::Bf16 => 4e-3,
            _ => 1e-5,
        };
        if self.is_quantised() { f64::max(stored, 8e-3) } else { stored }
    }

    /// Checks whether the kernel supports the model on this device; the error is the reason.
    pub(super) fn supports(&self, text: WeightPath, s: &DecodeStepSizes) -> Result<(), &'static str> {
        let (device, dtype) = (self.device(), self.dtype());
        let caches = self.layers.iter().all(|layer| {
            let [count, rows, kv, size] = layer.cache.dims4().unwrap_or_default();
            let lies = if s.page > 0 { rows == s.page } else { [count, rows] == [s.texts, s.room] };
            lies && [kv, size] == [2 * s.kv_heads, s.size]
                && layer.cache.dtype() == dtype
                && in_order(layer.cache)
        });
        match () {
            () if !text.runs_on(device, s.texts) => Err("a device that does not run the kernel"),
            () if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) => {
                Err("a model of a type other than f32, f16 and bf16")
            }
            () if !s.size.is_multiple_of(8) || !(8..=256).contains(&s.size) => {
                Err("a head size that is not a multiple of 8 up to 256")
            }
            () if 2 * s.half > s.size => Err("more rotated elements than a head has"),
            () if s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) => {
                Err("query heads that are not a multiple of the key heads")
            }
            () if [s.width, s.hidden].iter().any(|n| *n == 0 || !n.is_multiple_of(4)) => {
                Err("widths that are not multiples of 4")
            }
            () if [s.qkv(), s.width, 2 * s.hidden, s.vocab].iter().any(|n| *n >= 1 << 24) => {
                Err("maps of more than 16 million rows")
            }
            () if !self.embedding.is_none_or(|embedding| embedding.fits(dtype, s)) => {
                Err("embeddings of a different type, or that are not contiguous")
            }
            () if !caches => Err("caches of a wrong shape or type, or that are not contiguous"),
            () if !self.pages.is_none_or(|pages| pages.dtype() == DType::U32 && in_order(pages)) => {
                Err("page tables that are not contiguous u32")
            }
            () => self.is_uniform().and_then(|()| self.maps().try_for_each(|map| map.supports(dtype))),
        }
    }

    /// Checks that one compiled kernel fits all layers: only settings in the table may differ. The error is the reason.
    fn is_uniform(&self) -> Result<(), &'static str> {
        let Some(first) = self.layers.first() else { return Err("a model without layers") };
        let same = |layer: &DecodeLayer<'_>| {
            let kind = |l: &DecodeLayer<'_>| {
                (l.biases(), l.head_norms.is_some(), l.norms.is_some(), l.post_norms.is_some())
            };
            kind(layer) == kind(first)
        };
        let layered = self.last_norm.1.is_some();
        let norms = || self.layers.iter().flat_map(DecodeLayer::all_norms);
        let angles = |[cosines, sines]: &[&Tensor; 2]| {
            self.angles[0][0].dims() == cosines.dims() && cosines.dims() == sines.dims()
        };
        match () {
            () if !self.layers.iter().all(same) => Err("biases or norms that only some layers have"),
            () if first.norms.is_none() && first.post_norms.is_none() => Err("layers without norms"),
            () if norms().any(|(_, shift)| shift.is_some() != layered) => Err("norms of different kinds"),
            () if layered && first.head_norms.is_some() => Err("layer norms together with head norms"),
            () if self.parallel && (first.norms.is_none() || first.post_norms.is_some()) => {
                Err("parallel parts without norms before them, or with norms after them")
            }
            () if !self.angles.iter().all(angles) => Err("sets of rotary angles of different sizes"),
            () if self.layers.iter().any(|l| l.rotary.is_some_and(|set| set >= self.angles.len())) => {
                Err("a layer whose set of rotary angles does not exist")
            }
            () if self.layers.iter().any(|layer| {
                layer.qkv.rows.len() > PARTS
                    || layer.up.rows.len() > 1 + usize::from(self.gated)
                    || layer.out.rows.len() != 1
                    || layer.down.rows.len() != 1
            }) =>
            {
                Err("maps of too many parts")
            }
            () => Ok(()),
        }
    }

    /// Returns whether the kernel computes separate norms, instead of applying them as factors of a map's results.
    fn is_normed(&self) -> bool {
        self.last_norm.1.is_some()
            || self.parallel
            || self.layers.iter().any(|layer| layer.post_norms.is_some())
    }

    /// Returns whether layers differ in windows, rotation or factors of scores, or have values other than the defaults.
    fn is_varied(&self, s: &DecodeStepSizes) -> bool {
        let plain = |layer: &DecodeLayer<'_>| {
            let rotated = if s.half > 0 { layer.rotary == Some(0) } else { true };
            let scale =
                self.layers.first().is_some_and(|first| first.scale.to_bits() == layer.scale.to_bits());
            rotated && scale && layer.window.is_none_or(|window| window >= s.room)
        };
        !self.layers.iter().all(plain)
    }

    /// Returns the ring that fits in local memory next to the other arrays.
    pub(super) fn ring(&self, s: &DecodeStepSizes) -> Result<Ring> {
        let widest = s.widest().next_multiple_of(32);
        // Bytes per text.
        let codes = if self.is_quantised() { widest + widest / 4 } else { 0 };
        let floats = if self.has_dense() { 4 * widest } else { 0 };
        let sums = 4 * (s.vocab.max(2 * s.hidden).max(s.qkv()) / s.groups + s.width / s.groups);
        let tables = 8 * s.layers * (STAGES * PARTS + 3);
        let scratch = 4 * (6 + ITEMS / 32) * s.size;
        let normed = if self.is_normed() { 8 * s.width } else { 0 };
        let spare = 2 << 10; // numbers of each warp, barriers, alignment
        let used = s.texts * (codes + floats + sums + normed + spare) + tables + scratch;
        let longest =
            self.maps().map(WeightRows::row_bytes).try_fold(0, |most, row| row.map(|row| most.max(row)))?;
        let [_, slot, in_flight] = SIZES.on(self.device()).map(|bytes| bytes as usize);
        let bytes = longest.max(slot).next_multiple_of(128);
        let slots = (LOCAL.saturating_sub(used) / bytes).min(MAX_SLOTS);
        Ok(Ring { slots, bytes, in_flight: (in_flight / bytes).clamp(3, slots.max(3)) })
    }

    /// Returns the factor of a layer's scores in the kernel's units: of log 2, or of the cap.
    fn score_scale(&self, layer: &DecodeLayer<'_>) -> f32 {
        layer.scale * self.score_cap.map_or(std::f32::consts::LOG2_E, |cap| 1.0 / cap)
    }

    /// Returns the kernel's scalars. These are epsilon, the factor of scores if all layers have the same, and their cap, in units of log 2. The
    /// factors of the residual stream and of logits, the logits' cap, and the factor of embeddings follow.
    pub(super) fn scalars(&self) -> [f32; 7] {
        let scale = self.layers.first().map_or(1.0, |layer| self.score_scale(layer));
        let cap = self.score_cap.unwrap_or(1.0) * std::f32::consts::LOG2_E;
        let embedding = self.embedding.map_or(1.0, |embedding| embedding.scale);
        let logits = [self.logits_scale, self.logits_cap.unwrap_or(1.0)];
        [self.eps, scale, cap, self.residual_scale, logits[0], logits[1], embedding]
    }

    /// Returns the rows of a set of angles.
    pub(super) fn angle_rows(&self) -> Result<usize> {
        self.angles.first().map_or(Ok(0), |[cosines, _]| Ok(cosines.dims2()?[0]))
    }

    /// Returns the table: the addresses of caches and parts in the kernel's order.
    fn table(&self, s: &DecodeStepSizes) -> Result<Vec<u64>> {
        let mut out = Vec::new();
        for layer in &self.layers {
            let set = layer.rotary.map_or(0, |set| set as u64 + 1);
            let window = layer.window.map_or(ALL_KEYS, |window| (window as u64).min(ALL_KEYS));
            out.extend([
                address_of(layer.cache)?,
                window,
                u64::from(self.score_scale(layer).to_bits()) | set << 32,
            ]);
        }
        let put = |out: &mut Vec<u64>, parts: &[(&WeightRows<'_>, usize, usize)]| -> Result<()> {
            for i in 0..PARTS {
                match parts.get(i) {
                    None => out.extend([0, 0]),
                    Some((map, first, rows)) => {
                        let bytes = map.row_bytes()?;
                        let start = address_of(map.tensor())? + (first * bytes) as u64;
                        out.extend([start, part(*rows, bytes, map.format())]);
                    }
                }
            }
            Ok(())
        };
        for layer in &self.layers {
            for (stage, map) in layer.stages().into_iter().enumerate() {
                let parts = match map.rows.as_slice() {
                    [both] if stage == 2 && self.gated => {
                        vec![(both, 0, s.hidden), (both, s.hidden, s.hidden)]
                    }
                    rows => rows.iter().map(|rows| Ok((rows, 0, rows.dims()?[0]))).collect::<Result<_>>()?,
                };
                put(&mut out, &parts)?;
            }
        }
        put(&mut out, &[(&self.head, 0, s.vocab)])?;
        Ok(out)
    }

    pub(super) fn defines(
        &self,
        text: WeightPath,
        s: &DecodeStepSizes,
        ring: &Ring,
    ) -> Vec<(&'static str, Value)> {
        let first = self.layers.first();
        let has = |of: fn(&DecodeLayer<'_>) -> bool| usize::from(first.is_some_and(of));
        let head_norms = if self.heads_normed_together { 2 } else { 1 };
        #[allow(clippy::float_cmp)] // settings, not results
        let scaled = usize::from(self.residual_scale != 1.0) | usize::from(self.logits_scale != 1.0) << 1;
        let numbers = [
            ("TEXTS", s.texts),
            ("DTYPE", self.dtype().code() as usize),
            ("DIM", s.width),
            ("HEADS", s.heads),
            ("KV_HEADS", s.kv_heads),
            ("HEAD", s.size),
            ("HIDDEN", s.hidden),
            ("VOCAB", s.vocab),
            ("LAYERS", s.layers),
            ("HALF", s.half),
            ("GROUPS", s.groups),
            ("EMBEDDED", self.embedding.map_or(0, |embedding| 1 + usize::from(embedding.places.is_some()))),
            ("ACT", self.activation.map_or(4, |gate| gate as usize)),
            ("GATED", usize::from(self.gated)),
            ("QUANTISED", usize::from(self.is_quantised())),
            ("DENSE", usize::from(self.has_dense())),
            ("BIASES", first.map_or(0, DecodeLayer::biases)),
            ("LAYER_NORM", usize::from(self.last_norm.1.is_some())),
            ("UNIT_OFFSET", usize::from(self.unit_offset)),
            ("PRE", has(|layer| layer.norms.is_some())),
            ("POST", has(|layer| layer.post_norms.is_some())),
            ("PARALLEL", usize::from(self.parallel)),
            ("QK_NORM", head_norms * has(|layer| layer.head_norms.is_some())),
            ("CAPS", usize::from(self.score_cap.is_some()) | usize::from(self.logits_cap.is_some()) << 1),
            ("VARIED", usize::from(self.is_varied(s))),
            ("SCALED", scaled),
            ("PAGE", s.page),
            ("SPLITS", s.splits),
            ("SPLIT_BYTES", SIZES.on::<3>(self.device())[0] as usize),
            ("RING", usize::from(text == WeightPath::Ring)),
            ("RING_SLOTS", ring.slots),
            ("SLOT", ring.bytes),
            ("IN_FLIGHT", ring.in_flight),
        ];
        let numbers = numbers.into_iter().map(|(name, number)| (name, number.into()));
        numbers.chain([(FORMAT_LIST, self.formats())]).collect()
    }

    /// Returns norms, biases, head norms, cosines, sines and the table. Placeholders stand for those that the model does not have.
    pub(super) fn inputs(&self, s: &DecodeStepSizes) -> Result<[Tensor; 6]> {
        let norms = self.layers.iter().flat_map(DecodeLayer::all_norms).chain([self.last_norm]);
        let norms: Vec<&Tensor> =
            norms.flat_map(|(factors, shift)| [factors].into_iter().chain(shift)).collect();
        let norms = cat(&norms, 0)?;
        let all = |parts: Vec<&Tensor>| if parts.is_empty() { Ok(norms.clone()) } else { cat(&parts, 0) };
        let biases =
            self.layers.iter().flat_map(|layer| layer.stages().into_iter().filter_map(|map| map.bias));
        let biases = all(biases.collect())?;
        let head_norms = all(self.layers.iter().filter_map(|layer| layer.head_norms).flatten().collect())?;
        let table = self.table(s)?;
        let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let words = Tensor::empty(self.device(), [2 * table.len()], DType::U32)?;
        words.set_bytes(&bytes)?;
        let angles = |i: usize| match s.half {
            0 => Tensor::zeros(self.device(), [1], DType::F32),
            _ => cat(&self.angles.iter().map(|set| set[i]).collect::<Vec<_>>(), 0),
        };
        let (cosines, sines) = (angles(0)?.contiguous()?, angles(1)?.contiguous()?);
        Ok([norms.detach(), biases.detach(), head_norms.detach(), cosines, sines, words])
    }
}
