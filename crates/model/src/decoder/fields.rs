//! The fields of a Hugging Face `config.json`. A configuration is accepted only if every field is understood: a field is read, or must have the
//! single supported value, or is listed as having no effect on the forward pass. Any other field is an error with its name.

use super::activation::Activation;
use super::field_rules::{INERT, Verdict, shown, verdict};
use netcl_device::nearest;
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Upper limit of sizes, so that products of a few of them do not overflow.
pub const MAX_SIZE: usize = i32::MAX as usize;

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

/// Returns the name to write for an activation function.
pub fn activation_name(activation: Activation) -> &'static str {
    ACTIVATIONS.iter().find(|(_, known)| *known == activation).map_or("", |(name, _)| name)
}

/// The fields of a `config.json`, with a record of which were read.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    read: BTreeSet<&'static str>,
    /// Sizes are at most this large.
    largest: usize,
    notes: Vec<String>,
}

fn wrong(name: &str, value: &Value, expected: &str) -> Error {
    Error::format(format!("{name} is {}, expected {expected}", shown(value)))
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, read: BTreeSet::new(), largest: MAX_SIZE, notes: Vec::new() }
    }
    /// Returns the same for sizes of any number.
    pub fn unlimited(map: &'a Map<String, Value>) -> Self {
        Self { largest: usize::MAX, ..Self::new(map) }
    }
    /// Records that something in the file is ignored.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }
    /// Returns the names that were read, and the fields that were not.
    pub fn unread(self) -> (BTreeSet<&'static str>, Vec<(&'a str, &'a Value)>) {
        let left = self.map.iter().filter(|(name, _)| !self.read.contains(name.as_str()));
        let left = left.map(|(name, value)| (name.as_str(), value)).collect();
        (self.read, left)
    }
    /// Returns a raw field, without marking it as read.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }
    /// Returns a field that is present and not null.
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
    /// Returns a size by one of several names, the first of which is the usual one.
    pub fn needed(&mut self, names: &[&'static str]) -> Result<usize> {
        let mut found: Option<(&str, usize)> = None;
        for name in names {
            match (self.size(name)?, found) {
                (Some(size), Some((first, other))) if size != other => {
                    return Err(Error::format(format!(
                        "{first} is {other}, but {name}, another name for it, is {size}"
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
    /// Returns a number from the file or the family's defaults.
    pub fn factor(&mut self, name: &'static str) -> Result<f32> {
        let found = self.number(name)?;
        Ok(found.ok_or_else(|| Error::format(format!("{name} is missing, expected a number")))? as f32)
    }
    pub fn flag(&mut self, name: &'static str) -> Result<bool> {
        Ok(self.optional(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }
    pub fn activation(&mut self, name: &'static str) -> Result<Activation> {
        let given = self.optional(name, "a name", Value::as_str)?.unwrap_or_default();
        let found = ACTIVATIONS.iter().find(|(known, _)| *known == given);
        found.map(|(_, activation)| *activation).ok_or_else(|| {
            let names = ACTIVATIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!("{name} is {given:?}, expected one of {names}"))
        })
    }
    /// Reads netcl's own object for options that the format cannot express (GPT-2's format does not have an option for biases).
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
    /// Returns the layers with `sliding_attention`, if the file has a list of layer types.
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
    /// Checks that every field of a `family`'s file was read, has no effect, or has its single supported value → notes on ignored fields.
    pub fn finish(self, family: &str) -> Result<Vec<String>> {
        let off = self.map.get("use_sliding_window") == Some(&Value::Bool(false));
        for (name, value) in self.map.iter().filter(|(_, value)| !value.is_null()) {
            let name = name.as_str();
            let switched_off = off && ["sliding_window", "max_window_layers"].contains(&name);
            if self.read.contains(name) || switched_off {
                continue;
            }
            let known = verdict(family, name, value)?;
            // A switch that is off has no effect, unless its name is a misspelling of another.
            let slip = if INERT.contains(&name) || name.starts_with('_') { None } else { self.meant(name) };
            let hint = match (known, slip) {
                (Verdict::Harmless, Some(near)) if *value == false => format!("did you mean {near}?"),
                (Verdict::Harmless, _) => continue,
                (Verdict::Unknown, _) => {
                    match nearest(name, self.read.iter().copied().chain(INERT.iter().copied())) {
                        Some(near) => format!("did you mean {near}?"),
                        None => "if it does not affect the model's results, remove it from the file".into(),
                    }
                }
            };
            return Err(Error::unsupported(format!(
                "{name} is {}, which netcl does not know, so its results might be wrong: {hint}",
                shown(value)
            )));
        }
        Ok(self.notes)
    }
    /// Returns the field that was read and differs from `name` in a letter or two.
    fn meant(&self, name: &str) -> Option<&'static str> {
        nearest(name, self.read.iter().copied())
            .filter(|near| near.len().abs_diff(name.len()) <= 2 && name.len() >= 8)
            .filter(|near| near.chars().next() == name.chars().next())
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
        assert!(e.message().contains("n_layer is 2, but num_hidden_layers, another name"), "{e}");
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
            ("add_cross_attention", json!(true), "add_cross_attention is true: models with an encoder"),
            ("architectures", json!(["GPT2ForSequenceClassification"]), "architectures is"),
            (
                "quantization_config",
                json!({ "bits": 4 }),
                "quantized weights of this format are not supported",
            ),
            ("pruned_heads", json!({ "0": [1] }), "pruned heads are not supported"),
            ("position_embedding_type", json!("relative"), "other position embeddings are not supported"),
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
