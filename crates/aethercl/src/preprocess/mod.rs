//! Directives and macros: texts to the tokens that the parser reads.
//!
//! Macros are expanded as ISO C describes: arguments first, on their own; then the body with the arguments put in, read
//! again together with what follows; a macro's own name in its expansion stays. Tokens out of a macro carry its
//! [`crate::source::Expansion`].

mod condition;
mod directive;
mod expand;
mod macros;
mod predefined;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::lex::{Names, Symbol, Token, TokenKind, scan};
use crate::options::{Includes, Options, Target};
use crate::source::{Diagnostics, SourceMap, Span};
use macros::Macro;

/// Tokens out of one build at most; stops macros that multiply.
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
    /// Some group has been taken already.
    taken: bool,
    /// The group here is read.
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
    contexts: Vec<expand::Context>,
    once: HashSet<Symbol>,
    well_known: WellKnown,
    /// Tokens read so far, expansions included.
    work: usize,
    /// Arguments being expanded inside arguments.
    depth: usize,
    counter: u64,
    stopped: bool,
}

/// Names that mean something here.
struct WellKnown {
    defined: Symbol,
    va_args: Symbol,
    pragma: Symbol,
    line: Symbol,
    file: Symbol,
    counter: Symbol,
}

impl<'a> Preprocessor<'a> {
    /// A preprocessor with the macros of the language, the device and the options defined.
    pub fn new(
        names: &'a mut Names,
        sources: &'a mut SourceMap,
        diagnostics: &'a mut Diagnostics,
        options: &Options,
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

    /// The tokens of the main text; the last is [`TokenKind::End`].
    pub fn run(mut self, name: &str, text: &str) -> Vec<Token> {
        self.enter(name, text.to_string(), Span::default());
        let tokens = self.drain();
        self.with_functions(tokens)
    }

    /// With those functions of the language in front that are written in it, where the program uses one and has none of its own.
    fn with_functions(&mut self, tokens: Vec<Token>) -> Vec<Token> {
        let written = |t: &Token| t.name().is_some_and(|n| predefined::is_written(self.names.text(n)));
        let mut used = tokens.iter().enumerate().filter(|(_, t)| written(t)).map(|(i, _)| i).peekable();
        // Behind a type's name stands a declaration.
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
        // The mark of UTF-8 that some editors begin a file with.
        let text = text.strip_prefix('\u{feff}').map_or(text.clone(), String::from);
        let copy = text.clone();
        let Some(base) = self.sources.add(name, text) else {
            self.diagnostics.error(at, "the texts are too long");
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
                // Where the end comes unexpected, the message points behind what was there.
                let behind = |t: &Token| Span { lo: t.span.hi, hi: t.span.hi, ..t.span };
                let span = tokens.last().map_or(token.span, behind);
                tokens.push(Token { kind: TokenKind::End, span, ..token });
                return tokens;
            }
            tokens.push(token);
        }
    }

    /// The next token of the files, directives done; the end of an included file is passed over.
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

    /// At a file's end: every `#if` must have been closed.
    fn leave_file(&mut self) {
        if let Some(file) = self.files.pop() {
            for open in file.conditionals {
                self.diagnostics.error(open.span, "unterminated conditional directive");
            }
        }
    }

    /// Counts work and says whether there is too much of it.
    fn spend(&mut self, tokens: usize, at: Span) -> bool {
        self.work += tokens;
        if self.work > MAX_TOKENS && !self.stopped {
            self.stopped = true;
            self.diagnostics.error(at, "macros expand to too many tokens");
        }
        self.stopped
    }
}

/// The token behind the last one.
fn end_token(span: Span) -> Token {
    Token { kind: TokenKind::End, span, spaced: false, starts_line: true, blocked: false }
}
