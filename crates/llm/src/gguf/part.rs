//! One file: header, keys, tensors. The content is not trusted. Sizes in a header are compared with the file size before memory is allocated, so that
//! reading takes less than four times that size.
//!
//! ```text
//! "GGUF"  version u32  tensors u64  keys u64
//! keys:    name (string)  type u32  value
//! tensors: name (string)  axes u32  lengths u64 each, the innermost first  format u32  offset u64 from the start of the data
//! zeros up to a multiple of the alignment (key general.alignment, or 32), then the data, each tensor aligned to it
//! ```

use super::cursor::Cursor;
use super::value::{Kind, Value};
use netcl_device::MappedFile;
use netcl_tensor::quant::Format;
use netcl_tensor::{Error, Result};
use std::path::{Path, PathBuf};

/// Maximum number of axes of a tensor.
pub(super) const AXES: usize = 4;
/// Default alignment.
pub(super) const ALIGNMENT: usize = 32;
/// Key of the alignment.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// Maximum number of keys: files have some dozens.
const MAX_KEYS: usize = 1 << 16;
/// Minimum bytes of a key and of a tensor in a file.
const MIN_KEY: usize = 13;
const MIN_TENSOR: usize = 32;

/// Position of a key's name and value in the file.
struct Key {
    name: std::ops::Range<usize>,
    kind: Kind,
    value: usize,
}

/// A tensor of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor<'a> {
    /// Its name, unique in a model.
    pub name: &'a str,
    /// Storage format of its elements.
    pub format: &'static Format,
    /// Lengths of its axes, outermost first, the same as everywhere in netcl; GGUF stores them in reverse.
    pub dims: [usize; AXES],
    /// Number of axes.
    pub axes: usize,
    /// Its bytes.
    pub bytes: &'a [u8],
}

impl Tensor<'_> {
    /// Returns the lengths of its axes, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.axes]
    }
    /// Elements.
    pub fn count(&self) -> usize {
        self.shape().iter().product()
    }
    /// Returns the elements of its innermost axis.
    pub fn row(&self) -> usize {
        self.shape().last().copied().unwrap_or(1)
    }
}

/// Position of a tensor in the file.
struct Entry {
    name: std::ops::Range<usize>,
    format: &'static Format,
    dims: [usize; AXES],
    axes: u8,
    bytes: std::ops::Range<usize>,
}

/// A mapped file and its index.
pub(super) struct MappedPart {
    pub path: PathBuf,
    map: MappedFile,
    keys: Vec<Key>,
    tensors: Vec<Entry>,
    /// Version of the format.
    pub version: u32,
    pub alignment: usize,
}

impl MappedPart {
    /// Reads the header. Every error names the file.
    pub fn open(path: &Path) -> Result<Self> {
        let map = MappedFile::open(path)?;
        Self::read(path, map).map_err(|e| e.context(path.display()))
    }

    fn read(path: &Path, map: MappedFile) -> Result<Self> {
        let mut at = Cursor::new(&map);
        let (version, tensors, keys) = header(&mut at)?;
        let keys = read_keys(&mut at, keys)?;
        let mut part =
            Self { path: path.into(), keys, tensors: Vec::new(), version, alignment: ALIGNMENT, map };
        part.check_names("key", part.keys.iter().map(|key| &key.name))?;
        part.alignment = part.read_alignment()?;
        let mut at = Cursor::new(&part.map);
        at.take(part.keys.last().map_or(Ok(24), |key| part.end_of(key))?)?;
        let tensors = read_tensors(&mut at, tensors, part.alignment)?;
        part.tensors = tensors;
        part.check_names("tensor", part.tensors.iter().map(|tensor| &tensor.name))?;
        part.check_places()?;
        Ok(part)
    }

    fn end_of(&self, key: &Key) -> Result<usize> {
        let mut at = Cursor::new(&self.map);
        at.take(key.value)?;
        Value::read(key.kind, &mut at)?;
        Ok(at.place())
    }

