use super::*;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

fn tensor(name: &str, dtype: FileDtype, shape: &[usize], seed: u64) -> TensorData {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    let bytes = (0..bytes as u64).map(|i| (i.wrapping_mul(seed + 7) >> 3) as u8).collect();
    TensorData { name: name.into(), dtype, shape: shape.into(), bytes }
}

/// A checkpoint whose content is a function of its step.
fn checkpoint(step: u64, width: usize) -> Checkpoint {
    let state = State {
        step,
        position: Position { seed: 3, step, micro: 0 },
        rng: Rng { seed: 3, counter: step * 10 },
        val_loss: Some(1.0 / (step + 3) as f64),
        best_loss: Some(0.1 + step as f64),
        best_step: Some(step),
        ..State::default()
    };
    Checkpoint {
        optimizer_files: 0,
        state,
        model: vec![
            tensor("transformer.wte.weight", FileDtype::F32, &[width, 4], step),
            tensor("half", FileDtype::BF16, &[3], step),
            tensor("scalar", FileDtype::F32, &[], step),
            tensor("none", FileDtype::F32, &[0, 4], step),
        ],
        optimizer: vec![tensor("exp_avg.wte", FileDtype::F32, &[width, 8], step)],
        files: vec![("config.json".into(), b"{}".to_vec()), ("tokenizer.json".into(), vec![b' '; 50])],
    }
}

/// The content of a checkpoint for comparison: without fields that saving fills in, tensors sorted by name.
fn content(mut checkpoint: Checkpoint) -> Checkpoint {
    checkpoint.state =
        State { seal: String::new(), format: 0, files: Default::default(), ..checkpoint.state };
    checkpoint.model.sort_by(|a, b| a.name.cmp(&b.name));
    checkpoint
}

fn store(keep: usize) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("checkpoints"), keep);
    (dir, store)
}

fn names(store: &Store) -> Vec<String> {
    let dir = store.path(0).parent().unwrap().to_owned();
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_is_saved_is_loaded() {
    let (_dir, store) = store(3);
    assert!(store.latest().unwrap().is_none() && store.best().is_none() && store.last().is_none());
    let path = store.save(&checkpoint(1000, 16), false).unwrap();
    assert!(path.ends_with("checkpoints/step-00001000"));
    let loaded = Checkpoint::load(&path).unwrap();
    assert_eq!(content(loaded.clone()), content(checkpoint(1000, 16)));
    assert_eq!(loaded.file("config.json").unwrap(), b"{}");
    assert!(loaded.file("x.json").unwrap_err().message().contains("x.json"));
    let latest = store.latest().unwrap().unwrap();
    assert_eq!((latest.path, latest.state, latest.warnings), (path.clone(), loaded.state, vec![]));
    assert_eq!((store.last(), store.best()), (Some(path), None));
}

/// f64 is rounded to f32 to nearest, ties to even, also for subnormal results.
#[test]
fn f64_is_rounded_once_to_f32_and_refused_beyond_its_range() {
    let of = |values: &[f64]| TensorData {
        name: "w".into(),
        dtype: FileDtype::F64,
        shape: vec![values.len()],
        bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let half = f64::from(f32::EPSILON) / 2.0;
    let exact = [1.0 + half, 1.0 + 1.01 * half, 1.0 + 3.0 * half, 0.1, -0.0, 1e-45, 1e-60, -2e38];
    let one = 1.0 + f32::EPSILON;
    let rounded = [1.0, one, 1.0 + 2.0 * f32::EPSILON, 0.1, -0.0, 1e-45, 0.0, -2e38f32];
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&of(&exact).floats().unwrap()), bits(&rounded));
    let special = of(&[f64::INFINITY, f64::NEG_INFINITY, f64::NAN]).floats().unwrap();
    assert!(special[0] == f32::INFINITY && special[1] == f32::NEG_INFINITY && special[2].is_nan());
    let error = of(&[0.0, -1e39]).floats().unwrap_err().to_string();
    assert!(error.contains("w: element 1 is -1e39, beyond the range of f32"), "{error}");
}

