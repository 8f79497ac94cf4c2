//! Reading of `config.json` as [`DecoderConfig`]: one function per family, listed in [`FAMILIES`](super::FAMILIES). A field that is not read and not
//! known to have no effect is an error.

use super::activation::Activation;
use super::angles::{self, Rules, USUAL};
use super::config::{
    DecoderConfig, LayerKind, MlpConfig, MoeConfig, NormConfig, NormKind, Placement, Positions,
};
use super::family::Family;
use super::fields::Fields;
use super::mixer::{AttentionConfig, QkNorm};
use netcl_tensor::{Error, Result};
use serde_json::Value;

/// Returns the fields of Llama, which most later families share.
fn base(
    family: &'static Family,
    fields: &mut Fields<'_>,
    rules: Option<&Rules>,
    eps: &'static str,
) -> Result<DecoderConfig> {
    let (layers, width, heads) = (
        fields.needed(&["num_hidden_layers"])?,
        fields.needed(&["hidden_size"])?,
        fields.needed(&["num_attention_heads"])?,
    );
    let context = fields.needed(&["max_position_embeddings"])?;
    let kv_heads = fields.size("num_key_value_heads")?.unwrap_or(heads);
    let size = match fields.size("head_dim")? {
        Some(size) => size,
        None if heads > 0 && width.is_multiple_of(heads) => width / heads,
        None => {
            return Err(Error::shape(format!(
                "{heads} num_attention_heads do not divide a hidden_size of {width}, and head_dim is missing"
            )));
        }
    };
    let rotary = rules.map(|rules| angles::one(fields, rules, size, context)).transpose()?;
    Ok(DecoderConfig {
        family,
        vocab: fields.needed(&["vocab_size"])?,
        width,
        context,
        norm: NormConfig { kind: NormKind::Rms, eps: fields.factor(eps)?, bias: false, unit_offset: false },
        placement: Placement::Pre,
        parallel: false,
        attention: AttentionConfig {
            heads,
            kv_heads,
            size,
            qkv_bias: false,
            out_bias: false,
            qk_norm: QkNorm::None,
            scale: None,
            scale_by_layer: false,
            softcap: None,
        },
        mlp: MlpConfig {
            hidden: fields.needed(&["intermediate_size"])?,
            activation: Activation::Silu,
            gated: true,
            bias: false,
            moe: None,
        },
        positions: Positions::Rotary,
        rotary: rotary.into_iter().collect(),
        layers,
        kinds: vec![LayerKind { rotary: Some(0), ..LayerKind::default() }],
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logits_scale: 1.0,
        logits_softcap: None,
        tied: false,
    })
}

/// Fields shared by most families derived from Llama.
fn llama_like(family: &'static Family, fields: &mut Fields<'_>, rules: &Rules) -> Result<DecoderConfig> {
    let mut out = base(family, fields, Some(rules), "rms_norm_eps")?;
    out.mlp.activation = fields.activation("hidden_act")?;
    out.attention.qkv_bias = fields.flag("attention_bias")?;
    out.attention.out_bias = out.attention.qkv_bias;
    out.mlp.bias = fields.flag("mlp_bias")?;
    out.tied = fields.flag("tie_word_embeddings")?;
    Ok(out)
}

/// Maximum length of a list of layer kinds, which is needed only if they do not have a short period.
const LISTED: usize = 1 << 16;

/// Returns a list with the kind of each layer.
fn listed(layers: usize, kind: impl Fn(usize) -> LayerKind) -> Result<Vec<LayerKind>> {
    if layers > LISTED {
        return Err(Error::unsupported(format!(
            "num_hidden_layers is {layers}, expected at most {LISTED} if layers differ"
        )));
    }
    Ok((0..layers).map(kind).collect())
}

/// Returns the window of the layers that `layer_types` calls sliding.
fn by_types(out: DecoderConfig, types: &[bool], window: Option<usize>, why: &str) -> Result<DecoderConfig> {
    if window.is_none() && types.contains(&true) {
        return Err(Error::format(format!("layer_types has \"sliding_attention\", but {why}")));
    }
    let kinds = listed(out.layers, |i| LayerKind { window: window.filter(|_| types[i]), ..out.kind(i) })?;
    Ok(out.with_kinds(kinds))
}

