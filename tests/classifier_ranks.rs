//! Ranks that train a classifier together: they match the run of one device, its checkpoints, and requests of single ranks.
#![allow(clippy::unwrap_used)] // tests

use netcl::device::SimSettings;
use netcl::dist::{Group, local};
use netcl::model::checkpoint::{MODEL_FILE, read_tensors};
use netcl::prelude::*;
use netcl::tensor::suite::quickly_built;
use netcl::train::Shares;
use netcl::train::config::GraphMode;
use netcl::train::images::classifier::{
    ClassifierConfig, ClassifierOutcome, Diagnostics, Failed, Next, TrainingProgress, resume, train,
    train_distributed,
};
use netcl::train::images::data::{Dataset, Images};
use netcl::train::run::RunFolder;
use std::path::Path;
use std::time::Duration;

const SIDE: usize = 12;

/// Draws images with bright upper halves or bright left halves, in color.
fn drawn(count: usize) -> Images {
    let half = SIDE / 2;
    let bright = |i: usize, at: usize| if i.is_multiple_of(2) { at / SIDE < half } else { at % SIDE < half };
    let pixel =
        |i: usize, at: usize| 40 * u8::from(bright(i, at % (SIDE * SIDE))) + ((i * 37 + at * 11) % 60) as u8;
    let pixels = (0..count).flat_map(|i| (0..3 * SIDE * SIDE).map(move |at| pixel(i, at))).collect();
    Images { size: [3, SIDE, SIDE], pixels, labels: (0..count as u32).map(|i| i % 2).collect() }
}

fn images() -> Dataset {
    images_of(64)
}

fn images_of(count: usize) -> Dataset {
    let classes = ["upper", "left"].map(String::from).to_vec();
    Dataset { classes, train: drawn(count), test: drawn(300) }
}

fn config(network: &str) -> ClassifierConfig {
    let preset = ClassifierConfig::preset("cifar10-resnet18").unwrap();
    let graph = GraphMode::On;
    ClassifierConfig { network: network.into(), epochs: 2, batch: 11, mirror: true, graph, ..preset }
}

/// Steps with their losses, and the outcome.
type Done = (Vec<(u64, f32)>, ClassifierOutcome);

/// Trains on one device.
fn alone(config: &ClassifierConfig, dir: &Path) -> Done {
    let mut steps = Vec::new();
    let mut watch = |progress: TrainingProgress<'_>| {
        if let TrainingProgress::Step { step, loss, .. } = progress {
            steps.push((step, loss));
        }
        Next::GoOn
    };
    let claim = RunFolder::claim(dir).unwrap();
    let about = Diagnostics::default();
    let images = images_of(config.batch.max(64));
    let outcome = train(&quickly_built().unwrap(), config, &images, claim, &about, &mut watch).unwrap();
    (steps, outcome)
}

/// Runs `n` ranks and returns their results. Rank `r` requests `asks(r, step)` after a step.
fn run_ranks(
    n: usize,
    config: impl Fn(usize) -> ClassifierConfig + Sync,
    (dir, again): (&Path, bool),
    asks: impl Fn(usize, u64) -> Next + Sync,
) -> Vec<std::result::Result<Done, Failed>> {
    run_ranks_on((n, &|_| quickly_built().unwrap(), None), config, (dir, again), asks)
}

