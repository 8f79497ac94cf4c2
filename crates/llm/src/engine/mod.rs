//! A loaded model, ready for generation: weights, tokenizer, chat template and the defaults of its files.
//!
//! Before any allocation, `needs` compares the memory of the model with that of the devices, and `fit` divides the layers between them. `weights`
//! loads one parameter at a time, converted by several threads, to the device of its layer. A [`Session`] then runs one sequence, a [`Conversation`]
//! renders messages for it, and an [`Engine`] runs many sequences.

mod batch;
mod chat;
mod defaults;
mod fit;
mod memory_plan;
mod pooling;
pub(crate) mod prompt;
mod random;
mod session;
mod weights;

pub use batch::{
    Engine, EngineOptions, Event, Job, Load, Logprobs, MAX_DRAFTED, RequestId, Speculation, StepCost, Usage,
};
pub use chat::{Conversation, Role};
pub use fit::{DevicePlace, Division, Fit, available};
pub use memory_plan::MemoryPlan;
pub use netcl_model::decoder::CacheType;
pub use prompt::{Prompts, Talk, is_longer};
pub use session::{CHUNK, Generated, Request, Session, Watch};

use crate::model::adapter::{AdapterProduct, Adapters, open_all};
use crate::model::{Origin, Pooling};
use crate::sampler::Sampling;
use crate::template::{Template, Templates};
use crate::tokenizer::{HUGGING_FACE, TokenKind, Tokenizer};
use defaults::Usual;
use netcl_model::decoder::{Decoder, DecoderConfig, ParamShape, adapter_base};
use netcl_model::model::Model as _;
use netcl_tensor::quant::Activations;
use netcl_tensor::{DType, Device, Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weights::Weights;

/// Options for loading a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Storage type of weights, keys and values [default: nearest to the files'].
    pub dtype: Option<DType>,
    /// Context length in tokens [default: the model's, or as much of it as fits].
    pub context: Option<usize>,
    /// Whether quantized matrices are stored as `dtype` instead of their format in the file.
    pub dequantise: bool,
    /// Type of the activations for quantized matrices [default: the device's ([`Activations::usual`])].
    pub activations: Option<Activations>,
    /// Whether the model is loaded for training, which keeps no keys and values: memory is checked for the weights only.
    pub training: bool,
    /// Layers per device; an omitted last number means the rest [default: each device in turn gets as many as fit].
    pub layers: Option<&'a [usize]>,
}

/// Progress of loading.
#[derive(Clone, Copy, Debug)]
pub struct Loading<'a> {
    /// The next parameter.
    pub name: &'a str,
    /// Its device.
    pub device: &'a str,
    /// Elements on the device so far, of `total`.
    pub done: u64,
    /// Elements of all parameters.
    pub total: u64,
}

/// A model on one or several devices, with the defaults of its files.
pub struct LoadedModel {
    decoder: Decoder,
    tokenizer: Option<Arc<Tokenizer>>,
    templates: Arc<Templates>,
    sampling: Sampling,
    /// Maximum number of new tokens for requests without a limit.
    max: Option<usize>,
    /// Pooling of a sequence's states to its vector, or the reason why it is not supported.
    pooling: Result<Pooling>,
    path: PathBuf,
    /// Context length in the files.
    trained_context: usize,
    needs: MemoryPlan,
}

