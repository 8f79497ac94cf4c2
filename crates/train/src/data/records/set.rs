//! Encoded records: their tokens, and where each begins.

use super::kind::{RecordKind, ReferenceLogProbs};
use super::order::shuffled;
use super::packing::Packing;
use crate::data::{Batch, IGNORED_TARGET, Tokens};
use netcl_device::{Error, Result};
use std::sync::Arc;

/// Bit of a token that is trained.
pub(super) const TRAINED: u32 = 1 << 31;
/// Bit of the first token of a record.
pub(super) const FIRST: u32 = 1 << 30;
/// Bit of the first token of a desirable answer.
pub(super) const DESIRABLE: u32 = 1 << 29;
/// Bit of the first token of a rejected answer that is read as an answer with a label.
pub(super) const REJECTED: u32 = 1 << 28;
/// Records of a preference pair that are read as answers with labels are ordered in blocks of this many: first the chosen answers, as in TRL.
const UNPAIRED_BLOCK: usize = 1000;
/// Stands for a record that could not be read.
pub(super) const BROKEN: u32 = u32::MAX;
/// Bits of the id.
const ID: u32 = REJECTED - 1;
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

/// An id, and whether it is trained.
pub(super) type Word = (u32, bool);

/// A sequence of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u64,
    pub len: u32,
    /// Trained targets: trained tokens except for the first token, which nothing predicts.
    pub trained: u32,
    /// Whether it has a label that says so.
    pub desirable: bool,
}

/// Records that can be read in any order. Clones share the memory.
#[derive(Clone, Debug)]
pub struct RecordSet {
    pub(super) tokens: Tokens,
    pub(super) spans: Arc<[Span]>,
    pub(super) kind: RecordKind,
    pub(super) reference: Option<ReferenceLogProbs>,
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
    pub(super) fn of(tokens: Tokens, kind: RecordKind) -> Result<(Self, usize)> {
        let (mut spans, mut broken): (Vec<Span>, usize) = (Vec::new(), 0);
        let mut rejected = Vec::new();
        let mut block = Vec::new();
        for at in (0..tokens.len()).step_by(BLOCK) {
            block.resize(BLOCK.min(tokens.len() - at), 0);
            tokens.read(at, &mut block)?;
            for (i, word) in block.iter().enumerate() {
                if *word == BROKEN {
                    broken += 1;
                } else if word & FIRST != 0 {
                    let desirable = word & DESIRABLE != 0;
                    rejected.push(word & REJECTED != 0);
                    spans.push(Span { start: (at + i) as u64, len: 1, trained: 0, desirable });
                } else if let Some(span) = spans.last_mut() {
                    span.len += 1;
                    span.trained += u32::from(word & TRAINED != 0);
                }
            }
        }
        let blocks = spans.chunks(2 * UNPAIRED_BLOCK).zip(rejected.chunks(2 * UNPAIRED_BLOCK));
        let ordered = |(spans, rejected): (&[Span], &[bool])| {
            let of = |which: bool| spans.iter().zip(rejected).filter(move |(_, r)| **r == which);
            of(false).chain(of(true)).map(|(span, _)| *span).collect::<Vec<_>>()
        };
        let spans: Vec<Span> = blocks.flat_map(ordered).collect();
        Ok((Self { tokens, spans: spans.into(), kind, reference: None }, broken))
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.spans.len() / self.kind.spans()
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
        let (first, last) = self.spans.split_at(self.len().saturating_sub(count) * self.kind.spans());
        let part = |spans: &[Span]| Self { spans: spans.into(), ..self.clone() };
        (part(first), part(last))
    }

    /// Returns the records that have at most `context` tokens and a trained target: longer ones are truncated, or left out with `drop`.
    ///
    /// # Errors
    /// Errors of reading the tokens.
    pub(super) fn fitted(&self, context: usize, drop: bool) -> Result<(Self, Fitted)> {
        let (mut spans, mut told) = (Vec::with_capacity(self.spans.len()), Fitted::default());
        for record in self.spans.chunks(self.kind.spans()) {
            let long = record.iter().any(|span| span.len as usize > context);
            if long && drop {
                told.dropped += 1;
                continue;
            }
            told.truncated += usize::from(long);
            let fitted =
                record.iter().map(|span| self.truncated(*span, context)).collect::<Result<Vec<_>>>()?;
            if fitted.iter().any(|span| span.trained == 0) {
                told.untrained += 1;
                continue;
            }
            spans.extend(fitted);
        }
        Ok((Self { spans: spans.into(), ..self.clone() }, told))
    }

