//! Checks that the headers match the sources.

use super::{HEADERS, Header, here, include};
use std::path::{Path, PathBuf};

/// Text at the start of every header.
const NOTES: &str = "\
//
// docs/c.md is the guide. Handles are checked: a freed, foreign or random handle is an error, never a crash. If a call
// fails, it returns an error code, and netcl_last_error() returns the reason. Every function may be called from any thread.
// Generated from the sources by `make capi`. A test fails if this file is out of date.";

/// Lists the Rust files below a path in sorted order.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found.retain(|path| path.is_dir() || path.extension().is_some_and(|e| e == "rs"));
    found.iter().flat_map(|path| files(path)).collect()
}

fn sources(header: &Header) -> Vec<PathBuf> {
    header.sources.iter().flat_map(|name| files(&here().join("src").join(name))).collect()
}

/// Lists the files from which cbindgen starts. It follows `mod` declarations to the others.
fn roots(header: &Header) -> impl Iterator<Item = PathBuf> + '_ {
    header.sources.iter().map(|name| here().join("src").join(name)).map(|path| match path.is_dir() {
        true => path.join("mod.rs"),
        false => path,
    })
}

fn made(header: &Header) -> String {
    let mut config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    config.include_guard = Some(header.guard.into());
    config.header = Some(format!("{}\n{NOTES}", header.about));
    let includes: Vec<String> = header.includes.iter().map(|name| format!("#include {name}")).collect();
    config.after_includes = Some(includes.join("\n"));
    let builder = roots(header).fold(cbindgen::Builder::new(), |b, path| b.with_src(path));
    let mut out = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut out);
    let text = String::from_utf8(out).unwrap();
    // Headings of Rust's documentation and the prefix of unused arguments mean nothing to a reader of C.
    let line = |line: &str| {
        line.replace("# Safety", "Expects:").replace("_gpu_index", "gpu_index").trim_end().to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn the_headers_are_what_the_sources_say() {
    for header in &HEADERS {
        let path = include().join(header.name);
        let text = made(header);
        if std::env::var_os("NETCL_WRITE_HEADER").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        let different = kept.lines().zip(text.lines()).find(|(kept, now)| kept != now);
        assert!(
            kept == text,
            "include/{} is out of date; run `make capi`. First difference: {different:?}",
            header.name
        );
    }
}

#[test]
fn every_source_file_belongs_to_one_header() {
    let mut listed: Vec<PathBuf> = HEADERS.iter().flat_map(sources).collect();
    listed.sort();
    // These files declare nothing for C.
    let inner = ["handles.rs", "lib.rs", "pointers.rs"].map(|name| here().join("src").join(name));
    let mut all = files(&here().join("src"));
    all.retain(|path| !inner.contains(path));
    all.sort();
    assert_eq!(listed, all);
    for path in inner {
        assert!(!std::fs::read_to_string(&path).unwrap().contains("no_mangle"), "{}", path.display());
    }
}