impl LoadedModel {
    /// Loads a GGUF file, a folder in the Hugging Face layout, or a training run folder onto a device, or its layers onto several ([`Fit::divide`]).
    /// For an adapter, or a run that trained one, its base model is loaded with it.
    /// Nothing is allocated for a model that is incomplete or does not fit. Weights are loaded one parameter at a time; `progress` is called for each
    /// and may abort.
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` with file and field; `Memory` with the required, available and possible amounts; errors of `progress`.
    pub fn open(
        path: &Path,
        devices: &(impl AsRef<[Device]> + ?Sized),
        options: Options<'_>,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<Self> {
        Self::open_adapted(path, &[], devices, options, progress)
    }

    /// Does the same with LoRA adapters ([`adapter`](crate::model::adapter)), each with a factor; several adapters are added. Dense weights are
    /// changed in f32 before they are stored. Matrices that stay quantized get an additional product of two small matrices.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open), and mismatches of an adapter, with its file and tensor.
    pub fn open_adapted(
        path: &Path,
        adapters: &[(PathBuf, f32)],
        devices: &(impl AsRef<[Device]> + ?Sized),
        options: Options<'_>,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<Self> {
        let trained = adapter_base(path)?;
        let (path, mut adapters) = (trained.as_ref().map_or(path, |(base, _)| base), adapters.to_vec());
        if let Some((_, adapter)) = &trained {
            adapters.insert(0, (adapter.clone(), 1.0));
        }
        let weights = Weights::open(path)?;
        let place = |e: Error| e.context(weights.path().display());
        let adapters = open_all(weights.config(), &adapters)?;
        let mut quantised =
            if options.dequantise { Vec::new() } else { weights.quantised().map_err(place)? };
        quantised.retain(|(shape, _)| {
            !(adapters.replaces(shape) || shape.of_experts() && adapters.touches(shape))
        });
        let needs = weights.needs(options.dtype, &quantised, &adapters).map_err(place)?;
        let division = divided(&needs, devices.as_ref(), options).map_err(place)?;
        let spans = division.spans(devices.as_ref());
        let (tokenizer, templates, Usual { sampling, max }) = companions(&weights)?;
        let (tokenizer, templates) = of_adapter(trained.as_ref(), tokenizer, templates)?;
        let pooling = match &weights {
            Weights::Folder { folder, .. } => Pooling::of_folder(&folder.path),
            Weights::Gguf { source, .. } => match &source.origin {
                Origin::Gguf(file) => Pooling::of_gguf(file, source.architecture.name),
                Origin::Folder { .. } => Ok(Pooling::default()),
            },
        };
        let shorter = DecoderConfig { context: division.context, ..needs.config().clone() };
        let blocks = weights.blocks(&spans, &quantised, options.activations, progress).map_err(place)?;
        let mut decoder = Decoder::divided(&spans, shorter, needs.dtype(), None, blocks).map_err(place)?;
        for (name, AdapterProduct { rank, a, b }) in &products(&adapters, &quantised) {
            decoder.add_low_rank(name, *rank, a, b)?;
        }
        weights.load(&decoder, &adapters, progress).map_err(place)?;
        let (path, trained_context) = (weights.path().to_owned(), needs.config().context);
        let (tokenizer, templates) = (tokenizer.map(Arc::new), Arc::new(templates));
        Ok(Self { decoder, tokenizer, templates, sampling, max, pooling, path, trained_context, needs })
    }

    /// Returns the memory needs of a model from its files. A requested context length is ignored.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open) except for memory.
    pub fn needs(path: &Path, options: Options<'_>) -> Result<MemoryPlan> {
        let trained = adapter_base(path)?;
        let weights = Weights::open(trained.as_ref().map_or(path, |(base, _)| base))?;
        let quantised = if options.dequantise { Ok(Vec::new()) } else { weights.quantised() };
        let none = Adapters::new(weights.config(), &[])?;
        let needs = quantised.and_then(|quantised| weights.needs(options.dtype, &quantised, &none));
        needs.map_err(|e| e.context(weights.path().display()))
    }

    /// Returns the decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }
    /// Returns only the decoder.
    pub fn into_decoder(self) -> Decoder {
        self.decoder
    }
    /// Returns its configuration; the context is the loaded one.
    pub fn config(&self) -> &DecoderConfig {
        self.decoder.config()
    }
    /// Returns its context length in tokens.
    pub fn context(&self) -> usize {
        self.config().context
    }
    /// Returns the context length in its files.
    pub fn trained_context(&self) -> usize {
        self.trained_context
    }
    /// Returns the storage type of its weights.
    pub fn dtype(&self) -> DType {
        self.decoder.params().dtype()
    }
    /// Returns the type of the activations for its quantized matrices, if any.
    pub fn activations(&self) -> Option<Activations> {
        self.decoder.params().activations()
    }
    /// Returns the file, or the folder with its `config.json`.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Returns the sampling parameters in its files.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }
    /// Returns the default maximum of new tokens from its files (`max_new_tokens` of `generation_config.json`).
    pub fn usual_length(&self) -> Option<usize> {
        self.max
    }

    /// Returns its tokenizer.
    ///
    /// # Errors
    /// `Format` if the model's files do not include a tokenizer.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(|| {
            let what = if self.path.is_dir() { "tokenizer.json" } else { "tokenizer (tokenizer.ggml.model)" };
            Error::format(format!(
                "{} does not have a {what}, so the prompt cannot be tokenized",
                self.path.display()
            ))
        })
    }

    /// Returns its tokenizer and its chat templates, for threads that prepare prompts concurrently with the model's thread.
    pub fn shared_text_parts(&self) -> (Option<Arc<Tokenizer>>, Arc<Templates>) {
        (self.tokenizer.clone(), Arc::clone(&self.templates))
    }

    /// Returns true if the begin token is added to conversations whose template omits it. True for GGUF files, the same as in llama.cpp; false for
    /// folders, the same as in transformers.
    pub fn begins_conversations(&self) -> bool {
        self.path.is_file()
    }

    /// Returns its chat template.
    ///
    /// # Errors
    /// `Format` if the model's files do not include a chat template.
    pub fn template(&self) -> Result<&Template> {
        self.templates.get(None, false).map_err(|e| e.context(self.path.display()))
    }

    /// Returns ids without a text, and those that its files suppress. A model's vocabulary is often padded for the benefit of its kernels.
    ///
    /// # Errors
    /// `Format` if the tokenizer has none of the model's ids.
    fn unknown(&self) -> Result<Vec<usize>> {
        let (tokenizer, vocab) = (self.tokenizer()?, self.config().vocab);
        let known = |id: &usize| {
            let id = u32::try_from(*id).unwrap_or(u32::MAX);
            let text = tokenizer.kind(id) != TokenKind::Unused || tokenizer.stops().contains(&id);
            text && !self.sampling.limits.suppressed.contains(&id)
        };
        let unknown: Vec<usize> = (0..vocab).filter(|id| !known(id)).collect();
        if unknown.len() == vocab {
            return Err(Error::format(format!(
                "the tokenizer has none of the model's {vocab} tokens: they do not belong together"
            )));
        }
        Ok(unknown)
    }

    /// Returns an empty session.
    ///
    /// # Errors
    /// Device errors, and an error if the model does not have a tokenizer.
    pub fn session(&self) -> Result<Session<'_>> {
        Session::new(self)
    }

    /// Returns the ids that start a text without a prompt: the tokenizer's prefix, or a new line, or its replacement.
    ///
    /// # Errors
    /// `Format` if the model does not have a tokenizer.
    pub fn beginning(&self) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer()?;
        let bos = tokenizer.bos().filter(|bos| {
            tokenizer
                .encode_prompt("", crate::tokenizer::Specials::Plain)
                .is_ok_and(|ids| ids.first() == Some(bos))
        });
        if let Some(bos) = bos {
            return Ok(vec![bos]);
        }
        let line =
            tokenizer.encode("\n", crate::tokenizer::Specials::Plain).ok().filter(|ids| !ids.is_empty());
        let all = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let first = || all.clone().find(|id| tokenizer.kind(*id) != TokenKind::Unused).unwrap_or(0);
        Ok(line.unwrap_or_else(|| vec![tokenizer.eos().unwrap_or_else(first)]))
    }
}

/// Returns the distribution of a model's layers over devices.
fn divided(needs: &MemoryPlan, devices: &[Device], options: Options<'_>) -> Result<Division> {
    if devices.is_empty() {
        return Err(Error::format("a model needs at least one device"));
    }
    let places = DevicePlace::of(devices.iter().map(Device::capabilities));
    let fit = Fit::new(needs, &places);
    if !options.training {
        return fit.divide(options.context, options.layers);
    }
    let division = fit.divide(Some(1), options.layers)?;
    Ok(Division { context: options.context.unwrap_or(needs.config().context), ..division })
}

/// Returns the adapter products of matrices that stay quantized, by parameter name.
fn products(
    adapters: &Adapters,
    quantised: &[(ParamShape, Vec<weights::TensorPart<'_>>)],
) -> Vec<(String, AdapterProduct)> {
    let base = adapters.base();
    let names = base.family.names;
    let (embedding, head) =
        (format!("{}{}.weight", names.prefix, names.embedding), format!("{}.weight", names.head));
    let mut out = Vec::new();
    for (shape, _) in quantised {
        out.extend(adapters.combined_product(shape).map(|beside| (shape.name.clone(), beside)));
        if shape.name == embedding && base.tied {
            out.extend(adapters.combined_head_product(shape).map(|beside| (head.clone(), beside)));
        }
    }
    out
}

/// Returns tokenizer, templates and generation defaults of a model's files.
fn companions(weights: &Weights) -> Result<(Option<Tokenizer>, Templates, Usual)> {
    match weights {
        Weights::Gguf { source, .. } => {
            let Origin::Gguf(file) = &source.origin else {
                return Err(Error::internal("a folder among GGUF files"));
            };
            let tokenizer = match file.text("tokenizer.ggml.model")? {
                None => None,
                Some("no_vocab") if file.text(HUGGING_FACE)?.is_none() => None,
                Some(_) => Some(Tokenizer::from_gguf(file)?),
            };
            Ok((tokenizer, Templates::from_gguf(file)?, defaults::of_gguf(file)?))
        }
        Weights::Folder { folder, .. } => {
            let path = &folder.path;
            let there = path.join(netcl_model::tokenizer::FILE).exists();
            let tokenizer = if there { Some(Tokenizer::from_folder(path)?) } else { None };
            Ok((tokenizer, Templates::from_folder(path)?, defaults::of_folder(path)?))
        }
    }
}

/// Returns the tokenizer and the chat templates with which an adapter was trained, if its folder has them; otherwise those of its base model. The end
/// tokens of both end a text.
fn of_adapter(
    trained: Option<&(PathBuf, PathBuf)>,
    tokenizer: Option<Tokenizer>,
    templates: Templates,
) -> Result<(Option<Tokenizer>, Templates)> {
    let folder = trained.map(|(_, adapter)| adapter);
    let Some(folder) = folder.filter(|folder| folder.join(netcl_model::tokenizer::FILE).exists()) else {
        return Ok((tokenizer, templates));
    };
    let mut own = Tokenizer::from_folder(folder)?;
    if let Some(base) = tokenizer.filter(|base| base.vocab_size() == own.vocab_size()) {
        own = own.with_stops_of(&base);
    }
    let own_templates = Templates::from_folder(folder)?;
    let given = own_templates.names().next().is_some();
    Ok((Some(own), if given { own_templates } else { templates }))
}

/// The tokenizer and the templates of a model, without its weights.
pub(crate) struct TextParts {
    pub tokenizer: Tokenizer,
    pub templates: Templates,
    /// Whether conversations get the begin token if the template omits it.
    pub begins: bool,
}

impl TextParts {
    /// Reads those of a file, a folder, a run or an adapter.
    ///
    /// # Errors
    /// `Io` or `Format`; `Format` if the model does not have a tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        let trained = adapter_base(path)?;
        let weights = Weights::open(trained.as_ref().map_or(path, |(base, _)| base))?;
        let (tokenizer, templates, _) = companions(&weights)?;
        let (tokenizer, templates) = of_adapter(trained.as_ref(), tokenizer, templates)?;
        let none = || Error::format(format!("{} does not have a tokenizer", path.display()));
        Ok(Self { tokenizer: tokenizer.ok_or_else(none)?, templates, begins: weights.path().is_file() })
    }
}

#[cfg(test)]
mod divided_tests;
#[cfg(test)]
mod peer_tests;
#[cfg(test)]
mod quantised_tests;
#[cfg(test)]
mod tests;
