//! Damaged and hostile files: for any changed byte or field, the result is an error or a working model. No panic, no abort, no hang, and no more
//! memory than planned.
//!
//! `NETCL_MUTATIONS` is the number of attempts.

use super::{Observer, Trainer};
use crate::config::{Overlay, TrainConfig};
use netcl_device::draw::Draw;
use netcl_model::checkpoint::{INDEX_FILE, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE};
use netcl_model::folder::model_from_dir;
use netcl_model::generate::{Generation, Sampling};
use netcl_tensor::Device;
use netcl_tensor::suite::test_device;
use serde_json::{Value, json};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

const DEFAULT: u64 = 100;
/// Kernels are compiled once; after that a case takes far less than a second.
const SECONDS: u64 = 60;
/// Allowed memory in addition to that used for intact files. The models take kilobytes.
const MORE_MEMORY: u64 = 256 << 20;

fn count() -> u64 {
    std::env::var("NETCL_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(DEFAULT)
}

/// Damages files at random.
struct Damage(Draw);

impl Damage {
    fn next(&mut self) -> u64 {
        self.0.word()
    }
    fn below(&mut self, n: usize) -> usize {
        self.0.below(n)
    }
    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        self.0.pick(all).clone()
    }

    /// Flips, cuts, duplicates or inserts bytes.
    fn bytes(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.splice(at..at, [self.next() as u8; 3]).for_each(drop),
                2 => {
                    let part = bytes[at..(at + 40).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part).for_each(drop);
                }
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
        }
    }

    /// Replaces a value somewhere in `json`, or renames or removes a key.
    fn json(&mut self, json: &mut Value) {
        let deeper = self.below(4) > 0;
        match json {
            Value::Object(map) if deeper && !map.is_empty() => {
                let keys: Vec<String> = map.keys().cloned().collect();
                let key = self.of(&keys);
                match self.below(8) {
                    0 => drop(map.remove(&key)),
                    1 => {
                        let value = map.remove(&key).unwrap();
                        map.insert(format!("{key}{}", self.of(&["_", "/../x", "s", "\u{0}"])), value);
                    }
                    2 => {
                        let value = map[&key].clone();
                        map.insert(self.of(&keys), value);
                    }
                    _ => self.json(map.get_mut(&key).unwrap()),
                }
            }
            Value::Array(all) if deeper && !all.is_empty() => {
                let at = self.below(all.len());
                self.json(&mut all[at]);
            }
            _ => *json = self.value(),
        }
    }

    fn value(&mut self) -> Value {
        self.of(&[
            json!(0),
            json!(1),
            json!(-1),
            json!(0.5),
            json!(3),
            json!(i32::MAX),
            json!(1u64 << 31),
            json!(1u64 << 32),
            json!((1u64 << 53) + 1),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(1e308),
            json!(-1e-300),
            json!(null),
            json!(true),
            json!(false),
            json!(""),
            json!("../../../etc/passwd"),
            json!("F64"),
            json!("a".repeat(5000)),
            json!([]),
            json!({}),
            json!([1, 2, 3]),
            json!({ "a": { "b": [1] } }),
        ])
    }

    /// Writes a file of `kind` with a defect.
    fn file(&mut self, path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let raw = self.below(3) == 0;
        if raw {
            self.bytes(&mut bytes);
        } else if name.ends_with(".safetensors") {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            self.json(&mut header);
            let header = header.to_string().into_bytes();
            let claimed = match self.below(6) {
                0 => self.of(&[0, u64::MAX, 1 << 40, bytes.len() as u64, header.len() as u64 + 1]),
                _ => header.len() as u64,
            };
            bytes = [&claimed.to_le_bytes()[..], &header, &bytes[8 + length..]].concat();
        } else if name.ends_with(".toml") {
            // Replaces the value of a line.
            let text = String::from_utf8(bytes).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            let at = self.below(lines.len());
            let key = lines[at].split(" = ").next().unwrap();
            let changed = format!("{key} = {}", self.value());
            bytes = [&lines[..at], &[changed.as_str()], &lines[at + 1..]].concat().join("\n").into_bytes();
        } else {
            let mut json: Value = serde_json::from_slice(&bytes).unwrap();
            for _ in 0..=self.below(2) {
                self.json(&mut json);
            }
            bytes = json.to_string().into_bytes();
        }
        fs::write(path, bytes).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() && !path.is_symlink() {
            copy(&path, &target)
        } else if path.is_file() {
            drop(fs::copy(&path, target))
        }
    }
}

/// Returns bytes of this process: the line of `/proc/self/status` with that name.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|l| l.strip_prefix(line));
    found.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// Stops after a few steps.
struct Few(u32);

impl Observer for Few {
    fn should_stop(&mut self) -> bool {
        self.0 += 1;
        self.0 > 2
    }
}

fn config(data: &Path) -> TrainConfig {
    let overlay = Overlay {
        preset: Some("demo-tiny".into()),
        layers: Some(1),
        width: Some(16),
        context: Some(8),
        batch: Some(2),
        steps: Some(8),
        warmup: Some(2),
        checkpoint_every: Some(4),
        sample_every: Some(0),
        data: Some(vec![data.display().to_string()]),
        ..Overlay::default()
    };
    TrainConfig::resolve(None, &overlay).unwrap()
}

