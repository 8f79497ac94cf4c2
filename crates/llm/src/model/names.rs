//! Maps tensors between GGUF's and Hugging Face's names, with the conversion of their elements. The mapping follows from the names of the family
//! ([`netcl_model::decoder::Names`]) and a short list for all architectures.
//!
//! Conversions are rows of heads in pairs, transposed matrices, norms greater by one, and experts in one tensor.

use super::architecture::Architecture;
use netcl_model::decoder::{DecoderConfig, Placement};
use netcl_tensor::{Error, Result};

/// Conversion between a GGUF tensor and its Hugging Face tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Rows of this many heads: the rows of a head are in halves in Hugging Face's files and in pairs in GGUF's.
    Pairs(usize),
    /// Rows of queries, keys and values of this many heads: by head in Hugging Face's files (GPT-NeoX), all queries before all keys in GGUF's.
    Heads(usize),
    /// Transposed, as in GPT-2's files.
    Transposed,
    /// GGUF's values are greater by one (Gemma's norms).
    PlusOne,
}

/// A tensor of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Its name there.
    pub name: String,
    /// Lengths of its axes in GGUF, outermost first.
    pub dims: Vec<usize>,
    /// Its names in Hugging Face's files: one, or one per expert.
    pub files: Vec<String>,
    /// Axis lengths of each of those.
    pub file_dims: Vec<usize>,
    /// On the way.
    pub change: Change,
}

