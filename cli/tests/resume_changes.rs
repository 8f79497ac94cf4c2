//! The settings that `--resume` may change or refuses, and the completeness of run folders.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Creates a folder with a run of `steps` steps in `run`, and a checkpoint every third step.
fn run(name: &str, steps: u32) -> PathBuf {
    let dir = folder(name);
    write_text(&dir.join("text.txt"));
    let mut args = tiny_run(&dir.join("text.txt"), &dir.join("run"), steps);
    args.extend("--checkpoint-every 3 --eval-every 3".split(' ').map(Into::into));
    let output = netcl().args(args).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    dir
}

/// Runs `--resume` with more flags; returns exit code, stdout, stderr.
fn resume(run: &Path, flags: &str) -> (i32, String, String) {
    let flags = flags.split(' ').filter(|f| !f.is_empty());
    let output = netcl().args(["train", "--resume"]).arg(run).args(flags).output().unwrap();
    let (stdout, errors) = texts(&output);
    assert!(!errors.contains("panicked") && !errors.contains("defect"), "{errors}");
    (output.status.code().unwrap(), stdout, errors)
}

/// Returns every file below `dir` with its content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
        }
    }
    all
}

#[test]
fn a_refused_resume_names_the_setting_and_changes_nothing() {
    let dir = run("refused", 6);
    let out = dir.join("run");
    std::fs::write(dir.join("other.txt"), "something else to learn from\n".repeat(50)).unwrap();
    let other = dir.join("other.txt").display().to_string();
    let before = files(&out);
    for (flags, part) in [
        ("--layers 3", "--layers 3, the run has 1"),
        ("--heads 4", "--heads 4, the run has 2"),
        ("--width 64", "--width 64, the run has 32"),
        ("--context 8", "--context 8, the run has 16"),
        ("--seed 7", "--seed 7, the run has 1337"),
        ("--val-split 0.5", "--val-split 0.5, the run has 0.1"),
        ("--tokenizer other/tokenizer.json", "the run has \"char\""),
        ("--dtype bf16", "--dtype \"bf16\", the run has \"f32\""),
        ("--layers 3 --seed 7", "--seed 7, the run has 1337"),
        ("--steps 5 --warmup 0", "--steps 5 is below the 6 steps that are done"),
        (&format!("--data {other}"), "leaves out"),
        ("--steps 12 --batch 1000000000000", "training takes at least"),
        ("--steps 12 --profile /nowhere/at/all.json", "/nowhere/at/all.json"),
        ("--steps 12 --device nowhere:7", "no device"),
    ] {
        let (code, stdout, errors) = resume(&out, flags);
        assert!((1..=4).contains(&code), "{flags}: {code} {stdout}{errors}");
        assert!(errors.contains(part), "{flags}: {part:?} is missing: {errors}");
        assert!(files(&out) == before, "{flags}: the folder changed");
    }
    let (code, stdout, errors) = resume(&out, "--steps 9");
    assert_eq!((code, stdout.contains("finished after 9 steps")), (0, true), "{stdout}{errors}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_finished_run_says_so_and_a_longer_schedule_what_the_rate_does() {
    let dir = run("finished", 6);
    let out = dir.join("run");
    let before = files(&out);
    let (code, stdout, errors) = resume(&out, "");
    assert_eq!(code, 0, "{errors}");
    for part in ["is finished: all 6 steps are done, loss ", "--steps 12", "netcl train --resume"] {
        assert!(stdout.contains(part), "{part:?} is missing: {stdout}");
    }
    assert!(!stdout.contains("NaN") && files(&out) == before, "{stdout}");
    let (code, stdout, errors) = resume(&out, "--steps 12 --batch 8");
    assert_eq!(code, 0, "{stdout}{errors}");
    for part in [
        "the learning rate at step 7 is ",
        "ends at step 12 instead of 6",
        "rises by a factor of",
        "--schedule constant",
        "batch is 8; it was 4",
    ] {
        assert!(errors.contains(part), "{part:?} is missing: {errors}");
    }
    // Earlier tokens keep their count: six steps of 64, six of 128.
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert!(metrics.lines().last().unwrap().contains("\"tokens\":1152"), "{metrics}");
    let (_, stdout, _) = resume(&out, "--json");
    let summary: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&summary["outcome"], &summary["steps"]), (&"finished".into(), &12.into()));
    assert!(summary["loss"].is_number(), "{summary}");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Formerly an edited text was used without a message, so neither the run nor its validation loss was correct.
