//! The optimizer state in several files with an index, in Hugging Face's layout for weights. A run whose state is sharded over ranks has one file per
//! rank. Every tensor is whole, so any number of ranks can read them.

use super::{FileSum, OPTIMIZER_FILE, TensorData, TensorToWrite, durable, tensors::write_planned};
use netcl_device::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// Name of the index, which maps tensors to files.
pub const OPTIMIZER_INDEX: &str = "optimizer.safetensors.index.json";

/// Returns true if this is the name of a file of the optimizer's state or of the index.
pub(super) fn is_of_optimizer(name: &str) -> bool {
    name == OPTIMIZER_FILE || name == OPTIMIZER_INDEX || is_part(name)
}

/// Returns true if this is the name of one of several files of the optimizer's state.
pub(super) fn is_part(name: &str) -> bool {
    let numbers = name.strip_prefix("optimizer-").and_then(|rest| rest.strip_suffix(".safetensors"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    numbers.and_then(|n| n.split_once("-of-")).is_some_and(|(i, n)| digits(i) && digits(n))
}

/// Writes the tensors into `dir`: to one file, or to `files` files with the index. Returns the checksum of each file.
pub(super) fn write(
    dir: &Path,
    tensors: &[TensorToWrite<'_>],
    files: usize,
    written: &AtomicU64,
) -> Result<Vec<(String, FileSum)>> {
    // No file is empty.
    let files = files.min(tensors.len());
    if files < 2 {
        let sum = write_planned(&dir.join(OPTIMIZER_FILE), tensors, written)?;
        return Ok(vec![(OPTIMIZER_FILE.into(), sum)]);
    }
    let total: u64 = tensors.iter().filter_map(TensorToWrite::size).sum();
    let (mut sums, mut map) = (Vec::new(), Map::new());
    let (mut rest, mut before) = (tensors, 0);
    for i in 0..files {
        let name = format!("optimizer-{:05}-of-{files:05}.safetensors", i + 1);
        // The number of tensors that is nearest to an equal share of the bytes, but at least one for this file and each file after it.
        let goal = total as u128 * (i as u128 + 1) / files as u128;
        let most = rest.len() - (files - i - 1);
        let mut count = 0;
        while count < most && (count == 0 || i + 1 == files || u128::from(before) < goal) {
            before += rest[count].size().unwrap_or(0);
            count += 1;
        }
        let (own, others) = rest.split_at(count);
        map.extend(own.iter().map(|tensor| (tensor.name.clone(), json!(name))));
        sums.push((name.clone(), write_planned(&dir.join(&name), own, written)?));
        rest = others;
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    let text =
        serde_json::to_vec_pretty(&index).map_err(|e| Error::internal(format!("{OPTIMIZER_INDEX}: {e}")))?;
    let sum = durable::write(&dir.join(OPTIMIZER_INDEX), written, |file| file.write_all(&text))?;
    sums.push((OPTIMIZER_INDEX.into(), sum));
    Ok(sums)
}

/// Checks that the files have the tensors in the index: `found` are those of each file.
pub(super) fn check(index: &[u8], found: &BTreeMap<String, Vec<TensorData>>) -> Result<()> {
    let wrong = |what: &str| Error::format(format!("{OPTIMIZER_INDEX}: {what}"));
    let json: Value = serde_json::from_slice(index).map_err(|e| wrong(&e.to_string()))?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| wrong("weight_map is missing, an object of tensor names and file names"))?;
    let all = found.iter().flat_map(|(file, tensors)| tensors.iter().map(move |t| (&t.name, file)));
    let mut count = 0;
    for (name, file) in all {
        count += 1;
        if map.get(name).and_then(Value::as_str) != Some(file) {
            return Err(wrong(&format!("{name} is in {file}, but the index does not list it there")));
        }
    }
    if count != map.len() {
        return Err(wrong("it names tensors that no file contains"));
    }
    Ok(())
}
