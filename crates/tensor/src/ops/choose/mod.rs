//! Sampling of the next token of each text on the device (temperature, top-k, top-p, min-p). Decoding steps can therefore be enqueued without
//! reading logits on the host.

mod rules;

use super::prelude::*;
use crate::tape;
use rules::RULE_WORDS;
pub use rules::{MAX_CANDIDATES, MAX_RULES, NO_NUMBER, NONE_LEFT, Rules, SamplingRule};

static KERNEL: Kernel =
    Kernel::new("choose", cl_file!("choose.cl")).tune(&[("WG", &[256])]).tune_cpu(&[("WG", &[1])]);

/// Number of logits that one work-group processes.
const CHUNK: usize = 2048;

/// Sampling rules and logit bias on a device.
pub struct Chooser {
    rules: Tensor,
    bias: Option<Tensor>,
    /// Maximum number of candidate tokens.
    candidates: usize,
}

/// Decoding state of B texts on a device: input tokens, positions P, and a ring buffer of the last R sampled tokens. Its layout is u32 [tokens (B),
/// positions (P), counts (B), sampled (R, B)]; counts are numbers of sampled tokens. P is 1 if all texts have the same position.
pub struct Texts {
    state: Tensor,
    words: Tensor,
    texts: usize,
    places: usize,
    rounds: usize,
}

impl Chooser {
    /// Builds the same `rules` for each of `texts` texts. `bias (V)` is added to the logits; −∞ forbids a token. Returns `None` if the device does
    /// not support the rules ([`Rules::candidates`]).
    ///
    /// # Errors
    /// `Memory`.
    pub fn new(
        device: &Device,
        rules: &Rules,
        texts: usize,
        vocab: usize,
        bias: Option<&[f32]>,
    ) -> Result<Option<Self>> {
        let Some(candidates) = rules.candidates(vocab) else { return Ok(None) };
        let rules = Tensor::from_u32(device, [texts, RULE_WORDS], &rules.words().repeat(texts))?;
        let bias = bias.map(|bias| Tensor::from_f32(device, [vocab], bias, DType::F32)).transpose()?;
        Ok(Some(Self { rules, bias, candidates }))
    }

    /// Builds separate rules for each of `texts` texts. They are greedy until [`set`](Self::set) sets others, with up to `candidates` candidates
    /// ([`Rules::candidates`]). `bias` is as in [`new`](Self::new), but already on the device.
    ///
    /// # Errors
    /// `Memory`.
    pub fn by_text(device: &Device, texts: usize, candidates: usize, bias: Option<Tensor>) -> Result<Self> {
        let rules = Tensor::from_u32(device, [texts, RULE_WORDS], &Rules::greedy().words().repeat(texts))?;
        Ok(Self { rules, bias, candidates: candidates.clamp(1, MAX_CANDIDATES) })
    }

    /// Sets the rules of each text.
    ///
    /// # Errors
    /// `Shape` for a wrong number of texts, `Unsupported` for rules with more candidates; those of the device.
    pub fn set(&self, rules: &[&Rules], vocab: usize) -> Result<()> {
        if rules.len() * RULE_WORDS != self.rules.count() {
            return Err(Error::shape(format!(
                "choose: rules for {} texts, expected {}",
                rules.len(),
                self.rules.shape()
            )));
        }
        if let Some(wide) = rules.iter().find(|r| r.candidates(vocab).is_none_or(|n| n > self.candidates)) {
            return Err(Error::unsupported(format!(
                "choose: rules with {:?} candidates, expected at most {}",
                wide.candidates(vocab),
                self.candidates
            )));
        }
        let words: Vec<u32> = rules.iter().flat_map(|rules| rules.words()).collect();
        self.rules.set_bytes(bytemuck::cast_slice(&words))
    }

    /// Returns the maximum number of candidates.
    pub fn candidates(&self) -> usize {
        self.candidates
    }
}

