//! Training on images: shuffled batches, the classification loss, a test after every epoch.

use super::super::data::{Dataset, Images as ImageSet};
use super::batches::{Batches, ImageBatch, Scaling};
use super::distributed::{DividedBatch, ask, shares};
use super::inputs::{ImageInputs, Ring};
use super::loss::loss;
use super::outcome::{Epoch, Next};
use super::record::ImageRecord;
use super::watch::{TrainingProgress, TrainingWatcher};
use super::{Classifier, ClassifierConfig, Description, Diagnostics};
use crate::data::{Position, ahead};
use crate::optim::{AdamW, Optimizer, ParamGroup};
use crate::run::RunFolder;
use crate::train::explained;
use crate::train::training::{
    Accumulation, At, Loop, Objective, ObserverRequests, Parallel, Ranks, Reporting, Run, StepResults, Task,
    Training, divergence,
};
use netcl_device::{Error, Result};
use netcl_model::checkpoint::{State, TensorToWrite};
use netcl_model::params::Params;
use netcl_tensor::{Device, Tensor, counted};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::IntoIter;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Number of batches computed ahead on the host.
const PREFETCH: usize = 3;
/// Host threads that compute a batch for a separate device. A device that is the host's CPU keeps all cores except one.
const THREADS: usize = 8;

/// A network in training, and its images.
pub(super) struct ImageTraining<'a> {
    pub config: &'a ClassifierConfig,
    pub data: &'a Dataset,
    pub record: ImageRecord,
    pub classifier: Classifier,
    ring: Ring,
    /// Steps of an epoch.
    pub of_epoch: u64,
    /// Batch size, and how ranks divide a batch.
    pub whole: DividedBatch,
    /// Sum of the losses of the current epoch's steps.
    pub losses: f64,
    /// The confusion matrix of the last test.
    pub confusion: Vec<Vec<u64>>,
    began: Instant,
    /// Seconds of earlier sessions.
    pub before: f64,
    /// Steps of this epoch in this session, and its start time.
    session: (u64, Instant),
}

/// The source of batches.
pub(super) struct ImageBatchSource<'a> {
    config: &'a ClassifierConfig,
    images: &'a ImageSet,
    scaling: Scaling,
    threads: usize,
    rows: Option<Vec<usize>>,
    from: u64,
}

impl<'a> ImageTraining<'a> {
    /// Prepares a run with whole batches, or as one of several ranks; does not open its folder.
    ///
    /// # Errors
    /// `Format` for settings out of range, or without a test image; errors of the device.
    pub fn run(
        device: &Device,
        config: &'a ClassifierConfig,
        data: &'a Dataset,
        (diagnostics, dir): (&Diagnostics, &Path),
        parallel: Option<&Parallel>,
    ) -> Result<Run<Self>> {
        config.validate()?;
        if data.test.is_empty() {
            return Err(Error::format(format!(
                "{} images are too few to use {} of them for a test; set --val-split",
                data.train.len(),
                config.test_part
            )));
        }
        let about = Description::of(config, data);
        let [c, h, w] = about.size;
        let classifier = Classifier::new(device, about, config.dtype, config.seed)?;
        let rule = Arc::new(AdamW { betas: config.betas, eps: 1e-8 });
        let groups = ParamGroup::gpt(&classifier.params.trained(), config.weight_decay);
        let optimizer = Optimizer::for_storage(rule, groups, config.dtype)?;
        let (of_epoch, whole) =
            (config.steps_of_epoch(data.train.len()), DividedBatch::of(config, data.train.len()));
        let own = parallel.map_or(whole.images(), |parallel| whole.places(parallel.rows()).len());
        let rate = config.learning_rate(of_epoch);
        let mut passes = Accumulation::new(device, diagnostics.graph(config.graph))?;
        passes.detect_anomaly = diagnostics.detect_anomaly;
        let mut report = Reporting::new(RunFolder::follow(dir), Vec::new(), config.keep);
        diagnostics.profile.clone().map_or(Ok(()), |profile| report.profile(profile))?;
        let training = Training {
            device: device.clone(),
            optimizer,
            progress: Loop::new(rate, rate.decay, config.seed),
            passes,
            ranks: Ranks::default(),
            report,
        };
        let now = Instant::now();
        let task = Self {
            config,
            data,
            record: ImageRecord::new(data),
            ring: Ring::new(device, config.dtype, [own, c, h, w], config.mixup > 0.0)?,
            classifier,
            of_epoch,
            whole,
            losses: 0.0,
            confusion: Vec::new(),
            began: now,
            before: 0.0,
            session: (0, now),
        };
        Ok(Run { task, training })
    }

