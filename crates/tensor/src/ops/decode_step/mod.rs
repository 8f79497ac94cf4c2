//! One token of one text through a whole Llama-like decoder in one launch: a persistent kernel for NVIDIA's sm_90, which streams the weights through
//! a ring in local memory while its groups exchange activations, without a barrier over the device. Its drawing stands at the head of
//! `decode_step_sm90.cl`.
//!
//! It is no op of the table: it has no gradient, and its inputs are a model's parameters. What it computes is what the launches of a decoder's
//! step compute, but for the rounding of the activations: quantised weights are multiplied by bytes
//! ([`Activations::Int8`](crate::quant::Activations)), and groups exchange f16.

pub(crate) mod kernel;

use super::gated::Gate;
use super::join::cat;
use super::prelude::*;
use crate::quant::Blocks;
#[cfg(test)]
use kernel::DIRECT;
use kernel::{ITEMS, KERNEL, kernel};
use netcl_kernel::tune::{self, Constant};
use netcl_kernel::vendors::nvidia::address;

/// Maps of a layer, and parts of a map at most: as in the kernel.
const STAGES: usize = 4;
const PARTS: usize = 3;
/// Shares of a context at most.
const SPLITS: usize = 4;
/// Local memory that a group of sm_90 may have (CUDA C Programming Guide, compute capability 9.0).
const LOCAL: usize = 227 << 10;
/// Slots of the ring at most.
const MOST_SLOTS: usize = 16;

/// What the ring and the shares of a context are sized by.
static SIZES: tune::Model = tune::Model {
    name: "decode_step_sm90",
    constants: &[
        Constant::new("split_bytes", "keys and values of a share of the context, at least", 65_536.0),
        Constant::new("slot_bytes", "a slot of the ring, at least", 11_264.0),
        Constant::new("in_flight_bytes", "weights that a group has asked for at a time", 49_152.0),
    ],
};

/// Rows of a matrix (N, K).
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// In 16 bits, without gaps.
    Dense(&'a Tensor),
    /// Quantised.
    Blocks(&'a Blocks),
}

/// A layer's tensors.
pub struct Layer<'a> {
    /// Factors of the norms before attention and before the feed-forward map (DIM).
    pub norms: [&'a Tensor; 2],
    /// Queries, keys and values, ((H + 2 KH) D, DIM): one matrix, or several one above the other.
    pub qkv: Vec<Rows<'a>>,
    /// Their bias.
    pub bias: Option<&'a Tensor>,
    /// Factors of the norms of each query and each key head (D).
    pub head_norms: Option<[&'a Tensor; 2]>,
    /// (DIM, H D).
    pub out: Rows<'a>,
    /// Gate and value, (2 HIDDEN, DIM): one matrix, or both.
    pub gate_up: Vec<Rows<'a>>,
    /// (DIM, HIDDEN).
    pub down: Rows<'a>,
    /// (1, S, 2 KH, D), keys before values.
    pub cache: &'a Tensor,
}

/// A decoder's tensors and settings.
pub struct Model<'a> {
    /// All layers.
    pub layers: Vec<Layer<'a>>,
    /// Factors of the last norm (DIM).
    pub last_norm: &'a Tensor,
    /// (V, DIM).
    pub head: Rows<'a>,
    /// Cosines and sines (S or more, R/2) f32.
    pub angles: [&'a Tensor; 2],
    /// Query heads, and key heads, which divide them.
    pub heads: [usize; 2],
    /// Rows of the feed-forward map's gate.
    pub hidden: usize,
    /// What the gate goes through.
    pub gate: Gate,
    /// Factor of the scores.
    pub scale: f32,
    /// Added to the mean of squares in norms.
    pub eps: f32,
    /// Whether a norm's factor is 1 + weight.
    pub unit_offset: bool,
}

/// A model's step, ready to be launched.
pub struct DecodeStep {
    kernel: &'static Kernel,
    defines: Vec<(&'static str, usize)>,
    /// Norms, biases, norms of heads, cosines, sines, table.
    inputs: [Tensor; 6],
    words: Tensor,
    state: Tensor,
    /// What the table's addresses are of.
    weights: Vec<Tensor>,
    caches: Vec<Tensor>,
    groups: usize,
    room: usize,
    scalars: [f32; 2],
    vocab: usize,
    flops: u64,
}

/// Sizes that the kernel is built for.
#[derive(Clone, Copy)]
struct Sizes {
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    /// Of a head.
    size: usize,
    hidden: usize,
    vocab: usize,
    room: usize,
    /// Rotated pairs of a head.
    half: usize,
    groups: usize,
    splits: usize,
}

impl Sizes {
    fn queries(&self) -> usize {
        self.heads * self.size
    }
    fn qkv(&self) -> usize {
        self.queries() + 2 * self.kv_heads * self.size
    }
    /// The longest row of a map.
    fn widest(&self) -> usize {
        self.width.max(self.queries()).max(self.hidden)
    }
    /// Words of the exchange.
    fn words(&self) -> usize {
        2 * self.width + self.qkv() + self.hidden + self.splits * (self.queries() + 2 * self.heads)
    }
}

/// The ring: slots, bytes of one, and how many may be on their way.
struct Ring {
    slots: usize,
    bytes: usize,
    in_flight: usize,
}

impl<'a> Rows<'a> {
    fn dims(&self) -> Result<[usize; 2]> {
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
            Self::Dense(_) => 0,
            Self::Blocks(blocks) => blocks.format().number,
        }
    }
    fn tensor(&self) -> &'a Tensor {
        match self {
            Self::Dense(tensor) => tensor,
            Self::Blocks(blocks) => blocks.words(),
        }
    }
    fn supports(&self, dtype: DType) -> Result<(), &'static str> {
        match self {
            Self::Dense(tensor) if tensor.dtype() != dtype => Err("weights of several dense types"),
            Self::Dense(tensor) if !in_order(tensor) => Err("weights that do not lie in order"),
            Self::Blocks(blocks) if !blocks.in_planes() => Err("quantised weights that do not lie in planes"),
            _ => Ok(()),
        }
    }
}

