//! Small cases, readable as documentation of the language, its functions and the checks: `tests/kernels/<area>/<case>`.
//!
//! `case.cl` is the program. `case.sim` describes the launch, one word and its values per line (see `support/sim.rs`).
//! If `case.sim` is missing, the program is only built. `case.ref` is the expected result: the log of a build that fails, or the
//! contents of buffers, findings and printed text (see `support/reference.rs`).
//!
//! `AETHERCL_BLESS=1 cargo test -p aethercl --test kernels` rewrites every `.ref` from the actual results. Read the
//! diff before you commit it. `AETHERCL_CASE=text` runs only cases whose path contains the text.

mod support;

use std::path::{Path, PathBuf};

use support::run_case;

fn cases() -> std::io::Result<Vec<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    let only = std::env::var("AETHERCL_CASE").unwrap_or_default();
    let mut found = support::programs(&root)?;
    found.retain(|p| p.to_string_lossy().contains(&only));
    Ok(found)
}

#[test]
fn every_case_gives_its_reference() {
    let bless = std::env::var("AETHERCL_BLESS").is_ok();
    let cases = cases().expect("the folder of cases");
    let mut wrong = Vec::new();
    for case in &cases {
        let came_out = run_case(case).unwrap_or_else(|why| format!("the case cannot be run: {why}\n"));
        let reference = case.with_extension("ref");
        if bless {
            std::fs::write(&reference, &came_out).expect("the reference can be written");
            continue;
        }
        let expected = std::fs::read_to_string(&reference).unwrap_or_else(|e| format!("no reference: {e}\n"));
        if let Err(difference) = support::compare(&expected, &came_out) {
            wrong.push(format!("{}:\n{difference}", case.display()));
        }
    }
    println!("{} cases, {} wrong", cases.len(), wrong.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