    fn text(&self, range: &std::ops::Range<usize>) -> &str {
        self.map.get(range.clone()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// Every name once.
    fn check_names<'a>(
        &self,
        what: &str,
        names: impl Iterator<Item = &'a std::ops::Range<usize>>,
    ) -> Result<()> {
        let mut names: Vec<&str> = names.map(|range| self.text(range)).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::format(format!("two {what}s are named {:?}", pair[0]))),
            None => Ok(()),
        }
    }

    fn read_alignment(&self) -> Result<usize> {
        match self.get(ALIGNMENT_KEY)? {
            None => Ok(ALIGNMENT),
            Some(Value::Whole(n)) if (1..=1 << 20).contains(&n) && (n as u64).is_power_of_two() => {
                Ok(n as usize)
            }
            Some(other) => Err(Error::format(format!(
                "{ALIGNMENT_KEY} is {other}, expected a power of two up to {}",
                1 << 20
            ))),
        }
    }

    /// Checks that tensors do not share bytes.
    fn check_places(&self) -> Result<()> {
        let mut order: Vec<&Entry> = self.tensors.iter().collect();
        order.sort_unstable_by_key(|entry| entry.bytes.start);
        for pair in order.windows(2) {
            if pair[1].bytes.start < pair[0].bytes.end {
                let names = [0, 1].map(|i| self.text(&pair[i].name));
                return Err(Error::format(format!("the tensors {} and {} share bytes", names[0], names[1])));
            }
        }
        Ok(())
    }

    /// Returns the value of a key; `None` if the file does not have it.
    pub fn get(&self, name: &str) -> Result<Option<Value<'_>>> {
        let key = self.keys.iter().find(|key| self.text(&key.name) == name);
        key.map(|key| self.value(key)).transpose()
    }

    fn value(&self, key: &Key) -> Result<Value<'_>> {
        let mut at = Cursor::new(&self.map);
        at.take(key.value)?;
        Value::read(key.kind, &mut at).map_err(|e| e.context(format!("key {}", self.text(&key.name))))
    }

    /// Returns all keys in file order: name, type and bytes of the value.
    pub fn raw_keys(&self) -> impl Iterator<Item = Result<(&str, Kind, &[u8])>> {
        self.keys.iter().map(|key| {
            let end = self.end_of(key)?;
            Ok((self.text(&key.name), key.kind, self.map.get(key.value..end).unwrap_or_default()))
        })
    }

    /// Returns all tensors in header order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|entry| Tensor {
            name: self.text(&entry.name),
            format: entry.format,
            dims: entry.dims,
            axes: entry.axes.into(),
            bytes: self.map.get(entry.bytes.clone()).unwrap_or_default(),
        })
    }
}

/// Version, tensors, keys.
fn header(at: &mut Cursor<'_>) -> Result<(u32, usize, usize)> {
    let magic = at.array::<4>().map_err(|_| Error::format("not a GGUF file: it is shorter than a header"))?;
    if &magic != b"GGUF" {
        let hint = match &magic {
            b"lmgg" | b"fmgg" | b"tjgg" => ": an older format; convert the original model again",
            b"FUGG" => ": the bytes are in the opposite order",
            _ => "",
        };
        return Err(Error::format(format!("not a GGUF file: it starts with {}{hint}", magic.escape_ascii())));
    }
    let version = at.u32()?;
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 1..=3) => {
            return Err(Error::unsupported(
                "a big-endian GGUF file; netcl reads little-endian ones; convert it with gguf_convert_endian.py of the Python package gguf",
            ));
        }
        _ => {
            return Err(Error::unsupported(format!("version {version} of the GGUF format, expected 2 or 3")));
        }
    }
    let (tensors, keys) = (at.u64()?, at.u64()?);
    let bounded = |what: &str, n: u64, most: usize| {
        usize::try_from(n).ok().filter(|n| *n <= most).ok_or_else(|| {
            Error::format(format!("a header of {n} {what}, but the file has room for at most {most}"))
        })
    };
    let keys = bounded("keys", keys, (at.left() / MIN_KEY).min(MAX_KEYS))?;
    Ok((version, bounded("tensors", tensors, at.left() / MIN_TENSOR)?, keys))
}

