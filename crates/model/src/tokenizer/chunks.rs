//! Splits long text at positions that no token can span, to encode pieces in parallel with bounded memory.
//!
//! The possible positions follow from the tokenizer's file; see [`Cuts::of`].

use serde_json::Value;
use std::collections::HashSet;
use std::sync::Arc;

/// Size of a piece in bytes: large against the library's cost per call, small enough for parallel work.
const CHUNK_BYTES: usize = 64 << 10;
/// SentencePiece's character for a space.
pub(super) const META: char = '▁';

/// Alternatives of the pre-tokenization patterns of GPT-2, GPT-4, Llama 3, Qwen and similar tokenizers. After a line break, each of them can only
/// match white space and `/`. None matches a space after anything but white space; none has a look-behind. So a pattern made of these in any order,
/// including [`BLANK`], ends a match after each single line break that no `/` follows, and before each single space. It continues from there the same
/// as from the start of a text.
const ALTERNATIVES: [&str; 27] = [
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?i:[sdmt]|ll|ve|re)",
    r"\p{L}+",
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+",
    r"\p{N}",
    r"\p{N}+",
    r" ?\p{N}+",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]++[\r\n]*",
    r"\s*[\r\n]+",
    r"\s*[\r\n]",
    r"\s+(?!\S)",
    BLANK,
    // GPT-4o's, which distinguish upper and lower case.
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
];
/// White space that no other alternative matched.
const BLANK: &str = r"\s+";

/// Positions where text may be cut so that the ids of the pieces are the ids of the whole text.
#[derive(Clone, Debug)]
pub enum Cuts {
    /// Between any two characters.
    Anywhere,
    /// After a single line break, and before a single space.
    Words,
    /// At a single space, which is removed: the tokenizer prepends one to every text.
    Spaces(Arc<Spaces>),
    /// Nowhere: the text must be encoded as a whole.
    Never,
}

/// Spaces at which text may be cut.
#[derive(Debug, Default)]
pub struct Spaces {
    /// Characters that precede a space in no token.
    before: HashSet<char>,
    /// First characters of added tokens.
    not_after: HashSet<char>,
}

/// The first piece of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// End of the piece.
    pub end: usize,
    /// Start of the next piece: the same position, or after a removed space.
    pub next: usize,
}

impl Cuts {
    /// Returns the positions that the tokenizer of a `tokenizer.json` allows.
    ///
    /// [`Words`](Self::Words): byte-level BPE with a pre-tokenization pattern made of [`ALTERNATIVES`]. The only normalizer allowed is
    /// Unicode composition (NFC), because neither a line break nor a space composes with another character.
    ///
    /// [`Spaces`](Self::Spaces): BPE over the whole text, the same as SentencePiece, with `▁` for a space and one prepended to the text. The two
    /// sides of a position are merged independently if no token contains the two adjacent characters: merges produce tokens, so none spans the
    /// position. In common vocabularies no token has `▁` after a letter. The space itself is removed, because one is prepended to the following
    /// piece.
    pub fn of(json: &Value) -> Self {
        if words(json) {
            return Self::Words;
        }
        spaces(json).map_or(Self::Never, |spaces| Self::Spaces(Arc::new(spaces)))
    }

    /// Returns the first piece of `text`. If no cut was found and more text may follow (`whole` is false), `Err` with the position from which the
    /// next search continues.
    pub fn first(&self, text: &str, searched: usize, whole: bool) -> Result<Cut, usize> {
        match self.find(text, searched.max(CHUNK_BYTES), CHUNK_BYTES) {
            Some(cut) => Ok(cut),
            None if whole => Ok(Cut { end: text.len(), next: text.len() }),
            None => Err(text.len().saturating_sub(8)),
        }
    }

    /// Returns the first cut from byte `from` on, of a piece of about `size` bytes.
    fn find(&self, text: &str, from: usize, size: usize) -> Option<Cut> {
        let plain = |at| Cut { end: at, next: at };
        match self {
            Self::Anywhere => (text.len() > size).then(|| plain(floor_boundary(text, size))),
            Self::Words => lone_word(text, from, 2 * size).map(plain),
            Self::Spaces(spaces) => spaces.find(text, from).map(|at| Cut { end: at, next: at + 1 }),
            Self::Never => None,
        }
    }

    /// Splits `text` into pieces of about 64 KiB.
    pub fn pieces<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let cut = self.first(rest, 0, true).unwrap_or(Cut { end: rest.len(), next: rest.len() });
            let piece = &rest[..cut.end];
            rest = &rest[cut.next..];
            Some(piece)
        })
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// Returns the characters before and after byte `at`, which is a character of one byte.
fn around(text: &str, at: usize) -> Option<[char; 2]> {
    Some([text[..at].chars().next_back()?, text[at + 1..].chars().next()?])
}

/// Returns the first cut from byte `from` on: at a line break, or, without one up to byte `long`, at a space.
fn lone_word(text: &str, from: usize, long: usize) -> Option<usize> {
    let lone = |at| around(text, at).is_some_and(|both| both.iter().all(|c| !c.is_whitespace()));
    // Both are one byte, so the byte's position is a character's.
    text.bytes().enumerate().skip(from).find_map(|(at, byte)| match byte {
        b'\n' if lone(at) && text.as_bytes().get(at + 1) != Some(&b'/') => Some(at + 1),
        b' ' if at > long && lone(at) => Some(at),
        _ => None,
    })
}

impl Spaces {
    fn find(&self, text: &str, from: usize) -> Option<usize> {
        let fits = |at| {
            around(text, at).is_some_and(|[before, after]| {
                self.before.contains(&before)
                    && !after.is_whitespace()
                    && after != META
                    && !self.not_after.contains(&after)
            })
        };
        let mut bytes = text.bytes().enumerate().skip(from);
        bytes.find_map(|(at, byte)| (byte == b' ' && fits(at)).then_some(at))
    }
}

