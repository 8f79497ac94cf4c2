//! Users' mistakes: each ends with a message that says what to do, and never with a panic.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{device, folder, netcl, texts, tiny_run, write_text};
use std::path::Path;

/// Runs and expects failure with `code` and every part in the message.
fn refused(args: &[String], code: i32, parts: &[&str]) {
    let output = netcl().args(args).output().unwrap();
    let (stdout, errors) = texts(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stdout}{errors}");
    assert!(!errors.contains("defect") && !errors.contains("panicked"), "{errors}");
    for part in parts {
        assert!(errors.contains(part), "{args:?}: {part:?} is missing in: {errors}");
    }
}

fn with(args: &[String], more: &str) -> Vec<String> {
    args.iter().cloned().chain(more.split(' ').map(Into::into)).collect()
}

fn on_file(name: &str, content: &[u8], parts: &[&str]) {
    let dir = folder(name);
    let data = dir.join(name);
    std::fs::write(&data, content).unwrap();
    refused(&tiny_run(&data, &dir.join("run"), 5), 1, parts);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_empty_file() {
    on_file("empty.txt", b"", &["empty.txt", "empty"]);
}

#[test]
fn a_binary_file() {
    on_file("binary.txt", b"text\0\xff\xfe and more", &["binary.txt"]);
}

#[test]
fn a_file_of_one_token() {
    on_file("one.txt", b"a", &["1 token", "nothing to predict"]);
}

#[test]
fn data_shorter_than_the_context() {
    on_file("short.txt", b"only a few characters", &["16", "context"]);
}

/// Formerly netcl waited for a FIFO, and SIGTERM had no effect.
#[cfg(unix)]
#[test]
fn a_fifo_as_data_is_refused_by_name() {
    let dir = folder("fifo");
    let pipe = dir.join("pipe.txt");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(
        &tiny_run(&pipe, &dir.join("run"), 5),
        1,
        &["pipe.txt: is a FIFO (a named pipe)", "regular file"],
    );
    std::fs::remove_dir_all(dir).unwrap();
}

/// Formerly such files were left out without a message.
#[test]
fn text_in_another_encoding_is_named_and_read_with_encoding() {
    let dir = folder("encoding");
    let data = dir.join("data");
    std::fs::create_dir(&data).unwrap();
    write_text(&data.join("utf8.txt"));
    // "Привет" in windows-1251.
    std::fs::write(data.join("old.txt"), [0xcf, 0xf0, 0xe8, 0xe2, 0xe5, 0xf2, b'\n']).unwrap();
    let run = |out: &str, more: &str| {
        let output = netcl().args(with(&tiny_run(&data, &dir.join(out), 6), more)).output().unwrap();
        let (stdout, errors) = texts(&output);
        assert!(output.status.success(), "{stdout}{errors}");
        errors
    };
    let plain = run("a", "--eval-every 0");
    assert!(plain.contains("1 file skipped, because the text is in another encoding"), "{plain}");
    assert!(plain.contains("old.txt") && plain.contains("--encoding"), "{plain}");
    let named = run("b", "--encoding cp1251");
    assert!(named.contains("1 file read as windows-1251") && !named.contains("skipped"), "{named}");
    let config = std::fs::read_to_string(dir.join("b/config.toml")).unwrap();
    assert!(config.contains("encoding = \"cp1251\""), "{config}");
    refused(
        &with(&tiny_run(&data, &dir.join("c"), 6), "--encoding ebcdic"),
        1,
        &["--encoding ebcdic is unknown", "cp1251"],
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_missing_file() {
    let dir = folder("missing");
    refused(&tiny_run(Path::new("/nowhere/at/all.txt"), &dir.join("run"), 5), 1, &["/nowhere/at/all.txt"]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_token_outside_the_vocabulary() {
    let dir = folder("tokens");
    let shard = dir.join("train.bin");
    std::fs::write(&shard, (0..2000u16).flat_map(u16::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let config = dir.join("small.toml");
    std::fs::write(&config, "vocab = 100\n").unwrap();
    let args = with(&tiny_run(&shard, &dir.join("run"), 5), &format!("--config {}", config.display()));
    refused(&args, 1, &["the vocabulary has 100 tokens"]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_character_the_tokenizer_does_not_know() {
    let dir = folder("unknown");
    let (data, run) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    assert!(netcl().args(tiny_run(&data, &run, 6)).status().unwrap().success());
    let args = ["generate", "-m", &run.display().to_string(), "-p", "1 plus §", "--device", &device()]
        .map(String::from);
    refused(&args, 1, &["§"]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn options_that_cannot_be() {
    let dir = folder("options");
    let data = dir.join("text.txt");
    write_text(&data);
    let run = tiny_run(&data, &dir.join("run"), 5);
    refused(&with(&run, "--heads 5"), 1, &["--heads 5 does not divide --width 32", "4, 8"]);
    refused(&with(&run, "--device nowhere:3"), 3, &["no device \"nowhere:3\"", "There are"]);
    refused(&with(&run, "--preset nothing"), 2, &["invalid value 'nothing'", "demo"]);
    refused(&with(&run, "--lr fast"), 2, &["--lr"]);
    refused(&with(&run, "--no-such-flag"), 2, &["--no-such-flag"]);
    refused(&with(&run, "--schedule zigzag"), 2, &["zigzag", "cosine"]);
    refused(&["train".into(), "--resume".into(), dir.display().to_string()], 1, &["not a run folder"]);
    assert!(!dir.join("run").exists(), "a refused run leaves no folder");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_checkpoint_of_another_shape_or_type() {
    let dir = folder("shapes");
    let (data, run) = (dir.join("text.txt"), dir.join("run"));
    write_text(&data);
    assert!(netcl().args(tiny_run(&data, &run, 6)).status().unwrap().success());
    let model = run.join("checkpoints/last");
    let generate =
        ["generate", "-m", &model.display().to_string(), "-p", "1", "--device", &device()].map(String::from);
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"n_positions\": 16", "\"n_positions\": 32")).unwrap();
    refused(&generate, 1, &["transformer.wpe.weight has shape [16, 32], expected [32, 32]"]);
    std::fs::write(&config, text.replace("\"gpt2\"", "\"mamba\"")).unwrap();
    refused(&generate, 1, &["model_type is \"mamba\""]);
    std::fs::write(&config, &text).unwrap();
    let weights = model.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let at =
        |what: &[u8], from: usize| from + bytes[from..].windows(what.len()).position(|w| w == what).unwrap();
    let header = at(b"\"F32\"", at(b"transformer.wte.weight", 0));
    let mut wrong = bytes.clone();
    wrong[header..header + 5].copy_from_slice(b"\"I32\"");
    std::fs::write(&weights, &wrong).unwrap();
    refused(&generate, 1, &["is I32, expected F32"]);
    std::fs::remove_file(&weights).unwrap();
    refused(&generate, 1, &["model.safetensors"]);
    refused(&["generate", "-m", "/nowhere", "-p", "x"].map(String::from), 1, &["/nowhere contains no model"]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Formerly conversations were used for training with their braces and keys.
#[test]
fn records_are_refused_by_their_format_unless_they_are_wanted_as_text() {
    let dir = folder("records");
    let (data, run) = (dir.join("chat.jsonl"), dir.join("run"));
    let line = "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}\n";
    std::fs::write(&data, line.repeat(40)).unwrap();
    let args = tiny_run(&data, &run, 6);
    refused(&args, 1, &["chat.jsonl", "chat messages", "--as-text"]);
    let output = netcl().args(with(&args, "--as_text --max_iters 5")).output().unwrap();
    assert!(output.status.success(), "{}", texts(&output).1);
    assert!(std::fs::read_to_string(run.join("config.toml")).unwrap().contains("as_text = true"));
    std::fs::remove_dir_all(dir).unwrap();
}

/// Formerly this was an unknown flag `-1`.
#[test]
fn a_negative_rate_is_refused_with_its_range() {
    let dir = folder("negative");
    let data = dir.join("text.txt");
    write_text(&data);
    for (flag, part) in [
        ("--lr -1", "--lr -1 must be above 0"),
        ("--weight_decay -0.5", "--weight-decay -0.5 must be at least 0"),
    ] {
        refused(&with(&tiny_run(&data, &dir.join("run"), 6), flag), 1, &[part]);
    }
    refused(
        &with(&tiny_run(&data, &dir.join("run"), 6), "--batch -3"),
        2,
        &["--batch", "a whole number of at least 0"],
    );
    std::fs::remove_dir_all(dir).unwrap();
}
