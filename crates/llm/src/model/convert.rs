//! Converts between layouts and quantizes, with one tensor in memory at a time.

use super::architecture::{read_config, rotary_tensors, write_config};
use super::generation;
use super::mix::Mix;
use super::names::{Change, Placed};
use super::pooling::Pooling;
use super::probe::{differing, tokenizer_file};
use super::source::{Origin, Source};
use super::tokens::{HUGGING_FACE, TEMPLATE, vocabulary};
use crate::gguf::{Gguf, Meta, Plan, TensorToWrite};
use crate::tokenizer::Tokenizer;
use netcl_device::files::{replace, temporary_sibling};
use netcl_model::checkpoint::{Bytes, FileDtype, MODEL_FILE, TensorToWrite as FilePlanned, write_planned};
use netcl_model::decoder::{DecoderConfig, FileFacts, LayerKind, Rotary, Scaling, sidecars};
use netcl_tensor::quant::{self, Format};
use netcl_tensor::{DType, Error, Result};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use tempfile::TempDir;

/// An importance matrix: weights of matrix columns, by GGUF name.
#[derive(Debug, Default)]
pub struct Importance {
    /// Column weights of each tensor; for experts, concatenated lists.
    pub weights: BTreeMap<String, Vec<f32>>,
}

impl Importance {
    /// Reads a file of `llama-imatrix`, in GGUF or in its older layout.
    ///
    /// # Errors
    /// `Io` or `Format` that names the file.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = netcl_device::files::read_whole(path).map_err(|e| Error::io("reading", path, &e))?;
        let all = if bytes.starts_with(b"GGUF") {
            Self::of_gguf(path)?
        } else {
            Self::of_bytes(&bytes).map_err(|e| e.context(path.display()))?
        };
        if all.weights.is_empty() {
            return Err(Error::format(format!("{}: an importance matrix without tensors", path.display())));
        }
        Ok(all)
    }

    fn of_gguf(path: &Path) -> Result<Self> {
        let file = Gguf::open(path)?;
        let mut weights = BTreeMap::new();
        for tensor in file.tensors() {
            let Some(name) = tensor.name.strip_suffix(".in_sum2") else { continue };
            let sums = tensor.format.dequantised(tensor.bytes, tensor.count())?;
            let counts = file.tensor(&format!("{name}.counts"));
            let counts =
                counts.map(|c| c.format.dequantised(c.bytes, c.count())).transpose()?.unwrap_or_default();
            let row = tensor.row();
            let mean = |(i, sum): (usize, f32)| sum / counts.get(i / row).copied().unwrap_or(1.0).max(1.0);
            weights.insert(name.to_owned(), sums.into_iter().enumerate().map(mean).collect());
        }
        Ok(Self { weights })
    }

    /// Parses the number of entries, then for each the length of its name, the name, calls, number of values, values.
    fn of_bytes(bytes: &[u8]) -> Result<Self> {
        let mut left = bytes;
        let mut take = |n: usize| {
            let (part, rest) = left.split_at_checked(n).ok_or_else(|| Error::format("cut off"))?;
            left = rest;
            Ok::<&[u8], Error>(part)
        };
        let number = |part: &[u8]| {
            let n = part.try_into().map_or(-1, i32::from_le_bytes);
            usize::try_from(n).map_err(|_| Error::format("not an importance matrix"))
        };
        let mut weights = BTreeMap::new();
        for _ in 0..number(take(4)?)? {
            let length = number(take(4)?)?;
            let name = String::from_utf8_lossy(take(length)?).into_owned();
            let calls = number(take(4)?)?.max(1) as f32;
            let values = number(take(4)?)?;
            let values = take(values.saturating_mul(4))?.as_chunks::<4>().0.iter();
            weights.insert(name, values.map(|b| f32::from_le_bytes(*b) / calls).collect());
        }
        Ok(Self { weights })
    }
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// A GGUF file.
    Gguf,
    /// A folder in the Hugging Face layout.
    Folder,
}

/// Options for writing.
pub struct WriteOptions<'a> {
    /// Its type.
    pub mix: &'static Mix,
    /// Importance of columns.
    pub importance: Option<&'a Importance>,
}

