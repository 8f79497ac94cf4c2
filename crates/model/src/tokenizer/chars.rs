//! Character tokenizer: its table, and an equivalent `tokenizer.json` for the `tokenizers` library.

use netcl_device::{Error, Result};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};

/// Characters and their ids.
#[derive(Clone, Debug)]
pub(super) struct Chars {
    by_id: Vec<char>,
    ids: HashMap<char, u32>,
}

/// Returns the pattern that splits off every character, including line breaks, which `.` does not match.
fn pre_tokenizer() -> Value {
    json!({ "type": "Split", "pattern": { "Regex": r"[\s\S]" }, "behavior": "Isolated", "invert": false })
}

impl Chars {
    /// Returns the distinct characters of `texts`, ordered by code point.
    pub fn of(texts: impl IntoIterator<Item: AsRef<str>>) -> Self {
        let mut seen = BTreeSet::new();
        let mut ascii = [false; 128];
        for text in texts {
            for c in text.as_ref().chars() {
                // Most text is ASCII, and a set lookup per character would dominate.
                match ascii.get_mut(c as usize) {
                    Some(flag) => *flag = true,
                    None => {
                        seen.insert(c);
                    }
                }
            }
        }
        let ascii = (0u8..128).filter(|&c| ascii[usize::from(c)]).map(char::from);
        Self::new(ascii.chain(seen).collect())
    }

    fn new(by_id: Vec<char>) -> Self {
        let ids = by_id.iter().zip(0..).map(|(&c, id)| (c, id)).collect();
        Self { by_id, ids }
    }

    /// Recognizes a `tokenizer.json` equivalent to what [`to_json`](Self::to_json) writes.
    pub fn from_json(json: &Value) -> Option<Self> {
        let plain =
            ["normalizer", "post_processor", "truncation", "padding"].iter().all(|key| json[key].is_null());
        let model = &json["model"];
        let added = json["added_tokens"].as_array().is_none_or(Vec::is_empty);
        if !plain || !added || model["type"] != "WordLevel" || json["pre_tokenizer"] != pre_tokenizer() {
            return None;
        }
        let vocab = model["vocab"].as_object()?;
        let mut by_id = vec![None; vocab.len()];
        for (token, id) in vocab {
            let mut chars = token.chars();
            let (Some(c), None) = (chars.next(), chars.next()) else { return None };
            *by_id.get_mut(usize::try_from(id.as_u64()?).ok()?)? = Some(c);
        }
        Some(Self::new(by_id.into_iter().collect::<Option<_>>()?))
    }

    /// Returns the `tokenizer.json`: words of one character, decoded without spaces between them.
    pub fn to_json(&self) -> String {
        let vocab: serde_json::Map<_, _> =
            self.by_id.iter().zip(0..).map(|(c, id): (_, u32)| (c.to_string(), id.into())).collect();
        let json = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [],
            "normalizer": null,
            "pre_tokenizer": pre_tokenizer(),
            "post_processor": null,
            "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "<unk>" },
        });
        format!("{json:#}\n")
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len());
        for c in text.chars() {
            let Some(&id) = self.ids.get(&c) else {
                let named = self.first_unknown(std::iter::once(text));
                return Err(
                    named.unwrap_or_else(|| Error::internal("a character reported as unknown is known"))
                );
            };
            ids.push(id);
        }
        Ok(ids)
    }

    /// Returns the error for the first character of a text (given in blocks) that is not in the table.
    pub fn first_unknown(&self, blocks: impl Iterator<Item: AsRef<str>>) -> Option<Error> {
        let (mut position, mut line, mut column) = (0u64, 1u64, 1u64);
        for block in blocks {
            for c in block.as_ref().chars() {
                if !self.ids.contains_key(&c) {
                    return Some(self.unknown(c, position, line, column));
                }
                position += 1;
                (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
            }
        }
        None
    }

    fn unknown(&self, c: char, position: u64, line: u64, column: u64) -> Error {
        Error::format(format!(
            "character {c:?} (U+{:04X}) at position {position} (line {line}, column {column}) is not one of the {} \
             that the tokenizer knows; remove it from the text, or train with text that has it",
            u32::from(c),
            self.len()
        ))
    }

    /// Returns the characters of valid ids.
    pub fn decode(&self, ids: &[u32]) -> String {
        ids.iter().filter_map(|&id| self.by_id.get(id as usize)).collect()
    }
}
