//! Fields of `config.json` without effect on a model's computation, and fields with a single supported value.

use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};

/// Fields without effect on the forward pass, whatever their value.
pub const INERT: &[&str] = &[
    // Provenance and storage of the file; the types of tensors are in the weight files.
    "architectures",
    "auto_map",
    "base_model",
    "custom_generate",
    "custom_pipelines",
    "dtype",
    "is_llama_config",
    "license",
    "model_name",
    "model_type",
    "name_or_path",
    "netcl",
    "num_steps",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "use_bfloat16",
    "use_safetensors",
    // Training only.
    "attn_pdrop",
    "gradient_checkpointing",
    "init_std",
    "initializer_factor",
    "initializer_range",
    "layerdrop",
    "loss_type",
    "neftune_noise_alpha",
    "router_z_loss_coef",
    "seed",
    // Tokens that are also defined in other files.
    "prefix",
    // Labels and heads of classifiers, and the head of GPT-2 for multiple choice.
    "finetuning_task",
    "id2label",
    "label2id",
    "n_special",
    "num_labels",
    "predict_special_tokens",
    "problem_type",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "type_vocab_size",
    // Implementation choices with the same result, and additional outputs.
    "attention_softmax_in_fp32",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "fused_mlp",
    "fused_qkv",
    "gradient_checkpointing_use_reentrant",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "logits_to_keep",
    "max_sequence_length",
    "model_max_length",
    "n_ctx",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "return_dict",
    "scale_attention_softmax_in_fp32",
    "softmax_in_fp32",
    "tensor_parallel_degree",
    "tf_legacy_loss",
    "use_cache",
    "use_flash_attention",
    "use_flash_attention_2",
    "use_flash_attn",
    "use_fused_rmsnorm",
    "use_fused_rope",
    "use_return_dict",
    // Options of `generate`.
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
];

/// Prefixes of names that other programs reserve.
const OWN_OF_OTHERS: &[&str] = &["_", "unsloth_", "axolotl_", "mlx_", "llamafactory_", "trl_"];

/// Suffixes of names of fields without effect on the forward pass: dropout of training, tokens, versions, implementation choices.
const INERT_ENDS: &[&str] = &[
    "_dropout",
    "_dropout_prob",
    "_pdrop",
    "_token_id",
    "_token_ids",
    "_version",
    "_implementation",
    "_loss_coef",
    "_commit_hash",
];

/// Returns a value in the notation of the file, shortened.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Supported values of a field.
enum Only {
    /// This truth.
    Flag(bool),
    /// This number.
    Number(f64),
    /// This text.
    Text(&'static str),
    /// `{}` or `[]`.
    Nothing,
}

impl Only {
    fn is(&self, value: &Value) -> bool {
        match self {
            Self::Flag(flag) => value.as_bool() == Some(*flag),
            #[allow(clippy::float_cmp)] // written by hand in files
            Self::Number(number) => value.as_f64() == Some(*number),
            Self::Text(text) => value == text,
            Self::Nothing => is_empty(value),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty) || value == ""
}

const BOTH_WAYS: &str = "attention in both directions is not supported";
const QUANTISED: &str = "quantized weights of this format are not supported; save the model in float32, bfloat16 or float16, or use a GGUF file";

/// Fields with a single supported value in all families that do not read them, and the meaning of other values.
const ONLY: &[(&[&str], Only, &str)] = &[
    (
        &["add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"],
        Only::Flag(false),
        "models with an encoder and a decoder are not supported",
    ),
    (&["pruned_heads"], Only::Nothing, "pruned heads are not supported"),
    (&["quantization_config", "compression_config", "quantization"], Only::Nothing, QUANTISED),
    (&["position_embedding_type"], Only::Text("absolute"), "other position embeddings are not supported"),
    (&["is_causal", "causal", "use_causal_mask"], Only::Flag(true), BOTH_WAYS),
    (
        &["use_rope", "use_rotary", "rotary"],
        Only::Flag(true),
        "layers without positions are not supported in this family",
    ),
    (&["use_mrope"], Only::Flag(false), "rotary angles of images are not supported"),
    (
        &["rope_interleaved", "rope_interleave"],
        Only::Flag(false),
        "rotary embeddings of neighboring elements are not supported",
    ),
    (&["lm_head_bias"], Only::Flag(false), "an output head with a bias is not supported"),
    (&["alibi", "use_alibi"], Only::Flag(false), "attention with linear biases is not supported"),
    (
        &[
            "interpolate_factor",
            "full_attn_mod",
            "rope_ratio",
            "logit_scale",
            "mup_multiplier",
            "width_multiplier",
        ],
        Only::Number(1.0),
        "other factors are not supported",
    ),
    (
        &["num_nextn_predict_layers", "shared_expert_intermediate_size", "logits_soft_cap"],
        Only::Number(0.0),
        "such parts of a model are not supported",
    ),
];

/// Fields in published files of a family that have no effect in `transformers`, or not with this value.
const OF_FAMILY: &[(&str, &str, Option<Only>)] = &[
    ("starcoder2", "activation_function", None),
    ("starcoder2", "layer_norm_epsilon", None),
    ("starcoder2", "scale_attn_weights", Some(Only::Flag(true))),
    ("gemma2", "sliding_window_size", None),
    ("qwen3", "use_qk_norm", Some(Only::Flag(true))),
    ("qwen3_moe", "use_qk_norm", Some(Only::Flag(true))),
    ("gpt2", "intermediate_size", None),
    ("gpt2", "hidden_act", None),
    ("gpt_neox", "num_key_value_heads", None),
];

/// Effect of a field that the family's reader did not request.
pub enum Verdict {
    /// It changes nothing.
    Harmless,
    /// Nobody knows.
    Unknown,
}

/// Returns the effect of a field on a model of a family.
///
/// # Errors
/// `Unsupported` for an unsupported value, with the reason.
pub fn verdict(family: &str, name: &str, value: &Value) -> Result<Verdict> {
    if let Some((.., only)) = OF_FAMILY.iter().find(|(of, field, _)| *of == family && *field == name) {
        return match only {
            Some(only) if !only.is(value) => Ok(Verdict::Unknown),
            _ => Ok(Verdict::Harmless),
        };
    }
    if let Some((_, only, why)) = ONLY.iter().find(|(names, ..)| names.contains(&name)) {
        return match only.is(value)
            || is_empty(value)
            || (*value == false && !matches!(only, Only::Flag(true)))
        {
            true => Ok(Verdict::Harmless),
            false => Err(Error::unsupported(format!("{name} is {}: {why}", shown(value)))),
        };
    }
    let inert = INERT.contains(&name)
        || OWN_OF_OTHERS.iter().any(|start| name.starts_with(start))
        || INERT_ENDS.iter().any(|end| name.ends_with(end));
    // A switch that is off and an empty value have no effect.
    Ok(if inert || *value == false || is_empty(value) { Verdict::Harmless } else { Verdict::Unknown })
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_field_is_listed_twice() {
        let mut names: Vec<_> =
            super::INERT.iter().chain(super::ONLY.iter().flat_map(|(names, ..)| names.iter())).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
