use super::*;
use netcl_device::draw::Draw;
use netcl_tensor::quant::{F16, F32, Format, Q4_0, Q8_0};
use netcl_tensor::{Error, ErrorKind, Result};
use netcl_test_data::{needs_data, test_data};
use std::path::{Path, PathBuf};

/// Returns the path of test data.
fn shared(path: &str) -> PathBuf {
    test_data!().join(path)
}

fn planned(name: &str, dims: &[usize], format: &'static Format) -> TensorToWrite {
    TensorToWrite { name: name.into(), dims: dims.into(), format }
}

/// A file with a value of each kind and tensors that need padding.
fn plan() -> Plan {
    let mut plan = Plan::default();
    plan.set("general.architecture", Meta::Str("llama".into()));
    plan.set("llama.block_count", Meta::U32(3));
    plan.set("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
    plan.set("general.flag", Meta::Bool(true));
    plan.set("tokenizer.ggml.tokens", Meta::Strs(vec!["<s>".into(), "ä".into(), String::new()]));
    plan.set("tokenizer.ggml.scores", Meta::F32s(vec![0.0, -1.5, f32::MIN]));
    plan.set("tokenizer.ggml.token_type", Meta::I32s(vec![3, 1, -1]));
    plan.set("llama.flags", Meta::Bools(vec![true, false]));
    plan.set("own.u64", Meta::Raw(Kind::U64, (1u64 << 40).to_le_bytes().to_vec()));
    plan.set("own.f64", Meta::Raw(Kind::F64, 0.1f64.to_le_bytes().to_vec()));
    plan.tensors = vec![
        planned("odd", &[3], &F16),
        planned("blocks", &[2, 64], &Q4_0),
        planned("cube", &[2, 3, 5], &F32),
        planned("last", &[1, 32], &Q8_0),
    ];
    plan
}

/// Returns bytes that distinguish tensors.
fn fill(plan: &Plan, i: usize) -> Vec<u8> {
    vec![i as u8 + 1; plan.tensors[i].size().unwrap()]
}

fn put(out: &mut dyn std::io::Write, bytes: &[u8]) -> Result<()> {
    out.write_all(bytes).map_err(|e| Error::io("writing", Path::new("test"), &e))
}

fn write(plan: &Plan, path: &Path) {
    plan.write(path, |i, out| put(out, &fill(plan, i))).unwrap();
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error").message().to_owned()
}

#[test]
fn what_is_written_is_read() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = dir.path().join("a.gguf");
    write(&plan, &path);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), plan.size().unwrap());
    let file = Gguf::open(&path).unwrap();
    assert_eq!((file.version(), file.len(), file.alignment(), file.is_empty()), (3, 4, 32, false));
    for (i, (tensor, planned)) in file.tensors().zip(&plan.tensors).enumerate() {
        assert_eq!(
            (tensor.name, tensor.shape(), tensor.format),
            (&*planned.name, &*planned.dims, planned.format)
        );
        assert_eq!(tensor.bytes, fill(&plan, i));
        assert!((tensor.bytes.as_ptr() as usize).is_multiple_of(32), "mapped and aligned");
    }
    assert_eq!(file.tensor("cube").unwrap().row(), 5);
    assert_eq!(file.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(file.size("llama.block_count").unwrap(), Some(3));
    assert_eq!(file.number("llama.attention.layer_norm_rms_epsilon").unwrap(), Some(f64::from(1e-5f32)));
    assert_eq!(file.flag("general.flag").unwrap(), Some(true));
    assert_eq!(file.texts("tokenizer.ggml.tokens").unwrap().unwrap(), ["<s>", "ä", ""]);
    assert_eq!(file.numbers("tokenizer.ggml.scores").unwrap().unwrap(), [0.0, -1.5, f32::MIN]);
    assert_eq!(file.wholes("tokenizer.ggml.token_type").unwrap().unwrap(), [3, 1, -1]);
    assert_eq!(file.wholes("llama.flags").unwrap().unwrap(), [1, 0]);
    assert_eq!(file.size("own.u64").unwrap(), Some(1 << 40));
    assert_eq!(file.number("own.f64").unwrap(), Some(0.1));
    assert_eq!(file.size("none").unwrap(), None);
    // Writing everything that was read gives the same file.
    let mut again = Plan::default();
    for key in file.keys() {
        let (name, kind, bytes) = key.unwrap();
        again.set(name, Meta::Raw(kind, bytes.into()));
    }
    again.tensors = plan.tensors.clone();
    let copy = dir.path().join("b.gguf");
    let tensors: Vec<_> = file.tensors().collect();
    again.write(&copy, |i, out| put(out, tensors[i].bytes)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&copy).unwrap());
}

