//! Descriptions of parameters: names, shapes, initialization, and the tensors of a file that each consists of.

use super::config::{DecoderConfig, MoeConfig, NormKind, Positions};
use super::family::ExpertNames;
use crate::params::{Init, Params};
use netcl_tensor::{Error, Result, Tensor};

/// Standard deviation of initial weights.
pub(super) const STD: f32 = 0.02;

/// Description of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamShape {
    /// Name: as in files, or an own name if it packs several tensors.
    pub name: String,
    /// Shape.
    pub dims: Vec<usize>,
    /// Initialization.
    pub init: Init,
    /// The tensors of a file that are concatenated in it: name and number of rows.
    pub pieces: Vec<(String, usize)>,
    /// Set if the file interleaves query, key and value by head (GPT-NeoX): heads and head size.
    pub by_head: Option<[usize; 2]>,
}

impl ParamShape {
    /// Returns true if it is the matrix of a linear map stored as (out, in) with the rows of its pieces in order. Quantized blocks can replace
    /// such a matrix. False for experts, embeddings and matrices stored as (in, out).
    pub fn is_map(&self, config: &DecoderConfig) -> bool {
        self.is_linear(config) && !config.family.names.transposed && self.by_head.is_none()
    }

    /// Returns true if it is the matrix of a linear map in any order. False for experts, their router, and embeddings.
    pub fn is_linear(&self, config: &DecoderConfig) -> bool {
        let names = config.family.names;
        let tables =
            [names.embedding, names.positions].map(|table| format!("{}{table}.weight", names.prefix));
        let router = names.experts.is_some_and(|e| self.name.ends_with(&format!("{}.gate.weight", e.folder)));
        self.dims.len() == 2 && !router && self.name.ends_with(".weight") && !tables.contains(&self.name)
    }

    /// Returns true if it contains the stacked matrices of all experts. Quantized ones are one matrix with all their rows.
    pub fn of_experts(&self) -> bool {
        self.dims.len() == 3
    }

    /// Returns true if quantized blocks can replace it. This applies to matrices of linear maps and of experts. In models without position embeddings
    /// it also applies to the token embedding, even if it is tied to the output head.
    pub fn takes_blocks(&self, config: &DecoderConfig) -> bool {
        let names = config.family.names;
        let table = self.name == format!("{}{}.weight", names.prefix, names.embedding);
        match table || self.is_copy(config) {
            true => self.dims.len() == 2 && config.positions == Positions::Rotary,
            false => self.is_map(config) || self.of_experts(),
        }
    }

    /// Returns true for the head of a tied model on another device than the embedding, which is a copy of it.
    pub fn is_copy(&self, config: &DecoderConfig) -> bool {
        config.tied && self.name == format!("{}.weight", config.family.names.head)
    }

    /// Returns the number of elements; saturating.
    pub fn count(&self) -> usize {
        self.dims.iter().fold(1, |all: usize, n| all.saturating_mul(*n))
    }
}

/// A linear map: the names of its parts in the file, the last component of the packed name if there are several, and their numbers of outputs.
pub(super) struct Map<'a> {
    pub(super) parts: &'a [&'static str],
    pub(super) packed: &'static str,
    pub(super) outputs: &'a [usize],
    pub(super) inputs: usize,
    pub(super) bias: bool,
    pub(super) std: f32,
}

/// Builder of the list of parameters.
pub(super) struct Lister<'a> {
    pub(super) config: &'a DecoderConfig,
    pub(super) list: Vec<ParamShape>,
}

/// Returns the parameter with this name, which must be in the list.
pub(super) fn parameter(params: &Params, name: &str) -> Result<Tensor> {
    params.get(name).cloned().ok_or_else(|| Error::internal(format!("decoder: no parameter {name}")))
}

/// `self_attn.q_proj`, `k_proj`, `v_proj` → `self_attn.qkv_proj`.
pub fn packed_name(parts: &[&str], packed: &str) -> String {
    match parts {
        [one] => (*one).to_owned(),
        _ => {
            let folder =
                parts.first().and_then(|part| part.rsplit_once('.')).map_or("", |(folder, _)| folder);
            format!("{folder}.{packed}")
        }
    }
}

