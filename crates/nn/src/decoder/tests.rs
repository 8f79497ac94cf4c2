//! Shape, counts, files.

use super::*;
use netcl_tensor::suite::test_device;

fn small(bias: bool) -> DecoderConfig {
    DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 2, heads: 2, width: 16, context: 8, vocab: 11, ..Sizes::default() },
    )
    .unwrap()
    .with_biases(bias)
}

#[test]
fn gpt2_has_the_published_number_of_parameters() {
    let gpt2 = DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 12, heads: 12, width: 768, context: 1024, vocab: 50_257, ..Sizes::default() },
    )
    .unwrap();
    assert_eq!(gpt2.parameters(), 124_439_808);
    let device = test_device().unwrap();
    for bias in [true, false] {
        let gpt = Decoder::new(&device, small(bias), DType::F32, 1).unwrap();
        assert_eq!(gpt.params().count(), small(bias).parameters());
        assert_eq!(gpt.params().arenas().count(), 1, "the whole model is one arena");
    }
}

#[test]
fn weights_survive_the_way_through_a_file_with_and_without_prefix() {
    let device = test_device().unwrap();
    let gpt = Decoder::new(&device, small(true), DType::F32, 1).unwrap();
    let other = Decoder::new(&device, small(true), DType::F32, 2).unwrap();
    let mut state = gpt.tensors().unwrap();
    assert_ne!(other.tensors().unwrap(), state);
    other.load_tensors(&state).unwrap();
    assert_eq!(other.tensors().unwrap(), state);
    for tensor in &mut state {
        tensor.name = tensor.name.trim_start_matches("transformer.").into();
    }
    other.load_tensors(&state).unwrap();
    let tokens = serde_json::json!({ "eos_token_id": 3 }).as_object().unwrap().clone();
    let facts = FileFacts { dtype: Some(DType::F32), dropout: 0.1, tokens };
    let config = DecoderConfig::from_json(&gpt.config_json(&facts).unwrap()).unwrap();
    assert_eq!(config, gpt.config);
}

#[test]
fn a_model_without_biases_writes_zeros_for_them() {
    let device = test_device().unwrap();
    let gpt = Decoder::new(&device, small(false), DType::F32, 1).unwrap();
    let state = gpt.tensors().unwrap();
    let bias = state.iter().find(|t| t.name == "transformer.h.1.attn.c_attn.bias").unwrap();
    assert_eq!((bias.shape.as_slice(), bias.bytes.iter().all(|b| *b == 0)), (&[48usize][..], true));
    assert!(state.iter().any(|t| t.name == "transformer.ln_f.bias"));
    gpt.load_tensors(&state).unwrap();
}

#[test]
fn wrong_weights_are_named() {
    let device = test_device().unwrap();
    let gpt = Decoder::new(&device, small(true), DType::F32, 1).unwrap();
    let state = gpt.tensors().unwrap();
    let mut missing = state.clone();
    missing.retain(|t| t.name != "transformer.wpe.weight");
    assert!(gpt.load_tensors(&missing).unwrap_err().message().contains("no tensor transformer.wpe.weight"));
    let mut shape = state.clone();
    shape[0].shape = vec![16, 11];
    let text = gpt.load_tensors(&shape).unwrap_err();
    assert!(
        text.message().contains("transformer.wte.weight has shape [16, 11], expected [11, 16]"),
        "{text}"
    );
    let mut dtype = state;
    dtype[0].dtype = crate::checkpoint::Dtype::I64;
    assert!(gpt.load_tensors(&dtype).unwrap_err().message().contains("is I64, expected F32"));
}

#[test]
fn impossible_shapes_are_refused() {
    let device = test_device().unwrap();
    let sizes = Sizes { heads: 3, width: 16, ..Sizes::default() };
    let e = DecoderConfig::of("gpt2", &sizes).unwrap_err();
    assert!(e.message().contains("3 heads do not divide a width of 16"), "{e}");
    let mut config = small(true);
    config.width = 1 << 40;
    let Err(e) = Decoder::new(&device, config, DType::F32, 1) else { panic!("made a model 2^40 wide") };
    assert!(e.message().contains("the width is 1099511627776, expected 1 to 2147483647"), "{e}");
    let gpt = Decoder::new(&device, small(true), DType::F32, 1).unwrap();
    let ids = Tensor::from_u32(&device, [1, 9], &[0; 9]).unwrap();
    assert!(gpt.forward(&ids, Mode::eval()).unwrap_err().message().contains("9 tokens, the context is 8"));
}

#[test]
fn flops_follow_the_usual_count() {
    let gpt2 = DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 12, heads: 12, width: 768, context: 1024, vocab: 50_304, ..Sizes::default() },
    )
    .unwrap();
    // About 799 MFLOP a token with causal attention counted half.
    let a_token = gpt2.flops(1, 1024) / 1e6;
    assert!((790.0..805.0).contains(&a_token), "{a_token}");
}

/// What is written of a model reads back as the same, for every family, with sizes of a preset's kind.
#[test]
fn every_family_describes_a_model_of_sizes_and_reads_it_back() {
    for family in FAMILIES {
        let sizes = Sizes { layers: 7, heads: 4, width: 64, context: 32, vocab: 77, ..Sizes::default() };
        let config = DecoderConfig::of(family.model_type, &sizes).unwrap();
        config.check().unwrap();
        let json = config.to_json(&FileFacts::default()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(DecoderConfig::from_json(&json).unwrap(), config, "{}", family.model_type);
        let all: usize = shapes::all(&config).map(|shape| shape.count()).sum();
        assert_eq!((config.layers, config.parameters()), (7, all), "{}", family.model_type);
    }
}

#[test]
fn a_model_that_its_family_cannot_describe_is_no_config_json() {
    let mut config = small(true);
    config.logits_softcap = Some(3.0);
    let e = config.to_json(&FileFacts::default()).unwrap_err();
    assert!(e.message().contains("a config.json of gpt2 cannot describe this model"), "{e}");
}

#[test]
fn more_layers_than_memory_are_counted_and_not_listed() {
    for family in ["gpt2", "gemma3_text", "smollm3"] {
        let sizes = Sizes { layers: 1_000_000_000_000, ..Sizes::default() };
        let config = DecoderConfig::of(family, &sizes).unwrap();
        assert!(config.parameters() > 1_000_000_000_000 && config.flops(1, 8) > 1e12);
    }
}
