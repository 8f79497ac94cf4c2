//! Generation parameters: the fields that all interfaces share.

use crate::error::{ApiError, ApiResult};
use crate::fields::{Fields, wrong};
use crate::model::{Loaded, TextParts};
use crate::names::fresh;
use netcl::llm::engine::{Job, Request};
use netcl::llm::grammar::Grammar;
use netcl::llm::sampler::{Sampler, Sampling, StopTexts};
use serde_json::Value;

/// Maximum number of stop strings.
const MAX_STOPS: usize = 16;
/// Maximum number of sequences per request.
const MAX_CHOICES: usize = 128;
/// Maximum number of most likely tokens that are listed.
pub const MAX_LOGPROBS: usize = 20;

/// A request's sampling parameters, stop conditions and number of sequences. Defaults come from the model's files.
#[derive(Clone, Debug, Default)]
pub struct SamplingParams {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repeat_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Vec<(u32, f32)>,
    /// The seed of the first sequence.
    pub seed: Option<u64>,
    /// Strings that end a sequence.
    pub stops: Vec<String>,
    /// Maximum number of new tokens.
    pub max: Option<usize>,
    /// Number of sequences per prompt.
    pub choices: usize,
    /// Number of most likely tokens to list with each token, if any.
    pub logprobs: Option<usize>,
    /// Whether end tokens are ignored.
    pub ignore_ends: bool,
    /// Whether names of control tokens are part of a text.
    pub controls: bool,
    /// Whether penalties count the prompt. llama.cpp and Ollama count it; OpenAI and vLLM do not.
    pub counts_prompt: bool,
}

impl SamplingParams {
    /// Takes the sampling fields that all interfaces have, by OpenAI's names and, for additional fields, llama.cpp's.
    ///
    /// # Errors
    /// 400 with the invalid field.
    pub fn take(fields: &mut Fields) -> ApiResult<Self> {
        let most = f64::from(f32::MAX);
        Ok(Self {
            temperature: fields.number("temperature", 0.0, most)?,
            top_p: fields.number("top_p", 0.0, 1.0)?,
            top_k: fields.whole("top_k", 0, usize::MAX)?,
            min_p: fields.number("min_p", 0.0, 1.0)?,
            typical_p: fields.number("typical_p", 0.0, 1.0)?,
            repeat_penalty: fields.number("repeat_penalty", 0.01, most)?,
            repeat_last_n: fields.integer("repeat_last_n")?,
            presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0, 2.0)?,
            logit_bias: biases(fields)?,
            seed: fields.integer("seed")?.map(|seed| seed as u64),
            stops: stops(fields.texts("stop")?)?,
            max: None,
            choices: fields.whole("n", 1, MAX_CHOICES)?.unwrap_or(1),
            logprobs: None,
            ignore_ends: fields.flag("ignore_eos")?.unwrap_or(false),
            controls: false,
            counts_prompt: false,
        })
    }

    /// Returns a model's sampling parameters with the request's overrides.
    ///
    /// # Errors
    /// 400 with the value that is out of range.
    pub fn sampling(&self, base: &Sampling, vocab: usize) -> ApiResult<Sampling> {
        let mut out = base.clone();
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            *to = from.unwrap_or(*to);
        }
        set(&mut out.temperature, self.temperature);
        // OpenAI's 0 selects only the most likely token.
        set(&mut out.top_p, self.top_p.map(|p| p.max(f32::MIN_POSITIVE)));
        set(&mut out.top_k, self.top_k);
        set(&mut out.min_p, self.min_p);
        set(&mut out.typical_p, self.typical_p.map(|p| p.max(f32::MIN_POSITIVE)));
        set(&mut out.repeat_penalty, self.repeat_penalty);
        set(&mut out.presence_penalty, self.presence_penalty);
        set(&mut out.frequency_penalty, self.frequency_penalty);
        out.answer_alone = !self.counts_prompt;
        if let Some(n) = self.repeat_last_n {
            out.repeat_last_n = i32::try_from(n)
                .map_err(|_| ApiError::field("repeat_last_n", "repeat_last_n is too large"))?;
        }
        if let Some((id, _)) = self.logit_bias.iter().find(|(id, _)| *id as usize >= vocab) {
            let message = format!("logit_bias: token {id} is outside the vocabulary of {vocab}");
            return Err(ApiError::field("logit_bias", message));
        }
        out.logit_bias.clone_from(&self.logit_bias);
        out.seed = self.seed.unwrap_or_else(fresh);
        out.validate().map_err(|e| ApiError::invalid(e.message()))?;
        Ok(out)
    }

    /// Returns the engine job for a prompt; the answer follows `grammar` if given.
    ///
    /// # Errors
    /// 400 for a prompt that is longer than the maximum sequence length, or invalid fields.
    pub fn job(
        &self,
        model: &Loaded,
        prompt: Vec<u32>,
        grammar: Option<Grammar>,
        param: &str,
    ) -> ApiResult<Job> {
        let about = &model.about;
        if prompt.len() > about.longest {
            return Err(ApiError::context(prompt.len(), about.longest, param));
        }
        if prompt.is_empty() {
            return Err(ApiError::field(
                param,
                format!("{param} is empty: expected at least one token to continue"),
            ));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= about.vocab) {
            let message = format!("{param}: token {id} is outside the vocabulary of {}", about.vocab);
            return Err(ApiError::field(param, message));
        }
        let sampling = self.sampling(&about.sampling, about.vocab)?;
        let sampler = match model.text() {
            Ok(TextParts { tokenizer, .. }) => Sampler::new(sampling, tokenizer),
            Err(_) => Sampler::of_ids(sampling),
        };
        let mut sampler = sampler.map_err(|e| ApiError::invalid(e.message()))?;
        if let Some(grammar) = grammar {
            sampler = sampler.following(grammar);
        }
        let stops = StopTexts::new(self.stops.clone()).map_err(|e| ApiError::of_field("stop", &e))?;
        let (ignore_ends, controls) = (self.ignore_ends, self.controls);
        let request = Request { max: self.max, stops, ignore_ends, slide: false, controls };
        Ok(Job { logprobs: self.logprobs, ..Job::new(prompt, sampler, request) })
    }
}

