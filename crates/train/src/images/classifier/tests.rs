//! Training on drawn images: captured and eager steps, storage types, mixup, resumed runs.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use super::super::data::{Dataset, Images};
use super::{ClassifierConfig, ClassifierOutcome, Diagnostics, Next, TrainingProgress, resume, train};
use crate::config::GraphMode;
use crate::run::RunFolder;
use crate::train::ProfileSettings;
use netcl_tensor::{DType, ErrorKind};
use std::path::{Path, PathBuf};

const SIDE: usize = 8;

/// Draws images with bright upper halves, and images with bright left halves.
fn drawn(count: usize) -> Images {
    let bright = |i: usize, at: usize| if i.is_multiple_of(2) { at / SIDE < 4 } else { at % SIDE < 4 };
    let pixel = |i: usize, at: usize| 40 * u8::from(bright(i, at)) + ((i * 37 + at * 11) % 60) as u8;
    let pixels = (0..count).flat_map(|i| (0..SIDE * SIDE).map(move |at| pixel(i, at))).collect();
    Images { size: [1, SIDE, SIDE], pixels, labels: (0..count as u32).map(|i| i % 2).collect() }
}

/// Returns the outcome of training, its steps, and the bytes of the weights.
fn trained(change: &dyn Fn(&mut ClassifierConfig)) -> (ClassifierOutcome, Vec<(u64, f32)>, Vec<u8>) {
    let device = netcl_tensor::suite::optimized().unwrap();
    let mut config = ClassifierConfig::preset("mnist-cnn").unwrap();
    (config.epochs, config.batch, config.shift) = (2, 10, 1);
    change(&mut config);
    let classes = ["upper", "left"].map(String::from).to_vec();
    let images = Dataset { classes, train: drawn(64), test: drawn(20) };
    let dir = tempfile::tempdir().unwrap();
    let claim = RunFolder::claim(&dir.path().join("run")).unwrap();
    let mut steps = Vec::new();
    let mut watch = |progress: TrainingProgress<'_>| {
        if let TrainingProgress::Step { step, steps: all, loss, images_per_s, .. } = progress {
            assert!(all == 12 && images_per_s > 0.0);
            steps.push((step, loss));
        }
        Next::GoOn
    };
    let outcome = train(&device, &config, &images, claim, &Diagnostics::default(), &mut watch).unwrap();
    let weights = std::fs::read(dir.path().join("run/model.safetensors")).unwrap();
    (outcome, steps, weights)
}

#[test]
fn captured_steps_have_the_bits_of_others() {
    for (dtype, mixup) in [(DType::F32, 0.3), (DType::Bf16, 0.0), (DType::F16, 0.0)] {
        let with = |graph: GraphMode| {
            trained(&|config| (config.dtype, config.mixup, config.graph) = (dtype, mixup, graph))
        };
        let (eager, captured) = (with(GraphMode::Off), with(GraphMode::On));
        // Six whole batches per epoch, each reported once, in order, when it is done.
        assert!(eager.1.iter().map(|(step, _)| *step).eq(1..=12), "{:?}", eager.1);
        assert_eq!(eager.1, captured.1, "losses in {dtype}");
        assert!(eager.2 == captured.2, "weights in {dtype}");
    }
}

#[test]
fn storage_of_16_bits_learns_as_f32_does() {
    let loss = |dtype| {
        let (outcome, _, _) = trained(&|config| config.dtype = dtype);
        outcome.epochs.last().unwrap().loss
    };
    let whole = loss(DType::F32);
    assert!(whole < 0.6, "{whole}");
    for dtype in [DType::Bf16, DType::F16] {
        let half = loss(dtype);
        assert!((half - whole).abs() < 0.05, "{dtype}: {half}, f32 {whole}");
    }
}

#[test]
fn divergence_is_an_error_that_says_what_to_do() {
    let device = netcl_tensor::suite::test_device().unwrap();
    let mut config = ClassifierConfig::preset("mnist-cnn").unwrap();
    (config.epochs, config.batch, config.lr) = (4, 10, 1e30);
    let classes = ["upper", "left"].map(String::from).to_vec();
    let images = Dataset { classes, train: drawn(64), test: drawn(20) };
    let dir = tempfile::tempdir().unwrap();
    let claim = RunFolder::claim(&dir.path().join("run")).unwrap();
    let error =
        train(&device, &config, &images, claim, &Diagnostics::default(), &mut |_| Next::GoOn).unwrap_err();
    assert!(error.kind() == ErrorKind::Launch && error.message().contains("Lower --lr"), "{error}");
}

