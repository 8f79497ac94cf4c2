//! Data-parallel training: every rank has the whole model and computes its rows of each batch. Gradients are summed before the update, each buffer as
//! soon as the backward pass has completed it.
//!
//! The batch of the configuration is that of all ranks, so a run is the same for any number of them, except for the order of sums. A rank's loss is
//! weighted by its share of the rows, so shares may differ. Ranks make the same update from the same sums; they need not exchange weights after the
//! first step.
//!
//! The loader returns a rank's rows, and its dropout streams start at its first row. One small message per step has the loss, the rank's times, and
//! requests to stop or save, so all ranks stop or save after the same step. Only the first rank writes the run folder.

use super::balance::Balance;
use super::reducer::{Arrived, Reducer, RowsOfAll};
use super::rows::TokenRows;
use crate::config::TrainConfig;
use crate::data::Eval;
use crate::evaluate::Score;
use crate::train::peak;
use crate::train::pipeline::Pipe;
use crate::train::rank_stats::SpeedUnit;
use crate::train::shares::Shares;
use crate::train::statistics::Statistics;
use netcl_device::driver::Event;
use netcl_dist::{Group, Span};
use netcl_model::decoder::{Decoder, DecoderConfig, decoder_of};
use netcl_model::model::Model;
use netcl_tensor::ops::embedding::{add_rows, embedding};
use netcl_tensor::{Device, Error, Result, Tensor, no_grad};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// A rank's part of a run.
pub(crate) struct Parallel {
    group: Group,
    /// The ranks that have the same parameters: in a pipeline those with the same stage, otherwise all.
    replicas: Group,
    /// This rank's stage, if the layers are divided.
    pipe: Option<Pipe>,
    /// Rows of each replica of the model, and the values that ranks have exchanged.
    pub(crate) balance: Balance,
    /// Created with the first reduction, because it needs the device.
    reducer: Option<Arc<Reducer>>,
    /// The rows of a tied table that this rank's tokens of a step use.
    pub(super) rows: Option<TokenRows>,
    /// The pending rows of all ranks.
    rows_of_all: Option<RowsOfAll>,
    /// Whether all ranks are on one machine.
    pub(crate) one_machine: bool,
    /// Sums over ranks within a pass.
    pub(crate) statistics: Option<Arc<Statistics>>,
}

impl Parallel {
    /// Creates this rank's part of `group` in batches of `config`.
    ///
    /// # Errors
    /// `Format` for fewer rows than replicas of the model, or ranks that are not a whole number of pipelines.
    pub fn new(group: &Group, config: &TrainConfig) -> Result<Self> {
        let (ranks, stages, batch) = (group.size(), config.pipeline.max(1), config.batch);
        if !ranks.is_multiple_of(stages) {
            return Err(Error::format(format!(
                "--pipeline {stages} for {}: expected one device per stage, so {stages} or a multiple. A run that started with another number of \
                 stages resumes with any; --pipeline 1 disables the pipeline",
                netcl_tensor::counted(ranks as u64, "rank")
            )));
        }
        let size = ranks / stages;
        if batch < size {
            let of = if stages > 1 { "pipelines" } else { "ranks" };
            return Err(Error::format(format!(
                "--batch {batch} for {size} {of}: all of them share the batch, so it must be at least {size}"
            )));
        }
        Ok(Self::with(group, Balance::new(group, batch, stages)))
    }

    /// Creates this rank's part of `group` in a run whose rows are divided by `balance`.
    pub fn with(group: &Group, balance: Balance) -> Self {
        Self {
            group: group.clone(),
            replicas: group.clone(),
            pipe: None,
            balance,
            reducer: None,
            rows: None,
            rows_of_all: None,
            one_machine: false,
            statistics: None,
        }
    }

