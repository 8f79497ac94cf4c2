//! Builds kernels for another netcl process: see [`netcl::kernel::ahead`].

use crate::context::Context;
use netcl::kernel::ahead;
use netcl::prelude::*;

/// Build the kernels that stdin lists into the cache
#[derive(clap::Args)]
pub struct Args {
    /// Device to build for
    #[arg(long)]
    device: String,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    ahead::serve(&context.open_device_alone(&args.device)?)
}
