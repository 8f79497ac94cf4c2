//! Compares texts in pages with the same texts in separate caches.

use super::*;
use crate::model::Choice;
use netcl_device::Settings;
use netcl_tensor::no_grad;
use netcl_tensor::ops::choose::{Chooser, Rules, SamplingRule};
use netcl_tensor::ops::decode_step::WeightPath;
use netcl_tensor::suite::test_device;

pub(super) const VOCAB: usize = 37;
const PAGE: usize = 4;

/// Returns a model whose logits differ clearly.
pub(super) fn decoder(device: &Device, family: &str, change: impl Fn(&mut DecoderConfig)) -> Decoder {
    times(6.0, device, family, change)
}

/// Returns a model whose attention scores are close to each other, so that a rounding error does not change which key dominates.
fn even(device: &Device) -> Decoder {
    times(2.0, device, "llama", |_| {})
}

fn times(by: f32, device: &Device, family: &str, change: impl Fn(&mut DecoderConfig)) -> Decoder {
    let kv_heads = if family == "gpt2" { None } else { Some(1) };
    let sizes =
        Sizes { layers: 2, heads: 2, kv_heads, width: 16, context: 40, vocab: VOCAB, ..Sizes::default() };
    let mut config = DecoderConfig::of(family, &sizes).unwrap();
    change(&mut config);
    let decoder = Decoder::new(device, config, DType::F32, 3).unwrap();
    for p in decoder.params().list() {
        p.set_f32(&p.to_vec().unwrap().iter().map(|v| by * v).collect::<Vec<_>>()).unwrap();
    }
    decoder
}

pub(super) fn ids(text: usize, n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 5 * text + 3 * i * text) % VOCAB) as u32).collect()
}

/// Returns three texts of different lengths and their pages, which are in random order.
fn texts() -> [(Vec<u32>, Vec<u32>); 3] {
    let pages = |text: u32, n: u32| (0..n).map(|i| 10 * text + 3 * i % 10).collect();
    [(ids(0, 3), pages(0, 4)), (ids(1, 17), pages(1, 8)), (ids(2, 9), pages(2, 6))]
}

/// Reads all but the last token of each text, in chunks.
fn read(paged: &Paged<'_>, texts: &[(Vec<u32>, Vec<u32>)]) {
    for (ids, pages) in texts {
        let mut start = 0;
        for chunk in ids[..ids.len() - 1].chunks(7) {
            paged.read(chunk, start, pages, ids.len()).unwrap();
            start += chunk.len();
        }
    }
}

pub(super) fn off(found: &[f32], expected: &[f32]) -> f32 {
    let most = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most
}

/// Steps of all texts: one, then several in sequence on the device. Each text is the same as if it ran alone; logits are compared after the last
/// step.
pub(super) fn as_alone(decoder: &Decoder, kind: CacheType, bound: f32) {
    let mut texts = texts();
    let mut paged = Paged::new(decoder, 31, PAGE, kind, None).unwrap();
    read(&paged, &texts);
    let rules = [
        Rules::greedy(),
        Rules::new(&[SamplingRule::TopK(5), SamplingRule::Temperature(0.7)]).unwrap(),
        Rules::greedy(),
    ];
    let word = |text: usize, n: usize| (n as u32 + 1).wrapping_mul(2_654_435_761) ^ (text as u32) << 20;
    let mut alone: Vec<_> = texts.iter().map(|_| decoder.continuation().unwrap()).collect();
    for steps in [1, 1, 1, 4, 2] {
        let words: Vec<Vec<u32>> =
            (0..3).map(|b| (0..steps).map(|n| word(b, texts[b].0.len() + n)).collect()).collect();
        let lines: Vec<Line<'_>> = (0..3)
            .map(|b| {
                let (ids, pages) = &texts[b];
                let position = ids.len() - 1;
                Line { tokens: &ids[position..], position, pages, rules: &rules[b], words: &words[b] }
            })
            .collect();
        let pending = paged.queue(&lines, steps).unwrap();
        let sampled = paged.sampled(&pending).unwrap();
        for b in 0..3 {
            let last = paged.logits(&pending, b, 0).unwrap();
            for n in 0..steps {
                let logits = alone[b].logits_after(&texts[b].0).unwrap();
                let expected = rules[b].choose(&logits, words[b][n]);
                if bound < 1e-3 {
                    assert_eq!(sampled[b][n], expected, "text {b}, {kind:?}");
                }
                if n == steps - 1 {
                    assert!(off(&last, &logits) <= bound, "text {b}: {}", off(&last, &logits));
                }
                texts[b].0.push(sampled[b][n]);
            }
        }
    }
    assert!(paged.launches(3).is_some(), "steps are not captured");
}

