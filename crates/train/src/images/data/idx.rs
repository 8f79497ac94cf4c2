//! IDX files, the format of MNIST: a magic number, big-endian sizes, then bytes.

use super::{Dataset, Images, files, name};
use flate2::read::GzDecoder;
use netcl_device::files::require_file;
use netcl_device::{Error, Result};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

const IMAGES: &str = "-images-idx3-ubyte";
const LABELS: &str = "-labels-idx1-ubyte";

/// Reads the images of a folder's IDX files; files whose names start with `t10k` or `test` are for tests. `None` without files.
pub(super) fn read(dir: &Path) -> Result<Option<Dataset>> {
    let mut all = Dataset::default();
    let paths = files(dir)?;
    let of = |part: &str| -> Vec<(String, &PathBuf)> {
        let stem = |path: &PathBuf| Some(name(path).trim_end_matches(".gz").strip_suffix(part)?.to_owned());
        paths.iter().filter_map(|path| Some((stem(path)?, path))).collect()
    };
    let labels = of(LABELS);
    let mut seen = None;
    for (stem, path) in of(IMAGES) {
        // The same file may exist with and without compression.
        if seen.as_ref() == Some(&stem) {
            continue;
        }
        let Some((_, labelled)) = labels.iter().find(|(other, _)| *other == stem) else {
            return Err(Error::format(format!(
                "{}: the file with its labels, {stem}{LABELS}, is missing",
                path.display()
            )));
        };
        let images = together(path, labelled)?;
        let to =
            if stem.starts_with("t10k") || stem.starts_with("test") { &mut all.test } else { &mut all.train };
        to.extend(images, path)?;
        seen = Some(stem);
    }
    let largest = all.train.labels.iter().chain(&all.test.labels).max();
    let Some(largest) = largest else { return Ok(None) };
    all.classes = (0..=*largest).map(|class| class.to_string()).collect();
    Ok(Some(all))
}

fn together(images: &Path, labels: &Path) -> Result<Images> {
    let ([count, height, width], pixels) = contents::<3>(images)?;
    let ([labelled], bytes) = contents::<1>(labels)?;
    if count != labelled {
        return Err(Error::format(format!(
            "{} has {count} images but {} has {labelled} labels; expected equal numbers",
            images.display(),
            labels.display()
        )));
    }
    Ok(Images { size: [1, height, width], pixels, labels: bytes.into_iter().map(u32::from).collect() })
}

/// Maximum bytes of a file's images or labels.
const MAX_FILE_BYTES: u64 = 8 << 30;
/// Maximum ratio of uncompressed to compressed size: deflate cannot exceed it.
const RATIO: u64 = 1032;

/// Reads sizes and bytes of a file of `N` axes. Reads no more than its header announces.
fn contents<const N: usize>(path: &Path) -> Result<([usize; N], Vec<u8>)> {
    let io = |e| Error::io("reading", path, &e);
    require_file(path).map_err(io)?;
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut file = BufReader::new(file);
    match file.fill_buf().map_err(io)?.starts_with(&[0x1f, 0x8b]) {
        true => read_axes(path, GzDecoder::new(file), length.saturating_mul(RATIO)),
        false => read_axes(path, file, length),
    }
}

/// Does the same for at most `length` bytes.
fn read_axes<const N: usize>(
    path: &Path,
    mut bytes: impl Read,
    length: u64,
) -> Result<([usize; N], Vec<u8>)> {
    let io = |e| Error::io("reading", path, &e);
    let wrong = |what: String| Error::format(format!("{}: not a complete IDX file: {what}", path.display()));
    let mut word = || {
        let mut word = [0; 4];
        bytes.read_exact(&mut word).map(|()| u32::from_be_bytes(word)).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => wrong("its header is cut off".into()),
            _ => io(e),
        })
    };
    let (magic, expected) = (word()?, 0x800 + N as u32);
    if magic != expected {
        return Err(wrong(format!(
            "it starts with {magic:#010x}, expected {expected:#010x}, bytes in {N} axes"
        )));
    }
    let mut sizes = [0; N];
    for size in &mut sizes {
        *size = word()? as usize;
    }
    let count = sizes.iter().try_fold(1u64, |all, n| all.checked_mul(*n as u64));
    let Some(count) = count.filter(|count| *count <= MAX_FILE_BYTES && *count <= length) else {
        let held = length.saturating_sub(4 * (1 + N as u64));
        return Err(wrong(format!(
            "the sizes are {sizes:?}, but {held} bytes follow, and at most {MAX_FILE_BYTES} are read"
        )));
    };
    let mut held = Vec::new();
    bytes.take(count + 1).read_to_end(&mut held).map_err(io)?;
    if held.len() as u64 != count {
        let more = if held.len() as u64 > count { "more than expected" } else { "fewer" };
        return Err(wrong(format!("the sizes are {sizes:?}, but {} bytes follow, {more}", held.len())));
    }
    Ok((sizes, held))
}
