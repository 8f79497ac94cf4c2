//! Compares constants and the dispatch table with the Khronos headers, if a C compiler and the headers are installed.
#![allow(clippy::unwrap_used)] // tests

use aethercl_icd::{api, cl};
use std::path::Path;
use std::process::Command;

/// Macros without which the headers define some constants differently.
const DEFINES: &str = "#define CL_TARGET_OPENCL_VERSION 300\n#define CL_USE_DEPRECATED_OPENCL_1_0_APIS\n#define CL_USE_DEPRECATED_OPENCL_1_1_APIS\n#include <stddef.h>\n#include <CL/cl.h>\n#include <CL/cl_ext.h>\n#include <CL/cl_icd.h>\n";

#[test]
fn numbers_and_table_are_those_of_the_headers() {
    if !Path::new("/usr/include/CL/cl_icd.h").exists() {
        println!("skipped: OpenCL headers are missing (opencl-headers)");
        return;
    }
    let mut text = DEFINES.to_string();
    for (name, value) in cl::ALL {
        text += &format!("_Static_assert((long long)(CL_{name}) == {value}LL, \"CL_{name}\");\n");
    }
    for (at, name) in api::NAMES.iter().enumerate() {
        text += &format!(
            "_Static_assert(offsetof(cl_icd_dispatch, {name}) == {at} * sizeof(void *), \"{name}\");\n"
        );
    }
    let slots = api::NAMES.len();
    text += &format!("_Static_assert(sizeof(cl_icd_dispatch) == {slots} * sizeof(void *), \"length\");\n");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("abi.c");
    std::fs::write(&file, text).unwrap();
    let Ok(out) = Command::new("cc").args(["-std=c11", "-fsyntax-only"]).arg(&file).output() else {
        println!("skipped: a C compiler is missing");
        return;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
