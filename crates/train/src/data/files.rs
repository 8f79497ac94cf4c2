//! Expands `--data` (files, folders, patterns) to a sorted list of files.

use netcl_device::{Error, ErrorKind, Result};
use std::{
    fs::{self, FileType},
    path::{Path, PathBuf},
};

/// A file found through `--data`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FoundFile {
    pub path: PathBuf,
    /// Whether the user named it explicitly. A problem with a named file is an error; other files are skipped.
    pub named: bool,
    /// The folder that was named, or in which a pattern begins; for a named file, its own folder.
    pub root: PathBuf,
}

/// Result of the expansion.
#[derive(Debug, Default)]
pub(super) struct All {
    pub files: Vec<FoundFile>,
    /// Entries that are neither files nor folders: path and kind.
    pub special: Vec<(PathBuf, &'static str)>,
    /// Duplicate paths of files: the path, and the path by which the file is read.
    pub again: Vec<(PathBuf, PathBuf)>,
    /// Root of the current search.
    root: PathBuf,
}

/// Names that are skipped in folders: build products, dependencies, caches and lock files.
const SKIPPED: [&str; 6] =
    ["target", "node_modules", "__pycache__", "Cargo.lock", "package-lock.json", "poetry.lock"];
/// A folder with this file is a run folder and is skipped: its reports are not training text.
const RUN_MARK: &str = "metrics.jsonl";

/// Returns the files of all `specs` (a file, a folder, or a pattern with `*`, `?`, `[…]`), sorted by path, each once.
pub(super) fn find(specs: &[impl AsRef<Path>]) -> Result<All> {
    let mut all = All::default();
    for spec in specs.iter().map(AsRef::as_ref) {
        let before = all.files.len();
        let pattern = spec.to_string_lossy();
        match fs::metadata(spec) {
            Ok(meta) if meta.is_dir() => {
                spec.clone_into(&mut all.root);
                all.walk(spec)?;
            }
            Ok(meta) if meta.is_file() => {
                let root = spec.parent().unwrap_or(Path::new("")).to_owned();
                all.files.push(FoundFile { path: spec.to_owned(), named: true, root });
            }
            Ok(meta) => return Err(not_a_file(spec, special(meta.file_type()))),
            Err(_) if pattern.contains(['*', '?', '[']) => all.matches(&pattern)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::new(
                    ErrorKind::Io,
                    format!("{}: no such file; --data takes files, folders and patterns", spec.display()),
                ));
            }
            Err(e) => return Err(Error::io("reading", spec, &e)),
        }
        if all.files.len() == before {
            let what = if spec.is_dir() {
                "the folder does not have a file to read"
            } else {
                "the pattern matches no file"
            };
            return Err(Error::format(format!(
                "{}: {what}; hidden files, build folders, earlier run folders and anything that is not a regular file are skipped",
                spec.display()
            )));
        }
    }
    // Explicitly named files come first among equal paths, so that a file that is both named and found counts as named.
    all.files.sort_by(|a, b| a.path.cmp(&b.path).then(b.named.cmp(&a.named)));
    all.files.dedup_by(|later, earlier| later.path == earlier.path);
    all.once();
    all.special.sort();
    all.special.dedup();
    Ok(all)
}

/// Returns the identity of a file, which is independent of its path.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

fn not_a_file(path: &Path, what: &str) -> Error {
    Error::format(format!(
        "{}: is {what}, expected a regular file or a folder; data is read several times, so write it to a file first",
        path.display()
    ))
}

/// Returns the kind of an entry that is neither a file nor a folder. Such entries are not opened: a FIFO would block, a device could have side
/// effects.
#[cfg(unix)]
fn special(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        k if k.is_fifo() => "a FIFO (a named pipe)",
        k if k.is_socket() => "a socket",
        k if k.is_char_device() || k.is_block_device() => "a device file",
        _ => "not a regular file",
    }
}

#[cfg(not(unix))]
fn special(_: FileType) -> &'static str {
    "not a regular file"
}

impl All {
    /// Keeps one path of each file. A path that the user named is preferred to the first one.
    fn once(&mut self) {
        let mut seen = std::collections::HashMap::new();
        for (at, file) in self.files.iter().enumerate() {
            let Some(identity) = identity(&file.path) else { continue };
            let kept = seen.entry(identity).or_insert(at);
            // Named files come before others, and the file itself before links to it.
            let rank = |file: &FoundFile| {
                (file.named, std::path::absolute(&file.path).ok() == fs::canonicalize(&file.path).ok())
            };
            if rank(file) > rank(&self.files[*kept]) {
                *kept = at;
            }
        }
        let (files, mut at) = (self.files.clone(), 0);
        self.files.retain(|file| {
            at += 1;
            let kept = identity(&file.path).and_then(|identity| seen.get(&identity).copied());
            let Some(kept) = kept.filter(|kept| *kept + 1 != at) else { return true };
            self.again.push((file.path.clone(), files[kept].path.clone()));
            false
        });
    }

