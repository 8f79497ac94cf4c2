//! Compares tokens that a device generates ahead with those that the host samples one by one from the same logits.

use super::*;
use crate::generate::{Generation, Sampling};
use crate::model::Choice;
use netcl_device::Settings;
use netcl_tensor::ops::choose::{Chooser, Rules, SamplingRule};
use netcl_tensor::suite::test_device;
use std::sync::Arc;

const VOCAB: usize = 37;

/// Returns a model whose logits differ clearly, so that texts differ.
fn decoder(device: &Device, family: &str, context: usize) -> Decoder {
    let sizes = Sizes { layers: 2, heads: 2, width: 16, context, vocab: VOCAB, ..Sizes::default() };
    let decoder = Decoder::new(device, DecoderConfig::of(family, &sizes).unwrap(), DType::F32, 3).unwrap();
    for p in decoder.params().list() {
        p.set_f32(&p.to_vec().unwrap().iter().map(|v| 6.0 * v).collect::<Vec<_>>()).unwrap();
    }
    decoder
}

fn word(n: usize) -> u32 {
    (n as u32 + 1).wrapping_mul(2_654_435_761) ^ 0x9e37_79b9
}

fn bias() -> Vec<f32> {
    (0..VOCAB).map(|i| if i % 5 == 4 { f32::NEG_INFINITY } else { 0.0 }).collect()
}

/// Returns `n` tokens after `ids` from logits on the host; the first uses word `at`.
fn by_host(text: &mut dyn Continuation, ids: &[u32], rules: &Rules, (at, n): (usize, usize)) -> Vec<u32> {
    let mut all = ids.to_vec();
    for i in 0..n {
        let mut logits = text.logits_after(&all).unwrap();
        logits.iter_mut().zip(bias()).for_each(|(v, b)| *v += b);
        all.push(rules.choose(&logits, word(at + i)));
    }
    all
}

/// The same on the device; `None` if it is full.
fn ahead(
    text: &mut dyn Continuation,
    ids: &[u32],
    by: &Arc<Chooser>,
    (at, n, most): (usize, usize, usize),
) -> Option<Vec<u32>> {
    let mut all = ids.to_vec();
    for i in 0..n {
        let choice = Choice { by, word: &|ahead| word(at + i + ahead), most: most - i };
        all.push(text.token_after(&all, &choice).unwrap()?);
    }
    Some(all)
}

fn chooser(device: &Device, rules: &Rules, texts: usize) -> Arc<Chooser> {
    Arc::new(Chooser::new(device, rules, texts, VOCAB, Some(&bias())).unwrap().unwrap())
}

fn all_rules() -> [Rules; 2] {
    [
        Rules::greedy(),
        Rules::new(&[SamplingRule::Temperature(0.8), SamplingRule::TopK(9), SamplingRule::TopP(0.95, 1)])
            .unwrap(),
    ]
}

/// Tokens generated ahead equal those of single steps, beyond the initial capacity of a cache and up to the end of the context.
#[test]
fn tokens_ahead_are_those_of_one_after_the_other() {
    let device = test_device().unwrap();
    for family in ["llama", "gpt2"] {
        let decoder = decoder(&device, family, 300);
        for rules in all_rules() {
            let by = chooser(&device, &rules, 1);
            let mut text = decoder.continuation().unwrap();
            let expected = by_host(&mut *decoder.continuation().unwrap(), &[1, 2, 3], &rules, (0, 298));
            let found = ahead(&mut *text, &[1, 2, 3], &by, (0, 298, 1000)).unwrap();
            assert_eq!(found, expected, "{family} {rules:?}");
            assert!(expected.iter().all(|id| id % 5 != 4));
            // The context is full: sliding runs on the host.
            let choice = Choice { by: &by, word: &word, most: 1 };
            assert_eq!(text.token_after(&found, &choice).unwrap(), None);
            assert_eq!(text.logits_after(&found).unwrap().len(), VOCAB);
            assert!(text.launches().is_some());
        }
    }
}

