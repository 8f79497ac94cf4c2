//! Readers of files other than a language model's weights: images, classifiers, token shards, settings, device profiles and sampling
//! settings. The seeds have a few bytes each.

use super::readers::Reader;
use netcl::tensor::suite::test_device;
use netcl::tensor::{DType, Device, Error, Result, Settings};
use netcl::train::config::Overlay;
use netcl::train::data::DataSource;
use netcl::train::images::classifier::{Classifier, Description};
use netcl::train::images::data::{Dataset, picture};
use netcl::train::run::{StepMetrics, read_metrics};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// All readers of this file.
pub static OTHERS: [Reader; 9] = [
    Reader {
        name: "idx",
        seeds: "idx",
        files: &[IMAGES, LABELS, "train-images-idx3-ubyte.gz"],
        read: images,
    },
    Reader { name: "cifar", seeds: "cifar", files: &["data_batch_1.bin", "batches.meta.txt"], read: images },
    Reader { name: "picture", seeds: "picture", files: &["a.png"], read: of_picture },
    Reader { name: "photograph", seeds: "photograph", files: &["a.jpg"], read: photograph },
    Reader {
        name: "classifier",
        seeds: "classifier",
        files: &["classifier.json", "model.safetensors"],
        read: classifier,
    },
    Reader { name: "profile", seeds: "profile", files: &["device.toml"], read: profile },
    Reader { name: "shard", seeds: "shard", files: &["train.bin"], read: shard },
    Reader { name: "settings", seeds: "settings", files: &["config.toml"], read: settings },
    Reader { name: "metrics", seeds: "metrics", files: &["metrics.jsonl"], read: metrics },
];

const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";

fn images(folder: &Path) -> Result<()> {
    let all = Dataset::read(folder, 0.1)?;
    let _ = (all.train.statistics(), all.train.len());
    Ok(())
}

fn of_picture(folder: &Path) -> Result<()> {
    picture(&folder.join("a.png"), [3, 8, 8]).map(drop)
}

fn photograph(folder: &Path) -> Result<()> {
    picture(&folder.join("a.jpg"), [3, 8, 8]).map(drop)
}

fn classifier(folder: &Path) -> Result<()> {
    Classifier::open(&test_device().unwrap(), folder).map(drop)
}

fn profile(folder: &Path) -> Result<()> {
    let name = format!("sim:{}", folder.join("device.toml").display());
    let device = Device::open(&name, &Settings::default())?;
    let _ = device.capabilities();
    Ok(())
}

fn shard(folder: &Path) -> Result<()> {
    let path = folder.join("train.bin");
    DataSource::open(&[path])?.into_corpus(None).map(drop)
}

fn settings(folder: &Path) -> Result<()> {
    Overlay::read(&folder.join("config.toml")).map(drop)
}

/// Damaged lines are skipped. A file without valid lines is reported as an error.
fn metrics(folder: &Path) -> Result<()> {
    let records: Vec<StepMetrics> = read_metrics(&folder.join("metrics.jsonl"))?;
    match records.len() {
        3 => Ok(()),
        n => Err(Error::format(format!("{n} records"))),
    }
}

/// Returns the seeds by kind.
pub fn seeds(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    let folder = |name: &str, files: &[(&str, Vec<u8>)]| {
        let at = dir.join(name);
        std::fs::create_dir_all(&at).unwrap();
        files.iter().for_each(|(file, bytes)| std::fs::write(at.join(file), bytes).unwrap());
        at
    };
    let pixels: Vec<u8> = (0..20 * 16).map(|n| (n % 251) as u8).collect();
    let labels: Vec<u8> = (0..20).map(|n| n % 3).collect();
    let idx = |sizes: &[u32], bytes: &[u8]| {
        let magic = 0x800 + sizes.len() as u32;
        let head = [magic].into_iter().chain(sizes.iter().copied()).flat_map(u32::to_be_bytes);
        head.chain(bytes.iter().copied()).collect::<Vec<u8>>()
    };
    let (images, labels) = (idx(&[20, 4, 4], &pixels), idx(&[20], &labels));
    let record = |n: u8| [vec![n % 10], vec![n; 3072]].concat();
    let toml = "batch = 4\nsteps = 100\nlr = 0.001\nlayers = 2\nwidth = 64\nheads = 4\ncontext = 32\n";
    let tokens: Vec<u8> = (0..4000u16).flat_map(|n| (n % 300).to_le_bytes()).collect();
    let head = [20_240_520u32, 1, 4000].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes);
    let headed: Vec<u8> = head.chain(tokens.iter().copied()).collect();
    let line = |step: u64| json!({ "step": step, "time": 1.5, "elapsed": 1.0, "loss": 2.0, "lr": 0.1, "grad_norm": 1.0, "tokens": 5, "tokens_per_s": 3.0, "memory": 7 });
    let lines: String = (1..4).map(|step| format!("{}\n", line(step))).collect();
    vec![
        ("idx", folder("idx", &[(IMAGES, images.clone()), (LABELS, labels.clone())])),
        ("idx", folder("idx-gz", &[("train-images-idx3-ubyte.gz", stored(&images, true)), (LABELS, labels)])),
        (
            "cifar",
            folder(
                "cifar",
                &[
                    ("data_batch_1.bin", (0..12).flat_map(record).collect()),
                    ("batches.meta.txt", (0..10).map(|n| format!("class {n}\n")).collect::<String>().into()),
                ],
            ),
        ),
        ("picture", folder("picture", &[("a.png", png())])),
        ("photograph", folder("photograph", &[("a.jpg", jpeg(false))])),
        ("photograph", folder("photograph-progressive", &[("a.jpg", jpeg(true))])),
        ("classifier", of_classifier(dir)),
        ("profile", folder("profile", &[("device.toml", TEACHING.into())])),
        ("shard", folder("shard", &[("train.bin", headed)])),
        ("settings", folder("settings", &[("config.toml", toml.into())])),
        ("metrics", folder("metrics", &[("metrics.jsonl", lines.into())])),
    ]
}