#[test]
fn texts_in_pages_are_as_each_alone() {
    let device = test_device().unwrap();
    for family in ["llama", "gpt2", "qwen3"] {
        as_alone(&decoder(&device, family, |_| {}), CacheType::Weights, 1e-4);
    }
    let windows = decoder(&device, "mistral", |config| {
        config.kinds.iter_mut().for_each(|kind| kind.window = Some(6));
    });
    assert_eq!(windows.longest_window(), Some(6));
    as_alone(&windows, CacheType::Weights, 1e-4);
}

/// Unused rows do not affect the choice of experts.
#[test]
fn experts_of_texts_in_pages_are_those_of_each_alone() {
    as_alone(&decoder(&test_device().unwrap(), "mixtral", |_| {}), CacheType::Weights, 1e-4);
}

#[test]
fn the_simulated_device_has_pages_as_well() {
    let device = Device::open("sim", &Settings::default()).unwrap();
    as_alone(&decoder(&device, "llama", |_| {}), CacheType::Weights, 1e-4);
    as_alone(&even(&device), CacheType::Q8_0, 0.01);
}

#[test]
fn a_cache_in_8_bits_is_near_and_smaller() {
    let decoder = even(&test_device().unwrap());
    as_alone(&decoder, CacheType::Q8_0, 0.01);
    let bytes = [CacheType::Weights, CacheType::Q8_0].map(|kind| decoder.page_bytes(0..2, PAGE, kind));
    // Heads of 8 elements in f32: 32 bytes, or 8 and a scale.
    assert_eq!(bytes, [2 * 4 * 2 * 32, 2 * 4 * 2 * 12]);
}

/// Several new tokens of a text in one step, across pages, sample the same tokens as single steps.
#[test]
fn several_tokens_of_a_text_are_as_one_after_the_other() {
    several_tokens(&decoder(&test_device().unwrap(), "llama", |_| {}));
}

pub(super) fn several_tokens(decoder: &Decoder) {
    let (texts, greedy) = (texts(), Rules::greedy());
    let mut paged = Paged::new(decoder, 31, PAGE, CacheType::Weights, None).unwrap();
    for (ids, pages) in &texts {
        paged.read(&ids[..ids.len() - 3 + 1], 0, pages, 0).unwrap();
    }
    // The last three are written again, now together.
    let lines = texts.each_ref().map(|(ids, pages)| {
        let position = ids.len() - 3;
        Line { tokens: &ids[position..], position, pages, rules: &greedy, words: &[0; 3] }
    });
    let pending = paged.queue(&lines, 1).unwrap();
    let sampled = paged.sampled(&pending).unwrap();
    for (b, (ids, _)) in texts.iter().enumerate() {
        let mut text = decoder.continuation().unwrap();
        for t in 0..3 {
            let logits = text.logits_after(&ids[..ids.len() - 2 + t]).unwrap();
            assert_eq!(sampled[b][t], greedy.choose(&logits, 0), "text {b}, token {t}");
            assert!(off(&paged.logits(&pending, b, t).unwrap(), &logits) < 1e-4);
        }
    }
    assert!(paged.queue(&lines, 2).is_err(), "several steps of several tokens");
}

