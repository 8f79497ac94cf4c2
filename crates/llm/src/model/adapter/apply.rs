//! Effects of adapters on a model: merged values of parameters, and products added to quantized parameters.

use super::{Adapter, AdapterTensor, Entry, Naming};
use crate::model::architecture::Architecture;
use crate::model::names::{Change, Placed, placed};
use netcl_model::decoder::{DecoderConfig, ParamShape};
use netcl_tensor::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

/// Minimum number of elements per thread.
const PART: usize = 1 << 16;

/// `b a`, with the factor in b: b (out, r), a (r, in).
#[derive(Clone, Debug, PartialEq)]
struct LowRank {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

/// Changes of a tensor of Hugging Face's files.
#[derive(Clone, Debug, Default, PartialEq)]
struct Changed {
    /// Its new values, which replace those of the model.
    whole: Option<Vec<f32>>,
    /// Added to them.
    low_rank: Vec<LowRank>,
    /// Added to a bias.
    shift: Option<Vec<f32>>,
}

/// A product that is added to an unchanged parameter: `x aᵀ bᵀ`, with the factors in b.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterProduct {
    /// r: the sum of the ranks of all its parts and adapters.
    pub rank: usize,
    /// (r, in).
    pub a: Vec<f32>,
    /// (out, r).
    pub b: Vec<f32>,
}

/// A tensor of Hugging Face's files.
#[derive(Clone, Debug)]
pub(super) struct SourceTensor {
    pub dims: Vec<usize>,
    /// Stored (in, out).
    transposed: bool,
}

/// Combined changes by one or several adapters for one model.
#[derive(Clone, Debug)]
pub struct Adapters {
    base: DecoderConfig,
    changed: BTreeMap<String, Changed>,
    /// Names of the model's embedding and head.
    ends: [String; 2],
}

impl Adapters {
    /// Returns the changes of a model by adapters, each with a factor.
    ///
    /// # Errors
    /// `Format` for a tensor that does not exist in the model or has another shape, or that two adapters replace; `Unsupported` for an adapter of
    /// another architecture.
    pub fn new(base: &DecoderConfig, adapters: &[(Adapter, f32)]) -> Result<Self> {
        let mut out = Self { base: base.clone(), changed: BTreeMap::new(), ends: ends(base) };
        let (wide, known) = known_tensors(base);
        for (adapter, scale) in adapters {
            let place = |e: Error| e.context(adapter.path.display());
            let by_name = match &adapter.naming {
                Naming::HuggingFace => of_hugging_face(base, adapter, &known),
                Naming::Gguf(name) => of_gguf(base, &wide, adapter, name),
            };
            for (name, entry) in by_name.map_err(place)? {
                out.add(&known, &name, &entry, *scale, adapter).map_err(place)?;
            }
        }
        let missing = out.missing();
        if let Some(first) = missing.first() {
            return Err(Error::format(format!(
                "an adapter changes {first}, which a {} model like this cannot have",
                base.family.model_type
            )));
        }
        Ok(out)
    }

    /// Returns the model without the changes.
    pub fn base(&self) -> &DecoderConfig {
        &self.base
    }

    /// Returns true if nothing changes.
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    fn add(
        &mut self,
        known: &HashMap<String, SourceTensor>,
        name: &str,
        entry: &Entry,
        scale: f32,
        adapter: &Adapter,
    ) -> Result<()> {
        let place = known.get(name).ok_or_else(|| Error::internal(format!("no slot for {name}")))?;
        if let Some(whole) = &entry.whole {
            let found = self.changed.entry(name.to_owned()).or_default();
            if found.whole.is_some() {
                return Err(Error::format(format!("{} was already replaced by another adapter", whole.name)));
            }
            expect(whole, &place.dims)?;
            found.whole = Some(whole.values.clone());
        }
        let factor = scale * entry.factor as f32;
        if let (Some(a), Some(b)) = (&entry.a, &entry.b) {
            let [first, last] = place.dims[..] else {
                return Err(Error::format(format!("{} is for a matrix, but {name} is not one", a.name)));
            };
            let [rows, columns] = if place.transposed { [last, first] } else { [first, last] };
            let low_rank = low_rank(entry, [a, b], [rows, columns], factor, &adapter.naming)?;
            self.changed.entry(name.to_owned()).or_default().low_rank.push(low_rank);
        }
        if let Some(shift) = &entry.shift {
            let bias = name.strip_suffix("weight").map_or(String::new(), |module| format!("{module}bias"));
            let place = known.get(&bias).ok_or_else(|| {
                Error::format(format!("{} is for {bias}, which such a model cannot have", shift.name))
            })?;
            expect(shift, &place.dims)?;
            let found = self.changed.entry(bias).or_default();
            let sum = found.shift.get_or_insert_with(|| vec![0.0; shift.values.len()]);
            sum.iter_mut().zip(&shift.values).for_each(|(sum, v)| *sum += factor * v);
        }
        Ok(())
    }

