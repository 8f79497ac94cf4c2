//! A model on disk in any layout: a Hugging Face folder, a training run folder, or GGUF.

use super::adapter::{Adapters, open_all};
use super::architecture::{Architecture, read_config, rotary_tensors};
use super::names::{Change, Placed, placed};
use crate::gguf::Gguf;
use netcl_model::checkpoint::{FileDtype, WeightFiles};
use netcl_model::decoder::{DecoderConfig, ModelFolder, adapter_base};
use netcl_tensor::quant::{self, Format};
use netcl_tensor::{Error, Result};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// GGUF's names of the embedding and the head.
const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// Origin of a model.
pub enum Origin {
    /// A folder with `config.json` and safetensors.
    Folder {
        /// Its configuration.
        folder: Box<ModelFolder>,
        /// Its weights.
        files: WeightFiles,
    },
    /// A GGUF file.
    Gguf(Gguf),
}

/// A model on disk: its configuration, and its tensors with the names and order of GGUF files.
pub struct Source {
    /// Origin of its content.
    pub origin: Origin,
    /// Its configuration. Biases that its files always have count as biases here.
    pub config: DecoderConfig,
    /// Its GGUF architecture.
    pub architecture: &'static Architecture,
    /// Its tensors in GGUF files.
    pub placed: Vec<Placed>,
    /// For each name in the files of a folder: type, tensor and byte range.
    pieces: BTreeMap<String, FileTensorPart>,
    /// Changes by adapters, and the tensors without them.
    adapted: Option<(Adapters, Vec<Placed>)>,
    /// Folder of an adapter with the tokenizer and the template with which it was trained; they replace those of the model.
    pub(super) texts: Option<PathBuf>,
}

/// A part of a tensor in a folder's files.
struct FileTensorPart {
    dtype: FileDtype,
    tensor: String,
    bytes: Range<usize>,
}

/// A tensor in stored form.
pub struct Stored<'a> {
    /// Storage format.
    pub format: &'static Format,
    /// Its bytes.
    pub bytes: Cow<'a, [u8]>,
}

impl Stored<'_> {
    /// Converts its elements to f32.
    ///
    /// # Errors
    /// `Shape` if the bytes are not `count` elements.
    pub fn floats(&self, count: usize) -> Result<Vec<f32>> {
        self.format.dequantised(&self.bytes, count)
    }
}

fn plain(dtype: FileDtype, name: &str) -> Result<&'static Format> {
    match dtype {
        FileDtype::F32 => Ok(&quant::F32),
        FileDtype::F16 => Ok(&quant::F16),
        FileDtype::BF16 => Ok(&quant::BF16),
        FileDtype::F64 => Ok(&quant::F64),
        other => Err(Error::dtype(format!("{name} is of the type {other}, expected floats"))),
    }
}

impl Source {
    /// Opens a model: a `.gguf` file, a folder in the Hugging Face layout, or a training run folder. For an adapter, or a run that trained one, the
    /// model is its base with the adapter merged. Reads the headers, and checks that every tensor
    /// exists with the right shape and no others exist.
    ///
    /// # Errors
    /// `Io`, `Format` or `Unsupported` with file and field or tensor.
    pub fn open(path: &Path) -> Result<Self> {
        if let Some((base, adapter)) = adapter_base(path)? {
            let mut source = Self::open(&base)?;
            source.adapt(open_all(&source.config, &[(&adapter, 1.0)])?)?;
            source.texts =
                Some(adapter).filter(|adapter| adapter.join(netcl_model::tokenizer::FILE).exists());
            return Ok(source);
        }
        match path.is_dir() {
            true => Self::of_folder(path),
            false => Self::of_gguf(Gguf::open(path)?),
        }
    }

    fn of_folder(path: &Path) -> Result<Self> {
        let folder = ModelFolder::open(path)?;
        let place = |e: Error| e.context(folder.path.display());
        let files = folder.weights()?;
        let mut config = folder.config.clone();
        let tensors = files.tensors();
        // Checks names and shapes with the configuration unchanged, and finds zeros where they are expected.
        config.matched(&tensors).map_err(place)?;
        if config.family.names.always_biases {
            config = config.with_biases(true);
        }
        let matched = config.matched(&tensors).map_err(place)?;
        let mut pieces = BTreeMap::new();
        for (shape, views) in config.shapes().zip(&matched) {
            let row: usize = shape.dims.last().copied().filter(|_| shape.dims.len() > 1).unwrap_or(1);
            let (apart, mut start) = (views.len() == shape.pieces.len(), 0);
            for (i, (name, rows)) in shape.pieces.iter().enumerate() {
                let Some(view) = views.get(if apart { i } else { 0 }) else { continue };
                let size = rows * row * (view.dtype.bitsize() / 8);
                let bytes = if apart { 0..view.bytes.len() } else { start..start + size };
                start += size;
                let (dtype, tensor) = (view.dtype, view.name.to_owned());
                pieces.insert(name.clone(), FileTensorPart { dtype, tensor, bytes });
            }
        }
        let architecture = Architecture::of_family(config.family).map_err(place)?;
        let placed = placed(&config, architecture).map_err(place)?;
        let folder = Box::new(folder);
        let origin = Origin::Folder { folder, files };
        Ok(Self { origin, config, architecture, placed, pieces, adapted: None, texts: None })
    }

