//! Checks that each name that a header declares or the library exports is one that a C program expects.

use super::{HEADERS, Header, here, read};
use std::collections::BTreeSet;
use std::process::Command;

/// Functions that keep the names from the first version of the driver.
const FUNCTIONS: [&str; 39] = [
    "allocate_gpu_memory",
    "execute_adam_update_on_gpu",
    "execute_add_broadcast_pe_gpu",
    "execute_add_on_gpu",
    "execute_broadcast_add_gpu",
    "execute_clone_on_gpu",
    "execute_cross_entropy_loss_grad_gpu",
    "execute_embedding_backward_gpu",
    "execute_embedding_lookup_gpu",
    "execute_gelu_backward_on_gpu",
    "execute_gelu_on_gpu",
    "execute_layernorm_backward_on_gpu",
    "execute_layernorm_on_gpu",
    "execute_log_softmax_stable_gpu",
    "execute_matmul_backward_on_gpu",
    "execute_matmul_batched_backward_on_gpu",
    "execute_matmul_batched_on_gpu",
    "execute_matmul_on_gpu",
    "execute_mul_backward_on_gpu",
    "execute_mul_on_gpu",
    "execute_reduce_sum_gpu",
    "execute_softmax_backward_on_gpu",
    "execute_softmax_on_gpu",
    "execute_transpose_12_batched_gpu",
    "execute_transpose_backward_on_gpu",
    "execute_transpose_batched_gpu",
    "execute_transpose_on_gpu",
    "free_gpu_memory",
    "initialize_gpu",
    "read_gpu_to_host_blocking",
    "shutdown_driver",
    "simulated_get_compute_unit_count",
    "simulated_kernel_allocate",
    "simulated_kernel_free",
    "simulated_kernel_read",
    "simulated_kernel_write",
    "simulated_matrix_multiply",
    "submit_command",
    "write_host_to_gpu_blocking",
];

/// Macros of the language or its compilers.
const FOREIGN: [&str; 1] = ["__cplusplus"];

#[derive(Default, Debug, PartialEq)]
struct Declared {
    macros: BTreeSet<String>,
    functions: BTreeSet<String>,
    /// Types, tags and enumeration constants.
    others: BTreeSet<String>,
}

/// Splits C source into words and punctuation, without comments and directives.
fn tokens(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        if line.trim_start().starts_with('#') {
            continue;
        }
        let mut word = String::new();
        for c in line.chars().chain(" ".chars()) {
            if c.is_ascii_alphanumeric() || c == '_' {
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                out.push(std::mem::take(&mut word));
            }
            if !c.is_whitespace() {
                out.push(c.to_string());
            }
        }
    }
    out
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Parses the declarations of a header that cbindgen wrote.
fn declared(text: &str) -> Declared {
    assert!(
        !text.contains("/*") || text.matches("/*").count() == 1,
        "expected line comments, except for the last comment"
    );
    let mut found = Declared::default();
    for line in text.lines().filter_map(|line| line.trim_start().strip_prefix("#define ")) {
        found.macros.insert(line.split([' ', '(']).next().unwrap().into());
    }
    let without_end = text.split("#endif  /*").next().unwrap();
    let tokens = tokens(without_end);
    // Declarations at file scope. `extern "C" {` does not open a scope.
    let mut declaration: Vec<&str> = Vec::new();
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate() {
        let linkage = declaration.first() == Some(&"extern") && declaration.len() == 4;
        match token.as_str() {
            "{" if linkage => declaration.clear(),
            "}" if depth == 0 => {}
            ";" if depth == 0 => {
                take(&declaration, &mut found);
                declaration.clear();
            }
            other => {
                depth = match other {
                    "{" => depth + 1,
                    "}" => depth - 1,
                    _ => depth,
                };
                declaration.push(&tokens[i]);
            }
        }
    }
    assert_eq!((depth, declaration.len()), (0, 0), "{declaration:?}");
    found
}

