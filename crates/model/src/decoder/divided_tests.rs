//! Compares decoders with layers on several devices with the same decoder on one.

use super::*;
use crate::model::Choice;
use netcl_device::Settings;
use netcl_tensor::no_grad;
use netcl_tensor::ops::choose::{Chooser, Rules, SamplingRule};
use netcl_tensor::random::Generator;
use netcl_tensor::suite::test_device;

const VOCAB: usize = 37;
const LAYERS: usize = 3;

fn config(family: &str) -> DecoderConfig {
    let plain = ["gpt2", "gpt_neox"].contains(&family);
    let sizes = Sizes {
        layers: LAYERS,
        heads: 4,
        kv_heads: (!plain).then_some(2),
        width: 32,
        mlp: Some(48),
        context: 64,
        vocab: VOCAB,
        ..Sizes::default()
    };
    let mut config = DecoderConfig::of(family, &sizes).unwrap();
    config.kinds.iter_mut().for_each(|kind| kind.window = kind.window.map(|_| 5));
    config
}

/// Returns a model of random weights whose logits differ clearly, including random norms and biases.
fn model(device: &Device, config: DecoderConfig, dtype: DType) -> Decoder {
    let decoder = Decoder::new(device, config, dtype, 3).unwrap();
    let mut generator = Generator::new(5);
    for p in decoder.params.list() {
        let factor = p.shape().rank() == 1 && p.name().is_some_and(|name| name.ends_with("weight"));
        p.set_normal(if factor { 1.0 } else { 0.0 }, 0.2, &mut generator).unwrap();
    }
    decoder
}

/// Returns the same model with this many layers on each device.
fn divided(whole: &Decoder, layers: &[(&Device, usize)]) -> Decoder {
    let spans = Span::in_order(layers.iter().map(|(device, count)| ((*device).clone(), *count)));
    let config = (*whole.config).clone();
    let decoder = Decoder::divided(&spans, config, whole.params.dtype(), None, BTreeMap::new()).unwrap();
    for (shape, p) in decoder.shapes.iter().zip(decoder.params.list()) {
        // A copy has the name of its only source tensor.
        let name = if shape.is_copy(&whole.config) { &shape.pieces[0].0 } else { &shape.name };
        stage::carry(whole.params.get(name).unwrap(), p).unwrap();
    }
    decoder
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 3) % VOCAB) as u32).collect()
}

/// Returns the logits of a prompt as a whole, of the same in two parts through the cache, and after each of some single tokens.
fn logits(decoder: &Decoder) -> Vec<Vec<f32>> {
    let all = Tensor::from_u32(decoder.params.device(), [1, 9], &ids(9)).unwrap();
    let mut out = vec![no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap()];
    let mut text = decoder.continuation().unwrap();
    for n in [7, 9, 10, 11, 12, 13, 14, 15] {
        out.push(text.logits_after(&ids(n)).unwrap());
    }
    assert!(text.launches().is_some(), "steps are not captured");
    out
}

/// Returns tokens that the device samples after a prompt, each from the previous one.
fn said(decoder: &Decoder, rules: &Rules, tokens: usize) -> Vec<u32> {
    let by = Arc::new(Chooser::new(decoder.last_device(), rules, 1, VOCAB, None).unwrap().unwrap());
    let (mut text, mut all) = (decoder.continuation().unwrap(), ids(6));
    for n in 0..tokens {
        let word = |ahead: usize| ((n + ahead) as u32 + 1).wrapping_mul(0x9e37_79b9);
        let choice = Choice { by: &by, word: &word, most: tokens - n };
        let token = text.token_after(&all, &choice).unwrap().unwrap();
        all.push(token);
    }
    all.split_off(6)
}

/// The largest difference, relative to the largest value.
fn off(found: &[f32], expected: &[f32]) -> f32 {
    let most = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / most
}