    /// Returns changed names that do not exist in the changed model.
    fn missing(&self) -> Vec<&String> {
        let config = self.config(&BTreeSet::new());
        let known: BTreeSet<String> =
            config.shapes().flat_map(|shape| shape.pieces).map(|(name, _)| name).collect();
        self.changed.keys().filter(|name| !known.contains(*name)).collect()
    }

    /// Returns the configuration with the changes: biases or a separate head may be added. Parameters in `beside` keep their values and get an
    /// additional product.
    pub fn config(&self, beside: &BTreeSet<String>) -> DecoderConfig {
        let mut out = self.base.clone();
        let has = |config: &DecoderConfig, name: &String| {
            config.shapes().any(|shape| shape.pieces.iter().any(|(piece, _)| piece == name))
        };
        let biases: [fn(&mut DecoderConfig); 3] = [
            |config| config.attention.qkv_bias = true,
            |config| config.attention.out_bias = true,
            |config| config.mlp.bias = true,
        ];
        for name in self.changed.keys().filter(|name| name.ends_with(".bias")) {
            if has(&out, name) {
                continue;
            }
            for set in biases {
                let mut more = out.clone();
                set(&mut more);
                if has(&more, name) {
                    out = more;
                    break;
                }
            }
        }
        let whole = |name: &String| self.changed.get(name).is_some_and(|changed| changed.whole.is_some());
        let touched = self.ends.iter().any(|name| self.changed.contains_key(name));
        let apart = beside.contains(&self.ends[0]) && !self.ends.iter().any(whole);
        if out.tied && touched && !apart {
            // From here on, lookups and logits have different values.
            out.tied = false;
        }
        out
    }

    /// Returns true if values of a parameter change.
    pub fn touches(&self, shape: &ParamShape) -> bool {
        shape.pieces.iter().any(|(name, _)| self.changed.contains_key(name))
    }

    /// Returns true if an adapter replaces part of a parameter.
    pub fn replaces(&self, shape: &ParamShape) -> bool {
        let whole = |name| self.changed.get(name).is_some_and(|changed: &Changed| changed.whole.is_some());
        shape.pieces.iter().any(|(name, _)| whole(name))
    }

    /// Returns the combined product for a projection matrix or the embedding: those of its parts are stacked. `None` without changes.
    pub fn combined_product(&self, shape: &ParamShape) -> Option<AdapterProduct> {
        let pieces = shape.pieces.iter().map(|(name, rows)| (name.as_str(), *rows));
        self.stacked(pieces, shape.dims.last().copied().unwrap_or(0))
    }

    /// Returns the product for a head that is tied to the embedding.
    pub fn combined_head_product(&self, embedding: &ParamShape) -> Option<AdapterProduct> {
        let [rows, columns] = embedding.dims[..] else { return None };
        self.stacked([(self.ends[1].as_str(), rows)].into_iter(), columns)
    }

    fn stacked<'a>(
        &self,
        pieces: impl Iterator<Item = (&'a str, usize)> + Clone,
        columns: usize,
    ) -> Option<AdapterProduct> {
        let of = |name: &str| self.changed.get(name).map_or(&[][..], |changed| &changed.low_rank[..]);
        let rank: usize = pieces.clone().flat_map(|(name, _)| of(name)).map(|one| one.rank).sum();
        let rows: usize = pieces.clone().map(|(_, rows)| rows).sum();
        let mut out =
            AdapterProduct { rank, a: Vec::with_capacity(rank * columns), b: vec![0.0; rows * rank] };
        let (mut row, mut column) = (0, 0);
        for (name, rows) in pieces {
            for one in of(name) {
                out.a.extend_from_slice(&one.a);
                for (i, values) in one.b.chunks(one.rank.max(1)).enumerate() {
                    let at = (row + i) * rank + column;
                    out.b[at..at + one.rank].copy_from_slice(values);
                }
                column += one.rank;
            }
            row += rows;
        }
        (rank > 0).then_some(out)
    }

