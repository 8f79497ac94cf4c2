//! Training of a classifier: AdamW over shuffled batches, a test after every epoch, checkpoints from which it goes on.

use super::super::data::{Dataset, Images};
use super::among::{Among, Pass};
use super::batches::{Batch, Batches, plain};
use super::checkpoint::{ImageRecord, Place, plan, restore};
use super::diagnostics::{Diagnostics, Looking};
use super::inputs::{Inputs, Ring};
use super::loss::loss;
use super::outcome::{Epoch, Next, Outcome};
use super::report;
use super::{Classifier, ClassifierConfig, Description};
use crate::config::Changes;
use crate::data::ahead;
use crate::optim::{AdamW, Optimizer, ParamGroup};
use crate::run::{Claim, Recorded, RunFolder};
use crate::schedule::LearningRate;
use crate::train::{Losses, Profile, Stepper, explained};
use netcl_device::driver::Event;
use netcl_device::{Error, Result, files};
use netcl_model::checkpoint::{Checkpoint, Store, Writing};
use netcl_tensor::ops::cross_entropy::{CrossEntropy, cross_entropy};
use netcl_tensor::{Device, Tensor, detect_anomaly, no_grad};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How far training is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Training begins, after so many steps of earlier sessions.
    Started {
        /// Steps done.
        from_step: u64,
        /// Of so many.
        steps: u64,
    },
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
    /// A checkpoint of a step, which may be some steps back, was written into this folder.
    Saved {
        /// The step.
        step: u64,
        /// The folder.
        path: &'a Path,
    },
    /// Where the memory of a step goes; once, when one was captured.
    MemoryExplained(&'a str),
    /// The steps that [`Diagnostics`] ask for were profiled; once.
    Profiled(&'a Profile),
}

/// Whoever is told how far training is, and says what comes next; that is heeded after [`Progress::Step`] and [`Progress::Epoch`] alone.
type Watch<'w> = dyn FnMut(Progress<'_>) -> Next + 'w;

/// Test images that examples for the report are sought among.
const LOOKED_AT: usize = 300;

/// Batches made ahead on the host.
const PREFETCH: usize = 3;
/// Threads of the host that make a batch for a device of its own; a device that is the host's processor is left all its cores but one.
const THREADS: usize = 8;

/// Trains the network of `config` on `images` and keeps it, `config.toml`, `metrics.jsonl`, checkpoints and `report.html` in the claimed folder.
/// `watch` is called after every step and epoch and says what comes next. The weights that are kept are those of the last epoch.
///
/// # Errors
/// `Format` for settings out of range, or without an image to test with; of the device; `Io`.
pub fn train(
    device: &Device,
    config: &ClassifierConfig,
    images: &Dataset,
    claim: Claim,
    diagnostics: &Diagnostics,
    watch: &mut Watch<'_>,
) -> Result<Outcome> {
    let config = config.clone().with_absolute_paths()?;
    let run = Run::new(device, &config, images, diagnostics, None)?;
    run.go(RunFolder::create(claim, &config)?, watch)
}

/// Goes on with the run in `dir` from its newest intact checkpoint, or from the beginning if it has none: the same bits as a run that was never
/// stopped. Damaged checkpoints are skipped with a warning. Everything is restored and checked first; the folder is changed only after the first step,
/// so that a run which cannot be resumed stays unchanged.
///
/// # Errors
/// `Format` if `dir` is no run of a classifier, all checkpoints are damaged or of other images, or `config` changes a setting that must not change
/// ([`resume_rules`](super::resume_rules)); `Io` if another process has locked the folder; as [`train`].
pub fn resume(
    device: &Device,
    config: &ClassifierConfig,
    images: &Dataset,
    dir: &Path,
    diagnostics: &Diagnostics,
    watch: &mut Watch<'_>,
) -> Result<Outcome> {
    let claim = RunFolder::reopen(dir)?;
    let config = config.clone().with_absolute_paths()?;
    let mut run = Run::new(device, &config, images, diagnostics, None)?;
    let changes = reopened(&mut run, dir)?;
    let folder = opened(&mut run, claim, changes)?;
    run.go(folder, watch)
}

