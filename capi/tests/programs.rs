//! Compiles the C programs in this folder with the system's compiler and runs them against the shared library, on the test device. The
//! driver's program also runs on the simulated GPU.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the library, which cargo builds before the tests.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let name = format!("{}netcl_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    folder.join(name)
}

/// Compiles a program. Returns `None` without a compiler, or if the system cannot link a program to a library by its path.
fn compiled(source: &Path, into: &Path) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    if !cfg!(target_os = "linux") || Command::new(&compiler).arg("--version").output().is_err() {
        eprintln!("skipped: no C compiler ({compiler})");
        return None;
    }
    // Programs look for this soname.
    let soname = into.join("libnetcl.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink(library(), &soname).unwrap();
    }
    let program = into.join(source.file_stem().unwrap());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .args(["-I", &here.join("include").display().to_string()])
        .arg(&soname)
        .arg(format!("-Wl,-rpath,{}", into.display()))
        .args(["-lm", "-lpthread"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    Some(program)
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn device() -> String {
    std::env::var("NETCL_TEST_DEVICE").unwrap_or_else(|_| "auto".into())
}

fn run(name: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let Some(program) = compiled(&source, folder.path()) else { return };
    let out = Command::new(program).args(arguments).current_dir(folder.path()).output().unwrap();
    assert!(out.status.success(), "{name} {arguments:?}: {}\n{}", out.status, said(&out));
    assert!(said(&out).contains(&format!("{name}: ok")), "{}", said(&out));
}

#[test]
fn the_driver_computes_what_its_formulas_say() {
    run("driver", &[&device()]);
}

#[test]
fn the_driver_computes_it_on_the_simulated_gpu_too() {
    run("driver", &["sim"]);
}

#[test]
fn the_simulated_gpu_by_addresses() {
    run("simulated", &[]);
}

#[test]
fn a_machine_by_functions_and_by_its_registers() {
    run("machine", &[]);
}

#[test]
fn tensors_operations_gradients_and_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let maker = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model.py");
    let python = std::env::var("NETCL_PYTHON").unwrap_or_else(|_| "python3".into());
    let model = folder.path().display().to_string();
    match Command::new(&python).arg(maker).arg(&model).output() {
        // The model continues each byte with the next one.
        Ok(made) => {
            assert!(made.status.success(), "{}", said(&made));
            run("tensors", &[&device(), &model, "fghijklmnopqrstuvwxyz{|}"]);
        }
        Err(_) => {
            eprintln!("netcl_generate: skipped, {python} is needed to make a model and was not found");
            run("tensors", &[&device()]);
        }
    }
}

#[test]
fn misuse_is_an_error_code() {
    run("misuse", &[&device(), "3000"]);
}

#[test]
fn threads_share_devices_machines_and_handles() {
    run("threads", &[&device()]);
}

/// Checks that docs/c.md contains the examples unchanged, with their output.
#[test]
fn the_guide_has_the_examples_and_what_they_print() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(here.join("../docs/c.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["multiply", "gradient", "race"] {
        let source = here.join(format!("examples/{name}.c"));
        let text = std::fs::read_to_string(&source).unwrap();
        assert!(
            guide.contains(&format!("```c\n{text}```")),
            "docs/c.md does not contain capi/examples/{name}.c unchanged"
        );
        let Some(program) = compiled(&source, folder.path()) else { continue };
        let out = Command::new(program).current_dir(folder.path()).output().unwrap();
        assert!(out.status.success(), "{name}: {}", said(&out));
        let printed = String::from_utf8_lossy(&out.stdout);
        assert!(
            guide.contains(&format!("```text\n{printed}```")),
            "docs/c.md does not show what {name} prints:\n{printed}"
        );
    }
}
