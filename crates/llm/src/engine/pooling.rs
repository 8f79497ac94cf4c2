//! Vectors of whole texts: how the states of a text's tokens become one, as the files of `sentence-transformers` say.

use super::LoadedModel;
use netcl_nn::layers::Mode;
use netcl_nn::model::Model as _;
use netcl_tensor::{Error, Result, Tensor, no_grad};
use serde_json::Value;
use std::path::Path;

/// Which states count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// The largest value of each element.
    Most,
    /// Their mean.
    Mean,
    /// Their sum by the root of their number.
    RootMean,
    /// Their mean, weighted by their place from 1.
    Weighted,
}

/// Fields of `1_Pooling/config.json` and names of its newer form.
const KINDS: [(&str, &str, Kind); 6] = [
    ("pooling_mode_cls_token", "cls", Kind::First),
    ("pooling_mode_lasttoken", "lasttoken", Kind::Last),
    ("pooling_mode_max_tokens", "max", Kind::Most),
    ("pooling_mode_mean_tokens", "mean", Kind::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", Kind::RootMean),
    ("pooling_mode_weightedmean_tokens", "weightedmean", Kind::Weighted),
];

/// How the states of a text become its vector.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pooling {
    kind: Kind,
    /// Whether the vector is made one of length 1.
    normalized: bool,
    /// Tokens of a text at most: `sentence-transformers` cuts longer ones.
    longest: Option<usize>,
}

impl Default for Pooling {
    fn default() -> Self {
        Self { kind: Kind::Mean, normalized: true, longest: None }
    }
}

/// The content of a file in a folder, `None` if the file does not exist.
fn file(folder: &Path, name: &str) -> Result<Option<Value>> {
    let path = folder.join(name);
    let text = match std::fs::read_to_string(&path) {
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
    /// `Io` or `Format` with the file; `Unsupported` with the module or the field that netcl does not follow.
    pub(super) fn of_folder(folder: &Path) -> Result<Self> {
        let Some(modules) = file(folder, "modules.json")? else { return Ok(Self::default()) };
        let place = |name: &str, e: Error| e.context(format!("embeddings by {name}"));
        let modules = modules.as_array().cloned().unwrap_or_default();
        let (mut kind, mut normalized) = (None, false);
        for (at, module) in modules.iter().enumerate() {
            let whole = module["type"].as_str().unwrap_or_default();
            match (whole.rsplit('.').next().unwrap_or_default(), at) {
                ("Transformer", 0) => {}
                ("Pooling", 1) => {
                    let name = format!("{}/config.json", module["path"].as_str().unwrap_or("1_Pooling"));
                    let config = file(folder, &name)?.unwrap_or_default();
                    kind = Some(Kind::of(&config).map_err(|e| place(&name, e))?);
                }
                ("Normalize", _) if kind.is_some() && !normalized => normalized = true,
                _ => {
                    let e = Error::unsupported(format!(
                        "module {at} is {whole:?}: the supported ones are Transformer, Pooling and Normalize, in this order"
                    ));
                    return Err(place("modules.json", e));
                }
            }
        }
        let Some(kind) = kind else {
            return Err(place("modules.json", Error::unsupported("the module Pooling is missing")));
        };
        let bert = file(folder, "sentence_bert_config.json")?.unwrap_or_default();
        if bert["do_lower_case"] == true {
            let e = Error::unsupported("do_lower_case is true: texts are not changed to lower case");
            return Err(place("sentence_bert_config.json", e));
        }
        let whole = file(folder, "config_sentence_transformers.json")?.unwrap_or_default();
        if let Some(name) = whole["default_prompt_name"].as_str() {
            let e =
                Error::unsupported(format!("default_prompt_name is {name:?}: no prompt is put before texts"));
            return Err(place("config_sentence_transformers.json", e));
        }
        let longest = bert["max_seq_length"].as_u64().map(|n| n as usize);
        Ok(Self { kind, normalized, longest })
    }

    /// States (T, C) as a vector (C).
    fn of(&self, states: &[f32], rows: usize) -> Vec<f32> {
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
    /// What `1_Pooling/config.json` says.
    fn of(config: &Value) -> Result<Self> {
        let mode = &config["pooling_mode"];
        let modes: Vec<&str> = match mode {
            Value::Array(modes) => modes.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        if mode.is_null() && KINDS.iter().all(|(field, ..)| config[*field].is_null()) {
            return Ok(Self::Mean);
        }
        let chosen = KINDS.iter().filter(|(field, name, _)| config[*field] == true || modes.contains(name));
        match chosen.collect::<Vec<_>>()[..] {
            [(.., kind)] => Ok(*kind),
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

impl LoadedModel {
    /// The embedding of a text: the outputs of the last norm, pooled as the model's `modules.json` says. Without that file it is their
    /// mean, normalized to length 1.
    ///
    /// # Errors
    /// `Unsupported` for a module that netcl does not follow; `Format` for no tokens, or more than `max_seq_length`; those of the device.
    pub fn embed(&self, ids: &[u32]) -> Result<Vec<f32>> {
        let pooling = self.pooling.as_ref().map_err(Clone::clone)?;
        if ids.is_empty() {
            return Err(Error::format("an empty text cannot be embedded"));
        }
        if let Some(longest) = pooling.longest.filter(|longest| ids.len() > *longest) {
            return Err(Error::format(format!(
                "the text has {} tokens, max_seq_length of sentence_bert_config.json is {longest}: shorten it",
                ids.len()
            )));
        }
        let tensor = Tensor::from_u32(self.decoder().params().device(), [1, ids.len()], ids)?;
        let states = no_grad(|| self.decoder().features(&tensor, Mode::eval()))?.to_vec()?;
        Ok(pooling.of(&states, ids.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// The vectors that `sentence-transformers` makes of the states of a tiny model, by `tools/golden_pooling.py`.
    #[test]
    fn embeddings_are_those_of_sentence_transformers() {
        let tiny = super::super::tests::tiny("qwen3");
        let golden = std::fs::read_to_string(tiny.join("../../pooling.json")).unwrap();
        let golden: Value = serde_json::from_str(&golden).unwrap();
        let ids: Vec<u32> = serde_json::from_value(golden["ids"].clone()).unwrap();
        let device = super::super::tests::device();
        for row in golden["rows"].as_array().unwrap() {
            let last: &[&str] = if row["normalize"] == true { &["Normalize"] } else { &[] };
            let config = json!({ "embedding_dimension": 24, "pooling_mode": row["mode"] });
            let dir = folder(&[("modules.json", modules(last)), ("1_Pooling/config.json", config)]);
            for file in ["config.json", "model.safetensors"] {
                std::fs::copy(tiny.join(file), dir.path().join(file)).unwrap();
            }
            let model = super::super::tests::open(dir.path(), &device, Default::default()).unwrap();
            let expected: Vec<f32> = serde_json::from_value(row["vector"].clone()).unwrap();
            let found = model.embed(&ids).unwrap();
            let most = expected.iter().fold(0f32, |most, v| most.max(v.abs()));
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most;
            assert!(found.len() == expected.len() && off <= 1e-5, "{row}: {off:.1e}");
        }
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
        let lower = files("sentence_bert_config.json", json!({ "do_lower_case": true }));
        let prompt = files("config_sentence_transformers.json", json!({ "default_prompt_name": "query" }));
        for (files, part) in [(lower, "do_lower_case is true"), (prompt, "default_prompt_name is \"query\"")]
        {
            let e = Pooling::of_folder(folder(&files).path()).unwrap_err();
            assert!(e.message().contains(part), "{e}");
        }
    }
}
