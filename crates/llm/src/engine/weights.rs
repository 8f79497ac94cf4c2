//! Loads the weights of a file to a device, one parameter at a time, so that the host never holds all of them.

use super::Loading;
use super::memory_plan::MemoryPlan;
use crate::model::adapter::Adapters;
use crate::model::{Change, Placed, Source};
use netcl_model::checkpoint::{FileDtype, TensorView, WeightFiles};
use netcl_model::decoder::{Decoder, DecoderConfig, ModelFolder, ParamShape, Span};
use netcl_model::model::Model;
use netcl_tensor::quant::{self, Activations, Blocks, Format};
use netcl_tensor::{DType, Device, Error, Result, Tensor};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// Minimum number of elements that a thread converts.
const PART: usize = 1 << 18;

/// An open model whose tensors match its configuration.
pub(super) enum Weights {
    /// `config.json` and safetensors.
    Folder { folder: Box<ModelFolder>, files: WeightFiles },
    /// A GGUF file, and the position of each tensor by its Hugging Face name: the index in `placed`, and the part.
    Gguf { source: Box<Source>, places: HashMap<String, (usize, usize)> },
}

impl Weights {
    /// Opens a GGUF file, a folder in the Hugging Face layout, or a training run folder.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_file() {
            if path.extension().is_some_and(|e| e == "safetensors" || e == "json") {
                let folder = path.parent().unwrap_or(Path::new("."));
                return Err(Error::format(format!(
                    "{} is only a part of a model: name its folder, {}, or a .gguf file",
                    path.display(),
                    folder.display()
                )));
            }
            let source = Box::new(Source::open(path)?);
            let mut places = HashMap::new();
            for (at, placed) in source.placed.iter().enumerate() {
                places.extend(placed.files.iter().enumerate().map(|(part, name)| (name.clone(), (at, part))));
            }
            return Ok(Self::Gguf { source, places });
        }
        let folder = Box::new(ModelFolder::open(path).map_err(|e| with_files(e, path))?);
        let files = folder.weights()?;
        folder.config.matched(&files.tensors()).map_err(|e| e.context(folder.path.display()))?;
        Ok(Self::Folder { folder, files })
    }

    /// Returns the configuration in the files.
    pub fn config(&self) -> &DecoderConfig {
        match self {
            Self::Folder { folder, .. } => &folder.config,
            Self::Gguf { source, .. } => &source.config,
        }
    }

    /// Returns the file, or the folder with `config.json`.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder { folder, .. } => &folder.path,
            Self::Gguf { source, .. } => source.path(),
        }
    }

    /// Returns the storage type nearest to the files': the common type of a folder's weights, or that of most elements of a GGUF file's matrices; f16
    /// for quantized ones.
    pub fn dtype(&self) -> Result<DType> {
        match self {
            Self::Folder { files, .. } => {
                let tensors = files.tensors();
                let all = |wanted| !tensors.is_empty() && tensors.iter().all(|t| t.dtype == wanted);
                Ok(match (all(FileDtype::BF16), all(FileDtype::F16)) {
                    (true, _) => DType::Bf16,
                    (_, true) => DType::F16,
                    _ => DType::F32,
                })
            }
            Self::Gguf { source, .. } => {
                let mut elements = [(DType::F32, 0), (DType::Bf16, 0), (DType::F16, 0)];
                for placed in source.placed.iter().filter(|placed| placed.dims.len() > 1) {
                    let at = match source.format(placed)?.name {
                        "F32" | "F64" => 0,
                        "BF16" => 1,
                        _ => 2,
                    };
                    elements[at].1 += placed.dims.iter().product::<usize>();
                }
                Ok(elements
                    .into_iter()
                    .max_by_key(|(_, count)| *count)
                    .map_or(DType::F16, |(dtype, _)| dtype))
            }
        }
    }

    /// Returns the matrices that kernels read in the format of a GGUF file, and the parts of each parameter.
    pub fn quantised(&self) -> Result<Vec<(ParamShape, Vec<TensorPart<'_>>)>> {
        let Self::Gguf { source, places } = self else { return Ok(Vec::new()) };
        let place = |name: &str| places.get(name).copied();
        maps(&source.config, &source.placed, place, |of| source.format(&source.placed[of]))
    }

    /// Returns the memory needs with these matrices quantized, their adapter products, and the others in `dtype` or the type nearest to the files'.
    pub fn needs(
        &self,
        dtype: Option<DType>,
        quantised: &[(ParamShape, Vec<TensorPart<'_>>)],
        adapters: &Adapters,
    ) -> Result<MemoryPlan> {
        let dtype = dtype.map_or_else(|| self.dtype(), Ok)?;
        let mut bytes: HashMap<String, u64> = HashMap::new();
        for (shape, parts) in quantised {
            let all = parts.iter().map(|part| part.format.size(part.tensor.file_dims.iter().product()));
            bytes.insert(shape.name.clone(), all.map(|size| size.unwrap_or(0) as u64).sum());
        }
        for (shape, _) in quantised {
            let elements =
                adapters.combined_product(shape).map_or(0, |beside| beside.a.len() + beside.b.len());
            *bytes.entry(shape.name.clone()).or_default() += (elements * dtype.size()) as u64;
        }
        let kept = quantised.iter().map(|(shape, _)| shape.name.clone()).collect();
        Ok(MemoryPlan::new(adapters.config(&kept), dtype, &bytes))
    }

    /// Copies those matrices unchanged to the devices of their layers.
    pub fn blocks(
        &self,
        spans: &[Span],
        quantised: &[(ParamShape, Vec<TensorPart<'_>>)],
        activations: Option<Activations>,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<BTreeMap<String, Vec<Blocks>>> {
        let Self::Gguf { source, .. } = self else { return Ok(BTreeMap::new()) };
        let (total, mut done) = (self.config().parameters() as u64, 0);
        let mut out = BTreeMap::new();
        for Matrix { span, shape, of } in matrices(self.config(), spans, quantised.iter().map(|(s, _)| s)) {
            let (device, parts) = (&span.device, &quantised[of].1);
            let activations = activations.unwrap_or_else(|| Activations::usual(device));
            let _tag = device.tag("quantised weights");
            progress(Loading { name: &shape.name, device: &device.capabilities().id, done, total })?;
            let runs = parts.chunk_by(|a, b| a.format == b.format);
            let blocks = runs.map(|run| blocks_of(device, source, run, activations));
            out.insert(shape.name.clone(), blocks.collect::<Result<Vec<_>>>()?);
            done += if shape.is_copy(self.config()) { 0 } else { shape.count() as u64 };
        }
        Ok(out)
    }

    /// Sets every other parameter of `decoder`, with the changes by adapters. The decoder may have fewer learned positions than the files.
    pub fn load(
        &self,
        decoder: &Decoder,
        adapters: &Adapters,
        progress: &mut dyn FnMut(Loading<'_>) -> Result<()>,
    ) -> Result<()> {
        let to = format_of(decoder.params().dtype())?;
        let config = DecoderConfig { context: self.config().context, ..decoder.config().clone() };
        let names = config.family.names;
        let positions = format!("{}{}.weight", names.prefix, names.positions);
        let total = config.parameters() as u64;
        let dense = |shape: &ParamShape| decoder.params().blocks(&shape.name).is_none();
        let left: u64 = config.shapes().filter(dense).map(|shape| shape.count() as u64).sum();
        let mut done = total - left;
        let tensors = match self {
            Self::Folder { files, .. } => files.tensors(),
            Self::Gguf { .. } => Vec::new(),
        };
        let first = |shape: &ParamShape| shape.pieces.first().map(|(name, _)| name.clone());
        let stored = Stored { weights: self, views: self.views(&tensors)? };
        // By the first tensor of each, which a copy also has; shapes are those of the files.
        let shapes: HashMap<_, _> = config.shapes().map(|shape| (first(&shape), shape)).collect();
        for (own, parameter) in decoder.shapes().iter().zip(decoder.params().list()) {
            let shape = shapes.get(&first(own)).unwrap_or(own);
            let device = &parameter.device().capabilities().id;
            progress(Loading { name: &own.name, device, done, total })?;
            let mut pieces = stored.changed(shape, adapters, to)?;
            if own.name == positions {
                let kept = parameter.count() * to.bytes;
                pieces = pieces.into_iter().map(|piece| part_of(piece, 0..kept)).collect();
            }
            upload(parameter, &pieces).map_err(|e| e.context(&own.name))?;
            done += if own.is_copy(&config) { 0 } else { shape.count() as u64 };
        }
        progress(Loading { name: "", device: "", done: total, total })
    }

    /// Returns the tensors of a folder for each of its parameters, by the first of them.
    fn views<'a>(&self, tensors: &[TensorView<'a>]) -> Result<HashMap<String, Vec<TensorView<'a>>>> {
        let Self::Folder { folder, .. } = self else { return Ok(HashMap::new()) };
        let matched = folder.config.matched(tensors)?;
        Ok(folder
            .config
            .shapes()
            .filter_map(|shape| shape.pieces.into_iter().next())
            .map(|(name, _)| name)
            .zip(matched)
            .collect())
    }

    fn of_gguf(&self, shape: &ParamShape, to: &'static Format) -> Result<Vec<Cow<'_, [u8]>>> {
        let Self::Gguf { source, places } = self else { return Ok(Vec::new()) };
        let own = |(name, _): &(String, _)| {
            let place = places.get(name).ok_or_else(|| Error::internal(format!("no slot for {name}")));
            let (at, part) = place?;
            piece(source, &source.placed[*at], *part, to).map_err(|e| e.context(name))
        };
        shape.pieces.iter().map(own).collect()
    }
}

/// A quantized matrix on a device.
pub(super) struct Matrix<'a> {
    pub span: &'a Span,
    pub shape: ParamShape,
    /// Index of the quantized parameter.
    pub of: usize,
}

/// Returns the quantized matrices of each device: those of its layers, and the copy of a tied embedding.
pub(super) fn matrices<'a>(
    config: &DecoderConfig,
    spans: &'a [Span],
    quantised: impl Iterator<Item = &'a ParamShape>,
) -> Vec<Matrix<'a>> {
    let by_pieces: HashMap<_, usize> = quantised.enumerate().map(|(of, shape)| (&shape.pieces, of)).collect();
    let mut out = Vec::new();
    for span in spans {
        let shapes = config.shapes_of(span.layers.clone());
        out.extend(
            shapes.filter_map(|shape| by_pieces.get(&shape.pieces).map(|of| Matrix { span, shape, of: *of })),
        );
    }
    out
}

