//! Sampling defaults from a model's files.

use crate::gguf::Gguf;
use crate::sampler::{Limits, Mirostat, Sampling, Step};
use crate::tokenizer::{GENERATION, ends_of_config};
use netcl_tensor::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// Defaults for generation from a model's files.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Usual {
    /// Sampling parameters.
    pub sampling: Sampling,
    /// Maximum number of new tokens for requests without a limit.
    pub max: Option<usize>,
}

/// Fields of `generation_config.json` that netcl uses, here and for end tokens. `max_length` includes the prompt and is replaced by the context
/// length.
#[cfg(test)]
const READ: &[&str] = &[
    "bad_words_ids",
    "begin_suppress_tokens",
    "do_sample",
    "eos_token_id",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];
/// Fields that affect generation in `transformers` but are unsupported here, with their neutral value.
const NOT_FOLLOWED: &[(&str, f64)] = &[
    ("assistant_early_exit", 0.0),
    ("constraints", 0.0),
    ("diversity_penalty", 0.0),
    ("dola_layers", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("exponential_decay_length_penalty", 0.0),
    ("force_words_ids", 0.0),
    ("forced_bos_token_id", -1.0),
    ("forced_decoder_ids", -1.0),
    ("forced_eos_token_id", -1.0),
    ("guidance_scale", 1.0),
    ("max_time", 0.0),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("num_return_sequences", 1.0),
    ("penalty_alpha", 0.0),
    ("sequence_bias", 0.0),
    ("stop_strings", 0.0),
    ("token_healing", 0.0),
    ("top_h", 0.0),
    ("watermarking_config", 0.0),
];

/// Parses a list of tokens, or of lists of tokens.
fn ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(id).collect()
}

/// Returns the content of a file in a folder, `null` if the file does not exist.
fn file(folder: &Path, name: &str) -> Result<Value> {
    let file = folder.join(name);
    let text = match netcl_device::files::read_text(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(Error::io("reading", &file, &error)),
    };
    serde_json::from_str(&text).map_err(|e| Error::format(e.to_string()).context(file.display()))
}

/// Reads `generation_config.json`. If `do_sample` is false, its sampling parameters have no effect, the same as in `transformers`. Unsupported fields
/// cause warnings.
///
/// # Errors
/// `Io` or `Format`; the message names the file.
pub(super) fn of_folder(folder: &Path) -> Result<Usual> {
    let json = file(folder, NAME)?;
    let (usual, left) =
        read(&json, || file(folder, "config.json")).map_err(|e| e.context(folder.join(NAME).display()))?;
    warn(&folder.join(NAME).display(), &json, &left);
    Ok(usual)
}

/// The file.
const NAME: &str = "generation_config.json";

fn wrong(json: &Value, key: &str, expected: &str) -> Error {
    Error::format(format!("{key} is {}, expected {expected}", json[key]))
}

fn whole(json: &Value, key: &str) -> Result<Option<usize>> {
    match &json[key] {
        Value::Null => Ok(None),
        value => value.as_u64().map(|n| Some(n as usize)).ok_or_else(|| wrong(json, key, "a whole number")),
    }
}

