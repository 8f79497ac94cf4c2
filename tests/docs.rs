//! The tables in docs/ say what the code does.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl::prelude::ErrorKind;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Cells of a table's rows, header and rule left out.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|c| c.trim().trim_matches('`').to_owned()).collect()
    };
    text.lines().filter(|l| l.starts_with('|') && !l.starts_with("| ---")).skip(1).map(cells).collect()
}

#[test]
fn every_kind_of_error_is_documented_with_its_exit_code() {
    let text = read("docs/errors.md");
    let table: Vec<(String, String)> =
        rows(&text).into_iter().filter(|r| r.len() >= 3).map(|r| (r[0].clone(), r[1].clone())).collect();
    let kinds: Vec<(String, String)> =
        ErrorKind::ALL.iter().map(|k| (format!("{k:?}"), k.exit_code().to_string())).collect();
    assert_eq!(table[..kinds.len().min(table.len())], kinds, "docs/errors.md and ErrorKind::ALL differ");
}

#[test]
fn the_table_of_what_a_resume_may_change_is_the_codes() {
    use netcl::nn::config::{Change, RESUME};
    let text = read("docs/guide.md");
    let of = |part: &str| -> BTreeSet<String> {
        let found = rows(&text).into_iter().filter(|r| r.len() == 2 && r[1].starts_with(part));
        found
            .flat_map(|r| r[0].split(", ").map(|key| key.trim_matches('`').to_owned()).collect::<Vec<_>>())
            .collect()
    };
    for (change, part) in [
        (Change::Fixed, "refused by name"),
        (Change::Added, "may be added to"),
        (Change::Rate, "from the next step on; what happens to the learning rate"),
    ] {
        let keys: BTreeSet<String> =
            RESUME.iter().filter(|(_, c)| *c == change).map(|(key, _)| (*key).to_owned()).collect();
        assert_eq!(of(part), keys, "docs/guide.md and RESUME differ on {change:?}");
    }
    let all: BTreeSet<String> = RESUME.iter().map(|(key, _)| (*key).to_owned()).collect();
    let listed: BTreeSet<String> =
        ["refused by name", "may be added to", "from the next step on"].into_iter().flat_map(of).collect();
    assert_eq!(listed, all, "docs/guide.md and RESUME differ");
}

/// Names like NETCL_… in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (at, _) in text.match_indices("NETCL_") {
        let rest = &text[at..];
        let end = rest
            .find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'))
            .unwrap_or(rest.len());
        if end > "NETCL_".len() && !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            out.insert(rest[..end].to_owned());
        }
    }
    out
}

fn sources(folder: &Path, out: &mut String) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| ["rs", "sh", "py"].iter().any(|w| e == *w))
            && !path.ends_with("docs.rs")
        {
            out.push_str(&std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

#[test]
fn every_variable_is_documented_and_nothing_else() {
    let mut code = String::new();
    for folder in ["src", "crates", "cli", "tests", "tools", "examples"] {
        sources(&root().join(folder), &mut code);
    }
    let (used, told) = (variables(&code), variables(&read("docs/env-vars.md")));
    let missing: Vec<_> = used.difference(&told).collect();
    let stale: Vec<_> = told.difference(&used).collect();
    assert!(missing.is_empty(), "docs/env-vars.md lacks {missing:?}");
    assert!(stale.is_empty(), "docs/env-vars.md tells of {stale:?}, which nothing reads");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for document in [
        "README.md",
        "ARCHITECTURE.md",
        "docs/guide.md",
        "docs/env-vars.md",
        "docs/errors.md",
        "docs/kernels.md",
    ] {
        let text = read(document);
        for (at, _) in text.match_indices("](") {
            let target: String = text[at + 2..].chars().take_while(|c| *c != ')' && *c != '#').collect();
            let folder = root().join(document).parent().unwrap().to_owned();
            if !target.is_empty() && !target.contains("://") && !folder.join(&target).exists() {
                wrong.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
