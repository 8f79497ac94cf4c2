//! Converts the vocabulary of a folder's tokenizer to GGUF metadata. In addition to ggml's own keys, the whole `tokenizer.json` is stored under the
//! format's key for it. A tokenizer that ggml's kinds do not cover is stored only there.

use super::probe::lost;
use crate::gguf::Meta;
use crate::tokenizer::{Tokenizer, pre};
use netcl_model::tokenizer as files;
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

pub use crate::tokenizer::HUGGING_FACE;
/// Key of the chat template.
pub const TEMPLATE: &str = "tokenizer.chat_template";

/// Types of tokens.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

fn read_json(path: &Path) -> Result<Option<Value>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = netcl_device::files::read_text(path).map_err(|e| Error::io("reading", path, &e))?;
    let json = serde_json::from_str(&text);
    json.map(Some).map_err(|e| Error::format(format!("{}: {e}", path.display())))
}

/// Returns the keys of the tokenizer in a folder; without a `tokenizer.json`, one that says so. `vocab` is the size of the model's table.
///
/// # Errors
/// `Io` or `Format`; the message names the file.
pub fn vocabulary(folder: &Path, vocab: usize) -> Result<Vec<(String, Meta)>> {
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        return Ok(vec![("tokenizer.ggml.model".into(), Meta::Str("no_vocab".into()))]);
    }
    // tokenizer_config.json may change added tokens, and a GGUF file has one place for both files.
    let text = files::Tokenizer::text_of_dir(folder)?;
    let json: Value =
        serde_json::from_str(&text).map_err(|e| Error::format(format!("{}: {e}", path.display())))?;
    let settings = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let mut out = Vec::new();
    let place = |e: Error| e.context(path.display());
    match Kind::of(&json) {
        Some(kind) => kind.keys(&json, vocab, folder, &mut out).map_err(place)?,
        None => out.push(("tokenizer.ggml.model".into(), Meta::Str("no_vocab".into()))),
    }
    if out.len() > 1 {
        special(&json, &settings, folder, &mut out)?;
        add_ends(&text, &mut out);
        tell_lost(&text, &json, &out, folder);
    } else {
        special(&json, &settings, folder, &mut out)?;
        tracing::warn!(
            "{}: ggml does not support this tokenizer: netcl reads the tokenizer.json in the file, but llama.cpp cannot tokenize with it",
            path.display()
        );
    }
    out.push((HUGGING_FACE.into(), Meta::Str(text)));
    if let Some(template) = template(folder, &settings)? {
        out.push((TEMPLATE.into(), Meta::Str(template)));
    }
    Ok(out)
}

/// Determines whether a token is added before and after each text, from the post-processor if there is one.
fn add_ends(text: &str, out: &mut [(String, Meta)]) {
    let Ok(whole) = files::Tokenizer::from_json(text, None).and_then(Tokenizer::from_file) else { return };
    let Some((before, after)) = whole.library_adds() else { return };
    for (key, on) in [("add_bos_token", !before.is_empty()), ("add_eos_token", !after.is_empty())] {
        let key = format!("tokenizer.ggml.{key}");
        if let Some((_, value)) = out.iter_mut().find(|(name, _)| *name == key) {
            *value = Meta::Bool(on);
        }
    }
}

/// Warns if programs that only read ggml's keys will get other tokens.
fn tell_lost(text: &str, json: &Value, out: &[(String, Meta)], folder: &Path) {
    let name = std::path::absolute(folder).ok();
    let name = name.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    match lost(text, json, out, &name.unwrap_or_default()) {
        Ok(None) => {}
        Ok(Some(lost)) => tracing::warn!(
            "llama.cpp tokenizes differently from {}, because ggml's keys cannot express all of it ({lost}). netcl reads the tokenizer.json in the \
             file and is not affected",
            folder.join(files::FILE).display()
        ),
        Err(e) => tracing::warn!("cannot compare ggml's keys with the tokenizer: {e}"),
    }
}

/// Returns the chat template: a separate file, or a field of the settings.
fn template(folder: &Path, settings: &Value) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    if path.exists() {
        return netcl_device::files::read_text(&path).map(Some).map_err(|e| Error::io("reading", &path, &e));
    }
    let named = |list: &Vec<Value>| {
        let default = list.iter().find(|one| one["name"] == "default").or_else(|| list.first());
        default.and_then(|one| one["template"].as_str()).map(str::to_owned)
    };
    Ok(match &settings["chat_template"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(list) => named(list),
        _ => None,
    })
}

/// Tokenizer kinds of ggml that `tokenizer.json` can describe.
enum Kind {
    /// SentencePiece BPE: spaces are ▁, unknown characters are bytes.
    Sentence,
    /// Byte-level BPE, with ggml's name of the splitting.
    Bytes(&'static str),
}

/// Collects all strings in a value, to search for a pattern.
fn strings<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => out.push(text),
        Value::Array(list) => list.iter().for_each(|v| strings(v, out)),
        Value::Object(map) => map.values().for_each(|v| strings(v, out)),
        _ => {}
    }
}

