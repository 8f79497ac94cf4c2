//! Log lines, and what a panic says.

use crate::out::note;
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Logs to stderr at the level that `RUST_LOG` sets. The default is information and worse, and errors on a rank that does not lead. As `json`, a line is
/// an object with the time.
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

/// A panic is a defect of netcl: say so, and how to tell us.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|info| {
        if netcl::device::is_guarded() {
            // It becomes an error.
            return;
        }
        note(&format!("netcl has a defect and cannot go on: {info}"));
        note("please report this line with the command you ran and the output of `netcl doctor`");
    }));
}