/// Returns a run of 18 steps, six per epoch, with checkpoints in between.
fn long(dtype: DType) -> (ClassifierConfig, Dataset) {
    let mut config = ClassifierConfig::preset("mnist-cnn").unwrap();
    (config.epochs, config.batch, config.shift, config.checkpoint_every) = (3, 10, 1, 4);
    (config.dtype, config.mixup, config.mirror) = (dtype, 0.3, true);
    (
        config,
        Dataset { classes: ["upper", "left"].map(String::from).to_vec(), train: drawn(64), test: drawn(20) },
    )
}

/// Copies a run's folder. Files may be renamed meanwhile, so a copy that misses a file is started again.
fn copy(from: &Path, to: &Path) {
    while let Err(e) = try_copy(from, to) {
        assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{e}");
        std::fs::remove_dir_all(to).unwrap();
    }
}

fn try_copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&path)?, to)?;
        } else if path.is_dir() {
            try_copy(&path, &to)?;
        } else if entry.file_name() != ".lock" {
            std::fs::copy(&path, to)?;
        }
    }
    Ok(())
}

/// Returns the final state: weights, the optimizer's state, and the results of each epoch that do not depend on time.
fn left(dir: &Path) -> (Vec<u8>, Vec<u8>, Vec<String>) {
    let last = dir.join("checkpoints/last");
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    assert!(read(dir.join("model.safetensors")) == read(last.join("model.safetensors")));
    let lines = std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let of = |line: &str| {
        let all: serde_json::Value = serde_json::from_str(line).unwrap();
        ["epoch", "step", "loss", "test_loss", "accuracy", "lr"].map(|key| all[key].to_string()).join(" ")
    };
    (
        read(last.join("model.safetensors")),
        read(last.join("optimizer.safetensors")),
        lines.lines().map(of).collect(),
    )
}

/// A killed process leaves the folder as it is at that step.
#[test]
fn a_run_that_is_killed_goes_on_to_the_bit() {
    let device = netcl_tensor::suite::test_device().unwrap();
    for (dtype, kills) in [(DType::F32, [2, 5, 7, 12, 15]), (DType::F16, [0, 0, 0, 10, 17])] {
        let (config, images) = long(dtype);
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut losses = Vec::new();
        let mut watch = |progress: TrainingProgress<'_>| {
            if let TrainingProgress::Step { step, loss, .. } = progress {
                losses.push((step, loss.to_bits()));
                if kills.contains(&step) {
                    copy(&path("whole"), &path(&step.to_string()));
                }
            }
            Next::GoOn
        };
        let claim = RunFolder::claim(&path("whole")).unwrap();
        train(&device, &config, &images, claim, &Diagnostics::default(), &mut watch).unwrap();
        let whole = left(&path("whole"));
        assert_eq!((losses.len(), whole.2.len()), (18, 3));
        for kill in kills.into_iter().filter(|kill| *kill > 0) {
            let (mut from, mut again) = (None, Vec::new());
            let mut watch = |progress: TrainingProgress<'_>| {
                match progress {
                    TrainingProgress::Started { from_step, steps: 18 } => from = Some(from_step),
                    TrainingProgress::Step { step, loss, .. } => again.push((step, loss.to_bits())),
                    _ => {}
                }
                Next::GoOn
            };
            let outcome = resume(
                &device,
                &config,
                &images,
                &path(&kill.to_string()),
                &Diagnostics::default(),
                &mut watch,
            )
            .unwrap();
            let from = from.unwrap();
            assert!(from <= kill && outcome.step == 18 && outcome.epochs.len() == 3, "{kill}: {from}");
            assert!(again == losses[from as usize..], "losses after step {from} in {dtype}");
            assert!(left(&path(&kill.to_string())) == whole, "killed at {kill}, from {from}, {dtype}");
        }
    }
}

