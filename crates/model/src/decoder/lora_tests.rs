use super::super::{Decoder, DecoderConfig, Freeze, Sizes};
use super::*;
use crate::checkpoint::TensorData;
use crate::layers::Mode;
use crate::model::Model;
use netcl_tensor::suite::test_device;
use netcl_tensor::{DType, Device};
use std::collections::BTreeMap;

/// A tiny model of a family.
fn config(family: &str) -> DecoderConfig {
    let sizes = Sizes { layers: 2, heads: 2, width: 16, context: 8, vocab: 24, ..Sizes::default() };
    DecoderConfig::of(family, &sizes).unwrap()
}

fn adapted(device: &Device, config: &DecoderConfig, lora: &Lora) -> Decoder {
    let freeze = Freeze::default();
    let mut model = Decoder::partly_frozen(device, config.clone(), DType::F32, Some(3), &freeze).unwrap();
    model.add_lora(lora, Some(5)).unwrap();
    // B is zero at first, which hides errors of A.
    for (shape, parameter) in model.adapter_parameters().filter(|(shape, _)| shape.name.contains("lora_B")) {
        let count = shape.count();
        let values: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) * 2e-3).collect();
        parameter.set_f32(&values).unwrap();
    }
    model
}

fn batch(device: &Device) -> [Tensor; 2] {
    let ids = |by: u32| (0..12).map(|i| (i * by + 1) % 24).collect::<Vec<_>>();
    [5, 7].map(|by| Tensor::from_u32(device, [2, 6], &ids(by)).unwrap())
}

/// Tensors by name.
fn by_name(tensors: Vec<TensorData>) -> BTreeMap<String, TensorData> {
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

fn floats(tensor: &TensorData) -> Vec<f32> {
    tensor.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// left (rows, inner) · right (inner, columns).
fn product(left: &[f32], right: &[f32], inner: usize) -> Vec<f32> {
    let columns = right.len() / inner;
    let at = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        (0..inner).map(|k| left[row * inner + k] * right[k * columns + column]).sum()
    };
    (0..left.len() / inner * columns).map(at).collect()
}

fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns;
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}

/// Adds the product of rank 3 and factor 2 to each adapted matrix; `turned` ones are stored as (in, out).
fn merge(whole: &Decoder, adapters: &BTreeMap<String, TensorData>, turned: bool) {
    let mut merged = by_name(whole.tensors().unwrap());
    for (name, a) in adapters.iter().filter(|(name, _)| name.contains("lora_A")) {
        let b = &adapters[&name.replace("lora_A", "lora_B")];
        let own = name.strip_prefix(PEFT).unwrap().replace(".lora_A.", ".");
        let delta = product(&floats(b), &floats(a), 3);
        let delta = if turned { transposed(&delta, a.shape[1]) } else { delta };
        let tensor = merged.get_mut(&own).unwrap();
        let sum: Vec<f32> = floats(tensor).iter().zip(&delta).map(|(w, d)| w + 2.0 * d).collect();
        tensor.bytes = sum.iter().flat_map(|v| v.to_le_bytes()).collect();
    }
    whole.load_tensors(&merged.into_values().collect::<Vec<_>>()).unwrap();
}

/// The loss of the model with adapters is that of the model with merged weights, and their gradients follow from that of the merged matrix:
/// dA = s Bᵀ dW and dB = s dW Aᵀ.
#[test]
fn adapters_compute_what_merged_weights_compute() {
    let device = test_device().unwrap();
    for (family, targets) in
        [("llama", ""), ("gpt2", ""), ("qwen3", "+q_proj+down_proj"), ("gpt_neox", ""), ("phi3", "+qkv_proj")]
    {
        let targets = if targets.is_empty() { "all" } else { &targets[1..] };
        let lora = Lora::parse(&format!("r=3,alpha=6,targets={targets}")).unwrap();
        let config = config(family);
        let (model, [ids, targets]) = (adapted(&device, &config, &lora), batch(&device));
        let loss = model.loss(&ids, &targets, Mode::eval()).unwrap();
        loss.backward().unwrap();

        let adapters = by_name(model.adapter_state().iter().map(|t| t.take().unwrap()).collect());
        let whole = Decoder::new(&device, config.clone(), DType::F32, 3).unwrap();
        let turned = config.family.names.transposed;
        merge(&whole, &adapters, turned);
        let expected = whole.loss(&ids, &targets, Mode::eval()).unwrap();
        expected.backward().unwrap();
        let (found, expected) = (loss.item().unwrap(), expected.item().unwrap());
        assert!((found - expected).abs() < 1e-5, "{family}: {found}, merged {expected}");

        // The gradients of the merged model, in the layout of files.
        for param in whole.params().list() {
            param.set_f32(&param.grad().unwrap().to_vec().unwrap()).unwrap();
        }
        let gradients = by_name(whole.tensors().unwrap());
        for param in model.params().trained() {
            param.set_f32(&param.grad().unwrap().to_vec().unwrap()).unwrap();
        }
        let own = by_name(model.adapter_state().iter().map(|t| t.take().unwrap()).collect());
        assert_eq!(own.len(), adapters.len());
        for (name, gradient) in &own {
            let part = if name.contains("lora_A") { "lora_A" } else { "lora_B" };
            let other = if part == "lora_A" { "lora_B" } else { "lora_A" };
            let dw = &gradients[&name.strip_prefix(PEFT).unwrap().replace(&format!(".{part}."), ".")];
            let dw = if turned { transposed(&floats(dw), dw.shape[1]) } else { floats(dw) };
            let other = &adapters[&name.replace(part, other)];
            let (values, columns) = (floats(other), other.shape[1]);
            let expected = match part {
                "lora_A" => product(&transposed(&values, columns), &dw, other.shape[0]),
                _ => product(&dw, &transposed(&values, columns), columns),
            };
            let found = floats(gradient);
            assert_eq!(found.len(), expected.len(), "{family}: {name}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - 2.0 * expected).abs() < 2e-6,
                    "{family}: {name}: {found}, {}",
                    2.0 * expected
                );
            }
        }
        assert!(
            model.params().list().iter().all(|p| p.requires_grad() == p.name().unwrap().contains("lora_"))
        );
    }
}