    /// Divides the layers between the ranks, if `config` says so. All ranks call it, before models are created.
    ///
    /// # Errors
    /// `Format` if ranks have different numbers of stages; those of the group and the device.
    pub fn divide_layers(&mut self, config: &TrainConfig, device: &Device) -> Result<()> {
        self.group.agree(&[("--pipeline", config.pipeline.to_string())])?;
        if config.pipeline < 2 {
            return Ok(());
        }
        let speeds = stage_speeds(&self.group, config, device)?;
        let (pipe, replicas) = Pipe::split(&self.group, speeds)?;
        (self.pipe, self.replicas) = (Some(pipe), replicas);
        let (stages, micros) = (config.pipeline, config.grad_accum as usize);
        if micros < stages && self.group.leads() {
            tracing::warn!(
                "--pipeline {stages} with --grad-accum {micros}: a step has fewer micro-batches than stages, so devices wait {:.0} % of the time; \
                 {} or more fill the pipeline",
                100.0 * (stages - 1) as f64 / (micros + stages - 1) as f64,
                4 * stages
            );
        }
        Ok(())
    }

    /// Returns this rank's stage, if the layers are divided.
    pub fn pipe(&self) -> Option<&Pipe> {
        self.pipe.as_ref()
    }

    /// Returns the same, to exchange rows.
    pub fn pipe_mut(&mut self) -> Option<&mut Pipe> {
        self.pipe.as_mut()
    }

    /// Copies the first stage's values to the last stage's copy of a tied embedding.
    ///
    /// # Errors
    /// Errors of the group and the device.
    pub fn copy_tied(&self, model: &dyn Model) -> Result<()> {
        let table = decoder_of(model).and_then(Decoder::tied_table);
        match self.pipe.as_ref().zip(table) {
            Some((pipe, table)) => pipe.copy_tied(table),
            None => Ok(()),
        }
    }

    /// Gives all ranks with the same parameters the first one's values, if several kinds of devices or drivers update them and may round differently.
    ///
    /// # Errors
    /// Errors of the group and the device.
    pub fn take_first(&self, tensors: impl Iterator<Item = Tensor>) -> Result<()> {
        self.balance.take_first(&self.replicas, tensors)
    }

    /// Returns all ranks of the run.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the number of this rank's replica of the model.
    fn replica(&self) -> usize {
        self.replicas.rank()
    }

    /// Returns the settings of this rank's part of a step.
    pub fn local(&self, config: &TrainConfig) -> TrainConfig {
        TrainConfig { batch: self.rows().len(), ..config.clone() }
    }

    /// Returns this rank's rows of a batch.
    pub fn rows(&self) -> Range<usize> {
        self.balance.rows()
    }

    /// Divides the batch. All ranks call it, before the first step.
    ///
    /// # Errors
    /// `Format` for another number of weights than ranks, or ones that are not positive.
    pub fn divide(&mut self, shares: &Shares) -> Result<()> {
        if *shares == Shares::BySpeed && self.pipe.is_some() {
            return Err(Error::unsupported(
                "--shares speed with --pipeline: the layers are divided by speed, and rows equally; or give one number per pipeline",
            ));
        }
        self.balance.divide(shares)
    }

    /// Returns this rank's share of the mean over a batch.
    pub fn share(&self) -> f32 {
        self.rows().len() as f32 / self.balance.batch() as f32
    }

    /// Checks that all ranks run the same run, and gives all of them the weights of rank 0.
    ///
    /// # Errors
    /// `Format` with what differs; those of the group and the device.
    pub fn begin(
        &mut self,
        config: &TrainConfig,
        data: &[u8],
        step: u64,
        (model, weights): (&DecoderConfig, &[Tensor]),
    ) -> Result<()> {
        // Each rank has a different device, and only the first has a folder.
        let same = TrainConfig { device: String::new(), ..config.clone() }.to_toml()?;
        agree(&self.group, same, ("the data", String::from_utf8_lossy(data).into_owned()), step)?;
        let stages = self.pipe.as_ref().map_or_else(|| Ok(Vec::new()), |pipe| pipe.all_stages(model))?;
        let row_tokens = config.tokens_a_step() / config.batch.max(1) as u64;
        if let Some(first) = weights.first() {
            self.balance.meet(first.device(), &stages, (row_tokens, SpeedUnit::Tokens))?;
        }
        weights.iter().try_for_each(|weight| self.replicas.broadcast_tensor(weight, 0))
    }