/// Returns the patterns of a byte-level pre-tokenizer, each applied within the pieces of the previous one; `None` if it does anything else.
fn patterns(json: &Value) -> Option<Vec<&str>> {
    let steps = json["pretokenizers"].as_array().map_or(vec![json], |steps| steps.iter().collect());
    let (bytes, splits) = steps.split_last()?;
    let by_bytes = bytes["type"] == "ByteLevel" && bytes["add_prefix_space"] != true;
    let mut all = Vec::with_capacity(steps.len());
    for split in splits {
        let isolates = split["type"] == "Split" && split["behavior"] == "Isolated" && split["invert"] != true;
        all.push(split["pattern"]["Regex"].as_str().filter(|_| isolates)?);
    }
    if bytes["use_regex"] != false {
        all.push(pre::GPT2);
    }
    by_bytes.then_some(all)
}

impl Kind {
    fn of(json: &Value) -> Option<Self> {
        if json["model"]["type"] != "BPE" {
            return None;
        }
        if json["model"]["byte_fallback"] == true {
            return Some(Self::Sentence);
        }
        if !json["normalizer"].is_null() && json["normalizer"]["type"] != "NFC" {
            return None;
        }
        let ignore_merges = json["model"]["ignore_merges"] == true;
        pre::name_of(&patterns(&json["pre_tokenizer"])?, ignore_merges).map(Self::Bytes)
    }

    fn keys(&self, json: &Value, vocab: usize, folder: &Path, out: &mut Vec<(String, Meta)>) -> Result<()> {
        let (tokens, mut types) = tokens(json, vocab)?;
        let merges = merges(json)?;
        let mut put = |key: &str, value: Meta| out.push((format!("tokenizer.ggml.{key}"), value));
        match self {
            Self::Sentence => {
                for (token, kind) in tokens.iter().zip(&mut types) {
                    let byte = token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
                    if byte && *kind == NORMAL {
                        *kind = BYTE;
                    }
                    if json["model"]["unk_token"] == token.as_str() {
                        *kind = UNKNOWN;
                    }
                }
                let scores = match sentence_scores(folder, &tokens)? {
                    Some(scores) => scores,
                    None => rank_scores(&tokens, &merges),
                };
                put("model", Meta::Str("llama".into()));
                put("pre", Meta::Str("default".into()));
                put("tokens", Meta::Strs(tokens));
                put("scores", Meta::F32s(scores));
                put("token_type", Meta::I32s(types));
                let mut found = Vec::new();
                strings(&json["normalizer"], &mut found);
                strings(&json["pre_tokenizer"], &mut found);
                let prefix = found.iter().any(|text| ["Prepend", "first", "always"].contains(text))
                    || json["pre_tokenizer"]["add_prefix_space"] == true;
                put("add_space_prefix", Meta::Bool(prefix));
            }
            Self::Bytes(pattern) => {
                put("model", Meta::Str("gpt2".into()));
                put("pre", Meta::Str((*pattern).into()));
                put("tokens", Meta::Strs(tokens));
                put("token_type", Meta::I32s(types));
                put("merges", Meta::Strs(merges.iter().map(|[a, b]| format!("{a} {b}")).collect()));
            }
        }
        Ok(())
    }
}

/// Returns tokens by id and their types; further ids of the model's table are unused.
fn tokens(json: &Value, vocab: usize) -> Result<(Vec<String>, Vec<i32>)> {
    let missing = || Error::format("model.vocab, expected an object of tokens and ids");
    let known = json["model"]["vocab"].as_object().ok_or_else(missing)?;
    let mut all: Vec<Option<(String, i32)>> = vec![None; vocab];
    let mut set = |id: &Value, text: &str, kind: i32| {
        let place = id.as_u64().and_then(|id| all.get_mut(usize::try_from(id).ok()?));
        let Some(place) = place else {
            return Err(Error::format(format!("token {text:?} has the id {id}, expected one below {vocab}")));
        };
        *place = Some((text.to_owned(), kind));
        Ok(())
    };
    for (text, id) in known {
        set(id, text, NORMAL)?;
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let kind = if added["special"] == true { CONTROL } else { USER };
        set(&added["id"], added["content"].as_str().unwrap_or_default(), kind)?;
    }
    let filled = all.into_iter().enumerate().map(|(i, one)| one.unwrap_or((format!("[PAD{i}]"), UNUSED)));
    Ok(filled.unzip())
}

/// Returns the merges in order; each is a list of two, or a string with a space in between.
fn merges(json: &Value) -> Result<Vec<[&str; 2]>> {
    let list = json["model"]["merges"].as_array();
    let mut out = Vec::with_capacity(list.map_or(0, Vec::len));
    for value in list.into_iter().flatten() {
        let found = match value {
            Value::String(text) => text.split_once(' ').map(|(a, b)| [a, b]),
            Value::Array(list) => match &list[..] {
                [Value::String(a), Value::String(b)] => Some([a.as_str(), b.as_str()]),
                _ => None,
            },
            _ => None,
        };
        out.push(found.ok_or_else(|| Error::format(format!("merge {value}, expected two tokens")))?);
    }
    Ok(out)
}

