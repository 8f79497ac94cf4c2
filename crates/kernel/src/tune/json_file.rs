//! A JSON file that several processes read and write: it is locked while it is changed, and replaced atomically.

use netcl_device::files::{self, Lock};
use netcl_device::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};

/// A locked JSON file: its path and a description of its content.
pub(super) struct JsonFile {
    path: PathBuf,
    /// Description of its content for messages.
    what: &'static str,
}

impl JsonFile {
    /// Returns the file at `path`; it need not exist.
    pub fn at(path: impl Into<PathBuf>, what: &'static str) -> Self {
        Self { path: path.into(), what }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the parsed content. Returns `None` if the file does not exist or, with a warning, if it cannot be parsed.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let parsed = serde_json::from_str(&text);
        parsed.map_err(|e| tracing::warn!("ignoring the {} in {}: {e}", self.what, self.path.display())).ok()
    }

    /// Locks the file for writing until the returned guard is dropped; creates its folder.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn lock(&self) -> Result<Lock> {
        let folder = self.path.parent().map_or(Ok(()), files::create_private);
        folder.and_then(|()| Lock::of(&self.path)).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// `Io` with the path.
    pub fn write(&self, content: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(content);
        let text = text.map_err(|e| Error::internal(format!("{}: {e}", self.what)))? + "\n";
        files::replace(&self.path, text.as_bytes()).map_err(|e| Error::io("writing", &self.path, &e))
    }

    /// Removes the file if it exists.
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
        // A folder replaces the file.
        std::fs::create_dir_all(file.path().join("full")).unwrap();
        for error in [file.write(&0).unwrap_err(), file.remove().unwrap_err()] {
            assert!(error.message().contains("b.json"), "{error}");
        }
    }
}
