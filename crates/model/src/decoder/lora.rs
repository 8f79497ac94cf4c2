//! Low-rank adapters that are trained while the model is frozen (Hu et al. 2021, "LoRA: low-rank adaptation of large language models").
//!
//! A linear map `y = W x + b` becomes `y = W x + b + s B A x` with `s = alpha / r`. A (r, in) is drawn as in PEFT, and B (out, r) is zero. The tensors
//! have the names and shapes of PEFT's files. Matrices that are one parameter here, such as queries, keys and values, share one product with A.

use super::lister::ParamShape;
use super::low_rank::{LowRankMap, LowRankRows};
use super::{DecoderConfig, shapes};
use crate::checkpoint::ADAPTER_CONFIG;
use crate::params::{Init, Params};
use glob::Pattern;
use netcl_device::did_you_mean;
use netcl_tensor::{Error, Result, Tensor};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

/// Prefix of tensor names in PEFT's files.
const PEFT: &str = "base_model.model.";
/// Largest rank.
const MAX_RANK: usize = 4096;

/// Settings of adapters: `16`, or `r=16,alpha=32,targets=q_proj+v_proj,rslora=true`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// r, the rank.
    pub rank: usize,
    /// Numerator of the factor.
    pub alpha: f64,
    /// Whether the factor is alpha / √r (Kalajdzievski 2023, "rank-stabilized LoRA") instead of alpha / r.
    pub rslora: bool,
    /// Names or patterns of modules, such as `q_proj` or `model.layers.0.*`; empty: all linear maps of the layers.
    pub targets: Vec<String>,
}

impl Lora {
    /// Parses the value of `--lora`: a rank, or settings separated by commas. Several targets are separated by `+`.
    ///
    /// # Errors
    /// `Format` with the setting that is unknown or out of range; `Unsupported` for DoRA and dropout.
    pub fn parse(text: &str) -> Result<Self> {
        let place = |e: Error| e.context(format!("--lora {text}"));
        Self::parsed(text.trim()).map_err(place)
    }

