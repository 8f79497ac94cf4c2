//! Labeled images: IDX files (MNIST), CIFAR binaries, folders of images per class.

mod cifar;
mod folder;
mod idx;

pub use folder::picture;

use netcl_device::{Error, Result};
use std::path::{Path, PathBuf};

/// Labeled images of one size, in host memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    /// Channels, height, width.
    pub size: [usize; 3],
    /// Bytes `(N, C, H, W)`.
    pub pixels: Vec<u8>,
    /// The class of each image.
    pub labels: Vec<u32>,
}

impl Images {
    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
    /// Returns the bytes of an image.
    pub fn stride(&self) -> usize {
        self.size.iter().product()
    }
    /// Returns the bytes of image `i`.
    pub fn image(&self, i: usize) -> &[u8] {
        &self.pixels[i * self.stride()..(i + 1) * self.stride()]
    }
    /// Divides the set into the first `count` images and the rest.
    fn divided(mut self, count: usize) -> (Self, Self) {
        let rest = self.pixels.split_off(count * self.stride());
        let labels = self.labels.split_off(count);
        let size = self.size;
        (self, Self { size, pixels: rest, labels })
    }
    fn extend(&mut self, other: Self, from: &Path) -> Result<()> {
        if self.is_empty() {
            *self = other;
            return Ok(());
        }
        if self.size != other.size {
            return Err(Error::format(format!(
                "{}: images of {:?}, but the others are of {:?} (channels, height, width)",
                from.display(),
                other.size,
                self.size
            )));
        }
        self.pixels.extend(other.pixels);
        self.labels.extend(other.labels);
        Ok(())
    }
    /// Returns the mean and standard deviation of each channel, for values from 0 to 1.
    pub fn statistics(&self) -> Vec<[f32; 2]> {
        let [channels, height, width] = self.size;
        let each = height * width;
        let of = |c: usize| {
            let (mut sum, mut squares) = (0.0f64, 0.0f64);
            for i in 0..self.len() {
                for v in &self.image(i)[c * each..(c + 1) * each] {
                    let v = f64::from(*v) / 255.0;
                    sum += v;
                    squares += v * v;
                }
            }
            let n = (self.len() * each).max(1) as f64;
            let mean = sum / n;
            [mean as f32, (squares / n - mean * mean).max(1e-6).sqrt() as f32]
        };
        (0..channels).map(of).collect()
    }
}

/// Images to train on and to test with.
#[derive(Clone, Debug, Default)]
pub struct Dataset {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Training images.
    pub train: Images,
    /// Test images.
    pub test: Images,
}

impl Dataset {
    /// Reads the images in `dir`, in one of these formats: IDX files (`*-images-idx3-ubyte` and `*-labels-idx1-ubyte`, also with `.gz`), CIFAR
    /// binaries (`data_batch_*.bin`, `test_batch.bin`; `train.bin`, `test.bin`), or a folder of PNG and JPEG images per class, optionally within
    /// `train` and `test`. Without a test set by name, the last images are the test set: the fraction `test_part` of IDX and CIFAR files in their
    /// order, or of each class's folder.
    ///
    /// # Errors
    /// `Io` or `Format` with the file; `Format` if images are missing.
    pub fn read(dir: &Path, test_part: f64) -> Result<Self> {
        if !dir.is_dir() {
            return Err(Error::format(format!(
                "{} is not a folder of images; expected IDX files, CIFAR binaries, or a folder of images per class",
                dir.display()
            )));
        }
        let found = [idx::read(dir)?, cifar::read(dir)?, folder::read(dir, test_part)?];
        let mut found = found.into_iter().flatten();
        let Some(mut all) = found.next() else {
            return Err(Error::format(format!(
                "{} does not have images: no *-images-idx3-ubyte, no *_batch*.bin, no folders of PNG or JPEG images",
                dir.display()
            )));
        };
        if all.train.is_empty() {
            std::mem::swap(&mut all.train, &mut all.test);
        }
        if all.test.is_empty() {
            let kept = all.train.len() - (all.train.len() as f64 * test_part) as usize;
            (all.train, all.test) = all.train.divided(kept);
        }
        let classes = all.classes.len();
        let wrong =
            [&all.train, &all.test].into_iter().flat_map(|i| &i.labels).find(|l| **l as usize >= classes);
        match wrong {
            _ if all.train.is_empty() => {
                Err(Error::format(format!("{} does not have a training image", dir.display())))
            }
            _ if all.train.stride() == 0 => {
                Err(Error::format(format!("{}: images without pixels", dir.display())))
            }
            Some(label) => Err(Error::format(format!(
                "{}: label {label}, expected a label below {classes}",
                dir.display()
            ))),
            None => Ok(all),
        }
    }
}

/// Returns the files of a folder, by name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let io = |e| Error::io("reading", dir, &e);
    let mut all: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        all.push(entry.map_err(io)?.path());
    }
    all.sort();
    Ok(all)
}

/// Returns the last part of a path.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests;
