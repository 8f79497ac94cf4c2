//! Optimizers of `netcl train`: each one trains, resumes to the same bits, and is not exchanged within a run.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use crate::common;

use common::{folder, netcl, texts, tiny_run, write_text};
use std::path::Path;

/// Files of the last checkpoint.
fn last(run: &Path) -> [Vec<u8>; 2] {
    ["model.safetensors", "optimizer.safetensors"]
        .map(|file| std::fs::read(run.join("checkpoints/last").join(file)).unwrap())
}

fn train(args: &[String]) -> (i32, String) {
    let output = netcl().args(args).output().unwrap();
    (output.status.code().unwrap(), texts(&output).1)
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split_whitespace().map(Into::into)
}

#[test]
fn every_optimizer_trains_and_resumes_to_the_same_bits() {
    let dir = folder("optimizers");
    let data = dir.join("text.txt");
    write_text(&data);
    let mut seen = Vec::new();
    for flags in ["adamw", "adam", "lion --lr 1e-4 --min-lr 1e-5", "sgd --momentum 0.9", "sgd"] {
        let name = flags.replace(' ', "_");
        let (whole, halves) = (dir.join(format!("{name}-whole")), dir.join(format!("{name}-halves")));
        let arguments = |out: &Path| {
            let mut args = tiny_run(&data, out, 12);
            args.extend(words("--checkpoint-every 6 --keep 9 --eval-every 0 --optimizer"));
            args.extend(words(flags));
            args
        };
        let (code, err) = train(&arguments(&whole));
        assert_eq!(code, 0, "{flags}: {err}");
        let settings = std::fs::read_to_string(whole.join("config.toml")).unwrap();
        let optimizer = flags.split(' ').next().unwrap();
        assert!(settings.contains(&format!("optimizer = \"{optimizer}\"")), "{settings}");
        // The same run continues from step 6.
        assert_eq!(train(&arguments(&halves)).0, 0);
        std::fs::remove_dir_all(halves.join("checkpoints/step-00000012")).unwrap();
        let (code, err) = train(&["train".into(), "--resume".into(), halves.display().to_string()]);
        assert!(code == 0 && err.contains("from step 6"), "{flags}: {err}");
        assert!(last(&whole) == last(&halves), "{flags}");
        seen.push(last(&whole)[0].clone());
    }
    for (i, weights) in seen.iter().enumerate() {
        assert!(!seen[..i].contains(weights), "two optimizers give the same weights");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn an_optimizer_that_does_not_fit_is_refused() {
    let dir = folder("optimizer-refused");
    let data = dir.join("text.txt");
    write_text(&data);
    let out = dir.join("run");
    let with = |flags: &str| {
        let mut args = tiny_run(&data, &out, 6);
        args.extend(words(flags));
        train(&args)
    };
    let (code, err) = with("--optimizer adagrad");
    assert!(code == 2 && err.contains("adamw, adam, lion, sgd"), "{code}: {err}");
    let (code, err) = with("--momentum 0.9");
    assert!(code != 0 && err.contains("--optimizer sgd") && !out.exists(), "{code}: {err}");
    assert_eq!(with("--optimizer sgd").0, 0);
    let resume = words("train --resume").chain([out.display().to_string()]).chain(words("--optimizer adamw"));
    let (code, err) = train(&resume.collect::<Vec<_>>());
    assert!(code != 0 && err.contains("--optimizer \"adamw\", the run has \"sgd\""), "{code}: {err}");
    std::fs::remove_dir_all(dir).unwrap();
}
