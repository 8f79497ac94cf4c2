//! Folders of PNG and JPEG images, one per class.

use super::{Dataset, files, name};
use image::imageops::FilterType;
use image::{DynamicImage, ImageReader};
use netcl_device::files::require_file;
use netcl_device::{Error, Result};
use std::path::{Path, PathBuf};

/// Reads an image as bytes `(C, H, W)`, resized to this size; a single channel is the brightness.
///
/// # Errors
/// `Io` or `Format` with the file; `Unsupported` if the number of channels is not one or three.
pub fn picture(path: &Path, size: [usize; 3]) -> Result<Vec<u8>> {
    bytes(open(path)?, size)
}

/// Maximum rows or columns of an image.
const MAX_SIDE: u32 = 16_384;
/// Maximum bytes for decoding an image.
const MAX_BYTES: u64 = 512 << 20;

fn open(path: &Path) -> Result<DynamicImage> {
    require_file(path).map_err(|e| Error::io("reading", path, &e))?;
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let mut reader = reader.map_err(|e| Error::io("reading", path, &e))?;
    let mut limits = image::Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits);
    let decoded = reader.decode();
    decoded.map_err(|e| Error::format(format!("{}: not a readable image: {e}", path.display())))
}

fn bytes(picture: DynamicImage, [channels, height, width]: [usize; 3]) -> Result<Vec<u8>> {
    let (h, w) = (u32::try_from(height).unwrap_or(u32::MAX), u32::try_from(width).unwrap_or(u32::MAX));
    let picture = match (picture.height(), picture.width()) == (h, w) {
        true => picture,
        false => picture.resize_exact(w, h, FilterType::Triangle),
    };
    match channels {
        1 => Ok(picture.into_luma8().into_raw()),
        3 => {
            let rows = picture.into_rgb8().into_raw();
            Ok((0..3).flat_map(|c| rows.iter().skip(c).step_by(3).copied().collect::<Vec<_>>()).collect())
        }
        _ => Err(Error::unsupported(format!("images must have one channel or three, not {channels}"))),
    }
}

fn is_picture(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    ["png", "jpg", "jpeg"].contains(&extension.as_str())
}

/// Returns the image folders in `dir`, by name.
fn classes(dir: &Path) -> Result<Vec<(String, Vec<PathBuf>)>> {
    let mut all = Vec::new();
    for path in files(dir)?.into_iter().filter(|path| path.is_dir()) {
        let pictures: Vec<_> = files(&path)?.into_iter().filter(|path| is_picture(path)).collect();
        if !pictures.is_empty() {
            all.push((name(&path), pictures));
        }
    }
    Ok(all)
}

/// Reads the images of a folder's subfolders; `None` without images.
pub(super) fn read(dir: &Path, test_part: f64) -> Result<Option<Dataset>> {
    let (inner, outer) = (dir.join("train"), dir.join("test"));
    let divided = inner.is_dir() && outer.is_dir() && !classes(&inner)?.is_empty();
    let of_train = classes(if divided { &inner } else { dir })?;
    let Some(first) = of_train.first().and_then(|(_, pictures)| pictures.first()) else { return Ok(None) };
    let first = open(first)?;
    let channels = if first.color().has_color() { 3 } else { 1 };
    let size = [channels, first.height() as usize, first.width() as usize];
    let mut all =
        Dataset { classes: of_train.iter().map(|(name, _)| name.clone()).collect(), ..Dataset::default() };
    (all.train.size, all.test.size) = (size, size);
    for (class, (_, pictures)) in of_train.iter().enumerate() {
        let tests = if divided { 0 } else { (pictures.len() as f64 * test_part) as usize };
        for (i, path) in pictures.iter().enumerate() {
            let to = if i + tests < pictures.len() { &mut all.train } else { &mut all.test };
            to.pixels.extend(picture(path, size)?);
            to.labels.push(class as u32);
        }
    }
    for (name, pictures) in if divided { classes(&outer)? } else { Vec::new() } {
        let Some(class) = all.classes.iter().position(|known| *known == name) else {
            return Err(Error::format(format!(
                "{}: class {name} is not one of those of {}",
                outer.display(),
                inner.display()
            )));
        };
        for path in pictures {
            all.test.pixels.extend(picture(&path, size)?);
            all.test.labels.push(class as u32);
        }
    }
    Ok(Some(all))
}
