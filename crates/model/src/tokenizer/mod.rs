//! Tokenizers: characters, or any `tokenizer.json` of the `tokenizers` library.

mod added;
mod bytes;
mod chars;
mod chunks;
mod stream;
mod train;

pub use bytes::ByteLengths;
pub use stream::StreamDecoder;

use crate::checkpoint::durable;
use chars::Chars;
pub use chunks::Cuts;
use netcl_device::{Error, Result};
use serde_json::Value;
use std::ops::Range;
use std::path::Path;

/// Name of the tokenizer's file.
pub const FILE: &str = "tokenizer.json";
/// Name of the additional configuration file that `transformers` reads.
pub const CONFIG_FILE: &str = "tokenizer_config.json";
/// Common names of the end-of-text token, tried if no configuration names it.
const EOS_NAMES: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>"];

/// A tokenizer. Ids are `0..vocab_size`.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Table of a character tokenizer.
    chars: Option<Chars>,
    /// Positions where long text may be cut.
    cuts: Cuts,
    vocab_size: usize,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Returns a character tokenizer with one token per distinct character of `texts`, ordered by code point, the same as nanoGPT. `Format` without
    /// characters.
    pub fn char_from_text(texts: impl IntoIterator<Item: AsRef<str>>) -> Result<Self> {
        let chars = Chars::of(texts);
        if chars.len() == 0 {
            return Err(Error::format("a character tokenizer needs text, but the text is empty"));
        }
        Self::from_json(&chars.to_json(), None)
    }

    /// Returns a byte-level BPE tokenizer of at most `vocab_size` tokens. Token 0 is `<|endoftext|>` and 256 are the bytes, so that every text can be
    /// encoded. `Format` if `vocab_size` is below 257 or the text is empty.
    pub fn train_bpe<I>(texts: I, vocab_size: usize) -> Result<Self>
    where
        I: IntoIterator<Item: AsRef<str>, IntoIter: Send>,
    {
        Self::from_json(&train::bpe(texts, vocab_size)?, None)
    }

    /// Reads a `tokenizer.json`; a `tokenizer_config.json` in the same folder may name the end-of-text token.
    pub fn from_file(path: &Path) -> Result<Self> {
        let text = netcl_device::files::read_text(path).map_err(|e| Error::io("reading", path, &e))?;
        let config = netcl_device::files::read_text(&path.with_file_name(CONFIG_FILE)).ok();
        Self::from_json(&text, config.as_deref()).map_err(|e| e.context(path.display()))
    }

    /// Reads the tokenizer of a checkpoint or model folder.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        Self::from_file(&dir.join(FILE))
    }

    /// Returns the tokenizer of the text of a `tokenizer.json`; that of a `tokenizer_config.json` may name the end-of-text token.
    ///
    /// # Errors
    /// `Format` with the reason why it is invalid.
    pub fn from_json(text: &str, config: Option<&str>) -> Result<Self> {
        // Checked first, because the library panics on invalid JSON.
        let wrong = |why: &dyn std::fmt::Display| {
            Error::format(format!("not a tokenizer of the tokenizers library: {why}"))
        };
        let mut json: Value = serde_json::from_str(text).map_err(|e| wrong(&e))?;
        let config: Value = config.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let settled = added::settle(&mut json, &config).then(|| json.to_string());
        let text = settled.as_deref().unwrap_or(text);
        let mut inner = by_library(|| tokenizers::Tokenizer::from_bytes(text))?.map_err(|e| wrong(&e))?;
        if json["pre_tokenizer"].is_null() {
            // Words are whole texts here, and texts do not repeat: the library would cache ten thousand of them per thread.
            keep_no_words(&mut inner);
        }
        let vocab = inner.get_vocab(true);
        let vocab_size = vocab.values().max().map_or(0, |&id| id as usize + 1);
        if vocab_size == 0 {
            return Err(Error::format("the tokenizer does not have tokens"));
        }
        if vocab_size > vocab.len().saturating_mul(2) + SPARSE {
            return Err(Error::format(format!(
                "the {} tokens have ids up to {}: tables by id would be mostly empty",
                vocab.len(),
                vocab_size - 1
            )));
        }
        let named = eos_name(&config);
        let names = named.iter().map(String::as_str).chain(EOS_NAMES);
        let eos = names.filter_map(|name| vocab.get(name).copied()).next();
        let chars = Chars::from_json(&json);
        let cuts = if chars.is_some() { Cuts::Anywhere } else { Cuts::of(&json) };
        Ok(Self { chars, cuts, inner, vocab_size, eos })
    }

    /// Returns the effective text of a folder's `tokenizer.json`, with the added tokens of `tokenizer_config.json`.
    ///
    /// # Errors
    /// `Io` or `Format`; the message names the file.
    pub fn text_of_dir(dir: &Path) -> Result<String> {
        let path = dir.join(FILE);
        let text = netcl_device::files::read_text(&path).map_err(|e| Error::io("reading", &path, &e))?;
        let wrong = |e: serde_json::Error| Error::format(format!("{}: {e}", path.display()));
        let mut json: Value = serde_json::from_str(&text).map_err(wrong)?;
        let config = netcl_device::files::read_text(&dir.join(CONFIG_FILE)).ok();
        let config = config.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Ok(if added::settle(&mut json, &config) { json.to_string() } else { text })
    }

    /// Returns the tokenizer's files for a model folder: name and content.
    pub fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let json = match &self.chars {
            Some(chars) => chars.to_json(),
            None => self.inner.to_string(true).map_err(|e| failed("writing", &e))?,
        };
        let mut config = serde_json::json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": false,
        });
        if let Some(eos) = self.eos.and_then(|eos| self.inner.id_to_token(eos)) {
            config["eos_token"] = eos.into();
        }
        Ok(vec![(FILE.into(), json.into_bytes()), (CONFIG_FILE.into(), format!("{config:#}\n").into_bytes())])
    }

    /// Writes [`files`](Self::files) into an existing folder; each is replaced atomically.
    ///
    /// # Errors
    /// `Io` with the path; no incomplete file is left.
    pub fn save(&self, dir: &Path) -> Result<()> {
        durable::replace(dir, &self.files()?)
    }

    /// Tokens that `transformers` prepends to a text, such as Llama's `<s>`; none for most tokenizers.
    pub fn beginning(&self) -> Vec<u32> {
        let ids = |special| {
            by_library(|| self.inner.encode_fast("a", special))
                .ok()
                .and_then(|e| Some(e.ok()?.get_ids().to_vec()))
                .unwrap_or_default()
        };
        let (plain, mut all) = (ids(false), ids(true));
        let at = all.windows(plain.len().max(1)).position(|ids| ids == plain);
        all.truncate(at.unwrap_or(0));
        all
    }

    /// Returns true if the tokenizer prepends a space to a text.
    pub fn adds_space(&self) -> bool {
        let json = self.inner.to_string(false).ok().and_then(|text| serde_json::from_str(&text).ok());
        json.is_some_and(|json| chunks::begins_with_space(&json))
    }

    /// Returns the number of ids: the largest one plus one.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns true if a token has this id: ids below [`vocab_size`](Self::vocab_size) may be unused.
    pub fn knows(&self, id: u32) -> bool {
        match &self.chars {
            Some(chars) => (id as usize) < chars.len(),
            None => self.inner.id_to_token(id).is_some(),
        }
    }

    /// Returns the end-of-text token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Encodes `text`. Names of special tokens in it become those tokens; no token is added. `Format` for a character that a character
    /// tokenizer does not have.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        if let Some(chars) = &self.chars {
            return chars.encode(text);
        }
        let mut ids = Vec::new();
        // A group bounds the memory of the library's encodings, which take some hundred bytes per token.
        for group in self.cuts.pieces(text).collect::<Vec<_>>().chunks(64) {
            let encoded = by_library(|| self.inner.encode_batch_fast(group.to_vec(), false))?
                .map_err(|e| failed("encoding", &e))?;
            ids.extend(encoded.iter().flat_map(|encoding| encoding.get_ids()));
        }
        Ok(ids)
    }

    /// Encodes `text` the same as [`encode`](Self::encode); each id comes with the bytes of the text that it stands for. Several ids of one character
    /// have the same range. A range may omit white space next to a word.
    ///
    /// # Errors
    /// Errors of [`encode`](Self::encode).
    pub fn encode_with_ranges(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>> {
        if let Some(chars) = &self.chars {
            let ends = text.char_indices().map(|(at, c)| at..at + c.len_utf8());
            return Ok(chars.encode(text)?.into_iter().zip(ends).collect());
        }
        let encoded = by_library(|| self.inner.encode(text, false))?.map_err(|e| failed("encoding", &e))?;
        let ranges = encoded.get_offsets().iter().map(|(start, end)| *start..*end);
        Ok(encoded.get_ids().iter().copied().zip(ranges).collect())
    }

    /// Returns the positions where text may be cut before it is encoded in pieces.
    pub fn cuts(&self) -> Cuts {
        self.cuts.clone()
    }

    /// Encodes a piece of text on the calling thread.
    pub fn encode_piece(&self, text: &str) -> Result<Vec<u32>> {
        match &self.chars {
            Some(chars) => chars.encode(text),
            None => {
                let encoding = by_library(|| self.inner.encode_fast(text, false))?;
                let encoding = encoding.map_err(|e| failed("encoding", &e))?;
                Ok(encoding.get_ids().to_vec())
            }
        }
    }

    /// Returns the error for the first character of a text, given in blocks, that a character tokenizer does not have.
    pub fn first_unknown(&self, blocks: impl Iterator<Item: AsRef<str>>) -> Option<Error> {
        self.chars.as_ref()?.first_unknown(blocks)
    }

    /// Like [`encode`](Self::encode), but names of special tokens are encoded as ordinary text.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>> {
        self.ordinary().encode(text)
    }

    /// A copy of this tokenizer that encodes names of special tokens as ordinary text.
    #[must_use]
    pub fn ordinary(&self) -> Self {
        let mut plain = self.clone();
        plain.inner.set_encode_special_tokens(true);
        plain
    }

    /// Returns this tokenizer without the library's word cache. That cache is per thread, has up to ten thousand words with up to 255 bytes, and
    /// remains after the tokenizer is dropped. Encoding takes half as long again.
    #[must_use]
    pub fn uncached(mut self) -> Self {
        keep_no_words(&mut self.inner);
        self
    }

    /// Returns the underlying tokenizer of the `tokenizers` library.
    pub fn library(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Decodes `ids`; special tokens appear by name, invalid UTF-8 as U+FFFD. `Format` for an id that is not below
    /// [`vocab_size`](Self::vocab_size).
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.vocab_size) {
            return Err(Error::format(format!(
                "token {id} is unknown; the tokenizer has {} tokens (0 to {})",
                self.vocab_size,
                self.vocab_size - 1
            )));
        }
        match &self.chars {
            Some(chars) => Ok(chars.decode(ids)),
            None => by_library(|| self.inner.decode(ids, false))?.map_err(|e| failed("decoding", &e)),
        }
    }

    /// Returns an incremental decoder.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder::new(self)
    }
}

fn keep_no_words(tokenizer: &mut tokenizers::Tokenizer) {
    let mut model = tokenizer.get_model().clone();
    model.resize_cache(0);
    tokenizer.with_model(model);
}

/// Returns the end-of-text token of a `tokenizer_config.json`: a string, or an object with the string as `content`.
fn eos_name(config: &Value) -> Option<String> {
    let eos = config.get("eos_token")?;
    eos.as_str().or_else(|| eos.get("content")?.as_str()).map(str::to_owned)
}

/// Maximum number of ids beyond twice the number of tokens: gaps of padded vocabularies.
const SPARSE: usize = 1 << 16;

/// Returns the library's result; the library panics on some files.
///
/// # Errors
/// `Format` if it panics.
pub fn by_library<T>(work: impl FnOnce() -> T) -> Result<T> {
    netcl_device::guarded("the tokenizers library", work)
}

fn failed(doing: &str, error: &tokenizers::Error) -> Error {
    Error::format(format!("tokenizer: {doing} failed: {error}"))
}

#[cfg(test)]
mod tests;
