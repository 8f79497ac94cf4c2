//! GPT weights and configuration in the Hugging Face layout.

use super::{Gpt, GptConfig, fields};
use crate::checkpoint::{Bytes, Dtype, Planned, TensorView};
use crate::layers::Activation;
use netcl_tensor::{DType, Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const PREFIX: &str = "transformer.";
const HEAD: &str = "lm_head.weight";

/// `config.json` as `GPT2LMHeadModel` reads it. `netcl` holds what that format cannot say.
pub fn config_json(config: &GptConfig, dtype: DType, dropout: f64, eos: Option<u32>) -> Value {
    let dtype = match dtype {
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        _ => "float32",
    };
    let variant = &config.variant;
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": activation_name(variant.activation),
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.width,
        "n_positions": config.context,
        "n_ctx": config.context,
        "n_inner": variant.inner,
        "vocab_size": config.vocab,
        "layer_norm_epsilon": config.eps.to_string().parse::<f64>().unwrap_or(1e-5),
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "resid_pdrop": dropout,
        "initializer_range": 0.02,
        "scale_attn_weights": variant.scaled,
        "scale_attn_by_inverse_layer_idx": variant.scaled_by_layer,
        "tie_word_embeddings": variant.tied,
        "use_cache": true,
        "bos_token_id": eos,
        "eos_token_id": eos,
        "dtype": dtype,
        "torch_dtype": dtype,
        "netcl": { "bias": config.bias },
    })
}

/// `generation_config.json`: how text is drawn from the model unless told otherwise.
pub fn generation_config_json(eos: Option<u32>) -> Value {
    json!({ "bos_token_id": eos, "eos_token_id": eos, "do_sample": true, "temperature": 0.8, "top_k": 200 })
}

/// The name that is written for a function.
fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::GeluTanh => "gelu_new",
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Tanh => "tanh",
    }
}

impl GptConfig {
    /// From a `config.json` of a GPT-2 model. Every field is used, checked to have the value that netcl computes with, or known to
    /// change nothing.
    ///
    /// # Errors
    /// `Format`, `Shape` or `Unsupported` that name the field: of another architecture, missing, of a value that cannot be or that
    /// this model does not have, or unknown.
    pub fn from_json(config: &Value) -> Result<Self> {
        fields::read(config).map_err(|e| e.context("config.json"))
    }

    /// The tensors of a file in the order of the model's parameters.
    ///
    /// # Errors
    /// `Format` for a tensor that is missing, of another shape or type, or that the model has no place for; names it.
    pub fn match_tensors<'a>(&self, tensors: &[TensorView<'a>]) -> Result<Vec<TensorView<'a>>> {
        let mut left: BTreeMap<&str, TensorView<'a>> = BTreeMap::new();
        for view in tensors {
            if left.insert(view.name, *view).is_some() {
                return Err(Error::format(format!("two tensors are called {}", view.name)));
            }
        }
        let mut matched = Vec::new();
        for (name, shape) in self.tensors() {
            let bare = name.strip_prefix(PREFIX).unwrap_or(&name);
            let found = left.remove(name.as_str()).or_else(|| left.remove(bare));
            let found = found.ok_or_else(|| {
                Error::format(format!(
                    "model.safetensors has no tensor {name} (nor {bare}), which config.json asks for"
                ))
            })?;
            if found.shape != shape {
                return Err(Error::format(format!(
                    "model.safetensors: {} has shape {:?}, expected {shape:?} by config.json",
                    found.name, found.shape
                )));
            }
            found.check_float().map_err(|e| e.context("model.safetensors"))?;
            matched.push(found);
        }
        self.check_left(&left, matched.first())?;
        Ok(matched)
    }

    /// Whether what is left of a file may be left out.
    fn check_left(&self, left: &BTreeMap<&str, TensorView<'_>>, wte: Option<&TensorView<'_>>) -> Result<()> {
        let mut foreign = Vec::new();
        for (name, view) in left {
            let bare = name.strip_prefix(PREFIX).unwrap_or(name);
            if is_mask(bare, view.shape) {
                continue;
            }
            if self.variant.tied && *name == HEAD {
                let same = wte.is_some_and(|wte| {
                    (wte.dtype, wte.shape, wte.bytes) == (view.dtype, view.shape, view.bytes)
                });
                if !same {
                    return Err(Error::format(format!(
                        "model.safetensors: {HEAD} is not transformer.wte.weight, though config.json ties them; a model with a head \
                         of its own says \"tie_word_embeddings\": false"
                    )));
                }
                continue;
            }
            if !self.bias && is_bias(bare) {
                if view.floats()?.iter().any(|v| *v != 0.0) {
                    return Err(Error::format(format!(
                        "model.safetensors: {name} is not zero, though config.json says that the model has no biases"
                    )));
                }
                continue;
            }
            foreign.push(*name);
        }
        let Some(first) = foreign.first() else { return Ok(()) };
        let more = if foreign.len() > 1 { format!(" and {} more", foreign.len() - 1) } else { String::new() };
        Err(Error::format(format!(
            "model.safetensors: {first}{more}: no place for that in the model of config.json, which has {} layers; correct config.json, or \
             leave the tensor out of the file",
            self.layers
        )))
    }
}

/// The causal mask, which older versions of `transformers` wrote beside the weights.
fn is_mask(bare: &str, shape: &[usize]) -> bool {
    let part = bare.strip_prefix("h.").and_then(|rest| rest.split_once('.'));
    match part.filter(|(number, _)| number.bytes().all(|b| b.is_ascii_digit())).map(|(_, part)| part) {
        Some("attn.bias") => matches!(shape, [1, 1, t, s] if t == s),
        Some("attn.masked_bias") => shape.is_empty(),
        _ => false,
    }
}

/// A vector that the model has where it has biases.
fn is_bias(bare: &str) -> bool {
    bare.ends_with(".bias") && (bare.contains("ln_") || bare.contains(".c_"))
}

pub(super) fn state(gpt: &Gpt) -> Vec<Planned<'static>> {
    let mut out = Vec::new();
    for tensor in gpt.params.list() {
        let name = tensor.name().unwrap_or_default().to_string();
        let dtype = tensor.dtype();
        let data = |name: String, shape: Vec<usize>, bytes| Planned {
            name,
            dtype: file_dtype(dtype),
            shape,
            bytes: Bytes::Later(bytes),
        };
        let weights = tensor.clone();
        out.push(data(name.clone(), tensor.dims().to_vec(), Box::new(move || weights.to_bytes())));
        let has_bias = name.contains("ln_") || name.contains(".c_");
        if let (false, true, Some(stem)) = (gpt.config.bias, has_bias, name.strip_suffix(".weight")) {
            let n = tensor.shape().last();
            out.push(data(format!("{stem}.bias"), vec![n], Box::new(move || Ok(vec![0; n * dtype.size()]))));
        }
    }
    out
}

fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::F32 => Dtype::F32,
    }
}
