//! Paths that results go to.

use crate::{Error, Result};
use std::fs;
use std::path::Path;

/// Checks that a file can be written at `path` later, and leaves nothing behind: work that takes long asks before it begins.
/// What exists and is no file, such as a pipe or `/dev/stdout`, is taken to be writable.
///
/// # Errors
/// `Io` that names the path: its folder is missing or may not be written to, or it is a folder itself.
pub fn check_writable(path: &Path) -> Result<()> {
    let fail = |e| Error::io("writing", path, &e);
    if path.is_dir() || path.file_name().is_none() {
        return Err(fail(std::io::ErrorKind::IsADirectory.into()));
    }
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    // A file of its own: the one that may be there stays as it is.
    let aside = path.with_extension(format!("tmp-{}", std::process::id()));
    fs::write(&aside, b"").map_err(fail)?;
    fs::remove_file(&aside).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_cannot_be_written_are_found_beforehand() {
        let dir = std::env::temp_dir().join(format!("netcl-writable-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("trace.json");
        check_writable(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        for bad in [dir.clone(), dir.join("none/trace.json"), path.join("x")] {
            assert!(check_writable(&bad).unwrap_err().message().contains(&bad.display().to_string()));
        }
        if cfg!(unix) {
            check_writable(Path::new("/dev/null")).unwrap();
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