#[test]
fn edited_data_is_refused_and_what_was_added_is_said() {
    let dir = run("edited", 6);
    let (text, out) = (dir.join("text.txt"), dir.join("run"));
    let (whole, before) = (std::fs::read_to_string(&text).unwrap(), files(&out));
    std::fs::write(&text, whole.replacen("1 plus 2", "2 plus 1", 1)).unwrap();
    let (code, stdout, errors) = resume(&out, "--steps 9");
    assert!(code != 0 && files(&out) == before, "{stdout}{errors}");
    for part in ["the data differs from what the run has learned from", "text.txt was edited", "--out"] {
        assert!(errors.contains(part), "{part:?} is missing: {errors}");
    }
    // A finished run reads no data.
    let (code, stdout, errors) = resume(&out, "");
    assert!(code == 0 && stdout.contains("is finished"), "{stdout}{errors}");
    std::fs::write(&text, whole.clone() + "1 plus 1 is 2\n").unwrap();
    let (code, _, errors) = resume(&out, "--steps 9");
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("1 file grown: ") && errors.contains("(14 B more)"), "{errors}");
    assert!(errors.contains("the best loss starts anew"), "{errors}");
    // The changed file is the run's data from this point on.
    let (code, _, errors) = resume(&out, "--steps 12");
    assert!(code == 0 && !errors.contains("grown"), "{errors}");
    std::fs::write(&text, whole).unwrap();
    assert_ne!(resume(&out, "--steps 15").0, 0);
    std::fs::remove_dir_all(dir).unwrap();
}

