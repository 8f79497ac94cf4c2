//! Reduces the header of built-in functions for PoCL. PoCL parses Clang's header, 18,000 lines, before every source. That is 12 of the 17 ms that its
//! front end takes for a small source, and a process builds only one program at a time.
//!
//! A source gets only the declarations of functions that it may call, copied from the driver's header if it is found. The macro that guards the
//! header keeps the driver from parsing it. All overloads of a function are kept or omitted together, so that calls keep their meaning. A source that
//! calls another function does not compile and is then built unchanged.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The main header; it includes another header with types and macros.
const HEADER: &str = "opencl-c.h";
const BASE: &str = "opencl-c-base.h";
/// Marks a function declaration in the header.
const DECLARES: &str = "__ovld";
/// The macro that makes the driver skip the header.
const GUARD: &str = "_OPENCL_H_";

/// The declarations of a driver's built-in functions.
pub(crate) struct Header {
    text: String,
    /// Names of all functions, each once.
    names: Vec<String>,
    pieces: Vec<HeaderLines>,
}

/// Some lines of the header.
struct HeaderLines {
    /// Positions in [`Header::names`] of the functions that the lines declare; one match is enough to keep them. Empty if the lines are always kept.
    names: Vec<usize>,
    lines: Range<usize>,
}

impl Header {
    /// Option that makes the driver omit the header.
    pub const OPTION: &'static str = "-D_OPENCL_H_";

    /// Returns the header of the PoCL library in this process; `None` if its files are not found.
    pub fn of_driver() -> Option<Self> {
        let folder = folder(&std::fs::read_to_string("/proc/self/maps").ok()?)?;
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        Self::new(&read(HEADER)?, &read(BASE)?)
    }

    /// Parses the header and its included file; `None` if they do not look like Clang's.
    fn new(header: &str, base: &str) -> Option<Self> {
        let include =
            header.lines().find(|line| line.trim_start().starts_with("#include") && line.contains(BASE))?;
        let text = header.replacen(include, base, 1);
        if text.contains("#include") || !text.contains(&format!("#ifndef {GUARD}")) {
            return None;
        }
        let (pieces, names) = pieces(&text);
        Some(Self { text, names, pieces })
    }

    /// Returns `source` after the declarations that it needs, to be built with [`Header::OPTION`].
    pub fn before(&self, source: &str) -> String {
        let known: HashSet<&str> = words(source).collect();
        // Functions have many overloads, so each name is looked up once.
        let is_kept: Vec<bool> = self.names.iter().map(|name| is_named(name, &known)).collect();
        let mut out = String::with_capacity(source.len() + (64 << 10));
        out.push_str(&format!("#undef {GUARD}\n"));
        for piece in &self.pieces {
            if piece.names.is_empty() || piece.names.iter().any(|name| is_kept[*name]) {
                out.push_str(&self.text[piece.lines.clone()]);
            }
        }
        out.push('\n');
        out.push_str(source);
        out
    }
}

/// Returns true if a source with these words may name a function. It has the name, or all parts of the name between numbers, because macros compose
/// names such as `vload4`.
fn is_named(name: &str, known: &HashSet<&str>) -> bool {
    if known.contains(name) {
        return true;
    }
    // A macro may append the type.
    if name.starts_with("convert_") && known.contains("convert_") {
        return true;
    }
    let mut parts = name.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty());
    parts.all(|part| known.contains(part))
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the names, keywords and numbers of a source.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_word = |byte: &u8| is_word(char::from(*byte));
    // Words are ASCII, so their bytes are text.
    let bytes = text.as_bytes().split(move |byte| !is_word(byte)).filter(|word| !word.is_empty());
    bytes.filter_map(|word| std::str::from_utf8(word).ok())
}

