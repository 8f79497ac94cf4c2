//! Checks that the files of a crate do not use each other in cycles.
//!
//! It considers `use` and paths that start with `crate` or `super`, outside of tests. A re-export (`pub use`) is followed to the file that
//! defines the item. A file may use its folder's module (`mod.rs`, or the file with the folder's name), and that module may use its files:
//! together they count as one unit.

use super::{files, read};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Module = Vec<String>;

/// Returns the source without comments and without the contents of strings.
fn bare(text: &str) -> String {
    let text = text.replace("'\"'", "' '").replace("'\\''", "' '");
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find(['/', '"']) {
        out += &rest[..at];
        rest = &rest[at..];
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with('"') {
            let mut end = 1;
            while let Some(c) = rest.as_bytes().get(end).filter(|c| **c != b'"') {
                end += 1 + usize::from(*c == b'\\');
            }
            (end + 1).min(rest.len())
        } else {
            out.push('/');
            1
        };
        rest = &rest[skipped..];
    }
    out + rest
}

/// Returns the source without items that only tests use.
pub fn without_tests(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("#[cfg(").filter(|_| rest.contains("#[cfg(")) {
        let end = at + rest[at..].find(']').map_or(0, |e| e + 1);
        if !rest[at..end].contains("test") {
            out += &rest[..end];
            rest = &rest[end..];
            continue;
        }
        out += &rest[..at];
        let (mut depth, mut length) = (0, rest.len() - end);
        for (i, c) in rest[end..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if (c == '}' || c == ';') && depth == 0 {
                length = i + 1;
                break;
            }
        }
        rest = &rest[end + length..];
    }
    out + rest
}

/// A path, and its name after the import.
type Named = (Vec<String>, String);

/// Expands `a::{b, c::{d, e as f}}` to single paths.
fn expand(path: &str, out: &mut Vec<Named>, before: &[String]) {
    let (head, group) =
        path.split_once('{').map_or((path, None), |(h, g)| (h, g.rfind('}').map(|end| &g[..end])));
    let mut segments = before.to_vec();
    let (head, alias) = head.split_once(" as ").map_or((head, None), |(head, alias)| (head, Some(alias)));
    segments.extend(head.split("::").map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()));
    let Some(group) = group else {
        let last = segments.last().map_or("", String::as_str);
        let name = alias.map_or(last, str::trim).to_owned();
        out.push((segments, name));
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (i, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[start..i].trim().is_empty() {
                    expand(&group[start..i], out, &segments);
                }
                start = i + 1;
            }
            _ => {}
        }
    }
}

