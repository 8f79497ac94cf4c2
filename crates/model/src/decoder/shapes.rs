//! The parameters of a decoder, in order of creation. The only such list.

use super::config::{DecoderConfig, Placement, Positions};
use super::lister::{Lister, Map, ParamShape, STD};
use super::mixer;
use crate::params::Init;
use std::ops::Range;

impl Lister<'_> {
    fn block(&mut self, i: usize) {
        let c = self.config;
        let (names, mlp) = (c.family.names, c.mlp);
        let place = names.place(i);
        let before = c.placement != Placement::Post;
        let behind = c.placement != Placement::Pre;
        if before {
            self.norm(&format!("{place}{}", names.pre_norms[0]), c.width);
        }
        mixer::of(c.kind(i).mixer).parameters(self, i);
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

/// Returns the head of a tied model whose embedding is on another device: a copy of it.
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

/// Returns an iterator over the parameters of a decoder, in order of creation. It is lazy, because an invalid file may request more layers than a
/// list can hold.
pub fn all(config: &DecoderConfig) -> impl Iterator<Item = ParamShape> + '_ {
    of_layers(config, 0..config.layers)
}

/// Does the same for consecutive layers on a separate device. The first layer includes the embedding; the last one includes the last norm and the
/// head.
pub fn of_layers(config: &DecoderConfig, layers: Range<usize>) -> impl Iterator<Item = ParamShape> + '_ {
    let (first, last) = (layers.start == 0, layers.end == config.layers);
    let entry = if first { before(config) } else { Vec::new() };
    let exit = if last { behind(config) } else { Vec::new() };
    let copy = if last && !first { copy(config) } else { None };
    entry.into_iter().chain(layers.flat_map(|i| block(config, i))).chain(exit).chain(copy)
}

impl DecoderConfig {
    /// Returns the parameters, in order of creation.
    pub fn shapes(&self) -> impl Iterator<Item = ParamShape> + '_ {
        all(self)
    }

    /// Returns the parameters of a device with these layers. The first layer includes the embedding; the last one includes the last norm and the
    /// head. For a tied model whose embedding is elsewhere, the head is a copy of it ([`ParamShape::is_copy`]).
    pub fn shapes_of(&self, layers: Range<usize>) -> impl Iterator<Item = ParamShape> + '_ {
        of_layers(self, layers)
    }

    /// Returns the parameters before the layers.
    pub fn entry_shapes(&self) -> Vec<ParamShape> {
        before(self)
    }

    /// Returns the parameters of layer `i`.
    pub fn block_shapes(&self, i: usize) -> Vec<ParamShape> {
        block(self, i)
    }

    /// Returns the parameters after the layers.
    pub fn exit_shapes(&self) -> Vec<ParamShape> {
        behind(self)
    }

    /// Returns the number of elements of all parameters, with a tied head counted once; saturating.
    pub fn parameters(&self) -> usize {
        let count = |shapes: Vec<ParamShape>| {
            shapes.iter().fold(0usize, |sum, shape| sum.saturating_add(shape.count()))
        };
        let blocks = self.over_layers(|i| count(block(self, i)));
        blocks.saturating_add(count(outside(self)))
    }
}
