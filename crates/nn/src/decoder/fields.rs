//! The fields of a Hugging Face `config.json`. A configuration is accepted only if every field is understood: a field is read, or must have the
//! single supported value, or is listed as having no effect on the forward pass. Any other field is an error with its name.

use super::activation::Activation;
use netcl_device::nearest;
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Upper limit of sizes, so that products of a few of them do not overflow.
pub const MAX_SIZE: usize = i32::MAX as usize;

/// Fields without effect on the forward pass.
const INERT: &[&str] = &[
    // Provenance and storage of the file; the types of tensors are in the weight files.
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "model_type",
    "netcl",
    "tokenizer_class",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "use_bfloat16",
    // Training only.
    "attention_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "embd_pdrop",
    "embedding_dropout",
    "gradient_checkpointing",
    "hidden_dropout",
    "initializer_range",
    "resid_pdrop",
    "residual_dropout",
    // Tokens that are also defined in other files.
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "mask_token_id",
    "pad_token_id",
    "prefix",
    "sep_token_id",
    "unk_token_id",
    // Labels and heads of classifiers.
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "predict_special_tokens",
    "problem_type",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    // Implementation choices with the same result, and additional outputs.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "attn_implementation",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "is_decoder",
    "keys_to_ignore_at_inference",
    "n_ctx",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "return_dict",
    "tf_legacy_loss",
    "use_cache",
    "use_return_dict",
    // Sampling options of `generate`.
    "max_length",
    "min_length",
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
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
];

/// Fields with a single supported value in all families, and a description of what other values mean.
const ONLY: &[(&[&str], Literal, &str)] = &[
    (
        &["add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"],
        Literal::False,
        "no model of an encoder and a decoder is supported",
    ),
    (&["pruned_heads"], Literal::Empty, "no head may be left out"),
    (
        &["quantization_config", "compression_config"],
        Literal::Empty,
        "quantised weights are not read; save the model in float32, bfloat16 or float16",
    ),
    (&["custom_pipelines"], Literal::Empty, "the folder brings code of its own, which netcl does not run"),
    (&["position_embedding_type"], Literal::Absolute, "positions are the family's own"),
];

/// A supported value.
enum Literal {
    False,
    Absolute,
    /// `{}` or `[]`.
    Empty,
}

impl Literal {
    fn is(&self, value: &Value) -> bool {
        match self {
            Self::False => value == &Value::Bool(false),
            Self::Absolute => value == "absolute",
            Self::Empty => {
                value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
            }
        }
    }
}

/// Names of activation functions in `transformers`. Several denote the tanh approximation of GELU.
const ACTIVATIONS: &[(&str, Activation)] = &[
    ("silu", Activation::Silu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("relu", Activation::Relu),
    ("swish", Activation::Silu),
    ("tanh", Activation::Tanh),
];

/// The name to write for an activation function.
pub fn activation_name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(_, known)| *known == activation).map_or("", |(name, _)| name)
}

/// The fields of a `config.json`, with a record of which were read.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    read: BTreeSet<&'static str>,
    /// Sizes are at most this large.
    largest: usize,
}

