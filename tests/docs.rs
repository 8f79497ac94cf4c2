//! Checks that the tables in docs/ match the code.
#![allow(clippy::unwrap_used)] // helpers of tests

use netcl::prelude::ErrorKind;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// German pages and the English pages that they translate.
const GERMAN: [(&str, &str); 6] = [
    ("README.de.md", "README.md"),
    ("docs/book/de/install.md", "docs/book/install.md"),
    ("docs/book/de/first-run.md", "docs/book/first-run.md"),
    ("docs/book/de/train.md", "docs/book/train.md"),
    ("docs/book/de/python.md", "docs/python.md"),
    ("docs/book/de/faq.md", "docs/book/faq.md"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Returns the cells of a table's rows, without header and separator.
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
fn the_reference_of_settings_is_their_table() {
    let written = netcl::train::settings::reference();
    if read("docs/settings.md") != written {
        let path = root().join("target/settings.md");
        std::fs::write(&path, written).unwrap();
        panic!("docs/settings.md is out of date; run cp target/settings.md docs/settings.md");
    }
}

/// Returns the names like NETCL_… in a text.
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
    for folder in ["src", "crates", "cli", "python", "tests", "tools", "examples"] {
        sources(&root().join(folder), &mut code);
    }
    let (used, documented) = (variables(&code), variables(&read("docs/env-vars.md")));
    let missing: Vec<_> = used.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&used).collect();
    assert!(missing.is_empty(), "docs/env-vars.md lacks {missing:?}");
    assert!(stale.is_empty(), "docs/env-vars.md lists {stale:?}, which the code does not read");
}

/// Returns the documents of the repository: in the root and below docs.
fn documents() -> Vec<PathBuf> {
    let (mut open, mut out) = (vec![PathBuf::new(), PathBuf::from("docs")], Vec::new());
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap().flatten() {
            let path = folder.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && folder.starts_with("docs") => open.push(path),
                _ if path.extension().is_some_and(|e| e == "md") => out.push(path),
                _ => {}
            }
        }
    }
    out.sort();
    out
}

