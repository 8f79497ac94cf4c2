//! Tokenizers of many kinds: as a folder, as the GGUF file converted from it, and as the folder converted from that file, compared with the
//! `tokenizers` library.

use super::probe::tokenizer_file;
use super::tokens::{HUGGING_FACE, vocabulary};
use crate::gguf::{Gguf, Meta, Plan};
use crate::tokenizer::{Specials, TokenKind, Tokenizer};
use netcl_test_data::needs_data;
use serde_json::{Value, json};
use std::path::Path;

/// Pieces of texts: names of added tokens, white space, letters that normalizers change.
const PIECES: [&str; 30] = [
    "<|end|>",
    "</s>",
    "<s>",
    "[MASK]",
    "<|im_start|>",
    "word",
    "Hello",
    " ",
    "  ",
    "\n",
    "\t",
    "e\u{301}",
    "\u{e9}",
    "\u{fb01}",
    "\u{ff21}",
    "1234",
    "don't",
    "!?",
    "\u{65e5}\u{672c}",
    "\u{1f980}",
    "a",
    "B",
    "x_y",
    "\u{a0}",
    "\u{2581}",
    "\r\n",
    "Stra\u{df}e",
    ".",
    "the",
    "\u{130}",
];

fn texts(count: usize) -> Vec<String> {
    let mut state = 88_172_645_463_325_252u64;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    (0..count).map(|_| (0..1 + next(9)).map(|_| PIECES[next(PIECES.len())]).collect()).collect()
}

fn added(first: usize, flags: &[(&str, bool)]) -> Value {
    let names = ["<unk>", "<s>", "</s>", "<|end|>", "[MASK]", "<|im_start|>"];
    let token = |(at, name): (usize, &&str)| {
        let mut token = json!({
            "id": first + at, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
        });
        for (flag, on) in flags.iter().filter(|_| at >= 2) {
            token[*flag] = (*on).into();
        }
        token
    };
    names.iter().enumerate().map(token).collect()
}

fn ends(before: bool, after: bool) -> Value {
    let special = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let mut single = vec![text.clone()];
    if before {
        single.insert(0, special("<s>"));
    }
    if after {
        single.push(special("</s>"));
    }
    json!({
        "type": "TemplateProcessing", "single": single, "pair": [text, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": {
            "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] }, "</s>": { "id": "</s>", "ids": [2], "tokens": ["</s>"] },
        },
    })
}

/// Byte-level pairs, with the added tokens before the bytes.
fn bytes(change: impl FnOnce(&mut Value)) -> Value {
    let trained =
        netcl_model::tokenizer::Tokenizer::train_bpe(["the word Hello don't 1234 the word the Hello"], 280)
            .unwrap();
    let mut json: Value = serde_json::from_slice(&trained.files().unwrap()[0].1).unwrap();
    let shift = |id: u64| id + 6;
    for id in json["model"]["vocab"].as_object_mut().unwrap().values_mut() {
        *id = shift(id.as_u64().unwrap()).into();
    }
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|token, _| token != "<|endoftext|>");
    for (id, token) in ["<unk>", "<s>", "</s>", "<|end|>", "[MASK]", "<|im_start|>"].into_iter().enumerate() {
        vocab.insert(token.into(), id.into());
    }
    json["added_tokens"] = added(0, &[]);
    change(&mut json);
    json
}

