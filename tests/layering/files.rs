//! The files of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the files with these endings that git tracks, or would track.
pub fn files(endings: &[&str]) -> Vec<PathBuf> {
    let git = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let listed =
        git.ok().filter(|o| o.status.success()).map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let all: Vec<PathBuf> = match listed {
        Some(text) => text.lines().map(PathBuf::from).collect(),
        None => ["src", "crates", "cli", "tests", "examples", "tools", "docs"]
            .iter()
            .flat_map(|d| walk(d))
            .collect(),
    };
    let ends = |p: &Path| p.extension().is_some_and(|e| endings.iter().any(|w| e == *w));
    all.into_iter().filter(|p| ends(p) && root().join(p).is_file()).collect()
}

/// For a copy without git: returns everything below a folder except build products.
fn walk(folder: &str) -> Vec<PathBuf> {
    let (mut open, mut out) = (vec![PathBuf::from(folder)], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).into_iter().flatten().flatten() {
            let path = folder.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && entry.file_name() != "target" => open.push(path),
                _ => out.push(path),
            }
        }
    }
    out
}
