//! Image classifiers: trained on small drawn sets in each format, and applied to images; MNIST if it is installed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)] // tests

use crate::{common, launch};

use common::{device, folder, netcl};
use launch::{each, words};
use serde_json::Value;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

const SIDE: usize = 12;

/// Draws an image of class 0 (a horizontal bar), 1 (a vertical bar) or 2 (a square), at a random position.
fn drawn(class: usize, number: usize) -> Vec<u8> {
    let at = 1 + number * 7 % 5;
    let inside = |y: usize, x: usize| match class {
        0 => (at..at + 3).contains(&y),
        1 => (at..at + 3).contains(&x),
        _ => (at..at + 6).contains(&y) && (at..at + 6).contains(&x),
    };
    let noise = |i: usize| (i * 37 + number * 101) % 40;
    let pixel = |i: usize| (if inside(i / SIDE, i % SIDE) { 200 } else { 10 }) + noise(i) as u8;
    (0..SIDE * SIDE).map(pixel).collect()
}

/// Writes `count` images to IDX files.
fn write_idx(dir: &Path, count: usize) {
    let head = |sizes: &[usize]| {
        let words = std::iter::once(0x800 + sizes.len()).chain(sizes.iter().copied());
        words.flat_map(|v| (v as u32).to_be_bytes()).collect::<Vec<_>>()
    };
    let mut images = head(&[count, SIDE, SIDE]);
    let mut labels = head(&[count]);
    for i in 0..count {
        images.extend(drawn(i % 3, i));
        labels.push((i % 3) as u8);
    }
    std::fs::write(dir.join("train-images-idx3-ubyte"), images).unwrap();
    std::fs::write(dir.join("train-labels-idx1-ubyte"), labels).unwrap();
}

