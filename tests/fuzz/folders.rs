//! Readers of the files next to a model's weights (SentencePiece files, generation settings, pooling), and of a checkpoint's state.

use super::readers::Reader;
use super::seeds::decoder;
use netcl::llm::engine::Options;
use netcl::llm::gguf::Gguf;
use netcl::llm::model::{self, Mix, OutputFormat, Source, convert};
use netcl::llm::sampler::Sampler;
use netcl::llm::{LoadedModel, Tokenizer};
use netcl::model::checkpoint::{Checkpoint, FileDtype, Rng, State, Store, TensorData};
use netcl::tensor::suite::test_device;
use netcl::tensor::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// All readers of this file.
pub static FOLDERS: [Reader; 4] = [
    Reader { name: "sentencepiece", seeds: "model", files: &[PIECES], read: sentencepiece },
    Reader { name: "generation", seeds: "model", files: &[GENERATION], read: generation },
    Reader { name: "pooling", seeds: "model", files: &["modules.json", POOLING, BERT], read: pooling },
    Reader { name: "state", seeds: "state", files: &[STATE], read: state },
];

const PIECES: &str = "tokenizer.model";
const GENERATION: &str = "generation_config.json";
const POOLING: &str = "1_Pooling/config.json";
const BERT: &str = "sentence_bert_config.json";
const STATE: &str = "state.json";

/// Size of the smallest models' vocabulary.
const TOKENS: usize = 40;

/// Converts a folder's model to a GGUF file.
fn file_of(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("made.gguf");
    let options = model::WriteOptions { mix: Mix::named("f32")?, importance: None };
    convert(&Source::open(folder)?, &path, OutputFormat::Gguf, &options, &mut |_| Ok(()))?;
    Ok(path)
}

fn opened(path: &Path) -> Result<LoadedModel> {
    LoadedModel::open(path, &test_device().unwrap(), Options::default(), &mut |_| Ok(()))
}

/// Returns the score of a piece.
fn score(piece: usize) -> f32 {
    -0.25 - piece as f32
}

/// A damaged file is treated like one of another model, whose scores are ignored. This function reports that as an error.
fn sentencepiece(folder: &Path) -> Result<()> {
    let file = Gguf::open(&file_of(folder)?)?;
    let scores = file.numbers("tokenizer.ggml.scores")?.unwrap_or_default();
    assert!(scores.iter().all(|score| score.is_finite()), "{scores:?}");
    Tokenizer::from_gguf(&file)?;
    match scores.iter().take(TOKENS).enumerate().all(|(i, found)| *found == score(i)) {
        true => Ok(()),
        false => Err(Error::format("other scores")),
    }
}

/// A folder that can be read gives a GGUF file with the same settings.
fn generation(folder: &Path) -> Result<()> {
    let model = opened(folder)?;
    let made = opened(&file_of(folder)?)?;
    assert_eq!((made.sampling(), made.usual_length()), (model.sampling(), model.usual_length()));
    let mut sampler = Sampler::new(model.sampling().clone(), model.tokenizer()?)?;
    sampler.begin(&[1, 3, 4, 5, 3, 4]);
    for _ in 0..4 {
        sampler.sample((0..48).map(|i| i as f32 / 8.0).collect())?;
    }
    Ok(())
}

/// A folder of an embedding model gives a GGUF file of one. The text is empty, which is rejected after the files are read, so nothing is
/// computed.
fn pooling(folder: &Path) -> Result<()> {
    let refused = |path: &Path| Ok::<_, Error>(opened(path)?.embed(&[]).unwrap_err());
    let is_read = |error: &Error| error.message() == "an empty text cannot be embedded";
    let (own, made) = (refused(folder)?, refused(&file_of(folder)?)?);
    assert_eq!(is_read(&own), is_read(&made), "{own}; {made}");
    if is_read(&own) { Ok(()) } else { Err(own) }
}

