//! Messages in compiler format: place, text, the line and a caret.

use std::fmt::Write;

use super::{SourceMap, Span};

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The build fails.
    Error,
    /// About the program: printed only on request.
    Warning,
}

/// One message with its notes.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// Its severity.
    pub severity: Severity,
    /// Position of the caret.
    pub span: Span,
    /// The problem in one line.
    pub message: String,
    /// Further places and their relation to the problem.
    pub notes: Vec<(Span, String)>,
}

/// Messages of one build.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
    /// Warnings about build options.
    options: Vec<String>,
    errors: usize,
    warn: bool,
    warnings_are_errors: bool,
}

/// Number of errors after which a build stops, because later ones are seldom useful.
const MAX_ERRORS: usize = 20;

impl Diagnostics {
    /// Keeps warnings if `warn` is set (`-Wall`), or counts them as errors (`-Werror`).
    pub fn new(warn: bool, warnings_are_errors: bool) -> Self {
        Self { warn, warnings_are_errors, ..Self::default() }
    }

    /// Adds an error.
    pub fn error(&mut self, span: Span, message: impl Into<String>) {
        self.error_with(span, message, Vec::new());
    }

    /// Adds an error with notes.
    pub fn error_with(&mut self, span: Span, message: impl Into<String>, notes: Vec<(Span, String)>) {
        self.errors += 1;
        let message = message.into();
        let again = self.list.last().is_some_and(|d| d.span == span && d.message == message);
        if self.errors <= MAX_ERRORS && !again {
            self.list.push(Diagnostic { severity: Severity::Error, span, message, notes });
        }
    }

    /// Adds a warning if warnings are enabled.
    pub fn warning(&mut self, span: Span, message: impl Into<String>) {
        if self.warnings_are_errors {
            self.error(span, message);
        } else if self.warn {
            let message = message.into();
            self.list.push(Diagnostic { severity: Severity::Warning, span, message, notes: Vec::new() });
        }
    }

    /// Adds a warning about a build option, which is always printed and does not have a source position.
    pub fn option_warning(&mut self, message: impl Into<String>) {
        self.errors += usize::from(self.warnings_are_errors);
        self.options.push(message.into());
    }

    /// Returns true if the build has failed.
    pub fn failed(&self) -> bool {
        self.errors > 0
    }

    /// Returns true if the error limit is reached.
    pub fn too_many(&self) -> bool {
        self.errors > MAX_ERRORS
    }

    /// Returns the messages in order.
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Returns all messages in compiler format, with an error count at the end.
    pub fn render(&self, sources: &SourceMap) -> String {
        let mut out = String::new();
        let kind = if self.warnings_are_errors { "error" } else { "warning" };
        self.options.iter().for_each(|message| _ = writeln!(out, "{kind}: {message}"));
        // Sort in source order: the stages that found them ran in sequence.
        let mut list: Vec<&Diagnostic> = self.list.iter().collect();
        list.sort_by_key(|d| sources.outermost(d.span).lo);
        for d in list {
            let kind = if d.severity == Severity::Error { "error" } else { "warning" };
            sources.describe(d.span, kind, &d.message, &mut out);
            for (span, note) in &d.notes {
                sources.describe(*span, "note", note, &mut out);
            }
        }
        if self.too_many() {
            out.push_str("fatal error: too many errors; stopped\n");
        }
        match self.errors {
            0 => {}
            1 => out.push_str("1 error generated.\n"),
            n => _ = writeln!(out, "{n} errors generated."),
        }
        out
    }
}

/// Maximum number of macro notes under a message.
const MAX_EXPANSION_NOTES: usize = 6;

impl SourceMap {
    /// Appends `file:line:column: kind: message`, the line, a caret, and a note for each macro that the place came from.
    pub fn describe(&self, span: Span, kind: &str, message: &str, out: &mut String) {
        self.excerpt(self.outermost(span), kind, message, out);
        let mut chain = Vec::new();
        let mut at = span;
        while let Some(e) = self.expansion(at) {
            chain.push((at, e.name.clone()));
            at = e.call;
        }
        for (at, name) in chain.iter().rev().take(MAX_EXPANSION_NOTES) {
            self.excerpt(*at, "note", &format!("expanded from macro '{name}'"), out);
        }
    }

    fn excerpt(&self, span: Span, kind: &str, message: &str, out: &mut String) {
        let l = self.locate(span);
        if l.line == 0 {
            _ = writeln!(out, "{kind}: {message}");
            return;
        }
        _ = writeln!(out, "{}:{}:{}: {kind}: {message}", l.file, l.line, l.column);
        let before = (l.column as usize - 1).min(l.text.len());
        // Tabs are kept so that the caret is below its column for every tab width.
        let pad = String::from_utf8_lossy(&l.text.as_bytes()[..before]);
        let pad: String = pad.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let width = (span.hi.saturating_sub(span.lo) as usize).clamp(1, (l.text.len() - before).max(1));
        _ = writeln!(out, "{}\n{pad}^{}", l.text, "~".repeat(width - 1));
    }
}
