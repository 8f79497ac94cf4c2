//! Systems without an ICD loader: netcl loads the drivers that `.icd` files name. Without `.icd` files, the message says what to install. Settings
//! are values, so tests here do not affect each other.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // tests

use netcl_device::{Capabilities, Device, ErrorKind, Settings, list, report};
use std::path::{Path, PathBuf};

/// Returns an empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("netcl-loader-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Returns settings with which netcl itself looks for drivers, only in `vendors`.
fn without_loader(vendors: &Path) -> Settings {
    Settings { no_loader: true, icd_vendors: Some(vendors.into()), ..Settings::default() }
}

fn ids(devices: &[Capabilities]) -> Vec<&str> {
    devices.iter().map(|d| d.id.as_str()).collect()
}

/// Returns the system's drivers that can be opened, and those that the test environment names.
fn drivers() -> Vec<(PathBuf, String)> {
    let found = report(&Settings { no_loader: true, ..Settings::from_env() });
    found
        .icds
        .into_iter()
        .filter(|(_, _, error)| error.is_none())
        .map(|(file, library, _)| (file, library))
        .collect()
}

#[test]
fn drivers_are_loaded_without_a_loader() {
    let drivers = drivers();
    let Some((file, library)) = drivers.first() else {
        eprintln!("skipped: no installed driver has a readable .icd file");
        return;
    };
    let dir = folder("vendors");
    // In addition to working files: a file of another type, an empty one, one that names a missing library, and one that names a file that is not a
    // library.
    std::fs::write(dir.join("a-note.txt"), "libnothing.so").unwrap();
    std::fs::write(dir.join("b-empty.icd"), "\n\n").unwrap();
    std::fs::write(dir.join("c-gone.icd"), "libnetcl-nothing.so\n").unwrap();
    std::fs::write(dir.join("d-text.icd"), dir.join("a-note.txt").display().to_string()).unwrap();
    std::fs::write(dir.join("e-driver.icd"), format!("\n  {library}  \n")).unwrap();
    let settings = without_loader(&dir);
    let through_folder = list(&settings).unwrap();
    assert!(!through_folder.is_empty(), "{} names {library}, which shows no device", file.display());
    // A single file, and the library itself, are accepted in place of a folder.
    let through_file = list(&without_loader(&dir.join("e-driver.icd"))).unwrap();
    assert_eq!(ids(&through_file), ids(&through_folder));

    let device = Device::open(&through_folder[0].id, &settings).unwrap();
    let buffer = device.allocate(8).unwrap();
    device.upload(&buffer, 0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut back = [0; 8];
    device.download(&buffer, 0, &mut back).unwrap();
    assert_eq!(back, [1, 2, 3, 4, 5, 6, 7, 8]);

    let found = report(&settings);
    assert!(found.loader.is_none() && found.tried[0].contains("NETCL_NO_LOADER"), "{found:?}");
    let errors: Vec<bool> = found.icds.iter().map(|(_, _, error)| error.is_some()).collect();
    assert_eq!(errors, [true, true, false], "{found:?}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn without_any_opencl_the_message_says_what_to_install() {
    let dir = folder("nothing");
    std::fs::write(dir.join("gone.icd"), "libnetcl-nothing.so\n").unwrap();
    for error in [
        list(&without_loader(&dir)).unwrap_err(),
        Device::open("pocl", &without_loader(&dir)).unwrap_err(),
        Device::open("nvidia:0", &without_loader(&dir.join("missing"))).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Device);
        let said = error.message();
        assert!(said.starts_with("no OpenCL library found: ") && said.contains("apt-get install "), "{said}");
    }
    let said = list(&without_loader(&dir)).unwrap_err();
    assert!(said.message().contains("libnetcl-nothing.so (named by "), "{said}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// A library named in the settings is not silently replaced by another.
#[test]
fn a_named_library_is_the_only_one_tried() {
    let settings = Settings { opencl_library: Some("/nowhere/libOpenCL.so".into()), ..Settings::default() };
    let said = list(&settings).unwrap_err();
    assert!(
        said.message().starts_with(
            "NETCL_OPENCL_LIBRARY names /nowhere/libOpenCL.so, which is not an OpenCL library ("
        ) && said.message().ends_with("unset it to search for one"),
        "{said}"
    );
}