impl Texts {
    /// Creates the state of `texts` texts at position 0, with a ring buffer of `rounds` tokens each.
    ///
    /// # Errors
    /// `Memory`; `Shape` if one of the numbers is 0.
    pub fn new(device: &Device, texts: usize, rounds: usize) -> Result<Self> {
        Self::with_places(device, texts, rounds, 1)
    }

    /// Creates the state with `places` positions: one per text, or fewer if several tokens of a text are sampled as separate texts.
    /// [`choose`](Self::choose) increments the first `places` of them.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new); `Shape` for more positions than texts.
    pub fn ragged(device: &Device, texts: usize, rounds: usize, places: usize) -> Result<Self> {
        Self::with_places(device, texts, rounds, places)
    }

    fn with_places(device: &Device, texts: usize, rounds: usize, places: usize) -> Result<Self> {
        if texts == 0 || rounds == 0 || !(1..=texts).contains(&places) {
            return Err(Error::shape(format!(
                "choose: {texts} texts of {rounds} rounds with {places} positions, expected at least 1"
            )));
        }
        let len = state_len(texts, rounds, places);
        let state = Tensor::from_u32(device, [len], &vec![0; len])?;
        let words = Tensor::from_u32(device, [rounds, texts], &vec![0; texts * rounds])?;
        Ok(Self { state, words, texts, places, rounds })
    }
    /// Returns the number of texts B.
    pub fn texts(&self) -> usize {
        self.texts
    }
    /// Returns the size R of the ring buffer.
    pub fn rounds(&self) -> usize {
        self.rounds
    }
    /// Returns the input tokens of the next step, u32 (B).
    ///
    /// # Errors
    /// Errors of views.
    pub fn tokens(&self) -> Result<Tensor> {
        self.state.slice(0, 0..self.texts)
    }
    /// Returns the positions of the input tokens, u32 (P).
    ///
    /// # Errors
    /// Errors of [`tokens`](Self::tokens).
    pub fn position(&self) -> Result<Tensor> {
        self.state.slice(0, self.texts..self.texts + self.places)
    }

    /// Sets the input tokens (B) and the position of all of them.
    ///
    /// # Errors
    /// `Shape` for a wrong number of tokens; those of the device.
    pub fn set(&self, tokens: &[u32], position: usize) -> Result<()> {
        self.set_each(tokens, &vec![position as u32; self.places])
    }

    /// Sets the input tokens (B) and their positions (P).
    ///
    /// # Errors
    /// `Shape` for wrong numbers of tokens or positions; those of the device.
    pub fn set_each(&self, tokens: &[u32], positions: &[u32]) -> Result<()> {
        if tokens.len() != self.texts || positions.len() != self.places {
            return Err(Error::shape(format!(
                "choose: {} tokens at {} positions for {} texts with {}",
                tokens.len(),
                positions.len(),
                self.texts,
                self.places
            )));
        }
        let words = [tokens, positions].concat();
        self.state.slice(0, 0..words.len()).and_then(|state| state.set_bytes(bytemuck::cast_slice(&words)))
    }

