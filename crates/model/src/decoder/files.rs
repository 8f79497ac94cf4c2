//! Conversion of a decoder's weights to and from the layout of its family's files.

use super::lister::ParamShape;
use super::shapes;
use super::{Decoder, DecoderConfig};
use crate::checkpoint::{Bytes, FileDtype, TensorToWrite, TensorView};
use netcl_tensor::{DType, Error, Result, Tensor};
use std::collections::BTreeMap;

fn file_dtype(dtype: DType) -> FileDtype {
    match dtype {
        DType::F16 => FileDtype::F16,
        DType::Bf16 => FileDtype::BF16,
        DType::I32 => FileDtype::I32,
        DType::U32 => FileDtype::U32,
        DType::Bool => FileDtype::BOOL,
        DType::F32 => FileDtype::F32,
    }
}

/// Reorders rows of `of` bytes from (part, head, d) to (head, part, d), or back.
fn reorder(rows: &[u8], of: usize, [heads, size]: [usize; 2], to_file: bool) -> Vec<u8> {
    let mut out = vec![0; rows.len()];
    for row in 0..3 * heads * size {
        let (part, head, d) = (row / (heads * size), row / size % heads, row % size);
        let other = (head * 3 + part) * size + d;
        let (from, to) = if to_file { (row, other) } else { (other, row) };
        out[to * of..(to + 1) * of].copy_from_slice(&rows[from * of..(from + 1) * of]);
    }
    out
}

impl ParamShape {
    /// Returns the shape of a tensor in the file with `rows` rows of this parameter.
    pub(super) fn piece_dims(&self, rows: usize) -> Vec<usize> {
        let width = self.dims.last().filter(|_| self.dims.len() > 1);
        [rows].into_iter().chain(width.copied()).collect()
    }
    /// Returns true if it contains the matrices of several experts.
    fn is_stacked(&self) -> bool {
        self.dims.len() > 2
    }
    /// Returns the number of elements of a row.
    fn row(&self) -> usize {
        self.dims.get(1..).unwrap_or_default().iter().product()
    }
}

/// Bias vectors that files of the family always contain although this model has none: name and length.
fn absent_biases(config: &DecoderConfig, shape: &ParamShape) -> Option<(String, usize)> {
    let names = config.family.names;
    let tables = [names.embedding, names.positions].map(|table| format!("{}{table}.weight", names.prefix));
    let outside = tables.contains(&shape.name) || shape.name == format!("{}.weight", names.head);
    let missing = names.always_biases && !config.norm.bias && !outside;
    let stem = shape.name.strip_suffix(".weight").filter(|_| missing)?;
    Some((format!("{stem}.bias"), *shape.dims.last()?))
}

/// Returns the number of rows of a parameter: the product of all axes except the last.
fn matrix(x: &Tensor) -> Result<Tensor> {
    match x.dims() {
        [_, _, _, ..] => x.reshape([x.shape().rows_cols().0, x.shape().last()]),
        _ => Ok(x.clone()),
    }
}

/// Returns the weights as the tensors of a file; each is copied from the device when its bytes are requested.
pub(super) fn state(decoder: &Decoder) -> Vec<TensorToWrite<'static>> {
    let all = decoder.shapes.iter().zip(decoder.params.list());
    tensors_of(&decoder.config, all.filter(|(shape, _)| !shape.is_copy(&decoder.config)))
}

/// Does the same for these parameters.
pub(super) fn tensors_of<'a>(
    config: &DecoderConfig,
    parameters: impl Iterator<Item = (&'a ParamShape, &'a Tensor)>,
) -> Vec<TensorToWrite<'static>> {
    let mut out = Vec::new();
    for (shape, parameter) in parameters {
        let dtype = parameter.dtype();
        let mut data = |name: &str, shape: Vec<usize>, bytes: Box<dyn Fn() -> Result<Vec<u8>>>| {
            let (name, bytes) = (name.to_owned(), Bytes::Later(bytes));
            out.push(TensorToWrite { name, dtype: file_dtype(dtype), shape, bytes });
        };
        let mut start = 0;
        for (name, rows) in &shape.pieces {
            let whole: Tensor = parameter.detach();
            let (range, by_head, of) = (start..start + rows, shape.by_head, shape.row() * dtype.size());
            let bytes = move || match by_head {
                Some(heads) => Ok(reorder(&whole.to_bytes()?, of, heads, true)),
                None => matrix(&whole)?.slice(0, range.clone())?.to_bytes(),
            };
            data(name, shape.piece_dims(*rows), Box::new(bytes));
            start += rows;
        }
        if let Some((name, n)) = absent_biases(config, shape) {
            data(&name, vec![n], Box::new(move || Ok(vec![0; n * dtype.size()])));
        }
    }
    out
}

/// Refuses a bias with values if config.json says that the model does not have biases.
fn check_zero(bias: &TensorView<'_>) -> Result<()> {
    if bias.floats()?.iter().all(|v| *v == 0.0) {
        return Ok(());
    }
    let name = bias.name;
    Err(Error::format(format!(
        "{name} is not zero, though config.json says that the model does not have biases"
    )))
}

