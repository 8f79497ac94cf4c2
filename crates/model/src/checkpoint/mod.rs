//! Checkpoints: complete or absent, verified before use, in the layout that `transformers` opens.
//!
//! ```text
//! checkpoints/
//! ├── last → step-00001000          a symbolic link (on systems other than Unix a file with the name)
//! ├── best → step-00000750
//! └── step-00001000/
//!     ├── config.json  generation_config.json  tokenizer.json  tokenizer_config.json
//!     ├── modules.json  1_Pooling/config.json    of a model of sentence-transformers
//!     ├── model.safetensors       for a run that trains adapters: adapter_config.json and adapter_model.safetensors, as PEFT writes them
//!     ├── optimizer.safetensors    of a run whose state is divided: optimizer-00001-of-00002.safetensors, …, and optimizer.safetensors.index.json
//!     ├── data.json                 names, sizes and checksums of the training files
//!     └── state.json                step, random numbers, data position, best loss, BLAKE3 of every other file
//! ```
//!
//! A checkpoint is written into `step-….tmp-<pid>-<n>` with each file synced, and then renamed. A crash at any time leaves earlier checkpoints
//! unchanged. [`Store::latest`] verifies sizes and checksums, reports damaged checkpoints, and falls back to earlier ones.

pub mod durable;
mod parts;
mod state;
mod store;
mod tensors;
mod verified;
mod weights;
mod writing;

pub use durable::FileSum;
pub use parts::OPTIMIZER_INDEX;
pub use safetensors::Dtype as FileDtype;
pub use state::{Position, Rng, State};
pub use store::{Latest, Store};
pub use tensors::{Bytes, TensorData, TensorToWrite, TensorView, read_tensors, write_planned, write_tensors};
pub use weights::{INDEX_FILE, WeightFiles};
pub use writing::Writing;

use netcl_device::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use verified::Verified;

/// The weights.
pub const MODEL_FILE: &str = "model.safetensors";
/// The settings of adapters in PEFT's format; a checkpoint with this file has adapters instead of the weights.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
/// The tensors of adapters.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";
/// The optimizer's state.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Position of the run and checksums of the other files.
pub const STATE_FILE: &str = "state.json";

/// A checkpoint in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Step, data position, losses; `files` is filled in when it is saved.
    pub state: State,
    /// The weights, by their Hugging Face names; of adapters, by PEFT's.
    pub model: Vec<TensorData>,
    /// The optimizer's tensors.
    pub optimizer: Vec<TensorData>,
    /// Number of files for it, if more than one.
    pub optimizer_files: usize,
    /// Further files: name and content.
    pub files: Vec<(String, Vec<u8>)>,
}

/// A checkpoint to be written; its tensors may still be on the device.
pub struct Plan<'a> {
    /// Step, position, losses.
    pub state: State,
    /// The weights.
    pub model: Vec<TensorToWrite<'a>>,
    /// The optimizer's tensors.
    pub optimizer: Vec<TensorToWrite<'a>>,
    /// Number of files for it, if more than one.
    pub optimizer_files: usize,
    /// Further files: name and content.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Plan<'_> {
    /// Total size of tensors and files in bytes.
    pub fn size(&self) -> u64 {
        let tensors = self.model.iter().chain(&self.optimizer).filter_map(TensorToWrite::size);
        tensors.chain(self.files.iter().map(|(_, content)| content.len() as u64)).sum()
    }

    /// Copies the checkpoint to host memory, so that later changes do not affect it.
    pub fn take(&self) -> Result<Checkpoint> {
        let take =
            |tensors: &[TensorToWrite<'_>]| tensors.iter().map(TensorToWrite::take).collect::<Result<_>>();
        Ok(Checkpoint {
            state: self.state.clone(),
            model: take(&self.model)?,
            optimizer: take(&self.optimizer)?,
            optimizer_files: self.optimizer_files,
            files: self.files.clone(),
        })
    }
}

impl<'a> From<&'a Checkpoint> for Plan<'a> {
    fn from(c: &'a Checkpoint) -> Self {
        let planned = |tensors: &'a [TensorData]| tensors.iter().map(TensorToWrite::from).collect();
        Self {
            state: c.state.clone(),
            model: planned(&c.model),
            optimizer: planned(&c.optimizer),
            optimizer_files: c.optimizer_files,
            files: c.files.clone(),
        }
    }
}

impl Checkpoint {
    /// Reads and verifies the checkpoint in `dir`. Every file is read once, so the loaded bytes are the verified ones. `Format` with the name of
    /// the file that is missing, truncated or changed.
    pub fn load(dir: &Path) -> Result<Self> {
        let state = State::read(dir)?;
        let mut model = Vec::new();
        let mut optimizer = Vec::new();
        let mut files = Vec::new();
        let (mut parts, mut index) = (BTreeMap::new(), None);
        for (name, sum) in &state.files {
            let file = Verified::open(dir, name, sum)?;
            match name.as_str() {
                MODEL_FILE | ADAPTER_FILE => model = file.tensors()?,
                OPTIMIZER_FILE => optimizer = file.tensors()?,
                OPTIMIZER_INDEX => index = Some(file.bytes()?),
                part if parts::is_part(part) => drop(parts.insert(name.clone(), file.tensors()?)),
                _ => files.push((name.clone(), file.bytes()?)),
            }
        }
        if index.is_some() || !parts.is_empty() {
            parts::check(index.as_deref().unwrap_or_default(), &parts)?;
        }
        let optimizer_files = parts.len();
        optimizer.extend(parts.into_values().flatten());
        Ok(Self { state, model, optimizer, optimizer_files, files })
    }

    /// Returns the content of one of `files`. `Format` if the name is unknown.
    pub fn file(&self, name: &str) -> Result<&[u8]> {
        let found = self.files.iter().find(|(other, _)| other == name);
        found
            .map(|(_, content)| &**content)
            .ok_or_else(|| Error::format(format!("the checkpoint lacks {name}")))
    }
}

#[cfg(test)]
mod tests;
