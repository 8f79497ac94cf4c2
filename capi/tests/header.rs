//! include/netcl.h is what the sources say. `NETCL_WRITE_HEADER=1`, as `make capi` sets it, writes it anew.
#![allow(clippy::unwrap_used)] // a test

use std::path::PathBuf;

fn made() -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut out = Vec::new();
    cbindgen::Builder::new().with_crate(&folder).with_config(config).generate().unwrap().write(&mut out);
    let text = String::from_utf8(out).unwrap();
    // Rust's own sections and links say nothing to a reader of C.
    // Nor what marks an argument that the implementation does not look at.
    let line = |line: &str| {
        line.replace("# Safety", "Expects:").replace("_gpu_index", "gpu_index").trim_end().to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include/netcl.h");
    let text = made();
    if std::env::var_os("NETCL_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let different = kept.lines().zip(text.lines()).find(|(kept, now)| kept != now);
    assert!(
        kept == text,
        "include/netcl.h is out of date; `make capi` writes it. First difference: {different:?}"
    );
}
