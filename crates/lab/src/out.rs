//! Results on stdout, everything else on stderr.

use crate::shell::printable;
use netcl::prelude::*;
use std::io::{ErrorKind as IoKind, IsTerminal, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const PIPE: &str = "the reader of the output has ended";

/// The error of a write to a terminal that was closed.
const EIO: i32 = 5;

/// Marks around text that matters less, on a terminal with colors and elsewhere.
const DIMMED: [&str; 2] = ["\x1b[2m", "\x1b[0m"];
const BRACKETED: [&str; 2] = ["⟨", "⟩"];

fn write(text: &str) -> Result<()> {
    // Models and file names may contain any characters.
    let text = if stdout().is_terminal() { printable(text) } else { text.into() };
    write_raw(&text)
}

fn write_raw(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        IoKind::BrokenPipe => Error::new(ErrorKind::Io, PIPE),
        _ if cfg!(unix) && e.raw_os_error() == Some(EIO) => Error::new(ErrorKind::Io, PIPE),
        _ => Error::io("writing to", Path::new("stdout"), &e),
    })
}

/// Prints a line of results.
pub fn result(line: &str) -> Result<()> {
    write(&format!("{line}\n"))
}

/// Returns whether stdout shows dimmed text. If not, [`parts`] puts it in brackets.
pub fn dims() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Prints a text in parts, of which some are dimmed.
pub fn parts(parts: &[(String, bool)]) -> Result<()> {
    let [before, after] = if dims() { DIMMED } else { BRACKETED };
    let shown = |text: &str| if stdout().is_terminal() { printable(text).into_owned() } else { text.into() };
    let part = |(text, dimmed): &(String, bool)| match dimmed {
        true => format!("{before}{}{after}", shown(text)),
        false => shown(text),
    };
    write_raw(&parts.iter().map(part).collect::<String>())
}

/// Prints a result as one line of JSON.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value)
        .map_err(|e| Error::internal(format!("cannot convert a result to JSON: {e}")))?;
    result(&text)
}

/// Returns a bar on stderr for a working command; hidden unless `live`.
pub fn progress(live: bool, steps: u64, doing: &'static str) -> indicatif::ProgressBar {
    if !live {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(steps).with_prefix(doing);
    bar.set_style(style("{prefix} {bar:24} {pos}/{len} {wide_msg}"));
    bar
}

/// Minimum columns for a line with a bar.
const WIDE: u16 = 72;

/// Returns the style of a line on this terminal: `wide`, or a line without a bar if that does not fit. A message is cut at the end of the line,
/// because a line longer than the terminal would scroll at every change.
pub fn style(wide: &str) -> indicatif::ProgressStyle {
    let (_, columns) = console::Term::stderr().size();
    let style = indicatif::ProgressStyle::with_template(template(columns, wide));
    style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()).progress_chars("━╸ ")
}

fn template(columns: u16, wide: &str) -> &str {
    match columns {
        WIDE.. => wide,
        // Shows the position, if the style has it.
        30.. if wide.contains("{pos}") => "{pos}/{len} {wide_msg}",
        _ => "{wide_msg}",
    }
}

/// Prints part of a result at once.
pub fn stream(piece: &str) -> Result<()> {
    write(piece)
}

/// Prints a line for the user. Ignores errors, because nobody may be reading.
pub fn note(line: &str) {
    let mut err = stderr().lock();
    let line = if err.is_terminal() { printable(line) } else { line.into() };
    let _ = writeln!(err, "{line}");
}

/// Returns whether an error only means that the reader of the output has ended.
pub fn is_broken_pipe(error: &Error) -> bool {
    error.kind() == ErrorKind::Io && error.message() == PIPE
}

/// Whether the final error of the program is still to be printed.
static SPEAKS: AtomicBool = AtomicBool::new(true);

/// Suppresses further errors, because this or another rank has printed them.
pub fn hush() {
    SPEAKS.store(false, Ordering::Relaxed);
}

/// The exit code of an error, if it differs from that of its kind; otherwise 0.
static CODE: AtomicU8 = AtomicU8::new(0);

/// Sets the exit code of the program's final error.
pub fn end_with(code: u8) {
    CODE.store(code, Ordering::Relaxed);
}

/// Prints an error and returns the exit code of its kind, or of [`end_with`].
pub fn failure(error: &Error) -> ExitCode {
    let code = match CODE.load(Ordering::Relaxed) {
        0 => ExitCode::from(error.kind().exit_code()),
        own => ExitCode::from(own),
    };
    if !SPEAKS.load(Ordering::Relaxed) {
        return code;
    }
    // A compiler's log already has this prefix.
    let text = error.to_string();
    note(&format!("error: {}", text.strip_prefix("error: ").unwrap_or(&text)));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bar alone needs 24 columns, more than 20.
    #[test]
    fn a_narrow_terminal_gets_a_line_that_fits() {
        let wide = "{bar:24} step {pos}/{len}  {wide_msg}";
        assert_eq!(template(80, wide), wide);
        assert_eq!(template(40, wide), "{pos}/{len} {wide_msg}");
        for columns in [0, 1, 20, 29] {
            assert_eq!(template(columns, wide), "{wide_msg}", "{columns}");
        }
    }
}
