//! Tests of shapes, parameter counts and files.

use super::*;
use netcl_tensor::no_grad;
use netcl_tensor::quant::Format;
use netcl_tensor::random::Generator;
use netcl_tensor::suite::test_device;

fn small(bias: bool) -> DecoderConfig {
    DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 2, heads: 2, width: 16, context: 8, vocab: 11, ..Sizes::default() },
    )
    .unwrap()
    .with_biases(bias)
}

/// Beyond 256 tokens the cache of a text grows and keeps its content; the step is captured again.
#[test]
fn a_cache_grows_with_its_text() {
    let device = test_device().unwrap();
    for (family, kv_heads) in [("gpt2", None), ("llama", Some(1))] {
        let sizes =
            Sizes { layers: 2, heads: 2, kv_heads, width: 16, context: 600, vocab: 11, ..Sizes::default() };
        let decoder =
            Decoder::new(&device, DecoderConfig::of(family, &sizes).unwrap(), DType::F32, 3).unwrap();
        for p in decoder.params().list() {
            p.set_f32(&p.to_vec().unwrap().iter().map(|v| 5.0 * v).collect::<Vec<_>>()).unwrap();
        }
        let ids: Vec<u32> = (0..300u32).map(|i| i * i % 11).collect();
        let all = Tensor::from_u32(&device, [1, ids.len()], &ids).unwrap();
        let expected = no_grad(|| decoder.forward(&all, Mode::eval())).unwrap().to_vec().unwrap();
        let mut text = decoder.continuation().unwrap();
        for end in 250..=ids.len() {
            let logits = text.logits_after(&ids[..end]).unwrap();
            for (got, expected) in logits.iter().zip(&expected[(end - 1) * 11..]) {
                let near = (got - expected).abs() <= 2e-5 * expected.abs().max(1.0);
                assert!(near, "{family}, after {end}: {got}, expected {expected}");
            }
        }
        assert!(text.launches().is_some(), "{family}: not captured");
    }
}

