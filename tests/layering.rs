//! Project rules that a compiler does not check: allowed dependencies between crates, the places of `unsafe`, and the lengths of files.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "layering/circles.rs"]
mod circles;
#[path = "layering/dependencies.rs"]
mod dependencies;
#[path = "layering/files.rs"]
mod files;

use files::{files, read, root};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate may only use crates to its left. The shells at the end do not use each other, except that the command line starts the server and
/// includes the laboratory's commands.
const LINE: [&str; 9] = [
    "aethercl",
    "netcl-device",
    "netcl-kernel",
    "netcl-tensor",
    "netcl-dist",
    "netcl-model",
    "netcl-llm",
    "netcl-train",
    "netcl",
];
const SHELLS: [&str; 6] =
    ["netcl-server", "netcl-lab", "netcl-cli", "netcl-python", "netcl-capi", "aethercl-icd"];
/// Macros for tests. Every crate may use them, as a dev-dependency only.
const TEST_MACROS: &str = "netcl-test-data";

/// Folders and files in which `unsafe` is allowed: code that calls OpenCL, maps files, uses MPI, or is called from C and Python.
const UNSAFE: [&str; 7] = [
    "crates/device/src/opencl/",
    "crates/device/src/host.rs",
    "crates/dist/src/mpi.rs",
    "crates/aethercl-icd/src/api.rs",
    "crates/aethercl-icd/src/raw.rs",
    "capi/src/",
    "python/src/",
];

fn may_use(user: &str, used: &str) -> bool {
    let place = |name: &str| LINE.iter().position(|n| *n == name);
    match (place(user), place(used)) {
        (Some(user), Some(used)) => used < user,
        (None, Some(_)) => SHELLS.contains(&user),
        _ => user == "netcl-cli" && ["netcl-server", "netcl-lab"].contains(&used),
    }
}

