//! Special tokens, streams, long texts and invalid files.

use super::{read, shared};
use crate::tokenizer::{Specials, TokenKind, Tokenizer, Vocab};
use netcl_test_data::needs_data;
use std::time::{Duration, Instant};

fn bytes_vocab() -> Vocab {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    let mut kinds = vec![TokenKind::Unknown, TokenKind::Control, TokenKind::Control];
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    kinds.resize(259, TokenKind::Byte);
    for text in ["▁", "a", "b", "ab", "▁ab", "<", "s", ">", "<s", "s>", "<|im_end|>", "<tool>"] {
        tokens.push(text.into());
        kinds.push(match text {
            "<|im_end|>" => TokenKind::Control,
            "<tool>" => TokenKind::UserDefined,
            _ => TokenKind::Normal,
        });
    }
    let scores = (0..tokens.len()).map(|i| if i < 3 { 0.0 } else { -(i as f32) }).collect();
    Vocab { model: "llama".into(), tokens, kinds, scores, ..Vocab::default() }
}

#[test]
fn names_in_a_users_text_are_text() {
    let tokenizer = Tokenizer::from_vocab(&bytes_vocab()).unwrap();
    let ids = tokenizer.encode("<s>ab<|im_end|>", Specials::Plain).unwrap();
    assert!(ids.iter().all(|id| !tokenizer.kind(*id).is_special()), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids).unwrap(), "<s>ab<|im_end|>");
    let end = tokenizer.id("<|im_end|>").unwrap();
    let (space_ab, user) = (tokenizer.id("▁ab").unwrap(), tokenizer.id("<tool>").unwrap());
    // A space is also added to text after a token.
    assert_eq!(tokenizer.encode("<s>ab<|im_end|>", Specials::Parsed).unwrap(), [1, space_ab, end]);
    // Text that the vocabulary defines as a unit is never split.
    for specials in [Specials::Plain, Specials::Parsed] {
        assert_eq!(tokenizer.encode("ab<tool>", specials).unwrap(), [space_ab, user]);
    }
    assert_eq!(tokenizer.encode_prompt("ab", Specials::Plain).unwrap(), [1, space_ab]);
    assert_eq!(tokenizer.encode_prompt("<s>ab", Specials::Parsed).unwrap(), [1, space_ab]);
    assert_eq!(tokenizer.encode_prompt("", Specials::Plain).unwrap(), [1]);
    assert_eq!(tokenizer.stops(), [2, end]);
    assert_eq!(tokenizer.decode(&[1, space_ab, end]).unwrap(), "ab");
    assert_eq!(tokenizer.decode_all(&[1, space_ab, end]).unwrap(), "<s>ab<|im_end|>");
}

#[test]
fn ends_follow_the_file() {
    let vocab = Vocab { add_bos: Some(false), add_eos: Some(true), ..bytes_vocab() };
    let tokenizer = Tokenizer::from_vocab(&vocab).unwrap();
    let ab = tokenizer.id("▁ab").unwrap();
    assert_eq!(tokenizer.encode_prompt("ab", Specials::Plain).unwrap(), [ab, 2]);
    let vocab = Vocab { add_space_prefix: Some(false), eot: Some(5), eom: Some(4), ..bytes_vocab() };
    let tokenizer = Tokenizer::from_vocab(&vocab).unwrap();
    assert_eq!(tokenizer.encode("ab", Specials::Plain).unwrap(), [tokenizer.id("ab").unwrap()]);
    assert_eq!(tokenizer.stops(), [2, 4, 5, tokenizer.id("<|im_end|>").unwrap()]);
}

#[test]
fn a_stream_never_cuts_a_character() {
    let tokenizer = Tokenizer::from_vocab(&bytes_vocab()).unwrap();
    let text = " é😀ab";
    let ids = tokenizer.encode(text, Specials::Plain).unwrap();
    let mut stream = tokenizer.stream();
    let pieces: Vec<_> =
        ids.iter().map(|id| stream.push(*id).unwrap()).filter(|piece| !piece.is_empty()).collect();
    // The leading space stays: a stream continues after a prompt.
    assert_eq!(pieces, [" ", " ", "é", "😀", "ab"]);
    assert_eq!(stream.finish(), "");
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    let mut cut = tokenizer.stream();
    assert_eq!(cut.push(3 + 0xF0).unwrap(), "");
    assert_eq!(cut.finish(), "\u{fffd}");
    assert!(cut.push(9999).unwrap_err().message().contains("token 9999 is unknown"));
}

