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

/// Bytes that this process can still take of the host's memory: what Linux calls available and what is free of the swap space, or
/// what the control group leaves where that is less. `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| number_after(&text, name).map(|n| n.saturating_mul(1024));
    let free = kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0));
    Some(control_group(Path::new("/sys/fs/cgroup")).map_or(free, |left| left.min(free)))
}

/// What the limit of the control group mounted at `dir` leaves; `None` without a limit. Version 2 of the interface, as containers
/// have it. Pages of files do not count: they are given back.
fn control_group(dir: &Path) -> Option<u64> {
    let limit: u64 = std::fs::read_to_string(dir.join("memory.max")).ok()?.trim().parse().ok()?;
    let used = std::fs::read_to_string(dir.join("memory.stat")).ok()?;
    Some(limit.saturating_sub(number_after(&used, "anon")?))
}

/// The number after the word `name` at the start of a line.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn available_memory_is_the_least_of_what_bounds_it() {
        if cfg!(target_os = "linux") {
            assert!(available_memory().unwrap() > 1 << 20);
        }
        let dir = std::env::temp_dir().join(format!("netcl-group-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(control_group(&dir), None);
        std::fs::write(dir.join("memory.stat"), "anon 600\nfile 9000\n").unwrap();
        for (limit, left) in [("max\n", None), ("1000\n", Some(400)), ("500\n", Some(0))] {
            std::fs::write(dir.join("memory.max"), limit).unwrap();
            assert_eq!(control_group(&dir), left);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

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
