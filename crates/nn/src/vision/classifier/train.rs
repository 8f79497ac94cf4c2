//! Training of a classifier: AdamW over shuffled batches, a test after every epoch.

use super::super::data::{Dataset, Images};
use super::batches::{mix, mixed, order, place, placed, plain};
use super::outcome::{Epoch, Outcome};
use super::report;
use super::{Classifier, ClassifierConfig, Description};
use crate::config::Schedule;
use crate::optim::{Optimizer, ParamGroup, Rule};
use crate::run::Claim;
use crate::schedule::LearningRate;
use netcl_device::{Error, Result, files};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::{Device, Tensor, no_grad};
use std::path::Path;
use std::time::Instant;

/// How far training is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A step of `steps` is enqueued, of an epoch that is counted from 1.
    Step {
        /// Steps done.
        step: u64,
        /// Of so many.
        steps: u64,
        /// The epoch.
        epoch: u64,
        /// Loss of an earlier step.
        loss: Option<f32>,
        /// Images a second in this epoch.
        images_per_s: f64,
    },
    /// An epoch is done and tested.
    Epoch(&'a Epoch),
}

/// Test images that examples for the report are sought among.
const LOOKED_AT: usize = 300;

/// Steps between two reads of the loss.
const READ_EVERY: u64 = 20;

/// Trains the network of `config` on `images` and keeps it, `config.toml`, `metrics.jsonl` and `report.html` in the folder. `watch` is called
/// after every step and epoch and returns false where training is to end. The weights that are kept are those of the last epoch.
///
/// # Errors
/// `Format` for settings out of range, or without an image to test with; of the device; `Io`.
pub fn train(
    device: &Device,
    config: &ClassifierConfig,
    images: &Dataset,
    claim: &Claim,
    watch: &mut dyn FnMut(Progress<'_>) -> bool,
) -> Result<Outcome> {
    config.validate()?;
    if images.test.is_empty() {
        return Err(Error::format(format!(
            "{} images are too few to keep {} of them for a test; set --val-split",
            images.train.len(),
            config.test_part
        )));
    }
    let about = Description {
        network: config.network.clone(),
        size: images.train.size,
        classes: images.classes.clone(),
        statistics: images.train.statistics(),
    };
    let dir = claim.path();
    let text = toml::to_string(config).map_err(|e| Error::internal(format!("settings as TOML: {e}")))?;
    replace(dir, "config.toml", text.as_bytes())?;
    let mut run = Run::new(device, config, images, about)?;
    let mut outcome = Outcome { epochs: Vec::new(), stopped: false, confusion: Vec::new() };
    let mut lines = String::new();
    for epoch in 0..config.epochs {
        let Some((loss, images_per_s, lr)) = run.epoch(epoch, watch)? else {
            outcome.stopped = true;
            break;
        };
        let (test_loss, confusion) = run.test(&images.test)?;
        let right: u64 = confusion.iter().enumerate().map(|(i, row)| row[i]).sum();
        outcome.confusion = confusion;
        let done = Epoch {
            epoch: epoch + 1,
            step: run.step,
            elapsed: run.began.elapsed().as_secs_f64(),
            loss,
            test_loss,
            accuracy: right as f64 / images.test.len() as f64,
            images_per_s,
            lr,
        };
        let line =
            serde_json::to_string(&done).map_err(|e| Error::internal(format!("metrics as JSON: {e}")))?;
        lines += &format!("{line}\n");
        replace(dir, "metrics.jsonl", lines.as_bytes())?;
        run.classifier.save(dir)?;
        outcome.epochs.push(done);
        let on = outcome.epochs.last().is_none_or(|done| watch(Progress::Epoch(done)));
        let last = epoch + 1 == config.epochs;
        if !on || last {
            outcome.stopped = !on && !last;
            break;
        }
    }
    let title = dir.file_name().unwrap_or_default().to_string_lossy();
    let pictures = [run.classifier.examples(&images.test, LOOKED_AT)?, run.classifier.kernels()?];
    let page = report::html(&title, config, &run.classifier.about, &outcome, &pictures);
    replace(dir, "report.html", page.as_bytes())?;
    Ok(outcome)
}

fn replace(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let path = dir.join(name);
    files::replace(&path, content).map_err(|e| Error::io("writing", &path, &e))
}

/// A training in progress.
struct Run<'a> {
    device: &'a Device,
    config: &'a ClassifierConfig,
    images: &'a Dataset,
    classifier: Classifier,
    optimizer: Optimizer,
    rate: LearningRate,
    step: u64,
    began: Instant,
}

