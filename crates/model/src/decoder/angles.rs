//! Reading of rotary frequencies from `config.json`. Older files have `rope_theta` and `rope_scaling`, newer ones the object `rope_parameters`, and
//! many have both: `transformers` then takes `rope_scaling`. Two fields that say the same thing differently are an error with both names.

use super::field_rules::shown;
use super::fields::Fields;
use super::rotary::{Rotary, Scaling};
use netcl_tensor::{Error, Result};
use serde_json::{Map, Value};

/// Names and defaults of the fields about a family's rotary frequencies.
pub struct Rules {
    /// Base, if no field has it.
    pub base: f64,
    /// Share of each head that is rotated, if no field has it.
    pub share: f64,
    /// Fields of the base and the share outside the object.
    pub outside: [&'static str; 2],
    /// Whether the family can rotate a part of each head. `transformers` ignores the share in other families.
    pub partial: bool,
    /// Whether the family's only scaling is LongRoPE, and the length of its first training, if no field outside the object has it.
    pub longrope: Option<f64>,
}

/// Most families.
pub const USUAL: Rules = Rules {
    base: 10_000.0,
    share: 1.0,
    outside: ["rope_theta", "partial_rotary_factor"],
    partial: false,
    longrope: None,
};
/// GPT-NeoX.
pub const NEOX: Rules =
    Rules { share: 0.25, outside: ["rotary_emb_base", "rotary_pct"], partial: true, ..USUAL };
/// Phi 3.
pub const PHI3: Rules = Rules { partial: true, longrope: Some(4096.0), ..USUAL };

/// Keys that one kind of scaling has and others ignore, and keys that `transformers` never reads.
const UNREAD: &[&str] = &[
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "short_factor",
    "truncate",
    "attn_factor",
    "extrapolation_factor",
    "finetuned",
    "long_mscale",
    "mrope_section",
    "short_mscale",
];
/// Those without effect on the frequencies of a text.
const SILENT: &[&str] = &["finetuned", "mrope_section", "original_max_position_embeddings"];

/// Reads a number under one of two names. Both may be present if they agree.
fn agreed(inner: (&str, Option<f64>), outer: (&str, Option<f64>)) -> Result<Option<f64>> {
    match (inner, outer) {
        ((a, Some(x)), (b, Some(y))) if !same(x, y) => Err(Error::format(format!(
            "{a} is {x}, but {b}, another name for it, is {y}; remove one of them, or make them equal"
        ))),
        ((_, inner), (_, outer)) => Ok(inner.or(outer)),
    }
}

/// Returns true if two numbers of a file are the same; JSON writers round the last digit of some.
fn same(x: f64, y: f64) -> bool {
    (x - y).abs() <= 1e-9 * x.abs().max(y.abs())
}

/// An object of the file with its name.
struct Source<'a> {
    name: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Source<'a> {
    fn of(fields: &mut Fields<'a>, name: &'static str) -> Result<Option<Self>> {
        let map = fields.optional(name, "an object", Value::as_object)?;
        Ok(map.filter(|map| !map.is_empty()).map(|map| Self { name, map }))
    }
    fn has(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }
    /// Returns the name of the scaling, by either of its two names.
    fn kind(&self) -> Result<&'a str> {
        let text = |key: &str| match self.has(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(other) => {
                Err(Error::format(format!("{}.{key} is {}, expected a name", self.name, shown(other))))
            }
        };
        match (text("rope_type")?, text("type")?) {
            (Some(a), Some(b)) if a != b => Err(Error::format(format!(
                "{0}.rope_type is {a:?}, but {0}.type, another name for it, is {b:?}; remove one of them",
                self.name
            ))),
            (a, b) => Ok(a.or(b).unwrap_or("default")),
        }
    }
    /// Checks that nothing is lost if `self` is taken instead of `other`.
    fn replaces(&self, other: &Self) -> Result<()> {
        let (mine, theirs) = (self.kind()?, other.kind()?);
        if theirs != "default" && mine != theirs {
            return Err(Error::format(format!(
                "{}.rope_type is {theirs:?}, but {} says {mine:?}; remove one of them",
                other.name, self.name
            )));
        }
        for (key, value) in other.map.iter().filter(|(key, _)| *key != "rope_type" && *key != "type") {
            let equal = |mine: &Value| match (mine.as_f64(), value.as_f64()) {
                (Some(x), Some(y)) => same(x, y),
                _ => mine == value,
            };
            if let Some(mine) = self.has(key).filter(|mine| !value.is_null() && !equal(mine)) {
                return Err(Error::format(format!(
                    "{}.{key} is {}, but {}.{key} is {}; remove one of them, or make them equal",
                    other.name,
                    shown(value),
                    self.name,
                    shown(mine)
                )));
            }
        }
        Ok(())
    }
}

