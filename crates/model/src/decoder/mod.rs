//! Decoder-only transformers of many families: one model, described by data ([`DecoderConfig`]), which selects norms, positions, attention and
//! MLP. A family is a row of [`FAMILIES`] with the names in its files.
//!
//! `config.rs` has every choice that distinguishes decoders. `shapes.rs` is the only list of parameters: count, initial values, files and state
//! follow from it. A layer is a token mixer and an MLP (`block.rs`), and decoding keeps one state per layer (`state`). On several devices a decoder
//! is a list of stages (`stage.rs`).

mod activation;
mod adapted;
mod ahead;
mod angles;
mod batch;
mod block;
mod cache;
mod check;
mod config;
mod continued;
mod costs;
mod defaults;
mod families;
mod family;
mod field_rules;
mod fields;
mod files;
mod folder;
mod freeze;
mod lister;
mod lora;
mod low_rank;
mod mixer;
mod mixture;
mod norm;
mod paged;
mod part;
mod pass;
mod projection;
mod read;
mod rotary;
mod shapes;
mod sidecars;
mod stage;
mod stage_step;
mod state;
mod step;
mod store;
mod weight;
mod whole;
mod wrapper;
mod write;

pub use activation::Activation;
pub use batch::{Batch, Queued};
pub use block::rows_at_a_time;
pub use cache::Cache;
pub use config::{
    DecoderConfig, LayerKind, MlpConfig, MoeConfig, NormConfig, NormKind, Placement, Positions, Sizes,
};
pub use families::{FAMILIES, FileFacts, Row};
pub use family::{ExpertNames, Family, Names};
pub use folder::{ModelFolder, adapter_base, broken_weights, is_adapter, model_folder};
pub use freeze::Freeze;
pub use lister::ParamShape;
pub use lora::{Lora, MapAdapter};
#[doc(hidden)]
pub use mixer::MOVING_AVERAGE;
pub use mixer::{AttentionConfig, MixerCosts, MixerName, QkNorm};
pub use paged::{Line, Paged, Pending, step_sizes};
pub use part::decoder_of;
pub use rotary::{Rotary, Scaling};
pub use sidecars::{MODULES, sidecars};
pub use stage::Span;
pub use state::{CacheType, Reach, StateSpec};

use crate::checkpoint::{TensorData, TensorToWrite, TensorView};
use crate::layers::Mode;
use crate::layers::Recompute;
use crate::model::{Continuation, Model};
use crate::params::Params;
use adapted::DecoderAdapters;
use block::Block;
use netcl_tensor::ops::cross_entropy::{CrossEntropy, Reduction, cross_entropy};
use netcl_tensor::ops::linear_cross_entropy::{
    LinearCrossEntropy, linear_cross_entropy, linear_cross_entropy_of_blocks,
};
use netcl_tensor::quant::Blocks;
use netcl_tensor::tape::{HostMemory, checkpoint, checkpoint_all, layer};
use netcl_tensor::{DType, Device, Error, Result, Tensor};
use pass::{Angles, Pass, Past};
use stage::{Stage, carried};
use state::LayerState;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A decoder on a device, or with its layers distributed over several ([`Span`]), which supports inference only.
pub struct Decoder {
    config: Arc<DecoderConfig>,
    /// Parameters of all local stages.
    params: Params,
    shapes: Vec<ParamShape>,
    stages: Vec<Stage>,
    /// Adapters that are trained.
    adapters: Option<DecoderAdapters>,
    /// Where inputs of blocks are between forward and backward pass, if the device does not keep them.
    host: Arc<HostMemory>,
}

impl Decoder {
    /// Returns a new model with weights drawn from a normal distribution. The standard deviation is 0.02, and 0.02 / sqrt(2 layers) for output
    /// projections into the residual stream (GPT-2).
    ///
    /// # Errors
    /// `Shape` for inconsistent sizes; `Memory` if the device cannot hold the weights, before anything is allocated.
    pub fn new(device: &Device, config: DecoderConfig, dtype: DType, seed: u64) -> Result<Self> {
        Self::partly_frozen(device, config, dtype, Some(seed), &Freeze::default())
    }

    /// Does the same; parameters that match `freeze` get no gradient. Without a seed all are zero, to be loaded afterwards.
    ///
    /// # Errors
    /// Same as [`new`](Self::new); `Format` for a pattern that matches nothing or a part of a packed parameter.
    pub fn partly_frozen(
        device: &Device,
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        freeze: &Freeze,
    ) -> Result<Self> {
        config.check().and_then(|()| config.check_memory(device, dtype)).map_err(|e| e.context("decoder"))?;
        let span = Span { device: device.clone(), layers: 0..config.layers };
        Self::made(&[span], config, dtype, seed, freeze, BTreeMap::new())
    }