    /// Changes the values of a parameter, in the order of Hugging Face's files, with consecutive parts.
    pub fn merge(&self, shape: &ParamShape, values: &mut [f32]) {
        let names = self.base.family.names;
        let tables = [names.embedding, names.positions].map(|name| format!("{}{name}.weight", names.prefix));
        let width = if shape.dims.len() > 1 { shape.dims.last().copied().unwrap_or(1) } else { 1 };
        let mut rest = values;
        for (name, rows) in &shape.pieces {
            let (part, others) = rest.split_at_mut((rows * width).min(rest.len()));
            rest = others;
            let transposed = names.transposed && !tables.contains(name) && *name != self.ends[1];
            self.merge_one(name, part, [*rows, width], transposed);
        }
    }

    /// Does the same for one tensor of Hugging Face's files.
    fn merge_one(&self, name: &str, values: &mut [f32], dims: [usize; 2], transposed: bool) {
        let Some(changed) = self.changed.get(name) else { return };
        if let Some(whole) = &changed.whole {
            values.copy_from_slice(whole);
        }
        if let Some(shift) = &changed.shift {
            values.iter_mut().zip(shift).for_each(|(v, s)| *v += s);
        }
        for one in &changed.low_rank {
            match transposed {
                false => add_product(values, dims, [&one.b, &one.a], one.rank),
                true => {
                    let [rows, columns] = dims;
                    let left = turned(&one.a, [one.rank, rows]);
                    let right = turned(&one.b, [columns, one.rank]);
                    add_product(values, dims, [&left, &right], one.rank);
                }
            }
        }
    }

    /// Returns the values of a tensor of a GGUF file, in its order, with the changes; `None` if nothing changes.
    pub(in crate::model) fn merged_gguf(&self, tensor: &Placed, values: &[f32]) -> Option<Vec<f32>> {
        if !tensor.files.iter().any(|name| self.changed.contains_key(name)) {
            return None;
        }
        let each = values.len() / tensor.files.len().max(1);
        let mut out = Vec::with_capacity(values.len());
        for (name, part) in tensor.files.iter().zip(values.chunks(each.max(1))) {
            let mut own = to_file(tensor, part);
            let dims = [tensor.file_dims[0], tensor.file_dims.get(1).copied().unwrap_or(1)];
            self.merge_one(name, &mut own, dims, tensor.change == Change::Transposed);
            out.extend(to_gguf(tensor, &own));
        }
        Some(out)
    }

    /// Returns true if the values of a tensor of a GGUF file change.
    pub(in crate::model) fn touches_placed(&self, tensor: &Placed) -> bool {
        tensor.files.iter().any(|name| self.changed.contains_key(name))
    }
}

/// Returns the names of a model's embedding and head.
fn ends(base: &DecoderConfig) -> [String; 2] {
    let names = base.family.names;
    [format!("{}{}.weight", names.prefix, names.embedding), format!("{}.weight", names.head)]
}

/// Returns a model with everything that an adapter might change, and its tensors in Hugging Face's files by name.
pub(super) fn known_tensors(base: &DecoderConfig) -> (DecoderConfig, HashMap<String, SourceTensor>) {
    let (names, ends) = (base.family.names, ends(base));
    let wide = DecoderConfig { tied: false, ..base.clone().with_biases(true) };
    let table = format!("{}{}.weight", names.prefix, names.positions);
    let transposed = |shape: &ParamShape, name: &str| {
        names.transposed && shape.dims.len() == 2 && !ends.iter().any(|end| end == name) && name != table
    };
    let mut known: HashMap<String, SourceTensor> = HashMap::new();
    for shape in wide.shapes() {
        for (name, rows) in &shape.pieces {
            let width = shape.dims.last().copied().filter(|_| shape.dims.len() > 1);
            let dims = [*rows].into_iter().chain(width).collect();
            known.insert(name.clone(), SourceTensor { dims, transposed: transposed(&shape, name) });
        }
    }
    (wide, known)
}

fn expect(part: &AdapterTensor, dims: &[usize]) -> Result<()> {
    match part.shape == dims {
        true => Ok(()),
        false => Err(Error::format(format!(
            "{} has shape {:?}, expected {dims:?} by the model",
            part.name, part.shape
        ))),
    }
}

