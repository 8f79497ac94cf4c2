//! Converts text to token ids and back: with the vocabulary of a GGUF file, or any `tokenizer.json`.
//!
//! The names of control tokens in a text are ordinary text unless [`Specials::Parsed`] is used: user text can never start or end a turn.

mod alphabet;
mod bpe;
mod folder;
mod gguf;
mod library;
mod pieces;
pub(crate) mod pre;
mod split;
mod spm;
mod stop;
mod stream;
mod vocab;
mod written;

pub use gguf::{GENERATION, HUGGING_FACE};
pub(crate) use stop::of_config as ends_of_config;
pub use stream::Stream;
pub use vocab::{TokenKind, Vocab};
pub(crate) use written::tokenizer_json;

use crate::gguf::Gguf;
use aho_corasick::{AhoCorasick, MatchKind};
use netcl_model::tokenizer as files;
use netcl_tensor::{Error, Result};
use pieces::Pieces;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Treatment of control token names in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// Ordinary text: for user text.
    Plain,
    /// Those tokens: for the output of a chat template.
    Parsed,
}

/// A tokenizer from any source. Ids are `0..vocab_size`.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    source: Source,
    pieces: Pieces,
    kinds: Vec<TokenKind>,
    ids: HashMap<String, u32>,
    ends: PromptAffixes,
    bos: Option<u32>,
    eos: Option<u32>,
    /// In rising order.
    stops: Vec<u32>,
    /// Whether the leading space of a decoded text was added by the tokenizer.
    strips: bool,
}

/// Tokens before and after a prompt.
#[derive(Clone, Debug, Default)]
struct PromptAffixes {
    before: Vec<u32>,
    after: Vec<u32>,
}

#[derive(Clone, Debug)]
enum Source {
    /// `tokenizer.json`.
    File(Box<FromFile>),
    Vocab(Box<FromVocab>),
}

/// The same file twice: with special token names as tokens, and as text.
#[derive(Clone, Debug)]
struct FromFile {
    parsed: files::Tokenizer,
    plain: files::Tokenizer,
}

#[derive(Clone, Debug)]
struct FromVocab {
    model: Model,
    /// Names that are always matched, and those matched only if special tokens are parsed.
    always: Names,
    parsed: Names,
}

#[derive(Clone, Debug)]
enum Model {
    Spm(spm::Spm),
    Bpe(Box<bpe::Bpe>),
    Library(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// Opens the tokenizer of a Hugging Face folder: `tokenizer.json`, with `tokenizer_config.json` and `generation_config.json` if they exist.
    ///
    /// # Errors
    /// `Io` or `Format`; the message names the file.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        folder::open(folder)
    }

    /// Returns the tokenizer of a `tokenizer.json` alone.
    ///
    /// # Errors
    /// `Unsupported` for a decoder that does not decode one token at a time.
    pub fn from_file(file: files::Tokenizer) -> Result<Self> {
        folder::from_file(file)
    }

    /// Returns the tokenizer of a GGUF file. If the file contains a whole `tokenizer.json`, that one encodes and decodes, because ggml's keys omit
    /// normalizers, post-processors and the white-space handling of added tokens. The begin and end ids still come from ggml's keys. If the file
    /// contains a `generation_config.json` with end ids, those apply, the same as in the original folder.
    ///
    /// # Errors
    /// Same as [`from_vocab`](Self::from_vocab), with the file.
    pub fn from_gguf(file: &Gguf) -> Result<Self> {
        let tokenizer = Self::encoder_of_gguf(file)?;
        let Some(json) = file.text(GENERATION)? else { return Ok(tokenizer) };
        let wrong = |e| Error::format(format!("{}: {GENERATION}: {e}", file.path().display()));
        let ends = stop::of_config(&serde_json::from_str(json).map_err(wrong)?);
        match ends.is_empty() {
            true => Ok(tokenizer),
            false => {
                Ok(Self { stops: stop::sorted(ends.into_iter().chain(tokenizer.eos).collect()), ..tokenizer })
            }
        }
    }

