//! Pipeline stages (Huang et al. 2018, "GPipe"): consecutive layers of a decoder on one device, with the embedding before the first layer and the
//! head after the last. A decoder on one device is one stage.
//!
//! A stage does not know the others. Its inputs and outputs are tokens, rows (B, T, C) of the residual stream, or logits. States stay on the device
//! of their layers. The caller of the stages transfers the rows: [`carried`] copies them through host memory from one device to another; another
//! transport can replace it.

use super::block::Block;
use super::config::{DecoderConfig, Positions};
use super::lister::parameter;
use super::norm::Norm;
use super::pass::{Angles, Pass};
use super::state::StateSpec;
use super::weight::{RowMajor, Weight};
use crate::layers::sinusoidal_positions;
use crate::params::Params;
use netcl_tensor::ops::embedding::embedding;
use netcl_tensor::{DType, Device, Error, Result, Tensor};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Consecutive layers of a decoder, and their device.
#[derive(Clone, Debug)]
pub struct Span {
    /// The device.
    pub device: Device,
    /// Layer range, from 0.
    pub layers: Range<usize>,
}

impl Span {
    /// Returns spans from the number of layers per device, in order.
    pub fn in_order(layers: impl IntoIterator<Item = (Device, usize)>) -> Vec<Self> {
        let mut start = 0;
        let span = |(device, count): (Device, usize)| {
            start += count;
            Self { device, layers: start - count..start }
        };
        layers.into_iter().map(span).collect()
    }

    /// Checks that spans are all layers of a model, in order, and that none of them is empty.
    ///
    /// # Errors
    /// `Shape`.
    pub(super) fn check(spans: &[Self], config: &DecoderConfig) -> Result<()> {
        let mut next = 0;
        for span in spans {
            if span.layers.start != next || span.layers.is_empty() {
                break;
            }
            next = span.layers.end;
        }
        if spans.is_empty() || next != config.layers || spans.iter().any(|span| span.layers.is_empty()) {
            return Err(Error::shape(format!(
                "decoder: layers {spans:?}, expected all of 0 to {} in order, at least one on each device",
                config.layers - 1
            )));
        }
        Ok(())
    }
}

/// Copies rows of the residual stream, or tokens, to the device of another stage through the host, bit-identically.
///
/// # Errors
/// `Unsupported` if gradients are recorded, because they would not flow back. Device errors.
pub(super) fn carried(x: &Tensor, to: &Device) -> Result<Tensor> {
    if x.device().same(to) {
        return Ok(x.clone());
    }
    if x.requires_grad() {
        return Err(Error::unsupported("decoder: gradients of a model whose layers are on several devices"));
    }
    x.to_device(to)
}

/// Does the same into existing memory. Waits for the device of `x`.
///
/// # Errors
/// Device errors.
pub(super) fn carry(x: &Tensor, to: &Tensor) -> Result<()> {
    to.set_bytes(&x.to_bytes()?)
}

/// The part before the first layer.
pub(super) struct Entry {
    pub(super) embedding: Weight,
    /// Learned or sinusoidal position embeddings (context, C), and the indices 0, 1, … for the lookup.
    pub(super) positions: Option<(Tensor, Tensor)>,
}

/// The part after the last layer.
pub(super) struct Exit {
    pub(super) last_norm: Norm,
    /// Output head (V, C).
    pub(super) head: Weight,
}

/// Layers on a device.
pub(super) struct Stage {
    pub(super) span: Span,
    pub(super) config: Arc<DecoderConfig>,
    pub(super) dtype: DType,
    /// Set in the first stage.
    entry: Option<Entry>,
    pub(super) blocks: Vec<Block>,
    /// Set in the last stage.
    exit: Option<Exit>,
    /// Rotary tables of each set of frequencies for the longest sequence so far.
    angles: Mutex<Vec<Option<(usize, Angles)>>>,
    /// Copies of matrices for steps in one launch, while such steps exist.
    pub(super) row_major: Mutex<Weak<Vec<RowMajor>>>,
}

