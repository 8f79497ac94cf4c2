//! Decoding steps through all stages. A step of each stage is captured once and replayed for every position. The last stage writes the sampled token
//! where the first one's next step reads it. Between stages on several devices, rows of the residual stream and sampled tokens go through the host,
//! which then waits for every step.

use super::rotary::lengths;
use super::stage::Stage;
use super::stage_step::StageStep;
use super::state::LayerState;
use super::store::StageStates;
use super::{Cache, Decoder};
use netcl_tensor::graph::Graph;
use netcl_tensor::ops::choose::{Chooser, Texts};
use netcl_tensor::{Error, Result, Tensor, no_grad, unfused};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Number of sampled tokens that the device stores for each text.
const ROUNDS: usize = 128;

/// States of the texts of a step.
#[derive(Clone, Copy)]
pub(super) struct Stores<'a> {
    /// One state per layer.
    pub(super) states: &'a [LayerState],
    /// u32 (B, M) on the device of each stage: the pages of each text.
    pub(super) pages: Option<&'a [Tensor]>,
    /// B.
    pub(super) texts: usize,
}

impl Cache {
    pub(super) fn store(&self) -> Stores<'_> {
        Stores { states: self.states.layers(), pages: None, texts: self.batch() }
    }
}

impl<'a> Stores<'a> {
    /// Returns the states for stage `index`.
    fn of(self, index: usize) -> StageStates<'a> {
        let pages = self.pages.and_then(|pages| pages.get(index));
        StageStates { states: self.states, pages, texts: self.texts }
    }
}

/// Steps for the tokens of one cache.
pub(super) struct Steps {
    /// One entry per stage.
    stages: Vec<StageStep>,
    /// Numbers of tokens, including the new one, for which the rotary angles are valid.
    lengths: RangeInclusive<usize>,
    /// Whether the last stage has sampled tokens that the others have not received yet.
    sampled: bool,
    /// Captured launches by sampler, for the last samplers.
    choices: Vec<(Arc<Chooser>, Choosing)>,
}

/// Number of samplers whose launches stay captured.
const MAX_CHOICES: usize = 3;

/// State of the sampling launches after a captured step.
enum Choosing {
    /// It ran: its kernels are compiled.
    Warm,
    /// It is replayed.
    Captured(Graph),
    /// The device cannot capture it.
    Eager,
}

impl Steps {
    /// Creates steps for texts of `length` tokens, including the first new one.
    pub(super) fn new(decoder: &Decoder, cache: &Cache, length: usize) -> Result<Self> {
        let (batch, room) = (cache.batch(), cache.room().min(decoder.config.context));
        let sets = &decoder.config.rotary;
        let of = |stage: &Stage| {
            let device = stage.device();
            let angles = sets.iter().map(|set| set.rows(device, room, length)).collect::<Result<_>>()?;
            StageStep::new(stage, Texts::new(device, batch, ROUNDS)?, (batch, 1), angles)
        };
        let stages = decoder.stages.iter().map(of).collect::<Result<_>>()?;
        Ok(Self { stages, lengths: lengths(sets, length), sampled: false, choices: Vec::new() })
    }

    /// Creates steps for `texts` texts of any length for which the `angles` of each stage are valid, with `tokens` new tokens each.
    pub(super) fn ragged(
        decoder: &Decoder,
        (texts, tokens): (usize, usize),
        angles: &[Vec<[Tensor; 2]>],
        lengths: RangeInclusive<usize>,
    ) -> Result<Self> {
        let of = |(stage, angles): (&Stage, &Vec<[Tensor; 2]>)| {
            let own = Texts::ragged(stage.device(), texts * tokens, ROUNDS, texts)?;
            StageStep::new(stage, own, (texts, tokens), angles.clone())
        };
        let stages = decoder.stages.iter().zip(angles).map(of).collect::<Result<_>>()?;
        Ok(Self { stages, lengths, sampled: false, choices: Vec::new() })
    }

    /// Returns true if the next step is valid for texts of `length` tokens.
    pub(super) fn fit(&self, length: usize) -> bool {
        self.lengths.contains(&length)
    }

    /// Returns the longest length that the angles are valid for.
    pub(super) fn longest(&self) -> usize {
        *self.lengths.end()
    }

    /// Returns positions and sampled tokens on the sampling device, which is the last stage's.
    pub(super) fn texts(&self) -> Result<&Texts> {
        let last = self.stages.last().map(|stage| &stage.texts);
        last.ok_or_else(|| Error::internal("a step without stages"))
    }

    /// Sets the input tokens (B) and their common position.
    ///
    /// # Errors
    /// Same as [`Texts::set`].
    pub(super) fn set(&mut self, tokens: &[u32], position: usize) -> Result<()> {
        self.sampled = false;
        self.stages.iter().try_for_each(|stage| stage.texts.set(tokens, position))
    }

