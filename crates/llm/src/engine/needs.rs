//! Memory that a model needs on devices: weights, states of texts, and temporary memory, for any of its layers.

use super::session::CHUNK;
use netcl_device::size_class;
use netcl_model::decoder::{DecoderConfig, ParamShape, step_sizes};
use netcl_tensor::DType;
use std::collections::HashMap;
use std::ops::Range;

/// Room that a device needs for nothing in particular: sizes are rounded up, and steps have states of their own.
const SPARE: u64 = 4 << 20;

/// Room for what steps of one size keep: tokens, positions, random words, candidates, and the rounding of sizes.
const STATES: u64 = 256 << 10;

/// Elements that are stored in the model's type, bytes of matrices that stay quantised, and what those take more as allocations of their own.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    dense: u64,
    quantised: u64,
    rounding: u64,
}

impl Stored {
    fn and(self, other: Self) -> Self {
        Self {
            dense: self.dense.saturating_add(other.dense),
            quantised: self.quantised.saturating_add(other.quantised),
            rounding: self.rounding.saturating_add(other.rounding),
        }
    }
    /// What is in `self` and not in `part`.
    fn without(self, part: Self) -> Self {
        Self {
            dense: self.dense.saturating_sub(part.dense),
            quantised: self.quantised.saturating_sub(part.quantised),
            rounding: self.rounding.saturating_sub(part.rounding),
        }
    }
    fn bytes(self, dtype: DType) -> u64 {
        self.dense.saturating_mul(dtype.size() as u64).saturating_add(self.quantised)
    }
}

/// What an allocation takes beyond its bytes.
fn rounding(bytes: u64) -> u64 {
    // Sizes that no device has are not rounded.
    let rounded = |bytes: usize| (size_class(bytes) - bytes) as u64;
    usize::try_from(bytes).ok().filter(|bytes| *bytes < 1 << 48).map_or(0, rounded)
}

/// How parameters are stored; `quantised` has the bytes of those that stay so.
fn stored(shapes: &[ParamShape], quantised: &HashMap<String, u64>) -> Stored {
    shapes.iter().fold(Stored::default(), |all, shape| {
        all.and(match quantised.get(&shape.name) {
            Some(bytes) => Stored { dense: 0, quantised: *bytes, rounding: rounding(*bytes) },
            None => Stored { dense: shape.count() as u64, ..Stored::default() },
        })
    })
}

/// What a model takes wherever it is loaded: the storage of its weights, and how much of it.
pub struct Needs {
    config: DecoderConfig,
    dtype: DType,
    /// Before the layers, and behind them.
    ends: [Stored; 2],
    /// The copy of a tied embedding for a head on another device.
    copy: Stored,
    /// Sums over the layers before each, and over all.
    layers: Vec<Stored>,
    /// Elements of the largest matrix that stays quantised: prompts multiply a dense copy.
    tile: u64,
    /// The same of experts, where no kernel multiplies rows sorted by expert by blocks.
    experts: u64,
    /// Elements of the matrices of each layer that are stored (in, out): a step in one launch reads copies as rows.
    row_copies: u64,
}

impl Needs {
    /// With the bytes of matrices that stay quantised, by parameter.
    pub(super) fn new(config: DecoderConfig, dtype: DType, quantised: &HashMap<String, u64>) -> Self {
        let sum = |shapes: Vec<ParamShape>| stored(&shapes, quantised);
        let ends = [sum(config.entry_shapes()), sum(config.exit_shapes())];
        let table = config.entry_shapes().into_iter().take(usize::from(config.tied)).collect();
        let copy = sum(table);
        // Of the head a prompt needs the last row alone.
        let (mut tile, mut experts) = (0, 0);
        let mut layers = vec![Stored::default()];
        for i in 0..config.layers {
            let shapes = config.block_shapes(i);
            let maps = shapes.iter().filter(|shape| quantised.contains_key(&shape.name));
            for shape in maps {
                let largest = if shape.of_experts() { &mut experts } else { &mut tile };
                *largest = (*largest).max(shape.count() as u64);
            }
            layers.push(layers[i].and(stored(&shapes, quantised)));
        }
        let row_copies = match config.family.names.transposed && config.mlp.moe.is_none() {
            true => {
                config.block_shapes(0).iter().filter(|s| s.dims.len() == 2).map(|s| s.count() as u64).sum()
            }
            false => 0,
        };
        Self { config, dtype, ends, copy, layers, tile, experts, row_copies }
    }

    /// What the model is.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }
    /// Storage of dense weights and of states.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Bytes of the weights.
    pub fn weights(&self) -> u64 {
        self.weights_of(0..self.config.layers, self.dtype)
    }
    /// Bytes of the states of a text of `tokens` tokens.
    pub fn cache(&self, tokens: usize) -> u64 {
        self.cache_of(0..self.config.layers, tokens, self.dtype)
    }
    /// Bytes that prompts and steps take beside those where the context has `tokens` tokens.
    pub fn work(&self, tokens: usize) -> u64 {
        self.work_of(0..self.config.layers, tokens, self.dtype, true)
    }

    /// Bytes that prompts and steps of an engine take beside weights and cache where the context has `tokens` tokens, for so many
    /// `texts` at the same time and tokens of a page.
    pub fn workspace(&self, tokens: usize, texts: usize, page: usize) -> u64 {
        self.work(tokens).saturating_add(self.steps(texts, tokens.div_ceil(page.max(1))))
    }

