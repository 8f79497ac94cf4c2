//! Families of decoders: one row of data each. What a family computes stands in its [`DecoderConfig`](super::DecoderConfig); here is how its
//! files name things.

use super::fields::Fields;
use super::{DecoderConfig, read};
use netcl_tensor::Result;

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
    /// Last norm.
    pub last_norm: &'static str,
    /// Head (V, C), where it is not the token table.
    pub head: &'static str,
    /// Weights are (in, out), as GPT-2's `Conv1D` has them, rather than (out, in).
    pub transposed: bool,
    /// Tensors of old files that are no parameters, by their ends.
    pub buffers: &'static [&'static str],
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
    last_norm: "norm",
    head: "lm_head",
    transposed: false,
    buffers: &["rotary_emb.inv_freq"],
};
/// Norms before and behind each part.
const GEMMA: Names = Names { pre_norms: ["input_layernorm", "pre_feedforward_layernorm"], ..LLAMA };
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

/// Every family.
pub static FAMILIES: &[Family] = &[
    Family { model_type: "gpt2", architecture: "GPT2LMHeadModel", names: &GPT2, read: read::gpt2 },
    Family { model_type: "llama", architecture: "LlamaForCausalLM", names: &LLAMA, read: read::llama },
    Family { model_type: "mistral", architecture: "MistralForCausalLM", names: &LLAMA, read: read::mistral },
    Family { model_type: "qwen2", architecture: "Qwen2ForCausalLM", names: &LLAMA, read: read::qwen2 },
    Family { model_type: "qwen3", architecture: "Qwen3ForCausalLM", names: &LLAMA, read: read::qwen3 },
    Family { model_type: "gemma2", architecture: "Gemma2ForCausalLM", names: &GEMMA, read: read::gemma2 },
    Family {
        model_type: "gemma3_text",
        architecture: "Gemma3ForCausalLM",
        names: &GEMMA,
        read: read::gemma3,
    },
    Family { model_type: "phi3", architecture: "Phi3ForCausalLM", names: &PHI3, read: read::phi3 },
    Family { model_type: "olmo2", architecture: "Olmo2ForCausalLM", names: &LLAMA, read: read::olmo2 },
    Family { model_type: "smollm3", architecture: "SmolLM3ForCausalLM", names: &LLAMA, read: read::smollm3 },
    Family { model_type: "granite", architecture: "GraniteForCausalLM", names: &LLAMA, read: read::granite },
    Family { model_type: "gpt_neox", architecture: "GPTNeoXForCausalLM", names: &NEOX, read: read::gpt_neox },
];