/// Restores `run` from the newest intact checkpoint of the run in `dir`; what the settings change.
///
/// # Errors
/// As [`resume`].
pub(super) fn reopened(run: &mut Run<'_>, dir: &Path) -> Result<Changes> {
    let stored = ClassifierConfig::of_run(dir)?.ok_or_else(|| {
        Error::format(format!("{}: config.toml has none of the presets of images", dir.display()))
    })?;
    let latest = Store::new(dir.join("checkpoints"), run.config.keep).latest()?;
    for warning in latest.iter().flat_map(|l| &l.warnings) {
        tracing::warn!("a damaged checkpoint is passed over: {warning}");
    }
    let step = latest.as_ref().map_or(0, |l| l.state.step);
    let changes = stored.with_absolute_paths()?.changes(run.config, step, run.of_epoch)?;
    if let Some(latest) = &latest {
        let checkpoint = Checkpoint::load(&latest.path)?;
        run.restore(&checkpoint).map_err(|e| e.context(latest.path.display()))?;
    }
    Ok(changes)
}

/// The claimed folder of a restored run, and what changes with its next step.
///
/// # Errors
/// As [`resume`].
pub(super) fn opened(run: &mut Run<'_>, claim: Claim, changes: Changes) -> Result<RunFolder<Epoch>> {
    let (step, best) = (run.place.step, run.place.best.map(|(_, step)| step));
    let (folder, done) = RunFolder::resume(claim, run.config, step, best)?;
    run.epochs = done;
    changes.notes.iter().for_each(|note| tracing::info!("changed with step {}: {note}", step + 1));
    if let Some(rate) = changes.rate.filter(|_| !run.is_finished()) {
        tracing::warn!("{rate}");
    }
    Ok(folder)
}

fn replace(dir: &Path, name: &str, content: &[u8]) -> Result<()> {
    let path = dir.join(name);
    files::replace(&path, content).map_err(|e| Error::io("writing", &path, &e))
}

/// A training in progress.
pub(super) struct Run<'a> {
    device: &'a Device,
    config: &'a ClassifierConfig,
    images: &'a Dataset,
    pub record: ImageRecord,
    pub classifier: Classifier,
    optimizer: Optimizer,
    rate: LearningRate,
    pub stepper: Stepper,
    ring: Ring,
    losses: Losses,
    /// Steps of an epoch.
    of_epoch: u64,
    /// Images of a step.
    each: usize,
    /// Where the step that is done is; `place.step` counts those enqueued.
    pub place: Place,
    epochs: Vec<Epoch>,
    /// What was taken for what in the last test.
    confusion: Vec<Vec<u64>>,
    began: Instant,
    /// Seconds of earlier sessions.
    before: f64,
    /// Steps of this epoch that this session has done, and since when.
    session: (u64, Instant),
    next: Next,
    looking: Looking,
    writing: Writing,
    /// Optional outputs that failed and were reported.
    spared: BTreeSet<&'static str>,
    /// The other ranks, if there are some.
    pub among: Option<Among>,
    /// Whether batches were divided anew among the ranks, and those made ahead are of no use.
    divided: bool,
    /// Whether the run failed in the same way at every rank.
    failed_together: bool,
}

/// How far the batches went that were made ahead.
#[derive(PartialEq)]
enum Went {
    /// To the end of an epoch, or of training.
    ToTheEnd,
    /// Until `watch` ended it.
    Stopped,
    /// Until ranks divided batches anew.
    Divided,
}

/// An enqueued step.
struct Pending {
    step: u64,
    loss: Loss,
}

/// The loss of a step.
enum Loss {
    /// It can be read once the event has come.
    There(Tensor, Event),
    /// Ranks have told each other.
    Known(f32),
}