    /// Adds an entry; records it separately if it is not a file. Ignores entries that vanished meanwhile.
    fn meet(&mut self, path: PathBuf) {
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => {
                self.files.push(FoundFile { path, named: false, root: self.root.clone() });
            }
            Ok(meta) if !meta.is_dir() => self.special.push((path, special(meta.file_type()))),
            _ => {}
        }
    }

    /// Adds all files below `dir`. Does not follow symbolic links to folders, because they may form cycles.
    fn walk(&mut self, dir: &Path) -> Result<()> {
        if dir.join(RUN_MARK).exists() {
            return Ok(());
        }
        for (path, name, kind) in entries(dir)? {
            if name.starts_with('.') || SKIPPED.contains(&&*name) {
                continue;
            }
            if kind.is_dir() { self.walk(&path)? } else { self.meet(path) }
        }
        Ok(())
    }

    /// Adds the files that a pattern matches: `*`, `?` and `[…]` within a name, `**` for any number of folders.
    fn matches(&mut self, pattern: &str) -> Result<()> {
        let path = Path::new(pattern);
        let mut begin = PathBuf::new();
        let mut parts = Vec::new();
        let mut at = 0;
        for component in path.components() {
            let text = component.as_os_str().to_string_lossy().into_owned();
            let wild = text.contains(['*', '?', '[']);
            if parts.is_empty() && !wild {
                begin.push(component);
                continue;
            }
            at += pattern[at..].find(&*text).unwrap_or(0);
            parts.push(PatternPart::of(&text, wild).map_err(|e| {
                Error::format(format!("{pattern}: invalid pattern: {} at character {}", e.msg, at + e.pos))
            })?);
        }
        begin.clone_into(&mut self.root);
        if begin.as_os_str().is_empty() {
            begin.push(".");
            return self.expand(&begin, &parts, true);
        }
        self.expand(&begin, &parts, false)
    }

    /// Matches `parts` below `dir`; `bare` omits `dir` from the paths.
    fn expand(&mut self, dir: &Path, parts: &[PatternPart], bare: bool) -> Result<()> {
        let Some((part, rest)) = parts.split_first() else {
            self.meet(dir.to_owned());
            return Ok(());
        };
        let child = |name: &str| if bare { PathBuf::from(name) } else { dir.join(name) };
        match part {
            PatternPart::Name(name) => {
                let path = child(name);
                if path.exists() { self.expand(&path, rest, false) } else { Ok(()) }
            }
            PatternPart::Match(pattern) => {
                let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
                // A folder that cannot be listed matches nothing, as in a shell.
                for (_, name, _) in entries(dir).unwrap_or_default() {
                    if pattern.matches_with(&name, options) {
                        self.expand(&child(&name), rest, false)?;
                    }
                }
                Ok(())
            }
            PatternPart::Folders => {
                if !rest.is_empty() {
                    self.expand(dir, rest, bare)?;
                }
                for (_, name, kind) in entries(dir).unwrap_or_default() {
                    // Symbolic links are not followed, like in a shell: they may form cycles.
                    if kind.is_dir() && !name.starts_with('.') {
                        self.expand(&child(&name), parts, false)?;
                    } else if rest.is_empty() && !name.starts_with('.') {
                        self.meet(child(&name));
                    }
                }
                Ok(())
            }
        }
    }
}

/// A component of a pattern.
enum PatternPart {
    Name(String),
    Match(glob::Pattern),
    /// `**`
    Folders,
}

impl PatternPart {
    fn of(text: &str, wild: bool) -> Result<Self, glob::PatternError> {
        Ok(match text {
            "**" => Self::Folders,
            _ if wild => Self::Match(glob::Pattern::new(text)?),
            _ => Self::Name(text.to_owned()),
        })
    }
}

