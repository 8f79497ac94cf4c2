//! Training of a classifier on several devices: every rank has the whole network and computes its images of each batch. Gradients are summed
//! while the backward pass goes on, and all ranks make the same update.
//!
//! Batch normalisation takes the images of its rank, as PyTorch's `DistributedDataParallel` has it, so a run depends on the number of ranks there;
//! running statistics are those of rank 0. With [`sync_batch_norm`](ClassifierConfig::sync_batch_norm) it takes those of all ranks, as
//! `SyncBatchNorm` does. So, and without batch normalisation, a run is that of one device but for the order of sums.

use super::batches::Batches;
use super::inputs::Inputs;
use super::loss::loss;
use super::outcome::Next;
use crate::train::Statistics;
use super::{Classifier, ClassifierConfig};
use crate::config::GraphMode;
use crate::optim::Optimizer;
use crate::train::{Balance, RankTimes, Reducer, Shares, Stepper, Sums, Unit, exchange_fits};
use netcl_device::{Error, Result};
use netcl_dist::Group;
use netcl_model::layers::{Ranks, together};
use netcl_tensor::graph::Between;
use netcl_tensor::tape::replace_in_place;
use netcl_tensor::{DType, Device, Tensor, counted, detect_anomaly};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A batch that is divided among ranks.
#[derive(Clone, Copy)]
struct Whole {
    /// Its images.
    images: usize,
    /// Whether two images that lie opposite are mixed, and stay together.
    paired: bool,
}

impl Whole {
    /// Of so many ranks.
    ///
    /// # Errors
    /// `Format` for batches of fewer images, or pairs of them, than ranks.
    fn of(config: &ClassifierConfig, images: usize, ranks: usize) -> Result<Self> {
        let whole = Self { images: config.batch.min(images).max(1), paired: config.mixup > 0.0 };
        let least = if whole.paired { 2 * ranks } else { ranks };
        if whole.images < least {
            let of = if whole.paired {
                "two for each, because the preset mixes images in pairs"
            } else {
                "one for each"
            };
            return Err(Error::format(format!(
                "a batch of {} for {ranks} ranks: it is divided among them, and has to have {of}; raise --batch to {least} or more",
                counted(whole.images, "image")
            )));
        }
        Ok(whole)
    }

    /// What of it is divided: images, or pairs of them.
    fn rows(self) -> usize {
        if self.paired { self.images.div_ceil(2) } else { self.images }
    }

    /// The places of the images of these rows. Images that are mixed with that at the same place from the end stay with it.
    fn places(self, rows: Range<usize>) -> Vec<usize> {
        if !self.paired {
            return rows.collect();
        }
        let back = rows.clone().rev().map(|i| self.images - 1 - i).filter(|i| !rows.contains(i));
        rows.clone().chain(back).collect()
    }

    /// The share that these rows have of the mean over the batch.
    fn share(self, rows: Range<usize>) -> f64 {
        self.places(rows).len() as f64 / self.images as f64
    }
}

/// What a pass computes: this rank's images.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub classifier: &'a Classifier,
    pub config: &'a ClassifierConfig,
    pub inputs: &'a Inputs,
    /// Whether every result is checked.
    pub anomalies: bool,
}

impl Pass<'_> {
    /// Forward and `backward` of a loss that counts by its share; batch normalisation may be that of all ranks.
    fn run(
        self,
        share: f64,
        statistics: Option<&Arc<Statistics>>,
        backward: &dyn Fn(&Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let device = &self.classifier.device;
        let forward_backward = || {
            let tag = device.tag("activations");
            let loss = loss(self.classifier, self.config, self.inputs)?.mul_scalar(share as f32)?;
            drop(tag);
            let _tag = device.tag("gradients");
            backward(&loss)?;
            Ok(loss.detach())
        };
        detect_anomaly(self.anomalies, || match statistics {
            Some(own) => {
                own.begin();
                let ranks: Arc<dyn Ranks> = own.clone();
                together(&ranks, forward_backward)
            }
            None => forward_backward(),
        })
    }
}

/// What a rank has beside a run on one device.
pub(super) struct Among {
    group: Group,
    whole: Whole,
    /// How batches are divided, and what ranks have told each other.
    balance: Balance,
    one_machine: bool,
    reducer: Arc<Reducer>,
    /// Of batch normalisation over all ranks.
    statistics: Option<Arc<Statistics>>,
    /// Where gradients are summed, from the first step on.
    sums: Option<Sums>,
    update: Stepper,
    /// What any rank asked for before the last step.
    pub asked: Next,
}

