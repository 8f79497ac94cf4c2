//! Pooling of token states to one vector, configured by the files of `sentence-transformers` or the keys of a GGUF file.

use crate::gguf::{Gguf, Meta};
use netcl_device::files::plain_name;
use netcl_model::decoder::MODULES;
use netcl_tensor::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

/// The states that a pooled vector uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The first token's state.
    First,
    /// The last token's state.
    Last,
    /// The maximum of each element.
    Most,
    /// Their mean.
    Mean,
    /// Their sum divided by the square root of their number.
    RootMean,
    /// Their mean, weighted by position from 1.
    Weighted,
}

/// Fields of `1_Pooling/config.json`, names of its newer form, and llama.cpp's numbers.
const KINDS: [(&str, &str, Kind, Option<u32>); 6] = [
    ("pooling_mode_cls_token", "cls", Kind::First, Some(2)),
    ("pooling_mode_lasttoken", "lasttoken", Kind::Last, Some(3)),
    ("pooling_mode_max_tokens", "max", Kind::Most, None),
    ("pooling_mode_mean_tokens", "mean", Kind::Mean, Some(1)),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Kind::RootMean, None),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Kind::Weighted, None),
];
/// Key of llama.cpp's number, after the architecture's name.
const TYPE: &str = "pooling_type";
/// netcl's own keys: the name of a kind without a number, whether vectors have length 1, the maximum length, and the reason for missing vectors.
const MODE: &str = "netcl.pooling.mode";
const NORMALIZE: &str = "netcl.pooling.normalize";
const MAX_LENGTH_KEY: &str = "netcl.pooling.max_seq_length";
const REFUSED: &str = "netcl.pooling.refused";
/// Settings file of the model in `sentence-transformers`.
const BERT: &str = "sentence_bert_config.json";

/// Pooling configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooling {
    kind: Kind,
    /// Whether the vector is normalized to length 1.
    normalized: bool,
    /// Maximum number of tokens: `sentence-transformers` truncates longer texts.
    pub longest: Option<usize>,
}

impl Default for Pooling {
    fn default() -> Self {
        Self { kind: Kind::Mean, normalized: true, longest: None }
    }
}

/// Returns the content of a file in a folder, `None` if the file does not exist.
fn file(folder: &Path, name: &str) -> Result<Option<Value>> {
    let path = folder.join(name);
    let text = match netcl_device::files::read_text(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("reading", &path, &e)),
    };
    serde_json::from_str(&text).map(Some).map_err(|e| Error::format(e.to_string()).context(path.display()))
}