    /// Returns seconds of training over all sessions.
    pub fn elapsed(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }

    /// Returns the images per second of this epoch's steps.
    fn speed(&self) -> f64 {
        let (steps, began) = self.session;
        (steps * self.whole.images() as u64) as f64 / began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Reports that training starts.
    pub fn tell_start(&self, training: &Training<Epoch>, watch: &mut TrainingWatcher<'_>) {
        watch.tell(TrainingProgress::Started {
            from_step: training.progress.step,
            steps: training.progress.steps,
        });
    }

    /// Tests after an epoch, records the result, and keeps the weights; returns whether they are the best so far.
    fn tested(&mut self, training: &mut Training<Epoch>) -> Result<bool> {
        let images_per_s = self.speed();
        let begun = Instant::now();
        let (test_loss, confusion) = self.test(&training.ranks)?;
        training.host_did("evaluation", begun);
        let right: u64 = confusion.iter().enumerate().map(|(i, row)| row[i]).sum();
        self.confusion = confusion;
        let step = training.progress.step;
        let done = Epoch {
            epoch: step / self.of_epoch,
            step,
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            elapsed: self.elapsed(),
            loss: std::mem::take(&mut self.losses) / self.of_epoch as f64,
            test_loss,
            accuracy: right as f64 / self.data.test.len() as f64,
            images_per_s,
            lr: training.progress.rate.at(step.saturating_sub(1)),
        };
        // Before the checkpoint: a run resumed from it does not repeat this epoch.
        training.report.record(done)?;
        if !training.report.folder.follows() {
            self.classifier.save(training.report.folder.path())?;
        }
        Ok(training.progress.evaluated(test_loss))
    }
}

impl Objective for ImageTraining<'_> {
    type Inputs = ImageInputs;

    fn micros(&self) -> u32 {
        1
    }

    fn params(&self) -> &Params {
        &self.classifier.params
    }

    fn loss(&self, inputs: &ImageInputs, _: usize) -> Result<Tensor> {
        loss(&self.classifier, self.config, inputs)
    }

    fn one_row(&self, _: &ImageInputs) -> Result<ImageInputs> {
        let [c, h, w] = self.classifier.about.size;
        ImageInputs::new(&self.classifier.device, self.config.dtype, [1, c, h, w], self.config.mixup > 0.0)
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.classifier.network.buffers().into_iter().map(|(_, x)| x).collect()
    }
}

impl<'a> Task for ImageTraining<'a> {
    type Batch = ImageBatch;
    type Source = ImageBatchSource<'a>;
    type Feed = IntoIter<Result<ImageBatch>>;
    /// The results of a step are added to those of its epoch.
    type Metrics = ();
    type Record = Epoch;
    type Watch<'w> = TrainingWatcher<'w>;

    const PLANS_AHEAD: bool = false;
    const PROFILED: Range<u64> = 0..0;
    const NAMES_RANK: bool = false;
    const WATCHED: bool = false;

