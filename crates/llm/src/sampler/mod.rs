//! Samples tokens from logits on the host.

mod candidates;
mod history;
mod options;
mod output;

pub use options::{Dry, Limits, Mirostat, Sampling, Step};
pub use output::{Chunk, Finish, Output, StopTexts};

#[cfg(feature = "grammar")]
use crate::grammar::Grammar;
use crate::tokenizer::Tokenizer;
use candidates::Candidates;
use history::Breakers;
use netcl_model::model::check_token;
use netcl_tensor::ops::choose::{Rules, SamplingRule};
use netcl_tensor::{Error, Result, random};

/// Samples the tokens of one sequence.
///
/// The `n`-th token takes the `n`-th draw of the seed's stream (Philox), so samples depend only on the seed, the logits and the history. Steps that a
/// device supports ([`Rules`]) use its arithmetic here too: a sequence does not depend on where it is sampled.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    breakers: Breakers,
    /// Prompt and generated tokens so far.
    history: Vec<u32>,
    /// Number of tokens before the first sampled one.
    given: usize,
    drawn: u64,
    /// Mirostat's current surprise limit, in bits.
    mu: f64,
    /// A grammar for the sequence: its initial and its current state.
    #[cfg(feature = "grammar")]
    grammar: Option<Box<[Grammar; 2]>>,
}

impl Sampler {
    /// Returns a sampler for `tokenizer`, which encodes DRY's breakers.
    ///
    /// # Errors
    /// `Format` with the option that is out of range.
    pub fn new(sampling: Sampling, tokenizer: &Tokenizer) -> Result<Self> {
        let dry = &sampling.dry;
        let breakers = match dry.multiplier > 0.0 && dry.last_n != 0 {
            true => Breakers::new(&dry.breakers, tokenizer)?,
            false => Breakers::default(),
        };
        Self::with(sampling, breakers)
    }