impl<'a> Run<'a> {
    /// A run of the whole of each batch, or of so many images of it.
    pub fn new(
        device: &'a Device,
        config: &'a ClassifierConfig,
        images: &'a Dataset,
        diagnostics: &Diagnostics,
        part: Option<usize>,
    ) -> Result<Self> {
        config.validate()?;
        if images.test.is_empty() {
            return Err(Error::format(format!(
                "{} images are too few to keep {} of them for a test; set --val-split",
                images.train.len(),
                config.test_part
            )));
        }
        let about = Description::of(config, images);
        let [c, h, w] = about.size;
        let classifier = Classifier::new(device, about, config.dtype, config.seed)?;
        let rule = Arc::new(AdamW { betas: config.betas, eps: 1e-8 });
        let groups = ParamGroup::gpt(&classifier.params.trained(), config.weight_decay);
        let optimizer = Optimizer::for_storage(rule, groups, config.dtype)?;
        let (scaling, images_of) = (&classifier.scaling, &images.train);
        let batches = Batches { config, scaling, images: images_of, threads: 1, rows: None };
        let (of_epoch, each) = (batches.of_epoch(), batches.each());
        let own = part.unwrap_or(each);
        let now = Instant::now();
        Ok(Self {
            device,
            config,
            images,
            record: ImageRecord::new(images),
            optimizer,
            rate: config.learning_rate(of_epoch),
            stepper: Stepper::new(device, diagnostics.graph(config.graph)),
            ring: Ring::new(device, config.dtype, [own, c, h, w], config.mixup > 0.0)?,
            losses: Losses::new(device)?,
            classifier,
            of_epoch,
            each,
            place: Place::default(),
            epochs: Vec::new(),
            confusion: Vec::new(),
            began: now,
            before: 0.0,
            session: (0, now),
            next: Next::default(),
            looking: Looking::new(diagnostics)?,
            writing: Writing::default(),
            spared: BTreeSet::new(),
            among: None,
            divided: false,
            failed_together: false,
        })
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let about = (self.config, &self.record, self.rate.decay);
        self.place = restore(checkpoint, &self.classifier, &mut self.optimizer, about)?;
        self.before = self.place.elapsed;
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.place.step >= self.rate.decay
    }

    /// As one of several ranks; `together` becomes whether an error is one of all of them.
    pub fn go_together(
        mut self,
        mut folder: RunFolder<Epoch>,
        watch: &mut Watch<'_>,
        together: &mut bool,
    ) -> Result<Outcome> {
        let trained = self.train_all(&mut folder, watch);
        *together = self.failed_together;
        let (stopped, already) = trained.map_err(|e| match &self.among {
            Some(among) if !self.failed_together => among.named(self.device, e),
            _ => e,
        })?;
        self.report(folder.path(), stopped, already)
    }

    /// Trains to the end, or until `watch` ends it, and writes the report.
    fn go(mut self, mut folder: RunFolder<Epoch>, watch: &mut Watch<'_>) -> Result<Outcome> {
        let (stopped, already) = self.train_all(&mut folder, watch)?;
        self.report(folder.path(), stopped, already)
    }

    /// Trains; whether `watch` has ended it, and whether it was finished before.
    fn train_all(&mut self, folder: &mut RunFolder<Epoch>, watch: &mut Watch<'_>) -> Result<(bool, bool)> {
        watch(Progress::Started { from_step: self.place.step, steps: self.rate.decay });
        let already = self.is_finished();
        let mut stopped = false;
        if !already {
            self.session = (0, Instant::now());
            stopped = loop {
                match self.train_ahead(folder, watch)? {
                    Went::ToTheEnd => break false,
                    Went::Stopped => break true,
                    Went::Divided => self.rows_changed()?,
                }
            };
            self.profiled(true, folder, watch)?;
        }
        self.saved(watch)?;
        for recorded in folder.flush() {
            self.spare(recorded);
        }
        Ok((stopped, already))
    }

    /// Trains on batches that threads of the host make ahead, as they are divided now.
    fn train_ahead(&mut self, folder: &mut RunFolder<Epoch>, watch: &mut Watch<'_>) -> Result<Went> {
        let scaling = self.classifier.scaling.clone();
        let threads = if self.device.capabilities().is_cpu() || self.device.capabilities().simulated {
            1
        } else {
            std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
        };
        let (config, images) = (self.config, &self.images.train);
        let batches = Batches { config, scaling: &scaling, images, threads, rows: None };
        let batches = match &self.among {
            Some(among) => among.of(batches),
            None => batches,
        };
        ahead(batches.from(self.place.step), PREFETCH, |batches| self.train(batches, folder, watch))
    }

    /// Takes the images that this rank has of each batch now, from the next step on.
    fn rows_changed(&mut self) -> Result<()> {
        let Some(among) = &mut self.among else { return Ok(()) };
        // Commands that read the old batches and the captured step may still run.
        self.device.finish()?;
        // First the memory of the old step, which may be what there was too little of.
        self.stepper = Stepper::new(self.device, self.stepper.mode());
        let ([c, h, w], config) = (self.classifier.about.size, self.config);
        self.ring.resize(config.dtype, [among.places().len(), c, h, w], config.mixup > 0.0)?;
        among.rows_changed()
    }

