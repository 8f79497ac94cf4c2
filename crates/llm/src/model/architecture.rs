//! GGUF architectures: one row of data each, and the conversion of metadata to a [`DecoderConfig`] and back.

use crate::gguf::{Gguf, Meta};
use netcl_model::decoder::{DecoderConfig, Family, LayerKind, Positions, Rotary, Scaling, Sizes};
use netcl_tensor::{Error, Result};

/// A row: the GGUF name of an architecture, and the differences of its tensors from Hugging Face's.
#[derive(Debug, PartialEq)]
pub struct Architecture {
    /// `general.architecture`, also the prefix of its keys.
    pub name: &'static str,
    /// The families of `netcl_model::decoder` that are written as this architecture. A file is read as the first one, unless it has experts or
    /// windows that only another one supports.
    pub families: &'static [&'static str],
    /// Whether heads of queries and keys are rotated in adjacent pairs instead of halves, so that their rows have another order.
    pub interleaved: bool,
}

const fn row(name: &'static str, families: &'static [&'static str], interleaved: bool) -> Architecture {
    Architecture { name, families, interleaved }
}

/// Every architecture.
pub static ARCHITECTURES: &[Architecture] = &[
    row("gpt2", &["gpt2"], false),
    row("llama", &["llama", "mistral", "mixtral"], true),
    row("qwen2", &["qwen2"], false),
    row("qwen3", &["qwen3"], false),
    row("qwen3moe", &["qwen3_moe"], false),
    row("gemma2", &["gemma2"], false),
    row("gemma3", &["gemma3_text"], false),
    row("phi3", &["phi3"], false),
    row("smollm3", &["smollm3"], true),
    row("granite", &["granite"], true),
    row("olmo2", &["olmo2"], false),
    row("gptneox", &["gpt_neox"], false),
    row("starcoder2", &["starcoder2"], false),
];

/// Keys of an architecture without effect on the computation, redundant keys, or keys read elsewhere.
const INERT: &[&str] = &["vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"];

/// Whether attention and MLP read the same residual stream (GPT-NeoX).
const PARALLEL: &str = "use_parallel_residual";

/// netcl's own keys: Llama 3's rotary scaling, for which the format only has the factors.
const LLAMA3_KEYS: [&str; 4] = ["factor", "low_freq_factor", "high_freq_factor", "original_context_length"];

impl Architecture {
    /// Returns the architecture of a file.
    ///
    /// # Errors
    /// `Unsupported` with a list of the supported ones.
    pub fn of_file(file: &Gguf) -> Result<&'static Self> {
        let key = "general.architecture";
        let name = file.needed(key, "a name", file.text(key)?)?;
        Self::find(|a| a.name == name, name).map_err(|e| e.context(file.path().display()))
    }

    /// Returns the architecture that models of a family are written as.
    ///
    /// # Errors
    /// `Unsupported` with a list of the supported ones.
    pub fn of_family(family: &Family) -> Result<&'static Self> {
        Self::find(|a| a.families.contains(&family.model_type), family.model_type)
    }

    fn find(is: impl Fn(&Self) -> bool, name: &str) -> Result<&'static Self> {
        ARCHITECTURES.iter().find(|a| is(a)).ok_or_else(|| {
            let all = ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
            Error::unsupported(format!(
                "architecture {name:?} in GGUF files is not supported; netcl supports {all}"
            ))
        })
    }
}

/// Reads the keys of an architecture, and records them.
struct Keys<'a> {
    file: &'a Gguf,
    prefix: &'static str,
    read: std::cell::RefCell<Vec<String>>,
}