/// The values of a model's files.
struct Stored<'a> {
    weights: &'a Weights,
    views: HashMap<String, Vec<TensorView<'a>>>,
}

impl Stored<'_> {
    /// Returns a parameter's values in the decoder's layout, with the changes by adapters, in consecutive pieces.
    fn changed(
        &self,
        shape: &ParamShape,
        adapters: &Adapters,
        to: &'static Format,
    ) -> Result<Vec<Cow<'_, [u8]>>> {
        let ordered = |pieces: Vec<Cow<'_, [u8]>>, heads| vec![by_part(&pieces.concat(), heads).into()];
        let pieces = match adapters.touches(shape) {
            true => None,
            false => self.pieces(shape, to)?,
        };
        let pieces = match pieces {
            Some(pieces) => pieces,
            None => {
                let bytes = match self.pieces(shape, &quant::F32)? {
                    Some(pieces) => pieces.concat(),
                    None => self.absent(shape)?,
                };
                let values = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
                let mut values: Vec<f32> = values.collect();
                adapters.merge(shape, &mut values);
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                vec![converted(&quant::F32, bytes.into(), shape.count(), to, 0.0)?]
            }
        };
        Ok(match shape.by_head {
            Some(heads) => ordered(pieces, heads),
            None => pieces,
        })
    }

    /// Returns the values in the files.
    fn pieces(&self, shape: &ParamShape, to: &'static Format) -> Result<Option<Vec<Cow<'_, [u8]>>>> {
        match self.weights {
            Weights::Folder { .. } => {
                let views = shape.pieces.first().and_then(|(name, _)| self.views.get(name));
                views.map(|views| of_views(views, to)).transpose()
            }
            Weights::Gguf { places, .. } => {
                let there = shape.pieces.iter().all(|(name, _)| places.contains_key(name));
                there.then(|| self.weights.of_gguf(shape, to)).transpose()
            }
        }
    }

    /// Returns a parameter that adapters added to the model: a head that was tied to the embedding, or a bias.
    fn absent(&self, shape: &ParamShape) -> Result<Vec<u8>> {
        let names = self.weights.config().family.names;
        if shape.name == format!("{}.weight", names.head) {
            let embedding = format!("{}{}.weight", names.prefix, names.embedding);
            let mut all = self.weights.config().shapes();
            let table = all.find(|other| other.name == embedding);
            let pieces = table.map(|table| self.pieces(&table, &quant::F32)).transpose()?;
            let bytes = pieces.flatten().map(|pieces| pieces.concat());
            return bytes.ok_or_else(|| Error::internal(format!("no {embedding}")));
        }
        Ok(vec![0; shape.count() * 4])
    }
}