    /// Returns the first `context` tokens of a sequence.
    fn truncated(&self, span: Span, context: usize) -> Result<Span> {
        if span.len as usize <= context {
            return Ok(span);
        }
        let mut words = vec![0; context];
        self.tokens.read(span.start as usize, &mut words)?;
        let trained = words.iter().skip(1).filter(|word| **word & TRAINED != 0).count() as u32;
        Ok(Span { len: context as u32, trained, ..span })
    }

    /// Returns the kind of its records.
    pub fn kind(&self) -> RecordKind {
        self.kind
    }

    /// Returns a sequence of a record; those of preference pairs have two.
    pub(super) fn span(&self, record: usize, side: usize) -> Option<&Span> {
        self.spans.get(record * self.kind.spans() + side)
    }

    /// Returns the number of tokens of each record.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.spans.iter().map(|span| span.len as usize).collect()
    }

    /// Returns the trained targets of a record.
    pub(in crate::data) fn targets(&self, record: usize) -> u64 {
        let all = (0..self.kind.spans()).filter_map(|side| self.span(record, side));
        all.map(|span| u64::from(span.trained)).sum()
    }

    /// Returns the record at position `at` of an epoch, in an order that follows from the seed.
    pub(in crate::data) fn at(&self, seed: u64, epoch: u64, at: u64) -> usize {
        shuffled(seed, epoch, at, self.len() as u64) as usize
    }

    /// Returns the ids of a record, and whether each is trained; of a preference pair those of the chosen answer.
    ///
    /// # Errors
    /// `Internal` without such a record; errors of reading the tokens.
    pub fn record(&self, record: usize) -> Result<Vec<(u32, bool)>> {
        self.sequence(record, 0)
    }

    /// Returns the ids of a sequence of a record, and whether each is trained.
    pub(super) fn sequence(&self, record: usize, side: usize) -> Result<Vec<Word>> {
        let span = self.span(record, side);
        let span = span.ok_or_else(|| Error::internal(format!("record {record} of {}", self.len())))?;
        let mut words = vec![0; span.len as usize];
        self.tokens.read(span.start as usize, &mut words)?;
        Ok(words.into_iter().map(|word| (word & ID, word & TRAINED != 0)).collect())
    }

    /// Returns rows of records one after the other, padded with ignored targets. With `packed`, each token has its position in its record. `likelihood` is
    /// the factor of likelihoods in losses that compare answers.
    ///
    /// # Errors
    /// `Format` for an id outside `vocab`; errors of reading the tokens.
    pub(in crate::data) fn rows(
        &self,
        rows_of: impl ExactSizeIterator<Item = Vec<usize>>,
        [context, vocab]: [usize; 2],
        packed: bool,
        likelihood: f32,
    ) -> Result<Batch> {
        if self.kind.is_preference() {
            return self.compared(rows_of.map(|row| row.first().copied()), [context, vocab], likelihood);
        }
        let rows = rows_of.len();
        let (mut x, mut y) = (vec![0; rows * context], vec![IGNORED_TARGET; rows * context]);
        let mut positions = packed.then(|| vec![0; rows * context]);
        for (row, records) in rows_of.enumerate() {
            let (mut at, end) = (row * context, (row + 1) * context);
            for record in records {
                let words = self.record(record)?;
                fill(&words, false, vocab, (&mut x[at..end], &mut y[at..end]))?;
                if let Some(positions) = &mut positions {
                    positions[at..end]
                        .iter_mut()
                        .zip(0..words.len() as u32)
                        .for_each(|(place, n)| *place = n);
                }
                at = (at + words.len()).min(end);
            }
        }
        Ok(Batch { x, y, rows, context, step_targets: None, positions, values: Vec::new() })
    }
}

/// Writes a sequence and its targets, or the targets of `all` tokens, to a row.
///
/// # Errors
/// `Format` for an id outside `vocab`.
pub(super) fn fill(words: &[Word], all: bool, vocab: usize, (x, y): (&mut [u32], &mut [u32])) -> Result<()> {
    if let Some((id, _)) = words.iter().find(|(id, _)| *id as usize >= vocab) {
        return Err(Error::format(format!(
            "the tokenizer returned the id {id}, but the vocabulary has {vocab} tokens; use the tokenizer of the model"
        )));
    }
    for (place, (id, _)) in x.iter_mut().zip(words) {
        *place = *id;
    }
    for (place, (id, _)) in y.iter_mut().zip(words.iter().skip(1)).filter(|(_, word)| all || word.1) {
        *place = *id;
    }
    Ok(())
}