impl<'a> Keys<'a> {
    fn name(&self, key: &str) -> String {
        let name = format!("{}.{key}", self.prefix);
        self.read.borrow_mut().push(name.clone());
        name
    }
    fn size(&self, key: &str) -> Result<Option<usize>> {
        self.file.size(&self.name(key))
    }
    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.file.number(&self.name(key))
    }
    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.file.flag(&self.name(key))
    }
    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.file.text(&self.name(key))
    }
    fn needed(&self, key: &str) -> Result<usize> {
        let found = self.size(key)?;
        self.file.needed(&self.name(key), "a whole number", found)
    }
    fn needed_number(&self, key: &str) -> Result<f64> {
        let found = self.number(key)?;
        self.file.needed(&self.name(key), "a number", found)
    }
    /// Returns a tensor of f32s, such as rotary factors.
    fn floats(&self, tensor: &str) -> Result<Option<Vec<f64>>> {
        let Some(tensor) = self.file.tensor(tensor) else { return Ok(None) };
        let values = tensor.format.dequantised(tensor.bytes, tensor.count())?;
        Ok(Some(values.into_iter().map(f64::from).collect()))
    }
    /// Checks that every key of the architecture was read or has no effect.
    fn finish(self) -> Result<()> {
        let (read, start) = (self.read.into_inner(), format!("{}.", self.prefix));
        for key in self.file.keys() {
            let (name, ..) = key?;
            let Some(rest) = name.strip_prefix(&start) else { continue };
            if !INERT.contains(&rest) && !read.iter().any(|known| known == name) {
                return Err(Error::unsupported(format!(
                    "{}: netcl does not know the key {name}, so its results might be wrong",
                    self.file.path().display()
                )));
            }
        }
        Ok(())
    }
}

/// Reads the configuration of a file.
///
/// # Errors
/// `Unsupported` for another architecture or an unknown key, `Format` for missing or invalid keys, `Shape` for inconsistent sizes. All errors name
/// the file.
pub fn read_config(file: &Gguf) -> Result<DecoderConfig> {
    let architecture = Architecture::of_file(file)?;
    let place = |e: Error| e.context(file.path().display());
    let keys = Keys { file, prefix: architecture.name, read: Vec::new().into() };
    if keys.flag("attention.causal")? == Some(false) {
        let key = keys.name("attention.causal");
        return Err(place(Error::unsupported(format!(
            "{key} is false: tokens of this model see later ones too, but those of netcl's decoders see only earlier ones"
        ))));
    }
    let experts = keys.size("expert_count")?.filter(|n| *n > 0);
    let window = keys.size("attention.sliding_window")?.filter(|n| *n > 0);
    let family = match (architecture.families, experts, window) {
        ([_, _, mixture], Some(_), _) => mixture,
        ([_, windowed, _], None, Some(_)) => windowed,
        ([first, ..], ..) => first,
        ([], ..) => "",
    };
    let sizes = read_sizes(&keys, family)?;
    let mut out = DecoderConfig::of(family, &sizes).map_err(place)?;
    read_norms_and_biases(&keys, &mut out)?;
    read_windows(&keys, &mut out, window)?;
    read_rotary(&keys, &mut out)?;
    read_factors(&keys, &mut out)?;
    if architecture.name == "gptneox" {
        out.parallel = keys.flag(PARALLEL)?.unwrap_or(out.parallel);
    }
    if let (Some(experts), Some(moe)) = (experts, &mut out.mlp.moe) {
        moe.experts = experts;
        moe.top_k = keys.needed("expert_used_count")?;
        moe.hidden = keys.size("expert_feed_forward_length")?.unwrap_or(out.mlp.hidden);
        moe.renormalise =
            keys.flag("expert_weights_norm")?.unwrap_or(moe.renormalise || family == "qwen3_moe");
        moe.balance = false;
        read_sparse(file, &mut out);
    }
    keys.finish()?;
    out.check().map_err(place)?;
    Ok(out)
}

/// Determines the layers with experts: those with a router.
fn read_sparse(file: &Gguf, out: &mut DecoderConfig) {
    let routed: Vec<usize> = file
        .tensors()
        .filter_map(|t| t.name.strip_prefix("blk.")?.strip_suffix(".ffn_gate_inp.weight")?.parse().ok())
        .collect();
    if (0..out.layers.min(1 << 16)).any(|i| routed.contains(&i) != out.kind(i).sparse) {
        let layers = out.layers.min(1 << 16);
        let kinds = (0..layers).map(|i| LayerKind { sparse: routed.contains(&i), ..out.kind(i) }).collect();
        *out = out.clone().with_kinds(kinds);
    }
}

