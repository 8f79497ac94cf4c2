//! Crash-safe writing: content is synced before a file gets its name, and folders are synced after renames.

use netcl_device::{Error, Result, files};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Expected size and checksum of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of its content, in hexadecimal.
    pub blake3: String,
}

/// Writer that counts and hashes the bytes it writes.
struct Summed<'a> {
    file: File,
    /// Shared counter of written bytes, for progress.
    written: &'a AtomicU64,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Write for Summed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.file.write(buffer)?;
        self.hasher.update(&buffer[..written]);
        self.bytes += written as u64;
        self.written.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Creates `path`, calls `content` to write it, and syncs it to disk. `written` counts the bytes.
pub(super) fn write(
    path: &Path,
    written: &AtomicU64,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<FileSum> {
    let all = || {
        let summed = Summed { file: File::create(path)?, written, hasher: blake3::Hasher::new(), bytes: 0 };
        let mut writer = BufWriter::with_capacity(1 << 20, summed);
        content(&mut writer)?;
        let summed = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        summed.file.sync_all()?;
        Ok(FileSum { bytes: summed.bytes, blake3: summed.hasher.finalize().to_hex().to_string() })
    };
    all().map_err(|e| Error::io("writing", path, &e))
}

/// Returns the name if it is valid for a checkpoint's file: a plain name, or one in a folder with a plain name, such as `1_Pooling/config.json`.
///
/// # Errors
/// `Format` with the name.
pub(super) fn name_of_file(name: &str) -> Result<&str> {
    let parts = name.split_once('/').unwrap_or(("folder", name));
    files::plain_name(parts.0).and(files::plain_name(parts.1)).map_err(|e| e.context(format!("{name:?}")))?;
    Ok(name)
}

/// Syncs the folder `dir`, so that renames in it are durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    // Only Unix can open and sync folders.
    if cfg!(unix) {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("syncing", dir, &e))?;
    }
    Ok(())
}

/// Renames within a folder and syncs it.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io("renaming to", to, &e))?;
    to.parent().map_or(Ok(()), sync_dir)
}

/// Writes files into the existing folder `dir`. Each is replaced atomically, after all were written. On a write error no file is changed, and no
/// temporary file is left.
pub fn replace(dir: &Path, contents: &[(String, Vec<u8>)]) -> Result<()> {
    let asides: Vec<_> = contents.iter().map(|(name, _)| files::temporary_sibling(&dir.join(name))).collect();
    let put = || {
        for (aside, (_, content)) in asides.iter().zip(contents) {
            write(aside, &AtomicU64::new(0), |file| file.write_all(content))?;
        }
        for (aside, (name, _)) in asides.iter().zip(contents) {
            let path = dir.join(name);
            fs::rename(aside, &path).map_err(|e| Error::io("writing", &path, &e))?;
        }
        sync_dir(dir)
    };
    put().inspect_err(|_| {
        for aside in &asides {
            // Files that were already renamed do not exist under the temporary name.
            let _ = fs::remove_file(aside);
        }
    })
}

/// Atomically replaces the link `pointer` by one to `target` in the same folder.
pub(super) fn point(pointer: &Path, target: &str) -> Result<()> {
    let aside = files::temporary_sibling(pointer);
    // A leftover of an earlier process with the same id.
    let _ = fs::remove_file(&aside);
    link(target, &aside).map_err(|e| Error::io("writing", pointer, &e))?;
    rename(&aside, pointer)
}

#[cfg(unix)]
fn link(target: &str, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(not(unix))]
fn link(target: &str, at: &Path) -> io::Result<()> {
    fs::write(at, target)
}

/// Target of the link `pointer`; `None` if it does not exist or points out of its folder.
pub(super) fn pointee(pointer: &Path) -> Option<String> {
    let link = fs::read_link(pointer).ok().map(|target| target.to_string_lossy().into_owned());
    let target = link.or_else(|| Some(fs::read_to_string(pointer).ok()?.trim().to_owned()))?;
    files::plain_name(&target).is_ok().then_some(target)
}