#[test]
fn the_file_is_what_the_safetensors_library_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let made = checkpoint(5, 3).model;
    let sum = write_tensors(&path, &made).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!((sum.bytes, sum.blake3), (bytes.len() as u64, blake3::hash(&bytes).to_hex().to_string()));
    let (header, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let mut read = read_tensors(&path).unwrap();
    assert_eq!(read.last().unwrap().name, "half");
    read.sort_by_key(|tensor| made.iter().position(|other| other.name == tensor.name));
    assert_eq!(read, made);
    write_tensors(&path, &[]).unwrap();
    assert!(read_tensors(&path).unwrap().is_empty());
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let good = tensor("a", FileDtype::F32, &[2], 0);
    let message = write_tensors(&path, &[good.clone(), good.clone()]).unwrap_err().to_string();
    assert!(message.contains("two tensors are named a"), "{message}");
    let message =
        write_tensors(&path, &[TensorData { shape: vec![3], ..good.clone() }]).unwrap_err().to_string();
    assert!(message.contains("a: F32 of shape [3] does not match 8 bytes"), "{message}");
    assert!(write_tensors(&path, &[TensorData { shape: vec![usize::MAX, 2], ..good }]).is_err());
    fs::write(&path, b"short").unwrap();
    let message = read_tensors(&path).unwrap_err().to_string();
    assert!(message.contains("x.safetensors: not a complete safetensors file"), "{message}");
}

/// Saves and verifies files in folders: modules of `sentence-transformers` have one each.
#[test]
fn files_in_a_folder_are_saved_and_verified() {
    let (_dir, store) = store(2);
    let mut whole = checkpoint(10, 2);
    whole.files.push(("1_Pooling/config.json".into(), b"{}".to_vec()));
    let path = store.save(&whole, false).unwrap();
    let file = path.join("1_Pooling/config.json");
    assert_eq!(fs::read(&file).unwrap(), b"{}");
    assert_eq!(Checkpoint::load(&path).unwrap().file("1_Pooling/config.json").unwrap(), b"{}");
    fs::write(&file, "[]").unwrap();
    let message = State::verify(&path).unwrap_err().to_string();
    assert!(message.contains("1_Pooling/config.json is damaged"), "{message}");
    for name in ["../x", "a/b/c", "/x", "a/", "model.safetensors"] {
        let mut wrong = checkpoint(20, 2);
        wrong.files.push((name.into(), Vec::new()));
        let message = store.save(&wrong, false).unwrap_err().to_string();
        assert!(message.contains("cannot be the name"), "{name}: {message}");
    }
}

#[test]
fn pruning_keeps_the_newest_the_best_and_the_last() {
    let (_dir, store) = store(2);
    for step in [10, 20, 30, 40, 50] {
        store.save(&checkpoint(step, 2), step == 20).unwrap();
    }
    assert_eq!(names(&store), ["best", "last", "step-00000020", "step-00000040", "step-00000050"]);
    assert_eq!((store.best(), store.last()), (Some(store.path(20)), Some(store.path(50))));
    let best = Checkpoint::load(&store.path(0).with_file_name("best")).unwrap();
    assert_eq!(best.state.step, 20);
}

#[test]
fn leftovers_are_ignored_then_removed() {
    let (_dir, store) = store(9);
    store.save(&checkpoint(10, 2), false).unwrap();
    let torn = store.path(20).with_file_name("step-00000020.tmp-1");
    fs::create_dir(&torn).unwrap();
    fs::write(torn.join(STATE_FILE), "{").unwrap();
    fs::write(store.path(20).with_file_name("last.tmp-1"), "").unwrap();
    let latest = store.latest().unwrap().unwrap();
    assert_eq!((latest.state.step, latest.warnings.len()), (10, 0));
    store.save(&checkpoint(20, 2), true).unwrap();
    assert_eq!(names(&store), ["best", "last", "step-00000010", "step-00000020"]);
}

#[test]
fn a_step_can_be_saved_again_at_any_interruption() {
    let (_dir, store) = store(9);
    let path = store.save(&checkpoint(10, 2), false).unwrap();
    store.save(&checkpoint(10, 3), false).unwrap();
    assert_eq!(content(Checkpoint::load(&path).unwrap()), content(checkpoint(10, 3)));
    assert_eq!(names(&store), ["last", "step-00000010"]);
    // Killed between the two renames: the old one still counts, and gets its name back.
    let replaced = path.with_file_name("step-00000010.replaced");
    fs::rename(&path, &replaced).unwrap();
    let latest = store.latest().unwrap().unwrap();
    assert_eq!((latest.path, latest.state.step), (replaced, 10));
    store.save(&checkpoint(20, 2), false).unwrap();
    assert_eq!(names(&store), ["last", "step-00000010", "step-00000020"]);
}