    /// Returns the devices as text: `2 ranks (0 nvidia:0, 1 nvidia:1)`.
    pub fn devices(&self) -> String {
        let stages =
            self.pipe.as_ref().map_or_else(String::new, |p| format!(", a pipeline of {}", p.stages()));
        format!("{} ranks ({}){stages}", self.group.size(), self.balance.devices())
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// Returns an error on every rank if one rank fails.
    ///
    /// # Errors
    /// The failure with the rank's number; those of the group.
    pub fn all_succeed<T>(&self, own: Result<T>) -> Result<T> {
        self.group.all_succeed(own)
    }

    /// Returns the sum of all ranks' values; 0 if one of them is 0.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn total_of(&self, own: f64) -> Result<f64> {
        let all = self.group.all_gather(&[own])?;
        Ok(if all.contains(&0.0) { 0.0 } else { all.iter().sum() })
    }

    /// Starts the reduction of a gradient buffer, which is complete once `ready` has come, concurrently with the device's work.
    ///
    /// # Errors
    /// Errors of the group and the device, when the first reduction is prepared.
    pub fn begin_reduction(&mut self, bucket: &Tensor, ready: Event) -> Result<()> {
        self.reducer(bucket.device())?.sum(bucket.clone(), ready)
    }

    /// Starts to collect which rows of the tied table `table` any rank's tokens of this step use.
    ///
    /// # Errors
    /// Errors of [`Parallel::begin_reduction`].
    pub fn begin_rows(&mut self, table: &Tensor) -> Result<()> {
        let Some(own) = self.rows.as_ref().map(|rows| rows.bits().to_vec()) else { return Ok(()) };
        self.rows_of_all = Some(self.reducer(table.device())?.rows(own)?);
        Ok(())
    }

    /// Starts the reduction of the collected rows of the gradient `later`; returns their numbers, and where their sums will be.
    fn begin_reduction_of_rows(&mut self, later: &Tensor) -> Result<Option<[Tensor; 2]>> {
        let Some(answer) = self.rows_of_all.take() else { return Ok(None) };
        let numbers = answer.wait()?;
        let device = later.device();
        let _tag = device.tag("gradients");
        let numbers = Tensor::from_u32(device, [numbers.len()], &numbers)?;
        let sums = no_grad(|| embedding(later, &numbers))?;
        let ready = device.mark()?;
        device.flush()?;
        self.reducer(device)?.join_so_far()?;
        self.begin_reduction(&sums, ready)?;
        Ok(Some([numbers, sums]))
    }

    /// Does the same if this rank needs only the sums of its part; `bounds` are those of all ranks' parts.
    ///
    /// # Errors
    /// Errors of [`Parallel::begin_reduction`].
    pub fn begin_scatter(&mut self, bucket: &Tensor, bounds: &Arc<Vec<usize>>, ready: Event) -> Result<()> {
        self.reducer(bucket.device())?.scatter(bucket.clone(), bounds.clone(), ready)
    }

    /// Starts to send all ranks the parameters that this one has updated, which are complete once `ready` has come, and to receive those of the
    /// others. Until all have arrived, only the same thread may exchange anything else.
    ///
    /// # Errors
    /// Errors of [`Parallel::begin_reduction`].
    pub fn begin_gather(
        &mut self,
        device: &Device,
        parts: &Arc<Vec<Vec<Span>>>,
        ready: Event,
    ) -> Result<Receiver<Result<Arrived>>> {
        self.reducer(device)?.gather(parts.clone(), ready)
    }

