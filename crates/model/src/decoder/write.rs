//! Writing of [`DecoderConfig`] as `config.json` for `transformers`: one function per family, listed in [`FAMILIES`](super::FAMILIES).

use super::config::{DecoderConfig, LayerKind, Sizes};
use super::fields::activation_name;
use super::rotary::{Rotary, Scaling};
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value, json};

/// Returns a number in the shortest notation that reads back as the same f32.
fn short(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

/// Returns a number y with `back(y) == x`, as an integer or in short notation if possible.
fn inverse(x: f32, near: f64, back: impl Fn(f64) -> f32) -> f64 {
    let candidates = [near.round(), short(near as f32), near];
    #[allow(clippy::float_cmp)] // reads back as the same bits
    let same = |y: &f64| back(*y) == x;
    candidates.into_iter().find(same).unwrap_or(near)
}

pub(super) fn put(map: &mut Map<String, Value>, fields: Value) {
    if let Value::Object(fields) = fields {
        map.extend(fields);
    }
}

/// Returns the `rope_parameters` object of a set of rotary frequencies.
fn rope(rotary: &Rotary, size: usize) -> Value {
    let mut map = Map::new();
    put(&mut map, json!({ "rope_theta": rotary.base }));
    if rotary.dims != size {
        // Rounded down when read back.
        let exact = rotary.dims as f64 / size as f64;
        let read = (size as f64 * exact) as usize;
        let part = if read == rotary.dims { exact } else { (rotary.dims as f64 + 0.5) / size as f64 };
        put(&mut map, json!({ "partial_rotary_factor": part }));
    }
    let scaling = match &rotary.scaling {
        Scaling::None => json!({ "rope_type": "default" }),
        Scaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
        Scaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": whole(*original),
        }),
        Scaling::Yarn { factor, fast, slow, original, truncate, magnitude } => json!({
            "rope_type": "yarn", "factor": factor, "beta_fast": fast, "beta_slow": slow, "truncate": truncate,
            "original_max_position_embeddings": whole(*original), "attention_factor": magnitude,
        }),
        Scaling::LongRope { short, long, original, magnitude } => json!({
            "rope_type": "longrope", "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": original, "attention_factor": magnitude,
        }),
    };
    put(&mut map, scaling);
    map.into()
}

/// Returns a length, written as an integer if it is one.
fn whole(length: f64) -> Value {
    if length.fract() == 0.0 { (length as u64).into() } else { length.into() }
}

/// The fields of Llama, which most later families share.
fn base(c: &DecoderConfig, map: &mut Map<String, Value>) {
    let a = &c.attention;
    put(
        map,
        json!({
            "vocab_size": c.vocab, "hidden_size": c.width, "intermediate_size": c.mlp.hidden, "num_hidden_layers": c.layers,
            "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.size,
            "max_position_embeddings": c.context, "rms_norm_eps": short(c.norm.eps),
            "hidden_act": activation_name(c.mlp.activation), "tie_word_embeddings": c.tied,
        }),
    );
    if let Some(rotary) = c.rotary.first() {
        angles(rotary, a.size, map);
    }
}

/// The rotary frequencies under the current name and under those that older versions of `transformers` read.
fn angles(rotary: &Rotary, size: usize, map: &mut Map<String, Value>) {
    let parameters = rope(rotary, size);
    map.insert("rope_theta".into(), rotary.base.into());
    if rotary.scaling != Scaling::None {
        map.insert("rope_scaling".into(), parameters.clone());
    }
    if let Scaling::LongRope { original, .. } = rotary.scaling {
        map.insert("original_max_position_embeddings".into(), original.into());
    }
    map.insert("rope_parameters".into(), parameters);
}

/// Writes the `layer_types` list, which marks the layers with a sliding window.
fn layer_types(c: &DecoderConfig, map: &mut Map<String, Value>) {
    let kind = |kind: LayerKind| if kind.window.is_some() { "sliding_attention" } else { "full_attention" };
    let types: Vec<&str> = (0..c.layers).map(|i| kind(c.kind(i))).collect();
    map.insert("layer_types".into(), types.into());
    map.insert("sliding_window".into(), window(c).into());
}