/// Returns the anchor of a heading: lower case, hyphens for spaces, no other punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|l| l.starts_with('#'));
    headings.map(|l| anchor(l.trim_start_matches('#'))).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut wrong = Vec::new();
    for document in documents() {
        let text = read(&document.display().to_string());
        let folder = document.parent().unwrap();
        for (at, _) in text.match_indices("](") {
            let link: String = text[at + 2..].chars().take_while(|c| *c != ')' && *c != '\n').collect();
            let (target, part) = link.split_once('#').unwrap_or((&link, ""));
            let file =
                if target.is_empty() { root().join(&document) } else { root().join(folder).join(target) };
            // Brackets before parentheses also occur in code.
            if link.contains("://") || link.contains(' ') || link.is_empty() {
                continue;
            }
            if !file.exists() {
                wrong.push(format!("{}: {link}", document.display()));
            } else if !part.is_empty() && !anchors(&std::fs::read_to_string(&file).unwrap()).contains(part) {
                wrong.push(format!("{}: {link}: the heading does not exist", document.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the chapters of the book: the targets of the links in docs/SUMMARY.md, relative to docs.
fn chapters() -> Vec<String> {
    let summary = read("docs/SUMMARY.md");
    let links = summary.match_indices("](").map(|(at, _)| &summary[at + 2..]);
    links.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn every_page_is_a_chapter_of_the_book() {
    let listed = chapters();
    let chapters: BTreeSet<PathBuf> = listed.iter().map(|target| Path::new("docs").join(target)).collect();
    assert_eq!(chapters.len(), listed.len(), "docs/SUMMARY.md lists a chapter twice");
    // These pages are for contributors, or are the list itself.
    let other = ["docs/SUMMARY.md", "docs/style.md", "docs/globals.md"].map(PathBuf::from);
    let is_page = |path: &PathBuf| path.starts_with("docs") && !path.starts_with("docs/log");
    let pages = documents().into_iter().filter(|path| is_page(path) && !other.contains(path));
    let pages: BTreeSet<PathBuf> = pages.collect();
    let missing: Vec<_> = chapters.difference(&pages).collect();
    let unlisted: Vec<_> = pages.difference(&chapters).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lists {missing:?}, which do not exist");
    assert!(unlisted.is_empty(), "docs/SUMMARY.md lacks {unlisted:?}");
}

#[test]
fn the_rust_blocks_of_the_book_are_compiled() {
    let library = read("src/lib.rs");
    let has_rust = |chapter: &String| read(&format!("docs/{chapter}")).contains("\n```rust");
    for chapter in chapters().iter().filter(|c| c.starts_with("book/") && has_rust(c)) {
        let include = format!("include_str!(\"../docs/{chapter}\")");
        assert!(
            library.contains(&include),
            "src/lib.rs does not include docs/{chapter}, which has Rust blocks"
        );
    }
}

/// Returns the code blocks of a page, each with its language, without comments. A comment is the text after `#` (and, in a block of output such as
/// a folder tree, after two spaces).
fn blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside;
            if inside {
                blocks.push(line.to_owned());
            }
        } else if let Some(block) = blocks.last_mut().filter(|_| inside) {
            let start = line.len() - line.trim_start().len();
            let mark = if block.starts_with("```text") { "  " } else { " #" };
            let end = line[start..].find(mark).map_or(line.len(), |at| start + at);
            let code = if line.starts_with('#') { "" } else { line[..end].trim_end() };
            *block += &format!("\n{code}");
        }
    }
    blocks
}

#[test]
fn german_pages_have_the_blocks_of_the_english_ones() {
    for (german, english) in GERMAN {
        let (german_blocks, english_blocks) = (blocks(&read(german)), blocks(&read(english)));
        assert!(!english_blocks.is_empty(), "{english} has no code block");
        for (i, (ours, theirs)) in german_blocks.iter().zip(&english_blocks).enumerate() {
            assert_eq!(ours, theirs, "block {} of {german} and {english} differ", i + 1);
        }
        assert_eq!(german_blocks.len(), english_blocks.len(), "{german} and {english}: number of blocks");
    }
}

/// Checks the FAQ, the glossary and the table of the first design document's manual: 14 sections, 9 questions, 20 terms or more, in both languages.
#[test]
fn row_125_the_manual_has_a_counterpart_in_english_and_german() {
    let seeds = read("docs/book/from-the-seeds.md");
    let manual = seeds.split("### Manual of OCL-LLM").nth(1).unwrap().split("\n## ").next().unwrap();
    let numbers: Vec<String> =
        rows(manual).iter().map(|row| row[0].split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(numbers, (1..=14).map(|n| n.to_string()).collect::<Vec<_>>());
    let (english, german) = (read("docs/book/faq.md"), read("docs/book/de/faq.md"));
    let questions = |text: &str| text.lines().filter(|line| line.starts_with("### ")).count();
    assert_eq!((questions(&english), questions(&german)), (9, 9));
    let (terms, german_terms) = (rows(&english), rows(&german));
    assert!(terms.len() >= 20 && terms.len() == german_terms.len());
    assert!(terms.iter().chain(&german_terms).all(|row| row.len() == 2 && row[1].len() > 10));
    assert!(manual.contains("de/faq.md#fragen") && manual.contains("de/faq.md#grundbegriffe"));
}

#[test]
fn the_glossary_has_each_term_once_with_its_source() {
    let text = read("docs/glossary.md");
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for entry in text.lines().filter(|l| l.starts_with("- ")) {
        let Some((terms, meaning)) = entry.trim_start_matches("- **").split_once("**: ") else {
            wrong.push(format!("expected `- **term**: meaning. Source: …`, found {entry:?}"));
            continue;
        };
        if !meaning.split_once(" Source: ").is_some_and(|(what, source)| what.len() > 10 && source.len() > 5)
        {
            wrong.push(format!("{terms}: expected a meaning and a source"));
        }
        wrong.extend(terms.split(", ").filter(|t| !seen.insert(*t)).map(|t| format!("{t} is listed twice")));
    }
    assert!(seen.len() > 50 && wrong.is_empty(), "docs/glossary.md: {}", wrong.join("\n"));
}

/// Returns the contents of each `<tag>…</tag>` in a line.
fn tagged<'a>(line: &'a str, tag: &str) -> Vec<&'a str> {
    let (begin, end) = (format!("<{tag}>"), format!("</{tag}>"));
    line.split(&begin).skip(1).filter_map(|rest| rest.split_once(&end)).map(|(inside, _)| inside).collect()
}

/// Returns the pieces of a label between its tags: what the drawing shows.
fn pieces(label: &str) -> Vec<&str> {
    let texts = label.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text);
    texts.filter(|text| !text.is_empty()).collect()
}

/// Returns whether `code` contains one of the keywords followed by exactly `name`.
fn declares(code: &str, keywords: &[&str], name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    keywords.iter().any(|keyword| {
        let start = format!("{keyword} {name}");
        code.match_indices(&start).any(|(at, _)| ends(&code[at + start.len()..]))
    })
}

const TYPES: [&str; 4] = ["struct", "enum", "trait", "type"];

/// Returns whether a file declares `name`: a type, a function, a function of a type or of a module, or a name of another language.
fn is_in(path: &str, code: &str, name: &str) -> bool {
    match name.split_once("::") {
        Some((module, function)) if module.starts_with(char::is_lowercase) => {
            path.contains(module) && declares(code, &["fn"], function)
        }
        Some((ty, function)) => {
            let has = |line: &str| line.trim_start().starts_with("impl") && line.contains(ty);
            declares(code, &["fn"], function) && (declares(code, &TYPES, ty) || code.lines().any(has))
        }
        None if name.starts_with("cl") => code.contains(name),
        None => declares(code, &TYPES, name) || declares(code, &["fn"], name),
    }
}

/// Checks the drawings of ARCHITECTURE.md and docs/aethercl.md: every name in their sources exists, and `make drawings` was run.
#[test]
fn drawings_name_what_exists() {
    let folder = "docs/drawings";
    let (architecture, simulator) = (read("ARCHITECTURE.md"), read("docs/aethercl.md"));
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let (mut wrong, mut labels, mut found) = (Vec::new(), 0, BTreeSet::new());
    for entry in std::fs::read_dir(root().join(folder)).unwrap().flatten() {
        let path = entry.path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("dot") => {}
            Some("svg") if path.with_extension("dot").is_file() => continue,
            _ => {
                wrong.push(format!("{folder}: {} has no source", path.display()));
                continue;
            }
        }
        let (source, svg) = (format!("{folder}/{name}.dot"), format!("{folder}/{name}.svg"));
        let shown = architecture.contains(&svg) || simulator.contains(&format!("](drawings/{name}.svg)"));
        found.insert(name);
        if !shown || !root().join(&svg).is_file() {
            wrong.push(format!(
                "{svg} is missing, or neither ARCHITECTURE.md nor docs/aethercl.md shows it; run make drawings"
            ));
            continue;
        }
        let drawn = read(&svg).replace("&#45;", "-").replace("&#39;", "'");
        for line in read(&source).lines().filter(|line| line.contains("label=<<b>")) {
            labels += 1;
            let label = line.split_once("label=<").unwrap().1.split(">]").next().unwrap();
            let label = label.split(">, ").next().unwrap().to_owned() + ">";
            let stale = pieces(&label).into_iter().find(|piece| !drawn.contains(piece));
            wrong.extend(stale.map(|piece| format!("{svg} lacks {piece:?}; run make drawings")));
            let file = tagged(&label, "i").first().map_or(String::new(), |file| format!("crates/{file}"));
            match (tagged(&label, "b").first(), std::fs::read_to_string(root().join(&file))) {
                (Some(name), Ok(code)) if is_in(&file, &code, name) => {}
                (name, _) => wrong.push(format!("{source}: {file} does not declare {name:?}")),
            }
            // Types in the description: every word with a capital letter, except abbreviations.
            let words = pieces(&label).into_iter().skip(1).filter(|piece| !piece.ends_with(".rs"));
            let words = words.flat_map(|piece| piece.split(|c: char| !c.is_alphanumeric()));
            let types =
                words.filter(|word| word.contains(char::is_uppercase) && word.contains(char::is_lowercase));
            let unknown = types
                .filter(|word| !declares(&code, &TYPES, word) && !code.contains(&format!("    {word}(")));
            wrong.extend(unknown.map(|word| format!("{source}: no type is called {word}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(found.len() >= 3 && labels > 30, "{found:?}: {labels} labels");
    assert!(
        is_in("a/b.rs", "impl A {\n fn b() {}", "A::b") && !is_in("a/b.rs", "impl A {\n fn bc() {}", "A::b")
    );
    assert!(is_in("a/b.rs", "struct A;", "A") && !is_in("a/b.rs", "struct Ab;", "A"));
}

/// Words that this project used instead of established terms (docs/glossary.md): the places where they are forbidden, the start of names
/// that contain them, and the replacement.
const RETIRED: [(&str, &str, &str); 14] = [
    ("", "rehears", "dry run"),
    ("", "read_beside", "read_indirect"),
    ("", "made_again", "recomputed"),
    ("", "past_caches", "streaming store"),
    ("", "earnest", "real run"),
    ("", "evened", "aligned"),
    ("", "matmul_split", "matmul_bf16x3, split-K"),
    ("", "attention_split_sm90", "attention_bf16x3_sm90"),
    ("", "cross_entropy_held", "cross_entropy_registers"),
    ("", "EVEN_VECTORS", "ALIGNED_VECTORS"),
    ("", "AFFORDABLE", "MAX_REFERENCE_ELEMENTS"),
    ("crates/tensor/src/ops/matmul", "turned", "transposed"),
    ("crates", "struct Pace", "tile throughput"),
    ("crates", "struct Shares", "split-K schedule"),
];

/// Returns whether `word` occurs in `line` at the start of a name: after nothing, punctuation, or an underscore.
fn begins_a_name(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric()))
}

#[test]
fn retired_words_are_not_used() {
    assert!(begins_a_name("fn rehearse()", "rehears") && begins_a_name("made_again", "made_again"));
    assert!(!begins_a_name("was returned", "turned") && begins_a_name("a_turned_b", "turned"));
    let listed = Command::new("git").args(["ls-files", "*.rs", "*.cl", "*.md"]).current_dir(root()).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let mut wrong = Vec::new();
    for path in listed.lines().filter(|p| !p.starts_with("docs/log/") && *p != "tests/docs.rs") {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            let found = RETIRED.iter().filter(|(place, ..)| path.starts_with(place));
            for (_, word, instead) in found.filter(|(_, word, _)| begins_a_name(line, word)) {
                wrong.push(format!("{path}:{}: {word}: write {instead}", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
