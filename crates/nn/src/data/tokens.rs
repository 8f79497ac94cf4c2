//! A sequence of token ids, in memory or in mapped shards, read as one.

use netcl_device::{Error, MappedFile, Result};
use std::{ops::Range, path::Path, sync::Arc};

/// Token ids in order. A clone or a [slice](Tokens::slice) shares the storage.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    parts: Vec<Part>,
    len: usize,
}

/// `len` ids of `store` from index `from` on, which are the sequence's ids from `start` on.
#[derive(Clone, Debug)]
struct Part {
    start: usize,
    from: usize,
    len: usize,
    store: Store,
}

#[derive(Clone, Debug)]
enum Store {
    Small(Arc<[u16]>),
    Large(Arc<[u32]>),
    /// Little-endian ids of `width` bytes from `offset` on.
    File {
        map: Arc<MappedFile>,
        path: Arc<Path>,
        offset: usize,
        width: usize,
    },
}

impl From<Vec<u32>> for Tokens {
    /// Ids in memory; two bytes each where all of them fit.
    fn from(ids: Vec<u32>) -> Self {
        let small: Option<Vec<u16>> = ids.iter().map(|&id| u16::try_from(id).ok()).collect();
        let len = ids.len();
        let store = small.map_or_else(|| Store::Large(ids.into()), |small| Store::Small(small.into()));
        Self { parts: vec![Part { start: 0, from: 0, len, store }], len }
    }
}

impl Tokens {
    /// The ids of a mapped file: little-endian, `width` bytes each (2 or 4), from byte `offset` to its end.
    pub(super) fn mapped(map: MappedFile, path: &Path, offset: usize, width: usize) -> Self {
        let len = map.len().saturating_sub(offset) / width;
        let store = Store::File { map: Arc::new(map), path: path.into(), offset, width };
        Self { parts: vec![Part { start: 0, from: 0, len, store }], len }
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is no id.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the ids of `other` behind the own ones.
    pub fn append(&mut self, other: Tokens) {
        for mut part in other.parts {
            part.start = self.len;
            self.len += part.len;
            self.parts.push(part);
        }
    }

    /// The ids of `range`, without a copy. What lies outside the sequence is left out.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let mut out = Self::default();
        for part in &self.parts {
            let (from, to) = (range.start.max(part.start), range.end.min(part.start + part.len));
            if from < to {
                let part = Part {
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

    /// Fills `out` with the ids from `at` on. `Internal` when they reach past the end.
    pub fn read(&self, at: usize, out: &mut [u32]) -> Result<()> {
        if at.checked_add(out.len()).is_none_or(|end| end > self.len) {
            return Err(Error::internal(format!("{} tokens from {at} on asked, of {}", out.len(), self.len)));
        }
        let mut filled = 0;
        // Parts are sorted by start: the first one that ends behind `at`.
        let first = self.parts.partition_point(|part| part.start + part.len <= at);
        for part in &self.parts[first..] {
            if filled == out.len() {
                break;
            }
            let from = at + filled - part.start;
            let count = (part.len - from).min(out.len() - filled);
            part.store.read(part.from + from, &mut out[filled..filled + count]);
            filled += count;
        }
        Ok(())
    }

    /// All ids in memory.
    pub fn to_vec(&self) -> Vec<u32> {
        let mut out = vec![0; self.len];
        for part in &self.parts {
            part.store.read(part.from, &mut out[part.start..part.start + part.len]);
        }
        out
    }

    /// The largest id, `None` when there are none. Reads everything.
    pub fn max_id(&self) -> Option<u32> {
        self.blocks().map(|(_, ids)| ids.into_iter().max()).max().flatten()
    }

    /// `Format` that names the first id which is not below `vocab`. Reads everything.
    pub fn check_vocab(&self, vocab: usize) -> Result<()> {
        for (at, ids) in self.blocks() {
            if let Some(bad) = ids.iter().position(|&id| id as usize >= vocab) {
                return Err(self.unknown(at + bad, ids[bad], vocab));
            }
        }
        Ok(())
    }

    /// The error for the id at position `at`, which `vocab` does not have.
    pub(super) fn unknown(&self, at: usize, id: u32, vocab: usize) -> Error {
        let part = &self.parts[self.parts.partition_point(|part| part.start + part.len <= at)];
        let (what, at) = match &part.store {
            Store::File { path, .. } => (path.display().to_string(), part.from + at - part.start),
            _ => ("the data".to_owned(), at),
        };
        Error::format(format!(
            "{what}: token {at} is {id}, but the vocabulary has {vocab} tokens (0 to {}); \
             use the tokenizer that the data was written with, or raise --vocab",
            vocab.saturating_sub(1)
        ))
    }

    /// Everything in blocks that fit the cache: position and ids.
    fn blocks(&self) -> impl Iterator<Item = (usize, Vec<u32>)> + '_ {
        const BLOCK: usize = 1 << 16;
        self.parts.iter().flat_map(|part| {
            (0..part.len).step_by(BLOCK).map(move |from| {
                let mut ids = vec![0; BLOCK.min(part.len - from)];
                part.store.read(part.from + from, &mut ids);
                (part.start + from, ids)
            })
        })
    }
}

impl Store {
    fn read(&self, at: usize, out: &mut [u32]) {
        match self {
            Self::Small(ids) => {
                for (out, &id) in out.iter_mut().zip(&ids[at..]) {
                    *out = id.into();
                }
            }
            Self::Large(ids) => out.copy_from_slice(&ids[at..at + out.len()]),
            Self::File { map, offset, width: 2, .. } => {
                let bytes = map[offset + at * 2..].as_chunks::<2>().0;
                for (out, &id) in out.iter_mut().zip(bytes) {
                    *out = u16::from_le_bytes(id).into();
                }
            }
            Self::File { map, offset, .. } => {
                let bytes = map[offset + at * 4..].as_chunks::<4>().0;
                for (out, &id) in out.iter_mut().zip(bytes) {
                    *out = u32::from_le_bytes(id);
                }
            }
        }
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
        assert_eq!((all.len(), all.to_vec()), (10, whole.to_vec()));
        for from in 0..=10 {
            for to in from..=10 {
                let mut out = vec![99; to - from];
                all.read(from, &mut out).unwrap();
                assert_eq!(out, whole[from..to]);
                let slice = all.slice(from..to);
                assert_eq!(slice.to_vec(), whole[from..to]);
                assert_eq!(slice.len(), to - from);
            }
        }
        assert!(all.read(8, &mut [0; 3]).is_err());
        assert!(all.read(usize::MAX, &mut [0; 3]).is_err());
        assert_eq!(all.slice(2..4).slice(1..2).to_vec(), [70_000]);
        assert_eq!(all.slice(8..99).to_vec(), [8, 9]);
    }

    #[test]
    fn unknown_ids_are_named() {
        let all = joined();
        assert_eq!(all.max_id(), Some(70_001));
        assert_eq!(Tokens::default().max_id(), None);
        all.check_vocab(70_002).unwrap();
        let message = all.check_vocab(70_001).unwrap_err().to_string();
        assert!(
            message.contains("token 4 is 70001") && message.contains("70001 tokens (0 to 70000)"),
            "{message}"
        );
    }
}
