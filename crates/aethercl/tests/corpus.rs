//! Whole translation units in a folder all build: `netcl kernels --dump DIR`, then
//! `AETHERCL_CORPUS=DIR cargo test -p aethercl --test corpus -- --ignored --nocapture`.

use std::path::{Path, PathBuf};

use aethercl::{Includes, Source, compile};

#[test]
#[ignore = "needs a folder of kernels in AETHERCL_CORPUS"]
fn every_unit_builds() {
    let folder = std::env::var("AETHERCL_CORPUS").expect("AETHERCL_CORPUS names a folder of .cl files");
    let entries = std::fs::read_dir(Path::new(&folder)).expect("the folder can be read");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "cl"));
    paths.sort();
    assert!(!paths.is_empty(), "no .cl files in {folder}");
    let start = std::time::Instant::now();
    let mut wrong = Vec::new();
    for path in &paths {
        let text = std::fs::read_to_string(path).expect("text");
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if let Err(e) = compile(&Source { name: &name, text: &text }, "", &Includes::none()) {
            let vendor = text.contains("asm") && e.log.contains("needs a vendor instruction");
            if !vendor {
                wrong.push(format!("{name}:\n{}", e.log));
            }
        }
    }
    println!("{} units, {} refused, {:?}", paths.len(), wrong.len(), start.elapsed());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
