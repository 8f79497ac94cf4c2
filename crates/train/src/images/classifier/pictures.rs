//! Images in a report: test images with their predicted classes, and the kernels of the first convolution.

use super::super::data::Images;
use super::Classifier;
use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};
use netcl_device::{Error, Result};

/// Maximum number of test images shown of each kind: correct and wrong ones.
const MAX_SHOWN_IMAGES: usize = 12;
/// Maximum number of kernels shown.
const KERNELS: usize = 64;

/// An image as a PNG, with a caption.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The file's bytes.
    pub png: Vec<u8>,
    /// Caption.
    pub text: String,
    /// Whether the class was predicted correctly; true without a class.
    pub right: bool,
}

impl Picture {
    /// Creates a picture from bytes `(C, H, W)` with one channel, or from the first three.
    fn new([channels, height, width]: [usize; 3], bytes: &[u8], text: String, right: bool) -> Result<Self> {
        let (used, color) =
            if channels < 3 { (1, ExtendedColorType::L8) } else { (3, ExtendedColorType::Rgb8) };
        let each = height * width;
        let pixels: Vec<u8> = (0..each).flat_map(|i| (0..used).map(move |c| bytes[c * each + i])).collect();
        let mut png = Vec::new();
        let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        PngEncoder::new(&mut png)
            .write_image(&pixels, size(width), size(height), color)
            .map_err(|e| Error::internal(format!("cannot encode an image as PNG: {e}")))?;
        Ok(Self { png, text, right })
    }
    /// Returns it as an address to embed in a page.
    pub(super) fn address(&self) -> String {
        format!("data:image/png;base64,{}", base64(&self.png))
    }
}

/// Encodes by RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().enumerate().fold(0u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= three.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

impl Classifier {
    /// Returns the first correctly and the first wrongly classified test images, of at most `looked_at`.
    ///
    /// # Errors
    /// Errors of [`Classifier::classify`].
    pub fn examples(&self, images: &Images, looked_at: usize) -> Result<Vec<Picture>> {
        let mut found = [Vec::new(), Vec::new()];
        for i in 0..images.len().min(looked_at) {
            if found.iter().all(|kind| kind.len() >= MAX_SHOWN_IMAGES) {
                break;
            }
            let Some(best) = self.classify(images.image(i))?.into_iter().next() else { break };
            let class = &self.about.classes[images.labels[i] as usize];
            let right = best.class == *class;
            let kind = &mut found[usize::from(right)];
            if kind.len() < MAX_SHOWN_IMAGES {
                let share = 100.0 * best.confidence;
                let text = match right {
                    true => format!("{class}, {share:.0} %"),
                    false => format!("{class} taken for {}, {share:.0} %", best.class),
                };
                kind.push(Picture::new(images.size, images.image(i), text, right)?);
            }
        }
        Ok(found.concat())
    }

    /// Returns the kernels of the first convolution, each scaled from its smallest to its largest weight; empty if the network starts with another
    /// layer.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn kernels(&self) -> Result<Vec<Picture>> {
        let Some(first) = self.params.list().first() else { return Ok(Vec::new()) };
        let [outputs, channels, height, width] = *first.dims() else { return Ok(Vec::new()) };
        let weights = first.to_vec()?;
        let each = channels * height * width;
        let picture = |o: usize| {
            let kernel = &weights[o * each..(o + 1) * each];
            let low = kernel.iter().copied().fold(f32::INFINITY, f32::min);
            let high = kernel.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let span = (high - low).max(f32::MIN_POSITIVE);
            let bytes: Vec<u8> = kernel.iter().map(|w| ((w - low) / span * 255.0).round() as u8).collect();
            Picture::new([channels, height, width], &bytes, String::new(), true)
        };
        (0..outputs.min(KERNELS)).map(picture).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (text, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn a_picture_reads_back() {
        let bytes = [1u8, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]; // 3 x 2 x 2
        let png = Picture::new([3, 2, 2], &bytes, String::new(), true).unwrap().png;
        let read = image::load_from_memory(&png).unwrap().into_rgb8();
        assert_eq!(read.as_raw().as_slice(), [1, 5, 9, 2, 6, 10, 3, 7, 11, 4, 8, 12]);
    }
}