/// Progress of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The next tensor.
    pub name: &'a str,
    /// Finished and total tensors.
    pub tensors: [usize; 2],
    /// Finished and total elements.
    pub elements: [u64; 2],
}

/// Returns the formats of a model's tensors, in the order of [`Source::placed`].
pub fn planned(source: &Source, target: OutputFormat, options: &WriteOptions<'_>) -> Vec<&'static Format> {
    match target {
        OutputFormat::Gguf => options.mix.formats(source, options.importance.is_some()),
        OutputFormat::Folder => vec![options.mix.base; source.placed.len()],
    }
}

/// Writes a model as GGUF at `path`, or as a folder in the Hugging Face layout: to a temporary path, renamed when complete.
///
/// # Errors
/// `Unsupported`, before the work begins, for properties that the target cannot represent; `Io` with the file; `Format` for values that are not
/// finite, with the tensor's name.
pub fn convert(
    source: &Source,
    path: &Path,
    target: OutputFormat,
    options: &WriteOptions<'_>,
    progress: &mut dyn FnMut(Progress<'_>) -> Result<()>,
) -> Result<()> {
    match target {
        OutputFormat::Gguf => to_gguf(source, path, options, progress),
        OutputFormat::Folder => to_folder(source, path, options, progress),
    }
}

fn counts(placed: &[Placed]) -> Vec<u64> {
    placed.iter().map(|tensor| tensor.dims.iter().product::<usize>() as u64).collect()
}

fn metadata(source: &Source, options: &WriteOptions<'_>) -> Result<Vec<(String, Meta)>> {
    let mut out = Plan::default();
    match &source.origin {
        Origin::Gguf(file) => {
            for key in file.keys() {
                let (name, kind, bytes) = key?;
                if !name.starts_with("split.") && name != "general.alignment" {
                    out.set(name, Meta::Raw(kind, bytes.into()));
                }
            }
            if let Some(texts) = described(source)? {
                replace_texts(file, texts.path(), source.config.vocab, &mut out)?;
            }
        }
        Origin::Folder { folder, .. } => {
            for (key, value) in write_config(&source.config)? {
                out.set(key, value);
            }
            let name = std::path::absolute(&folder.path).ok();
            let name = name.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
            out.set("general.type", Meta::Str("model".into()));
            out.set("general.name", Meta::Str(name.unwrap_or_default()));
            let described = described(source)?;
            let texts = described.as_ref().map_or(&*folder.path, TempDir::path);
            let rest = vocabulary(texts, source.config.vocab)?
                .into_iter()
                .chain(generation::keys(texts)?)
                .chain(Pooling::keys(&folder.path, source.architecture.name));
            rest.for_each(|(key, value)| out.set(key, value));
        }
    }
    if let Some(rest) = norm_rests(source)? {
        for (key, value) in rest {
            out.set(key, value);
        }
    }
    out.set("general.file_type", Meta::U32(options.mix.number));
    if !options.mix.base.is_plain() {
        out.set("general.quantization_version", Meta::U32(2));
    }
    Ok(out.keys)
}

/// Returns a folder of everything but the weights of a model whose adapter has its own tokenizer; `None` for other models.
fn described(source: &Source) -> Result<Option<TempDir>> {
    if source.texts.is_none() {
        return Ok(None);
    }
    let folder = TempDir::new().map_err(|e| Error::io("creating", &std::env::temp_dir(), &e))?;
    write_description(source, folder.path())?;
    Ok(Some(folder))
}

/// Replaces the keys of a GGUF file that differ from the tokenizer, the template and the end tokens in a folder.
fn replace_texts(file: &Gguf, folder: &Path, vocab: usize, out: &mut Plan) -> Result<()> {
    let own = Tokenizer::from_folder(folder)?;
    let known = if has_tokenizer(file)? { Tokenizer::from_gguf(file).ok() } else { None };
    let ends = |tokenizer: &Tokenizer| (tokenizer.bos(), tokenizer.eos());
    let same = known.as_ref().filter(|known| ends(known) == ends(&own) && differing(&own, known).is_none());
    let keys = vocabulary(folder, vocab)?;
    let Some(known) = same else {
        out.keys.retain(|(name, _)| !name.starts_with("tokenizer."));
        keys.into_iter().chain(generation::keys(folder)?).for_each(|(key, value)| out.set(key, value));
        return Ok(());
    };
    if let Some((key, template)) = keys.into_iter().find(|(key, _)| key == TEMPLATE) {
        out.set(key, template);
    }
    if known.stops() != own.stops() {
        generation::keys(folder)?.into_iter().for_each(|(key, value)| out.set(key, value));
    }
    Ok(())
}

/// Returns the key of the rounding error of a norm's weights after adding one.
fn rest_key(name: &str) -> String {
    format!("netcl.rest.{name}")
}

/// Returns the rounding errors of adding one to norm weights in f32, with which the weights can be restored exactly.
fn norm_rests(source: &Source) -> Result<Option<Vec<(String, Meta)>>> {
    if !matches!(source.origin, Origin::Folder { .. }) {
        return Ok(None);
    }
    let mut out = Vec::new();
    for tensor in source.placed.iter().filter(|tensor| tensor.change == Change::PlusOne) {
        let count = tensor.dims.iter().product();
        let plain = Placed { change: Change::None, ..tensor.clone() };
        let own = source.read(&plain)?.floats(count)?;
        // Exact in f64: both are f32s, and so is the difference (Dekker 1971).
        let rest: Vec<f32> =
            own.iter().map(|w| (f64::from(*w) - (f64::from(*w + 1.0) - 1.0)) as f32).collect();
        if rest.iter().any(|r| *r != 0.0) {
            out.push((rest_key(&tensor.name), Meta::F32s(rest)));
        }
    }
    Ok(Some(out))
}

fn to_gguf(
    source: &Source,
    path: &Path,
    options: &WriteOptions<'_>,
    progress: &mut dyn FnMut(Progress<'_>) -> Result<()>,
) -> Result<()> {
    let formats = planned(source, OutputFormat::Gguf, options);
    let mut plan = Plan { keys: metadata(source, options)?, tensors: Vec::new() };
    let factors = match &source.origin {
        Origin::Gguf(file) => {
            let names = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
            let found = names.into_iter().filter_map(|name| Some((name, file.tensor(name)?)));
            found
                .map(|(n, t)| Ok((n, t.format.dequantised(t.bytes, t.count())?)))
                .collect::<Result<Vec<_>>>()?
        }
        Origin::Folder { .. } => rotary_tensors(&source.config),
    };
    let bytes_of = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    for (name, values) in &factors {
        plan.tensors.push(TensorToWrite {
            name: (*name).into(),
            dims: vec![values.len()],
            format: &quant::F32,
        });
    }
    for (tensor, format) in source.placed.iter().zip(&formats) {
        plan.tensors.push(TensorToWrite { name: tensor.name.clone(), dims: tensor.dims.clone(), format });
    }
    if matches!(source.origin, Origin::Folder { .. }) {
        check_metadata(&source.config, path, &plan, &factors)?;
    }
    let counts = counts(&source.placed);
    let (total, mut done) = (counts.iter().sum(), 0);
    plan.write(path, |i, out| {
        let fail = |e: std::io::Error| Error::io("writing", path, &e);
        if let Some((_, values)) = factors.get(i) {
            return out.write_all(&bytes_of(values)).map_err(fail);
        }
        let at = i - factors.len();
        let (tensor, format) = (&source.placed[at], formats[at]);
        progress(Progress { name: &tensor.name, tensors: [at, counts.len()], elements: [done, total] })?;
        done += counts[at];
        let bytes = stored_as(source, tensor, format, options.importance)?;
        out.write_all(&bytes).map_err(fail)
    })?;
    progress(Progress { name: "", tensors: [counts.len(); 2], elements: [total; 2] })
}

/// Converts the bytes of a tensor to another format.
pub(crate) fn stored_as(
    source: &Source,
    tensor: &Placed,
    format: &'static Format,
    importance: Option<&Importance>,
) -> Result<Vec<u8>> {
    let stored = source.read(tensor)?;
    if stored.format == format {
        return Ok(stored.bytes.into_owned());
    }
    let place = |e: Error| e.context(&tensor.name);
    let (count, row) = (tensor.dims.iter().product(), tensor.dims.last().copied().unwrap_or(1));
    let values = stored.floats(count).map_err(place)?;
    let size = format.size(count).ok_or_else(|| Error::shape(format!("{}: {format}", tensor.name)))?;
    let mut out = vec![0; size];
    let weights = importance.and_then(|all| all.weights.get(&tensor.name));
    let experts = if tensor.dims.len() > 2 { tensor.dims[0] } else { 1 };
    let parts = values.chunks(count / experts).zip(out.chunks_mut(size / experts));
    for (e, (values, out)) in parts.enumerate() {
        // One list for all experts, or one per expert.
        let weights = match weights {
            Some(all) if all.len() == row => Some(&all[..]),
            Some(all) if all.len() == row * experts => Some(&all[e * row..(e + 1) * row]),
            Some(all) => {
                return Err(place(Error::shape(format!(
                    "the importance matrix has {} columns, expected {row}",
                    all.len()
                ))));
            }
            None => None,
        };
        format.quantise(values, row, weights, out).map_err(place)?;
    }
    Ok(out)
}

/// Checks that the metadata describe the model: writes them with tensors without data, and reads them.
fn check_metadata(
    config: &DecoderConfig,
    path: &Path,
    plan: &Plan,
    factors: &[(&'static str, Vec<f32>)],
) -> Result<()> {
    let aside = temporary_sibling(path);
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&aside)?;
        let head = plan.head().map_err(|e| std::io::Error::other(e.to_string()))?;
        file.write_all(&head)?;
        for (_, values) in factors {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let padding = bytes.len().next_multiple_of(32) - bytes.len();
            file.write_all(&bytes)?;
            file.write_all(&vec![0; padding])?;
        }
        let size = plan.size().map_err(|e| std::io::Error::other(e.to_string()))?;
        file.set_len(size)
    };
    let read = written()
        .map_err(|e| Error::io("writing", path, &e))
        .and_then(|()| Gguf::open(&aside))
        .and_then(|file| read_config(&file));
    let _ = std::fs::remove_file(&aside);
    let read = comparable(&read.map_err(|e| e.context("the metadata to be written"))?);
    let own = comparable(config);
    if own == read {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "GGUF files cannot describe this model: {}. Use a folder of safetensors: give OUT a name that does not end in .gguf",
        differences(&own, &read)
    )))
}

/// Returns the differences of two configurations, by the fields of `config.json`.
fn differences(own: &DecoderConfig, read: &DecoderConfig) -> String {
    let facts = FileFacts { dtype: None, dropout: 0.0, tokens: Map::new() };
    let fields =
        |config: &DecoderConfig| config.to_json(&facts).ok().and_then(|json| json.as_object().cloned());
    let kinds = own.kinds != read.kinds;
    let (own, read) = (fields(own).unwrap_or_default(), fields(read).unwrap_or_default());
    let absent = Value::String("absent".into());
    let names: BTreeSet<&String> = own.keys().chain(read.keys()).collect();
    let said: Vec<String> = names
        .into_iter()
        .filter(|name| own.get(*name) != read.get(*name))
        .map(|name| {
            let value = |fields: &Map<String, Value>| fields.get(name).unwrap_or(&absent).to_string();
            format!("{name} is {}, but would be read as {}", value(&own), value(&read))
        })
        .collect();
    match said.is_empty() {
        false => said.join("; "),
        true if kinds => {
            "the format does not have a key for its pattern of layers (rotary positions, window or experts per layer)".into()
        }
        true => "the format does not have a key for one of its settings".into(),
    }
}

/// Returns a configuration for comparison, with numbers rounded to six digits.
fn comparable(config: &DecoderConfig) -> DecoderConfig {
    let digits = |x: f64| format!("{x:.5e}").parse::<f64>().unwrap_or(x);
    let short = |x: f32| digits(f64::from(x)) as f32;
    let scaling = |scaling: &Scaling| match scaling {
        Scaling::None => Scaling::None,
        Scaling::Linear { factor } => Scaling::Linear { factor: digits(*factor) },
        Scaling::Llama3 { factor, low, high, original } => Scaling::Llama3 {
            factor: digits(*factor),
            low: digits(*low),
            high: digits(*high),
            original: digits(*original),
        },
        Scaling::Yarn { factor, fast, slow, original, truncate, magnitude } => Scaling::Yarn {
            factor: digits(*factor),
            fast: digits(*fast),
            slow: digits(*slow),
            original: digits(*original),
            truncate: *truncate,
            magnitude: digits(*magnitude),
        },
        Scaling::LongRope { short, long, original, magnitude } => Scaling::LongRope {
            short: short.iter().map(|x| digits(*x)).collect(),
            long: long.iter().map(|x| digits(*x)).collect(),
            original: *original,
            magnitude: digits(*magnitude),
        },
    };
    let rotary = |r: &Rotary| Rotary { dims: r.dims, base: digits(r.base), scaling: scaling(&r.scaling) };
    let mut out = config.clone();
    if let Some(first) = netcl_model::decoder::FAMILIES.first() {
        // Only names of files differ.
        out.family = &first.family;
    }
    out.rotary = config.rotary.iter().map(rotary).collect();
    out.kinds = (0..config.layers.min(1 << 16)).map(|i| LayerKind { ..config.kind(i) }).collect();
    out.norm.eps = short(config.norm.eps);
    let a = &mut out.attention;
    a.scale = Some(short(a.scale.unwrap_or(1.0 / (a.size as f32).sqrt())));
    a.softcap = a.softcap.map(short);
    out.logits_softcap = out.logits_softcap.map(short);
    out.embedding_scale = short(out.embedding_scale);
    out.residual_scale = short(out.residual_scale);
    out.logits_scale = short(out.logits_scale);
    if let Some(moe) = &mut out.mlp.moe {
        (moe.balance, moe.balance_factor) = (false, 0.0);
    }
    out
}

/// Writes everything but the weights of a model into a folder, in the layout of Hugging Face: its configuration, tokenizer and related files.
///
/// # Errors
/// `Unsupported` for a configuration that the layout cannot express; `Io`.
pub fn write_description(source: &Source, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io("creating", folder, &e))?;
    put_json(&folder.join("config.json"), &folder_config(source, FileDtype::F32)?)?;
    companions(source, folder)
}

