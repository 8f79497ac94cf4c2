//! Command lines that can be pasted into a shell, and text that is safe on a terminal.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

/// A word as a shell reads it back: as it is where nothing in it means anything to a shell, else in quotes.
pub fn quote(word: &OsStr) -> String {
    let bytes = word.as_encoded_bytes();
    let harmless = |b: &u8| b.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(b);
    if !bytes.is_empty() && bytes.iter().all(harmless) {
        return word.to_string_lossy().into_owned();
    }
    match word.to_str().filter(|text| !text.chars().any(char::is_control)) {
        Some(text) => format!("'{}'", text.replace('\'', r"'\''")),
        // Control characters, and bytes that are no text: bash, zsh, ksh and busybox know these quotes.
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

/// A path that no program takes for a flag.
pub fn path(path: &Path) -> String {
    let flag = path.as_os_str().as_encoded_bytes().starts_with(b"-");
    quote(if flag { Path::new(".").join(path) } else { path.to_owned() }.as_os_str())
}

/// This program as it was called, so that what is shown runs where it is pasted.
pub fn program() -> String {
    std::env::args_os()
        .next()
        .filter(|name| !name.is_empty())
        .map_or_else(|| "netcl".into(), |name| quote(&name))
}

/// Text without anything that a terminal obeys: control characters but for line ends and tabs, and marks that turn the direction of
/// the text around, are shown by their numbers.
pub fn printable(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| {
        c.is_control() && c != '\n' && c != '\t'
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeyed) {
        return text.into();
    }
    let shown = |c: char| if obeyed(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(shown).collect::<String>().into()
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
                eprintln!("skipped: there is no bash");
                return;
            };
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{word}."), "{line}");
        }
        assert_eq!(quote(OsStr::new("runs/demo-1")), "runs/demo-1");
        assert_eq!(path(Path::new("-x y")), "'./-x y'");
        assert!(!quote(OsStr::new("a\x1b[0m")).contains('\x1b'));
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_are_quoted() {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(quote(OsStr::from_bytes(b"a\xff'b")), r"$'a\377\'b'");
    }

    #[test]
    fn control_characters_of_a_text_do_not_reach_the_terminal() {
        let evil = "\x1b]0;title\x07 \u{9b}31m \r\x08 \u{202e}abc\u{2066}\x7f";
        let shown = printable(evil);
        assert!(
            !shown.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{2069}').contains(&c)),
            "{shown:?}"
        );
        assert!(shown.contains(r"\u{1b}]0;title\u{7}") && shown.contains(r"\u{202e}abc"), "{shown}");
        assert!(matches!(printable("line\n\tü 字 🙂"), Cow::Borrowed(_)));
    }
}
