//! Adapters in the format of Hugging Face's PEFT: `adapter_config.json` and `adapter_model.safetensors`.

use super::{Adapter, AdapterTensor, Entry, Naming};
use netcl_model::checkpoint::{TensorData, read_tensors};
use netcl_tensor::{Error, Result};
use regex_automata::meta::Regex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model.safetensors";

/// Fields about the training, or fields that the tensor names repeat.
const INERT: [&str; 22] = [
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];
/// Fields of unsupported computations: they must be off.
const OFF: [&str; 12] = [
    "alora_invocation_tokens",
    "arrow_config",
    "ensure_weight_tying",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
];
/// Initializations that leave the model's own weights unchanged.
const BEGINNINGS: [&str; 4] = ["gaussian", "eva", "orthogonal", "loralite"];

/// The supported fields.
struct Config {
    rank: usize,
    alpha: f64,
    /// alpha / √r (Kalajdzievski 2023).
    root: bool,
    /// Patterns of module names, and the rank and alpha of those modules.
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
    base: Option<String>,
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        _ => false,
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl Config {
    fn read(map: &Map<String, Value>) -> Result<Self> {
        let expected = |field: &str, what: &str| {
            let found = map.get(field).map_or("nothing".into(), shown);
            Error::format(format!("{field} is {found}, expected {what}"))
        };
        match map.get("peft_type").and_then(Value::as_str) {
            Some("LORA") => {}
            _ => return Err(Error::unsupported(expected("peft_type", "\"LORA\"").message().to_owned())),
        }
        for (field, value) in map {
            let name = field.as_str();
            if OFF.contains(&name) && !is_off(value) {
                return Err(Error::unsupported(format!(
                    "{field} is {}: netcl only supports plain LoRA, for which it is off",
                    shown(value)
                )));
            }
            const READ: [&str; 8] = [
                "peft_type",
                "r",
                "lora_alpha",
                "use_rslora",
                "rank_pattern",
                "alpha_pattern",
                "lora_bias",
                "init_lora_weights",
            ];
            if !OFF.contains(&name) && !READ.contains(&name) && !INERT.contains(&name) && !is_off(value) {
                return Err(Error::unsupported(format!(
                    "netcl does not know the field {field}, so its results might be wrong"
                )));
            }
        }
        let start = map.get("init_lora_weights").unwrap_or(&Value::Null);
        let kept = start.as_str().is_none_or(|name| BEGINNINGS.contains(&name));
        if !kept {
            return Err(Error::unsupported(format!(
                "init_lora_weights is {}: such an adapter belongs to weights that were changed with it; save it as a plain one \
                 (path_initial_model_for_weight_conversion of PEFT's save_pretrained)",
                shown(start)
            )));
        }
        let rank = map.get("r").and_then(Value::as_u64).filter(|r| *r > 0);
        let rank = rank.and_then(|r| usize::try_from(r).ok());
        let alpha = map.get("lora_alpha").and_then(Value::as_f64).filter(|alpha| alpha.is_finite());
        let root = map.get("use_rslora").unwrap_or(&Value::Null);
        if !root.is_boolean() && !root.is_null() {
            return Err(expected("use_rslora", "true or false"));
        }
        Ok(Self {
            rank: rank.ok_or_else(|| expected("r", "a whole number above 0"))?,
            alpha: alpha.ok_or_else(|| expected("lora_alpha", "a number"))?,
            root: root.as_bool().unwrap_or(false),
            ranks: patterns(map, "rank_pattern")?,
            alphas: patterns(map, "alpha_pattern")?,
            base: map.get("base_model_name_or_path").and_then(Value::as_str).map(str::to_owned),
        })
    }

    /// Returns rank and factor of a module by its name in the model.
    fn of(&self, module: &str) -> (usize, f64) {
        let find = |all: &[(Regex, f64)]| all.iter().find(|(key, _)| key.is_match(module)).map(|(_, n)| *n);
        let rank = find(&self.ranks).map_or(self.rank, |n| n as usize);
        let alpha = find(&self.alphas).unwrap_or(self.alpha);
        let by = if self.root { (rank as f64).sqrt() } else { rank as f64 };
        (rank, alpha / by)
    }
}

/// Compiles patterns. A pattern matches the end of a module's name after a dot, or the whole name; the first match applies.
fn patterns(map: &Map<String, Value>, field: &str) -> Result<Vec<(Regex, f64)>> {
    let Some(value) = map.get(field).filter(|value| !is_off(value)) else { return Ok(Vec::new()) };
    let wrong = |what: &str| Error::format(format!("{field} is {}: {what}", shown(value)));
    let all = value.as_object().ok_or_else(|| wrong("expected an object of patterns and numbers"))?;
    let whole = field == "rank_pattern";
    all.iter()
        .map(|(key, n)| {
            let n = n.as_f64().filter(|n| n.is_finite() && (!whole || (*n >= 1.0 && n.fract() == 0.0)));
            let n = n.ok_or_else(|| wrong(&format!("no number for {key:?}")))?;
            let pattern = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"));
            let pattern =
                pattern.map_err(|_| wrong(&format!("{key:?} is a pattern that netcl does not support")))?;
            Ok((pattern, n))
        })
        .collect()
}

/// Reads an adapter's folder.
pub(super) fn open(folder: &Path) -> Result<Adapter> {
    let path = folder.join(CONFIG);
    let text = netcl_device::files::read_text(&path).map_err(|e| Error::io("reading", &path, &e))?;
    let place = |e: Error| e.context(path.display());
    let json: Value = serde_json::from_str(&text).map_err(|e| place(Error::format(e.to_string())))?;
    let map = json.as_object().ok_or_else(|| place(Error::format("expected an object of fields")))?;
    let config = Config::read(map).map_err(place)?;
    let path = folder.join(WEIGHTS);
    if !path.exists() && folder.join("adapter_model.bin").exists() {
        return Err(Error::unsupported(format!(
            "{}: pickled tensors; save the adapter as safetensors",
            folder.join("adapter_model.bin").display()
        )));
    }
    let tensors = read_tensors(&path)?;
    let entries = entries(tensors, &config).map_err(|e| e.context(path.display()))?;
    let Config { alpha, base, .. } = config;
    Adapter { path: folder.into(), naming: Naming::HuggingFace, base, alpha, entries }.checked()
}

/// Groups tensors by the end of their name.
fn entries(tensors: Vec<TensorData>, config: &Config) -> Result<BTreeMap<String, Entry>> {
    let mut out: BTreeMap<String, Entry> = BTreeMap::new();
    for tensor in tensors {
        let name = tensor.name.clone();
        let inner = name.strip_prefix("base_model.model.").ok_or_else(|| {
            Error::format(format!("{name}: expected the name of a tensor to begin with base_model.model."))
        })?;
        let values = tensor.floats()?;
        let part = AdapterTensor { name: name.clone(), shape: tensor.shape, values };
        let end = |end: &str| inner.strip_suffix(end);
        let entry = |module: &str, kind: &str, out: &mut BTreeMap<String, Entry>| {
            let entry = out.entry(format!("{module}.{kind}")).or_default();
            let (rank, factor) = config.of(module);
            entry.factor = factor;
            (std::mem::take(entry), rank)
        };
        let (parameter, found) = if let Some(module) = end(".lora_A.weight") {
            let (found, rank) = entry(module, "weight", &mut out);
            check_rank(&part, 0, rank)?;
            (format!("{module}.weight"), Entry { a: Some(part), ..found })
        } else if let Some(module) = end(".lora_B.weight") {
            let (found, rank) = entry(module, "weight", &mut out);
            check_rank(&part, 1, rank)?;
            (format!("{module}.weight"), Entry { b: Some(part), ..found })
        } else if let Some(module) = end(".lora_embedding_A") {
            let (found, rank) = entry(module, "weight", &mut out);
            check_rank(&part, 0, rank)?;
            (format!("{module}.weight"), Entry { a: Some(part), table: true, ..found })
        } else if let Some(module) = end(".lora_embedding_B") {
            let (found, rank) = entry(module, "weight", &mut out);
            check_rank(&part, 1, rank)?;
            (format!("{module}.weight"), Entry { b: Some(part), table: true, ..found })
        } else if let Some(module) = end(".lora_B.bias") {
            let (found, _) = entry(module, "weight", &mut out);
            (format!("{module}.weight"), Entry { shift: Some(part), ..found })
        } else if inner.contains(".lora_") {
            return Err(Error::unsupported(format!(
                "{name} {:?} is an unsupported tensor of an adapter; supported are lora_A, lora_B, lora_embedding_A and lora_embedding_B",
                part.shape
            )));
        } else {
            let plain = inner.replace(".base_layer.", ".").replace(".modules_to_save.", ".");
            let found = out.remove(&plain).unwrap_or_default();
            (plain, Entry { whole: Some(part), ..found })
        };
        out.insert(parameter, found);
    }
    Ok(out)
}

/// Checks that axis `axis` of A or B has the rank in the module's configuration.
fn check_rank(part: &AdapterTensor, axis: usize, rank: usize) -> Result<()> {
    match part.shape.len() == 2 && part.shape[axis] == rank {
        true => Ok(()),
        false => {
            let expected = if axis == 0 { format!("({rank}, in)") } else { format!("(out, {rank})") };
            Err(Error::format(format!(
                "{} has shape {:?}, expected {expected} by {CONFIG}",
                part.name, part.shape
            )))
        }
    }
}