impl Among {
    /// The end of this rank, in a run of batches of `config` from so many images. Where nobody says how, batches are divided equally among devices
    /// of one kind, else by speed. All ranks call it.
    ///
    /// # Errors
    /// `Format` for batches of fewer images than ranks, and as [`Shares::check`]; those of the group and the device.
    pub fn start(
        (group, device): (&Group, &Device),
        (config, images): (&ClassifierConfig, usize),
        shares: Option<&Shares>,
        graph: GraphMode,
    ) -> Result<Self> {
        let whole = group.all_succeed(Whole::of(config, images, group.size()))?;
        let mut balance = Balance::new(group, whole.rows(), 1);
        balance.meet(device, &[], (if whole.paired { 2 } else { 1 }, Unit::Images))?;
        group.all_succeed(shares.map_or(Ok(()), |shares| balance.divide(shares)))?;
        let reducer = Arc::new(Reducer::start(group, device)?);
        let mut among = Self {
            group: group.clone(),
            whole,
            balance,
            one_machine: group.is_on_one_machine()?,
            reducer,
            statistics: None,
            sums: None,
            update: Stepper::without_plan(device, graph),
            asked: Next::GoOn,
        };
        if config.sync_batch_norm {
            let shares = among.shares();
            among.statistics =
                Some(Arc::new(Statistics::new(&among.reducer, device, group.rank(), &shares)?));
        }
        Ok(among)
    }