/// Sliding windows in files of Qwen: by `layer_types`, or in all layers from `max_window_layers` on.
fn windows(fields: &mut Fields<'_>, out: DecoderConfig) -> Result<DecoderConfig> {
    let whole = |value: &Value| value.as_u64();
    let (on, window) = (
        fields.flag("use_sliding_window")?,
        fields.optional("sliding_window", "a whole number", whole)?.filter(|n| *n > 0),
    );
    let from = fields.optional("max_window_layers", "a whole number", whole)?.unwrap_or(0);
    let window = window.filter(|_| on).map(|n| n as usize);
    if let Some(types) = fields.layer_types(out.layers)? {
        let why = if on { "sliding_window is missing" } else { "use_sliding_window is false" };
        return by_types(out, &types, window, why);
    }
    if window.is_none() || from >= out.layers as u64 {
        return Ok(out);
    }
    let kinds =
        listed(out.layers, |i| LayerKind { window: window.filter(|_| i as u64 >= from), ..out.kind(i) })?;
    Ok(out.with_kinds(kinds))
}

/// Llama 2 and 3.
pub fn llama(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    llama_like(family, fields, &USUAL)
}

/// Mistral: a sliding window in all layers, or in those that `layer_types` names (Ministral).
pub fn mistral(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let window = fields.size("sliding_window")?;
    let mut out = llama(family, fields)?;
    if let Some(types) = fields.layer_types(out.layers)? {
        return by_types(out, &types, window, "sliding_window is missing");
    }
    out.kinds.iter_mut().for_each(|kind| kind.window = window);
    Ok(out)
}

/// Reads a sliding window in all layers. `transformers` does not read `layer_types` in these families.
fn windowed(family: &'static Family, fields: &mut Fields<'_>, rules: &Rules) -> Result<DecoderConfig> {
    let window = fields.size("sliding_window")?;
    let mut out = llama_like(family, fields, rules)?;
    let types = fields.layer_types(out.layers)?.unwrap_or_default();
    if types.iter().any(|sliding| *sliding != window.is_some()) {
        let (all, name) = (if window.is_some() { "all layers" } else { "no layer" }, family.model_type);
        fields.note(format!(
            "layer_types is ignored, as transformers does in {name}: {all} has a sliding window"
        ));
    }
    out.kinds.iter_mut().for_each(|kind| kind.window = window);
    Ok(out)
}

/// Qwen 2 and 2.5: biases of queries, keys and values.
pub fn qwen2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, &USUAL)?;
    out.attention.qkv_bias = true;
    out.attention.out_bias = false;
    windows(fields, out)
}

/// Qwen 3: norms of queries and keys.
pub fn qwen3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, &USUAL)?;
    out.attention.qk_norm = QkNorm::Head;
    windows(fields, out)
}

/// Returns a mixture of experts from the fields for number, experts per token and balance loss, with hidden width `hidden`.
fn experts(fields: &mut Fields<'_>, hidden: usize, renormalise: bool) -> Result<MoeConfig> {
    Ok(MoeConfig {
        experts: fields.needed(&["num_local_experts", "num_experts"])?,
        top_k: fields.needed(&["num_experts_per_tok"])?,
        hidden,
        renormalise,
        balance: fields.flag("output_router_logits")?,
        balance_factor: fields.factor("router_aux_loss_coef")?,
    })
}

/// Mixtral: experts in all layers.
pub fn mixtral(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = windowed(family, fields, &Rules { base: 1e6, ..USUAL })?;
    if fields.number("router_jitter_noise")?.is_some_and(|noise| noise != 0.0) {
        return Err(Error::unsupported(
            "router_jitter_noise is not 0, but netcl does not support noise before routers",
        ));
    }
    out.mlp.moe = Some(experts(fields, out.mlp.hidden, true)?);
    out.kinds.iter_mut().for_each(|kind| kind.sparse = true);
    Ok(out)
}

/// Qwen 3 with experts: in all layers, in every n-th, or in all except a list.
pub fn qwen3_moe(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, &USUAL)?;
    out.attention.qk_norm = QkNorm::Head;
    let (on, window) = (fields.flag("use_sliding_window")?, fields.size("sliding_window")?);
    // All layers have the window, for any value of `max_window_layers`.
    fields.get("max_window_layers");
    out.kinds.iter_mut().for_each(|kind| kind.window = window.filter(|_| on));
    let renormalise = fields.flag("norm_topk_prob")?;
    let hidden = fields.needed(&["moe_intermediate_size"])?;
    if ["num_experts", "num_local_experts"].iter().any(|name| fields.raw(name) == Some(&Value::from(0))) {
        return Err(Error::unsupported("num_experts is 0: use qwen3 for a model without experts"));
    }
    out.mlp.moe = Some(experts(fields, hidden, renormalise)?);
    let every = fields.needed(&["decoder_sparse_step"])?;
    let list = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let dense = fields.optional("mlp_only_layers", "a list of layers", list)?.unwrap_or_default();
    let kind = |i: usize| {
        let sparse = (i + 1).is_multiple_of(every) && !dense.contains(&(i as u64));
        LayerKind { sparse, ..out.kind(0) }
    };
    let kinds = listed(if dense.is_empty() { every.min(out.layers) } else { out.layers }, kind)?;
    Ok(out.with_kinds(kinds))
}

