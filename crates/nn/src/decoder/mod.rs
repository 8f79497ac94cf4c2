//! Decoder-only transformers of many families: one model, described by data ([`DecoderConfig`]), which selects norms, positions, attention and
//! MLP. A family is a row of [`FAMILIES`] with the names in its files.

mod activation;
mod ahead;
mod batch;
mod block;
mod config;
mod continued;
mod families;
mod family;
mod fields;
mod files;
mod folder;
mod freeze;
mod mixture;
mod paged;
mod read;
mod rotary;
mod shapes;
mod step;
mod weight;
mod whole;
mod write;

pub use activation::Activation;
pub use batch::{Batch, Queued};
pub use config::{
    AttentionConfig, DecoderConfig, LayerKind, MlpConfig, MoeConfig, NormConfig, NormKind, Placement,
    Positions, QkNorm, Sizes,
};
pub use families::{FAMILIES, FileFacts, Row};
pub use family::{ExpertNames, Family, Names};
pub use folder::{ModelFolder, model_folder};
pub use freeze::Freeze;
pub use paged::{CacheType, Line, Paged, Pending};
pub use rotary::{Rotary, Scaling};
pub use shapes::ParamShape;

use crate::checkpoint::{Planned, TensorData, TensorView};
use crate::config::Recompute;
use crate::layers::{Mode, dropout, sinusoidal_positions};
use crate::model::{Continuation, Model};
use crate::params::Params;
use block::{Angles, Block, Norm, Pass, Past};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::ops::linear_cross_entropy::{LinearCrossEntropy, linear_cross_entropy};
use netcl_tensor::quant::Blocks;
use netcl_tensor::tape::{checkpoint, checkpoint_all, layer};
use netcl_tensor::{DType, Device, Error, Result, Tensor, no_grad};
use shapes::parameter;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, Weak};
use weight::{RowMajor, Weight};

/// A decoder on a device.
pub struct Decoder {
    config: DecoderConfig,
    params: Params,
    shapes: Vec<ParamShape>,
    embedding: Weight,
    /// Learned or sinusoidal position embeddings (context, C), and the indices 0, 1, … for the lookup.
    positions: Option<(Tensor, Tensor)>,
    blocks: Vec<Block>,
    last_norm: Norm,
    /// Output head (V, C).
    head: Weight,
    /// Rotary tables of each set of frequencies for the longest sequence so far.
    angles: Mutex<Vec<Option<(usize, Angles)>>>,
    /// Copies of matrices for steps in one launch, while there are such steps.
    row_major: Mutex<Weak<Vec<RowMajor>>>,
}

/// Key/value cache of texts that are generated.
pub struct Cache {
    /// For each layer (B, S, 2 KH, D), keys before values.
    layers: Vec<Tensor>,
    length: usize,
}

impl Cache {
    /// Number of texts.
    pub fn batch(&self) -> usize {
        self.layers.first().map_or(1, |rows| rows.dims()[0])
    }
    /// Number of cached tokens.
    pub fn length(&self) -> usize {
        self.length
    }
    /// Capacity in tokens.
    pub fn room(&self) -> usize {
        self.layers.first().map_or(usize::MAX, |rows| rows.dims()[1])
    }
    /// Truncates the cache to the first `length` tokens.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Decoder {
    /// A new model with weights drawn from a normal distribution with standard deviation 0.02, and 0.02 / sqrt(2 layers) for output projections
    /// into the residual stream (GPT-2).
    ///
    /// # Errors
    /// `Shape` for inconsistent sizes; `Memory` if the device cannot hold the weights, before anything is allocated.
    pub fn new(device: &Device, config: DecoderConfig, dtype: DType, seed: u64) -> Result<Self> {
        Self::partly_frozen(device, config, dtype, Some(seed), &Freeze::default())
    }

    /// The same; parameters that match `freeze` get no gradient. Without a seed all are zero, to be loaded afterwards.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Format` for a pattern that matches nothing or a part of a packed parameter.
    pub fn partly_frozen(
        device: &Device,
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        freeze: &Freeze,
    ) -> Result<Self> {
        config.check().and_then(|()| config.check_memory(device, dtype)).map_err(|e| e.context("decoder"))?;
        Self::made(device, config, dtype, seed, freeze, BTreeMap::new())
    }