    /// Returns a model in which quantized blocks replace some matrices, by parameter name. Only its adapters can be trained
    /// ([`add_lora`](Self::add_lora)). The other parameters are drawn from `seed`; without one they are zero, to be loaded afterwards.
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
        let span = Span { device: device.clone(), layers: 0..config.layers };
        Self::divided(&[span], config, dtype, seed, blocks)
    }

    /// Does the same with the layers on several devices, which may include one device several times. The embedding is on the first device, the head
    /// on the last; if they are tied, the last one has a copy. Blocks are on the device of their layer.
    ///
    /// # Errors
    /// Same as [`with_blocks`](Self::with_blocks); `Shape` for spans that are not all layers in order.
    pub fn divided(
        spans: &[Span],
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        blocks: BTreeMap<String, Vec<Blocks>>,
    ) -> Result<Self> {
        config.check().map_err(|e| e.context("decoder"))?;
        Span::check(spans, &config)?;
        for (name, parts) in &blocks {
            let mut all = spans.iter().flat_map(|span| shapes::of_layers(&config, span.layers.clone()));
            let shape = all.find(|shape| shape.name == *name && shape.takes_blocks(&config));
            let shape = shape.ok_or_else(|| {
                Error::format(format!(
                    "decoder: blocks for {name}, which is neither a map's matrix nor the embedding"
                ))
            })?;
            let rows: usize = parts.iter().map(|part| part.dims()[0]).sum();
            let (columns, above) = shape.dims.split_last().unwrap_or((&0, &[]));
            let wide = parts.iter().all(|part| part.dims()[1] == *columns);
            if !wide || rows != above.iter().product::<usize>() || shape.of_experts() && parts.len() > 1 {
                return Err(Error::shape(format!("decoder: blocks {parts:?} for {name} {:?}", shape.dims)));
            }
        }
        Self::made(spans, config, dtype, seed, &Freeze::default(), blocks)
    }

    /// Adds a product of two small matrices, a (r, in) and b (out, r), to quantized blocks: `y = x wᵀ + x aᵀ bᵀ` (LoRA, Hu et al. 2021). `name` is
    /// that of the parameter, or that of the head, even if the head is tied to the embedding. A step then takes several launches.
    ///
    /// # Errors
    /// `Shape` for other sizes; `Format` if no blocks have this name; `Memory`.
    pub fn add_low_rank(&mut self, name: &str, rank: usize, a: &[f32], b: &[f32]) -> Result<()> {
        let added = self.stages.iter_mut().find_map(|stage| stage.add_low_rank(name, rank, [a, b]));
        added.unwrap_or_else(|| Err(Error::format(format!("decoder: no blocks of {name}"))))
    }

    fn made(
        spans: &[Span],
        config: DecoderConfig,
        dtype: DType,
        seed: Option<u64>,
        freeze: &Freeze,
        mut blocks: BTreeMap<String, Vec<Blocks>>,
    ) -> Result<Self> {
        let config = Arc::new(config);
        let lists: Vec<Vec<ParamShape>> =
            spans.iter().map(|span| shapes::of_layers(&config, span.layers.clone()).collect()).collect();
        let mut frozen = part::frozen(&config, &lists.concat(), freeze)?.into_iter();
        let mut shapes = Vec::new();
        let mut parts = Vec::new();
        let mut stages = Vec::new();
        for (span, list) in spans.iter().zip(lists) {
            let mut own = BTreeMap::new();
            let mut dense = Vec::new();
            for (shape, frozen) in list.into_iter().zip(frozen.by_ref()) {
                match blocks.remove_entry(&shape.name) {
                    Some((name, parts)) => drop(own.insert(name, parts)),
                    None => dense.push((shape, frozen)),
                }
            }
            let (mut params, ()) = Params::build(&span.device, dtype, seed, |params| {
                dense.iter().try_for_each(|(shape, frozen)| {
                    let dims = shape.dims.as_slice();
                    match frozen {
                        true => params.make_frozen(&shape.name, dims, shape.init),
                        false => params.make(&shape.name, dims, shape.init),
                    }
                    .map(drop)
                })
            })?;
            params.hold(own);
            stages.push(Stage::new(&params, &config, span)?);
            shapes.extend(dense.into_iter().map(|(shape, _)| shape));
            parts.push(params);
        }
        let params = Params::joined(parts).ok_or_else(|| Error::internal("decoder: no stages"))?;
        let decoder = Self { config, params, shapes, stages, adapters: None, host: Arc::default() };
        decoder.copy_embedding()?;
        Ok(decoder)
    }

    /// Copies the embedding's initial values to the head of a tied model on another device.
    fn copy_embedding(&self) -> Result<()> {
        if !self.first()?.is_first() {
            return Ok(());
        }
        let mut all = self.shapes.iter().zip(self.params.list());
        let Some((shape, copy)) = all.find(|(shape, _)| shape.is_copy(&self.config)) else { return Ok(()) };
        match self.shapes.iter().zip(self.params.list()).next() {
            Some((first, table)) if first.pieces == shape.pieces => stage::carry(table, copy),
            _ => Err(Error::format(format!(
                "decoder: blocks for the embedding, but not for its copy {}",
                shape.name
            ))),
        }
    }

    /// Returns the devices with their layers.
    pub fn spans(&self) -> impl Iterator<Item = &Span> {
        self.stages.iter().map(|stage| &stage.span)
    }

    /// Returns the parameters in memory, in order: those of the configuration without quantized ones, plus the copy of a tied embedding.
    pub fn shapes(&self) -> &[ParamShape] {
        &self.shapes
    }

    /// Returns the device of the head, where tokens are sampled; [`Params::device`] is that of the embedding.
    pub fn last_device(&self) -> &Device {
        self.stages.last().map_or_else(|| self.params.device(), Stage::device)
    }

    /// Waits for all its devices.
    ///
    /// # Errors
    /// Errors of the devices.
    pub fn finish(&self) -> Result<()> {
        self.stages.iter().try_for_each(|stage| stage.device().finish())
    }

    fn first(&self) -> Result<&Stage> {
        self.stages.first().ok_or_else(|| Error::internal("decoder: no stages"))
    }

    fn last(&self) -> Result<&Stage> {
        self.stages.last().ok_or_else(|| Error::internal("decoder: no stages"))
    }

    /// Takes ids `(B, T)` → input of the output head `(B, T, C)`, and the logits of all routers, (B, T, E) each.
    fn hidden(&self, ids: &Tensor, mode: Mode<'_>) -> Result<(Tensor, Vec<Tensor>)> {
        let mut x = self.entered(ids, mode)?;
        if mode.recompute >= Recompute::Block && !x.requires_grad() {
            // A block is recomputed only if its input has a gradient. That of a frozen embedding is not used.
            x = x.parameter("rows of a frozen embedding");
        }
        let (x, routers) = self.blocks(&x, mode)?;
        Ok((self.last()?.normed(&x)?, routers))
    }

    /// Takes x `(B, T, C)` before the first block → after the last one, and the logits of all routers.
    fn blocks(&self, x: &Tensor, mode: Mode<'_>) -> Result<(Tensor, Vec<Tensor>)> {
        let [_, t, _] = x.dims3()?;
        let (mut x, mut routers) = (x.clone(), Vec::new());
        for stage in &self.stages {
            x = carried(&x, stage.device())?;
            let positions = mode.positions.map(|positions| carried(positions, stage.device())).transpose()?;
            let angles =
                positions.as_ref().map_or_else(|| stage.angles(0..t, t), |own| stage.angles_at(own))?;
            let mode = Mode { positions: positions.as_ref(), ..mode };
            for (i, block) in stage.span.layers.clone().zip(&stage.blocks) {
                let number = u32::try_from(i + 1).unwrap_or(u32::MAX);
                let (y, logits) = layer(number, || run((block, &self.host), &x, mode, &angles))?;
                x = y;
                routers.extend(logits);
            }
        }
        Ok((x, routers))
    }

    /// Takes the input of the output head `(B, T, C)` and targets `(B, T)` → mean cross entropy, or the sum times `weight`, a scalar.
    fn cross_entropy(&self, x: &Tensor, targets: &Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
        let reduction = if weight.is_some() { Reduction::Sum } else { Reduction::Mean };
        let loss = self.reduced_cross_entropy(x, targets, reduction)?;
        weight.map_or(Ok(loss.clone()), |weight| loss.mul(&weight.reshape([])?))
    }

    /// Takes the same → cross entropy, a scalar, or `(B, T)` without reduction.
    fn reduced_cross_entropy(&self, x: &Tensor, targets: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let (stage, targets) = (self.last()?, carried(targets, self.last_device())?);
        match self.config.logits_softcap {
            Some(_) => cross_entropy(
                &stage.logits(x)?,
                &targets,
                CrossEntropy { reduction, ..CrossEntropy::default() },
            ),
            // The logits of all rows would be the largest tensor of a step.
            None => {
                let (head, x) = (&stage.exit()?.head, stage.scaled(x)?);
                let options = LinearCrossEntropy::with(reduction);
                match head.blocks_alone() {
                    Some(blocks) => linear_cross_entropy_of_blocks(&x, blocks, &targets, options),
                    None => linear_cross_entropy(&x, &head.rows(x.dtype())?, &targets, options),
                }
            }
        }
    }

    /// Takes ids `(B, T)` → hidden states after the last norm `(B, T, C)`, the input of the output head.
    ///
    /// # Errors
    /// Same as [`Model::forward`].
    pub fn features(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.hidden(ids, mode)?.0)
    }

    /// Takes ids `(B, T)` after `start` tokens of a text of `length` tokens, with their `states`, or in `pages` of them → input of the last norm (B,
    /// T, C).
    fn passed(
        &self,
        ids: &Tensor,
        (start, length): (usize, usize),
        states: &[LayerState],
        pages: Option<&[u32]>,
    ) -> Result<Tensor> {
        let (mut x, end) = self.first()?.embedded(ids, start, None)?;
        for stage in &self.stages {
            x = carried(&x, stage.device())?;
            let table = |pages: &[u32]| Tensor::from_u32(stage.device(), [pages.len()], pages);
            let table = pages.map(table).transpose()?;
            let past = Some(Past { states, start, pages: table.as_ref() });
            let angles = stage.angles(start..end, length)?;
            x = stage.forward(&x, &Pass { mode: Mode::eval(), angles, past })?;
        }
        Ok(x)
    }

    /// Returns each layer's device and the decoding state of a text there.
    fn states(&self) -> impl Iterator<Item = (&Device, StateSpec)> {
        self.stages.iter().flat_map(Stage::states)
    }

    /// Returns the weights in the layout of the family's `model.safetensors`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tensors(&self) -> Result<Vec<TensorData>> {
        self.state().iter().map(TensorToWrite::take).collect()
    }

    /// Loads weights by name, with or without the family's prefix.
    ///
    /// # Errors
    /// Same as [`Model::load_state`].
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
    fn tied_embedding(&self) -> Option<&Tensor> {
        let [stage] = self.stages.as_slice() else { return None };
        let table = stage.tied_table()?;
        self.params.list().iter().find(|param| param.name() == table.name() && param.requires_grad())
    }
    fn forward(&self, ids: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.last()?.logits(&self.hidden(ids, mode)?.0)
    }
    fn loss(&self, ids: &Tensor, targets: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, routers) = self.hidden(ids, mode)?;
        let loss = self.cross_entropy(&x, targets, mode.loss_weight)?;
        match mixture::balance(&self.config, &routers)? {
            Some(balance) => loss.add(&balance),
            None => Ok(loss),
        }
    }
    fn token_losses(
        &self,
        ids: &Tensor,
        targets: &Tensor,
        mode: Mode<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (x, routers) = self.hidden(ids, mode)?;
        Ok((
            self.reduced_cross_entropy(&x, targets, Reduction::None)?,
            mixture::balance(&self.config, &routers)?,
        ))
    }
    fn state(&self) -> Vec<TensorToWrite<'static>> {
        if self.adapters.is_some() { self.adapter_state() } else { files::state(self) }
    }
    fn load_state(&self, tensors: &[TensorView<'_>]) -> Result<()> {
        if self.adapters.is_some() { self.load_adapters(tensors) } else { files::load(self, tensors) }
    }
    fn continuation(&self) -> Result<Box<dyn Continuation + '_>> {
        Ok(Box::new(continued::Text::new(self)))
    }
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}

