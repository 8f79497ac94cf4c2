//! LoRA adapters (Hu et al., "LoRA: low-rank adaptation of large language models", 2021): PEFT and GGUF files, and their effect on a model.
//!
//! A projection `y = W x` becomes `y = W x + s B A x` with A (r, in), B (out, r) and `s = scale · alpha / r`. Parameters have their Hugging Face
//! names, whichever files the adapter and the model come from.
//!
//! An adapter becomes changes of tensors: replaced values, or a product to add. Dense tensors are changed in f32 on their way to the device or into a
//! file. For quantized blocks, the decoder adds the product at run time (`Decoder::add_low_rank`), one for all parts of a map. A bias or a head that
//! the base model lacks is a changed configuration.

mod apply;
mod gguf;
mod peft;
mod write;

pub use apply::{AdapterProduct, Adapters, open_all};

use netcl_model::decoder::is_adapter;
use netcl_tensor::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A tensor of an adapter: its name in the file, its shape, its elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdapterTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Content of a file for one parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entry {
    /// A (r, in). For an embedding (r, rows) in PEFT's files and (rows, r) in GGUF's; for all experts with a leading axis.
    pub a: Option<AdapterTensor>,
    /// B (out, r); for an embedding (width, r).
    pub b: Option<AdapterTensor>,
    /// Added to the bias, multiplied by the factor: PEFT's `lora_bias`.
    pub shift: Option<AdapterTensor>,
    /// Replacement of the parameter, for fully trained modules.
    pub whole: Option<AdapterTensor>,
    /// Whether A and B belong to a lookup table.
    pub table: bool,
    /// alpha / r, or alpha / √r.
    pub factor: f64,
}

impl Entry {
    /// Returns r from the tensor shapes.
    fn rank(&self) -> Option<usize> {
        self.b.as_ref().and_then(|b| b.shape.last().copied())
    }
}

/// Naming scheme of parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Naming {
    /// Names of Hugging Face's files.
    HuggingFace,
    /// Names of GGUF files of this architecture.
    Gguf(String),
}

/// An adapter in the form of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    path: PathBuf,
    naming: Naming,
    /// The base model, if the file names it.
    base: Option<String>,
    alpha: f64,
    entries: BTreeMap<String, Entry>,
}

/// Summary of an adapter's changes.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// `PEFT` or `GGUF`.
    pub format: &'static str,
    /// Architecture in GGUF files.
    pub architecture: Option<String>,
    /// Name of the base model.
    pub base: Option<String>,
    /// Its alpha; individual modules may differ.
    pub alpha: f64,
    /// Number of elements of all tensors.
    pub elements: u64,
    /// By the last part of the module's name: number of parameters, smallest and largest rank, smallest and largest factor.
    pub targets: BTreeMap<String, AdapterTarget>,
    /// Parameters that it replaces.
    pub wholes: Vec<String>,
}

/// Modules with the same name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterTarget {
    /// Number of parameters.
    pub count: usize,
    /// Smallest and largest rank.
    pub ranks: [usize; 2],
    /// Smallest and largest alpha / r.
    pub factors: [f64; 2],
}

impl Adapter {
    /// Opens an adapter: the folder of a PEFT adapter, its `adapter_config.json` or `adapter_model.safetensors`, or a GGUF file.
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` that name file and field or tensor.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return peft::open(path);
        }
        if path.file_name().is_some_and(|name| name == peft::CONFIG || name == peft::WEIGHTS) {
            return peft::open(path.parent().unwrap_or(Path::new(".")));
        }
        gguf::open(path)
    }

    /// Returns true if there is an adapter at this path, and not a model.
    pub fn is_at(path: &Path) -> bool {
        match path.is_dir() {
            true => {
                is_adapter(path) || path.join(peft::CONFIG).exists() && !path.join("config.json").exists()
            }
            false => gguf::is_adapter(path),
        }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a summary of its changes.
    pub fn about(&self) -> About {
        let (format, architecture) = match &self.naming {
            Naming::HuggingFace => ("PEFT", None),
            Naming::Gguf(architecture) => ("GGUF", Some(architecture.clone())),
        };
        let mut out = About {
            format,
            architecture,
            base: self.base.clone(),
            alpha: self.alpha,
            elements: 0,
            targets: BTreeMap::new(),
            wholes: Vec::new(),
        };
        for (name, entry) in &self.entries {
            let parts = [&entry.a, &entry.b, &entry.shift, &entry.whole];
            out.elements +=
                parts.iter().filter_map(|p| p.as_ref()).map(|p| p.values.len() as u64).sum::<u64>();
            out.wholes.extend(entry.whole.is_some().then(|| name.clone()));
            let Some(rank) = entry.rank() else { continue };
            let module = name.rsplit_once('.').map_or(name.as_str(), |(module, _)| module);
            let last = module.rsplit_once('.').map_or(module, |(_, last)| last);
            let target = out.targets.entry(last.to_owned());
            let factor = entry.factor;
            let target = target.or_insert(AdapterTarget { count: 0, ranks: [rank; 2], factors: [factor; 2] });
            target.count += 1;
            target.ranks = [target.ranks[0].min(rank), target.ranks[1].max(rank)];
            target.factors = [target.factors[0].min(factor), target.factors[1].max(factor)];
        }
        out
    }

    /// Checks that every A has a matching B, and that all numbers are finite.
    fn checked(self) -> Result<Self> {
        let place = |e: Error| e.context(self.path.display());
        if self.entries.is_empty() {
            return Err(place(Error::format("an adapter without tensors")));
        }
        for (name, entry) in &self.entries {
            match (&entry.a, &entry.b) {
                (Some(one), None) | (None, Some(one)) => {
                    let other = if entry.a.is_some() { "B" } else { "A" };
                    return Err(place(Error::format(format!(
                        "{} {:?} does not have a matching {other} for {name}",
                        one.name, one.shape
                    ))));
                }
                (None, None) if entry.shift.is_some() => {
                    return Err(place(Error::format(format!(
                        "{name}: has a bias of the matrix B, but not the matrices A and B"
                    ))));
                }
                _ => {}
            }
            for part in [&entry.a, &entry.b, &entry.shift, &entry.whole].into_iter().flatten() {
                if part.values.iter().any(|v| !v.is_finite()) {
                    return Err(place(Error::format(format!(
                        "{} has values that are not numbers",
                        part.name
                    ))));
                }
            }
            if !entry.factor.is_finite() {
                return Err(place(Error::format(format!("{name}: alpha / r is not a number"))));
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
