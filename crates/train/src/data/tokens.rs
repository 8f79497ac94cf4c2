//! A sequence of token ids in memory or in one or several files.

use super::id_file::IdFile;
use netcl_device::{Error, Result};
use std::{ops::Range, sync::Arc};

/// A sequence of token ids. Clones and [slices](Tokens::slice) share the storage.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    parts: Vec<TokenSlice>,
    len: usize,
}

/// `len` ids of `store` from index `from` on, which are the sequence's ids from `start` on.
#[derive(Clone, Debug)]
struct TokenSlice {
    start: usize,
    from: usize,
    len: usize,
    store: Store,
}

#[derive(Clone, Debug)]
enum Store {
    Small(Arc<[u16]>),
    Large(Arc<[u32]>),
    File(Arc<IdFile>),
}

impl From<Vec<u32>> for Tokens {
    /// Stores ids in memory, in two bytes each if all of them fit.
    fn from(ids: Vec<u32>) -> Self {
        let small: Option<Vec<u16>> = ids.iter().map(|&id| u16::try_from(id).ok()).collect();
        let len = ids.len();
        let store = small.map_or_else(|| Store::Large(ids.into()), |small| Store::Small(small.into()));
        Self { parts: vec![TokenSlice { start: 0, from: 0, len, store }], len }
    }
}

impl Tokens {
    /// Stores ids of two bytes.
    pub(super) fn small(ids: Vec<u16>) -> Self {
        let len = ids.len();
        Self { parts: vec![TokenSlice { start: 0, from: 0, len, store: Store::Small(ids.into()) }], len }
    }

    /// Returns the first `len` ids of a file.
    pub(super) fn of_file(file: IdFile, len: usize) -> Self {
        Self { parts: vec![TokenSlice { start: 0, from: 0, len, store: Store::File(Arc::new(file)) }], len }
    }

    /// Returns the files of the sequence, once per part.
    pub(super) fn files(&self) -> impl Iterator<Item = &IdFile> {
        self.parts.iter().filter_map(|part| match &part.store {
            Store::File(file) => Some(&**file),
            Store::Small(_) | Store::Large(_) => None,
        })
    }

    /// Returns the number of ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the sequence is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the ids of `other`.
    pub fn append(&mut self, other: Tokens) {
        for mut part in other.parts {
            part.start = self.len;
            self.len += part.len;
            self.parts.push(part);
        }
    }

