//! The record of a run's training images.

use super::super::data::{Dataset, Images};
use netcl_device::{Error, Result};
use serde::{Deserialize, Serialize};

/// Training and test images of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    /// Channels, height and width.
    size: [usize; 3],
    classes: usize,
    train: usize,
    test: usize,
    /// BLAKE3 of all classes, labels and pixels.
    blake3: String,
}

impl ImageRecord {
    pub fn new(images: &Dataset) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        images.classes.iter().for_each(|class| add(class.as_bytes()));
        for Images { pixels, labels, .. } in [&images.train, &images.test] {
            add(bytemuck::cast_slice(labels));
            add(pixels);
        }
        Self {
            size: images.train.size,
            classes: images.classes.len(),
            train: images.train.len(),
            test: images.test.len(),
            blake3: hasher.finalize().to_hex().to_string(),
        }
    }

    fn said(&self) -> String {
        let [c, h, w] = self.size;
        format!(
            "{} training and {} test images, {c} x {h} x {w}, {} classes",
            self.train, self.test, self.classes
        )
    }

    /// Checks the record in a checkpoint. Returns `Format` if the run learns from other images.
    pub fn check(&self, written: &Self, data: &str) -> Result<()> {
        if self == written {
            return Ok(());
        }
        let how = if self.said() == written.said() { "their content differs".into() } else { self.said() };
        Err(Error::format(format!(
            "the images of {data} differ from those that the run learns from ({}): {how}. Restore them, name their folder with --data, or start \
             another run with --out",
            written.said()
        )))
    }
}