    /// A model in which quantised blocks replace some matrices, by parameter name. It can be used for inference only: not trained, not saved.
    /// The other parameters are drawn from `seed`; without one they are zero, to be loaded afterwards.
    ///
    /// # Errors
    /// `Shape` if blocks do not have their parameter's shape; `Format` for a name that is not a replaceable matrix; `Memory`.
    pub fn with_blocks(
        device: &Device,
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        blocks: BTreeMap<String, Vec<Blocks>>,
    ) -> Result<Self> {
        config.check().map_err(|e| e.context("decoder"))?;
        for (name, parts) in &blocks {
            let shape = shapes::all(&config).find(|shape| shape.name == *name && shape.takes_blocks(&config));
            let shape = shape.ok_or_else(|| {
                Error::format(format!(
                    "decoder: blocks for {name}, which is neither a map's matrix nor the embedding"
                ))
            })?;
            let rows: usize = parts.iter().map(|part| part.dims()[0]).sum();
            let wide = parts.iter().all(|part| Some(&part.dims()[1]) == shape.dims.get(1));
            if !wide || Some(&rows) != shape.dims.first() {
                return Err(Error::shape(format!("decoder: blocks {parts:?} for {name} {:?}", shape.dims)));
            }
        }
        Self::made(device, config, dtype, seed, &Freeze::default(), blocks)
    }

    fn made(
        device: &Device,
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        freeze: &Freeze,
        blocks: BTreeMap<String, Vec<Blocks>>,
    ) -> Result<Self> {
        let mut shapes: Vec<ParamShape> = shapes::all(&config).collect();
        let mut frozen = freeze.frozen(&shapes)?;
        let mut dense =
            shapes.iter().map(|shape| !blocks.contains_key(&shape.name)).collect::<Vec<_>>().into_iter();
        frozen.retain(|_| dense.next().unwrap_or(true));
        shapes.retain(|shape| !blocks.contains_key(&shape.name));
        let (mut params, ()) = Params::build(device, dtype, seed, |params| {
            let mut all = shapes.iter().zip(&frozen);
            all.try_for_each(|(shape, frozen)| {
                let dims = shape.dims.as_slice();
                match frozen {
                    true => params.make_frozen(&shape.name, dims, shape.init),
                    false => params.make(&shape.name, dims, shape.init),
                }
                .map(drop)
            })
        })?;
        params.hold(blocks);
        let names = config.family.names;
        let table = |name: &str| parameter(&params, &format!("{}{name}.weight", names.prefix));
        let embedding = Weight::of(&params, &format!("{}{}.weight", names.prefix, names.embedding), false)?;
        let counted = || {
            let numbers: Vec<u32> = (0..config.context as u32).collect();
            Tensor::from_u32(device, [config.context], &numbers)
        };
        let positions = match config.positions {
            Positions::Learned => Some((table(names.positions)?, counted()?)),
            Positions::Sinusoidal => {
                Some((sinusoidal_positions(device, config.context, config.width, dtype)?, counted()?))
            }
            Positions::Rotary => None,
        };
        let blocks = (0..config.layers).map(|i| Block::new(&params, &config, i)).collect::<Result<_>>()?;
        let last_norm = Norm::new(&params, &format!("{}{}", names.prefix, names.last_norm), config.norm)?;
        let head = match config.tied {
            true => embedding.clone(),
            false => Weight::of(&params, &format!("{}.weight", names.head), false)?,
        };
        let angles = Mutex::new(vec![None; config.rotary.len()]);
        let row_major = Mutex::new(Weak::new());
        Ok(Self { config, params, shapes, embedding, positions, blocks, last_norm, head, angles, row_major })
    }

    /// Rotary tables of every set for positions `start` to `t` - 1, as slices of cached tables.
    fn angles(&self, start: usize, t: usize) -> Result<Vec<Angles>> {
        let mut kept = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Vec::with_capacity(kept.len());
        for (set, slot) in self.config.rotary.iter().zip(kept.iter_mut()) {
            let fits = slot
                .as_ref()
                .is_some_and(|(longest, _)| t <= *longest && set.same_up_to(*longest).contains(&t));
            if !fits {
                // With reserve: generation needs one more position for each token.
                let room = t.next_power_of_two().min(self.config.context).max(t);
                let room = if set.same_up_to(room).contains(&t) { room } else { t };
                *slot = Some((room, set.tables(self.params.device(), room)?));
            }
            if let Some((_, [cosines, sines])) = slot {
                out.push([cosines.slice(0, start..t)?, sines.slice(0, start..t)?]);
            }
        }
        Ok(out)
    }

