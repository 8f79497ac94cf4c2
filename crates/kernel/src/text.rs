//! Source locations of the parts of a kernel source.
//!
//! [`cl_file!`](crate::cl_file) puts a `#line` before the content of a file. Driver messages then name the file by its path, even if several sources
//! were joined by `concat!`.

use std::fmt::Write as _;

/// Returns the content of a `.cl` file, by its path relative to the calling file. It starts with a `#line` that names the file; sources joined by
/// `concat!` keep theirs.
///
/// ```ignore
/// static KERNEL: Kernel = Kernel::new("softmax", cl_file!("softmax.cl")).include(&[cl_file!("../include/vector16.cl")]);
/// ```
#[macro_export]
macro_rules! cl_file {
    ($path:expr) => {
        concat!("#line 1 \"", file!(), "/../", $path, "\"\n", include_str!($path))
    };
}

const LINE: &str = "#line ";

/// Returns the line number and file of a `#line`.
fn place(line: &str) -> Option<(usize, &str)> {
    let (number, file) = line.strip_prefix(LINE)?.split_once(' ')?;
    Some((number.parse().ok()?, file.strip_prefix('"')?.strip_suffix('"')?))
}

/// Returns a path without `..`: `ops/softmax/mod.rs/../../include/philox.cl` is `ops/include/philox.cl`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "." => {}
            ".." if parts.last().is_some_and(|p| *p != "..") => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Appends a source with simplified paths in its `#line`s. A source without a `#line` at the start gets the name `otherwise`.
pub(crate) fn append(source: &mut String, text: &str, otherwise: &str) {
    if !text.starts_with(LINE) {
        // Writing to a String cannot fail.
        let _ = writeln!(source, "#line 1 \"{otherwise}\"");
    }
    for line in text.split_inclusive('\n') {
        match place(line.trim_end()) {
            Some((number, path)) => {
                let _ = writeln!(source, "#line {number} \"{}\"", plain(path));
            }
            None => source.push_str(line),
        }
    }
}

/// Returns the lines of a source that a compiler sees, without the `#line`s of [`cl_file!`](crate::cl_file), comments and empty lines. A measurement
/// of a source stays valid when its file moves or its comments change. `//@` does not start a comment: instructions follow it.
pub(crate) fn code(text: &str) -> String {
    let named_by_macro = |line: &&str| place(line).is_some_and(|(_, path)| path.contains("/../"));
    let plain = without_comments(text);
    let lines = plain.lines().map(str::trim_end).filter(|line| !line.is_empty() && !named_by_macro(line));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn without_comments(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find(['/', '"']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let length = match from.as_bytes() {
            [b'/', b'*', ..] => from.find("*/").map_or(from.len(), |end| end + 2),
            [b'/', b'/', b'@', ..] => 3,
            [b'/', b'/', ..] => from.find('\n').unwrap_or(from.len()),
            [b'"', ..] => 1 + string_end(&from[1..]),
            _ => 1,
        };
        let comment = from.starts_with("/*") || from.starts_with("//") && !from.starts_with("//@");
        out.push_str(if comment { " " } else { &from[..length] });
        rest = &from[length..];
    }
    out + rest
}

/// Returns the number of bytes of a string literal after its first quote, including the last quote.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    let end = text.find(|c: char| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 1)
}