/// Returns scores that make SentencePiece merge in the order of the merges.
fn rank_scores(tokens: &[String], merges: &[[&str; 2]]) -> Vec<f32> {
    let mut ranks = std::collections::HashMap::new();
    for (rank, [a, b]) in merges.iter().enumerate() {
        ranks.entry(format!("{a}{b}")).or_insert(rank);
    }
    tokens.iter().map(|token| ranks.get(token).map_or(0.0, |rank| -(*rank as f32))).collect()
}

/// Returns the scores of `tokenizer.model`, SentencePiece's own file, if it exists and has the same pieces.
fn sentence_scores(folder: &Path, tokens: &[String]) -> Result<Option<Vec<f32>>> {
    let path = folder.join("tokenizer.model");
    if !path.exists() {
        return Ok(None);
    }
    let bytes = netcl_device::files::read_whole(&path).map_err(|e| Error::io("reading", &path, &e))?;
    // A damaged file counts as one with another vocabulary.
    let Some(pieces) = sentence_pieces(&bytes) else { return Ok(None) };
    let mut scores = vec![0.0; tokens.len()];
    for (i, (piece, score)) in pieces.iter().enumerate() {
        match tokens.get(i) {
            Some(token) if token == piece && score.is_finite() => scores[i] = *score,
            _ => return Ok(None),
        }
    }
    Ok((!pieces.is_empty()).then_some(scores))
}

/// Returns a protocol buffer field: its number and bytes (empty for a varint).
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let mut varint = || {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            n |= u64::from(first & 127) << shift;
            if first & 128 == 0 {
                return Some(n);
            }
        }
        None
    };
    let key = varint()?;
    let length = match key & 7 {
        0 => return varint().map(|_| (key >> 3, &bytes[..0])),
        1 => 8,
        2 => usize::try_from(varint()?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some((key >> 3, value))
}

/// Returns pieces and scores: field 1 of the file has a string as its field 1 and a score as its field 2. `None` if the bytes are not a protocol
/// buffer.
fn sentence_pieces(mut bytes: &[u8]) -> Option<Vec<(String, f32)>> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (number, mut piece) = field(&mut bytes)?;
        if number != 1 {
            continue;
        }
        let (mut text, mut score) = (String::new(), 0.0);
        while !piece.is_empty() {
            let (number, value) = field(&mut piece)?;
            match (number, value.try_into()) {
                (1, _) => text = String::from_utf8_lossy(value).into_owned(),
                (2, Ok(four)) => score = f32::from_le_bytes(four),
                _ => {}
            }
        }
        out.push((text, score));
    }
    Some(out)
}

/// Writes ids of special tokens, and whether the first is added before each text.
fn special(json: &Value, settings: &Value, folder: &Path, out: &mut Vec<(String, Meta)>) -> Result<()> {
    let config = read_json(&folder.join("config.json"))?.unwrap_or_default();
    let id_of = |text: &str| {
        let added = json["added_tokens"].as_array().into_iter().flatten().find(|t| t["content"] == text);
        added.map(|t| &t["id"]).or_else(|| json["model"]["vocab"].get(text)).and_then(Value::as_u64)
    };
    let first = |value: &Value| value.as_u64().or_else(|| value.as_array()?.first()?.as_u64());
    for (name, key) in [
        ("bos", "bos_token_id"),
        ("eos", "eos_token_id"),
        ("unk", "unknown_token_id"),
        ("pad", "padding_token_id"),
    ] {
        let setting = &settings[format!("{name}_token")];
        let text = setting.as_str().or_else(|| setting["content"].as_str());
        let id = text.and_then(id_of).or_else(|| first(&config[format!("{name}_token_id")]));
        if let Some(id) = id.and_then(|id| u32::try_from(id).ok()) {
            out.push((format!("tokenizer.ggml.{key}"), Meta::U32(id)));
        }
    }
    let begins = json["post_processor"]["single"].as_array().and_then(|list| list.first());
    let begins = begins.is_some_and(|first| first.get("SpecialToken").is_some());
    let nested = |processors: &Vec<Value>| {
        processors.iter().any(|one| {
            one["single"].as_array().and_then(|l| l.first()).is_some_and(|f| f.get("SpecialToken").is_some())
        })
    };
    let begins = begins || json["post_processor"]["processors"].as_array().is_some_and(nested);
    let empty = Map::new();
    let settings = settings.as_object().unwrap_or(&empty);
    let flag = |name: &str| settings.get(name).and_then(Value::as_bool);
    out.push(("tokenizer.ggml.add_bos_token".into(), Meta::Bool(flag("add_bos_token").unwrap_or(begins))));
    out.push(("tokenizer.ggml.add_eos_token".into(), Meta::Bool(flag("add_eos_token").unwrap_or(false))));
    Ok(())
}
