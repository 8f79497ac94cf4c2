//! Compiles source to a typed program: the front end's stages in order.

use std::fmt;

use crate::hir;
use crate::lex::Names;
use crate::options::{BuildOptions, Includes, Target};
use crate::parse;
use crate::preprocess::Preprocessor;
use crate::sema::{self, Features};
use crate::source::{Diagnostics, SourceMap};

/// A program's source and its name in messages.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// File name.
    pub name: &'a str,
    /// OpenCL C.
    pub text: &'a str,
}

/// A build failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The complete compiler output.
    pub log: String,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.log)
    }
}

impl std::error::Error for BuildError {}

/// Stack size of the build thread. The deepest program that the parser limits allow needs only a part of it, regardless of the caller's stack.
const STACK_BYTES: usize = 256 << 20;

/// Builds for a device with everything that [`Target::default`] lists.
///
/// # Errors
/// The log, with the place, line and caret of every error.
pub fn compile(
    source: &Source<'_>,
    options: &str,
    includes: &Includes,
) -> Result<hir::TranslationUnit, BuildError> {
    compile_for(source, options, includes, &Target::default())
}

/// Builds for a device.
///
/// # Errors
/// Same as [`compile`].
pub fn compile_for(
    source: &Source<'_>,
    options: &str,
    includes: &Includes,
    target: &Target,
) -> Result<hir::TranslationUnit, BuildError> {
    in_thread(source, options, includes, target, false)
}

/// Checks a unit that will be linked with others, which may define the functions that it calls. Returns the warnings.
///
/// # Errors
/// Same as [`compile`].
pub fn check_unit(
    source: &Source<'_>,
    options: &str,
    includes: &Includes,
    target: &Target,
) -> Result<String, BuildError> {
    in_thread(source, options, includes, target, true).map(|program| program.warnings)
}

/// Runs code that recursively visits a program's tree, with the stack of a build. Returns `None` if no thread can be created or it panics.
pub(crate) fn with_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("aethercl-lower".into()).stack_size(STACK_BYTES);
        builder.spawn_scoped(scope, run).ok()?.join().ok()
    })
}

fn in_thread(
    source: &Source<'_>,
    options: &str,
    includes: &Includes,
    target: &Target,
    open: bool,
) -> Result<hir::TranslationUnit, BuildError> {
    let options =
        BuildOptions::parse(options).map_err(|why| BuildError { log: format!("error: {why}\n") })?;
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("aethercl-build".into()).stack_size(STACK_BYTES);
        let run = || stages(source, &options, includes, target, open);
        let thread = builder.spawn_scoped(scope, run);
        let thread = thread
            .map_err(|e| BuildError { log: format!("error: cannot start a thread for the build: {e}\n") })?;
        thread.join().unwrap_or_else(|_| Err(BuildError { log: "error: the compiler failed\n".into() }))
    })
}

/// Returns the source that the parser reads: macros expanded, directives executed, comments removed, line structure kept.
///
/// # Errors
/// The log, same as [`compile`].
pub fn preprocessed(
    source: &Source<'_>,
    options: &str,
    includes: &Includes,
    target: &Target,
) -> Result<String, BuildError> {
    let options =
        BuildOptions::parse(options).map_err(|why| BuildError { log: format!("error: {why}\n") })?;
    let mut names = Names::default();
    let mut sources = SourceMap::default();
    let mut diagnostics = Diagnostics::new(options.warn, options.warnings_are_errors);
    let includes = includes.with_directories(&options.directories);
    let preprocessor =
        Preprocessor::new(&mut names, &mut sources, &mut diagnostics, &options, &includes, target);
    let tokens = preprocessor.run(source.name, source.text);
    if diagnostics.failed() {
        return Err(BuildError { log: diagnostics.render(&sources) });
    }
    let mut text = String::new();
    for token in tokens {
        // Separate tokens from macros may be adjacent and must not merge.
        text.push_str(if token.starts_line { "\n" } else { " " });
        text.push_str(token.spelling(&names));
    }
    Ok(text)
}

fn stages(
    source: &Source<'_>,
    options: &BuildOptions,
    includes: &Includes,
    target: &Target,
    open: bool,
) -> Result<hir::TranslationUnit, BuildError> {
    let mut names = Names::default();
    let mut sources = SourceMap::default();
    let mut diagnostics = Diagnostics::new(options.warn, options.warnings_are_errors);
    for option in &options.foreign {
        diagnostics
            .option_warning(format!("build option '{option}' is for another vendor's compiler: ignored"));
    }
    let includes = includes.with_directories(&options.directories);
    let preprocessor =
        Preprocessor::new(&mut names, &mut sources, &mut diagnostics, options, &includes, target);
    let tokens = preprocessor.run(source.name, source.text);
    let items = parse::parse(&tokens, &mut names, &mut diagnostics);
    let has = |name: &str| target.extensions.iter().any(|e| e == name);
    let features = Features {
        version: options.version,
        fp16: has("cl_khr_fp16"),
        fp64: has("cl_khr_fp64"),
        single_precision_constant: options.single_precision_constant,
        open,
    };
    let analysed = sema::analyse(&items, &mut names, &features, &mut diagnostics);
    let log = diagnostics.render(&sources);
    match analysed {
        Some(a) if !diagnostics.failed() => Ok(hir::TranslationUnit {
            types: a.types,
            functions: a.functions,
            globals: a.globals,
            sources,
            warnings: log,
        }),
        _ => Err(BuildError { log }),
    }
}
