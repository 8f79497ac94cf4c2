//! `state.json`: where a run stands, and the sums that tell a whole checkpoint from a damaged one.

use super::{FileSum, STATE_FILE, durable, verified::Verified};
use crate::data::Position;
use netcl_device::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fs, io::Read, path::Path, sync::atomic::AtomicU64};

/// Raised when an older netcl could misread what a newer one writes.
const FORMAT: u32 = 1;
/// Stands in the text while it is summed, then replaced by the sum.
const NO_SEAL: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const SEAL_KEY: &str = "\"seal\": \"";
/// No state is as long.
const MAX_BYTES: u64 = 64 << 20;

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// BLAKE3 of this file with zeros here. Filled in when it is saved.
    pub(super) seal: String,
    /// Version of the layout. Filled in when it is saved.
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// The next batch.
    pub position: Position,
    /// Random numbers other than the data's.
    pub rng: Rng,
    /// Validation loss of these weights, where they were evaluated.
    pub val_loss: Option<f64>,
    /// Lowest validation loss of the run so far.
    pub best_loss: Option<f64>,
    /// The step that had it.
    pub best_step: Option<u64>,
    /// What else the training loop wants back.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// Size and sum of every other file of the checkpoint. Filled in when it is saved.
    pub files: BTreeMap<String, FileSum>,
}

/// A counter-based generator: the key, and the next counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rng {
    /// The key.
    pub seed: u64,
    /// Numbers drawn.
    pub counter: u64,
}

impl State {
    /// Writes `state.json` into `dir`, sealed.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let open = Self { seal: NO_SEAL.into(), format: FORMAT, ..self.clone() };
        let text =
            serde_json::to_string_pretty(&open).map_err(|e| Error::internal(format!("{STATE_FILE}: {e}")))?;
        let sealed = text.replacen(NO_SEAL, blake3::hash(text.as_bytes()).to_hex().as_str(), 1);
        durable::write(&dir.join(STATE_FILE), &AtomicU64::new(0), |file| file.write_all(sealed.as_bytes()))
            .map(drop)
    }

    /// The state of the checkpoint in `dir`, of which every file is as it was written. `Format` names what is not.
    pub fn verify(dir: &Path) -> Result<Self> {
        let state = Self::read(dir)?;
        for (name, sum) in &state.files {
            Verified::open(dir, name, sum)?.check()?;
        }
        Ok(state)
    }

    /// The text alone, sealed as it was written.
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
        let text = String::from_utf8(bytes).map_err(|_| wrong("is damaged: it is no text"))?;
        let state: Self =
            serde_json::from_str(&text).map_err(|e| wrong(&format!("is truncated or damaged: {e}")))?;
        if state.format > FORMAT {
            return Err(wrong(&format!(
                "has format {}, this netcl knows up to {FORMAT}; use the netcl that wrote it",
                state.format
            )));
        }
        // The text decides, not the values: so every flipped bit counts.
        let sealed = format!("{SEAL_KEY}{}", state.seal);
        let open = text.replacen(&sealed, &format!("{SEAL_KEY}{NO_SEAL}"), 1);
        if blake3::hash(open.as_bytes()).to_hex().as_str() != state.seal {
            return Err(wrong("is damaged: its checksum is not the one it was written with"));
        }
        Ok(state)
    }
}
