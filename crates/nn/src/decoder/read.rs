//! Reading of `config.json` as [`DecoderConfig`]: one function per family, listed in [`FAMILIES`](super::FAMILIES). A field that is not read and not
//! known to have no effect is an error.

use super::activation::Activation;
use super::config::{
    AttentionConfig, DecoderConfig, LayerKind, MlpConfig, MoeConfig, NormConfig, NormKind, Placement,
    Positions, QkNorm,
};
use super::family::Family;
use super::fields::Fields;
use super::rotary::{Rotary, Scaling};
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};

/// The fields of YaRN.
fn yarn(
    fields: &mut Fields<'_>,
    factor: Option<f64>,
    original: Option<f64>,
    context: f64,
) -> Result<Scaling> {
    let original = original.unwrap_or(context);
    let factor = factor.unwrap_or(context / original);
    let (one, all) = (fields.number("mscale")?, fields.number("mscale_all_dim")?);
    let magnitude = match (fields.number("attention_factor")?, one, all) {
        (Some(given), ..) => given,
        (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
            Scaling::yarn_magnitude(factor, one) / Scaling::yarn_magnitude(factor, all)
        }
        _ => Scaling::yarn_magnitude(factor, 1.0),
    };
    Ok(Scaling::Yarn {
        factor,
        fast: fields.number("beta_fast")?.unwrap_or(32.0),
        slow: fields.number("beta_slow")?.unwrap_or(1.0),
        original,
        truncate: fields.flag("truncate", true)?,
        magnitude,
    })
}

/// The two lists of LongRoPE.
fn longrope(
    fields: &mut Fields<'_>,
    dims: usize,
    [factor, original]: [Option<f64>; 2],
    context: f64,
) -> Result<Scaling> {
    let original = original.unwrap_or(context);
    let list = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    let mut divisors = |name: &'static str| -> Result<Vec<f64>> {
        let found = fields.optional(name, "a list of numbers", list)?.unwrap_or_default();
        if found.len() == dims / 2 {
            return Ok(found);
        }
        Err(Error::format(format!("{name} has {} numbers, expected {}", found.len(), dims / 2)))
    };
    let (short, long) = (divisors("short_factor")?, divisors("long_factor")?);
    let stretch = factor.unwrap_or(context / original);
    let given = fields.number("attention_factor")?;
    let magnitude = given.unwrap_or_else(|| Scaling::longrope_magnitude(stretch, original));
    Ok(Scaling::LongRope { short, long, original: original as usize, magnitude })
}

/// The rotary frequencies that an object of `config.json` describes.
fn rotary(
    parameters: &Map<String, Value>,
    size: usize,
    context: usize,
    outside: [Option<f64>; 3],
) -> Result<Rotary> {
    let [theta, partial, outer_original] = outside;
    let mut fields = Fields::new(parameters);
    let base = fields.number("rope_theta")?.or(theta).unwrap_or(10_000.0);
    let partial = fields.number("partial_rotary_factor")?.or(partial).unwrap_or(1.0);
    let dims = (size as f64 * partial) as usize;
    let (new, old) = (fields.get("rope_type"), fields.get("type"));
    let kind = new.or(old).and_then(Value::as_str).unwrap_or("default");
    let factor = fields.number("factor")?;
    let original = fields.number("original_max_position_embeddings")?.or(outer_original);
    let context = context as f64;
    let need = |name: &str, value: Option<f64>| {
        value.ok_or_else(|| Error::format(format!("{name} of the {kind} rotary scaling is missing")))
    };
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: need("factor", factor)? },
        "llama3" => Scaling::Llama3 {
            factor: need("factor", factor)?,
            low: need("low_freq_factor", fields.number("low_freq_factor")?)?,
            high: need("high_freq_factor", fields.number("high_freq_factor")?)?,
            original: need("original_max_position_embeddings", original)?,
        },
        "yarn" => yarn(&mut fields, factor, original, context)?,
        "longrope" | "su" => longrope(&mut fields, dims, [factor, original], context)?,
        _ => {
            return Err(Error::unsupported(format!(
                "rotary scaling {kind:?}; the supported ones are default, linear, llama3, yarn, longrope"
            )));
        }
    };
    fields.finish().map_err(|e| e.context("rope_parameters"))?;
    Ok(Rotary { dims, base, scaling })
}