/// Added tokens: matched in a text before pre-tokenization.
fn added(json: &Value) -> impl Iterator<Item = &Value> {
    json["added_tokens"].as_array().into_iter().flatten()
}

/// Returns true if an added token matches adjacent white space or depends on adjacent characters.
fn reaches(token: &Value) -> bool {
    ["lstrip", "rstrip", "single_word"].iter().any(|flag| token[flag] == true)
}

fn words(json: &Value) -> bool {
    let mixed = |content: &str| {
        content.contains(char::is_whitespace) && content.contains(|c: char| !c.is_whitespace())
    };
    let plain_added = added(json).all(|token| {
        token["lstrip"] != true
            && token["rstrip"] != true
            && token["content"].as_str().is_none_or(|c| !c.contains('\n') && !mixed(c))
    });
    let composes =
        json["normalizer"].is_null() || ["NFC", "NFD"].iter().any(|n| json["normalizer"]["type"] == *n);
    let split = &json["pre_tokenizer"];
    let parts = match &split["pretokenizers"] {
        Value::Array(parts) if split["type"] == "Sequence" => parts.iter().collect(),
        _ => vec![split],
    };
    // Digits are split off one by one wherever they are; bytes are written as characters.
    let local = |part: &&Value| match part["type"].as_str() {
        Some("Digits") => true,
        Some("ByteLevel") => part["add_prefix_space"] == false,
        Some("Split") => splits_words(part),
        _ => false,
    };
    let by_words = |part: &&Value| match part["type"].as_str() {
        Some("ByteLevel") => part["use_regex"] != false,
        Some("Split") => part["pattern"]["Regex"].as_str().is_some_and(|p| alternatives(p).contains(&BLANK)),
        _ => false,
    };
    composes && plain_added && parts.iter().all(local) && parts.iter().any(by_words)
}

/// Returns true if a pre-tokenizer splits off each match of a pattern made of known alternatives.
fn splits_words(part: &Value) -> bool {
    let each = part["behavior"] == "Isolated" && part["invert"] != true
        || part["behavior"] == "Removed" && part["invert"] == true;
    let pattern = part["pattern"]["Regex"].as_str();
    each && pattern.is_some_and(|p| alternatives(p).iter().all(|a| ALTERNATIVES.contains(a)))
}

/// Returns the top-level alternatives of a pattern.
fn alternatives(pattern: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut start = 0;
    let mut escaped = false;
    let mut out = Vec::new();
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '|' if depth == 0 => {
                out.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    out.push(&pattern[start..]);
    out
}

fn spaces(json: &Value) -> Option<Spaces> {
    let model = &json["model"];
    let empty = |key: &str| model[key].as_str().is_none_or(str::is_empty);
    let plain = model["type"] == "BPE"
        && model["dropout"].as_f64().is_none_or(|p| p == 0.0)
        && model["ignore_merges"] != true
        && empty("continuing_subword_prefix")
        && empty("end_of_word_suffix");
    if !plain || !begins_with_space(json) {
        return None;
    }
    let vocab = model["vocab"].as_object()?;
    let mut spaces = Spaces::default();
    vocab.contains_key(&META.to_string()).then_some(())?;
    // A character without its own token becomes byte tokens or unknown; merges of those are not analyzed, so such characters are excluded.
    let single = |token: &String| {
        let mut chars = token.chars();
        chars.next().filter(|_| chars.next().is_none())
    };
    spaces.before.extend(vocab.keys().filter_map(single).filter(|c| !c.is_whitespace() && *c != META));
    let spaced = vocab.keys().filter(|token| token.contains(META));
    for token in spaced {
        let mut before = None;
        for c in token.chars() {
            if let (Some(before), META) = (before, c) {
                spaces.before.remove(&before);
            }
            before = Some(c);
        }
    }
    for token in added(json) {
        let content = token["content"].as_str()?;
        let (first, last) = (content.chars().next()?, content.chars().next_back()?);
        // A token of several spaces only never covers a single space; any other token with a space may begin or end at one.
        let blank = content.chars().all(|c| c.is_whitespace() || c == META);
        let spaced = content.contains([' ', META]);
        if reaches(token) || spaced && !(blank && content.chars().count() > 1) {
            return None;
        }
        // The text after an added token gets its own prepended space.
        spaces.before.remove(&last);
        spaces.not_after.insert(first);
    }
    (!spaces.before.is_empty()).then_some(spaces)
}

/// Returns true if a text is only changed by prepending `▁` and replacing spaces by `▁` before it is merged.
pub(super) fn begins_with_space(json: &Value) -> bool {
    let (normalizer, split) = (&json["normalizer"], &json["pre_tokenizer"]);
    let meta = META.to_string();
    if !split.is_null() {
        let first = split["prepend_scheme"].as_str().is_none_or(|scheme| scheme != "never");
        return normalizer.is_null()
            && split["type"] == "Metaspace"
            && split["replacement"] == meta.as_str()
            && split["add_prefix_space"] != false
            && first;
    }
    let Some(steps) = normalizer["normalizers"].as_array().filter(|_| normalizer["type"] == "Sequence")
    else {
        return false;
    };
    let prepends = |step: &Value| step["type"] == "Prepend" && step["prepend"] == meta.as_str();
    let replaces = |step: &Value| {
        step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == meta.as_str()
    };
    matches!(&steps[..], [a, b] if prepends(a) && replaces(b) || replaces(a) && prepends(b))
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
