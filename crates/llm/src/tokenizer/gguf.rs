//! The vocabulary of a GGUF file.

use super::vocab::{TokenKind, Vocab};
use crate::gguf::{Gguf, Kind, Value};
use netcl_tensor::Result;

/// Key of a whole `generation_config.json`, netcl's own.
pub const GENERATION: &str = "netcl.generation.json";
/// Key of a whole `tokenizer.json`.
pub const HUGGING_FACE: &str = "tokenizer.huggingface.json";

impl Vocab {
    /// Reads the fields `tokenizer.ggml.*` of a file.
    ///
    /// # Errors
    /// `Format` with file, key, expected and found value.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        // Some files write "none" as the largest integer.
        let id = |name: &str| {
            let found = file.size(&key(name))?.and_then(|n| u32::try_from(n).ok());
            Ok(found.filter(|n| *n != u32::MAX))
        };
        let flag = |name: &str| file.flag(&key(name));
        let texts = |name: &str| {
            let texts = file.texts(&key(name))?.unwrap_or_default();
            Ok::<Vec<String>, netcl_tensor::Error>(texts.into_iter().map(str::to_owned).collect())
        };
        let model = file.needed(&key("model"), "a string", file.text(&key("model"))?)?.to_owned();
        let kinds = file.wholes(&key("token_type"))?.unwrap_or_default();
        let charsmap = match file.get(&key("precompiled_charsmap"))? {
            Some(Value::Array(array)) if matches!(array.kind, Kind::U8 | Kind::I8) => array.bytes().to_vec(),
            None => Vec::new(),
            found => return Err(file.wrong(&key("precompiled_charsmap"), "a list of bytes", found.as_ref())),
        };
        Ok(Self {
            model,
            pre: file.text(&key("pre"))?.map(str::to_owned),
            tokens: texts("tokens")?,
            scores: file.numbers(&key("scores"))?.unwrap_or_default(),
            kinds: kinds
                .into_iter()
                .map(|n| TokenKind::from_ggml(i32::try_from(n).unwrap_or_default()))
                .collect(),
            merges: texts("merges")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            eot: id("eot_token_id")?,
            eom: id("eom_token_id")?,
            unknown: id("unknown_token_id")?,
            separator: id("seperator_token_id")?,
            padding: id("padding_token_id")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            precompiled_charsmap: charsmap,
            lowercase: flag("normalizer.lowercase")?,
            strip_accents: flag("normalizer.strip_accents")?,
            name: file.text("general.name")?.map(str::to_owned),
        })
    }
}