/// Like [`run_ranks`], with the given device for each rank and these shares of each batch.
fn run_ranks_on(
    (n, device, shares): (usize, &(dyn Fn(usize) -> Device + Sync), Option<&Shares>),
    config: impl Fn(usize) -> ClassifierConfig + Sync,
    (dir, again): (&Path, bool),
    asks: impl Fn(usize, u64) -> Next + Sync,
) -> Vec<std::result::Result<Done, Failed>> {
    let rank = |group: Group| {
        let claim = group.leads().then(|| if again { RunFolder::reopen(dir) } else { RunFolder::claim(dir) });
        let mut steps = Vec::new();
        let mut watch = |progress: TrainingProgress<'_>| match progress {
            TrainingProgress::Step { step, loss, .. } => {
                steps.push((step, loss));
                asks(group.rank(), step)
            }
            _ => Next::GoOn,
        };
        let place = (claim.transpose().unwrap(), dir, again);
        let (device, about) = (device(group.rank()), Diagnostics::default());
        let own = config(group.rank());
        let images = images_of(own.batch.max(64));
        let outcome = train_distributed((&group, &device, shares), &own, &images, place, &about, &mut watch)?;
        Ok((steps, outcome))
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let groups = local(n, Duration::from_secs(120));
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn weights(dir: &Path) -> Vec<f32> {
    assert!(dir.join(MODEL_FILE).exists() && dir.join("report.html").exists());
    let all = read_tensors(&dir.join(MODEL_FILE)).unwrap();
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    all.iter().flat_map(|tensor| floats(&tensor.bytes)).collect()
}

fn close(found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{worst}, expected at most {tolerance}");
}

/// Networks without batch norm, with unequal shares and mixup: the run matches that of one device, and a second run has the same bits.
#[test]
fn ranks_have_the_run_of_one_device() {
    for (network, mixup, n) in [("lenet", 0.0, 2), ("mlp", 0.3, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let config = ClassifierConfig { mixup, ..config(network) };
        let (steps, outcome) = alone(&config, &path("one"));
        assert_eq!(steps.len(), 10);
        let losses = |steps: &[(u64, f32)]| steps.iter().map(|s| s.1).collect::<Vec<_>>();
        let mut bits = Vec::new();
        for name in ["a", "b"] {
            let all = run_ranks(n, |_| config.clone(), (&path(name), false), |_, _| Next::GoOn);
            for done in all {
                let (own, came) = done.unwrap();
                close(&losses(&own), &losses(&steps), 1e-5);
                assert_eq!(came.step, 10);
                if let (Some(a), Some(b)) = (came.epochs.last(), outcome.epochs.last()) {
                    assert!((a.test_loss - b.test_loss).abs() < 1e-4, "{} {}", a.test_loss, b.test_loss);
                    assert!((a.accuracy - b.accuracy).abs() < 1e-9);
                }
            }
            bits.push(std::fs::read(path(name).join(MODEL_FILE)).unwrap());
            close(&weights(&path(name)), &weights(&path("one")), 1e-4);
        }
        assert!(bits[0] == bits[1], "{network}");
    }
}

/// With batch norm per rank, the run differs but still learns, with the same weights and the same loss on every rank, also in 16 bits.
#[test]
fn batch_norm_is_that_of_each_rank() {
    for dtype in [DType::F32, DType::Bf16] {
        let dir = tempfile::tempdir().unwrap();
        let config = ClassifierConfig { dtype, epochs: 4, batch: 16, ..config("mnist-cnn") };
        let all = run_ranks(2, |_| config.clone(), (&dir.path().join("two"), false), |_, _| Next::GoOn);
        let all: Vec<Done> = all.into_iter().map(Result::unwrap).collect();
        assert_eq!(all[0].0, all[1].0);
        let last = all[0].1.epochs.last().unwrap();
        assert!(last.loss < 0.7 * f64::from(all[0].0[0].1) && last.accuracy > 0.9, "{last:?}");
    }
}

/// With batch norm over the images of all ranks, the run matches that of one device, captured or not, for any shares. The running
/// statistics match too. The bounds are wider than without batch norm for two reasons. AdamW takes a full step, 1e-3, in the direction of a
/// gradient that is little more than rounding noise. One device also rounds its statistics differently than ranks that merge theirs.
#[test]
fn batch_norm_over_all_ranks_is_that_of_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = ClassifierConfig { sync_batch_norm: true, ..config("mnist-cnn") };
    let (steps, outcome) = alone(&config, &path("one"));
    let losses = |steps: &[(u64, f32)]| steps.iter().map(|s| s.1).collect::<Vec<_>>();
    for (n, graph) in [(2, GraphMode::On), (3, GraphMode::Off)] {
        let name = format!("{n}");
        let config = ClassifierConfig { graph, ..config.clone() };
        for done in run_ranks(n, |_| config.clone(), (&path(&name), false), |_, _| Next::GoOn) {
            let (own, came) = done.unwrap();
            close(&losses(&own)[..1], &losses(&steps)[..1], 1e-6);
            close(&losses(&own), &losses(&steps), 2e-4);
            let (a, b) = (came.epochs.last().unwrap(), outcome.epochs.last().unwrap());
            assert!((a.test_loss - b.test_loss).abs() < 1e-4, "{} {}", a.test_loss, b.test_loss);
        }
        close(&weights(&path(&name)), &weights(&path("one")), 2e-3);
    }
    // Separate statistics per rank give a different run.
    let apart = ClassifierConfig { sync_batch_norm: false, ..config };
    let all = run_ranks(2, |_| apart.clone(), (&path("apart"), false), |_, _| Next::GoOn);
    let own = all.into_iter().next().unwrap().unwrap().0;
    let worst = own.iter().zip(&steps).map(|(a, b)| (a.1 - b.1).abs()).fold(0.0, f32::max);
    assert!(worst > 1e-2, "{worst}");
}

/// Shares in given proportions, and shares by speed, which give a slow rank fewer images after the first steps. Tested with batch norm over
/// all ranks, whose statistics are weighted by images, and without batch norm. Pairs of mixup stay together.
#[test]
fn unequal_parts_change_no_result() {
    let cases = [("mlp", 0.0, false), ("mlp", 0.3, false), ("mnist-cnn", 0.0, true)];
    for ((network, mixup, sync_batch_norm), shares) in cases
        .into_iter()
        .flat_map(|case| [Shares::Weights(vec![3.0, 1.0]), Shares::BySpeed].map(|s| (case, s)))
    {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let epochs = if shares == Shares::BySpeed { 5 } else { 2 };
        let whole = ClassifierConfig { mixup, sync_batch_norm, batch: 12, epochs, ..config(network) };
        let (steps, _) = alone(&whole, &path("one"));
        let losses = |steps: &[(u64, f32)]| steps.iter().map(|s| s.1).collect::<Vec<_>>();
        let asks = |rank, _| {
            let slow = shares == Shares::BySpeed && rank == 1;
            std::thread::sleep(Duration::from_millis(if slow { 150 } else { 0 }));
            Next::GoOn
        };
        let place = path("two");
        let device = |_| quickly_built().unwrap();
        for done in run_ranks_on((2, &device, Some(&shares)), |_| whole.clone(), (&place, false), asks) {
            let (own, came) = done.unwrap();
            // With batch norm, the bounds are those of equal shares, see above.
            let (first, all) = if sync_batch_norm { (1e-6, 4e-4) } else { (1e-5, 1e-5) };
            close(&losses(&own)[..1], &losses(&steps)[..1], first);
            close(&losses(&own), &losses(&steps), all);
            let share = came.ranks[0].share();
            let right = if shares == Shares::BySpeed { share > 0.52 } else { (share - 0.75).abs() < 0.1 };
            assert!(right, "{network} {shares:?}: {share} of the images went to the first rank");
        }
        close(&weights(&path("two")), &weights(&path("one")), if sync_batch_norm { 4e-3 } else { 1e-4 });
    }
}

/// A device with too little memory for its share gets fewer images. This is determined before the first step, and the run matches that of
/// one device. If shares are given, all ranks report the error and the setting to change.
#[test]
fn a_device_with_little_memory_takes_fewer_images() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = ClassifierConfig { batch: 3072, epochs: 1, ..config("lenet") };
    let (steps, _) = alone(&config, &path("one"));
    let losses = |steps: &[(u64, f32)]| steps.iter().map(|s| s.1).collect::<Vec<_>>();
    let open = |memory: Option<u64>| {
        let sim = SimSettings { memory, ..SimSettings::default() };
        Device::open("sim", &Settings { sim, ..Settings::default() }).unwrap()
    };
    let run = |name: &str, second: &Device, shares: &Shares| {
        let device = |rank| if rank == 1 { second.clone() } else { quickly_built().unwrap() };
        let place = path(name);
        run_ranks_on((2, &device, Some(shares)), |_| config.clone(), (&place, false), |_, _| Next::GoOn)
    };
    let plenty = open(None);
    run("plenty", &plenty, &Shares::Equal).into_iter().for_each(|done| assert_eq!(done.unwrap().1.step, 1));
    let little = plenty.memory().peak as u64 - (1 << 20);
    // The failing rank reports the reason, which the others do not have.
    for done in run("little", &open(Some(little)), &Shares::BySpeed).into_iter().rev() {
        let (own, came) = done.unwrap();
        close(&losses(&own), &losses(&steps), 1e-5);
        assert_eq!(came.step, 1);
    }
    close(&weights(&path("little")), &weights(&path("one")), 1e-4);
    for failed in run("given", &open(Some(little)), &Shares::Weights(vec![1.0, 1.0])) {
        let Failed { error, shared } = failed.unwrap_err();
        assert!(
            shared && error.kind() == ErrorKind::Memory && error.message().contains("--shares"),
            "{error}"
        );
    }
}

