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
use super::statistics::Statistics;
use super::{Classifier, ClassifierConfig};
use crate::layers::{Ranks, together};
use crate::optim::Optimizer;
use crate::train::{Reducer, Stepper, Sums};
use netcl_device::{Error, Result};
use netcl_dist::{Group, Reduction, shard};
use netcl_tensor::graph::Between;
use netcl_tensor::ops::map::map_into;
use netcl_tensor::tape::replace_in_place;
use netcl_tensor::{DType, Device, Tensor, counted, detect_anomaly};
use std::sync::Arc;

/// A rank's images of each batch.
pub(super) struct Part {
    /// Their places in the batch.
    pub rows: Vec<usize>,
    /// Their share of the mean over the batch.
    share: f32,
}

impl Part {
    /// Of batches of `config` from so many images.
    ///
    /// # Errors
    /// `Format` for batches of fewer images, or pairs of them, than ranks.
    pub fn new(group: &Group, config: &ClassifierConfig, images: usize) -> Result<Self> {
        let (each, ranks) = (config.batch.min(images).max(1), group.size());
        let paired = config.mixup > 0.0;
        let rows = rows(each, (ranks, group.rank()), paired);
        let least = if paired { 2 * ranks } else { ranks };
        if each < least {
            let of = if paired {
                "two for each, because the preset mixes images in pairs"
            } else {
                "one for each"
            };
            return Err(Error::format(format!(
                "a batch of {} for {ranks} ranks: it is divided among them, and has to have {of}; raise --batch to {least} or more",
                counted(each, "image")
            )));
        }
        let share = rows.len() as f32 / each as f32;
        Ok(Self { rows, share })
    }
}

/// The places in a batch of `count` images that a rank of `ranks` has. Images that are mixed with that at the same place from the end stay with
/// it.
fn rows(count: usize, (ranks, rank): (usize, usize), paired: bool) -> Vec<usize> {
    if !paired {
        return shard(count, ranks, rank).collect();
    }
    let front = shard(count.div_ceil(2), ranks, rank);
    let back = front.clone().rev().map(|i| count - 1 - i).filter(|i| !front.contains(i));
    front.clone().chain(back).collect()
}

/// What a rank has beside a run on one device.
pub(super) struct Among {
    group: Group,
    part: Part,
    reducer: Arc<Reducer>,
    /// Whether ranks have devices or drivers of several kinds.
    unlike: bool,
    /// Of batch normalisation over all ranks.
    statistics: Option<Arc<Statistics>>,
    /// Where gradients are summed, from the second step on.
    sums: Option<Sums>,
    update: Stepper,
    /// What any rank asked for before the last step.
    pub asked: Next,
}

impl Among {
    /// The end of this rank. All ranks call it.
    ///
    /// # Errors
    /// Those of the group and the device.
    pub fn start(group: &Group, device: &Device, part: Part, config: &ClassifierConfig) -> Result<Self> {
        let reducer = Arc::new(Reducer::start(group, device)?);
        let c = device.capabilities();
        let compiler = format!("{} {} {}", c.name, c.platform_version, c.driver_version);
        let unlike = group.all_gather_bytes(compiler.as_bytes())?.windows(2).any(|two| two[0] != two[1]);
        let shares = group.all_gather(&[part.share])?;
        let statistics = match config.sync_batch_norm {
            true => Some(Arc::new(Statistics::new(&reducer, device, group.rank(), &shares)?)),
            false => None,
        };
        Ok(Self {
            group: group.clone(),
            part,
            reducer,
            unlike,
            statistics,
            sums: None,
            update: Stepper::without_plan(device, config.graph),
            asked: Next::GoOn,
        })
    }

