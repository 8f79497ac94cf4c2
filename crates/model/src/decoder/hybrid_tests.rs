//! Models with moving averages in some or all layers: trained in parallel, continued token by token, truncated, in caches and in pages.

use super::paged_tests::{VOCAB, as_alone, ids, off, several_tokens};
use super::*;
use crate::model::Choice;
use netcl_device::Settings;
use netcl_tensor::no_grad;
use netcl_tensor::ops::choose::{Chooser, Rules};
use netcl_tensor::suite::test_device;

fn average() -> LayerKind {
    LayerKind { mixer: MOVING_AVERAGE, ..LayerKind::default() }
}

/// Attention in every other layer, or in none.
fn change(with_attention: bool) -> impl Fn(&mut DecoderConfig) {
    move |config| {
        let attention = config.kind(0);
        config.kinds = if with_attention { vec![average(), attention] } else { vec![average()] };
        (config.layers, config.context) = (3, 400);
    }
}

fn hybrid(device: &Device, with_attention: bool) -> Decoder {
    paged_tests::decoder(device, "llama", change(with_attention))
}

/// Returns the logits (V) after the last of `ids`, from a pass over all of them.
fn whole(decoder: &Decoder, ids: &[u32]) -> Vec<f32> {
    let all = Tensor::from_u32(decoder.params().device(), [1, ids.len()], ids).unwrap();
    let logits = no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap();
    logits[logits.len() - VOCAB..].to_vec()
}

#[test]
fn texts_with_recurrent_states_are_as_each_alone() {
    let device = test_device().unwrap();
    let gpt2 = paged_tests::decoder(&device, "gpt2", change(true));
    for decoder in [hybrid(&device, true), hybrid(&device, false), gpt2] {
        as_alone(&decoder, CacheType::Weights, 1e-4);
        several_tokens(&decoder);
    }
    as_alone(&hybrid(&Device::open("sim", &Settings::default()).unwrap(), true), CacheType::Weights, 1e-4);
}

/// A cache grows beyond its first 256 tokens, and texts are truncated: by a few tokens directly, further by reading the tokens after a snapshot
/// again.
#[test]
fn texts_grow_and_go_back() {
    let device = test_device().unwrap();
    for with_attention in [true, false] {
        let decoder = hybrid(&device, with_attention);
        let all = ids(2, 300);
        let mut text = decoder.continuation().unwrap();
        for n in [130, 131, 132, 129, 100, 101, 70, 64, 63, 3, 255, 256, 257, 258, 250, 300, 290] {
            let off = off(&text.logits_after(&all[..n]).unwrap(), &whole(&decoder, &all[..n]));
            assert!(off < 1e-4, "{n} tokens: {off}");
        }
        assert!(text.launches().is_some(), "steps are not captured");
        // Steps ran ahead of a text whose next token differs.
        let by = Arc::new(Chooser::new(&device, &Rules::greedy(), 1, VOCAB, None).unwrap().unwrap());
        let choice = Choice { by: &by, word: &|_| 0, most: 60 };
        let mut made = all[..50].to_vec();
        for n in 0..40 {
            let best = Rules::greedy().choose(&whole(&decoder, &made), 0);
            assert_eq!(text.token_after(&made, &choice).unwrap(), Some(best), "{} tokens", made.len());
            made.push(if n % 13 == 12 { (best + 1) % VOCAB as u32 } else { best });
        }
    }
}

#[test]
fn a_cache_goes_back_as_far_as_its_states_do() {
    let device = test_device().unwrap();
    let decoder = hybrid(&device, true);
    let mut cache = decoder.cache(2, 200).unwrap();
    let all = Tensor::from_u32(&device, [2, 90], &ids(1, 180)).unwrap();
    let read = |cache: &mut Cache, range: std::ops::Range<usize>| {
        let logits = decoder.next_logits(&all.slice(1, range).unwrap().contiguous().unwrap(), cache);
        logits.unwrap().to_vec().unwrap()
    };
    let expected = read(&mut cache, 0..90);
    assert_eq!([85, 83, 70].map(|length| cache.truncate(length)), [85, 83, 64]);
    assert!(off(&read(&mut cache, 64..90), &expected) < 1e-4);
    assert_eq!(cache.truncate(20), 0);
    let attention = paged_tests::decoder(&device, "llama", |_| {});
    let mut cache = attention.cache(1, 30).unwrap();
    attention.next_logits(&Tensor::from_u32(&device, [1, 25], &ids(1, 25)).unwrap(), &mut cache).unwrap();
    assert_eq!([20, 3, 9].map(|length| cache.truncate(length)), [20, 3, 3]);
}

