//! Sampling options with llama.cpp's names.

use netcl_tensor::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// One step of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// Penalty for continuing a repetition.
    Dry,
    /// Tokens within some standard deviations of the best logit.
    TopNSigma,
    /// The likeliest `k`.
    TopK,
    /// Tokens whose surprise is close to the expected one.
    Typical,
    /// The most likely tokens that together reach a probability.
    TopP,
    /// Tokens with a fraction of the most likely one's probability.
    MinP,
    /// Sometimes removes the most likely tokens.
    Xtc,
    /// Temperature, fixed or by entropy.
    Temperature,
}

/// The names of the steps, and their aliases.
const STEPS: [(Step, &str, &[&str]); 9] = [
    (Step::Penalties, "penalties", &[]),
    (Step::Dry, "dry", &[]),
    (Step::TopNSigma, "top_n_sigma", &["top-n-sigma"]),
    (Step::TopK, "top_k", &["top-k"]),
    (Step::Typical, "typ_p", &["typical_p", "typical-p", "typ-p", "typical", "typ"]),
    (Step::TopP, "top_p", &["top-p", "nucleus"]),
    (Step::MinP, "min_p", &["min-p"]),
    (Step::Xtc, "xtc", &[]),
    (Step::Temperature, "temperature", &["temp"]),
];

impl Step {
    /// llama.cpp's default chain.
    pub const USUAL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Parses a chain such as `top_k;top_p;temperature`.
    ///
    /// # Errors
    /// `Format` with the unknown step and the valid ones.
    pub fn chain(text: &str) -> Result<Vec<Self>> {
        text.split([';', ',']).map(str::trim).filter(|name| !name.is_empty()).map(str::parse).collect()
    }
}

impl FromStr for Step {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let found = STEPS.iter().find(|(_, usual, others)| *usual == name || others.contains(&name));
        found.map(|(step, ..)| *step).ok_or_else(|| {
            let names: Vec<_> = STEPS.iter().map(|(_, name, _)| *name).collect();
            Error::format(format!(
                "samplers: unknown sampler {name:?}; the samplers are {}",
                names.join(", ")
            ))
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = STEPS.iter().find(|(step, ..)| step == self).map_or("", |(_, name, _)| name);
        f.write_str(name)
    }
}

/// Sampling that keeps the surprise of the text at a target (Basu et al., "Mirostat", ICLR 2021).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mirostat {
    /// Uses the chain instead.
    #[default]
    Off,
    /// The first algorithm, which estimates Zipf's exponent.
    One,
    /// The second algorithm, which truncates by surprise.
    Two,
}

/// Penalty for tokens that continue a repetition ("Don't repeat yourself").
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Strength; 0 disables the penalty.
    pub multiplier: f32,
    /// The penalty is `multiplier × base^(length − allowed_length)`.
    pub base: f32,
    /// Shorter repetitions are not penalized.
    pub allowed_length: usize,
    /// Number of last tokens to examine; −1 for all.
    pub last_n: i32,
    /// Strings that end a repetition.
    pub breakers: Vec<String>,
}

impl Default for Dry {
    fn default() -> Self {
        let breakers = ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: 64, breakers }
    }
}

/// Tokens that a model's files forbid, everywhere or at some positions (`generation_config.json`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Tokens that are never chosen (`suppress_tokens`, and the single ones of `bad_words_ids`).
    pub suppressed: Vec<u32>,
    /// Tokens that are not chosen first (`begin_suppress_tokens`).
    pub suppressed_first: Vec<u32>,
    /// Forbidden sequences of two or more tokens: the last token is not chosen after the others (`bad_words_ids`).
    pub bad_words: Vec<Vec<u32>>,
    /// Length of token sequences that may not repeat, including those of the prompt; 0 allows all (`no_repeat_ngram_size`).
    pub no_repeat: usize,
    /// Minimum number of new tokens before an end token (`min_new_tokens`).
    pub least_new: usize,
    /// Minimum number of tokens, including the prompt, before an end token (`min_length`).
    pub least_length: usize,
    /// The end tokens for `least_new` and `least_length`.
    pub ends: Vec<u32>,
}

impl Limits {
    /// Returns true if the forbidden tokens depend on the text so far.
    pub(super) fn follow_text(&self) -> bool {
        let least = self.least_new.max(self.least_length) > 0;
        !self.suppressed_first.is_empty() || !self.bad_words.is_empty() || self.no_repeat > 0 || least
    }

