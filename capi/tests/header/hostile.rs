//! Checks that the headers compile next to names that other programs and headers declare, in C and in C++.

use super::{HEADERS, include};
use std::path::Path;
use std::process::Command;

/// Macros that system headers define (windows.h, rpcndr.h, sys/param.h, X.h), and those that small programs define.
const MACROS: &str = "\
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define small char
#define near
#define far
#define interface struct
#define IN
#define OUT
#define CONST const
#define VOID void
#define BOOL int
#define B 2
#define D 3
#define E 5
#define K 7
#define M 11
#define N 13
#define S 17
#define V 19
#define D1 23
#define TILE 8
#define UNITS 16
";

/// Constants and types with common names.
const NAMES: &str = "\
enum { IDLE, QUEUE, OK, ERROR, TRUE, FALSE, NONE, NUMBER, INTEGER, TEXT, MASK, DTYPE, F16, F32, BF16, I32, U32, SHAPE, DEVICE, MEMORY,
       BUILD, LAUNCH, UNSUPPORTED, FORMAT, IO, INTERNAL, HANDLE, ARGUMENT, STOPPED, BUFFER, BUFFER_READ, VALUE, LOCAL, COPY, FILL,
       SIMULATED_COPY, SIMULATED_FILL, SIMULATED_MATRIX_MULTIPLY, STATUS_OK };
typedef int ReadBack;
typedef int Said;
typedef int TraceSink;
typedef int simulated_command;
typedef int status;
struct device { int number; };
struct tensor { int number; };
struct machine { int number; };
struct finding { int number; };
typedef enum { RED, GREEN } kind;
";

/// A program that uses these names and needs their own meaning.
const PROGRAM: &str = "\
int main(void) {
  struct device device = {min(QUEUE, N)};
  struct tensor tensor = {max(DTYPE, K)};
  simulated_command command = SIMULATED_COPY;
  small letter = 'a';
  kind color = GREEN;
  return device.number + tensor.number + command + letter + (int)color + OK + ERROR;
}
";

/// Compilers: environment variable, command, language, options.
const COMPILERS: [(&str, &str, &str, &[&str]); 3] = [
    ("CC", "cc", "c", &["-std=gnu11"]),
    ("CC", "cc", "c", &["-std=c99", "-pedantic"]),
    ("CXX", "c++", "c++", &["-std=c++11", "-pedantic"]),
];

fn compiles(compiler: &str, language: &str, options: &[&str], text: &str, folder: &Path) {
    let source = folder.join("program.txt");
    std::fs::write(&source, text).unwrap();
    let out = Command::new(compiler)
        .args(["-x", language, "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .args(options)
        .arg("-I")
        .arg(include())
        .arg(&source)
        .output()
        .unwrap();
    assert!(out.status.success(), "{compiler} {options:?}\n{text}\n{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn headers_compile_between_other_names() {
    let all: Vec<&str> = HEADERS.iter().map(|h| h.name).collect();
    let reversed: Vec<&str> = all.iter().rev().copied().collect();
    let mut sets: Vec<Vec<&str>> = all.iter().map(|name| vec![*name]).collect();
    sets.extend([all, reversed]);
    let folder = tempfile::tempdir().unwrap();
    for (variable, compiler, language, options) in COMPILERS {
        let compiler = std::env::var(variable).unwrap_or_else(|_| compiler.into());
        if Command::new(&compiler).arg("--version").output().is_err() {
            eprintln!("skipped: no compiler {compiler}");
            continue;
        }
        for set in &sets {
            // Each header is included twice, because two headers of a program may include it.
            let lines: String =
                set.iter().map(|name| format!("#include <{name}>\n#include <{name}>\n")).collect();
            for text in
                [format!("{MACROS}{NAMES}{lines}{PROGRAM}"), format!("{lines}{MACROS}{NAMES}{PROGRAM}")]
            {
                compiles(&compiler, language, options, &text, folder.path());
            }
        }
    }
}
