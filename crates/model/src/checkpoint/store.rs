//! The folder of checkpoints: saving, pruning, and finding the newest intact one.

use super::{
    ADAPTER_CONFIG, ADAPTER_FILE, Checkpoint, MODEL_FILE, Plan, STATE_FILE, State, durable, parts,
    tensors::write_planned,
};
use netcl_device::files::{self, Lock};
use netcl_device::{Error, Result};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

/// Part of the temporary names of [`files::temporary_sibling`]: a checkpoint being written or removed.
const TMP: &str = ".tmp-";
/// Suffix of a checkpoint that is being replaced; it is valid until the new one has its name.
const REPLACED: &str = ".replaced";
/// Suffix of checkpoints that were discarded because a run resumed from an earlier step.
const ABANDONED: &str = ".abandoned";

/// The `checkpoints` folder of a run. Changes by several threads and processes are serialized by a lock.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    keep: usize,
}

/// The newest intact checkpoint.
#[derive(Clone, Debug)]
pub struct Latest {
    /// Its folder.
    pub path: PathBuf,
    /// Its state.
    pub state: State,
    /// A message for each newer, damaged checkpoint: the file and the problem.
    pub warnings: Vec<String>,
}

impl Store {
    /// The store in `dir`, which need not exist. Saving keeps the `keep` newest checkpoints and the best one.
    pub fn new(dir: impl Into<PathBuf>, keep: usize) -> Self {
        Self { dir: dir.into(), keep: keep.max(1) }
    }

    /// Returns the path of the checkpoint of a step, whether it exists or not.
    pub fn path(&self, step: u64) -> PathBuf {
        self.dir.join(format!("step-{step:08}"))
    }

    /// Saves a checkpoint durably; `best` marks it as the best one. On an error (`Io` if the disk is full, for example) earlier checkpoints are
    /// unchanged and no incomplete one is left.
    pub fn save(&self, checkpoint: &Checkpoint, best: bool) -> Result<PathBuf> {
        self.save_planned(&checkpoint.into(), best, &AtomicU64::new(0))
    }

    /// Does the same for a checkpoint whose tensors may still be on the device; `written` counts the bytes.
    pub fn save_planned(&self, checkpoint: &Plan<'_>, best: bool, written: &AtomicU64) -> Result<PathBuf> {
        fs::create_dir_all(&self.dir).map_err(|e| Error::io("creating", &self.dir, &e))?;
        let _lock = Lock::of_folder(&self.dir)?;
        self.tidy()?;
        let path = self.path(checkpoint.state.step);
        let aside = files::temporary_sibling(&path);
        if let Err(error) = write_all(&aside, checkpoint, written) {
            // Leftovers that cannot be removed now are removed before the next save.
            let _ = fs::remove_dir_all(&aside);
            return Err(error);
        }
        let replaced = with_suffix(&path, REPLACED);
        let again = path.exists();
        if again {
            durable::rename(&path, &replaced)?;
        }
        durable::rename(&aside, &path)?;
        if again {
            remove(&replaced)?;
        }
        let name = name_of(&path);
        durable::point(&self.dir.join("last"), &name)?;
        if best {
            durable::point(&self.dir.join("best"), &name)?;
        }
        self.prune()?;
        Ok(path)
    }

    /// Returns the newest intact checkpoint; `None` without checkpoints. `Format` if all are damaged.
    pub fn latest(&self) -> Result<Option<Latest>> {
        let mut warnings = Vec::new();
        let all = self.list()?;
        for (_, path) in all.iter().rev() {
            match State::verify(path) {
                Ok(state) => return Ok(Some(Latest { path: path.clone(), state, warnings })),
                Err(error) => warnings.push(error.to_string()),
            }
        }
        if warnings.is_empty() {
            return Ok(None);
        }
        let warnings = warnings.join("; ");
        Err(Error::format(format!("{}: no checkpoint is intact: {warnings}", self.dir.display())))
    }

    /// Returns the best checkpoint, if there is one.
    pub fn best(&self) -> Option<PathBuf> {
        self.pointed("best")
    }

    /// Returns the checkpoint saved last, if there is one. [`latest`](Self::latest) also checks it.
    pub fn last(&self) -> Option<PathBuf> {
        // A process killed between renaming a checkpoint and updating the link leaves no link, or one to a missing name.
        self.pointed("last").or_else(|| self.list().ok()?.pop().map(|(_, path)| path))
    }

