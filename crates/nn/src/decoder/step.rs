//! One token of each text at a time: a step that is captured once and replayed for every position, because tokens and position are read from
//! device memory. Its launches are few: norm and map are one, so are a map, its activation and the residual stream, and so is attention with
//! rotary positions and the writing of the cache.

use super::block::{Angles, Norm, StepAt};
use super::rotary::Rotary;
use super::weight::Weight;
use super::whole::Whole;
use super::{Cache, Decoder};
use netcl_tensor::graph::Graph;
use netcl_tensor::ops::choose::{Chooser, Texts};
use netcl_tensor::ops::decode_embedding::decode_embedding;
use netcl_tensor::ops::decode_step::Text;
use netcl_tensor::ops::fused_linear::{Around, Before};
use netcl_tensor::{Device, Error, Result, Tensor, no_grad};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Number of sampled tokens that the device stores for each text.
const ROUNDS: usize = 128;

/// Keys and values of the texts of a step.
#[derive(Clone, Copy)]
pub(super) struct Store<'a> {
    /// For each layer (B, S, 2 KH, D), or with pages (P, page, 2 KH, D).
    pub(super) layers: &'a [Tensor],
    /// u32 (B, M): the pages of each text.
    pub(super) pages: Option<&'a Tensor>,
    /// B.
    pub(super) texts: usize,
    /// What they are, if it has no pages.
    pub(super) cache: Option<&'a Cache>,
}

impl Cache {
    pub(super) fn store(&self) -> Store<'_> {
        Store { layers: &self.layers, pages: None, texts: self.batch(), cache: Some(self) }
    }
}

/// Steps behind the tokens of one cache.
pub(super) struct Steps {
    /// Input tokens, positions and sampled tokens.
    texts: Texts,
    /// New tokens of each text (T).
    tokens: usize,
    /// Cosines and sines for every row of the cache.
    angles: Vec<Angles>,
    /// Numbers of tokens, the new one among them, for which those are right.
    lengths: RangeInclusive<usize>,
    state: State,
    /// A step in one launch, where there is one.
    whole: Option<Whole>,
    /// How it is run.
    text: Text,
    choice: Option<(Arc<Chooser>, Choosing)>,
}

/// State of the sampling launches after a captured step.
enum Choosing {
    /// It ran: its kernels are compiled.
    Warm,
    /// It is replayed.
    Captured(Graph),
    /// The device refused to capture it.
    Eager,
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
        let texts = Texts::new(device, batch, ROUNDS)?;
        let lengths = lengths(sets, length);
        Ok(Self::of(texts, 1, angles, lengths))
    }

    /// Nothing has run yet.
    fn of(texts: Texts, tokens: usize, angles: Vec<Angles>, lengths: RangeInclusive<usize>) -> Self {
        let (state, text) = (State::Cold, Text::Ring);
        Self { texts, tokens, angles, lengths, state, whole: None, text, choice: None }
    }

    /// For `texts` texts of any lengths among those that `angles` are right for, `tokens` new tokens each.
    pub(super) fn ragged(
        device: &Device,
        (texts, tokens): (usize, usize),
        angles: Vec<Angles>,
        lengths: RangeInclusive<usize>,
    ) -> Result<Self> {
        let texts = Texts::ragged(device, texts * tokens, ROUNDS, texts)?;
        Ok(Self::of(texts, tokens, angles, lengths))
    }

    /// Whether the next step is for texts of `length` tokens.
    pub(super) fn fit(&self, length: usize) -> bool {
        self.lengths.contains(&length)
    }

    /// The longest length that the angles are valid for.
    pub(super) fn longest(&self) -> usize {
        *self.lengths.end()
    }

    /// Input tokens, position and sampled tokens on the device.
    pub(super) fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Enqueues a step and the sampling of the next tokens, both without the host. The cache must have capacity for one token.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn go_on(&mut self, decoder: &Decoder, cache: &mut Cache, by: &Arc<Chooser>) -> Result<()> {
        self.next(decoder, cache.store(), by)?;
        cache.length += 1;
        Ok(())
    }

    /// Enqueues a step → logits `(B * T, V)`, which the next one overwrites, and the sampling of a token behind each of the new ones.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn next(&mut self, decoder: &Decoder, store: Store<'_>, by: &Arc<Chooser>) -> Result<Tensor> {
        let logits = self.advance(decoder, store)?;
        self.choose(&logits, by)?;
        Ok(logits)
    }

    fn choose(&mut self, logits: &Tensor, by: &Arc<Chooser>) -> Result<()> {
        let choose = |texts: &Texts| no_grad(|| texts.choose(logits, by));
        let captured = matches!(self.state, State::Captured(..));
        let known = self.choice.as_ref().filter(|(known, _)| captured && Arc::ptr_eq(known, by));
        match known {
            Some((_, Choosing::Captured(graph))) => return graph.replay(),
            Some((_, Choosing::Eager)) => return choose(&self.texts).map(drop),
            Some((_, Choosing::Warm)) => {}
            None => {
                choose(&self.texts)?;
                self.choice = captured.then(|| (Arc::clone(by), Choosing::Warm));
                return Ok(());
            }
        }
        match Graph::capture(logits.device(), || choose(&self.texts)) {
            Ok((graph, _)) => {
                graph.replay()?;
                self.choice = Some((Arc::clone(by), Choosing::Captured(graph)));
                Ok(())
            }
            Err(e) => {
                tracing::warn!("tokens are not chosen by captured launches: {e}");
                self.choice = Some((Arc::clone(by), Choosing::Eager));
                choose(&self.texts).map(drop)
            }
        }
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
        self.texts.set(tokens, cache.length)?;
        let logits = self.advance(decoder, cache.store())?;
        cache.length += 1;
        Ok(logits)
    }

    /// Enqueues a step → logits `(B * T, V)`, which the next one overwrites.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn advance(&mut self, decoder: &Decoder, store: Store<'_>) -> Result<Tensor> {
        let step = |steps: &Self| no_grad(|| decoder.step(steps, store));
        match &self.state {
            State::Captured(graph, logits) => return graph.replay().map(|()| logits.clone()),
            State::Eager => return step(self),
            State::Cold => {
                let logits = step(self)?;
                self.state = State::Warm;
                return Ok(logits);
            }
            State::Warm => {
                let logits = step(self)?;
                self.whole = no_grad(|| decoder.proven_step(self, store, &logits))?;
            }
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

    /// Launches of a step, once it is captured, with those that choose behind it.
    pub(super) fn launches(&self) -> Option<usize> {
        let State::Captured(graph, _) = &self.state else { return None };
        let choosing = match &self.choice {
            Some((_, Choosing::Captured(graph))) => graph.commands().0,
            _ => 0,
        };
        Some(graph.commands().0 + choosing)
    }
}

