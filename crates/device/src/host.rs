//! Host memory: files seen as bytes without reading them first, and memory that several devices or processes share.
//!
//! The one place outside `opencl` that may use `unsafe`: for the call that maps a file, and for copies from and to shared memory.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::{fs::File, io::Write, ops::Deref, path::Path};

/// A file mapped read-only. Dereferences to its bytes; an empty file is an empty slice.
///
/// The file must not be truncated or rewritten in place while it is mapped: the pages are the file. Everything that
/// netcl itself writes is written aside and renamed, which leaves an existing mapping as it was.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps `path`. `Io` when it cannot be opened, is a directory, a pipe or a device, or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        crate::files::require_file(path).map_err(|e| Error::io("opening", path, &e))?;
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

/// Host memory that threads, devices and processes share, at an address that does not change.
///
/// Who writes which part, and when others read it, is agreed by messages; the type only checks that accesses stay inside.
#[derive(Debug)]
pub struct SharedMemory {
    map: memmap2::MmapRaw,
}

impl SharedMemory {
    /// Zeroed memory of this process alone.
    ///
    /// # Errors
    /// `Memory` where the system has none.
    pub fn new(bytes: usize) -> Result<Self> {
        let map = memmap2::MmapMut::map_anon(bytes.max(1));
        let map = map.map_err(|e| Error::memory(format!("{bytes} bytes of host memory: {e}")))?;
        Ok(Self { map: map.into() })
    }

    /// The memory of a new file of zeros, which other processes [open](Self::open). Its blocks are written first, because a file system
    /// that is full would end the process at the first access.
    ///
    /// # Errors
    /// `Io` where the file exists, or has no room.
    pub fn create(path: &Path, bytes: usize) -> Result<Self> {
        let failed = |e: std::io::Error| Error::io("creating", path, &e);
        let mut file = File::options().read(true).write(true).create_new(true).open(path).map_err(failed)?;
        let zeros = vec![0; bytes.clamp(1, 1 << 20)];
        let written = (0..bytes.max(1))
            .step_by(zeros.len())
            .try_for_each(|at| file.write_all(&zeros[..zeros.len().min(bytes.max(1) - at)]));
        if let Err(e) = written {
            let _ = std::fs::remove_file(path);
            return Err(failed(e));
        }
        let map = memmap2::MmapRaw::map_raw(&file).map_err(|e| Error::io("mapping", path, &e))?;
        Ok(Self { map })
    }

    /// The memory of a file that another process [created](Self::create).
    ///
    /// # Errors
    /// `Io` where it is not there or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|e| Error::io("opening", path, &e))?;
        let map = memmap2::MmapRaw::map_raw(&file).map_err(|e| Error::io("mapping", path, &e))?;
        Ok(Self { map })
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// The address of byte `at`, from which `bytes` are inside.
    ///
    /// # Errors
    /// `Internal` where they are not.
    pub(crate) fn address(&self, at: usize, bytes: usize) -> Result<*mut u8> {
        if at.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(Error::internal(format!(
                "{bytes} bytes at {at} leave host memory of {}",
                self.bytes()
            )));
        }
        Ok(self.map.as_mut_ptr().wrapping_add(at))
    }

    /// Copies the bytes from `at` on.
    ///
    /// # Errors
    /// `Internal` where they leave the memory.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let from = self.address(at, out.len())?;
        // SAFETY: the part lies inside the mapping, which `out` cannot overlap. A device or process that writes there at the same time
        // breaks the agreement above; what is copied then is unspecified.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Replaces the bytes from `at` on.
    ///
    /// # Errors
    /// `Internal` where they leave the memory.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        let to = self.address(at, data.len())?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
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
    fn shared_memory_is_one_for_all_who_open_it() {
        let path = std::env::temp_dir().join(format!("netcl-shared-{}", std::process::id()));
        let first = SharedMemory::create(&path, 3 << 20).unwrap();
        assert!(SharedMemory::create(&path, 1).is_err());
        let second = SharedMemory::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        first.write((3 << 20) - 4, b"abcd").unwrap();
        let mut got = [0; 5];
        second.read((3 << 20) - 4, &mut got[..4]).unwrap();
        assert_eq!((&got[..4], second.bytes()), (b"abcd".as_slice(), 3 << 20));
        assert!(second.read((3 << 20) - 4, &mut got).is_err() && second.write(usize::MAX, b"a").is_err());
        assert_eq!(SharedMemory::new(5).unwrap().bytes(), 5);
        assert!(SharedMemory::open(&path).is_err());
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
