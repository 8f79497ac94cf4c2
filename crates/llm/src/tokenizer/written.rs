//! A `tokenizer.json` with the ids of a GGUF vocabulary, for programs that read no other file.
//!
//! Byte-level BPE becomes the patterns of its splitting rule and its merges. A SentencePiece vocabulary has scores instead of merges: every division
//! of a piece into two pieces becomes a merge, in the order of the scores.

use super::bpe;
use super::pre::{self, Alphabet};
use super::vocab::{TokenKind, Vocab};
use super::{PromptAffixes, defaults, ends, names_take_space};
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Replacement of a space in SentencePiece's pieces.
const SPACE: &str = "▁";

/// Returns the content of a `tokenizer.json` with the ids of a vocabulary.
///
/// # Errors
/// `Format` with the missing or invalid field; `Unsupported` for a kind other than byte pairs and SentencePiece, and for two tokens of one text.
pub(crate) fn tokenizer_json(vocab: &Vocab) -> Result<Value> {
    let mut vocab = vocab.clone();
    defaults(&mut vocab);
    vocab.validate()?;
    let (alphabet, parts) = match vocab.model.as_str() {
        "llama" => (Alphabet::Text, sentence(&vocab)?),
        "gpt2" | "gemma4" => byte_pairs(&vocab)?,
        other => {
            return Err(Error::unsupported(format!(
                "tokenizer.ggml.model is {other:?}; gpt2, llama and gemma4 can be written as tokenizer.json"
            )));
        }
    };
    let pre = (vocab.model != "llama").then_some(vocab.pre.as_deref()).flatten();
    let affixes = ends(&vocab, pre)?;
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(&vocab, alphabet),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(&vocab, &affixes),
        "decoder": parts.decoder,
        "model": parts.model,
    }))
}

/// The parts of a `tokenizer.json` that depend on the kind of vocabulary.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
}

/// Returns ids by text for all tokens; one without text gets a name that no text has.
fn ids(vocab: &Vocab) -> Result<Map<String, Value>> {
    let mut ids = Map::new();
    for (id, token) in vocab.tokens.iter().enumerate() {
        let name = if token.is_empty() { format!("unused token {id}") } else { token.clone() };
        if let Some(first) = ids.insert(name, id.into()) {
            return Err(Error::unsupported(format!(
                "tokens {first} and {id} are both {token:?}, which a tokenizer.json cannot contain"
            )));
        }
    }
    Ok(ids)
}

fn model(vocab: &Vocab, merges: Vec<(String, String)>, ignore_merges: bool, fallback: bool) -> Result<Value> {
    let unknown = vocab.unknown.filter(|_| fallback).and_then(|id| vocab.tokens.get(id as usize));
    let merges: Vec<Value> = merges.into_iter().map(|(left, right)| json!([left, right])).collect();
    Ok(json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": fallback, "ignore_merges": ignore_merges, "vocab": ids(vocab)?, "merges": merges,
    }))
}

/// Returns the parts for BPE with a list of merges.
fn byte_pairs(vocab: &Vocab) -> Result<(Alphabet, Parts)> {
    let rule = pre::find(if vocab.model == "gemma4" { Some("gemma4") } else { vocab.pre.as_deref() })?;
    let known = vocab.by_text(|kind| !kind.is_special())?;
    let merges = bpe::merges(vocab, &known)?;
    let split = |pattern: &&str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let mut steps: Vec<Value> = rule.patterns.iter().map(split).collect();
    let by_bytes = rule.alphabet == Alphabet::Bytes;
    if by_bytes {
        steps.push(json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false }));
    }
    let parts = Parts {
        normalizer: if by_bytes { Value::Null } else { spaces() },
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": steps }),
        decoder: match by_bytes {
            true => {
                json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true })
            }
            false => decoder(false),
        },
        model: model(vocab, merges, rule.ignore_merges, !by_bytes)?,
    };
    Ok((rule.alphabet, parts))
}

/// Returns the parts for SentencePiece.
fn sentence(vocab: &Vocab) -> Result<Parts> {
    let prefix = vocab.add_space_prefix.unwrap_or(true);
    let normalizer = match prefix {
        true => {
            json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": SPACE }, spaces()] })
        }
        false => spaces(),
    };
    let model = model(vocab, merges_by_score(vocab)?, false, true)?;
    Ok(Parts { normalizer, pre_tokenizer: Value::Null, decoder: decoder(prefix), model })
}

fn spaces() -> Value {
    json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE })
}

fn decoder(strip: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if strip {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Returns all divisions of pieces into two, those of the best score first.
fn merges_by_score(vocab: &Vocab) -> Result<Vec<(String, String)>> {
    if vocab.scores.is_empty() {
        return Err(super::vocab::wrong("scores", "absent; a llama vocabulary needs them"));
    }
    let text = |kind| matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
    let known: HashMap<&str, u32> = vocab.by_text(text)?;
    let mut order: Vec<(&str, u32)> = known.iter().map(|(token, id)| (*token, *id)).collect();
    order.sort_unstable_by_key(|(_, id)| *id);
    order.sort_by(|(_, a), (_, b)| vocab.scores[*b as usize].total_cmp(&vocab.scores[*a as usize]));
    let mut merges = Vec::new();
    for (token, _) in order {
        let mut divisions: Vec<(u32, u32, &str, &str)> = Vec::new();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(a), Some(b)) = (known.get(left), known.get(right)) {
                divisions.push((*a, *b, left, right));
            }
        }
        divisions.sort_unstable();
        merges.extend(divisions.into_iter().map(|(_, _, left, right)| (left.to_owned(), right.to_owned())));
    }
    Ok(merges)
}

/// Returns the tokens that are found by name before a text is split.
fn added(vocab: &Vocab, alphabet: Alphabet) -> Vec<Value> {
    let line_breaks = |token: &str| {
        alphabet == Alphabet::Text
            && vocab.model != "llama"
            && token.len() > 1
            && token.bytes().all(|b| b == b'\n')
    };
    let tokens = vocab.tokens.iter().enumerate().filter(|(_, token)| !token.is_empty());
    let named = tokens.filter(|(id, token)| {
        let kind = vocab.kind(*id);
        kind.is_special() || kind == TokenKind::UserDefined || line_breaks(token)
    });
    let json = |(id, token): (usize, &String)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": names_take_space(vocab, token), "normalized": false,
            "special": vocab.kind(id).is_special(),
        })
    };
    named.map(json).collect()
}

/// Returns the post-processor that adds tokens before and after a text.
fn post_processor(vocab: &Vocab, affixes: &PromptAffixes) -> Value {
    let all: Vec<u32> = affixes.before.iter().chain(&affixes.after).copied().collect();
    if all.is_empty() {
        return Value::Null;
    }
    let name = |id: u32| vocab.tokens.get(id as usize).cloned().unwrap_or_default();
    let special = |id: &u32| json!({ "SpecialToken": { "id": name(*id), "type_id": 0 } });
    let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    let around = |text: Value| -> Vec<Value> {
        let before = affixes.before.iter().map(special);
        before.chain([text]).chain(affixes.after.iter().map(special)).collect()
    };
    let pair: Vec<Value> = around(text("A", 0)).into_iter().chain(around(text("B", 1))).collect();
    let tokens: Map<String, Value> = all
        .iter()
        .map(|id| (name(*id), json!({ "id": name(*id), "ids": [id], "tokens": [name(*id)] })))
        .collect();
    json!({ "type": "TemplateProcessing", "single": around(text("A", 0)), "pair": pair, "special_tokens": tokens })
}