/// Transposes (rows, columns) to (columns, rows).
pub(super) fn turned(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..columns * rows).map(|i| values[i % rows.max(1) * columns + i / rows.max(1)]).collect()
}

/// Returns A and B of a matrix (rows, columns), or of a table with this many rows.
fn low_rank(
    entry: &Entry,
    [a, b]: [&AdapterTensor; 2],
    [rows, columns]: [usize; 2],
    factor: f32,
    naming: &Naming,
) -> Result<LowRank> {
    let rank = entry.rank().unwrap_or(0);
    let wrong = |part: &AdapterTensor, expected: [usize; 2]| {
        Error::format(format!(
            "{} has shape {:?}, expected {expected:?} by the model and a rank of {rank}",
            part.name, part.shape
        ))
    };
    let expected = match (entry.table, naming) {
        (true, Naming::Gguf(_)) => [[rows, rank], [columns, rank]],
        (true, Naming::HuggingFace) => [[rank, rows], [columns, rank]],
        (false, _) => [[rank, columns], [rows, rank]],
    };
    for (part, expected) in [a, b].into_iter().zip(expected) {
        if part.shape != expected || rank == 0 {
            return Err(wrong(part, expected));
        }
    }
    let times = |values: Vec<f32>| values.into_iter().map(|v| v * factor).collect();
    Ok(match (entry.table, naming) {
        (false, _) => LowRank { rank, a: a.values.clone(), b: times(b.values.clone()) },
        (true, naming) => {
            let left = match naming {
                Naming::Gguf(_) => a.values.clone(),
                Naming::HuggingFace => turned(&a.values, [rank, rows]),
            };
            LowRank { rank, a: turned(&b.values, [columns, rank]), b: times(left) }
        }
    })
}