    /// Returns a sampler for ids without text: DRY does not have breakers.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub fn of_ids(sampling: Sampling) -> Result<Self> {
        Self::with(sampling, Breakers::default())
    }

    fn with(sampling: Sampling, breakers: Breakers) -> Result<Self> {
        sampling.validate()?;
        let mu = 2.0 * f64::from(sampling.mirostat_tau);
        Ok(Self {
            sampling,
            breakers,
            history: Vec::new(),
            given: 0,
            drawn: 0,
            mu,
            #[cfg(feature = "grammar")]
            grammar: None,
        })
    }

    /// Restricts sampling to a grammar; every sequence that [begins](Self::begin) restarts it.
    #[cfg(feature = "grammar")]
    #[must_use]
    pub fn following(mut self, grammar: Grammar) -> Self {
        self.grammar = Some(Box::new([grammar.clone(), grammar]));
        self
    }

    /// Returns the same sampler for another sequence: draws restart with this seed.
    #[must_use]
    pub fn seeded(mut self, seed: u64) -> Self {
        (self.sampling.seed, self.drawn) = (seed, 0);
        self
    }

    /// Returns true if a grammar restricts the tokens.
    fn is_bound(&self) -> bool {
        #[cfg(feature = "grammar")]
        return self.grammar.is_some();
        #[cfg(not(feature = "grammar"))]
        false
    }

    /// Forbids tokens that the grammar does not allow next.
    fn bound(&mut self, logits: &mut [f32]) -> Result<()> {
        #[cfg(feature = "grammar")]
        if let Some(grammar) = &mut self.grammar {
            grammar[1].mask(logits)?;
        }
        let _ = logits;
        Ok(())
    }

    /// Advances by a chosen token.
    fn went_on(&mut self, id: u32) -> Result<()> {
        #[cfg(feature = "grammar")]
        if let Some(grammar) = &mut self.grammar {
            grammar[1].accept(id)?;
        }
        self.drawn += 1;
        self.history.push(id);
        Ok(())
    }

    /// Returns the sampling parameters.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Adds tokens that were not sampled here, such as the prompt, to the history for penalties.
    pub fn accept(&mut self, ids: &[u32]) {
        self.history.extend_from_slice(ids);
        self.given = self.history.len();
    }

    /// Begins a sequence with a prompt: penalties only use this history. Draws continue.
    pub fn begin(&mut self, prompt: &[u32]) {
        self.history.clear();
        self.history.extend_from_slice(prompt);
        self.given = prompt.len();
        self.mu = 2.0 * f64::from(self.sampling.mirostat_tau);
        #[cfg(feature = "grammar")]
        if let Some(grammar) = &mut self.grammar {
            grammar[1] = grammar[0].clone();
        }
    }

    /// Returns the sampling rules for the device; `None` if a step depends on the text so far or is not supported there.
    pub(crate) fn rules(&self, vocab: usize) -> Option<Rules> {
        let host = self.is_bound() || self.sampling.limits.follow_text();
        if host { None } else { self.unbound_rules(vocab) }
    }

    /// Does the same without the grammar.
    fn unbound_rules(&self, vocab: usize) -> Option<Rules> {
        let s = &self.sampling;
        let mut rules = Vec::new();
        let penalties = s.repeat_penalty != 1.0 || s.frequency_penalty != 0.0 || s.presence_penalty != 0.0;
        for step in &s.chain {
            let inert = match step {
                Step::Penalties => !penalties || s.repeat_last_n == 0 && !s.answer_alone,
                Step::Dry => s.dry.multiplier <= 0.0 || s.dry.last_n == 0,
                Step::TopNSigma => s.top_n_sigma <= 0.0,
                Step::Typical => s.typical_p >= 1.0,
                Step::Xtc => s.xtc_probability <= 0.0 || s.xtc_threshold > 0.5,
                Step::TopK => s.top_k == 0,
                Step::TopP => s.top_p >= 1.0,
                Step::MinP => s.min_p <= 0.0,
                Step::Temperature => false,
            };
            rules.push(match step {
                _ if inert => continue,
                Step::TopK => SamplingRule::TopK(s.top_k.max(s.min_keep)),
                Step::TopP => SamplingRule::TopP(s.top_p, s.min_keep),
                Step::MinP => SamplingRule::MinP(s.min_p, s.min_keep),
                Step::Temperature if s.dynatemp_range <= 0.0 => SamplingRule::Temperature(s.temperature),
                _ => return None,
            });
        }
        let rules = Rules::new(&rules).ok().filter(|_| s.mirostat == Mirostat::Off);
        rules.filter(|rules| rules.candidates(vocab).is_some())
    }

    /// Returns the random word of the n-th token from now on.
    pub(crate) fn word(&self, n: usize) -> u32 {
        random::draw(self.sampling.seed, 0, self.drawn + n as u64)[0]
    }

    /// Accepts a token that was sampled on the device.
    pub(crate) fn took(&mut self, id: u32) {
        self.drawn += 1;
        self.history.push(id);
    }

    /// Samples the token after `logits (V)` and accepts it. A token with logit −∞ is never chosen.
    ///
    /// # Errors
    /// `Launch` if logits are NaN or infinite, `Format` if no token is left or a biased token does not exist.
    pub fn sample(&mut self, logits: Vec<f32>) -> Result<u32> {
        // A fraction of infinity would also not be a number.
        if logits.iter().any(|v| v.is_nan() || *v == f32::INFINITY) {
            return Err(Error::launch(
                "the model's logits are not numbers: its weights are damaged, or values exceeded the range of f16 (then use --dtype bf16 or f32)",
            ));
        }
        let vocab = logits.len();
        let mut logits = self.biased(logits)?;
        self.sampling.limits.forbid(&mut logits, &self.history, self.history.len() - self.given);
        self.bound(&mut logits)?;
        if let Some(rules) = self.unbound_rules(vocab) {
            let token = check_token(rules.choose(&logits, self.word(0)))?;
            self.went_on(token)?;
            return Ok(token);
        }
        let mut candidates = Candidates::new(logits);
        let draw = random::draw(self.sampling.seed, 0, self.drawn);
        let (first, second) = (uniform(draw[0], draw[1]), uniform(draw[2], draw[3]));
        match self.sampling.mirostat {
            Mirostat::Off => {
                for step in &self.sampling.chain {
                    self.apply(*step, &mut candidates, second);
                }
            }
            version => {
                candidates.temperature(&self.sampling);
                match version {
                    Mirostat::One => candidates.mirostat_one(self.mu, vocab),
                    _ => candidates.mirostat_two(self.mu),
                }
            }
        }
        let Some((token, share)) = candidates.draw(first) else {
            return Err(Error::format("no token is left to choose: all are forbidden"));
        };
        if self.sampling.mirostat != Mirostat::Off {
            let off = -share.log2() - f64::from(self.sampling.mirostat_tau);
            self.mu -= f64::from(self.sampling.mirostat_eta) * off;
        }
        self.went_on(token as u32)?;
        Ok(token as u32)
    }

    fn biased(&self, mut logits: Vec<f32>) -> Result<Vec<f32>> {
        for (id, bias) in &self.sampling.logit_bias {
            let vocab = logits.len();
            let Some(logit) = logits.get_mut(*id as usize) else {
                return Err(Error::format(format!(
                    "logit_bias: token {id} is outside the vocabulary of {vocab} tokens"
                )));
            };
            // Tokens that are already forbidden stay forbidden.
            *logit = if *logit == f32::NEG_INFINITY { *logit } else { (*logit + bias).min(f32::MAX) };
        }
        Ok(logits)
    }

    fn apply(&self, step: Step, candidates: &mut Candidates, chance: f64) {
        let s = &self.sampling;
        match step {
            Step::Penalties => {
                let none = s.repeat_penalty == 1.0 && s.frequency_penalty == 0.0 && s.presence_penalty == 0.0;
                if !none && (s.repeat_last_n != 0 || s.answer_alone) {
                    candidates.edit(|logits| history::penalties(logits, &self.history, self.given, s));
                }
            }
            Step::Dry => {
                if s.dry.multiplier > 0.0 && s.dry.last_n != 0 {
                    candidates.edit(|logits| history::dry(logits, &self.history, &s.dry, &self.breakers));
                }
            }
            Step::TopNSigma => candidates.top_n_sigma(s.top_n_sigma),
            Step::TopK => candidates.top_k(s.top_k, s.min_keep),
            Step::Typical => candidates.typical(s.typical_p, s.min_keep),
            Step::TopP => candidates.top_p(s.top_p, s.min_keep),
            Step::MinP => candidates.min_p(s.min_p, s.min_keep),
            Step::Xtc => candidates.xtc(s, chance),
            Step::Temperature => candidates.temperature(s),
        }
    }
}

/// Returns a number in `[0, 1)`, a multiple of 2⁻⁵³.
fn uniform(high: u32, low: u32) -> f64 {
    let bits = u64::from(high) << 32 | u64::from(low);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