/// Returns the tokens that the file forbids. If it names no end tokens, those of `config.json` apply.
fn limits(json: &Value, config: impl FnOnce() -> Result<Value>) -> Result<Limits> {
    let list = |key: &str| match &json[key] {
        Value::Null => Ok(Vec::new()),
        value => ids(value).ok_or_else(|| wrong(json, key, "a list of tokens")),
    };
    let mut limits = Limits {
        suppressed: list("suppress_tokens")?,
        suppressed_first: list("begin_suppress_tokens")?,
        bad_words: Vec::new(),
        no_repeat: whole(json, "no_repeat_ngram_size")?.unwrap_or(0),
        least_new: whole(json, "min_new_tokens")?.unwrap_or(0),
        least_length: whole(json, "min_length")?.unwrap_or(0),
        ends: ends_of_config(json),
    };
    if limits.ends.is_empty()
        && (limits.least_new.max(limits.least_length) > 0 || !json["bad_words_ids"].is_null())
    {
        limits.ends = ends_of_config(&config()?);
    }
    let lists =
        |value: &Value| value.as_array().and_then(|all| all.iter().map(ids).collect::<Option<Vec<_>>>());
    let words = match &json["bad_words_ids"] {
        Value::Null => Vec::new(),
        value => lists(value).ok_or_else(|| wrong(json, "bad_words_ids", "a list of lists of tokens"))?,
    };
    // `transformers` ignores an end token in the list of bad words.
    for word in words.into_iter().filter(|word| !matches!(word[..], [id] if limits.ends.contains(&id))) {
        match word[..] {
            [] => return Err(wrong(json, "bad_words_ids", "lists of at least one token")),
            [id] => limits.suppressed.push(id),
            _ => limits.bad_words.push(word),
        }
    }
    if limits.least_new.max(limits.least_length) == 0 {
        limits.ends.clear();
    }
    Ok(limits)
}

/// Returns the content of the file, and the unsupported fields.
fn read(json: &Value, config: impl FnOnce() -> Result<Value>) -> Result<(Usual, Vec<&'static str>)> {
    let mut out = Usual::default();
    let sampling = &mut out.sampling;
    let number = |key: &str, to: &mut f32| {
        if let Some(x) = json[key].as_f64() {
            *to = x as f32;
        }
    };
    if json["do_sample"] != false {
        number("temperature", &mut sampling.temperature);
        number("top_p", &mut sampling.top_p);
        number("min_p", &mut sampling.min_p);
        number("typical_p", &mut sampling.typical_p);
        number("repetition_penalty", &mut sampling.repeat_penalty);
        if let Some(k) = json["top_k"].as_u64() {
            sampling.top_k = usize::try_from(k).unwrap_or(0);
        }
        // `transformers` penalizes tokens of the whole text.
        if sampling.repeat_penalty != Sampling::default().repeat_penalty {
            sampling.repeat_last_n = -1;
        }
    }
    sampling.limits = limits(json, config)?;
    out.max = whole(json, "max_new_tokens")?;
    sampling.validate()?;
    let counts = |name: &str, neutral: f64| match &json[name] {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        #[allow(clippy::float_cmp)] // written by hand in files
        value => value.as_f64() != Some(neutral),
    };
    let left = NOT_FOLLOWED.iter().filter(|(name, neutral)| counts(name, *neutral)).map(|(name, _)| *name);
    Ok((out, left.collect()))
}

/// Returns the defaults of a GGUF file: its `generation_config.json`, overridden by the keys `general.sampling.*`.
///
/// # Errors
/// `Format` with file and key.
pub(super) fn of_gguf(file: &Gguf) -> Result<Usual> {
    let Usual { sampling: mut out, max } = of_text(file)?;
    let name = |key: &str| format!("general.sampling.{key}");
    let number = |key: &str, to: &mut f32| -> Result<()> {
        if let Some(x) = file.number(&name(key))? {
            *to = x as f32;
        }
        Ok(())
    };
    number("temp", &mut out.temperature)?;
    number("top_p", &mut out.top_p)?;
    number("min_p", &mut out.min_p)?;
    number("xtc_probability", &mut out.xtc_probability)?;
    number("xtc_threshold", &mut out.xtc_threshold)?;
    number("penalty_repeat", &mut out.repeat_penalty)?;
    number("mirostat_tau", &mut out.mirostat_tau)?;
    number("mirostat_eta", &mut out.mirostat_eta)?;
    if let Some(k) = file.number(&name("top_k"))? {
        // A negative value selects all.
        out.top_k = k.max(0.0) as usize;
    }
    if let Some(n) = file.number(&name("penalty_last_n"))? {
        out.repeat_last_n = n as i32;
    }
    if let Some(version) = file.size(&name("mirostat"))? {
        out.mirostat =
            [Mirostat::Off, Mirostat::One, Mirostat::Two].get(version).copied().unwrap_or_default();
    }
    if let Some(steps) = file.text(&name("sequence"))? {
        out.chain = Step::chain(steps).map_err(|e| e.context(file.path().display()))?;
    }
    out.validate().map_err(|e| e.context(file.path().display()))?;
    Ok(Usual { sampling: out, max })
}

