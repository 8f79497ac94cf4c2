//! The settings of a resumed run: its `config.toml`, or the copy if that file is damaged.

use super::{Overlay, TrainConfig};
use netcl_device::{Error, Result};
use std::path::{Path, PathBuf};

/// The copy of `config.toml` in a run folder. Checkpoints do not contain it, because they are published and paths are private.
pub const SETTINGS_COPY: &str = ".config.toml";
/// Keys that every `config.toml` of a run contains, whichever version wrote it.
const ALWAYS: [&str; 10] =
    ["layers", "heads", "width", "context", "lr", "batch", "steps", "seed", "dtype", "device"];

impl TrainConfig {
    /// Returns the settings of the run in `dir`, overridden by `flags`.
    ///
    /// A `config.toml` that cannot be read, or that was cut short, is replaced by its copy, with a warning.
    ///
    /// # Errors
    /// Errors of [`TrainConfig::resolve`].
    pub fn of_run(dir: &Path, flags: &Overlay) -> Result<Self> {
        let path = dir.join("config.toml");
        let Some(damage) = damage(&path) else { return Self::resolve(Some(&path), flags) };
        let Some(copy) = copy(dir) else {
            // Without a copy, the file itself is used, or its error is returned.
            let wrong = |e: Error| {
                Error::format(format!(
                    "{e}. The settings of the run cannot be read, and no copy ({SETTINGS_COPY}) exists: restore the file, or train from the weights \
                     with --init {}",
                    dir.display()
                ))
            };
            return Self::resolve(Some(&path), flags).map_err(wrong);
        };
        tracing::warn!("{}: {damage}; using the settings of {}", path.display(), copy.display());
        Self::resolve(Some(&copy), flags)
    }
}

/// Returns why the file is not one that a run wrote; `None` for a complete one.
fn damage(path: &Path) -> Option<String> {
    let text = match std::fs::read(path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(_) => return Some("the file is damaged: it is not text".into()),
        },
        Err(e) => return Some(format!("the file cannot be read ({e})")),
    };
    if let Err(e) = Overlay::from_toml(&text) {
        let first = e.message().lines().next().unwrap_or_default().to_owned();
        return Some(format!("the file is damaged: {first}"));
    }
    let table: toml::Table = text.parse().ok()?;
    let missing = ALWAYS.into_iter().find(|key| !table.contains_key(*key))?;
    Some(format!("the file is damaged: `{missing}` is missing"))
}

/// Returns the copy of the settings of the run in `dir`, if it is complete.
fn copy(dir: &Path) -> Option<PathBuf> {
    Some(dir.join(SETTINGS_COPY)).filter(|path| damage(path).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_damaged_config_is_replaced_by_its_copy() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let config = TrainConfig { steps: 77, warmup: 5, ..TrainConfig::preset("char-cpu").unwrap() };
        let text = config.to_toml().unwrap();
        fs::write(dir.path().join(SETTINGS_COPY), &text).unwrap();
        let flags = Overlay { batch: Some(3), ..Overlay::default() };
        let of_run = || TrainConfig::of_run(dir.path(), &flags);
        let expected = TrainConfig { batch: 3, ..config };
        let half = text.as_bytes()[..text.len() / 2].to_vec();
        let damages =
            [b"\0\0\0\xff".to_vec(), b"lr = = 3".to_vec(), half, Vec::new(), b"unknown = 1".to_vec()];
        for damaged in damages {
            fs::write(&file, &damaged).unwrap();
            assert_eq!(of_run().unwrap(), expected, "{}", String::from_utf8_lossy(&damaged));
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(of_run().unwrap(), expected);
        // A complete file is used; without a copy its error is returned.
        fs::write(&file, text.replace("steps = 77", "steps = 88")).unwrap();
        assert_eq!(of_run().unwrap().steps, 88);
        fs::remove_file(dir.path().join(SETTINGS_COPY)).unwrap();
        fs::write(&file, "lr = = 3").unwrap();
        let message = of_run().unwrap_err().to_string();
        assert!(message.contains("config.toml") && message.contains("--init"), "{message}");
    }
}
