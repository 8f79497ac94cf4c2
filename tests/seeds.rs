//! Checks docs/book/seeds.md: each promise of the five design documents names a test that exists.
//!
//! A test of a promise has the row's number in its name, in Python (`test_row_043_…`), Rust (`row_040_…`) or C (`row_001`). `row_153_to_155_…`
//! and `row_224_and_226_…` are tests of several rows. The page lists all of them, and may name other tests in addition.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Number of promises.
const ROWS: usize = 248;
const PAGE: &str = "docs/book/seeds.md";
/// Texts before the name of a test, by language.
const DEFINITIONS: [&str; 3] = ["def ", "fn ", "void "];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the names of functions that a source defines.
fn functions(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        let Some(at) = DEFINITIONS.iter().find_map(|d| line.find(d).map(|at| at + d.len())) else { continue };
        let name: String = line[at..].chars().take_while(|c| is_name(*c)).collect();
        if !name.is_empty() && line[at + name.len()..].starts_with(['(', '<']) {
            out.push(name);
        }
    }
    out
}

/// Returns the rows that the name of a test states: none, one, or several.
fn rows_of(name: &str) -> Vec<usize> {
    let name = name.strip_prefix("test_").unwrap_or(name);
    let Some(rest) = name.strip_prefix("row_") else { return Vec::new() };
    let words: Vec<&str> = rest.split('_').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let Some(first) = number(0) else { return Vec::new() };
    let (mut rows, mut at) = (vec![first], 1);
    while let (Some(joint @ (&"and" | &"to")), Some(next)) = (words.get(at), number(at + 1)) {
        let last = rows[rows.len() - 1];
        if *joint == "and" {
            rows.push(next)
        } else {
            rows.extend(last + 1..=next)
        }
        at += 2;
    }
    rows
}

/// Adds the source files below a folder.
fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root().join(folder)).unwrap().flatten() {
        let path = folder.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && entry.file_name() != "target" => sources(&path, out),
            _ if path.extension().is_some_and(|e| ["rs", "py", "c"].iter().any(|w| e == *w)) => {
                out.push(path)
            }
            _ => {}
        }
    }
}

/// Returns the links to the tests of each row, sorted.
fn links_of_tests() -> BTreeMap<usize, Vec<String>> {
    let mut files = Vec::new();
    ["capi", "cli", "crates", "python", "tests"].iter().for_each(|f| sources(Path::new(f), &mut files));
    files.sort();
    let mut found: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for path in files.iter().filter(|path| !path.ends_with(file!())) {
        let file = path.display().to_string();
        for name in functions(&read(&file)) {
            for row in rows_of(&name) {
                assert!((1..=ROWS).contains(&row), "{file}: {name}: row {row} does not exist");
                found.entry(row).or_default().push(format!("[{name}](../../{file})"));
            }
        }
    }
    found
}

/// Returns the name and the target of each link in a cell.
fn links(cell: &str) -> Vec<(String, String)> {
    let parts = cell.split('[').skip(1).filter_map(|part| part.split_once("]("));
    parts.filter_map(|(name, rest)| Some((name.into(), rest.split_once(')')?.0.into()))).collect()
}

/// Returns the cells of a row of the table: number, design document, promise, state, tests.
fn cells(line: &str) -> Option<(usize, Vec<&str>)> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    Some((cells.first()?.parse().ok()?, cells))
}