/// Runs until step `at` and requests `next` there; returns the reported steps and the checkpoints' steps.
fn until(at: u64, next: Next) -> (tempfile::TempDir, ClassifierOutcome, Vec<u64>) {
    let device = netcl_tensor::suite::test_device().unwrap();
    let (mut config, images) = long(DType::F32);
    config.checkpoint_every = 0;
    let dir = tempfile::tempdir().unwrap();
    let claim = RunFolder::claim(&dir.path().join("run")).unwrap();
    let mut saved = Vec::new();
    let mut watch = |progress: TrainingProgress<'_>| match progress {
        TrainingProgress::Step { step, .. } if step == at => next,
        TrainingProgress::Saved { step, .. } => {
            saved.push(step);
            Next::GoOn
        }
        _ => Next::GoOn,
    };
    let outcome = train(&device, &config, &images, claim, &Diagnostics::default(), &mut watch).unwrap();
    (dir, outcome, saved)
}

#[test]
fn a_run_saves_and_stops_where_it_is_asked_to() {
    let device = netcl_tensor::suite::test_device().unwrap();
    let (config, images) = long(DType::F32);
    // The next step has already started. At the end of an epoch, the test comes first.
    let (whole, outcome, saved) = until(8, Next::Save);
    assert_eq!((outcome.stopped, saved), (false, vec![6, 9, 12, 18]));
    let whole = whole.path().join("run");
    for (at, stop) in [(1, 2), (6, 6), (11, 12)] {
        let (dir, outcome, saved) = until(at, Next::Stop);
        assert!(outcome.stopped && outcome.step == stop && saved.last() == Some(&stop), "{at}: {saved:?}");
        let run = dir.path().join("run");
        let outcome =
            resume(&device, &config, &images, &run, &Diagnostics::default(), &mut |_| Next::GoOn).unwrap();
        assert!(!outcome.stopped && left(&run) == left(&whole), "stopped at {at}");
        // Nothing is left to do, and nothing is changed.
        let before = std::fs::read(run.join("report.html")).unwrap();
        let outcome =
            resume(&device, &config, &images, &run, &Diagnostics::default(), &mut |_| Next::GoOn).unwrap();
        assert!(outcome.already && outcome.epochs.len() == 3);
        assert!(std::fs::read(run.join("report.html")).unwrap() == before);
    }
}

#[test]
fn what_belongs_to_another_run_is_refused_by_name() {
    let device = netcl_tensor::suite::test_device().unwrap();
    let (config, images) = long(DType::F32);
    let (dir, ..) = until(8, Next::Stop);
    let run = dir.path().join("run");
    let metrics = std::fs::read(run.join("metrics.jsonl")).unwrap();
    let refused = |config: &ClassifierConfig, images: &Dataset| {
        let error =
            resume(&device, config, images, &run, &Diagnostics::default(), &mut |_| Next::GoOn).unwrap_err();
        assert!(std::fs::read(run.join("metrics.jsonl")).unwrap() == metrics);
        error.to_string()
    };
    let said = refused(&ClassifierConfig { seed: 3, ..config.clone() }, &images);
    assert!(said.contains("--seed 3, the run has 1337"), "{said}");
    let mut other = images.clone();
    other.train.pixels[7] ^= 1;
    let said = refused(&config, &other);
    assert!(said.contains("their content differs") && said.contains("step-00000009"), "{said}");
    other.train = drawn(80);
    let said = refused(&config, &other);
    assert!(
        said.contains("(64 training and 20 test images, 1 x 8 x 8, 2 classes): 80 training and 20"),
        "{said}"
    );
    let newest = run.join("checkpoints/step-00000009");
    let damage = |name: &str| {
        let mut bytes = std::fs::read(newest.join(name)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(newest.join(name), bytes).unwrap();
    };
    damage("optimizer.safetensors");
    // The checkpoint of the first epoch is intact.
    let mut from = 0;
    let mut watch = |progress: TrainingProgress<'_>| {
        if let TrainingProgress::Started { from_step, .. } = progress {
            from = from_step;
        }
        Next::Stop
    };
    resume(&device, &config, &images, &run, &Diagnostics::default(), &mut watch).unwrap();
    assert_eq!(from, 6);
    std::fs::remove_dir_all(run.join("checkpoints/step-00000006")).unwrap();
    let all = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().path());
    let all: Vec<PathBuf> = all.filter(|p| p.join("state.json").exists() && !p.is_symlink()).collect();
    for path in all {
        std::fs::write(path.join("state.json"), "{}").unwrap();
    }
    let error = resume(&device, &config, &images, &run, &Diagnostics::default(), &mut |_| Next::GoOn)
        .unwrap_err()
        .to_string();
    assert!(error.contains("no checkpoint is intact") && error.contains("state.json"), "{error}");
}

