//! Runs the tests of the Python package with the module of this build: one pytest process per file. `make python` also builds the wheel and
//! checks types.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stderr)] // tests

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true if path.ends_with("__pycache__") => {}
            true => copy(&path, &target),
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}

/// Returns the file name of a shared library.
fn module_name(library: &str) -> String {
    format!("{}{library}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}

/// Returns the module in the folder of test programs.
fn module() -> PathBuf {
    let name = module_name("_netcl");
    let test = std::env::current_exe().unwrap();
    test.ancestors().skip(1).map(|folder| folder.join(&name)).find(|path| path.is_file()).unwrap()
}

/// Returns a Python with pytest and NumPy.
fn python() -> Option<String> {
    let named = ["NETCL_CLIENTS", "NETCL_PYTHON"].iter().find_map(|name| std::env::var(name).ok());
    let python = named.unwrap_or_else(|| "python3".into());
    let has = Command::new(&python).args(["-c", "import numpy, pytest"]).output();
    has.is_ok_and(|out| out.status.success()).then_some(python)
}

fn run(file: &str) {
    let Some(python) = python() else {
        eprintln!("skipped: no Python with pytest and numpy; set NETCL_CLIENTS=$(tools/serve_python.sh)");
        return;
    };
    let (folder, package) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    copy(&package.join("netcl"), &folder.path().join("netcl"));
    fs::copy(module(), folder.path().join("netcl/_netcl.abi3.so")).unwrap();
    let done = Command::new(python)
        .args(["-m", "pytest", "--quiet", "--no-header", "-p", "no:cacheprovider"])
        .arg(package.join("tests").join(file))
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // Most of the time goes into builds of kernels that run for milliseconds.
        .env("NETCL_QUICK_BUILDS", "1")
        // libnetcl of the same build, for a test that links it.
        .env("LIBNETCL", module().with_file_name(module_name("netcl_c")))
        .current_dir(folder.path())
        .output()
        .unwrap();
    // All tests of the file were skipped, for example without PyTorch.
    if done.status.code() == Some(5) {
        eprintln!("skipped: {}", String::from_utf8_lossy(&done.stdout));
        return;
    }
    assert!(
        done.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

macro_rules! files {
    ($($name:ident),+ $(,)?) => {
        const FILES: &[&str] = &[$(concat!(stringify!($name), ".py")),+];
        $(#[test] fn $name() { run(concat!(stringify!($name), ".py")); })+
    };
}

files!(
    test_compat_ocl_llm,
    test_compat_plan,
    test_compile,
    test_data,
    test_decoder,
    test_docs,
    test_einops,
    test_fuse,
    test_graph,
    test_hybrid,
    test_integers,
    test_kernel,
    test_layers,
    test_llm,
    test_nn,
    test_opgraph,
    test_opinfo,
    test_ops,
    test_process,
    test_seed_000,
    test_seed_000_model,
    test_seed_000_operations,
    test_seed_000_programs,
    test_seed_000_script,
    test_seed_001,
    test_seed_001_devices,
    test_seed_002,
    test_seed_004,
    test_tensor,
    test_torch_autograd,
    test_torch_compat,
    test_torch_creation,
    test_torch_distributions,
    test_torch_examples,
    test_torch_functional,
    test_torch_inplace,
    test_torch_lbfgs,
    test_torch_meaning,
    test_torch_modules,
    test_torch_names,
    test_torch_nn,
    test_torch_one_meaning,
    test_torch_optim,
    test_torch_page,
    test_torch_programs,
    test_torch_schedulers,
    test_torch_shapes,
    test_trainer,
);

#[test]
fn every_file_of_tests_is_run() {
    let mut found: Vec<String> = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("test_") && name.ends_with(".py"))
        .collect();
    found.sort();
    assert_eq!(found, FILES);
}