    /// What it came to, also as `report.html`, which of a run that was finished before is written where it is missing.
    fn report(mut self, dir: &Path, stopped: bool, already: bool) -> Result<Outcome> {
        let title = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let outcome = |run: Self| Outcome {
            ranks: run.among.as_ref().map_or_else(Vec::new, |among| among.times().to_vec()),
            epochs: run.epochs,
            step: run.place.step,
            stopped,
            already,
            confusion: run.confusion,
        };
        if !self.leads() {
            return Ok(outcome(self));
        }
        let old = std::fs::read_to_string(dir.join("report.html")).unwrap_or_default();
        if already && old.contains(&report::headline(&self.epochs)) {
            return Ok(outcome(self));
        }
        if self.confusion.is_empty()
            && !self.epochs.is_empty()
            && self.place.step.is_multiple_of(self.of_epoch)
        {
            // Of ranks this one alone is here.
            self.confusion = self.test_part(&self.images.test, (0, 1))?.1;
        }
        let pictures = [self.classifier.examples(&self.images.test, LOOKED_AT)?, self.classifier.kernels()?];
        let (config, about) = (self.config, self.classifier.about.clone());
        let outcome = outcome(self);
        let page = report::html(&title, config, &about, &outcome, &pictures);
        replace(dir, "report.html", page.as_bytes())?;
        Ok(outcome)
    }

    /// Trains on all batches and tests after each epoch.
    fn train(
        &mut self,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        folder: &mut RunFolder<Epoch>,
        watch: &mut Watch<'_>,
    ) -> Result<Went> {
        while !self.is_finished() {
            let went = self.epoch(batches, folder, watch)?;
            if went != Went::ToTheEnd {
                return Ok(went);
            }
            self.tested(folder, watch)?;
            self.session = (0, Instant::now());
            let own = self.next;
            let asked = self.among.as_mut().map_or(Ok(own), |among| among.ask(own))?;
            if asked == Next::Stop && !self.is_finished() {
                return Ok(Went::Stopped);
            }
            self.next = Next::GoOn;
        }
        Ok(Went::ToTheEnd)
    }

    /// The steps of an epoch that are left, of which the loss is read while the next one runs. Where `watch` ended it within, the checkpoint of the last
    /// step is being written then.
    fn epoch(
        &mut self,
        batches: &mut dyn Iterator<Item = Result<Batch>>,
        folder: &mut RunFolder<Epoch>,
        watch: &mut Watch<'_>,
    ) -> Result<Went> {
        let mut pending: Option<Pending> = None;
        loop {
            if std::mem::take(&mut self.divided) {
                pending.map_or(Ok(()), |before| self.finish(&before, folder, watch))?;
                return Ok(Went::Divided);
            }
            self.looking.begin(self.device, self.place.step)?;
            let begun = Instant::now();
            let batch = batches.next().unwrap_or_else(|| Err(Error::internal("the batches ended")))?;
            self.did("data", begun);
            let Some(next) = self.enqueue(&batch)? else { continue };
            if let Some(before) = pending.replace(next) {
                self.finish(&before, folder, watch)?;
            }
            self.explain(watch);
            self.profiled(false, folder, watch)?;
            let last = self.place.step.is_multiple_of(self.of_epoch);
            let every = self.config.checkpoint_every;
            let due = self.asked() > Next::GoOn || every > 0 && self.place.step.is_multiple_of(every);
            // A checkpoint at the end of an epoch comes after the test.
            if !last && !due {
                continue;
            }
            if let Some(before) = pending.take() {
                self.finish(&before, folder, watch)?;
            }
            if last {
                return Ok(Went::ToTheEnd);
            }
            self.save(folder, false, watch)?;
            match self.asked() {
                Next::Stop => return Ok(Went::Stopped),
                // What a rank has asked for since, all learn with the next step.
                Next::Save if self.next == Next::Save => self.next = Next::GoOn,
                Next::Save | Next::GoOn => {}
            }
        }
    }

    /// What comes after the step: of ranks what any of them had asked for before it.
    fn asked(&self) -> Next {
        self.among.as_ref().map_or(self.next, |among| among.asked)
    }

    /// Whether this is the rank that writes.
    fn leads(&self) -> bool {
        self.among.as_ref().is_none_or(|among| among.place().0 == 0)
    }

