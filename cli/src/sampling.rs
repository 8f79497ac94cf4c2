//! Sampling flags, with the names of llama.cpp.

use clap::Args as ClapArgs;
use netcl::llm::Tokenizer;
use netcl::llm::grammar::Grammars;
use netcl::llm::sampler::{Mirostat, Sampler, Sampling, Step};
use netcl::llm::tokenizer::Specials;
use netcl::prelude::*;
use std::path::PathBuf;

/// Flags of every command that samples tokens. Missing values come from the model's files (`generation_config.json`, `general.sampling.*`), or are
/// llama.cpp's defaults.
#[derive(ClapArgs, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling (default: the model's files, then the value shown)")]
pub struct SamplingArgs {
    /// Temperature: divides the logits; 0 always selects the likeliest token [default: 0.8]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "N")]
    temp: Option<f32>,
    /// Keep the K likeliest tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Keep the likeliest tokens whose probabilities sum to this value; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens less likely than this share of the likeliest; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Keep tokens of typical surprise whose probabilities sum to this value; 1 keeps all [default: 1]
    #[arg(long, value_name = "P", visible_alias = "typical-p")]
    typical: Option<f32>,
    /// Keep tokens within N standard deviations of the best logit; 0 or less keeps all [default: -1]
    #[arg(long, value_name = "N", visible_alias = "top-nsigma", allow_hyphen_values = true)]
    top_n_sigma: Option<f32>,
    /// Divide the logits of repeated tokens; 1 disables it [default: 1]
    #[arg(long, value_name = "N")]
    repeat_penalty: Option<f32>,
    /// Number of last tokens that penalties consider; 0 none, -1 all [default: 64]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    repeat_last_n: Option<i32>,
    /// Subtract from the logits of repeated tokens [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Subtract once for every occurrence of a token [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Penalty for continuing a repetition (DRY); 0 disables it [default: 0]
    #[arg(long, value_name = "N")]
    dry_multiplier: Option<f32>,
    /// DRY: the penalty grows by this factor with each token of the repetition [default: 1.75]
    #[arg(long, value_name = "N")]
    dry_base: Option<f32>,
    /// DRY: shorter repetitions are not penalized [default: 2]
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<usize>,
    /// DRY: number of last tokens considered; 0 none, -1 all [default: 64]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    dry_penalty_last_n: Option<i32>,
    /// DRY: text that ends a repetition (repeatable); none: no such text [default: line end, : " *]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    /// Probability of removing the likeliest tokens (XTC) [default: 0]
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f32>,
    /// XTC: minimum probability of tokens to remove; the last such token stays [default: 0.1]
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f32>,
    /// Range of the temperature, which follows the entropy; 0 keeps it constant [default: 0]
    #[arg(long, value_name = "N")]
    dynatemp_range: Option<f32>,
    /// Exponent that maps the entropy to that range [default: 1]
    #[arg(long, value_name = "N")]
    dynatemp_exp: Option<f32>,
    /// Keep the text's surprise at a target: 0 off, 1 Mirostat, 2 Mirostat 2.0 [default: 0]
    ///
    /// Replaces top-k, top-p, min-p and typical.
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=2))]
    mirostat: Option<u8>,
    /// Mirostat: target surprise in bits [default: 5]
    #[arg(long, value_name = "N", visible_alias = "mirostat-tau")]
    mirostat_ent: Option<f32>,
    /// Mirostat: learning rate [default: 0.1]
    #[arg(long, value_name = "N", visible_alias = "mirostat-eta")]
    mirostat_lr: Option<f32>,
    /// Add to the logit of a token, such as 15043+1 or 29991-inf (repeatable)
    #[arg(long, short = 'l', value_name = "ID(+|-)BIAS", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// Allow only text of a grammar (llguidance's language, similar to Lark): start: "yes" | "no"
    #[arg(long, value_name = "GRAMMAR", group = "bound", allow_hyphen_values = true)]
    grammar: Option<String>,
    /// Read the grammar from a file
    #[arg(long, value_name = "FILE", group = "bound")]
    grammar_file: Option<PathBuf>,
    /// Allow only JSON of a schema, such as {"type": "object"}; unsupported keywords are errors
    #[arg(long, short = 'j', value_name = "SCHEMA", group = "bound")]
    json_schema: Option<String>,
    /// Read the schema from a file
    #[arg(long, value_name = "FILE", group = "bound")]
    json_schema_file: Option<PathBuf>,
    /// Samplers in order [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]
    #[arg(long, value_name = "NAMES", value_parser = chain)]
    samplers: Option<Chain>,
}

#[derive(Clone, Debug)]
struct Chain(Vec<Step>);

fn chain(text: &str) -> std::result::Result<Chain, String> {
    Step::chain(text).map(Chain).map_err(|e| e.message().to_owned())
}