/// The single set of rotary frequencies of a model, from `rope_parameters`, or from `rope_theta` and `rope_scaling` in older files.
fn one_rotary(fields: &mut Fields<'_>, size: usize, context: usize) -> Result<Rotary> {
    let outside = [
        fields.number("rope_theta")?,
        fields.number("partial_rotary_factor")?,
        fields.number("original_max_position_embeddings")?,
    ];
    let (new, old) = (fields.get("rope_parameters"), fields.get("rope_scaling"));
    let empty = Map::new();
    let given = new.or(old).and_then(Value::as_object).unwrap_or(&empty);
    // Gemma 3 has a set for each kind of layer.
    let given = given.get("full_attention").and_then(Value::as_object).unwrap_or(given);
    rotary(given, size, context, outside)
}

/// The fields of Llama, which most later families share.
fn base(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
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
                "{heads} num_attention_heads do not divide a hidden_size of {width}, and there is no head_dim"
            )));
        }
    };
    let rotary = one_rotary(fields, size, context)?;
    Ok(DecoderConfig {
        family,
        vocab: fields.needed(&["vocab_size"])?,
        width,
        context,
        norm: NormConfig {
            kind: NormKind::Rms,
            eps: fields.factor("rms_norm_eps", 1e-6)?,
            bias: false,
            unit_offset: false,
        },
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
        rotary: vec![rotary],
        layers,
        kinds: vec![LayerKind { window: None, rotary: Some(0), sparse: false }],
        embedding_scale: 1.0,
        residual_scale: 1.0,
        logits_scale: 1.0,
        logits_softcap: None,
        tied: false,
    })
}

/// Fields shared by most families derived from Llama.
fn llama_like(family: &'static Family, fields: &mut Fields<'_>, tied: bool) -> Result<DecoderConfig> {
    let mut out = base(family, fields)?;
    out.mlp.activation = fields.activation("hidden_act", "silu")?;
    out.mlp.bias = fields.flag("mlp_bias", false)?;
    out.attention.qkv_bias = fields.flag("attention_bias", false)?;
    out.attention.out_bias = out.attention.qkv_bias;
    out.tied = fields.flag("tie_word_embeddings", tied)?;
    Ok(out)
}

/// Maximum length of a list of layer kinds, which is needed only if they have no short period.
const LISTED: usize = 1 << 16;

/// A list with the kind of each layer.
fn listed(layers: usize, kind: impl Fn(usize) -> LayerKind) -> Result<Vec<LayerKind>> {
    if layers > LISTED {
        return Err(Error::unsupported(format!(
            "num_hidden_layers is {layers}, {LISTED} at most where layers differ"
        )));
    }
    Ok((0..layers).map(kind).collect())
}

/// Sliding windows in files of Qwen and SmolLM: by `layer_types`, or in all layers from `max_window_layers` on.
fn windows(fields: &mut Fields<'_>, out: DecoderConfig) -> Result<DecoderConfig> {
    let (on, window) = (
        fields.flag("use_sliding_window", false)?,
        fields.optional("sliding_window", "a whole number", Value::as_u64)?,
    );
    let from = fields.optional("max_window_layers", "a whole number", Value::as_u64)?.unwrap_or(0);
    let types = fields.layer_types(out.layers)?;
    let Some(window) = window.filter(|n| on && *n > 0) else { return Ok(out) };
    let kinds = listed(out.layers, |i| {
        let sliding = types.as_ref().map_or(i as u64 >= from, |types| types[i]);
        LayerKind { window: sliding.then_some(window as usize), ..out.kind(i) }
    })?;
    Ok(out.with_kinds(kinds))
}

/// Llama 2 and 3.
pub fn llama(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    llama_like(family, fields, false)
}

