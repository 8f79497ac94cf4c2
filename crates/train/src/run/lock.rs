//! Exclusive lock of a run folder: only one process writes to it at a time.
//!
//! It is a lock of the operating system on an open file, which is released when the process ends for any reason. The content of the file only
//! identifies the holder.

use netcl_device::{Error, ErrorKind, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const FILE: &str = ".lock";

/// The lock of a folder, released when dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// `None` if the file system does not support locks.
    file: Option<File>,
}

impl Lock {
    /// Locks `folder`, which exists.
    ///
    /// # Errors
    /// `Io` with the process that holds the lock, or the file that cannot be written.
    pub fn take(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        loop {
            let mut options = OpenOptions::new();
            let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = opened.map_err(|e| Error::io("opening", &path, &e))?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Err(in_use(folder, &said(&mut file))),
                Err(TryLockError::Error(e)) => {
                    tracing::warn!(
                        "{} cannot be locked ({e}): make sure that no other process trains there",
                        folder.display()
                    );
                    return Ok(Self { path, file: None });
                }
                Ok(()) if is_at(&file, &path) => {}
                // The previous holder has just removed the file; another process may lock a new file with this name.
                Ok(()) => continue,
            }
            let written = file.set_len(0).and_then(|()| file.write_all(whose().as_bytes()));
            written.map_err(|e| Error::io("writing", &path, &e))?;
            return Ok(Self { path, file: Some(file) });
        }
    }

    /// Returns path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error with the process that has locked `folder`, if any.
    pub fn holder(folder: &Path) -> Option<Error> {
        let mut file = File::open(folder.join(FILE)).ok()?;
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
            .then(|| in_use(folder, &said(&mut file)))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while still locked, so that a lock taken by another process is not lost.
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn in_use(folder: &Path, holder: &str) -> Error {
    Error::new(
        ErrorKind::Io,
        format!(
            "{} is in use by {holder}; wait for its end, or name another folder with --out",
            folder.display()
        ),
    )
}

/// Returns whether `path` still refers to the open `file`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Returns true: on other systems an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Returns the text that the holder wrote.
fn said(file: &mut File) -> String {
    let mut text = String::new();
    let read = file.take(1000).read_to_string(&mut text);
    match (read, text.trim()) {
        (Ok(_), text) if !text.is_empty() => text.into(),
        _ => "another process".into(),
    }
}

/// Returns a description of this process.
fn whose() -> String {
    let host =
        ["/proc/sys/kernel/hostname", "/etc/hostname"].iter().find_map(|path| fs::read_to_string(path).ok());
    let host = host.map_or(String::new(), |name| format!(" on {}", name.trim()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("process {}{host} since {}\n", std::process::id(), utc(now))
}

/// Formats seconds since 1970 as a date and time (Hinnant, "chrono-compatible low-level date algorithms").
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Lock::holder(dir.path()).is_none());
        let lock = Lock::take(dir.path()).unwrap();
        for error in [Lock::take(dir.path()).unwrap_err(), Lock::holder(dir.path()).unwrap()] {
            let me = format!("is in use by process {} ", std::process::id());
            for part in [me.as_str(), " since 20", " UTC", "--out"] {
                assert!(error.message().contains(part), "{error}");
            }
        }
        drop(lock);
        assert!(!dir.path().join(FILE).exists());
        // A file left by a killed process is not locked.
        fs::write(dir.path().join(FILE), "process 1 on nowhere since never\n").unwrap();
        assert!(Lock::holder(dir.path()).is_none());
        drop(Lock::take(dir.path()).unwrap());
        assert!(Lock::take(&dir.path().join("none")).unwrap_err().message().contains("none"));
    }

    #[test]
    fn only_one_of_many_threads_holds_it_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let inside = std::sync::atomic::AtomicU32::new(0);
        let taken = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Ok(_lock) = Lock::take(dir.path()) else { continue };
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        taken.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(taken.into_inner() >= 8);
    }

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(4_102_444_799), "2099-12-31 23:59:59 UTC");
    }
}