/// Two threads of a process use different temporary names (with one name they removed each other's files).
#[test]
fn two_threads_that_save_into_one_folder_leave_whole_checkpoints() {
    let (_dir, store) = store(100);
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (start, store) = (&start, Store::new(store.path(0).parent().unwrap(), 100));
            scope.spawn(move || {
                start.wait();
                for step in 1..6 {
                    // Two threads save the same steps, and two others save other steps.
                    store.save(&checkpoint(step + thread / 2 * 10, 50), thread == 0).unwrap();
                }
            });
        }
    });
    for step in (1..6).chain(11..16) {
        let loaded = Checkpoint::load(&store.path(step)).unwrap();
        assert_eq!(content(loaded), content(checkpoint(step, 50)));
    }
    assert_eq!(names(&store).len(), 12, "ten checkpoints and two pointers: {:?}", names(&store));
    assert!(store.last().is_some() && store.best() == Some(store.path(5)));
}

#[test]
fn going_back_abandons_what_came_later() {
    let (_dir, store) = store(9);
    for step in [10, 20, 30] {
        store.save(&checkpoint(step, 2), step > 10).unwrap();
    }
    store.rewind(10, Some(10)).unwrap();
    assert_eq!((store.last(), store.best()), (Some(store.path(10)), Some(store.path(10))));
    assert_eq!(store.latest().unwrap().unwrap().state.step, 10);
    store.save(&checkpoint(20, 2), true).unwrap();
    store.rewind(10, None).unwrap();
    assert_eq!(store.best(), None);
    assert!(names(&store).contains(&"step-00000020.abandoned".to_owned()));
    assert!(!names(&store).contains(&"best".to_owned()));
}

/// Damages each file of the newer of two checkpoints with `damage`; expects the older checkpoint and a warning.
fn each_damage_is_named(damage: impl Fn(&[u8], usize) -> Option<Vec<u8>>, parts: &[&str]) {
    let (_dir, store) = store(9);
    store.save(&checkpoint(10, 4), false).unwrap();
    let newest = store.save(&checkpoint(20, 4), false).unwrap();
    let mut tried = 0;
    for file in fs::read_dir(&newest).unwrap() {
        let path = file.unwrap().path();
        let whole = fs::read(&path).unwrap();
        for tenth in 0..10 {
            match damage(&whole, tenth) {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => drop(fs::remove_file(&path)),
            }
            let latest = store.latest().unwrap().unwrap();
            assert_eq!((latest.state.step, latest.warnings.len()), (10, 1), "{} {tenth}", path.display());
            let warning = &latest.warnings[0];
            assert!(warning.contains(&path.display().to_string()), "{warning}");
            assert!(parts.iter().any(|part| warning.contains(part)), "{warning}");
            assert!(Checkpoint::load(&newest).is_err());
            tried += 1;
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(store.latest().unwrap().unwrap().state.step, 20);
    }
    assert_eq!(tried, 50);
}

#[test]
fn truncated_files_are_named() {
    each_damage_is_named(|whole, tenth| Some(whole[..whole.len() * tenth / 10].to_vec()), &["is truncated"]);
}

#[test]
fn missing_files_are_named() {
    each_damage_is_named(|_, _| None, &["is missing"]);
}

#[test]
fn flipped_bits_are_named() {
    let flip = |whole: &[u8], tenth| {
        let mut bytes = whole.to_vec();
        bytes[whole.len() * tenth / 10] ^= 1u8 << (tenth % 7);
        Some(bytes)
    };
    each_damage_is_named(flip, &["is damaged", "is truncated or damaged", "this netcl supports"]);
}

#[test]
fn every_byte_of_the_state_counts() {
    let (_dir, store) = store(9);
    let path = store.save(&checkpoint(20, 4), false).unwrap().join(STATE_FILE);
    let whole = fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        assert!(store.latest().is_err(), "byte {at}, now {:?}", bytes[at] as char);
    }
}

#[test]
fn all_damaged_is_an_error_and_a_newer_format_too() {
    let (_dir, store) = store(9);
    let path = store.save(&checkpoint(10, 4), false).unwrap();
    let state = fs::read_to_string(path.join(STATE_FILE)).unwrap().replace("\"format\": 1", "\"format\": 2");
    fs::write(path.join(STATE_FILE), state).unwrap();
    let message = store.latest().unwrap_err().to_string();
    assert!(message.contains("no checkpoint is intact") && message.contains("has format 2"), "{message}");
}

/// Environment variable that is set in the child process.
const CHILD: &str = "NETCL_TEST_CHECKPOINT_DIR";

