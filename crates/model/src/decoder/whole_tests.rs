//! Compares steps in one launch with those in several, for every family.

use super::*;
use crate::decoder::{DecoderConfig, FAMILIES, LayerKind, Sizes};
use netcl_device::Settings;
use netcl_tensor::ops::choose::{Rules, SamplingRule};
use netcl_tensor::ops::decode_step::WeightPath;
use netcl_tensor::random::Generator;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device};

/// Returns the test device, or a simulated one if the test device cannot run the kernel.
pub(in crate::decoder) fn device() -> Device {
    let device = test_device().unwrap();
    if WeightPath::Direct.runs_on(&device, 1) {
        device
    } else {
        Device::open("sim:rx7900xtx", &Settings::from_env()).unwrap()
    }
}

/// Returns a model of random weights, including norms and biases. Attention scores differ by several units.
fn model(device: &Device, config: DecoderConfig, dtype: DType) -> Decoder {
    let decoder = Decoder::new(device, config, dtype, 3).unwrap();
    let mut generator = Generator::new(5);
    for p in decoder.params.list() {
        let factor = p.shape().rank() == 1 && p.name().is_some_and(|name| name.ends_with("weight"));
        p.set_normal(if factor { 1.0 } else { 0.0 }, 0.15, &mut generator).unwrap();
    }
    decoder
}

/// Sizes with few factors of two: rows of 24 and 40 words, heads of 24.
fn sizes(family: &str) -> Sizes {
    let plain = ["gpt2", "gpt_neox"].contains(&family);
    Sizes {
        layers: 3,
        heads: 4,
        kv_heads: (!plain).then_some(2),
        width: 96,
        mlp: Some(160),
        context: 64,
        vocab: 37,
        ..Sizes::default()
    }
}

/// The same with windows of a few tokens, if the model has windows.
fn config(family: &str, sizes: &Sizes) -> DecoderConfig {
    let mut config = DecoderConfig::of(family, sizes).unwrap();
    config.kinds.iter_mut().for_each(|kind| kind.window = kind.window.map(|_| 5));
    config
}

/// Returns the logits (V) of single tokens after a prompt: with a step of several launches, and with one launch, or the reason why it is not
/// supported.
fn both(decoder: &Decoder, tokens: usize) -> Result<Vec<[Vec<f32>; 2]>> {
    let device = decoder.params.device();
    let ids: Vec<u32> = (0..6 + tokens as u32).map(|i| (i * i + 3) % decoder.config.vocab as u32).collect();
    let mut caches = [0, 1].map(|_| decoder.cache(1, 32).unwrap());
    for cache in &mut caches {
        decoder.next_logits(&Tensor::from_u32(device, [1, 6], &ids[..6]).unwrap(), cache).unwrap();
    }
    let mut steps = [0, 1].map(|i| Steps::new(decoder, &caches[i], 7).unwrap());
    let (stage, own) = (&decoder.stages[0], &mut steps[1].stages[0]);
    own.whole = Some(no_grad(|| stage.whole_step(caches[1].store().of(0), &own.angles, WeightPath::Direct))?);
    Ok(ids[6..]
        .iter()
        .map(|id| {
            [0, 1].map(|i| {
                steps[i].set(&[*id], caches[i].length()).unwrap();
                let logits = no_grad(|| stage.step(&steps[i].stages[0], caches[i].store().of(0))).unwrap();
                caches[i].extend(1);
                logits.to_vec().unwrap()
            })
        })
        .collect())
}

/// Returns the largest difference of two lists of logits in any step, relative to their size.
fn difference(steps: &[[Vec<f32>; 2]]) -> f64 {
    let of = |[expected, got]: &[Vec<f32>; 2]| {
        let size: f64 = expected.iter().map(|v| f64::from(*v).powi(2)).sum();
        let off: f64 = expected.iter().zip(got).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        (off / size).sqrt()
    };
    // NaN counts as the largest.
    steps.iter().map(of).fold(0.0, |a, b| if b <= a { a } else { b })
}

/// Every family except those with experts has a step in one launch, whose logits equal those of several.
#[test]
fn every_dense_family_is_one_launch() {
    let device = device();
    for family in FAMILIES.iter().map(|row| row.family.model_type) {
        let config = config(family, &sizes(family));
        let sparse = config.mlp.moe.is_some();
        let decoder = model(&device, config, DType::F32);
        match both(&decoder, 6) {
            Ok(steps) => {
                assert!(!sparse, "{family}");
                let off = difference(&steps);
                assert!(off < 1e-5, "{family}: {off:e}");
            }
            Err(e) => assert!(sparse && e.message().contains("mixtures of experts"), "{family}: {e}"),
        }
    }
}

/// Tests options beyond those of the families: activations with and without gate, tied and untied heads, biases of gated maps, heads of many sizes,
/// and layers without rotation.
#[test]
fn every_option_is_one_launch() {
    use crate::decoder::Activation::{Gelu, GeluTanh, Relu, Silu, Tanh};
    let device = device();
    let check = |name: &str, config: DecoderConfig| {
        let off = difference(
            &both(&model(&device, config, DType::F32), 3).unwrap_or_else(|e| panic!("{name}: {e}")),
        );
        assert!(off < 1e-5, "{name}: {off:e}");
    };
    for activation in [GeluTanh, Gelu, Relu, Silu, Tanh] {
        for family in ["gpt2", "llama"] {
            let mut config = config(family, &sizes(family)).with_biases(activation != Relu);
            (config.mlp.activation, config.tied) = (activation, activation != Silu);
            if !config.mlp.gated || activation != Tanh {
                check(&format!("{family} with {activation:?}"), config);
            }
        }
    }
    for size in [8, 40, 64, 128, 256] {
        let mut config = config("qwen3", &Sizes { head_size: Some(size), ..sizes("qwen3") });
        config = config.with_kinds(vec![
            LayerKind { rotary: Some(0), ..LayerKind::default() },
            LayerKind { window: Some(3), ..LayerKind::default() },
        ]);
        config.attention.softcap = Some(2.0);
        config.logits_softcap = Some(1.5);
        config.logits_scale = 0.25;
        check(&format!("heads of {size}"), config);
    }
}

