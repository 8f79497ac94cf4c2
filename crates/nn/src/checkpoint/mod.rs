//! Checkpoints: complete or absent, verified before use, in the layout that `transformers` opens.
//!
//! ```text
//! checkpoints/
//! ├── last → step-00001000          a link (elsewhere than on Unix a file that holds the name)
//! ├── best → step-00000750
//! └── step-00001000/
//!     ├── config.json  generation_config.json  tokenizer.json  tokenizer_config.json
//!     ├── model.safetensors
//!     ├── optimizer.safetensors
//!     └── state.json                step, random numbers, data position, best loss, BLAKE3 of every other file
//! ```
//!
//! A checkpoint is written into `step-….tmp-<pid>`, each file synced, then renamed: a crash at any moment leaves the
//! earlier ones as they were. [`Store::latest`] checks sizes and sums, names what is wrong, and takes the one before.

mod durable;
mod state;
mod store;
mod tensors;
mod verified;
mod weights;

pub use safetensors::Dtype;
pub use state::{FileSum, Rng, State};
pub use store::{Latest, Store};
pub use tensors::{TensorData, TensorView, read_tensors, write_tensors};
pub use weights::{INDEX_FILE, WeightFiles};

use netcl_device::{Error, Result};
use std::path::Path;
use verified::Verified;

/// The weights.
pub const MODEL_FILE: &str = "model.safetensors";
/// The optimizer's moments.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// Everything else a run needs to go on.
pub const STATE_FILE: &str = "state.json";

/// A checkpoint in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Checkpoint {
    /// Step, position, losses; its `files` are filled in when it is saved.
    pub state: State,
    /// The weights, by their Hugging Face names.
    pub model: Vec<TensorData>,
    /// The optimizer's tensors.
    pub optimizer: Vec<TensorData>,
    /// The other files: name and content.
    pub files: Vec<(String, Vec<u8>)>,
}

impl Checkpoint {
    /// Reads and verifies the checkpoint in `dir`. Every file is read once, and what is loaded is what was verified. `Format` that
    /// names the file that is missing, cut or changed.
    pub fn load(dir: &Path) -> Result<Self> {
        let state = State::read(dir)?;
        let (mut model, mut optimizer, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for (name, sum) in &state.files {
            let file = Verified::open(dir, name, sum)?;
            match name.as_str() {
                MODEL_FILE => model = file.tensors()?,
                OPTIMIZER_FILE => optimizer = file.tensors()?,
                _ => files.push((name.clone(), file.bytes()?)),
            }
        }
        Ok(Self { state, model, optimizer, files })
    }

    /// The content of one of `files`. `Format` when there is none of that name.
    pub fn file(&self, name: &str) -> Result<&[u8]> {
        let found = self.files.iter().find(|(other, _)| other == name);
        found
            .map(|(_, content)| &**content)
            .ok_or_else(|| Error::format(format!("the checkpoint has no {name}")))
    }
}

#[cfg(test)]
mod tests;
