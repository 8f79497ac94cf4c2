//! Byte lengths of tokens: the number of text bytes that each represents.

use super::Tokenizer;
use super::chunks::META;
use serde_json::Value;

/// Marks a token of unknown length.
const UNKNOWN: u32 = u32::MAX;

/// Length of each token's text in UTF-8 bytes.
#[derive(Clone, Debug)]
pub struct ByteLengths(Vec<u32>);

impl ByteLengths {
    /// Returns the total length of `ids`; `None` if one is unknown.
    pub fn of(&self, ids: impl Iterator<Item = u32>) -> Option<u64> {
        ids.map(|id| self.0.get(id as usize).copied().filter(|n| *n != UNKNOWN).map(u64::from)).sum()
    }
}

impl Tokenizer {
    /// Returns the byte length of each token; `None` if it cannot be determined, for tokenizers that change the text before splitting or drop white
    /// space. Special tokens have length 0; the space that SentencePiece prepends to a text counts as one byte.
    pub fn byte_lengths(&self) -> Option<ByteLengths> {
        if let Some(chars) = &self.chars {
            let ids = 0..u32::try_from(chars.len()).ok()?;
            return Some(ByteLengths(ids.map(|id| chars.decode(&[id]).len() as u32).collect()));
        }
        let json: Value = serde_json::from_str(&self.inner.to_string(false).ok()?).ok()?;
        let length = kind(&json)?;
        let mut lengths = vec![UNKNOWN; self.vocab_size];
        for (token, id) in self.inner.get_vocab(false) {
            lengths[id as usize] = length(&token);
        }
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            let id = usize::try_from(token["id"].as_u64()?).ok()?;
            let content = token["content"].as_str()?;
            *lengths.get_mut(id)? = if token["special"] == true { 0 } else { content.len() as u32 };
        }
        // A token whose text is unknown has an unknown length.
        if let Some(unknown) = json["model"]["unk_token"].as_str().and_then(|unk| self.inner.token_to_id(unk))
        {
            lengths[unknown as usize] = UNKNOWN;
        }
        Some(ByteLengths(lengths))
    }
}

/// Returns the length function for a tokenizer's representation of text.
fn kind(json: &Value) -> Option<fn(&str) -> u32> {
    let split = &json["pre_tokenizer"];
    let parts = split["pretokenizers"].as_array().map_or(vec![split], |parts| parts.iter().collect());
    let normalizer = &json["normalizer"];
    let keeps_all = parts.iter().all(|part| match part["type"].as_str() {
        None | Some("ByteLevel" | "Metaspace" | "Digits") => true,
        Some("Split") => part["behavior"] != "Removed" || part["invert"] == true,
        _ => false,
    });
    if parts.iter().any(|part| part["type"] == "ByteLevel") {
        // In byte-level BPE each character of a token is one byte of text.
        let same = normalizer.is_null() || normalizer["type"] == "NFC";
        return (same && keeps_all).then_some(|token: &str| token.chars().count() as u32);
    }
    let meta = META.to_string();
    let steps = normalizer["normalizers"].as_array().map_or(vec![normalizer], |steps| steps.iter().collect());
    let plain = steps.iter().all(|step| {
        step.is_null()
            || step["type"] == "Prepend" && step["prepend"] == meta.as_str()
            || step["type"] == "Replace"
                && step["pattern"]["String"] == " "
                && step["content"] == meta.as_str()
    });
    let spaced = !normalizer.is_null() || parts.iter().any(|part| part["type"] == "Metaspace");
    (plain && spaced && keeps_all && json["model"]["type"] != "WordPiece").then_some(sentence_piece)
}

/// SentencePiece notation: `<0x0A>` is a byte, `▁` a space.
fn sentence_piece(token: &str) -> u32 {
    let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    if byte.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok()) {
        return 1;
    }
    token.chars().map(|c| if c == META { 1 } else { c.len_utf8() as u32 }).sum()
}
