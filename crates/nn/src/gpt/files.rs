//! GPT weights and configuration in the Hugging Face layout.

use super::{Gpt, GptConfig};
use crate::checkpoint::{Dtype, TensorData};
use netcl_tensor::{DType, Error, Result};
use serde_json::{Value, json};

const PREFIX: &str = "transformer.";

/// `config.json` as `GPT2LMHeadModel` reads it. `netcl` holds what that format cannot say.
pub fn config_json(config: &GptConfig, dtype: DType, dropout: f64, eos: Option<u32>) -> Value {
    let dtype = match dtype {
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        _ => "float32",
    };
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.width,
        "n_positions": config.context,
        "n_ctx": config.context,
        "n_inner": Value::Null,
        "vocab_size": config.vocab,
        "layer_norm_epsilon": config.eps.to_string().parse::<f64>().unwrap_or(1e-5),
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "resid_pdrop": dropout,
        "initializer_range": 0.02,
        "scale_attn_weights": true,
        "tie_word_embeddings": true,
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

impl GptConfig {
    /// From a `config.json` of a GPT-2 model.
    ///
    /// # Errors
    /// `Format` for another architecture, a missing number, or an activation this model does not have.
    pub fn from_json(config: &Value) -> Result<Self> {
        let kind = config["model_type"].as_str().unwrap_or_default();
        if kind != "gpt2" {
            return Err(Error::unsupported(format!(
                "config.json: model_type is {kind:?}, expected \"gpt2\""
            )));
        }
        let activation = config["activation_function"].as_str().unwrap_or("gelu_new");
        if !matches!(activation, "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") {
            return Err(Error::unsupported(format!(
                "config.json: activation_function {activation:?}, expected \"gelu_new\""
            )));
        }
        let number = |name: &str| {
            let value = config[name].as_u64().and_then(|n| usize::try_from(n).ok());
            value.ok_or_else(|| Error::format(format!("config.json: {name} is missing or no number")))
        };
        let out = Self {
            layers: number("n_layer")?,
            heads: number("n_head")?,
            width: number("n_embd")?,
            context: number("n_positions").or_else(|_| number("n_ctx"))?,
            vocab: number("vocab_size")?,
            bias: config["netcl"]["bias"].as_bool().unwrap_or(true),
            eps: config["layer_norm_epsilon"].as_f64().unwrap_or(1e-5) as f32,
        };
        let inner = config["n_inner"].as_u64();
        if inner.is_some_and(|n| n != 4 * out.width as u64) {
            return Err(Error::unsupported(format!(
                "config.json: n_inner is {inner:?}, expected four times n_embd"
            )));
        }
        Ok(out)
    }
}

pub(super) fn state(gpt: &Gpt) -> Result<Vec<TensorData>> {
    let mut out = Vec::new();
    for tensor in gpt.params.list() {
        let name = tensor.name().unwrap_or_default().to_string();
        let data = |name: String, shape: Vec<usize>, bytes| TensorData {
            name,
            dtype: file_dtype(tensor.dtype()),
            shape,
            bytes,
        };
        out.push(data(name.clone(), tensor.dims().to_vec(), tensor.to_bytes()?));
        let has_bias = name.contains("ln_") || name.contains(".c_");
        if let (false, true, Some(stem)) = (gpt.config.bias, has_bias, name.strip_suffix(".weight")) {
            let n = tensor.shape().last();
            out.push(data(format!("{stem}.bias"), vec![n], vec![0; n * tensor.dtype().size()]));
        }
    }
    Ok(out)
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

pub(super) fn load_state(gpt: &Gpt, tensors: &[TensorData]) -> Result<()> {
    for parameter in gpt.params.list() {
        let name = parameter.name().unwrap_or_default();
        let bare = name.strip_prefix(PREFIX).unwrap_or(name);
        let found = tensors.iter().find(|t| t.name == name || t.name == bare);
        let found = found
            .ok_or_else(|| Error::format(format!("model.safetensors has no tensor {name} (nor {bare})")))?;
        if found.shape != parameter.dims() {
            return Err(Error::format(format!(
                "model.safetensors: {} has shape {:?}, expected {:?} by config.json",
                found.name,
                found.shape,
                parameter.dims()
            )));
        }
        parameter.set_f32(&found.floats().map_err(|e| e.context("model.safetensors"))?)?;
    }
    Ok(())
}
