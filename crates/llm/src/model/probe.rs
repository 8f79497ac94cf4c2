//! Checks that ggml's tokenizer keys are equivalent to `tokenizer.json`: both must encode the same texts.

use crate::gguf::{Gguf, Meta};
use crate::tokenizer::{HUGGING_FACE, Specials, TokenKind, Tokenizer, Vocab, tokenizer_json};
use netcl_device::draw::Draw;
use netcl_model::tokenizer as files;
use netcl_tensor::{Error, Result};
use serde_json::Value;

/// Texts in which tokenizers differ: white space, combined characters, digits, scripts, code.
const TEXTS: [&str; 22] = [
    "Hello world",
    " Hello  world ",
    "  two\n\n lines\t\tand tabs\r\n",
    "e\u{301}a\u{308} \u{e9}\u{e4} \u{fb01} \u{2460} \u{ff21}\u{ff22}",
    "STRASSE Stra\u{df}e \u{130}stanbul",
    "don't we'll I'VE it's",
    "1234567 3.14 12,345 2024-01-02",
    "\u{65e5}\u{672c}\u{8a9e} \u{4e2d}\u{6587} \u{d55c}\u{ae00}",
    "\u{41f}\u{440}\u{438}\u{432}\u{435}\u{442} \u{43c}\u{438}\u{440}",
    "\u{1f980} \u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f1e9}\u{1f1ea}",
    "fn main() {\n    let x = vec![1, 2];\n}\n",
    "a\u{a0}b\u{3000}c\u{200b}d",
    "...!!! ??? --- ___ ~~~",
    "\n",
    " ",
    "   ",
    "x",
    "\u{915}\u{94d}\u{937} \u{e01}\u{e33}",
    "\u{645}\u{631}\u{62d}\u{628}\u{627}",
    "A-b_c/d\\e:f;g",
    "\u{2581}under\u{2581}line",
    "<tag attr=\"1\">text</tag>",
];
/// Number of added tokens to test.
const ADDED: usize = 48;
/// Number of texts of random tokens, and tokens of each.
const DRAWN: [usize; 2] = [96, 10];

/// Returns texts with the name of an added token in different contexts.
fn around(name: &str) -> [String; 6] {
    [
        format!("{name}a"),
        format!("a {name} b"),
        format!("a  {name}  b"),
        format!("ab{name}cd {name}"),
        format!("{name}{name}\n{name}"),
        format!(" {name}\n\n"),
    ]
}

fn probes(json: &Value) -> Vec<String> {
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let mut names: Vec<&str> = added.filter_map(|token| token["content"].as_str()).collect();
    // The first and the last ones: vocabularies have long runs of reserved names.
    if names.len() > ADDED {
        names.drain(ADDED / 2..names.len() - ADDED / 2);
    }
    TEXTS.iter().map(|text| (*text).to_owned()).chain(names.into_iter().flat_map(around)).collect()
}

/// Returns the fields of a vocabulary in the form that a reader of the file finds.
fn vocab_of(keys: &[(String, Meta)], name: &str) -> Vocab {
    let mut vocab = Vocab { name: Some(name.to_owned()), ..Vocab::default() };
    for (key, value) in keys {
        match (key.strip_prefix("tokenizer.ggml.").unwrap_or_default(), value) {
            ("model", Meta::Str(text)) => vocab.model.clone_from(text),
            ("pre", Meta::Str(text)) => vocab.pre = Some(text.clone()),
            ("tokens", Meta::Strs(all)) => vocab.tokens.clone_from(all),
            ("merges", Meta::Strs(all)) => vocab.merges.clone_from(all),
            ("scores", Meta::F32s(all)) => vocab.scores.clone_from(all),
            ("token_type", Meta::I32s(all)) => {
                vocab.kinds = all.iter().map(|kind| TokenKind::from_ggml(*kind)).collect();
            }
            ("bos_token_id", Meta::U32(id)) => vocab.bos = Some(*id),
            ("eos_token_id", Meta::U32(id)) => vocab.eos = Some(*id),
            ("unknown_token_id", Meta::U32(id)) => vocab.unknown = Some(*id),
            ("padding_token_id", Meta::U32(id)) => vocab.padding = Some(*id),
            ("add_bos_token", Meta::Bool(on)) => vocab.add_bos = Some(*on),
            ("add_eos_token", Meta::Bool(on)) => vocab.add_eos = Some(*on),
            ("add_space_prefix", Meta::Bool(on)) => vocab.add_space_prefix = Some(*on),
            _ => {}
        }
    }
    vocab
}

