//! `netcl classify`: the classes of images, according to a network that `netcl train` trained.

use crate::context::Context;
use crate::out;
use clap::Args as ClapArgs;
use netcl::prelude::*;
use netcl::train::images::classifier::Classifier;
use std::path::PathBuf;

/// Classify images with a network trained by `netcl train` with a preset for images (mnist-cnn, …)
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Run folder of the network
    #[arg(long, short = 'm', value_name = "DIR")]
    model: PathBuf,
    /// PNG or JPEG images; they are resized to the size of the training images
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    /// Classes to print per image
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
    /// Device
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result<()> {
    let device = context.open_device(&args.device)?;
    let classifier = Classifier::open(&device, &args.model)?;
    for image in &args.images {
        let mut found = classifier.classify_file(image)?;
        found.truncate(args.top.into());
        if args.json {
            let best = found.first();
            out::json(&serde_json::json!({
                "image": image,
                "class": best.map(|p| &p.class),
                "confidence": best.map(|p| p.confidence),
                "classes": found,
            }))?;
            continue;
        }
        let shown: Vec<String> =
            found.iter().map(|p| format!("{} {:.1} %", p.class, 100.0 * p.confidence)).collect();
        out::result(&format!("{}: {}", image.display(), shown.join(", ")))?;
    }
    Ok(())
}
