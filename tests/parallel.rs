//! Data-parallel training: a run of several ranks matches the run of one rank, except for the order of sums.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests

use netcl::device::SimSettings;
use netcl::dist::{Link, slowed};
use netcl::model::decoder::DecoderConfig;
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl::train::config::{GraphMode, TrainConfig};
use netcl::train::run::RunFolder;
use netcl::train::schedule::Schedule;
use netcl::train::{MemoryPlan, Observer, Shares, Silent, Trainer};
use std::path::Path;
use std::time::Duration;

use crate::ranks;
use ranks::{alone, lines, on, opened, tiny as config, weights};

fn device(name: Option<&str>) -> Device {
    name.map_or_else(|| quickly_built().unwrap(), |name| Device::open(name, &Settings::default()).unwrap())
}

/// Trains in `out`, with one rank per entry of `devices`.
fn run_ranks(devices: &[Option<&str>], config: &TrainConfig, out: &Path, resume: bool) -> Vec<Result<u64>> {
    on(devices.len(), |rank| {
        let mut trainer = opened(rank, &device(devices[rank.rank()]), config, (out, resume))?;
        trainer.run(&mut Silent).map(|_| trainer.step())
    })
}

/// An observer that delays each step.
struct Slow(Duration);

impl Observer for Slow {
    fn should_stop(&mut self) -> bool {
        std::thread::sleep(self.0);
        false
    }
}

/// Returns the losses of the steps, then the validation losses.
fn losses(run: &Path) -> Vec<f64> {
    let lines = lines(run);
    let of = |name: &'static str| lines.iter().filter_map(move |line| line[name].as_f64());
    of("loss").chain(of("val_loss")).collect()
}

fn close(found: &Path, expected: &Path) {
    let (found_losses, expected_losses) = (losses(found), losses(expected));
    assert_eq!(found_losses.len(), expected_losses.len());
    for (i, (a, b)) in found_losses.iter().zip(&expected_losses).enumerate() {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "loss {i}: {a}, expected {b}");
    }
    let (found, expected) = (weights(found), weights(expected));
    assert_eq!(found.len(), expected.len());
    let all = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-4);
    assert!(all, "weights differ by more than 1e-4, or are NaN");
}

/// Batches of 5 rows give ranks different shares. Dropout masks are those of the whole batch.
#[test]
fn runs_of_several_ranks_are_that_of_one() {
    let dir = tempfile::tempdir().unwrap();
    for (name, dropout, micros, steps) in [("plain", 0.0, 1, 50), ("dropout", 0.2, 2, 12)] {
        let config = TrainConfig { dropout, grad_accum: micros, ..config(dir.path(), steps) };
        let one = dir.path().join(name);
        alone(&config, &one);
        for n in [2, 3] {
            let out = dir.path().join(format!("{name}-{n}"));
            for steps_done in run_ranks(&vec![None; n], &config, &out, false) {
                assert_eq!(steps_done.unwrap(), steps);
            }
            close(&out, &one);
        }
    }
}

/// A tied table that is large enough for its two gradients to be reduced separately. The head's gradient is reduced during the backward
/// pass. For the embedding, the rows of all ranks' tokens are reduced, which differ in each micro-batch.
#[test]
fn a_large_tied_table_changes_no_result() {
    let dir = tempfile::tempdir().unwrap();
    for (name, micros, graph) in
        [("one", 1, GraphMode::Auto), ("three", 3, GraphMode::Auto), ("off", 1, GraphMode::Off)]
    {
        let config =
            TrainConfig { grad_accum: micros, graph, vocab: Some(8192), batch: 3, ..config(dir.path(), 12) };
        let one = dir.path().join(name);
        alone(&config, &one);
        for n in [2, 3] {
            let out = dir.path().join(format!("{name}-{n}"));
            run_ranks(&vec![None; n], &config, &out, false).into_iter().for_each(|r| assert!(r.unwrap() > 0));
            close(&out, &one);
        }
    }
}

