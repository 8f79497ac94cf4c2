//! CIFAR's binary files: records of one label (CIFAR-10) or two (CIFAR-100, the second is the fine one) and 3 x 32 x 32 bytes.

use super::{Dataset, Images, files, name};
use netcl_device::{Error, Result};
use std::path::Path;

const SIZE: [usize; 3] = [3, 32, 32];
/// Maximum bytes of a file.
const MAX_FILE_BYTES: u64 = 16 << 30;
const PIXELS: usize = 3 * 32 * 32;

/// Reads the images of a folder's binaries; `None` without binaries.
pub(super) fn read(dir: &Path) -> Result<Option<Dataset>> {
    let mut all = Dataset::default();
    for path in files(dir)? {
        let file = name(&path);
        let (labels, test) = match file.as_str() {
            "test_batch.bin" => (1, true),
            "train.bin" => (2, false),
            "test.bin" => (2, true),
            _ if file.starts_with("data_batch") && file.ends_with(".bin") => (1, false),
            _ => continue,
        };
        let images = records(&path, labels)?;
        if test { &mut all.test } else { &mut all.train }.extend(images, &path)?;
    }
    let Some(largest) = all.train.labels.iter().chain(&all.test.labels).max() else { return Ok(None) };
    all.classes = names(dir, *largest as usize + 1);
    Ok(Some(all))
}

fn records(path: &Path, labels: usize) -> Result<Images> {
    let bytes =
        netcl_device::files::read_within(path, MAX_FILE_BYTES).map_err(|e| Error::io("reading", path, &e))?;
    let record = labels + PIXELS;
    if !bytes.len().is_multiple_of(record) || bytes.is_empty() {
        return Err(Error::format(format!(
            "{}: {} bytes, expected a multiple of {record}: a label or two and 3 x 32 x 32 bytes",
            path.display(),
            bytes.len()
        )));
    }
    let mut images = Images { size: SIZE, ..Images::default() };
    for record in bytes.chunks_exact(record) {
        images.labels.push(u32::from(record[labels - 1]));
        images.pixels.extend(&record[labels..]);
    }
    Ok(images)
}

/// Returns the class names from a file next to the images, or numbers.
fn names(dir: &Path, classes: usize) -> Vec<String> {
    let numbered = || (0..classes).map(|class| class.to_string()).collect();
    let texts = ["batches.meta.txt", "fine_label_names.txt"]
        .map(|file| netcl_device::files::read_text(&dir.join(file)));
    let mut texts = texts.into_iter().flatten().map(|text| {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    });
    texts.find(|names| names.len() >= classes).unwrap_or_else(numbered)
}