/// Returns the type for a folder's tensors: the requested one, or that of a GGUF file's matrices if vectors fit into it.
fn to_folder(
    source: &Source,
    path: &Path,
    options: &WriteOptions<'_>,
    progress: &mut dyn FnMut(Progress<'_>) -> Result<()>,
) -> Result<()> {
    let format = options.mix.base;
    let dtype = match format.name {
        "F32" => FileDtype::F32,
        "F16" => FileDtype::F16,
        "BF16" => FileDtype::BF16,
        _ => {
            return Err(Error::unsupported(format!(
                "safetensors of type {}: a folder supports f32, f16 or bf16; quantized types need a .gguf file",
                options.mix.name
            )));
        }
    };
    let config = folder_config(source, dtype)?;
    std::fs::create_dir_all(path).map_err(|e| Error::io("creating", path, &e))?;
    let counts = counts(&source.placed);
    let total = counts.iter().sum();
    let state = std::cell::RefCell::new((progress, 0u64, 0usize));
    let cache: std::cell::RefCell<Option<(usize, Vec<u8>)>> = None.into();
    let mut tensors = Vec::new();
    for (i, placed) in source.placed.iter().enumerate() {
        for (part, name) in placed.files.iter().enumerate() {
            let (state, cache, counts) = (&state, &cache, &counts);
            let bytes = move || {
                let mut cache = cache.borrow_mut();
                if cache.as_ref().is_none_or(|(known, _)| *known != i) {
                    let mut state = state.borrow_mut();
                    let elements = [state.1, total];
                    let tensors = [state.2, counts.len()];
                    (state.0)(Progress { name: &placed.name, tensors, elements })?;
                    (state.1, state.2) = (state.1 + counts[i], state.2 + 1);
                    *cache = Some((i, file_bytes(source, placed, format)?));
                }
                let whole = cache.as_ref().map(|(_, bytes)| &bytes[..]).unwrap_or_default();
                let size = whole.len() / placed.files.len();
                Ok(whole[part * size..(part + 1) * size].to_vec())
            };
            let shape = placed.file_dims.clone();
            tensors.push(FilePlanned {
                name: name.clone(),
                dtype,
                shape,
                bytes: Bytes::Later(Box::new(bytes)),
            });
        }
    }
    let file = path.join(MODEL_FILE);
    let aside = temporary_sibling(&file);
    write_planned(&aside, &tensors, &AtomicU64::new(0))
        .and_then(|_| std::fs::rename(&aside, &file).map_err(|e| Error::io("writing", &file, &e)))
        .inspect_err(|_| {
            // If it was never created, there is nothing to remove.
            let _ = std::fs::remove_file(&aside);
        })?;
    drop(tensors);
    put_json(&path.join("config.json"), &config)?;
    companions(source, path)?;
    (state.into_inner().0)(Progress { name: "", tensors: [counts.len(); 2], elements: [total; 2] })
}

fn put_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::internal(format!("{}: {e}", path.display())))?;
    replace(path, format!("{text}\n").as_bytes()).map_err(|e| Error::io("writing", path, &e))
}