    /// ids `(B, T)` → input of the output head `(B, T, C)`, and the logits of all routers, (B, T, E) each.
    fn hidden(&self, ids: &Tensor, mode: Mode<'_>) -> Result<(Tensor, Vec<Tensor>)> {
        let (x, t) = self.embedded(ids, 0)?;
        let mut x = dropout(&x, mode, 0)?;
        let angles = self.angles(0, t)?;
        let mut routers = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            let (y, logits) = layer(i as u32 + 1, || run(block, &x, mode, &angles))?;
            x = y;
            routers.extend(logits);
        }
        Ok((self.last_norm.forward(&x)?, routers))
    }

    /// ids `(B, T)` of the tokens from position `start` on → their embeddings `(B, T, C)`, and the number of tokens so far.
    fn embedded(&self, ids: &Tensor, start: usize) -> Result<(Tensor, usize)> {
        let [_, t] = ids.dims2().map_err(|e| e.context("decoder: ids"))?;
        let end = start.saturating_add(t);
        if end > self.config.context {
            return Err(Error::shape(format!(
                "decoder: {end} tokens, the context is {}; keep the last ones",
                self.config.context
            )));
        }
        let scale = self.config.embedding_scale;
        #[allow(clippy::float_cmp)] // a setting, not a result
        let mut x = match &self.embedding {
            Weight::Dense { tensor, .. } if scale != 1.0 => embedding(tensor, ids)?.mul_scalar(scale)?,
            Weight::Dense { tensor, .. } => embedding(tensor, ids)?,
            blocks => blocks.gather(ids, scale, self.params.dtype())?,
        }; // (B, T, C)
        if let Some((table, numbers)) = &self.positions {
            x = x.add(&embedding(table, &numbers.slice(0, start..end)?)?)?;
        }
        Ok((x, end))
    }

    /// An empty cache for `batch` texts of up to `tokens` tokens.
    ///
    /// # Errors
    /// `Shape` if `tokens` is above the context, `Memory` if the device has not enough.
    pub fn cache(&self, batch: usize, tokens: usize) -> Result<Cache> {
        if tokens > self.config.context {
            return Err(Error::shape(format!(
                "decoder: a cache of {tokens} tokens, the context is {}",
                self.config.context
            )));
        }
        let device = self.params.device();
        let _tag = device.tag("key/value cache");
        let a = self.config.attention;
        let shape = [batch, tokens, 2 * a.kv_heads, a.size];
        let layers = (0..self.blocks.len()).map(|_| Tensor::zeros(device, shape, self.params.dtype()));
        Ok(Cache { layers: layers.collect::<Result<_>>()?, length: 0 })
    }

    /// A copy of `cache` with capacity for `tokens` tokens.
    fn larger(&self, cache: &Cache, tokens: usize) -> Result<Cache> {
        let mut larger = self.cache(cache.batch(), tokens)?;
        if cache.length > 0 {
            for (to, from) in larger.layers.iter().zip(&cache.layers) {
                to.write_slice(1, 0, &from.slice(1, 0..cache.length)?)?;
            }
        }
        larger.length = cache.length;
        Ok(larger)
    }

    /// ids `(B, T)` of the next tokens → logits `(B, V)` after the last of them. Keys and values of earlier tokens are read from `cache`, and the
    /// new ones are added to it.
    ///
    /// # Errors
    /// `Shape` if the cache is too small or for another number of texts; it is unchanged then.
    pub fn next_logits(&self, ids: &Tensor, cache: &mut Cache) -> Result<Tensor> {
        let [b, t] = ids.dims2().map_err(|e| e.context("decoder: ids"))?;
        let room = cache.layers.first().map_or([b, usize::MAX], |rows| [rows.dims()[0], rows.dims()[1]]);
        if t == 0 || room[0] != b || cache.length.saturating_add(t) > room[1] {
            return Err(Error::shape(format!(
                "decoder: ids {} behind {} tokens in a cache for {} texts of {} tokens",
                ids.shape(),
                cache.length,
                room[0],
                room[1]
            )));
        }
        no_grad(|| {
            let (mut x, end) = self.embedded(ids, cache.length)?;
            let past = Some(Past { layers: &cache.layers, start: cache.length, pages: None });
            let pass = Pass { mode: Mode::eval(), angles: self.angles(cache.length, end)?, past };
            for block in &self.blocks {
                x = block.forward(&x, &pass)?.0;
            }
            let last = x.slice(1, t - 1..t)?.reshape([b, self.config.width])?;
            let logits = self.logits(&self.last_norm.forward(&last)?)?;
            cache.length = end;
            Ok(logits)
        })
    }

    /// x `(B, T, C)` → logits `(B, T, V)`.
    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let logits = self.head.forward(&self.scaled(x)?, None)?;
        match self.config.logits_softcap {
            Some(cap) => logits.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap),
            None => Ok(logits),
        }
    }

    /// The factor of the logits, applied to the smaller of the head's input and output.
    fn scaled(&self, x: &Tensor) -> Result<Tensor> {
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.config.logits_scale == 1.0 { Ok(x.clone()) } else { x.mul_scalar(self.config.logits_scale) }
    }

    /// The weights as in the family's `model.safetensors`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tensors(&self) -> Result<Vec<TensorData>> {
        self.state().iter().map(Planned::take).collect()
    }

    /// Loads weights by name, with or without the family's prefix.
    ///
    /// # Errors
    /// As [`Model::load_state`].
    pub fn load_tensors(&self, tensors: &[TensorData]) -> Result<()> {
        self.load_state(&tensors.iter().map(TensorData::view).collect::<Vec<_>>())
    }
}

