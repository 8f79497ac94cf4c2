//! Log lines, and the message of a panic.

use crate::out::note;
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Logs to stderr at the level that `RUST_LOG` sets. The default is info, or error on a rank that does not lead. If `json` is set, each line is a
/// JSON object with the time.
pub fn init(leads: bool, json: bool) {
    let level = if leads { "info" } else { "error" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let color = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let logger = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    match json {
        true => logger.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
        false => logger.with_ansi(color).without_time().with_target(false).init(),
    }
}

/// Reports a panic as a defect of netcl, and how to report it.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        if netcl::device::is_guarded() {
            // The caller turns this panic into an error.
            return;
        }
        note(&format!("netcl has a defect and cannot continue: {info}"));
        note("please report this line with the command and the output of `netcl doctor`");
    }));
}