/// Returns the single set of rotary frequencies of a model for heads of `size` in a context of `context` tokens.
pub fn one(fields: &mut Fields<'_>, rules: &Rules, size: usize, context: usize) -> Result<Rotary> {
    let outer = [fields.number(rules.outside[0])?, fields.number(rules.outside[1])?];
    let original = fields.number("original_max_position_embeddings")?;
    let (new, old) = (Source::of(fields, "rope_parameters")?, Source::of(fields, "rope_scaling")?);
    for source in [&new, &old].into_iter().flatten() {
        if let Some(key) =
            ["full_attention", "sliding_attention"].iter().find(|key| source.has(key).is_some())
        {
            return Err(Error::unsupported(format!(
                "{}.{key}: this family has the same frequencies in all layers; expected rope_type and its numbers",
                source.name
            )));
        }
    }
    if let (Some(old), Some(new)) = (&old, &new) {
        old.replaces(new)?;
        let theta = new.has("rope_theta").and_then(Value::as_f64);
        let taken = outer[0].unwrap_or(rules.base);
        if let Some(theta) = theta.filter(|theta| old.has("rope_theta").is_none() && !same(*theta, taken)) {
            return Err(Error::format(format!(
                "rope_parameters.rope_theta is {theta}, but with rope_scaling in the file transformers uses {taken} instead; write \"rope_theta\": \
                 {theta} into rope_scaling, or move the content of rope_scaling into rope_parameters"
            )));
        }
    }
    if rules.outside[0] != "rope_theta" {
        for name in ["rope_theta", "partial_rotary_factor"] {
            if let Some(value) = fields.get(name) {
                let instead = rules.outside[usize::from(name != "rope_theta")];
                fields.note(format!(
                    "{name} is {}: ignored, because this family reads {instead}",
                    shown(value)
                ));
            }
        }
    }
    let empty = Map::new();
    let none = Source { name: "rope_parameters", map: &empty };
    let source = old.or(new).unwrap_or(none);
    set(fields, rules, &source, (size, context), (outer, original))
}