    fn encoder_of_gguf(file: &Gguf) -> Result<Self> {
        let alone = file.text("tokenizer.ggml.model")? == Some("no_vocab");
        let by_keys = || {
            let vocab = Vocab::from_gguf(file)?;
            Self::from_vocab(&vocab).map_err(|e| e.context(file.path().display()))
        };
        let Some(json) = file.text(HUGGING_FACE)? else { return by_keys() };
        let whole = files::Tokenizer::from_json(json, None).and_then(Self::from_file);
        match (whole, alone) {
            (Ok(whole), _) => Ok(whole.with_ends_of(&Vocab::from_gguf(file)?)),
            (Err(e), true) => Err(e.context(HUGGING_FACE).context(file.path().display())),
            (Err(e), false) => {
                let path = file.path().display();
                tracing::warn!(
                    "{path}: using ggml's keys, because the {HUGGING_FACE} in it cannot be read: {e}"
                );
                by_keys()
            }
        }
    }

    /// Returns this tokenizer with the begin, end and stop tokens of a vocabulary.
    fn with_ends_of(self, vocab: &Vocab) -> Self {
        let mut vocab = vocab.clone();
        defaults(&mut vocab);
        let eos = vocab.eos.or(self.eos);
        let stops = match vocab.tokens.is_empty() {
            true => stop::sorted(eos.into_iter().chain(self.stops).collect()),
            false => stop::of_vocab(&vocab),
        };
        Self { bos: vocab.bos.or(self.bos), eos, stops, ..self }
    }

    /// Returns the tokenizer of a vocabulary.
    ///
    /// # Errors
    /// `Format` with the missing or invalid field, `Unsupported` for an unknown kind of vocabulary.
    pub fn from_vocab(vocab: &Vocab) -> Result<Self> {
        let mut vocab = vocab.clone();
        defaults(&mut vocab);
        vocab.validate()?;
        let (model, letters) = match vocab.model.as_str() {
            "llama" => (Model::Spm(spm::Spm::new(&vocab)?), None),
            "gpt2" | "gemma4" => {
                let bpe = bpe::Bpe::new(&vocab)?;
                let letters = bpe.pre.alphabet;
                (Model::Bpe(Box::new(bpe)), Some(letters))
            }
            "bert" => (Model::Library(Box::new(library::wordpiece(&vocab)?)), None),
            "t5" => (Model::Library(Box::new(library::unigram(&vocab)?)), None),
            other => {
                return Err(Error::unsupported(format!(
                    "tokenizer.ggml.model: unknown tokenizer {other:?}; supported are bert, gemma4, gpt2, llama and t5"
                )));
            }
        };
        let strips = match &model {
            Model::Spm(spm) => spm.space_before,
            Model::Bpe(_) => false,
            Model::Library(_) => true,
        };
        let kinds: Vec<_> = (0..vocab.tokens.len()).map(|id| vocab.kind(id)).collect();
        Ok(Self {
            source: Source::Vocab(Box::new(FromVocab {
                always: Names::new(&vocab, |kind| kind == TokenKind::UserDefined)?,
                parsed: Names::new(&vocab, |kind| kind == TokenKind::UserDefined || kind.is_special())?,
                model,
            })),
            pieces: pieces::of_vocab(&vocab, letters),
            kinds,
            ids: vocab
                .tokens
                .iter()
                .zip(0..)
                .filter(|(t, _)| !t.is_empty())
                .map(|(t, id)| (t.clone(), id))
                .collect(),
            ends: ends(&vocab, letters.and(vocab.pre.as_deref()))?,
            bos: vocab.bos,
            eos: vocab.eos,
            stops: stop::of_vocab(&vocab),
            strips,
        })
    }