/// Fields shared by Gemma 2 and 3.
fn gemma(family: &'static Family, fields: &mut Fields<'_>, rules: Option<&Rules>) -> Result<DecoderConfig> {
    let mut out = base(family, fields, rules, "rms_norm_eps")?;
    out.mlp.activation = fields.activation("hidden_activation")?;
    // `transformers` does not read this one.
    if let Some(other) = fields.optional("hidden_act", "a name", Value::as_str)? {
        let read = fields.raw("hidden_activation").and_then(Value::as_str).unwrap_or_default();
        if other != read {
            fields.note(format!(
                "hidden_act is {other:?}: ignored, because this family reads hidden_activation, {read:?}"
            ));
        }
    }
    out.attention.qkv_bias = fields.flag("attention_bias")?;
    out.attention.out_bias = out.attention.qkv_bias;
    out.tied = fields.flag("tie_word_embeddings")?;
    out.norm.unit_offset = true;
    out.placement = Placement::Both;
    out.embedding_scale = (out.width as f32).sqrt();
    let scale = fields.number("query_pre_attn_scalar")?;
    out.attention.scale = scale.map(|n| (1.0 / n.sqrt()) as f32);
    let softcap = fields.number("attn_logit_softcapping")?.map(|n| n as f32);
    if family.model_type == "gemma2" {
        out.attention.softcap = softcap;
    } else if let Some(cap) = softcap {
        fields.note(format!("attn_logit_softcapping is {cap}: ignored, as transformers does in this family"));
    }
    out.logits_softcap = fields.number("final_logit_softcapping")?.map(|n| n as f32);
    if fields.flag("use_bidirectional_attention")? {
        return Err(Error::unsupported(
            "use_bidirectional_attention is not supported; only causal attention is",
        ));
    }
    Ok(out)
}

/// Gemma 2: every other layer has a sliding window.
pub fn gemma2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let out = gemma(family, fields, Some(&USUAL))?;
    let (window, types) = (fields.size("sliding_window")?, fields.layer_types(out.layers)?);
    let sliding = types.unwrap_or_else(|| vec![true, false]);
    let kind = |sliding: bool| LayerKind { window: window.filter(|_| sliding), ..out.kind(0) };
    let kinds = sliding.into_iter().map(kind).collect();
    Ok(out.with_kinds(kinds))
}

/// Gemma 3's text model: norms of queries and keys; layers with a sliding window have their own rotary frequencies.
pub fn gemma3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = gemma(family, fields, None)?;
    out.attention.qk_norm = QkNorm::Head;
    out.rotary = angles::two(fields, out.attention.size, out.context)?.into();
    // The other spelling is in files that have `layer_types`, and `transformers` does not read it.
    let every = fields.size("sliding_window_pattern")?.unwrap_or(6);
    let (window, types) = (fields.size("sliding_window")?, fields.layer_types(out.layers)?);
    let other = fields.size("_sliding_window_pattern")?.filter(|other| types.is_none() && *other != every);
    if let Some(other) = other {
        fields.note(format!(
            "_sliding_window_pattern is {other}: ignored without layer_types; sliding_window_pattern is used and is {every}"
        ));
    }
    let pattern = || (1..=every.min(LISTED)).map(|n| n != every).collect();
    let kind = |sliding: bool| LayerKind {
        window: window.filter(|_| sliding),
        rotary: Some(usize::from(sliding)),
        ..out.kind(0)
    };
    let kinds = types.unwrap_or_else(pattern).into_iter().map(kind).collect();
    Ok(out.with_kinds(kinds))
}

/// Phi 3 and 4: packed projections, LongRoPE.
pub fn phi3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    windowed(family, fields, &angles::PHI3)
}

/// OLMo 2: norms after the parts, and norms over all heads of queries and keys.
pub fn olmo2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, &USUAL)?;
    out.attention.qk_norm = QkNorm::Full;
    out.placement = Placement::Post;
    Ok(out)
}