/// Returns the reports of memory and profile, and the weights.
fn looked_at(diagnostics: &Diagnostics, graph: GraphMode, dir: &Path) -> (Vec<String>, Vec<u8>) {
    let device = netcl_tensor::suite::unchecked_device().unwrap();
    let (config, images) = long(DType::F32);
    let config = ClassifierConfig { graph, ..config };
    let claim = RunFolder::claim(dir).unwrap();
    let mut said = Vec::new();
    let mut watch = |progress: TrainingProgress<'_>| {
        match progress {
            TrainingProgress::MemoryExplained(text) => said.push(format!("memory: {text}")),
            TrainingProgress::Profiled(p) => {
                assert!(p.file.exists() && p.timeline.kernels().len() == p.kernels.len());
                let convolved = p.kernels.iter().any(|k| k.name.contains("conv") && k.seconds > 0.0);
                said.push(format!("profile: {:?} {} {convolved}", p.steps, p.replayed));
            }
            _ => {}
        }
        Next::GoOn
    };
    train(&device, &config, &images, claim, diagnostics, &mut watch).unwrap();
    (said, std::fs::read(dir.join("model.safetensors")).unwrap())
}

#[test]
fn steps_are_profiled_and_memory_is_explained_without_other_bits() {
    let dir = tempfile::tempdir().unwrap();
    let plain = looked_at(&Diagnostics::default(), GraphMode::Off, &dir.path().join("plain"));
    assert!(plain.0.is_empty(), "{:?}", plain.0);
    let file = dir.path().join("here.json");
    // Across the end of an epoch, and to the end of the run.
    for (first, steps, name, what) in [(4, 5, Some(&file), "(4, 8)"), (17, 10, None, "(17, 18)")] {
        let profile = Some(ProfileSettings { file: name.cloned(), first, steps });
        let folder = dir.path().join(first.to_string());
        let (said, weights) =
            looked_at(&Diagnostics { profile, ..Diagnostics::default() }, GraphMode::On, &folder);
        assert!(weights == plain.1, "profiled steps have the same bits as others");
        let [memory, profile] = said.as_slice() else { panic!("{said:?}") };
        for part in ["parameters in f32", "input batches", "activations: results", "conv2d"] {
            assert!(memory.contains(part), "{memory} lacks: {part}");
        }
        assert_eq!(*profile, format!("profile: {what} true true"));
        let written = name.cloned().unwrap_or_else(|| folder.join("trace.json"));
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(written).unwrap()).unwrap();
        let names = trace.to_string();
        for part in ["data", "upload", "enqueue", "read loss", "evaluation"] {
            assert!(names.contains(&format!("\"{part}\"")), "the trace lacks {part}");
        }
    }
}

#[test]
fn the_operation_that_made_the_first_nan_is_named() {
    let device = netcl_tensor::suite::test_device().unwrap();
    let (config, images) = long(DType::F32);
    let config = ClassifierConfig { lr: 1e30, graph: GraphMode::On, ..config };
    let dir = tempfile::tempdir().unwrap();
    let claim = RunFolder::claim(&dir.path().join("run")).unwrap();
    let diagnostics = Diagnostics { detect_anomaly: true, ..Diagnostics::default() };
    let error = train(&device, &config, &images, claim, &diagnostics, &mut |_| Next::GoOn).unwrap_err();
    for part in ["anomaly", "forward of", "input 0"] {
        assert!(error.message().contains(part), "{error} lacks: {part}");
    }
    let (checked, plain) = (dir.path().join("checked"), dir.path().join("plain"));
    assert!(
        looked_at(&diagnostics, GraphMode::Auto, &checked).1
            == looked_at(&Diagnostics::default(), GraphMode::Auto, &plain).1
    );
}
