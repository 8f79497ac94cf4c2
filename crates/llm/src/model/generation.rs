//! Converts the generation settings of a folder to keys of a GGUF file, and back: llama.cpp's keys for the fields that they cover, and the whole
//! `generation_config.json`.

use crate::gguf::{Gguf, Meta};
use crate::tokenizer::{GENERATION, ends_of_config};
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The file.
pub(super) const FILE: &str = "generation_config.json";
/// Its fields with llama.cpp keys, and the ends of these keys.
const SHARED: [(&str, &str); 5] = [
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
    ("temperature", "temp"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
];
/// Ends of keys without a field in the file.
const KEYS_WITHOUT_FIELD: [&str; 6] =
    ["mirostat", "mirostat_eta", "mirostat_tau", "sequence", "xtc_probability", "xtc_threshold"];

fn key(end: &str) -> String {
    format!("general.sampling.{end}")
}

/// Returns the content of a file, empty if it is missing or not an object.
fn object(folder: &Path, name: &str) -> Result<Map<String, Value>> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(Map::new());
    }
    let text = netcl_device::files::read_text(&path).map_err(|e| Error::io("reading", &path, &e))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Ok(Map::new()),
        Err(e) => Err(Error::format(format!("{}: {e}", path.display()))),
    }
}

/// Returns the keys for a folder's settings. If `generation_config.json` names no end tokens, those of `config.json` apply.
///
/// # Errors
/// `Io` or `Format`; the message names the file.
pub(super) fn keys(folder: &Path) -> Result<Vec<(String, Meta)>> {
    let mut said = object(folder, FILE)?;
    if ends_of_config(&said.clone().into()).is_empty()
        && let Some(ends) =
            object(folder, "config.json")?.remove("eos_token_id").filter(|ends| !ends.is_null())
    {
        said.insert("eos_token_id".into(), ends);
    }
    if said.is_empty() {
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    // Without sampling, `transformers` ignores these numbers, but llama.cpp would use them.
    if said.get("do_sample") != Some(&Value::Bool(false)) {
        for (field, end) in SHARED {
            let Some(number) = said.get(field).and_then(Value::as_f64) else { continue };
            match said[field].as_u64().filter(|_| field == "top_k").map(i32::try_from) {
                Some(Ok(k)) => out.push((key(end), Meta::I32(k))),
                None if field != "top_k" => out.push((key(end), Meta::F32(number as f32))),
                _ => {}
            }
            // `transformers` penalizes tokens of the whole text.
            if field == "repetition_penalty" && number as f32 != 1.0 {
                out.push((key("penalty_last_n"), Meta::I32(-1)));
            }
        }
    }
    out.push((GENERATION.into(), Meta::Str(Value::Object(said).to_string())));
    Ok(out)
}

/// Returns the `generation_config.json` of a GGUF file: the one in it, changed by llama.cpp's keys. Keys without a field cause a warning.
///
/// # Errors
/// `Format` with file and key.
pub(super) fn file_of(file: &Gguf) -> Result<Option<Value>> {
    let wrong = |e| Error::format(format!("{}: {GENERATION}: {e}", file.path().display()));
    let text = file.text(GENERATION)?;
    let whole: Value = text.map(serde_json::from_str).transpose().map_err(wrong)?.unwrap_or_default();
    let mut said = whole.as_object().cloned().unwrap_or_default();
    for (field, end) in SHARED {
        let Some(number) = file.number(&key(end))? else { continue };
        let value = match field {
            // A negative value selects all.
            "top_k" => json!(number.max(0.0) as u64),
            // The shortest number with the same single-precision value.
            _ => serde_json::from_str(&(number as f32).to_string()).unwrap_or(json!(number)),
        };
        let same = said.get(field).and_then(Value::as_f64).is_some_and(|own| own as f32 == number as f32);
        if !same {
            said.insert(field.into(), value);
            said.insert("do_sample".into(), true.into());
        }
    }
    let range = file.number(&key("penalty_last_n"))?.filter(|n| *n >= 0.0);
    let range =
        range.filter(|_| said.get("repetition_penalty").and_then(Value::as_f64).is_some_and(|p| p != 1.0));
    let mut lost: Vec<&str> = range.iter().map(|_| "penalty_last_n").collect();
    for end in KEYS_WITHOUT_FIELD {
        if file.get(&key(end))?.is_some() {
            lost.push(end);
        }
    }
    if !lost.is_empty() {
        tracing::warn!(
            "{}: {FILE} does not have a field for general.sampling.{}",
            file.path().display(),
            lost.join(", ")
        );
    }
    Ok((!said.is_empty()).then_some(Value::Object(said)))
}