#[test]
fn getters_name_file_key_expected_and_found() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = dir.path().join("a.gguf");
    write(&plan, &path);
    let file = Gguf::open(&path).unwrap();
    for (found, part) in [
        (
            message(file.size("general.architecture")),
            "general.architecture is \"llama\", expected a whole number of at least 0",
        ),
        (
            message(file.size("tokenizer.ggml.token_type")),
            "tokenizer.ggml.token_type is an array of 3 I32, expected a whole number",
        ),
        (message(file.text("llama.block_count")), "llama.block_count is 3, expected a string"),
        (message(file.flag("llama.block_count")), "expected true or false"),
        (message(file.number("general.flag")), "general.flag is true, expected a number"),
        (
            message(file.texts("tokenizer.ggml.scores")),
            "tokenizer.ggml.scores is 0, expected a list of strings",
        ),
        (message(file.wholes("tokenizer.ggml.scores")), "expected a list of whole numbers"),
        (message(file.needed::<usize>("llama.x", "a size", None)), "llama.x is missing, expected a size"),
    ] {
        assert!(found.contains(part) && found.contains("a.gguf"), "{found} has not: {part}");
    }
}

#[test]
fn alignment_is_followed() {
    let (dir, mut plan) = (tempfile::tempdir().unwrap(), plan());
    for alignment in [1, 8, 64, 4096] {
        plan.set("general.alignment", Meta::U32(alignment));
        let path = dir.path().join("a.gguf");
        write(&plan, &path);
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.alignment(), alignment as usize);
        assert!(file.tensors().enumerate().all(|(i, tensor)| tensor.bytes == fill(&plan, i)));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), plan.size().unwrap());
    }
    plan.set("general.alignment", Meta::U32(12));
    assert!(message(plan.write(&dir.path().join("b"), |_, _| Ok(()))).contains("a power of two"));
}

