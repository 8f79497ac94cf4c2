//! A model's GGUF file, or all files of a split model.
//!
//! The file is mapped. Every size in the header is compared with the size of the file before any allocation.

use super::part::{MappedPart, Tensor};
use super::value::{Kind, Value};
use netcl_tensor::{Error, Result};
use std::path::{Path, PathBuf};

/// Maximum number of files of a split.
const MAX_PARTS: usize = 9999;

/// Mapped files with parsed headers: metadata by name, tensors in order. The metadata are those of the first file.
pub struct Gguf {
    parts: Vec<MappedPart>,
    /// File and index of each tensor, in order.
    order: Vec<(u32, u32)>,
}

impl Gguf {
    /// Reads the header of the file. For a split model (`name-00001-of-00003.gguf`), reads all of its files, whichever of them `path` is.
    ///
    /// # Errors
    /// `Io` if a file is missing; `Format` for a damaged file, `Unsupported` for other versions and big-endian files. Errors name the file, and the
    /// key or tensor.
    pub fn open(path: &Path) -> Result<Self> {
        let first = MappedPart::open(path)?;
        let count = split_number(&first, "split.count")?.unwrap_or(1);
        let parts = if count > 1 { others(first, count)? } else { vec![first] };
        let mut order = Vec::with_capacity(parts.iter().map(|part| part.tensors().count()).sum());
        for (p, part) in parts.iter().enumerate() {
            order.extend((0..part.tensors().count()).map(|t| (p as u32, t as u32)));
        }
        let all = Self { parts, order };
        all.check_parts()?;
        Ok(all)
    }

    /// Checks that the split is complete, and that no name occurs in two of its files.
    fn check_parts(&self) -> Result<()> {
        if self.parts.len() == 1 {
            return Ok(());
        }
        let wrong = |what: String| Error::format(format!("{}: {what}", self.path().display()));
        let mut names: Vec<&str> = self.tensors().map(|tensor| tensor.name).collect();
        if let Some(expected) = split_number(&self.parts[0], "split.tensors.count")?
            && expected != names.len()
        {
            return Err(wrong(format!(
                "split.tensors.count is {expected}, but the {} files have {}",
                self.parts.len(),
                names.len()
            )));
        }
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(wrong(format!("two of its files have a tensor {}", pair[0]))),
            None => Ok(()),
        }
    }

    /// Returns the file, or the first of a split.
    pub fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// Returns all files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Returns the version of the format.
    pub fn version(&self) -> u32 {
        self.parts[0].version
    }

    /// Returns the alignment of tensors in bytes.
    pub fn alignment(&self) -> usize {
        self.parts[0].alignment
    }

    /// Returns all tensors in file order.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.parts.iter().flat_map(MappedPart::tensors)
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if it holds no tensor, only a vocabulary.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the tensor with a name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.tensors().find(|tensor| tensor.name == name)
    }

    /// Returns all keys of the first file in order: name, type and bytes of the value.
    ///
    /// # Errors
    /// None for a file that was opened and not changed since.
    pub fn keys(&self) -> impl Iterator<Item = Result<(&str, Kind, &[u8])>> {
        self.parts[0].raw_keys()
    }

    /// Returns the value of a key; `None` if it does not exist.
    ///
    /// # Errors
    /// `Format` for a string that is not UTF-8.
    pub fn get(&self, key: &str) -> Result<Option<Value<'_>>> {
        self.parts[0].get(key).map_err(|e| e.context(self.path().display()))
    }

    /// Returns an error about a key: file, key, expected and found value.
    pub fn wrong(&self, key: &str, expected: &str, found: Option<&Value<'_>>) -> Error {
        let path = self.path().display();
        Error::format(match found {
            Some(found) => format!("{path}: {key} is {found}, expected {expected}"),
            None => format!("{path}: {key} is missing, expected {expected}"),
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        of: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        of(value).map(Some).ok_or_else(|| self.wrong(key, expected, Some(&value)))
    }

    /// Returns a nonnegative integer of any type. A list of equal values counts as one, because some files have one value per layer.
    ///
    /// # Errors
    /// `Format` with file, key, expected and found value.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let one = |value| match value {
            Value::Whole(n) => usize::try_from(n).ok(),
            _ => None,
        };
        self.typed(key, "a whole number of at least 0", |value| match value {
            Value::Array(array) => {
                let mut all = array.iter().map(|value| value.ok().and_then(one));
                let first = all.next()??;
                all.all(|n| n == Some(first)).then_some(first)
            }
            value => one(value),
        })
    }

    /// Returns a number.
    ///
    /// # Errors
    /// Same as [`size`](Self::size).
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| match value {
            Value::Whole(n) => Some(n as f64),
            Value::Float(x) => Some(x),
            _ => None,
        })
    }

    /// Returns a Boolean.
    ///
    /// # Errors
    /// Same as [`size`](Self::size).
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(b) => Some(b),
            _ => None,
        })
    }

    /// Returns a string.
    ///
    /// # Errors
    /// Same as [`size`](Self::size).
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::Str(text) => Some(text),
            _ => None,
        })
    }

    /// Returns a list of strings.
    ///
    /// # Errors
    /// Same as [`size`](Self::size).
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.list(key, "a list of strings", |value| match value {
            Value::Str(text) => Some(text),
            _ => None,
        })
    }

    /// Returns a list of numbers.
    ///
    /// # Errors
    /// Same as [`size`](Self::size).
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.list(key, "a list of numbers", |value| match value {
            Value::Float(x) => Some(x as f32),
            Value::Whole(n) => Some(n as f32),
            _ => None,
        })
    }

    /// Returns a list of integers.
    ///
    /// # Errors
    /// Same as [`size`](Self::size).
    pub fn wholes(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.list(key, "a list of whole numbers", |value| match value {
            Value::Whole(n) => i64::try_from(n).ok(),
            Value::Bool(b) => Some(b.into()),
            _ => None,
        })
    }

    fn list<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        of: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let array = self.typed(key, expected, |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })?;
        let Some(array) = array else { return Ok(None) };
        let mut out = Vec::with_capacity(array.len);
        for value in array.iter() {
            let value = value.map_err(|e| e.context(format!("{}: {key}", self.path().display())))?;
            out.push(of(value).ok_or_else(|| self.wrong(key, expected, Some(&value)))?);
        }
        Ok(Some(out))
    }

    /// Returns the result of an optional getter for a required key.
    ///
    /// # Errors
    /// `Format` with file and key if it is missing.
    pub fn needed<T>(&self, key: &str, expected: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| self.wrong(key, expected, None))
    }
}