fn stops(texts: Vec<String>) -> ApiResult<Vec<String>> {
    if texts.len() > MAX_STOPS {
        let message = format!("stop: {} texts given, but at most {MAX_STOPS} are allowed", texts.len());
        return Err(ApiError::field("stop", message));
    }
    match texts.iter().any(String::is_empty) {
        true => Err(ApiError::field("stop", "stop: an empty text would end every answer at once")),
        false => Ok(texts),
    }
}

/// Parses `{"15043": -100}`: −100 and less forbids a token.
fn biases(fields: &mut Fields) -> ApiResult<Vec<(u32, f32)>> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let one = |(id, value): (String, Value)| {
        let name = format!("logit_bias.{id}");
        let number = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias = number.ok_or_else(|| wrong(&name, &value, "a number between -100 and 100"))?;
        let id =
            id.parse().map_err(|_| ApiError::field(&name, format!("{name}: expected the id of a token")))?;
        Ok((id, if bias <= -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
    };
    biases.rest().into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_over_what_the_files_say() {
        let body = br#"{"temperature": 0, "top_p": 0, "top_k": 3, "seed": -1, "n": 2, "stop": "x", "logit_bias": {"5": -100, "6": 1.5}}"#;
        let mut fields = Fields::of_body(body).unwrap();
        let params = SamplingParams::take(&mut fields).unwrap();
        fields.end().unwrap();
        let found = params.sampling(&Sampling { min_p: 0.2, ..Sampling::default() }, 9).unwrap();
        assert_eq!((found.temperature, found.top_k, found.min_p, found.seed), (0.0, 3, 0.2, u64::MAX));
        assert_eq!(found.logit_bias, vec![(5, f32::NEG_INFINITY), (6, 1.5)]);
        assert_eq!(
            params.sampling(&Sampling::default(), 6).unwrap_err().param.as_deref(),
            Some("logit_bias")
        );
        for wrong in [
            r#"{"temperature": -1}"#,
            r#"{"top_p": 1.5}"#,
            r#"{"n": 0}"#,
            r#"{"stop": ""}"#,
            r#"{"logit_bias": {"x": 1}}"#,
            r#"{"logit_bias": {"1": 101}}"#,
        ] {
            assert!(
                SamplingParams::take(&mut Fields::of_body(wrong.as_bytes()).unwrap()).is_err(),
                "{wrong}"
            );
        }
        let names: std::collections::HashSet<String> = (0..1000).map(|_| crate::names::name("x-")).collect();
        assert_eq!(names.len(), 1000);
    }
}