fn read_sizes(keys: &Keys<'_>, family: &str) -> Result<Sizes> {
    let table = keys.file.tensor("token_embd.weight");
    let vocab = match table {
        Some(table) => table.shape().first().copied().unwrap_or(0),
        None => keys.needed("vocab_size")?,
    };
    let (heads, width) = (keys.needed("attention.head_count")?, keys.needed("embedding_length")?);
    let kv_heads = keys.size("attention.head_count_kv")?;
    let key = keys.size("attention.key_length")?;
    let value = keys.size("attention.value_length")?;
    if let (Some(key), Some(value)) = (key, value)
        && key != value
    {
        return Err(Error::unsupported(format!(
            "{}: keys have size {key} and values {value}, expected the same",
            keys.file.path().display()
        )));
    }
    let classic = family == "gpt2";
    Ok(Sizes {
        layers: keys.needed("block_count")?,
        heads,
        kv_heads: kv_heads.filter(|n| !classic || *n != heads),
        head_size: key.or(value).filter(|_| !classic),
        width,
        mlp: Some(keys.needed("feed_forward_length")?),
        context: keys.needed("context_length")?,
        vocab,
        rope_theta: None,
        tied: Some(keys.file.tensor("output.weight").is_none()),
    })
}

fn read_norms_and_biases(keys: &Keys<'_>, out: &mut DecoderConfig) -> Result<()> {
    let key = epsilon_key(out);
    out.norm.eps = keys.needed_number(key)? as f32;
    let has = |name: &str| keys.file.tensor(&format!("blk.0.{name}.bias")).is_some();
    out.attention.qkv_bias = has("attn_q") || has("attn_qkv");
    out.attention.out_bias = has("attn_output");
    out.mlp.bias = has("ffn_up");
    Ok(())
}

fn epsilon_key(config: &DecoderConfig) -> &'static str {
    match config.norm.kind {
        netcl_model::decoder::NormKind::Layer => "attention.layer_norm_epsilon",
        netcl_model::decoder::NormKind::Rms => "attention.layer_norm_rms_epsilon",
    }
}

/// Determines the layers with the window: those listed in the file, those of the family's pattern, or all.
fn read_windows(keys: &Keys<'_>, out: &mut DecoderConfig, window: Option<usize>) -> Result<()> {
    let key = keys.name("attention.sliding_window_pattern");
    let listed = match keys.file.get(&key)? {
        Some(crate::gguf::Value::Array(_)) => keys.file.wholes(&key)?,
        Some(_) => {
            let every = keys.file.size(&key)?.unwrap_or(0);
            Some((1..=out.layers.min(1 << 16)).map(|i| i64::from(every > 0 && i % every != 0)).collect())
        }
        None => None,
    };
    let local = out.rotary.len() > 1;
    if let Some(listed) = listed {
        if listed.len() != out.layers {
            return Err(keys.file.wrong(&key, &format!("{} truth values", out.layers), None));
        }
        let kind = |(i, sliding): (usize, &i64)| {
            let mut kind = out.kind(i);
            kind.window = window.filter(|_| *sliding != 0);
            kind.rotary = if local { Some(usize::from(*sliding != 0)) } else { kind.rotary };
            kind
        };
        let kinds = listed.iter().enumerate().map(kind).collect();
        *out = out.clone().with_kinds(kinds);
        return Ok(());
    }
    let patterned = out.kinds.iter().any(|kind| kind.window.is_some());
    for kind in &mut out.kinds {
        kind.window = window.filter(|_| !patterned || kind.window.is_some());
    }
    Ok(())
}

fn read_rotary(keys: &Keys<'_>, out: &mut DecoderConfig) -> Result<()> {
    let dims = keys.size("rope.dimension_count")?;
    let base = keys.number("rope.freq_base")?;
    let local = keys.number("rope.freq_base_swa")?;
    if out.positions != Positions::Rotary {
        return Ok(());
    }
    let size = out.attention.size;
    let scaling = read_scaling(keys, out.context, dims.unwrap_or(size))?;
    for (i, rotary) in out.rotary.iter_mut().enumerate() {
        rotary.dims = dims.unwrap_or(size);
        let own = if i == 0 { base } else { local };
        // llama.cpp's default.
        rotary.base = own.unwrap_or(if i == 0 && base.is_none() { 10_000.0 } else { rotary.base });
        rotary.scaling = if i == 0 { scaling.clone() } else { Scaling::None };
    }
    let llama3 = read_llama3(keys, out.rotary.first(), out.context)?;
    if let (Some(first), Some(scaling)) = (out.rotary.first_mut(), llama3) {
        first.scaling = scaling;
    }
    Ok(())
}

