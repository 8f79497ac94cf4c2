//! Host memory: files seen as bytes without reading them first.
//!
//! The one place outside `opencl` that may use `unsafe`, for the one call that maps a file.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::{fs::File, ops::Deref, path::Path};

/// A file mapped read-only. Dereferences to its bytes; an empty file is an empty slice.
///
/// The file must not be truncated or rewritten in place while it is mapped: the pages are the file. Everything that
/// netcl itself writes is written aside and renamed, which leaves an existing mapping as it was.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps `path`. `Io` when it cannot be opened, is a directory, or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
        let meta = file.metadata().map_err(|e| Error::io("reading", path, &e))?;
        if meta.is_dir() {
            return Err(Error::io("opening", path, &std::io::ErrorKind::IsADirectory.into()));
        }
        // Mapping zero bytes is an error on several systems.
        if meta.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the mapping is read-only and private to this value. What the type cannot rule out is another process
        // that shortens or rewrites the file meanwhile; the documentation above makes that the caller's promise, as for
        // every mapped file, and our own writers rename instead of rewriting.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io("mapping", path, &e))?;
        Ok(Self { map: Some(map) })
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn maps_bytes_and_names_what_fails() {
        let dir = std::env::temp_dir().join(format!("netcl-host-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (full, empty) = (dir.join("full"), dir.join("empty"));
        std::fs::write(&full, b"bytes").unwrap();
        std::fs::write(&empty, b"").unwrap();
        assert_eq!(&*MappedFile::open(&full).unwrap(), b"bytes");
        assert!(MappedFile::open(&empty).unwrap().is_empty());
        for bad in [dir.join("missing"), dir.clone()] {
            let error = MappedFile::open(&bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.message().contains(&bad.display().to_string()), "{error}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
