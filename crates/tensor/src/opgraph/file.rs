//! A graph of operations as one safetensors file: the weights are its tensors, and the metadata contain the rest.
//!
//! ```text
//! format   netcl-graph
//! schema   2
//! hash     BLAKE3 of `graph`
//! graph    JSON: inputs, weights with their hashes, operations with attributes, shapes and kernels, results
//! ```
//!
//! Any safetensors reader can read the weights. A weight's bytes are read, and its hash is checked, when the graph is first run.
//!
//! Schema 1 can also be read. The only difference is that its masks are 32-bit words (`U32`) instead of bytes (`BOOL`).

use super::json;
use super::spec::{Spec, WeightInfo};
use super::weights::{GraphWeights, hash};
use crate::{DType, Error, Result};
use netcl_device::{MappedFile, files};
use safetensors::{Dtype as FileDtype, SafeTensors};
use serde_json::{Map, Value as Json, json};
use std::path::Path;
use std::sync::Arc;

/// Value of the key `format`.
const FORMAT: &str = "netcl-graph";
/// The newest schema, which is also the one that is written.
pub const SCHEMA: u64 = 2;
/// The last schema with masks of 32-bit words.
const WORDS: u64 = 1;

/// Returns the type in a safetensors file.
fn file_dtype(dtype: DType, schema: u64) -> (FileDtype, &'static str) {
    match dtype {
        DType::Bool if schema > WORDS => (FileDtype::BOOL, "BOOL"),
        DType::F32 => (FileDtype::F32, "F32"),
        DType::F16 => (FileDtype::F16, "F16"),
        DType::Bf16 => (FileDtype::BF16, "BF16"),
        DType::I32 => (FileDtype::I32, "I32"),
        DType::U32 | DType::Bool => (FileDtype::U32, "U32"),
    }
}

/// Writes a temporary file and renames it.
pub(super) fn save(path: &Path, spec: &Spec, weights: &GraphWeights) -> Result<()> {
    let mut spec = spec.clone();
    let mut data = Vec::new();
    let mut header = Map::new();
    // Large elements come first, so that each tensor is aligned to its element size.
    let mut order: Vec<(usize, &mut WeightInfo)> = spec.weights.iter_mut().enumerate().collect();
    order.sort_by_key(|(_, info)| std::cmp::Reverse(info.dtype.size()));
    for (i, info) in order {
        let bytes = weights.bytes(i)?;
        info.hash = hash(&bytes);
        let (start, end) = (data.len(), data.len() + bytes.len());
        data.extend_from_slice(&bytes);
        let dtype = file_dtype(info.dtype, SCHEMA).1;
        let entry = json!({ "dtype": dtype, "shape": info.dims, "data_offsets": [start, end] });
        header.insert(info.name.clone(), entry);
    }
    let graph = json::write(&spec).to_string();
    let metadata = json!({ "format": FORMAT, "schema": SCHEMA.to_string(), "hash": hash(graph.as_bytes()), "graph": graph });
    header.insert("__metadata__".into(), metadata);
    let mut header = Json::Object(header).to_string();
    // The data start at a multiple of eight bytes.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut content = Vec::with_capacity(8 + header.len() + data.len());
    content.extend_from_slice(&(header.len() as u64).to_le_bytes());
    content.extend_from_slice(header.as_bytes());
    content.extend_from_slice(&data);
    files::replace(path, &content).map_err(|e| Error::io("writing", path, &e))
}

/// Reads the header. The weights are located in the file and read later.
pub(super) fn open(path: &Path) -> Result<(Spec, GraphWeights)> {
    let map = MappedFile::open(path)?;
    let named = |e: Error| e.context(path.display());
    let (spec, infos) = header(&map).map_err(named)?;
    Ok((spec, GraphWeights::in_file(path.to_owned(), &Arc::new(map), infos)))
}

type FoundWeights = Vec<(WeightInfo, std::ops::Range<usize>)>;

fn header(map: &[u8]) -> Result<(Spec, FoundWeights)> {
    let whole = |e: &dyn std::fmt::Display| Error::format(format!("not a whole safetensors file: {e}"));
    let (length, tensors) = SafeTensors::read_metadata(map).map_err(|e| whole(&e))?;
    let Some(metadata) = tensors.metadata().as_ref().filter(|m| m.get("format").is_some_and(|f| f == FORMAT))
    else {
        return Err(Error::format(
            "not a graph of operations: the metadata do not have the format netcl-graph",
        ));
    };
    let told = |name: &str| {
        metadata.get(name).ok_or_else(|| Error::format(format!("the metadata do not have {name}")))
    };
    let schema = told("schema")?;
    let schema = match schema.parse::<u64>() {
        Ok(known @ WORDS..=SCHEMA) => known,
        Ok(newer) if newer > SCHEMA => {
            return Err(Error::format(format!(
                "schema {newer} is newer than {SCHEMA}, the newest that this version of netcl reads; use the version that wrote the file, or a later one"
            )));
        }
        _ => {
            return Err(Error::format(format!(
                "schema {schema:?} does not exist, expected {WORDS} to {SCHEMA}"
            )));
        }
    };
    let graph = told("graph")?;
    if hash(graph.as_bytes()) != *told("hash")? {
        return Err(Error::format("graph: it is not what was saved (its hash differs)"));
    }
    let json: Json =
        serde_json::from_str(graph).map_err(|e| Error::format(format!("graph: invalid JSON: {e}")))?;
    let spec = json::read(&json).map_err(|e| e.context("graph"))?;
    let start = length.checked_add(8).filter(|s| *s <= map.len()).ok_or_else(|| whole(&"no data"))?;
    let mut found = FoundWeights::new();
    for (i, info) in spec.weights.iter().enumerate() {
        let Some(entry) = tensors.info(&info.name) else {
            return Err(Error::format(format!(
                "weights[{i}]: the file does not contain a tensor {:?}",
                info.name
            )));
        };
        let (from, to) = entry.data_offsets;
        let (dtype, _) = file_dtype(info.dtype, schema);
        let element = if dtype == FileDtype::U32 { DType::U32.size() } else { info.dtype.size() };
        let bytes = info.dims.iter().try_fold(element, |n, size| n.checked_mul(*size));
        let range = start.checked_add(from).zip(start.checked_add(to)).map(|(from, to)| from..to);
        let fits = range.filter(|r| r.start <= r.end && r.end <= map.len() && Some(r.len()) == bytes);
        let same = entry.shape == info.dims && entry.dtype == dtype;
        match fits.filter(|_| same) {
            Some(range) => found.push((info.clone(), range)),
            None => {
                return Err(Error::format(format!(
                    "weights[{i}]: tensor {:?} is {:?} {:?} in the file, but {} {:?} in the graph",
                    info.name, entry.dtype, entry.shape, info.dtype, info.dims
                )));
            }
        }
    }
    Ok((spec, found))
}