    fn of_gguf(file: Gguf) -> Result<Self> {
        if file.text("general.type")? == Some("adapter") {
            let path = file.path().display();
            let base = match file.text("general.base_model.0.name")? {
                Some(base) => format!(", {base:?},"),
                None => String::new(),
            };
            return Err(Error::format(format!(
                "{path} contains an adapter instead of a model: use its base model{base} as the model, and add --lora {path}; netcl quantize BASE \
                 OUT --type f32 --lora {path} merges both"
            )));
        }
        let config = read_config(&file)?;
        let architecture = Architecture::of_file(&file)?;
        let place = |e: Error| e.context(file.path().display());
        check_counts(&file, &config).map_err(place)?;
        let placed = placed(&config, architecture).map_err(place)?;
        let mut left: BTreeSet<&str> = file.tensors().map(|tensor| tensor.name).collect();
        for expected in &placed {
            let Some(tensor) = file.tensor(&expected.name) else {
                let name = &expected.name;
                return Err(place(Error::format(format!(
                    "the tensor {name} is missing, which the metadata require"
                ))));
            };
            if tensor.shape() != expected.dims {
                return Err(place(Error::format(format!(
                    "{} has shape {:?}, expected {:?} by the metadata",
                    tensor.name,
                    tensor.shape(),
                    expected.dims
                ))));
            }
            left.remove(tensor.name);
        }
        for (name, _) in rotary_tensors(&config) {
            left.remove(name);
        }
        // Factors that are all one.
        left.remove("rope_freqs.weight");
        if let Some(first) = left.first() {
            let more = if left.len() > 1 { format!(" and {} more", left.len() - 1) } else { String::new() };
            return Err(place(Error::format(format!(
                "{first}{more}: a {} model of {} layers does not have a slot for it",
                architecture.name, config.layers
            ))));
        }
        let (origin, pieces) = (Origin::Gguf(file), BTreeMap::new());
        Ok(Self { origin, config, architecture, placed, pieces, adapted: None, texts: None })
    }

    /// Applies adapters: [`read`](Self::read) returns changed tensors as f32 with the changes. The model may get biases or a separate head.
    ///
    /// # Errors
    /// `Unsupported` for a model with parameters without a name in the format, or one that already has adapters.
    pub fn adapt(&mut self, adapters: Adapters) -> Result<()> {
        if self.adapted.is_some() {
            return Err(Error::unsupported(
                "the model is an adapter with its base model; merge them into a file first, and add other adapters to that",
            ));
        }
        let config = adapters.config(&BTreeSet::new());
        let placed = placed(&config, self.architecture).map_err(|e| e.context(self.path().display()))?;
        let before = std::mem::replace(&mut self.placed, placed);
        self.config = config;
        self.adapted = Some((adapters, before));
        Ok(())
    }