impl Pooling {
    /// Reads the pooling configuration of a folder. Without `modules.json` a vector is the mean, normalized to length 1.
    ///
    /// # Errors
    /// `Io` or `Format` with the file; `Unsupported` with the unsupported module or field.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let Some(modules) = file(folder, MODULES)? else { return Ok(Self::default()) };
        let place = |name: &str, e: Error| e.context(format!("embeddings by {name}"));
        let modules = modules.as_array().cloned().unwrap_or_default();
        let (mut kind, mut normalized) = (None, false);
        for (at, module) in modules.iter().enumerate() {
            let whole = module["type"].as_str().unwrap_or_default();
            match (whole.rsplit('.').next().unwrap_or_default(), at) {
                ("Transformer", 0) => {}
                ("Pooling", 1) => {
                    let own = plain_name(module["path"].as_str().unwrap_or("1_Pooling"));
                    let name = format!("{}/config.json", own.map_err(|e| place(MODULES, e))?);
                    let config = file(folder, &name)?.unwrap_or_default();
                    kind = Some(Kind::of(&config).map_err(|e| place(&name, e))?);
                }
                ("Normalize", _) if kind.is_some() && !normalized => normalized = true,
                _ => {
                    let e = Error::unsupported(format!(
                        "module {at} is {whole:?}: the supported ones are Transformer, Pooling and Normalize, in this order"
                    ));
                    return Err(place(MODULES, e));
                }
            }
        }
        let Some(kind) = kind else {
            return Err(place(MODULES, Error::unsupported("the module Pooling is missing")));
        };
        let bert = file(folder, BERT)?.unwrap_or_default();
        if bert["do_lower_case"] == true {
            let e =
                Error::unsupported("do_lower_case is true, but netcl does not change texts to lower case");
            return Err(place(BERT, e));
        }
        let whole = file(folder, "config_sentence_transformers.json")?.unwrap_or_default();
        if let Some(name) = whole["default_prompt_name"].as_str() {
            let e = Error::unsupported(format!(
                "default_prompt_name is {name:?}, but netcl does not put a prompt before texts"
            ));
            return Err(place("config_sentence_transformers.json", e));
        }
        let longest = bert["max_seq_length"].as_u64().map(|n| n as usize);
        Ok(Self { kind, normalized, longest })
    }

    /// Reads the keys of a GGUF file: llama.cpp's `{architecture}.pooling_type`, and own keys for the other kinds. Without them a vector is the mean,
    /// normalized to length 1, the same as in llama.cpp.
    ///
    /// # Errors
    /// `Format` with file and key; `Unsupported` for a pooling type without a single vector, or one that the original folder did not support.
    pub fn of_gguf(file: &Gguf, architecture: &str) -> Result<Self> {
        let refused = |e: Error| e.context("embeddings").context(file.path().display());
        if let Some(why) = file.text(REFUSED)? {
            return Err(refused(Error::unsupported(why)));
        }
        let key = format!("{architecture}.{TYPE}");
        let kind = match (file.text(MODE)?, file.size(&key)?) {
            (Some(name), _) => {
                KINDS.iter().find(|(_, own, ..)| *own == name).map(|(_, _, kind, _)| *kind).ok_or_else(
                    || {
                        let known = KINDS.map(|(_, name, ..)| name).join(", ");
                        refused(Error::unsupported(format!("{MODE} is {name:?}, expected one of {known}")))
                    },
                )?
            }
            (None, None) => Kind::Mean,
            (None, Some(number)) => {
                let known =
                    KINDS.iter().find(|(.., own)| *own == u32::try_from(number).ok() && own.is_some());
                known.map(|(_, _, kind, _)| *kind).ok_or_else(|| {
                    let what = match number {
                        0 => "none: it returns one vector per token, not one per text",
                        4 => "rank: it compares two texts and returns no vector of one text",
                        _ => "unknown",
                    };
                    let known = "supported are 1 (mean), 2 (first token) and 3 (last token)";
                    refused(Error::unsupported(format!("{key} is {number}, {what}; {known}")))
                })?
            }
        };
        let normalized = file.flag(NORMALIZE)?.unwrap_or(true);
        Ok(Self { kind, normalized, longest: file.size(MAX_LENGTH_KEY)? })
    }

    /// Returns the keys for the pooling of a folder; none without `modules.json`. The reason for unsupported pooling is stored as a key.
    pub fn keys(folder: &Path, architecture: &str) -> Vec<(String, Meta)> {
        if !folder.join(MODULES).exists() {
            return Vec::new();
        }
        let pooling = match Self::of_folder(folder) {
            Ok(pooling) => pooling,
            Err(e) => {
                tracing::warn!("{}: the GGUF file will not support embeddings: {e}", folder.display());
                return vec![(REFUSED.into(), Meta::Str(e.message().to_owned()))];
            }
        };
        let kind = KINDS.iter().find(|(_, _, kind, _)| *kind == pooling.kind);
        let mut keys = match kind {
            Some((.., Some(number))) => vec![(format!("{architecture}.{TYPE}"), Meta::U32(*number))],
            Some((_, name, ..)) => vec![(MODE.into(), Meta::Str((*name).into()))],
            None => Vec::new(),
        };
        keys.push((NORMALIZE.into(), Meta::Bool(pooling.normalized)));
        if let Some(longest) = pooling.longest.and_then(|n| u32::try_from(n).ok()) {
            keys.push((MAX_LENGTH_KEY.into(), Meta::U32(longest)));
        }
        keys
    }

    /// Returns the files of `sentence-transformers` for the keys of a GGUF file and vectors of `width` elements. Returns none if the file has no such
    /// keys, or, with a warning, if it does not support embeddings.
    pub fn files_of(file: &Gguf, architecture: &str, width: usize) -> Vec<(&'static str, Value)> {
        let there = |key: &str| file.get(key).is_ok_and(|value| value.is_some());
        let own = [MODE, NORMALIZE, MAX_LENGTH_KEY, REFUSED].iter().any(|key| there(key));
        if !own && !there(&format!("{architecture}.{TYPE}")) {
            return Vec::new();
        }
        match Self::of_gguf(file, architecture) {
            Ok(pooling) => pooling.files(width),
            Err(e) => {
                tracing::warn!("the folder does not have modules.json: {e}");
                Vec::new()
            }
        }
    }

    /// Returns the equivalent files of `sentence-transformers`.
    fn files(&self, width: usize) -> Vec<(&'static str, Value)> {
        let types =
            ["Transformer", "Pooling", "Normalize"].into_iter().take(if self.normalized { 3 } else { 2 });
        let module = |(at, name): (usize, &str)| {
            let path = if at == 0 { String::new() } else { format!("{at}_{name}") };
            json!({ "idx": at, "name": at.to_string(), "path": path, "type": format!("sentence_transformers.models.{name}") })
        };
        let mut pooling = json!({ "word_embedding_dimension": width });
        for (field, _, kind, _) in KINDS {
            pooling[field] = (kind == self.kind).into();
        }
        let mut files =
            vec![(MODULES, types.enumerate().map(module).collect()), ("1_Pooling/config.json", pooling)];
        if let Some(longest) = self.longest {
            files.push((BERT, json!({ "max_seq_length": longest, "do_lower_case": false })));
        }
        files
    }

    /// Pools states (T, C) to a vector (C).
    pub fn of(&self, states: &[f32], rows: usize) -> Vec<f32> {
        let width = (states.len() / rows.max(1)).max(1);
        let mut out = vec![if self.kind == Kind::Most { f64::NEG_INFINITY } else { 0.0 }; width];
        for (i, row) in states.chunks_exact(width).enumerate() {
            let weight = match self.kind {
                Kind::First => f64::from(u8::from(i == 0)),
                Kind::Last => f64::from(u8::from(i + 1 == rows)),
                Kind::Most => 1.0,
                Kind::Mean => 1.0 / rows as f64,
                Kind::RootMean => 1.0 / (rows as f64).sqrt(),
                Kind::Weighted => (i + 1) as f64 * 2.0 / (rows * (rows + 1)) as f64,
            };
            for (out, x) in out.iter_mut().zip(row) {
                let x = weight * f64::from(*x);
                *out = if self.kind == Kind::Most { out.max(x) } else { *out + x };
            }
        }
        let square: f64 = out.iter().map(|x| x * x).sum();
        let length = if self.normalized { square.sqrt().max(1e-12) } else { 1.0 };
        out.into_iter().map(|x| (x / length) as f32).collect()
    }
}

