//! Shape, counts, files.

use super::*;
use netcl_tensor::suite::test_device;

fn small(bias: bool) -> GptConfig {
    GptConfig {
        layers: 2,
        heads: 2,
        width: 16,
        context: 8,
        vocab: 11,
        bias,
        eps: 1e-5,
        variant: Variant::default(),
    }
}

#[test]
fn gpt2_has_the_published_number_of_parameters() {
    let gpt2 = GptConfig {
        layers: 12,
        heads: 12,
        width: 768,
        context: 1024,
        vocab: 50_257,
        bias: true,
        eps: 1e-5,
        variant: Variant::default(),
    };
    assert_eq!(gpt2.parameters(), 124_439_808);
    let device = test_device().unwrap();
    for bias in [true, false] {
        let gpt = Gpt::new(&device, small(bias), DType::F32, 1).unwrap();
        assert_eq!(gpt.params().count(), small(bias).parameters());
        assert_eq!(gpt.params().arenas().count(), 1, "the whole model is one arena");
    }
}

#[test]
fn weights_survive_the_way_through_a_file_with_and_without_prefix() {
    let device = test_device().unwrap();
    let gpt = Gpt::new(&device, small(true), DType::F32, 1).unwrap();
    let other = Gpt::new(&device, small(true), DType::F32, 2).unwrap();
    let mut state = gpt.state().unwrap();
    assert_ne!(other.state().unwrap(), state);
    other.load_state(&state).unwrap();
    assert_eq!(other.state().unwrap(), state);
    for tensor in &mut state {
        tensor.name = tensor.name.trim_start_matches("transformer.").into();
    }
    other.load_state(&state).unwrap();
    let config = GptConfig::from_json(&config_json(&gpt.config, DType::F32, 0.1, Some(3))).unwrap();
    assert_eq!(config, gpt.config);
}

#[test]
fn a_model_without_biases_writes_zeros_for_them() {
    let device = test_device().unwrap();
    let gpt = Gpt::new(&device, small(false), DType::F32, 1).unwrap();
    let state = gpt.state().unwrap();
    let bias = state.iter().find(|t| t.name == "transformer.h.1.attn.c_attn.bias").unwrap();
    assert_eq!((bias.shape.as_slice(), bias.bytes.iter().all(|b| *b == 0)), (&[48usize][..], true));
    assert!(state.iter().any(|t| t.name == "transformer.ln_f.bias"));
    gpt.load_state(&state).unwrap();
}

#[test]
fn wrong_weights_are_named() {
    let device = test_device().unwrap();
    let gpt = Gpt::new(&device, small(true), DType::F32, 1).unwrap();
    let state = gpt.state().unwrap();
    let mut missing = state.clone();
    missing.retain(|t| t.name != "transformer.wpe.weight");
    assert!(gpt.load_state(&missing).unwrap_err().message().contains("no tensor transformer.wpe.weight"));
    let mut shape = state.clone();
    shape[0].shape = vec![16, 11];
    let text = gpt.load_state(&shape).unwrap_err();
    assert!(
        text.message().contains("transformer.wte.weight has shape [16, 11], expected [11, 16]"),
        "{text}"
    );
    let mut dtype = state;
    dtype[0].dtype = crate::checkpoint::Dtype::I64;
    assert!(gpt.load_state(&dtype).unwrap_err().message().contains("is I64, expected F32"));
}

#[test]
fn impossible_shapes_are_refused() {
    let device = test_device().unwrap();
    let config = GptConfig { heads: 3, ..small(true) };
    let Err(e) = Gpt::new(&device, config, DType::F32, 1) else {
        panic!("made a model of 3 heads and width 16")
    };
    assert!(e.message().contains("3 heads do not divide a width of 16"), "{e}");
    let gpt = Gpt::new(&device, small(true), DType::F32, 1).unwrap();
    let ids = Tensor::from_u32(&device, [1, 9], &[0; 9]).unwrap();
    assert!(gpt.forward(&ids, Mode::eval()).unwrap_err().message().contains("9 tokens, the context is 8"));
}

#[test]
fn flops_follow_the_usual_count() {
    let gpt2 = GptConfig {
        layers: 12,
        heads: 12,
        width: 768,
        context: 1024,
        vocab: 50_304,
        bias: true,
        eps: 1e-5,
        variant: Variant::default(),
    };
    // About 799 MFLOP a token with causal attention counted half.
    let a_token = gpt2.flops(1, 1024) / 1e6;
    assert!((790.0..805.0).contains(&a_token), "{a_token}");
}
