//! Compiles the C programs in this folder with the system's compiler and runs them against the shared library, on the test device. The
//! driver's program also runs on the simulated GPU.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test

use netcl_test_data::{needs_data, test_data};
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

/// Compiles and runs a program, and returns its output; an empty string without a compiler.
fn run(name: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c"));
    let Some(program) = compiled(&source, folder.path()) else { return String::new() };
    let out = Command::new(program).args(arguments).current_dir(folder.path()).output().unwrap();
    assert!(out.status.success(), "{name} {arguments:?}: {}\n{}", out.status, said(&out));
    assert!(said(&out).contains(&format!("{name}: ok")), "{}", said(&out));
    said(&out)
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
fn each_promise_of_the_seed_is_a_function() {
    let shown = run("seeds", &[&device()]);
    assert!(shown.is_empty() || shown.contains("warm initialize_gpu: "), "{shown}");
    eprintln!("{shown}");
}

#[test]
fn each_promise_of_the_seed_holds_on_the_simulated_gpu_too() {
    run("seeds", &["sim"]);
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

/// Returns the prototypes of a C driver in a text: code between stars whose type is one of C's.
fn prototypes(text: &str) -> Vec<String> {
    let code = text.split("**`").skip(1).filter_map(|part| part.split_once("`**").map(|(code, _)| code));
    let types = ["int ", "void ", "unsigned "];
    code.filter(|c| types.iter().any(|t| c.starts_with(t)) && c.ends_with(')')).map(String::from).collect()
}

/// Compiles the prototypes of the first seed, unchanged, next to the header, as C and as C++.
#[test]
#[needs_data("../seeds")]
fn row_040_the_prototypes_of_the_seed_are_those_of_the_header() {
    let seeds = test_data!().join("../seeds");
    let found = std::fs::read_dir(seeds).unwrap().map(|entry| entry.unwrap().path());
    let seed = found.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("000_"));
    let found = prototypes(&std::fs::read_to_string(seed.unwrap()).unwrap());
    assert_eq!(found.len(), 36, "{found:#?}");
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("prototypes.c");
    let declarations: String = found.iter().map(|prototype| format!("{prototype};\n")).collect();
    let text = format!(
        "#include <netcl_driver.h>\n#include <stdio.h>\n{declarations}int main(void) {{ puts(\"prototypes: ok\"); return simulated_get_compute_unit_count(0) != 16; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let Some(program) = compiled(&source, folder.path()) else { return };
    assert!(Command::new(program).status().unwrap().success());
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let checked = Command::new(&compiler)
        .args(["-x", "c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .args([&headers, &source])
        .output();
    match checked {
        Ok(checked) => assert!(checked.status.success(), "{}", said(&checked)),
        Err(_) => eprintln!("C++: skipped, there is no {compiler}"),
    }
}

/// Loads `driver.so`, made in two ways: by CMake, and by the compiler alone.
#[test]
fn row_042_cmake_or_one_command_makes_driver_so() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("load.c");
    let text = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char **a) {\n  void *at = n == 2 ? dlopen(a[1], RTLD_NOW) : NULL;\n\
                  unsigned (*units)(int) = at ? (unsigned (*)(int))dlsym(at, \"simulated_get_compute_unit_count\") : NULL;\n\
                  printf(\"%u %s\\n\", units ? units(0) : 0, at ? \"\" : dlerror());\n  return !units || !dlsym(at, \"initialize_gpu\");\n}\n";
    std::fs::write(&source, text).unwrap();
    let Some(load) = compiled(&source, folder.path()) else { return };
    let loads = |driver: &Path| {
        let out = Command::new(&load).arg(driver).output().unwrap();
        assert!(out.status.success() && said(&out) == "16 \n", "{}: {}", driver.display(), said(&out));
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The command of docs/c.md.
    let driver = folder.path().join("driver.so");
    let made = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()))
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&driver, &here.join("simulated_driver/simulated_driver.c")])
        .args(["-I", &here.join("include").display().to_string(), "-Wl,--no-as-needed"])
        .arg(folder.path().join("libnetcl.so.0"))
        .arg("-Wl,-rpath,$ORIGIN")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", said(&made));
    loads(&driver);
    let build = folder.path().join("build");
    let cmake = |arguments: &[&str]| Command::new("cmake").args(arguments).output();
    let (root, into) = (here.join("..").display().to_string(), build.display().to_string());
    let built = format!("-DNETCL_BUILT={}", library().parent().unwrap().display());
    let Ok(configured) = cmake(&["-S", &root, "-B", &into, &built]) else {
        eprintln!("CMake: skipped, it is not installed");
        return;
    };
    assert!(configured.status.success(), "{}", said(&configured));
    let prefix = folder.path().join("prefix").display().to_string();
    for arguments in [&["--build", &into][..], &["--install", &into, "--prefix", &prefix]] {
        let out = cmake(arguments).unwrap();
        assert!(out.status.success(), "{}", said(&out));
    }
    loads(&build.join("lib/driver.so"));
    loads(&folder.path().join("prefix/lib/driver.so"));
    let package = std::fs::read_to_string(folder.path().join("prefix/lib/pkgconfig/netcl.pc")).unwrap();
    assert!(package.contains(&prefix), "{package}");
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