    fn parsed(text: &str) -> Result<Self> {
        let (mut rank, mut alpha, mut rslora, mut targets) = (None, None, false, Vec::new());
        for part in text.split(',').map(str::trim) {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim()),
                None => ("r", part),
            };
            let number = || {
                let number = value.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
                number.ok_or_else(|| Error::format(format!("{name} is {value:?}, expected a number above 0")))
            };
            let on = || match value {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(Error::format(format!("{name} is {value:?}, expected true or false"))),
            };
            match name {
                "r" | "rank" => {
                    let r = value.parse::<usize>().ok().filter(|r| (1..=MAX_RANK).contains(r));
                    rank = Some(r.ok_or_else(|| {
                        Error::format(format!("the rank is {value:?}, expected 1 to {MAX_RANK}"))
                    })?);
                }
                "alpha" | "lora_alpha" => alpha = Some(number()?),
                "rslora" | "use_rslora" => rslora = on()?,
                "targets" | "target_modules" => targets = names(value)?,
                "dora" | "use_dora" if !on()? => {}
                "dora" | "use_dora" => {
                    return Err(Error::unsupported("DoRA is not supported; leave dora out for plain LoRA"));
                }
                "dropout" | "lora_dropout" if value.parse() == Ok(0.0) => {}
                "dropout" | "lora_dropout" => {
                    return Err(Error::unsupported(
                        "dropout of an adapter's input is not supported; write dropout=0 or leave it out",
                    ));
                }
                _ => {
                    let known = ["r", "alpha", "targets", "rslora"];
                    let near = did_you_mean(name, known);
                    return Err(Error::format(format!(
                        "unknown setting {name}{near}; the settings are {}",
                        known.join(", ")
                    )));
                }
            }
        }
        let rank = rank.ok_or_else(|| Error::format("the rank is missing: write r=16"))?;
        Ok(Self { rank, alpha: alpha.unwrap_or(rank as f64), rslora, targets })
    }

    /// Reads the settings of an adapter's folder. All its modules must have the same rank and factor.
    ///
    /// # Errors
    /// `Io` or `Format` with the field; `Unsupported` for an adapter that is not plain LoRA.
    pub fn of_peft(dir: &Path) -> Result<Self> {
        let file = dir.join(ADAPTER_CONFIG);
        let text = netcl_device::files::read_text(&file).map_err(|e| Error::io("reading", &file, &e))?;
        let json: Value =
            serde_json::from_str(&text).map_err(|e| Error::format(format!("{ADAPTER_CONFIG}: {e}")))?;
        let wrong = |field: &str| Error::format(format!("{ADAPTER_CONFIG}: {field} is {}", json[field]));
        let is_set = |field: &str| match &json[field] {
            Value::Null | Value::Bool(false) => false,
            Value::Object(all) => !all.is_empty(),
            Value::Array(all) => !all.is_empty(),
            Value::Number(n) => n.as_f64() != Some(0.0),
            _ => true,
        };
        let special = [
            "use_dora",
            "rank_pattern",
            "alpha_pattern",
            "modules_to_save",
            "lora_bias",
            "target_parameters",
        ];
        if let Some(field) = special.into_iter().find(|field| is_set(field)) {
            return Err(Error::unsupported(format!(
                "{ADAPTER_CONFIG}: {field} is {}; here only plain LoRA of one rank is supported. Load the base model with --lora {}",
                json[field],
                dir.display()
            )));
        }
        let rank = json["r"].as_u64().and_then(|r| usize::try_from(r).ok()).filter(|r| *r > 0);
        let targets = json["target_modules"].as_array().ok_or_else(|| wrong("target_modules"))?;
        let targets = targets.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
        Ok(Self {
            rank: rank.ok_or_else(|| wrong("r"))?,
            alpha: json["lora_alpha"].as_f64().ok_or_else(|| wrong("lora_alpha"))?,
            rslora: json["use_rslora"].as_bool().unwrap_or(false),
            targets: targets.ok_or_else(|| wrong("target_modules"))?,
        })
    }

    /// Returns the factor s of the adapters' product.
    pub fn factor(&self) -> f64 {
        let r = self.rank as f64;
        self.alpha / if self.rslora { r.sqrt() } else { r }
    }

    /// Returns the adapters of all maps of `config` that the targets name.
    ///
    /// # Errors
    /// `Format` for a target that names no map.
    pub fn adapters(&self, config: &DecoderConfig) -> Result<Vec<MapAdapter>> {
        let targets = self.targets.iter().map(|text| Target::new(text)).collect::<Result<Vec<_>>>()?;
        let (mut found, mut seen) = (Vec::new(), BTreeSet::<usize>::new());
        let mut modules = BTreeSet::new();
        for layer in 0..config.layers {
            for shape in shapes::block(config, layer).iter().filter(|shape| shape.is_linear(config)) {
                let hit = |module: &str| {
                    modules.insert(module.to_owned());
                    let hits = targets.iter().enumerate().filter(|(_, target)| target.takes(module));
                    let hits: Vec<usize> = hits.map(|(at, _)| at).collect();
                    seen.extend(hits.iter().copied());
                    targets.is_empty() || !hits.is_empty()
                };
                found.extend(MapAdapter::new(self, config, layer, shape, hit));
            }
        }
        let missed = (0..targets.len()).find(|at| !seen.contains(at));
        if let Some(text) = missed.and_then(|at| self.targets.get(at)) {
            let last = |module: &String| module.rsplit('.').next().unwrap_or_default().to_owned();
            let names: BTreeSet<String> = modules.iter().map(last).collect();
            let near = did_you_mean(text, names.iter().map(String::as_str));
            return Err(Error::format(format!(
                "--lora targets={text}: no linear map of the model has this name{near}; its maps are {}",
                names.into_iter().collect::<Vec<_>>().join(", ")
            )));
        }
        if found.is_empty() {
            return Err(Error::unsupported("--lora: the model does not have linear maps that take adapters"));
        }
        Ok(found)
    }

    /// Returns the number of elements of all adapters of `config`; 0 if a target is wrong.
    pub fn elements(&self, config: &DecoderConfig) -> usize {
        let count =
            |adapter: &MapAdapter| adapter.shapes().map(ParamShape::count).fold(0, usize::saturating_add);
        self.adapters(config).map_or(0, |all| all.iter().map(count).fold(0, usize::saturating_add))
    }

    /// Returns the content of PEFT's `adapter_config.json` for a model in the folder or file `base`.
    ///
    /// # Errors
    /// Same as [`adapters`](Self::adapters).
    pub fn peft_config(&self, config: &DecoderConfig, base: &str) -> Result<Value> {
        let adapters = self.adapters(config)?;
        let all = adapters.iter().flat_map(|adapter| adapter.modules.iter().cloned());
        let modules = self.short_names(config, all.collect())?;
        Ok(json!({
            "base_model_name_or_path": base,
            "bias": "none",
            "fan_in_fan_out": config.family.names.transposed,
            "inference_mode": true,
            "init_lora_weights": true,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "peft_type": "LORA",
            "r": self.rank,
            "target_modules": modules,
            "task_type": "CAUSAL_LM",
            "use_dora": false,
            "use_rslora": self.rslora,
        }))
    }
}

impl Lora {
    /// Returns the names of adapted modules for PEFT: their last parts if these select the same modules, and the whole names if not.
    fn short_names(&self, config: &DecoderConfig, modules: BTreeSet<String>) -> Result<BTreeSet<String>> {
        let last = |name: &String| name.rsplit('.').next().unwrap_or_default().to_owned();
        let short: BTreeSet<String> = modules.iter().map(last).collect();
        let named = Self { targets: short.iter().cloned().collect(), ..self.clone() }.adapters(config)?;
        let selected: usize = named.iter().map(|adapter| adapter.modules.len()).sum();
        Ok(if selected == modules.len() { short } else { modules })
    }
}

