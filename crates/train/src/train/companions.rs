//! Companion files of a model that training does not change: sampling settings, special tokens, chat templates, older tokenizer formats, the pooling
//! of `sentence-transformers`. A run that starts from a model copies them into each checkpoint.

use crate::data::records::GivenTemplate;
use netcl_model::decoder::{ModelFolder, sidecars};
use netcl_model::tokenizer::Tokenizer;
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Names of companion files, as `transformers` writes them.
const FILES: [&str; 9] = [
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];
/// Fields of `config.json` that name tokens.
const TOKENS: [&str; 4] = ["bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"];
/// Larger files are not copied.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Companion files and token fields of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Companions {
    /// Fields of `config.json` that name tokens.
    pub(super) tokens: Map<String, Value>,
    /// Name and content of each file.
    pub(super) files: Vec<(String, Vec<u8>)>,
}

/// Returns the named files that exist in a folder, with their content. Most of them are optional.
fn read(folder: &Path, names: impl IntoIterator<Item: AsRef<str>>) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for name in names {
        let name = name.as_ref();
        let path = folder.join(name);
        let Ok(facts) = std::fs::metadata(&path) else { continue };
        if facts.is_file() && facts.len() <= MAX_FILE_BYTES {
            let content =
                netcl_device::files::read_whole(&path).map_err(|e| Error::io("reading", &path, &e))?;
            files.push((name.to_owned(), content));
        }
    }
    Ok(files)
}

/// Returns the files of `sentence-transformers`.
fn pooling(folder: &ModelFolder) -> Result<Vec<(String, Vec<u8>)>> {
    read(&folder.path, sidecars(&folder.path)?)
}

impl Companions {
    /// Reads the companions of the model folder that training starts from, or of a resumed checkpoint.
    pub(super) fn of_folder(folder: &ModelFolder) -> Result<Self> {
        let token = |name: &&str| Some((name.to_string(), folder.json.get(name)?.clone()));
        let tokens = TOKENS.iter().filter_map(token).collect();
        let mut files = read(&folder.path, FILES)?;
        files.extend(pooling(folder)?);
        Ok(Self { tokens, files })
    }

    /// Reads the companions of the model that training starts from. With another tokenizer only the pooling is kept, because the other files and the
    /// token ids do not apply to it.
    pub(super) fn of_start(folder: &ModelFolder, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let own = match folder.path.join(netcl_model::tokenizer::FILE).exists() {
            true => Tokenizer::from_dir(&folder.path)?.files()?,
            false => Vec::new(),
        };
        // Without a tokenizer the data consists of tokens, which are the model's.
        let same = match tokenizer {
            None => true,
            Some(tokenizer) => {
                let text = |files: &[(String, Vec<u8>)]| {
                    files
                        .iter()
                        .find(|(name, _)| name == netcl_model::tokenizer::FILE)
                        .map(|(_, text)| text.clone())
                };
                text(&own) == text(&tokenizer.files()?)
            }
        };
        if same {
            return Self::of_folder(folder);
        }
        let mut other = Self::of_tokenizer(tokenizer);
        other.files.extend(pooling(folder)?);
        Ok(other)
    }

    /// Returns these companions with another chat template, whose token at the end of an answer also ends a generated text.
    pub(super) fn with_template(mut self, given: Option<&GivenTemplate>) -> Result<Self> {
        const TEMPLATES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];
        const GENERATION: &str = "generation_config.json";
        let Some(GivenTemplate { text, stop }) = given else { return Ok(self) };
        self.files.retain(|(name, _)| !TEMPLATES.contains(&name.as_str()));
        self.files.push((TEMPLATES[0].into(), text.clone().into_bytes()));
        let Some(stop) = stop else { return Ok(self) };
        let wrong = |e: serde_json::Error| Error::format(format!("{GENERATION}: {e}"));
        let own =
            self.files.iter().position(|(name, _)| name == GENERATION).map(|at| self.files.remove(at).1);
        let own: Option<Map<String, Value>> =
            own.map(|text| serde_json::from_slice(&text)).transpose().map_err(wrong)?;
        let mut own = own.unwrap_or_default();
        let before = own.get("eos_token_id").or_else(|| self.tokens.get("eos_token_id")).cloned();
        let mut ends = match before {
            Some(Value::Array(ends)) => ends,
            Some(Value::Null) | None => Vec::new(),
            Some(end) => vec![end],
        };
        if !ends.contains(&json!(stop)) {
            ends.push(json!(stop));
        }
        own.insert("eos_token_id".into(), ends.into());
        let text = serde_json::to_vec_pretty(&own).map_err(wrong)?;
        self.files.push((GENERATION.into(), text));
        Ok(self)
    }

    /// Returns the companions of a new model, which has none.
    pub(super) fn of_tokenizer(tokenizer: Option<&Tokenizer>) -> Self {
        let eos = tokenizer.and_then(Tokenizer::eos);
        let tokens = ["bos_token_id", "eos_token_id"].map(|name| (name.to_owned(), json!(eos)));
        let generation = json!({
            "bos_token_id": eos, "eos_token_id": eos, "do_sample": true, "temperature": 0.8, "top_k": 200,
        });
        let text = format!("{generation:#}").into_bytes();
        Self { tokens: tokens.into_iter().collect(), files: vec![("generation_config.json".into(), text)] }
    }
}