fn read_scaling(keys: &Keys<'_>, context: usize, dims: usize) -> Result<Scaling> {
    let kind = keys.text("rope.scaling.type")?;
    let (factor, older) = (keys.number("rope.scaling.factor")?, keys.number("rope.scale_linear")?);
    let factor = factor.or(older);
    let original = keys.size("rope.scaling.original_context_length")?;
    let magnitude = keys.number("rope.scaling.attn_factor")?;
    let [fast, slow] =
        ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"].map(|key| keys.number(key));
    let (fast, slow) = (fast?.unwrap_or(32.0), slow?.unwrap_or(1.0));
    let yarn_magnitude = keys.number("rope.scaling.yarn_attn_factor")?;
    let lists = ["rope_factors_short.weight", "rope_factors_long.weight"].map(|name| keys.floats(name));
    if let [Ok(Some(short)), Ok(Some(long))] = &lists {
        let original = original.unwrap_or(context);
        if short.len() != dims / 2 || long.len() != dims / 2 {
            return Err(Error::format(format!(
                "{}: rope_factors_short and rope_factors_long have {} and {} numbers, expected {}",
                keys.file.path().display(),
                short.len(),
                long.len(),
                dims / 2
            )));
        }
        let stretch = context as f64 / original as f64;
        let magnitude = magnitude.unwrap_or_else(|| Scaling::longrope_magnitude(stretch, original as f64));
        return Ok(Scaling::LongRope { short: short.clone(), long: long.clone(), original, magnitude });
    }
    match (kind, factor) {
        (Some("none") | None, None) => Ok(Scaling::None),
        (Some("none"), _) => Ok(Scaling::None),
        (None | Some("linear"), Some(factor)) if factor == 1.0 || factor == 0.0 => Ok(Scaling::None),
        (None | Some("linear"), Some(factor)) => Ok(Scaling::Linear { factor }),
        (Some("yarn"), Some(factor)) => Ok(Scaling::Yarn {
            factor,
            fast,
            slow,
            original: original.unwrap_or(context) as f64,
            truncate: true,
            magnitude: yarn_magnitude.unwrap_or_else(|| Scaling::yarn_magnitude(factor, 1.0)),
        }),
        (kind, factor) => Err(Error::unsupported(format!(
            "{}: {}.rope.scaling.type is {} with {}; supported types: none, linear and yarn with a factor, and longrope with its tensors of factors",
            keys.file.path().display(),
            keys.prefix,
            kind.unwrap_or("absent"),
            factor.map_or("no factor".to_owned(), |factor| format!("the factor {factor}"))
        ))),
    }
}

/// Returns the divisors of a scaling for each pair of a head.
fn divisors(rotary: &Rotary) -> Option<Vec<f32>> {
    let Scaling::Llama3 { factor, low, high, original } = rotary.scaling else { return None };
    let divisor = |i: usize| {
        let frequency = rotary.base.powf(-2.0 * i as f64 / rotary.dims as f64);
        let turns = original * frequency / (2.0 * std::f64::consts::PI);
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - kept) / factor + kept)) as f32
    };
    Some((0..rotary.dims / 2).map(divisor).collect())
}

/// Returns the scaling whose divisors a file has as a tensor. Uses Llama 3's scaling, from own keys or from its usual values, if the result is the
/// same, or otherwise the divisors themselves.
fn read_llama3(keys: &Keys<'_>, rotary: Option<&Rotary>, context: usize) -> Result<Option<Scaling>> {
    let (Some(rotary), Some(found)) = (rotary, keys.floats("rope_freqs.weight")?) else { return Ok(None) };
    if found.iter().all(|f| *f == 1.0) {
        return Ok(None);
    }
    if found.len() != rotary.dims / 2 {
        let path = keys.file.path().display();
        let (n, expected) = (found.len(), rotary.dims / 2);
        return Err(Error::format(format!("{path}: rope_freqs.weight has {n} numbers, expected {expected}")));
    }
    let most = found.iter().fold(1.0, |most: f64, f| most.max(*f));
    let mut candidates = vec![[most, 1.0, 4.0, 8192.0]];
    let mut own = Vec::new();
    for key in LLAMA3_KEYS {
        own.extend(keys.file.number(&format!("netcl.rope.{key}"))?);
    }
    candidates.extend(<[f64; 4]>::try_from(own));
    for [factor, low, high, original] in candidates.into_iter().rev() {
        let scaling = Scaling::Llama3 { factor, low, high, original };
        let same = divisors(&Rotary { scaling: scaling.clone(), ..rotary.clone() }).is_some_and(|all| {
            all.iter().zip(&found).all(|(a, b)| (f64::from(*a) - b).abs() <= 1e-5 * b.abs())
        });
        if same {
            return Ok(Some(scaling));
        }
    }
    Ok(Some(Scaling::LongRope { short: found.clone(), long: found, original: context, magnitude: 1.0 }))
}