    /// Bytes that steps of up to `texts` texts take beside [`work`](Self::work), each number of texts that has steps of its own: what a block makes of a token of each,
    /// logits in the model's type and as they are sampled from, and the pages of each.
    fn steps(&self, texts: usize, pages: usize) -> u64 {
        let c = &self.config;
        let experts = c.mlp.moe.map_or(0, |moe| moe.top_k.saturating_mul(3 * moe.hidden + c.width));
        let wide = (3 * c.mlp.hidden).max(experts);
        let row = product([4 * c.width + 2 * self.projected() + wide, self.dtype.size()]);
        let logits = product([c.vocab, self.dtype.size() + 4]);
        let row = row.saturating_add(logits).saturating_add(product([pages, 4]));
        let of = |rows: usize| row.saturating_mul(rows as u64).saturating_add(STATES);
        step_sizes(texts).into_iter().map(of).fold(0, u64::saturating_add)
    }

    fn stored(&self, layers: &Range<usize>) -> Stored {
        let none = Stored::default();
        let at = |i: usize| self.layers.get(i).copied().unwrap_or(none);
        let (first, last) = (layers.start == 0, layers.end == self.config.layers);
        let entry = if first { self.ends[0] } else { none };
        let exit = match (last, first) {
            (true, true) => self.ends[1],
            (true, false) => self.ends[1].and(self.copy),
            _ => none,
        };
        at(layers.end).without(at(layers.start)).and(entry).and(exit)
    }

    /// Bytes of the weights of a device that has these layers.
    pub(super) fn weights_of(&self, layers: Range<usize>, dtype: DType) -> u64 {
        self.stored(&layers).bytes(dtype)
    }

    /// Elements that the first map of a mixer makes of a token: the most of all layers.
    fn projected(&self) -> usize {
        let c = &self.config;
        let layers = 0..c.kinds.len().max(1);
        layers.map(|i| c.mixer_costs(c.kind(i)).projected).max().unwrap_or(0)
    }

    /// Bytes by which allocation sizes exceed the weights of these layers and the states of a text of `tokens` tokens.
    pub(super) fn rounding_of(&self, layers: &Range<usize>, tokens: usize, dtype: DType) -> u64 {
        let stored = self.stored(layers);
        let dense = rounding(stored.dense.saturating_mul(dtype.size() as u64));
        let cache = self.states(layers.clone(), tokens, dtype).map(rounding).fold(0, u64::saturating_add);
        stored.rounding.saturating_add(dense).saturating_add(cache)
    }

    /// Bytes of the state of a text of `tokens` tokens in each of these layers.
    fn states(&self, layers: Range<usize>, tokens: usize, dtype: DType) -> impl Iterator<Item = u64> {
        layers.map(move |i| self.config.state(i).bytes(tokens, dtype))
    }

    /// Bytes of the states of a text of `tokens` tokens in these layers.
    pub(super) fn cache_of(&self, layers: Range<usize>, tokens: usize, dtype: DType) -> u64 {
        self.states(layers, tokens, dtype).fold(0, u64::saturating_add)
    }

    /// Bytes that prompts and steps take in addition to weights and states on a device with these layers, where the context has `tokens` tokens: what
    /// the largest block makes of a chunk of a prompt, the largest quantised matrix as it is multiplied with one, the state of a layer as
    /// its mixer reads it or of a cache that is outgrown, rotary angles of both kinds of steps, logits, and the rounding of allocations.
    /// `copies`: whether experts' matrices are dequantised for a prompt there.
    pub(super) fn work_of(&self, layers: Range<usize>, tokens: usize, dtype: DType, copies: bool) -> u64 {
        let c = &self.config;
        let rows = CHUNK.min(tokens);
        let projected = self.projected();
        let experts = c.mlp.moe.map_or(0, |moe| moe.top_k.saturating_mul(3 * moe.hidden + c.width));
        let wide = (3 * c.mlp.hidden).max(experts).max(2 * projected);
        let block = product([rows, 4 * c.width + projected + wide, dtype.size()]);
        let tile = if copies { self.tile.max(self.experts) } else { self.tile };
        let tile = tile.saturating_mul(dtype.size() as u64);
        let seen = self.states(0..c.kinds.len().clamp(1, c.layers), tokens, dtype).max().unwrap_or(0);
        let rounding = self.rounding_of(&layers, tokens, dtype);
        let rotated: usize = c.rotary.iter().map(|set| set.dims).sum();
        let angles = product([tokens, rotated, 4, 3]);
        let logits = if layers.end == c.layers { product([c.vocab, 4, 8]) } else { 0 };
        [block, tile, seen, angles, logits, rounding].into_iter().fold(SPARE, u64::saturating_add)
    }

    /// Bytes of the copies as rows that a step in one launch reads, which there is where all layers are on one device of that kind.
    pub(super) fn row_copies(&self, dtype: DType) -> u64 {
        self.row_copies.saturating_mul(self.config.layers as u64).saturating_mul(dtype.size() as u64)
    }
}

fn product<const N: usize>(factors: [usize; N]) -> u64 {
    factors.into_iter().fold(1, |all, n| all.saturating_mul(n as u64))
}
