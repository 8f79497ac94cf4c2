//! `netcl man` and `netcl completions`: files that a package installs with the program.

use crate::out;
use clap::Command;
use clap_complete::Shell;
use netcl::prelude::*;
use std::path::{Path, PathBuf};

/// Write man pages
///
/// Prints the program's man page. With --out, writes it and one page per command into a folder: netcl.1, netcl-train.1, …
#[derive(clap::Args)]
pub struct Args {
    /// Folder for all pages
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    out: Option<PathBuf>,
}

/// Print a shell script that completes commands, flags and values
///
/// bash: netcl completions bash > ~/.local/share/bash-completion/completions/netcl; zsh: write it to a file _netcl in a folder of $fpath; fish: netcl
/// completions fish > ~/.config/fish/completions/netcl.fish
#[derive(clap::Args)]
pub struct CompletionArgs {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints or writes the man pages of `command`.
pub fn run(args: &Args, command: Command) -> Result<()> {
    match &args.out {
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(command).render(&mut page);
            rendered.map_err(|e| Error::io("rendering", Path::new("the manual"), &e))?;
            out::stream(&String::from_utf8_lossy(&page))
        }
        Some(dir) => {
            let write = |dir: &Path| {
                std::fs::create_dir_all(dir)?;
                clap_mangen::generate_to(command, dir)
            };
            write(dir).map_err(|e| Error::io("writing man pages into", dir, &e))?;
            out::result(&dir.join("netcl.1").display().to_string())
        }
    }
}

/// Prints the completions of `command`.
pub fn completions(args: &CompletionArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "netcl", &mut script);
    out::stream(&String::from_utf8_lossy(&script))
}
