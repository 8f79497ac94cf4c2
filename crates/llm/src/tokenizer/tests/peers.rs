//! Compares random texts with the `tokenizers` library, and with Python packages if `NETCL_PYTHON` names an interpreter that has them.

use super::{Random, read, shared};
use crate::tokenizer::pre::{Alphabet, TABLE};
use crate::tokenizer::split::Splitter;
use crate::tokenizer::{Specials, TokenKind, Tokenizer, Vocab};
use netcl_test_data::needs_data;
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Stdio};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior,
};

/// Compares every pattern of the table with an engine that supports look-ahead.
#[test]
fn every_pattern_splits_as_the_library_does() {
    for (seed, row) in TABLE.iter().enumerate() {
        let splitter = Splitter::new(row.patterns).unwrap();
        let isolated = SplitDelimiterBehavior::Isolated;
        let splits: Vec<_> = row
            .patterns
            .iter()
            .map(|p| Split::new(SplitPattern::Regex((*p).into()), isolated, false).unwrap())
            .collect();
        let mut random = Random(seed as u64, 0);
        for _ in 0..400 {
            let text = random.text();
            let mut expected = PreTokenizedString::from(text.as_str());
            splits.iter().for_each(|split| split.pre_tokenize(&mut expected).unwrap());
            let expected: Vec<_> =
                (expected.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter())
                    .map(|(piece, ..)| piece.to_owned())
                    .filter(|piece| !piece.is_empty())
                    .collect();
            assert_eq!(splitter.split(&text), expected, "{:?} {text:?}", row.names);
        }
    }
}

#[needs_data("tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf", "tokenizers/gpt2")]
#[test]
fn byte_level_bpe_is_the_librarys_and_round_trips() {
    let (file, folder) = (shared("tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf"), shared("tokenizers/gpt2"));
    let vocab = read::vocab(&file);
    let (ours, theirs) = (Tokenizer::from_vocab(&vocab).unwrap(), Tokenizer::from_folder(&folder).unwrap());
    let mut random = Random(11, 0);
    let texts: Vec<String> = (0..10_000).map(|_| random.text()).collect();
    for text in &texts {
        for specials in [Specials::Plain, Specials::Parsed] {
            let ids = ours.encode(text, specials).unwrap();
            assert_eq!(ids, theirs.encode(text, specials).unwrap(), "{text:?}");
            assert_eq!(ours.decode_all(&ids).unwrap(), *text);
            assert_eq!(theirs.decode_all(&ids).unwrap(), *text);
        }
    }
    let script = "
import sys, json, tokenizers
folder, texts = json.load(sys.stdin)
t = tokenizers.Tokenizer.from_file(folder + '/tokenizer.json')
t.encode_special_tokens = True
print(json.dumps([t.encode(x, add_special_tokens=False).ids for x in texts]))";
    let Some(expected) = python("tokenizers", script, &json!([folder, texts])) else { return };
    for (text, expected) in texts.iter().zip(expected) {
        assert_eq!(ours.encode(text, Specials::Plain).unwrap(), expected, "{text:?}");
    }
}