fn window(c: &DecoderConfig) -> Option<usize> {
    c.kinds.iter().find_map(|kind| kind.window)
}

/// Llama and OLMo 2.
pub fn llama(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    put(map, json!({ "attention_bias": c.attention.qkv_bias, "mlp_bias": c.mlp.bias }));
}

/// Mistral and Phi 3.
pub fn mistral(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    put(map, json!({ "sliding_window": window(c) }));
    if c.attention.qkv_bias || c.mlp.bias {
        put(map, json!({ "attention_bias": c.attention.qkv_bias, "mlp_bias": c.mlp.bias }));
    }
}

/// Fields of a mixture of experts shared by Mixtral and Qwen; `number` is the name of the field for the number of experts.
fn experts(c: &DecoderConfig, number: &str, map: &mut Map<String, Value>) {
    let Some(moe) = &c.mlp.moe else { return };
    map.insert(number.into(), moe.experts.into());
    put(
        map,
        json!({
            "num_experts_per_tok": moe.top_k, "output_router_logits": moe.balance,
            "router_aux_loss_coef": short(moe.balance_factor),
        }),
    );
}

/// Mixtral.
pub fn mixtral(c: &DecoderConfig, map: &mut Map<String, Value>) {
    mistral(c, map);
    experts(c, "num_local_experts", map);
    put(map, json!({ "router_jitter_noise": 0.0 }));
}

/// Qwen 3 with experts.
pub fn qwen3_moe(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    // The name that `transformers` before version 5 also reads.
    experts(c, "num_experts", map);
    let sparse = |i: usize| c.kind(i).sparse;
    let period = c.kinds.len().max(1);
    let by_step = (0..period).all(|i| sparse(i) == (i + 1 == period));
    let dense: Vec<usize> =
        if by_step { Vec::new() } else { (0..c.layers).filter(|i| !sparse(*i)).collect() };
    put(
        map,
        json!({
            "attention_bias": c.attention.qkv_bias, "use_sliding_window": window(c).is_some(), "sliding_window": window(c),
            "decoder_sparse_step": if by_step { period } else { 1 }, "mlp_only_layers": dense,
        }),
    );
    if let Some(moe) = &c.mlp.moe {
        put(map, json!({ "moe_intermediate_size": moe.hidden, "norm_topk_prob": moe.renormalise }));
    }
}

/// Qwen 2 and 3.
pub fn qwen(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    layer_types(c, map);
    let from = (0..c.layers).find(|i| c.kind(*i).window.is_some()).unwrap_or(c.layers);
    put(map, json!({ "use_sliding_window": window(c).is_some(), "max_window_layers": from }));
    if c.family.model_type != "qwen2" {
        map.insert("attention_bias".into(), c.attention.qkv_bias.into());
    }
}

/// SmolLM 3.
pub fn smollm3(c: &DecoderConfig, map: &mut Map<String, Value>) {
    llama(c, map);
    layer_types(c, map);
    let rotated: Vec<u8> = (0..c.layers).map(|i| u8::from(c.kind(i).rotary.is_some())).collect();
    put(map, json!({ "use_sliding_window": window(c).is_some(), "no_rope_layers": rotated }));
}

/// Fields shared by Gemma 2 and 3.
fn gemma(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    map.remove("hidden_act");
    layer_types(c, map);
    // `transformers` does not accept 16.0 here.
    let scale = |s: f32| match inverse(s, 1.0 / f64::from(s).powi(2), |n| (1.0 / n.sqrt()) as f32) {
        n if n.fract() == 0.0 && n.abs() < 1e15 => json!(n as i64),
        n => json!(n),
    };
    put(
        map,
        json!({
            "hidden_activation": activation_name(c.mlp.activation), "attention_bias": c.attention.qkv_bias,
            "query_pre_attn_scalar": c.attention.scale.map(scale),
            "attn_logit_softcapping": c.attention.softcap.map(short),
            "final_logit_softcapping": c.logits_softcap.map(short),
        }),
    );
}

