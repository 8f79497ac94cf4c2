//! Modules of the case runner.

mod reference;
mod run;
mod sim;

use std::path::{Path, PathBuf};

use aethercl::{Includes, Program, Source, Target};

pub use reference::compare;
use sim::Sim;

/// Runs a case and writes its results in the format of a reference.
pub fn run_case(case: &Path) -> Result<String, String> {
    let text = std::fs::read(case).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let sim = match std::fs::read_to_string(case.with_extension("sim")) {
        Ok(sim) => Sim::parse(&sim)?,
        Err(_) => Sim::default(),
    };
    let name = case.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut includes = Includes::none();
    for (name, text) in headers(case) {
        includes = includes.with(&name, &text);
    }
    let mut target = Target::default();
    target.extensions.retain(|e| !sim.without.contains(e));
    let source = Source { name: &name, text: &text };
    let build = || Program::build_for(&source, &sim.options, &includes, &target);
    match build() {
        Err(e) => Ok(format!(
            "build fails:
{}",
            e.log
        )),
        Ok(program) if sim.kernel.is_empty() => Ok(format!(
            "builds
{}",
            program.hir().warnings
        )),
        // A new build: its variables of program scope have the values from before the first run.
        Ok(program) => launch(&program, &build().map_err(|e| e.log)?, &sim),
    }
}

/// Runs with the case's checks. If they report nothing, a run of the program `again` without checks must give the same result.
fn launch(program: &Program, again: &Program, sim: &Sim) -> Result<String, String> {
    let checked = run::run(program, sim, &sim.checks)?;
    if checked.contains("finding: ") || checked.contains("launch fails: ") {
        return Ok(checked);
    }
    let plain = run::run(again, sim, &["none".to_string()])?;
    if plain != checked {
        return Err(format!("checks change the results:\n{plain}with checks:\n{checked}"));
    }
    Ok(checked)
}

/// Returns the files in the case's folder that `#include` finds.
fn headers(case: &Path) -> Vec<(String, String)> {
    let Some(folder) = case.parent() else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|e| e.ok().map(|e| e.path()));
    let headers = paths.filter(|p| p.extension().is_some_and(|e| e == "h"));
    let read = |p: std::path::PathBuf| {
        let name = p.file_name()?.to_string_lossy().into_owned();
        Some((name, std::fs::read_to_string(&p).ok()?))
    };
    headers.filter_map(read).collect()
}

/// Returns every `.cl` file below a folder, in order.
pub fn programs(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut folders = vec![root.to_path_buf()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "cl") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