#[test]
fn crates_use_only_what_stands_to_their_left() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names: Vec<&str> = packages.iter().map(|p| p["name"].as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        if !LINE.contains(&name) && !SHELLS.contains(&name) && name != TEST_MACROS {
            wrong.push(format!(
                "{name} does not have a position in the order of the packages; add it to tests/layering.rs and ARCHITECTURE.md"
            ));
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let used = dependency["name"].as_str().unwrap();
            if used == TEST_MACROS && dependency["kind"] == "dev" {
                continue;
            }
            if names.contains(&used) && !may_use(name, used) {
                wrong.push(format!("{name} uses {used}, which is not to its left"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checks what a library user gets with `default-features = false`.
#[test]
fn the_simulated_gpu_can_be_left_out() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    for (features, there) in [("--no-default-features", false), ("--all-features", true)] {
        let arguments = ["tree", "--package=netcl", "--edges=normal", "--prefix=none", "--offline", features];
        let out = Command::new(&cargo).args(arguments).current_dir(root()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let tree = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(tree.contains("netcl-device"));
        assert_eq!(tree.lines().any(|line| line.starts_with("aethercl ")), there, "{features}: {tree}");
    }
}

#[test]
fn the_rule_itself() {
    assert!(may_use("netcl-tensor", "netcl-kernel") && may_use("netcl-cli", "netcl"));
    assert!(may_use("netcl-cli", "netcl-server") && !may_use("netcl-server", "netcl-cli"));
    assert!(may_use("netcl-cli", "netcl-lab") && may_use("netcl-lab", "netcl"));
    assert!(!may_use("netcl-lab", "netcl-server") && !may_use("netcl-server", "netcl-lab"));
    assert!(!may_use("netcl-kernel", "netcl-tensor") && !may_use("netcl-device", "netcl-device"));
    assert!(!may_use("stranger", "netcl"));
}

#[test]
fn unsafe_stands_only_where_it_must() {
    let mut wrong = Vec::new();
    for path in files(&["rs"]) {
        let name = path.display().to_string();
        if UNSAFE.iter().any(|allowed| name.starts_with(allowed)) || name == "tests/layering.rs" {
            continue;
        }
        for (i, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|u| code.contains(u)) {
                wrong.push(format!("{name}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "unsafe outside of {UNSAFE:?}:\n{}", wrong.join("\n"));
}

/// Checks that the documents list the sources' places of `unsafe` and of global state.
#[test]
fn the_documents_name_every_place_of_unsafe_and_of_global_state() {
    let (architecture, contributing) =
        (read(Path::new("ARCHITECTURE.md")), read(Path::new("CONTRIBUTING.md")));
    for place in UNSAFE {
        let short =
            place.trim_end_matches("/src/").trim_end_matches('/').replace("crates/aethercl-icd/src/", "");
        let short =
            short.rsplit_once("/src/").filter(|(_, file)| file.ends_with(".rs")).map_or(&*short, |(_, f)| f);
        for (name, text) in [("ARCHITECTURE.md", &architecture), ("CONTRIBUTING.md", &contributing)] {
            assert!(text.contains(short), "{name} does not list {place} as a place of unsafe code");
        }
    }
    let globals = read(Path::new("docs/globals.md"));
    let listed: BTreeSet<&str> = globals
        .lines()
        .filter_map(|line| line.strip_prefix("| [")?.split_once(']'))
        .map(|(path, _)| path)
        .collect();
    let shared = |line: &str| {
        let line = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        let of = line.strip_prefix("static ").and_then(|rest| rest.split_once(": ")).map_or("", |(_, of)| of);
        let of = of.split(" = ").next().unwrap_or_default();
        ["Mutex", "Lock", "Atomic", "OnceCell", "Cell<"].iter().any(|kind| of.contains(kind))
    };
    let source = |path: &PathBuf| {
        let tests = path.iter().any(|part| part == "tests");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        !tests && path.iter().any(|part| part == "src") && !name.ends_with("tests")
    };
    let mut found = BTreeSet::new();
    for path in files(&["rs"]).into_iter().filter(source) {
        if circles::without_tests(&read(&path)).lines().any(shared) {
            found.insert(path.display().to_string());
        }
    }
    let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(listed, found, "docs/globals.md: the document's list (left) differs from the sources (right)");
}

#[test]
fn crates_forbid_unsafe_code() {
    for path in files(&["rs"]).iter().filter(|p| p.ends_with("src/lib.rs")) {
        let exempt = ["crates/device", "crates/dist", "crates/aethercl-icd", "capi", "python"]
            .iter()
            .any(|e| path.starts_with(e));
        assert!(
            exempt || read(path).contains("#![forbid(unsafe_code)]"),
            "{}: #![forbid(unsafe_code)]",
            path.display()
        );
    }
}

#[test]
fn files_are_short() {
    let mut wrong = Vec::new();
    for (ending, limit) in [("rs", 800), ("py", 800), ("cl", 400)] {
        for path in files(&[ending]) {
            let lines = read(&path).lines().count();
            if lines > limit {
                wrong.push(format!(
                    "{}: {lines} lines, at most {limit}; split it along a seam it has",
                    path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A build error names file and line of sources that `cl_file!` includes. Concatenated sources must end with a line end.
#[test]
fn kernel_texts_name_their_files() {
    for path in files(&["rs"]) {
        let text = read(&path);
        let bare = text
            .match_indices("include_str!(\"")
            .find(|(at, _)| text[*at..].split('\n').next().is_some_and(|line| line.contains(".cl\")")));
        let line = bare.map(|(at, _)| text[..at].lines().count());
        assert!(bare.is_none(), "{}:{line:?}: take the text with cl_file!", path.display());
    }
    for path in files(&["cl"]) {
        assert!(read(&path).ends_with('\n'), "{} does not end with a line's end", path.display());
    }
}

#[test]
fn no_path_of_one_machine_is_written_down() {
    let mut wrong = Vec::new();
    for path in files(&["rs", "cl", "py", "sh", "md", "toml"]) {
        if path.ends_with("layering.rs") {
            continue;
        }
        for (i, line) in read(&path).lines().enumerate() {
            let found = ["/work/", "/home/", "/root/", "/Users/"].iter().find(|p| line.contains(**p));
            if let Some(found) = found {
                wrong.push(format!("{}:{}: {found}", path.display(), i + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