/// A tensor of a GGUF file, or one of its equal parts for experts.
#[derive(Clone, Copy)]
pub(super) struct TensorPart<'a> {
    pub tensor: &'a Placed,
    /// Index of the tensor.
    pub of: usize,
    /// Index of the part.
    pub at: usize,
    pub format: &'static Format,
}

/// Returns the matrices that kernels read as blocks (projections, experts and tables), with their parts. Consecutive matrices of one format are one
/// matrix on the device, which saves launches per step.
pub(super) fn maps<'a>(
    config: &DecoderConfig,
    placed: &'a [Placed],
    place: impl Fn(&str) -> Option<(usize, usize)>,
    format: impl Fn(usize) -> Result<&'static Format>,
) -> Result<Vec<(ParamShape, Vec<TensorPart<'a>>)>> {
    let mut out = Vec::new();
    for shape in config.shapes().filter(|shape| shape.takes_blocks(config)) {
        let places = shape.pieces.iter().map(|(name, _)| place(name));
        let Some(places) = places.collect::<Option<Vec<_>>>() else { continue };
        let mut parts = Vec::with_capacity(places.len());
        for (of, at) in places {
            parts.push(TensorPart { tensor: &placed[of], of, at, format: format(of)? });
        }
        let whole = parts.iter().all(|TensorPart { tensor, format, .. }| {
            // Rows stay whole: only their order may change.
            let ordered = match tensor.change {
                Change::None => tensor.files.len() == 1 || shape.of_experts(),
                Change::Pairs(_) => tensor.files.len() == 1,
                _ => false,
            };
            ordered && format.on_devices()
        });
        // The experts' matrices are one matrix.
        let one = !shape.of_experts() || parts.windows(2).all(|two| two[0].format == two[1].format);
        if whole && one {
            out.push((shape, parts));
        }
    }
    Ok(out)
}