/// Assigns the tensors of a file to parameters. Every tensor must belong to the model.
pub(super) fn matched<'a>(
    config: &DecoderConfig,
    tensors: &[TensorView<'a>],
) -> Result<Vec<Vec<TensorView<'a>>>> {
    let prefix = config.family.names.prefix;
    let mut left: BTreeMap<&str, TensorView<'a>> = BTreeMap::new();
    for view in tensors {
        if left.insert(view.name, *view).is_some() {
            return Err(Error::format(format!("two tensors are named {}", view.name)));
        }
    }
    let folder = config.family.names.experts.map_or("mlp", |names| names.folder);
    let mut take = |name: &str| {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        left.remove(name).or_else(|| left.remove(bare)).or_else(|| {
            // The layout of `transformers` in memory.
            let other = name.replace(&format!(".{folder}."), ".mlp.");
            if other == name { None } else { left.remove(other.as_str()) }
        })
    };
    let names = config.family.names;
    let [table, head] = [format!("{prefix}{}.weight", names.embedding), format!("{}.weight", names.head)];
    let (mut parts, mut zeros) = (Vec::new(), Vec::new());
    for shape in shapes::all(config) {
        let mut found = Vec::with_capacity(shape.pieces.len());
        // A file may also contain the experts in the layout of memory.
        let whole = if shape.is_stacked() { take(&shape.name) } else { None };
        if let Some(tensor) = whole {
            if tensor.shape != shape.dims {
                return Err(Error::format(format!(
                    "{} has shape {:?}, expected {:?} by config.json",
                    tensor.name, tensor.shape, shape.dims
                )));
            }
            tensor.check_float()?;
            parts.push(vec![tensor]);
            continue;
        }
        for (name, rows) in &shape.pieces {
            // The table of a tied model may be stored only as its head.
            let head = (config.tied && *name == table).then_some(head.as_str());
            let tensor = take(name).or_else(|| take(head?)).ok_or_else(|| {
                Error::format(format!(
                    "the file does not contain the tensor {name}, which config.json requires"
                ))
            })?;
            let expected = shape.piece_dims(*rows);
            if tensor.shape != expected {
                return Err(Error::format(format!(
                    "{} has shape {:?}, expected {expected:?} by config.json",
                    tensor.name, tensor.shape
                )));
            }
            tensor.check_float()?;
            found.push(tensor);
        }
        zeros.extend(absent_biases(config, &shape).and_then(|(name, _)| take(&name)));
        parts.push(found);
    }
    zeros.iter().try_for_each(check_zero)?;
    check_left(config, &left, parts.first().and_then(|table| table.first()))?;
    Ok(parts)
}

impl DecoderConfig {
    /// Returns the tensors of a file for each of [`shapes`](Self::shapes): its pieces, or one tensor with all experts.
    ///
    /// # Errors
    /// `Format` with the name of a tensor that is missing, unknown, of another shape or not of a floating-point type.
    pub fn matched<'a>(&self, tensors: &[TensorView<'a>]) -> Result<Vec<Vec<TensorView<'a>>>> {
        matched(self, tensors)
    }
}

/// Whether an unused tensor of a file can be ignored: buffers in old files, and the second copy of a tied embedding.
fn check_left(
    config: &DecoderConfig,
    left: &BTreeMap<&str, TensorView<'_>>,
    table: Option<&TensorView<'_>>,
) -> Result<()> {
    let names = config.family.names;
    let head = format!("{}.weight", names.head);
    let mut unknown = Vec::new();
    for (name, view) in left {
        let is_buffer = |end: &&str| name.strip_suffix(end).is_some_and(|place| place.ends_with('.'));
        if names.buffers.iter().any(is_buffer) {
            continue;
        }
        if !config.tied || *name != head {
            unknown.push(*name);
            continue;
        }
        let facts = |view: &TensorView<'_>| (view.dtype, view.shape.to_vec());
        if !table.is_some_and(|table| facts(table) == facts(view) && table.bytes == view.bytes) {
            let table = format!("{}{}.weight", names.prefix, names.embedding);
            return Err(Error::format(format!(
                "{head} differs from {table}, though config.json ties them; for a model with a separate head, set \"tie_word_embeddings\": false"
            )));
        }
    }
    let Some(first) = unknown.first() else { return Ok(()) };
    let more = if unknown.len() > 1 { format!(" and {} more", unknown.len() - 1) } else { String::new() };
    Err(Error::format(format!(
        "{first}{more}: the model of config.json, which has {} layers, does not have a slot for it; correct config.json, or remove the tensor from the file",
        config.layers
    )))
}

/// Loads weights by name. All names, shapes and types are checked before any weight is changed.
pub(super) fn load(decoder: &Decoder, tensors: &[TensorView<'_>]) -> Result<()> {
    if decoder.params.block_bytes() > 0 {
        return Err(Error::unsupported(
            "decoder: its matrices are quantized blocks, which cannot be set from values",
        ));
    }
    let parts = matched(&decoder.config, tensors)?;
    // Match by the first tensor of a file: a part of a model has some of the tensors, and a copy of the embedding uses the embedding's.
    let first = |shape: &ParamShape| shape.pieces.first().map(|(name, _)| name.clone());
    let parts: BTreeMap<_, _> = shapes::all(&decoder.config).map(|shape| first(&shape)).zip(parts).collect();
    for (shape, parameter) in decoder.shapes.iter().zip(decoder.params.list()) {
        let found = parts.get(&first(shape)).ok_or_else(|| {
            Error::internal(format!("decoder: {} is not a parameter of its configuration", shape.name))
        })?;
        set(shape, parameter, found)?;
    }
    Ok(())
}

/// Sets a parameter from its tensors in a file.
pub(super) fn set(shape: &ParamShape, parameter: &Tensor, tensors: &[TensorView<'_>]) -> Result<()> {
    let mut values = Vec::with_capacity(parameter.count());
    for tensor in tensors {
        values.extend(tensor.floats()?);
    }
    if let Some(heads) = shape.by_head {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let bytes = reorder(&bytes, shape.row() * 4, heads, false);
        values = bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    }
    parameter.set_f32(&values)
}