    /// Enqueues forward, backward and update of a batch. `None` where a rank had no memory for its part of it, and batches were divided anew.
    fn enqueue(&mut self, batch: &Batch) -> Result<Option<Pending>> {
        self.optimizer.set_rate(self.rate.at(self.place.step))?;
        let begun = Instant::now();
        let inputs = self.ring.send(batch, !self.stepper.is_eager())?;
        self.did("upload", begun);
        if self.among.is_some() {
            return self.step_among(&inputs);
        }
        let begun = Instant::now();
        let Self { stepper, classifier, optimizer, config, looking, .. } = self;
        let loss = stepper.run(|| {
            optimizer.zero_grad();
            let loss = detect_anomaly(looking.detect_anomaly, || {
                let tag = classifier.device.tag("activations");
                let loss = loss(classifier, config, &inputs)?;
                drop(tag);
                let _tag = classifier.device.tag("gradients");
                optimizer.backward(&loss)?;
                Ok::<_, Error>(loss)
            })?;
            optimizer.apply()?;
            optimizer.zero_grad();
            Ok(loss.detach())
        })?;
        self.optimizer.count();
        let kept = if self.stepper.is_captured() { self.losses.keep(&loss, self.place.step)? } else { loss };
        self.place.step += 1;
        let done = self.device.mark()?;
        self.device.flush()?;
        self.did("enqueue", begun);
        Ok(Some(Pending { step: self.place.step, loss: Loss::There(kept, done) }))
    }

    /// The same as one of several ranks.
    fn step_among(&mut self, inputs: &Inputs) -> Result<Option<Pending>> {
        let begun = Instant::now();
        let Self { stepper, classifier, optimizer, config, looking, among, next, .. } = self;
        let among = among.as_mut().ok_or_else(|| Error::internal("a step of ranks without others"))?;
        let pass = Pass { classifier, config, inputs, anomalies: looking.detect_anomaly };
        match among.has_memory(stepper, pass, optimizer) {
            Ok(true) => {}
            Ok(false) => {
                self.divided = true;
                return Ok(None);
            }
            Err(e) => {
                self.failed_together = true;
                return Err(e);
            }
        }
        let loss = among.step(stepper, pass, optimizer, *next)?;
        // A signal that reached ranks at different steps has been heeded.
        if among.asked == Next::GoOn {
            *next = Next::GoOn;
        }
        optimizer.count();
        self.place.step += 1;
        if among.same_is_due(self.place.step) {
            among.same_state(classifier, optimizer)?;
        }
        self.divided = among.rebalance();
        self.did("enqueue", begun);
        Ok(Some(Pending { step: self.place.step, loss: Loss::Known(loss) }))
    }

    /// Waits for a step and tells of it.
    fn finish(
        &mut self,
        pending: &Pending,
        folder: &mut RunFolder<Epoch>,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        let begun = Instant::now();
        let loss = match &pending.loss {
            Loss::There(loss, done) => loss.item_after(done)?,
            Loss::Known(loss) => *loss,
        };
        self.did("read loss", begun);
        if !loss.is_finite() {
            self.failed_together = self.among.is_some();
            let place =
                self.among.as_ref().map_or_else(|| self.device.capabilities().id.clone(), Among::whose);
            return Err(Error::launch(format!(
                "the loss of step {} on {place} is {loss}: training diverged. Lower --lr (now {:.1e})",
                pending.step,
                self.rate.at(pending.step - 1)
            )));
        }
        folder.begin()?;
        self.place.losses += f64::from(loss);
        self.session.0 += 1;
        if self.writing.is_done() {
            self.saved(watch)?;
        }
        let (step, steps, epoch) = (pending.step, self.rate.decay, (pending.step - 1) / self.of_epoch + 1);
        let next = watch(Progress::Step { step, steps, epoch, loss, images_per_s: self.speed() });
        self.next = self.next.max(next);
        Ok(())
    }

