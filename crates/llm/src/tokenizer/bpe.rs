//! BPE with a list of merges, implemented by the `tokenizers` library, on the words from [`Splitter`]. Source: Sennrich et al., "Neural machine
//! translation of rare words with subword units", ACL 2016.

use super::alphabet;
use super::pre::{self, Alphabet, Pre};
use super::split::Splitter;
use super::vocab::{Vocab, wrong};
use netcl_tensor::{Error, Result};
use std::collections::HashMap;
use tokenizers::Model as _;
use tokenizers::models::bpe::BPE;

/// Splitting and merges.
#[derive(Clone)]
pub(super) struct Bpe {
    model: BPE,
    splitter: Splitter,
    pub pre: &'static Pre,
}

impl Bpe {
    /// # Errors
    /// `Format` for an unknown `pre`, missing merges, or a merge of unknown tokens.
    pub fn new(vocab: &Vocab) -> Result<Self> {
        let name = if vocab.model == "gemma4" { Some("gemma4") } else { vocab.pre.as_deref() };
        let pre = pre::find(name)?;
        if vocab.merges.is_empty() {
            return Err(wrong("merges", format!("absent; a {} vocabulary needs them", vocab.model)));
        }
        // User text never becomes a control token, neither through merges nor as a whole word.
        let ids = vocab.by_text(|kind| !kind.is_special())?;
        let merges = merges(vocab, &ids)?;
        let ids: tokenizers::models::bpe::Vocab = ids.into_iter().map(|(t, id)| (t.to_owned(), id)).collect();
        // The library would cache ten thousand words of up to 255 bytes in each thread, even after this is dropped: up to 8 KB each.
        let model = BPE::builder()
            .vocab_and_merges(ids, merges)
            .byte_fallback(pre.alphabet == Alphabet::Text)
            .ignore_merges(pre.ignore_merges)
            .cache_capacity(0)
            .build()
            .map_err(|e| wrong("merges", e))?;
        Ok(Self { model, splitter: Splitter::new(pre.patterns)?, pre })
    }

    /// Appends the ids of `text`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        let spaced;
        let text = match self.pre.alphabet {
            Alphabet::Bytes => text,
            Alphabet::Text => {
                spaced = text.replace(' ', "▁");
                &spaced
            }
        };
        let mut letters = String::new();
        for word in self.splitter.split(text) {
            let word = match self.pre.alphabet {
                Alphabet::Bytes => {
                    letters.clear();
                    letters.extend(word.bytes().map(alphabet::letter));
                    &letters
                }
                Alphabet::Text => word,
            };
            // Runs of line breaks are tokens that no merge produces.
            if self.pre.alphabet == Alphabet::Text
                && word.starts_with('\n')
                && let Some(id) = self.model.token_to_id(word)
            {
                ids.push(id);
                continue;
            }
            let tokens = self.model.tokenize(word);
            let tokens = tokens.map_err(|e| Error::format(format!("tokenizer: encoding failed: {e}")))?;
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(())
    }
}

/// Returns the merges, except those that produce a control token.
pub(super) fn merges(vocab: &Vocab, ids: &HashMap<&str, u32>) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::with_capacity(vocab.merges.len());
    let special: HashMap<&str, u32> = vocab
        .tokens
        .iter()
        .zip(0..)
        .filter(|(_, id)| vocab.kind(*id as usize).is_special())
        .map(|(t, id)| (&**t, id))
        .collect();
    for (at, merge) in vocab.merges.iter().enumerate() {
        // The first part may start with a space, and has at least one character.
        let first = merge.chars().next().map_or(0, char::len_utf8);
        let Some(space) = merge[first..].find(' ').map(|i| i + first) else {
            return Err(wrong(
                "merges",
                format!("entry {at}, {merge:?}, is not two tokens with a space between"),
            ));
        };
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        let both = format!("{left}{right}");
        let mut known = true;
        for token in [left, right, both.as_str()] {
            known &= ids.contains_key(token);
            if !ids.contains_key(token) && !special.contains_key(token) {
                return Err(wrong(
                    "merges",
                    format!("entry {at}, {merge:?}: {token:?} is not one of the tokens"),
                ));
            }
        }
        if known {
            pairs.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(pairs)
}

impl std::fmt::Debug for Bpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bpe").field("pre", &self.pre.names).finish_non_exhaustive()
    }
}