impl<'a> Run<'a> {
    fn new(
        device: &'a Device,
        config: &'a ClassifierConfig,
        images: &'a Dataset,
        about: Description,
    ) -> Result<Self> {
        let classifier = Classifier::new(device, about, config.seed)?;
        let rule = Rule::AdamW { betas: config.betas, eps: 1e-8 };
        let groups = ParamGroup::gpt(&classifier.params.trained(), config.weight_decay);
        let optimizer = Optimizer::new(rule, groups)?;
        let mut run = Self {
            device,
            config,
            images,
            classifier,
            optimizer,
            rate: LearningRate {
                schedule: Schedule::Cosine,
                lr: config.lr,
                min_lr: config.min_lr,
                warmup: 0,
                decay: 0,
            },
            step: 0,
            began: Instant::now(),
        };
        run.rate.decay = run.steps_of_epoch().saturating_mul(config.epochs);
        run.rate.warmup = run.rate.decay / 20;
        Ok(run)
    }

    /// Whole batches of an epoch; one where there are fewer images than a batch.
    fn steps_of_epoch(&self) -> u64 {
        (self.images.train.len() / self.config.batch).max(1) as u64
    }

    /// Mean loss, images a second and the last learning rate; `None` where `watch` ends it.
    fn epoch(
        &mut self,
        epoch: u64,
        watch: &mut dyn FnMut(Progress<'_>) -> bool,
    ) -> Result<Option<(f64, f64, f64)>> {
        let (config, images) = (self.config, &self.images.train);
        let order = order(config.seed, epoch, images.len());
        let steps = self.steps_of_epoch();
        let began = Instant::now();
        let (mut waiting, mut sum, mut shown, mut lr) = (Vec::new(), 0.0f64, None, 0.0);
        for (i, picked) in order.chunks(config.batch).take(usize::try_from(steps).unwrap_or(0)).enumerate() {
            let at = |image| place(config, epoch, image);
            let (x, labels) = placed(&self.classifier.scaling, self.device, images, picked, at)?;
            self.optimizer.zero_grad();
            let options =
                CrossEntropy { label_smoothing: config.label_smoothing as f32, ..CrossEntropy::default() };
            let loss = match mixed(config, self.step) {
                None => cross_entropy(&self.classifier.network.forward(&x, true)?, &labels, options)?,
                Some(share) => {
                    let others: Vec<u32> = picked.iter().rev().map(|image| images.labels[*image]).collect();
                    let others = Tensor::from_u32(self.device, [others.len()], &others)?;
                    let logits = self.classifier.network.forward(&mix(&x, share)?, true)?;
                    let own = cross_entropy(&logits, &labels, options)?.mul_scalar(share)?;
                    own.add(&cross_entropy(&logits, &others, options)?.mul_scalar(1.0 - share)?)?
                }
            };
            self.optimizer.backward(&loss)?;
            lr = self.rate.at(self.step);
            self.optimizer.step(lr)?;
            self.step += 1;
            waiting.push(loss.detach());
            if waiting.len() as u64 >= READ_EVERY || i as u64 + 1 == steps {
                for loss in waiting.drain(..) {
                    let loss = loss.item()?;
                    sum += f64::from(loss);
                    shown = Some(loss);
                }
            }
            let images_per_s = ((i + 1) * config.batch) as f64 / began.elapsed().as_secs_f64().max(1e-9);
            let (step, steps) = (self.step, self.rate.decay);
            if !watch(Progress::Step { step, steps, epoch: epoch + 1, loss: shown, images_per_s }) {
                return Ok(None);
            }
        }
        let trained = images.len().min(config.batch * usize::try_from(steps).unwrap_or(1));
        Ok(Some((sum / steps as f64, trained as f64 / began.elapsed().as_secs_f64().max(1e-9), lr)))
    }

    /// Mean loss, and what was taken for what.
    fn test(&self, images: &Images) -> Result<(f64, Vec<Vec<u64>>)> {
        let classes = self.images.classes.len();
        let mut confusion = vec![vec![0u64; classes]; classes];
        let mut sum = 0.0;
        let all: Vec<usize> = (0..images.len()).collect();
        for picked in all.chunks(self.config.batch.max(128)) {
            let (x, labels) = plain(&self.classifier.scaling, self.device, images, picked)?;
            let (loss, found) = no_grad(|| {
                let logits = self.classifier.network.forward(&x, false)?;
                let loss = cross_entropy(&logits, &labels, CrossEntropy::default())?.item()?;
                Ok::<_, Error>((loss, logits.argmax(-1)?.to_u32()?))
            })?;
            sum += f64::from(loss) * picked.len() as f64;
            for (image, class) in picked.iter().zip(found) {
                let row = &mut confusion[images.labels[*image] as usize];
                if let Some(count) = row.get_mut(class as usize) {
                    *count += 1;
                }
            }
        }
        Ok((sum / images.len().max(1) as f64, confusion))
    }
}