    /// Sets the input tokens (B * T) and the positions (B).
    ///
    /// # Errors
    /// Same as [`Texts::set_each`].
    pub(super) fn set_each(&mut self, tokens: &[u32], positions: &[u32]) -> Result<()> {
        self.sampled = false;
        self.stages.iter().try_for_each(|stage| stage.texts.set_each(tokens, positions))
    }

    /// Enqueues a step and the sampling of the next tokens, on one device without the host. The cache must have capacity for one token.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn go_on(&mut self, decoder: &Decoder, cache: &mut Cache, by: &Arc<Chooser>) -> Result<()> {
        self.next(decoder, cache.store(), by)?;
        cache.extend(1);
        Ok(())
    }

    /// Enqueues a step → logits `(B * T, V)`, which the next one overwrites, and the sampling of a token after each of the new ones.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn next(&mut self, decoder: &Decoder, store: Stores<'_>, by: &Arc<Chooser>) -> Result<Tensor> {
        let logits = self.advance(decoder, store)?;
        self.choose(&logits, by)?;
        self.sampled = self.stages.len() > 1;
        Ok(logits)
    }

    fn choose(&mut self, logits: &Tensor, by: &Arc<Chooser>) -> Result<()> {
        let Some(last) = self.stages.last() else { return Err(Error::internal("a step without stages")) };
        let (texts, captured) = (&last.texts, last.launches().is_some());
        let choose = || no_grad(|| texts.choose(logits, by));
        if !captured {
            // Captured sampling launches read other logits than a step that is captured later.
            self.choices.clear();
            return choose().map(drop);
        }
        match self.choices.iter().find(|(known, _)| Arc::ptr_eq(known, by)) {
            Some((_, Choosing::Captured(graph))) => return graph.replay(),
            Some((_, Choosing::Eager)) => return choose().map(drop),
            Some((_, Choosing::Warm)) => {}
            None => {
                choose()?;
                self.choices.truncate(MAX_CHOICES - 1);
                self.choices.insert(0, (Arc::clone(by), Choosing::Warm));
                return Ok(());
            }
        }
        self.choices.retain(|(known, _)| !Arc::ptr_eq(known, by));
        match unfused(|| Graph::capture(logits.device(), choose)) {
            Ok((graph, _)) => {
                graph.replay()?;
                self.choices.insert(0, (Arc::clone(by), Choosing::Captured(graph)));
                Ok(())
            }
            Err(e) => {
                tracing::warn!("tokens are selected without captured launches: {e}");
                choose()?;
                self.choices.insert(0, (Arc::clone(by), Choosing::Eager));
                Ok(())
            }
        }
    }

    /// Takes the next token of each text → logits `(B, V)`, which the next step overwrites. The cache must have room for it.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn run(&mut self, decoder: &Decoder, cache: &mut Cache, tokens: &[u32]) -> Result<Tensor> {
        let batch = cache.batch();
        if tokens.len() != batch || cache.length() >= cache.room() {
            return Err(Error::shape(format!(
                "decoder: {} tokens after {} in a cache for {batch} texts of {} tokens",
                tokens.len(),
                cache.length(),
                cache.room()
            )));
        }
        self.set(tokens, cache.length())?;
        let logits = self.advance(decoder, cache.store())?;
        cache.extend(1);
        Ok(logits)
    }

    /// Enqueues a step, and waits for the output of all stages except the last one → logits `(B * T, V)`, which the next one overwrites.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn advance(&mut self, decoder: &Decoder, store: Stores<'_>) -> Result<Tensor> {
        if std::mem::take(&mut self.sampled) {
            let (tokens, positions) = self.texts()?.inputs()?;
            let others = self.stages.len() - 1;
            self.stages[..others].iter().try_for_each(|stage| stage.texts.set_each(&tokens, &positions))?;
        }
        let mut made: Option<Tensor> = None;
        for (index, (own, stage)) in self.stages.iter_mut().zip(&decoder.stages).enumerate() {
            if let Some(rows) = &made {
                own.receive(rows)?;
            }
            made = Some(own.advance(stage, store.of(index))?);
        }
        made.ok_or_else(|| Error::internal("a step without stages"))
    }

    /// Sets the execution mode of a step in one launch.
    #[cfg(test)]
    pub(super) fn run_by(&mut self, text: netcl_tensor::ops::decode_step::WeightPath) {
        self.stages.iter_mut().for_each(|stage| stage.text = text);
    }

    /// Launches of the first stage's captured step.
    #[cfg(test)]
    pub(super) fn stage_launches(&self) -> Option<usize> {
        self.stages.first()?.launches()
    }

    /// Returns the launches of a captured step, including sampling.
    pub(super) fn launches(&self) -> Option<usize> {
        let stages: Option<usize> = self.stages.iter().map(StageStep::launches).sum();
        let choosing = match self.choices.first() {
            Some((_, Choosing::Captured(graph))) => graph.commands().0,
            _ => 0,
        };
        Some(stages? + choosing)
    }
}

#[cfg(test)]
#[path = "whole_tests.rs"]
pub(super) mod whole_tests;