/// Names outside and inside blocks, without `.weight` and `.bias`.
struct Table {
    outside: Vec<(String, &'static str)>,
    inside: Vec<(String, &'static str)>,
    layer: String,
    experts: Option<(String, [&'static str; 3])>,
}

impl Table {
    fn of(config: &DecoderConfig) -> Self {
        let names = config.family.names;
        let prefixed = |name: &str| format!("{}{name}", names.prefix);
        let outside = vec![
            (prefixed(names.embedding), "token_embd"),
            (prefixed(names.positions), "position_embd"),
            (prefixed(names.last_norm), "output_norm"),
            (names.head.to_owned(), "output"),
        ];
        let mut inside = vec![(names.out, "attn_output"), (names.down, "ffn_down")];
        let qkv = if names.qkv.len() == 1 { &["attn_qkv"][..] } else { &["attn_q", "attn_k", "attn_v"] };
        let up = if names.up.len() == 1 { &["ffn_up"][..] } else { &["ffn_gate", "ffn_up"] };
        inside.extend(names.qkv.iter().copied().zip(qkv.iter().copied()));
        inside.extend(names.up.iter().copied().zip(up.iter().copied()));
        inside.extend(names.qk_norms.iter().copied().zip(["attn_q_norm", "attn_k_norm"]));
        if config.placement != Placement::Post {
            inside.extend(names.pre_norms.iter().copied().zip(["attn_norm", "ffn_norm"]));
        }
        if config.placement != Placement::Pre {
            inside.extend(names.post_norms.iter().copied().zip(["post_attention_norm", "post_ffw_norm"]));
        }
        let mut inside: Vec<(String, &str)> = inside.into_iter().map(|(a, b)| (a.to_owned(), b)).collect();
        inside.extend(names.experts.map(|e| (format!("{}.gate", e.folder), "ffn_gate_inp")));
        let experts = names.experts.map(|e| (format!("{}.experts.", e.folder), e.maps));
        Self { outside, inside, layer: prefixed(names.layer), experts }
    }

    /// Returns GGUF's name of a tensor, and whether it belongs to a block.
    fn name(&self, file: &str) -> Option<(String, bool)> {
        let (stem, end) = file.rsplit_once('.')?;
        if let Some((_, name)) = self.outside.iter().find(|(known, _)| known == stem) {
            return Some((format!("{name}.{end}"), false));
        }
        let (layer, rest) = stem.strip_prefix(&self.layer)?.split_once('.')?;
        let found = self.inside.iter().find(|(known, _)| known == rest).map(|(_, name)| *name);
        let expert = || {
            let (folder, maps) = self.experts.as_ref()?;
            let (_, map) = rest.strip_prefix(folder.as_str())?.split_once('.')?;
            let at = maps.iter().position(|known| *known == map)?;
            ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"].get(at).copied()
        };
        Some((format!("blk.{layer}.{}.{end}", found.or_else(expert)?), true))
    }
}

/// Returns all tensors of a model in a GGUF file except for rotary factors, in layer order.
///
/// # Errors
/// `Unsupported` for a model with parameters without a name in the format.
pub fn placed(config: &DecoderConfig, architecture: &Architecture) -> Result<Vec<Placed>> {
    let (table, a) = (Table::of(config), &config.attention);
    let mut out: Vec<Placed> = Vec::new();
    for shape in config.shapes() {
        let first = out.len();
        for (file, rows) in &shape.pieces {
            let Some((name, inside)) = table.name(file) else {
                return Err(Error::unsupported(format!(
                    "GGUF files cannot store {file} of a {} model",
                    config.family.model_type
                )));
            };
            let width = shape.dims.last().copied().filter(|_| shape.dims.len() > 1);
            let file_dims: Vec<usize> = [*rows].into_iter().chain(width).collect();
            // Experts of one projection are consecutive, with those of other projections in between.
            if let Some(stack) = out[first..].iter_mut().find(|placed| placed.name == name) {
                stack.files.push(file.clone());
                continue;
            }
            let is = |start: &str| name.contains(&format!(".{start}."));
            let change = if architecture.interleaved && is("attn_q") {
                Change::Pairs(a.heads)
            } else if architecture.interleaved && is("attn_k") {
                Change::Pairs(a.kv_heads)
            } else if let Some([heads, _]) = shape.by_head {
                Change::Heads(heads)
            } else if config.family.names.transposed && inside && file_dims.len() == 2 {
                Change::Transposed
            } else if config.norm.unit_offset && name.ends_with("norm.weight") {
                Change::PlusOne
            } else {
                Change::None
            };
            let dims = if change == Change::Transposed {
                file_dims.iter().rev().copied().collect()
            } else {
                file_dims.clone()
            };
            out.push(Placed { name, dims, files: vec![file.clone()], file_dims, change });
        }
        if shape.dims.len() > 2 {
            for stack in &mut out[first..] {
                stack.dims.insert(0, stack.files.len());
            }
        }
    }
    Ok(out)
}

impl Change {
    /// Reorders the rows of a tensor: `rows` of `of` bytes each, to GGUF's order or back.
    fn rows(rows: &[u8], of: usize, heads: usize, to_gguf: bool) -> Vec<u8> {
        let mut out = vec![0; rows.len()];
        let count = rows.len() / of.max(1);
        let size = count / heads.max(1);
        for row in 0..count {
            let (head, at) = (row / size, row % size);
            // Row p of half h is row 2p + h of pairs.
            let other = head * size + 2 * (at % (size / 2)) + at / (size / 2);
            let (from, to) = if to_gguf { (row, other) } else { (other, row) };
            out[to * of..(to + 1) * of].copy_from_slice(&rows[from * of..(from + 1) * of]);
        }
        out
    }

    /// Reorders rows by head, each with a query's, a key's and a value's, to all queries, all keys, all values; or back.
    fn by_head(rows: &[u8], of: usize, heads: usize, to_gguf: bool) -> Vec<u8> {
        let mut out = vec![0; rows.len()];
        let count = rows.len() / of.max(1);
        let size = count / (3 * heads).max(1);
        for row in 0..3 * heads * size {
            let (head, part, at) = (row / (3 * size), row / size % 3, row % size);
            let other = (part * heads + head) * size + at;
            let (from, to) = if to_gguf { (row, other) } else { (other, row) };
            out[to * of..(to + 1) * of].copy_from_slice(&rows[from * of..(from + 1) * of]);
        }
        out
    }

    /// Transposes elements of `of` bytes each of a matrix of `dims`.
    fn transposed(bytes: &[u8], of: usize, dims: &[usize]) -> Vec<u8> {
        let [rows, columns] = dims else { return bytes.to_vec() };
        let mut out = vec![0; bytes.len()];
        for r in 0..*rows {
            for c in 0..*columns {
                let (from, to) = ((r * columns + c) * of, (c * rows + r) * of);
                out[to..to + of].copy_from_slice(&bytes[from..from + of]);
            }
        }
        out
    }

    /// Converts a tensor's bytes to GGUF's order, with rows of `row` bytes and elements of `element` bytes.
    pub fn to_gguf(self, bytes: &[u8], [row, element]: [usize; 2], dims: &[usize]) -> Vec<u8> {
        match self {
            Self::Pairs(heads) => Self::rows(bytes, row, heads, true),
            Self::Heads(heads) => Self::by_head(bytes, row, heads, true),
            Self::Transposed => Self::transposed(bytes, element, dims),
            Self::None | Self::PlusOne => bytes.to_vec(),
        }
    }

    /// Converts back; `dims` are those in the GGUF file.
    pub fn to_file(self, bytes: &[u8], [row, element]: [usize; 2], dims: &[usize]) -> Vec<u8> {
        match self {
            Self::Pairs(heads) => Self::rows(bytes, row, heads, false),
            Self::Heads(heads) => Self::by_head(bytes, row, heads, false),
            Self::Transposed => Self::transposed(bytes, element, dims),
            Self::None | Self::PlusOne => bytes.to_vec(),
        }
    }
}
