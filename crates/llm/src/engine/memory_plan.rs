//! Memory needs of a model on devices: weights, states of sequences, and temporary memory, for any range of its layers.

use super::session::CHUNK;
use netcl_device::size_class;
use netcl_model::decoder::{DecoderConfig, ParamShape, step_sizes};
use netcl_tensor::DType;
use std::collections::HashMap;
use std::ops::Range;

/// Reserve per device: sizes are rounded up, and steps have separate states.
const SPARE: u64 = 4 << 20;

/// Reserve for the state of steps of one size: tokens, positions, random words, candidates, and rounding of sizes.
const STATES: u64 = 256 << 10;

/// Elements stored in the model's type, bytes of matrices that stay quantized, and the additional bytes of their separate allocations.
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
    /// Returns the difference of `self` and `part`.
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

/// Returns the rounding overhead of an allocation.
fn rounding(bytes: u64) -> u64 {
    // Sizes beyond any device are not rounded.
    let rounded = |bytes: usize| (size_class(bytes) - bytes) as u64;
    usize::try_from(bytes).ok().filter(|bytes| *bytes < 1 << 48).map_or(0, rounded)
}

/// Returns the storage of parameters; `quantised` has the bytes of quantized ones.
fn stored(shapes: &[ParamShape], quantised: &HashMap<String, u64>) -> Stored {
    shapes.iter().fold(Stored::default(), |all, shape| {
        all.and(match quantised.get(&shape.name) {
            Some(bytes) => Stored { dense: 0, quantised: *bytes, rounding: rounding(*bytes) },
            None => Stored { dense: shape.count() as u64, ..Stored::default() },
        })
    })
}

/// Device-independent memory needs of a model: storage type and size of its weights.
pub struct MemoryPlan {
    config: DecoderConfig,
    dtype: DType,
    /// Parameters before and after the layers.
    ends: [Stored; 2],
    /// The copy of a tied embedding for a head on another device.
    copy: Stored,
    /// Cumulative sums over the layers.
    layers: Vec<Stored>,
    /// Elements of the largest quantized matrix: prompts multiply by a dense copy.
    tile: u64,
    /// The same for experts if no kernel multiplies rows sorted by expert with blocks.
    experts: u64,
    /// Elements of the matrices of each layer that are stored (in, out): a step in one launch reads transposed copies.
    row_copies: u64,
}

impl MemoryPlan {
    /// `quantised` has the bytes of matrices that stay quantized, by parameter.
    pub(super) fn new(config: DecoderConfig, dtype: DType, quantised: &HashMap<String, u64>) -> Self {
        let sum = |shapes: Vec<ParamShape>| stored(&shapes, quantised);
        let ends = [sum(config.entry_shapes()), sum(config.exit_shapes())];
        let table = config.entry_shapes().into_iter().take(usize::from(config.tied)).collect();
        let copy = sum(table);
        // For the head, a prompt needs only the last row.
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

    /// Returns the configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }
    /// Returns the storage type of dense weights and of states.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Bytes of the weights.
    pub fn weights(&self) -> u64 {
        self.weights_of(0..self.config.layers, self.dtype)
    }
    /// Returns the bytes of the states of a sequence with `tokens` tokens.
    pub fn cache(&self, tokens: usize) -> u64 {
        self.cache_of(0..self.config.layers, tokens, self.dtype)
    }
    /// Returns the additional bytes of prompts and steps with a context of `tokens` tokens.
    pub fn work(&self, tokens: usize) -> u64 {
        self.work_of(0..self.config.layers, tokens, self.dtype, true)
    }

    /// Returns the bytes that prompts and steps of an engine need in addition to weights and cache. The context has `tokens` tokens, with `texts`
    /// concurrent sequences and `page` tokens per page.
    pub fn workspace(&self, tokens: usize, texts: usize, page: usize) -> u64 {
        self.work(tokens).saturating_add(self.steps(texts, tokens.div_ceil(page.max(1))))
    }

    /// Returns the bytes that steps of up to `texts` sequences need in addition to [`work`](Self::work). Each number of sequences has separate steps:
    /// a block's temporary results for one token per sequence, logits in the model's type and for sampling, and the pages of each.
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

    /// Returns the bytes of the weights on a device with these layers.
    pub(super) fn weights_of(&self, layers: Range<usize>, dtype: DType) -> u64 {
        self.stored(&layers).bytes(dtype)
    }

    /// Returns the elements of a mixer's first projection per token: the maximum over all layers.
    fn projected(&self) -> usize {
        let c = &self.config;
        let layers = 0..c.kinds.len().max(1);
        layers.map(|i| c.mixer_costs(c.kind(i)).projected).max().unwrap_or(0)
    }

    /// Returns the bytes by which allocation sizes exceed the weights of these layers and the states of a sequence with `tokens` tokens.
    pub(super) fn rounding_of(&self, layers: &Range<usize>, tokens: usize, dtype: DType) -> u64 {
        let stored = self.stored(layers);
        let dense = rounding(stored.dense.saturating_mul(dtype.size() as u64));
        let cache = self.states(layers.clone(), tokens, dtype).map(rounding).fold(0, u64::saturating_add);
        stored.rounding.saturating_add(dense).saturating_add(cache)
    }

    /// Returns the bytes of the state of a sequence with `tokens` tokens in each of these layers.
    fn states(&self, layers: Range<usize>, tokens: usize, dtype: DType) -> impl Iterator<Item = u64> {
        layers.map(move |i| self.config.state(i).bytes(tokens, dtype))
    }

    /// Returns the bytes of the states of a sequence with `tokens` tokens in these layers.
    pub(super) fn cache_of(&self, layers: Range<usize>, tokens: usize, dtype: DType) -> u64 {
        self.states(layers, tokens, dtype).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that prompts and steps need in addition to weights and states on a device with these layers, with a context of `tokens`
    /// tokens. They include:
    /// - the temporary results of the largest block for a prompt chunk;
    /// - the dense copy of the largest quantized matrix;
    /// - the state of a layer in the form that its mixer reads, or of an outgrown cache;
    /// - rotary angles of both kinds of steps, logits, and the rounding of allocations.
    ///
    /// `copies`: whether experts' matrices are dequantized for a prompt there.
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

    /// Returns the bytes of the transposed copies for a step in one launch, used if all layers are on one device of that kind.
    pub(super) fn row_copies(&self, dtype: DType) -> u64 {
        self.row_copies.saturating_mul(self.config.layers as u64).saturating_mul(dtype.size() as u64)
    }
}

fn product<const N: usize>(factors: [usize; N]) -> u64 {
    factors.into_iter().fold(1, |all, n| all.saturating_mul(n as u64))
}