    /// Returns the ids of `range`, clamped to the sequence, without a copy.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut out = Self::default();
        for part in &self.parts {
            let (from, to) = (range.start.max(part.start), range.end.min(part.start + part.len));
            if from < to {
                let part = TokenSlice {
                    start: 0,
                    from: part.from + from - part.start,
                    len: to - from,
                    store: part.store.clone(),
                };
                out.append(Self { len: part.len, parts: vec![part] });
            }
        }
        out
    }

    /// Fills `out` with the ids from `at` on. `Internal` if the range exceeds the sequence, `Format` if a file was truncated.
    pub fn read(&self, at: usize, out: &mut [u32]) -> Result<()> {
        if at.checked_add(out.len()).is_none_or(|end| end > self.len) {
            return Err(Error::internal(format!(
                "requested {} tokens from {at} on, of {}",
                out.len(),
                self.len
            )));
        }
        let mut filled = 0;
        // Parts are sorted by start: this finds the first one that ends after `at`.
        let first = self.parts.partition_point(|part| part.start + part.len <= at);
        for part in &self.parts[first..] {
            if filled == out.len() {
                break;
            }
            let from = at + filled - part.start;
            let count = (part.len - from).min(out.len() - filled);
            part.store.read(part.from + from, &mut out[filled..filled + count])?;
            filled += count;
        }
        Ok(())
    }

    /// Returns all ids in memory.
    pub fn to_vec(&self) -> Result<Vec<u32>> {
        let mut out = vec![0; self.len];
        self.read(0, &mut out)?;
        Ok(out)
    }

    /// Returns the largest id; `None` for an empty sequence. Reads all ids.
    pub fn max_id(&self) -> Result<Option<u32>> {
        let mut largest = None;
        for block in self.blocks() {
            largest = largest.max(block?.1.into_iter().max());
        }
        Ok(largest)
    }

    /// Returns `Format` with the first id that is not below `vocab`, if any. Reads all ids.
    pub fn check_vocab(&self, vocab: usize) -> Result<()> {
        for block in self.blocks() {
            let (at, ids) = block?;
            if let Some(bad) = ids.iter().position(|&id| id as usize >= vocab) {
                return Err(self.unknown(at + bad, ids[bad], vocab));
            }
        }
        Ok(())
    }

    /// Returns the error for an id at position `at` that is outside `vocab`.
    pub(super) fn unknown(&self, at: usize, id: u32, vocab: usize) -> Error {
        let part = &self.parts[self.parts.partition_point(|part| part.start + part.len <= at)];
        let (what, at) = match &part.store {
            Store::File(file) => (file.path().display().to_string(), part.from + at - part.start),
            _ => ("the data".to_owned(), at),
        };
        Error::format(format!(
            "{what}: token {at} is {id}, but the vocabulary has {vocab} tokens (0 to {}); \
             use the tokenizer that the data was written with, or raise --vocab",
            vocab.saturating_sub(1)
        ))
    }

    /// Returns positions and ids of blocks that fit in the CPU's cache.
    fn blocks(&self) -> impl Iterator<Item = Result<(usize, Vec<u32>)>> + '_ {
        const BLOCK: usize = 1 << 16;
        self.parts.iter().flat_map(|part| {
            (0..part.len).step_by(BLOCK).map(move |from| {
                let mut ids = vec![0; BLOCK.min(part.len - from)];
                part.store.read(part.from + from, &mut ids)?;
                Ok((part.start + from, ids))
            })
        })
    }
}

impl Store {
    fn read(&self, at: usize, out: &mut [u32]) -> Result<()> {
        match self {
            Self::Small(ids) => {
                for (out, &id) in out.iter_mut().zip(&ids[at..]) {
                    *out = id.into();
                }
            }
            Self::Large(ids) => out.copy_from_slice(&ids[at..at + out.len()]),
            Self::File(file) => file.read(at, out)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined() -> Tokens {
        let mut all = Tokens::from(vec![0, 1, 2]);
        all.append(Tokens::from(vec![70_000, 70_001]));
        all.append(Tokens::default());
        all.append(Tokens::from((5..10).collect::<Vec<_>>()));
        all
    }

    #[test]
    fn reads_across_parts() {
        let all = joined();
        let whole = [0, 1, 2, 70_000, 70_001, 5, 6, 7, 8, 9];
        assert_eq!((all.len(), all.to_vec().unwrap()), (10, whole.to_vec()));
        for from in 0..=10 {
            for to in from..=10 {
                let mut out = vec![99; to - from];
                all.read(from, &mut out).unwrap();
                assert_eq!(out, whole[from..to]);
                let slice = all.slice(from..to);
                assert_eq!(slice.to_vec().unwrap(), whole[from..to]);
                assert_eq!(slice.len(), to - from);
            }
        }
        assert!(all.read(8, &mut [0; 3]).is_err());
        assert!(all.read(usize::MAX, &mut [0; 3]).is_err());
        assert_eq!(all.slice(2..4).slice(1..2).to_vec().unwrap(), [70_000]);
        assert_eq!(all.slice(8..99).to_vec().unwrap(), [8, 9]);
    }

    #[test]
    fn unknown_ids_are_named() {
        let all = joined();
        assert_eq!(all.max_id().unwrap(), Some(70_001));
        assert_eq!(Tokens::default().max_id().unwrap(), None);
        all.check_vocab(70_002).unwrap();
        let message = all.check_vocab(70_001).unwrap_err().to_string();
        assert!(
            message.contains("token 4 is 70001") && message.contains("70001 tokens (0 to 70000)"),
            "{message}"
        );
    }
}
