//! Host memory: files mapped as bytes, and memory that several devices or processes share.
//!
//! This is the only module outside `opencl` that may use `unsafe`: to map a file, and to copy from and to shared memory.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::{fs::File, io::Write, ops::Deref, path::Path};

/// A file mapped read-only. It dereferences to its bytes; an empty file is an empty slice.
///
/// The mapped pages are the file, so the file must not be truncated or rewritten in place meanwhile. netcl writes every file to a temporary path and
/// renames it, which leaves an existing mapping unchanged.
#[derive(Debug)]
pub struct MappedFile {
    map: Option<memmap2::Mmap>,
}

impl MappedFile {
    /// Maps `path`. Returns `Io` if the path cannot be opened, is a directory, a pipe or a device, or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        crate::files::require_file(path).map_err(|e| Error::io("opening", path, &e))?;
        let file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
        let meta = file.metadata().map_err(|e| Error::io("reading", path, &e))?;
        if meta.is_dir() {
            return Err(Error::io("opening", path, &std::io::ErrorKind::IsADirectory.into()));
        }
        // Several systems reject a mapping of zero bytes.
        if meta.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: the mapping is read-only and private to this value. The type cannot rule out that another process shortens or rewrites the file
        // meanwhile. The documentation above makes that the caller's promise, the same as for every mapped file. Our own writers rename instead of
        // rewriting.
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

/// Host memory at a fixed address that threads, devices and processes share.
///
/// The users agree by messages on who writes which part and when others read it. The type only checks that accesses are in bounds.
#[derive(Debug)]
pub struct SharedMemory {
    map: memmap2::MmapRaw,
}

impl SharedMemory {
    /// Returns zeroed memory that is private to this process.
    ///
    /// # Errors
    /// `Memory` if the system has none available.
    pub fn new(bytes: usize) -> Result<Self> {
        let map = memmap2::MmapMut::map_anon(bytes.max(1));
        let map = map.map_err(|e| Error::memory(format!("{bytes} bytes of host memory: {e}")))?;
        Ok(Self { map: map.into() })
    }

    /// Creates a file of zeros and maps it; other processes can [open](Self::open) it. The blocks are written first, because on a full file system
    /// the first access would terminate the process.
    ///
    /// # Errors
    /// `Io` if the file exists or the disk is full.
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

    /// Maps a file that another process [created](Self::create).
    ///
    /// # Errors
    /// `Io` if the file does not exist or cannot be mapped.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|e| Error::io("opening", path, &e))?;
        let map = memmap2::MmapRaw::map_raw(&file).map_err(|e| Error::io("mapping", path, &e))?;
        Ok(Self { map })
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Returns the address of byte `at` if `bytes` bytes from there are in bounds.
    ///
    /// # Errors
    /// `Internal` if they are not.
    pub(crate) fn address(&self, at: usize, bytes: usize) -> Result<*mut u8> {
        if at.checked_add(bytes).is_none_or(|end| end > self.bytes()) {
            return Err(Error::internal(format!(
                "{bytes} bytes at {at} leave host memory of {}",
                self.bytes()
            )));
        }
        Ok(self.map.as_mut_ptr().wrapping_add(at))
    }

    /// Copies bytes from the memory, starting at `at`.
    ///
    /// # Errors
    /// `Internal` if the range exceeds the memory.
    pub fn read(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let from = self.address(at, out.len())?;
        // SAFETY: the part is inside the mapping, which `out` cannot overlap. A device or process that writes there at the same time breaks the
        // agreement above. The content copied in that case is unspecified.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Overwrites bytes of the memory, starting at `at`.
    ///
    /// # Errors
    /// `Internal` if the range exceeds the memory.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        let to = self.address(at, data.len())?;
        // SAFETY: same as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }
}

/// Returns the bytes of host memory that this process can still allocate. This is the available memory of Linux plus the free swap space, or the
/// remainder of the control group if that is less. `None` if the system does not report it.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| number_after(&text, name).map(|n| n.saturating_mul(1024));
    let free = kib("MemAvailable:")?.saturating_add(kib("SwapFree:").unwrap_or(0));
    Some(control_group(Path::new("/sys/fs/cgroup")).map_or(free, |left| left.min(free)))
}

/// Returns the bytes below the limit of the control group mounted at `dir`; `None` without a limit. Reads version 2 of the interface, which
/// containers use. Pages of files do not count because the system reclaims them.
fn control_group(dir: &Path) -> Option<u64> {
    let limit: u64 = std::fs::read_to_string(dir.join("memory.max")).ok()?.trim().parse().ok()?;
    let used = std::fs::read_to_string(dir.join("memory.stat")).ok()?;
    Some(limit.saturating_sub(number_after(&used, "anon")?))
}

/// Returns the number after the word `name` at the start of a line.
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