/// Parses `15043+1`, `15043-0.5`, `15043-inf`.
fn bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let wrong =
        || format!("expected a token's id and the bias to add, such as 15043+1 or 29991-inf, found {text:?}");
    let at = text.find(['+', '-']).ok_or_else(wrong)?;
    let id = text[..at].trim().parse().map_err(|_| wrong())?;
    let value: f32 = text[at..].trim().parse().map_err(|_| wrong())?;
    Ok((id, value))
}

impl SamplingArgs {
    /// Returns `base`, the model's sampling settings, with these flags applied.
    ///
    /// # Errors
    /// `Format`, which names the option that is out of its range.
    pub fn over(&self, base: &Sampling, seed: u64) -> Result<Sampling> {
        let mut out = Sampling { seed, ..base.clone() };
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            *to = from.unwrap_or(*to);
        }
        set(&mut out.temperature, self.temp);
        set(&mut out.top_k, self.top_k);
        set(&mut out.top_p, self.top_p);
        set(&mut out.min_p, self.min_p);
        set(&mut out.typical_p, self.typical);
        set(&mut out.top_n_sigma, self.top_n_sigma);
        set(&mut out.repeat_penalty, self.repeat_penalty);
        set(&mut out.repeat_last_n, self.repeat_last_n);
        set(&mut out.presence_penalty, self.presence_penalty);
        set(&mut out.frequency_penalty, self.frequency_penalty);
        set(&mut out.dry.multiplier, self.dry_multiplier);
        set(&mut out.dry.base, self.dry_base);
        set(&mut out.dry.allowed_length, self.dry_allowed_length);
        set(&mut out.dry.last_n, self.dry_penalty_last_n);
        set(&mut out.xtc_probability, self.xtc_probability);
        set(&mut out.xtc_threshold, self.xtc_threshold);
        set(&mut out.dynatemp_range, self.dynatemp_range);
        set(&mut out.dynatemp_exponent, self.dynatemp_exp);
        set(&mut out.mirostat_tau, self.mirostat_ent);
        set(&mut out.mirostat_eta, self.mirostat_lr);
        if let Some(version) = self.mirostat {
            out.mirostat = [Mirostat::Off, Mirostat::One, Mirostat::Two][usize::from(version)];
        }
        match &self.dry_sequence_breaker[..] {
            [] => {}
            [none] if none == "none" => out.dry.breakers.clear(),
            texts => out.dry.breakers = texts.to_vec(),
        }
        if let Some(Chain(steps)) = &self.samplers {
            out.chain.clone_from(steps);
        }
        out.logit_bias.extend(&self.logit_bias);
        out.validate()?;
        Ok(out)
    }

    /// Builds a sampler, with the grammar or schema that the text must follow.
    pub fn sampler(&self, sampling: Sampling, tokenizer: &Tokenizer) -> Result<Sampler> {
        let sampler = Sampler::new(sampling, tokenizer)?;
        let read = |file: &PathBuf| std::fs::read_to_string(file).map_err(|e| Error::io("reading", file, &e));
        let text = |text: &Option<String>, file: &Option<PathBuf>| match (text, file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, file) => file.as_ref().map(read).transpose(),
        };
        if let Some(grammar) = text(&self.grammar, &self.grammar_file)? {
            return Ok(sampler.following(Grammars::new(tokenizer)?.lark(&grammar)?));
        }
        if let Some(schema) = text(&self.json_schema, &self.json_schema_file)? {
            let schema = serde_json::from_str(&schema)
                .map_err(|e| Error::format(format!("the JSON schema is not valid JSON: {e}")))?;
            return Ok(sampler.following(Grammars::new(tokenizer)?.json_schema(&schema)?));
        }
        Ok(sampler)
    }

    /// Refuses values that are invalid for every model, before anything is loaded.
    pub fn check(&self) -> Result<()> {
        self.over(&Sampling::default(), 0).map(drop)
    }
}

/// Tokenizes a user's text: names of control tokens are plain text unless `special`.
pub fn prompt_ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>> {
    tokenizer.encode_prompt(text, if special { Specials::Parsed } else { Specials::Plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read_as_llama_cpp_writes_them() {
        assert_eq!(bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(bias("7-0.5"), Ok((7, -0.5)));
        assert_eq!(bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["", "7", "+1", "x+1", "7+y", "-1+2"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_go_over_files_and_files_over_what_is_usual() {
        let files = Sampling { temperature: 0.6, top_k: 20, ..Sampling::default() };
        let args = SamplingArgs { top_k: Some(7), mirostat: Some(2), ..SamplingArgs::default() };
        let found = args.over(&files, 9).unwrap();
        assert_eq!((found.temperature, found.top_k, found.top_p, found.seed), (0.6, 7, 0.95, 9));
        assert_eq!(found.mirostat, Mirostat::Two);
        let wrong = SamplingArgs { top_p: Some(0.0), ..SamplingArgs::default() };
        assert!(wrong.check().unwrap_err().message().contains("top_p"));
    }
}
