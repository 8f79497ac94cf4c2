//! Helpers for files that several programs read and write at the same time. Such a file is complete or absent, is locked during changes, and is
//! trusted only if no other user could have written it.

use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the name if it refers to a file directly in a folder. A name read from a file must not lead out of that file's folder.
///
/// # Errors
/// `Format` for a path with folders, an absolute path, `.`, `..`, and names that only some systems split.
pub fn plain_name(name: &str) -> Result<&str> {
    let mut parts = Path::new(name).components();
    let one = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    if one && !name.contains(['/', '\\', '\0', ':']) {
        return Ok(name);
    }
    Err(Error::format(format!("{name:?} is not a plain file name: folders are not allowed here")))
}

/// Maximum size, in bytes, of a file that is read at once: descriptions, vocabularies, templates.
const MAX_WHOLE: u64 = 1 << 30;

/// Rejects a path that is not a regular file. A pipe waits for a writer, and a device may never end.
///
/// # Errors
/// `InvalidInput` for a pipe, a socket or a device, and system errors.
pub fn require_file(path: &Path) -> io::Result<()> {
    let kind = fs::metadata(path)?.file_type();
    match kind.is_file() || kind.is_dir() {
        true => Ok(()),
        false => {
            let message = "it is a pipe or a device, expected a regular file";
            Err(io::Error::new(ErrorKind::InvalidInput, message))
        }
    }
}

/// Returns the bytes of a regular file of at most 1 GiB.
///
/// # Errors
/// `InvalidInput` for a path that is not a regular file, `FileTooLarge` for a larger file, and system errors.
pub fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, MAX_WHOLE)
}

/// Returns the bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// Same as [`read_whole`].
pub fn read_within(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    require_file(path)?;
    let file = File::open(path)?;
    // A sparse file can report more bytes than the memory holds.
    let length = file.metadata()?.len();
    let large =
        || Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {} MiB", most >> 20)));
    if length > most {
        return large();
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { large() } else { Ok(bytes) }
}

/// Returns the text of a regular file of at most 1 GiB.
///
/// # Errors
/// Same as [`read_whole`]; `InvalidData` if the content is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_whole(path)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

/// Returns a path next to `path` that no other thread or program uses at this time.
pub fn temporary_sibling(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".tmp-{}-{number}", std::process::id()));
    path.with_file_name(name)
}

/// Writes a file next to the path and renames it. Readers see the old or the new content, never a mixture. If two writers run at the same time, one
/// of them wins. The folder must exist.
///
/// # Errors
/// Errors from creating, writing and renaming. The file at the path is then unchanged, and no partial file remains.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let (mut file, aside) = loop {
        let aside = temporary_sibling(path);
        // Never write to an existing file: a process with the same id on another machine may be writing it, or another user may have put a link
        // there.
        match OpenOptions::new().write(true).create_new(true).open(&aside) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            opened => break (opened?, aside),
        }
    };
    let written = file.write_all(content);
    drop(file);
    written.and_then(|()| fs::rename(&aside, path)).inspect_err(|_| {
        // After a disk-full error, the partial file would only occupy the missing space.
        let _ = fs::remove_file(&aside);
    })
}

/// Checks that a file can be written at `path` later, and leaves no file. Long-running work calls this before it starts. A path that exists and is
/// not a file, such as a pipe or `/dev/stdout`, counts as writable.
///
/// # Errors
/// `Io` with the path: the folder is missing or not writable, or the path is a folder.
pub fn check_writable(path: &Path) -> Result<()> {
    let fail = |e| Error::io("writing", path, &e);
    if path.is_dir() || path.file_name().is_none() {
        return Err(fail(ErrorKind::IsADirectory.into()));
    }
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    // Use a separate file, so that an existing file stays unchanged.
    let aside = temporary_sibling(path);
    fs::write(&aside, b"").map_err(fail)?;
    fs::remove_file(&aside).map_err(fail)
}

/// An exclusive lock for changing a file. One thread of one program holds it until it is dropped.
#[derive(Debug)]
pub struct Lock {
    /// Closing the file releases the lock, even if the program is killed.
    _file: Option<File>,
}

impl Lock {
    /// Waits for the exclusive lock for reading, changing and writing the file at `path`. The folder must exist. The lock is a separate file next to
    /// it. The lock file stays, because a program cannot wait for a file that is renamed away.
    ///
    /// # Errors
    /// Errors from creating the lock file. A file system without locks causes neither a lock nor an error.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".lock");
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(path.with_file_name(name))?;
        match file.lock() {
            Ok(()) => Ok(Self { _file: Some(file) }),
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(Self { _file: None }),
            Err(e) => Err(e),
        }
    }

    /// Waits for the exclusive lock for changing a folder. On Unix this locks the folder itself and adds no file.
    ///
    /// # Errors
    /// `Io` if the folder cannot be opened. If it cannot be locked, as on some network file systems, `Ok` is returned without a lock.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let opened = if cfg!(unix) {
            File::open(folder)
        } else {
            OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(".lock"))
        };
        let file = opened.map_err(|e| Error::io("opening", folder, &e))?;
        Ok(Self { _file: file.lock().is_ok().then_some(file) })
    }
}

