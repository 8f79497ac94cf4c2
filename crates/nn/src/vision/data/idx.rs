//! IDX files, as MNIST has them: a magic number, big-endian sizes, then bytes.

use super::{Dataset, Images, files, name};
use flate2::read::GzDecoder;
use netcl_device::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};

const IMAGES: &str = "-images-idx3-ubyte";
const LABELS: &str = "-labels-idx1-ubyte";

/// The images of a folder's IDX files; those of which the name begins with `t10k` or `test` are for tests. `None` without any.
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
        // The same file may be there with and without compression.
        if seen.as_ref() == Some(&stem) {
            continue;
        }
        let Some((_, labelled)) = labels.iter().find(|(other, _)| *other == stem) else {
            return Err(Error::format(format!(
                "{}: there is no {stem}{LABELS} beside it, which has its labels",
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
            "{} has {count} images and {} {labelled} labels, expected as many",
            images.display(),
            labels.display()
        )));
    }
    Ok(Images { size: [1, height, width], pixels, labels: bytes.into_iter().map(u32::from).collect() })
}

/// Sizes and bytes of a file of `N` axes.
fn contents<const N: usize>(path: &Path) -> Result<([usize; N], Vec<u8>)> {
    let io = |e| Error::io("reading", path, &e);
    let mut bytes = std::fs::read(path).map_err(io)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).map_err(io)?;
        bytes = plain;
    }
    let wrong = |what: String| Error::format(format!("{}: not a whole IDX file: {what}", path.display()));
    let word = |i: usize| {
        let bytes = bytes.get(i * 4..i * 4 + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
        bytes.map(u32::from_be_bytes).ok_or_else(|| wrong("its head is cut off".into()))
    };
    let (magic, expected) = (word(0)?, 0x800 + N as u32);
    if magic != expected {
        return Err(wrong(format!(
            "it begins with {magic:#010x}, expected {expected:#010x}, bytes in {N} axes"
        )));
    }
    let mut sizes = [0; N];
    for (i, size) in sizes.iter_mut().enumerate() {
        *size = word(1 + i)? as usize;
    }
    let head = 4 * (1 + N);
    let count = sizes.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    let held = bytes.len() - head;
    if count != Some(held) {
        return Err(wrong(format!("sizes {sizes:?}, but {held} bytes behind them")));
    }
    Ok((sizes, bytes.split_off(head)))
}