/// Two and three stages on devices of the same kind as a single stage compute the same bits, in every family.
#[test]
fn every_family_says_the_same_on_several_devices() {
    let devices = [0; 3].map(|_| test_device().unwrap());
    let [a, b, c] = &devices;
    for family in FAMILIES.iter().map(|row| row.family.model_type) {
        let whole = model(a, config(family), DType::F32);
        let expected = logits(&whole);
        for layers in [vec![(a, 2), (b, 1)], vec![(a, 1), (b, 1), (c, 1)], vec![(a, 1), (a, 2)]] {
            let parts = divided(&whole, &layers);
            assert_eq!(parts.spans().count(), layers.len());
            assert!(logits(&parts) == expected, "{family} on {}", layers.len());
        }
    }
}

/// The data passed between stages is in storage format: also with 16 bits nothing is lost.
#[test]
fn tokens_are_sampled_on_the_last_device() {
    let [a, b] = [0; 2].map(|_| test_device().unwrap());
    let drawn = Rules::new(&[SamplingRule::Temperature(0.8), SamplingRule::TopK(9)]).unwrap();
    for (family, dtype) in [("gpt2", DType::F32), ("gemma2", DType::Bf16), ("llama", DType::F16)] {
        let whole = model(&a, config(family), dtype);
        let parts = divided(&whole, &[(&a, 1), (&b, 2)]);
        assert!(logits(&parts) == logits(&whole), "{family} in {dtype}");
        for rules in [Rules::greedy(), drawn.clone()] {
            let (found, expected) = (said(&parts, &rules, 40), said(&whole, &rules, 40));
            assert_eq!(found, expected, "{family} in {dtype}: {rules:?}");
        }
    }
}

/// A model of which one stage is on the simulated device differs only by rounding.
#[test]
fn a_simulated_device_takes_a_part() {
    let here = test_device().unwrap();
    let sim = Device::open("sim", &Settings::default()).unwrap();
    for family in ["llama", "gpt2", "gemma2"] {
        let whole = model(&here, config(family), DType::F32);
        let expected = logits(&whole);
        for layers in [[(&sim, 2), (&here, 1)], [(&here, 1), (&sim, 2)]] {
            let parts = divided(&whole, &layers);
            let found = logits(&parts);
            let worst = found.iter().zip(&expected).map(|(a, b)| off(a, b)).fold(0.0, f32::max);
            assert!(worst < 1e-5, "{family}: {worst:e}");
            let greedy = Rules::greedy();
            assert_eq!(said(&parts, &greedy, 12), said(&whole, &greedy, 12), "{family}");
        }
    }
}