#[test]
fn copied_pages_hold_the_same_and_wrong_pages_are_refused() {
    let device = test_device().unwrap();
    let decoder = decoder(&device, "llama", |_| {});
    let greedy = Rules::greedy();
    let mut paged = Paged::new(&decoder, 9, PAGE, CacheType::Q8_0, None).unwrap();
    assert_eq!((paged.count(), paged.page(), paged.longest()), (9, PAGE, 36));
    let ids = ids(1, 9);
    paged.read(&ids[..8], 0, &[3, 5], 8).unwrap();
    paged.copy(3, 7).unwrap();
    paged.copy(5, 0).unwrap();
    let mut of = |pages: &[u32]| {
        let line = Line { tokens: &ids[8..], position: 8, pages, rules: &greedy, words: &[0] };
        let pending = paged.queue(&[line], 1).unwrap();
        let logits = paged.logits(&pending, 0, 0).unwrap();
        let sampled = paged.sampled(&pending).unwrap();
        // Without random words nothing is sampled, and later draws are not shifted.
        let pending = paged.queue(&[Line { words: &[], ..line }], 1).unwrap();
        assert_eq!(paged.logits(&pending, 0, 0).unwrap(), logits);
        assert!(paged.sampled(&pending).is_err());
        let pending = paged.queue(&[line], 1).unwrap();
        assert_eq!(paged.sampled(&pending).unwrap(), sampled);
        logits
    };
    assert_eq!(of(&[3, 5, 1]), of(&[7, 0, 2]));
    let whole = paged.read(&ids, 0, &[3, 5], 9).unwrap_err();
    assert!(whole.message().contains("9 tokens in pages [3, 5] of 4"), "{whole}");
    assert!(paged.read(&ids, 0, &[3, 5, 9], 9).is_err() && paged.read(&[], 0, &[3], 0).is_err());
    assert!(paged.copy(0, 9).is_err());
    let line = Line { tokens: &[1], position: 12, pages: &[3, 5, 1], rules: &greedy, words: &[0] };
    assert!(paged.queue(&[line], 1).is_err());
}

/// Other frequencies for texts of more than 12 tokens.
fn long_angles(config: &mut DecoderConfig) {
    config.rotary.iter_mut().for_each(|set| {
        let pairs = set.dims / 2;
        set.scaling = Scaling::LongRope {
            short: vec![1.0; pairs],
            long: (0..pairs).map(|i| 3.0 + i as f64).collect(),
            original: 12,
            magnitude: 1.2,
        };
    });
}

/// A prompt that is read in parts uses the rotary angles of its whole length in all parts, and no state with other angles is kept.
#[test]
fn prompts_in_parts_have_the_angles_of_their_length() {
    let device = test_device().unwrap();
    let decoder = decoder(&device, "llama", long_angles);
    let whole = |ids: &[u32]| {
        let all = Tensor::from_u32(&device, [1, ids.len()], ids).unwrap();
        let logits = no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap();
        logits[logits.len() - VOCAB..].to_vec()
    };
    let mut text = decoder.continuation().unwrap();
    for n in [9, 21, 11, 12, 13, 30] {
        let ids = ids(1, n);
        // The prompts have a common prefix; if angles differ, nothing can be kept.
        for part in [4, 8, 10, 16, 20] {
            if part < n {
                text.begin(&ids[..part], n).unwrap();
                assert!(text.keeps(n) && !text.keeps(if n > 12 { 12 } else { 13 }));
            }
        }
        let logits = text.logits_after(&ids).unwrap();
        assert!(off(&logits, &whole(&ids)) < 1e-5, "{n} tokens");
    }
}

/// A text that exceeds LongRoPE's original context, token by token and ahead, gives at each length the same result as when read at once. Keys with
/// short and with long frequencies are never mixed.
#[test]
fn a_text_that_grows_past_the_original_context_is_rotated_anew() {
    let device = test_device().unwrap();
    let decoder = decoder(&device, "llama", long_angles);
    let whole = |ids: &[u32]| {
        let all = Tensor::from_u32(&device, [1, ids.len()], ids).unwrap();
        let logits = no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap();
        logits[logits.len() - VOCAB..].to_vec()
    };
    let all = ids(1, 20);
    let mut text = decoder.continuation().unwrap();
    for n in [7, 8, 9, 10, 11, 12, 13, 14, 15, 12, 13, 20, 4] {
        assert!(off(&text.logits_after(&all[..n]).unwrap(), &whole(&all[..n])) < 1e-5, "{n} tokens");
    }
    let by = Arc::new(Chooser::new(&device, &Rules::greedy(), 1, VOCAB, None).unwrap().unwrap());
    let mut made = all[..9].to_vec();
    while made.len() < 18 {
        let best = Rules::greedy().choose(&whole(&made), 0);
        let choice = Choice { by: &by, word: &|_| 0, most: 30 };
        assert_eq!(text.token_after(&made, &choice).unwrap(), Some(best), "{} tokens", made.len());
        made.push(best);
    }
}

