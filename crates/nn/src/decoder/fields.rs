//! The fields of a `config.json`: each is read, known to change nothing, or an error.

use netcl_tensor::ops::gated::Gate;
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Fields that change nothing in what a forward pass computes: about training, generation, other heads, or the file itself.
const INERT: &[&str] = &[
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "dtype",
    "embd_pdrop",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "id2label",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "model_type",
    "n_ctx",
    "netcl",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "resid_pdrop",
    "return_dict",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
    "reorder_and_upcast_attn",
];

/// The fields of a `config.json`, and which of them were read.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    read: BTreeSet<&'static str>,
}

fn wrong(name: &str, value: &Value, expected: &str) -> Error {
    Error::format(format!("config.json: {name} is {value}, expected {expected}"))
}

impl<'a> Fields<'a> {
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, read: BTreeSet::new() }
    }
    /// A field as it stands there, which this does not count as read.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }
    /// A field that is there and not null.
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
        self.optional(name, "a whole number", |value| value.as_u64().and_then(|n| usize::try_from(n).ok()))
    }
    pub fn needed(&mut self, name: &'static str) -> Result<usize> {
        self.size(name)?
            .ok_or_else(|| Error::format(format!("config.json: {name} is missing, expected a whole number")))
    }
    pub fn number(&mut self, name: &'static str) -> Result<Option<f64>> {
        self.optional(name, "a number", Value::as_f64)
    }
    pub fn factor(&mut self, name: &'static str, default: f64) -> Result<f32> {
        Ok(self.number(name)?.unwrap_or(default) as f32)
    }
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool> {
        Ok(self.optional(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }
    pub fn activation(&mut self, name: &'static str, default: &'static str) -> Result<Gate> {
        let given = self.optional(name, "a name", Value::as_str)?.unwrap_or(default);
        Ok(match given {
            "silu" | "swish" => Gate::Silu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Gate::GeluTanh,
            "gelu" => Gate::Gelu,
            "relu" => Gate::Relu,
            _ => {
                let names = "silu, gelu_new, gelu_pytorch_tanh, gelu or relu";
                return Err(Error::unsupported(format!(
                    "config.json: {name} is {given:?}, expected {names}"
                )));
            }
        })
    }
    /// Refuses a value of a field that is computed for one value only.
    pub fn only(&mut self, name: &'static str, expected: &Value) -> Result<()> {
        match self.get(name) {
            Some(value) if value != expected => Err(Error::unsupported(format!(
                "config.json: {name} is {value}; only {expected} is supported"
            ))),
            _ => Ok(()),
        }
    }
    /// `sliding_attention` for each layer, where the file says it.
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
    /// Every field was read or has no effect.
    pub fn finish(self) -> Result<()> {
        let known = |name: &str| self.read.contains(name) || INERT.contains(&name);
        let unknown: Vec<&str> = self.map.keys().map(String::as_str).filter(|name| !known(name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "config.json: netcl does not know {}, which may change what the model computes; remove a field that does not",
            unknown.join(", ")
        )))
    }
}
