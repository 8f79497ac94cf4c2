//! Adapters in GGUF files, as llama.cpp reads them: `NAME.lora_a` (r, in) and `NAME.lora_b` (out, r) for the tensor `NAME` of a model.

use super::{Adapter, AdapterTensor, Entry, Naming};
use crate::gguf::Gguf;
use netcl_tensor::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;

const ALPHA: &str = "adapter.lora.alpha";
/// Keys without effect on the adapter.
const INERT: [&str; 2] = ["adapter.lora.task_name", "adapter.lora.prompt_prefix"];

/// Returns true if a file declares itself as an adapter.
pub(super) fn is_adapter(path: &Path) -> bool {
    Gguf::open(path).is_ok_and(|file| file.text("general.type").is_ok_and(|kind| kind == Some("adapter")))
}

/// Reads an adapter's file.
pub(super) fn open(path: &Path) -> Result<Adapter> {
    let file = Gguf::open(path)?;
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = file.text(key)?;
        if found != Some(expected) {
            let found = found.map_or("missing".to_owned(), |found| format!("{found:?}"));
            return Err(Error::unsupported(format!(
                "{}: {key} is {found}, expected {expected:?} in a LoRA adapter",
                path.display()
            )));
        }
    }
    let architecture = file.needed("general.architecture", "a name", file.text("general.architecture")?)?;
    for key in file.keys() {
        let (name, ..) = key?;
        let known = ["adapter.type", ALPHA].contains(&name) || INERT.contains(&name);
        if name.starts_with("adapter.") && !known {
            return Err(Error::unsupported(format!(
                "{}: netcl does not know the key {name}, so its results might be wrong",
                path.display()
            )));
        }
    }
    let alpha = file.number(ALPHA)?;
    let alpha = file.needed(ALPHA, "a number", alpha.filter(|alpha| alpha.is_finite()))?;
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for tensor in file.tensors() {
        let place = |e: Error| e.context(tensor.name).context(path.display());
        let values = tensor.format.dequantised(tensor.bytes, tensor.count()).map_err(place)?;
        let part = AdapterTensor { name: tensor.name.into(), shape: tensor.shape().to_vec(), values };
        if let Some(name) = tensor.name.strip_suffix(".lora_a") {
            let entry = entries.entry(name.into()).or_default();
            entry.table = name.starts_with("token_embd.");
            entry.a = Some(part);
        } else if let Some(name) = tensor.name.strip_suffix(".lora_b") {
            let rank = part.shape.last().copied().unwrap_or(1);
            let entry = entries.entry(name.into()).or_default();
            entry.table = name.starts_with("token_embd.");
            // Without an alpha, the product is added unscaled.
            entry.factor = if alpha == 0.0 { 1.0 } else { alpha / rank as f64 };
            entry.b = Some(part);
        } else {
            entries.entry(tensor.name.into()).or_default().whole = Some(part);
        }
    }
    let base = file.text("general.base_model.0.name")?.or(file.text("general.name")?).map(str::to_owned);
    let naming = Naming::Gguf(architecture.to_owned());
    Adapter { path: path.into(), naming, base, alpha, entries }.checked()
}