/// Byte pairs of SentencePiece.
fn sentence(change: impl FnOnce(&mut Value)) -> Value {
    let mut vocab = serde_json::Map::new();
    let names = ["<unk>", "<s>", "</s>", "<|end|>", "[MASK]", "<|im_start|>"].map(String::from);
    let pieces = [
        "\u{2581}",
        "t",
        "h",
        "e",
        "w",
        "o",
        "r",
        "d",
        "H",
        "l",
        "a",
        "th",
        "the",
        "\u{2581}the",
        "wo",
        "wor",
        "word",
    ];
    let all =
        names.into_iter().chain((0..256).map(|b| format!("<0x{b:02X}>"))).chain(pieces.map(String::from));
    for (id, token) in all.enumerate() {
        vocab.insert(token, id.into());
    }
    let mut json = json!({
        "version": "1.0", "added_tokens": added(0, &[]),
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Prepend", "prepend": "\u{2581}" },
            { "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" },
        ] },
        "pre_tokenizer": null, "post_processor": ends(true, false),
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": ["t h", "th e", "\u{2581} the", "w o", "wo r", "wor d"],
        },
    });
    change(&mut json);
    json
}

/// Returns a unigram model like T5's.
fn unigram() -> Value {
    let pieces = [
        "\u{2581}",
        "t",
        "h",
        "e",
        "w",
        "o",
        "r",
        "d",
        "l",
        "a",
        "the",
        "\u{2581}the",
        "word",
        "1",
        "2",
        "3",
        "4",
        ".",
    ];
    let vocab: Vec<Value> = ["<unk>", "<s>", "</s>", "<|end|>", "[MASK]", "<|im_start|>"]
        .iter()
        .chain(&pieces)
        .enumerate()
        .map(|(i, piece)| json!([piece, -(i as f64) / 4.0]))
        .collect();
    json!({
        "version": "1.0", "added_tokens": added(0, &[]), "normalizer": { "type": "NFKC" },
        "pre_tokenizer": { "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true },
        "post_processor": ends(false, true),
        "decoder": { "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true },
        "model": { "type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false },
    })
}

const WORDS: [&str; 26] = [
    "the", "word", "hello", "Hello", "don", "t", "'", "##x", "x", "_", "##y", "a", "b", "1", "##2", "##3",
    "##4", "1234", "!", "?", ".", "st", "##ra", "##ss", "##e", "\u{65e5}",
];

/// A vocabulary of words or their pieces.
fn words(model: &str, change: impl FnOnce(&mut Value)) -> Value {
    let names = ["<unk>", "<s>", "</s>", "<|end|>", "[MASK]", "<|im_start|>"];
    let vocab: serde_json::Map<String, Value> =
        names.iter().chain(&WORDS).enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let mut json = json!({
        "version": "1.0", "added_tokens": added(0, &[]), "normalizer": null, "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": null, "decoder": null,
        "model": { "type": model, "unk_token": "<unk>", "vocab": vocab },
    });
    change(&mut json);
    json
}

/// Returns a WordPiece model like BERT's.
fn wordpiece(cleanup: bool) -> Value {
    words("WordPiece", |json| {
        json["normalizer"] = json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true,
        });
        json["pre_tokenizer"] = json!({ "type": "BertPreTokenizer" });
        json["post_processor"] = ends(true, true);
        json["decoder"] = json!({ "type": "WordPiece", "prefix": "##", "cleanup": cleanup });
        json["model"]["continuing_subword_prefix"] = "##".into();
        json["model"]["max_input_chars_per_word"] = 100.into();
    })
}

/// Returns tokenizers that ggml's keys can represent, partly represent, or cannot represent.
fn all() -> Vec<(&'static str, Value)> {
    let flags =
        |flags: &'static [(&str, bool)]| move |json: &mut Value| json["added_tokens"] = added(0, flags);
    let normalizer =
        |kind: &'static str| move |json: &mut Value| json["normalizer"] = json!({ "type": kind });
    let pattern = |regex: &'static str| {
        move |json: &mut Value| {
            json["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
            ] });
        }
    };
    const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    vec![
        ("plain", bytes(|_| {})),
        ("lstrip", bytes(flags(&[("lstrip", true)]))),
        ("rstrip", bytes(flags(&[("rstrip", true)]))),
        ("single word", bytes(flags(&[("single_word", true)]))),
        ("both strips", bytes(flags(&[("lstrip", true), ("rstrip", true)]))),
        ("not special", bytes(flags(&[("special", false), ("normalized", true)]))),
        ("nfc", bytes(normalizer("NFC"))),
        ("nfkc", bytes(normalizer("NFKC"))),
        ("lowercase", bytes(normalizer("Lowercase"))),
        ("ends with eos", bytes(|json| json["post_processor"] = ends(false, true))),
        ("bos and eos", bytes(|json| json["post_processor"] = ends(true, true))),
        ("prefix space", bytes(|json| json["pre_tokenizer"]["add_prefix_space"] = true.into())),
        ("qwen", bytes(pattern(QWEN))),
        (
            "qwen nfc",
            bytes(|json| {
                pattern(QWEN)(json);
                json["normalizer"] = json!({ "type": "NFC" });
            }),
        ),
        ("sentence", sentence(|_| {})),
        ("sentence rstrip", sentence(flags(&[("rstrip", true)]))),
        ("sentence eos", sentence(|json| json["post_processor"] = ends(true, true))),
        ("sentence normalized", sentence(flags(&[("normalized", true)]))),
        (
            "sentence nfc",
            sentence(|json| {
                let steps = json["normalizer"]["normalizers"].as_array_mut().unwrap();
                steps.insert(0, json!({ "type": "NFC" }));
            }),
        ),
        ("unigram", unigram()),
        ("wordpiece", wordpiece(true)),
        ("wordpiece as it is", wordpiece(false)),
        ("words", words("WordLevel", |_| {})),
        (
            "words in lower case",
            words("WordLevel", |json| {
                json["normalizer"] = json!({ "type": "Lowercase" });
                json["pre_tokenizer"] = json!({ "type": "WhitespaceSplit" });
                json["post_processor"] = ends(true, false);
                json["added_tokens"].as_array_mut().unwrap().remove(0);
            }),
        ),
    ]
}