impl Entry {
    fn new(params: &Params, config: &DecoderConfig) -> Result<Self> {
        let (names, device) = (config.family.names, params.device());
        let counted = || {
            let numbers: Vec<u32> = (0..config.context as u32).collect();
            Tensor::from_u32(device, [config.context], &numbers)
        };
        let positions = match config.positions {
            Positions::Learned => {
                let table = parameter(params, &format!("{}{}.weight", names.prefix, names.positions))?;
                Some((table, counted()?))
            }
            Positions::Sinusoidal => {
                let table = sinusoidal_positions(device, config.context, config.width, params.dtype())?;
                Some((table, counted()?))
            }
            Positions::Rotary => None,
        };
        let embedding = Weight::of(params, &format!("{}{}.weight", names.prefix, names.embedding), false)?;
        Ok(Self { embedding, positions })
    }
}

impl Exit {
    /// Creates the part after the layers. The head of a tied model is the embedding, or its copy on another device.
    fn new(params: &Params, config: &DecoderConfig, entry: Option<&Entry>) -> Result<Self> {
        let names = config.family.names;
        let last_norm = Norm::new(params, &format!("{}{}", names.prefix, names.last_norm), config.norm)?;
        let head = match entry.filter(|_| config.tied) {
            Some(entry) => entry.embedding.clone(),
            None => Weight::of(params, &format!("{}.weight", names.head), false)?,
        };
        Ok(Self { last_norm, head })
    }
}

impl Stage {
    /// Creates the layers of `span` from parameters on its device.
    pub(super) fn new(params: &Params, config: &Arc<DecoderConfig>, span: &Span) -> Result<Self> {
        let first = span.layers.start == 0;
        let entry = if first { Some(Entry::new(params, config)?) } else { None };
        let last = span.layers.end == config.layers;
        let exit = if last { Some(Exit::new(params, config, entry.as_ref())?) } else { None };
        let blocks = span.layers.clone().map(|i| Block::new(params, config, i)).collect::<Result<_>>()?;
        Ok(Self {
            span: span.clone(),
            config: Arc::clone(config),
            dtype: params.dtype(),
            entry,
            blocks,
            exit,
            angles: Mutex::new(vec![None; config.rotary.len()]),
            row_major: Mutex::new(Weak::new()),
        })
    }

    /// Adds a product to the blocks with this name, if they are local: a map's, the embedding's or the head's.
    pub(super) fn add_low_rank(&mut self, name: &str, rank: usize, parts: [&[f32]; 2]) -> Option<Result<()>> {
        let names = self.config.family.names;
        let found = if name == format!("{}.weight", names.head) {
            self.exit.as_mut().map(|exit| &mut exit.head)
        } else if name == format!("{}{}.weight", names.prefix, names.embedding) {
            self.entry.as_mut().map(|entry| &mut entry.embedding)
        } else {
            self.blocks.iter_mut().find_map(|block| block.blocks_of(name))
        };
        let _tag = self.span.device.tag("adapters");
        found.map(|weight| weight.add_low_rank(rank, parts, (&self.span.device, self.dtype)))
    }

    pub(super) fn device(&self) -> &Device {
        &self.span.device
    }

    /// Returns the part before its layers; `Internal` if that is another stage.
    pub(super) fn entry(&self) -> Result<&Entry> {
        self.entry.as_ref().ok_or_else(|| Error::internal("decoder: no embedding in a stage after the first"))
    }

    /// Returns the part after its layers; `Internal` if that is another stage.
    pub(super) fn exit(&self) -> Result<&Exit> {
        self.exit.as_ref().ok_or_else(|| Error::internal("decoder: no head in a stage before the last"))
    }

    /// Returns the dense table that is both its embedding and its head.
    pub(super) fn tied_table(&self) -> Option<&Tensor> {
        match &self.entry.as_ref()?.embedding {
            Weight::Dense { tensor, .. } if self.config.tied && self.is_last() => Some(tensor),
            _ => None,
        }
    }

    pub(super) fn is_first(&self) -> bool {
        self.entry.is_some()
    }
    pub(super) fn is_last(&self) -> bool {
        self.exit.is_some()
    }

