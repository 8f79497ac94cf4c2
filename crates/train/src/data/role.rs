//! Parts of data by the names of files and folders: `train.txt` and `val.txt`, `train/` and `validation/`, `wiki.train.tokens`.

use super::files::FoundFile;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// A part of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Train,
    Val,
    Test,
}

/// Words of names that do not indicate a part.
const SILENT: [&str; 12] =
    ["txt", "text", "raw", "tokens", "tok", "md", "json", "jsonl", "csv", "tsv", "of", "data"];
/// File name extensions of data rather than source code.
const DATA: [&str; 16] = [
    "txt", "text", "raw", "tokens", "tok", "md", "rst", "html", "xml", "json", "jsonl", "ndjson", "csv",
    "tsv", "utf8", "dat",
];

impl Role {
    fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "train" | "training" => Self::Train,
            "val" | "valid" | "validation" | "dev" | "eval" | "evaluation" | "heldout" | "holdout" => {
                Self::Val
            }
            "test" | "testing" => Self::Test,
            _ => return None,
        })
    }

    /// Returns the part of a token shard, by any word of its name: `train.bin`, `tiny_shakespeare_val.bin`, `fineweb_train_000001.bin`.
    pub fn of_shard(path: &Path) -> Option<Self> {
        let stem = path.file_stem()?.to_string_lossy().to_ascii_lowercase();
        stem.split(|c: char| !c.is_alphanumeric()).find_map(Self::of_word)
    }

    /// Returns the part of a text file or a folder by its first or last word, and the rest of its name: `wiki` for `wiki.train.tokens`.
    fn of_name(name: &str) -> Option<(Self, String)> {
        let name = name.to_ascii_lowercase();
        let mut words: Vec<&str> = name.split(|c: char| !c.is_alphanumeric()).collect();
        words.retain(|word| {
            !word.is_empty() && !SILENT.contains(word) && !word.chars().all(|c| c.is_ascii_digit())
        });
        let last = words.last().and_then(|word| Self::of_word(word)).map(|role| (role, words.len() - 1));
        let (role, at) = last.or_else(|| Some((Self::of_word(words.first()?)?, 0)))?;
        words.remove(at);
        Some((role, words.join(" ")))
    }
}

/// A place in which parts can be adjacent: folder, the rest of their names, and whether they are folders.
type Place = (PathBuf, String, bool);

/// The files of each part.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub train: Vec<FoundFile>,
    pub val: Vec<FoundFile>,
    /// Files next to the parts that belong to none, and test parts if there is a validation part.
    pub left_out: Vec<PathBuf>,
}

/// Divides text files by their names. A name counts if a training part is next to another part.
pub(super) fn divide(files: Vec<FoundFile>) -> Parts {
    let places: Vec<Vec<(Place, Role)>> = files.iter().map(places).collect();
    let mut groups: BTreeMap<&Place, (Vec<Role>, bool)> = BTreeMap::new();
    for (file, places) in files.iter().zip(&places) {
        for (place, role) in places {
            let (roles, data) = groups.entry(place).or_insert_with(|| (Vec::new(), true));
            *data &= is_data(&file.path) || place.0.as_os_str().is_empty();
            roles.push(*role);
        }
    }
    let valid: BTreeSet<Place> = groups
        .into_iter()
        .filter(|(_, (roles, data))| {
            *data && roles.contains(&Role::Train) && roles.iter().any(|r| *r != Role::Train)
        })
        .map(|(place, _)| place.clone())
        .collect();
    let mut parts = Parts::default();
    if valid.is_empty() {
        return lone(files);
    }
    let mut tests = Vec::new();
    for (file, places) in files.into_iter().zip(&places) {
        match places.iter().find(|(place, _)| valid.contains(place)) {
            Some((_, Role::Train)) => parts.train.push(file),
            Some((_, Role::Val)) => parts.val.push(file),
            Some((_, Role::Test)) => tests.push(file),
            None if !file.named
                && valid.iter().any(|(at, ..)| !at.as_os_str().is_empty() && file.path.starts_with(at)) =>
            {
                parts.left_out.push(file.path);
            }
            None => parts.train.push(file),
        }
    }
    if parts.val.is_empty() {
        parts.val = tests;
    } else {
        parts.left_out.extend(tests.into_iter().map(|file| file.path));
    }
    parts
}

/// Handles data without a training part by name: a file or folder `val` next to others is the validation part.
fn lone(files: Vec<FoundFile>) -> Parts {
    let is_val = |file: &FoundFile| {
        let word = |name: &str| matches!(name.to_ascii_lowercase().as_str(), "val" | "valid" | "validation");
        let inner = file.path.strip_prefix(&file.root).unwrap_or(&file.path);
        let stem = inner.file_stem().is_some_and(|stem| word(&stem.to_string_lossy()));
        let folders = inner.parent().into_iter().flat_map(Path::components);
        is_data(&file.path) && (stem || folders.into_iter().any(|c| word(&c.as_os_str().to_string_lossy())))
    };
    // Folders of programs also use these names.
    let programs = files.iter().any(|file| !is_data(&file.path) && !file.named);
    let (val, train): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| !programs && is_val(file));
    if train.is_empty() {
        Parts { train: val, ..Parts::default() }
    } else {
        Parts { train, val, left_out: Vec::new() }
    }
}

/// Returns whether a file is data by its name, not a program.
fn is_data(path: &Path) -> bool {
    let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
    ending.is_none_or(|ending| DATA.contains(&&*ending) || Role::of_word(&ending).is_some())
}

