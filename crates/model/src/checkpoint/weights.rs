//! The weights of a model folder: one safetensors file, or several with an index, memory-mapped without a copy.

use super::{FileDtype, MODEL_FILE, TensorView};
use netcl_device::{Error, MappedFile, Result, files::plain_name, quote_path};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Name of the index, which maps tensors to files if there are several.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// Names of pickled weights. Pickles can execute code and are never read.
const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// Location of a tensor's bytes in a file.
struct Entry {
    name: String,
    dtype: FileDtype,
    shape: Vec<usize>,
    file: usize,
    bytes: std::ops::Range<usize>,
}

/// Mapped files and their tensors.
pub struct WeightFiles {
    maps: Vec<MappedFile>,
    entries: Vec<Entry>,
}

impl WeightFiles {
    /// Opens the weights of the model in `dir`; reads only headers.
    ///
    /// # Errors
    /// `Io` or `Format` with the name of the missing or invalid file; `Unsupported` for pickled weights, with the command to convert
    /// them.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut all = Self { maps: Vec::new(), entries: Vec::new() };
        let (single, index) = (dir.join(MODEL_FILE), dir.join(INDEX_FILE));
        if single.exists() || !index.exists() {
            if let (false, Some(pickle)) = (single.exists(), PICKLES.iter().find(|p| dir.join(p).exists())) {
                return Err(convert(dir, pickle));
            }
            all.add(&single)?;
            return Ok(all);
        }
        let expected = read_index(&index)?;
        for file in expected.values().collect::<BTreeSet<_>>() {
            let before = all.entries.len();
            all.add(&dir.join(file))?;
            for entry in &all.entries[before..] {
                if expected.get(&entry.name) != Some(file) {
                    return Err(Error::format(format!(
                        "{}: {} is in {file}, but the index does not list it there",
                        index.display(),
                        entry.name
                    )));
                }
            }
        }
        let found: BTreeSet<&str> = all.entries.iter().map(|e| e.name.as_str()).collect();
        match expected.iter().find(|(name, _)| !found.contains(name.as_str())) {
            Some((name, file)) => {
                Err(Error::format(format!("{}: {file} does not contain the tensor {name}", index.display())))
            }
            None => Ok(all),
        }
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let map = MappedFile::open(path)?;
        let wrong = |what: &dyn std::fmt::Display| {
            Error::format(format!("{}: not a complete safetensors file: {what}", path.display()))
        };
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| wrong(&e))?;
        // The header follows its length, which takes 8 bytes.
        let data =
            header.checked_add(8).filter(|start| *start <= map.len()).ok_or_else(|| wrong(&"no data"))?;
        for (name, info) in metadata.tensors() {
            let (from, to) = info.data_offsets;
            let inside =
                from.checked_add(data).zip(to.checked_add(data)).filter(|(a, b)| a <= b && *b <= map.len());
            let (from, to) = inside.ok_or_else(|| wrong(&format!("{name} is outside of it")))?;
            self.entries.push(Entry {
                name,
                dtype: info.dtype,
                shape: info.shape.clone(),
                file: self.maps.len(),
                bytes: from..to,
            });
        }
        self.maps.push(map);
        Ok(())
    }

    /// Returns the same tensors under other names; those without a new name are omitted.
    #[must_use]
    pub fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        self.entries.retain_mut(|entry| {
            let new = name(&entry.name);
            new.is_some_and(|new| {
                entry.name = new;
                true
            })
        });
        self
    }

    /// Returns all tensors.
    pub fn tensors(&self) -> Vec<TensorView<'_>> {
        self.entries.iter().map(|entry| self.view(entry)).collect()
    }

    /// Describes the first tensor with a NaN or an infinity; `None` if all numbers are finite. Reads all weights.
    ///
    /// # Errors
    /// `Format` for a truncated tensor.
    pub fn not_finite(&self) -> Result<Option<String>> {
        for tensor in self.tensors() {
            if tensor.check_float().is_err() {
                continue;
            }
            let values = tensor.floats()?;
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let (value, all) = (values[at], values.len());
                return Ok(Some(format!("the tensor {} has {value} (element {at} of {all})", tensor.name)));
            }
        }
        Ok(None)
    }

    fn view<'a>(&'a self, entry: &'a Entry) -> TensorView<'a> {
        let bytes = self.maps[entry.file].get(entry.bytes.clone()).unwrap_or_default();
        TensorView { name: &entry.name, dtype: entry.dtype, shape: &entry.shape, bytes }
    }
}

/// Maps tensor names to file names. Files must be in the folder of the index; other paths are rejected.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let wrong = |what: String| Error::format(format!("{}: {what}", path.display()));
    let text = netcl_device::files::read_text(path).map_err(|e| Error::io("reading", path, &e))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let Some(map) = json.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()) else {
        return Err(wrong("weight_map is missing, an object of tensor names and file names".into()));
    };
    let mut files = BTreeMap::new();
    for (name, file) in map {
        let file = file.as_str().unwrap_or_default();
        if plain_name(file).is_err() || !file.ends_with(".safetensors") {
            return Err(wrong(format!(
                "{name} is in {file:?}, expected the name of a .safetensors file in this folder"
            )));
        }
        files.insert(name.clone(), file.to_owned());
    }
    Ok(files)
}

fn convert(dir: &Path, pickle: &str) -> Error {
    let path: PathBuf = dir.join(pickle);
    Error::unsupported(format!(
        "{}: pickles are programs, so netcl does not read them; with the `transformers` package, this writes model.safetensors next to it: python \
         -c \"import sys; from transformers import AutoModelForCausalLM as M; M.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])\" {}",
        path.display(),
        quote_path(dir)
    ))
}
