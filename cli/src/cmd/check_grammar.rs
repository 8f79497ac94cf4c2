//! Checks a grammar for a netcl server process: see [`netcl_server::check_grammar`].

use crate::context::Context;
use netcl::prelude::*;
use std::path::Path;

/// Compile the grammar on stdin within limits of time and memory
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: &Args, _context: &Context) -> Result<()> {
    netcl_server::check_grammar(std::io::stdin().lock(), std::io::stdout().lock())
        .map_err(|e| Error::io("reading", Path::new("stdin"), &e))
}
