//! Training that starts from a model (`--init`): settings taken from its folder, and which settings may still be given.
//!
//! A resumed run has the shape from its checkpoint instead.

use super::{Overlay, TrainConfig};
use netcl_device::{Error, Result};
use netcl_llm::model::Source;
use netcl_model::decoder::DecoderConfig;
use std::path::Path;

/// Returns the configuration of the model in a folder, or in a GGUF file if adapters are trained.
///
/// # Errors
/// Errors of the files; `Unsupported` for a GGUF file whose weights would be trained.
pub(super) fn shape(path: &Path, adapters: bool) -> Result<DecoderConfig> {
    if !path.is_file() {
        return DecoderConfig::of_folder(path);
    }
    let config = Source::open(path).map_err(|e| e.context("--init"))?.config;
    match adapters {
        true => Ok(config),
        false => Err(Error::unsupported(format!(
            "--init {path}: the weights of a GGUF file stay as they are. Train adapters with --lora 16, or convert the file: netcl quantize {path} DIR \
             --type f32",
            path = path.display()
        ))),
    }
}

/// Returns the sizes of the model as settings: key and value.
fn sizes(own: &DecoderConfig) -> [(&'static str, usize); 7] {
    let a = &own.attention;
    [
        ("layers", own.layers),
        ("heads", a.heads),
        ("kv_heads", a.kv_heads),
        ("head_size", a.size),
        ("width", own.width),
        ("mlp", own.mlp.hidden),
        ("vocab", own.vocab),
    ]
}

/// Checks given settings against the model.
///
/// # Errors
/// `Format` for the first setting that contradicts the model in the folder.
pub(super) fn check(own: &DecoderConfig, dir: &str, given: &[&Overlay]) -> Result<()> {
    let refuse = |key: &str, given: &dyn std::fmt::Display, own: &dyn std::fmt::Display| {
        let flag = key.replace('_', "-");
        Err(Error::format(format!(
            "--{flag} {given}: the model of --init {dir} has {own}, and training keeps its shape; omit --{flag}"
        )))
    };
    for overlay in given {
        let said = [
            overlay.layers,
            overlay.heads,
            overlay.kv_heads,
            overlay.head_size,
            overlay.width,
            overlay.mlp,
            overlay.vocab,
        ];
        for ((key, own), said) in sizes(own).into_iter().zip(said) {
            if let Some(said) = said.filter(|said| *said != own) {
                return refuse(key, &said, &own);
            }
        }
        if let Some(family) = overlay.family.as_ref().filter(|name| *name != own.family.model_type) {
            return refuse("family", family, &own.family.model_type);
        }
        if let Some(tied) = overlay.tied.filter(|tied| *tied != own.tied) {
            return refuse("tied", &tied, &own.tied);
        }
        if let Some(context) = overlay.context.filter(|context| *context > own.context) {
            return Err(Error::format(format!(
                "--context {context}: the model of --init {dir} supports at most {} tokens",
                own.context
            )));
        }
    }
    Ok(())
}

/// Takes the sizes from the model, and its tokenizer unless another one is given.
pub(super) fn take(
    own: &DecoderConfig,
    dir: &str,
    context: Option<usize>,
    config: &mut TrainConfig,
) -> Result<()> {
    let a = &own.attention;
    config.family = own.family.model_type.into();
    (config.layers, config.heads, config.width) = (own.layers, a.heads, own.width);
    (config.kv_heads, config.head_size, config.mlp) = (Some(a.kv_heads), Some(a.size), Some(own.mlp.hidden));
    (config.vocab, config.tied, config.rope_theta) = (Some(own.vocab), Some(own.tied), None);
    config.bias = own.norm.bias;
    config.context = context.unwrap_or(config.context).min(own.context);
    if config.tokenizer == "char" {
        let dir = Path::new(dir);
        // A GGUF file contains its tokenizer.
        let tokenizer = match dir.is_file() {
            true => dir.to_owned(),
            false => netcl_model::decoder::model_folder(dir)?.join(netcl_model::tokenizer::FILE),
        };
        let text = tokenizer.to_str().map(Into::into);
        config.tokenizer = text.ok_or_else(|| {
            Error::format(format!(
                "{}: the path is not valid UTF-8, which config.toml requires",
                tokenizer.display()
            ))
        })?;
    }
    Ok(())
}
