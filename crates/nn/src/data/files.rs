//! From `--data` to a sorted list of files: names, folders and patterns.

use netcl_device::{Error, ErrorKind, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A file that `--data` leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub path: PathBuf,
    /// Named by the user, not met in a folder or by a pattern: then it must be what it should, and is not skipped.
    pub named: bool,
}

/// What a folder holds beside text: build products, dependencies, caches and their lock files.
const SKIPPED: [&str; 6] =
    ["target", "node_modules", "__pycache__", "Cargo.lock", "package-lock.json", "poetry.lock"];
/// A folder with this file is the run folder of an earlier training, whose reports are no text to learn.
const RUN_MARK: &str = "metrics.jsonl";

/// The files of all `specs` (a file, a folder, or a pattern with `*`, `?`, `[…]`), sorted by path, each once.
pub(super) fn find(specs: &[impl AsRef<Path>]) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for spec in specs.iter().map(AsRef::as_ref) {
        let before = found.len();
        let pattern = spec.to_string_lossy();
        if spec.is_dir() {
            walk(spec, &mut found)?;
        } else if spec.exists() {
            found.push(Found { path: spec.to_owned(), named: true });
        } else if pattern.contains(['*', '?', '[']) {
            matches(&pattern, &mut found)?;
        } else {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{}: there is no such file; --data takes files, folders and patterns",
                    spec.display()
                ),
            ));
        }
        if found.len() == before {
            let what = if spec.is_dir() {
                "the folder holds no file to read"
            } else {
                "the pattern matches no file"
            };
            return Err(Error::format(format!(
                "{}: {what}; hidden files, build folders and earlier run folders are skipped",
                spec.display()
            )));
        }
    }
    // Named first among equal paths, so that a file both named and met counts as named.
    found.sort_by(|a, b| a.path.cmp(&b.path).then(b.named.cmp(&a.named)));
    found.dedup_by(|later, earlier| later.path == earlier.path);
    Ok(found)
}

fn matches(pattern: &str, found: &mut Vec<Found>) -> Result<()> {
    let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
    let paths = glob::glob_with(pattern, options)
        .map_err(|e| Error::format(format!("{pattern}: not a pattern, {} at character {}", e.msg, e.pos)))?;
    for path in paths {
        let path = path.map_err(|e| Error::io("reading", e.path(), e.error()))?;
        if path.is_file() {
            found.push(Found { path, named: false });
        }
    }
    Ok(())
}

/// All files below `dir`. Folders behind symbolic links are left out: they may lead back here.
fn walk(dir: &Path, found: &mut Vec<Found>) -> Result<()> {
    let fail = |e: std::io::Error| Error::io("reading", dir, &e);
    if dir.join(RUN_MARK).exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || SKIPPED.contains(&&*name) {
            continue;
        }
        let (path, kind) = (entry.path(), entry.file_type().map_err(fail)?);
        if kind.is_dir() {
            walk(&path, found)?;
        } else if path.is_file() {
            found.push(Found { path, named: false });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(found: &[Found], root: &Path) -> Vec<String> {
        found.iter().map(|f| f.path.strip_prefix(root).unwrap().display().to_string()).collect()
    }

    #[test]
    fn walks_sorts_and_skips() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for file in [
            "b.md",
            "a/z.rs",
            "a/.hidden",
            ".git/x",
            "target/y",
            "run/metrics.jsonl",
            "run/report.html",
            "Cargo.lock",
        ] {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), "text").unwrap();
        }
        assert_eq!(names(&find(&[root]).unwrap(), root), ["a/z.rs", "b.md"]);
        let both = find(&[root.to_owned(), root.join("b.md")]).unwrap();
        assert_eq!((names(&both, root), both[1].named), (vec!["a/z.rs".into(), "b.md".into()], true));
        assert_eq!(names(&find(&[root.join("**/*.rs")]).unwrap(), root), ["a/z.rs"]);
    }

    #[test]
    fn nothing_found_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (spec, part) in [
            (root.to_owned(), "the folder holds no file"),
            (root.join("*.txt"), "the pattern matches no file"),
            (root.join("a.txt"), "--data names a file"),
            (root.join("a[.txt"), "not a pattern"),
        ] {
            let message = find(&[spec]).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(&root.display().to_string()), "{message}");
        }
    }
}