    /// Returns the stored format of a tensor of [`placed`](Self::placed) or, if adapters change it, the format in which it is read.
    ///
    /// # Errors
    /// `DType` for a tensor that is not a float.
    pub fn format(&self, tensor: &Placed) -> Result<&'static Format> {
        match &self.adapted {
            Some((adapters, before)) if adapters.touches_placed(tensor) || !has(before, tensor) => {
                Ok(&quant::F32)
            }
            _ => self.own_format(tensor),
        }
    }

    /// Returns true if a tensor is quantized in its source.
    ///
    /// # Errors
    /// `DType` for a tensor that is not a float.
    pub fn is_quantised(&self, tensor: &Placed) -> Result<bool> {
        match &self.adapted {
            Some((_, before)) if !has(before, tensor) => Ok(false),
            _ => Ok(!self.own_format(tensor)?.is_plain()),
        }
    }

    fn own_format(&self, tensor: &Placed) -> Result<&'static Format> {
        match &self.origin {
            Origin::Gguf(file) => {
                let found = file.tensor(&tensor.name).map(|found| found.format);
                found.ok_or_else(|| Error::internal(format!("no tensor {}", tensor.name)))
            }
            Origin::Folder { .. } => {
                let mut all = tensor.files.iter().map(|name| plain(self.piece(name)?.dtype, name));
                let first = all.next().unwrap_or(Ok(&quant::F32))?;
                let same = all.all(|other| other.is_ok_and(|other| other == first));
                // Tensors with an addition need the precision of f32.
                let whole = same && tensor.change != Change::PlusOne;
                Ok(if whole { first } else { &quant::F32 })
            }
        }
    }

    fn piece(&self, name: &str) -> Result<&FileTensorPart> {
        self.pieces.get(name).ok_or_else(|| Error::internal(format!("no tensor {name}")))
    }

    /// Returns a tensor of [`placed`](Self::placed) in GGUF's order.
    ///
    /// # Errors
    /// `DType` for a tensor that is not a float.
    pub fn read<'a>(&'a self, tensor: &Placed) -> Result<Stored<'a>> {
        let Some((adapters, before)) = &self.adapted else { return self.read_own(tensor) };
        let count = tensor.dims.iter().product();
        let values = match has(before, tensor) {
            true if !adapters.touches_placed(tensor) => return self.read_own(tensor),
            true => self.read_own(tensor)?.floats(count)?,
            false => match before.iter().find(|other| other.name == TABLE && tensor.name == HEAD) {
                // A head that was tied to the embedding.
                Some(table) => self.read_own(table)?.floats(count)?,
                None => vec![0.0; count],
            },
        };
        let values = adapters.merged_gguf(tensor, &values).unwrap_or(values);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Stored { format: &quant::F32, bytes: bytes.into() })
    }

    fn read_own<'a>(&'a self, tensor: &Placed) -> Result<Stored<'a>> {
        let format = self.own_format(tensor)?;
        let files = match &self.origin {
            Origin::Gguf(file) => {
                let found = file.tensor(&tensor.name);
                let bytes = found.ok_or_else(|| Error::internal(format!("no tensor {}", tensor.name)))?.bytes;
                return Ok(Stored { format, bytes: bytes.into() });
            }
            Origin::Folder { files, .. } => files.tensors(),
        };
        let mut out = Vec::with_capacity(format.size(tensor.dims.iter().product()).unwrap_or(0));
        for name in &tensor.files {
            let piece = self.piece(name)?;
            let view = files.iter().find(|view| view.name == piece.tensor);
            let bytes = view.and_then(|view| view.bytes.get(piece.bytes.clone())).unwrap_or_default();
            let own = plain(piece.dtype, name)?;
            let bytes: Cow<'_, [u8]> = match own == format && tensor.change != Change::PlusOne {
                true => bytes.into(),
                false => to_f32(own, bytes, tensor.change).into(),
            };
            let width = match tensor.file_dims[..] {
                [_, width] => width,
                _ => 1,
            };
            out.extend(tensor.change.to_gguf(
                &bytes,
                [width * format.bytes, format.bytes],
                &tensor.file_dims,
            ));
            if tensor.files.len() == 1 && tensor.change == Change::None && own == format {
                // Without a second copy.
                let view = view.and_then(|view| view.bytes.get(piece.bytes.clone())).unwrap_or_default();
                return Ok(Stored { format, bytes: view.into() });
            }
        }
        Ok(Stored { format, bytes: out.into() })
    }

    /// Returns the bytes of its tensors in the source.
    ///
    /// # Errors
    /// `DType` for a tensor that is not a float.
    pub fn bytes(&self) -> Result<u64> {
        self.placed.iter().try_fold(0u64, |sum, tensor| {
            let count = tensor.dims.iter().product();
            Ok(sum + self.format(tensor)?.size(count).unwrap_or(0) as u64)
        })
    }

    /// Returns the folder of the model's other files: its folder, or that of the GGUF file.
    pub fn path(&self) -> &Path {
        match &self.origin {
            Origin::Folder { folder, .. } => &folder.path,
            Origin::Gguf(file) => file.path(),
        }
    }
}

/// Checks that the numbers of layers and experts match the file's tensors; otherwise the lists for each would be unbounded.
fn check_counts(file: &Gguf, config: &DecoderConfig) -> Result<()> {
    if config.layers > file.len() {
        return Err(Error::format(format!(
            "block_count is {} layers, but the file has only {} tensors",
            config.layers,
            file.len()
        )));
    }
    let stacks = file.tensors().filter(|tensor| tensor.name.ends_with("_exps.weight"));
    let most = stacks.filter_map(|tensor| tensor.shape().first().copied()).max().unwrap_or(0);
    match config.mlp.moe.filter(|moe| moe.experts > most) {
        Some(moe) => Err(Error::format(format!(
            "expert_count is {}, but the largest tensor of experts has {most}",
            moe.experts
        ))),
        None => Ok(()),
    }
}

fn has(all: &[Placed], tensor: &Placed) -> bool {
    all.iter().any(|other| other.name == tensor.name)
}

/// Converts elements to f32, and adds one if required.
fn to_f32(format: &Format, bytes: &[u8], change: Change) -> Vec<u8> {
    let values = format.dequantised(bytes, bytes.len() / format.bytes).unwrap_or_default();
    let more = if change == Change::PlusOne { 1.0 } else { 0.0 };
    let sum = |v: f32| if change == Change::PlusOne { v + more } else { v };
    values.into_iter().flat_map(|v| sum(v).to_le_bytes()).collect()
}
