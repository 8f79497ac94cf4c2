//! Default values of omitted fields of a `config.json`, by family: those of `transformers`. `tools/check_config.py --defaults` writes them to
//! `tests/goldens/config_defaults.json`, and a test compares.

use Usual::{Flag, Null, Number, Text, Whole};
use serde_json::{Map, Value};

/// A default.
#[derive(Clone, Copy, Debug)]
pub enum Usual {
    /// A size.
    Whole(u64),
    /// A number.
    Number(f64),
    /// A switch.
    Flag(bool),
    /// A name.
    Text(&'static str),
    /// `null`.
    Null,
}

impl Usual {
    fn value(self) -> Value {
        match self {
            Whole(n) => n.into(),
            Number(x) => x.into(),
            Flag(on) => on.into(),
            Text(text) => text.into(),
            Null => Value::Null,
        }
    }
}

/// Fields with their defaults.
pub type Table = &'static [(&'static str, Usual)];

/// Names of the same field.
const ALIASES: &[[&str; 2]] = &[
    ["n_embd", "hidden_size"],
    ["n_layer", "num_hidden_layers"],
    ["n_head", "num_attention_heads"],
    ["n_positions", "max_position_embeddings"],
    ["num_local_experts", "num_experts"],
];

/// Returns `map` with the defaults of its missing fields.
pub fn completed(map: &Map<String, Value>, table: Table) -> Map<String, Value> {
    let mut out = map.clone();
    for (name, usual) in table {
        let names = ALIASES.iter().find(|pair| pair.contains(name));
        let given =
            names.map_or(map.contains_key(*name), |pair| pair.iter().any(|name| map.contains_key(*name)));
        // A null switch or name is not set.
        let unset = matches!(usual, Flag(_) | Text(_)) && map.get(*name).is_some_and(Value::is_null);
        if !given || unset {
            out.insert((*name).into(), usual.value());
        }
    }
    out
}

