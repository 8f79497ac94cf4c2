//! A small task of preference pairs: the loop provides accumulation, capture, ranks, checkpoints and resumption.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use super::*;
use crate::config::GraphMode;
use crate::data::random::below;
use crate::optim::{AdamW, ParamGroup};
use crate::run::{RunFolder, StepMetrics};
use crate::schedule::{LearningRate, Schedule};
use crate::train::{Balance, Silent, SpeedUnit};
use netcl_dist::{Group, local};
use netcl_model::checkpoint::{Bytes, Checkpoint, FileDtype, MODEL_FILE};
use netcl_model::params::Init;
use netcl_tensor::DType;
use netcl_tensor::suite::test_device;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const FEATURES: usize = 8;
/// Pairs per micro-batch, over all ranks.
const PAIRS: usize = 4;
const SEED: u64 = 5;

/// A linear score that learns which answer of a pair is preferred: −log σ(score of the chosen − score of the rejected).
struct Pairs {
    params: Params,
    weight: Tensor,
    micros: u32,
    /// Features of the chosen and the rejected answers of this rank's pairs, at fixed addresses.
    inputs: [Tensor; 2],
    rows: Range<usize>,
    losses: Vec<u32>,
}

/// Positions of consecutive batches.
struct Feed {
    at: Position,
    micros: u32,
}

impl Pairs {
    /// Returns the features of one answer; the preferred one has a larger first feature.
    fn features(at: Position, row: usize, chosen: bool) -> Vec<f32> {
        let place = |i: usize| [at.step, u64::from(at.micro), (row * FEATURES + i) as u64];
        let noise = |i: usize| below(SEED + u64::from(chosen), place(i), 1000) as f32 / 1000.0 - 0.5;
        (0..FEATURES).map(|i| noise(i) + if chosen && i == 0 { 1.0 } else { 0.0 }).collect()
    }

    fn inputs(device: &Device, rows: usize) -> [Tensor; 2] {
        [(); 2].map(|()| Tensor::zeros(device, [rows, FEATURES], DType::F32).unwrap())
    }
}

impl Objective for Pairs {
    type Inputs = [Tensor; 2];

    fn micros(&self) -> u32 {
        self.micros
    }

    fn params(&self) -> &Params {
        &self.params
    }

    fn loss(&self, [chosen, rejected]: &[Tensor; 2], _: usize) -> Result<Tensor> {
        let margin = chosen.sub(rejected)?.matmul(&self.weight)?;
        margin.neg()?.softplus()?.mean(&[0, 1], false)
    }

    fn one_row(&self, _: &[Tensor; 2]) -> Result<[Tensor; 2]> {
        Ok(Self::inputs(self.params.device(), 1))
    }
}

impl Task for Pairs {
    type Batch = Position;
    type Source = Feed;
    type Feed = Feed;
    type Metrics = StepMetrics;
    type Record = StepMetrics;
    type Watch<'w> = dyn Observer + 'w;

    const PLANS_AHEAD: bool = true;
    const PROFILED: Range<u64> = 0..0;
    const NAMES_RANK: bool = true;
    const WATCHED: bool = true;

    fn source(&self, training: &Training<StepMetrics>) -> Feed {
        Feed { at: training.progress.position, micros: self.micros }
    }

    fn ahead<O>(mut source: Feed, work: impl FnOnce(&mut Feed) -> Result<O>) -> Result<O> {
        work(&mut source)
    }

    fn take(feed: &mut Feed) -> Result<Position> {
        let at = feed.at;
        let last = at.micro + 1 == feed.micros;
        let (step, micro) = if last { (at.step + 1, 0) } else { (at.step, at.micro + 1) };
        feed.at = Position { step, micro, ..at };
        Ok(at)
    }

    fn send(
        &mut self,
        feed: &mut Feed,
        at: Position,
        _: At,
        _: &mut Ranks,
    ) -> Result<([Tensor; 2], Position)> {
        for (tensor, chosen) in self.inputs.iter().zip([true, false]) {
            let values: Vec<f32> =
                self.rows.clone().flat_map(|row| Self::features(at, row, chosen)).collect();
            tensor.write_bytes(0, bytemuck::cast_slice(&values))?;
        }
        Ok((self.inputs.clone(), feed.at))
    }