#[needs_data("tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf")]
#[test]
fn spm_is_sentencepieces() {
    let file = shared("tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf");
    let vocab = read::vocab(&file);
    let ours = Tokenizer::from_vocab(&vocab).unwrap();
    let mut random = Random(12, 0);
    // SentencePiece treats NUL and invalid bytes differently.
    let texts: Vec<String> = (0..10_000).map(|_| random.text()).filter(|text| !text.contains('\0')).collect();
    let pieces: Vec<Value> = (0..vocab.tokens.len())
        .map(|id| {
            let kind = [1, 2, 3, 4, 5, 6].into_iter().find(|n| TokenKind::from_ggml(*n) == vocab.kind(id));
            json!([vocab.tokens[id], vocab.scores[id], kind])
        })
        .collect();
    // The fields of SentencePiece's ModelProto, written by hand: pieces, BPE with byte fallback, unchanged text except for the leading space.
    let script = "
import sys, json, struct, sentencepiece
pieces, texts = json.load(sys.stdin)
def varint(n):
    out = b''
    while n > 127: out += bytes([n & 127 | 128]); n >>= 7
    return out + bytes([n])
def field(n, b): return varint(n << 3 | 2) + varint(len(b)) + b
def number(n, v): return varint(n << 3) + varint(v)
model = b''.join(field(1, field(1, t.encode()) + varint(2 << 3 | 5) + struct.pack('<f', s) + number(3, k)) for t, s, k in pieces)
model += field(2, number(3, 2) + number(35, 1))
model += field(3, field(1, b'identity') + number(3, 1) + number(4, 0) + number(5, 1))
p = sentencepiece.SentencePieceProcessor(model_proto=model)
print(json.dumps([p.encode(t) for t in texts]))";
    let Some(expected) = python("sentencepiece", script, &json!([pieces, texts])) else { return };
    for (text, expected) in texts.iter().zip(expected) {
        let ids = ours.encode(text, Specials::Plain).unwrap();
        assert_eq!(ids, expected, "{text:?}");
        // A vocabulary has one character for both.
        assert_eq!(ours.decode(&ids).unwrap(), text.replace('▁', " "));
    }
}

#[test]
fn wordpiece_is_berts() {
    let words = [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "hello", "world", "un", "##aff", "##able", "##s", "a",
        "##a", "e", "##e", "1", "##1", "日", "本", "'", "s", "!", "?", ".", ",", "(", "-", "$", "don", "t",
        "мир", "##ll", "abs",
    ];
    let kind = |w: &str| if w.starts_with('[') { TokenKind::Control } else { TokenKind::Normal };
    let text = |w: &str| match (kind(w), w.strip_prefix("##")) {
        (TokenKind::Control, _) => w.to_owned(),
        (_, Some(rest)) => rest.to_owned(),
        (_, None) => format!("▁{w}"),
    };
    let vocab = Vocab {
        model: "bert".into(),
        tokens: words.iter().map(|w| text(w)).collect(),
        kinds: words.iter().map(|w| kind(w)).collect(),
        unknown: Some(1),
        bos: Some(2),
        separator: Some(3),
        padding: Some(0),
        ..Vocab::default()
    };
    let ours = Tokenizer::from_vocab(&vocab).unwrap();
    let ids = ours.encode_prompt("Hello, unaffable  WORLDs 日本! [CLS]", Specials::Plain).unwrap();
    assert_eq!(ids, [2, 5, 24, 7, 8, 9, 6, 10, 17, 18, 21, 1, 1, 1, 3]);
    assert_eq!(ours.decode(&ids[1..8]).unwrap(), "hello , unaffable worlds");
    let mut random = Random(13, 0);
    let texts: Vec<String> = (0..2000).map(|_| random.text()).collect();
    let script = "
import sys, json, tokenizers
from tokenizers import normalizers, pre_tokenizers, models
words, texts = json.load(sys.stdin)
t = tokenizers.Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token='[UNK]'))
t.normalizer = normalizers.BertNormalizer(lowercase=True)
t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
print(json.dumps([t.encode(x).ids for x in texts]))";
    let Some(expected) = python("tokenizers", script, &json!([words.as_slice(), texts])) else { return };
    for (text, expected) in texts.iter().zip(expected) {
        assert_eq!(ours.encode(text, Specials::Plain).unwrap(), expected, "{text:?}");
    }
}