    /// Rotary tables of every set for positions `start` to `end` - 1 of a text of `length` tokens, as slices of cached tables.
    pub(super) fn angles(&self, Range { start, end }: Range<usize>, length: usize) -> Result<Vec<Angles>> {
        let mut kept = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = Vec::with_capacity(kept.len());
        for (set, slot) in self.config.rotary.iter().zip(kept.iter_mut()) {
            let fits = slot
                .as_ref()
                .is_some_and(|(longest, _)| length <= *longest && set.same_up_to(*longest).contains(&length));
            if !fits {
                // With a reserve: generation needs one more position per token.
                let room = length.next_power_of_two().min(self.config.context).max(length);
                let room = if set.same_up_to(room).contains(&length) { room } else { length };
                *slot = Some((room, set.tables(self.device(), room)?));
            }
            if let Some((_, [cosines, sines])) = slot {
                out.push([cosines.slice(0, start..end)?, sines.slice(0, start..end)?]);
            }
        }
        Ok(out)
    }

    /// Rotary tables of every set for tokens at these positions in their documents, u32 (B, T): (B * T, R/2) each.
    ///
    /// # Errors
    /// `Unsupported` if the angles depend on the length of a text.
    pub(super) fn angles_at(&self, positions: &Tensor) -> Result<Vec<Angles>> {
        let [b, t] = positions.dims2()?;
        if self.config.rotary.iter().any(|set| !set.same_up_to(t).contains(&1)) {
            return Err(Error::unsupported(format!(
                "decoder: rows of {t} tokens with several documents, but the model's rotary angles depend on the length of a text; use a shorter \
                 --context, or train without --pack"
            )));
        }
        let rows = |table: &Tensor| embedding(table, positions)?.reshape([b * t, table.shape().last()]);
        self.angles(0..t, t)?.iter().map(|[cosines, sines]| Ok([rows(cosines)?, rows(sines)?])).collect()
    }

    /// Takes ids `(B, T)` of the tokens from position `start` → their embeddings `(B, T, C)`, and the number of tokens so far.
    /// With `documents`, the tokens have these positions (B, T).
    pub(super) fn embedded(
        &self,
        ids: &Tensor,
        start: usize,
        documents: Option<&Tensor>,
    ) -> Result<(Tensor, usize)> {
        let [_, t] = ids.dims2().map_err(|e| e.context("decoder: ids"))?;
        let end = start.saturating_add(t);
        if end > self.config.context {
            return Err(Error::shape(format!(
                "decoder: {end} tokens exceed the context of {}; keep the last ones",
                self.config.context
            )));
        }
        let Entry { embedding: table, positions } = self.entry()?;
        let scale = self.config.embedding_scale;
        #[allow(clippy::float_cmp)] // a setting, not a result
        let mut x = match table {
            Weight::Dense { tensor, .. } if scale != 1.0 => embedding(tensor, ids)?.mul_scalar(scale)?,
            Weight::Dense { tensor, .. } => embedding(tensor, ids)?,
            blocks => blocks.gather(ids, scale, self.dtype)?,
        }; // (B, T, C)
        if let Some((table, numbers)) = positions {
            let numbers = documents.map_or_else(|| numbers.slice(0, start..end), |own| Ok(own.clone()))?;
            x = x.add(&embedding(table, &numbers)?)?;
        }
        Ok((x, end))
    }

    /// Returns the device and the decoding state of a text for each of its layers.
    pub(super) fn states(&self) -> impl Iterator<Item = (&Device, StateSpec)> {
        self.span.layers.clone().map(|i| (self.device(), self.config.state(i)))
    }

    /// Takes x `(B, T, C)` → `(B, T, C)` after its layers.
    pub(super) fn forward(&self, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        self.blocks.iter().try_fold(x.clone(), |x, block| Ok(block.forward(&x, pass)?.0))
    }

    /// Takes x `(.., C)` after the last layer → input of the output head.
    pub(super) fn normed(&self, x: &Tensor) -> Result<Tensor> {
        self.exit()?.last_norm.forward(x)
    }

    /// Takes the input of the output head `(.., C)` → logits `(.., V)`.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let logits = self.exit()?.head.forward(&self.scaled(x)?, None)?;
        match self.config.logits_softcap {
            Some(cap) => logits.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap),
            None => Ok(logits),
        }
    }

    /// Returns the factor of the logits, applied to the smaller of the head's input and output.
    pub(super) fn scaled(&self, x: &Tensor) -> Result<Tensor> {
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.config.logits_scale == 1.0 { Ok(x.clone()) } else { x.mul_scalar(self.config.logits_scale) }
    }
}