fn json(args: &[&str], dir: &Path) -> Value {
    let output = netcl().args(args).args(["--device", &device()]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(args: &[&str], dir: &Path) -> String {
    let output = netcl().args(args).current_dir(dir).output().unwrap();
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_classifier_is_trained_and_asked() {
    let dir = folder("images");
    let dir = dir.as_path();
    write_idx(dir, 240);
    let train = [
        "train",
        "--preset",
        "mnist-cnn",
        "--data",
        ".",
        "--epochs",
        "4",
        "--batch",
        "24",
        "--out",
        "run",
        "--json",
    ];
    let summary = json(&train, dir);
    assert_eq!((summary["outcome"].as_str(), summary["epochs"].as_u64()), (Some("finished"), Some(4)));
    let accuracy = summary["accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.8, "{summary}");
    for file in ["config.toml", "metrics.jsonl", "report.html", "model.safetensors", "classifier.json"] {
        assert!(dir.join("run").join(file).exists(), "{file}");
    }
    assert!(std::fs::read_to_string(dir.join("run/report.html")).unwrap().contains("Accuracy"));
    // Classify an unseen image of the last class.
    let pixels = drawn(2, 1001);
    image::GrayImage::from_raw(SIDE as u32, SIDE as u32, pixels)
        .unwrap()
        .save(dir.join("square.png"))
        .unwrap();
    let answer = json(&["classify", "-m", "run", "square.png", "--top", "2", "--json"], dir);
    assert_eq!(
        (answer["class"].as_str(), answer["classes"].as_array().unwrap().len()),
        (Some("2"), 2),
        "{answer}"
    );
    assert!(answer["confidence"].as_f64().unwrap() > 0.5, "{answer}");
    graph_of_the_run(dir);
    let again = json(&["train", "--resume", "run", "--json"], dir);
    assert_eq!(
        (again["already"].as_bool(), &again["accuracy"]),
        (Some(true), &summary["accuracy"]),
        "{again}"
    );
    let said = refused(&["train", "--resume", "run", "--batch", "12"], dir);
    assert!(said.contains("--batch 12, the run has 24"), "{said}");
    let said = refused(&["train", "--resume", "run", "--steps", "12"], dir);
    assert!(said.contains("--steps is for language models"), "{said}");
    let said = refused(&["train", "--preset", "mnist-cnn", "--data", ".", "--layers", "3"], dir);
    assert!(said.contains("--layers is for language models"), "{said}");
    let said = refused(&["train", "--preset", "mnist-cnn", "--data", ".", "--watchdog", "60"], dir);
    assert!(said.contains("--watchdog is for language models"), "{said}");
    let said = refused(&["classify", "-m", ".", "square.png"], dir);
    assert!(said.contains("contains no image classifier"), "{said}");
    std::fs::write(dir.join("text.txt"), "some words ".repeat(40)).unwrap();
    let said = refused(&["train", "--epochs", "3", "--data", "text.txt", "--val-split", "0"], dir);
    assert!(said.contains("--epochs 3: text and token shards are read in random windows"), "{said}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Two different devices of one process, and the processes of each MPI launcher, match the run of one device. Other numbers of ranks resume the run.
#[test]
fn several_devices_train_one_classifier() {
    let dir = folder("images-among");
    let dir = dir.as_path();
    write_idx(dir, 60);
    let run = |out: &str| {
        let fixed = "train --preset mnist-lenet --data . --epochs 2 --batch 11 --val-split 0.3 --json --out";
        words(&format!("{fixed} {out}"))
    };
    let read = |output: &Output, about: &str| -> Value {
        let (out, err) = launch::ok(about, output);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out} {err}"))
    };
    let close = |found: &Value, expected: &Value| {
        assert_eq!(found["steps"], expected["steps"], "{found}");
        for key in ["loss", "test_loss", "accuracy"] {
            let [a, b] = [found, expected].map(|all| all[key].as_f64().unwrap());
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{key}: {a}, expected {b}");
        }
    };
    let ran = |args: Vec<String>| netcl().args(args).current_dir(dir).output().unwrap();
    let with =
        |out: &str, more: &[&str]| [run(out), more.iter().map(|word| (*word).to_owned()).collect()].concat();
    let one = read(&ran(with("one", &["--device", &device()])), "one device");
    let two = ran(with("two", &["--devices", &format!("{},sim", device())]));
    assert!(String::from_utf8_lossy(&two.stderr).contains("2 ranks ("), "{two:?}");
    close(&read(&two, "two devices"), &one);
    each(3, &[], |launcher, mut command| {
        let out = format!("mpi-{launcher}");
        let output = command.args(with(&out, &["--device", &device()])).current_dir(dir).output().unwrap();
        close(&read(&output, launcher), &one);
    });
    let more = "train --epochs 3 --json --resume";
    let alone = words(&format!("{more} one --device {}", device()));
    let others = words(&format!("{more} two --devices {0},{0},{0}", device()));
    close(&read(&ran(others), "three devices"), &read(&ran(alone), "resumed on one device"));
    // Given shares are printed at the end and in the report.
    let shares = ["--devices", &format!("{0},{0}", device()), "--shares", "3,1"];
    let parts = read(&ran(with("parts", &shares)), "shares of a batch");
    close(&parts, &one);
    let ranks: Vec<f64> =
        parts["ranks"].as_array().unwrap().iter().map(|rank| rank["share"].as_f64().unwrap()).collect();
    assert!((ranks[0] - 8.0 / 11.0).abs() < 1e-9 && parts["ranks"][1]["images_per_s"].is_number(), "{parts}");
    assert!(std::fs::read_to_string(dir.join("parts/report.html")).unwrap().contains("72.7 % of the batch"));
    let wrong = ran(with("no", &[&shares[..3], &["1,1,1"]].concat()));
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("--shares has 3 numbers for 2 ranks"),
        "{wrong:?}"
    );
    for flag in ["--zero 1", "--pipeline 2", "--watchdog 9"] {
        let two = format!("--devices {0},{0} {flag}", device());
        let output = ran([run("no"), words(&two)].concat());
        let name = flag.split(' ').next().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(&format!("{name} is for language models")),
            "{said}"
        );
    }
    let few = ran([run("no"), words(&format!("--batch 1 --devices {0},{0}", device()))].concat());
    assert!(String::from_utf8_lossy(&few.stderr).contains("1 image for 2 ranks"), "{few:?}");
    assert!(!dir.join("no").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_classifier_is_planned_and_looked_at() {
    let dir = folder("images-looked-at");
    let dir = dir.as_path();
    write_idx(dir, 120);
    let train =
        ["train", "--preset", "mnist-cnn", "--data", ".", "--epochs", "2", "--batch", "24", "--out", "run"];
    let plan = json(&[&train[..], &["--dry-run", "--json"]].concat(), dir);
    assert!(!dir.join("run").exists());
    assert_eq!((plan["steps"].as_u64(), plan["training_images"].as_u64()), (Some(8), Some(108)), "{plan}");
    assert!(plan["parameters"].as_u64().unwrap() > 1000 && plan["config"]["batch"] == 24, "{plan}");
    let flags = ["--explain-memory", "--profile", "--profile-steps", "2", "--device", &device()];
    let output = netcl().args(train).args(flags).current_dir(dir).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for part in
        ["memory of training", "activations: results", "profile of steps 3 to 4", "of copy", "trace: "]
    {
        assert!(said.contains(part), "{part} is missing in {said}");
    }
    assert!(dir.join("run/trace.json").exists());
    let diverging = ["--out", "nan", "--lr", "1e30", "--detect-anomaly"];
    let said = refused(&[&train[..9], &diverging].concat(), dir);
    assert!(said.contains("anomaly") && said.contains("forward of"), "{said}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// One command starts a run and resumes it, however often it is killed. Its weights equal those of an uninterrupted run.
#[test]
fn a_classifier_that_is_killed_goes_on() {
    let dir = folder("killed-images");
    let dir = dir.as_path();
    write_idx(dir, 240);
    let device = device();
    let run = |out: &str| {
        let fixed =
            "train --preset mnist-cnn --data . --epochs 3 --batch 24 --checkpoint-every 1 --json --elastic";
        let mut command = netcl();
        command.args(fixed.split(' ')).args(["--device", &device, "--out", out]).current_dir(dir);
        command
    };
    assert!(run("whole").output().unwrap().status.success());
    let newest = || {
        let all = std::fs::read_dir(dir.join("killed/checkpoints")).into_iter().flatten().flatten();
        let names = all.map(|e| e.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("step-") && !name.contains('.')).max()
    };
    for _ in 0..3 {
        let before = newest();
        let mut child = run("killed").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Kills the run some steps later, at any point of a step.
        while newest() == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(3));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = run("killed").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("run folder killed, from step "), "{said}");
    let read = |run: &str, file: &str| std::fs::read(dir.join(run).join(file)).unwrap();
    for file in
        ["model.safetensors", "checkpoints/last/model.safetensors", "checkpoints/last/optimizer.safetensors"]
    {
        assert!(read("whole", file) == read("killed", file), "{file}");
    }
    let lines = |run: &str| String::from_utf8(read(run, "metrics.jsonl")).unwrap().lines().count();
    assert_eq!((lines("whole"), lines("killed")), (3, 3));
    std::fs::remove_dir_all(dir).unwrap();
}

/// The graph file of a run is shown in every format, run, and refused if it is damaged.
fn graph_of_the_run(dir: &Path) {
    let shown = |args: &[&str]| {
        let output = netcl().args(args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let device = device();
    let saved = shown(&["graph", "save", "-m", "run", "-o", "net.safetensors", "--device", &device]);
    assert!(saved.contains("net.safetensors: "), "{saved}");
    let text = shown(&["graph", "show", "net.safetensors"]);
    assert!(text.contains("input  %0 image f32 [rows, 1, 12, 12]") && text.contains("conv2d("), "{text}");
    assert!(shown(&["graph", "show", "net.safetensors", "--dot"]).starts_with("digraph"));
    assert!(shown(&["graph", "show", "net.safetensors", "--svg"]).contains("</svg>"));
    let said: Value = serde_json::from_str(&shown(&["graph", "show", "net.safetensors", "--json"])).unwrap();
    assert_eq!(said["inputs"][0]["name"], "image");
    let memory = ["graph", "show", "net.safetensors", "--memory", "--rows", "3", "--device", &device];
    assert!(shown(&memory).contains("memory for 4 rows"));
    let ran = json(&["graph", "run", "net.safetensors", "--rows", "5", "--json"], dir);
    assert_eq!(ran["results"][0], "f32 [5, 3]", "{ran}");
    assert!(ran["first_result_ms"].as_f64().unwrap() > 0.0, "{ran}");
    let mut bytes = std::fs::read(dir.join("net.safetensors")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(dir.join("net.safetensors"), bytes).unwrap();
    let said = refused(&["graph", "run", "net.safetensors"], dir);
    assert!(said.contains("are not what was saved"), "{said}");
    let said = refused(&["graph", "show", "run/model.safetensors"], dir);
    assert!(said.contains("not a graph of operations"), "{said}");
}

/// Trains on the first 9,000 of MNIST's 10,000 test images, and tests with the last 1,000.
#[test]
#[ignore = "a minute on two cores: make mnist"]
fn mnist_is_learnt() {
    let data = netcl_test_data::test_data!().join("mnist");
    let Ok(data) = data.canonicalize() else {
        eprintln!("skipped: {} is missing; set NETCL_TEST_DATA", data.display());
        return;
    };
    let dir = folder("mnist");
    let train =
        ["train", "--preset", "mnist-cnn", "--data", data.to_str().unwrap(), "--out", "run", "--json"];
    let summary = json(&train, &dir);
    eprintln!("{summary}");
    assert!(summary["accuracy"].as_f64().unwrap() >= 0.985, "{summary}");
    std::fs::remove_dir_all(dir).unwrap();
}