#[test]
fn a_new_adapter_changes_nothing_and_files_restore_it() {
    let device = test_device().unwrap();
    let (config, lora) = (config("llama"), Lora::parse("4").unwrap());
    let [ids, targets] = batch(&device);
    let plain = Decoder::new(&device, config.clone(), DType::F32, 3).unwrap();
    let mut fresh =
        Decoder::partly_frozen(&device, config.clone(), DType::F32, Some(3), &Freeze::default()).unwrap();
    fresh.add_lora(&lora, Some(5)).unwrap();
    let loss = |model: &Decoder| model.loss(&ids, &targets, Mode::eval()).unwrap().item().unwrap();
    assert!((loss(&plain) - loss(&fresh)).abs() < 1e-6);

    let trained = adapted(&device, &config, &lora);
    let state: Vec<TensorData> = trained.adapter_state().iter().map(|t| t.take().unwrap()).collect();
    let views = || state.iter().map(TensorData::view).collect::<Vec<_>>();
    fresh.load_state(&views()).unwrap();
    assert_eq!(loss(&fresh), loss(&trained));
    let message = |views: &[_]| fresh.load_state(views).unwrap_err().to_string();
    assert!(message(&views()[1..]).contains("does not contain the tensor base_model.model.model.layers.0"));
    let other = TensorData { name: "other".into(), ..state[0].clone() };
    assert!(message(&[&views()[..], &[other.view()]].concat()).contains("does not have a slot"));
    // Rows of tokens one by one, as when sampling, are the same as all at once.
    let logits = trained.forward(&ids.slice(0, 0..1).unwrap(), Mode::eval()).unwrap().to_vec().unwrap();
    let ids = ids.to_u32().unwrap();
    let mut text = trained.continuation().unwrap();
    let mut last = Vec::new();
    for n in 1..=6 {
        last = text.logits_after(&ids[..n]).unwrap();
    }
    for (one, all) in last.iter().zip(&logits[5 * 24..]) {
        assert!((one - all).abs() < 1e-5, "{one} {all}");
    }
}

#[test]
fn settings_are_read_and_refused() {
    let lora = Lora::parse("r=8, alpha=32, targets=q_proj+v_proj, rslora=true").unwrap();
    assert_eq!((lora.rank, lora.alpha, lora.targets.len()), (8, 32.0, 2));
    assert!((lora.factor() - 32.0 / 8f64.sqrt()).abs() < 1e-12);
    assert_eq!(Lora::parse("16").unwrap(), Lora::parse("rank=16,lora_alpha=16,targets=all").unwrap());
    for (text, part) in [
        ("0", "expected 1 to 4096"),
        ("alpha=3", "the rank is missing"),
        ("r=4,alpha=-1", "a number above 0"),
        ("r=4,dora=true", "DoRA"),
        ("r=4,dropout=0.1", "dropout"),
        ("r=4,target=q", "did you mean targets"),
        ("r=4,targets=", "targets is empty"),
    ] {
        let message = Lora::parse(text).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("--lora"), "{message}");
    }
    let message =
        Lora::parse("r=2,targets=q_pro").unwrap().adapters(&config("llama")).unwrap_err().to_string();
    assert!(message.contains("did you mean q_proj") && message.contains("down_proj"), "{message}");
    let count =
        |targets: &str| Lora::parse(&format!("r=2,targets={targets}")).unwrap().elements(&config("llama"));
    assert_eq!(count("model.layers.1.*") * 2, count("all"));
    assert_eq!(count("o_proj"), 2 * 2 * (16 + 16));
}