/// Returns all parts of a tensor in a folder's files, concatenated.
fn file_bytes(source: &Source, placed: &Placed, format: &'static Format) -> Result<Vec<u8>> {
    let stored = source.read(placed)?;
    let count: usize = placed.dims.iter().product();
    let bytes = if placed.change == Change::PlusOne {
        let mut values = stored.floats(count)?;
        let key = rest_key(&placed.name);
        let rest = match &source.origin {
            Origin::Gguf(file) => file.numbers(&key)?,
            Origin::Folder { .. } => norm_rests(source)?.and_then(|all| {
                all.into_iter().find_map(|(name, value)| match value {
                    Meta::F32s(rest) if name == key => Some(rest),
                    _ => None,
                })
            }),
        };
        let rest = rest.unwrap_or_default();
        for (i, v) in values.iter_mut().enumerate() {
            let rest = rest.get(i).copied().unwrap_or(0.0);
            *v = (f64::from(*v) - 1.0 + f64::from(rest)) as f32;
        }
        let mut out = vec![0; format.size(count).unwrap_or(0)];
        format.quantise(&values, count.max(1), None, &mut out)?;
        out
    } else {
        stored_as(source, placed, format, None)?
    };
    let width = if placed.file_dims.len() > 1 { placed.file_dims[1] } else { 1 };
    let each = bytes.len() / placed.files.len().max(1);
    let rows = [width * format.bytes, format.bytes];
    // The rows of a transposed matrix are GGUF's rows.
    let dims: Vec<usize> = placed.file_dims.iter().rev().copied().collect();
    Ok(bytes.chunks(each.max(1)).flat_map(|part| placed.change.to_file(part, rows, &dims)).collect())
}