/// Rows in given proportions, and rows by speed, which give a slow rank fewer rows after the first steps.
#[test]
fn unequal_shares_change_no_result() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { batch: 8, ..config(dir.path(), 30) };
    let one = dir.path().join("one");
    alone(&config, &one);
    for shares in [Shares::Weights(vec![3.0, 1.0]), Shares::BySpeed] {
        let out = dir.path().join(format!("{shares:?}").replace(|c: char| !c.is_alphanumeric(), ""));
        let found = on(2, |rank| -> Result<f64> {
            let claim = if rank.leads() { Some(RunFolder::claim(&out)?) } else { None };
            rank.barrier()?;
            let started = (claim, out.as_path(), false);
            let mut trainer =
                Trainer::create_distributed(rank, &device(None), config.clone(), started, &mut |_| true)?;
            trainer.shares(&shares)?;
            trainer.run(&mut Slow(Duration::from_millis(if rank.rank() == 1 { 60 } else { 0 })))?;
            Ok(trainer.ranks()[0].share())
        });
        for share in found {
            let share = share.unwrap();
            let right = if shares == Shares::BySpeed { share > 0.55 } else { (share - 0.75).abs() < 1e-9 };
            assert!(right, "{shares:?}: {share} of the rows went to the first rank");
        }
        close(&out, &one);
    }
}

/// A device with too little memory gets fewer rows, in a new run and in a resumed one. If all devices together have too little, the error
/// says so. The simulated GPU would be slow for a model whose rows matter compared with the pool's blocks, so runs only start here.
#[test]
fn a_device_with_little_memory_takes_fewer_rows() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { batch: 24, context: 128, eval_every: 0, ..config(dir.path(), 4) };
    let one = dir.path().join("one");
    let stopped = TrainConfig { batch: 2, steps: 1, warmup: 0, ..config.clone() };
    alone(&stopped, &one);
    let plenty = device(Some("sim"));
    let config_of = |batch: usize| TrainConfig { batch, ..config.clone() };
    let model = config.decoder(40).unwrap();
    let plan = |batch: usize| {
        MemoryPlan::of(&config_of(batch), &model, plenty.capabilities()).divided_between(2, 0, true)
    };
    let memory = plan(8).device();
    assert!(plan(12).least() > memory);
    let open = |memory: Option<u64>| {
        let sim = SimSettings { memory, ..SimSettings::default() };
        Device::open("sim", &Settings { sim, ..Settings::default() }).unwrap()
    };
    for (out, resume) in [(dir.path().join("two"), false), (one, true)] {
        let found = on(2, |rank| -> Result<ErrorKind> {
            let device = open((rank.rank() == 1).then_some(memory));
            let mut trainer = opened(rank, &device, &config, (&out, resume))?;
            // Halves do not fit, which is an error if they are requested.
            Ok(trainer.shares(&Shares::Equal).unwrap_err().kind())
        });
        for kind in found.into_iter().rev() {
            assert_eq!(kind.unwrap(), ErrorKind::Memory);
        }
    }
    let none = on(2, |rank| {
        opened(rank, &open(Some(memory)), &config, (&dir.path().join("none"), false)).map(drop).unwrap_err()
    });
    for error in none {
        assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    }
}

#[test]
fn two_runs_of_as_many_ranks_have_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 6);
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    for out in [&a, &b] {
        run_ranks(&[None, None], &config, out, false).into_iter().for_each(|r| assert!(r.unwrap() > 0));
    }
    assert_eq!(losses(&a), losses(&b));
    assert_eq!(weights(&a), weights(&b));
}

