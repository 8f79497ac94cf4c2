//! A vocabulary in the form of GGUF files, independent of a file.

use netcl_tensor::{Error, Result};
use std::collections::HashMap;

/// Purpose of a token, with the numbers of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    #[default]
    Normal,
    /// Represents text that the vocabulary cannot encode.
    Unknown,
    /// Controls the model and is not text: start, end, turns.
    Control,
    /// Text that is never split, regardless of its context.
    UserDefined,
    /// An id that no text uses.
    Unused,
    /// One byte, `<0x41>`.
    Byte,
}

impl TokenKind {
    /// Returns the kind of a number in `tokenizer.ggml.token_type`; an unknown number counts as a piece of text.
    pub fn from_ggml(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Returns true if its name in user text is only text.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// The fields `tokenizer.ggml.*` of a GGUF file, with their names. A missing field is `None` or empty.
#[derive(Clone, Debug, Default)]
pub struct Vocab {
    /// `llama` (SentencePiece BPE), `gpt2` (byte-level BPE), `gemma4` (BPE over text), `bert` (WordPiece) or `t5` (unigram).
    pub model: String,
    /// Splitting rule before BPE.
    pub pre: Option<String>,
    /// The text of every token.
    pub tokens: Vec<String>,
    /// The score of every token: for `llama` and `t5`.
    pub scores: Vec<f32>,
    /// The kind of every token; empty if all are text.
    pub kinds: Vec<TokenKind>,
    /// The merges of BPE in order, `left right`.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: the end of a turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: the end of a message after which the speaker continues.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unknown: Option<u32>,
    /// `seperator_token_id` (spelled this way in files).
    pub separator: Option<u32>,
    /// `padding_token_id`.
    pub padding: Option<u32>,
    /// Whether a prompt begins with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a prompt ends with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space is added before a text.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of white space become one space (`t5`).
    pub remove_extra_whitespaces: Option<bool>,
    /// SentencePiece's compiled table of replacements (`t5`).
    pub precompiled_charsmap: Vec<u8>,
    /// Whether text is converted to lower case (`bert`).
    pub lowercase: Option<bool>,
    /// Whether accents are removed (`bert`) [default: same as `lowercase`].
    pub strip_accents: Option<bool>,
    /// `general.name`: Phi-3's control tokens include the following white space, and only the name identifies this.
    pub name: Option<String>,
}

impl Vocab {
    /// Returns a vocabulary of the 256 bytes, which can encode every text, followed by other tokens. The first of those ends a text.
    pub fn of_bytes(more: &[(&str, TokenKind)]) -> Self {
        let bytes = (0..256).map(|byte| (format!("<0x{byte:02X}>"), TokenKind::Byte));
        let more = more.iter().map(|(token, kind)| ((*token).to_owned(), *kind));
        let (tokens, kinds): (Vec<_>, Vec<_>) = bytes.chain(more).unzip();
        let end = (tokens.len() > 256).then_some(256);
        let scores = vec![0.0; tokens.len()];
        Self { model: "llama".into(), tokens, kinds, scores, eos: end, unknown: end, ..Self::default() }
    }

    /// Returns the kind of a token.
    pub fn kind(&self, id: usize) -> TokenKind {
        self.kinds.get(id).copied().unwrap_or_default()
    }

    /// Checks the lengths of the lists, the scores and the ids.
    ///
    /// # Errors
    /// `Format` with the field.
    pub fn validate(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 || u32::try_from(count).is_err() {
            return Err(wrong("tokens", format!("{count} tokens")));
        }
        for (field, len) in [("scores", self.scores.len()), ("token_type", self.kinds.len())] {
            if len != 0 && len != count {
                return Err(wrong(field, format!("{len} entries for {count} tokens")));
            }
        }
        if let Some(at) = self.scores.iter().position(|s| !s.is_finite()) {
            return Err(wrong("scores", format!("the score of token {at} is {}", self.scores[at])));
        }
        let ids = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("eot_token_id", self.eot),
            ("eom_token_id", self.eom),
            ("unknown_token_id", self.unknown),
            ("seperator_token_id", self.separator),
            ("padding_token_id", self.padding),
        ];
        for (field, id) in ids {
            if let Some(id) = id.filter(|id| *id as usize >= count) {
                return Err(wrong(field, format!("{id} is outside the vocabulary of {count} tokens")));
            }
        }
        for (flag, set, field, id) in [
            ("add_bos_token", self.add_bos, "bos_token_id", self.bos),
            ("add_eos_token", self.add_eos, "eos_token_id", self.eos),
        ] {
            if set == Some(true) && id.is_none() {
                return Err(wrong(flag, format!("is set, but tokenizer.ggml.{field} is missing")));
            }
        }
        Ok(())
    }

    /// Returns ids by text for the tokens that `keep` accepts; empty ones do not have text.
    ///
    /// # Errors
    /// `Format` if two tokens have the same text.
    pub(super) fn by_text(&self, keep: impl Fn(TokenKind) -> bool) -> Result<HashMap<&str, u32>> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token) in self.tokens.iter().enumerate() {
            if token.is_empty() || !keep(self.kind(id)) {
                continue;
            }
            if let Some(first) = ids.insert(token.as_str(), id as u32) {
                return Err(wrong("tokens", format!("tokens {first} and {id} are both {token:?}")));
            }
        }
        Ok(ids)
    }
}

/// Returns the error for a field of the vocabulary.
pub(super) fn wrong(field: &str, why: impl std::fmt::Display) -> Error {
    Error::format(format!("tokenizer.ggml.{field}: {why}"))
}
