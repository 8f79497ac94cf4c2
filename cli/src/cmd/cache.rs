//! `netcl cache`: compiled kernels and tokenized text on disk.

use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::device::{counted, human};
use netcl::kernel::DiskCache;
use netcl::prelude::*;
use netcl::train::data::TokenCache;

/// Show or empty the caches of compiled kernels and tokenized text
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List what is cached
    Ls {
        /// Print one JSON object: folder and entries of kernels and of tokens
        #[arg(long)]
        json: bool,
    },
    /// Remove all compiled kernels and tokens; keep tuning results and quarantines
    Clear {
        /// Print one JSON object: folders and number of files removed
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let cache = DiskCache::of(&context.settings).ok_or_else(|| {
        Error::unsupported(
            "nothing is cached: NETCL_NO_CACHE is set, or no home folder exists; set NETCL_CACHE_DIR to a folder",
        )
    })?;
    // Settings that give a folder for kernels also give one for tokens.
    let tokens = TokenCache::of(&context.settings).ok_or_else(|| Error::internal("no folder for tokens"))?;
    match args.action {
        Action::Ls { json } => list(&cache, &tokens, json),
        Action::Clear { json } => clear(&cache, &tokens, json),
    }
}

fn list(cache: &DiskCache, tokens: &TokenCache, json: bool) -> Result<()> {
    if let Some(why) = cache.distrust() {
        out::note(&why);
    }
    let (entries, texts) = (cache.list(), tokens.list());
    if json {
        return out::json(&serde_json::json!({
            "folder": cache.folder(),
            "entries": entries,
            "tokens": { "folder": tokens.folder(), "entries": texts },
        }));
    }
    let mut table = Table::new(&["kernel", "device", "driver", ">bytes"]);
    for e in &entries {
        // Drivers with their own cache keep the binary; netcl's file only records that it was built.
        let size = if e.bytes == 0 { "kept by the driver".into() } else { e.bytes.to_string() };
        table.row([e.kernel.clone(), e.device.clone(), e.driver.clone(), size]);
    }
    if !entries.is_empty() {
        out::result(&table.text())?;
    }
    let mut table = Table::new(&["text", ">tokens", ">bytes"]);
    for e in &texts {
        table.row([e.source.clone(), e.tokens.to_string(), e.bytes.to_string()]);
    }
    if !texts.is_empty() {
        out::result(&table.text())?;
    }
    let total = entries.iter().map(|e| e.bytes).sum();
    out::note(&format!(
        "{}, {} in {}",
        counted(entries.len(), "kernel"),
        human(total),
        cache.folder().display()
    ));
    let total = texts.iter().map(|e| e.bytes).sum();
    let texts = counted(texts.len(), "tokenized text");
    out::note(&format!("{texts}, {} in {}", human(total), tokens.folder().display()));
    Ok(())
}

fn clear(cache: &DiskCache, tokens: &TokenCache, json: bool) -> Result<()> {
    let kernels = cache.clear().map_err(|e| Error::io("emptying", cache.folder(), &e))?;
    let texts = tokens.clear().map_err(|e| Error::io("emptying", tokens.folder(), &e))?;
    if json {
        return out::json(&serde_json::json!({
            "folder": cache.folder(),
            "removed": kernels,
            "tokens": { "folder": tokens.folder(), "removed": texts },
        }));
    }
    out::result(&format!("{} removed from {}", counted(kernels, "file"), cache.folder().display()))?;
    out::result(&format!("{} removed from {}", counted(texts, "file"), tokens.folder().display()))
}