/// Adds the names of a declaration to `found`.
fn take(declaration: &[&str], found: &mut Declared) {
    // A tag follows its keyword.
    for pair in declaration.windows(2).filter(|w| matches!(w[0], "struct" | "enum" | "union")) {
        if is_name(pair[1]) {
            found.others.insert(pair[1].into());
        }
    }
    if let (Some(at), true) = (declaration.iter().position(|t| *t == "{"), declaration.contains(&"enum")) {
        let end = declaration.iter().position(|t| *t == "}").unwrap();
        for constant in declaration[at + 1..end].split(|t| *t == ",").filter(|c| !c.is_empty()) {
            found.others.insert(constant[0].into());
        }
    }
    let pointer = declaration.windows(3).find(|w| w[0] == "(" && w[1] == "*" && is_name(w[2]));
    match (declaration.first(), pointer) {
        (Some(&"typedef"), Some(pointer)) => found.others.insert(pointer[2].into()),
        (Some(&"typedef"), None) => found.others.insert((*declaration.last().unwrap()).into()),
        _ => {
            let open = declaration.iter().position(|t| *t == "(").expect("a function");
            found.functions.insert(declaration[open - 1].into())
        }
    };
}

fn allowed(header: &Header, name: &str) -> bool {
    header.prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[test]
fn headers_declare_only_names_with_their_prefix() {
    let mut driver = BTreeSet::new();
    for header in &HEADERS {
        let found = declared(&read(header.name));
        assert!(found.functions.len() > 5, "{}: {found:?}", header.name);
        for name in found.macros.iter().filter(|name| *name != header.guard).chain(&found.others) {
            assert!(allowed(header, name), "{} declares {name}", header.name);
        }
        for name in found.functions.iter().filter(|name| !allowed(header, name)) {
            assert!(header.name == "netcl_driver.h", "{} declares {name}", header.name);
            driver.insert(name.clone());
        }
    }
    assert_eq!(driver, FUNCTIONS.map(String::from).into());
}

#[test]
fn every_kind_of_declaration_is_found() {
    let text = "#ifndef X_H\n#define X_H\n#define QUEUE 0 // one\n#define min(a, b) a\ntypedef enum {\n  // Not a name.\n  IDLE = 0,\n  BUSY,\n} state;\n\
                typedef struct machine machine;\ntypedef struct {\n  int field;\n} pair;\ntypedef void (*Sink)(const char *line, void *user);\n\
                #ifdef __cplusplus\nextern \"C\" {\n#endif // __cplusplus\nint open_it(int a,\n  Sink sink);\nvoid *get(void);\n\
                #ifdef __cplusplus\n}  // extern \"C\"\n#endif\n#endif  /* X_H */\n";
    let set = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    let expected = Declared {
        macros: set(&["X_H", "QUEUE", "min"]),
        functions: set(&["open_it", "get"]),
        others: set(&["IDLE", "BUSY", "state", "machine", "pair", "Sink"]),
    };
    assert_eq!(declared(text), expected);
}

/// Checks exported names, because they could conflict with names of other libraries in the same program.
#[test]
fn the_library_exports_what_its_headers_declare() {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let library =
        folder.join(format!("{}netcl_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX));
    if !cfg!(target_os = "linux") || Command::new("nm").arg("--version").output().is_err() {
        eprintln!("skipped: no nm for shared libraries of Linux");
        return;
    }
    let out = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let listed = String::from_utf8(out.stdout).unwrap();
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|l| l.split(' ').next_back().map(String::from)).collect();
    let functions: BTreeSet<String> =
        HEADERS.iter().flat_map(|h| declared(&read(h.name)).functions).collect();
    assert_eq!(exported, functions);
}

/// Checks that conditional directives only use the include guards and `__cplusplus`.
#[test]
fn conditions_are_about_guards_and_the_language() {
    for header in &HEADERS {
        for line in read(header.name).lines().filter(|l| l.starts_with("#if")) {
            let asked = line.split(' ').nth(1).unwrap();
            assert!(asked == header.guard || FOREIGN.contains(&asked), "{}: {line}", header.name);
        }
    }
    assert!(
        here().join("include").read_dir().unwrap().count() == HEADERS.len(),
        "capi/include has a header that HEADERS does not list"
    );
}
