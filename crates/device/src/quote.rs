//! Quotes words so that command lines can be pasted into a shell.

use std::ffi::OsStr;
use std::path::Path;

/// Returns a word in the form that a shell reads back. A word without special characters stays unchanged; any other word is quoted.
pub fn quote(word: &OsStr) -> String {
    let bytes = word.as_encoded_bytes();
    let harmless = |b: &u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(b);
    if !bytes.is_empty() && bytes.iter().all(harmless) {
        return word.to_string_lossy().into_owned();
    }
    match word.to_str().filter(|text| !text.chars().any(char::is_control)) {
        Some(text) => format!("'{}'", text.replace('\'', r"'\''")),
        // Control characters and bytes that are not UTF-8: bash, zsh, ksh and busybox support this form of quotes.
        None => {
            let byte = |b: &u8| match b {
                b'\\' | b'\'' => format!("\\{}", *b as char),
                b' '..=b'~' => (*b as char).to_string(),
                b => format!("\\{b:03o}"),
            };
            format!("$'{}'", bytes.iter().map(byte).collect::<String>())
        }
    }
}

/// Returns a path in a form that no program parses as a flag.
pub fn quote_path(path: &Path) -> String {
    let flag = path.as_os_str().as_encoded_bytes().starts_with(b"-");
    quote(if flag { Path::new(".").join(path) } else { path.to_owned() }.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [&str; 10] = [
        "",
        "plain-1.0/x",
        "two words",
        "it's",
        "$(rm x) `y` \"z\" !",
        "tab\tline\nend",
        "\x1b[31m",
        "ü 字",
        "a\\b",
        "-p",
    ];

    #[test]
    fn a_hint_is_read_back_by_the_shell_as_it_was_meant() {
        for word in ODD {
            let line = format!("printf '%s.' {}", quote(OsStr::new(word)));
            let Ok(output) = std::process::Command::new("bash").args(["-c", &line]).output() else {
                eprintln!("skipped: bash is not installed");
                return;
            };
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{word}."), "{line}");
        }
        assert_eq!(quote(OsStr::new("runs/demo-1")), "runs/demo-1");
        assert_eq!(quote_path(Path::new("-x y")), "'./-x y'");
        assert!(!quote(OsStr::new("a\x1b[0m")).contains('\x1b'));
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_are_quoted() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(quote(OsStr::from_bytes(b"a\xff'b")), r"$'a\377\'b'");
    }
}