/// Steps enqueued after an end token are dropped, and another text continues from any position.
#[test]
fn a_text_that_ends_within_a_run_goes_on_elsewhere() {
    let device = test_device().unwrap();
    let decoder = decoder(&device, "llama", 200);
    for rules in all_rules() {
        let by = chooser(&device, &rules, 1);
        let (mut text, mut host) = (decoder.continuation().unwrap(), decoder.continuation().unwrap());
        // The text is long enough for runs of several steps.
        let found = ahead(&mut *text, &[5], &by, (0, 41, 150)).unwrap();
        assert_eq!(found, by_host(&mut *host, &[5], &rules, (0, 41)));
        // The same text with other random words, a part of it, one with a new end, and logits in between.
        for (keep, more) in [(42, &[][..]), (20, &[]), (30, &[7, 8, 9]), (1, &[3])] {
            let prompt = [&found[..keep], more].concat();
            let expected = by_host(&mut *host, &prompt, &rules, (keep, 25));
            assert_eq!(ahead(&mut *text, &prompt, &by, (keep, 25, 60)).unwrap(), expected, "{keep} {more:?}");
            let [a, b] = [&mut text, &mut host].map(|text| text.logits_after(&expected[..12]).unwrap());
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
            assert!(a.iter().zip(&b).all(near), "{keep} {more:?}");
        }
        // Request no more tokens than needed, and then more.
        let one = ahead(&mut *text, &found[..9], &by, (9, 4, 4)).unwrap();
        let two = ahead(&mut *text, &one, &by, (13, 30, 30)).unwrap();
        assert_eq!(two, by_host(&mut *host, &found[..9], &rules, (9, 34)));
    }
}

#[test]
fn texts_side_by_side_are_as_each_alone() {
    let device = test_device().unwrap();
    let decoder = decoder(&device, "llama", 64);
    for rules in all_rules() {
        let by = chooser(&device, &rules, 3);
        let mut batch = decoder.batch(3, 40).unwrap();
        let words: Vec<u32> = (0..30 * 3).map(word).collect();
        let mut made: Vec<Vec<u32>> = vec![vec![1], vec![2], vec![3]];
        batch.start(&[1, 2, 3]).unwrap();
        let mut runs = Vec::new();
        for run in words.chunks(7 * 3) {
            runs.push(batch.queue(&by, run).unwrap());
        }
        for run in &runs {
            for tokens in batch.chosen(run).unwrap().chunks(3) {
                made.iter_mut().zip(tokens).for_each(|(text, token)| text.push(*token));
            }
        }
        assert_eq!((batch.length(), batch.left()), (30, 10));
        assert!(batch.queue(&by, &words[..33]).is_err());
        for (b, text) in made.iter().enumerate() {
            let mut host = decoder.continuation().unwrap();
            let mut all = vec![text[0]];
            for i in 0..30 {
                let mut logits = host.logits_after(&all).unwrap();
                logits.iter_mut().zip(bias()).for_each(|(v, b)| *v += b);
                all.push(rules.choose(&logits, words[i * 3 + b]));
            }
            assert_eq!(*text, all, "text {b}");
        }
    }
}

#[test]
fn the_simulated_device_makes_tokens_ahead_as_well() {
    let device = Device::open("sim", &Settings::from_env()).unwrap();
    let decoder = decoder(&device, "llama", 32);
    for rules in all_rules() {
        let by = chooser(&device, &rules, 1);
        let expected = by_host(&mut *decoder.continuation().unwrap(), &[1, 2], &rules, (0, 8));
        assert_eq!(ahead(&mut *decoder.continuation().unwrap(), &[1, 2], &by, (0, 8, 9)).unwrap(), expected);
    }
}

#[test]
fn seeds_and_damage_are_heard_of_with_tokens_ahead() {
    let device = test_device().unwrap();
    let decoder = decoder(&device, "gpt2", 40);
    let made = |seed: u64, top_k: usize| -> Result<Vec<u32>> {
        let sampling = Sampling { temperature: 1.0, top_k, seed, ..Sampling::default() };
        Generation::new(&decoder, &[1, 2], sampling)?.up_to(60).collect()
    };
    // Continue beyond the context, where the text slides.
    let first = made(1, 12).unwrap();
    assert_eq!(first.len(), 60);
    assert_eq!(made(1, 12).unwrap(), first);
    assert_ne!(made(2, 12).unwrap(), first);
    let norm = decoder.params().get("transformer.ln_f.weight").unwrap();
    norm.set_all(f32::NAN).unwrap();
    for top_k in [1, 12] {
        assert!(made(1, top_k).unwrap_err().message().contains("not numbers"));
    }
}
