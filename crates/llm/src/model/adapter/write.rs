//! Writes an adapter as a GGUF file for llama.cpp: `NAME.lora_a` (r, in) and `NAME.lora_b` (out, r) for the tensor `NAME` of the model's file.
//!
//! The rows of B are in the order of the file's tensor. llama.cpp scales a product by alpha / r. The alpha of the file gives the adapter's factor with
//! this rule, also if that is alpha / √r. If one alpha does not fit all modules, B of the others contains the rest of their factor.

use super::apply::{SourceTensor, bytes, floats, known_tensors, of_hugging_face};
use super::{Adapter, AdapterTensor, Entry, Naming};
use crate::gguf::{Meta, Plan, TensorToWrite};
use crate::model::architecture::Architecture;
use crate::model::names::{Change, Placed, placed};
use netcl_model::decoder::DecoderConfig;
use netcl_tensor::{Error, Result, quant};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// A and B of a tensor of the file, with their shapes.
struct Pair {
    name: String,
    a: (Vec<usize>, Vec<f32>),
    b: (Vec<usize>, Vec<f32>),
    /// Factor of their product.
    factor: f64,
}

impl Adapter {
    /// Writes a PEFT adapter of a model as a GGUF file; `base` is the name of the model.
    ///
    /// # Errors
    /// `Unsupported` for changes that such a file cannot contain: whole tensors and biases; `Format` for tensors that the model does not have; `Io`.
    pub fn write_gguf(&self, model: &DecoderConfig, base: &str, path: &Path) -> Result<()> {
        let place = |e: Error| e.context(self.path.display());
        if self.naming != Naming::HuggingFace {
            return Err(place(Error::unsupported("the adapter is a GGUF file already")));
        }
        let architecture = Architecture::of_family(model.family)?;
        let pairs = pairs(self, model, architecture).map_err(place)?;
        let scale = |pair: &Pair| pair.factor * pair.rank() as f64;
        let alpha = pairs.iter().map(scale).find(|alpha| *alpha != 0.0).unwrap_or(1.0);
        let mut plan = Plan::default();
        plan.set("general.architecture", Meta::Str(architecture.name.into()));
        plan.set("general.type", Meta::Str("adapter".into()));
        plan.set("adapter.type", Meta::Str("lora".into()));
        plan.set("adapter.lora.alpha", Meta::F32(alpha as f32));
        plan.set("general.base_model.count", Meta::U32(1));
        plan.set("general.base_model.0.name", Meta::Str(base.into()));
        plan.set("general.file_type", Meta::U32(0));
        let mut values = Vec::with_capacity(2 * pairs.len());
        for pair in pairs {
            let rest = scale(&pair) / alpha;
            let b = if rest == 1.0 {
                pair.b.1
            } else {
                pair.b.1.iter().map(|v| (f64::from(*v) * rest) as f32).collect()
            };
            for (end, dims, part) in [("lora_a", pair.a.0, pair.a.1), ("lora_b", pair.b.0, b)] {
                plan.tensors.push(TensorToWrite {
                    name: format!("{}.{end}", pair.name),
                    dims,
                    format: &quant::F32,
                });
                values.push(part);
            }
        }
        let fail = |e: std::io::Error| Error::io("writing", path, &e);
        plan.write(path, |i, out| out.write_all(&bytes(&values[i])).map_err(fail))
    }
}

impl Pair {
    fn rank(&self) -> usize {
        self.b.0.last().copied().unwrap_or(1)
    }
}