/// Defaults of GPT-2.
pub const GPT2: Table = &[
    ("vocab_size", Whole(50_257)),
    ("n_positions", Whole(1024)),
    ("n_embd", Whole(768)),
    ("n_layer", Whole(12)),
    ("n_head", Whole(12)),
    ("n_inner", Null),
    ("activation_function", Text("gelu_new")),
    ("layer_norm_epsilon", Number(1e-5)),
    ("scale_attn_weights", Flag(true)),
    ("scale_attn_by_inverse_layer_idx", Flag(false)),
    ("tie_word_embeddings", Flag(true)),
];
/// Defaults of Llama.
pub const LLAMA: Table = &[
    ("vocab_size", Whole(32_000)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(11_008)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Null),
    ("head_dim", Null),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(2048)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(false)),
    ("attention_bias", Flag(false)),
    ("mlp_bias", Flag(false)),
];
/// Defaults of Mistral.
pub const MISTRAL: Table = &[
    ("vocab_size", Whole(32_000)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(14_336)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Whole(8)),
    ("head_dim", Null),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(131_072)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(false)),
    ("sliding_window", Whole(4096)),
];
/// Defaults of Mixtral.
pub const MIXTRAL: Table = &[
    ("vocab_size", Whole(32_000)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(14_336)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Whole(8)),
    ("head_dim", Null),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(131_072)),
    ("rms_norm_eps", Number(1e-5)),
    ("tie_word_embeddings", Flag(false)),
    ("sliding_window", Null),
    ("num_experts_per_tok", Whole(2)),
    ("num_local_experts", Whole(8)),
    ("output_router_logits", Flag(false)),
    ("router_aux_loss_coef", Number(0.001)),
    ("router_jitter_noise", Number(0.0)),
];
/// Defaults of Qwen 2.
pub const QWEN2: Table = &[
    ("vocab_size", Whole(151_936)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(22_016)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Whole(32)),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(32_768)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(false)),
    ("use_sliding_window", Flag(false)),
    ("sliding_window", Whole(4096)),
    ("max_window_layers", Whole(28)),
];
/// Defaults of Qwen 3.
pub const QWEN3: Table = &[
    ("vocab_size", Whole(151_936)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(22_016)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Whole(32)),
    ("head_dim", Whole(128)),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(32_768)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(false)),
    ("attention_bias", Flag(false)),
    ("use_sliding_window", Flag(false)),
    ("sliding_window", Whole(4096)),
    ("max_window_layers", Whole(28)),
];
/// Defaults of Qwen 3 with experts.
pub const QWEN3_MOE: Table = &[
    ("vocab_size", Whole(151_936)),
    ("hidden_size", Whole(2048)),
    ("intermediate_size", Whole(6144)),
    ("num_hidden_layers", Whole(24)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Whole(4)),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(32_768)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(false)),
    ("attention_bias", Flag(false)),
    ("use_sliding_window", Flag(false)),
    ("sliding_window", Whole(4096)),
    ("decoder_sparse_step", Whole(1)),
    ("moe_intermediate_size", Whole(768)),
    ("num_experts_per_tok", Whole(8)),
    ("num_experts", Whole(128)),
    ("norm_topk_prob", Flag(false)),
    ("output_router_logits", Flag(false)),
    ("router_aux_loss_coef", Number(0.001)),
    ("mlp_only_layers", Null),
];
/// Defaults of Gemma 2.
pub const GEMMA2: Table = &[
    ("vocab_size", Whole(256_000)),
    ("hidden_size", Whole(2304)),
    ("intermediate_size", Whole(9216)),
    ("num_hidden_layers", Whole(26)),
    ("num_attention_heads", Whole(8)),
    ("num_key_value_heads", Whole(4)),
    ("head_dim", Whole(256)),
    ("hidden_activation", Text("gelu_pytorch_tanh")),
    ("max_position_embeddings", Whole(8192)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(true)),
    ("attention_bias", Flag(false)),
    ("query_pre_attn_scalar", Whole(256)),
    ("sliding_window", Whole(4096)),
    ("final_logit_softcapping", Number(30.0)),
    ("attn_logit_softcapping", Number(50.0)),
    ("use_bidirectional_attention", Flag(false)),
];
/// Defaults of Gemma 3's text model.
pub const GEMMA3: Table = &[
    ("vocab_size", Whole(262_208)),
    ("hidden_size", Whole(2304)),
    ("intermediate_size", Whole(9216)),
    ("num_hidden_layers", Whole(26)),
    ("num_attention_heads", Whole(8)),
    ("num_key_value_heads", Whole(4)),
    ("head_dim", Whole(256)),
    ("hidden_activation", Text("gelu_pytorch_tanh")),
    ("max_position_embeddings", Whole(131_072)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(true)),
    ("attention_bias", Flag(false)),
    ("query_pre_attn_scalar", Whole(256)),
    ("sliding_window", Whole(4096)),
    ("final_logit_softcapping", Null),
    ("attn_logit_softcapping", Null),
    ("use_bidirectional_attention", Flag(false)),
];
/// Defaults of Phi 3.
pub const PHI3: Table = &[
    ("vocab_size", Whole(32_064)),
    ("hidden_size", Whole(3072)),
    ("intermediate_size", Whole(8192)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Null),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(4096)),
    ("rms_norm_eps", Number(1e-5)),
    ("tie_word_embeddings", Flag(false)),
    ("sliding_window", Null),
];
/// Defaults of OLMo 2.
pub const OLMO2: Table = &[
    ("vocab_size", Whole(50_304)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(11_008)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Null),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(2048)),
    ("rms_norm_eps", Number(1e-5)),
    ("tie_word_embeddings", Flag(false)),
    ("attention_bias", Flag(false)),
];
/// Defaults of SmolLM 3.
pub const SMOLLM3: Table = &[
    ("vocab_size", Whole(128_256)),
    ("hidden_size", Whole(2048)),
    ("intermediate_size", Whole(11_008)),
    ("num_hidden_layers", Whole(36)),
    ("num_attention_heads", Whole(16)),
    ("num_key_value_heads", Whole(4)),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(32_768)),
    ("rms_norm_eps", Number(1e-6)),
    ("use_sliding_window", Flag(false)),
    ("sliding_window", Null),
    ("no_rope_layers", Null),
    ("no_rope_layer_interval", Whole(4)),
    ("attention_bias", Flag(false)),
    ("mlp_bias", Flag(false)),
    ("tie_word_embeddings", Flag(true)),
];
/// Defaults of Granite.
pub const GRANITE: Table = &[
    ("vocab_size", Whole(32_000)),
    ("hidden_size", Whole(4096)),
    ("intermediate_size", Whole(11_008)),
    ("num_hidden_layers", Whole(32)),
    ("num_attention_heads", Whole(32)),
    ("num_key_value_heads", Null),
    ("hidden_act", Text("silu")),
    ("max_position_embeddings", Whole(2048)),
    ("rms_norm_eps", Number(1e-6)),
    ("tie_word_embeddings", Flag(false)),
    ("attention_bias", Flag(false)),
    ("mlp_bias", Flag(false)),
    ("embedding_multiplier", Number(1.0)),
    ("logits_scaling", Number(1.0)),
    ("residual_multiplier", Number(1.0)),
    ("attention_multiplier", Number(1.0)),
];
/// Defaults of GPT-NeoX.
pub const NEOX: Table = &[
    ("vocab_size", Whole(50_432)),
    ("hidden_size", Whole(6144)),
    ("num_hidden_layers", Whole(44)),
    ("num_attention_heads", Whole(64)),
    ("intermediate_size", Whole(24_576)),
    ("hidden_act", Text("gelu")),
    ("max_position_embeddings", Whole(2048)),
    ("layer_norm_eps", Number(1e-5)),
    ("tie_word_embeddings", Flag(false)),
    ("use_parallel_residual", Flag(true)),
    ("attention_bias", Flag(true)),
];
/// Defaults of StarCoder 2.
pub const STARCODER2: Table = &[
    ("vocab_size", Whole(49_152)),
    ("hidden_size", Whole(3072)),
    ("intermediate_size", Whole(12_288)),
    ("num_hidden_layers", Whole(30)),
    ("num_attention_heads", Whole(24)),
    ("num_key_value_heads", Whole(2)),
    ("hidden_act", Text("gelu_pytorch_tanh")),
    ("max_position_embeddings", Whole(4096)),
    ("norm_epsilon", Number(1e-5)),
    ("sliding_window", Null),
    ("use_bias", Flag(true)),
    ("tie_word_embeddings", Flag(true)),
];
