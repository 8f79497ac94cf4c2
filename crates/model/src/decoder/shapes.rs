//! The parameters of a decoder: names, shapes, initialisation, and the tensors of a file that each consists of. The only such list.

use super::config::{DecoderConfig, MoeConfig, NormKind, Placement, Positions, QkNorm};
use super::family::ExpertNames;
use crate::params::{Init, Params};
use netcl_tensor::{Error, Result, Tensor};
use std::ops::Range;

/// Standard deviation of initial weights.
const STD: f32 = 0.02;

/// Description of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamShape {
    /// Name: as in files, or an own name if it packs several tensors.
    pub name: String,
    /// Shape.
    pub dims: Vec<usize>,
    /// Initialisation.
    pub init: Init,
    /// The tensors of a file that are concatenated in it: name and number of rows.
    pub pieces: Vec<(String, usize)>,
    /// The file interleaves query, key and value by head (GPT-NeoX): heads and head size.
    pub by_head: Option<[usize; 2]>,
}

impl ParamShape {
    /// Whether it is the matrix of a linear map stored as (out, in) with the rows of its pieces in order, so that quantised blocks can replace
    /// it. Not so for experts, embeddings and matrices stored as (in, out).
    pub fn is_map(&self, config: &DecoderConfig) -> bool {
        let names = config.family.names;
        let tables =
            [names.embedding, names.positions].map(|table| format!("{}{table}.weight", names.prefix));
        let router = names.experts.is_some_and(|e| self.name.ends_with(&format!("{}.gate.weight", e.folder)));
        self.dims.len() == 2
            && !names.transposed
            && self.by_head.is_none()
            && !router
            && self.name.ends_with(".weight")
            && !tables.contains(&self.name)
    }

    /// Whether it is the matrices of all experts, one behind the other: quantised ones are one matrix with all their rows.
    pub fn of_experts(&self) -> bool {
        self.dims.len() == 3
    }

    /// Whether quantised blocks can replace it: matrices of linear maps and of experts, and, in models without position embeddings, the token
    /// embedding, also if it is tied to the output head.
    pub fn takes_blocks(&self, config: &DecoderConfig) -> bool {
        let names = config.family.names;
        let table = self.name == format!("{}{}.weight", names.prefix, names.embedding);
        match table || self.is_copy(config) {
            true => self.dims.len() == 2 && config.positions == Positions::Rotary,
            false => self.is_map(config) || self.of_experts(),
        }
    }

    /// Whether it is the head of a tied model on another device than the embedding, whose copy it is.
    pub fn is_copy(&self, config: &DecoderConfig) -> bool {
        config.tied && self.name == format!("{}.weight", config.family.names.head)
    }

    /// Number of elements; saturating.
    pub fn count(&self) -> usize {
        self.dims.iter().fold(1, |all: usize, n| all.saturating_mul(*n))
    }
}

/// A linear map: the names of its parts in the file, the last component of its own name if there are several, and their numbers of outputs.
struct Map<'a> {
    parts: &'a [&'static str],
    packed: &'static str,
    outputs: &'a [usize],
    inputs: usize,
    bias: bool,
    std: f32,
}

/// Builder of the list of parameters.
struct Lister<'a> {
    config: &'a DecoderConfig,
    list: Vec<ParamShape>,
}