/// Returns the start time of a running process, in the system's unit. Together with the process id, which the system reuses, it identifies a process.
/// `None` if the process is not running or the system does not report the time.
pub fn started(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program name, in parentheses, may contain any character; the start time is the 20th field after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Creates a folder and its parents that only the owner may enter. A cache that others may write to is not read.
///
/// # Errors
/// Errors from creating the folder. An existing folder stays unchanged.
pub fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Returns the reason why another user could have written to a file or folder. `None` if only this user and the administrator can write to it.
/// Missing paths and systems without file owners also return `None`.
pub fn distrust(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok()?;
    distrust_of(&about).map(|why| format!("{} {why}", path.display()))
}

/// Does the same as [`distrust`] for an open file, without its name.
#[cfg(unix)]
pub fn distrust_of(about: &fs::Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    distrusted(about.uid(), about.mode(), fs::metadata("/proc/self").ok().map(|me| me.uid()))
}

/// Does the same as [`distrust`] for an open file, without its name.
#[cfg(not(unix))]
pub fn distrust_of(_: &fs::Metadata) -> Option<String> {
    None
}

#[cfg(unix)]
fn distrusted(owner: u32, mode: u32, me: Option<u32>) -> Option<String> {
    if let Some(me) = me
        && owner != me
        && owner != 0
    {
        return Some(format!("belongs to user {owner}, but this is user {me}"));
    }
    (mode & 0o022 != 0).then(|| {
        format!(
            "can be written by other users (mode {:03o}; `chmod go-w` removes this permission)",
            mode & 0o777
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_pipe_and_a_file_without_end_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        let paths = [Path::new("/dev/zero").to_owned()].into_iter();
        for path in paths.chain(made.is_ok_and(|status| status.success()).then_some(pipe)) {
            for error in [read_whole(&path).unwrap_err(), read_text(&path).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", path.display());
            }
            let error = crate::MappedFile::open(&path).unwrap_err();
            assert!(error.message().contains("expected a regular file"), "{error}");
        }
        // A sparse file: it occupies no disk space.
        let large = dir.path().join("large");
        File::create(&large).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_whole(&large).unwrap_err().kind(), ErrorKind::FileTooLarge);
        fs::write(&large, "text").unwrap();
        assert_eq!((read_text(&large).unwrap().as_str(), read_within(&large, 3).is_err()), ("text", true));
    }
    use std::sync::Barrier;

    #[test]
    fn a_name_out_of_a_file_does_not_lead_out_of_its_folder() {
        for good in ["model.safetensors", "a b", "..a", "a.", "step-00000001"] {
            assert_eq!(plain_name(good).unwrap(), good);
        }
        for bad in
            ["", ".", "..", "../x", "a/b", "/etc/passwd", "a/", "./a", "a/..", "a\\b", "..\\x", "C:x", "a\0b"]
        {
            let error = plain_name(bad).unwrap_err();
            assert!(error.message().contains("plain file name"), "{bad:?}: {error}");
        }
    }

    /// Two threads write separate temporary files. With one name per process, both wrote to one file, and the second rename found nothing.
    #[test]
    fn two_threads_that_replace_a_file_write_into_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("entry");
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for i in 0..8u8 {
                let (path, start) = (&path, &start);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..50 {
                        replace(path, &[i; 10_000]).unwrap();
                        let read = fs::read(path).unwrap();
                        assert!(read.len() == 10_000 && read.iter().all(|b| *b == read[0]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file remains");
    }

    #[test]
    fn paths_that_cannot_be_written_are_found_beforehand() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        check_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        for bad in [dir.path().to_owned(), dir.path().join("none/trace.json"), path.join("x")] {
            assert!(check_writable(&bad).unwrap_err().message().contains(&bad.display().to_string()));
        }
        if cfg!(unix) {
            check_writable(Path::new("/dev/null")).unwrap();
        }
    }

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("folder");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"x").is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_lock_is_held_by_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("count");
        fs::write(&path, "0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = Lock::of(&path).unwrap();
                        let n: u32 = fs::read_to_string(&path).unwrap().parse().unwrap();
                        replace(&path, (n + 1).to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(&path).unwrap(), "200");
    }

    #[test]
    fn a_process_number_alone_does_not_name_a_program() {
        if !Path::new("/proc/self/stat").exists() {
            return;
        }
        assert!(started(std::process::id()).is_some());
        assert_eq!(started(u32::MAX), None);
        assert_ne!(started(1), started(std::process::id()));
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_others_may_write_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        create_private(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(distrust(&folder), None);
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
            let why = distrust(&folder).unwrap();
            assert!(
                why.contains("other users") && why.contains("a/b") && why.contains("chmod go-w"),
                "{why}"
            );
        }
        assert_eq!(distrust(&dir.path().join("missing")), None);
        // Files of the administrator are trusted; files of another user are not, regardless of their mode.
        assert_eq!(distrusted(0, 0o755, Some(1000)), None);
        assert_eq!(distrusted(1000, 0o755, Some(1000)), None);
        assert!(distrusted(1001, 0o700, Some(1000)).unwrap().contains("user 1001"));
        assert!(distrusted(1000, 0o700, Some(0)).is_some());
    }
}