/// A checkpoint does not depend on the number of ranks: other numbers can resume it.
#[test]
fn a_run_goes_on_with_other_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let whole = config(dir.path(), 12);
    let half = TrainConfig { steps: 6, ..whole.clone() };
    let one = dir.path().join("one");
    alone(&whole, &one);
    let out = dir.path().join("run");
    // The schedule covers the whole run.
    let first = TrainConfig { checkpoint_every: 6, ..whole.clone() };
    let stopped = on(3, |rank| {
        struct Until(u64);
        impl Observer for Until {
            fn step(&mut self, _: &netcl::train::run::StepMetrics) {
                self.0 -= 1;
            }
            fn should_stop(&mut self) -> bool {
                self.0 <= 1
            }
        }
        let device = device(None);
        let claim = rank.leads().then(|| RunFolder::claim(&out)).transpose()?;
        let mut trainer =
            Trainer::create_distributed(rank, &device, first.clone(), (claim, &out, false), &mut |_| true)?;
        // One rank gets a stop request after five steps; all ranks stop.
        let mut observer: Box<dyn Observer> =
            if rank.rank() == 2 { Box::new(Until(half.steps)) } else { Box::new(Silent) };
        trainer.run(&mut *observer).map(|_| trainer.step())
    });
    let stopped: Vec<u64> = stopped.into_iter().map(Result::unwrap).collect();
    assert!(stopped.iter().all(|step| *step == stopped[0] && *step < 12), "{stopped:?}");
    for steps in run_ranks(&[None, None], &first, &out, true) {
        assert_eq!(steps.unwrap(), 12);
    }
    close(&out, &one);
}

#[test]
fn unlike_devices_train_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { layers: 1, width: 16, context: 8, batch: 3, ..config(dir.path(), 6) };
    let one = dir.path().join("one");
    alone(&config, &one);
    let out = dir.path().join("two");
    run_ranks(&[None, Some("sim")], &config, &out, false).into_iter().for_each(|r| assert!(r.unwrap() > 0));
    close(&out, &one);
}

/// Different devices may round the update differently. At a checkpoint, all take the first one's weights and state. A resumed run therefore
/// has the bits of an uninterrupted one, also in 16 bits with master weights.
#[test]
fn unlike_devices_have_the_same_weights_with_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::Bf16] {
        let small = TrainConfig {
            layers: 1,
            width: 16,
            context: 8,
            batch: 4,
            eval_every: 0,
            ..config(dir.path(), 6)
        };
        let whole = TrainConfig { dtype, schedule: Schedule::Constant, checkpoint_every: 3, ..small };
        let trained = |steps: u64, out: &Path, resume: bool| -> Vec<Vec<Vec<u8>>> {
            let config = TrainConfig { steps, ..whole.clone() };
            on(2, |rank| {
                let device = device([None, Some("sim")][rank.rank()]);
                let mut trainer = opened(rank, &device, &config, (out, resume)).unwrap();
                trainer.shares(&Shares::Equal).unwrap();
                trainer.run(&mut Silent).unwrap();
                trainer.model().params().list().iter().map(|param| param.to_bytes().unwrap()).collect()
            })
        };
        let [a, b] = ["a", "b"].map(|name| dir.path().join(format!("{name}-{dtype}")));
        let once = trained(6, &a, false);
        assert!(once[0] == once[1], "{dtype}");
        trained(3, &b, false);
        assert!(trained(6, &b, true) == once, "{dtype}");
        assert_eq!(losses(&b), losses(&a));
    }
}

#[test]
fn ranks_that_cannot_train_together_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let whole = config(dir.path(), 4);
    let messages = |configs: [TrainConfig; 2]| -> Vec<String> {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("run");
        let found = on(2, |rank| {
            let claim = rank.leads().then(|| RunFolder::claim(&path)).transpose()?;
            let config = configs[rank.rank()].clone();
            Trainer::create_distributed(rank, &device(None), config, (claim, &path, false), &mut |_| true)
                .map(drop)
        });
        assert!(!path.exists(), "a run that has not begun leaves no folder");
        found.into_iter().map(|r: Result<()>| r.unwrap_err().to_string()).collect()
    };
    for text in messages([whole.clone(), TrainConfig { lr: 0.5, ..whole.clone() }]) {
        assert!(text.contains("the configuration") && text.contains("lr = 0.5"), "{text}");
    }
    let missing = TrainConfig { data: vec!["/nowhere.txt".into()], ..whole.clone() };
    for text in messages([whole.clone(), missing]) {
        assert!(text.contains("rank 1") && text.contains("/nowhere.txt"), "{text}");
    }
    for text in messages([(); 2].map(|()| TrainConfig { batch: 1, ..whole.clone() })) {
        assert!(text.contains("--batch 1 for 2 ranks"), "{text}");
    }
}