    /// This rank, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        (self.group.rank(), self.group.size())
    }

    /// The places in a batch of this rank's images.
    pub fn places(&self) -> Vec<usize> {
        self.whole.places(self.balance.rows())
    }

    /// Every rank's share of the mean over a batch.
    fn shares(&self) -> Vec<f64> {
        (0..self.group.size()).map(|rank| self.whole.share(self.balance.rows_of(rank))).collect()
    }

    /// How the time of each rank went.
    pub fn times(&self) -> &[RankTimes] {
        self.balance.times()
    }

    /// Whose part of the loss was not finite, for people.
    pub fn whose(&self) -> String {
        self.balance.whose()
    }

    /// Takes what every rank asks for: the most of it.
    pub fn ask(&mut self, own: Next) -> Result<Next> {
        let all = self.group.all_gather(&[code(own)])?;
        self.asked = next(all.into_iter().max().unwrap_or(0));
        Ok(self.asked)
    }

    /// Ranks do something else before the next step, which does not count for their speed.
    pub fn pausing(&mut self) {
        self.balance.pausing([true, false, true]);
    }

    /// Divides the batch anew where ranks wait for slower ones; whether it did. See [`Among::rows_changed`].
    pub fn rebalance(&mut self) -> bool {
        self.balance.rebalance()
    }

    /// Takes the rows that this rank has now, from the next step on, which has another stepper.
    ///
    /// # Errors
    /// Those of the device.
    pub fn rows_changed(&mut self) -> Result<()> {
        let shares = self.shares();
        if let Some(statistics) = &self.statistics {
            self.statistics = Some(Arc::new(statistics.with_shares(&shares)?));
        }
        Ok(())
    }

    /// Whether every rank has memory for a pass of its rows; where one has not, rows are divided anew, if others have room for them. Passes that
    /// are captured have it. All ranks call it, before each step.
    ///
    /// # Errors
    /// `Memory` at every rank, where rows cannot be divided.
    pub fn has_memory(
        &mut self,
        stepper: &mut Stepper,
        pass: Pass<'_>,
        optimizer: &mut Optimizer,
    ) -> Result<bool> {
        if !stepper.is_cold() {
            return Ok(true);
        }
        let made = self.start_sums(pass, optimizer);
        let device = &pass.classifier.device;
        let (optimizer, ranks) = (&*optimizer, (self.group.size(), self.one_machine));
        let prepared = made.and_then(|()| {
            self.sums.as_ref().map_or(Ok(()), Sums::begin)?;
            let step = || self.pass(pass, optimizer);
            stepper.dry_run(|| Ok(()), step)?;
            stepper.prepare(step)?;
            exchange_fits(device, self.sums.as_ref(), ranks)
        });
        let prepared = prepared.map_err(|e| self.named(device, e));
        Ok(self.balance.make_room_for_step(prepared)?.is_some())
    }

    /// An error of this rank: without memory it says what else is in use, and what to change.
    pub fn named(&self, device: &Device, error: Error) -> Error {
        let images = counted(self.places().len() as u64, "image");
        let part = format!("{images} of --batch {}", self.whole.images);
        self.balance.less_memory(device, error, (&part, "give it fewer with --shares, or lower --batch"))
    }

    /// Forward and backward of this rank's images, whose gradients replace what the sums hold.
    fn pass(&self, pass: Pass<'_>, optimizer: &Optimizer) -> Result<Tensor> {
        let params: Vec<Tensor> = optimizer.params().cloned().collect();
        let share = self.whole.share(self.balance.rows());
        let replaced = |loss: &Tensor| replace_in_place(&params, || optimizer.backward(loss));
        pass.run(share, self.statistics.as_ref(), &replaced)
    }

    /// Makes the memory for sums of gradients, by those of one image, and what else outlives a step.
    fn start_sums(&mut self, pass: Pass<'_>, optimizer: &mut Optimizer) -> Result<()> {
        if self.sums.is_some() {
            return Ok(());
        }
        let Pass { classifier, config, .. } = pass;
        let [c, h, w] = classifier.about.size;
        let one = Inputs::new(&classifier.device, config.dtype, [1, c, h, w], config.mixup > 0.0)?;
        let kept: Vec<(Tensor, Vec<u8>)> = classifier
            .network
            .buffers()
            .into_iter()
            .map(|(_, x)| Ok((x.clone(), x.to_bytes()?)))
            .collect::<Result<_>>()?;
        optimizer.zero_grad();
        let own = self.statistics.as_ref();
        let warm = || {
            let pass = Pass { inputs: &one, anomalies: false, ..pass };
            pass.run(1.0, own, &|loss| optimizer.backward(loss))
        };
        let made = own.map_or_else(warm, |statistics| statistics.alone(warm));
        kept.iter().try_for_each(|(x, bytes)| x.write_bytes(0, bytes))?;
        made?;
        let trained = classifier.params.trained();
        self.sums = Some(Sums::like(&classifier.device, trained.iter(), None, DType::F32, false)?);
        optimizer.prepare()
    }

    /// One step of all ranks; its loss.
    ///
    /// # Errors
    /// Those of the group and the device.
    pub fn step(
        &mut self,
        stepper: &mut Stepper,
        pass: Pass<'_>,
        optimizer: &mut Optimizer,
        own: Next,
    ) -> Result<f32> {
        self.start_sums(pass, optimizer)?;
        let loss = self.summed(stepper, pass, optimizer)?;
        let device = &pass.classifier.device;
        let passed = device.mark()?;
        device.flush()?;
        // From here on this rank waits for what the others and the link still have to do.
        device.wait(&passed)?;
        let begun = Instant::now();
        let own_loss = self.reducer.finish(loss.clone(), passed)?;
        let within = self.statistics.as_ref().map_or(Duration::ZERO, |statistics| statistics.take_waited());
        let waited = within + begun.elapsed();
        self.update.run(|| optimizer.apply().map(|()| loss.clone()))?;
        let asked = [own == Next::Stop, own == Next::Save];
        let sum = self.balance.exchange(own_loss, waited, asked)?;
        self.asked = match self.balance.asked() {
            [true, _] => Next::Stop,
            [_, true] => Next::Save,
            _ => Next::GoOn,
        };
        Ok(sum)
    }

    /// Makes a pass and begins the sums of its gradients.
    fn summed(&self, stepper: &mut Stepper, pass: Pass<'_>, optimizer: &Optimizer) -> Result<Tensor> {
        let sums = self.sums.as_ref().ok_or_else(|| Error::internal("a step without memory for its sums"))?;
        sums.begin()?;
        let parts: Vec<&Tensor> = sums.buckets().iter().collect();
        let begin = |i: usize| {
            let ready = parts[i].device().mark()?;
            // Drivers hand over launches in batches; nobody waits for one that was not.
            parts[i].device().flush()?;
            self.reducer.sum(parts[i].clone(), ready)
        };
        let mut pass = || self.pass(pass, optimizer);
        let Some(statistics) = &self.statistics else {
            let (before, done) = (&mut |_: usize| Ok(()), &mut |i: usize| begin(i));
            return stepper.run_between(pass, &mut Between { uses: &[], before, parts: &parts, done });
        };
        // A replay stops where ranks exchange statistics, and where that is shows once it is captured.
        if stepper.is_planned() {
            stepper.prepare(&mut pass)?;
        }
        if stepper.is_planned() || parts.iter().any(|x| x.device().settings().exact_memory) {
            stepper.stay_eager(Error::unsupported("capture: batch normalisation over all ranks"))?;
        }
        let uses = if stepper.is_captured() { statistics.stops(stepper)? } else { Vec::new() };
        let before = &mut |i: usize| statistics.exchange(i);
        let (uses, done) = (&uses[..], &mut |_: usize| Ok(()));
        let loss = stepper.run_between(pass, &mut Between { uses, before, parts: &[], done })?;
        // Behind the last statistics: all ranks exchange everything in the same order.
        (0..parts.len()).try_for_each(begin)?;
        Ok(loss)
    }

    /// Where unlike devices take the same state after so many steps.
    pub fn same_is_due(&self, step: u64) -> bool {
        self.balance.same_is_due(step)
    }

    /// Where devices or drivers of several kinds make the update, and may round it differently, gives all ranks the state of rank 0, which is that
    /// of its checkpoint: a run that goes on from there is this one. All ranks call it, after the same step.
    ///
    /// # Errors
    /// Those of the group and the device.
    pub fn same_state(&self, classifier: &Classifier, optimizer: &Optimizer) -> Result<()> {
        if !self.balance.is_unlike() {
            return Ok(());
        }
        let moments = optimizer.state_parts()?.into_iter().map(|part| part.tensor);
        let state = classifier.state().into_iter().map(|(_, tensor)| tensor);
        self.balance.take_first(&self.group, state.chain(moments))
    }

    /// Gives all ranks the running statistics of rank 0.
    pub fn share_statistics(&self, classifier: &Classifier) -> Result<()> {
        let all = classifier.network.buffers();
        all.iter().try_for_each(|(_, tensor)| self.group.broadcast_tensor(tensor, 0))
    }

    /// The sums over all ranks.
    pub fn total(&self, loss: f64, confusion: Vec<Vec<u64>>) -> Result<(f64, Vec<Vec<u64>>)> {
        let losses = self.group.all_gather(&[loss])?;
        let flat: Vec<u64> = confusion.concat();
        let (all, rows) = (self.group.all_gather(&flat)?, confusion.len().max(1));
        let of = |i: usize| all.iter().skip(i).step_by(flat.len().max(1)).sum::<u64>();
        let sums: Vec<u64> = (0..flat.len()).map(of).collect();
        let confusion = sums.chunks(flat.len().div_ceil(rows).max(1)).map(<[u64]>::to_vec).collect();
        Ok((losses.iter().sum(), confusion))
    }

    /// Keeps the batches of this rank's images.
    pub fn of<'a>(&self, batches: Batches<'a>) -> Batches<'a> {
        Batches { rows: Some(self.places()), ..batches }
    }
}

