//! A decoder's weights in the layout of its family's files.

use super::shapes::ParamShape;
use super::{Decoder, DecoderConfig};
use crate::checkpoint::{Dtype, TensorData, TensorView};
use netcl_tensor::{DType, Error, Result, counted};
use std::collections::HashMap;

fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::F32 => Dtype::F32,
    }
}

/// Rows of `of` bytes each from the order (part, head, d) to (head, part, d), or back.
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
    /// Shape of a tensor of the file that holds `rows` rows of this parameter.
    fn piece_dims(&self, rows: usize) -> Vec<usize> {
        let rest = self.dims.get(1..).unwrap_or_default();
        [&[rows], rest].concat()
    }
    /// Elements of a row.
    fn row(&self) -> usize {
        self.dims.get(1..).unwrap_or_default().iter().product()
    }
}

/// The weights, a tensor for each of the file.
pub(super) fn state(decoder: &Decoder) -> Result<Vec<TensorData>> {
    let mut out = Vec::new();
    for (shape, parameter) in decoder.shapes.iter().zip(decoder.params.list()) {
        let of = shape.row() * parameter.dtype().size();
        let bytes = parameter.to_bytes()?;
        let bytes = match shape.by_head {
            Some(heads) => reorder(&bytes, of, heads, true),
            None => bytes,
        };
        let mut rest = &bytes[..];
        for (name, rows) in &shape.pieces {
            let (piece, behind) = rest.split_at(rows * of);
            rest = behind;
            out.push(TensorData {
                name: name.clone(),
                dtype: file_dtype(parameter.dtype()),
                shape: shape.piece_dims(*rows),
                bytes: piece.to_vec(),
            });
        }
    }
    Ok(out)
}

/// The tensors of a file that each parameter is made of. Every tensor has to be one of the model's.
pub(super) fn matched<'a>(
    config: &DecoderConfig,
    shapes: &[ParamShape],
    tensors: &[TensorView<'a>],
) -> Result<Vec<Vec<TensorView<'a>>>> {
    let names = config.family.names;
    let mut left: HashMap<&str, TensorView<'a>> = tensors.iter().map(|t| (t.name, *t)).collect();
    let mut parts = Vec::with_capacity(shapes.len());
    for shape in shapes {
        let mut found = Vec::with_capacity(shape.pieces.len());
        for (name, rows) in &shape.pieces {
            let bare = name.strip_prefix(names.prefix).unwrap_or(name);
            let tensor = left.remove(name.as_str()).or_else(|| left.remove(bare));
            let tensor = tensor.ok_or_else(|| Error::format(format!("the weights have no tensor {name}")))?;
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
        parts.push(found);
    }
    let head = format!("{}.weight", names.head);
    let tied = |name: &str| config.tied && name == head;
    let mut unknown: Vec<&str> = left
        .into_keys()
        .filter(|name| !tied(name) && !names.buffers.iter().any(|end| name.ends_with(end)))
        .collect();
    unknown.sort_unstable();
    match unknown[..] {
        [] => Ok(parts),
        [first, ..] => Err(Error::format(format!(
            "the weights have {} that a model of this config.json has not, the first is {first}",
            counted(unknown.len(), "tensor")
        ))),
    }
}

/// Takes weights over by name. All names, shapes and types are looked at before any weight is changed.
pub(super) fn load(decoder: &Decoder, tensors: &[TensorView<'_>]) -> Result<()> {
    let parts = matched(&decoder.config, &decoder.shapes, tensors)?;
    for ((shape, parameter), found) in decoder.shapes.iter().zip(decoder.params.list()).zip(parts) {
        let mut values = Vec::with_capacity(parameter.count());
        for tensor in found {
            values.extend(tensor.floats()?);
        }
        if let Some(heads) = shape.by_head {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let bytes = reorder(&bytes, shape.row() * 4, heads, false);
            values = bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        }
        parameter.set_f32(&values)?;
    }
    Ok(())
}