    /// Forbids tokens after `history`, whose last `made` tokens are new.
    pub(super) fn forbid(&self, logits: &mut [f32], history: &[u32], made: usize) {
        let mut forbid = |id: u32| {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        self.suppressed.iter().copied().for_each(&mut forbid);
        if made == 0 {
            self.suppressed_first.iter().copied().for_each(&mut forbid);
        }
        if made < self.least_new || history.len() < self.least_length {
            self.ends.iter().copied().for_each(&mut forbid);
        }
        for word in &self.bad_words {
            let Some((last, before)) = word.split_last() else { continue };
            if history.ends_with(before) {
                forbid(*last);
            }
        }
        if self.no_repeat > 0 && history.len() + 1 >= self.no_repeat {
            let (_, behind) = history.split_at(history.len() + 1 - self.no_repeat);
            let again = history.windows(self.no_repeat).filter(|part| part.starts_with(behind));
            again.filter_map(|part| part.last().copied()).for_each(forbid);
        }
    }
}

/// Sampling parameters. Steps missing from `chain` are skipped; a neutral value also disables a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Random seed. The same seed, logits and history give the same tokens.
    pub seed: u64,
    /// The steps in order.
    pub chain: Vec<Step>,
    /// Divides the logits; 0 chooses the most likely remaining token.
    pub temperature: f32,
    /// Range by which the entropy changes the temperature in both directions; 0 disables it.
    pub dynatemp_range: f32,
    /// Exponent of the mapping from relative entropy to temperature.
    pub dynatemp_exponent: f32,
    /// Keeps the `k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most likely tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Removes tokens below this fraction of the most likely one's probability; 0 keeps all.
    pub min_p: f32,
    /// Keeps tokens of typical surprise that together reach this probability; 1 keeps all (Meister et al., "Locally typical sampling", 2023).
    pub typical_p: f32,
    /// Keeps tokens within this many standard deviations of the best logit; 0 or less keeps all (Tang et al., "Top-nσ", 2024).
    pub top_n_sigma: f32,
    /// Probability of removing the most likely tokens; 0 disables it.
    pub xtc_probability: f32,
    /// Removes all tokens with at least this probability except the last one; above 0.5 it has no effect.
    pub xtc_threshold: f32,
    /// Minimum number of tokens that filters keep.
    pub min_keep: usize,
    /// Number of last tokens to penalize; −1 for all, 0 for none.
    pub repeat_last_n: i32,
    /// Divides positive and multiplies negative logits of repeated tokens; 1 disables it (Keskar et al., "CTRL", 2019).
    pub repeat_penalty: f32,
    /// Subtracted once for each occurrence of a token.
    pub frequency_penalty: f32,
    /// Subtracted once for a token that occurs.
    pub presence_penalty: f32,
    /// Whether frequency and presence penalties count all tokens of the answer and none of the prompt, like in OpenAI and vLLM. llama.cpp counts
    /// the last `repeat_last_n` tokens, including those of the prompt.
    pub answer_alone: bool,
    /// Penalty for continuing a repetition.
    pub dry: Dry,
    /// Whether Mirostat samples, after the temperature, instead of the chain.
    pub mirostat: Mirostat,
    /// Mirostat's target surprise, in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Added to logits before all other steps; −∞ forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that the model's files forbid.
    pub limits: Limits,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            seed: 0,
            chain: Step::USUAL.to_vec(),
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            answer_alone: false,
            dry: Dry::default(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
            limits: Limits::default(),
        }
    }
}

impl Sampling {
    /// Returns parameters that always choose the most likely token.
    pub fn greedy() -> Self {
        Self { chain: vec![Step::Temperature], temperature: 0.0, ..Self::default() }
    }

    /// # Errors
    /// `Format` with the option that is out of range, and the range.
    pub fn validate(&self) -> Result<()> {
        let most = f32::MAX;
        let above_zero = f32::MIN_POSITIVE;
        let checks = [
            ("temperature", self.temperature, 0.0, most, "0 or more"),
            ("dynatemp_range", self.dynatemp_range, 0.0, most, "0 or more"),
            ("dynatemp_exponent", self.dynatemp_exponent, above_zero, most, "above 0"),
            ("top_p", self.top_p, above_zero, 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0, 1.0, "between 0 and 1"),
            ("typical_p", self.typical_p, above_zero, 1.0, "above 0 and at most 1"),
            ("top_n_sigma", self.top_n_sigma, -most, most, "a number; 0 or less disables it"),
            ("xtc_probability", self.xtc_probability, 0.0, 1.0, "between 0 and 1"),
            ("xtc_threshold", self.xtc_threshold, 0.0, 1.0, "between 0 and 1"),
            ("repeat_penalty", self.repeat_penalty, above_zero, most, "above 0"),
            ("frequency_penalty", self.frequency_penalty, -most, most, "a finite number"),
            ("presence_penalty", self.presence_penalty, -most, most, "a finite number"),
            ("dry_multiplier", self.dry.multiplier, 0.0, most, "0 or more"),
            ("dry_base", self.dry.base, 1.0, most, "1 or more"),
            ("mirostat_tau", self.mirostat_tau, above_zero, most, "above 0"),
            ("mirostat_eta", self.mirostat_eta, 0.0, 1.0, "between 0 and 1"),
        ];
        for (name, value, least, most, range) in checks {
            if !(least..=most).contains(&value) {
                return Err(Error::format(format!("{name} is {value}; it must be {range}")));
            }
        }
        for (name, n) in [("repeat_last_n", self.repeat_last_n), ("dry_last_n", self.dry.last_n)] {
            if n < -1 {
                return Err(Error::format(format!(
                    "{name} is {n}; it must be 0 or more, or -1 for all tokens"
                )));
            }
        }
        if let Some((id, bias)) =
            self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY)
        {
            return Err(Error::format(format!(
                "logit_bias of token {id} is {bias}; it must be a finite number, or -inf to forbid it"
            )));
        }
        Ok(())
    }
}