/// Mistral: a sliding window in all layers.
pub fn mistral(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let window = fields.size_or("sliding_window", WINDOW)?;
    windowed(family, fields, window)
}

/// Default window of Mistral and Gemma in `transformers`, for files without the field.
const WINDOW: usize = 4096;

fn windowed(
    family: &'static Family,
    fields: &mut Fields<'_>,
    window: Option<usize>,
) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, false)?;
    fields.layer_types(out.layers)?;
    out.kinds.iter_mut().for_each(|kind| kind.window = window);
    Ok(out)
}

/// Qwen 2 and 2.5: biases of queries, keys and values.
pub fn qwen2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, false)?;
    out.attention.qkv_bias = true;
    out.attention.out_bias = false;
    windows(fields, out)
}

/// Qwen 3: norms of queries and keys.
pub fn qwen3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, false)?;
    out.attention.qk_norm = QkNorm::Head;
    windows(fields, out)
}

/// A mixture of experts from the fields for number, experts per token and balance loss, with hidden width `hidden`.
fn experts(
    fields: &mut Fields<'_>,
    [number, chosen, hidden]: [usize; 3],
    renormalise: bool,
) -> Result<MoeConfig> {
    let found = ["num_local_experts", "num_experts"].map(|name| fields.size(name));
    let experts = match found {
        [Ok(Some(a)), Ok(Some(b))] if a != b => {
            return Err(Error::format(format!(
                "num_local_experts is {a}, and num_experts, another name for it, is {b}"
            )));
        }
        [a, b] => a?.or(b?).unwrap_or(number),
    };
    Ok(MoeConfig {
        experts,
        top_k: fields.size("num_experts_per_tok")?.unwrap_or(chosen),
        hidden,
        renormalise,
        balance: fields.flag("output_router_logits", false)?,
        balance_factor: fields.factor("router_aux_loss_coef", 0.001)?,
    })
}

/// Mixtral: experts in all layers.
pub fn mixtral(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let window = fields.size("sliding_window")?;
    let mut out = windowed(family, fields, window)?;
    out.norm.eps = fields.factor("rms_norm_eps", 1e-5)?;
    let says_base =
        |name: &str| fields.raw(name).is_some_and(|v| name == "rope_theta" || v.get("rope_theta").is_some());
    if !["rope_theta", "rope_parameters", "rope_scaling"].into_iter().any(says_base) {
        out.rotary.iter_mut().for_each(|rotary| rotary.base = 1e6);
    }
    if fields.number("router_jitter_noise")?.is_some_and(|noise| noise != 0.0) {
        return Err(Error::unsupported("router_jitter_noise is not 0: noise before routers is not computed"));
    }
    out.mlp.moe = Some(experts(fields, [8, 2, out.mlp.hidden], true)?);
    out.kinds.iter_mut().for_each(|kind| kind.sparse = true);
    Ok(out)
}

/// Qwen 3 with experts: in all layers, in every n-th, or in all except a list.
pub fn qwen3_moe(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, false)?;
    out.attention.qk_norm = QkNorm::Head;
    let (on, window) = (fields.flag("use_sliding_window", false)?, fields.size_or("sliding_window", WINDOW)?);
    // All layers have the window, whatever `max_window_layers` is.
    fields.get("max_window_layers");
    out.kinds.iter_mut().for_each(|kind| kind.window = window.filter(|_| on));
    let renormalise = fields.flag("norm_topk_prob", false)?;
    let hidden = fields.size("moe_intermediate_size")?.unwrap_or(768);
    if ["num_experts", "num_local_experts"].iter().any(|name| fields.raw(name) == Some(&Value::from(0))) {
        return Err(Error::unsupported("num_experts is 0: a model without experts is one of qwen3"));
    }
    out.mlp.moe = Some(experts(fields, [128, 8, hidden], renormalise)?);
    let every = fields.size("decoder_sparse_step")?.unwrap_or(1);
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
fn gemma(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = base(family, fields)?;
    out.mlp.activation = fields.activation("hidden_activation", "gelu_pytorch_tanh")?;
    // Older files lack this field.
    fields.get("hidden_act");
    out.attention.qkv_bias = fields.flag("attention_bias", false)?;
    out.attention.out_bias = out.attention.qkv_bias;
    out.tied = fields.flag("tie_word_embeddings", true)?;
    out.norm.unit_offset = true;
    out.placement = Placement::Both;
    out.embedding_scale = (out.width as f32).sqrt();
    let scale = fields.number_or("query_pre_attn_scalar", 256.0)?;
    out.attention.scale = scale.map(|n| (1.0 / n.sqrt()) as f32);
    // Gemma 3 has none, unless its file sets them.
    let capped = family.model_type == "gemma2";
    let mut cap = |name, usual| if capped { fields.number_or(name, usual) } else { fields.number(name) };
    out.attention.softcap = cap("attn_logit_softcapping", 50.0)?.map(|n| n as f32);
    out.logits_softcap = cap("final_logit_softcapping", 30.0)?.map(|n| n as f32);
    if fields.flag("use_bidirectional_attention", false)? {
        return Err(Error::unsupported("use_bidirectional_attention; only causal attention is supported"));
    }
    Ok(out)
}

