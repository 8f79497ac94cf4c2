//! Translation units in a given folder build and run: `AETHERCL_UNITS=DIR cargo test -p aethercl --test acceptance`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use aethercl::{Includes, Program, Source};

#[test]
fn every_unit_of_the_folder_builds_and_lowers() {
    let Ok(folder) = std::env::var("AETHERCL_UNITS") else { return };
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let mut failed = Vec::new();
    let (mut kernels, mut slowest) = (0, (std::time::Duration::ZERO, String::new()));
    for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "cl")) {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let program = match Program::build(&Source { name: &name, text: &text }, "", &Includes::none()) {
            Ok(program) => program,
            Err(error) => {
                failed.push(format!("{name}: {}", error.log));
                continue;
            }
        };
        for kernel in program.kernels() {
            kernels += 1;
            let start = std::time::Instant::now();
            if let Err(error) = program.lower(&kernel.name) {
                failed.push(format!("{name}: {}: {error}", kernel.name));
            }
            let took = start.elapsed();
            if took > slowest.0 {
                slowest = (took, format!("{name}: {}", kernel.name));
            }
        }
    }
    println!("{kernels} kernels in {} units; slowest to lower: {slowest:?}", paths.len());
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}