/// Returns the lines of the assembled source that a build log refers to as `file:line`, at most five, each with its location.
pub(crate) fn quote_lines(source: &str, log: &str) -> String {
    let mut lines: Vec<(&str, usize, &str)> = Vec::new();
    let mut at = None;
    for line in source.lines() {
        at = match (place(line), at) {
            (Some((number, file)), _) => Some((file, number)),
            (None, Some((file, number))) => {
                lines.push((file, number, line));
                Some((file, number + 1))
            }
            (None, None) => None,
        };
    }
    let mut files: Vec<&str> = lines.iter().map(|(file, ..)| *file).collect();
    files.sort_unstable();
    files.dedup();
    let mut found = Vec::new();
    for file in files {
        for (start, _) in log.match_indices(file) {
            let within_a_path = log[..start].ends_with(|c: char| c.is_alphanumeric() || "/_-.".contains(c));
            let Some(rest) = log[start + file.len()..].strip_prefix(':').filter(|_| !within_a_path) else {
                continue;
            };
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            found.extend(digits.parse::<usize>().ok().map(|number| (start, file, number)));
        }
    }
    found.sort_unstable();
    let mut seen = Vec::new();
    let mut out = String::new();
    for (_, file, number) in found {
        let text = lines.iter().find(|(f, n, _)| (*f, *n) == (file, number));
        if let Some((.., line)) = text.filter(|_| seen.len() < 5 && !seen.contains(&(file, number))) {
            seen.push((file, number));
            let _ = writeln!(out, "  {file}:{number} | {line}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;

    const ADDRESS: &str = crate::cl_file!("vendors/nvidia/address.cl");
    const JOINED: &str = concat!(
        "#define TWICE\n",
        crate::cl_file!("vendors/nvidia/address.cl"),
        crate::cl_file!("ceiling.cl")
    );
    static KERNEL: Kernel =
        Kernel::new("joined", JOINED).include(&[ADDRESS, "// nowhere\n"]).generate(|| "// made\n".into());

    #[test]
    fn every_part_names_a_file_that_is_there() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = KERNEL.text(&[("N", 3i64.into())]);
        assert!(
            text.starts_with("// joined\n#define N 3\n#line 1 \"crates/kernel/src/prelude.cl\"\n"),
            "{}",
            &text[..99]
        );
        let places: Vec<_> = text.lines().filter_map(place).collect();
        let expected = [
            "crates/kernel/src/prelude.cl",
            "crates/kernel/src/prelude_reductions.cl",
            "crates/kernel/src/vendors/nvidia/address.cl",
            "text included by joined",
            "text generated for joined",
            "joined.cl",
            "crates/kernel/src/vendors/nvidia/address.cl",
            "crates/kernel/src/ceiling.cl",
        ];
        assert_eq!(places, expected.map(|file| (1, file)));
        for file in expected.iter().filter(|f| f.contains('/')) {
            let whole = std::fs::read_to_string(root.join(file)).unwrap();
            assert!(text.contains(&format!("#line 1 \"{file}\"\n{whole}")), "{file}");
        }
    }

    #[test]
    fn a_log_is_quoted_from_whatever_file_it_points_at() {
        let text = KERNEL.text(&[]);
        let line = |file: &str, n: usize| {
            let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
            std::fs::read_to_string(root.join(file)).unwrap().lines().nth(n - 1).unwrap().to_owned()
        };
        let log = "crates/kernel/src/ceiling.cl:3:7: error: a\njoined.cl:1:1: note: b\ncrates/kernel/src/ceiling.cl:3:9: error: once \
            more\ncrates/kernel/src/prelude.cl:2:1: error: c\nother/joined.cl:1:2: another file\ncrates/kernel/src/ceiling.cl:99999: beyond its end";
        let expected = format!(
            "  crates/kernel/src/ceiling.cl:3 | {}\n  joined.cl:1 | #define TWICE\n  crates/kernel/src/prelude.cl:2 | {}\n",
            line("ceiling.cl", 3),
            line("prelude.cl", 2)
        );
        assert_eq!(quote_lines(&text, log), expected);
    }

    #[test]
    fn what_was_measured_holds_wherever_a_file_lies() {
        static BARE: Kernel = Kernel::new("k", include_str!(concat!("ceiling", ".cl")));
        static PLACED: Kernel = Kernel::new("k", crate::cl_file!("ceiling.cl"));
        assert_eq!(BARE.fingerprint(), PLACED.fingerprint());
        assert_ne!(BARE.fingerprint(), KERNEL.fingerprint());
    }

    #[test]
    fn comments_are_no_code_and_instructions_behind_a_mark_are() {
        let text = "/* a \"b\" */\nint x; // y\n\n  //@ wgmma;\nasm(\"/* \\\" // z */\");\na / b; /* over\nlines */ c;\n";
        assert_eq!(code(text), "int x;\n  //@ wgmma;\nasm(\"/* \\\" // z */\");\na / b;   c;\n");
        assert_eq!(code("int x;"), code("int x; // whatever\n/* else */\n"));
        assert_ne!(code("int x;"), code("int y;"));
    }

    #[test]
    fn detours_are_left_out_of_paths() {
        assert_eq!(plain("ops/softmax/mod.rs/../../include/philox.cl"), "ops/include/philox.cl");
        assert_eq!(plain(r"crates\tensor\src\random.rs/../ops/./a.cl"), "crates/tensor/src/ops/a.cl");
        assert_eq!(plain("/src/a/b.rs/../c.cl"), "/src/a/c.cl");
        assert_eq!(plain("../x.cl"), "../x.cl");
    }
}