/// Reads the state as it is, and with a corrected checksum, so that the reader reaches the files.
fn state(folder: &Path) -> Result<()> {
    let read = Checkpoint::load(folder).map(drop);
    let path = folder.join(STATE);
    let Ok(text) = std::fs::read_to_string(&path) else { return read };
    let Ok(Value::Object(mut json)) = serde_json::from_str(&text) else { return read };
    let zeros = "0".repeat(64);
    json.insert("seal".into(), zeros.as_str().into());
    let text = serde_json::to_string_pretty(&json).unwrap();
    let sealed = text.replacen(&zeros, blake3::hash(text.as_bytes()).to_hex().as_str(), 1);
    std::fs::write(&path, sealed).unwrap();
    let again = Checkpoint::load(folder).map(drop);
    let _ = State::verify(folder);
    again
}

/// Returns the seeds by kind.
pub fn seeds(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![("model", model_folder(&dir.join("model"))), ("state", checkpoint(&dir.join("checkpoints")))]
}

/// Creates a tiny model with all files that may be next to it.
fn model_folder(at: &Path) -> PathBuf {
    std::fs::create_dir_all(at.join("1_Pooling")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(decoder("llama").join(file), at.join(file)).unwrap();
    }
    let letters = "abcdefghijklmnopqrstuvwxyz0123456789";
    let tokens: Vec<String> = ["<unk>", "<s>", "</s>", "\u{2581}"]
        .map(String::from)
        .into_iter()
        .chain(letters.chars().map(String::from))
        .collect();
    assert_eq!(tokens.len(), TOKENS);
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": { "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" },
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": vocab, "merges": [] },
    });
    let generation = json!({
        "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "repetition_penalty": 1.1,
        "eos_token_id": [2, 5], "bad_words_ids": [[4], [6, 7]], "suppress_tokens": [3], "begin_suppress_tokens": [8], "no_repeat_ngram_size": 3,
        "min_new_tokens": 2, "min_length": 3, "max_new_tokens": 9, "num_beams": 1, "stop_strings": ["x"],
    });
    let modules = json!([
        { "idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer" },
        { "idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling" },
        { "idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize" },
    ]);
    let pooling = json!({ "word_embedding_dimension": 32, "pooling_mode_cls_token": false, "pooling_mode_lasttoken": true });
    for (name, json) in [
        ("tokenizer.json", tokenizer),
        (GENERATION, generation),
        ("modules.json", modules),
        (POOLING, pooling),
        (BERT, json!({ "max_seq_length": 16, "do_lower_case": false })),
    ] {
        std::fs::write(at.join(name), json.to_string()).unwrap();
    }
    // Fields of SentencePiece's protocol buffer: pieces with their scores and types, then settings.
    let mut pieces = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        let mut piece = vec![0x0a, token.len() as u8];
        piece.extend(token.as_bytes());
        piece.push(0x15);
        piece.extend(score(id).to_le_bytes());
        piece.extend([0x18, if id < 3 { 3 } else { 1 }]);
        pieces.extend([0x0a, piece.len() as u8]);
        pieces.extend(piece);
    }
    pieces.extend([0x12, 5, 0x18, 2, 0x98, 0x02, 1]);
    std::fs::write(at.join(PIECES), pieces).unwrap();
    at.into()
}

/// Creates a small checkpoint.
fn checkpoint(at: &Path) -> PathBuf {
    let tensor = |name: &str, count: usize| TensorData {
        name: name.into(),
        dtype: FileDtype::F32,
        shape: vec![count],
        bytes: (0..count * 4).map(|i| i as u8).collect(),
    };
    let mut state = State::default();
    (state.step, state.rng) = (10, Rng { seed: 3, counter: 7 });
    (state.val_loss, state.best_loss, state.best_step) = (Some(1.5), Some(1.25), Some(5));
    state.extra.insert("more".into(), json!({ "a": [1, 2] }));
    let whole = Checkpoint {
        state,
        model: vec![tensor("w", 8)],
        optimizer: vec![tensor("m", 8), tensor("v", 8)],
        optimizer_files: 2,
        files: vec![("config.json".into(), b"{}".to_vec()), (POOLING.into(), b"{}".to_vec())],
    };
    Store::new(at, 1).save(&whole, true).unwrap()
}
