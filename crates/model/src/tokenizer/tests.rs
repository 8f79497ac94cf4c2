use super::*;
use netcl_test_data::{needs_data, test_data};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// Returns the path of test data.
fn shared(path: &str) -> PathBuf {
    test_data!().join(path)
}

fn library(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.inner.encode(text, false).unwrap().get_ids().to_vec()
}

const TEXT: &str = "First Citizen:\r\nBefore  we\n\n\tproceed — ünï \u{3000}\u{1F600}<\"\\";

#[test]
fn chars_equal_the_library_and_survive_a_file() {
    let made = Tokenizer::char_from_text([TEXT, "zz"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    made.save(dir.path()).unwrap();
    let read = Tokenizer::from_dir(dir.path()).unwrap();
    for tokenizer in [&made, &read] {
        assert!(tokenizer.chars.is_some());
        let ids = tokenizer.encode(TEXT).unwrap();
        assert_eq!(ids.len(), TEXT.chars().count());
        assert_eq!(ids, library(tokenizer, TEXT));
        assert_eq!(tokenizer.decode(&ids).unwrap(), TEXT);
        assert_eq!(tokenizer.inner.decode(&ids, false).unwrap(), TEXT);
        assert_eq!(tokenizer.eos(), None);
    }
    assert_eq!(made.encode("\t\n\r").unwrap(), [0, 1, 2]);
    assert_eq!(made.files().unwrap(), read.files().unwrap());
}

/// The file is replaced atomically (it used to be truncated and rewritten, so that readers could see invalid JSON).
#[test]
fn a_tokenizer_that_is_saved_is_whole_at_any_time() {
    let made = [Tokenizer::char_from_text(["ab"]).unwrap(), Tokenizer::char_from_text([TEXT]).unwrap()];
    let dir = tempfile::tempdir().unwrap();
    made[0].save(dir.path()).unwrap();
    let saved = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..60 {
                made[turn % 2].save(dir.path()).unwrap();
            }
            saved.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !saved.load(std::sync::atomic::Ordering::Relaxed) {
            let read = Tokenizer::from_dir(dir.path()).unwrap();
            assert!(made.iter().any(|t| t.vocab_size() == read.vocab_size()));
        }
    });
    // A failed save changes nothing and leaves nothing.
    let names = || {
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    fs::remove_file(dir.path().join(FILE)).unwrap();
    fs::create_dir(dir.path().join(FILE)).unwrap();
    let (before, message) = (names(), made[1].save(dir.path()).unwrap_err().to_string());
    assert!(message.contains(FILE), "{message}");
    assert_eq!(names(), before);
}

#[test]
fn unknown_characters_and_tokens_are_named() {
    let tokenizer = Tokenizer::char_from_text(["ab\n"]).unwrap();
    let message = tokenizer.encode("ab\nbéa").unwrap_err().to_string();
    assert!(message.contains("character 'é' (U+00E9) at position 4 (line 2, column 2)"), "{message}");
    assert!(message.contains("one of the 3"), "{message}");
    let message = tokenizer.decode(&[0, 3]).unwrap_err().to_string();
    assert!(message.contains("token 3 is unknown; the tokenizer has 3 tokens (0 to 2)"), "{message}");
    assert!(Tokenizer::char_from_text([""]).unwrap_err().message().contains("the text is empty"));
}

#[test]
fn broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    assert!(Tokenizer::from_dir(dir.path()).unwrap_err().message().contains(FILE));
    for bad in ["", "{", "{}", "[1]", r#"{"model":{"type":"WordLevel","vocab":{},"unk_token":"x"}}"#] {
        fs::write(&path, bad).unwrap();
        let message = Tokenizer::from_file(&path).unwrap_err().to_string();
        assert!(message.starts_with(&path.display().to_string()), "{message}");
    }
}

#[needs_data("tokenizers/gpt2", "tokenizers/cases/gpt2.json")]
#[test]
fn gpt2_cases() {
    let dir = shared("tokenizers/gpt2");
    let cases = shared("tokenizers/cases/gpt2.json");
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.eos()), (50_257, Some(50_256)));
    let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(cases).unwrap()).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode_ordinary(text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        assert_eq!(streamed(&tokenizer, &ids), text);
    }
    assert_eq!(tokenizer.encode("a<|endoftext|>").unwrap(), [64, 50_256]);
}