    /// Returns the input tokens (B) and positions (P) of the next step. Waits for the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn inputs(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut tokens = self.state.slice(0, 0..self.texts + self.places)?.to_u32()?;
        let positions = tokens.split_off(self.texts);
        Ok((tokens, positions))
    }

    /// Sets the number of sampled tokens of each text, which selects the slot in the ring buffer and the random word of the next one.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_count(&self, count: u32) -> Result<()> {
        let first = self.texts + self.places;
        let counts = self.state.slice(0, first..first + self.texts)?;
        counts.set_bytes(bytemuck::cast_slice(&vec![count; self.texts]))
    }

    /// Uploads random words (N, B) for the tokens `count` to `count + N - 1`; N is at most [`rounds`](Self::rounds).
    ///
    /// # Errors
    /// `Shape` for words that do not fit; those of the device.
    pub fn set_words(&self, count: u32, words: &[u32]) -> Result<()> {
        let rows = words.len() / self.texts;
        if rows > self.rounds || !words.len().is_multiple_of(self.texts) {
            return Err(Error::shape(format!(
                "choose: {} words for {} rounds of {} texts",
                words.len(),
                self.rounds,
                self.texts
            )));
        }
        let first = count as usize % self.rounds;
        let before = rows.min(self.rounds - first);
        let (end, start) = words.split_at(before * self.texts);
        for (from, part) in [(first, end), (0, start)] {
            if !part.is_empty() {
                let rows = part.len() / self.texts;
                self.words.slice(0, from..from + rows)?.set_bytes(bytemuck::cast_slice(part))?;
            }
        }
        Ok(())
    }

    /// Returns the sampled tokens (rows, B) from number `count` on. Waits for `event` only, not for later commands.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn made_after(
        &self,
        event: &netcl_device::driver::Event,
        count: u32,
        rows: usize,
    ) -> Result<Vec<u32>> {
        let first = count as usize % self.rounds;
        let before = rows.min(self.rounds - first);
        let mut out = Vec::with_capacity(rows * self.texts);
        for (from, rows) in [(first, before), (0, rows - before)] {
            if rows > 0 {
                let at = 2 * self.texts + self.places + from * self.texts;
                out.extend(self.state.slice(0, at..at + rows * self.texts)?.u32_after(event)?);
            }
        }
        Ok(out)
    }

    /// Samples the next tokens from logits `(B, V)`: writes them to the input tokens and to the ring buffer, and increments positions and counts.
    ///
    /// # Errors
    /// `Shape` and `DType` if the operands do not fit together.
    pub fn choose(&self, logits: &Tensor, by: &Chooser) -> Result<Tensor> {
        let op = Choose { candidates: by.candidates, biased: by.bias.is_some(), advance: true };
        let bias = by.bias.as_ref().unwrap_or(logits);
        op.apply([&logits.detach(), bias, &by.rules, &self.words, &self.state])
    }
}

fn state_len(texts: usize, rounds: usize, places: usize) -> usize {
    2 * texts + places + rounds * texts
}

/// Operation of [`Texts::choose`].
#[derive(Clone)]
pub struct Choose {
    /// Maximum number of candidate tokens.
    candidates: usize,
    /// Whether input 1 is a bias of the logits.
    biased: bool,
    /// Whether the state is updated.
    advance: bool,
}

impl Choose {
    fn check(&self, [logits, bias, rules, words, state]: [&Tensor; 5]) -> Result<[usize; 4]> {
        let op = Self::NAME;
        check::float(op, "logits", logits)?;
        let [texts, vocab] = logits.dims2().map_err(|e| e.context("choose: logits"))?;
        for (name, x) in [("rules", rules), ("words", words), ("state", state)] {
            if x.dtype() != DType::U32 {
                return Err(Error::dtype(format!("choose: {name} is {}, expected u32", x.dtype())));
            }
        }
        if self.biased && (bias.dtype() != DType::F32 || bias.dims() != [vocab]) {
            return Err(Error::shape(format!(
                "choose: bias has shape {}, expected [{vocab}], with logits {}",
                bias.shape(),
                logits.shape()
            )));
        }
        let rounds = words.dims().first().copied().unwrap_or(0);
        let places = state.count().saturating_sub((2 + rounds) * texts);
        let fits = rules.dims() == [texts, RULE_WORDS] && words.dims() == [rounds, texts];
        let known = texts == 0 || ((1..=texts).contains(&places) && rounds > 0);
        if !(fits && known && state.shape().rank() == 1) {
            return Err(Error::shape(format!(
                "choose: rules {}, words {} and state {}, expected [{texts}, {RULE_WORDS}], [R, {texts}] and [2 * {texts} + P + R * {texts}] with P from 1 to {texts}, with logits {}",
                rules.shape(),
                words.shape(),
                state.shape(),
                logits.shape()
            )));
        }
        if vocab == 0 && texts > 0 {
            return Err(Error::shape(format!("choose: cannot choose from empty logits {}", logits.shape())));
        }
        if tape::records(&[logits]) {
            return Err(Error::unsupported("choose does not have a gradient; call it within `no_grad`"));
        }
        Ok([texts, vocab, rounds, places])
    }
}

