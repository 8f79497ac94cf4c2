//! Test data outside the repository: models, corpora, reference values.
//!
//! `NETCL_TEST_DATA` names the folder when the tests are built. The default is `../shared/data`, relative to the repository.
//! A test marked with [`macro@needs_data`] is ignored if its files are missing, so that the test runner counts it as skipped.
#![forbid(unsafe_code)]

use proc_macro::{Literal, TokenStream, TokenTree};
use std::path::{Path, PathBuf};

/// Makes the compiler build the tests again after the variable has changed.
const TRACKED: &str = "const _: ::core::option::Option<&str> = ::core::option_env!(\"NETCL_TEST_DATA\");";

/// Returns the folder of test data as an absolute path.
fn folder() -> Result<PathBuf, String> {
    match std::env::var_os("NETCL_TEST_DATA") {
        Some(path) if Path::new(&path).is_absolute() => Ok(path.into()),
        Some(path) => Err(format!("NETCL_TEST_DATA must be an absolute path, not {}", path.display())),
        None => Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data")),
    }
}

fn error(message: &str) -> TokenStream {
    format!("::core::compile_error!({message:?});").parse().unwrap_or_default()
}

/// Returns the contents of string literals that are separated by commas.
fn strings(arguments: TokenStream) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for token in arguments {
        match token {
            TokenTree::Literal(literal) => match literal.to_string() {
                text if text.len() > 2 && text.starts_with('"') => {
                    all.push(text[1..text.len() - 1].to_owned())
                }
                text => return Err(format!("{text} is not the path of a file as a string")),
            },
            TokenTree::Punct(comma) if comma.as_char() == ',' => {}
            other => return Err(format!("expected paths as strings, found {other}")),
        }
    }
    if all.is_empty() { Err("name at least one file or folder".into()) } else { Ok(all) }
}

/// Ignores a test if a file or folder of the test data is missing: `#[needs_data("refs/nll.json", "models/stories260K")]`.
///
/// The paths are relative to the folder of test data.
#[proc_macro_attribute]
pub fn needs_data(paths: TokenStream, test: TokenStream) -> TokenStream {
    let (paths, folder) = match (strings(paths), folder()) {
        (Ok(paths), Ok(folder)) => (paths, folder),
        (Err(message), _) | (_, Err(message)) => return error(&message),
    };
    let mut out = TokenStream::new();
    if let Some(missing) = paths.iter().find(|path| !folder.join(path).exists()) {
        let reason = format!("needs {missing} of the test data: set NETCL_TEST_DATA");
        let attribute = format!("#[ignore = {}]", Literal::string(&reason));
        out.extend(attribute.parse::<TokenStream>().unwrap_or_default());
    }
    out.extend(test);
    out.extend(TRACKED.parse::<TokenStream>().unwrap_or_default());
    out
}

/// The folder of test data: a `&'static Path`, whether or not it exists.
#[proc_macro]
pub fn test_data(_: TokenStream) -> TokenStream {
    let folder = match folder() {
        Ok(folder) => folder.display().to_string(),
        Err(message) => return error(&message),
    };
    let path = format!("{{ {TRACKED} ::std::path::Path::new({}) }}", Literal::string(&folder));
    path.parse().unwrap_or_default()
}
