//! A model on a device, ready to go on with a text: weights, tokenizer, chat template and the defaults of its files.

mod batch;
mod chat;
mod defaults;
mod fit;
mod needs;
mod pooling;
mod prompt;
mod random;
mod session;
mod weights;

pub use batch::{
    Engine, EngineOptions, Event, Job, Load, Logprobs, MOST_DRAFTED, RequestId, Speculation, StepCost, Usage,
};
pub use chat::{Conversation, Role};
pub use fit::{Division, Fit, Place, available};
pub use needs::Needs;
pub use netcl_model::decoder::CacheType;
pub use prompt::{Prompts, Talk, is_longer};
pub use session::{CHUNK, Generated, Request, Session, Watch};

use crate::model::adapter::{Adapters, Beside, open_all};
use crate::model::{Origin, Pooling};
use crate::sampler::Sampling;
use crate::template::{Template, Templates};
use crate::tokenizer::{HUGGING_FACE, TokenKind, Tokenizer};
use defaults::Usual;
use netcl_model::decoder::{Decoder, DecoderConfig, ParamShape};
use netcl_model::model::Model as _;
use netcl_tensor::quant::Activations;
use netcl_tensor::{DType, Device, Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weights::Weights;

/// How a model is to be loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Storage of weights, keys and values; without one what is nearest to the files'.
    pub dtype: Option<DType>,
    /// Tokens of the context; without one the model's, or of that as much as fits.
    pub context: Option<usize>,
    /// Whether quantised matrices are stored in `dtype` too, rather than as the file has them.
    pub dequantise: bool,
    /// What is multiplied by quantised matrices; without one what is usual on the device ([`Activations::usual`]).
    pub activations: Option<Activations>,
    /// Layers of each device, of the last one the rest if its number is left out; without it each device in turn gets as many as it has memory for.
    pub layers: Option<&'a [usize]>,
}

/// How far loading is.
#[derive(Clone, Copy, Debug)]
pub struct Loading<'a> {
    /// The parameter that comes now.
    pub name: &'a str,
    /// The device that it goes to.
    pub device: &'a str,
    /// Elements that are on the device, of `total`.
    pub done: u64,
    /// Elements of all parameters.
    pub total: u64,
}

/// A model on a device, or with its layers divided among several, and what its files say about its use.
pub struct LoadedModel {
    decoder: Decoder,
    tokenizer: Option<Arc<Tokenizer>>,
    templates: Arc<Templates>,
    sampling: Sampling,
    /// New tokens at most where nobody says how many.
    max: Option<usize>,
    /// How the states of a text become its vector, or why they cannot.
    pooling: Result<Pooling>,
    path: PathBuf,
    /// Context of the files.
    trained_context: usize,
    needs: Needs,
}