fn write(folder: &Path, json: &Value) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
    let settings =
        json!({ "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>" });
    std::fs::write(folder.join("tokenizer_config.json"), settings.to_string()).unwrap();
}

/// Returns the keys that `quantize` writes for a folder's tokenizer, in a file without weights.
fn file_of(folder: &Path, name: &str, path: &Path) -> Gguf {
    let mut plan = Plan::default();
    plan.set("general.architecture", Meta::Str("llama".into()));
    plan.set("general.name", Meta::Str(name.into()));
    for (key, value) in vocabulary(folder, 600).unwrap() {
        plan.set(key, value);
    }
    plan.write(path, |_, _| Ok(())).unwrap();
    Gguf::open(path).unwrap()
}

#[test]
fn a_gguf_file_tokenizes_as_the_folder_it_was_made_of_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let texts = texts(200);
    for (name, json) in all() {
        let [folder, path, back] = ["in", "m.gguf", "back"].map(|part| dir.path().join(name).join(part));
        write(&folder, &json);
        let library = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        let file = file_of(&folder, name, &path);
        write(&back, &serde_json::from_str(file.text(HUGGING_FACE).unwrap().unwrap()).unwrap());
        let all = [
            Tokenizer::from_folder(&folder).unwrap(),
            Tokenizer::from_gguf(&file).unwrap(),
            Tokenizer::from_folder(&back).unwrap(),
        ];
        let mut decoded = 0;
        for text in &texts {
            let expected = |special| library.encode(text.as_str(), special).unwrap().get_ids().to_vec();
            let (plain, whole) = (expected(false), expected(true));
            for (tokenizer, from) in all.iter().zip(["folder", "gguf", "back"]) {
                let ids = tokenizer.encode(text, Specials::Parsed).unwrap();
                assert_eq!(ids, plain, "{name} from {from}: {text:?}");
                // A text that already contains the begin or end token gets no second one.
                if !plain.starts_with(&[1]) && !plain.ends_with(&[2]) {
                    assert_eq!(
                        tokenizer.encode_prompt(text, Specials::Parsed).unwrap(),
                        whole,
                        "{name} from {from}: {text:?}"
                    );
                }
                assert_eq!(
                    tokenizer.decode_all(&ids).unwrap(),
                    all[0].decode_all(&ids).unwrap(),
                    "{name} from {from}"
                );
                if name.starts_with("word") && ids.iter().all(|id| tokenizer.kind(*id) != TokenKind::Control)
                {
                    decoded += 1;
                    let expected = library.decode(&ids, false).unwrap();
                    assert_eq!(tokenizer.decode_all(&ids).unwrap(), expected, "{name} from {from}: {text:?}");
                }
                let ordinary = tokenizer.encode(text, Specials::Plain).unwrap();
                assert_eq!(
                    ordinary,
                    all[0].encode(text, Specials::Plain).unwrap(),
                    "{name} from {from}: {text:?}"
                );
            }
        }
        assert!(!name.starts_with("word") || decoded >= 3 * 10, "{name}: {decoded} texts in three ways");
        assert_eq!((all[1].bos(), all[1].eos()), (all[0].bos(), all[0].eos()), "{name}");
    }
}

