//! Killed runs: a run that is killed again and again ends with the bits of an uninterrupted one.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts, tiny_run, write_text};
use std::path::Path;
use std::time::Duration;

fn weights(run: &Path) -> (Vec<u8>, Vec<u8>) {
    let last = run.join("checkpoints/last");
    (
        std::fs::read(last.join("model.safetensors")).unwrap(),
        std::fs::read(last.join("optimizer.safetensors")).unwrap(),
    )
}

#[test]
fn ten_kills_change_no_bit() {
    let dir = folder("kills");
    let data = dir.join("text.txt");
    write_text(&data);
    // A checkpoint at every step, so most of the time is spent writing one.
    let run = |out: &Path| {
        let mut args = tiny_run(&data, out, 200);
        args.extend("--checkpoint-every 1 --eval-every 50 --grad-accum 2".split(' ').map(Into::into));
        args
    };
    let (whole, killed) = (dir.join("whole"), dir.join("killed"));
    let output = netcl().args(run(&whole)).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);

    let mut draw = netcl::device::draw::Draw::new(0);
    let mut kills = 0;
    for attempt in 0..60 {
        let mut command = netcl();
        if killed.join("config.toml").exists() {
            command.args(["train", "--resume"]).arg(&killed);
        } else {
            command.args(run(&killed));
        }
        let mut child =
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
        if kills < 10 {
            // Waits longer after each unsuccessful attempt, because on a slow machine the start alone takes a while.
            std::thread::sleep(Duration::from_millis(150 + 20 * attempt + draw.below(350) as u64));
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                kills += 1;
            }
        }
        let status = child.wait().unwrap();
        if status.success() && kills >= 10 {
            break;
        }
        if status.success() {
            // The run finished before it was killed ten times: continue the kills with a new run.
            std::fs::remove_dir_all(&killed).unwrap();
        }
    }
    assert_eq!(kills, 10);
    assert!(weights(&whole) == weights(&killed), "weights differ after ten kills");
    let steps = |run: &Path| std::fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().count();
    assert_eq!(steps(&killed), steps(&whole), "each step is recorded once");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_is_used() {
    let dir = folder("damaged");
    let data = dir.join("text.txt");
    write_text(&data);
    let out = dir.join("run");
    let mut args = tiny_run(&data, &out, 30);
    args.extend("--checkpoint-every 10 --eval-every 0 --keep 5".split(' ').map(Into::into));
    assert!(netcl().args(&args).status().unwrap().success());
    let whole = weights(&out);
    let model = out.join("checkpoints/step-00000030/model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&model, &bytes).unwrap();
    let optimizer = out.join("checkpoints/step-00000020/optimizer.safetensors");
    let cut = std::fs::read(&optimizer).unwrap();
    std::fs::write(&optimizer, &cut[..cut.len() - 7]).unwrap();
    let output = netcl().args(["train", "--resume"]).arg(&out).output().unwrap();
    let (_, errors) = texts(&output);
    assert!(output.status.success(), "{errors}");
    for part in
        ["step-00000030", "model.safetensors", "step-00000020", "optimizer.safetensors", "from step 10"]
    {
        assert!(errors.contains(part), "{part} is missing: {errors}");
    }
    assert!(weights(&out) == whole, "the repeated steps give the same bits");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_signal_writes_a_checkpoint_and_the_exit_code_says_which() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let dir = folder(signal);
        let data = dir.join("text.txt");
        write_text(&data);
        let out = dir.join("run");
        let mut args = tiny_run(&data, &out, 1_000_000);
        args.extend("--checkpoint-every 0 --eval-every 0".split(' ').map(Into::into));
        let child = netcl()
            .args(&args)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let metrics = out.join("metrics.jsonl");
        for _ in 0..1200 {
            if std::fs::metadata(&metrics).is_ok_and(|m| m.len() > 0) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let kill =
            std::process::Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let (stdout, errors) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{errors}");
        assert!(stdout.contains("netcl train --resume"), "{stdout}");
        assert!(out.join("checkpoints/last/model.safetensors").exists());
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_full_disk_stops_with_a_clear_error_and_loses_nothing() {
    let dir = folder("full");
    let mount = dir.join("small");
    std::fs::create_dir(&mount).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(&mount)
        .output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let data = dir.join("text.txt");
    write_text(&data);
    let out = mount.join("run");
    let mut args = tiny_run(&data, &out, 100);
    args.extend("--checkpoint-every 1 --eval-every 0 --keep 100 --width 64".split(' ').map(Into::into));
    let output = netcl().args(&args).output().unwrap();
    let (_, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("No space left") && errors.contains("free some space"), "{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    // With space again, the run resumes from the last checkpoint.
    let more =
        std::process::Command::new("mount").args(["-o", "remount,size=200m"]).arg(&mount).status().unwrap();
    assert!(more.success());
    let output = netcl().args(["train", "--resume"]).arg(&out).output().unwrap();
    let (stdout, errors) = texts(&output);
    let unmounted = std::process::Command::new("umount").arg(&mount).status().unwrap();
    assert!(output.status.success() && stdout.contains("finished after 100 steps"), "{stdout}{errors}");
    assert!(errors.contains("from step ") && unmounted.success());
    std::fs::remove_dir_all(dir).unwrap();
}