impl Model for Decoder {
    fn config(&self) -> &DecoderConfig {
        &self.config
    }
    fn params(&self) -> &Params {
        &self.params
    }
    fn forward(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.logits(&self.hidden(ids, mode)?.0)
    }
    fn loss(&self, ids: &Tensor, targets: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, routers) = self.hidden(ids, mode)?;
        let loss = match self.config.logits_softcap {
            Some(_) => cross_entropy(&self.logits(&x)?, targets, CrossEntropy::default())?,
            // All logits at once would be the largest tensor of a step.
            None => {
                let head = self.head.rows(x.dtype())?;
                linear_cross_entropy(&self.scaled(&x)?, &head, targets, LinearCrossEntropy::default())?
            }
        };
        match mixture::balance(&self.config, &routers)? {
            Some(balance) => loss.add(&balance),
            None => Ok(loss),
        }
    }
    fn state(&self) -> Vec<Planned<'static>> {
        files::state(self)
    }
    fn load_state(&self, tensors: &[TensorView<'_>]) -> Result<()> {
        files::load(self, tensors)
    }
    fn continuation(&self) -> Result<Box<dyn Continuation + '_>> {
        Ok(Box::new(continued::Text::new(self)))
    }
}

/// Runs a block; with recomputation only its input is kept for the backward pass. Also returns the router's logits of a mixture of experts.
fn run(block: &Block, x: &Tensor, mode: Mode<'_>, angles: &[Angles]) -> Result<(Tensor, Option<Tensor>)> {
    if mode.recompute < Recompute::Block {
        return block.forward(x, &Pass { mode, angles: angles.to_vec(), past: None });
    }
    let sparse = block.is_sparse();
    let (block, counter, angles) = (block.clone(), mode.counter.cloned(), angles.to_vec());
    let Mode { dropout, seed, pass, .. } = mode;
    let again = move |x: &Tensor| {
        // Within the block activations are kept during its own backward pass.
        let mode = Mode { dropout, seed, pass, counter: counter.as_ref(), recompute: Recompute::None };
        block.forward(x, &Pass { mode, angles: angles.clone(), past: None })
    };
    if !sparse {
        return checkpoint("decoder_block", x, move |x| Ok(again(x)?.0)).map(|y| (y, None));
    }
    let both = move |x: &Tensor| match again(x)? {
        (y, Some(logits)) => Ok([y, logits]),
        (_, None) => Err(Error::internal("decoder: a mixture of experts without its router's logits")),
    };
    let [y, logits] = checkpoint_all("decoder_block", x, both)?;
    Ok((y, Some(logits)))
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod gpt2_tests;
#[cfg(test)]
mod paged_tests;
#[cfg(test)]
mod tests;
