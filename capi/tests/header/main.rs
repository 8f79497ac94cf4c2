//! Tests of the headers in capi/include: they match the sources, declare only expected names, and compile next to other programs' names.
//! `NETCL_WRITE_HEADER=1`, which `make capi` sets, generates them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)] // a test

mod hostile;
mod made;
mod names;

use std::path::{Path, PathBuf};

/// A header and its sources.
struct Header {
    name: &'static str,
    /// Name of the include guard.
    guard: &'static str,
    /// Included headers.
    includes: &'static [&'static str],
    /// Files and folders of capi/src that the header is generated from.
    sources: &'static [&'static str],
    /// Prefixes of the declared names.
    prefixes: &'static [&'static str],
    /// First lines of the header.
    about: &'static str,
}

const HEADERS: [Header; 3] = [
    Header {
        name: "netcl.h",
        guard: "NETCL_H",
        includes: &["<stddef.h>", "<stdint.h>"],
        sources: &["edge.rs", "model", "status.rs", "tensor"],
        prefixes: &["netcl_", "NETCL_"],
        about: "\
// libnetcl: tensors and language models, for programs in C and in every language that calls C.
// netcl_driver.h has the driver's functions, aethercl.h the simulated GPU. Both include this file.",
    },
    Header {
        name: "netcl_driver.h",
        guard: "NETCL_DRIVER_H",
        includes: &["\"netcl.h\""],
        sources: &["driver", "simulated"],
        prefixes: &["netcl_driver_", "netcl_simulated_", "NETCL_SIMULATED_"],
        about: "\
// libnetcl: the driver. Buffers are handles, and each operation is one function. The simulated GPU has addresses.",
    },
    Header {
        name: "aethercl.h",
        guard: "AETHERCL_H",
        includes: &["\"netcl.h\""],
        sources: &["machine"],
        prefixes: &["aethercl_", "AETHERCL_"],
        about: "\
// libnetcl: AetherCL, the simulated GPU: memory, queues, doorbells, registers, kernels, findings and counters.",
    },
];

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn include() -> PathBuf {
    here().join("include")
}

fn read(name: &str) -> String {
    let path = include().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