impl Op<5> for Choose {
    const NAME: &'static str = "choose";
    const NO_SINGLE_SAMPLE: Option<&'static str> = Some("rules and the state have several words");
    type Saved = ();
    fn forward(&self, inputs: [&Tensor; 5]) -> Result<(Tensor, ())> {
        let [texts, vocab, rounds, places] = self.check(inputs)?;
        let [logits, bias, rules, words, state] = inputs;
        let device = logits.device();
        let chosen = Tensor::empty(device, [texts], DType::U32)?;
        if texts == 0 {
            return Ok((chosen, ()));
        }
        if self.advance && !state.is_contiguous() {
            return Err(Error::shape("choose: the state is not contiguous"));
        }
        let (logits, rules, words) = (logits.contiguous()?, rules.contiguous()?, words.contiguous()?);
        let state = if self.advance { state.clone() } else { state.contiguous()? };
        let bias = if self.biased { bias.contiguous()? } else { logits.clone() };
        // Rounded up, so that few kernels are compiled.
        let kept = if self.candidates > 1 {
            self.candidates.next_power_of_two().clamp(64, MAX_CANDIDATES)
        } else {
            1
        };
        let stage = |name, stage: usize| {
            let launch = KERNEL.launch(name).define("DTYPE", logits.dtype().code()).define("STAGE", stage);
            launch.define("K", kept).define("CHUNK", CHUNK).define("BIASED", self.biased)
        };
        let chunks = vocab.div_ceil(CHUNK);
        let mut candidates = None;
        if chunks > 1 {
            let out = Tensor::empty(device, [texts, chunks, kept, 2], DType::U32)?;
            let launch = stage("choose_chunks", 1).groups3([chunks, texts, 1]);
            launch.read(&logits).read(&bias).write(&out).scalar(vocab).run()?;
            candidates = Some(out);
        }
        let launch =
            stage("choose", if chunks > 1 { 2 } else { 0 }).define("ADVANCE", self.advance).groups(texts);
        // PLACES is 1 by default, so single texts always use the same kernel.
        let launch = if places > 1 { launch.define("PLACES", places) } else { launch };
        let launch = launch.read(&logits).read(&bias).read(candidates.as_ref().unwrap_or(&logits));
        let launch = launch.read(&rules).read(&words);
        let launch = if self.advance { launch.write(&state) } else { launch.read(&state) };
        launch.write(&chosen).scalar(vocab).scalar(texts as u32).scalar(rounds as u32).run()?;
        Ok((chosen, ()))
    }
    fn backward(&self, _: [&Tensor; 5], (): &(), _: &Tensor) -> Result<[Option<Tensor>; 5]> {
        Ok([const { None }; 5])
    }
    fn reference(&self, [logits, bias, rules, words, state]: [&Array; 5]) -> Array {
        let (texts, vocab) = (logits.shape.dims()[0], logits.shape.last());
        let rounds = words.shape.dims()[0].max(1);
        let of = |b: usize| {
            let row = &logits.data[b * vocab..(b + 1) * vocab];
            let biased = |(i, v): (usize, &f64)| {
                let more = if self.biased { bias.data[i] as f32 } else { 0.0 };
                if more == f32::NEG_INFINITY { more } else { *v as f32 + more }
            };
            let row: Vec<f32> = row.iter().enumerate().map(biased).collect();
            let places = state.data.len() - (2 + rounds) * texts;
            let round = state.data[texts + places + b] as usize % rounds;
            let words_of =
                rules.data[b * RULE_WORDS..].iter().take(RULE_WORDS).map(|w| *w as u32).collect::<Vec<_>>();
            f64::from(Rules::of_words(&words_of).choose(&row, words.data[round * texts + b] as u32))
        };
        Array::new(vec![texts], (0..texts).map(of).collect())
    }
    fn calls() -> Vec<Call> {
        let doc = "Samples the next token of each of B texts from logits `(B, V)`. Returns u32 `(B)`. The inputs are the engine's sampling rules, \
                   random words `(R, B)` and decoding state, which `advance` updates. `bias` `(V)` f32 is added to the logits. No gradient.";
        let call = Call::new(Self::NAME, doc)
            .inputs(&["logits", "rules", "words", "state"])
            .optional_inputs(&["bias"]);
        vec![call.required("candidates", AttributeKind::Int).default("advance", true).run(|a| {
            let [logits, rules, words, state] = a.inputs()?;
            let bias = a.optional("bias");
            let op =
                Self { candidates: a.get("candidates")?, biased: bias.is_some(), advance: a.get("advance")? };
            op.apply([&logits.detach(), bias.unwrap_or(logits), rules, words, state])
        })]
    }
    fn attributes(&self) -> Attributes {
        vec![("candidates", self.candidates.into()), ("advance", self.advance.into())]
    }
    fn given<'a>(&self, [logits, bias, rules, words, state]: [&'a Tensor; 5]) -> Vec<Option<&'a Tensor>> {
        vec![Some(logits), Some(rules), Some(words), Some(state), self.biased.then_some(bias)]
    }
    fn samples() -> Vec<Sample<Self, 5>> {
        use SamplingRule::{MinP, Temperature, TopK, TopP};
        let sample = |[texts, vocab]: [usize; 2], rules: &[SamplingRule], forbidden: Option<&[f64]>| {
            let rules = Rules::new(rules).unwrap_or_default();
            let words: Vec<f64> = rules.words().iter().map(|w| f64::from(*w)).collect();
            let rounds = 3;
            let u32s = |shape: &[usize], values: &[f64]| SampleInput::values(shape, values, Some(DType::U32));
            let mut state = vec![0.0; state_len(texts, rounds, 1)];
            // Each text has a different count.
            (0..texts).for_each(|b| state[texts + 1 + b] = (7 * b) as f64);
            let candidates = rules.candidates(vocab).unwrap_or(1);
            let bias = forbidden.unwrap_or(&[0.0]);
            let inputs = [
                SampleInput::normal(&[texts, vocab]),
                SampleInput::values(&[vocab], bias, Some(DType::F32)),
                u32s(&[texts, RULE_WORDS], &words),
                u32s(&[rounds, texts], &[3e9, 1.5e9, 4e9, 7e8, 2.2e9, 4.294_967_295e9, 0.0]),
                u32s(&[state.len()], &state),
            ];
            Sample::new(Self { candidates, biased: forbidden.is_some(), advance: false }, inputs)
                .exact()
                .in_order()
        };
        let usual = [TopK(40), TopP(0.95, 1), MinP(0.05, 1), Temperature(0.8)];
        let none = f64::NEG_INFINITY;
        let mut tied = sample([2, 700], &[TopK(9), TopP(0.7, 3)], None);
        tied.inputs[0] = SampleInput::values(&[2, 700], &[1.0, 2.0, 3.0, 3.0, -1.0, 2.0, 3.0], None);
        let mut far = sample([3, 65], &[Temperature(1e4), TopK(20)], None);
        far.inputs[0] = SampleInput::values(&[3, 65], &[3e38, -1e30, 1e-30, 0.0, -3e38, 2.9e38, 1e30], None);
        vec![
            sample([3, 65], &usual, Some(&[0.0, none, 0.5, -3.0])).bench(&[
                &[1, 128_256],
                &[128_256],
                &[1, RULE_WORDS],
                &[3, 1],
                &[state_len(1, 3, 1)],
            ]),
            sample([2, 5000], &usual, None).named("several chunks"),
            sample([2, 5000], &[Temperature(0.0)], Some(&[0.0, 0.0, none]))
                .named("the likeliest of several chunks")
                .light(),
            sample([4, 65], &[Temperature(0.0)], None).named("the likeliest").light(),
            sample([2, 900], &[Temperature(1.5), TopP(0.9, 0), MinP(0.01, 0)], None)
                .named("all tokens")
                .light(),
            tied.named("equal logits").light(),
            far.extreme().light(),
            sample([1, 1], &usual, None).light(),
            sample([0, 4], &usual, None).light(),
        ]
    }
}

#[cfg(test)]
mod tests;