/// SmolLM 3: some layers lack a position encoding, and only these can have a sliding window, unless `layer_types` says otherwise.
pub fn smollm3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, &Rules { base: 2e6, ..USUAL })?;
    let every = fields.needed(&["no_rope_layer_interval"])?;
    let list = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let given = fields.optional("no_rope_layers", "a list of 0 and 1", list)?;
    if given.as_ref().is_some_and(|list| list.len() != out.layers) {
        return Err(Error::format(format!("no_rope_layers, expected {} entries", out.layers)));
    }
    let (on, window) = (fields.flag("use_sliding_window")?, fields.size("sliding_window")?);
    let types = fields.layer_types(out.layers)?;
    let kind = |i: usize| {
        let rotated = given.as_ref().map_or(!(i + 1).is_multiple_of(every), |list| list[i] != 0);
        let window = window.filter(|_| on && !rotated);
        LayerKind { rotary: rotated.then_some(0), window, ..out.kind(i) }
    };
    // Without a list, layers repeat with a period.
    let n = if given.is_none() && types.is_none() { every.min(out.layers) } else { out.layers };
    let kinds = listed(n, kind)?;
    out = out.with_kinds(kinds);
    match types {
        // `use_sliding_window` counts only without such a list.
        Some(types) => by_types(out, &types, window, "sliding_window is missing"),
        None => Ok(out),
    }
}

/// Granite: factors of embeddings, scores, residuals and logits.
pub fn granite(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama(family, fields)?;
    out.embedding_scale = fields.factor("embedding_multiplier")?;
    out.residual_scale = fields.factor("residual_multiplier")?;
    out.logits_scale = 1.0 / fields.factor("logits_scaling")?;
    out.attention.scale = Some(fields.factor("attention_multiplier")?);
    Ok(out)
}

/// GPT-NeoX and Pythia: layer norms, biases, partial rotary embedding, parallel attention and MLP.
pub fn gpt_neox(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = base(family, fields, Some(&angles::NEOX), "layer_norm_eps")?;
    out.norm = NormConfig { kind: NormKind::Layer, bias: true, ..out.norm };
    let activation = fields.activation("hidden_act")?;
    out.mlp = MlpConfig { activation, gated: false, bias: true, ..out.mlp };
    out.attention.qkv_bias = fields.flag("attention_bias")?;
    out.attention.out_bias = out.attention.qkv_bias;
    out.parallel = fields.flag("use_parallel_residual")?;
    out.tied = fields.flag("tie_word_embeddings")?;
    Ok(out)
}

/// StarCoder 2: layer norms, biases, an ungated MLP, a sliding window in all layers.
pub fn starcoder2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    for (name, only) in [("norm_type", "layer_norm"), ("mlp_type", "default")] {
        fields.optional(name, &format!("{only:?}"), |value| (value == only).then_some(()))?;
    }
    let mut out = base(family, fields, Some(&USUAL), "norm_epsilon")?;
    let window = fields.size("sliding_window")?;
    out.kinds.iter_mut().for_each(|kind| kind.window = window);
    let bias = fields.flag("use_bias")?;
    out.norm = NormConfig { kind: NormKind::Layer, bias: true, ..out.norm };
    (out.attention.qkv_bias, out.attention.out_bias) = (bias, bias);
    let activation = fields.activation("hidden_act")?;
    out.mlp = MlpConfig { activation, gated: false, bias, ..out.mlp };
    out.tied = fields.flag("tie_word_embeddings")?;
    Ok(out)
}

/// GPT-2.
pub fn gpt2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let (layers, width, heads) = (
        fields.needed(&["n_layer", "num_hidden_layers"])?,
        fields.needed(&["n_embd", "hidden_size"])?,
        fields.needed(&["n_head", "num_attention_heads"])?,
    );
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(Error::shape(format!("{heads} heads do not divide a width of {width}")));
    }
    let bias = fields.own_bias()?;
    let scaled = fields.flag("scale_attn_weights")?;
    Ok(DecoderConfig {
        family,
        vocab: fields.needed(&["vocab_size"])?,
        width,
        context: fields.needed(&["n_positions", "max_position_embeddings"])?,
        norm: NormConfig {
            kind: NormKind::Layer,
            eps: fields.factor("layer_norm_epsilon")?,
            bias,
            unit_offset: false,
        },
        placement: Placement::Pre,
        parallel: false,
        attention: AttentionConfig {
            heads,
            kv_heads: heads,
            size: width / heads,
            qkv_bias: bias,
            out_bias: bias,
            qk_norm: QkNorm::None,
            scale: (!scaled).then_some(1.0),
            scale_by_layer: fields.flag("scale_attn_by_inverse_layer_idx")?,
            softcap: None,
        },
        mlp: MlpConfig {
            hidden: fields.size("n_inner")?.unwrap_or(width.saturating_mul(4)),
            activation: fields.activation("activation_function")?,
            gated: false,
            bias,
            moe: None,
        },
        positions: Positions::Learned,
        rotary: Vec::new(),
        layers,
        kinds: vec![LayerKind::default()],
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logits_scale: 1.0,
        logits_softcap: None,
        tied: fields.flag("tie_word_embeddings")?,
    })
}