    /// This rank, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        (self.group.rank(), self.group.size())
    }

    /// Takes what every rank asks for: the most of it.
    pub fn ask(&mut self, own: Next) -> Result<Next> {
        let all = self.group.all_gather(&[code(own)])?;
        self.asked = next(all.into_iter().max().unwrap_or(0));
        Ok(self.asked)
    }

    /// One step of all ranks; its loss, and what any of them asked for.
    ///
    /// # Errors
    /// Those of the group and the device.
    pub fn step(
        &mut self,
        stepper: &mut Stepper,
        (classifier, optimizer): (&Classifier, &mut Optimizer),
        (config, inputs, anomalies): (&ClassifierConfig, &Inputs, bool),
        own: Next,
    ) -> Result<f32> {
        let (share, device) = (self.part.share, &classifier.device);
        let statistics = self.statistics.clone();
        let pass = |backward: &dyn Fn(&Tensor) -> Result<()>| {
            let forward_backward = || {
                let tag = device.tag("activations");
                let loss = loss(classifier, config, inputs)?.mul_scalar(share)?;
                drop(tag);
                let _tag = device.tag("gradients");
                backward(&loss)?;
                Ok(loss.detach())
            };
            detect_anomaly(anomalies, || match &statistics {
                Some(own) => {
                    own.begin();
                    let ranks: Arc<dyn Ranks> = own.clone();
                    together(&ranks, forward_backward)
                }
                None => forward_backward(),
            })
        };
        let loss = match &self.sums {
            None => {
                optimizer.zero_grad();
                let loss = pass(&|loss| optimizer.backward(loss))?;
                let sums = sums_of(classifier, optimizer)?;
                for bucket in sums.buckets() {
                    self.reducer.sum(bucket.clone(), device.mark()?)?;
                }
                self.sums = Some(sums);
                loss
            }
            Some(sums) => {
                sums.begin()?;
                let params: Vec<Tensor> = optimizer.params().cloned().collect();
                let replaced = || pass(&|loss| replace_in_place(&params, || optimizer.backward(loss)));
                self.summed(stepper, sums, replaced)?
            }
        };
        let own_loss = self.reducer.finish(loss.clone(), device.mark()?)?;
        self.update.run(|| optimizer.apply().map(|()| loss.clone()))?;
        let mut sum = [own_loss];
        self.group.all_reduce(&mut sum, Reduction::Sum)?;
        self.ask(own)?;
        Ok(sum[0])
    }

    /// Makes a pass and begins the sums of its gradients.
    fn summed(
        &self,
        stepper: &mut Stepper,
        sums: &Sums,
        mut pass: impl FnMut() -> Result<Tensor>,
    ) -> Result<Tensor> {
        let parts: Vec<&Tensor> = sums.buckets().iter().collect();
        let begin = |i: usize| {
            let ready = parts[i].device().mark()?;
            // Drivers hand over launches in batches; nobody waits for one that was not.
            parts[i].device().flush()?;
            self.reducer.sum(parts[i].clone(), ready)
        };
        let Some(statistics) = &self.statistics else { return stepper.run_parts(pass, &parts, begin) };
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

    /// Where devices or drivers of several kinds make the update, and may round it differently, gives all ranks the state of rank 0, which is that
    /// of its checkpoint: a run that goes on from there is this one. All ranks call it, after the same step.
    ///
    /// # Errors
    /// Those of the group and the device.
    pub fn same_state(&self, classifier: &Classifier, optimizer: &Optimizer) -> Result<()> {
        if !self.unlike {
            return Ok(());
        }
        let moments = optimizer.state_parts()?.into_iter().map(|part| part.tensor);
        let mut all = classifier.state().into_iter().map(|(_, tensor)| tensor).chain(moments);
        all.try_for_each(|tensor| self.group.broadcast_tensor(&tensor, 0))
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
        Batches { rows: Some(self.part.rows.clone()), ..batches }
    }
}

/// Buffers for gradients with those that were just computed.
fn sums_of(classifier: &Classifier, optimizer: &mut Optimizer) -> Result<Sums> {
    let trained = classifier.params.trained();
    let before: Vec<Option<Tensor>> = trained.iter().map(Tensor::grad).collect();
    let sums = Sums::like(&classifier.device, trained.iter(), None, DType::F32, false)?;
    for (param, before) in trained.iter().zip(before) {
        if let (Some(before), Some(now)) = (before, param.grad()) {
            map_into("x0", &[&before], &[], &now)?;
        }
    }
    optimizer.prepare()?;
    Ok(sums)
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
    use super::rows;

    /// Every place is one rank's, and of pairs a rank has both, in an order in which they lie opposite.
    #[test]
    fn places_of_a_batch_are_divided() {
        for (count, ranks) in [(1, 1), (6, 3), (7, 3), (10, 4), (33, 5), (128, 2)] {
            for paired in [false, true] {
                let all: Vec<Vec<usize>> =
                    (0..ranks).map(|rank| rows(count, (ranks, rank), paired)).collect();
                let mut places = all.concat();
                places.sort_unstable();
                assert!(places.into_iter().eq(0..count), "{count} {ranks} {all:?}");
                for own in all.iter().filter(|_| paired) {
                    assert!(own.iter().zip(own.iter().rev()).all(|(a, b)| a + b == count - 1), "{own:?}");
                }
            }
        }
    }
}