    fn rows_changed(&mut self, parallel: &mut Parallel) -> Result<()> {
        self.rows = parallel.rows();
        self.inputs = Self::inputs(self.params.device(), self.rows.len());
        Ok(())
    }

    fn part(&self, _: &Parallel) -> (String, &'static str) {
        ("pairs".into(), "take fewer")
    }

    fn started(&mut self, _: &mut Training<StepMetrics>, _: &mut (dyn Observer + '_)) -> Result<()> {
        Ok(())
    }

    fn measure(
        &mut self,
        _: &mut Training<StepMetrics>,
        done: &StepResults<'_>,
        _: &mut (dyn Observer + '_),
    ) -> Result<StepMetrics> {
        self.losses.push((done.loss as f32).to_bits());
        Ok(StepMetrics { step: done.step, loss: done.loss, ..StepMetrics::default() })
    }

    fn diverged(
        &mut self,
        _: &mut Training<StepMetrics>,
        done: &StepResults<'_>,
        place: &str,
    ) -> Result<Error> {
        Ok(Error::launch(divergence(done, place)))
    }

    fn publish(
        &mut self,
        training: &mut Training<StepMetrics>,
        metrics: StepMetrics,
        watch: &mut (dyn Observer + '_),
    ) -> Result<()> {
        watch.step(&metrics);
        training.report.record(metrics)
    }

    fn explain(&self, _: &Training<StepMetrics>) -> Option<String> {
        None
    }

    fn due(&self, progress: &Loop) -> [bool; 3] {
        [false, false, progress.is_last()]
    }

    fn review(
        &mut self,
        training: &mut Training<StepMetrics>,
        metrics: StepMetrics,
        _: ObserverRequests,
        watch: &mut (dyn Observer + '_),
    ) -> Result<bool> {
        self.publish(training, metrics, watch).map(|()| false)
    }

    fn paused(
        &mut self,
        _: &mut Training<StepMetrics>,
        asked: ObserverRequests,
        _: &mut (dyn Observer + '_),
    ) -> Result<bool> {
        Ok(asked.stop)
    }

    fn planned(&self) -> Vec<TensorToWrite<'static>> {
        let (weight, shape) = (self.weight.clone(), self.weight.dims().to_vec());
        let bytes = Bytes::Later(Box::new(move || weight.to_bytes()));
        vec![TensorToWrite { name: "weight".into(), dtype: FileDtype::F32, shape, bytes }]
    }

    fn alike(&self) -> Vec<Tensor> {
        vec![self.weight.clone()]
    }

    fn files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        Ok(Vec::new())
    }
}

/// Returns a run of ten steps in `dir`, new or from its newest checkpoint.
fn run(dir: &Path, (micros, graph): (u32, GraphMode), rank: Option<&Group>) -> Run<Pairs> {
    let device = test_device().unwrap();
    let make = |params: &mut Params| params.make("weight", [FEATURES, 1], Init::Normal(0.1));
    let (params, weight) = Params::build(&device, DType::F32, Some(SEED), make).unwrap();
    let rule = Arc::new(AdamW { betas: [0.9, 0.99], eps: 1e-8 });
    let mut optimizer =
        Optimizer::for_storage(rule, vec![ParamGroup::new(&params.trained(), 0.0)], DType::F32).unwrap();
    let rate = LearningRate { schedule: Schedule::Constant, lr: 0.1, min_lr: 0.1, warmup: 0, decay: 10 };
    let mut progress = Loop::new(rate, 10, SEED);
    let (mut ranks, mut rows) = (Ranks::default(), 0..PAIRS);
    if let Some(group) = rank {
        let mut balance = Balance::new(group, PAIRS, 1);
        balance.meet(&device, &[], (1, SpeedUnit::Images)).unwrap();
        let parallel = Parallel::with(group, balance);
        rows = parallel.rows();
        ranks.parallel = Some(parallel);
    }
    if let Some(latest) = newest(dir, 9).unwrap() {
        let checkpoint = Checkpoint::load(&latest.path).unwrap();
        weight.write_bytes(0, &checkpoint.model[0].bytes).unwrap();
        optimizer.load_state_dict(&checkpoint.optimizer).unwrap();
        progress.check(&checkpoint.state).unwrap();
        progress.restore(&checkpoint.state);
    }
    std::fs::create_dir_all(dir).unwrap();
    // A rank that follows does not write the folder; the first rank's records are not tested.
    let follows = rank.is_some_and(|rank| !rank.leads());
    let folder = if follows { RunFolder::follow(dir) } else { folder(dir) };
    let training = Training {
        passes: Accumulation::new(&device, graph).unwrap(),
        optimizer,
        progress,
        ranks,
        report: Reporting::new(folder, Vec::new(), 9),
        device: device.clone(),
    };
    let inputs = Pairs::inputs(&device, rows.len());
    Run { task: Pairs { params, weight, micros, inputs, rows, losses: Vec::new() }, training }
}

/// Returns the folder of a run, opened again if it exists.
fn folder(dir: &Path) -> RunFolder<StepMetrics> {
    let config = crate::config::TrainConfig::preset("demo").unwrap();
    match RunFolder::<StepMetrics>::reopen(dir) {
        Ok(claim) => {
            RunFolder::resume(claim, &config, newest(dir, 9).unwrap().unwrap().state.step, None).unwrap().0
        }
        Err(_) => RunFolder::create(RunFolder::<StepMetrics>::claim(dir).unwrap(), &config).unwrap(),
    }
}

/// Returns the losses of a run's steps and its final weights.
fn trained(mut run: Run<Pairs>, observer: &mut dyn Observer) -> (Vec<u32>, Vec<f32>) {
    run.train(observer).unwrap();
    (run.task.losses, run.task.weight.to_vec().unwrap())
}

/// Stops after the fourth step.
struct Stop(u64);

impl Observer for Stop {
    fn step(&mut self, metrics: &StepMetrics) {
        self.0 = metrics.step;
    }
    fn should_stop(&mut self) -> bool {
        self.0 == 4
    }
}

#[test]
fn a_task_of_pairs_learns_captured_or_not() {
    for micros in [1, 3] {
        let with = |graph| {
            let dir = tempfile::tempdir().unwrap();
            trained(run(&dir.path().join("run"), (micros, graph), None), &mut Silent)
        };
        let (eager, captured) = (with(GraphMode::Off), with(GraphMode::On));
        assert!(eager == captured, "{micros} micro-batches");
        let losses: Vec<f32> = eager.0.into_iter().map(f32::from_bits).collect();
        assert!(losses.len() == 10 && losses[9] < 0.8 * losses[0], "{losses:?}");
    }
}

#[test]
fn a_task_of_pairs_goes_on_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| run(&dir.path().join(name), (2, GraphMode::Auto), None);
    let whole = trained(of("whole"), &mut Silent);
    let begun = trained(of("parts"), &mut Stop(0));
    let done = begun.0.len();
    assert!((4..10).contains(&done), "{done}");
    let rest = trained(of("parts"), &mut Silent);
    assert_eq!([begun.0, rest.0].concat(), whole.0);
    assert_eq!(rest.1, whole.1);
    let last = dir.path().join("parts/checkpoints/last").join(MODEL_FILE);
    assert!(
        std::fs::read(last).unwrap()
            == std::fs::read(dir.path().join("whole/checkpoints/last").join(MODEL_FILE)).unwrap()
    );
}

#[test]
fn ranks_divide_the_pairs_of_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let alone = trained(run(&dir.path().join("alone"), (2, GraphMode::Auto), None), &mut Silent);
    let path = dir.path().join("ranks");
    let all: Vec<_> = std::thread::scope(|scope| {
        let train = |rank: Group| {
            let path = &path;
            scope.spawn(move || trained(run(path, (2, GraphMode::Auto), Some(&rank)), &mut Silent))
        };
        let threads: Vec<_> = local(2, Duration::from_secs(60)).into_iter().map(train).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(all[0], all[1]);
    for (found, expected) in all[0].1.iter().zip(&alone.1) {
        assert!((found - expected).abs() < 1e-4, "{found}, expected {expected}");
    }
}