/// A single text takes one launch per token if supported, for any pages and changes of its table, with the results of several launches.
#[test]
fn a_single_text_is_one_launch() {
    let device = crate::decoder::step::whole_tests::device();
    let drawn = Rules::new(&[SamplingRule::Temperature(0.8), SamplingRule::TopK(9)]).unwrap();
    for family in ["gpt2", "gemma3_text", "llama"] {
        let decoder = decoder(&device, family, |config| {
            config.kinds.iter_mut().for_each(|kind| kind.window = kind.window.map(|_| 5));
        });
        for (rules, page) in [(Rules::greedy(), 3), (drawn.clone(), PAGE)] {
            let said = [WeightPath::Ring, WeightPath::Direct].map(|text| {
                let mut paged = Paged::new(&decoder, 31, page, CacheType::Weights, None).unwrap();
                let mut pages: Vec<u32> = [7, 2, 30, 11, 0, 19, 4, 23, 16, 9].to_vec();
                let mut ids = ids(1, 8);
                paged.fill(&ids[..7], 0, &pages, 8).unwrap();
                for steps in [1, 1, 1, 4, 2] {
                    if ids.len() > 9 && pages[8] == 16 {
                        // Another page for further tokens, and a copied one.
                        paged.copy(pages[1], 28).unwrap();
                        (pages[1], pages[8]) = (28, 13);
                    }
                    let position = ids.len() - 1;
                    let words: Vec<u32> =
                        (0..steps).map(|n| (position as u32 + n + 1).wrapping_mul(2_654_435_761)).collect();
                    let line = Line {
                        tokens: &ids[position..],
                        position,
                        pages: &pages,
                        rules: &rules,
                        words: &words,
                    };
                    let pending = paged.queue(&[line], steps as usize).unwrap();
                    ids.extend(&paged.sampled(&pending).unwrap()[0]);
                    paged.run_by(text);
                }
                let launches = paged.stage_launches().unwrap();
                assert_eq!(launches == 1, text == WeightPath::Direct, "{family}: {launches}");
                ids
            });
            assert_eq!(said[0], said[1], "{family}: {rules:?}");
        }
    }
}

/// A few texts of any lengths also take one launch per token, including unused rows, with the results of several launches.
#[test]
fn a_few_texts_are_one_launch() {
    let device = crate::decoder::step::whole_tests::device();
    let drawn = Rules::new(&[SamplingRule::Temperature(0.8), SamplingRule::TopK(9)]).unwrap();
    for (family, count) in [("gpt2", 2), ("gemma3_text", 3), ("llama", 4)] {
        let decoder = decoder(&device, family, |config| {
            config.kinds.iter_mut().for_each(|kind| kind.window = kind.window.map(|_| 5));
        });
        let rules = [Rules::greedy(), drawn.clone(), Rules::greedy(), drawn.clone()];
        let said = [WeightPath::Ring, WeightPath::Direct].map(|text| {
            let mut paged = Paged::new(&decoder, 40, PAGE, CacheType::Weights, None).unwrap();
            let fourth = (ids(3, 6), (0..5).map(|i| 30 + 7 * i % 10).collect());
            let mut texts: Vec<_> = texts().into_iter().chain([fourth]).take(count).collect();
            read(&paged, &texts);
            for steps in [1, 1, 1, 4, 2] {
                let of = |(b, (ids, _)): (usize, &(Vec<u32>, Vec<u32>))| -> Vec<u32> {
                    let word = |n: usize| ((ids.len() + n) as u32).wrapping_mul(2_654_435_761) ^ b as u32;
                    (0..steps).map(word).collect()
                };
                let words: Vec<Vec<u32>> = texts.iter().enumerate().map(of).collect();
                let lines = texts.iter().zip(&words).zip(&rules).map(|(((ids, pages), words), rules)| {
                    let position = ids.len() - 1;
                    Line { tokens: &ids[position..], position, pages, rules, words }
                });
                let lines: Vec<Line<'_>> = lines.collect();
                let pending = paged.queue(&lines, steps).unwrap();
                for ((ids, _), sampled) in texts.iter_mut().zip(paged.sampled(&pending).unwrap()) {
                    ids.extend(sampled);
                }
                paged.run_by(text);
            }
            let launches = paged.stage_launches().unwrap();
            assert_eq!(launches == 1, text == WeightPath::Direct, "{family}: {launches}");
            texts
        });
        assert_eq!(said[0], said[1], "{family}");
    }
}