/// Runs a block; with recomputation only its input is kept for the backward pass. Also returns the router's logits of a mixture of experts.
fn run(
    (block, host): (&Block, &Arc<HostMemory>),
    x: &Tensor,
    mode: Mode<'_>,
    angles: &[Angles],
) -> Result<(Tensor, Option<Tensor>)> {
    if mode.recompute < Recompute::Block {
        return block.forward(x, &Pass { mode, angles: angles.to_vec(), past: None });
    }
    let offload = mode.recompute == Recompute::Offload;
    let x = &if offload { host.keep(x)? } else { x.clone() };
    let sparse = block.is_sparse();
    let (block, counter, angles) = (block.clone(), mode.counter.cloned(), angles.to_vec());
    let positions = mode.positions.cloned();
    let Mode { dropout, seed, pass, rows_before, .. } = mode;
    let again = move |x: &Tensor| {
        // Within the block activations are kept during its own backward pass, except those of an MLP if memory is short.
        let recompute = if offload { Recompute::Offload } else { Recompute::None };
        let (counter, positions) = (counter.as_ref(), positions.as_ref());
        let mode = Mode { dropout, seed, pass, rows_before, counter, positions, recompute, ..Mode::eval() };
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
mod divided_tests;
#[cfg(test)]
mod gpt2_tests;
#[cfg(test)]
mod hybrid_tests;
#[cfg(test)]
mod packed_tests;
#[cfg(test)]
mod paged_tests;
#[cfg(test)]
mod tests;