    /// Tests after an epoch, records it, and keeps its weights and a checkpoint.
    fn tested(&mut self, folder: &mut RunFolder<Epoch>, watch: &mut Watch<'_>) -> Result<()> {
        let images_per_s = self.speed();
        if let Some(among) = &mut self.among {
            among.pausing();
        }
        let begun = Instant::now();
        let (test_loss, confusion) = self.test(&self.images.test)?;
        self.did("evaluation", begun);
        let right: u64 = confusion.iter().enumerate().map(|(i, row)| row[i]).sum();
        self.confusion = confusion;
        let step = self.place.step;
        let done = Epoch {
            epoch: step / self.of_epoch,
            step,
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            elapsed: self.elapsed(),
            loss: std::mem::take(&mut self.place.losses) / self.of_epoch as f64,
            test_loss,
            accuracy: right as f64 / self.images.test.len() as f64,
            images_per_s,
            lr: self.rate.at(step.saturating_sub(1)),
        };
        let best = self.place.best.is_none_or(|(lowest, _)| test_loss < lowest);
        if best {
            self.place.best = Some((test_loss, step));
        }
        self.place.test_loss = Some(test_loss);
        // Before the checkpoint: a run resumed from it does not repeat this epoch.
        for recorded in folder.push(&done)? {
            self.spare(recorded);
        }
        if self.leads() {
            self.classifier.save(folder.path())?;
        }
        self.save(folder, best, watch)?;
        self.next = self.next.max(watch(Progress::Epoch(&done)));
        self.epochs.push(done);
        self.place.test_loss = None;
        Ok(())
    }

    /// Writes a checkpoint of the steps done while training goes on, or at once if the host has no memory for a copy.
    fn save(&mut self, folder: &RunFolder<Epoch>, best: bool, watch: &mut Watch<'_>) -> Result<()> {
        if let Some(among) = &mut self.among {
            among.pausing();
            among.same_state(&self.classifier, &self.optimizer)?;
        }
        if !self.leads() {
            return Ok(());
        }
        let begun = Instant::now();
        self.saved(watch)?;
        self.place.elapsed = self.elapsed();
        let about = (self.config, &self.record);
        let plan = plan(&self.classifier, &self.optimizer, about, &self.place)?;
        let store = folder.checkpoints(self.config.keep);
        if !self.writing.start(store.clone(), &plan, best)? {
            let path = store.save_planned(&plan, best, &AtomicU64::new(0))?;
            watch(Progress::Saved { step: self.place.step, path: &path });
        }
        self.did("checkpoint", begun);
        Ok(())
    }

    /// Waits for the checkpoint that is being written.
    fn saved(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        if let Some((step, path)) = self.writing.end()? {
            watch(Progress::Saved { step, path: &path });
        }
        Ok(())
    }

    /// Records a host activity since `begun` for a profile.
    fn did(&mut self, name: &'static str, begun: Instant) {
        self.looking.did(name, self.place.step, begun);
    }

    /// Says once where the memory of a step goes, when one was captured.
    fn explain(&mut self, watch: &mut Watch<'_>) {
        if let (false, Some(plan)) = (self.looking.explained, self.stepper.plan()) {
            watch(Progress::MemoryExplained(&explained(
                plan,
                &self.classifier.params,
                self.optimizer.rule(),
                None,
            )));
            self.looking.explained = true;
        }
    }

    /// Ends the profile after its last step, or with the run.
    fn profiled(&mut self, ended: bool, folder: &RunFolder<Epoch>, watch: &mut Watch<'_>) -> Result<()> {
        let about = (self.place.step, self.stepper.is_captured());
        if let Some((profile, written)) = self.looking.end(self.device, about, ended, folder.path())? {
            self.spare(("the trace", written));
            watch(Progress::Profiled(&profile));
        }
        Ok(())
    }

    /// Warns once of an optional output that failed.
    fn spare(&mut self, (what, done): Recorded) {
        if let Err(e) = done
            && self.spared.insert(what)
        {
            tracing::warn!("training goes on without {what}: {e}");
        }
    }

    /// Seconds of training over all sessions.
    fn elapsed(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }

    /// Images a second of the steps that are done in this epoch.
    fn speed(&self) -> f64 {
        let (steps, began) = self.session;
        (steps * self.each as u64) as f64 / began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Mean loss, and what was taken for what; ranks have batches in turn.
    fn test(&self, images: &Images) -> Result<(f64, Vec<Vec<u64>>)> {
        let Some(among) = &self.among else { return self.test_part(images, (0, 1)) };
        among.share_statistics(&self.classifier)?;
        let (loss, confusion) = self.test_part(images, among.place())?;
        among.total(loss, confusion)
    }

    /// What a rank's batches contribute to that.
    fn test_part(&self, images: &Images, (rank, ranks): (usize, usize)) -> Result<(f64, Vec<Vec<u64>>)> {
        let classes = self.images.classes.len();
        let mut confusion = vec![vec![0u64; classes]; classes];
        let mut sum = 0.0;
        let all: Vec<usize> = (0..images.len()).collect();
        for picked in all.chunks(self.config.batch.max(128)).skip(rank).step_by(ranks.max(1)) {
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