impl Lister<'_> {
    pub(super) fn push(&mut self, name: String, dims: &[usize], init: Init) {
        let pieces = vec![(name.clone(), dims.first().copied().unwrap_or(0))];
        self.list.push(ParamShape { name, dims: dims.to_vec(), init, pieces, by_head: None });
    }
    /// A norm over `n` elements.
    pub(super) fn norm(&mut self, name: &str, n: usize) {
        let norm = self.config.norm;
        let ones = if norm.unit_offset { Init::Zeros } else { Init::Ones };
        self.push(format!("{name}.weight"), &[n], ones);
        if norm.kind == NormKind::Layer && norm.bias {
            self.push(format!("{name}.bias"), &[n], Init::Zeros);
        }
    }
    /// A linear map of the block whose names start with `place`.
    pub(super) fn linear(&mut self, place: &str, map: &Map<'_>) {
        let Map { parts, packed, outputs, inputs, bias, std } = *map;
        let total: usize = outputs.iter().fold(0, |sum, n| sum.saturating_add(*n));
        let own = format!("{place}{}", packed_name(parts, packed));
        let pieces = |end: &str| match parts {
            [one] => vec![(format!("{place}{one}.{end}"), total)],
            _ => parts
                .iter()
                .zip(outputs)
                .map(|(part, rows)| (format!("{place}{part}.{end}"), *rows))
                .collect(),
        };
        let dims =
            if self.config.family.names.transposed { vec![inputs, total] } else { vec![total, inputs] };
        let mut weight = pieces("weight");
        if let ([one], Some(rows)) = (&mut weight[..], dims.first()) {
            one.1 = *rows;
        }
        let init = Init::Normal(std);
        self.list.push(ParamShape {
            name: format!("{own}.weight"),
            dims,
            init,
            pieces: weight,
            by_head: None,
        });
        if bias {
            let (name, pieces) = (format!("{own}.bias"), pieces("bias"));
            self.list.push(ParamShape { name, dims: vec![total], init: Init::Zeros, pieces, by_head: None });
        }
    }

    /// An output projection into the residual stream, with smaller initial weights (GPT-2).
    pub(super) fn residual_map(&mut self, place: &str, (name, inputs, bias): (&'static str, usize, bool)) {
        let std = STD / (2.0 * self.config.layers as f32).sqrt();
        let outputs = [self.config.width];
        self.linear(place, &Map { parts: &[name], packed: "", outputs: &outputs, inputs, bias, std });
    }

    /// Router (E, C), gate and up projections (E, 2H, C) and down projections (E, C, H) of all experts. In files each expert has its own
    /// matrices.
    pub(super) fn experts(&mut self, place: &str, moe: &MoeConfig, names: &ExpertNames) {
        let MoeConfig { experts, hidden, .. } = *moe;
        let (c, place) = (self.config.width, format!("{place}{}.", names.folder));
        self.push(format!("{place}gate.weight"), &[experts, c], Init::Normal(STD));
        let pieces = |maps: &[&str], rows: usize| -> Vec<(String, usize)> {
            let of = |e: usize| maps.iter().map(move |map| (e, map));
            (0..experts)
                .flat_map(of)
                .map(|(e, map)| (format!("{place}experts.{e}.{map}.weight"), rows))
                .collect()
        };
        let [gate, value, down] = names.maps;
        let back = STD / (2.0 * self.config.layers as f32).sqrt();
        for (name, dims, std, pieces) in [
            ("gate_up_proj", [experts, hidden.saturating_mul(2), c], STD, pieces(&[gate, value], hidden)),
            ("down_proj", [experts, c, hidden], back, pieces(&[down], c)),
        ] {
            let (name, init) = (format!("{place}experts.{name}"), Init::Normal(std));
            self.list.push(ParamShape { name, dims: dims.to_vec(), init, pieces, by_head: None });
        }
    }
}

impl<'a> Lister<'a> {
    pub(super) fn new(config: &'a DecoderConfig) -> Self {
        Self { config, list: Vec::new() }
    }
    pub(super) fn table(&mut self, name: &str, rows: usize) {
        let name = format!("{}{name}.weight", self.config.family.names.prefix);
        self.push(name, &[rows, self.config.width], Init::Normal(STD));
    }
}