    /// Returns the ids that a `tokenizer.json` adds before and after each text; `None` for another tokenizer, and without a post-processor.
    pub(crate) fn library_adds(&self) -> Option<(&[u32], &[u32])> {
        match &self.source {
            Source::File(file) if file.parsed.library().get_post_processor().is_some() => {
                Some((&self.ends.before, &self.ends.after))
            }
            _ => None,
        }
    }

    /// Returns this tokenizer with the end tokens of another one in addition to its own.
    pub(crate) fn with_stops_of(self, other: &Self) -> Self {
        Self { stops: stop::sorted(self.stops.iter().chain(&other.stops).copied().collect()), ..self }
    }

    /// Returns the number of ids: the largest one plus one.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the begin token of a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Returns the end token of a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Returns the ids at which generation ends, in ascending order: the end of a text, of a turn, of a message.
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// Returns the id of a token by its text in the file, such as `<|im_end|>`.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// Returns the purpose of a token; [`TokenKind::Unused`] outside the vocabulary.
    pub fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unused)
    }

    /// Returns the bytes of a token, which may be incomplete characters; for a control token, its name.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary.
    pub fn piece(&self, id: u32) -> Result<&[u8]> {
        self.pieces.get(id).ok_or_else(|| {
            Error::format(format!("token {id} is unknown; the tokenizer has {} tokens", self.vocab_size()))
        })
    }

    /// Returns the ids of `text` without any added ids.
    ///
    /// # Errors
    /// `Format` for a text that the vocabulary cannot encode, such as an unknown character of a character tokenizer.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        match &self.source {
            Source::File(file) => match specials {
                Specials::Parsed => file.parsed.encode(text),
                Specials::Plain => file.plain.encode(text),
            },
            Source::Vocab(vocab) => vocab.encode(text, specials),
        }
    }

    /// Returns the ids of `text`, the same as [`encode`](Self::encode), each with the bytes of the text that it stands for.
    ///
    /// # Errors
    /// Same as [`encode`](Self::encode); `Unsupported` for the tokenizer of a GGUF file.
    pub fn encode_with_ranges(&self, text: &str, specials: Specials) -> Result<Vec<(u32, Range<usize>)>> {
        match (&self.source, specials) {
            (Source::File(file), Specials::Parsed) => file.parsed.encode_with_ranges(text),
            (Source::File(file), Specials::Plain) => file.plain.encode_with_ranges(text),
            (Source::Vocab(_), _) => Err(Error::unsupported(
                "the positions of tokens in a text require a tokenizer.json; GGUF files do not have them",
            )),
        }
    }

    /// Returns the tokens that [`encode_prompt`](Self::encode_prompt) adds before and after a text.
    pub fn affixes(&self) -> (&[u32], &[u32]) {
        (&self.ends.before, &self.ends.after)
    }

    /// Returns the ids of a prompt, with the leading and trailing tokens that the model was trained with, such as the begin token. A token that the
    /// text already contains is not added twice.
    ///
    /// # Errors
    /// Same as [`encode`](Self::encode).
    pub fn encode_prompt(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let mut ids = self.encode(text, specials)?;
        let PromptAffixes { before, after } = &self.ends;
        if !ids.starts_with(before) {
            ids.splice(0..0, before.iter().copied());
        }
        if !ids.ends_with(after) || ids.len() < before.len() + after.len() {
            ids.extend(after);
        }
        Ok(ids)
    }

    /// Returns the text of `ids` without control tokens. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, false)
    }

    /// Does the same as [`decode`](Self::decode), with control tokens by name.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, true)
    }

    fn decoded(&self, ids: &[u32], control: bool) -> Result<String> {
        let mut stream = Stream::new(self, control, self.strips);
        let mut text = String::new();
        for id in ids {
            text += &stream.push(*id)?;
        }
        Ok(text + &stream.finish())
    }

    /// Returns an incremental decoder for the text after a prompt: a leading space is kept.
    pub fn stream(&self) -> Stream<'_> {
        Stream::new(self, false, false)
    }
}