/// Child process of the next test: saves checkpoints until it is killed.
#[test]
fn killed_child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let store = Store::new(PathBuf::from(dir), 2);
    let from = store.latest().unwrap().map_or(1, |latest| latest.state.step);
    // Starts with the existing step, so that replacing one is also interrupted.
    for step in from..from + 100_000 {
        store.save(&checkpoint(step, 1000), step % 5 == 0).unwrap();
        println!("saved {step}");
    }
}

#[test]
fn killed_at_ten_moments_and_nothing_lost() {
    let (dir, store) = store(2);
    let mut durable = 0;
    for moment in 0u64..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["checkpoint::tests::killed_child", "--exact", "--nocapture"])
            .env(CHILD, dir.path().join("checkpoints"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let saved = |line: String| line.rsplit_once("saved ").and_then(|(_, step)| step.parse().ok());
        // Odd attempts count from the first save, even ones from the start, so that the first save is also interrupted: it replaces the existing
        // step. The number of microseconds varies.
        if moment % 2 == 1 || moment == 0 {
            durable = lines.by_ref().find_map(|line| saved(line.unwrap())).unwrap();
        }
        std::thread::sleep(Duration::from_micros(moment * 37_919 % 120_000));
        child.kill().unwrap();
        child.wait().unwrap();
        durable = lines.filter_map(|line| saved(line.unwrap())).last().unwrap_or(durable);
        let latest = store.latest().unwrap().unwrap();
        assert!(latest.warnings.is_empty(), "{:?}", latest.warnings);
        // The kill may come between the save and the line that reports it.
        assert!([durable, durable + 1].contains(&latest.state.step), "{} after {durable}", latest.state.step);
        let loaded = Checkpoint::load(&latest.path).unwrap();
        assert_eq!(content(loaded), content(checkpoint(latest.state.step, 1000)));
        assert!(store.last().is_some());
    }
    assert!(durable > 5);
    store.save(&checkpoint(durable + 5, 10), false).unwrap();
    assert!(names(&store).iter().all(|name| !name.contains(".tmp-")), "{:?}", names(&store));
}

/// A small file system in memory, unmounted when dropped. `None` where mounting is not allowed.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(dir: &Path) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(dir).output();
        let mounted = mounted.is_ok_and(|output| output.status.success());
        mounted.then(|| Self(dir.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_stops_with_a_clear_error_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path()) else {
        println!("skipped: this user cannot mount a small tmpfs");
        return;
    };
    let store = Store::new(disk.0.join("checkpoints"), 9);
    let mut step = 10;
    // Each checkpoint has about 28 KiB.
    let error = loop {
        match store.save(&checkpoint(step, 500), step == 10) {
            Ok(_) => step += 10,
            Err(error) => break error,
        }
    };
    assert!(step > 30, "{step}");
    assert_eq!(error.kind(), netcl_device::ErrorKind::Io);
    assert!(
        error.message().contains("No space left") && error.message().contains("free some space"),
        "{error}"
    );
    assert!(names(&store).iter().all(|name| !name.contains(".tmp-")), "{:?}", names(&store));
    for good in (10..step).step_by(10) {
        assert_eq!(content(Checkpoint::load(&store.path(good)).unwrap()), content(checkpoint(good, 500)));
    }
    let latest = store.latest().unwrap().unwrap();
    assert_eq!((latest.state.step, latest.warnings.len()), (step - 10, 0));
    assert_eq!((store.best(), store.last()), (Some(store.path(10)), Some(store.path(step - 10))));
    // With free space again, the next save succeeds.
    fs::remove_dir_all(store.path(20)).unwrap();
    store.save(&checkpoint(step, 500), false).unwrap();
}

/// Adds an entry to the list of files of the checkpoint at `path` and updates the checksum.
fn with_entry(path: &std::path::Path, name: &str, content: &[u8]) {
    let mut state = State::verify(path).unwrap();
    let blake3 = blake3::hash(content).to_hex().to_string();
    state.files.insert(name.into(), FileSum { bytes: content.len() as u64, blake3 });
    state.write(path).unwrap();
}

#[test]
fn a_state_that_names_files_outside_of_its_folder_is_refused() {
    let (dir, store) = store(3);
    let outside = dir.path().join("secret");
    fs::write(&outside, "secret").unwrap();
    let absolute = outside.to_string_lossy().into_owned();
    for (step, name) in
        ["../../secret", &absolute, "../secret", "..", "a/b/secret", "a/..", ""].into_iter().enumerate()
    {
        let path = store.save(&checkpoint(step as u64, 2), false).unwrap();
        with_entry(&path, name, b"secret");
        for error in [Checkpoint::load(&path).unwrap_err(), State::verify(&path).unwrap_err()] {
            let message = error.to_string();
            assert!(
                message.contains("state.json") && message.contains("plain file name"),
                "{name:?}: {message}"
            );
        }
    }
}

