//! `netcl cache`: compiled kernels on disk.

use crate::context::Context;
use crate::out;
use crate::table::Table;
use netcl::device::{counted, human};
use netcl::kernel::DiskCache;
use netcl::prelude::*;

/// Show or empty the cache of compiled kernels
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List what is cached
    Ls {
        /// One JSON object: folder and entries
        #[arg(long)]
        json: bool,
    },
    /// Remove every compiled kernel; tuning results and quarantines stay
    Clear {
        /// One JSON object: folder and number of files removed
        #[arg(long)]
        json: bool,
    },
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    let cache = DiskCache::of(&context.settings).ok_or_else(|| {
        Error::unsupported(
            "nothing is cached: NETCL_NO_CACHE is set, or there is no home folder; NETCL_CACHE_DIR names one",
        )
    })?;
    match args.action {
        Action::Ls { json } => list(&cache, json),
        Action::Clear { json } => clear(&cache, json),
    }
}

fn list(cache: &DiskCache, json: bool) -> Result<()> {
    if let Some(why) = cache.distrust() {
        out::note(&why);
    }
    let entries = cache.list();
    if json {
        return out::json(&serde_json::json!({ "folder": cache.folder(), "entries": entries }));
    }
    let mut table = Table::new(&["kernel", "device", "driver", ">bytes"]);
    for e in &entries {
        // Drivers with a cache of their own keep the binary; here is only the note that it was built.
        let size = if e.bytes == 0 { "kept by the driver".into() } else { e.bytes.to_string() };
        table.row([e.kernel.clone(), e.device.clone(), e.driver.clone(), size]);
    }
    if !entries.is_empty() {
        out::result(&table.text())?;
    }
    let total = entries.iter().map(|e| e.bytes).sum();
    out::note(&format!(
        "{}, {} in {}",
        counted(entries.len(), "kernel"),
        human(total),
        cache.folder().display()
    ));
    Ok(())
}

fn clear(cache: &DiskCache, json: bool) -> Result<()> {
    let removed = cache.clear().map_err(|e| Error::io("emptying", cache.folder(), &e))?;
    if json {
        return out::json(&serde_json::json!({ "folder": cache.folder(), "removed": removed }));
    }
    out::result(&format!("{} removed from {}", counted(removed, "file"), cache.folder().display()))
}