/// Whether a tensor has no gaps and starts at a multiple of 16 bytes.
fn in_order(x: &Tensor) -> bool {
    x.is_contiguous() && (x.layout().offset * x.dtype().size()).is_multiple_of(16)
}

fn address_of(x: &Tensor) -> Result<u64> {
    Ok(address(x.storage())? + (x.layout().offset * x.dtype().size()) as u64)
}

/// What the table has of a part: rows | bytes of a row << 24 | format << 56.
fn part(rows: usize, bytes: usize, format: u32) -> u64 {
    rows as u64 | (bytes as u64) << 24 | u64::from(format) << 56
}

impl<'a> Model<'a> {
    fn dtype(&self) -> DType {
        self.last_norm.dtype()
    }

    fn sizes(&self) -> Result<Sizes> {
        let [vocab, width] = self.head.dims()?;
        let [heads, kv_heads] = self.heads;
        let first = self.layers.first().ok_or_else(|| Error::shape("decode_step: a model without layers"))?;
        let [_, room, _, size] = first.cache.dims4()?;
        let device = self.last_norm.device().capabilities();
        let groups = if KERNEL.runs_on(device) { device.compute_units.max(1) as usize } else { 1 };
        let splits = (groups / heads.max(1)).clamp(1, SPLITS);
        let half = self.angles[0].dims2()?[1];
        let (layers, hidden) = (self.layers.len(), self.hidden);
        Ok(Sizes { layers, width, heads, kv_heads, size, hidden, vocab, room, half, groups, splits })
    }

    /// The parts of each map of a layer, in the order of the kernel's stages: at most [`PARTS`] of each.
    fn stages(layer: &Layer<'a>) -> [Vec<Rows<'a>>; STAGES] {
        [layer.qkv.clone(), vec![layer.out], layer.gate_up.clone(), vec![layer.down]]
    }