/// Returns the names in a file: re-exports, and all others.
fn named(text: &str) -> (Vec<Named>, Vec<Named>) {
    let (mut exported, mut used) = (Vec::new(), Vec::new());
    let mut plain = String::new();
    for statement in text.split_inclusive(';') {
        let at = statement.match_indices("use ").map(|(at, _)| at);
        let begins =
            at.filter(|at| statement[..*at].chars().next_back().is_none_or(char::is_whitespace)).last();
        match begins.filter(|_| statement.ends_with(';')) {
            Some(at) => {
                let before = statement[..at].trim_end();
                let public = before.ends_with("pub")
                    || before.ends_with("pub(crate)")
                    || before.ends_with("pub(super)");
                let path = statement[at + 4..statement.len() - 1].replace('\n', " ");
                expand(&path, if public { &mut exported } else { &mut used }, &[]);
                plain += before;
            }
            None => plain += statement,
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in plain.match_indices(start) {
            if plain[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let end = plain[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &plain[at..end.map_or(plain.len(), |end| at + end)];
            expand(path.trim_end_matches(':'), &mut used, &[]);
        }
    }
    (exported, used)
}

/// Files of one crate.
#[derive(Default)]
struct Crate {
    files: BTreeMap<Module, PathBuf>,
    exported: BTreeMap<Module, BTreeMap<String, Module>>,
    used: BTreeMap<Module, Vec<Named>>,
}

impl Crate {
    fn of(sources: &[(PathBuf, String)], folder: &Path) -> Self {
        let mut out = Self::default();
        let mut exports = Vec::new();
        for (path, text) in sources {
            let inside = path.strip_prefix(folder).unwrap().with_extension("");
            let mut module: Module = inside.iter().map(|s| s.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|l| ["mod", "lib", "main"].contains(&l.as_str())) {
                module.pop();
            }
            let (exported, used) = named(&without_tests(&bare(text)));
            exports.push((module.clone(), exported));
            out.used.insert(module.clone(), used);
            out.files.insert(module, path.clone());
        }
        for (module, paths) in exports {
            let found =
                paths.into_iter().filter_map(|(path, name)| Some((name, out.absolute(&path, &module)?)));
            let found = found.collect();
            out.exported.insert(module, found);
        }
        out
    }

    /// Resolves a path from the crate's root. Returns `None` for another crate's path.
    fn absolute(&self, path: &[String], from: &Module) -> Option<Module> {
        let mut base = from.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                base.push(first.to_owned());
                let child = self.files.contains_key(&base);
                base.pop();
                if !child {
                    return None;
                }
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// Returns the file that defines an item.
    fn owner(&self, item: &[String], depth: usize) -> Option<Module> {
        let length = (0..=item.len()).rev().find(|n| self.files.contains_key(&item[..*n]))?;
        let (module, rest) = item.split_at(length);
        let next = rest.first().and_then(|name| self.exported.get(module)?.get(name));
        match next.filter(|next| depth < 8 && next.as_slice() != item) {
            Some(next) => self.owner(&[next.as_slice(), &rest[1..]].concat(), depth + 1),
            None => Some(module.to_vec()),
        }
    }

    /// Returns which file uses which.
    fn edges(&self) -> BTreeMap<&Path, BTreeSet<&Path>> {
        let mut out: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (module, paths) in &self.used {
            for (path, _) in paths {
                let Some(used) = self.absolute(path, module).and_then(|item| self.owner(&item, 0)) else {
                    continue;
                };
                // Excludes the file itself and the module of its folder.
                if !module.starts_with(&used) {
                    out.entry(&self.files[module]).or_default().insert(&self.files[&used]);
                }
            }
        }
        out
    }
}

fn reached<'p>(from: &'p Path, edges: &BTreeMap<&'p Path, BTreeSet<&'p Path>>) -> BTreeSet<&'p Path> {
    let (mut open, mut seen) = (vec![from], BTreeSet::new());
    while let Some(path) = open.pop() {
        open.extend(edges.get(path).into_iter().flatten().copied().filter(|next| seen.insert(*next)));
    }
    seen
}

/// Returns uses that are part of cycles.
fn circular<'p>(edges: &BTreeMap<&'p Path, BTreeSet<&'p Path>>) -> Vec<(&'p Path, &'p Path)> {
    let all = || edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, *to)));
    all().filter(|(from, to)| reached(to, edges).contains(from)).collect()
}

#[test]
fn no_file_uses_one_that_uses_it() {
    let folders = [
        "crates/aethercl/src",
        "crates/device/src",
        "crates/kernel/src",
        "crates/tensor/src",
        "crates/dist/src",
        "crates/model/src",
        "crates/llm/src",
        "crates/train/src",
        "crates/server/src",
        "crates/lab/src",
        "crates/aethercl-icd/src",
        "src",
        "cli/src",
        "python/src",
        "capi/src",
        "capi/src",
    ];
    let tests = |p: &Path| {
        let name = p.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        name == "tests" || name.ends_with("_tests") || p.iter().any(|part| part == "tests")
    };
    let sources: Vec<(PathBuf, String)> =
        files(&["rs"]).into_iter().filter(|p| !tests(p)).map(|p| (p.clone(), read(&p))).collect();
    let mut wrong = Vec::new();
    for folder in folders {
        let own: Vec<_> = sources.iter().filter(|(p, _)| p.starts_with(folder)).cloned().collect();
        let found = Crate::of(&own, Path::new(folder));
        let edges = found.edges();
        wrong.extend(
            circular(&edges).iter().map(|(from, to)| format!("{} uses {}", from.display(), to.display())),
        );
    }
    assert!(wrong.is_empty(), "files in a circle; move what both need into a third:\n{}", wrong.join("\n"));
}

#[test]
fn circles_are_found_through_re_exports_and_groups_and_not_in_tests_and_comments() {
    let source = |name: &str, text: &str| (PathBuf::from(format!("src/{name}.rs")), text.to_owned());
    let found = |a: &str| {
        let sources = [
            source("lib", "mod a; mod b; mod folder; pub use folder::Thing;"),
            source("a", a),
            source("b", "use crate::a::{self, A};"),
            source("folder/mod", "mod part; pub use part::Other as Thing;"),
            source("folder/part", "use crate::b; use super::Thing;"),
        ];
        let found = Crate::of(&sources, Path::new("src"));
        let edges = found.edges();
        circular(&edges).len()
    };
    assert_eq!(found("use crate::b;"), 2);
    assert_eq!(found("use crate::Thing;"), 3);
    assert_eq!(found("fn f() -> super::b::B { crate::b::new() }"), 2);
    assert_eq!(
        found("// use crate::b;\nconst T: &str = \"crate::b\"; #[cfg(test)] mod tests { use crate::b; }"),
        0
    );
    assert_eq!(found("#[cfg(unix)] use crate::b;"), 2);
}
