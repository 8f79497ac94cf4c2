//! One token of each text at a time: a step that is captured once and replayed for every position, because tokens and position are read from
//! device memory. Its launches are few: norm and map are one, so are a map, its activation and the residual stream, and so is attention with
//! rotary positions and the writing of the cache.

use super::block::{Angles, Norm, StepAt};
use super::rotary::Rotary;
use super::weight::Weight;
use super::{Cache, Decoder};
use netcl_tensor::graph::Graph;
use netcl_tensor::ops::decode_embedding::decode_embedding;
use netcl_tensor::ops::fused_linear::{Around, Before};
use netcl_tensor::{Error, Result, Tensor, no_grad};
use std::ops::RangeInclusive;

/// Steps behind the tokens of one cache.
pub(super) struct Steps {
    /// u32 (B + 1): a token of each text, then how many tokens are before.
    input: Tensor,
    /// Cosines and sines for every row of the cache.
    angles: Vec<Angles>,
    /// Numbers of tokens, the new one among them, for which those are right.
    lengths: RangeInclusive<usize>,
    state: State,
}

enum State {
    /// Nothing ran yet.
    Cold,
    /// One step ran: its kernels are compiled.
    Warm,
    /// Steps are replayed; the logits are (B, V).
    Captured(Graph, Tensor),
    /// The device refused to capture one.
    Eager,
}

impl Norm {
    /// The norm as a map takes it along.
    pub(super) fn before(&self) -> Before<'_> {
        let (gamma, beta) = self.parts();
        Before { gamma, beta, unit_offset: self.config().unit_offset, eps: self.config().eps }
    }
}

impl Steps {
    /// For texts of `length` tokens, the first new one among them.
    pub(super) fn new(decoder: &Decoder, cache: &Cache, length: usize) -> Result<Self> {
        let device = decoder.params.device();
        let (batch, room) = (cache.batch(), cache.room().min(decoder.config.context));
        let sets = &decoder.config.rotary;
        let angles = sets.iter().map(|set| set.rows(device, room, length)).collect::<Result<_>>()?;
        let input = Tensor::from_u32(device, [batch + 1], &vec![0; batch + 1])?;
        Ok(Self { input, angles, lengths: lengths(sets, length), state: State::Cold })
    }

    /// Whether the next step is for texts of `length` tokens.
    pub(super) fn fit(&self, length: usize) -> bool {
        self.lengths.contains(&length)
    }

    /// The next token of each text → logits `(B, V)`, which the next step overwrites. The cache has room for it.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn run(&mut self, decoder: &Decoder, cache: &mut Cache, tokens: &[u32]) -> Result<Tensor> {
        let batch = cache.batch();
        if tokens.len() != batch || cache.length >= cache.room() {
            return Err(Error::shape(format!(
                "decoder: {} tokens behind {} in a cache for {batch} texts of {} tokens",
                tokens.len(),
                cache.length,
                cache.room()
            )));
        }
        let words = tokens.iter().copied().chain([cache.length as u32]);
        self.input.set_bytes(&words.flat_map(u32::to_le_bytes).collect::<Vec<_>>())?;
        let logits = self.advance(decoder, cache)?;
        cache.length += 1;
        Ok(logits)
    }

    fn advance(&mut self, decoder: &Decoder, cache: &Cache) -> Result<Tensor> {
        let step = |steps: &Self| no_grad(|| decoder.step(&steps.input, &steps.angles, cache));
        match &self.state {
            State::Captured(graph, logits) => return graph.replay().map(|()| logits.clone()),
            State::Eager => return step(self),
            State::Cold => {
                let logits = step(self)?;
                self.state = State::Warm;
                return Ok(logits);
            }
            State::Warm => {}
        }
        match Graph::capture(decoder.params.device(), || step(self)) {
            Ok((graph, logits)) => {
                tracing::debug!("captured a step of decoding: {} launches", graph.commands().0);
                graph.replay()?;
                self.state = State::Captured(graph, logits.clone());
                Ok(logits)
            }
            Err(e) => {
                tracing::warn!("tokens are not made from a captured step: {e}");
                self.state = State::Eager;
                step(self)
            }
        }
    }

    /// Launches of a step, once it is captured.
    pub(super) fn launches(&self) -> Option<usize> {
        if let State::Captured(graph, _) = &self.state { Some(graph.commands().0) } else { None }
    }
}

/// Numbers of tokens for which the angles of `length` of them are right.
fn lengths(sets: &[Rotary], length: usize) -> RangeInclusive<usize> {
    sets.iter().fold(0..=usize::MAX, |all, set| {
        let own = set.same_angles(length);
        *all.start().max(own.start())..=*all.end().min(own.end())
    })
}

impl Decoder {
    /// input u32 `(B + 1)` → logits `(B, V)`.
    fn step(&self, input: &Tensor, angles: &[Angles], cache: &Cache) -> Result<Tensor> {
        let batch = cache.batch();
        let ids = input.slice(0, 0..batch)?.reshape([batch, 1])?;
        let position = input.slice(0, batch..batch + 1)?;
        let places = self.positions.as_ref().map(|(table, _)| (table, &position));
        let scale = self.config.embedding_scale;
        let mut x = match &self.embedding {
            Weight::Dense { tensor, .. } => decode_embedding(tensor, &ids, scale, places)?,
            blocks => blocks.gather(&ids, scale, self.params.dtype())?,
        }; // (B, 1, C)
        let at = StepAt { angles, layers: &cache.layers, position: &position };
        for block in &self.blocks {
            x = block.step(&x, &at)?;
        }
        let x = x.reshape([batch, self.config.width])?;
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.config.logits_scale != 1.0 || self.config.logits_softcap.is_some() {
            return self.logits(&self.last_norm.forward(&x)?);
        }
        let around = Around { norm: Some(self.last_norm.before()), ..Around::default() };
        self.head.around(&x, around)
    }
}