/// Returns the pairs of an adapter by the tensors of the file, in their order.
fn pairs(adapter: &Adapter, model: &DecoderConfig, architecture: &Architecture) -> Result<Vec<Pair>> {
    let (wide, known) = known_tensors(model);
    let entries: BTreeMap<String, Entry> = of_hugging_face(model, adapter, &known)?.into_iter().collect();
    let unsupported = |name: &str, what: &str| {
        Error::unsupported(format!(
            "{name}: a GGUF adapter cannot contain {what}; merge it with the model (--merge), or write a folder for PEFT"
        ))
    };
    for (name, entry) in &entries {
        if entry.whole.is_some() {
            return Err(unsupported(name, "whole tensors"));
        }
        if entry.shift.is_some() {
            return Err(unsupported(name, "biases"));
        }
    }
    let mut out = Vec::new();
    for tensor in placed(&wide, architecture)? {
        if tensor.name.starts_with("position_embd.")
            && let Some(name) = tensor.files.iter().find(|file| entries.contains_key(*file))
        {
            return Err(unsupported(name, "embeddings of positions"));
        }
        let own: Vec<Option<&Entry>> = tensor.files.iter().map(|file| entries.get(file)).collect();
        out.extend(stacked(&tensor, &own, &known)?);
    }
    Ok(out)
}

/// Returns the pair of a tensor; those of its experts are stacked, with zeros for experts without one.
fn stacked(
    tensor: &Placed,
    own: &[Option<&Entry>],
    known: &HashMap<String, SourceTensor>,
) -> Result<Option<Pair>> {
    let Some(first) = own.iter().flatten().next() else { return Ok(None) };
    let factor = first.factor;
    let mut all: Option<Pair> = None;
    let shapes = |entry: &Entry| {
        entry.a.as_ref().map(|a| a.shape.clone()).zip(entry.b.as_ref().map(|b| b.shape.clone()))
    };
    for (entry, file) in own.iter().zip(&tensor.files) {
        if let Some(entry) = entry
            && (shapes(entry) != shapes(first) || entry.factor != factor)
        {
            return Err(Error::unsupported(format!(
                "{file}: a GGUF adapter needs one rank and alpha for all experts"
            )));
        }
        let (a, b) = (
            part(first.a.as_ref(), entry.and_then(|e| e.a.as_ref())),
            part(first.b.as_ref(), entry.and_then(|e| e.b.as_ref())),
        );
        let (a, b) = in_file(tensor, known.get(file), entry.unwrap_or(first), (a, b));
        match &mut all {
            None => all = Some(Pair { name: tensor.name.clone(), a, b, factor }),
            Some(pair) => {
                pair.a.1.extend(a.1);
                pair.b.1.extend(b.1);
            }
        }
    }
    if let Some(pair) = all.as_mut().filter(|_| own.len() > 1) {
        pair.a.0.insert(0, own.len());
        pair.b.0.insert(0, own.len());
    }
    Ok(all)
}

/// Returns the shape and the values of a part; zeros if an expert does not have it.
fn part(like: Option<&AdapterTensor>, own: Option<&AdapterTensor>) -> (Vec<usize>, Vec<f32>) {
    let shape = like.map_or_else(Vec::new, |like| like.shape.clone());
    let zeros = || vec![0.0; shape.iter().product()];
    let values = own.map_or_else(zeros, |own| own.values.clone());
    (shape, values)
}

type Part = (Vec<usize>, Vec<f32>);

/// Converts A and B to the order of the file's tensor.
fn in_file(
    tensor: &Placed,
    known: Option<&SourceTensor>,
    entry: &Entry,
    (a, mut b): (Part, Part),
) -> (Part, Part) {
    if entry.table {
        // (r, rows) becomes (rows, r).
        let [rank, rows] = a.0[..] else { return (a, b) };
        return ((vec![rows, rank], super::apply::turned(&a.1, [rank, rows])), b);
    }
    if let (Change::Pairs(_) | Change::Heads(_), [rows, rank]) = (tensor.change, &b.0[..])
        && known.is_some_and(|known| known.dims.first() == Some(rows))
    {
        b.1 = floats(&tensor.change.to_gguf(&bytes(&b.1), [rank * 4, 4], &[*rows, *rank]));
    }
    (a, b)
}