/// Reads soft-capping and the factors of Gemma and Granite.
fn read_factors(keys: &Keys<'_>, out: &mut DecoderConfig) -> Result<()> {
    let family = out.family.model_type;
    let scale = keys.number("attention.scale")?.filter(|s| *s != 0.0).map(|s| s as f32);
    let [attention, last] = ["attn_logit_softcapping", "final_logit_softcapping"].map(|key| keys.number(key));
    let [attention, last] = [attention?, last?].map(|cap| cap.filter(|c| *c != 0.0).map(|c| c as f32));
    let factors = ["embedding_scale", "residual_scale", "logit_scale"].map(|key| keys.number(key));
    let [embedding, residual, logits] = factors;
    if family.starts_with("gemma") {
        (out.attention.softcap, out.logits_softcap) = (attention, last);
        out.attention.scale = scale.or(Some(gemma_scale(out)));
        return Ok(());
    }
    if scale.is_some() {
        out.attention.scale = scale;
    } else if family == "granite" {
        out.attention.scale = None;
    }
    let part = |value: Option<f64>, old: f32| value.map_or(old, |v| v as f32);
    out.embedding_scale = part(embedding?, out.embedding_scale);
    out.residual_scale = part(residual?, out.residual_scale);
    out.logits_scale = logits?.map_or(out.logits_scale, |v| 1.0 / v as f32);
    Ok(())
}

/// Returns the factor of Gemma's scores if the file has none: the largest models use the width over the heads.
fn gemma_scale(config: &DecoderConfig) -> f32 {
    let largest = match config.family.model_type {
        "gemma2" => 46,
        _ => 62,
    };
    let size = match config.layers == largest {
        true => config.width / config.attention.heads.max(1),
        false => config.attention.size,
    };
    1.0 / (size as f32).sqrt()
}

/// Returns the metadata of a model without its vocabulary.
///
/// # Errors
/// `Unsupported` for a family without a GGUF architecture, or a model that its keys cannot describe.
pub fn write_config(config: &DecoderConfig) -> Result<Vec<(String, Meta)>> {
    let architecture = Architecture::of_family(config.family)?;
    let (mut out, a) =
        (vec![("general.architecture".to_owned(), Meta::Str(architecture.name.into()))], &config.attention);
    let mut put = |key: &str, value: Meta| out.push((format!("{}.{key}", architecture.name), value));
    let size = |n: usize| Meta::U32(n.try_into().unwrap_or(u32::MAX));
    for (key, n) in [
        ("context_length", config.context),
        ("embedding_length", config.width),
        ("block_count", config.layers),
        ("feed_forward_length", config.mlp.hidden),
        ("attention.head_count", a.heads),
        ("attention.head_count_kv", a.kv_heads),
        ("vocab_size", config.vocab),
    ] {
        put(key, size(n));
    }
    put(epsilon_key(config), Meta::F32(config.norm.eps));
    if config.positions == Positions::Rotary {
        put("attention.key_length", size(a.size));
        put("attention.value_length", size(a.size));
    }
    if architecture.name == "gptneox" {
        put(PARALLEL, Meta::Bool(config.parallel));
    }
    if let Some(moe) = &config.mlp.moe {
        put("expert_count", size(moe.experts));
        put("expert_used_count", size(moe.top_k));
        put("expert_feed_forward_length", size(moe.hidden));
        if !moe.renormalise || architecture.name == "qwen3moe" {
            put("expert_weights_norm", Meta::Bool(moe.renormalise));
        }
    }
    write_windows(config, &mut put)?;
    write_rotary(config, &mut put);
    write_factors(config, architecture, &mut put);
    if let Some(Rotary { scaling: Scaling::Llama3 { factor, low, high, original }, .. }) =
        config.rotary.first()
    {
        for (key, value) in LLAMA3_KEYS.iter().zip([factor, low, high, original]) {
            out.push((format!("netcl.rope.{key}"), Meta::F32(*value as f32)));
        }
    }
    Ok(out)
}