fn code(next: Next) -> u32 {
    match next {
        Next::GoOn => 0,
        Next::Save => 1,
        Next::Stop => 2,
    }
}

fn next(code: u32) -> Next {
    match code {
        0 => Next::GoOn,
        1 => Next::Save,
        _ => Next::Stop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_dist::divide;

    /// Every place is one rank's, and of pairs a rank has both, in an order in which they lie opposite; shares are those of the images.
    #[test]
    fn places_of_a_batch_are_divided() {
        let weights: [&[f64]; 6] = [
            &[1.0],
            &[1.0; 3],
            &[3.0, 1.0, 1.0],
            &[1.0, 2.0, 1.0, 1.0],
            &[5.0, 1.0, 1.0, 0.1, 1.0],
            &[7.0, 2.0],
        ];
        for (images, weights) in [1, 6, 7, 10, 33, 128].into_iter().zip(weights) {
            for paired in [false, true] {
                let whole = Whole { images, paired };
                let mut begin = 0;
                let mut rows = divide(whole.rows(), weights).into_iter().map(|n| {
                    begin += n;
                    begin - n..begin
                });
                let all: Vec<Range<usize>> = rows.by_ref().collect();
                let of: Vec<Vec<usize>> = all.iter().map(|rows| whole.places(rows.clone())).collect();
                let mut places = of.concat();
                places.sort_unstable();
                assert!(places.into_iter().eq(0..images), "{images} {weights:?} {of:?}");
                for own in of.iter().filter(|_| paired) {
                    let opposite = own.iter().zip(own.iter().rev()).all(|(a, b)| a + b == images - 1);
                    assert!(opposite, "{own:?}");
                }
                let shares: f64 = all.into_iter().map(|rows| whole.share(rows)).sum();
                assert!((shares - 1.0).abs() < 1e-12);
            }
        }
    }
}