#[cfg(unix)]
#[test]
fn a_pointer_out_of_the_folder_points_nowhere() {
    let (dir, store) = store(3);
    let path = store.save(&checkpoint(10, 2), true).unwrap();
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    let pointer = path.with_file_name("best");
    fs::remove_file(&pointer).unwrap();
    std::os::unix::fs::symlink("../elsewhere", &pointer).unwrap();
    assert_eq!(store.best(), None);
}

/// A file replaced between verification and loading is not loaded (two separate mappings used to allow that).
#[test]
fn a_file_that_is_exchanged_while_it_is_loaded_never_comes_in_unverified() {
    let (dir, store) = store(3);
    let good = checkpoint(10, 400);
    let path = store.save(&good, false).unwrap();
    let file = path.join(MODEL_FILE);
    let whole = fs::read(&file).unwrap();
    let mut other = whole.clone();
    let last = other.len() - 1;
    other[last] ^= 1;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (mut loaded, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0.. {
                let aside = dir.path().join("aside");
                fs::write(&aside, if turn % 2 == 0 { &other } else { &whole }).unwrap();
                fs::rename(&aside, &file).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..400 {
            match Checkpoint::load(&path) {
                Ok(read) => {
                    assert!(content(read) == content(good.clone()), "loaded data that was not verified");
                    loaded += 1;
                }
                Err(_) => refused += 1,
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(loaded > 0 || refused > 0);
}

#[test]
fn a_checkpoint_whose_sums_are_right_and_whose_tensors_are_not_is_refused() {
    let (_dir, store) = store(3);
    let path = store.save(&checkpoint(10, 2), false).unwrap();
    let header = |text: &str, data: usize| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.extend(vec![0; data]);
        bytes
    };
    let files = [
        b"short".to_vec(),
        [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat(),
        header("{", 0),
        header("{}", 4),
        header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8),
        header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#, 4),
        header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 0),
        header(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            4,
        ),
        header(r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#, 0),
        header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#, 8),
    ];
    for bytes in files {
        fs::write(path.join(MODEL_FILE), &bytes).unwrap();
        let mut state = State::read(&path).unwrap();
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        state.files.insert(MODEL_FILE.into(), FileSum { bytes: bytes.len() as u64, blake3 });
        state.write(&path).unwrap();
        let error = Checkpoint::load(&path).unwrap_err();
        assert_eq!(error.kind(), netcl_device::ErrorKind::Format, "{error}");
        assert!(error.message().contains(MODEL_FILE), "{error}");
    }
}

/// State in several files equals that in one; a damaged part is named, and the previous checkpoint is used.
#[test]
fn optimizer_state_in_several_files_is_whole_or_refused() {
    let (_dir, store) = store(3);
    let optimizer: Vec<TensorData> =
        (1..6).map(|i| tensor(&format!("w{i}.exp_avg"), FileDtype::F32, &[i * 10, 8], 4)).collect();
    store.save(&checkpoint(3, 5), false).unwrap();
    for files in [2, 3, 5, 9] {
        let saved = Checkpoint { optimizer: optimizer.clone(), optimizer_files: files, ..checkpoint(4, 5) };
        let path = store.save(&saved, false).unwrap();
        let loaded = Checkpoint::load(&path).unwrap();
        assert_eq!((loaded.optimizer.len(), loaded.optimizer_files), (5, files.min(5)));
        assert!(optimizer.iter().all(|t| loaded.optimizer.contains(t)));
        let index = fs::read(path.join(OPTIMIZER_INDEX)).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(json["metadata"]["total_size"], 150 * 8 * 4);
        assert_eq!(json["weight_map"].as_object().unwrap().len(), 5);
        assert!(!path.join(OPTIMIZER_FILE).exists());
    }
    let path = store.path(4);
    let part = path.join("optimizer-00002-of-00005.safetensors");
    let bytes = fs::read(&part).unwrap();
    fs::write(&part, &bytes[..bytes.len() - 1]).unwrap();
    let error = Checkpoint::load(&path).unwrap_err().to_string();
    assert!(error.contains("optimizer-00002-of-00005.safetensors"), "{error}");
    let latest = store.latest().unwrap().unwrap();
    assert_eq!((latest.state.step, latest.warnings.len()), (3, 1));
}
