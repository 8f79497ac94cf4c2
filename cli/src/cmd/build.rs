//! Builds kernels for another process of this program: see [`netcl::kernel::ahead`].

use crate::context::Context;
use netcl::kernel::ahead;
use netcl::prelude::*;

/// Builds the kernels that stdin orders into the cache
#[derive(clap::Args)]
pub struct Args {
    /// Device to build for
    #[arg(long)]
    device: String,
}

pub fn run(args: &Args, context: &Context) -> Result<()> {
    ahead::serve(&context.open_device_alone(&args.device)?)
}
