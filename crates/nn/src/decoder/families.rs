//! Families of decoders: one row of data each. What a family computes stands in its [`DecoderConfig`](super::DecoderConfig); here is how its
//! files name things.

use super::config::Sizes;
use super::fields::Fields;
use super::{DecoderConfig, read, write};
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};

/// A family of models as Hugging Face's `transformers` knows it.
#[derive(Debug)]
pub struct Family {
    /// `model_type` of `config.json`.
    pub model_type: &'static str,
    /// `architectures` of `config.json`.
    pub architecture: &'static str,
    /// Names of tensors.
    pub names: &'static Names,
    /// Reads what it computes from the fields of `config.json`.
    pub read: fn(&'static Family, &mut Fields<'_>) -> Result<DecoderConfig>,
    /// Writes those fields.
    pub write: fn(&DecoderConfig, &mut Map<String, Value>),
    /// The fields of sizes.
    pub sizes: fn(&Sizes) -> Result<Map<String, Value>>,
}

impl Family {
    /// The one of that `model_type`.
    ///
    /// # Errors
    /// `Unsupported` that lists those there are.
    pub fn named(name: &str) -> Result<&'static Self> {
        FAMILIES.iter().find(|family| family.model_type == name).ok_or_else(|| {
            let near = netcl_device::did_you_mean(name, FAMILIES.iter().map(|f| f.model_type));
            Error::unsupported(format!("model_type is {name:?}, expected one of {}{near}", Self::names()))
        })
    }
    pub(super) fn names() -> String {
        FAMILIES.iter().map(|family| family.model_type).collect::<Vec<_>>().join(", ")
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

/// Names of tensors in a family's files, without `.weight` and `.bias`.
#[derive(Debug)]
pub struct Names {
    /// Before everything but the head; files of a model without head lack it.
    pub prefix: &'static str,
    /// Token table (V, C).
    pub embedding: &'static str,
    /// Position table (context, C).
    pub positions: &'static str,
    /// Before the number of a layer.
    pub layer: &'static str,
    /// Queries, keys and values: one packed projection or three.
    pub qkv: &'static [&'static str],
    /// The packed projection holds query, key and value of head 0, then those of head 1, … (GPT-NeoX).
    pub qkv_by_head: bool,
    /// Output projection of attention.
    pub out: &'static str,
    /// Norms of queries and keys.
    pub qk_norms: [&'static str; 2],
    /// Norms before attention and MLP.
    pub pre_norms: [&'static str; 2],
    /// Norms behind them.
    pub post_norms: [&'static str; 2],
    /// First map of the MLP; gate and value where it is gated, packed or apart.
    pub up: &'static [&'static str],
    /// Second map.
    pub down: &'static str,
    /// Experts, in families that have them.
    pub experts: Option<ExpertNames>,
    /// Last norm.
    pub last_norm: &'static str,
    /// Head (V, C), where it is not the token table.
    pub head: &'static str,
    /// Weights are (in, out), as GPT-2's `Conv1D` has them, rather than (out, in).
    pub transposed: bool,
    /// Files have biases of all maps and norms, zeros where the model has none.
    pub always_biases: bool,
    /// Tensors of old files that are no parameters, by their ends.
    pub buffers: &'static [&'static str],
}

/// Names of a mixture's tensors.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    /// Folder of all of them. `transformers` holds them under `mlp`, and so may files that it wrote as they are in memory.
    pub folder: &'static str,
    /// Gate, value and map back of one expert, behind its number.
    pub maps: [&'static str; 3],
}

const LLAMA: Names = Names {
    prefix: "model.",
    embedding: "embed_tokens",
    positions: "",
    layer: "layers.",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    qkv_by_head: false,
    out: "self_attn.o_proj",
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    pre_norms: ["input_layernorm", "post_attention_layernorm"],
    post_norms: ["post_attention_layernorm", "post_feedforward_layernorm"],
    up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    experts: None,
    last_norm: "norm",
    head: "lm_head",
    transposed: false,
    always_biases: false,
    buffers: &["rotary_emb.inv_freq"],
};
/// Norms before and behind each part.
const GEMMA: Names = Names { pre_norms: ["input_layernorm", "pre_feedforward_layernorm"], ..LLAMA };
const MIXTRAL: Names =
    Names { experts: Some(ExpertNames { folder: "block_sparse_moe", maps: ["w1", "w3", "w2"] }), ..LLAMA };
const QWEN_MOE: Names = Names {
    experts: Some(ExpertNames { folder: "mlp", maps: ["gate_proj", "up_proj", "down_proj"] }),
    ..LLAMA
};
const PHI3: Names = Names { qkv: &["self_attn.qkv_proj"], up: &["mlp.gate_up_proj"], ..LLAMA };
const GPT2: Names = Names {
    prefix: "transformer.",
    embedding: "wte",
    positions: "wpe",
    layer: "h.",
    qkv: &["attn.c_attn"],
    out: "attn.c_proj",
    pre_norms: ["ln_1", "ln_2"],
    up: &["mlp.c_fc"],
    down: "mlp.c_proj",
    last_norm: "ln_f",
    transposed: true,
    always_biases: true,
    buffers: &["attn.bias", "attn.masked_bias"],
    ..LLAMA
};
const NEOX: Names = Names {
    prefix: "gpt_neox.",
    embedding: "embed_in",
    qkv: &["attention.query_key_value"],
    qkv_by_head: true,
    out: "attention.dense",
    up: &["mlp.dense_h_to_4h"],
    down: "mlp.dense_4h_to_h",
    last_norm: "final_layer_norm",
    head: "embed_out",
    buffers: &["attention.bias", "attention.masked_bias", "rotary_emb.inv_freq"],
    ..LLAMA
};

/// A row of the table.
const fn row(
    model_type: &'static str,
    architecture: &'static str,
    names: &'static Names,
    read: fn(&'static Family, &mut Fields<'_>) -> Result<DecoderConfig>,
    write: fn(&DecoderConfig, &mut Map<String, Value>),
) -> Family {
    Family { model_type, architecture, names, read, write, sizes: write::llama_sizes }
}

/// Every family.
pub static FAMILIES: &[Family] = &[
    Family { sizes: write::gpt2_sizes, ..row("gpt2", "GPT2LMHeadModel", &GPT2, read::gpt2, write::gpt2) },
    row("llama", "LlamaForCausalLM", &LLAMA, read::llama, write::llama),
    row("mistral", "MistralForCausalLM", &LLAMA, read::mistral, write::mistral),
    Family {
        sizes: write::mixtral_sizes,
        ..row("mixtral", "MixtralForCausalLM", &MIXTRAL, read::mixtral, write::mixtral)
    },
    row("qwen2", "Qwen2ForCausalLM", &LLAMA, read::qwen2, write::qwen),
    row("qwen3", "Qwen3ForCausalLM", &LLAMA, read::qwen3, write::qwen),
    Family {
        sizes: write::qwen3_moe_sizes,
        ..row("qwen3_moe", "Qwen3MoeForCausalLM", &QWEN_MOE, read::qwen3_moe, write::qwen3_moe)
    },
    row("gemma2", "Gemma2ForCausalLM", &GEMMA, read::gemma2, write::gemma2),
    row("gemma3_text", "Gemma3ForCausalLM", &GEMMA, read::gemma3, write::gemma3),
    row("phi3", "Phi3ForCausalLM", &PHI3, read::phi3, write::mistral),
    row("olmo2", "Olmo2ForCausalLM", &LLAMA, read::olmo2, write::llama),
    row("smollm3", "SmolLM3ForCausalLM", &LLAMA, read::smollm3, write::smollm3),
    row("granite", "GraniteForCausalLM", &LLAMA, read::granite, write::granite),
    Family {
        sizes: write::neox_sizes,
        ..row("gpt_neox", "GPTNeoXForCausalLM", &NEOX, read::gpt_neox, write::gpt_neox)
    },
];