/// Returns the defaults of the `generation_config.json` in a GGUF file.
fn of_text(file: &Gguf) -> Result<Usual> {
    let Some(text) = file.text(GENERATION)? else { return Ok(Usual::default()) };
    let place = |e: Error| e.context(GENERATION).context(file.path().display());
    let json: Value = serde_json::from_str(text).map_err(|e| place(Error::format(e.to_string())))?;
    let (usual, left) = read(&json, || Ok(Value::Null)).map_err(place)?;
    warn(&file.path().display(), &json, &left);
    Ok(usual)
}

fn warn(place: &dyn std::fmt::Display, json: &Value, left: &[&str]) {
    for name in left {
        tracing::warn!("{place}: {name} is {}: netcl ignores it", json[name]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{Meta, Plan};
    use crate::model::{self, Mix, OutputFormat, Source, WriteOptions};
    use crate::tokenizer::Tokenizer;

    fn of(text: &str) -> Result<Usual> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), r#"{"eos_token_id": 7}"#).unwrap();
        std::fs::write(dir.path().join("generation_config.json"), text).unwrap();
        of_folder(dir.path())
    }

    #[test]
    fn a_folder_says_how_its_tokens_are_drawn() {
        assert_eq!(of_folder(tempfile::tempdir().unwrap().path()).unwrap(), Usual::default());
        let found = of(
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "repetition_penalty": 1.05}"#,
        );
        let found = found.unwrap().sampling;
        assert_eq!((found.temperature, found.top_k, found.top_p, found.repeat_penalty), (0.6, 20, 0.9, 1.05));
        assert_eq!(found.repeat_last_n, -1);
        assert_eq!(of(r#"{"do_sample": false, "temperature": 0.6}"#).unwrap(), Usual::default());
        for (text, part) in [
            (r#"{"top_p": 7}"#, "top_p is 7"),
            ("{", "EOF"),
            (r#"{"suppress_tokens": "all"}"#, "suppress_tokens is \"all\", expected a list of tokens"),
            (r#"{"bad_words_ids": [3]}"#, "bad_words_ids is [3], expected a list of lists"),
            (r#"{"max_new_tokens": 1.5}"#, "max_new_tokens is 1.5, expected a whole number"),
        ] {
            let error = of(text).unwrap_err();
            assert!(
                error.message().contains(part) && error.message().contains("generation_config.json"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_folder_says_which_tokens_are_forbidden_and_how_many_may_come() {
        let found = of(
            r#"{"do_sample": false, "suppress_tokens": [3, 4], "begin_suppress_tokens": [5], "no_repeat_ngram_size": 3,
                "bad_words_ids": [[6], [7], [1, 2]], "min_new_tokens": 2, "max_new_tokens": 40}"#,
        );
        let found = found.unwrap();
        let limits = &found.sampling.limits;
        assert_eq!((found.max, limits.no_repeat, limits.least_new), (Some(40), 3, 2));
        assert_eq!((&limits.suppressed[..], &limits.suppressed_first[..]), (&[3, 4, 6][..], &[5][..]));
        assert_eq!((&limits.bad_words[..], &limits.ends[..]), (&[vec![1, 2]][..], &[7][..]));
        let ended = of(r#"{"eos_token_id": [7, 8], "bad_words_ids": [[6], [8]]}"#).unwrap();
        assert_eq!(ended.sampling.limits.suppressed, [6]);
    }

    /// Compares a folder, the GGUF file converted from it, and the folder converted from the file: limits, sampling and ends.
    #[test]
    fn a_gguf_file_says_what_the_folder_said_that_it_was_made_of() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, file, back) =
            (dir.path().join("in"), dir.path().join("m.gguf"), dir.path().join("back"));
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        let tiny = super::super::tests::tiny("llama");
        std::fs::copy(tiny.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
        netcl_model::tokenizer::Tokenizer::char_from_text(["abcdefghijklmnop"])
            .unwrap()
            .save(&folder)
            .unwrap();
        let config = std::fs::read_to_string(tiny.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["eos_token_id"] = serde_json::json!([1, 9]);
        write("config.json", &config.to_string());
        let convert = |from: &Path, to: &Path, target| {
            let options = WriteOptions { mix: Mix::named("f32").unwrap(), importance: None };
            model::convert(&Source::open(from).unwrap(), to, target, &options, &mut |_| Ok(())).unwrap();
        };
        for text in [
            "{}",
            r#"{"eos_token_id": 3}"#,
            r#"{"do_sample": false, "temperature": 0.1, "top_k": 3, "max_new_tokens": 7}"#,
            r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.05, "typical_p": 0.7}"#,
            r#"{"top_k": 0, "repetition_penalty": 1.0, "eos_token_id": [2, 5], "bad_words_ids": [[4], [5], [6, 7]], "num_beams": 3}"#,
            r#"{"suppress_tokens": [3], "begin_suppress_tokens": [4], "no_repeat_ngram_size": 2, "min_new_tokens": 3, "min_length": 5}"#,
            r#"{"top_k": 99999999999}"#,
            r#"{"eos_token_id": [2, -1], "min_length": 4}"#,
        ] {
            write(NAME, text);
            convert(&folder, &file, OutputFormat::Gguf);
            convert(&file, &back, OutputFormat::Folder);
            let expected = of_folder(&folder).unwrap();
            assert_eq!(of_gguf(&Gguf::open(&file).unwrap()).unwrap(), expected, "{text}");
            assert_eq!(of_folder(&back).unwrap(), expected, "{text}");
            let stops = [
                Tokenizer::from_folder(&folder).unwrap(),
                Tokenizer::from_gguf(&Gguf::open(&file).unwrap()).unwrap(),
                Tokenizer::from_folder(&back).unwrap(),
            ]
            .map(|tokenizer| tokenizer.stops().to_vec());
            // The file always names one end token.
            let rest = |stops: &[u32]| stops.iter().copied().filter(|id| *id != 1).collect::<Vec<_>>();
            assert!(stops.iter().all(|found| rest(found) == rest(&stops[0])), "{text}: {stops:?}");
        }
        // llama.cpp's keys, which users edit, take precedence over the JSON.
        let made = Gguf::open(&file).unwrap();
        let mut plan = Plan::default();
        for key in made.keys() {
            let (name, kind, bytes) = key.unwrap();
            plan.set(name, Meta::Raw(kind, bytes.into()));
        }
        plan.set("general.sampling.temp", Meta::F32(0.25));
        plan.set("general.sampling.xtc_probability", Meta::F32(0.5));
        let edited = dir.path().join("edited.gguf");
        plan.write(&edited, |_, _| Ok(())).unwrap();
        let found = of_gguf(&Gguf::open(&edited).unwrap()).unwrap().sampling;
        assert_eq!((found.temperature, found.xtc_probability), (0.25, 0.5));
        plan.set(GENERATION, Meta::Str("{".into()));
        plan.write(&edited, |_, _| Ok(())).unwrap();
        let error = of_gguf(&Gguf::open(&edited).unwrap()).unwrap_err();
        assert!(error.message().contains("edited.gguf") && error.message().contains(GENERATION), "{error}");
    }

    #[test]
    fn what_is_not_followed_is_named() {
        let left = |json: Value| read(&json, || Ok(Value::Null)).unwrap().1;
        let json = serde_json::json!({
            "num_beams": 4, "guidance_scale": 1.0, "stop_strings": ["x"], "forced_eos_token_id": 2, "penalty_alpha": null,
            "sequence_bias": [], "_from_model_config": true, "transformers_version": "5.0",
        });
        assert_eq!(left(json), ["forced_eos_token_id", "num_beams", "stop_strings"]);
        assert!(NOT_FOLLOWED.iter().all(|(name, _)| !READ.contains(name)));
    }
}