/// The parameter with this name, which the list contains.
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
    fn push(&mut self, name: String, dims: &[usize], init: Init) {
        let pieces = vec![(name.clone(), dims.first().copied().unwrap_or(0))];
        self.list.push(ParamShape { name, dims: dims.to_vec(), init, pieces, by_head: None });
    }
    /// A norm over `n` elements.
    fn norm(&mut self, name: &str, n: usize) {
        let norm = self.config.norm;
        let ones = if norm.unit_offset { Init::Zeros } else { Init::Ones };
        self.push(format!("{name}.weight"), &[n], ones);
        if norm.kind == NormKind::Layer && norm.bias {
            self.push(format!("{name}.bias"), &[n], Init::Zeros);
        }
    }
    /// A linear map of the block whose names start with `place`.
    fn linear(&mut self, place: &str, map: &Map<'_>) {
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
    fn residual_map(&mut self, place: &str, (name, inputs, bias): (&'static str, usize, bool)) {
        let std = STD / (2.0 * self.config.layers as f32).sqrt();
        let outputs = [self.config.width];
        self.linear(place, &Map { parts: &[name], packed: "", outputs: &outputs, inputs, bias, std });
    }

    /// Router (E, C), gate and up projections (E, 2H, C) and down projections (E, C, H) of all experts. In files each expert has its own
    /// matrices.
    fn experts(&mut self, place: &str, moe: &MoeConfig, names: &ExpertNames) {
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

    fn block(&mut self, i: usize) {
        let c = self.config;
        let (names, a, mlp) = (c.family.names, c.attention, c.mlp);
        let place = format!("{}{}{i}.", names.prefix, names.layer);
        let before = c.placement != Placement::Post;
        let behind = c.placement != Placement::Pre;
        let (queries, keys) = (a.heads.saturating_mul(a.size), a.kv_heads.saturating_mul(a.size));
        if before {
            self.norm(&format!("{place}{}", names.pre_norms[0]), c.width);
        }
        let first = self.list.len();
        let outputs = [queries, keys, keys];
        let (parts, inputs, bias) = (names.qkv, c.width, a.qkv_bias);
        self.linear(&place, &Map { parts, packed: "qkv_proj", outputs: &outputs, inputs, bias, std: STD });
        if names.qkv_by_head {
            self.list[first..].iter_mut().for_each(|shape| shape.by_head = Some([a.heads, a.size]));
        }
        if a.qk_norm != QkNorm::None {
            let full = a.qk_norm == QkNorm::Full;
            for (name, n) in names.qk_norms.iter().zip([queries, keys]) {
                self.norm(&format!("{place}{name}"), if full { n } else { a.size });
            }
        }
        self.residual_map(&place, (names.out, queries, a.out_bias));
        if behind {
            self.norm(&format!("{place}{}", names.post_norms[0]), c.width);
        }
        if before {
            self.norm(&format!("{place}{}", names.pre_norms[1]), c.width);
        }
        match (mlp.moe.filter(|_| c.kind(i).sparse), names.experts) {
            (Some(moe), Some(names)) => self.experts(&place, &moe, &names),
            _ => {
                let outputs = if mlp.gated { vec![mlp.hidden; 2] } else { vec![mlp.hidden] };
                let (parts, inputs, bias) = (names.up, c.width, mlp.bias);
                let map = Map { parts, packed: "gate_up_proj", outputs: &outputs, inputs, bias, std: STD };
                self.linear(&place, &map);
                self.residual_map(&place, (names.down, mlp.hidden, mlp.bias));
            }
        }
        if behind {
            self.norm(&format!("{place}{}", names.post_norms[1]), c.width);
        }
    }
}

impl<'a> Lister<'a> {
    fn new(config: &'a DecoderConfig) -> Self {
        Self { config, list: Vec::new() }
    }
    fn table(&mut self, name: &str, rows: usize) {
        let name = format!("{}{name}.weight", self.config.family.names.prefix);
        self.push(name, &[rows, self.config.width], Init::Normal(STD));
    }
}

/// Parameters before the blocks.
fn before(config: &DecoderConfig) -> Vec<ParamShape> {
    let mut lister = Lister::new(config);
    lister.table(config.family.names.embedding, config.vocab);
    if config.positions == Positions::Learned {
        lister.table(config.family.names.positions, config.context);
    }
    lister.list
}

/// Parameters after the blocks.
fn behind(config: &DecoderConfig) -> Vec<ParamShape> {
    let (names, mut lister) = (config.family.names, Lister::new(config));
    lister.norm(&format!("{}{}", names.prefix, names.last_norm), config.width);
    if !config.tied {
        lister.push(format!("{}.weight", names.head), &[config.vocab, config.width], Init::Normal(STD));
    }
    lister.list
}

/// The head of a tied model where the embedding is on another device: a copy of it.
fn copy(config: &DecoderConfig) -> Option<ParamShape> {
    let mut table = before(config).into_iter().next().filter(|_| config.tied)?;
    table.name = format!("{}.weight", config.family.names.head);
    Some(table)
}

/// Parameters outside the blocks.
pub fn outside(config: &DecoderConfig) -> Vec<ParamShape> {
    [before(config), behind(config)].concat()
}

/// Parameters of block `i`.
pub fn block(config: &DecoderConfig, i: usize) -> Vec<ParamShape> {
    let mut lister = Lister::new(config);
    lister.block(i);
    lister.list
}

/// Iterator over the parameters of a decoder, in order of creation. It is lazy, because an invalid file may ask for more layers than a list fits
/// into memory.
pub fn all(config: &DecoderConfig) -> impl Iterator<Item = ParamShape> + '_ {
    of_layers(config, 0..config.layers)
}

/// The same of consecutive layers that are on a device of their own: with the first one comes the embedding, with the last one the last norm and the
/// head.
pub fn of_layers(config: &DecoderConfig, layers: Range<usize>) -> impl Iterator<Item = ParamShape> + '_ {
    let (first, last) = (layers.start == 0, layers.end == config.layers);
    let entry = if first { before(config) } else { Vec::new() };
    let exit = if last { behind(config) } else { Vec::new() };
    let copy = if last && !first { copy(config) } else { None };
    entry.into_iter().chain(layers.flat_map(|i| block(config, i))).chain(exit).chain(copy)
}

impl DecoderConfig {
    /// The parameters, in order of creation.
    pub fn shapes(&self) -> impl Iterator<Item = ParamShape> + '_ {
        all(self)
    }

    /// The parameters that a device has which holds these layers: with the first one the embedding, with the last one the last norm and the head, of
    /// a tied model whose embedding is elsewhere a copy of that ([`ParamShape::is_copy`]).
    pub fn shapes_of(&self, layers: Range<usize>) -> impl Iterator<Item = ParamShape> + '_ {
        of_layers(self, layers)
    }

    /// The parameters before the layers.
    pub fn entry_shapes(&self) -> Vec<ParamShape> {
        before(self)
    }

    /// The parameters of layer `i`.
    pub fn block_shapes(&self, i: usize) -> Vec<ParamShape> {
        block(self, i)
    }

    /// The parameters behind the layers.
    pub fn exit_shapes(&self) -> Vec<ParamShape> {
        behind(self)
    }

    /// Number of elements of all parameters, with a tied head counted once; saturating.
    pub fn parameters(&self) -> usize {
        let count = |shapes: Vec<ParamShape>| {
            shapes.iter().fold(0usize, |sum, shape| sum.saturating_add(shape.count()))
        };
        let blocks = self.over_layers(|i| count(block(self, i)));
        blocks.saturating_add(count(outside(self)))
    }
}