/// `values` (rows, columns) += left (rows, rank) · right (rank, columns). The product is summed before it is added, the same as for a separate
/// product.
fn add_product(values: &mut [f32], [rows, columns]: [usize; 2], [left, right]: [&[f32]; 2], rank: usize) {
    if rows == 0 || columns == 0 || rank == 0 {
        return;
    }
    let one = |values: &mut [f32], left: &[f32]| {
        let mut sum = vec![0.0f32; columns];
        for (row, factors) in values.chunks_mut(columns).zip(left.chunks(rank)) {
            sum.fill(0.0);
            for (factor, right) in factors.iter().zip(right.chunks(columns)) {
                sum.iter_mut().zip(right).for_each(|(sum, v)| *sum += factor * v);
            }
            row.iter_mut().zip(&sum).for_each(|(v, sum)| *v += sum);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(rows * columns / PART).max(1);
    let each = rows.div_ceil(threads);
    std::thread::scope(|scope| {
        for (values, left) in values.chunks_mut(each * columns).zip(left.chunks(each * rank)) {
            if threads == 1 {
                one(values, left);
            } else {
                scope.spawn(move || one(values, left));
            }
        }
    });
}

pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Converts one part of a tensor of a GGUF file to Hugging Face's order.
fn to_file(tensor: &Placed, values: &[f32]) -> Vec<f32> {
    let width = tensor.file_dims.get(1).copied().unwrap_or(1);
    // The rows of a transposed matrix are GGUF's rows.
    let dims: Vec<usize> = tensor.file_dims.iter().rev().copied().collect();
    match tensor.change {
        Change::None => values.to_vec(),
        Change::PlusOne => values.iter().map(|v| v - 1.0).collect(),
        change => floats(&change.to_file(&bytes(values), [width * 4, 4], &dims)),
    }
}

/// Returns the way back.
fn to_gguf(tensor: &Placed, values: &[f32]) -> Vec<f32> {
    let width = tensor.file_dims.get(1).copied().unwrap_or(1);
    match tensor.change {
        Change::None => values.to_vec(),
        Change::PlusOne => values.iter().map(|v| v + 1.0).collect(),
        change => floats(&change.to_gguf(&bytes(values), [width * 4, 4], &tensor.file_dims)),
    }
}

fn no_place(part: Option<&AdapterTensor>, name: &str, model: &str) -> Error {
    let (name, shape) = part.map_or((name, &[][..]), |part| (part.name.as_str(), &part.shape[..]));
    Error::format(format!("{name} {shape:?}: this {model} model does not have a slot for it"))
}

fn first_part(entry: &Entry) -> Option<&AdapterTensor> {
    [&entry.a, &entry.b, &entry.whole, &entry.shift].into_iter().flatten().next()
}

/// Returns entries under the names of the model's files.
pub(super) fn of_hugging_face(
    base: &DecoderConfig,
    adapter: &Adapter,
    known: &HashMap<String, SourceTensor>,
) -> Result<Vec<(String, Entry)>> {
    let names = base.family.names;
    let folder = names.experts.map_or("mlp", |experts| experts.folder);
    let find = |name: &String| {
        // With and without the family's prefix, and with the in-memory names of experts in `transformers`.
        let others = [name.clone(), name.replace(".mlp.", &format!(".{folder}."))];
        let all = others.iter().flat_map(|name| [name.clone(), format!("{}{name}", names.prefix)]);
        all.into_iter().find(|name| known.contains_key(name))
    };
    let one = |(name, entry): (&String, &Entry)| {
        let found = find(name);
        let found = found.ok_or_else(|| no_place(first_part(entry), name, base.family.model_type))?;
        Ok((found, entry.clone()))
    };
    adapter.entries.iter().map(one).collect()
}

/// Returns the entries of a GGUF file under Hugging Face's names, with rows in their order and experts separated.
fn of_gguf(
    base: &DecoderConfig,
    wide: &DecoderConfig,
    adapter: &Adapter,
    name: &str,
) -> Result<Vec<(String, Entry)>> {
    let architecture = Architecture::of_family(base.family)?;
    if architecture.name != name {
        return Err(Error::unsupported(format!(
            "general.architecture is {name:?}, but the model's is {:?}: the adapter is for another model",
            architecture.name
        )));
    }
    let places = placed(wide, architecture)?;
    let mut out = Vec::new();
    for (name, entry) in &adapter.entries {
        let found = places.iter().find(|placed| placed.name == *name);
        let tensor = found.ok_or_else(|| no_place(first_part(entry), name, architecture.name))?;
        for (i, file) in tensor.files.iter().enumerate() {
            out.push((file.clone(), of_file(tensor, entry, i)?));
        }
    }
    Ok(out)
}

/// Returns the entry of part `i` of a tensor.
fn of_file(tensor: &Placed, entry: &Entry, i: usize) -> Result<Entry> {
    let experts = tensor.files.len();
    let part = |part: &AdapterTensor| -> Result<AdapterTensor> {
        if experts == 1 {
            return Ok(part.clone());
        }
        if part.shape.len() != 3 || part.shape[0] != experts {
            let AdapterTensor { name, shape, .. } = part;
            return Err(Error::format(format!(
                "{name} has shape {shape:?}, expected one of {experts} experts each"
            )));
        }
        let each = part.values.len() / experts;
        let values = part.values[i * each..(i + 1) * each].to_vec();
        Ok(AdapterTensor { name: part.name.clone(), shape: part.shape[1..].to_vec(), values })
    };
    let mut out = entry.clone();
    out.a = entry.a.as_ref().map(part).transpose()?;
    out.b = entry.b.as_ref().map(part).transpose()?;
    if let (Some(b), Change::Pairs(_) | Change::Heads(_)) = (&mut out.b, tensor.change)
        && let [rows, rank] = b.shape[..]
        && rows == tensor.file_dims[0]
    {
        b.values = floats(&tensor.change.to_file(&bytes(&b.values), [rank * 4, 4], &[rows, rank]));
    }
    if let Some(whole) = &entry.whole {
        let mut own = part(whole)?;
        let dims = if experts == 1 { &tensor.dims[..] } else { &tensor.dims[1..] };
        expect(&own, dims)?;
        own.values = to_file(tensor, &own.values);
        own.shape.clone_from(&tensor.file_dims);
        out.whole = Some(own);
    }
    Ok(out)
}

/// Opens adapters, each with a factor, for a model.
///
/// # Errors
/// Errors of [`Adapter::open`] and [`Adapters::new`].
pub fn open_all<P: AsRef<Path>>(base: &DecoderConfig, paths: &[(P, f32)]) -> Result<Adapters> {
    let open = |(path, scale): &(P, f32)| Ok((Adapter::open(path.as_ref())?, *scale));
    Adapters::new(base, &paths.iter().map(open).collect::<Result<Vec<_>>>()?)
}