/// Stacks parts of one format and width from the file, with the rows of each in Hugging Face's order.
fn blocks_of(
    device: &Device,
    source: &Source,
    parts: &[TensorPart<'_>],
    activations: Activations,
) -> Result<Blocks> {
    let mut all = Stack::default();
    for TensorPart { tensor, at, .. } in parts {
        let stored = source.read(tensor)?;
        let [rows, columns] = tensor.file_dims.as_slice().try_into().map_err(|_| {
            Error::internal(format!(
                "{} has axes {:?}, expected rows and columns",
                tensor.name, tensor.file_dims
            ))
        })?;
        let size = stored.bytes.len() / tensor.files.len().max(1);
        let bytes = match (tensor.change, stored.bytes) {
            (Change::None, bytes) => part_of(bytes, at * size..(at + 1) * size),
            (change, bytes) => {
                let row = stored.format.size(columns).unwrap_or(0);
                change.to_file(&bytes, [row, stored.format.bytes], &[rows, columns]).into()
            }
        };
        all.push(stored.format, [rows, columns], bytes);
    }
    let name = parts.first().map_or("", |part| &part.tensor.name);
    all.blocks(device, activations).map_err(|e| e.context(name))
}

/// Stacked matrices of one format.
#[derive(Default)]
pub(super) struct Stack<'a> {
    format: Option<&'static Format>,
    dims: [usize; 2],
    parts: Vec<Cow<'a, [u8]>>,
}