/// The conversion warns of a tokenizer that ggml's keys cannot describe, and only of those.
#[test]
fn a_conversion_says_where_llama_cpp_will_tokenize_differently() {
    let dir = tempfile::tempdir().unwrap();
    let lost = |name: &str, json: &Value| {
        let folder = dir.path().join(name);
        write(&folder, json);
        let keys = vocabulary(&folder, 600).unwrap();
        super::probe::lost(&json.to_string(), json, &keys, name).unwrap()
    };
    for (name, json) in all() {
        let said = match name {
            "plain" | "qwen" | "sentence" => None,
            "lstrip" | "rstrip" | "single word" | "nfc" | "sentence rstrip" | "qwen nfc" => {
                Some("probe texts")
            }
            _ => continue,
        };
        let found = lost(name, &json);
        match said {
            None => assert_eq!(found, None, "{name}"),
            Some(part) => {
                assert!(found.as_ref().is_some_and(|text| text.contains(part)), "{name}: {found:?}")
            }
        }
    }
    // The end token has a separate key.
    let eos = sentence(|json| json["post_processor"] = ends(true, true));
    assert_eq!(lost("sentence eos", &eos), None);
}

/// Special tokens are found in a text by their names, although the normalizer would put a mark before each name.
#[test]
fn a_special_token_behind_text_is_one_token_where_the_class_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let json = sentence(|json| json["added_tokens"] = added(0, &[("normalized", true)]));
    write(dir.path(), &json);
    let ids = || Tokenizer::from_folder(dir.path()).unwrap().encode("the</s>", Specials::Parsed).unwrap();
    let class = |class: &str, more: Value| {
        let mut settings = json!({ "tokenizer_class": class, "bos_token": "<s>", "eos_token": "</s>" });
        settings["added_tokens_decoder"] = more;
        std::fs::write(dir.path().join("tokenizer_config.json"), settings.to_string()).unwrap();
    };
    // The library does this, and transformers with a class that uses the file's normalizer.
    assert!(ids().len() > 3 && !ids().contains(&2), "{:?}", ids());
    class("LlamaTokenizer", Value::Null);
    assert_eq!((ids().len(), ids().last()), (2, Some(&2)));
    let flags = json!({ "2": { "content": "</s>", "normalized": false, "special": true } });
    class("PreTrainedTokenizerFast", flags);
    assert_eq!((ids().len(), ids().last()), (2, Some(&2)));
    // The converted file has the same.
    let file = file_of(dir.path(), "x", &dir.path().join("m.gguf"));
    let found = Tokenizer::from_gguf(&file).unwrap().encode("the</s>", Specials::Parsed).unwrap();
    assert_eq!(found, ids());
}

