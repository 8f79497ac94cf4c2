//! The tokenizer of a Hugging Face folder.

use super::pieces::{Pieces, Writing};
use super::{FromFile, PromptAffixes, Source, Tokenizer, stop};
use crate::tokenizer::vocab::TokenKind;
use netcl_model::tokenizer as files;
use netcl_tensor::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// Reads a JSON file; `Null` if it does not exist.
///
/// # Errors
/// `Io` or `Format`; the message names the file.
fn json(path: &Path) -> Result<Value> {
    match netcl_device::files::read_text(path) {
        Ok(text) => {
            serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", path.display())))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(Error::io("reading", path, &error)),
    }
}

/// Opens `tokenizer.json` and its related files.
pub(super) fn open(folder: &Path) -> Result<Tokenizer> {
    let inner = files::Tokenizer::from_dir(folder)?;
    let config = json(&folder.join(files::CONFIG_FILE))?;
    let generation = json(&folder.join("generation_config.json"))?;
    let model = json(&folder.join("config.json"))?;
    let context = |e: Error| e.context(folder.join(files::FILE).display());
    let mut tokenizer = from_file(inner).map_err(context)?;
    let named = |key: &str| {
        let token = config[key].as_str().or_else(|| config[key]["content"].as_str())?;
        tokenizer.ids.get(token).copied()
    };
    let bos = named("bos_token");
    let eos = named("eos_token");
    let mut stops = stop::of_config(&generation);
    if stops.is_empty() {
        stops = stop::of_config(&model);
    }
    let inside = tokenizer.vocab_size() as u32;
    if let Some(id) = stops.iter().find(|id| **id >= inside) {
        // Some files name an id of a padded vocabulary; it can be sampled, and it ends a text.
        let largest = model["vocab_size"].as_u64().unwrap_or(u64::from(inside));
        if u64::from(*id) >= largest {
            return Err(Error::format(format!(
                "{}: eos_token_id {id} is outside the vocabulary of {largest} tokens",
                folder.display()
            )));
        }
    }
    stops.extend(eos.or(tokenizer.eos));
    tokenizer.bos = bos.or(tokenizer.bos);
    tokenizer.eos = eos.or(tokenizer.eos);
    tokenizer.stops = stop::sorted(stops);
    Ok(tokenizer)
}

/// Does the same for a parsed tokenizer, without other files.
pub(super) fn from_file(parsed: files::Tokenizer) -> Result<Tokenizer> {
    // A server encodes unique texts on many threads and unloads models, so a cache would not help.
    let parsed = parsed.uncached();
    let library = parsed.library();
    let decoder = library.get_decoder().map(serde_json::to_value).transpose();
    let decoder = decoder.map_err(|e| Error::format(format!("tokenizer.json: {e}")))?;
    let writing = Writing::of(&decoder.unwrap_or(Value::Null))?;
    let added = library.get_added_tokens_decoder();
    let unknown = library.get_model();
    let unknown = serde_json::to_value(unknown).ok().and_then(|m| m["unk_token"].as_str().map(str::to_owned));
    let mut pieces = Pieces::default();
    let mut kinds = Vec::new();
    let mut ids = HashMap::new();
    for id in 0..parsed.vocab_size() as u32 {
        let (kind, token) = match (added.get(&id), library.id_to_token(id)) {
            (Some(token), _) if token.special => (TokenKind::Control, token.content.clone()),
            (Some(token), _) => (TokenKind::UserDefined, token.content.clone()),
            (None, Some(token)) if Some(&token) == unknown.as_ref() => (TokenKind::Unknown, token),
            (None, Some(token)) => (TokenKind::Normal, token),
            (None, None) => (TokenKind::Unused, String::new()),
        };
        match kind {
            TokenKind::Normal => pieces.push(&writing.bytes(&token)),
            TokenKind::Unknown if writing.spaces_words() => pieces.push(&writing.bytes(&token)),
            _ => pieces.push(token.as_bytes()),
        }
        kinds.push(kind);
        if !token.is_empty() {
            ids.entry(token).or_insert(id);
        }
    }
    let ends = PromptAffixes { before: around(library)?.0, after: around(library)?.1 };
    let eos = parsed.eos();
    Ok(Tokenizer {
        bos: ends.before.first().copied(),
        eos,
        stops: eos.into_iter().collect(),
        ends,
        pieces,
        kinds,
        ids,
        strips: writing.strips,
        source: Source::File(Box::new(FromFile { plain: parsed.ordinary(), parsed })),
    })
}

/// Returns the ids that the file's post-processor adds before and after a text.
fn around(library: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>)> {
    if library.get_post_processor().is_none() {
        // The vocabulary may also lack an "a".
        return Ok((Vec::new(), Vec::new()));
    }
    let ids = |special| {
        let encoding = files::by_library(|| library.encode_fast("a", special))?;
        encoding.map(|e| e.get_ids().to_vec()).map_err(|e| Error::format(format!("tokenizer.json: {e}")))
    };
    let (plain, all) = (ids(false)?, ids(true)?);
    let at = all.windows(plain.len().max(1)).position(|ids| ids == plain);
    Ok(at.map_or((Vec::new(), Vec::new()), |at| (all[..at].to_vec(), all[at + plain.len()..].to_vec())))
}
