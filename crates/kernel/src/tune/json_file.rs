//! A JSON file that several programs read and change: locked while it is changed, and replaced whole.

use netcl_device::files::{self, Lock};
use netcl_device::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};

/// Such a file.
pub(super) struct JsonFile {
    path: PathBuf,
    /// What it holds, for messages.
    what: &'static str,
}

impl JsonFile {
    /// The file at `path`, which need not be there.
    pub fn at(path: impl Into<PathBuf>, what: &'static str) -> Self {
        Self { path: path.into(), what }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it holds; `None` where it is not there, and with a warning where it does not parse.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let parsed = serde_json::from_str(&text);
        parsed
            .map_err(|e| tracing::warn!("the {} in {} are ignored: {e}", self.what, self.path.display()))
            .ok()
    }

    /// The right to change it, which ends with the guard; its folder is made.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn lock(&self) -> Result<Lock> {
        let folder = self.path.parent().map_or(Ok(()), files::create_private);
        folder.and_then(|()| Lock::of(&self.path)).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Replaces it.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn write(&self, content: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(content);
        let text = text.map_err(|e| Error::internal(format!("{}: {e}", self.what)))? + "\n";
        files::replace(&self.path, text.as_bytes()).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Removes it, where it is there.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn remove(&self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("removing", &self.path, &e)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_does_not_parse_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = JsonFile::at(folder.path().join("a/b.json"), "numbers");
        assert_eq!(file.read::<Vec<u32>>(), None);
        file.remove().unwrap();
        let lock = file.lock().unwrap();
        file.write(&[1, 2]).unwrap();
        drop(lock);
        assert_eq!(file.read::<Vec<u32>>(), Some(vec![1, 2]));
        assert_eq!(file.read::<Vec<String>>(), None);
        file.remove().unwrap();
        assert!(!file.path().exists() && file.path().parent().is_some_and(Path::is_dir));
        // A folder in the place of the file.
        std::fs::create_dir_all(file.path().join("full")).unwrap();
        for error in [file.write(&0).unwrap_err(), file.remove().unwrap_err()] {
            assert!(error.message().contains("b.json"), "{error}");
        }
    }
}