/// Creates a run of 4 of 8 steps, and a model folder of several files.
fn whole(device: &Device, dir: &Path) -> (PathBuf, PathBuf) {
    struct Half(u32);
    impl Observer for Half {
        fn should_stop(&mut self) -> bool {
            self.0 += 1;
            self.0 == 4
        }
    }
    let data = dir.join("data.txt");
    fs::write(&data, "all work and no play makes a dull day\n".repeat(20)).unwrap();
    let (run, model) = (dir.join("run"), dir.join("model"));
    Trainer::create(device, config(&data), &run).unwrap().run(&mut Half(0)).unwrap();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gpt_variants/sharded"), &model);
    fs::copy(run.join("checkpoints/last/tokenizer.json"), model.join("tokenizer.json")).unwrap();
    (run, model)
}

/// Loads a model and generates text: it works, or returns an error.
fn load(device: &Device, dir: &Path) -> bool {
    let Ok((model, tokenizer, _)) = model_from_dir(device, dir, None) else { return false };
    let prompt = tokenizer.and_then(|t| t.encode("a").ok()).filter(|ids| !ids.is_empty()).unwrap_or(vec![0]);
    let Ok(generation) = Generation::new(&model, &prompt, Sampling::default()) else { return false };
    generation.up_to(2).all(|id| id.is_ok())
}

/// Resumes a run: it works, or returns an error.
fn resume(device: &Device, dir: &Path) -> bool {
    let Ok(config) = TrainConfig::resolve(Some(&dir.join("config.toml")), &Overlay::default()) else {
        return false;
    };
    // Settings that are valid but take too long for a test.
    let long = config.batch.saturating_mul(config.grad_accum as usize) > 64;
    match Trainer::resume(device, config, dir) {
        Ok(mut trainer) if !long => trainer.run(&mut Few(0)).is_ok(),
        other => other.is_ok(),
    }
}

/// Recomputes the checksums of a checkpoint, as a malicious program could.
fn seal(dir: &Path) {
    let path = dir.join(STATE_FILE);
    let Ok(mut state) = serde_json::from_slice::<Value>(&fs::read(&path).unwrap()) else { return };
    if !state.is_object() {
        return;
    }
    if let Some(files) = state.get_mut("files").and_then(Value::as_object_mut) {
        for (name, sum) in files {
            if let (Ok(bytes), true) = (fs::read(dir.join(name)), !name.contains('/')) {
                *sum = json!({ "bytes": bytes.len(), "blake3": blake3::hash(&bytes).to_hex().to_string() });
            }
        }
    }
    let zeros = "0".repeat(64);
    state["seal"] = json!(zeros);
    let open = serde_json::to_string_pretty(&state).unwrap();
    let sealed = open.replacen(&zeros, blake3::hash(open.as_bytes()).to_hex().as_str(), 1);
    fs::write(path, sealed).unwrap();
}

#[test]
fn mutated_files_are_refused_or_run() {
    let device = test_device().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (run, model) = whole(&device, dir.path());
    let checkpoint = Path::new("checkpoints/step-00000004");
    let models = ["config.json", "tokenizer.json", INDEX_FILE, "model-00001-of-00003.safetensors"];
    let state = [STATE_FILE, MODEL_FILE, OPTIMIZER_FILE, "tokenizer.json", "config.json"];
    let case = dir.path().join("case");
    assert!(load(&device, &model));
    copy(&run, &case);
    assert!(resume(&device, &case));
    let before = memory("VmHWM:");
    let (mut taken, total) = (0, count());
    for n in 0..total {
        let mut draw = Damage(Draw::new(n));
        let _ = fs::remove_dir_all(&case);
        let of_run = draw.below(2) == 0;
        copy(if of_run { &run } else { &model }, &case);
        let file = match of_run {
            false => PathBuf::from(draw.of(&models)),
            true if draw.below(6) == 0 => PathBuf::from("config.toml"),
            true => checkpoint.join(draw.of(&state)),
        };
        draw.file(&case.join(&file));
        if of_run && draw.below(3) > 0 {
            seal(&case.join(checkpoint));
        }
        let begun = Instant::now();
        let work = || if of_run { resume(&device, &case) } else { load(&device, &case) };
        let whole = catch_unwind(AssertUnwindSafe(work));
        let Ok(ran) = whole else { panic!("mutation {n} of {} panicked", file.display()) };
        assert!(begun.elapsed().as_secs() < SECONDS, "mutation {n} of {}", file.display());
        taken += u64::from(ran);
    }
    let more = memory("VmHWM:").saturating_sub(before);
    eprintln!("{total} mutations: {taken} ran, {} refused, {} MiB more", total - taken, more >> 20);
    assert!(more < MORE_MEMORY, "{} MiB more than for intact files", more >> 20);
    assert!(taken < total && taken > 0);
}
