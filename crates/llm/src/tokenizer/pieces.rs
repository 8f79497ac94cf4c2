//! The bytes of each token.

use super::vocab::{TokenKind, Vocab};
use super::{alphabet, pre::Alphabet, spm};
use netcl_tensor::{Error, Result};
use serde_json::Value;
use tokenizers::decoders::wordpiece::cleanup;

/// Bytes by id, in one block of memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let at = id as usize;
        let end = *self.ends.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }
}

/// Conversion of a file's tokens to text, from the decoder of its `tokenizer.json`.
#[derive(Clone, Debug, Default)]
pub(super) struct Writing {
    letters: bool,
    replaced: Vec<(String, String)>,
    byte_tokens: bool,
    /// Prefix of tokens that continue a word; the others start with a space.
    continuing: Option<String>,
    /// Whether spaces before punctuation and contractions are removed.
    cleans: bool,
    /// Whether the first space of a text is removed.
    pub strips: bool,
}

impl Writing {
    /// # Errors
    /// `Unsupported` with a decoder that does not decode one token at a time.
    pub fn of(decoder: &Value) -> Result<Self> {
        let mut writing = Self::default();
        if decoder.is_null() {
            writing.continuing = Some(String::new());
        } else {
            writing.add(decoder)?;
        }
        writing.strips |= writing.continuing.is_some();
        Ok(writing)
    }

    fn add(&mut self, decoder: &Value) -> Result<()> {
        let text = |key: &str| decoder[key].as_str().unwrap_or_default().to_owned();
        let kind = text("type");
        match kind.as_str() {
            "Sequence" => {
                for step in decoder["decoders"].as_array().into_iter().flatten() {
                    self.add(step)?;
                }
            }
            "ByteLevel" => self.letters = true,
            "ByteFallback" => self.byte_tokens = true,
            "Fuse" => {}
            "Metaspace" => {
                self.replaced.push((text("replacement"), " ".into()));
                self.strips |= decoder["prepend_scheme"] != "never";
            }
            "Replace" if decoder["pattern"]["String"].is_string() => {
                let pattern = decoder["pattern"]["String"].as_str().unwrap_or_default();
                self.replaced.push((pattern.to_owned(), text("content")));
            }
            "Strip" if decoder["content"] == " " && decoder["stop"] == 0 => {
                self.strips |= decoder["start"].as_u64() > Some(0);
            }
            "WordPiece" => {
                self.continuing = Some(text("prefix"));
                self.cleans = decoder["cleanup"] == true;
            }
            _ => {
                return Err(Error::unsupported(format!(
                    "tokenizer.json: decoder {kind:?} with these options is not supported; supported are ByteLevel, ByteFallback, Fuse, Metaspace, \
                     Replace of a string, Strip of leading spaces and WordPiece"
                )));
            }
        }
        Ok(())
    }

    /// Returns true if a token is a word, and words are separated by spaces.
    pub fn spaces_words(&self) -> bool {
        self.continuing.is_some()
    }

    /// Returns the bytes of `token`, a piece of text.
    pub fn bytes(&self, token: &str) -> Vec<u8> {
        if self.letters {
            return alphabet::bytes(token);
        }
        if self.byte_tokens
            && let Some(byte) = spm::byte_of(token)
        {
            return vec![byte];
        }
        let mut text = token.to_owned();
        if let Some(prefix) = &self.continuing {
            text = match text.strip_prefix(prefix.as_str()) {
                Some(rest) if !prefix.is_empty() => rest.to_owned(),
                _ => format!(" {text}"),
            };
            if self.cleans {
                text = cleanup(&text);
            }
        }
        for (from, to) in self.replaced.iter().filter(|(from, _)| !from.is_empty()) {
            text = text.replace(from.as_str(), to);
        }
        text.into_bytes()
    }
}

/// Returns the bytes of the tokens of a GGUF vocabulary, whose BPE is written in `alphabet`.
pub(super) fn of_vocab(vocab: &Vocab, letters: Option<Alphabet>) -> Pieces {
    let mut pieces = Pieces::default();
    for (id, token) in vocab.tokens.iter().enumerate() {
        let kind = vocab.kind(id);
        match kind {
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => pieces.push(token.as_bytes()),
            TokenKind::Byte => match spm::byte_of(token) {
                Some(byte) => pieces.push(&[byte]),
                None => pieces.push(token.as_bytes()),
            },
            TokenKind::Normal | TokenKind::Unused => match letters {
                Some(Alphabet::Bytes) => pieces.push(&alphabet::bytes(token)),
                _ => pieces.push(token.replace('▁', " ").as_bytes()),
            },
        }
    }
    pieces
}