/// Returns a string's place.
fn name(at: &mut Cursor<'_>) -> Result<std::ops::Range<usize>> {
    let text = at.text()?;
    Ok(at.place() - text.len()..at.place())
}

fn read_keys(at: &mut Cursor<'_>, count: usize) -> Result<Vec<Key>> {
    let mut keys = Vec::with_capacity(count);
    for i in 0..count {
        let mut one = || {
            let name = name(at)?;
            let (kind, value) = (Kind::of(at.u32()?)?, at.place());
            Value::read(kind, at)?;
            Ok(Key { name, kind, value })
        };
        keys.push(one().map_err(|e: Error| e.context(format!("key {i} of {count}")))?);
    }
    Ok(keys)
}

fn read_tensors(at: &mut Cursor<'_>, count: usize, alignment: usize) -> Result<Vec<Entry>> {
    // Entries have offsets from the start of the data, which follows all of them.
    let mut entries = Vec::with_capacity(count);
    for i in 0..count {
        let entry = read_tensor(at, alignment).map_err(|e| e.context(format!("tensor {i} of {count}")))?;
        entries.push(entry);
    }
    let data = at.place().next_multiple_of(alignment);
    let end = at.place() + at.left();
    for entry in &mut entries {
        let place = [entry.bytes.start, entry.bytes.end].map(|offset| offset.checked_add(data));
        match place {
            [Some(from), Some(to)] if to <= end => entry.bytes = from..to,
            _ => {
                return Err(Error::format(format!(
                    "a tensor of {} in {} is at bytes {} to {} of the data, which has {}: the file is cut off or damaged",
                    shape(&entry.dims[..usize::from(entry.axes)]),
                    entry.format,
                    entry.bytes.start,
                    entry.bytes.end,
                    end.saturating_sub(data)
                )));
            }
        }
    }
    Ok(entries)
}

fn shape(dims: &[usize]) -> String {
    format!("shape {dims:?}")
}

/// Reads a tensor whose range is relative to the start of the data.
fn read_tensor(at: &mut Cursor<'_>, alignment: usize) -> Result<Entry> {
    let start = at.place();
    let text = at.text()?;
    let (name, place) = (at.place() - text.len()..at.place(), format!("{text:?} at byte {start}"));
    let rest = || {
        let axes = at.u32()? as usize;
        if !(1..=AXES).contains(&axes) {
            return Err(Error::format(format!("{axes} axes, expected 1 to {AXES}")));
        }
        let mut dims = [1; AXES];
        let mut count = 1usize;
        for axis in (0..axes).rev() {
            let length = at.u64()?;
            let product = usize::try_from(length)
                .ok()
                .filter(|n| *n > 0)
                .and_then(|n| Some((n, count.checked_mul(n)?)));
            let Some((length, all)) = product else {
                return Err(Error::format(format!("an axis of {length} elements")));
            };
            (dims[axis], count) = (length, all);
        }
        let number = at.u32()?;
        let Some(format) = Format::of(number) else {
            return Err(Error::unsupported(format!(
                "elements of ggml's type {number}, which netcl does not know"
            )));
        };
        let row = dims[axes - 1];
        let size = row.is_multiple_of(format.block).then(|| format.size(count)).flatten();
        let Some(size) = size else {
            return Err(Error::format(format!(
                "{} in {format}, whose blocks have {} elements",
                shape(&dims[..axes]),
                format.block
            )));
        };
        let offset = at.u64()?;
        let offset = usize::try_from(offset).ok().filter(|n| n.is_multiple_of(alignment));
        let range = offset.and_then(|offset| Some(offset..offset.checked_add(size)?));
        let bytes = range.ok_or_else(|| {
            Error::format(format!(
                "an offset that is not a multiple of the alignment, {alignment}, or beyond any file"
            ))
        })?;
        Ok(Entry { name, format, dims, axes: axes as u8, bytes })
    };
    rest().map_err(|e: Error| e.context(place))
}