#[test]
fn a_failed_write_leaves_what_was_there() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = dir.path().join("a.gguf");
    std::fs::write(&path, "old").unwrap();
    let failing = |i: usize, out: &mut dyn std::io::Write| match i {
        2 => Err(Error::format("no such tensor")),
        _ => put(out, &fill(&plan, i)),
    };
    assert!(message(plan.write(&path, failing)).contains("no such tensor"));
    assert!(message(plan.write(&path, |_, _| Ok(()))).contains("odd: 0 bytes, expected 6"));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let mut twice = plan.clone();
    twice.tensors.push(planned("odd", &[1], &F32));
    assert!(message(twice.write(&path, |_, _| Ok(()))).contains("two tensors are named odd"));
    let wrong = Plan { tensors: vec![planned("w", &[2, 33], &Q4_0)], ..Plan::default() };
    assert!(message(wrong.write(&path, |_, _| Ok(()))).contains("w: shape [2, 33] cannot be stored in Q4_0"));
    let missing = plan.write(&dir.path().join("none/a.gguf"), |_, _| Ok(()));
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn damaged_headers_are_named() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = dir.path().join("a.gguf");
    write(&plan, &path);
    let good = std::fs::read(&path).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        message(Gguf::open(&path))
    };
    let place = |text: &str| good.windows(text.len()).position(|w| w == text.as_bytes()).unwrap();
    // After the name of a tensor: axes u32, lengths u64, format u32, offset u64.
    let odd = place("odd") + 3;
    for (found, part) in [
        (with(&|b| b.truncate(2)), "shorter than a header"),
        (with(&|b| b[..4].copy_from_slice(b"PK\x03\x04")), "it starts with PK\\x03\\x04"),
        (with(&|b| b[..4].copy_from_slice(b"tjgg")), "an older format"),
        (with(&|b| b[4] = 1), "version 1 of the GGUF format, expected 2 or 3"),
        (with(&|b| b[4..8].copy_from_slice(&[0, 0, 0, 3])), "big-endian"),
        (with(&|b| b[8..16].fill(255)), "a header of 18446744073709551615 tensors"),
        (with(&|b| b[16..24].fill(127)), "keys, but the file has room for"),
        (with(&|b| b[24..32].fill(255)), "key 0 of 10: a length of 18446744073709551615 at byte 24"),
        (with(&|b| b[place("general.flag") + 16] = 2), "key 3 of 10: a truth value of 2"),
        (with(&|b| b[place("general.flag") + 12] = 77), "key 3 of 10: a value of type 77"),
        (
            with(&|b| b[place("general.flag")..][..12].copy_from_slice(b"general.\xff\xff\xff\xff")),
            "not valid UTF-8",
        ),
        (with(&|b| b[place("own.f64")..][..7].copy_from_slice(b"own.u64")), "two keys are named \"own.u64\""),
        (with(&|b| b[place("cube")..][..4].copy_from_slice(b"last")), "two tensors are named \"last\""),
        (with(&|b| b[odd] = 5), "tensor 0 of 4: \"odd\" at byte"),
        (with(&|b| b[odd] = 0), "0 axes, expected 1 to 4"),
        (with(&|b| b[odd + 4] = 0), "an axis of 0 elements"),
        (with(&|b| b[odd + 12] = 99), "elements of ggml's type 99"),
        (with(&|b| b[odd + 12] = 2), "shape [3] in Q4_0, whose blocks have 32"),
        (with(&|b| b[odd + 16] = 1), "not a multiple of the alignment, 32"),
        (with(&|b| b[odd + 16] = 32), "share bytes"),
        (with(&|b| b.truncate(b.len() - 40)), "the file is cut off or damaged"),
    ] {
        assert!(found.contains(part) && found.contains("a.gguf"), "{found} has not: {part}");
    }
}

#[test]
fn split_files_are_one_model() {
    let (dir, whole) = (tempfile::tempdir().unwrap(), plan());
    let path = |i: usize| dir.path().join(format!("m-{i:05}-of-00002.gguf"));
    let number = |n: u16| Meta::Raw(Kind::U16, n.to_le_bytes().to_vec());
    let part = |i: u16, tensors: &[TensorToWrite]| {
        let mut plan = if i == 0 { plan() } else { Plan::default() };
        plan.set("split.no", number(i));
        plan.set("split.count", number(2));
        plan.set("split.tensors.count", Meta::Raw(Kind::I32, 4i32.to_le_bytes().to_vec()));
        plan.tensors = tensors.to_vec();
        plan
    };
    let parts = [part(0, &whole.tensors[..1]), part(1, &whole.tensors[1..])];
    let put = |i: usize| write(&parts[i], &path(i + 1));
    put(0);
    assert!(message(Gguf::open(&path(1))).contains("m-00002-of-00002.gguf"));
    put(1);
    for i in [1, 2] {
        let file = Gguf::open(&path(i)).unwrap();
        assert_eq!(file.tensors().map(|t| t.name).collect::<Vec<_>>(), ["odd", "blocks", "cube", "last"]);
        assert_eq!(file.text("general.architecture").unwrap(), Some("llama"));
        assert_eq!(file.paths().count(), 2);
    }
    std::fs::copy(path(1), dir.path().join("x.gguf")).unwrap();
    assert!(message(Gguf::open(&dir.path().join("x.gguf"))).contains("must end in -00001-of-00002.gguf"));
    std::fs::copy(path(1), path(2)).unwrap();
    assert!(message(Gguf::open(&path(1))).contains("it claims to be part 0 of 2, expected 1 of 2"));
    write(&part(1, &whole.tensors[..2]), &path(2));
    assert!(message(Gguf::open(&path(1))).contains("split.tensors.count is 4, but the 2 files have 3"));
    write(&part(1, &whole.tensors[..3]), &path(2));
    assert!(message(Gguf::open(&path(1))).contains("two of its files have a tensor odd"));
}