/// Returns path, name and kind of the entries of `dir`, sorted by name.
fn entries(dir: &Path) -> Result<Vec<(PathBuf, String, FileType)>> {
    let read = || -> std::io::Result<Vec<_>> {
        let entry = |entry: std::io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok((entry.path(), entry.file_name().to_string_lossy().into_owned(), entry.file_type()?))
        };
        fs::read_dir(dir)?.map(entry).collect()
    };
    let mut all = read().map_err(|e| Error::io("reading", dir, &e))?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &All, root: &Path) -> Vec<String> {
        all.files.iter().map(|f| f.path.strip_prefix(root).unwrap().display().to_string()).collect()
    }

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "text").unwrap();
        }
        dir
    }

    #[test]
    fn walks_sorts_and_skips() {
        let dir = tree(&[
            "b.md",
            "a/z.rs",
            "a/.hidden",
            ".git/x",
            "target/y",
            "run/metrics.jsonl",
            "run/report.html",
            "Cargo.lock",
        ]);
        let root = dir.path();
        assert_eq!(names(&find(&[root]).unwrap(), root), ["a/z.rs", "b.md"]);
        let both = find(&[root.to_owned(), root.join("b.md")]).unwrap();
        assert_eq!((names(&both, root), both.files[1].named), (vec!["a/z.rs".into(), "b.md".into()], true));
        assert_eq!(names(&find(&[root.join("**/*.rs")]).unwrap(), root), ["a/z.rs"]);
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        let dir =
            tree(&["a.txt", "b.txt", "x/a.txt", "x/y/a.txt", "x/y/c.md", ".h/a.txt", "x/.a.txt", "[q].txt"]);
        let root = dir.path();
        for (pattern, expected) in [
            ("*.txt", vec!["[q].txt", "a.txt", "b.txt"]),
            ("**/*.txt", vec!["[q].txt", "a.txt", "b.txt", "x/a.txt", "x/y/a.txt"]),
            ("x/**", vec!["x/a.txt", "x/y/a.txt", "x/y/c.md"]),
            ("**/y/*", vec!["x/y/a.txt", "x/y/c.md"]),
            ("?/a.txt", vec!["x/a.txt"]),
            ("*/y/[a-b].*", vec!["x/y/a.txt"]),
            ("**/**/c.md", vec!["x/y/c.md"]),
            // A file with exactly this name takes precedence over the pattern.
            ("[q].txt", vec!["[q].txt"]),
        ] {
            assert_eq!(names(&find(&[root.join(pattern)]).unwrap(), root), expected, "{pattern}");
        }
    }

    /// `**` does not follow a link to a parent folder (formerly it did, 41 times).
    #[cfg(unix)]
    #[test]
    fn a_symlink_loop_is_walked_once() {
        let dir = tree(&["a/one.txt", "a/b/two.txt", "other/three.txt"]);
        let root = dir.path();
        // Following both loops would give 2^40 paths.
        std::os::unix::fs::symlink(root, root.join("a/up")).unwrap();
        std::os::unix::fs::symlink("..", root.join("a/b/up")).unwrap();
        std::os::unix::fs::symlink("other", root.join("linked")).unwrap();
        let all = ["a/b/two.txt", "a/one.txt", "other/three.txt"];
        assert_eq!(names(&find(&[root.join("**/*.txt")]).unwrap(), root), all);
        assert_eq!(names(&find(&[root]).unwrap(), root), all);
        assert_eq!(names(&find(&[root.join("*/*.txt")]).unwrap(), root), ["a/one.txt", "other/three.txt"]);
    }

    /// Formerly the text was used once for each of its paths.
    #[cfg(unix)]
    #[test]
    fn a_file_under_two_paths_is_read_once() {
        let dir = tree(&["a.txt", "sub/b.txt"]);
        let root = dir.path();
        fs::hard_link(root.join("a.txt"), root.join("hard.txt")).unwrap();
        std::os::unix::fs::symlink("a.txt", root.join("0.txt")).unwrap();
        let all = find(&[root]).unwrap();
        assert_eq!(names(&all, root), ["a.txt", "sub/b.txt"]);
        assert_eq!(all.again.len(), 2);
        let twice = find(&[root.join("sub/../a.txt"), root.join("a.txt")]).unwrap();
        assert_eq!((twice.files.len(), twice.again.len()), (1, 1));
    }

    /// A FIFO is not opened (formerly it blocked and ignored signals).
    #[cfg(unix)]
    #[test]
    fn a_fifo_a_socket_and_a_device_are_named_and_not_opened() {
        let dir = tree(&["a.txt"]);
        let root = dir.path();
        let made = std::process::Command::new("mkfifo").arg(root.join("pipe.txt")).status().unwrap();
        assert!(made.success());
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket.txt")).unwrap();
        for (path, what) in [
            (root.join("pipe.txt"), "is a FIFO (a named pipe), expected a regular file"),
            (root.join("socket.txt"), "is a socket"),
            ("/dev/zero".into(), "is a device file"),
        ] {
            let message = find(&[&path]).unwrap_err().to_string();
            assert!(message.contains(what) && message.contains(&path.display().to_string()), "{message}");
        }
        for spec in [root.to_owned(), root.join("*.txt"), root.join("**")] {
            let all = find(&[&spec]).unwrap();
            assert_eq!(names(&all, root), ["a.txt"]);
            assert_eq!(
                all.special,
                [(root.join("pipe.txt"), "a FIFO (a named pipe)"), (root.join("socket.txt"), "a socket")]
            );
        }
    }

    #[test]
    fn nothing_found_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (spec, part) in [
            (root.to_owned(), "the folder does not have a file"),
            (root.join("*.txt"), "the pattern matches no file"),
            (root.join("a.txt"), "no such file; --data takes files"),
            (root.join("a[.txt"), "invalid pattern"),
            (root.join("a**b"), "invalid pattern"),
        ] {
            let message = find(&[spec]).unwrap_err().to_string();
            assert!(message.contains(part) && message.contains(&root.display().to_string()), "{message}");
        }
    }
}