impl LoadedModel {
    /// Loads a GGUF file, a folder in the Hugging Face layout, or the folder of a run, onto a device, or its layers onto several ([`Fit::divide`]).
    /// Nothing is allocated for a model that the files do not hold, or that does not fit. Weights go to their device one parameter after the other;
    /// `progress` hears of each and may end it.
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` that name file and field; `Memory` that says what is needed, what is there and what would fit; that
    /// of `progress`.
    pub fn open(
        path: &Path,
        devices: &(impl AsRef<[Device]> + ?Sized),
        options: Options<'_>,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<Self> {
        Self::open_adapted(path, &[], devices, options, progress)
    }

    /// The same with low-rank adapters ([`adapter`](crate::model::adapter)), each with a factor, which add to each other. Dense weights are changed
    /// in f32 before they are stored; beside matrices that stay quantised stands a product of two small ones.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and what does not fit of an adapter, with its file and tensor.
    pub fn open_adapted(
        path: &Path,
        adapters: &[(PathBuf, f32)],
        devices: &(impl AsRef<[Device]> + ?Sized),
        options: Options<'_>,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<Self> {
        let weights = Weights::open(path)?;
        let place = |e: Error| e.context(weights.path().display());
        let adapters = open_all(weights.config(), adapters)?;
        let mut quantised =
            if options.dequantise { Vec::new() } else { weights.quantised().map_err(place)? };
        quantised.retain(|(shape, _)| {
            !(adapters.replaces(shape) || shape.of_experts() && adapters.touches(shape))
        });
        let needs = weights.needs(options.dtype, &quantised, &adapters).map_err(place)?;
        let division = divided(&needs, devices.as_ref(), options).map_err(place)?;
        let spans = division.spans(devices.as_ref());
        let (tokenizer, templates, Usual { sampling, max }) = companions(&weights)?;
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
        for (name, Beside { rank, a, b }) in &products(&adapters, &quantised) {
            decoder.add_low_rank(name, *rank, a, b)?;
        }
        weights.load(&decoder, &adapters, progress).map_err(place)?;
        let (path, trained_context) = (weights.path().to_owned(), needs.config().context);
        let (tokenizer, templates) = (tokenizer.map(Arc::new), Arc::new(templates));
        Ok(Self { decoder, tokenizer, templates, sampling, max, pooling, path, trained_context, needs })
    }

    /// What the model would take, by its files alone. A context that was asked for does not count.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), but for memory.
    pub fn needs(path: &Path, options: Options<'_>) -> Result<Needs> {
        let weights = Weights::open(path)?;
        let quantised = if options.dequantise { Ok(Vec::new()) } else { weights.quantised() };
        let none = Adapters::new(weights.config(), &[])?;
        let needs = quantised.and_then(|quantised| weights.needs(options.dtype, &quantised, &none));
        needs.map_err(|e| e.context(weights.path().display()))
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }
    /// The same without the rest.
    pub fn into_decoder(self) -> Decoder {
        self.decoder
    }
    /// What it is; its context is the one that was loaded.
    pub fn config(&self) -> &DecoderConfig {
        self.decoder.config()
    }
    /// Tokens that it can look at.
    pub fn context(&self) -> usize {
        self.config().context
    }
    /// Tokens that its files say it can look at.
    pub fn trained_context(&self) -> usize {
        self.trained_context
    }
    /// Storage of its weights.
    pub fn dtype(&self) -> DType {
        self.decoder.params().dtype()
    }
    /// What is multiplied by its quantised matrices, where there are any.
    pub fn activations(&self) -> Option<Activations> {
        self.decoder.params().activations()
    }
    /// The file, or the folder with its `config.json`.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// How its files say that tokens are to be drawn.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }
    /// New tokens of a text at most, if a request does not say how many, by its files (`max_new_tokens` of `generation_config.json`).
    pub fn usual_length(&self) -> Option<usize> {
        self.max
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// `Format` where its files have none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(|| {
            let what = if self.path.is_dir() { "tokenizer.json" } else { "tokenizer (tokenizer.ggml.model)" };
            Error::format(format!(
                "{} has no {what}: the prompt cannot be turned into tokens",
                self.path.display()
            ))
        })
    }

    /// Its tokenizer and its chat templates, for threads that prepare texts beside the one that the model works on.
    pub fn shared_text_parts(&self) -> (Option<Arc<Tokenizer>>, Arc<Templates>) {
        (self.tokenizer.clone(), Arc::clone(&self.templates))
    }

    /// Whether the begin token is added to conversations whose template leaves it out. It is for GGUF files, as in llama.cpp, but not for
    /// folders, as in transformers.
    pub fn begins_conversations(&self) -> bool {
        self.path.is_file()
    }

    /// Its chat template.
    ///
    /// # Errors
    /// `Format` where its files have none.
    pub fn template(&self) -> Result<&Template> {
        self.templates.get(None, false).map_err(|e| e.context(self.path.display()))
    }

    /// Ids of the vocabulary that no text belongs to, a model's is often rounded up for the sake of its kernels, and those that its files
    /// suppress.
    ///
    /// # Errors
    /// `Format` where the tokenizer has none of the model's ids.
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
                "the tokenizer has none of the {vocab} tokens of the model: they do not belong together"
            )));
        }
        Ok(unknown)
    }

    /// A text to go on with, of which nothing is read yet.
    ///
    /// # Errors
    /// Those of the device, and where the model has no tokenizer.
    pub fn session(&self) -> Result<Session<'_>> {
        Session::new(self)
    }

    /// Ids that a text begins with where no prompt is given: what the tokenizer puts before every text, or a new line, or what it has
    /// instead of one.
    ///
    /// # Errors
    /// `Format` where the model has no tokenizer.
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

/// How a model's layers are divided among devices.
fn divided(needs: &Needs, devices: &[Device], options: Options<'_>) -> Result<Division> {
    if devices.is_empty() {
        return Err(Error::format("a model needs at least one device"));
    }
    let places = Place::of(devices.iter().map(Device::capabilities));
    Fit::new(needs, &places).divide(options.context, options.layers)
}

/// The products beside matrices that stay quantised, by the names of parameters.
fn products(
    adapters: &Adapters,
    quantised: &[(ParamShape, Vec<weights::Part<'_>>)],
) -> Vec<(String, Beside)> {
    let base = adapters.base();
    let names = base.family.names;
    let (embedding, head) =
        (format!("{}{}.weight", names.prefix, names.embedding), format!("{}.weight", names.head));
    let mut out = Vec::new();
    for (shape, _) in quantised {
        out.extend(adapters.beside(shape).map(|beside| (shape.name.clone(), beside)));
        if shape.name == embedding && base.tied {
            out.extend(adapters.beside_head(shape).map(|beside| (head.clone(), beside)));
        }
    }
    out
}

/// Tokenizer, templates and usual way of generation of a model's files.
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

#[cfg(test)]
mod divided_tests;
#[cfg(test)]
mod peer_tests;
#[cfg(test)]
mod quantised_tests;
#[cfg(test)]
mod tests;
