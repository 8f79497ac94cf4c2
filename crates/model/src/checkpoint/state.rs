//! `state.json`: the position of a run, and the checksums by which a damaged checkpoint is detected.

use super::{FileSum, STATE_FILE, durable, verified::Verified};
use netcl_device::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fs, io::Read, path::Path, sync::atomic::AtomicU64};

/// Format version; raised when older versions of netcl could misread a file.
const FORMAT: u32 = 1;
/// Placeholder for the checksum while the text is hashed.
const NO_SEAL: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const SEAL_KEY: &str = "\"seal\": \"";
/// Largest plausible size of the file.
const MAX_BYTES: u64 = 64 << 20;

/// Position of a run in its data; part of the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The run's seed.
    pub seed: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Batches done of the current step, below `grad_accum`.
    pub micro: u32,
}

/// Position of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// BLAKE3 of this file with zeros here. Filled in when it is saved.
    pub(super) seal: String,
    /// Version of the layout. Filled in when it is saved.
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Position of the next batch in the data.
    pub position: Position,
    /// Random generator for everything except the data.
    pub rng: Rng,
    /// Validation loss of these weights, if they were evaluated.
    pub val_loss: Option<f64>,
    /// Lowest validation loss of the run so far.
    pub best_loss: Option<f64>,
    /// The step of that loss.
    pub best_step: Option<u64>,
    /// Further state of the training loop.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// Size and checksum of every other file of the checkpoint. Filled in when it is saved.
    pub files: BTreeMap<String, FileSum>,
}

/// A counter-based random generator: key and next counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rng {
    /// The key.
    pub seed: u64,
    /// Count of numbers drawn.
    pub counter: u64,
}

impl State {
    /// Writes `state.json` with its checksum into `dir`.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let open = Self { seal: NO_SEAL.into(), format: FORMAT, ..self.clone() };
        let text =
            serde_json::to_string_pretty(&open).map_err(|e| Error::internal(format!("{STATE_FILE}: {e}")))?;
        let sealed = text.replacen(NO_SEAL, blake3::hash(text.as_bytes()).to_hex().as_str(), 1);
        durable::write(&dir.join(STATE_FILE), &AtomicU64::new(0), |file| file.write_all(sealed.as_bytes()))
            .map(drop)
    }

    /// Reads the state of the checkpoint in `dir` and verifies all its files. `Format` with the name of a changed file.
    pub fn verify(dir: &Path) -> Result<Self> {
        let state = Self::read(dir)?;
        for (name, sum) in &state.files {
            Verified::open(dir, name, sum)?.check()?;
        }
        Ok(state)
    }

    /// Reads and verifies only `state.json`.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(STATE_FILE);
        let wrong = |what: &str| Error::format(format!("{} {what}", path.display()));
        if !path.is_file() {
            return Err(wrong("is missing"));
        }
        let mut bytes = Vec::new();
        let file = fs::File::open(&path).map_err(|e| Error::io("reading", &path, &e))?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| Error::io("reading", &path, &e))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(wrong("is damaged: it has more than 64 MiB"));
        }
        let text = String::from_utf8(bytes).map_err(|_| wrong("is damaged: it is not text"))?;
        let state: Self =
            serde_json::from_str(&text).map_err(|e| wrong(&format!("is truncated or damaged: {e}")))?;
        if state.format > FORMAT {
            return Err(wrong(&format!(
                "has format {}, this netcl supports up to {FORMAT}; use the netcl version that wrote it",
                state.format
            )));
        }
        // The text is hashed, not the values, so that every flipped bit is detected.
        let sealed = format!("{SEAL_KEY}{}", state.seal);
        let open = text.replacen(&sealed, &format!("{SEAL_KEY}{NO_SEAL}"), 1);
        if blake3::hash(open.as_bytes()).to_hex().as_str() != state.seal {
            return Err(wrong("is damaged: its checksum is wrong"));
        }
        Ok(state)
    }
}
