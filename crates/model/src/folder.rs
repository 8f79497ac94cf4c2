//! A model with its tokenizer from a folder.

use crate::decoder::{Decoder, model_folder};
use crate::tokenizer::Tokenizer;
use netcl_tensor::{DType, Device, Result};
use std::path::{Path, PathBuf};

/// Opens a model folder in the Hugging Face layout, such as a netcl checkpoint, with its tokenizer. For a run folder, its best checkpoint is
/// opened, or the last one if none was evaluated. For adapters, the base model is loaded with them.
///
/// # Errors
/// `Io`, `Format` or `Unsupported` with the name of the missing or invalid file.
pub fn model_from_dir(
    device: &Device,
    dir: &Path,
    dtype: Option<DType>,
) -> Result<(Decoder, Option<Tokenizer>, PathBuf)> {
    let path = model_folder(dir)?;
    let decoder = Decoder::open(device, &path, dtype)?;
    let tokenizer =
        if path.join(crate::tokenizer::FILE).exists() { Some(Tokenizer::from_dir(&path)?) } else { None };
    Ok((decoder, tokenizer, path))
}