impl FromVocab {
    fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let names = if specials == Specials::Parsed { &self.parsed } else { &self.always };
        let mut ids = Vec::new();
        let mut at = 0;
        for found in names.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            let name = &names.found[found.pattern().as_usize()];
            // A name that includes the following white space may extend into the next name's, but not beyond its end.
            if at < found.start() {
                self.encode_text(&text[at..found.start()], &mut ids)?;
            }
            ids.push(name.id);
            at = found.end();
            if name.takes_space {
                at = text.len() - text[at..].trim_ascii_start().len();
            }
        }
        if at < text.len() {
            self.encode_text(&text[at..], &mut ids)?;
        }
        Ok(ids)
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        match &self.model {
            Model::Spm(spm) => spm.encode(text, ids),
            Model::Bpe(bpe) => bpe.encode(text, ids)?,
            Model::Library(library) => library::encode(library, text, ids)?,
        }
        Ok(())
    }
}

/// Tokens matched by name before a text is split; the longest match at a position wins.
#[derive(Clone, Debug)]
struct Names {
    finder: Option<AhoCorasick>,
    found: Vec<Name>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    id: u32,
    takes_space: bool,
}

impl Names {
    fn new(vocab: &Vocab, keep: impl Fn(TokenKind) -> bool) -> Result<Self> {
        let (mut texts, mut found) = (Vec::new(), Vec::new());
        for (id, token) in vocab.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()) {
            if keep(vocab.kind(id)) {
                let takes_space = names_take_space(vocab, token);
                texts.push(token.as_str());
                found.push(Name { id: id as u32, takes_space });
            }
        }
        if texts.is_empty() {
            return Ok(Self { finder: None, found });
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        let finder = finder.map_err(|e| vocab::wrong("tokens", e))?;
        Ok(Self { finder: Some(finder), found })
    }
}

/// Returns true if a token that is found by its name includes the white space after it: Phi-3's control tokens.
fn names_take_space(vocab: &Vocab, token: &str) -> bool {
    let phi3 = vocab.name.as_ref().is_some_and(|name| {
        let name = name.to_lowercase();
        name.contains("phi-3") || name.contains("phi3")
    });
    phi3 && !["<unk>", "<s>", "<|endoftext|>"].contains(&token)
}

/// Sets defaults for fields that files of a kind omit.
fn defaults(vocab: &mut Vocab) {
    let last = vocab.tokens.len() as u32;
    let known = |id: Option<u32>, usual: u32| id.or((usual < last).then_some(usual));
    match vocab.model.as_str() {
        "llama" => {
            vocab.bos = known(vocab.bos, 1);
            vocab.eos = known(vocab.eos, 2);
            vocab.unknown = known(vocab.unknown, 0);
            vocab.add_bos = vocab.add_bos.or(Some(true));
        }
        "bert" => {
            vocab.bos = known(vocab.bos, 101);
            vocab.unknown = known(vocab.unknown, 100);
            vocab.separator = known(vocab.separator, 102);
        }
        "t5" => {
            vocab.eos = known(vocab.eos, 1);
            vocab.unknown = known(vocab.unknown, 2);
            vocab.add_eos = vocab.add_eos.or(Some(true));
        }
        _ => {}
    }
}

/// Returns the tokens before and after a prompt.
fn ends(vocab: &Vocab, pre: Option<&str>) -> Result<PromptAffixes> {
    let usual = match pre {
        Some(name) => pre::find(Some(name))?.add_bos,
        None => vocab.model == "gemma4",
    };
    if vocab.model == "bert" {
        return Ok(PromptAffixes {
            before: vocab.bos.into_iter().collect(),
            after: vocab.separator.into_iter().collect(),
        });
    }
    let (before, after) = (vocab.add_bos.unwrap_or(usual), vocab.add_eos.unwrap_or(false));
    Ok(PromptAffixes {
        before: vocab.bos.filter(|_| before).into_iter().collect(),
        after: vocab.eos.filter(|_| after).into_iter().collect(),
    })
}

#[cfg(test)]
mod tests;