impl<'a> Stack<'a> {
    pub fn push(&mut self, format: &'static Format, [rows, columns]: [usize; 2], bytes: Cow<'a, [u8]>) {
        self.format = Some(format);
        self.dims = [self.dims[0] + rows, columns];
        self.parts.push(bytes);
    }

    pub fn blocks(&self, device: &Device, activations: Activations) -> Result<Blocks> {
        let format = self.format.ok_or_else(|| Error::internal("a matrix without data"))?;
        let parts: Vec<&[u8]> = self.parts.iter().map(|part| &**part).collect();
        Blocks::of_parts(device, format, self.dims, &parts, activations)
    }
}

/// Returns a part of a tensor's bytes.
fn part_of(bytes: Cow<'_, [u8]>, own: Range<usize>) -> Cow<'_, [u8]> {
    match bytes {
        whole if own == (0..whole.len()) => whole,
        Cow::Borrowed(bytes) => bytes.get(own).unwrap_or_default().into(),
        Cow::Owned(bytes) => bytes.get(own).unwrap_or_default().to_vec().into(),
    }
}

/// Sets a parameter to these consecutive pieces.
fn upload(parameter: &Tensor, pieces: &[Cow<'_, [u8]>]) -> Result<()> {
    let (given, wanted) =
        (pieces.iter().map(|p| p.len()).sum::<usize>(), parameter.count() * parameter.dtype().size());
    if given != wanted {
        return Err(Error::shape(format!("{given} bytes of a file, expected {wanted}")));
    }
    let mut at = 0;
    for piece in pieces {
        parameter.write_bytes(at, piece)?;
        at += piece.len();
    }
    Ok(())
}

/// If a folder contains no model but GGUF files, adds their names.
fn with_files(error: Error, path: &Path) -> Error {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut files: Vec<_> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "gguf")).collect();
    files.sort();
    match files.first() {
        Some(first) if !path.join("config.json").exists() => Error::format(format!(
            "{} is a folder of {} GGUF file(s): name one, such as {}",
            path.display(),
            files.len(),
            first.display()
        )),
        _ => error,
    }
}

fn format_of(dtype: DType) -> Result<&'static Format> {
    match dtype {
        DType::F32 => Ok(&quant::F32),
        DType::F16 => Ok(&quant::F16),
        DType::Bf16 => Ok(&quant::BF16),
        other => Err(Error::dtype(format!("weights of {other}, expected f32, f16 or bf16"))),
    }
}

/// Returns a parameter's bytes from the tensors of a folder, in order.
fn of_views<'a>(views: &[TensorView<'a>], to: &'static Format) -> Result<Vec<Cow<'a, [u8]>>> {
    let piece = |view: &TensorView<'a>| {
        let count = view.shape.iter().product();
        let from = match view.dtype {
            FileDtype::F32 => &quant::F32,
            FileDtype::F16 => &quant::F16,
            FileDtype::BF16 => &quant::BF16,
            _ => {
                let values = view.floats()?;
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                return converted(&quant::F32, bytes.into(), count, to, 0.0);
            }
        };
        converted(from, view.bytes.into(), count, to, 0.0)
    };
    views.iter().map(piece).collect()
}