    fn maps(&self) -> impl Iterator<Item = Rows<'a>> {
        self.layers.iter().flat_map(|layer| Self::stages(layer).into_iter().flatten()).chain([self.head])
    }

    /// Which formats there are, as the kernel's set of bits.
    fn formats(&self) -> usize {
        self.maps().fold(0, |set, map| set | 1 << map.format())
    }

    /// Why the kernel does not take the model on this device.
    fn supports(&self, s: &Sizes) -> Result<(), &'static str> {
        let device = self.last_norm.device();
        let (dtype, multiples) = (self.dtype(), [s.width, s.queries(), s.hidden]);
        let rows = [s.qkv(), s.width, s.hidden, s.vocab];
        let caches = self.layers.iter().all(|layer| {
            let dims = layer.cache.dims() == [1, s.room, 2 * s.kv_heads, s.size];
            dims && layer.cache.dtype() == dtype && in_order(layer.cache)
        });
        let biases = self.layers.iter().filter(|layer| layer.bias.is_some()).count();
        let head_norms = self.layers.iter().filter(|layer| layer.head_norms.is_some()).count();
        match () {
            () if !Tuning::of(device).allows(device, kernel()) => Err("a device other than sm_90"),
            () if !matches!(dtype, DType::F16 | DType::Bf16) => Err("a model that is not in 16 bits"),
            () if !s.size.is_power_of_two() || !(32..=256).contains(&s.size) => {
                Err("heads of a size other than 32, 64, 128 and 256")
            }
            () if 2 * s.half > s.size || s.half == 0 => Err("heads that are not rotated"),
            () if s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) => {
                Err("key heads that do not divide the query heads")
            }
            () if multiples.iter().any(|n| *n == 0 || !n.is_multiple_of(256)) => {
                Err("rows of a length that 256 does not divide")
            }
            () if rows.iter().any(|n| *n < s.groups || *n >= 1 << 24) => {
                Err("maps with fewer rows than the device has units")
            }
            () if !caches => Err("caches of several texts, or that do not lie in order"),
            () if [biases, head_norms].iter().any(|n| *n != 0 && *n != s.layers) => {
                Err("biases or norms of heads in some layers")
            }
            () if self.layers.iter().any(|layer| layer.qkv.len() > PARTS || layer.gate_up.len() > 2) => {
                Err("maps of many parts")
            }
            () => self.maps().try_for_each(|map| map.supports(dtype)),
        }
    }

    /// The ring, in what the other arrays leave of local memory.
    fn ring(&self, s: &Sizes) -> Result<Ring> {
        let formats = self.formats();
        let codes = if formats >> 1 != 0 { s.widest() + s.widest() / 4 } else { 0 };
        let floats = if formats & 1 != 0 { 4 * s.widest() } else { 0 };
        let sums = 4 * (s.vocab.max(2 * s.hidden) / s.groups + s.width / s.groups);
        let tables = 8 * s.layers * (STAGES * PARTS + 1);
        let scratch = 4 * (6 + ITEMS / 32) * s.size;
        let used = codes + floats + sums + tables + scratch + (2 << 10);
        let longest =
            self.maps().map(|map| map.row_bytes()).try_fold(0, |most, row| row.map(|row| most.max(row)))?;
        let [_, slot, in_flight] = SIZES.on(self.last_norm.device()).map(|bytes| bytes as usize);
        let bytes = longest.max(slot).next_multiple_of(128);
        let slots = (LOCAL.saturating_sub(used) / bytes).min(MOST_SLOTS);
        Ok(Ring { slots, bytes, in_flight: (in_flight / bytes).clamp(3, slots.max(3)) })
    }

    /// Addresses of caches and parts, as the kernel reads them.
    fn table(&self, s: &Sizes) -> Result<Vec<u64>> {
        let mut out = self.layers.iter().map(|layer| address_of(layer.cache)).collect::<Result<Vec<_>>>()?;
        let put = |out: &mut Vec<u64>, parts: &[(Rows<'_>, usize, usize)]| -> Result<()> {
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
            for (stage, maps) in Self::stages(layer).into_iter().enumerate() {
                let parts = match maps.as_slice() {
                    [both] if stage == 2 => vec![(*both, 0, s.hidden), (*both, s.hidden, s.hidden)],
                    maps => maps.iter().map(|map| Ok((*map, 0, map.dims()?[0]))).collect::<Result<_>>()?,
                };
                put(&mut out, &parts)?;
            }
        }
        put(&mut out, &[(self.head, 0, s.vocab)])?;
        Ok(out)
    }
}

impl Model<'_> {
    fn has_biases(&self) -> bool {
        self.layers.iter().any(|layer| layer.bias.is_some())
    }
    fn has_head_norms(&self) -> bool {
        self.layers.iter().any(|layer| layer.head_norms.is_some())
    }

    fn defines(&self, s: &Sizes, ring: &Ring) -> Vec<(&'static str, usize)> {
        vec![
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
            ("ACT", self.gate as usize),
            ("FORMATS", self.formats()),
            ("BIAS", usize::from(self.has_biases())),
            ("QK_NORM", usize::from(self.has_head_norms())),
            ("UNIT_OFFSET", usize::from(self.unit_offset)),
            ("SPLITS", s.splits),
            ("SPLIT_BYTES", SIZES.on::<3>(self.last_norm.device())[0] as usize),
            ("RING", usize::from(kernel().name == KERNEL.name)),
            ("RING_SLOTS", ring.slots),
            ("SLOT", ring.bytes),
            ("IN_FLIGHT", ring.in_flight),
        ]
    }

    /// Norms, biases, norms of heads (of what there is none, something else), cosines, sines, table.
    fn inputs(&self, s: &Sizes) -> Result<[Tensor; 6]> {
        let norms = self.layers.iter().flat_map(|layer| layer.norms).chain([self.last_norm]);
        let norms = cat(&norms.collect::<Vec<_>>(), 0)?;
        let all = |parts: Vec<&Tensor>| if parts.is_empty() { Ok(norms.clone()) } else { cat(&parts, 0) };
        let biases = all(self.layers.iter().filter_map(|layer| layer.bias).collect())?;
        let head_norms = all(self.layers.iter().filter_map(|layer| layer.head_norms).flatten().collect())?;
        let table = self.table(s)?;
        let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let words = Tensor::empty(self.last_norm.device(), [2 * table.len()], DType::U32)?;
        words.set_bytes(&bytes)?;
        let [cosines, sines] = self.angles;
        let (cosines, sines) = (cosines.contiguous()?, sines.contiguous()?);
        Ok([norms.detach(), biases.detach(), head_norms.detach(), cosines, sines, words])
    }
}