/// The printed command can be pasted, even if the folder's name contains characters that a shell interprets.
#[cfg(unix)]
#[test]
fn the_hint_of_a_finished_run_is_a_command_that_works() {
    let dir = folder("hint");
    let (data, out) = (dir.join("text.txt"), dir.join("it's $HOME; a run"));
    write_text(&data);
    let args = tiny_run(&data, &out, 6);
    assert!(netcl().args(args).output().unwrap().status.success());
    let (_, stdout, _) = resume(&out, "");
    let hint = stdout.lines().find_map(|line| line.strip_prefix("train more steps with: ")).unwrap();
    let shell = std::process::Command::new("sh").args(["-c", hint]).env("NO_COLOR", "1").output().unwrap();
    let (stdout, errors) = texts(&shell);
    assert!(stdout.contains("finished after 12 steps"), "{hint}: {stdout}{errors}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_run_goes_on_from_another_working_directory() {
    let dir = folder("elsewhere");
    write_text(&dir.join("a[1].txt"));
    let mut args = tiny_run(Path::new("*.txt"), Path::new("run"), 6);
    args.extend("--eval-every 0".split(' ').map(Into::into));
    let output = netcl().current_dir(&dir).args(&args).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    let output = netcl()
        .current_dir(std::env::temp_dir())
        .args(["train", "--steps", "9", "--resume"])
        .arg(dir.join("run"))
        .output()
        .unwrap();
    let (stdout, errors) = texts(&output);
    assert!(stdout.contains("finished after 9 steps"), "{stdout}{errors}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn two_processes_on_one_folder_and_a_killed_one_before() {
    let dir = folder("locked");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    let mut args = tiny_run(&data, &out, 1_000_000);
    args.extend("--checkpoint-every 5 --eval-every 0".split(' ').map(Into::into));
    let mut first = netcl().args(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for _ in 0..1200 {
        if out.join("checkpoints/last").exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = format!("is in use by process {}", first.id());
    let (code, _, errors) = resume(&out, "");
    assert!(code == 1 && errors.contains(&pid) && errors.contains(" since 20"), "{errors}");
    let output = netcl().args(&args).output().unwrap();
    assert!(texts(&output).1.contains(&pid), "{}", texts(&output).1);
    first.kill().unwrap();
    first.wait().unwrap();
    // The lock ended with its process; the file that names its owner remains.
    assert!(out.join(".lock").exists());
    let done = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap().lines().count();
    let (code, stdout, errors) = resume(&out, &format!("--steps {}", done + 3));
    assert_eq!(code, 0, "{stdout}{errors}");
    assert!(!out.join(".lock").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_folder_with_a_foreign_config_is_not_overwritten() {
    let dir = folder("foreign");
    let (data, out) = (dir.join("text.txt"), dir.join("site"));
    write_text(&data);
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("config.toml"), "title = \"my site\"\n").unwrap();
    let output = netcl().args(tiny_run(&data, &out, 6)).output().unwrap();
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("has a config.toml that belongs to no run") && errors.contains("--out"),
        "{errors}"
    );
    assert_eq!(files(&out).len(), 1);
    assert_eq!(std::fs::read_to_string(out.join("config.toml")).unwrap(), "title = \"my site\"\n");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn numbers_that_cannot_be_end_at_once_with_requested_and_available() {
    let dir = folder("numbers");
    let (data, out) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    for flags in [
        "--batch 1000000000000",
        "--layers 1000000000000",
        "--layers 9223372036854775807",
        "--width 2000000000000 --heads 1000000000000",
        "--context 1000000000000",
        "--grad-accum 4294967295 --batch 1000000",
    ] {
        let args = tiny_run(&data, &out, 6).into_iter().chain(flags.split(' ').map(Into::into));
        let output = netcl().args(args).output().unwrap();
        let (_, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(4), "{flags}: {errors}");
        for part in ["training takes at least ", " available; nothing was allocated", "Lower --"] {
            assert!(errors.contains(part), "{flags}: {part:?} is missing: {errors}");
        }
        assert!(!out.exists(), "{flags}: a folder remains");
    }
    for (args, code) in [
        ("bench train --batch 1000000000000 --peer none", 4),
        ("bench train --layers 1000000000 --peer none", 4),
        ("bench gemm --sizes 1000000000000 --peer none", 4),
        ("bench attention --shapes 1000000000000x1x16x64 --peer none", 4),
        (
            &format!(
                "tokenizer train --data {} --vocab 18446744073709551615 --out {}/tok",
                data.display(),
                dir.display()
            ),
            0,
        ),
    ] {
        let output = netcl().args(args.split(' ')).output().unwrap();
        let (_, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{args}: {errors}");
        assert!(code == 0 || errors.contains(" available"), "{args}: {errors}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Flags with values that a run may or may not change, and whether it may.
const FLAGS: [(&str, &[&str], bool); 24] = [
    ("--layers", &["2", "3", "1000000000000"], false),
    ("--heads", &["1", "4", "5"], false),
    ("--width", &["16", "64", "33"], false),
    ("--context", &["8", "32"], false),
    ("--seed", &["1", "99"], false),
    ("--val-split", &["0", "0.5"], false),
    ("--tokenizer", &["none/tokenizer.json"], false),
    ("--dtype", &["bf16", "f16"], false),
    ("--steps", &["7", "9", "12"], true),
    ("--lr", &["0.01", "0.0005", "0.0002"], true),
    ("--min-lr", &["0", "0.00001"], true),
    ("--warmup", &["0", "3"], true),
    ("--schedule", &["constant", "linear", "cosine"], true),
    ("--weight-decay", &["0", "0.5"], true),
    ("--clip", &["0", "0.5"], true),
    ("--dropout", &["0", "0.3"], true),
    ("--batch", &["1", "6"], true),
    ("--grad-accum", &["2", "3"], true),
    ("--eval-every", &["0", "1", "2"], true),
    ("--eval-batches", &["1", "5"], true),
    ("--sample-every", &["0", "4"], true),
    ("--checkpoint-every", &["0", "1", "2"], true),
    ("--keep", &["1", "4"], true),
    ("--graph", &["on", "off", "auto"], true),
];

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&path).unwrap(), target).unwrap();
        } else if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, target).unwrap();
        }
    }
}

/// Draws random flags: each resume is refused by name or has the right result. `NETCL_RESUMES` sets the number of attempts.
#[test]
fn resumes_with_random_flags_are_refused_by_name_or_right() {
    let count = std::env::var("NETCL_RESUMES").ok().and_then(|n| n.parse().ok()).unwrap_or(4u64);
    let dir = run("random", 6);
    let (mut refused, mut went_on) = (0, 0);
    for n in 0..count {
        let mut draw = (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut below = |n: usize| {
            draw ^= draw << 13;
            draw ^= draw >> 7;
            draw ^= draw << 17;
            (draw >> 20) as usize % n
        };
        let out = dir.join("case");
        copy(&dir.join("run"), &out);
        let mut flags = String::from("--steps 9");
        let mut kept = Vec::new();
        for _ in 0..=below(3) {
            let (flag, values, free) = FLAGS[below(FLAGS.len())];
            flags += &format!(" {flag} {}", values[below(values.len())]);
            if !free {
                kept.push(flag);
            }
        }
        let before = files(&out);
        let (code, stdout, errors) = resume(&out, &flags);
        if code == 0 {
            assert!(kept.is_empty(), "{flags} was accepted: {errors}");
            assert!(stdout.contains("finished after "), "{flags}: {stdout}{errors}");
            let steps: Vec<u64> = std::fs::read_to_string(out.join("metrics.jsonl"))
                .unwrap()
                .lines()
                .map(|line| {
                    serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap()
                })
                .collect();
            assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>(), "{flags}");
            went_on += 1;
        } else {
            assert_eq!(code, 1, "{flags}: {errors}");
            let named =
                flags.split(' ').filter(|word| word.starts_with("--")).any(|flag| errors.contains(flag));
            assert!(named, "{flags}: {errors}");
            assert!(files(&out) == before, "{flags}: refused, and the folder changed");
            refused += 1;
        }
        // The folder is complete: the run resumes with its own settings.
        let (code, stdout, errors) = resume(&out, "--steps 13");
        assert!(code == 0 && stdout.contains("finished after 13 steps"), "after {flags}: {stdout}{errors}");
        std::fs::remove_dir_all(&out).unwrap();
    }
    eprintln!("{count} resumes: {refused} refused by name, {went_on} resumed, all complete on {}", device());
    std::fs::remove_dir_all(dir).unwrap();
}