/// Returns `config.json` of the model with another type.
fn folder_config(source: &Source, dtype: FileDtype) -> Result<Value> {
    let dtype = match dtype {
        FileDtype::F16 => DType::F16,
        FileDtype::BF16 => DType::Bf16,
        _ => DType::F32,
    };
    let mut tokens = Map::new();
    match &source.origin {
        Origin::Gguf(file) => {
            for (field, key) in
                [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")]
            {
                if let Some(id) = file.size(&format!("tokenizer.ggml.{key}_token_id"))? {
                    tokens.insert(field.into(), id.into());
                }
            }
        }
        Origin::Folder { folder, .. } => {
            let fields = folder.json.as_object().into_iter().flatten();
            tokens.extend(
                fields.filter(|(k, _)| k.ends_with("_token_id")).map(|(k, v)| (k.clone(), v.clone())),
            );
        }
    }
    if let Some(file) =
        source.texts.as_ref().map(|folder| folder.join("config.json")).filter(|file| file.exists())
    {
        let text = netcl_device::files::read_text(&file).map_err(|e| Error::io("reading", &file, &e))?;
        let json: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        tokens.extend(json.into_iter().filter(|(k, v)| k.ends_with("_token_id") && !v.is_null()));
    }
    source.config.to_json(&FileFacts { dtype: Some(dtype), dropout: 0.0, tokens })
}

/// Writes a file into a folder or a subfolder.
fn put_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let to = folder.join(name);
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Error::io("creating", parent, &e))?;
    }
    replace(&to, bytes).map_err(|e| Error::io("writing", &to, &e))
}