/// Runs two ranks; the second one's weights become NaN before the first step. Returns how each rank ends.
fn with_a_broken_rank(anomaly: bool) -> Vec<(String, bool)> {
    let dir = tempfile::tempdir().unwrap();
    let (config, out) = (config(dir.path(), 6), dir.path().join("run"));
    on(2, |rank| {
        let claim = rank.leads().then(|| RunFolder::claim(&out)).transpose().unwrap();
        rank.barrier().unwrap();
        let started = (claim, out.as_path(), false);
        let made = Trainer::create_distributed(rank, &device(None), config.clone(), started, &mut |_| true);
        let mut trainer = made.unwrap();
        trainer.detect_anomaly(anomaly);
        if rank.rank() == 1 {
            let weight = &trainer.model().params().list()[0];
            weight.write_bytes(0, &f32::NAN.to_le_bytes().repeat(weight.count())).unwrap();
        }
        let error = trainer.run(&mut Silent).unwrap_err();
        (error.to_string(), trainer.failed_together())
    })
}

#[test]
fn a_rank_whose_loss_is_not_finite_is_named_by_all() {
    for (error, together) in with_a_broken_rank(false) {
        assert!(together, "{error}");
        assert!(error.contains("the loss of step 1 on rank 1 (") && error.contains("is NaN"), "{error}");
    }
}

#[test]
fn the_op_that_makes_the_first_nan_is_named_with_its_rank() {
    let found = with_a_broken_rank(true);
    assert!(found.iter().all(|(_, together)| !together));
    assert!(found[1].0.starts_with("rank 1 (") && found[1].0.contains("NaN"), "{found:?}");
    assert!(found[0].0.contains("waits for rank 1") && found[0].0.contains("has ended"), "{found:?}");
}

/// The other ranks name a rank that hangs during the steps, with its device.
#[test]
fn a_rank_that_hangs_is_named_with_its_device() {
    struct Hangs<'a>(&'a std::sync::Barrier);
    impl Observer for Hangs<'_> {
        fn step(&mut self, metrics: &netcl::train::run::StepMetrics) {
            if metrics.step == 12 {
                self.0.wait();
            }
        }
        fn should_stop(&mut self) -> bool {
            false
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let config = TrainConfig { eval_every: 0, ..config(dir.path(), 100) };
    let out = dir.path().join("run");
    // The second rank hangs until the others give up.
    let given_up = std::sync::Barrier::new(3);
    let errors = on(3, |rank| {
        let claim = rank.leads().then(|| RunFolder::claim(&out)).transpose().unwrap();
        rank.barrier().unwrap();
        let started = (claim, out.as_path(), false);
        let made = Trainer::create_distributed(rank, &device(None), config.clone(), started, &mut |_| true);
        let mut trainer = made.unwrap();
        trainer.watchdog(Some(Duration::from_secs(2)));
        if rank.rank() == 1 {
            return trainer.run(&mut Hangs(&given_up)).unwrap_err().to_string();
        }
        let error = trainer.run(&mut Silent).unwrap_err().to_string();
        given_up.wait();
        error
    });
    assert!(errors[0].contains("rank 1 (") && errors[0].contains("does not answer"), "{errors:?}");
    assert!(errors[2].contains("rank 1 (") && errors[2].contains("does not answer"), "{errors:?}");
}

/// End times of the steps.
struct Timed(Vec<f64>);

impl Observer for Timed {
    fn step(&mut self, metrics: &netcl::train::run::StepMetrics) {
        self.0.push(metrics.elapsed);
    }
    fn should_stop(&mut self) -> bool {
        false
    }
}

impl Timed {
    /// Returns the seconds of a step without the first ones: the second-shortest of ten, because the machine may have other work.
    fn step(&self) -> f64 {
        let mut steps: Vec<f64> = self.0.windows(2).skip(8).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_by(f64::total_cmp);
        steps[steps.len() / 10]
    }
}