/// One rank requests the end. Another number of ranks resumes the run, and then one device.
#[test]
fn a_run_of_ranks_goes_on_with_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = config("lenet");
    alone(&config, &path("one"));
    let stop = |rank, step| if rank == 1 && step == 3 { Next::Stop } else { Next::GoOn };
    for done in run_ranks(2, |_| config.clone(), (&path("two"), false), stop) {
        let (steps, outcome) = done.unwrap();
        assert!(outcome.stopped && steps.len() < 10, "{steps:?}");
    }
    let save = |rank, step| match (rank, step) {
        (2, 6) => Next::Save,
        (0, 7) => Next::Stop,
        _ => Next::GoOn,
    };
    for done in run_ranks(3, |_| config.clone(), (&path("two"), true), save) {
        assert!(done.unwrap().1.stopped);
    }
    let mut watch = |_: TrainingProgress<'_>| Next::GoOn;
    let about = Diagnostics::default();
    let outcome =
        resume(&quickly_built().unwrap(), &config, &images(), &path("two"), &about, &mut watch).unwrap();
    assert_eq!((outcome.step, outcome.stopped), (10, false));
    close(&weights(&path("two")), &weights(&path("one")), 1e-4);
}

/// Each checkpoint synchronizes different devices to the state of the first one: a resumed run has the losses of an uninterrupted one.
#[test]
fn unlike_devices_go_on_from_the_checkpoint_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let device = |rank: usize| match rank {
        0 => quickly_built().unwrap(),
        _ => Device::open("sim", &Settings::default()).unwrap(),
    };
    let config = ClassifierConfig { checkpoint_every: 4, ..config("mlp") };
    let shares = Shares::Weights(vec![2.0, 1.0]);
    let run = |name: &str, again, stops: Option<u64>| -> Vec<(u64, f32)> {
        let asks = |rank, step| if rank == 0 && stops == Some(step) { Next::Stop } else { Next::GoOn };
        let all = run_ranks_on((2, &device, Some(&shares)), |_| config.clone(), (&path(name), again), asks);
        all.into_iter().map(|done| done.unwrap().0).next().unwrap()
    };
    let whole = run("whole", false, None);
    // A request after a step takes effect at the next one. The other run writes a checkpoint there anyway.
    let first = run("parts", false, Some(2));
    let second = run("parts", true, None);
    assert_eq!([first, second].concat(), whole);
}

/// Disagreeing ranks and batches that cannot be divided are errors on all ranks before the first step. A loss that is not finite is an
/// error on all ranks after the step.
#[test]
fn what_fails_fails_at_every_rank() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let go_on = |_, _| Next::GoOn;
    let other = |rank| ClassifierConfig { lr: 1e-3 * (1 + rank) as f64, ..config("mlp") };
    let few = |_| ClassifierConfig { mixup: 0.2, batch: 3, ..config("mlp") };
    let wild = |_| ClassifierConfig { lr: 1e30, epochs: 4, ..config("mlp") };
    let cases: [(&dyn Fn(usize) -> ClassifierConfig, &str); 3] =
        [(&other, "the configuration"), (&few, "--batch to 4 or more"), (&wild, "Lower --lr")];
    for (i, (config, words)) in cases.into_iter().enumerate() {
        // The threads share these settings.
        let all: Vec<ClassifierConfig> = (0..2).map(config).collect();
        for failed in run_ranks(2, |rank| all[rank].clone(), (&path(&i.to_string()), false), go_on) {
            let failed = failed.unwrap_err();
            assert!(failed.shared && failed.error.message().contains(words), "{}", failed.error);
        }
    }
}
