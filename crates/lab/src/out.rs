//! Results on stdout, everything else on stderr.

use crate::shell::printable;
use netcl::prelude::*;
use std::io::{ErrorKind as IoKind, IsTerminal, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const PIPE: &str = "the reader of the output is gone";

/// What a write to a terminal that went away fails with.
const EIO: i32 = 5;

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    // A model may write anything, and files may be called anything.
    let text = if out.is_terminal() { printable(text) } else { text.into() };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        IoKind::BrokenPipe => Error::new(ErrorKind::Io, PIPE),
        _ if cfg!(unix) && e.raw_os_error() == Some(EIO) => Error::new(ErrorKind::Io, PIPE),
        _ => Error::io("writing to", Path::new("stdout"), &e),
    })
}

/// A line of result.
pub fn result(line: &str) -> Result<()> {
    write(&format!("{line}\n"))
}

/// A result as one line of JSON.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value).map_err(|e| Error::internal(format!("a result as JSON: {e}")))?;
    result(&text)
}

/// A bar on stderr while a command works; none unless `live`.
pub fn progress(live: bool, steps: u64, doing: &'static str) -> indicatif::ProgressBar {
    if !live {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(steps).with_prefix(doing);
    bar.set_style(style("{prefix} {bar:24} {pos}/{len} {wide_msg}"));
    bar
}

/// Columns that a line with a bar takes at least.
const WIDE: u16 = 72;

/// The style of a line on this terminal: `wide`, or without a bar where that would not fit. A message is cut at the end of the line, because a
/// line that is longer than the terminal is wide scrolls at every change.
pub fn style(wide: &str) -> indicatif::ProgressStyle {
    let (_, columns) = console::Term::stderr().size();
    let style = indicatif::ProgressStyle::with_template(template(columns, wide));
    style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()).progress_chars("━╸ ")
}

fn template(columns: u16, wide: &str) -> &str {
    match columns {
        WIDE.. => wide,
        // Room for the position, if that is in the line at all.
        30.. if wide.contains("{pos}") => "{pos}/{len} {wide_msg}",
        _ => "{wide_msg}",
    }
}

/// A piece of result, shown at once.
pub fn stream(piece: &str) -> Result<()> {
    write(piece)
}

/// A line for the person watching. Nobody may be: errors are ignored.
pub fn note(line: &str) {
    let mut err = stderr().lock();
    let line = if err.is_terminal() { printable(line) } else { line.into() };
    let _ = writeln!(err, "{line}");
}

/// Whether an error only means that nobody reads the output any more.
pub fn is_broken_pipe(error: &Error) -> bool {
    error.kind() == ErrorKind::Io && error.message() == PIPE
}

/// Whether the error that the program ends with is still to be said.
static SPEAKS: AtomicBool = AtomicBool::new(true);

/// Says no more errors: what there is to say was said, here or by another rank.
pub fn hush() {
    SPEAKS.store(false, Ordering::Relaxed);
}

/// The exit code of an error, where it is not that of its kind; 0 where it is.
static CODE: AtomicU8 = AtomicU8::new(0);

/// The error that the program ends with next has this exit code.
pub fn end_with(code: u8) {
    CODE.store(code, Ordering::Relaxed);
}

/// Says what went wrong and gives the exit code of its kind, or of [`end_with`].
pub fn failure(error: &Error) -> ExitCode {
    let code = match CODE.load(Ordering::Relaxed) {
        0 => ExitCode::from(error.kind().exit_code()),
        own => ExitCode::from(own),
    };
    if !SPEAKS.load(Ordering::Relaxed) {
        return code;
    }
    // A compiler's log begins its own lines so.
    let text = error.to_string();
    note(&format!("error: {}", text.strip_prefix("error: ").unwrap_or(&text)));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 20 columns a bar alone takes 24.
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