#[needs_data("tokenizers/gpt2")]
#[test]
fn stops_of_a_folder() {
    let source = shared("tokenizers/gpt2/tokenizer.json");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::copy(source, folder.path().join("tokenizer.json")).unwrap();
    let stops = || Tokenizer::from_folder(folder.path()).map(|t| t.stops().to_vec());
    assert_eq!(stops().unwrap(), [50_256]);
    write("config.json", r#"{"eos_token_id": 7, "vocab_size": 50304}"#);
    assert_eq!(stops().unwrap(), [7, 50_256]);
    write("generation_config.json", r#"{"eos_token_id": [9, 8]}"#);
    assert_eq!(stops().unwrap(), [8, 9, 50_256]);
    write("tokenizer_config.json", r#"{"eos_token": {"content": "!"}}"#);
    assert_eq!(stops().unwrap(), [0, 8, 9]);
    write("generation_config.json", r#"{"eos_token_id": 50304}"#);
    assert!(stops().unwrap_err().message().contains("eos_token_id 50304"));
    write("generation_config.json", "{");
    assert!(stops().unwrap_err().message().contains("generation_config.json"));
}

/// A quadratic algorithm would take minutes for a text of one letter. The other texts are shorter, because they differ only in the rule that splits
/// them.
#[needs_data(
    "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf",
    "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf"
)]
#[test]
fn a_million_of_one_letter() {
    let files =
        ["tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf", "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf"];
    for file in files {
        let vocab = read::vocab(&shared(file));
        let names = if vocab.model == "gpt2" {
            vec!["gpt-2", "llama-bpe", "gpt-4o", "deepseek-v3"]
        } else {
            vec![""]
        };
        for name in names {
            let vocab = Vocab { pre: Some(name.into()).filter(|_| !name.is_empty()), ..vocab.clone() };
            let tokenizer = Tokenizer::from_vocab(&vocab).unwrap();
            for unit in ["a", "A", " ", "\n", " \n", "é", "'", "1", "<", "\0"] {
                let text = unit.repeat(if unit == "a" { 1_000_000 } else { 200_000 / unit.len() });
                let start = Instant::now();
                let ids = tokenizer.encode(&text, Specials::Parsed).unwrap();
                assert!(start.elapsed() < Duration::from_secs(60), "{name} {unit:?}: {:?}", start.elapsed());
                assert!(tokenizer.decode(&ids).unwrap() == text, "{name} {unit:?}");
            }
        }
    }
}

#[test]
fn wrong_files_are_errors_that_name_the_field() {
    let whole = bytes_vocab();
    let bpe = Vocab {
        model: "gpt2".into(),
        tokens: ["a", "b", "ab"].map(str::to_owned).to_vec(),
        merges: vec!["a b".into()],
        ..Vocab::default()
    };
    assert!(Tokenizer::from_vocab(&bpe).is_ok());
    let cases = [
        (Vocab { model: "rwkv".into(), ..whole.clone() }, "tokenizer.ggml.model: unknown tokenizer \"rwkv\""),
        (Vocab { tokens: vec![], ..whole.clone() }, "tokens: 0 tokens"),
        (Vocab { scores: vec![0.0; 3], ..whole.clone() }, "scores: 3 entries"),
        (Vocab { scores: vec![f32::NAN; whole.tokens.len()], ..whole.clone() }, "score of token 0 is NaN"),
        (Vocab { scores: vec![], ..whole.clone() }, "scores: absent"),
        (Vocab { kinds: vec![], unknown: None, ..bpe.clone() }, ""),
        (Vocab { bos: Some(10_000), ..whole.clone() }, "bos_token_id: 10000 is outside"),
        (
            Vocab { pre: Some("nobody".into()), ..bpe.clone() },
            "pre: \"nobody\" is not known; known are a.x-4.0",
        ),
        (Vocab { merges: vec![], ..bpe.clone() }, "merges: absent"),
        (Vocab { merges: vec!["ab".into()], ..bpe.clone() }, "entry 0, \"ab\", is not two tokens"),
        (Vocab { merges: vec!["b a".into()], ..bpe.clone() }, "\"ba\" is not one of the tokens"),
        (Vocab { add_bos: Some(true), ..bpe.clone() }, "add_bos_token: is set"),
        (
            Vocab { tokens: ["a", "a", "ab"].map(str::to_owned).to_vec(), ..bpe.clone() },
            "tokens 0 and 1 are both \"a\"",
        ),
    ];
    for (vocab, words) in cases {
        match Tokenizer::from_vocab(&vocab) {
            Err(error) => assert!(error.message().contains(words) && !words.is_empty(), "{words}: {error}"),
            Ok(_) => assert!(words.is_empty(), "no error: {words}"),
        }
    }
}