/// Gemma 2: every other layer has a sliding window.
pub fn gemma2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let out = gemma(family, fields)?;
    let (window, types) = (fields.size_or("sliding_window", WINDOW)?, fields.layer_types(out.layers)?);
    let sliding = types.unwrap_or_else(|| vec![true, false]);
    let kind = |sliding: bool| LayerKind { window: window.filter(|_| sliding), ..out.kind(0) };
    let kinds = sliding.into_iter().map(kind).collect();
    Ok(out.with_kinds(kinds))
}

/// Gemma 3's text model: norms of queries and keys; layers with a sliding window have their own rotary frequencies.
pub fn gemma3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let angles = fields.get("rope_parameters").and_then(Value::as_object);
    let mut out = gemma(family, fields)?;
    out.attention.qk_norm = QkNorm::Head;
    let local = fields.number("rope_local_base_freq")?;
    let pattern = [fields.size("sliding_window_pattern")?, fields.size("_sliding_window_pattern")?];
    let (every, size, context) =
        (pattern[0].or(pattern[1]).unwrap_or(6).max(1), out.attention.size, out.context);
    let set = |name: &str| angles.and_then(|angles| angles.get(name)).and_then(Value::as_object);
    let sliding = match set("sliding_attention") {
        Some(parameters) => rotary(parameters, size, context, [None; 3])?,
        None => Rotary { dims: size, base: local.unwrap_or(10_000.0), scaling: Scaling::None },
    };
    out.rotary.push(sliding);
    let (window, types) = (fields.size_or("sliding_window", WINDOW)?, fields.layer_types(out.layers)?);
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
    let window = fields.size("sliding_window")?;
    let mut out = windowed(family, fields, window)?;
    out.norm.eps = fields.factor("rms_norm_eps", 1e-5)?;
    Ok(out)
}

/// OLMo 2: norms after the parts, and norms over all heads of queries and keys.
pub fn olmo2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, false)?;
    out.norm.eps = fields.factor("rms_norm_eps", 1e-5)?;
    out.attention.qk_norm = QkNorm::Full;
    out.placement = Placement::Post;
    Ok(out)
}

/// SmolLM 3: some layers have no position encoding.
pub fn smollm3(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let out = llama_like(family, fields, true)?;
    let out = windows(fields, out)?;
    let every = fields.size("no_rope_layer_interval")?.unwrap_or(4).max(1);
    let list = |value: &Value| value.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
    let given = fields.optional("no_rope_layers", "a list of 0 and 1", list)?;
    if given.as_ref().is_some_and(|list| list.len() != out.layers) {
        return Err(Error::format(format!("no_rope_layers, expected {} entries", out.layers)));
    }
    let kind = |i: usize| {
        let rotated = given.as_ref().map_or(!(i + 1).is_multiple_of(every), |list| list[i] != 0);
        LayerKind { rotary: rotated.then_some(0), ..out.kind(i) }
    };
    // Without windows and a list, layers repeat with a period.
    let n = if given.is_none() && out.kinds.len() == 1 { every.min(out.layers) } else { out.layers };
    let kinds = listed(n, kind)?;
    Ok(out.with_kinds(kinds))
}