/// Returns true if a step in one launch of `other` agrees with a step in several launches of `decoder`. Both follow a text whose keys and values are
/// changed in between.
fn agrees(decoder: &Decoder, other: &Decoder, change: impl Fn(usize, &mut [f32])) -> bool {
    let device = decoder.params.device();
    let mut cache = decoder.cache(1, 32).unwrap();
    let ids: Vec<u32> = (0..14).map(|i| (i * i + 3) % decoder.config.vocab as u32).collect();
    decoder.next_logits(&Tensor::from_u32(device, [1, 14], &ids).unwrap(), &mut cache).unwrap();
    let mut steps = Steps::new(decoder, &cache, 15).unwrap();
    steps.set(&[5], cache.length()).unwrap();
    let (own, stage) = (&steps.stages[0], &other.stages[0]);
    no_grad(|| {
        let expected = decoder.stages[0].step(own, cache.store().of(0)).unwrap();
        for (layer, rows) in cache.states.layers().iter().map(LayerState::rows).enumerate() {
            let before = rows.slice(1, 0..cache.length()).unwrap();
            let mut values = before.to_vec().unwrap();
            change(layer, &mut values);
            rows.write_slice(1, 0, &Tensor::from_f32(device, before.dims(), &values, rows.dtype()).unwrap())
                .unwrap();
        }
        let whole = stage.whole_step(cache.store().of(0), &own.angles, WeightPath::Direct).unwrap();
        let (input, position) = stage.whole_input(&whole, own).unwrap();
        whole.step.agrees(&input, &position, &expected)
    })
}

/// Rounding in any type is tolerated; a missing bias, or a head that reads the keys of previous positions, is not.
#[test]
fn subtle_mistakes_are_refused() {
    let device = device();
    for family in ["gpt2", "qwen2", "gemma2"] {
        for dtype in DType::FLOATS {
            let config = config(family, &sizes(family));
            let [size, row] = [config.attention.size, 2 * config.attention.kv_heads * config.attention.size];
            let decoder = model(&device, config.clone(), dtype);
            assert!(agrees(&decoder, &decoder, |_, _| ()), "{family} in {dtype}");
            let shifted = |layer: usize, rows: &mut [f32]| {
                let head = rows.chunks(row).flat_map(|row| row[..size].to_vec()).collect::<Vec<_>>();
                let moved = head.iter().cycle().skip(head.len() - size);
                let places = rows.chunks_mut(row).flat_map(|row| &mut row[..size]);
                if layer == 1 {
                    places.zip(moved).for_each(|(to, from)| *to = *from);
                }
            };
            assert!(!agrees(&decoder, &decoder, shifted), "{family} in {dtype}: keys of other positions");
            let other = model(&device, config, dtype);
            let biases =
                other.params.list().iter().filter(|p| p.name().is_some_and(|name| name.ends_with("bias")));
            for bias in biases.filter(|p| p.name().is_some_and(|name| name.contains(".1."))) {
                let bytes = bias.to_bytes().unwrap();
                bias.set_bytes(&vec![0; bytes.len()]).unwrap();
                assert!(
                    !agrees(&decoder, &other, |_, _| ()),
                    "{family} in {dtype}: without {:?}",
                    bias.name()
                );
                bias.set_bytes(&bytes).unwrap();
            }
        }
    }
}

/// Steps are captured with the single launch, and the device's sampled tokens equal those of several launches: greedy and random.
#[test]
fn captured_steps_say_the_same() {
    let device = device();
    for family in ["gpt2", "gemma3_text", "llama"] {
        let decoder = model(&device, config(family, &sizes(family)), DType::F32);
        let drawn = Rules::new(&[SamplingRule::Temperature(0.8), SamplingRule::TopK(9)]).unwrap();
        for rules in [Rules::greedy(), drawn] {
            let said = [WeightPath::Ring, WeightPath::Direct].map(|text| {
                let mut cache = decoder.cache(1, 32).unwrap();
                let mut steps = Steps::new(&decoder, &cache, 1).unwrap();
                steps.run_by(text);
                steps.set(&[7], 0).unwrap();
                let words: Vec<u32> = (1..=12u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
                steps.texts().unwrap().set_count(0).unwrap();
                steps.texts().unwrap().set_words(0, &words).unwrap();
                let by = Arc::new(Chooser::new(&device, &rules, 1, 37, None).unwrap().unwrap());
                for _ in 0..12 {
                    steps.go_on(&decoder, &mut cache, &by).unwrap();
                }
                let event = device.mark().unwrap();
                let launches = steps.stages[0].launches().unwrap();
                assert_eq!(launches == 1, text == WeightPath::Direct, "{family}: {launches}");
                steps.texts().unwrap().made_after(&event, 0, 12).unwrap()
            });
            assert_eq!(said[0], said[1], "{family}: {rules:?}");
        }
    }
}