/// Compares a split with the most likely pieces, found by brute force.
#[test]
fn unigram_is_the_likeliest_split() {
    let words = [
        "<pad>", "</s>", "<unk>", "▁", "▁the", "he", "t", "h", "e", "▁th", "ee", "the", "eth", "</", "s",
        ">", "<",
    ];
    let scores: Vec<f32> = (0..words.len()).map(|i| -1.0 - ((i * 7) % 11) as f32 / 3.0).collect();
    let kind = |i: usize| {
        [TokenKind::Control, TokenKind::Control, TokenKind::Unknown].get(i).copied().unwrap_or_default()
    };
    let vocab = Vocab {
        model: "t5".into(),
        tokens: words.iter().map(|w| (*w).to_owned()).collect(),
        scores: scores.clone(),
        kinds: (0..words.len()).map(kind).collect(),
        ..Vocab::default()
    };
    let ours = Tokenizer::from_vocab(&vocab).unwrap();
    fn best(rest: &str, words: &[&str], scores: &[f32]) -> f64 {
        if rest.is_empty() {
            return 0.0;
        }
        let with = |i: usize| Some(f64::from(scores[i]) + best(rest.strip_prefix(words[i])?, words, scores));
        (3..words.len()).filter_map(with).fold(f64::NEG_INFINITY, f64::max)
    }
    let mut random = Random(14, 0);
    for _ in 0..500 {
        let text: String =
            (0..1 + random.below(9)).map(|_| ["t", "h", "e", " ", "</s>"][random.below(5)]).collect();
        let ids = ours.encode(&text, Specials::Plain).unwrap();
        assert!(ids.iter().all(|id| *id > 2), "{text:?} {ids:?}");
        let sum: f64 = ids.iter().map(|id| f64::from(scores[*id as usize])).sum();
        // One space is added before a text without one, and a piece contains at most one, at its start.
        let own = text.strip_prefix(' ').unwrap_or(&text);
        let words = own.split(' ').map(|w| best(&format!("▁{w}"), &words, &scores));
        let expected: f64 = words.sum();
        assert!((sum - expected).abs() < 1e-4, "{text:?} {ids:?} {sum} {expected}");
        assert_eq!(ours.decode(&ids).unwrap(), own);
    }
    assert_eq!(ours.encode_prompt("the</s>", Specials::Parsed).unwrap().last(), Some(&1));
}

/// Returns the lists that a script prints as JSON; `None`, with a message, if Python or the package is missing.
fn python(package: &str, script: &str, input: &Value) -> Option<Vec<Vec<u32>>> {
    let python = std::env::var("NETCL_PYTHON").unwrap_or_else(|_| "python3".into());
    let has = Command::new(&python).args(["-c", &format!("import {package}")]).stderr(Stdio::null()).status();
    if !has.is_ok_and(|status| status.success()) {
        println!("skipped: {python} lacks {package}; set NETCL_PYTHON to a Python that has it");
        return None;
    }
    let mut child = Command::new(&python)
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.to_string().as_bytes()).unwrap();
    drop(stdin);
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    Some(serde_json::from_slice(&out.stdout).unwrap())
}

/// BPE over text encodes characters without a token as bytes, which are separate tokens.
#[test]
fn bpe_over_text_falls_back_to_bytes() {
    assert!(TABLE.iter().any(|row| row.alphabet == Alphabet::Text && row.names.contains(&"gemma4")));
    let mut tokens: Vec<String> = (0..256).map(|b| format!("<0x{b:02X}>")).collect();
    let mut kinds = vec![TokenKind::Byte; 256];
    let words = ["<bos>", "▁", "a", "b", "▁a", "▁ab", "\n\n", "\n", "ab"];
    tokens.extend(words.iter().map(|w| (*w).to_owned()));
    kinds.resize(tokens.len(), TokenKind::Normal);
    kinds[256] = TokenKind::Control;
    let merges = ["▁ a", "▁a b", "a b"].map(str::to_owned).to_vec();
    let vocab = Vocab { model: "gemma4".into(), tokens, kinds, merges, bos: Some(256), ..Vocab::default() };
    let ours = Tokenizer::from_vocab(&vocab).unwrap();
    let ids = ours.encode_prompt("ab ab  é\n\n\na", Specials::Plain).unwrap();
    assert_eq!(ids, [256, 264, 261, 257, 257, 0xC3, 0xA9, 263, 263, 263, 258]);
    assert_eq!(ours.encode("\n\n", Specials::Plain).unwrap(), [262]);
    assert_eq!(ours.decode(&ids).unwrap(), "ab ab  é\n\n\na");
}
