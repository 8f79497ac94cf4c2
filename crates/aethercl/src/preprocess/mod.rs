//! Directives and macros: converts sources to the parser's tokens.
//!
//! Macros are expanded according to ISO C: arguments first, separately; then the body with substituted arguments, rescanned together with the
//! following tokens. A macro's own name in its expansion is not expanded. Tokens from a macro carry its [`crate::source::Expansion`].

mod condition;
mod directive;
mod expand;
mod macros;
mod predefined;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::lex::{Names, Symbol, Token, TokenKind, scan};
use crate::options::{BuildOptions, Includes, Target};
use crate::source::{Diagnostics, SourceMap, Span};
use macros::Macro;

/// Maximum number of tokens of one build; stops macros that multiply.
const MAX_TOKENS: usize = 8_000_000;
/// Files inside files.
const MAX_INCLUDES: usize = 64;

/// One file being read.
struct FileState {
    tokens: Rc<[Token]>,
    at: usize,
    /// Conditionals open in this file.
    conditionals: Vec<Conditional>,
    symbol: Symbol,
}

/// An `#if` that has not met its `#endif`.
struct Conditional {
    span: Span,
    /// Whether a group has already been taken.
    taken: bool,
    /// Whether the current group is read.
    active: bool,
    /// `#else` has come.
    after_else: bool,
}

/// The preprocessor of one build.
pub struct Preprocessor<'a> {
    pub(crate) names: &'a mut Names,
    sources: &'a mut SourceMap,
    diagnostics: &'a mut Diagnostics,
    includes: &'a Includes,
    target: &'a Target,
    macros: HashMap<Symbol, Rc<Macro>>,
    files: Vec<FileState>,
    contexts: Vec<expand::PendingTokens>,
    once: HashSet<Symbol>,
    well_known: WellKnown,
    /// Tokens read so far, expansions included.
    work: usize,
    /// Nesting depth of expanded arguments.
    depth: usize,
    counter: u64,
    stopped: bool,
}

/// Names with a special meaning.
struct WellKnown {
    defined: Symbol,
    va_args: Symbol,
    pragma: Symbol,
    line: Symbol,
    file: Symbol,
    counter: Symbol,
}

impl<'a> Preprocessor<'a> {
    /// Returns a preprocessor with the macros of the language, the device and the options.
    pub fn new(
        names: &'a mut Names,
        sources: &'a mut SourceMap,
        diagnostics: &'a mut Diagnostics,
        options: &BuildOptions,
        includes: &'a Includes,
        target: &'a Target,
    ) -> Self {
        let well_known = WellKnown {
            defined: names.intern("defined"),
            va_args: names.intern("__VA_ARGS__"),
            pragma: names.intern("_Pragma"),
            line: names.intern("__LINE__"),
            file: names.intern("__FILE__"),
            counter: names.intern("__COUNTER__"),
        };
        let mut this = Self {
            names,
            sources,
            diagnostics,
            includes,
            target,
            macros: HashMap::new(),
            files: Vec::new(),
            contexts: Vec::new(),
            once: HashSet::new(),
            well_known,
            work: 0,
            depth: 0,
            counter: 0,
            stopped: false,
        };
        let builtin = predefined::text(options, target);
        this.enter("<built-in>", builtin, Span::default());
        this.drain();
        this.enter("<command line>", options.define_text(), Span::default());
        this.drain();
        this
    }

    /// Returns the tokens of the main source; the last is [`TokenKind::End`].
    pub fn run(mut self, name: &str, text: &str) -> Vec<Token> {
        self.enter(name, text.to_string(), Span::default());
        let tokens = self.drain();
        self.with_functions(tokens)
    }

    /// Prepends those built-ins that are written in OpenCL C, if the program uses one and does not define it.
    fn with_functions(&mut self, tokens: Vec<Token>) -> Vec<Token> {
        let written = |t: &Token| t.name().is_some_and(|n| predefined::is_written(self.names.text(n)));
        let mut used = tokens.iter().enumerate().filter(|(_, t)| written(t)).map(|(i, _)| i).peekable();
        // A declaration follows a type's name.
        let declares = |at: usize| {
            let before = at.checked_sub(1).and_then(|i| tokens[i].name());
            before.is_some_and(|n| self.names.text(n) != "return")
        };
        if used.peek().is_none() || used.any(declares) {
            return tokens;
        }
        self.enter("<built-in functions>", predefined::functions(), Span::default());
        let mut all = self.drain();
        all.pop();
        all.extend(tokens);
        all
    }

    /// Starts reading a file.
    fn enter(&mut self, name: &str, text: String, at: Span) {
        if self.files.len() >= MAX_INCLUDES {
            self.diagnostics.error(at, "#include nested too deeply");
            return;
        }
        // The UTF-8 byte order mark that some editors write.
        let text = text.strip_prefix('\u{feff}').map_or(text.clone(), String::from);
        let copy = text.clone();
        let Some(base) = self.sources.add(name, text) else {
            self.diagnostics.error(at, "the sources are too long");
            return;
        };
        let tokens = scan(&copy, base, self.names).into();
        let symbol = self.names.intern(name);
        self.files.push(FileState { tokens, at: 0, conditionals: Vec::new(), symbol });
    }

    /// Reads every open file to its end.
    fn drain(&mut self) -> Vec<Token> {
        let mut tokens = Vec::new();
        loop {
            let token = self.next_expanded();
            if token.is_end() || self.stopped {
                // For an unexpected end, the message points to after the last token.
                let behind = |t: &Token| Span { lo: t.span.hi, hi: t.span.hi, ..t.span };
                let span = tokens.last().map_or(token.span, behind);
                tokens.push(Token { kind: TokenKind::End, span, ..token });
                return tokens;
            }
            tokens.push(token);
        }
    }

    /// Returns the next token of the files, with directives executed; the end of an included file is skipped.
    fn next_of_files(&mut self) -> Token {
        loop {
            let Some(file) = self.files.last_mut() else { return end_token(Span::default()) };
            let token = file.tokens[file.at];
            if token.is_end() {
                self.leave_file();
                if self.files.is_empty() {
                    return token;
                }
                continue;
            }
            file.at += 1;
            if token.starts_line && token.is("#") {
                self.directive(token);
                continue;
            }
            if file.conditionals.last().is_some_and(|c| !c.active) {
                continue;
            }
            return token;
        }
    }

    /// Checks at a file's end that every `#if` was closed.
    fn leave_file(&mut self) {
        if let Some(file) = self.files.pop() {
            for open in file.conditionals {
                self.diagnostics.error(open.span, "unterminated conditional directive");
            }
        }
    }

    /// Counts work and returns whether the limit is exceeded.
    fn spend(&mut self, tokens: usize, at: Span) -> bool {
        self.work += tokens;
        if self.work > MAX_TOKENS && !self.stopped {
            self.stopped = true;
            self.diagnostics.error(at, "macros expand to too many tokens");
        }
        self.stopped
    }
}

/// Returns the token after the last one.
fn end_token(span: Span) -> Token {
    Token { kind: TokenKind::End, span, spaced: false, starts_line: true, blocked: false }
}
