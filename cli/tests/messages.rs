//! The style of messages: no repeated prefix, no "1 findings", no "please report" for problems outside netcl.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts};
use std::path::Path;
use std::time::{Duration, Instant};

/// Returns the exit code and everything that was printed.
fn said(args: &[&str], dir: &Path) -> (i32, String) {
    let output =
        netcl().args(args).current_dir(dir).env("NETCL_CACHE_DIR", dir.join("cache")).output().unwrap();
    let (out, err) = texts(&output);
    (output.status.code().unwrap_or(-1), out + &err)
}

/// Checks for faults that no message may have.
fn check(args: &[&str], text: &str) {
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let word = pair[0].trim_start_matches('(');
            assert!(!(pair[0] == pair[1] && word.ends_with(':')), "{args:?}: {:?} twice: {line}", pair[0]);
            let noun = pair[1].trim_end_matches(|c: char| !c.is_alphabetic());
            // Words that end in s without being a plural.
            let plural = noun.len() > 3
                && noun.ends_with('s')
                && !["does", "axis", "bias", "loss", "this", "less", "status"].contains(&noun);
            assert!(!(word == "1" && plural), "{args:?}: \"1 {noun}\": {line}");
        }
        assert!(!line.contains("please report"), "{args:?}: {line}");
        assert!(!line.starts_with("error: error:"), "{args:?}: {line}");
    }
}

#[test]
fn no_prefix_comes_twice_and_one_is_singular() {
    let dir = folder("messages");
    let file = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
    file("one.cl", "kernel void k(global int *x) { x[1] = 1; }");
    file("broken.cl", "kernel void k(global int *x) { x[0] = y; }");
    file("none.cl", "");
    let one = ["--global", "1", "--arg", "buffer:i32:1"];
    let with = |args: &[&'static str], more: &[&'static str]| [args, more].concat();
    let runs = [
        with(&["sim", "check", "one.cl"], &one),
        with(&["sim", "check", "one.cl", "--json"], &one),
        with(&["sim", "run", "one.cl", "--check", "all"], &one),
        with(&["sim", "run", "one.cl", "--options", "-nonsense"], &one),
        with(&["sim", "run", "one.cl", "--options", "-D"], &one),
        with(&["sim", "run", "broken.cl"], &one),
        with(&["sim", "run", "none.cl"], &one),
        with(&["sim", "run", "missing.cl"], &one),
        with(&["sim", "run", "one.cl", "--kernel", "other"], &one),
        with(&["sim", "run", "one.cl", "--check", "nonsense"], &one),
        with(&["sim", "run", "one.cl", "--profile", "nonsense"], &one),
        with(&["sim", "run", "one.cl", "--arg", "i32:1"], &one),
        vec!["sim", "run", "one.cl", "--global", "1"],
        vec!["sim", "run", "one.cl", "--global", "1", "--arg", "i32:1"],
        vec!["sim", "check", "one.cl"],
        vec!["cache", "ls"],
        vec!["cache", "clear"],
        vec!["generate", "-m", "missing", "-p", "x"],
        vec!["train", "--data", "missing", "--device", "sim"],
        vec!["devices", "--device", "nonsense:7"],
    ];
    for args in &runs {
        let (_, text) = said(args, &dir);
        assert!(!text.is_empty(), "{args:?}");
        check(args, &text);
    }
    let (code, text) = said(&runs[0], &dir);
    assert!(code == 7 && text.contains("1 finding in kernel k"), "{text}");
    let (code, text) = said(&runs[3], &dir);
    assert!(
        code == 5 && text.contains("error: one.cl does not build") && text.contains("unknown build option"),
        "{text}"
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_endless_kernel_is_ended_by_a_limit_that_can_be_set() {
    let dir = folder("messages-endless");
    std::fs::write(dir.join("spin.cl"), "kernel void k(global volatile int *x) {\n  while (x[0] == 0);\n}")
        .unwrap();
    let run = ["sim", "run", "spin.cl", "--global", "64", "--arg", "buffer:i32:64:zero"];
    for (limit, wanted) in
        [(["--timeout", "0.5"], "after 500ms"), (["--max-steps", "1000"], "after 1000 instructions")]
    {
        let start = Instant::now();
        let args = [run.as_slice(), &limit].concat();
        let (code, text) = said(&args, &dir);
        assert!(code == 6 && text.contains(wanted) && text.contains("spin.cl:2:"), "{code}: {text}");
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }
    std::fs::remove_dir_all(dir).unwrap();
}