/// Returns the seconds of a step of `n` ranks over `link`, and the model.
fn measured(config: &TrainConfig, n: usize, link: Option<Link>) -> (f64, DecoderConfig) {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("run");
    let times = on(n, |rank| {
        let claim = rank.leads().then(|| RunFolder::claim(&path)).transpose().unwrap();
        let rank = link.map_or_else(|| rank.clone(), |link| slowed(rank, link));
        rank.barrier().unwrap();
        let started = (claim, path.as_path(), false);
        let mut trainer =
            Trainer::create_distributed(&rank, &device(None), config.clone(), started, &mut |_| true)
                .unwrap();
        let mut timed = Timed(Vec::new());
        trainer.run(&mut timed).unwrap();
        (timed.step(), trainer.model().config().clone())
    });
    times.into_iter().next().unwrap()
}

/// `make step-times`: compares step times of 1, 2 and 4 ranks over links of known latency and bandwidth with the model of step time. The
/// ranks share this machine's CPU, so together they compute as long as one rank alone.
#[test]
#[ignore = "measures time"]
fn the_model_of_step_time_beside_measured_steps() {
    use netcl::train::scaling::{Compute, Machine, RunToPlan, Strategy};
    let dir = tempfile::tempdir().unwrap();
    let base =
        TrainConfig { layers: 4, heads: 4, width: 128, context: 64, batch: 8, ..config(dir.path(), 40) };
    let config = TrainConfig { eval_every: 0, ..base };
    const LINKS: [(f64, u64); 3] = [(400.0, 50), (100.0, 200), (25.0, 1000)];
    let links = LINKS.map(|(mb, us)| Link { delay: Duration::from_micros(us), bytes_per_s: mb * 1e6 });
    let cases: Vec<(usize, Link)> = links.into_iter().flat_map(|link| [(2, link), (4, link)]).collect();
    let model = measured(&config, 1, None).1;
    // The machine may have other work, so the shortest time of several rounds counts.
    let mut best = vec![f64::INFINITY; cases.len() + 2];
    for _ in 0..4 {
        let all = [(1, None), (2, None)].into_iter().chain(cases.iter().map(|(n, link)| (*n, Some(*link))));
        all.zip(&mut best).for_each(|((n, link), best)| *best = best.min(measured(&config, n, link).0));
    }
    let (one, free) = (best[0], best[1]);
    // Two ranks may use the CPU better than one.
    let alone = one.min(free);
    // Ranks on one CPU share its time. The cost of copies and sums is measured with two ranks and the unmodified link.
    let bytes = 4.0 * model.parameters() as f64;
    let copies = 2.0 * 3.0 * bytes / (free - alone).max(1e-4);
    let machine = |n: usize| {
        let part = |bytes_per_s: f64| bytes_per_s / n as f64;
        Machine { memory: 8e9, memory_bandwidth: part(20e9), relay: part(copies), sums: part(copies) }
    };
    println!(
        "one rank {:.1} ms, two {:.1} ms; copies and sums {:.2} GB/s",
        one * 1e3,
        free * 1e3,
        copies * 1e-9
    );
    for ((n, link), found) in cases.into_iter().zip(&best[2..]) {
        let run = |n: usize, compute: Compute| RunToPlan {
            model: &model,
            config: &config,
            machine: machine(n),
            compute,
            link,
            overlap: true,
        };
        // On one CPU, the total time of passes is constant, and each rank updates all weights.
        let passes = alone - run(1, Compute::Flops(1.0)).update();
        let update = run(n, Compute::Flops(1.0)).update();
        let compute = Compute::Measured { rows: config.batch / n, passes, update };
        let predicted = run(n, compute).plan(n, Strategy::Data).unwrap().step;
        println!(
            "{n} ranks, {:.0} MB/s, {:?}: measured {:.1} ms, predicted {:.1} ms, {:+.1} %",
            link.bytes_per_s * 1e-6,
            link.delay,
            found * 1e3,
            predicted * 1e3,
            100.0 * (predicted / found - 1.0)
        );
    }
}
