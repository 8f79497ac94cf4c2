//! WordPiece and unigram vocabularies, through the `tokenizers` library.

use super::vocab::{TokenKind, Vocab, wrong};
use netcl_model::tokenizer::by_library;
use netcl_tensor::{Error, Result};
use std::collections::HashMap;
use tokenizers::models::{unigram::Unigram, wordpiece::WordPiece};
use tokenizers::normalizers::{BertNormalizer, Precompiled};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{PreTokenizerWrapper, Tokenizer};

/// WordPiece (Wu et al., "Google's neural machine translation system", 2016) in BERT's form. In GGUF files `▁` marks the piece that starts a word;
/// BERT's own files mark the others with `##`.
pub(super) fn wordpiece(vocab: &Vocab) -> Result<Tokenizer> {
    let unknown =
        vocab.unknown.ok_or_else(|| wrong("unknown_token_id", "absent; a bert vocabulary needs it"))?;
    let mut ids = HashMap::with_capacity(vocab.tokens.len());
    for (token, id) in vocab.by_text(|kind| !kind.is_special())? {
        let written = match token.strip_prefix('▁') {
            Some(begins) => begins.to_owned(),
            None => format!("##{token}"),
        };
        ids.insert(written, id);
    }
    // The normalizer's output never contains a space.
    let name = format!("unknown {unknown}");
    ids.insert(name.clone(), unknown);
    let ids: tokenizers::models::bpe::Vocab = ids.into_iter().collect();
    let model = WordPiece::builder().vocab(ids).unk_token(name);
    let model = model.build().map_err(|e| wrong("tokens", e))?;
    let lowercase = vocab.lowercase.unwrap_or(true);
    let accents = vocab.strip_accents.unwrap_or(lowercase);
    let mut tokenizer = Tokenizer::new(model);
    tokenizer
        .with_normalizer(Some(BertNormalizer::new(true, true, Some(accents), lowercase)))
        .map_err(|e| failed(&e))?
        .with_pre_tokenizer(Some(BertPreTokenizer));
    Ok(tokenizer)
}

/// Unigram language model (Kudo, "Subword regularization", ACL 2018) in T5's form.
pub(super) fn unigram(vocab: &Vocab) -> Result<Tokenizer> {
    if vocab.scores.is_empty() {
        return Err(wrong("scores", "absent; a t5 vocabulary needs them"));
    }
    let unknown =
        vocab.unknown.ok_or_else(|| wrong("unknown_token_id", "absent; a t5 vocabulary needs it"))?;
    vocab.by_text(|_| true)?;
    let tokens = vocab.tokens.iter().enumerate().map(|(id, token)| {
        let text = matches!(vocab.kind(id), TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
        // Spaces are already `▁`, so a name with a space never occurs in a text.
        let name = if text && !token.is_empty() { token.clone() } else { format!("token {id}") };
        let score = if vocab.kind(id) == TokenKind::UserDefined { 0.0 } else { vocab.scores[id] };
        (name, f64::from(score))
    });
    let mut model =
        Unigram::from(tokens.collect(), Some(unknown as usize), false).map_err(|e| wrong("tokens", e))?;
    model.resize_cache(0);
    let mut tokenizer = Tokenizer::new(model);
    if !vocab.precompiled_charsmap.is_empty() {
        let map =
            Precompiled::from(&vocab.precompiled_charsmap).map_err(|e| wrong("precompiled_charsmap", e))?;
        tokenizer.with_normalizer(Some(map)).map_err(|e| failed(&e))?;
    }
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    let scheme = if prefix { PrependScheme::Always } else { PrependScheme::Never };
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    if vocab.remove_extra_whitespaces.unwrap_or(false) {
        steps.push(WhitespaceSplit.into());
    }
    steps.push(Metaspace::new('▁', scheme, true).into());
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    Ok(tokenizer)
}

/// Appends the ids of `text`.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str, ids: &mut Vec<u32>) -> Result<()> {
    let encoding = by_library(|| tokenizer.encode_fast(text, false))?;
    ids.extend(encoding.map_err(|e| failed(&e))?.get_ids());
    Ok(())
}

fn failed(error: &tokenizers::Error) -> Error {
    Error::format(format!("tokenizer: {error}"))
}
