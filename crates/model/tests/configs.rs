//! Public `config.json` files: the configurations of public models, defaults of omitted fields, and fields with two names.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // tests and their helpers

use netcl_model::decoder::{Decoder, DecoderConfig, FAMILIES, FileFacts, Rotary, Scaling, Sizes};
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::suite::quickly_built;
use netcl_tensor::{Tensor, no_grad};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

fn goldens(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

fn table(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(goldens(name)).unwrap()).unwrap()
}

/// Reads the configurations of the most downloaded decoders: each is accepted, or rejected with the reason in the table.
#[test]
fn configurations_of_public_models_are_read_or_refused_for_the_right_reason() {
    let (table, mut wrong) = (table("configs.json"), Vec::new());
    let rows = table.as_array().unwrap();
    assert!(rows.len() >= 150);
    for row in rows {
        let name = row["model"].as_str().unwrap();
        match (DecoderConfig::from_json(&row["config"]), row["refused"].as_str()) {
            (Ok(config), None) => {
                // Written back, it is the same model.
                let again =
                    config.to_json(&FileFacts::default()).and_then(|json| DecoderConfig::from_json(&json));
                if again.as_ref().ok() != Some(&config) {
                    wrong
                        .push(format!("{name}: reading the written config gives another: {:?}", again.err()));
                }
            }
            (Err(e), Some(part)) if e.to_string().contains(part) => {}
            (Ok(_), Some(part)) => wrong.push(format!("{name}: read, expected: {part}")),
            (Err(e), expected) => wrong.push(format!("{name}: {e}, expected {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// Every omitted field has the default of `transformers` in that family.
#[test]
fn fields_that_are_left_out_have_the_defaults_of_transformers() {
    let table = table("config_defaults.json");
    for row in FAMILIES {
        let family = row.family.model_type;
        let defaults = table[family].as_object().unwrap_or_else(|| panic!("no defaults of {family}"));
        let mut whole = defaults.clone();
        whole.insert("model_type".into(), family.into());
        let expected = DecoderConfig::from_json(&whole.clone().into()).unwrap_or_else(|e| panic!("{e}"));
        let least = json!({ "model_type": family });
        assert_eq!(DecoderConfig::from_json(&least).unwrap_or_else(|e| panic!("{e}")), expected, "{family}");
        for name in defaults.keys() {
            let mut one = whole.clone();
            one.remove(name);
            let read = DecoderConfig::from_json(&one.into()).unwrap_or_else(|e| panic!("{family}: {e}"));
            assert_eq!(read, expected, "{family} without {name}");
        }
        // Every default in netcl's table also exists in the file from transformers.
        for (name, usual) in row.defaults {
            assert!(
                defaults.contains_key(*name),
                "{family}: {name} is {usual:?} in netcl's table, but transformers does not have it"
            );
        }
    }
}

/// `transformers` uses a default for a missing `pad_token_id`, and does not open a model with a smaller vocabulary.
#[test]
fn a_model_from_scratch_names_no_token_beyond_its_vocabulary() {
    for row in FAMILIES {
        let config = DecoderConfig::of(row.family.model_type, &Sizes::default()).unwrap();
        let json = config.to_json(&FileFacts::default()).unwrap();
        for name in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            assert_eq!(json.get(name), Some(&Value::Null), "{}: {name}", row.family.model_type);
        }
        let tokens = serde_json::from_value(json!({ "eos_token_id": 3, "pad_token_id": 256 })).unwrap();
        let json = config.to_json(&FileFacts { tokens, ..FileFacts::default() }).unwrap();
        assert_eq!((&json["eos_token_id"], &json["pad_token_id"]), (&json!(3), &Value::Null));
    }
}

/// Returns a small Llama with these fields.
fn llama(fields: Value) -> Value {
    let mut map: Map<String, Value> = serde_json::from_value(json!({
        "model_type": "llama", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64,
    }))
    .unwrap();
    let Value::Object(fields) = fields else { panic!("expected an object") };
    map.extend(fields);
    map.into()
}

fn rotary(config: &Value) -> Rotary {
    DecoderConfig::from_json(config).unwrap_or_else(|e| panic!("{e}")).rotary.remove(0)
}

#[test]
fn yarn_that_is_added_as_qwen_advises_is_followed() {
    let mut config = llama(json!({
        "model_type": "qwen3", "num_key_value_heads": 4, "head_dim": 8, "rope_theta": 1e6, "rope_parameters": { "rope_type": "default", "rope_theta": 1e6 },
        "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16 },
    }));
    let found = rotary(&config);
    assert!(matches!(found.scaling, Scaling::Yarn { factor: 4.0, original: 16.0, .. }), "{found:?}");
    assert_eq!(found.base, 1e6);
    // transformers uses a base of 10000 for `rope_scaling` without one.
    config.as_object_mut().unwrap().remove("rope_theta");
    let e = DecoderConfig::from_json(&config).unwrap_err().to_string();
    assert!(e.contains("rope_parameters.rope_theta is 1000000") && e.contains("into rope_scaling"), "{e}");
    config["rope_scaling"]["rope_theta"] = 1e6.into();
    assert_eq!(rotary(&config), found);
}

#[test]
fn two_names_of_one_thing_that_disagree_are_named() {
    let scaled = json!({ "rope_type": "linear", "factor": 2.0 });
    for (fields, parts) in [
        (
            json!({ "rope_theta": 5e5, "rope_parameters": { "rope_type": "default", "rope_theta": 1e4 } }),
            ["rope_parameters.rope_theta is 10000", "rope_theta, another name for it, is 500000"],
        ),
        (
            json!({ "rope_parameters": { "rope_type": "linear", "factor": 4.0 }, "rope_scaling": scaled }),
            ["rope_parameters.factor is 4.0", "rope_scaling.factor is 2.0"],
        ),
        (
            json!({ "rope_parameters": { "rope_type": "llama3", "factor": 2.0 }, "rope_scaling": scaled }),
            ["rope_parameters.rope_type is \"llama3\"", "rope_scaling says \"linear\""],
        ),
        (
            json!({ "rope_scaling": { "rope_type": "linear", "type": "yarn", "factor": 2.0 } }),
            ["rope_scaling.rope_type is \"linear\"", "rope_scaling.type, another name for it, is \"yarn\""],
        ),
        (
            json!({
                "original_max_position_embeddings": 8,
                "rope_scaling": { "type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16 },
            }),
            [
                "rope_scaling.original_max_position_embeddings is 16",
                "original_max_position_embeddings, another name",
            ],
        ),
        (
            json!({ "model_type": "gpt_neox", "rotary_pct": 0.5, "rope_parameters": { "partial_rotary_factor": 0.25 } }),
            ["rope_parameters.partial_rotary_factor is 0.25", "rotary_pct, another name for it, is 0.5"],
        ),
        (
            json!({ "model_type": "gemma3_text", "head_dim": 8, "rope_local_base_freq": 5e3,
                    "rope_parameters": { "sliding_attention": { "rope_theta": 1e4 } } }),
            [
                "rope_parameters.sliding_attention.rope_theta is 10000",
                "rope_local_base_freq, another name for it, is 5000",
            ],
        ),
        (
            json!({ "model_type": "qwen2", "use_sliding_window": false, "sliding_window": 4,
                    "layer_types": ["sliding_attention", "full_attention"] }),
            ["layer_types has \"sliding_attention\"", "use_sliding_window is false"],
        ),
    ] {
        let e = DecoderConfig::from_json(&llama(fields)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| e.contains(part)), "{e} has not: {parts:?}");
    }
}

/// Fields that `transformers` ignores are ignored, with a note.
#[test]
fn fields_that_transformers_ignores_are_notes() {
    let noted = |fields: Value, part: &str| {
        let (config, notes) =
            DecoderConfig::from_json_with_notes(&llama(fields)).unwrap_or_else(|e| panic!("{e}"));
        assert!(notes.iter().any(|note| note.contains(part)), "{notes:?} has not: {part}");
        config
    };
    let config = noted(json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor is 0.5: ignored");
    assert_eq!(config.rotary[0].dims, 8);
    noted(
        json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0, "attn_factor": 0.87 } }),
        "rope_scaling.attn_factor is 0.87: ignored",
    );
    noted(json!({ "model_type": "gpt_neox", "rope_theta": 5e5 }), "rope_theta is 500000.0: ignored");
    let config = noted(
        json!({ "model_type": "gemma3_text", "head_dim": 8, "attn_logit_softcapping": 3.0 }),
        "attn_logit_softcapping is 3: ignored",
    );
    assert_eq!(config.attention.softcap, None);
    let (_, notes) = DecoderConfig::from_json_with_notes(&llama(json!({ "rope_theta": 5e5 }))).unwrap();
    assert!(notes.is_empty(), "{notes:?}");
}

#[test]
fn mistral_with_mixed_layers_has_windows_in_some() {
    let config = DecoderConfig::from_json(&llama(json!({
        "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
    })))
    .unwrap();
    assert_eq!([config.kind(0).window, config.kind(1).window], [Some(5), None]);
}

#[test]
fn a_switch_that_is_off_is_harmless_and_a_misspelled_one_is_not() {
    for (name, value) in [
        ("use_mrope", json!(false)),
        ("a_switch_of_next_year", json!(false)),
        ("list_of_next_year", json!([])),
        ("_moe_implementation", json!("grouped")),
        ("unsloth_version", json!("2027.1")),
        ("expert_dropout", json!(0.1)),
        ("lm_head_bias", json!(false)),
    ] {
        DecoderConfig::from_json(&llama(json!({ name: value }))).unwrap_or_else(|e| panic!("{e}"));
    }
    for (name, value, part) in [
        ("use_mrope", json!(true), "use_mrope is true: rotary angles of images"),
        ("is_causal", json!(false), "is_causal is false: attention in both directions"),
        ("lm_head_bias", json!(true), "lm_head_bias is true"),
        ("interpolate_factor", json!(2), "interpolate_factor is 2"),
        ("a_switch_of_next_year", json!(true), "which netcl does not know"),
        ("attention_biass", json!(false), "did you mean attention_bias?"),
    ] {
        let e = DecoderConfig::from_json(&llama(json!({ name: value }))).unwrap_err().to_string();
        assert!(e.contains(part), "{e} has not: {part}");
    }
}

/// Checks folders from `tools/check_config.py`: the loss of each, or the reason for rejecting it, is in its `result.json`.
#[test]
#[ignore = "needs folders by tools/check_config.py in NETCL_CONFIGS"]
fn drawn_configurations() {
    let Some(root) = std::env::var_os("NETCL_CONFIGS") else {
        panic!("NETCL_CONFIGS does not name a folder")
    };
    let device = quickly_built().unwrap();
    let mut folders: Vec<_> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.join("ids.json").exists());
    folders.sort();
    for folder in folders {
        let ids: Vec<Vec<u32>> =
            serde_json::from_str(&std::fs::read_to_string(folder.join("ids.json")).unwrap()).unwrap();
        let (rows, tokens) = (ids.len(), ids[0].len() - 1);
        let part = |from: usize| {
            let flat: Vec<u32> = ids.iter().flat_map(|row| row[from..from + tokens].to_vec()).collect();
            Tensor::from_u32(&device, [rows, tokens], &flat).unwrap()
        };
        let loss = Decoder::open(&device, &folder, None)
            .and_then(|decoder| no_grad(|| decoder.loss(&part(0), &part(1), Mode::eval()))?.item());
        let result = match loss {
            Ok(loss) => json!({ "loss": loss }),
            Err(e) => json!({ "refused": e.to_string() }),
        };
        std::fs::write(folder.join("result.json"), result.to_string()).unwrap();
    }
}