/// Granite: factors of embeddings, scores, residuals and logits.
pub fn granite(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let mut out = llama_like(family, fields, false)?;
    out.embedding_scale = fields.factor("embedding_multiplier", 1.0)?;
    out.residual_scale = fields.factor("residual_multiplier", 1.0)?;
    out.logits_scale = 1.0 / fields.factor("logits_scaling", 1.0)?;
    out.attention.scale = Some(fields.factor("attention_multiplier", 1.0)?);
    Ok(out)
}

/// GPT-NeoX and Pythia: layer norms, biases, partial rotary embedding, parallel attention and MLP.
pub fn gpt_neox(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    let (theta, partial) = (fields.number("rotary_emb_base")?, fields.number("rotary_pct")?);
    let mut out = base(family, fields)?;
    if fields.raw("rope_parameters").is_none() {
        out.rotary[0].base = theta.unwrap_or(out.rotary[0].base);
        // A quarter of each head by default.
        out.rotary[0].dims = (out.attention.size as f64 * partial.unwrap_or(0.25)) as usize;
    }
    let eps = fields.factor("layer_norm_eps", 1e-5)?;
    out.norm = NormConfig { kind: NormKind::Layer, eps, bias: true, unit_offset: false };
    out.mlp = MlpConfig {
        activation: fields.activation("hidden_act", "gelu")?,
        gated: false,
        bias: true,
        ..out.mlp
    };
    out.attention.qkv_bias = fields.flag("attention_bias", true)?;
    out.attention.out_bias = out.attention.qkv_bias;
    out.parallel = fields.flag("use_parallel_residual", true)?;
    out.tied = fields.flag("tie_word_embeddings", false)?;
    Ok(out)
}

/// StarCoder 2: layer norms, biases, an ungated MLP, a sliding window in all layers.
pub fn starcoder2(family: &'static Family, fields: &mut Fields<'_>) -> Result<DecoderConfig> {
    for (name, only) in [("norm_type", "layer_norm"), ("mlp_type", "default")] {
        fields.optional(name, &format!("{only:?}"), |value| (value == only).then_some(()))?;
    }
    // Default for files without this field.
    let kv_heads = fields.size_or("num_key_value_heads", 2)?;
    let mut out = base(family, fields)?;
    out.attention.kv_heads = kv_heads.unwrap_or(out.attention.heads);
    let window = fields.size("sliding_window")?;
    out.kinds.iter_mut().for_each(|kind| kind.window = window);
    let (eps, bias) = (fields.factor("norm_epsilon", 1e-5)?, fields.flag("use_bias", true)?);
    out.norm = NormConfig { kind: NormKind::Layer, eps, bias: true, unit_offset: false };
    (out.attention.qkv_bias, out.attention.out_bias) = (bias, bias);
    let activation = fields.activation("hidden_act", "gelu_pytorch_tanh")?;
    out.mlp = MlpConfig { activation, gated: false, bias, ..out.mlp };
    out.tied = fields.flag("tie_word_embeddings", true)?;
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
    let scaled = fields.flag("scale_attn_weights", true)?;
    Ok(DecoderConfig {
        family,
        vocab: fields.needed(&["vocab_size"])?,
        width,
        context: fields.needed(&["n_positions", "max_position_embeddings"])?,
        norm: NormConfig {
            kind: NormKind::Layer,
            eps: fields.factor("layer_norm_epsilon", 1e-5)?,
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
            scale_by_layer: fields.flag("scale_attn_by_inverse_layer_idx", false)?,
            softcap: None,
        },
        mlp: MlpConfig {
            hidden: fields.size("n_inner")?.unwrap_or(width.saturating_mul(4)),
            activation: fields.activation("activation_function", "gelu_new")?,
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
        tied: fields.flag("tie_word_embeddings", true)?,
    })
}