/// Reorders rows from query, key and value of head 0, then of head 1, … to all queries, all keys, all values.
fn by_part(rows: &[u8], [heads, size]: [usize; 2]) -> Vec<u8> {
    let of = rows.len() / (3 * heads * size).max(1);
    let mut out = Vec::with_capacity(rows.len());
    for part in 0..3 {
        for head in 0..heads {
            let from = (head * 3 + part) * size * of;
            out.extend_from_slice(&rows[from..from + size * of]);
        }
    }
    out
}

/// Returns one Hugging Face tensor from the GGUF tensor that contains it.
fn piece<'a>(source: &'a Source, placed: &Placed, part: usize, to: &'static Format) -> Result<Cow<'a, [u8]>> {
    let stored = source.read(placed)?;
    let parts = placed.files.len().max(1);
    let count = placed.dims.iter().product::<usize>() / parts;
    let size = stored.bytes.len() / parts;
    let bytes = part_of(stored.bytes, part * size..(part + 1) * size);
    let shift = if placed.change == Change::PlusOne { -1.0 } else { 0.0 };
    let bytes = converted(stored.format, bytes, count, to, shift)?;
    if matches!(placed.change, Change::None | Change::PlusOne) {
        return Ok(bytes);
    }
    let width = if placed.file_dims.len() > 1 { placed.file_dims[1] } else { 1 };
    let dims: Vec<usize> = placed.file_dims.iter().rev().copied().collect();
    Ok(placed.change.to_file(&bytes, [width * to.bytes, to.bytes], &dims).into())
}

/// Converts `count` elements to another format and adds `shift`; long rows are split over several threads.
fn converted<'a>(
    from: &'static Format,
    bytes: Cow<'a, [u8]>,
    count: usize,
    to: &'static Format,
    shift: f32,
) -> Result<Cow<'a, [u8]>> {
    if from == to && shift == 0.0 {
        return Ok(bytes);
    }
    let size = to.size(count).unwrap_or(0);
    let mut out = vec![0; size];
    let one = |bytes: &[u8], out: &mut [u8]| -> Result<()> {
        let count = out.len() / to.bytes;
        let mut values = from.dequantised(bytes, count)?;
        if shift != 0.0 {
            values.iter_mut().for_each(|v| *v += shift);
        }
        to.quantise(&values, count.max(1), None, out)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count / PART).max(1);
    if threads == 1 {
        return one(&bytes, &mut out).map(|()| out.into());
    }
    // Whole blocks for each thread.
    let blocks = (count / from.block).div_ceil(threads).max(1);
    let parts = bytes.chunks(blocks * from.bytes).zip(out.chunks_mut(blocks * from.block * to.bytes));
    std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = parts.map(|(bytes, out)| scope.spawn(move || one(bytes, out))).collect();
        all.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a thread that converts weights ended")))
        })
    })?;
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_convert_as_one_does() {
        let count = PART * 4 + 64;
        let values: Vec<f32> = (0..count).map(|i| ((i * 37 % 1009) as f32 - 500.0) / 300.0).collect();
        for from in [&quant::F32, Format::named("Q4_0").unwrap(), Format::named("Q8_0").unwrap()] {
            let mut bytes = vec![0; from.size(count).unwrap()];
            from.quantise(&values, count, None, &mut bytes).unwrap();
            for to in [&quant::F16, &quant::BF16, &quant::F32] {
                let whole = from.dequantised(&bytes, count).unwrap();
                let shifted: Vec<f32> = whole.iter().map(|v| v - 1.0).collect();
                let mut expected = vec![0; to.size(count).unwrap()];
                to.quantise(&shifted, count, None, &mut expected).unwrap();
                let got = converted(from, bytes.as_slice().into(), count, to, -1.0).unwrap();
                assert!(*got == expected, "{from} to {to}");
            }
        }
    }
}