fn split_number(part: &MappedPart, key: &str) -> Result<Option<usize>> {
    let place = || format!("{}: {key}", part.path.display());
    match part.get(key).map_err(|e| e.context(part.path.display()))? {
        None => Ok(None),
        Some(Value::Whole(n)) if (0..=i128::from(u32::MAX)).contains(&n) => Ok(Some(n as usize)),
        Some(other) => Err(Error::format(format!("{} is {other}, expected a whole number", place()))),
    }
}

/// Opens all files of a split in order; one of them is already open.
fn others(known: MappedPart, count: usize) -> Result<Vec<MappedPart>> {
    let wrong = |what: String| Error::format(format!("{}: {what}", known.path.display()));
    if count > MAX_PARTS {
        return Err(wrong(format!("split.count is {count}, expected at most {MAX_PARTS}")));
    }
    let number = split_number(&known, "split.no")?.unwrap_or(0);
    let stem = known.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let ending = |i: usize| format!("-{:05}-of-{count:05}.gguf", i + 1);
    let Some(stem) = stem.strip_suffix(&ending(number)) else {
        return Err(wrong(format!(
            "it is part {} of {count}, so its name must end in {}; the other parts are found by name",
            number + 1,
            ending(number)
        )));
    };
    let paths: Vec<PathBuf> =
        (0..count).map(|i| known.path.with_file_name(format!("{stem}{}", ending(i)))).collect();
    let mut known = Some(known);
    let mut parts = Vec::new();
    for (i, path) in paths.iter().enumerate() {
        let part = match known.take_if(|_| i == number) {
            Some(part) => part,
            None => MappedPart::open(path)?,
        };
        let found = (split_number(&part, "split.no")?, split_number(&part, "split.count")?);
        if found != (Some(i), Some(count)) {
            return Err(Error::format(format!(
                "{}: it claims to be part {} of {}, expected {i} of {count}",
                path.display(),
                found.0.map_or("none".to_owned(), |n| n.to_string()),
                found.1.map_or("none".to_owned(), |n| n.to_string())
            )));
        }
        parts.push(part);
    }
    Ok(parts)
}