/// Texts in pages: prompts in chunks, a copied page, steps of several texts and several tokens; logits and sampled tokens.
fn in_pages(decoder: &Decoder, kind: CacheType) -> (Vec<Vec<f32>>, Vec<Vec<u32>>) {
    let mut cache = Paged::new(decoder, 16, 4, kind, None).unwrap();
    let (mut logits, mut sampled) = (Vec::new(), Vec::new());
    let (long, short) = (ids(11), ids(3));
    cache.fill(&long[..6], 0, &[3, 9, 1], 11).unwrap();
    logits.push(cache.read(&long[6..], 6, &[3, 9, 1], 11).unwrap().to_vec().unwrap());
    logits.push(cache.read(&short, 0, &[7], 3).unwrap().to_vec().unwrap());
    cache.copy(7, 5).unwrap();
    let drawn = Rules::new(&[SamplingRule::TopK(5), SamplingRule::Temperature(0.7)]).unwrap();
    let (mut next, mut at) = ([4, 8], [11, 3]);
    for steps in [1, 1, 1, 3] {
        let words: Vec<u32> = (1..=steps as u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let line = |b: usize| Line {
            tokens: &next[b..=b],
            position: at[b],
            pages: [&[3, 9, 1, 14, 15][..], &[5, 11, 12, 10, 0][..]][b],
            rules: &drawn,
            words: &words,
        };
        let pending = cache.queue(&[line(0), line(1)], steps).unwrap();
        let made = cache.sampled(&pending).unwrap();
        logits.extend((0..2).map(|b| cache.logits(&pending, b, 0).unwrap()));
        next = [0, 1].map(|b| made[b][steps - 1]);
        at = at.map(|at| at + steps);
        sampled.extend(made);
    }
    let several = Line {
        tokens: &[1, 2, 3],
        position: at[1],
        pages: &[5, 11, 12, 10],
        rules: &drawn,
        words: &[9, 8, 7],
    };
    for _ in 0..3 {
        let pending = cache.queue(&[several], 1).unwrap();
        sampled.extend(cache.sampled(&pending).unwrap());
        logits.push(cache.logits(&pending, 0, 2).unwrap());
    }
    (logits, sampled)
}

#[test]
fn texts_in_pages_are_the_same_on_several_devices() {
    let [a, b] = [0; 2].map(|_| test_device().unwrap());
    for (family, kind) in
        [("llama", CacheType::Weights), ("mixtral", CacheType::Weights), ("mistral", CacheType::Q8_0)]
    {
        let whole = model(&a, config(family), DType::F32);
        let parts = divided(&whole, &[(&a, 1), (&b, 2)]);
        assert!(in_pages(&parts, kind) == in_pages(&whole, kind), "{family}");
    }
}

/// A divided model has the same loss in windows, as for perplexity, and the same weights by name, written and read.
#[test]
fn losses_and_files_are_the_same() {
    let [a, b] = [0; 2].map(|_| test_device().unwrap());
    for family in ["gpt2", "gemma2"] {
        let whole = model(&a, config(family), DType::F32);
        assert!(whole.config.tied, "{family}");
        let parts = divided(&whole, &[(&a, 1), (&b, 2)]);
        let [x, y] = [0, 1].map(|shift| Tensor::from_u32(&a, [2, 6], &ids(13)[shift..shift + 12]).unwrap());
        let loss =
            |decoder: &Decoder| no_grad(|| decoder.loss(&x, &y, Mode::eval())).unwrap().item().unwrap();
        assert_eq!(loss(&parts).to_bits(), loss(&whole).to_bits(), "{family}");
        let (files, expected) = (parts.tensors().unwrap(), whole.tensors().unwrap());
        assert_eq!(files.len(), expected.len());
        assert!(files.iter().zip(&expected).all(|(a, b)| a.name == b.name && a.bytes == b.bytes));
        let again = Decoder::divided(
            &parts.spans().cloned().collect::<Vec<_>>(),
            (*whole.config).clone(),
            DType::F32,
            Some(9),
            BTreeMap::new(),
        )
        .unwrap();
        let drawn = Decoder::new(&a, (*whole.config).clone(), DType::F32, 9).unwrap();
        assert!(logits(&again) == logits(&drawn), "{family}: first values");
        again.load_tensors(&files).unwrap();
        assert!(logits(&again) == logits(&whole), "{family}: loaded");
    }
}

#[test]
fn what_cannot_be_divided_is_said() {
    let [a, b] = [0; 2].map(|_| test_device().unwrap());
    let of = |layers: &[(usize, usize)]| {
        let spans: Vec<Span> =
            layers.iter().map(|(from, to)| Span { device: a.clone(), layers: *from..*to }).collect();
        let made = Decoder::divided(&spans, config("llama"), DType::F32, None, BTreeMap::new());
        made.map(drop).map_err(|e| e.message().to_owned())
    };
    assert_eq!(of(&[(0, 1), (1, 3)]), Ok(()));
    for wrong in [&[][..], &[(0, 2)], &[(0, 2), (2, 4)], &[(0, 3), (3, 3)], &[(1, 3)], &[(0, 2), (1, 3)]] {
        let said = of(wrong).unwrap_err();
        assert!(said.contains("expected all of 0 to 2 in order, at least one on each device"), "{said}");
    }
    // Gradients do not cross devices.
    let whole = model(&a, config("llama"), DType::F32);
    let parts = divided(&whole, &[(&a, 1), (&b, 2)]);
    let x = Tensor::from_u32(&a, [1, 6], &ids(6)).unwrap();
    let refused = parts.loss(&x, &x, Mode::eval()).map(drop).unwrap_err();
    assert!(
        refused.message().contains("gradients of a model whose layers are on several devices"),
        "{refused}"
    );
}
