//! One name per public type of a crate.

use super::files::{files, read};
use std::collections::BTreeMap;

/// Names that several types of a crate may have: crate or an empty string for all, name, reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("", "Args", "the arguments of each command"),
    ("crates/aethercl", "Expr", "in the syntax tree and in the typed tree"),
    ("crates/aethercl", "ExprKind", "in the syntax tree and in the typed tree"),
    ("crates/aethercl", "Stmt", "in the syntax tree and in the typed tree"),
    ("crates/aethercl", "StmtKind", "in the syntax tree and in the typed tree"),
    ("crates/device", "Event", "with and without the simulated GPU"),
    ("crates/device", "Memory", "with and without the simulated GPU"),
    ("crates/device", "Program", "with and without the simulated GPU"),
];

/// Returns the name of the type that a line declares as public, to the crate or to a module at least.
fn declared(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = if rest.starts_with('(') { rest.split_once(") ")?.1 } else { rest.strip_prefix(' ')? };
    let rest =
        ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn public_types_of_a_crate_have_different_names() {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for path in files(&["rs"]) {
        let file = path.display().to_string();
        let Some((package, _)) = file.split_once("src/") else { continue };
        let package = package.trim_end_matches('/').to_owned();
        for (n, line) in read(&path).lines().enumerate() {
            if let Some(name) = declared(line) {
                places
                    .entry((package.clone(), name.to_owned()))
                    .or_default()
                    .push(format!("{file}:{}", n + 1));
            }
        }
    }
    let mut wrong = Vec::new();
    for ((package, name), places) in &places {
        let allowed = ALLOWED.iter().any(|(p, n, _)| (p.is_empty() || p == package) && n == name);
        if places.len() > 1 && !allowed {
            wrong.push(format!("{name}: {}", places.join(", ")));
        }
    }
    assert!(wrong.is_empty(), "one name per type: rename all but one\n{}", wrong.join("\n"));
    for (package, name, reason) in ALLOWED {
        let used = places
            .iter()
            .any(|((p, n), at)| (package.is_empty() || p == package) && n == name && at.len() > 1);
        assert!(used && !reason.is_empty(), "{package} {name} does not repeat; remove it from ALLOWED");
    }
}

#[test]
fn declarations_are_found() {
    assert_eq!(declared("    pub(super) struct Plan<'a> {"), Some("Plan"));
    assert_eq!(declared("pub(in crate::ops) trait Job {"), Some("Job"));
    assert_eq!(declared("pub type Form = (Shape, DType);"), Some("Form"));
    assert_eq!(declared("struct Private;"), None);
    assert_eq!(declared("pub fn f() {}"), None);
}