/// Numbers of tokens for which the angles of `length` of them are right.
pub(super) fn lengths(sets: &[Rotary], length: usize) -> RangeInclusive<usize> {
    sets.iter().fold(0..=usize::MAX, |all, set| {
        let own = set.same_angles(length);
        *all.start().max(own.start())..=*all.end().min(own.end())
    })
}

impl Decoder {
    /// Tokens and positions on the device → logits `(B * T, V)`.
    fn step(&self, steps: &Steps, store: Store<'_>) -> Result<Tensor> {
        if let Some(whole) = &steps.whole {
            let (input, position) = self.whole_input(whole, steps)?;
            return whole.step.run(&input, &position);
        }
        let (mut x, position) = self.step_input(steps, store.texts)?;
        let Store { layers, pages, texts, .. } = store;
        let at = StepAt { angles: &steps.angles, layers, position: &position, pages };
        for block in &self.blocks {
            x = block.step(&x, &at)?;
        }
        let x = x.reshape([texts * steps.tokens, self.config.width])?;
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.config.logits_scale != 1.0 || self.config.logits_softcap.is_some() {
            return self.logits(&self.last_norm.forward(&x)?);
        }
        let around = Around { norm: Some(self.last_norm.before()), ..Around::default() };
        self.head.around(&x, around)
    }

    /// The step in one launch, if this model on this device has one and its logits are those of the launches, `expected`.
    ///
    /// # Errors
    /// Those of the device.
    fn proven_step(&self, steps: &Steps, store: Store<'_>, expected: &Tensor) -> Result<Option<Whole>> {
        let Some(cache) = store.cache.filter(|_| store.texts == 1) else { return Ok(None) };
        match self.whole_step(cache, &steps.angles, steps.text) {
            Err(e) => {
                tracing::debug!("a step is several launches: {e}");
                Ok(None)
            }
            Ok(whole) => {
                let (input, position) = self.whole_input(&whole, steps)?;
                Ok(Some(whole).filter(|whole| whole.step.agrees(&input, &position, cache.length, expected)))
            }
        }
    }

    /// The token of a step in one launch, or what goes into the first block, and how many tokens are before.
    fn whole_input(&self, whole: &Whole, steps: &Steps) -> Result<(Tensor, Tensor)> {
        match whole.step.takes_tokens() {
            true => Ok((steps.texts.tokens()?, steps.texts.position()?)),
            false => self.step_input(steps, 1),
        }
    }

    /// What goes into the first block (B, T, C), and how many tokens are before.
    fn step_input(&self, steps: &Steps, batch: usize) -> Result<(Tensor, Tensor)> {
        let (ids, position) =
            (steps.texts.tokens()?.reshape([batch, steps.tokens])?, steps.texts.position()?);
        let places = self.positions.as_ref().map(|(table, _)| (table, &position));
        let scale = self.config.embedding_scale;
        let x = match &self.embedding {
            Weight::Dense { tensor, .. } => decode_embedding(tensor, &ids, scale, places)?,
            blocks => blocks.gather(&ids, scale, self.params.dtype())?,
        }; // (B, T, C)
        Ok((x, position))
    }
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod whole_tests;