/// Gemma 2.
pub fn gemma2(c: &DecoderConfig, map: &mut Map<String, Value>) {
    gemma(c, map);
}

/// Gemma 3's text model.
pub fn gemma3(c: &DecoderConfig, map: &mut Map<String, Value>) {
    gemma(c, map);
    map.remove("rope_scaling");
    // Layers of the window kind have separate rotary frequencies, even without a window.
    let local = |i: usize| c.kind(i).rotary == Some(1);
    let types = (0..c.layers).map(|i| if local(i) { "sliding_attention" } else { "full_attention" });
    map.insert("layer_types".into(), types.collect::<Vec<_>>().into());
    let [full, sliding] = [0, 1].map(|i| c.rotary.get(i).map(|rotary| rope(rotary, c.attention.size)));
    put(map, json!({ "rope_parameters": { "full_attention": full, "sliding_attention": sliding } }));
    if let Some(sliding) = c.rotary.get(1) {
        map.insert("rope_local_base_freq".into(), sliding.base.into());
    }
}

/// Granite.
pub fn granite(c: &DecoderConfig, map: &mut Map<String, Value>) {
    llama(c, map);
    put(
        map,
        json!({
            "embedding_multiplier": short(c.embedding_scale), "residual_multiplier": short(c.residual_scale),
            "logits_scaling": inverse(c.logits_scale, 1.0 / f64::from(c.logits_scale), |n| 1.0 / n as f32),
            "attention_multiplier": c.attention.scale.map(short),
        }),
    );
}

/// GPT-NeoX and Pythia.
pub fn gpt_neox(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    for field in ["num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta"] {
        map.remove(field);
    }
    let rotary = c.rotary.first();
    put(
        map,
        json!({
            "layer_norm_eps": short(c.norm.eps), "attention_bias": c.attention.qkv_bias,
            "use_parallel_residual": c.parallel, "rotary_emb_base": rotary.map(|r| r.base),
            "rotary_pct": rotary.map(|r| r.dims as f64 / c.attention.size as f64),
        }),
    );
}

/// StarCoder 2.
pub fn starcoder2(c: &DecoderConfig, map: &mut Map<String, Value>) {
    base(c, map);
    map.remove("rms_norm_eps");
    let fields =
        json!({ "norm_epsilon": short(c.norm.eps), "use_bias": c.mlp.bias, "sliding_window": window(c) });
    put(map, fields);
}

/// GPT-2. The object `netcl` contains options that the format cannot express.
pub fn gpt2(c: &DecoderConfig, map: &mut Map<String, Value>) {
    let inner = (c.mlp.hidden != c.width.saturating_mul(4)).then_some(c.mlp.hidden);
    put(
        map,
        json!({
            "activation_function": activation_name(c.mlp.activation), "n_layer": c.layers, "n_head": c.attention.heads,
            "n_embd": c.width, "n_positions": c.context, "n_ctx": c.context, "n_inner": inner, "vocab_size": c.vocab,
            "layer_norm_epsilon": short(c.norm.eps), "scale_attn_weights": c.attention.scale.is_none(),
            "scale_attn_by_inverse_layer_idx": c.attention.scale_by_layer, "tie_word_embeddings": c.tied,
            "netcl": { "bias": c.norm.bias },
        }),
    );
}

/// Sizes in the fields of Llama and most others.
pub fn llama_sizes(sizes: &Sizes) -> Result<Map<String, Value>> {
    // Llama 2's formula: two thirds of four times the width, rounded up.
    let usual = (sizes.width.saturating_mul(8) / 3).div_ceil(64).saturating_mul(64);
    let hidden = sizes.mlp.unwrap_or(usual);
    let mut map = Map::new();
    put(
        &mut map,
        json!({
            "vocab_size": sizes.vocab, "hidden_size": sizes.width, "intermediate_size": hidden,
            "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_size, "max_position_embeddings": sizes.context,
        }),
    );
    optional(sizes, &mut map);
    Ok(map)
}