/// A value as written in the file, shortened.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn wrong(name: &str, value: &Value, expected: &str) -> Error {
    Error::format(format!("{name} is {}, expected {expected}", shown(value)))
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, read: BTreeSet::new(), largest: MAX_SIZE }
    }
    /// The same for sizes of any number.
    pub fn unlimited(map: &'a Map<String, Value>) -> Self {
        Self { largest: usize::MAX, ..Self::new(map) }
    }
    /// A raw field, without marking it as read.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }
    /// A field that is present and not null.
    pub fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.read.insert(name);
        self.map.get(name).filter(|value| !value.is_null())
    }
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        of: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(name).map(|value| of(value).ok_or_else(|| wrong(name, value, expected))).transpose()
    }
    pub fn size(&mut self, name: &'static str) -> Result<Option<usize>> {
        let size = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let largest = self.largest;
        let fits = |value| size(value).filter(|n| (1..=largest).contains(n));
        self.optional(name, &format!("a whole number from 1 to {largest}"), fits)
    }
    /// A size by one of several names, the first of which is the usual one.
    pub fn needed(&mut self, names: &[&'static str]) -> Result<usize> {
        let mut found: Option<(&str, usize)> = None;
        for name in names {
            match (self.size(name)?, found) {
                (Some(size), Some((first, other))) if size != other => {
                    return Err(Error::format(format!(
                        "{first} is {other}, and {name}, another name for it, is {size}"
                    )));
                }
                (Some(size), None) => found = Some((name, size)),
                _ => {}
            }
        }
        found.map(|(_, size)| size).ok_or_else(|| {
            Error::format(format!("{} is missing, expected a whole number", names.first().unwrap_or(&"")))
        })
    }
    pub fn number(&mut self, name: &'static str) -> Result<Option<f64>> {
        self.optional(name, "a number", Value::as_f64)
    }
    pub fn factor(&mut self, name: &'static str, default: f64) -> Result<f32> {
        Ok(self.number(name)?.unwrap_or(default) as f32)
    }
    /// An optional size: `default` if missing, `None` if null.
    pub fn size_or(&mut self, name: &'static str, default: usize) -> Result<Option<usize>> {
        Ok(if self.map.contains_key(name) { self.size(name)? } else { Some(default) })
    }
    /// The same for a number.
    pub fn number_or(&mut self, name: &'static str, default: f64) -> Result<Option<f64>> {
        Ok(if self.map.contains_key(name) { self.number(name)? } else { Some(default) })
    }
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool> {
        Ok(self.optional(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }
    pub fn activation(&mut self, name: &'static str, default: &'static str) -> Result<Activation> {
        let given = self.optional(name, "a name", Value::as_str)?.unwrap_or(default);
        let found = ACTIVATIONS.iter().find(|(known, _)| *known == given);
        found.map(|(_, activation)| *activation).ok_or_else(|| {
            let names = ACTIVATIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!("{name} is {given:?}, expected one of {names}"))
        })
    }
    /// netcl's own object, for what the format cannot express (GPT-2's format has no option for biases).
    pub fn own_bias(&mut self) -> Result<bool> {
        let Some(value) = self.get("netcl") else { return Ok(true) };
        let wrong = || wrong("netcl", value, "{\"bias\": true or false}");
        let mut bias = true;
        for (key, value) in value.as_object().ok_or_else(wrong)? {
            match (key.as_str(), value.as_bool()) {
                ("bias", Some(on)) => bias = on,
                _ => return Err(wrong()),
            }
        }
        Ok(bias)
    }
    /// Which layers have `sliding_attention`, if the file has a list of layer types.
    pub fn layer_types(&mut self, layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(value) = self.get("layer_types") else { return Ok(None) };
        let kind = |value: &Value| match value.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let kinds: Option<Vec<bool>> = value.as_array().and_then(|list| list.iter().map(kind).collect());
        kinds.filter(|kinds| kinds.len() == layers).map(Some).ok_or_else(|| {
            wrong("layer_types", value, &format!("{layers} of \"full_attention\" and \"sliding_attention\""))
        })
    }
    /// Checks that every field was read, has no effect, or has its single supported value.
    pub fn finish(self) -> Result<()> {
        for (name, value) in self.map.iter().filter(|(_, value)| !value.is_null()) {
            if self.read.contains(name.as_str()) || INERT.contains(&name.as_str()) {
                continue;
            }
            if let Some((_, literal, why)) = ONLY.iter().find(|(names, ..)| names.contains(&name.as_str())) {
                if literal.is(value) {
                    continue;
                }
                return Err(Error::unsupported(format!("{name} is {}: {why}", shown(value))));
            }
            let hint = match nearest(name, self.read.iter().copied().chain(INERT.iter().copied())) {
                Some(near) => format!("did you mean {near}?"),
                None => "if it changes nothing in what the model computes, remove it from the file".into(),
            };
            return Err(Error::unsupported(format!(
                "{name} is {}, which netcl does not know and so might compute without: {hint}",
                shown(value)
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::decoder::{Activation, DecoderConfig};
    use netcl_tensor::Result;
    use serde_json::{Value, json};

    fn gpt2() -> Value {
        json!({ "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 65 })
    }

    fn with(name: &str, value: Value) -> Result<DecoderConfig> {
        let mut json = gpt2();
        json[name] = value;
        DecoderConfig::from_json(&json)
    }

    #[test]
    fn no_field_is_listed_twice() {
        let mut names: Vec<_> =
            super::INERT.iter().chain(super::ONLY.iter().flat_map(|(names, ..)| names.iter())).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn fields_that_change_what_is_computed_are_taken_over() {
        let plain = DecoderConfig::from_json(&gpt2()).unwrap();
        assert_eq!((plain.layers, plain.context, plain.norm.eps, plain.mlp.hidden), (2, 16, 1e-5, 128));
        let of = |name, value| with(name, value).unwrap();
        assert_eq!(of("n_inner", json!(48)).mlp.hidden, 48);
        assert_eq!(of("n_inner", Value::Null).mlp.hidden, 128);
        assert!(plain.tied && !of("tie_word_embeddings", json!(false)).tied);
        assert_eq!(of("scale_attn_weights", json!(false)).attention.scale, Some(1.0));
        assert!(of("scale_attn_by_inverse_layer_idx", json!(true)).attention.scale_by_layer);
        assert_eq!(of("activation_function", json!("relu")).mlp.activation, Activation::Relu);
        assert!((of("layer_norm_epsilon", json!(1e-6)).norm.eps - 1e-6).abs() < 1e-12);
        let bare = of("netcl", json!({ "bias": false }));
        assert!(!(bare.norm.bias || bare.mlp.bias || bare.attention.qkv_bias || bare.attention.out_bias));
        // Other names of the same field.
        let mut other = gpt2();
        other["num_hidden_layers"] = json!(3);
        let e = DecoderConfig::from_json(&other).unwrap_err();
        assert!(e.message().contains("n_layer is 2, and num_hidden_layers, another name"), "{e}");
        other.as_object_mut().unwrap().remove("n_layer");
        assert_eq!(DecoderConfig::from_json(&other).unwrap().layers, 3);
    }

    #[test]
    fn fields_that_cannot_be_followed_are_refused_by_name() {
        for (name, value, part) in [
            ("rotary_pct", json!(0.25), "rotary_pct is 0.25, which netcl does not know"),
            ("layer_norm_epsilom", json!(1e-6), "did you mean layer_norm_epsilon?"),
            ("sliding_window", json!(128), "remove it from the file"),
            (
                "activation_function",
                json!("quick_gelu"),
                "activation_function is \"quick_gelu\", expected one of silu",
            ),
            ("tie_word_embeddings", json!("no"), "tie_word_embeddings is \"no\", expected true or false"),
            ("n_layer", json!(2.5), "n_layer is 2.5, expected a whole number"),
            ("n_layer", json!(-1), "n_layer is -1"),
            ("n_layer", Value::Null, "n_layer is missing"),
            ("n_inner", json!(0), "n_inner is 0"),
            (
                "vocab_size",
                json!(4_294_967_296u64),
                "vocab_size is 4294967296, expected a whole number from 1 to 2147483647",
            ),
            ("n_head", json!(3), "3 heads do not divide a width of 32"),
            ("layer_norm_epsilon", json!(-1.0), "epsilon is -1"),
            ("layer_norm_epsilon", json!("small"), "layer_norm_epsilon is \"small\", expected a number"),
            ("add_cross_attention", json!(true), "add_cross_attention is true: no model of an encoder"),
            ("architectures", json!(["GPT2ForSequenceClassification"]), "architectures is"),
            ("quantization_config", json!({ "bits": 4 }), "quantised weights are not read"),
            ("pruned_heads", json!({ "0": [1] }), "no head may be left out"),
            ("position_embedding_type", json!("relative"), "positions are the family's own"),
            ("model_type", json!("mamba"), "model_type is \"mamba\", expected one of gpt2"),
            ("model_type", Value::Null, "model_type is null"),
            ("netcl", json!({ "bias": true, "rope": 1 }), "netcl is"),
        ] {
            let error = with(name, value).unwrap_err();
            assert!(error.message().contains(part), "{error} has not: {part}");
        }
        for (json, part) in [(json!([]), "expected an object"), (json!({}), "model_type is missing")] {
            assert!(DecoderConfig::from_json(&json).unwrap_err().message().contains(part));
        }
    }
}
