//! Reading and writing of `config.toml`. Unknown keys are errors; written keys are grouped.

use super::{Overlay, TrainConfig};
use netcl_device::{Error, Result, nearest};
use std::path::Path;

/// All keys, in the order of the file.
pub(super) const GROUPS: [(&str, &[&str]); 5] = [
    (
        "model",
        &[
            "init",
            "family",
            "layers",
            "heads",
            "kv_heads",
            "head_size",
            "width",
            "mlp",
            "context",
            "vocab",
            "rope_theta",
            "tied",
            "dropout",
            "bias",
            "freeze",
        ],
    ),
    ("data", &["data", "encoding", "as_text", "tokenizer", "val_split"]),
    ("optimizer", &["lr", "min_lr", "warmup", "schedule", "weight_decay", "betas", "eps", "clip"]),
    (
        "run",
        &[
            "batch",
            "grad_accum",
            "steps",
            "seed",
            "eval_every",
            "eval_batches",
            "sample_every",
            "checkpoint_every",
            "keep",
        ],
    ),
    ("device", &["dtype", "matmul_precision", "device", "graph", "recompute", "zero", "pipeline"]),
];

/// Names that other programs use for these keys.
const SYNONYMS: [(&str, &[&str]); 20] = [
    ("init", &["init_from", "pretrained", "from_pretrained", "model_name_or_path"]),
    ("family", &["model_type", "architecture", "arch"]),
    ("kv_heads", &["n_kv_head", "n_kv_heads", "num_key_value_heads", "n_head_kv"]),
    ("head_size", &["head_dim", "d_head"]),
    ("mlp", &["n_inner", "intermediate_size", "d_ff", "hidden_dim", "ffn_dim", "mlp_width"]),
    ("layers", &["n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth"]),
    ("heads", &["n_head", "n_heads", "num_heads", "num_attention_heads"]),
    ("width", &["n_embd", "d_model", "hidden_size", "dim", "embed_dim"]),
    ("context", &["block_size", "n_ctx", "n_positions", "seq_len", "sequence_length", "max_seq_len"]),
    ("vocab", &["vocab_size"]),
    ("lr", &["learning_rate"]),
    ("min_lr", &["min_learning_rate"]),
    ("warmup", &["warmup_iters", "warmup_steps"]),
    ("schedule", &["lr_schedule", "scheduler"]),
    ("clip", &["grad_clip", "max_norm", "max_grad_norm"]),
    ("grad_accum", &["gradient_accumulation_steps", "accumulate"]),
    ("batch", &["batch_size", "train_batch_size"]),
    ("steps", &["max_iters", "max_steps", "iters", "iterations"]),
    ("eval_every", &["eval_interval"]),
    ("eval_batches", &["eval_iters"]),
];

impl Overlay {
    /// Reads a file of settings. `Format` with file and line; for an unknown key with the most similar known one.
    pub fn read(path: &Path) -> Result<Self> {
        let text = netcl_device::files::read_text(path).map_err(|e| Error::io("reading", path, &e))?;
        Self::from_toml(&text).map_err(|e| e.context(path.display()))
    }

    /// Settings from TOML text.
    pub fn from_toml(text: &str) -> Result<Self> {
        let wrong = |e: toml::de::Error| Error::format(e.to_string().trim_end().to_owned());
        let table: toml::Table = toml::from_str(text).map_err(wrong)?;
        for (key, value) in &table {
            if key != "preset" && !known().any(|known| known == key) {
                let line = text
                    .lines()
                    .position(|line| line.trim_start_matches([' ', '\t', '[', '"']).starts_with(&**key));
                let line = line.map(|line| format!("line {}: ", line + 1)).unwrap_or_default();
                let hint = match nearest_key(key) {
                    _ if value.is_table() => "all keys stand at the top level, without [tables]".to_owned(),
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the keys are {}", known().collect::<Vec<_>>().join(", ")),
                };
                return Err(Error::format(format!("{line}unknown key `{key}`; {hint}")));
            }
        }
        toml::from_str(text).map_err(wrong)
    }
}

impl TrainConfig {
    /// The text of a `config.toml` with these settings.
    pub fn to_toml(&self) -> Result<String> {
        let table =
            toml::Table::try_from(self).map_err(|e| Error::internal(format!("settings as TOML: {e}")))?;
        let line = |key: &str| table.get(key).map(|value| format!("{key} = {value}\n")).unwrap_or_default();
        let mut text = format!("# Repeat this run: netcl train --config config.toml\n{}", line("preset"));
        for (group, keys) in GROUPS {
            text += &format!("\n# {group}\n");
            text.extend(keys.iter().map(|key| line(key)));
        }
        Ok(text)
    }
}

fn known() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|(_, keys)| keys.iter().copied())
}

fn nearest_key(key: &str) -> Option<&'static str> {
    let plain = key.to_ascii_lowercase().replace('-', "_");
    let synonym = SYNONYMS.iter().find(|(_, names)| names.contains(&&*plain)).map(|(known, _)| *known);
    synonym.or_else(|| nearest(&plain, known()))
}