impl Kind {
    /// Parses `1_Pooling/config.json`.
    fn of(config: &Value) -> Result<Self> {
        let mode = &config["pooling_mode"];
        let modes: Vec<&str> = match mode {
            Value::Array(modes) => modes.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        if mode.is_null() && KINDS.iter().all(|(field, ..)| config[*field].is_null()) {
            return Ok(Self::Mean);
        }
        let chosen = KINDS.iter().filter(|(field, name, ..)| config[*field] == true || modes.contains(name));
        match chosen.collect::<Vec<_>>()[..] {
            [(_, _, kind, _)] => Ok(*kind),
            [] => Err(Error::unsupported(format!(
                "no known pooling mode, expected one of {}",
                KINDS.map(|(field, ..)| field).join(", ")
            ))),
            [(first, ..), (second, ..), ..] => Err(Error::unsupported(format!(
                "{first} and {second} are both true: concatenated vectors of several modes are not supported"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::Plan;
    use serde_json::json;

    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, json) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, json.to_string()).unwrap();
        }
        dir
    }

    fn modules(last: &[&str]) -> Value {
        let types = ["Transformer", "Pooling"].iter().chain(last).enumerate();
        let one = |(i, name): (usize, &&str)| {
            let path = if i == 0 { String::new() } else { format!("{i}_{name}") };
            json!({ "idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{name}") })
        };
        types.map(one).collect()
    }

    fn read(last: &[&str], pooling: Value) -> Result<Pooling> {
        let files = [("modules.json", modules(last)), ("1_Pooling/config.json", pooling)];
        Pooling::of_folder(folder(&files).path())
    }

    #[test]
    fn embeddings_are_pooled_as_sentence_transformers_says() {
        let usual = Pooling::of_folder(tempfile::tempdir().unwrap().path()).unwrap();
        assert_eq!(usual, Pooling::default());
        let found = usual.of(&[1.0, 0.0, 5.0, 8.0], 2);
        assert!((found[0] - 0.6).abs() < 1e-6 && (found[1] - 0.8).abs() < 1e-6);
        for (field, expected) in [
            ("pooling_mode_cls_token", [1.0, -2.0]),
            ("pooling_mode_lasttoken", [5.0, 8.0]),
            ("pooling_mode_max_tokens", [5.0, 8.0]),
            ("pooling_mode_mean_tokens", [3.0, 3.0]),
            ("pooling_mode_mean_sqrt_len_tokens", [6.0 / 2f32.sqrt(), 6.0 / 2f32.sqrt()]),
            ("pooling_mode_weightedmean_tokens", [11.0 / 3.0, 14.0 / 3.0]),
        ] {
            let mut config = json!({ "word_embedding_dimension": 2, "pooling_mode_mean_tokens": false, "include_prompt": true });
            config[field] = true.into();
            let plain = read(&[], config.clone()).unwrap().of(&[1.0, -2.0, 5.0, 8.0], 2);
            assert!(plain.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{field}: {plain:?}");
            let normal = read(&["Normalize"], config).unwrap().of(&[1.0, -2.0, 5.0, 8.0], 2);
            let length = expected[0].hypot(expected[1]);
            assert!(
                normal.iter().zip(expected).all(|(a, b)| (a - b / length).abs() < 1e-6),
                "{field}: {normal:?}"
            );
        }
    }

    /// Creates a GGUF file with these keys, which llama.cpp, other programs or a folder may have.
    fn gguf(keys: &[(String, Meta)]) -> (tempfile::TempDir, Gguf) {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = Plan::default();
        keys.iter().for_each(|(key, value)| plan.set(key.clone(), value.clone()));
        let path = dir.path().join("m.gguf");
        plan.write(&path, |_, _| Ok(())).unwrap();
        let file = Gguf::open(&path).unwrap();
        (dir, file)
    }

    #[test]
    fn a_gguf_file_pools_as_the_folder_does() {
        for (field, ..) in KINDS {
            for last in [&[][..], &["Normalize"]] {
                let pooling = json!({ field: true });
                let bert = json!({ "max_seq_length": 7 });
                let files =
                    [("modules.json", modules(last)), ("1_Pooling/config.json", pooling), (BERT, bert)];
                let from = folder(&files);
                let expected = Pooling::of_folder(from.path()).unwrap();
                let keys = Pooling::keys(from.path(), "qwen3");
                let (_dir, file) = gguf(&keys);
                assert_eq!(Pooling::of_gguf(&file, "qwen3").unwrap(), expected, "{keys:?}");
                let back = folder(&Pooling::files_of(&file, "qwen3", 24));
                assert_eq!(Pooling::of_folder(back.path()).unwrap(), expected, "{field}");
            }
        }
        let without = folder(&[]);
        assert!(Pooling::keys(without.path(), "qwen3").is_empty());
        let (_dir, file) = gguf(&[]);
        assert_eq!(Pooling::of_gguf(&file, "qwen3").unwrap(), Pooling::default());
        assert!(Pooling::files_of(&file, "qwen3", 24).is_empty());
        // A file supports no more than its folder.
        let dense = folder(&[("modules.json", modules(&["Dense"])), ("1_Pooling/config.json", json!({}))]);
        let expected = Pooling::of_folder(dense.path()).unwrap_err();
        let (_dir, file) = gguf(&Pooling::keys(dense.path(), "qwen3"));
        let error = Pooling::of_gguf(&file, "qwen3").unwrap_err();
        assert!(error.message().contains(expected.message()), "{error}");
    }

    #[test]
    fn kinds_of_pooling_by_llama_cpps_numbers() {
        let read = |number: u32| {
            let (_dir, file) = gguf(&[("qwen3.pooling_type".into(), Meta::U32(number))]);
            Pooling::of_gguf(&file, "qwen3")
        };
        for (number, kind) in [(1, Kind::Mean), (2, Kind::First), (3, Kind::Last)] {
            assert_eq!(read(number).unwrap(), Pooling { kind, ..Pooling::default() });
        }
        for (number, part) in [(0, "one vector per token"), (4, "rank"), (7, "qwen3.pooling_type is 7")] {
            let error = read(number).unwrap_err();
            assert!(error.message().contains(part) && error.message().contains("m.gguf"), "{error}");
        }
        let (_dir, file) = gguf(&[(MODE.into(), Meta::Str("min".into()))]);
        let error = Pooling::of_gguf(&file, "qwen3").unwrap_err();
        assert!(error.message().contains("\"min\", expected one of cls"), "{error}");
    }

    #[test]
    fn embeddings_that_cannot_be_followed_are_refused_by_name() {
        let mean = || json!({ "pooling_mode_mean_tokens": true });
        for (last, pooling, part) in [
            (&["Dense"][..], mean(), "module 2 is \"sentence_transformers.models.Dense\""),
            (
                &[],
                json!({ "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true }),
                "are both true",
            ),
            (&[], json!({ "pooling_mode_mean_tokens": false }), "no known pooling mode"),
            (&[], json!({ "pooling_mode": ["mean", "max"] }), "are both true"),
        ] {
            let e = read(last, pooling).unwrap_err();
            assert!(e.message().contains(part), "{e}");
        }
        let files = |name: &'static str, json: Value| {
            [("modules.json", modules(&[])), ("1_Pooling/config.json", mean()), (name, json)]
        };
        for path in ["", "../1_Pooling"] {
            let mut all = modules(&[]);
            all[1]["path"] = path.into();
            let e = Pooling::of_folder(folder(&[("modules.json", all)]).path()).unwrap_err();
            assert!(e.message().contains("modules.json") && e.message().contains("plain file name"), "{e}");
        }
        let lower = files("sentence_bert_config.json", json!({ "do_lower_case": true }));
        let prompt = files("config_sentence_transformers.json", json!({ "default_prompt_name": "query" }));
        for (files, part) in [(lower, "do_lower_case is true"), (prompt, "default_prompt_name is \"query\"")]
        {
            let e = Pooling::of_folder(folder(&files).path()).unwrap_err();
            assert!(e.message().contains(part), "{e}");
        }
    }
}