/// Splits the names of targets; `all` means none in particular.
fn names(value: &str) -> Result<Vec<String>> {
    let all: Vec<String> = value.split('+').map(|name| name.trim().to_owned()).collect();
    if all.iter().any(String::is_empty) {
        return Err(Error::format("targets is empty; write targets=all or targets=q_proj+v_proj"));
    }
    Ok(if all.iter().any(|name| name == "all" || name == "all-linear") { Vec::new() } else { all })
}

/// A target: the end of a module's name, or a pattern of the whole name.
struct Target {
    name: String,
    pattern: Pattern,
}

impl Target {
    fn new(text: &str) -> Result<Self> {
        let pattern = Pattern::new(text)
            .map_err(|e| Error::format(format!("--lora targets={text}: not a pattern of names: {e}")))?;
        Ok(Self { name: text.to_owned(), pattern })
    }
    fn takes(&self, module: &str) -> bool {
        let end = module.strip_suffix(&self.name);
        end.is_some_and(|before| before.is_empty() || before.ends_with('.')) || self.pattern.matches(module)
    }
}

/// The adapters of one linear map, as parameters.
#[derive(Clone, Debug)]
pub struct MapAdapter {
    /// Name of the map's matrix.
    pub map: String,
    /// Layer, from 0.
    pub layer: usize,
    /// Names of the adapted modules.
    pub modules: Vec<String>,
    /// A of all adapted parts, one below the other: (k r, in).
    a: ParamShape,
    /// For each part of the map its rows, and B (rows, r) if it is adapted.
    parts: Vec<(Range<usize>, Option<ParamShape>)>,
    rank: usize,
    factor: f32,
}

impl MapAdapter {
    /// Returns the adapters of the map's parts that `hit` selects; `None` if it selects none.
    fn new(
        lora: &Lora,
        config: &DecoderConfig,
        layer: usize,
        shape: &ParamShape,
        mut hit: impl FnMut(&str) -> bool,
    ) -> Option<Self> {
        let module = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let [first, last] = shape.dims[..] else { return None };
        let [inputs, outputs] = if config.family.names.transposed { [first, last] } else { [last, first] };
        let (rank, own) = (lora.rank, module(&shape.name));
        let (mut start, mut a_pieces, mut parts, mut modules) = (0, Vec::new(), Vec::new(), Vec::new());
        for (name, rows) in &shape.pieces {
            // The only piece of a matrix that is stored as (in, out) counts its inputs.
            let rows = if shape.pieces.len() == 1 { outputs } else { *rows };
            let (name, range) = (module(name), start..start + rows);
            start += rows;
            if !hit(&name) {
                parts.push((range, None));
                continue;
            }
            a_pieces.push((format!("{PEFT}{name}.lora_A.weight"), rank));
            let b = format!("{name}.lora_B.weight");
            let pieces = vec![(format!("{PEFT}{b}"), rows)];
            let (dims, init, by_head) = (vec![rows, rank], Init::Zeros, shape.by_head);
            parts.push((range, Some(ParamShape { name: b, dims, init, pieces, by_head })));
            modules.push(name);
        }
        if modules.is_empty() {
            return None;
        }
        let a = ParamShape {
            name: format!("{own}.lora_A.weight"),
            dims: vec![rank * modules.len(), inputs],
            init: Init::kaiming_uniform(inputs),
            pieces: a_pieces,
            by_head: None,
        };
        let map = shape.name.clone();
        Some(Self { map, layer, modules, a, parts, rank, factor: lora.factor() as f32 })
    }

    /// Returns A, then B of each adapted part.
    pub fn shapes(&self) -> impl Iterator<Item = &ParamShape> {
        std::iter::once(&self.a).chain(self.parts.iter().filter_map(|(_, b)| b.as_ref()))
    }

    /// Creates its parameters.
    pub(super) fn make(&self, params: &mut Params) -> Result<LowRankMap> {
        let (a, rank) = (params.make(&self.a.name, self.a.dims.as_slice(), self.a.init)?, self.a.dims[0]);
        let (device, dtype) = (params.device().clone(), params.dtype());
        let zeros = |rows: usize, columns: usize| match columns {
            0 => Ok(None),
            _ => Tensor::zeros(&device, [rows, columns], dtype).map(Some),
        };
        let (mut parts, mut column) = (Vec::with_capacity(self.parts.len()), 0);
        for (rows, shape) in &self.parts {
            let Some(shape) = shape else {
                parts.push(LowRankRows { b: None, zeros: [zeros(rows.len(), rank)?, None] });
                continue;
            };
            let after = rank.saturating_sub(column + self.rank);
            let b = Some(params.make(&shape.name, shape.dims.as_slice(), shape.init)?);
            parts.push(LowRankRows { b, zeros: [zeros(rows.len(), column)?, zeros(rows.len(), after)?] });
            column += self.rank;
        }
        Ok(LowRankMap { a, parts, factor: self.factor })
    }
}

#[cfg(test)]
#[path = "lora_tests.rs"]
mod tests;
