//! `netcl models info` and `netcl quantize`.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns a tiny model with random weights.
fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/goldens/decoder/llama3")
}

fn run(args: &[&str]) -> (bool, String, String) {
    let output = netcl().args(args).output().unwrap();
    let (out, err) = texts(&output);
    (output.status.success(), out.to_string(), err.to_string())
}

#[test]
fn a_folder_becomes_a_file_and_a_folder_again() {
    let dir = folder("quantize-back");
    let [file, back] = ["m.gguf", "back"].map(|name| dir.join(name).display().to_string());
    let model = tiny().display().to_string();
    let (ok, out, err) = run(&["quantize", &model, &file, "--type", "f32"]);
    assert!(ok && out.trim() == file && err.contains("converting "), "{out}{err}");
    let (ok, out, err) = run(&["models", "info", &file, "--json"]);
    assert!(ok, "{err}");
    let info: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&info["architecture"], &info["layers"], &info["tied"]),
        (&"llama".into(), &2.into(), &true.into())
    );
    let weights = info["memory"]["weights"].as_u64().unwrap();
    assert_eq!(weights, info["parameters"].as_u64().unwrap() * 4);
    // Two layers, two heads of keys and values of size 8, 32 tokens, in f32 like the weights.
    assert_eq!(info["memory"]["cache"], 2 * 2 * 2 * 8 * 32 * 4);
    assert!(info["devices"].as_array().unwrap().iter().all(|d| d["fits"] == true), "{info}");
    let (ok, out, err) = run(&["quantize", &file, &back, "--type", "f32", "--json"]);
    assert!(ok && serde_json::from_str::<Value>(&out).unwrap()["bits_per_parameter"] == 32.0, "{out}{err}");
    let expected = std::fs::read(tiny().join("model.safetensors")).unwrap();
    let found = std::fs::read(dir.join("back/model.safetensors")).unwrap();
    // The header's order may differ; the weights must not.
    let data = |bytes: &[u8]| bytes[bytes.len() - weights as usize..].to_vec();
    let [mut a, mut b] = [data(&expected), data(&found)];
    a.sort_unstable();
    b.sort_unstable();
    assert!(a == b);
    let (ok, out, err) = run(&["models", "info", &back, "-c", "16"]);
    assert!(ok && out.contains("cache for 16 tokens") && out.contains("sim:teaching"), "{out}{err}");
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    let dir = folder("quantize-refused");
    let path = |name: &str| dir.join(name).display().to_string();
    let model = tiny().display().to_string();
    let (file, quantised) = (path("m.gguf"), path("q.gguf"));
    assert!(run(&["quantize", &model, &file, "-t", "f16"]).0);
    assert!(run(&["quantize", &model, &quantised, "-t", "q8_0"]).0);
    std::fs::write(dir.join("half.gguf"), &std::fs::read(&file).unwrap()[..2000]).unwrap();
    let info = |path: &str| run(&["models", "info", path]);
    for (found, part) in [
        (run(&["quantize", &model, &path("x.gguf"), "-t", "q4"]), "the types are f32, f16, bf16"),
        (run(&["quantize", &model, &path("x"), "-t", "q4_0"]), "end OUT in .gguf"),
        (run(&["quantize", &file, &file, "-t", "f32"]), "is both IN and OUT"),
        (run(&["quantize", &model, &file, "-t", "f32"]), "--force overwrites it"),
        (run(&["quantize", &model, &path("none/x.gguf"), "-t", "f32"]), "none/x.gguf"),
        (run(&["quantize", &path("none"), &path("x.gguf"), "-t", "f32"]), "none"),
        (
            run(&["quantize", &model, &path("x.gguf"), "-t", "f32", "--imatrix", &file]),
            "an importance matrix without tensors",
        ),
        (info(&path("half.gguf")), "half.gguf"),
        (info(dir.to_str().unwrap()), "contains no model"),
        (run(&["models", "info", &file, "-c", "99"]), "expected 1 to 32"),
    ] {
        assert!(!found.0 && found.2.contains(part), "{} lacks: {part}", found.2);
        assert!(!found.2.contains("panicked"), "{}", found.2);
    }
    assert!(!dir.join("x.gguf").exists() && !dir.join("x").exists());
}