    /// Returns the sum of all ranks' values, in the order of ranks, with the same bits on each.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn sum_of(&self, own: f64) -> Result<f64> {
        Ok(self.group.all_gather(&[own])?.iter().sum())
    }

    /// Returns the number of ranks, and this rank's number.
    pub fn place(&self) -> (usize, usize) {
        (self.group.size(), self.group.rank())
    }

    /// Waits until the device's queue can continue after the started reductions. `loss` is then the sum of all ranks' losses, and it is known whether
    /// one of them was asked to stop or to save. `apart` are a tied table and its embedding's gradient; their collected rows are summed and added to
    /// the table's gradient.
    ///
    /// # Errors
    /// Errors of the group and the device.
    pub fn finish_reductions(
        &mut self,
        loss: &Tensor,
        asked: [bool; 2],
        apart: Option<(&Tensor, &Tensor)>,
    ) -> Result<()> {
        let device = loss.device();
        let passed = device.mark()?;
        device.flush()?;
        let rows = match apart {
            Some((table, later)) => self.begin_reduction_of_rows(later)?.zip(table.grad()),
            None => None,
        };
        // From here on this rank waits for the work of the others and of the link.
        device.wait(&passed)?;
        let begun = Instant::now();
        let own = self.reducer(device)?.finish(loss.clone(), passed)?;
        if let Some(([numbers, sums], gradient)) = rows {
            add_rows(&gradient, &numbers, &sums)?;
        }
        // In a pipeline, also the time that stages have waited for each other; this is its bubble.
        let of_stages = self.pipe.as_mut().map_or_else(Default::default, Pipe::take_waited);
        let within = self.statistics.as_ref().map_or_else(Default::default, |own| own.take_waited());
        let waited = of_stages + within + begun.elapsed();
        let sum = self.balance.exchange(own, waited, asked)?;
        loss.set_f32(&[sum])
    }

    /// Returns the thread that exchanges concurrently with the device's queue.
    ///
    /// # Errors
    /// Errors of [`Parallel::begin_reduction`].
    pub fn reducer(&mut self, device: &Device) -> Result<&Arc<Reducer>> {
        match &mut self.reducer {
            Some(reducer) => Ok(reducer),
            none => Ok(none.insert(Arc::new(Reducer::start(&self.replicas, device)?))),
        }
    }

    /// Returns this rank's share of the validation batches; the windows are those of a run with one rank.
    pub fn part_of<'a>(&self, eval: &'a Eval) -> impl Iterator<Item = Result<crate::data::Batch>> + 'a {
        eval.batches().skip(self.replica()).step_by(self.replicas.size())
    }

    /// Returns the rows of a validation batch.
    pub fn eval_rows(&self) -> usize {
        (self.balance.batch() / self.replicas.size()).max(1)
    }

    /// Returns the score of all ranks' parts.
    ///
    /// # Errors
    /// Errors of the group.
    pub fn total(&self, own: &Score) -> Result<Score> {
        let numbers = [own.nll.to_bits(), own.tokens, own.windows, own.bytes.unwrap_or(0)];
        let all = self.group.all_gather(&numbers)?;
        let sum = |i: usize| all.chunks_exact(numbers.len()).map(|rank| rank[i]).sum::<u64>();
        let nll = all.chunks_exact(numbers.len()).map(|rank| f64::from_bits(rank[0])).sum();
        Ok(Score { nll, tokens: sum(1), windows: sum(2), bytes: own.bytes.map(|_| sum(3)), preference: None })
    }
}

/// Checks that all ranks run the same run: settings, data, and the steps done.
///
/// # Errors
/// `Format` with what differs; those of the group.
pub(crate) fn agree(group: &Group, settings: String, data: (&str, String), step: u64) -> Result<()> {
    group.agree(&[
        ("the version of netcl", env!("CARGO_PKG_VERSION").into()),
        ("the configuration", settings),
        data,
        ("the step to resume from", step.to_string()),
    ])
}

