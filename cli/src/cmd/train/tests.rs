//! Every flag of `netcl train` either changes what a run with images does or is an error that names it.
#![allow(clippy::unwrap_used, clippy::panic)] // tests

use super::{Args, train_images};
use clap::{Arg, Args as _, Command, Parser};
use netcl::prelude::*;
use netcl::train::config::Overlay;
use netcl::train::images::classifier::ClassifierConfig;
use std::path::Path;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Returns a description of the run with images that `line` requests; `None` if clap refuses the line.
fn asked(line: &[&str]) -> Option<Result<String>> {
    let line = Line::try_parse_from([&["train"], line].concat()).ok()?;
    Some(line.args.images().and_then(|request| {
        let mut request = request.unwrap();
        let config = train_images::config(&request)?;
        // Only the effect of these fields counts, and `config` contains it.
        (request.overlay, request.own) = (Overlay::default(), toml::Table::new());
        Ok(format!("{config:?} {request:?}"))
    }))
}

/// Returns the lines to try for a flag after `base`.
fn lines<'a>(base: &[&'a str], flag: &'a str, arg: &'a Arg) -> Vec<Vec<&'a str>> {
    const VALUES: [&str; 15] = [
        "last", "0.8,0.9", "0.0004", "3", "1", "true", "bf16", "off", "block", "char", "highest", "cosine",
        "sgd", "dpo", "sigmoid",
    ];
    let with = |value: Option<&'a str>| [base, &[flag], value.as_slice()].concat();
    let bare = (arg.get_num_args().is_none_or(|n| n.min_values() == 0)).then(|| with(None));
    bare.into_iter().chain(VALUES.into_iter().map(|value| with(Some(value)))).collect()
}

fn run_of_images(dir: &Path) {
    let config = ClassifierConfig { data: "images".into(), ..ClassifierConfig::preset("mnist-cnn").unwrap() };
    std::fs::write(dir.join("config.toml"), toml::to_string(&config).unwrap()).unwrap();
}

#[test]
fn every_flag_has_an_effect_on_images_or_is_refused() {
    let dir = std::env::temp_dir().join(format!("netcl-train-flags-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    run_of_images(&dir);
    let run = dir.to_str().unwrap();
    let command = Args::augment_args(Command::new("train"));
    let (mut taken, mut refused) = (Vec::new(), Vec::new());
    for arg in command.get_arguments() {
        let flag = format!("--{}", arg.get_long().unwrap());
        let both = ["--preset", "mnist-cnn", "--data", "images"];
        let base: Vec<&str> = match flag.as_str() {
            "--data" => both[..2].to_vec(),
            "--preset" => both[2..].to_vec(),
            "--profile-steps" => [&both[..], &["--profile"]].concat(),
            "--elastic" => [&both[..], &["--out", run]].concat(),
            "--resume" => {
                assert!(asked(&["--resume", run]).unwrap().unwrap().contains(run));
                taken.push(flag);
                continue;
            }
            _ => both.to_vec(),
        };
        let before = match flag.as_str() {
            "--data" | "--preset" => asked(&both),
            _ => asked(&base),
        };
        let before = before.unwrap().unwrap();
        let tried: Vec<_> = match flag.as_str() {
            "--preset" => vec![[&base[..], &["--preset", "mnist-lenet"]].concat()],
            _ => lines(&base, &flag, arg),
        };
        let answers: Vec<_> = tried.iter().filter_map(|line| asked(line)).collect();
        let by_name = |e: &Error| e.message().contains(&format!("{flag} is for language models"));
        if answers.iter().any(|a| a.as_ref().is_err_and(by_name)) {
            assert!(answers.iter().all(Result::is_err) && !answers.is_empty(), "{flag}: {answers:?}");
            refused.push(flag);
        } else {
            let differs = answers.iter().any(|a| a.as_ref().is_ok_and(|after| *after != before));
            assert!(differs, "{flag} has no effect on images and is not refused: {answers:?}");
            taken.push(flag);
        }
    }
    for flag in ["--config", "--watchdog", "--zero", "--steps", "--recompute", "--freeze"] {
        assert!(refused.iter().any(|f| f == flag), "{flag} is accepted");
    }
    // The message lists exactly the flags that are accepted.
    let message = train_images::misplaced("steps", "mnist-cnn").message().to_owned();
    let (_, listed) = message.split_once("it takes ").unwrap();
    let mut listed: Vec<&str> = listed.split([',', ' ']).filter(|word| word.starts_with("--")).collect();
    listed.sort_unstable();
    taken.sort_unstable();
    assert_eq!(listed, taken);
    std::fs::remove_dir_all(dir).unwrap();
}