/// Returns what is wrong with a row: its state, or a test that does not exist.
fn faults(row: usize, cells: &[&str]) -> Vec<String> {
    let [_, seed, promise, state, tests] = cells else {
        return vec![format!("row {row}: expected 5 cells, found {}", cells.len())];
    };
    let mut wrong = Vec::new();
    if !["000", "001", "002", "003", "004"].contains(seed) || promise.len() < 8 {
        wrong.push(format!("row {row}: expected a design document and a promise"));
    }
    if *state != "works" && state.strip_prefix("partly: ").is_none_or(|why| why.len() <= 10) {
        wrong.push(format!(
            "row {row}: the state is {state:?}, expected `works`, or `partly: ` and what is missing"
        ));
    }
    let mut count = 0;
    for (name, target) in links(tests) {
        let file = target.trim_start_matches("../../");
        // A measurement; another test checks the link.
        if file.contains(".md") {
            continue;
        }
        count += 1;
        if !functions(&read(file)).contains(&name) {
            wrong.push(format!("row {row}: {file} does not define the test {name}"));
        }
    }
    if count == 0 {
        wrong.push(format!("row {row} names no test"));
    }
    wrong
}

#[test]
fn every_promise_has_a_test_that_exists() {
    let (page, tests) = (read(PAGE), links_of_tests());
    let (mut wrong, mut rows, mut corrected) = (Vec::new(), Vec::new(), String::new());
    let mut counts = [0, 0];
    for line in page.lines() {
        let Some((row, cells)) = cells(line) else {
            corrected += &format!("{line}\n");
            continue;
        };
        rows.push(row);
        // Tests that are named by the row come from the sources; other links stay.
        let others =
            links(cells.last().unwrap()).into_iter().filter(|(name, _)| !rows_of(name).contains(&row));
        let mut all = tests.get(&row).cloned().unwrap_or_default();
        all.extend(others.map(|(name, target)| format!("[{name}]({target})")));
        let mut wanted = cells.clone();
        let joined = all.join(", ");
        *wanted.last_mut().unwrap() = &joined;
        wrong.extend(faults(row, &wanted));
        counts[usize::from(wanted.get(3) != Some(&"works"))] += 1;
        corrected += &format!("| {} |\n", wanted.join(" | "));
    }
    assert_eq!(rows, (1..=ROWS).collect::<Vec<_>>(), "{PAGE} must have each row once, in order");
    assert!(wrong.is_empty(), "{PAGE}: {}", wrong.join("\n"));
    let summary = format!("{ROWS} promises: {} work, {} work partly.", counts[0], counts[1]);
    assert!(page.contains(&summary), "{PAGE}: expected the sentence {summary:?}");
    if page != corrected {
        std::fs::write(root().join("target/seeds.md"), corrected).unwrap();
        panic!("{PAGE} does not name the tests that exist; run cp target/seeds.md {PAGE}");
    }
}

#[test]
fn names_state_their_rows() {
    assert_eq!(rows_of("test_row_043_initialize"), [43]);
    assert_eq!(rows_of("row_153_to_155_and_200"), [153, 154, 155, 200]);
    assert_eq!(rows_of("test_row_132_and_136_to_138_operations"), [132, 136, 137, 138]);
    assert!(
        rows_of("rows").is_empty()
            && rows_of("test_row_by_row").is_empty()
            && rows_of("a_row_001").is_empty()
    );
    let text =
        "static void row_001(void) {\npub fn row_2<T>()\n  def test_row_3(x):\nrow_4(1)\n// fn row_5 does\n";
    assert_eq!(functions(text), ["row_001", "row_2", "test_row_3"]);
}

#[test]
fn wrong_rows_are_found() {
    let fault = |line: &str| faults(7, &cells(line).unwrap().1).join("; ");
    let link = "[names_state_their_rows](../../tests/seeds.rs)";
    assert_eq!(fault(&format!("| 7 | 000 | a promise | works | {link} |")), "");
    assert_eq!(fault(&format!("| 7 | 000 | a promise | partly: not on phones | {link} |")), "");
    assert!(fault(&format!("| 7 | 005 | a promise | works | {link} |")).contains("design document"));
    assert!(fault(&format!("| 7 | 000 | a promise | missing | {link} |")).contains("state"));
    assert!(fault("| 7 | 000 | a promise | works | [log](../log/training.md) |").contains("names no test"));
    assert!(
        fault("| 7 | 000 | a promise | works | [row_000](../../tests/seeds.rs) |")
            .contains("does not define the test row_000")
    );
}