fn write_windows(config: &DecoderConfig, put: &mut impl FnMut(&str, Meta)) -> Result<()> {
    let local = config.rotary.len() > 1;
    let windows: Vec<Option<usize>> =
        (0..config.layers.min(1 << 16)).map(|i| config.kind(i).window).collect();
    let Some(window) = windows.iter().flatten().next() else { return Ok(()) };
    if windows.iter().flatten().any(|other| other != window) {
        return Err(Error::unsupported("windows of several sizes, which GGUF files cannot store"));
    }
    put("attention.sliding_window", Meta::U32((*window).try_into().unwrap_or(u32::MAX)));
    let sliding =
        |i: usize| if local { config.kind(i).rotary == Some(1) } else { config.kind(i).window.is_some() };
    let listed: Vec<bool> = (0..windows.len()).map(sliding).collect();
    if listed.iter().any(|on| !on) || local {
        put("attention.sliding_window_pattern", Meta::Bools(listed));
    }
    Ok(())
}

fn write_rotary(config: &DecoderConfig, put: &mut impl FnMut(&str, Meta)) {
    let Some(first) = config.rotary.first() else { return };
    let size = |n: usize| Meta::U32(n.try_into().unwrap_or(u32::MAX));
    put("rope.dimension_count", size(first.dims));
    put("rope.freq_base", Meta::F32(first.base as f32));
    if let Some(local) = config.rotary.get(1) {
        put("rope.freq_base_swa", Meta::F32(local.base as f32));
    }
    let text = |name: &str| Meta::Str(name.into());
    match &first.scaling {
        Scaling::None | Scaling::Llama3 { .. } => {}
        Scaling::Linear { factor } => {
            put("rope.scaling.type", text("linear"));
            put("rope.scaling.factor", Meta::F32(*factor as f32));
        }
        Scaling::Yarn { factor, fast, slow, original, magnitude, .. } => {
            put("rope.scaling.type", text("yarn"));
            put("rope.scaling.factor", Meta::F32(*factor as f32));
            put("rope.scaling.original_context_length", size(*original as usize));
            put("rope.scaling.yarn_beta_fast", Meta::F32(*fast as f32));
            put("rope.scaling.yarn_beta_slow", Meta::F32(*slow as f32));
            put("rope.scaling.yarn_attn_factor", Meta::F32(*magnitude as f32));
        }
        Scaling::LongRope { original, magnitude, .. } => {
            put("rope.scaling.type", text("longrope"));
            put("rope.scaling.original_context_length", size(*original));
            put("rope.scaling.attn_factor", Meta::F32(*magnitude as f32));
        }
    }
}

fn write_factors(config: &DecoderConfig, architecture: &Architecture, put: &mut impl FnMut(&str, Meta)) {
    let a = &config.attention;
    if architecture.name.starts_with("gemma") {
        if let Some(cap) = a.softcap {
            put("attn_logit_softcapping", Meta::F32(cap));
        }
        if let Some(cap) = config.logits_softcap {
            put("final_logit_softcapping", Meta::F32(cap));
        }
        if let Some(scale) = a.scale.filter(|scale| *scale != gemma_scale(config)) {
            put("attention.scale", Meta::F32(scale));
        }
        return;
    }
    if let Some(scale) = a.scale {
        put("attention.scale", Meta::F32(scale));
    }
    if architecture.name == "granite" {
        put("embedding_scale", Meta::F32(config.embedding_scale));
        put("residual_scale", Meta::F32(config.residual_scale));
        put("logit_scale", Meta::F32(1.0 / config.logits_scale));
    }
}

/// Returns tensors with rotary factors: name and values.
pub fn rotary_tensors(config: &DecoderConfig) -> Vec<(&'static str, Vec<f32>)> {
    let Some(first) = config.rotary.first() else { return Vec::new() };
    let floats = |list: &[f64]| list.iter().map(|v| *v as f32).collect::<Vec<_>>();
    match &first.scaling {
        Scaling::LongRope { short, long, .. } => {
            vec![("rope_factors_long.weight", floats(long)), ("rope_factors_short.weight", floats(short))]
        }
        _ => divisors(first).map(|all| vec![("rope_freqs.weight", all)]).unwrap_or_default(),
    }
}
