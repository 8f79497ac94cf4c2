//! Texts with the ids from other programs.

use super::{read, shared};
use crate::tokenizer::{Specials, Tokenizer};
use netcl_test_data::needs_data;
use serde_json::Value;
use std::io::Write as _;
use std::process::{Command, Stdio};

#[needs_data(
    "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf",
    "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf",
    "tokenizers/ggml-vocab/ggml-vocab-phi-3.gguf"
)]
#[test]
fn llama_cpps_cases() {
    for name in ["gpt-2", "llama-spm", "phi-3"] {
        let file = shared(&format!("tokenizers/ggml-vocab/ggml-vocab-{name}.gguf"));
        let tokenizer = Tokenizer::from_vocab(&read::vocab(&file)).unwrap();
        let beside = |end: &str| std::fs::read_to_string(format!("{}.{end}", file.display())).unwrap();
        let (inputs, outputs) = (beside("inp"), beside("out"));
        let texts: Vec<_> = inputs.split_terminator("\n__ggml_vocab_test__\n").collect();
        let lines: Vec<_> = outputs.lines().collect();
        assert!(texts.len() > 40 && texts.len() == lines.len(), "{} {}", texts.len(), lines.len());
        for (text, line) in texts.iter().zip(lines) {
            let ids: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, Specials::Plain).unwrap(), ids, "{name} {text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), *text, "{name}");
        }
    }
}

#[needs_data(
    "tokenizers/cases",
    "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf",
    "tokenizers/gpt2",
    "models/stories260K"
)]
#[test]
fn cases_of_other_libraries() {
    let sources = [
        ("gpt2", "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf"),
        ("gpt2", "tokenizers/gpt2"),
        ("tok512", "models/stories260K/gguf/stories260K-f32.gguf"),
        ("tok512", "models/stories260K/hf"),
    ];
    for (cases, source) in sources {
        let (cases, source) = (shared(&format!("tokenizers/cases/{cases}.json")), shared(source));
        let tokenizer = match source.is_dir() {
            true => Tokenizer::from_folder(&source).unwrap(),
            false => Tokenizer::from_vocab(&read::vocab(&source)).unwrap(),
        };
        let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(cases).unwrap()).unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(text, Specials::Plain).unwrap(), ids, "{source:?} {text:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), text, "{source:?}");
        }
    }
}

#[needs_data(
    "tokenizers/cases",
    "corpora/tinyshakespeare.txt",
    "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf",
    "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf"
)]
#[test]
fn a_whole_book() {
    let sources = [
        ("gpt2", "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf"),
        ("llama2", "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf"),
    ];
    let read = |path| std::fs::read_to_string(shared(path)).unwrap();
    let cases: Value = serde_json::from_str(&read("tokenizers/cases/tinyshakespeare_whole.json")).unwrap();
    let text = read("corpora/tinyshakespeare.txt");
    for (name, source) in sources {
        let case = &cases[name];
        let tokenizer = Tokenizer::from_vocab(&super::read::vocab(&shared(source))).unwrap();
        let ids = tokenizer.encode(&text, Specials::Plain).unwrap();
        assert_eq!(ids.len(), case["n_tokens"].as_u64().unwrap() as usize, "{name}");
        let list = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).unwrap();
        assert!(ids.starts_with(&list("first")) && ids.ends_with(&list("last")), "{name}");
        assert!(tokenizer.decode(&ids).unwrap() == text);
        match sha256(&ids) {
            Some(hash) => assert_eq!(hash, case["sha256_of_u32le"].as_str().unwrap(), "{name}"),
            None => println!("skipped: sha256sum is not installed"),
        }
    }
}

fn sha256(ids: &[u32]) -> Option<String> {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    child.stdin.take()?.write_all(&bytes).ok()?;
    let out = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&out.stdout).split_whitespace().next()?.to_owned())
}
