//! Training of a classifier: AdamW over shuffled batches, a test after every epoch.

use super::super::data::{Dataset, Images};
use super::batches::{Batch, Batches, Scaling, mix, plain};
use super::inputs::{Inputs, Ring};
use super::outcome::{Epoch, Outcome};
use super::report;
use super::{Classifier, ClassifierConfig, Description};
use crate::config::Schedule;
use crate::data::ahead;
use crate::optim::{Optimizer, ParamGroup, Rule};
use crate::run::Claim;
use crate::schedule::LearningRate;
use crate::train::{Losses, Stepper};
use netcl_device::driver::Event;
use netcl_device::{Error, Result, files};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::{Device, Tensor, no_grad};
use std::path::Path;
use std::time::Instant;

/// How far training is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A step of `steps` is done, of an epoch that is counted from 1.
    Step {
        /// Steps done.
        step: u64,
        /// Of so many.
        steps: u64,
        /// The epoch.
        epoch: u64,
        /// Its loss.
        loss: f32,
        /// Images a second of the steps that are done in this epoch.
        images_per_s: f64,
    },
    /// An epoch is done and tested.
    Epoch(&'a Epoch),
}

/// Test images that examples for the report are sought among.
const LOOKED_AT: usize = 300;

/// Batches made ahead on the host.
const PREFETCH: usize = 3;
/// Threads of the host that make a batch for a device of its own; a device that is the host's processor is left all its cores but one.
const THREADS: usize = 8;

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
    let scaling = Scaling::new(&about.statistics);
    let threads = if device.capabilities().is_cpu() || device.capabilities().simulated {
        1
    } else {
        std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
    };
    let batches = Batches { config, scaling: &scaling, images: &images.train, threads };
    let mut run = Run::new(device, config, images, about, (batches.of_epoch(), batches.each()))?;
    let outcome = ahead(batches.all(), PREFETCH, |batches| run.epochs(batches, dir, watch))?;
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
    stepper: Stepper,
    ring: Ring,
    losses: Losses,
    /// Steps of an epoch, and images of a step.
    sizes: (u64, usize),
    /// Steps enqueued.
    step: u64,
    began: Instant,
}

/// An enqueued step whose loss was not read yet.
struct Pending {
    step: u64,
    loss: Tensor,
    done: Event,
}

/// What the steps of an epoch that are done come to.
struct Tally {
    epoch: u64,
    began: Instant,
    steps: u64,
    losses: f64,
}

impl<'a> Run<'a> {
    fn new(
        device: &'a Device,
        config: &'a ClassifierConfig,
        images: &'a Dataset,
        about: Description,
        sizes: (u64, usize),
    ) -> Result<Self> {
        let [c, h, w] = about.size;
        let classifier = Classifier::new(device, about, config.dtype, config.seed)?;
        let rule = Rule::AdamW { betas: config.betas, eps: 1e-8 };
        let groups = ParamGroup::gpt(&classifier.params.trained(), config.weight_decay);
        let optimizer = Optimizer::for_storage(rule, groups, config.dtype)?;
        let decay = sizes.0.saturating_mul(config.epochs);
        let (schedule, lr, min_lr, warmup) = (Schedule::Cosine, config.lr, config.min_lr, decay / 20);
        Ok(Self {
            device,
            config,
            images,
            classifier,
            optimizer,
            rate: LearningRate { schedule, lr, min_lr, warmup, decay },
            stepper: Stepper::new(device, config.graph),
            ring: Ring::new(device, config.dtype, [sizes.1, c, h, w], config.mixup > 0.0)?,
            losses: Losses::new(device)?,
            sizes,
            step: 0,
            began: Instant::now(),
        })
    }