/// The gradient of every parameter of a moving average is that of the loss, and training lowers the loss.
#[test]
fn moving_averages_are_trained() {
    let device = test_device().unwrap();
    let decoder = hybrid(&device, true);
    let [x, y] = [0, 1].map(|from| Tensor::from_u32(&device, [2, 11], &ids(1, 23)[from..from + 22]).unwrap());
    let loss = |mode: Mode<'_>| decoder.loss(&x, &y, mode).unwrap();
    let value = || no_grad(|| loss(Mode::eval())).to_vec().unwrap()[0];
    let params = decoder.params().list();
    loss(Mode::eval()).backward().unwrap();
    let gradients: Vec<Vec<f32>> = params.iter().map(|p| p.grad().unwrap().to_vec().unwrap()).collect();
    for (p, gradient) in params.iter().zip(&gradients).filter(|(p, _)| p.name().unwrap().contains("average"))
    {
        let before = p.to_vec().unwrap();
        // The difference is taken along the gradient, where rounding counts least.
        let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
        let at = |by: f32| {
            p.set_f32(&before.iter().zip(gradient).map(|(v, g)| v + by * g / norm).collect::<Vec<_>>())
                .unwrap();
            value()
        };
        let slope = (at(0.001) - at(-0.001)) / 0.002;
        at(0.0);
        let name = p.name().unwrap();
        assert!((slope - norm).abs() < 0.05 * norm + 1e-3, "{name}: slope {slope}, gradient {norm}");
    }
    params.iter().for_each(|p| p.set_grad(None));
    loss(Mode { recompute: Recompute::Block, ..Mode::eval() }).backward().unwrap();
    let first = value();
    for step in 0..12 {
        for p in params {
            let gradient = p.grad().unwrap().to_vec().unwrap();
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4 * a.abs().max(1.0);
            let index = params.iter().position(|other| other.name() == p.name()).unwrap();
            assert!(
                step > 0 || gradient.iter().zip(&gradients[index]).all(near),
                "recomputed: {:?}",
                p.name()
            );
            let moved: Vec<f32> =
                p.to_vec().unwrap().iter().zip(&gradient).map(|(v, g)| v - 0.02 * g).collect();
            p.set_f32(&moved).unwrap();
            p.set_grad(None);
        }
        loss(Mode::eval()).backward().unwrap();
    }
    assert!(value() < 0.8 * first, "{} after {first}", value());
}

/// No family's files describe such a model, but its weights are counted and read back by name.
#[test]
fn hybrids_have_their_own_sizes_and_no_files() {
    let device = test_device().unwrap();
    let [mixed, other] = [3, 4].map(|_| hybrid(&device, true));
    let (c, names) = (16, ["in_proj.weight", "decay", "out_proj.weight"]);
    for layer in [0, 2] {
        let shapes = mixed.config().block_shapes(layer);
        let own = shapes.iter().filter(|shape| shape.name.contains("average")).map(|shape| &shape.dims[..]);
        assert_eq!(own.collect::<Vec<_>>(), [&[c, c][..], &[c], &[c, c]]);
        for name in names {
            assert!(mixed.params().get(&format!("model.layers.{layer}.average.{name}")).is_some(), "{name}");
        }
    }
    other.load_tensors(&mixed.tensors().unwrap()).unwrap();
    assert_eq!(other.tensors().unwrap(), mixed.tensors().unwrap());
    assert!(mixed.config().to_json(&FileFacts::default()).is_err());
    let [average, attention] = [0, 1].map(|i| mixed.config().state(i));
    assert_eq!((average.window(), attention.window(), mixed.longest_window()), (Some(2), None, None));
    assert_eq!(hybrid(&device, false).longest_window(), Some(2));
    // Nine values per 64 tokens of a text, and nine per page.
    assert_eq!(average.bytes(130, DType::F32), 3 * 9 * 16 * 4);
    assert_eq!(average.page_bytes(32, CacheType::Q8_0, DType::F32), 9 * 16 * 4);
    assert_eq!(attention.bytes(130, DType::F16), 130 * 2 * 8 * 2);
}
