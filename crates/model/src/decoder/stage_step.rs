//! One token of each text through the layers of a stage. The step is captured once and replayed for every position, because tokens, position and the
//! output of the previous stage are read from device memory. Launches are few because operations are fused: norm and map; map, activation and
//! residual stream; attention with rotary positions and the cache write.
//!
//! A block of attention takes five launches: the norm with the projection after it; attention with rotary positions and the cache write; the
//! projection back into the residual stream; the two projections of the MLP with norm, activation and residual. Products of up to eight rows read the
//! matrix once. A prompt runs without a graph.

use super::norm::Norm;
use super::pass::{Angles, StepAt};
use super::stage::{Entry, Stage, carry};
use super::store::StageStates;
use super::weight::Weight;
use super::whole::WholeStep;
use netcl_tensor::graph::Graph;
use netcl_tensor::ops::choose::Texts;
use netcl_tensor::ops::decode_embedding::decode_embedding;
use netcl_tensor::ops::decode_step::WeightPath;
use netcl_tensor::ops::fused_linear::{FusedOps, PreNorm};
use netcl_tensor::{Result, Tensor, no_grad, unfused};

/// A stage's part of a step.
pub(super) struct StageStep {
    /// Input tokens and positions; in the last stage also the sampled tokens.
    pub(super) texts: Texts,
    /// Number of new tokens per text (T).
    tokens: usize,
    /// Cosines and sines for every row of the cache.
    pub(super) angles: Vec<Angles>,
    /// Output of the previous stage (B, T, C).
    input: Option<Tensor>,
    state: State,
    /// A step in one launch, if supported.
    pub(super) whole: Option<WholeStep>,
    /// Its execution mode.
    pub(super) text: WeightPath,
}

enum State {
    /// Nothing ran yet.
    Cold,
    /// One step ran: its kernels are compiled.
    Warm,
    /// Steps are replayed; with their output.
    Captured(Graph, Tensor),
    /// The device cannot capture a step.
    Eager,
}

impl Norm {
    /// Returns the norm in the form that a map fuses.
    pub(super) fn before(&self) -> PreNorm<'_> {
        let (gamma, beta) = self.parts();
        PreNorm { gamma, beta, unit_offset: self.config().unit_offset, eps: self.config().eps }
    }
}

impl StageStep {
    /// Creates the state before the first run: `tokens` new tokens of each of `batch` texts.
    pub(super) fn new(
        stage: &Stage,
        texts: Texts,
        (batch, tokens): (usize, usize),
        angles: Vec<Angles>,
    ) -> Result<Self> {
        let rows = || Tensor::zeros(stage.device(), [batch, tokens, stage.config.width], stage.dtype);
        let input = if stage.is_first() { None } else { Some(rows()?) };
        Ok(Self { texts, tokens, angles, input, state: State::Cold, whole: None, text: WeightPath::Ring })
    }

    /// Copies the output of the previous stage.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn receive(&self, rows: &Tensor) -> Result<()> {
        self.input.as_ref().map_or(Ok(()), |input| carry(rows, input))
    }

    /// Enqueues a step → rows of the residual stream (B, T, C), or after the last layer logits `(B * T, V)`, which the next step overwrites.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn advance(&mut self, stage: &Stage, store: StageStates<'_>) -> Result<Tensor> {
        let step = |own: &Self| no_grad(|| stage.step(own, store));
        match &self.state {
            State::Captured(graph, made) => return graph.replay().map(|()| made.clone()),
            State::Eager => return step(self),
            State::Cold => {
                let made = step(self)?;
                self.state = State::Warm;
                return Ok(made);
            }
            State::Warm => {
                let made = step(self)?;
                self.whole = no_grad(|| stage.proven_step(self, store, &made))?;
            }
        }
        // Same bits as a prompt, which runs without fusion.
        match unfused(|| Graph::capture(stage.device(), || step(self))) {
            Ok((graph, made)) => {
                tracing::debug!("captured a step of decoding: {} launches", graph.commands().0);
                graph.replay()?;
                self.state = State::Captured(graph, made.clone());
                Ok(made)
            }
            Err(e) => {
                tracing::warn!("tokens are generated without a captured step: {e}");
                self.state = State::Eager;
                step(self)
            }
        }
    }

    /// Launches of a step, once it is captured.
    pub(super) fn launches(&self) -> Option<usize> {
        let State::Captured(graph, _) = &self.state else { return None };
        Some(graph.commands().0)
    }
}

impl Stage {
    /// Takes tokens and positions on the device, or the output of the previous stage → output of this stage.
    pub(super) fn step(&self, own: &StageStep, store: StageStates<'_>) -> Result<Tensor> {
        if let Some(whole) = &own.whole {
            let (input, position) = self.whole_input(whole, own)?;
            return whole.step.run(&input, &position);
        }
        let (mut x, position) = self.step_input(own, store.texts)?;
        let StageStates { states, pages, texts } = store;
        let at = StepAt { angles: &own.angles, states, position: &position, pages };
        for block in &self.blocks {
            x = block.step(&x, &at)?;
        }
        if !self.is_last() {
            return Ok(x);
        }
        let x = x.reshape([texts * own.tokens, self.config.width])?;
        #[allow(clippy::float_cmp)] // a setting, not a result
        if self.config.logits_scale != 1.0 || self.config.logits_softcap.is_some() {
            return self.logits(&self.normed(&x)?);
        }
        let exit = self.exit()?;
        let around = FusedOps { norm: Some(exit.last_norm.before()), ..FusedOps::default() };
        exit.head.around(&x, around)
    }

    /// Returns the step in one launch, if it is supported for this model on this device and its logits equal those of the separate launches,
    /// `expected`.
    ///
    /// # Errors
    /// Device errors.
    fn proven_step(
        &self,
        own: &StageStep,
        store: StageStates<'_>,
        expected: &Tensor,
    ) -> Result<Option<WholeStep>> {
        if own.tokens > 1 {
            return Ok(None);
        }
        match self.whole_step(store, &own.angles, own.text) {
            Err(e) => {
                tracing::debug!("a step takes several launches: {e}");
                Ok(None)
            }
            Ok(whole) => {
                let (input, position) = self.whole_input(&whole, own)?;
                let agrees = whole.step.agrees(&input, &position, expected);
                Ok(Some(whole).filter(|_| agrees))
            }
        }
    }

    /// Returns the tokens of a step in one launch, or the input of the first block, and the number of tokens before each.
    pub(super) fn whole_input(&self, whole: &WholeStep, own: &StageStep) -> Result<(Tensor, Tensor)> {
        match whole.step.takes_tokens() {
            true => Ok((own.texts.tokens()?, own.texts.position()?)),
            false => self.step_input(own, whole.texts),
        }
    }

    /// Returns the input of the first block (B, T, C), and the number of preceding tokens.
    fn step_input(&self, own: &StageStep, batch: usize) -> Result<(Tensor, Tensor)> {
        let position = own.texts.position()?;
        if let Some(rows) = &own.input {
            return Ok((rows.clone(), position));
        }
        let ids = own.texts.tokens()?.reshape([batch, own.tokens])?;
        let Entry { embedding, positions } = self.entry()?;
        let places = positions.as_ref().map(|(table, _)| (table, &position));
        let scale = self.config.embedding_scale;
        let x = match embedding {
            Weight::Dense { tensor, .. } => decode_embedding(tensor, &ids, scale, places)?,
            blocks => blocks.gather(&ids, scale, self.dtype)?,
        }; // (B, T, C)
        Ok((x, position))
    }
}