/// Files of llama.cpp's converter have only ggml's keys: the `tokenizer.json` that netcl writes for them gives the same ids.
#[needs_data(
    "corpora/tinyshakespeare.txt",
    "models/stories260K",
    "tokenizers/ggml-vocab/ggml-vocab-gpt-2.gguf",
    "tokenizers/ggml-vocab/ggml-vocab-llama-spm.gguf",
    "tokenizers/ggml-vocab/ggml-vocab-phi-3.gguf"
)]
#[test]
fn ggml_keys_alone_become_a_tokenizer_file_with_the_same_ids() {
    let data = netcl_test_data::test_data!();
    let book = std::fs::read_to_string(data.join("corpora/tinyshakespeare.txt")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in ["gpt-2", "llama-spm", "phi-3", "stories"] {
        let path = match name {
            "stories" => data.join("models/stories260K/gguf/stories260K-q8_0.gguf"),
            _ => data.join(format!("tokenizers/ggml-vocab/ggml-vocab-{name}.gguf")),
        };
        let file = Gguf::open(&path).unwrap();
        assert!(file.text(HUGGING_FACE).unwrap().is_none());
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer_file(&file).unwrap()).unwrap();
        let [ours, theirs] =
            [Tokenizer::from_folder(dir.path()).unwrap(), Tokenizer::from_gguf(&file).unwrap()];
        let mut all = texts(300);
        all.extend(
            book.as_bytes()[..60_000].chunks(700).map(|part| String::from_utf8_lossy(part).into_owned()),
        );
        if let Ok(cases) = std::fs::read_to_string(format!("{}.inp", path.display())) {
            all.extend(cases.split_terminator("\n__ggml_vocab_test__\n").map(str::to_owned));
        }
        // After a name of Phi-3 the library also removes white space that is not ASCII.
        for text in all.iter().filter(|text| name != "phi-3" || !text.contains('\u{a0}')) {
            for specials in [Specials::Plain, Specials::Parsed] {
                let [a, b] = [&ours, &theirs].map(|t| t.encode(text, specials).unwrap());
                assert_eq!(a, b, "{name} {specials:?} {text:?}");
            }
            let [a, b] = [&ours, &theirs].map(|t| t.encode_prompt(text, Specials::Parsed).unwrap());
            assert_eq!(a, b, "{name} {text:?}");
            assert_eq!(ours.decode(&a).unwrap(), theirs.decode(&a).unwrap(), "{name} {text:?}");
        }
        for id in 0..theirs.vocab_size() as u32 {
            assert_eq!(ours.piece(id).unwrap(), theirs.piece(id).unwrap(), "{name} {id}");
        }
    }
}

/// A vocabulary whose ids a `tokenizer.json` cannot give is refused with the first text that differs.
#[test]
fn a_vocabulary_that_a_tokenizer_file_cannot_describe_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let names = ["<unk>", "<s>", "</s>", "a", "b", "c", "d", "cd", "abc", "bc", "ab"];
    let write = |scores: [f32; 11]| {
        let mut plan = Plan::default();
        plan.set("tokenizer.ggml.model", Meta::Str("llama".into()));
        plan.set("tokenizer.ggml.tokens", Meta::Strs(names.map(String::from).to_vec()));
        plan.set("tokenizer.ggml.scores", Meta::F32s(scores.to_vec()));
        plan.set("tokenizer.ggml.token_type", Meta::I32s(vec![2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1]));
        plan.set("tokenizer.ggml.add_space_prefix", Meta::Bool(false));
        plan.write(&path, |_, _| Ok(())).unwrap();
        tokenizer_file(&Gguf::open(&path).unwrap())
    };
    assert!(write([0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0]).is_ok());
    // If pairs have one score, SentencePiece merges the first in the text, and a list of merges the first in the list.
    let error = write([0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -1.0, -1.0, -1.0, -1.0]).unwrap_err();
    assert!(error.message().contains("probe texts, such as"), "{error}");
}