/// Reads two sets in Gemma 3's form: for layers with full attention, and for layers with a window.
pub fn two(fields: &mut Fields<'_>, size: usize, context: usize) -> Result<[Rotary; 2]> {
    let outer = ["rope_theta", "rope_local_base_freq", "partial_rotary_factor"];
    let [theta, local, share] =
        [fields.number(outer[0])?, fields.number(outer[1])?, fields.number(outer[2])?];
    fields.get("original_max_position_embeddings");
    let (new, old) = (Source::of(fields, "rope_parameters")?, Source::of(fields, "rope_scaling")?);
    let inner = |name: &str| new.as_ref().and_then(|new| new.has(name)).and_then(Value::as_object);
    let (full, sliding) = (inner("full_attention"), inner("sliding_attention"));
    if let Some(new) = &new {
        if full.is_none() && old.is_some() {
            return Err(Error::format(
                "rope_scaling is given, but rope_parameters lacks full_attention; expected one of them, or rope_parameters.full_attention",
            ));
        }
        for key in
            new.map.keys().filter(|key| !["full_attention", "sliding_attention"].contains(&key.as_str()))
        {
            fields.note(format!(
                "rope_parameters.{key} is ignored: this family reads full_attention and sliding_attention there"
            ));
        }
    }
    let mut merged = full.cloned().unwrap_or_default();
    if let Some(old) = &old {
        if let Some(full) = full {
            old.replaces(&Source { name: "rope_parameters.full_attention", map: full })?;
        }
        merged.extend(old.map.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    let empty = Map::new();
    let rules = |base, outer| Rules { base, outside: [outer, "partial_rotary_factor"], ..USUAL };
    let mut of = |rules: Rules, name, map: &Map<String, Value>, theta| {
        set(fields, &rules, &Source { name, map }, (size, context), ([theta, share], None))
    };
    Ok([
        of(rules(1e6, "rope_theta"), "rope_parameters.full_attention", &merged, theta)?,
        of(
            rules(1e4, "rope_local_base_freq"),
            "rope_parameters.sliding_attention",
            sliding.unwrap_or(&empty),
            local,
        )?,
    ])
}

/// The frequencies that an object and the fields outside it describe.
fn set(
    fields: &mut Fields<'_>,
    rules: &Rules,
    source: &Source<'_>,
    (size, context): (usize, usize),
    ([theta, share], original): ([Option<f64>; 2], Option<f64>),
) -> Result<Rotary> {
    let mut kind = source.kind()?;
    if rules.longrope.is_some() {
        kind = if ["su", "yarn"].contains(&kind) { "longrope" } else { kind };
        if !["default", "longrope"].contains(&kind) {
            return Err(Error::unsupported(format!(
                "rotary scaling {kind:?} is not supported; this family supports default and longrope"
            )));
        }
    }
    let name = |key: &str| format!("{}.{key}", source.name);
    let mut inner = Fields::new(source.map);
    let [inner_theta, inner_share] = [inner.number("rope_theta")?, inner.number("partial_rotary_factor")?];
    let base = agreed((&name("rope_theta"), inner_theta), (rules.outside[0], theta))?.unwrap_or(rules.base);
    let share = agreed((&name("partial_rotary_factor"), inner_share), (rules.outside[1], share))?;
    let mut dims = (size as f64 * share.unwrap_or(rules.share)) as usize;
    if !rules.partial && dims != size {
        if kind != "default" {
            return Err(Error::unsupported(format!(
                "{} is {}, but with rope_type {kind:?} this family rotates whole heads",
                rules.outside[1],
                share.unwrap_or(rules.share)
            )));
        }
        fields.note(format!(
            "{} is {}: ignored, as transformers does in this family, which rotates whole heads",
            rules.outside[1],
            share.unwrap_or(rules.share)
        ));
        dims = size;
    }
    let scaling = scaling(fields, &mut inner, (kind, rules, source.name), dims, (context as f64, original))?;
    let (read, left) = inner.unread();
    for (key, value) in left.into_iter().filter(|(key, _)| !["rope_type", "type"].contains(key)) {
        if !UNREAD.contains(&key) && !value.is_null() && value != &Value::Bool(false) {
            return Err(Error::unsupported(format!(
                "{} is {}, which netcl does not know{}",
                name(key),
                shown(value),
                netcl_device::did_you_mean(key, read.iter().copied().chain(UNREAD.iter().copied()))
            )));
        }
        if !SILENT.contains(&key) && !value.is_null() {
            fields.note(format!(
                "{} is {}: ignored, because transformers does not read it for rope_type {kind:?}",
                name(key),
                shown(value)
            ));
        }
    }
    Ok(Rotary { dims, base, scaling })
}

/// Returns the scaling of a kind, with LongRoPE's lists for `dims` rotated elements.
fn scaling(
    fields: &mut Fields<'_>,
    inner: &mut Fields<'_>,
    (kind, rules, place): (&str, &Rules, &str),
    dims: usize,
    (context, outer): (f64, Option<f64>),
) -> Result<Scaling> {
    let need = |inner: &mut Fields<'_>, key: &'static str| {
        inner.number(key)?.ok_or_else(|| {
            Error::format(format!(
                "{key} of the {kind} rotary scaling is missing, expected a number in {place}"
            ))
        })
    };
    let original = |fields: &mut Fields<'_>, inner: &mut Fields<'_>| -> Result<f64> {
        let (key, found) =
            ("original_max_position_embeddings", inner.number("original_max_position_embeddings")?);
        let given = agreed((&format!("{place}.{key}"), found), (key, outer))?;
        // Phi 3 takes its default, unless the file has the field outside the object.
        let own = rules.longrope.filter(|_| outer.is_none());
        if let Some((own, found)) = own.zip(found).filter(|(own, found)| !same(*own, *found)) {
            fields.note(format!(
                "{place}.{key} is {found}: ignored, because this family reads {key} outside the object, by default {own}"
            ));
        }
        Ok(own.or(given).unwrap_or(context))
    };
    Ok(match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: need(inner, "factor")? },
        "llama3" => Scaling::Llama3 {
            factor: need(inner, "factor")?,
            low: need(inner, "low_freq_factor")?,
            high: need(inner, "high_freq_factor")?,
            original: original(fields, inner)?,
        },
        "yarn" => {
            // A factor of null is the quotient of both contexts.
            let original = original(fields, inner)?;
            let factor = match inner.raw("factor") {
                Some(Value::Null) => context / original,
                _ => need(inner, "factor")?,
            };
            yarn(inner, factor, original)?
        }
        "longrope" | "su" => {
            let original = original(fields, inner)?;
            longrope(inner, dims, original, context)?
        }
        _ => {
            return Err(Error::unsupported(format!(
                "rotary scaling {kind:?} is not supported; supported are default, linear, llama3, yarn, longrope"
            )));
        }
    })
}