/// Writes the tokenizer and related files: those of the model, replaced by those of its adapter.
fn companions(source: &Source, path: &Path) -> Result<()> {
    companions_of_model(source, path)?;
    match &source.texts {
        Some(folder) => copy(folder, COMPANIONS.map(String::from), path),
        None => Ok(()),
    }
}

/// Copies a PEFT adapter with its tokenizer and template into a folder.
///
/// # Errors
/// `Io` with the file; `Format` for a folder without an adapter.
pub fn write_adapter(folder: &Path, path: &Path) -> Result<()> {
    const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
    std::fs::create_dir_all(path).map_err(|e| Error::io("creating", path, &e))?;
    if let Some(lacks) = FILES.iter().find(|name| !folder.join(name).exists()) {
        return Err(Error::format(format!(
            "{} does not have the file {lacks} of an adapter",
            folder.display()
        )));
    }
    copy(folder, FILES.iter().chain(&COMPANIONS).map(|name| (*name).to_owned()), path)
}

/// Copies the named files that exist in a folder.
fn copy(folder: &Path, names: impl IntoIterator<Item = String>, path: &Path) -> Result<()> {
    for name in names {
        let from = folder.join(&name);
        if from.exists() && from != path.join(&name) {
            let bytes =
                netcl_device::files::read_whole(&from).map_err(|e| Error::io("reading", &from, &e))?;
            put_file(path, &name, &bytes)?;
        }
    }
    Ok(())
}

