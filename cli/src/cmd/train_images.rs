//! `netcl train` with a preset for images: a classifier instead of a language model.

use crate::context::Context;
use crate::out;
use netcl::nn::config::Overlay;
use netcl::nn::run::RunFolder;
use netcl::nn::vision::classifier::{ClassifierConfig, Epoch, Outcome, PRESETS, Progress, train};
use netcl::nn::vision::data::Dataset;
use netcl::prelude::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Settings of `netcl train` that classifiers have as well.
const SHARED: [&str; 12] = [
    "preset",
    "data",
    "batch",
    "lr",
    "min_lr",
    "weight_decay",
    "betas",
    "seed",
    "val_split",
    "dtype",
    "graph",
    "device",
];

/// What was asked for beside the settings.
pub struct Request<'a> {
    pub overlay: &'a Overlay,
    pub epochs: Option<u64>,
    pub out: Option<&'a PathBuf>,
    pub dry_run: bool,
    pub json: bool,
}

/// Whether a preset is one for images.
pub fn is_for_images(preset: &str) -> bool {
    PRESETS.contains(&preset)
}

/// Whether a folder holds the run of a classifier.
pub fn is_run(dir: &Path) -> bool {
    dir.join("classifier.json").exists()
}

fn config(request: &Request<'_>) -> Result<ClassifierConfig> {
    let overlay = request.overlay;
    let preset = overlay.preset.as_deref().unwrap_or_default();
    let given =
        toml::Table::try_from(overlay).map_err(|e| Error::internal(format!("settings as a table: {e}")))?;
    if let Some(other) = given.keys().find(|key| !SHARED.contains(&key.as_str())) {
        return Err(Error::format(format!(
            "--{} is for language models, and the preset {preset} is for images; it takes --data, --epochs, --batch, --lr, --min-lr, \
             --weight-decay, --betas, --seed, --val-split, --dtype, --graph, --device, --out, --dry-run and --json",
            other.replace('_', "-")
        )));
    }
    let base = ClassifierConfig::preset(preset)?;
    let Some([data]) = overlay.data.as_deref() else {
        return Err(Error::format(format!(
            "the preset {preset} takes one folder of images: --data DIR, with IDX files, CIFAR binaries or a folder of pictures for each class"
        )));
    };
    let lr = overlay.lr.unwrap_or(base.lr);
    let config = ClassifierConfig {
        data: data.clone(),
        epochs: request.epochs.unwrap_or(base.epochs),
        batch: overlay.batch.unwrap_or(base.batch),
        lr,
        min_lr: overlay.min_lr.unwrap_or(base.min_lr.min(lr)),
        weight_decay: overlay.weight_decay.unwrap_or(base.weight_decay),
        betas: overlay.betas.unwrap_or(base.betas),
        seed: overlay.seed.unwrap_or(base.seed),
        test_part: overlay.val_split.unwrap_or(base.test_part),
        dtype: overlay.dtype.unwrap_or(base.dtype),
        graph: overlay.graph.unwrap_or(base.graph),
        device: overlay.device.clone().unwrap_or_else(|| base.device.clone()),
        ..base
    };
    config.validate()?;
    Ok(config)
}

/// Runs the command.
pub fn run(request: &Request<'_>, context: &Context) -> Result<()> {
    let config = config(request)?;
    let images = Dataset::read(Path::new(&config.data), config.test_part)?;
    let [channels, height, width] = images.train.size;
    out::note(&format!(
        "{}: {} images to learn from, {} for the test, {} classes, {channels} x {height} x {width}",
        config.data,
        images.train.len(),
        images.test.len(),
        images.classes.len()
    ));
    let device = context.open_device_with_builders(&config.device, MatmulPrecision::default())?;
    out::note(&format!(
        "{} in {} on {}: {} epochs of batches of {}",
        config.network,
        config.dtype,
        device.capabilities().id,
        config.epochs,
        config.batch
    ));
    if request.dry_run {
        return Ok(());
    }
    let claim = match request.out {
        Some(out) => RunFolder::claim(out)?,
        None => RunFolder::claim_fresh(Path::new("runs"), &config.preset)?,
    };
    let dir = claim.path().to_owned();
    context.leave_nothing_of(claim.leaves());
    if !context.polite() {
        return Ok(());
    }
    let bar = out::progress(context.live(), 0, "steps");
    let began = Instant::now();
    let mut said = Instant::now();
    let mut watch = |progress: Progress<'_>| {
        match progress {
            Progress::Epoch(epoch) => bar.suspend(|| out::note(&epoch_line(epoch, config.epochs))),
            Progress::Step { step, steps, epoch, loss, images_per_s } => {
                bar.set_length(steps);
                bar.set_position(step);
                bar.set_message(format!("loss {loss:.4}, {images_per_s:.0} images/s"));
                // Long epochs, where nobody watches a bar.
                if !context.live() && said.elapsed() > Duration::from_secs(15) {
                    said = Instant::now();
                    out::note(&format!(
                        "step {step}/{steps} of epoch {epoch}: loss {loss:.4}, {images_per_s:.0} images/s"
                    ));
                }
            }
        }
        !context.interrupted()
    };
    let outcome = train(&device, &config, &images, &claim, &mut watch)?;
    bar.finish_and_clear();
    finish(&dir, &outcome, began.elapsed(), request.json)
}

fn epoch_line(e: &Epoch, epochs: u64) -> String {
    format!(
        "epoch {}/{epochs}: loss {:.4}, test loss {:.4}, accuracy {:.2} %, {:.0} images/s, {:.0} s",
        e.epoch,
        e.loss,
        e.test_loss,
        100.0 * e.accuracy,
        e.images_per_s,
        e.elapsed
    )
}

fn finish(dir: &Path, outcome: &Outcome, took: Duration, json: bool) -> Result<()> {
    let last = outcome.epochs.last();
    if json {
        return out::json(&serde_json::json!({
            "run": dir,
            "outcome": if outcome.stopped { "stopped" } else { "finished" },
            "epochs": outcome.epochs.len(),
            "loss": last.map(|e| e.loss),
            "test_loss": last.map(|e| e.test_loss),
            "accuracy": last.map(|e| e.accuracy),
            "images_per_s": last.map(|e| e.images_per_s),
            "seconds": took.as_secs_f64(),
        }));
    }
    let Some(last) = last else {
        return out::result(&format!("{}: stopped before the first epoch was done", dir.display()));
    };
    out::result(&format!(
        "{}: accuracy {:.2} % after {} epochs, {:.0} s; the report is {}",
        dir.display(),
        100.0 * last.accuracy,
        last.epoch,
        took.as_secs_f64(),
        dir.join("report.html").display()
    ))
}
