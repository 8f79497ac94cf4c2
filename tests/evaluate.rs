//! Compares the evaluation of a text with exact numbers, and with the logits of every window.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl::model::decoder::Decoder;
use netcl::model::layers::Mode;
use netcl::model::model::Model;
use netcl::model::tokenizer::Tokenizer;
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl::train::data::{Scored, Strided, Tokens};
use netcl::train::evaluate::{Score, evaluate};
use netcl_test_data::{needs_data, test_data};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns a path in the folder next to the repository. If it is absent, prints this and returns `None`.
fn shared(path: &str) -> PathBuf {
    test_data!().join(path)
}

fn score(model: &Decoder, windows: &Strided, tokenizer: Option<&Tokenizer>) -> Score {
    let lengths = tokenizer.map(|t| t.byte_lengths().unwrap());
    evaluate(model, windows.batches(), lengths.as_ref(), &mut |_| true).unwrap()
}

/// `refs/nll.json`: a trained Llama on 20 000 characters, weights and arithmetic in f64.
#[needs_data("refs/nll.json", "models/stories260K/hf", "corpora/tinystories_sample.txt")]
#[test]
fn the_loss_of_a_text_is_the_exact_one() {
    let (refs, dir) = (shared("refs/nll.json"), shared("models/stories260K/hf"));
    let text = shared("corpora/tinystories_sample.txt");
    let text: String = std::fs::read_to_string(text).unwrap().chars().take(20_000).collect();
    let refs: Value = serde_json::from_str(&std::fs::read_to_string(refs).unwrap()).unwrap();
    let expected = refs["results"].as_array().unwrap().iter().find(|r| r["format"] == "f32").unwrap();
    let tokenizer = Tokenizer::from_dir(&dir).unwrap();
    let mut ids = tokenizer.beginning();
    assert_eq!(ids, [1], "<s>");
    ids.extend(tokenizer.encode(&text).unwrap());
    assert_eq!(ids.len() as u64, expected["n_ids"].as_u64().unwrap());
    // Windows are adjacent; the reference omits the last, partial window.
    let predicted = expected["n_predicted"].as_u64().unwrap();
    ids.truncate(predicted as usize + 1);
    let model = Decoder::open(&quickly_built().unwrap(), &dir, None).unwrap();
    // 256 inputs and the token after them, which is the first of the next window.
    let windows = Strided::new(Tokens::from(ids), 512, 257, 256, 8).unwrap();
    let score = score(&model, &windows, Some(&tokenizer));
    let [loss, perplexity] = ["nll_nats_per_token", "perplexity"].map(|key| expected[key].as_f64().unwrap());
    println!("loss {} (exact {loss}), {} bits per byte", score.loss(), score.bits_per_byte().unwrap());
    assert_eq!((score.tokens, score.windows), (predicted, predicted / 256));
    assert!((score.loss() - loss).abs() <= 1e-4 && (score.perplexity() - perplexity).abs() <= 4e-4);
}

/// Returns the sum of -ln p of all targets, from the logits of each window alone, and the number of targets.
fn by_hand(model: &Decoder, ids: &[u32], context: usize, stride: usize) -> (f64, u64) {
    let (device, v) = (model.params().device(), model.config().vocab);
    let (mut sum, mut count, mut done) = (0.0, 0, 0);
    for start in (0..).step_by(stride) {
        let end = (start + context).min(ids.len());
        let targets = done.max(start + 1)..end;
        if !targets.is_empty() {
            let x = Tensor::from_u32(device, [1, end - 1 - start], &ids[start..end - 1]).unwrap();
            let logits = model.forward(&x, Mode::eval()).unwrap().to_vec().unwrap();
            for target in targets {
                let row = &logits[(target - 1 - start) * v..(target - start) * v];
                let highest = row.iter().fold(f64::NEG_INFINITY, |m, l| m.max(f64::from(*l)));
                let all: f64 = row.iter().map(|l| (f64::from(*l) - highest).exp()).sum();
                sum += highest + all.ln() - f64::from(row[ids[target] as usize]);
                count += 1;
            }
        }
        done = end;
        if end == ids.len() {
            return (sum, count);
        }
    }
    unreachable!()
}