#[needs_data("models/stories260K")]
#[test]
fn a_real_file_is_read() {
    let path = shared("models/stories260K/gguf/stories260K-q4_k_m.gguf");
    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(file.size("llama.embedding_length").unwrap(), Some(64));
    assert_eq!(file.texts("tokenizer.ggml.tokens").unwrap().unwrap().len(), 512);
    let down = file.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((down.shape(), down.format), (&[64, 172][..], &F16));
}

/// Reads everything that the interface offers.
fn read_all(path: &Path) -> Result<usize> {
    let file = Gguf::open(path)?;
    let mut bytes = 0;
    for key in file.keys() {
        let name = key?.0.to_owned();
        let _ = (file.size(&name), file.number(&name), file.flag(&name), file.text(&name));
        let _ = (file.texts(&name), file.numbers(&name), file.wholes(&name));
    }
    for tensor in file.tensors() {
        bytes += tensor.bytes.len() + tensor.count();
    }
    Ok(bytes)
}

/// Flips bytes, sets them to extremes, truncates, duplicates, inserts; mostly in the header, which is parsed.
fn damage(draw: &mut Draw, bytes: &mut Vec<u8>, header: usize) {
    for _ in 0..=draw.below(3) {
        let within = if draw.below(8) == 0 { bytes.len() } else { header.min(bytes.len()) };
        let at = draw.below(within);
        match draw.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.splice(at..at, [0xff; 3]).for_each(drop),
            2 => {
                let part = bytes[at..(at + 40).min(bytes.len())].to_vec();
                bytes.splice(at..at, part).for_each(drop);
            }
            3 => {
                let end = (at + 8).min(bytes.len());
                let with = [0, 0x7f, 0x80, 0xff][draw.below(4)];
                bytes[at..end].fill(with);
            }
            4 => {
                let end = (at + 1 + draw.below(16)).min(bytes.len());
                bytes.drain(at..end).for_each(drop);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << draw.below(8);
                }
            }
        }
    }
}

/// For any change of a byte, the result is an error that names the file, or a file; never a panic or a hang. The bounds at the start of `part.rs`
/// ensure that nothing larger than the file is allocated. A damaged count would otherwise show as an abort here. `NETCL_MUTATIONS` sets the number of
/// attempts.
#[test]
fn mutated_files_are_errors_or_files() {
    let count = std::env::var("NETCL_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = dir.path().join("m.gguf");
    write(&plan, &path);
    let good = std::fs::read(&path).unwrap();
    let header =
        good.len() - plan.tensors.iter().map(|t| t.size().unwrap().next_multiple_of(32)).sum::<usize>();
    let (mut draw, start, mut refused) = (Draw::new(0x9e37_79b9), std::time::Instant::now(), 0);
    for i in 0..count {
        let mut bytes = good.clone();
        damage(&mut draw, &mut bytes, header);
        std::fs::write(&path, &bytes).unwrap();
        let before = start.elapsed();
        if let Err(error) = read_all(&path) {
            assert!(error.message().contains("m.gguf"), "case {i}: {error}");
            refused += 1;
        }
        assert!((start.elapsed() - before).as_secs() < 10, "case {i} hangs");
    }
    assert!(refused * 2 > count, "{refused} of {count} were refused");
}