    fn source(&self, training: &Training<Epoch>) -> ImageBatchSource<'a> {
        let capabilities = training.device.capabilities();
        let threads = if capabilities.is_cpu() || capabilities.simulated {
            1
        } else {
            std::thread::available_parallelism().map_or(1, usize::from).min(THREADS)
        };
        let rows = training.ranks.parallel.as_ref().map(|parallel| self.whole.places(parallel.rows()));
        let (config, images, scaling) = (self.config, &self.data.train, self.classifier.scaling.clone());
        ImageBatchSource { config, images, scaling, threads, rows, from: training.progress.step }
    }

    fn ahead<O>(source: ImageBatchSource<'a>, work: impl FnOnce(&mut Self::Feed) -> Result<O>) -> Result<O> {
        let ImageBatchSource { config, images, ref scaling, threads, rows, from } = source;
        ahead(Batches { config, scaling, images, threads, rows }.from(from), PREFETCH, work)
    }

    fn take(feed: &mut Self::Feed) -> Result<ImageBatch> {
        feed.next().unwrap_or_else(|| Err(Error::internal("the batches ended")))
    }

    fn send(
        &mut self,
        _: &mut Self::Feed,
        batch: ImageBatch,
        at: At,
        _: &mut Ranks,
    ) -> Result<(ImageInputs, Position)> {
        let inputs = self.ring.send(&batch, at.fixed)?;
        Ok((inputs, Position { seed: self.config.seed, step: at.step + 1, micro: 0 }))
    }

    fn rows_changed(&mut self, parallel: &mut Parallel) -> Result<()> {
        let ([c, h, w], config) = (self.classifier.about.size, self.config);
        let own = self.whole.places(parallel.rows()).len();
        self.ring.resize(config.dtype, [own, c, h, w], config.mixup > 0.0)?;
        if let Some(statistics) = &parallel.statistics {
            parallel.statistics = Some(Arc::new(statistics.with_shares(&shares(self.whole, parallel))?));
        }
        Ok(())
    }

    fn share(&self, parallel: &Parallel) -> f32 {
        self.whole.share(parallel.rows()) as f32
    }

    fn part(&self, parallel: &Parallel) -> (String, &'static str) {
        let images = counted(self.whole.places(parallel.rows()).len() as u64, "image");
        let part = format!("{images} of --batch {}", self.whole.images());
        (part, "give it fewer with --shares, or lower --batch")
    }

    fn started(&mut self, training: &mut Training<Epoch>, watch: &mut TrainingWatcher<'_>) -> Result<()> {
        self.tell_start(training, watch);
        self.session = (0, Instant::now());
        Ok(())
    }

    fn measure(
        &mut self,
        training: &mut Training<Epoch>,
        done: &StepResults<'_>,
        watch: &mut TrainingWatcher<'_>,
    ) -> Result<()> {
        training.report.folder.begin()?;
        self.losses += done.loss;
        self.session.0 += 1;
        watch.heed(TrainingProgress::Step {
            step: done.step,
            steps: training.progress.steps,
            epoch: (done.step - 1) / self.of_epoch + 1,
            loss: done.loss as f32,
            images_per_s: self.speed(),
        });
        Ok(())
    }

    fn diverged(&mut self, _: &mut Training<Epoch>, done: &StepResults<'_>, place: &str) -> Result<Error> {
        Ok(Error::launch(divergence(done, place)))
    }

    fn publish(&mut self, _: &mut Training<Epoch>, (): (), _: &mut TrainingWatcher<'_>) -> Result<()> {
        Ok(())
    }

    fn explain(&self, training: &Training<Epoch>) -> Option<String> {
        let plan = training.passes.stepper.plan()?;
        Some(explained(plan, &self.classifier.params, training.optimizer.rule(), None))
    }

    fn due(&self, progress: &Loop) -> [bool; 3] {
        let epoch = progress.every(self.of_epoch);
        [epoch, false, epoch || progress.every(self.config.checkpoint_every)]
    }

    fn on_request(watch: &mut TrainingWatcher<'_>, asked: ObserverRequests) {
        // A signal that reached the ranks at different steps has been handled.
        if !asked.stop && !asked.save {
            watch.next = Next::GoOn;
        }
    }

    fn review(
        &mut self,
        training: &mut Training<Epoch>,
        (): (),
        _: ObserverRequests,
        _: &mut TrainingWatcher<'_>,
    ) -> Result<bool> {
        if training.progress.every(self.of_epoch) { self.tested(training) } else { Ok(false) }
    }

    fn paused(
        &mut self,
        training: &mut Training<Epoch>,
        asked: ObserverRequests,
        watch: &mut TrainingWatcher<'_>,
    ) -> Result<bool> {
        let Training { progress, ranks, report, .. } = training;
        if !progress.every(self.of_epoch) {
            // On a single rank, a request made when the last step finished also counts.
            let stop = if ranks.is_alone() { watch.next == Next::Stop } else { asked.stop };
            // Later requests of a rank reach the others with the next step.
            if !stop && watch.next == Next::Save && (ranks.is_alone() || asked.save) {
                watch.next = Next::GoOn;
            }
            return Ok(stop);
        }
        if let Some(done) = report.history.last() {
            watch.heed(TrainingProgress::Epoch(done));
        }
        progress.val_loss = None;
        self.session = (0, Instant::now());
        let asked = match &ranks.parallel {
            Some(parallel) => ask(parallel.group(), watch.next)?,
            None => watch.next,
        };
        watch.next = Next::GoOn;
        Ok(asked == Next::Stop && !progress.is_finished())
    }

    fn planned(&self) -> Vec<TensorToWrite<'static>> {
        self.classifier.planned()
    }

    fn alike(&self) -> Vec<Tensor> {
        self.classifier.state().into_iter().map(|(_, tensor)| tensor).collect()
    }

    fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        self.checkpoint_files()
    }

    fn note(&self, state: &mut State) {
        self.note_place(state);
    }
}