/// Describes the loss of ggml's keys relative to a tokenizer; `None` if all probes have the same ids. `name` is the `general.name` of the file.
///
/// # Errors
/// `Format` if one of the tokenizers cannot be created.
pub(super) fn lost(text: &str, json: &Value, keys: &[(String, Meta)], name: &str) -> Result<Option<String>> {
    let whole = files::Tokenizer::from_json(text, None).and_then(Tokenizer::from_file)?;
    let by_keys = Tokenizer::from_vocab(&vocab_of(keys, name))?;
    Ok(differences(&whole, &by_keys, &probes(json)))
}

/// Returns the `tokenizer.json` of a GGUF file: the one in it, or one with the same ids as ggml's keys.
///
/// # Errors
/// `Unsupported` if the file cannot describe the vocabulary, or encodes a probe differently; `Format` with the key.
pub fn tokenizer_file(file: &Gguf) -> Result<String> {
    if let Some(text) = file.text(HUGGING_FACE)? {
        return Ok(text.to_owned());
    }
    let place = |e: Error| e.context(file.path().display());
    let vocab = Vocab::from_gguf(file)?;
    let by_keys = Tokenizer::from_vocab(&vocab).map_err(place)?;
    let json = tokenizer_json(&vocab).map_err(place)?;
    let text = json.to_string();
    let whole = files::Tokenizer::from_json(&text, None).and_then(Tokenizer::from_file).map_err(place)?;
    let mut all = probes(&json);
    all.extend(drawn(&by_keys));
    match differences(&whole, &by_keys, &all) {
        None => Ok(text),
        Some(found) => Err(place(Error::unsupported(format!(
            "its vocabulary cannot be written as tokenizer.json: {found}"
        )))),
    }
}

/// Describes the first texts that two tokenizers encode differently; `None` if all probes have the same ids.
pub(super) fn differing(one: &Tokenizer, other: &Tokenizer) -> Option<String> {
    let mut all: Vec<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    all.extend(drawn(other));
    differences(one, other, &all)
}

/// Returns texts of tokens in a fixed pseudo-random order.
fn drawn(tokenizer: &Tokenizer) -> Vec<String> {
    let (count, mut draw) = (tokenizer.vocab_size(), Draw::new(0));
    let mut text = || {
        let ids: Vec<u32> = (0..DRAWN[1]).map(|_| draw.below(count) as u32).collect();
        tokenizer.decode(&ids).unwrap_or_default()
    };
    (0..DRAWN[0]).map(|_| text()).collect()
}

/// Describes the probes that two tokenizers encode differently, as prompts and as user text; `None` if the ids are the same.
fn differences(whole: &Tokenizer, by_keys: &Tokenizer, all: &[String]) -> Option<String> {
    let (mut differ, mut first) = (0, None);
    for probe in all {
        let ids = |tokenizer: &Tokenizer| {
            let prompt = tokenizer.encode_prompt(probe, Specials::Parsed).ok();
            Some((prompt?, tokenizer.encode(probe, Specials::Plain).ok()?))
        };
        let (theirs, ours) = (ids(by_keys), ids(whole));
        if theirs != ours {
            differ += 1;
            first.get_or_insert((probe, ours.unwrap_or_default(), theirs.unwrap_or_default()));
        }
    }
    first.map(|(probe, ours, theirs)| {
        let short = |(prompt, plain): &(Vec<u32>, Vec<u32>)| {
            let ids = if ours.0 == theirs.0 { plain } else { prompt };
            let some: Vec<_> = ids.iter().take(8).map(u32::to_string).collect();
            format!("[{}{}]", some.join(", "), if ids.len() > 8 { ", …" } else { "" })
        };
        format!(
            "{differ} of {} probe texts, such as {probe:?}: {} by tokenizer.json, {} by ggml's keys",
            all.len(),
            short(&ours),
            short(&theirs)
        )
    })
}