/// Returns the places in which a file may belong to a part, the outermost first.
fn places(file: &FoundFile) -> Vec<(Place, Role)> {
    let mut all = Vec::new();
    let mut add = |at: PathBuf, name: &str, folder: bool| {
        if let Some((role, rest)) = Role::of_name(name) {
            all.push(((at, rest, folder), role));
        }
    };
    // Named files belong together, wherever they are stored.
    if let Some(name) = name_of(&file.root) {
        add(PathBuf::new(), &name, true);
    }
    let inner = file.path.strip_prefix(&file.root).unwrap_or(&file.path);
    let mut at = file.root.clone();
    let names: Vec<_> = inner.components().filter(|c| matches!(c, Component::Normal(_))).collect();
    for (i, component) in names.iter().enumerate() {
        let name = component.as_os_str().to_string_lossy();
        let folder = i + 1 < names.len();
        if folder || is_data(&file.path) {
            let place = if file.named { PathBuf::new() } else { at.clone() };
            add(place, &name, folder);
        }
        at.push(component);
    }
    all
}

/// Returns the name of a folder, even if it is written `.` or `..`.
fn name_of(folder: &Path) -> Option<String> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    name.or_else(|| Some(std::fs::canonicalize(folder).ok()?.file_name()?.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(root: &str, names: &[&str]) -> Vec<FoundFile> {
        let one =
            |name: &&str| FoundFile { path: Path::new(root).join(name), named: false, root: root.into() };
        names.iter().map(one).collect()
    }

    fn shown(parts: &Parts) -> [String; 3] {
        let names = |files: &[FoundFile]| {
            files.iter().map(|f| f.path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        let out: Vec<_> = parts.left_out.iter().map(|path| path.display().to_string()).collect();
        [names(&parts.train), names(&parts.val), out.join(" ")]
    }

    #[test]
    fn parts_are_told_by_names_and_programs_are_not() {
        for (names, [train, val, left_out]) in [
            (&["train.txt", "val.txt"][..], ["d/train.txt", "d/val.txt", ""]),
            (&["README.md", "train.txt", "valid.txt"], ["d/train.txt", "d/valid.txt", "d/README.md"]),
            (&["test.txt", "train.txt", "validation.txt"], ["d/train.txt", "d/validation.txt", "d/test.txt"]),
            (&["dev.txt", "train.txt"], ["d/train.txt", "d/dev.txt", ""]),
            (&["test.txt", "train.txt"], ["d/train.txt", "d/test.txt", ""]),
            (
                &["train/a.txt", "train/test.txt", "val/a.txt"],
                ["d/train/a.txt d/train/test.txt", "d/val/a.txt", ""],
            ),
            (&["a/train.txt", "a/val.txt", "b.txt"], ["d/a/train.txt d/b.txt", "d/a/val.txt", ""]),
            (
                &["wiki.test.tokens", "wiki.train.tokens", "wiki.valid.tokens"],
                ["d/wiki.train.tokens", "d/wiki.valid.tokens", "d/wiki.test.tokens"],
            ),
            (&["S-train.txt", "S-valid.txt"], ["d/S-train.txt", "d/S-valid.txt", ""]),
            (
                &["train-00000-of-00002.txt", "train-00001-of-00002.txt", "validation-00000-of-00001.txt"],
                [
                    "d/train-00000-of-00002.txt d/train-00001-of-00002.txt",
                    "d/validation-00000-of-00001.txt",
                    "",
                ],
            ),
            (&["train", "valid"], ["d/train", "d/valid", ""]),
            (&["book.txt", "val.txt"], ["d/book.txt", "d/val.txt", ""]),
            (&["val.txt"], ["d/val.txt", "", ""]),
            // Programs, and names in which the words mean something else.
            (&["eval.rs", "test.rs", "train.rs"], ["d/eval.rs d/test.rs d/train.rs", "", ""]),
            (
                &["test/README.md", "test/a.py", "train/README.md", "train/a.py"],
                ["d/test/README.md d/test/a.py d/train/README.md d/train/a.py", "", ""],
            ),
            (
                &["how-to-train-your-dragon.txt", "the test of time.txt"],
                ["d/how-to-train-your-dragon.txt d/the test of time.txt", "", ""],
            ),
            (&["a.txt", "training.md"], ["d/a.txt d/training.md", "", ""]),
            (&["main.rs", "val.txt"], ["d/main.rs d/val.txt", "", ""]),
        ] {
            assert_eq!(
                shown(&divide(found("d", names))),
                [train, val, left_out].map(String::from),
                "{names:?}"
            );
        }
    }

    #[test]
    fn what_is_named_apart_belongs_together() {
        let both = [found("x/train", &["a.txt"]), found("y/val", &["a.txt"])].concat();
        assert_eq!(shown(&divide(both)), ["x/train/a.txt", "y/val/a.txt", ""].map(String::from));
        let named = |path: &str| FoundFile {
            path: path.into(),
            named: true,
            root: Path::new(path).parent().unwrap().into(),
        };
        let files = vec![named("a/my_train.txt"), named("b/my_val.txt"), named("c/more.txt")];
        let expected = ["a/my_train.txt c/more.txt", "b/my_val.txt", ""].map(String::from);
        assert_eq!(shown(&divide(files)), expected);
        // A single folder is the whole data.
        let one = found("x/train", &["a.txt", "b.txt"]);
        assert_eq!(shown(&divide(one))[0], "x/train/a.txt x/train/b.txt");
    }
}