/// Sizes of Mixtral. New models are trained with the balance loss.
pub fn mixtral_sizes(sizes: &Sizes) -> Result<Map<String, Value>> {
    let mut map = llama_sizes(sizes)?;
    put(&mut map, json!({ "output_router_logits": true }));
    Ok(map)
}

/// Sizes of StarCoder 2, whose MLP is not gated.
pub fn starcoder2_sizes(sizes: &Sizes) -> Result<Map<String, Value>> {
    let hidden = sizes.mlp.unwrap_or(sizes.width.saturating_mul(4));
    let kv_heads = sizes.kv_heads.unwrap_or(sizes.heads);
    llama_sizes(&Sizes { mlp: Some(hidden), kv_heads: Some(kv_heads), ..*sizes })
}

/// Returns the sizes of Qwen 3 with experts, whose width is that of the MLP.
pub fn qwen3_moe_sizes(sizes: &Sizes) -> Result<Map<String, Value>> {
    let mut map = mixtral_sizes(sizes)?;
    if let Some(hidden) = map.get("intermediate_size").cloned() {
        map.insert("moe_intermediate_size".into(), hidden);
    }
    Ok(map)
}

/// Optional fields, written only if given.
fn optional(sizes: &Sizes, map: &mut Map<String, Value>) {
    if let Some(theta) = sizes.rope_theta {
        map.insert("rope_theta".into(), theta.into());
    }
    if let Some(tied) = sizes.tied {
        map.insert("tie_word_embeddings".into(), tied.into());
    }
}

/// Rejects sizes that a family cannot set separately.
fn without(family: &str, given: [(&str, bool); 3]) -> Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => {
            Err(Error::unsupported(format!("models of {family} do not support a separate {name}")))
        }
        None => Ok(()),
    }
}

/// Sizes in GPT-2's fields.
pub fn gpt2_sizes(sizes: &Sizes) -> Result<Map<String, Value>> {
    let grouped = sizes.kv_heads.is_some_and(|n| n != sizes.heads);
    let own = sizes.head_size.is_some_and(|n| n.saturating_mul(sizes.heads) != sizes.width);
    let rotary = ("rotary frequencies", sizes.rope_theta.is_some());
    without("gpt2", [("number of key and value heads", grouped), ("head size", own), rotary])?;
    let mut map = Map::new();
    put(
        &mut map,
        json!({
            "n_layer": sizes.layers, "n_head": sizes.heads, "n_embd": sizes.width, "n_positions": sizes.context,
            "n_inner": sizes.mlp, "vocab_size": sizes.vocab,
        }),
    );
    optional(sizes, &mut map);
    Ok(map)
}

/// Sizes in GPT-NeoX's fields.
pub fn neox_sizes(sizes: &Sizes) -> Result<Map<String, Value>> {
    let grouped = sizes.kv_heads.is_some_and(|n| n != sizes.heads);
    let own = sizes.head_size.is_some_and(|n| n.saturating_mul(sizes.heads) != sizes.width);
    without("gpt_neox", [("number of key and value heads", grouped), ("head size", own), ("", false)])?;
    let mut map = Map::new();
    put(
        &mut map,
        json!({
            "vocab_size": sizes.vocab, "hidden_size": sizes.width, "num_hidden_layers": sizes.layers,
            "intermediate_size": sizes.mlp.unwrap_or(sizes.width.saturating_mul(4)),
            "num_attention_heads": sizes.heads, "max_position_embeddings": sizes.context,
        }),
    );
    if let Some(theta) = sizes.rope_theta {
        map.insert("rotary_emb_base".into(), theta.into());
    }
    if let Some(tied) = sizes.tied {
        map.insert("tie_word_embeddings".into(), tied.into());
    }
    Ok(map)
}
