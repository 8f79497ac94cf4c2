//! A model with its tokenizer from a folder.

use crate::decoder::{Decoder, Freeze, ModelFolder};
use crate::tokenizer::Tokenizer;
use netcl_tensor::{DType, Device, Result};
use std::path::{Path, PathBuf};

/// Opens a model folder in the Hugging Face layout, such as a netcl checkpoint, with its tokenizer. For a run folder, its best checkpoint is
/// opened, or the last one if none was evaluated.
///
/// # Errors
/// `Io`, `Format` or `Unsupported` with the name of the missing or invalid file.
pub fn model_from_dir(
    device: &Device,
    dir: &Path,
    dtype: Option<DType>,
) -> Result<(Decoder, Option<Tokenizer>, PathBuf)> {
    let folder = ModelFolder::open(dir)?;
    let decoder = folder.decoder(device, dtype, &Freeze::default())?;
    let path = folder.path;
    let tokenizer =
        if path.join(crate::tokenizer::FILE).exists() { Some(Tokenizer::from_dir(&path)?) } else { None };
    Ok((decoder, tokenizer, path))
}