    /// Prepares for a resumption from `step`: later checkpoints, damaged or of a discarded continuation, are renamed with the suffix
    /// `.abandoned` and ignored from then on. `best_step` is the best of the remaining ones.
    pub fn rewind(&self, step: u64, best_step: Option<u64>) -> Result<()> {
        let _lock = if self.dir.exists() { Some(Lock::of_folder(&self.dir)?) } else { None };
        for (_, path) in self.list()?.into_iter().filter(|(later, _)| *later > step) {
            let aside = with_suffix(&path, ABANDONED);
            remove(&aside)?;
            durable::rename(&path, &aside)?;
        }
        for (pointer, target) in [("last", Some(step)), ("best", best_step)] {
            let dangling = self.pointed(pointer).is_none();
            let pointer = self.dir.join(pointer);
            match target.map(|step| self.path(step)).filter(|path| path.exists()) {
                Some(path) => durable::point(&pointer, &name_of(&path))?,
                None if dangling && pointer.symlink_metadata().is_ok() => {
                    fs::remove_file(&pointer).map_err(|e| Error::io("removing", &pointer, &e))?;
                }
                None => {}
            }
        }
        Ok(())
    }

    fn pointed(&self, pointer: &str) -> Option<PathBuf> {
        let name = durable::pointee(&self.dir.join(pointer))?;
        let path = self.dir.join(name);
        path.join(STATE_FILE).is_file().then_some(path)
    }

    /// Returns the step and folder of all checkpoints, oldest first; if a step has two, the replaced one first.
    fn list(&self) -> Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("reading", &self.dir, &e)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| Error::io("reading", &self.dir, &e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(step) = name.strip_prefix("step-") else { continue };
            let (digits, replaced) =
                step.strip_suffix(REPLACED).map_or((step, false), |digits| (digits, true));
            if digits.bytes().all(|byte| byte.is_ascii_digit())
                && let Ok(step) = digits.parse::<u64>()
            {
                found.push((step, !replaced, entry.path()));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(step, _, path)| (step, path)).collect())
    }

    /// Removes leftovers of an interrupted save and completes an interrupted replacement. The lock must be held.
    fn tidy(&self) -> Result<()> {
        for entry in fs::read_dir(&self.dir).map_err(|e| Error::io("reading", &self.dir, &e))? {
            let path = entry.map_err(|e| Error::io("reading", &self.dir, &e))?.path();
            let name = name_of(&path);
            if name.contains(TMP) {
                remove(&path)?;
            } else if let Some(whole) = name.strip_suffix(REPLACED) {
                let whole = self.dir.join(whole);
                if whole.exists() { remove(&path)? } else { durable::rename(&path, &whole)? }
            }
        }
        Ok(())
    }

    /// Removes all checkpoints except the newest, the best and the last. A failure is only logged, because the new checkpoint is already saved.
    fn prune(&self) -> Result<()> {
        let all = self.list()?;
        let kept = [self.best(), self.last()];
        let old = &all[..all.len().saturating_sub(self.keep)];
        for (_, path) in old.iter().filter(|(_, path)| !kept.contains(&Some(path.clone()))) {
            // Renamed first, so that a partially removed folder is not a checkpoint.
            let aside = files::temporary_sibling(path);
            if let Err(error) = durable::rename(path, &aside).and_then(|()| remove(&aside)) {
                tracing::warn!(%error, "cannot remove an old checkpoint");
            }
        }
        Ok(())
    }
}

fn write_all(dir: &Path, checkpoint: &Plan<'_>, written: &AtomicU64) -> Result<()> {
    // Never use an existing folder, which would belong to another process.
    fs::create_dir(dir).map_err(|e| Error::io("creating", dir, &e))?;
    let mut state = checkpoint.state.clone();
    state.files.clear();
    let mut folders = BTreeSet::new();
    for (name, content) in &checkpoint.files {
        let taken = [MODEL_FILE, ADAPTER_FILE, STATE_FILE].contains(&&**name) || parts::is_of_optimizer(name);
        if durable::name_of_file(name).is_err() || taken {
            return Err(Error::format(format!(
                "checkpoint: {name:?} cannot be the name of an additional file"
            )));
        }
        if let Some((folder, _)) = name.split_once('/') {
            let folder = dir.join(folder);
            fs::create_dir_all(&folder).map_err(|e| Error::io("creating", &folder, &e))?;
            folders.insert(folder);
        }
        let sum = durable::write(&dir.join(name), written, |file| file.write_all(content))?;
        state.files.insert(name.clone(), sum);
    }
    folders.iter().try_for_each(|folder| durable::sync_dir(folder))?;
    let adapters = checkpoint.files.iter().any(|(name, _)| name == ADAPTER_CONFIG);
    let weights = if adapters { ADAPTER_FILE } else { MODEL_FILE };
    let model = write_planned(&dir.join(weights), &checkpoint.model, written)?;
    state.files.insert(weights.into(), model);
    state.files.extend(parts::write(dir, &checkpoint.optimizer, checkpoint.optimizer_files, written)?);
    state.write(dir)?;
    durable::sync_dir(dir)
}

/// Removes a file or folder if it exists.
fn remove(path: &Path) -> Result<()> {
    let gone =
        if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match gone {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("removing", path, &e)),
        _ => Ok(()),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    path.with_file_name(name_of(path) + suffix)
}