/// Returns the fields of YaRN.
fn yarn(fields: &mut Fields<'_>, factor: f64, original: f64) -> Result<Scaling> {
    let (one, all) = (fields.number("mscale")?, fields.number("mscale_all_dim")?);
    let magnitude = match (fields.number("attention_factor")?, one, all) {
        (Some(given), ..) => given,
        (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
            Scaling::yarn_magnitude(factor, one) / Scaling::yarn_magnitude(factor, all)
        }
        _ => Scaling::yarn_magnitude(factor, 1.0),
    };
    let bound = |value: Option<f64>, usual: f64| value.filter(|x| *x != 0.0).unwrap_or(usual);
    let truncate = fields.optional("truncate", "true or false", Value::as_bool)?;
    Ok(Scaling::Yarn {
        factor,
        fast: bound(fields.number("beta_fast")?, 32.0),
        slow: bound(fields.number("beta_slow")?, 1.0),
        original,
        truncate: truncate.unwrap_or(true),
        magnitude,
    })
}

/// Returns the two lists of LongRoPE.
fn longrope(fields: &mut Fields<'_>, dims: usize, original: f64, context: f64) -> Result<Scaling> {
    let list = |value: &Value| value.as_array()?.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>();
    let mut divisors = |name: &'static str| -> Result<Vec<f64>> {
        let found = fields.optional(name, "a list of numbers", list)?.unwrap_or_default();
        if found.len() == dims / 2 {
            return Ok(found);
        }
        Err(Error::format(format!("{name} has {} numbers, expected {}", found.len(), dims / 2)))
    };
    let (short, long) = (divisors("short_factor")?, divisors("long_factor")?);
    let stretch = fields.number("factor")?.unwrap_or(context / original);
    let given = fields.number("attention_factor")?;
    let magnitude = given.unwrap_or_else(|| Scaling::longrope_magnitude(stretch, original));
    Ok(Scaling::LongRope { short, long, original: original as usize, magnitude })
}