/// Returns the header's lines without full-line comments: declarations of functions, and the lines between them. Also returns the functions' names.
fn pieces(text: &str) -> (Vec<HeaderLines>, Vec<String>) {
    let mut pieces: Vec<HeaderLines> = Vec::new();
    let (mut names, mut places) = (Vec::new(), HashMap::new());
    let mut declared = |lines: &Range<usize>| -> Vec<usize> {
        let mut place = |name: &str| {
            *places.entry(name.to_owned()).or_insert_with(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
        };
        declared(text, lines).map(|name| place(&text[name])).collect()
    };
    // A declaration that continues on the next line.
    let mut open: Option<HeaderLines> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let lines = at..at + line.len();
        at = lines.end;
        let code = line.trim();
        let ends = code.ends_with(';');
        if let Some(piece) = &mut open {
            piece.lines.end = lines.end;
            piece.names.extend(declared(&lines));
            if ends {
                pieces.extend(open.take());
            }
            continue;
        }
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        if !code.starts_with('#') && words(code).any(|word| word == DECLARES) {
            let piece = HeaderLines { names: declared(&lines), lines };
            if ends {
                pieces.push(piece)
            } else {
                open = Some(piece)
            }
            continue;
        }
        match pieces.last_mut() {
            // A macro that continues on the next line is never split.
            Some(last) if last.names.is_empty() && last.lines.end == lines.start => {
                last.lines.end = lines.end
            }
            _ => pieces.push(HeaderLines { names: Vec::new(), lines }),
        }
    }
    pieces.extend(open);
    // Lines without a name are kept; this is slower but correct.
    (pieces, names)
}

/// Returns the names before the parentheses of a line.
fn declared<'a>(text: &'a str, lines: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<'a> {
    let from = lines.start;
    let line = &text[lines.clone()];
    line.match_indices('(').filter_map(move |(paren, _)| {
        let before = line[..paren].trim_end();
        let name = before.rfind(|c: char| !is_word(c)).map_or(0, |end| end + 1);
        (name < before.len()).then(|| from + name..from + before.len())
    })
}

/// Finds PoCL's library in the memory map of a process and returns the folder of its header.
fn folder(maps: &str) -> Option<PathBuf> {
    let library = maps.lines().find_map(|line| {
        let path = Path::new(line.get(line.find('/')?..)?);
        path.file_name()?.to_str()?.starts_with("libpocl.so").then_some(path)
    })?;
    let found = library.ancestors().map(|above| above.join("share/pocl/include"));
    found.into_iter().find(|folder| folder.join(HEADER).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// Clang's\n#ifndef _OPENCL_H_\n#define _OPENCL_H_\n#include \"opencl-c-base.h\"\n#define __ovld __attribute__((overloadable))\n\
        float __ovld exp(float);\nfloat4 __ovld exp(float4);\nfloat __ovld sin(float);\n\
        int __ovld atomic_add(volatile __global int *p,\n    int v);\nfloat4 __ovld vload4(size_t,\n\
          const __global float *);\n#define LONG(x) \\\n  x\nint4 __ovld convert_int4_rte(float4);\n#endif\n";

    #[test]
    fn functions_are_kept_with_all_their_forms_or_not_at_all() {
        let header =
            Header::new(TEXT, "typedef float float4 __attribute__((ext_vector_type(4)));\n").unwrap();
        let left = |source: &str| {
            let text = header.before(source);
            assert!(text.starts_with("#undef _OPENCL_H_\n#ifndef") && text.ends_with(source));
            assert!(text.contains("typedef float float4") && text.contains("#define LONG(x) \\\n  x\n"));
            let header = &text[..text.len() - source.len()];
            ["exp(", "sin(", "atomic_add(", "vload4(", "convert_"].map(|name| header.matches(name).count())
        };
        assert_eq!(left("x"), [0; 5]);
        assert_eq!(left("y = exp + 1;"), [2, 0, 0, 0, 0]);
        assert_eq!(left("atomic_add"), [0, 0, 1, 0, 0]);
        assert_eq!(left("CAT(vload, VW) CAT(convert_, T)"), [0, 0, 0, 1, 1]);
        assert_eq!(left("CAT3(convert_int, N, _rte)"), [0, 0, 0, 0, 1]);
        assert_eq!(left("convert_int4"), [0; 5]);
    }

    #[test]
    fn what_is_no_header_of_clang_is_left_alone() {
        assert!(Header::new("float exp(float);", "").is_none());
        assert!(Header::new(&TEXT.replace("opencl-c-base.h", "other.h"), "").is_none());
        assert!(folder("7f-8f r-xp 0 0:0 1 /usr/lib/libother.so\n7f00 rw-p 00:00 0\n").is_none());
    }
}