/// Returns the speed of the devices of each stage, that of the slowest replica; 1 for all if the devices are of one kind.
fn stage_speeds(group: &Group, config: &TrainConfig, device: &Device) -> Result<Vec<f64>> {
    let stages = config.pipeline;
    let kinds = group.all_gather_bytes(device.capabilities().name.as_bytes())?;
    if kinds.iter().all(|kind| *kind == kinds[0]) {
        return Ok(vec![1.0; stages]);
    }
    // Rounded to eighths: measurements differ from run to run, and the division should not.
    let measured = group.all_succeed(peak::measure(device, config.dtype))?;
    let all = group.all_gather(&[measured.max(1.0)])?;
    let fastest = all.iter().copied().fold(1.0, f64::max);
    let share = |speed: f64| ((8.0 * speed / fastest).round() / 8.0).max(0.125);
    let slowest =
        |stage: usize| all.iter().skip(stage).step_by(stages).copied().fold(f64::INFINITY, f64::min);
    Ok((0..stages).map(|stage| share(slowest(stage))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use netcl_dist::local;
    use std::time::Duration;

    /// Rows that do not fit into one rank's memory go to the others. Another failure, or no room at all, is an error on all ranks.
    #[test]
    fn rows_go_where_memory_is() {
        let short = || Error::memory("3 rows fit");
        let divided = |rooms: [usize; 3], failed: [Option<Error>; 3]| -> Vec<Result<Option<String>>> {
            let failed = failed.map(std::sync::Mutex::new);
            std::thread::scope(|scope| {
                let start = |rank: Group| {
                    let failed = failed[rank.rank()].lock().unwrap().take();
                    scope.spawn(move || {
                        let config = TrainConfig { batch: 24, ..TrainConfig::preset("char-cpu").unwrap() };
                        let mut parallel = Parallel::new(&rank, &config).unwrap();
                        parallel.balance.has_room_for(rooms[rank.rank()]);
                        let made = parallel.balance.make_room(failed.map_or(Ok(()), Err))?;
                        Ok(made.is_none().then(|| parallel.balance.words()))
                    })
                };
                let threads: Vec<_> = local(3, Duration::from_secs(60)).into_iter().map(start).collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            })
        };
        for parts in divided([24, 3, 11], [None, Some(short()), None]) {
            assert_eq!(parts.unwrap(), Some("11, 3, 10".to_owned()));
        }
        for whole in divided([24, 24, 24], [None, None, None]) {
            assert_eq!(whole.unwrap(), None);
        }
        for (rooms, other) in
            [([9, 3, 11], None), ([24, 0, 24], None), ([24, 3, 24], Some(Error::format("no such file")))]
        {
            for error in divided(rooms, [other.clone(), Some(short()), None]) {
                error.unwrap_err();
            }
        }
    }

    /// Files of the same name may have different contents on another machine.
    #[test]
    fn ranks_that_read_other_data_are_told_apart() {
        let ranks = local(2, Duration::from_secs(60));
        let found: Vec<Error> = std::thread::scope(|scope| {
            let begin = |rank: Group| {
                scope.spawn(move || {
                    let config = TrainConfig::preset("char-cpu").unwrap();
                    let data = format!("{{\"files\": [{}]}}", rank.rank());
                    let mut parallel = Parallel::new(&rank, &config).unwrap();
                    let model = config.decoder(64).unwrap();
                    parallel.begin(&config, data.as_bytes(), 0, (&model, &[])).unwrap_err()
                })
            };
            let threads: Vec<_> = ranks.into_iter().map(begin).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for error in found {
            let text = error.to_string();
            assert!(text.contains("the data is {\"files\": [0]} at rank 0"), "{text}");
        }
    }
}