#[test]
fn the_head_reads_the_features() {
    let device = test_device().unwrap();
    let decoder = Decoder::new(&device, small(true), DType::F32, 2).unwrap();
    let ids = Tensor::from_u32(&device, [1, 4], &[3, 1, 4, 1]).unwrap();
    let features = decoder.features(&ids, Mode::eval()).unwrap();
    assert_eq!(features.dims(), [1, 4, 16]);
    let table = decoder.params().get("transformer.wte.weight").unwrap().transpose(0, 1).unwrap();
    let found = features.reshape([4, 16]).unwrap().matmul(&table).unwrap().to_vec().unwrap();
    let logits = decoder.forward(&ids, Mode::eval()).unwrap().to_vec().unwrap();
    assert!(found.iter().zip(&logits).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {logits:?}");
}

/// Returns the loss and the gradients of a model.
fn step(decoder: &Decoder, [rows, tokens]: [usize; 2], recompute: Recompute) -> Vec<Vec<f32>> {
    let device = decoder.params().device();
    let ids: Vec<u32> = (0..(rows * tokens) as u32).map(|i| i * i % 11).collect();
    let ids = Tensor::from_u32(device, [rows, tokens], &ids).unwrap();
    let mode = Mode { recompute, ..Mode::eval() };
    let loss = decoder.loss(&ids, &ids, mode).unwrap();
    loss.backward().unwrap();
    let parameters = decoder.params().list();
    let gradients = parameters.iter().map(|p| p.grad().unwrap().to_vec().unwrap());
    let all = std::iter::once(loss.to_vec().unwrap()).chain(gradients).collect();
    parameters.iter().for_each(|p| p.set_grad(None));
    all
}

/// In families with a norm before or after each part, parts side by side, and experts.
#[test]
fn inputs_of_blocks_on_the_host_change_no_bit() {
    let device = Device::open("sim", &netcl_device::Settings::default()).unwrap();
    for family in ["gpt2", "llama", "gemma2", "gpt_neox", "mixtral"] {
        let sizes = Sizes { layers: 3, heads: 2, width: 16, context: 8, vocab: 11, ..Sizes::default() };
        let decoder =
            Decoder::new(&device, DecoderConfig::of(family, &sizes).unwrap(), DType::F32, 3).unwrap();
        let expected = step(&decoder, [2, 5], Recompute::None);
        for recompute in [Recompute::Block, Recompute::Offload, Recompute::Offload] {
            assert!(step(&decoder, [2, 5], recompute) == expected, "{family} {recompute}");
        }
    }
}

/// Many rows go through the MLP in parts, whose gradients are added.
#[test]
fn an_mlp_in_parts_has_the_same_gradients_up_to_rounding() {
    let device = test_device().unwrap();
    let sizes = Sizes { layers: 2, heads: 2, width: 16, context: 700, vocab: 11, ..Sizes::default() };
    let decoder = Decoder::new(&device, DecoderConfig::of("llama", &sizes).unwrap(), DType::F32, 3).unwrap();
    assert!(rows_at_a_time(3 * 700) < 3 * 700);
    let expected = step(&decoder, [3, 700], Recompute::None);
    let found = step(&decoder, [3, 700], Recompute::Offload);
    for (found, expected) in found.iter().zip(&expected) {
        let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
        let far = found.iter().zip(expected).find(|(f, e)| (*f - *e).abs() > 1e-5 * largest);
        assert!(far.is_none(), "{far:?}, the largest is {largest}");
    }
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
    assert_eq!(config, *gpt.config);
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
    assert!(gpt.load_tensors(&missing).unwrap_err().message().contains("the tensor transformer.wpe.weight"));
    let mut shape = state.clone();
    shape[0].shape = vec![16, 11];
    let text = gpt.load_tensors(&shape).unwrap_err();
    assert!(
        text.message().contains("transformer.wte.weight has shape [16, 11], expected [11, 16]"),
        "{text}"
    );
    let mut dtype = state;
    dtype[0].dtype = crate::checkpoint::FileDtype::I64;
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
    let Err(e) = Decoder::new(&device, config, DType::F32, 1) else {
        panic!("created a model of width 2^40")
    };
    assert!(e.message().contains("the width is 1099511627776, expected 1 to 2147483647"), "{e}");
    let gpt = Decoder::new(&device, small(true), DType::F32, 1).unwrap();
    let ids = Tensor::from_u32(&device, [1, 9], &[0; 9]).unwrap();
    assert!(
        gpt.forward(&ids, Mode::eval()).unwrap_err().message().contains("9 tokens exceed the context of 8")
    );
}

#[test]
fn flops_follow_the_usual_count() {
    let gpt2 = DecoderConfig::of(
        "gpt2",
        &Sizes { layers: 12, heads: 12, width: 768, context: 1024, vocab: 50_304, ..Sizes::default() },
    )
    .unwrap();
    // About 799 MFLOP per token, with causal attention counted half.
    let a_token = gpt2.flops(1, 1024) / 1e6;
    assert!((790.0..805.0).contains(&a_token), "{a_token}");
}

/// For every family, a written configuration with sizes like a preset's reads back equal.
#[test]
fn every_family_describes_a_model_of_sizes_and_reads_it_back() {
    for family in FAMILIES.iter().map(|row| &row.family) {
        let sizes = Sizes { layers: 7, heads: 4, width: 64, context: 32, vocab: 77, ..Sizes::default() };
        let config = DecoderConfig::of(family.model_type, &sizes).unwrap();
        config.check().unwrap();
        let json = config.to_json(&FileFacts::default()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(DecoderConfig::from_json(&json).unwrap(), config, "{}", family.model_type);
        let all: usize = shapes::all(&config).map(|shape| shape.count()).sum();
        assert_eq!((config.layers, config.parameters()), (7, all), "{}", family.model_type);
    }
}

/// Mixtral 8x7B and Qwen3 30B-A3B in their published form, with the fields of their time.
fn published() -> [DecoderConfig; 2] {
    let mixtral = serde_json::json!({
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000,
    });
    let qwen = serde_json::json!({
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
        "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936,
    });
    [mixtral, qwen].map(|json| DecoderConfig::from_json(&json).unwrap())
}

#[test]
fn experts_are_counted_all_and_their_work_by_those_that_are_chosen() {
    let [mixtral, qwen] = published();
    assert_eq!((mixtral.parameters(), qwen.parameters()), (46_702_792_704, 30_532_122_624));
    // Without the token table, 12.7 and 3.0 billion weights are in the products of a token.
    let met = |config: &DecoderConfig| config.flops(1, 2) / 6e9;
    assert!(
        (12.7..12.8).contains(&met(&mixtral)) && (3.0..3.1).contains(&met(&qwen)),
        "{} {}",
        met(&mixtral),
        met(&qwen)
    );
    assert_eq!(mixtral.mlp.moe.unwrap().balance_factor, 0.02);
    assert!(mixtral.kinds.iter().all(|kind| kind.sparse && kind.window.is_none()));
}

#[test]
fn which_layers_have_experts_survives_the_file() {
    let [_, qwen] = published();
    let json = qwen.to_json(&FileFacts::default()).unwrap();
    let read = |step: usize, dense: &[usize]| {
        let mut json = json.clone();
        json["decoder_sparse_step"] = step.into();
        json["mlp_only_layers"] = dense.into();
        json["num_hidden_layers"] = 6.into();
        DecoderConfig::from_json(&json).unwrap()
    };
    for (step, dense, sparse) in [
        (1, &[][..], &[0, 1, 2, 3, 4, 5][..]),
        (2, &[], &[1, 3, 5]),
        (4, &[], &[3]),
        (9, &[], &[]),
        (1, &[0, 5], &[1, 2, 3, 4]),
        (2, &[3], &[1, 5]),
        (1, &[0, 1, 2, 3, 4, 5], &[]),
    ] {
        let config = read(step, dense);
        let found: Vec<usize> = (0..6).filter(|i| config.kind(*i).sparse).collect();
        assert_eq!(found, sparse, "every {step}, not {dense:?}");
        let again = DecoderConfig::from_json(&config.to_json(&FileFacts::default()).unwrap()).unwrap();
        assert_eq!(again, config);
    }
}

#[test]
fn experts_that_cannot_be_are_refused_by_name() {
    let [mixtral, qwen] = published();
    let refused = |config: &DecoderConfig, name: &str, value: serde_json::Value| {
        let mut json = config.to_json(&FileFacts::default()).unwrap();
        json[name] = value;
        DecoderConfig::from_json(&json).unwrap_err().to_string()
    };
    for (config, name, value, part) in [
        (&mixtral, "num_experts_per_tok", 9.into(), "the number of experts per token is 9, expected 1 to 8"),
        (&mixtral, "num_local_experts", 4096.into(), "the number of experts is 4096, expected 1 to 1024"),
        (
            &mixtral,
            "num_experts",
            4.into(),
            "num_local_experts is 8, but num_experts, another name for it, is 4",
        ),
        (&mixtral, "router_jitter_noise", 0.1.into(), "does not support noise before routers"),
        (&mixtral, "hidden_act", "tanh".into(), "a gated MLP with tanh"),
        (&qwen, "mlp_only_layers", "all".into(), "mlp_only_layers is \"all\", expected a list of layers"),
        (&qwen, "num_experts", 0.into(), "use qwen3 for a model without experts"),
        (&qwen, "n_shared_experts", 1.into(), "n_shared_experts is 1, which netcl does not know"),
    ] {
        let e = refused(config, name, value);
        assert!(e.contains(part), "{e} has not: {part}");
    }
    let mut llama = DecoderConfig::of("llama", &Sizes::default()).unwrap();
    llama.mlp.moe = mixtral.mlp.moe;
    let e = llama.check().unwrap_err();
    assert!(e.message().contains("experts in a llama model"), "{e}");
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

/// Blocks of several formats in place of every map's matrix give the results of their dequantized values. Covers norms before and after, biases of
/// packed projections, gates, soft-capping, several matrices in a map, token by token and many at once.
#[test]
fn blocks_compute_what_their_values_do() {
    let device = test_device().unwrap();
    let formats = ["Q8_0", "Q5_1", "Q4_0", "IQ4_NL"].map(|name| Format::named(name).unwrap());
    for family in ["llama", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "granite", "mixtral", "gpt_neox"] {
        let sizes = Sizes {
            layers: 2,
            heads: 4,
            kv_heads: (family != "gpt_neox").then_some(2),
            width: 64,
            mlp: Some(96),
            context: 32,
            vocab: 37,
            ..Sizes::default()
        };
        let config = DecoderConfig::of(family, &sizes).unwrap();
        let dense = Decoder::new(&device, config.clone(), DType::F32, 3).unwrap();
        let mut generator = Generator::new(5);
        for p in dense.params().list() {
            p.set_normal(0.0, 0.15, &mut generator).unwrap();
        }
        let mut held = BTreeMap::new();
        for shape in config.shapes().filter(|shape| shape.takes_blocks(&config)) {
            let parameter = dense.params().get(&shape.name).unwrap();
            let (mut values, width) = (parameter.to_vec().unwrap(), *shape.dims.last().unwrap());
            let (mut parts, mut first) = (Vec::new(), 0);
            // Experts share one matrix.
            let pieces: Vec<usize> = shape.pieces.iter().map(|(_, rows)| *rows).collect();
            let pieces = if shape.of_experts() { vec![pieces.iter().sum()] } else { pieces };
            for (i, rows) in pieces.iter().enumerate() {
                let format = formats[(held.len() + i) % formats.len()];
                let piece = &mut values[first * width..(first + rows) * width];
                let mut bytes = vec![0; format.size(piece.len()).unwrap()];
                format.quantise(piece, width, None, &mut bytes).unwrap();
                format.dequantise(&bytes, piece).unwrap();
                parts.push(Blocks::new(&device, format, [*rows, width], &bytes).unwrap());
                first += rows;
            }
            parameter.set_f32(&values).unwrap();
            held.insert(shape.name, parts);
        }
        assert!(held.len() >= 4, "{family}: {:?}", held.keys());
        let quantised = Decoder::with_blocks(&device, config, DType::F32, None, held).unwrap();
        for p in quantised.params().list() {
            let same = dense.params().get(p.name().unwrap()).unwrap();
            p.set_bytes(&same.to_bytes().unwrap()).unwrap();
        }
        let ids: Vec<u32> = (0..16u32).map(|i| (i * i + 3) % 37).collect();
        let [mut a, mut b] = [&dense, &quantised].map(|decoder| decoder.continuation().unwrap());
        for end in 12..=ids.len() {
            let [a, b] = [&mut a, &mut b].map(|text| text.logits_after(&ids[..end]).unwrap());
            let scale = a.iter().fold(1f32, |most, v| most.max(v.abs()));
            for (a, b) in a.iter().zip(&b) {
                assert!((a - b).abs() <= 2e-5 * scale, "{family}, after {end}: {b}, expected {a}");
            }
        }
        let ids = Tensor::from_u32(&device, [1, ids.len()], &ids).unwrap();
        let [a, b] = [&dense, &quantised]
            .map(|d| no_grad(|| d.loss(&ids, &ids, Mode::eval())).unwrap().item().unwrap());
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{family}: loss {b}, expected {a}");
        assert!(quantised.load_tensors(&dense.tensors().unwrap()).is_err(), "{family}");
    }
}

#[test]
fn blocks_for_what_is_no_map_or_of_another_shape_are_refused_by_name() {
    let device = test_device().unwrap();
    let sizes = Sizes { layers: 1, heads: 2, width: 32, context: 8, vocab: 11, ..Sizes::default() };
    let config = DecoderConfig::of("llama", &sizes).unwrap();
    let q8 = Format::named("Q8_0").unwrap();
    let blocks = |rows: usize| vec![Blocks::new(&device, q8, [rows, 32], &vec![0; rows * 34]).unwrap()];
    let refused = |name: &str, rows: usize| {
        let held = BTreeMap::from([(name.to_owned(), blocks(rows))]);
        Decoder::with_blocks(&device, config.clone(), DType::F32, None, held).err().unwrap().to_string()
    };
    for name in ["model.norm.weight", "nothing"] {
        let error = refused(name, 11);
        assert!(error.contains(name) && error.contains("neither a map's matrix"), "{error}");
    }
    let error = refused("model.layers.0.self_attn.o_proj.weight", 31);
    assert!(error.contains("(31, 32) Q8_0") && error.contains("[32, 32]"), "{error}");
}