#[test]
fn strided_scores_are_those_of_each_windows_logits() {
    let device = quickly_built().unwrap();
    // Learned positions and rotary positions; capped logits of all rows at once; a balance loss, which is not included.
    for name in ["gpt2", "llama", "gemma2", "mixtral_balanced"] {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoder").join(name);
        let model = Decoder::open(&device, &dir, None).unwrap();
        let v = model.config().vocab as u32;
        let ids: Vec<u32> = (0..45u32).map(|i| i.wrapping_mul(2_654_435_761) % v).collect();
        for (context, stride) in [(8, 1), (8, 3), (8, 8), (12, 6), (32, 32), (30, 7)] {
            let (exact, targets) = by_hand(&model, &ids, context, stride);
            assert!(targets == 44 || stride == context);
            for batch in [1, 4] {
                let windows =
                    Strided::new(Tokens::from(ids.clone()), v as usize, context, stride, batch).unwrap();
                let score = score(&model, &windows, None);
                assert_eq!((score.tokens, score.bytes), (targets, None));
                let off = (score.nll - exact).abs() / exact;
                assert!(
                    off <= 1e-5,
                    "{name}, windows of {context} every {stride}: {} and {exact}",
                    score.nll
                );
            }
        }
        // More context predicts tokens better. The result is equal if the whole text is one window.
        let whole = Strided::new(Tokens::from(ids), v as usize, 100, 50, 2).unwrap();
        assert_eq!((whole.context(), whole.windows()), (45, 1));
    }
}

#[test]
fn an_evaluation_can_be_ended_early() {
    let device = quickly_built().unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoder/llama");
    let model = Decoder::open(&device, &dir, None).unwrap();
    let windows = Strided::new(Tokens::from(vec![1; 101]), model.config().vocab, 10, 10, 1).unwrap();
    let mut heard = Vec::new();
    let score = evaluate(&model, windows.batches(), None, &mut |score| {
        heard.push(score.tokens);
        heard.len() < 3
    });
    assert_eq!((score.unwrap().tokens, heard), (27, vec![9, 18, 27]));
    let damaged = windows.batches().take(1).chain([Err(Error::format("no more"))]);
    let error = evaluate(&model, damaged, None, &mut |_| true).unwrap_err();
    assert!(error.message().contains("no more"));
}

const TEXT: &str = "First Citizen:\r\nBefore  we\n\n\tproceed — ünï 日本 👍🏽 don't, 42 ▁.";

/// Returns the number of bytes of the tokens of `text`.
fn token_bytes(tokenizer: &Tokenizer, text: &str) -> Option<u64> {
    tokenizer.byte_lengths().unwrap().of(tokenizer.encode(text).unwrap().into_iter())
}

#[needs_data("tokenizers/gpt2", "models/stories260K/hf")]
#[test]
fn tokens_of_published_tokenizers_have_the_bytes_of_their_text() {
    for dir in ["tokenizers/gpt2", "models/stories260K/hf"] {
        let tokenizer = Tokenizer::from_dir(&shared(dir)).unwrap();
        // `▁` is a space in SentencePiece.
        let plain = TEXT.replace('▁', "_");
        let space = u64::from(tokenizer.adds_space());
        assert_eq!(token_bytes(&tokenizer, &plain), Some(plain.len() as u64 + space), "{dir}");
    }
}

#[test]
fn tokens_have_the_bytes_of_their_text() {
    let (text, sum) = (TEXT, token_bytes);
    let bytes = Some(text.len() as u64);
    assert_eq!(sum(&Tokenizer::char_from_text([text]).unwrap(), text), bytes);
    let bpe = Tokenizer::train_bpe([text.repeat(50).as_str()], 400).unwrap();
    assert_eq!((sum(&bpe, text), bpe.adds_space(), bpe.beginning()), (bytes, false, vec![]));
    // The end-of-text token does not count.
    assert_eq!(sum(&bpe, &format!("{text}<|endoftext|>{text}")), bytes.map(|n| 2 * n));
    let lengths = bpe.byte_lengths().unwrap();
    assert_eq!(lengths.of([400_000].into_iter()), None);
    let scored = Scored::from(netcl::train::data::Batch {
        x: vec![1, 2],
        y: vec![2, 3],
        rows: 1,
        context: 2,
        step_targets: None,
        positions: None,
        values: Vec::new(),
    });
    assert_eq!((scored.targets(), scored.ids().collect::<Vec<_>>()), (2, vec![2, 3]));
}