const TEACHING: &str = include_str!("../../crates/aethercl/profiles/teaching.toml");

fn of_classifier(dir: &Path) -> PathBuf {
    let at = dir.join("classifier");
    std::fs::create_dir_all(&at).unwrap();
    let about = Description {
        network: "mnist-cnn".into(),
        size: [1, 8, 8],
        classes: ["a", "b"].map(String::from).to_vec(),
        statistics: vec![[0.5, 0.25]],
    };
    std::fs::write(at.join("classifier.json"), serde_json::to_vec(&about).unwrap()).unwrap();
    let classifier = Classifier::new(&test_device().unwrap(), about, DType::F32, 1).unwrap();
    let (mut head, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in classifier.state() {
        let start = data.len();
        data.extend(tensor.to_vec().unwrap().iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": tensor.dims(), "data_offsets": [start, data.len()] });
        head.insert(name, entry);
    }
    let head = Value::Object(head).to_string();
    let bytes = [&(head.len() as u64).to_le_bytes()[..], head.as_bytes(), &data].concat();
    std::fs::write(at.join("model.safetensors"), bytes).unwrap();
    at
}

/// Returns a deflate stream of one uncompressed block, as a gzip file or in zlib's format.
fn stored(bytes: &[u8], gzip: bool) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap();
    let block = [&[1][..], &length.to_le_bytes(), &(!length).to_le_bytes(), bytes].concat();
    match gzip {
        true => {
            let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
            let tail = [crc(bytes).to_le_bytes(), u32::from(length).to_le_bytes()].concat();
            [&head[..], &block, &tail].concat()
        }
        false => {
            let sums = bytes.iter().fold((1u32, 0u32), |(a, b), x| {
                let a = (a + u32::from(*x)) % 65_521;
                (a, (b + a) % 65_521)
            });
            [&[0x78, 1][..], &block, &(sums.1 << 16 | sums.0).to_be_bytes()].concat()
        }
    }
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

fn png() -> Vec<u8> {
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        let body = [&kind[..], data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &body, &crc(&body).to_be_bytes()].concat()
    };
    let rows: Vec<u8> =
        (0..9u8).flat_map(|y| [0].into_iter().chain((0..3 * 7).map(move |x| x * 9 + y))).collect();
    let head = [&7u32.to_be_bytes()[..], &9u32.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let signature = [0x89, b'P', b'N', b'G', 13, 10, 26, 10];
    [&signature[..], &chunk(b"IHDR", &head), &chunk(b"IDAT", &stored(&rows, false)), &chunk(b"IEND", &[])]
        .concat()
}

/// Returns a segment of a JPEG file.
fn segment(kind: u8, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len() + 2).unwrap();
    [&[0xff, kind][..], &length.to_be_bytes(), data].concat()
}

/// Packs bits into bytes, filling the last one with ones. A zero follows each 255.
fn packed(bits: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in bits.as_bytes().chunks(8) {
        let value = (0..8).fold(0u8, |value, i| value << 1 | u8::from(byte.get(i) != Some(&b'0')));
        out.push(value);
        out.extend((value == 0xff).then_some(0));
    }
    out
}

/// Returns a JPEG of 32 x 16 pixels with three components, in one scan or several. The first component has four blocks per block of the
/// others.
fn jpeg(progressive: bool) -> Vec<u8> {
    let components: &[[u8; 3]] = &[[1, 0x22, 0], [2, 0x11, 0], [3, 0x11, 0]];
    // The codes 00, 01 and 10 are the first three symbols, 110 is the fourth.
    let table =
        |class: u8, symbols: [u8; 4]| segment(0xc4, &[&[class, 0, 3, 1][..], &[0; 13], &symbols].concat());
    let frame = [&[8, 0, 16, 0, 32, 3][..], &components.concat()].concat();
    let mut out = [&[0xff, 0xd8][..], &segment(0xdb, &[&[0][..], &[3; 64]].concat())].concat();
    out.extend(segment(if progressive { 0xc2 } else { 0xc0 }, &frame));
    out.extend(table(0x00, [0, 1, 2, 3]));
    out.extend(table(0x10, [0x00, 0x01, 0x11, 0xf0]));
    let scan = |ids: &[u8], range: [u8; 3], bits: &str| {
        let parts: Vec<u8> = ids.iter().flat_map(|id| [*id, 0]).collect();
        let head = [&[ids.len() as u8][..], &parts, &range].concat();
        [segment(0xda, &head), packed(bits)].concat()
    };
    // A difference of 5, 0 or -2; then 1 after no zeros, -1 after one zero, and the end of the block.
    let (first, rest) = (["110101", "00", "1001"], "0111000");
    let blocks = |with: &str, count: usize| -> String {
        (0..count).map(|i| format!("{}{with}", first[i % 3])).collect()
    };
    if progressive {
        out.extend(scan(&[1, 2, 3], [0, 0, 0], &blocks("", 12)));
        out.extend(scan(&[1], [1, 63, 0], &rest.repeat(8)));
        out.extend(scan(&[2], [1, 63, 0], &rest.repeat(2)));
        out.extend(scan(&[3], [1, 63, 0], &rest.repeat(2)));
    } else {
        out.extend(scan(&[1, 2, 3], [0, 63, 0], &blocks(rest, 12)));
    }
    out.extend([0xff, 0xd9]);
    out
}