fn companions_of_model(source: &Source, path: &Path) -> Result<()> {
    let put = |name: &str, text: &str| put_file(path, name, text.as_bytes());
    let file = match &source.origin {
        Origin::Folder { folder, .. } => {
            let names = COMPANIONS.map(String::from).into_iter().chain(sidecars(&folder.path)?);
            copy(&folder.path, names, path)?;
            return Ok(());
        }
        Origin::Gguf(file) => file,
    };
    let known = has_tokenizer(file)?;
    match tokenizer_file(file) {
        Ok(text) if known => put("tokenizer.json", &text)?,
        Err(e) if known => tracing::warn!("{} gets no tokenizer.json: {e}", path.display()),
        _ => {}
    }
    let tokenizer = if known { Tokenizer::from_gguf(file).ok() } else { None };
    if let Some(text) = file.text(TEMPLATE)? {
        put("chat_template.jinja", text)?;
    }
    let mut settings = generation::file_of(file)?;
    if let Some(tokenizer) = tokenizer.as_ref().filter(|_| file.text(HUGGING_FACE).ok().flatten().is_none()) {
        // Other programs do not know the ends of a turn by their names.
        settings = Some(with_ends(settings, tokenizer.stops()));
    }
    if let Some(json) = settings {
        put_json(&path.join(generation::FILE), &json)?;
    }
    for (name, json) in Pooling::files_of(file, source.architecture.name, source.config.width) {
        put(name, &format!("{json:#}\n"))?;
    }
    let tokens = file.texts("tokenizer.ggml.tokens").ok().flatten();
    let mut settings = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    for (field, key) in
        [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        let given = file.size(&format!("tokenizer.ggml.{key}_token_id"))?;
        let usual = tokenizer.as_ref().and_then(|t| match key {
            "bos" => t.bos(),
            "eos" => t.eos(),
            _ => None,
        });
        let id = given.or(usual.map(|id| id as usize));
        let text = id.zip(tokens.as_ref()).and_then(|(id, tokens)| tokens.get(id).copied());
        if let Some(text) = text {
            settings[field] = text.into();
        }
    }
    for field in ["add_bos_token", "add_eos_token"] {
        if let Some(on) = file.flag(&format!("tokenizer.ggml.{field}"))? {
            settings[field] = on.into();
        }
    }
    put_json(&path.join("tokenizer_config.json"), &settings)
}

/// Returns true if a GGUF file contains a tokenizer.
fn has_tokenizer(file: &Gguf) -> Result<bool> {
    let model = file.text("tokenizer.ggml.model")?;
    Ok(file.text(HUGGING_FACE)?.is_some() || model.is_some_and(|model| model != "no_vocab"))
}

/// Returns a `generation_config.json` that names the tokens at which generation ends, unless it does already.
fn with_ends(settings: Option<Value>, ends: &[u32]) -> Value {
    let mut settings = settings.unwrap_or_else(|| json!({}));
    if !ends.is_empty() && settings["eos_token_id"].is_null() {
        settings["eos_token_id"] = ends.into();
    }
    settings
}

/// Files that are copied unchanged together with the weights.
const COMPANIONS: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
];