    /// Trains on all batches and tests after each epoch.
    fn epochs(
        &mut self,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        dir: &Path,
        watch: &mut dyn FnMut(Progress<'_>) -> bool,
    ) -> Result<Outcome> {
        let mut outcome = Outcome { epochs: Vec::new(), stopped: false, confusion: Vec::new() };
        let mut lines = String::new();
        for epoch in 0..self.config.epochs {
            let Some(tally) = self.epoch(epoch, batches, watch)? else {
                outcome.stopped = true;
                break;
            };
            let images_per_s = self.speed(&tally);
            let (test_loss, confusion) = self.test(&self.images.test)?;
            let right: u64 = confusion.iter().enumerate().map(|(i, row)| row[i]).sum();
            outcome.confusion = confusion;
            let done = Epoch {
                epoch: epoch + 1,
                step: self.step,
                elapsed: self.began.elapsed().as_secs_f64(),
                loss: tally.losses / tally.steps.max(1) as f64,
                test_loss,
                accuracy: right as f64 / self.images.test.len() as f64,
                images_per_s,
                lr: self.rate.at(self.step.saturating_sub(1)),
            };
            let line =
                serde_json::to_string(&done).map_err(|e| Error::internal(format!("metrics as JSON: {e}")))?;
            lines += &format!("{line}\n");
            replace(dir, "metrics.jsonl", lines.as_bytes())?;
            self.classifier.save(dir)?;
            outcome.epochs.push(done);
            let on = outcome.epochs.last().is_none_or(|done| watch(Progress::Epoch(done)));
            let last = epoch + 1 == self.config.epochs;
            if !on || last {
                outcome.stopped = !on && !last;
                break;
            }
        }
        Ok(outcome)
    }

    /// The steps of an epoch, of which the loss is read while the next one runs; `None` where `watch` ends it.
    fn epoch(
        &mut self,
        epoch: u64,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        watch: &mut dyn FnMut(Progress<'_>) -> bool,
    ) -> Result<Option<Tally>> {
        let mut tally = Tally { epoch, began: Instant::now(), steps: 0, losses: 0.0 };
        let mut pending: Option<Pending> = None;
        for _ in 0..self.sizes.0 {
            let batch = batches.next().unwrap_or_else(|| Err(Error::internal("the batches ended")))?;
            let next = self.enqueue(&batch)?;
            if let Some(before) = pending.replace(next)
                && !self.finish(&before, &mut tally, watch)?
            {
                return Ok(None);
            }
        }
        match pending {
            Some(last) if !self.finish(&last, &mut tally, watch)? => Ok(None),
            _ => Ok(Some(tally)),
        }
    }

    /// Enqueues forward, backward and update of a batch.
    fn enqueue(&mut self, batch: &Batch) -> Result<Pending> {
        self.optimizer.set_rate(self.rate.at(self.step))?;
        let inputs = self.ring.send(batch, !self.stepper.is_eager())?;
        let Self { stepper, classifier, optimizer, config, .. } = self;
        let loss = stepper.run(|| {
            optimizer.zero_grad();
            let loss = loss(classifier, config, &inputs)?;
            optimizer.backward(&loss)?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss.detach())
        })?;
        self.optimizer.count();
        let kept = if self.stepper.is_captured() { self.losses.keep(&loss, self.step)? } else { loss };
        self.step += 1;
        let done = self.device.mark()?;
        self.device.flush()?;
        Ok(Pending { step: self.step, loss: kept, done })
    }

    /// Waits for a step and tells of it; whether training goes on.
    fn finish(
        &self,
        pending: &Pending,
        tally: &mut Tally,
        watch: &mut dyn FnMut(Progress<'_>) -> bool,
    ) -> Result<bool> {
        let loss = pending.loss.item_after(&pending.done)?;
        if !loss.is_finite() {
            return Err(Error::launch(format!(
                "the loss of step {} on {} is {loss}: training diverged. Lower --lr (now {:.1e})",
                pending.step,
                self.device.capabilities().id,
                self.rate.at(pending.step - 1)
            )));
        }
        tally.losses += f64::from(loss);
        tally.steps += 1;
        let (step, steps, epoch) = (pending.step, self.rate.decay, tally.epoch + 1);
        Ok(watch(Progress::Step { step, steps, epoch, loss, images_per_s: self.speed(tally) }))
    }

    /// Images a second of the steps that are done.
    fn speed(&self, tally: &Tally) -> f64 {
        (tally.steps * self.sizes.1 as u64) as f64 / tally.began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Mean loss, and what was taken for what.
    fn test(&self, images: &Images) -> Result<(f64, Vec<Vec<u64>>)> {
        let classes = self.images.classes.len();
        let mut confusion = vec![vec![0u64; classes]; classes];
        let mut sum = 0.0;
        let all: Vec<usize> = (0..images.len()).collect();
        for picked in all.chunks(self.config.batch.max(128)) {
            let (x, labels) =
                plain(&self.classifier.scaling, (self.device, self.config.dtype), images, picked)?;
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

/// The loss of a batch.
fn loss(classifier: &Classifier, config: &ClassifierConfig, inputs: &Inputs) -> Result<Tensor> {
    let label_smoothing = config.label_smoothing as f32;
    let of = |logits: &Tensor, labels: &Tensor| {
        cross_entropy(logits, labels, CrossEntropy { label_smoothing, ..CrossEntropy::default() })
    };
    let Some((others, share)) = &inputs.mixed else {
        return of(&classifier.network.forward(&inputs.images, true)?, &inputs.labels);
    };
    let logits = classifier.network.forward(&mix(&inputs.images, share)?, true)?;
    let (own, other) = (of(&logits, &inputs.labels)?, of(&logits, others)?);
    // share * own + (1 - share) * other
    other.add(&own.sub(&other)?.mul(share)?)
}
