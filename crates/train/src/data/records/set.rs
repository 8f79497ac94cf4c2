//! Encoded records: their tokens, and where each begins.

use super::order::shuffled;
use super::packing::Packing;
use crate::data::{Batch, IGNORED_TARGET, Tokens};
use netcl_device::{Error, Result};
use std::sync::Arc;

/// Bit of a token that is trained.
pub(super) const TRAINED: u32 = 1 << 31;
/// Bit of the first token of a record.
pub(super) const FIRST: u32 = 1 << 30;
/// Stands for a record that could not be read.
pub(super) const BROKEN: u32 = u32::MAX;
/// Bits of the id.
const ID: u32 = FIRST - 1;
/// Tokens read at a time.
const BLOCK: usize = 1 << 16;

/// Training and validation records.
#[derive(Clone, Debug)]
pub struct RecordSplits {
    /// At least one record.
    pub train: RecordSet,
    /// At least one record; `None` without validation.
    pub val: Option<RecordSet>,
    /// Length of a row in tokens, of which no record has more.
    pub context: usize,
    /// Training records by row, if a row has several.
    pub packing: Option<Arc<Packing>>,
}

impl RecordSplits {
    /// Returns the number of training rows.
    pub fn rows(&self) -> usize {
        self.packing.as_ref().map_or(self.train.len(), |packing| packing.len())
    }
}

/// A record of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u64,
    pub len: u32,
    /// Trained targets: trained tokens except for the first token, which nothing predicts.
    pub trained: u32,
}

/// Records that can be read in any order. Clones share the memory.
#[derive(Clone, Debug)]
pub struct RecordSet {
    tokens: Tokens,
    spans: Arc<[Span]>,
}

/// Records that were changed or left out to fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fitted {
    pub truncated: usize,
    pub dropped: usize,
    /// Records without a trained token.
    pub untrained: usize,
}

impl RecordSet {
    /// Finds the records in a sequence; also returns the number of those that could not be read.
    ///
    /// # Errors
    /// Errors of reading the tokens.
    pub(super) fn of(tokens: Tokens) -> Result<(Self, usize)> {
        let (mut spans, mut broken): (Vec<Span>, usize) = (Vec::new(), 0);
        let mut block = Vec::new();
        for at in (0..tokens.len()).step_by(BLOCK) {
            block.resize(BLOCK.min(tokens.len() - at), 0);
            tokens.read(at, &mut block)?;
            for (i, word) in block.iter().enumerate() {
                if *word == BROKEN {
                    broken += 1;
                } else if word & FIRST != 0 {
                    spans.push(Span { start: (at + i) as u64, len: 1, trained: 0 });
                } else if let Some(span) = spans.last_mut() {
                    span.len += 1;
                    span.trained += u32::from(word & TRAINED != 0);
                }
            }
        }
        Ok((Self { tokens, spans: spans.into() }, broken))
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the number of tokens of all records.
    pub fn tokens(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }

    /// Returns the number of trained targets of all records.
    pub fn trained(&self) -> usize {
        self.spans.iter().map(|span| span.trained as usize).sum()
    }

    /// Returns the tokens of the longest record; 0 without records.
    pub fn longest(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).max().unwrap_or(0)
    }

    /// Returns the last `count` records as a separate set, and the others.
    pub(super) fn divided(&self, count: usize) -> (Self, Self) {
        let (first, last) = self.spans.split_at(self.len().saturating_sub(count));
        let part = |spans: &[Span]| Self { tokens: self.tokens.clone(), spans: spans.into() };
        (part(first), part(last))
    }

    /// Returns the records that have at most `context` tokens and a trained target: longer ones are truncated, or left out with `drop`.
    ///
    /// # Errors
    /// Errors of reading the tokens.
    pub(super) fn fitted(&self, context: usize, drop: bool) -> Result<(Self, Fitted)> {
        let (mut spans, mut told) = (Vec::with_capacity(self.len()), Fitted::default());
        let mut words = Vec::new();
        for span in self.spans.iter().copied() {
            let mut span = span;
            if span.len as usize > context {
                if drop {
                    told.dropped += 1;
                    continue;
                }
                told.truncated += 1;
                words.resize(context, 0);
                self.tokens.read(span.start as usize, &mut words)?;
                span.len = context as u32;
                span.trained = words.iter().skip(1).filter(|word| **word & TRAINED != 0).count() as u32;
            }
            if span.trained == 0 {
                told.untrained += 1;
                continue;
            }
            spans.push(span);
        }
        Ok((Self { tokens: self.tokens.clone(), spans: spans.into() }, told))
    }

    /// Returns the number of tokens of each record.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.spans.iter().map(|span| span.len as usize).collect()
    }

    /// Returns the trained targets of a record.
    pub(in crate::data) fn targets(&self, record: usize) -> u64 {
        self.spans.get(record).map_or(0, |span| span.trained.into())
    }

    /// Returns the record at position `at` of an epoch, in an order that follows from the seed.
    pub(in crate::data) fn at(&self, seed: u64, epoch: u64, at: u64) -> usize {
        shuffled(seed, epoch, at, self.len() as u64) as usize
    }

    /// Returns the ids of a record, and whether each is trained.
    ///
    /// # Errors
    /// `Internal` without such a record; errors of reading the tokens.
    pub fn record(&self, record: usize) -> Result<Vec<(u32, bool)>> {
        let span = self.spans.get(record);
        let span = span.ok_or_else(|| Error::internal(format!("record {record} of {}", self.len())))?;
        let mut words = vec![0; span.len as usize];
        self.tokens.read(span.start as usize, &mut words)?;
        Ok(words.into_iter().map(|word| (word & ID, word & TRAINED != 0)).collect())
    }

    /// Returns rows of records one after the other, padded with ignored targets. With `packed`, each token has its position in its record.
    ///
    /// # Errors
    /// `Format` for an id outside `vocab`; errors of reading the tokens.
    pub(in crate::data) fn rows(
        &self,
        rows_of: impl ExactSizeIterator<Item = Vec<usize>>,
        [context, vocab]: [usize; 2],
        packed: bool,
    ) -> Result<Batch> {
        let rows = rows_of.len();
        let (mut x, mut y) = (vec![0; rows * context], vec![IGNORED_TARGET; rows * context]);
        let mut positions = packed.then(|| vec![0; rows * context]);
        let mut at = 0;
        let records =
            rows_of.enumerate().flat_map(|(row, records)| records.into_iter().map(move |r| (row, r)));
        let mut last = None;
        for (row, record) in records {
            if last.replace(row) != Some(row) {
                at = row * context;
            }
            let end = (row + 1) * context;
            let words = self.record(record)?;
            if let Some((id, _)) = words.iter().find(|(id, _)| *id as usize >= vocab) {
                return Err(Error::format(format!(
                    "the tokenizer returned the id {id}, but the vocabulary has {vocab} tokens; use the tokenizer of the model"
                )));
            }
            for (place, (id, _)) in x[at..end].iter_mut().zip(&words) {
                *place = *id;
            }
            for (place, (id, _)) in y[at..end].iter_mut().zip(words.iter().skip(1)).filter(|(_, w)| w.1) {
                *place = *id;
            }
            if let Some(positions) = &mut positions {
                positions[at..end].iter_mut().zip(0..words.len() as u32).for_each(|(place, n)| *place = n);
            }
            at = (at + words.len()).min(end);
        }
        Ok(Batch { x, y, rows, context, step_targets: None, positions })
    }
}