impl DecodeStep {
    /// The step of a model, or why there is none for it.
    ///
    /// # Errors
    /// `Unsupported` that says why; `Memory`.
    pub fn new(model: &Model<'_>) -> Result<Self> {
        let s = model.sizes()?;
        let no = |why: &str| Err(Error::unsupported(format!("decode_step: {why}")));
        if let Err(why) = model.supports(&s) {
            return no(why);
        }
        let ring = model.ring(&s)?;
        let device = model.last_norm.device();
        if ring.slots < 3 {
            return no("rows so long that local memory has no ring for them");
        }
        let zeros = |n: usize| Tensor::from_u32(device, [n], &vec![0; n]);
        Ok(Self {
            kernel: kernel(),
            defines: model.defines(&s, &ring),
            inputs: model.inputs(&s)?,
            words: zeros(s.words())?,
            state: zeros(1)?,
            weights: model.maps().map(|map| map.tensor().detach()).collect(),
            caches: model.layers.iter().map(|layer| layer.cache.detach()).collect(),
            groups: s.groups,
            room: s.room,
            scalars: [model.eps, model.scale * std::f32::consts::LOG2_E],
            vocab: s.vocab,
            flops: 2 * model.maps().map(|map| map.dims().map_or(0, |[n, k]| (n * k) as u64)).sum::<u64>(),
        })
    }

    /// x (.., DIM), a token's embedding, and how many tokens are before it, u32 (1) → logits (1, V) of the next. The token's keys and values are
    /// kept in the caches; where they have no row for it, the logits are NaN. Launches of one step run one after the other.
    ///
    /// # Errors
    /// Those of the launch.
    pub fn run(&self, x: &Tensor, position: &Tensor) -> Result<Tensor> {
        let logits = Tensor::empty(x.device(), [1, self.vocab], x.dtype())?;
        let ring = self.kernel.name == KERNEL.name;
        let launch =
            self.defines.iter().fold(self.kernel.launch("decode_step"), |l, (name, v)| l.define(name, *v));
        let launch =
            launch.local([ITEMS + if ring { 32 } else { 0 }, 1, 1]).groups(self.groups).flops(self.flops);
        let launch =
            self.inputs.iter().fold(launch.read_base(x).read_base(position), |launch, x| launch.read(x));
        let launch = launch.update_base(&self.words).update_base(&self.state).write(&logits);
        let launch = launch
            .scalar(x.layout().offset)
            .scalar(position.layout().offset)
            .scalar(i32::try_from(self.room).unwrap_or(i32::MAX));
        let launch = self.scalars.into_iter().fold(launch, netcl_kernel::Launch::scalar);
        let launch = self.weights.iter().fold(launch, |launch, x| launch.read_indirect(x));
        self.caches.iter().fold(launch, |launch, x| launch.update_indirect(x)).run()?;
        Ok(logits)
    }
}

impl DecodeStep {
    /// Whether its logits are those that a step of several launches made of the same token, within what rounding explains. The first time on a
    /// device a launch that does not end is found out and the kernel left from then on.
    pub fn agrees(&self, x: &Tensor, position: &Tensor, expected: &Tensor) -> bool {
        let device = x.device();
        let compare = || {
            let (got, expected) = (self.run(x, position)?.to_vec()?, expected.to_vec()?);
            let size: f64 = expected.iter().map(|v| f64::from(*v).powi(2)).sum();
            let off: f64 = expected.iter().zip(&got).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            // Not `>`: NaN does not agree.
            let near = off <= (FAR * FAR) * size;
            if near {
                return Ok(());
            }
            let by = (off / size).sqrt();
            Err(Error::internal(format!(
                "decode_step: logits differ by {by:.3} of those of several launches"
            )))
        };
        // A proof holds for the kernel, whatever the model; each model is compared besides.
        Tuning::of(device).proven(device, self.kernel, compare)
            && compare().map_err(|e| tracing::warn!("a step is several launches: {}", e.message())).is_ok()
    }
}

/// Logits that differ by this share of their size are wrong: rounding activations to bytes makes up to 5 % (22 to 32 layers).
const FAR: f64 = 0.2;

#[cfg(test)]
mod tests;