#[needs_data("tokenizers/gpt2", "corpora/tinyshakespeare.txt")]
#[test]
fn long_text_in_chunks_equals_the_whole() {
    let dir = shared("tokenizers/gpt2");
    let corpus = shared("corpora/tinyshakespeare.txt");
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    let text = fs::read_to_string(corpus).unwrap();
    let ids = tokenizer.encode(&text).unwrap();
    // tiktoken's count for this file.
    assert!(matches!(tokenizer.cuts, Cuts::Words));
    assert_eq!(ids.len(), 338_025);
    let part = &text[..200_000];
    assert_eq!(tokenizer.encode(part).unwrap(), library(&tokenizer, part));
}

/// Encodes prose with a trained SentencePiece tokenizer of 512 tokens, in pieces and whole. The text has line breaks, dashes and French.
#[needs_data("models/stories260K/hf", "corpora/war_and_peace.txt")]
#[test]
fn long_text_for_a_llama_in_pieces_equals_the_whole() {
    let dir = shared("models/stories260K/hf");
    let corpus = shared("corpora/war_and_peace.txt");
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    let text = fs::read_to_string(corpus).unwrap();
    let part = text.get(..1_000_000).unwrap_or(&text);
    assert!(matches!(tokenizer.cuts, Cuts::Spaces(_)) && tokenizer.cuts.pieces(part).count() > 10);
    assert!(tokenizer.encode(part).unwrap() == library(&tokenizer, part));
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for &id in ids {
        text += &stream.push(id).unwrap();
    }
    text + &stream.finish().unwrap()
}

#[test]
fn training_is_repeatable_and_covers_every_text() {
    let corpus = "the cat sat on the mat\n\nthe end of the text\n".repeat(50);
    let first = Tokenizer::train_bpe([&*corpus, "more of the same"], 300).unwrap();
    let again = Tokenizer::train_bpe([&*corpus, "more of the same"], 300).unwrap();
    assert_eq!(first.files().unwrap(), again.files().unwrap());
    assert!(first.eos() == Some(0) && matches!(first.cuts, Cuts::Words));
    assert!((258..=300).contains(&first.vocab_size()), "{}", first.vocab_size());
    for text in [TEXT, "the cat", " the\n\n", "日本語 <|endoftext|>"] {
        let ids = first.encode(text).unwrap();
        assert_eq!(first.decode(&ids).unwrap(), text);
        assert_eq!(streamed(&first, &ids), text);
    }
    assert!(first.encode(&corpus).unwrap().len() < corpus.len() / 2);
    assert!(Tokenizer::train_bpe(["x"], 256).unwrap_err().message().contains("256 is too small"));
    assert!(Tokenizer::train_bpe([""], 300).is_err());
    // No memory is allocated for impossible tokens.
    let whole = Tokenizer::train_bpe(["plain plain"], usize::MAX).unwrap().vocab_size();
    assert_eq!(whole, Tokenizer::train_bpe(["plain plain"], 1000).unwrap().vocab_size());
}

#[test]
fn the_stream_never_shows_half_a_character() {
    let tokenizer = Tokenizer::train_bpe(["plain"], 257).unwrap();
    let text = "a😀é\u{fffd}b";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(ids.len(), text.len());
    let mut stream = tokenizer.stream();
    let pieces: Vec<_> =
        ids.iter().map(|&id| stream.push(id).unwrap()).filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces, ["a", "😀", "é", "\u{fffd}b"]);
    assert_eq!(stream.finish().unwrap(), "");
    // Cut inside a character: nothing is returned until the end.
    let mut cut = tokenizer.stream();
    assert!(ids[1..4].iter().all(|&id| cut.push(id).unwrap().is_empty()));
    assert_eq!(cut.finish().unwrap(), "\u{fffd}");
    let mut bad = tokenizer.stream();
    assert!(bad.push(99_999).is_err());
    assert_eq!(bad.push(ids[0]).unwrap(), "a");
}
