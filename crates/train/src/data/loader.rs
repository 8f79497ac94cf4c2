//! Batches as a function of the position in the run. The position is the only state, so a run can be resumed anywhere.

use super::batch::Batch;
use super::records::{Packing, RecordSet};
use super::{Tokens, random};
use netcl_device::{Error, Result};
use netcl_model::checkpoint::Position;
use std::ops::Range;
use std::sync::Arc;

/// Random windows of the training tokens, as in nanoGPT, or records in an order per epoch.
#[derive(Clone, Debug)]
pub struct Loader {
    source: Source,
    /// Rows of a batch.
    batch: usize,
    /// The rows of each batch that are loaded.
    rows: Range<usize>,
    grad_accum: u32,
}

#[derive(Clone, Debug)]
enum Source {
    Windows(Windows),
    Records(RecordRows),
}

/// Rows of one record each, or of several.
#[derive(Clone, Debug)]
struct RecordRows {
    records: RecordSet,
    packing: Option<Arc<Packing>>,
    vocab: usize,
    context: usize,
    /// Rows of the whole run; later ones are empty.
    limit: Option<u64>,
}

impl RecordRows {
    /// Returns the records of a row, counted from the beginning of the run; none for an empty row.
    fn at(&self, seed: u64, row: u64) -> Vec<usize> {
        let count = self.packing.as_ref().map_or(self.records.len(), |packing| packing.len()) as u64;
        match &self.packing {
            _ if count == 0 || self.limit.is_some_and(|limit| row >= limit) => Vec::new(),
            Some(packing) => packing.row(packing.at(seed, row / count, row % count)).collect(),
            None => vec![self.records.at(seed, row / count, row % count)],
        }
    }

    /// Returns the batch of some rows. `likelihood` is the factor of likelihoods in losses that compare answers.
    fn batch(&self, rows: impl ExactSizeIterator<Item = Vec<usize>>, likelihood: f32) -> Result<Batch> {
        self.records.rows(rows, [self.context, self.vocab], self.packing.is_some(), likelihood)
    }

    /// Returns the records of the step with these rows, and the targets whose likelihood a loss may include.
    fn likelihood_targets(&self, seed: u64, rows: Range<u64>) -> (u64, u64) {
        let records = rows.flat_map(|row| self.at(seed, row));
        records.fold((0, 0), |(count, targets), record| {
            (count + 1, targets + self.records.likelihood_targets(record))
        })
    }
}

impl Source {
    fn records(&self) -> Option<&RecordSet> {
        match self {
            Self::Records(all) => Some(&all.records),
            Self::Windows(_) => None,
        }
    }

    fn replace_records(&mut self, change: impl FnOnce(RecordSet) -> RecordSet) {
        if let Self::Records(all) = self {
            all.records = change(all.records.clone());
        }
    }
}

impl Loader {
    /// Creates batches of `batch` windows of `context` tokens, `grad_accum` batches per step. `Format` if a number is 0 or there are fewer tokens
    /// than a window needs.
    pub fn new(tokens: Tokens, vocab: usize, batch: usize, context: usize, grad_accum: u32) -> Result<Self> {
        if batch == 0 || grad_accum == 0 {
            return Err(Error::format("--batch and --grad-accum must be at least 1"));
        }
        let source = Source::Windows(Windows::new(tokens, vocab, context)?);
        Ok(Self { source, batch, rows: 0..batch, grad_accum })
    }

    /// Creates batches of `batch` rows of `context` tokens with a record each, or those of a packing, in another order in each epoch. With `epochs`, rows
    /// after that many epochs are empty. `Format` if a number is 0, or without records.
    pub fn of_records(
        (records, packing): (RecordSet, Option<Arc<Packing>>),
        vocab: usize,
        [batch, context]: [usize; 2],
        grad_accum: u32,
        epochs: Option<u64>,
    ) -> Result<Self> {
        if batch == 0 || grad_accum == 0 || context == 0 {
            return Err(Error::format("--batch, --grad-accum and --context must be at least 1"));
        }
        if records.is_empty() {
            return Err(Error::format("the data lacks records to train on"));
        }
        let count = packing.as_ref().map_or(records.len(), |packing| packing.len());
        let limit = epochs.map(|epochs| epochs.saturating_mul(count as u64));
        let source = Source::Records(RecordRows { records, packing, vocab, context, limit });
        Ok(Self { source, batch, rows: 0..batch, grad_accum })
    }

    /// Returns whether targets of batches are ignored, so that their losses must be weighted.
    pub fn is_weighted(&self) -> bool {
        matches!(self.source, Source::Records(_))
    }

    /// Returns whether a row has several records.
    pub fn is_packed(&self) -> bool {
        matches!(&self.source, Source::Records(all) if all.packing.is_some())
    }

    /// Returns the number of targets of a step that are not ignored; `None` if none is.
    pub fn step_targets(&self, seed: u64, step: u64) -> Option<u64> {
        let Source::Records(all) = &self.source else { return None };
        let records = self.rows_of_step(step).flat_map(|row| all.at(seed, row));
        Some(records.map(|record| all.records.targets(record)).sum())
    }

    /// Returns the rows of a step, counted from the beginning of the run.
    fn rows_of_step(&self, step: u64) -> Range<u64> {
        let rows = u64::from(self.grad_accum).saturating_mul(self.batch as u64);
        step.saturating_mul(rows)..step.saturating_add(1).saturating_mul(rows)
    }

    /// Returns its records.
    pub(crate) fn records(&self) -> Option<&RecordSet> {
        self.source.records()
    }

    /// Changes its records.
    pub(crate) fn replace_records(&mut self, change: impl FnOnce(RecordSet) -> RecordSet) {
        self.source.replace_records(change);
    }

    /// Restricts loading to these rows of each batch: a rank's share.
    #[must_use]
    pub fn part(self, rows: Range<usize>) -> Self {
        Self { rows, ..self }
    }

    /// Returns the batch at a position; deterministic. `Format` for an id outside `vocab`.
    pub fn batch(&self, at: Position) -> Result<Batch> {
        match &self.source {
            Source::Windows(windows) => {
                let span = (windows.tokens.len() - windows.context) as u64;
                let start =
                    |row| random::below(at.seed, [at.step, at.micro.into(), row as u64], span) as usize;
                windows.batch(self.rows.clone().map(start))
            }
            Source::Records(all) => {
                let pass = at.step.saturating_mul(self.grad_accum.into()).saturating_add(at.micro.into());
                let before = pass.saturating_mul(self.batch as u64);
                let record = |row| all.at(at.seed, before.saturating_add(row as u64));
                let records = self.rows.clone().map(record);
                if !all.records.kind().is_preference() {
                    let batch = all.batch(records, 0.0)?;
                    return Ok(Batch { step_targets: self.step_targets(at.seed, at.step), ..batch });
                }
                let (count, targets) = all.likelihood_targets(at.seed, self.rows_of_step(at.step));
                let batch = all.batch(records, count as f32 / targets.max(1) as f32)?;
                Ok(Batch { step_targets: Some(count), ..batch })
            }
        }
    }

    /// Returns the position after `at`.
    pub fn next(&self, at: Position) -> Position {
        if at.micro + 1 < self.grad_accum {
            return Position { micro: at.micro + 1, ..at };
        }
        Position { step: at.step + 1, micro: 0, ..at }
    }
}

/// Batches for evaluation: the same at each evaluation, so that losses are comparable.
#[derive(Clone, Debug)]
pub struct Eval {
    source: Source,
    /// Positions of windows, or records.
    starts: Vec<usize>,
    batch: usize,
}

impl Eval {
    /// Creates evaluation batches. Without `limit`, they have all non-overlapping windows of `context` tokens; an incomplete window at the end is
    /// left out, and the last batch may have fewer rows. With `limit`, there are at most that many batches, of random windows.
    pub fn new(
        tokens: Tokens,
        vocab: usize,
        batch: usize,
        context: usize,
        limit: Option<usize>,
        seed: u64,
    ) -> Result<Self> {
        if batch == 0 || limit == Some(0) {
            return Err(Error::format("--batch and --eval-batches must be at least 1"));
        }
        let windows = Windows::new(tokens, vocab, context)?;
        let span = windows.tokens.len() - context;
        let whole = span.div_ceil(context);
        let starts = match limit {
            Some(limit) if limit.saturating_mul(batch) < whole => {
                // A separate random stream, because no training step has this number.
                let start = |row| random::below(seed, [u64::MAX, 0, row as u64], span as u64) as usize;
                (0..limit * batch).map(start).collect()
            }
            // The last window also needs its target: it starts below `span` and ends at `start + context + 1`.
            _ => (0..span).step_by(context).filter(|start| start + context < windows.tokens.len()).collect(),
        };
        Ok(Self { source: Source::Windows(windows), starts, batch })
    }

    /// Creates evaluation batches of records in rows of `context` tokens: all, or at most `limit` batches, chosen by the seed.
    pub fn of_records(
        records: RecordSet,
        vocab: usize,
        [batch, context]: [usize; 2],
        limit: Option<usize>,
        seed: u64,
    ) -> Result<Self> {
        if batch == 0 || limit == Some(0) {
            return Err(Error::format("--batch and --eval-batches must be at least 1"));
        }
        let most = limit.map_or(records.len(), |limit| limit.saturating_mul(batch).min(records.len()));
        let starts = match most == records.len() {
            true => (0..most).collect(),
            // A separate order, because no epoch has this number.
            false => (0..most as u64).map(|at| records.at(seed, u64::MAX, at)).collect(),
        };
        Ok(Self {
            source: Source::Records(RecordRows { records, packing: None, vocab, context, limit: None }),
            starts,
            batch,
        })
    }

    /// Returns the same windows in batches of another size.
    ///
    /// # Errors
    /// `Format` for 0.
    pub fn in_batches_of(self, batch: usize) -> Result<Self> {
        if batch == 0 {
            return Err(Error::format("--batch must be at least 1"));
        }
        Ok(Self { batch, ..self })
    }

    /// Returns the number of batches, at least one.
    pub fn len(&self) -> usize {
        self.starts.len().div_ceil(self.batch)
    }

    /// Always returns false, because there is at least one batch.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns its records.
    pub(crate) fn records(&self) -> Option<&RecordSet> {
        self.source.records()
    }

    /// Changes its records.
    pub(crate) fn replace_records(&mut self, change: impl FnOnce(RecordSet) -> RecordSet) {
        self.source.replace_records(change);
    }

    /// Returns every batch in order.
    pub fn batches(&self) -> impl Iterator<Item = Result<Batch>> + '_ {
        let targets = |all: &RecordRows| -> u64 {
            self.starts.iter().map(|record| all.records.likelihood_targets(*record)).sum()
        };
        let likelihood = match &self.source {
            Source::Records(all) if all.records.kind().is_preference() => {
                self.starts.len() as f32 / targets(all).max(1) as f32
            }
            _ => 0.0,
        };
        self.starts.chunks(self.batch).map(move |starts| match &self.source {
            Source::Windows(windows) => windows.batch(starts.iter().copied()),
            Source::Records(all) => all.batch(starts.iter().map(|record| vec![*record]), likelihood),
        })
    }
}

/// Windows of tokens, with the token after each.
#[derive(Clone, Debug)]
struct Windows {
    tokens: Tokens,
    vocab: usize,
    context: usize,
}

impl Windows {
    fn new(tokens: Tokens, vocab: usize, context: usize) -> Result<Self> {
        if context == 0 {
            return Err(Error::format("--context must be at least 1"));
        }
        if tokens.len() <= context {
            return Err(Error::format(format!(
                "{} tokens are fewer than a context of {context} and one more token; lower --context",
                tokens.len()
            )));
        }
        Ok(Self { tokens, vocab, context })
    }

    fn batch(&self, starts: impl ExactSizeIterator<Item = usize>) -> Result<Batch> {
        let (rows, context) = (starts.len(), self.context);
        let (mut x, mut y) = (Vec::with_capacity(rows * context), Vec::with_capacity(rows * context));
        let mut window = vec![0; context + 1];
        for start in starts {
            self.tokens.read(start, &mut window)?;
            // Shards may be too large to be checked in advance, and an id out of range would read out of bounds on the device.
            if let Some(bad) = window.iter().position(|&id| id as usize >= self.vocab) {
                return Err(self.tokens.unknown(start + bad, window[bad], self.vocab));
            }
            x.extend(&window[..context]);
            y.extend(&window[1..]);
        }
        Ok(Batch { x, y, rows, context, step_targets: None, positions: None, values: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(len: u32) -> Tokens {
        Tokens::from((0..len).collect::<Vec<_>>())
    }

    #[test]
    fn batches_depend_on_the_position_alone() {
        let loader = Loader::new(counting(1000), 1000, 4, 16, 3).unwrap();
        let mut at = Position { seed: 5, step: 0, micro: 0 };
        let mut all = Vec::new();
        for _ in 0..12 {
            let batch = loader.batch(at).unwrap();
            assert_eq!((batch.rows, batch.context, batch.x.len(), batch.y.len()), (4, 16, 64, 64));
            assert!(batch.x.iter().zip(&batch.y).all(|(x, y)| x + 1 == *y));
            all.push(batch);
            at = loader.next(at);
        }
        assert_eq!(at, Position { seed: 5, step: 4, micro: 0 });
        assert_eq!(loader.batch(Position { seed: 5, step: 2, micro: 1 }).unwrap(), all[7]);
        assert_ne!(loader.batch(Position { seed: 6, step: 0, micro: 0 }).unwrap(), all[0]);
        assert!((1..12).all(|i| all[..i].iter().all(|b| *b != all[i])));
    }

    #[test]
    fn every_window_can_be_drawn() {
        let loader = Loader::new(counting(20), 20, 64, 16, 1).unwrap();
        let batch = loader.batch(Position::default()).unwrap();
        let starts: std::collections::BTreeSet<_> = batch.x.chunks(16).map(|row| row[0]).collect();
        assert_eq!(starts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(Loader::new(counting(17), 20, 1, 16, 1).unwrap().batch(Position::default()).is_ok());
    }

    #[test]
    fn evaluation_covers_the_tokens_once() {
        let eval = Eval::new(counting(50), 50, 2, 16, None, 0).unwrap();
        let batches: Vec<_> = eval.batches().map(Result::unwrap).collect();
        assert_eq!((eval.len(), eval.is_empty(), batches.len(), batches[1].rows), (2, false, 2, 1));
        let x: Vec<_> = batches.iter().flat_map(|b| b.x.clone()).collect();
        assert_eq!(x, (0..48).collect::<Vec<_>>());
        // 49 tokens are enough for three windows; 48 are not.
        assert_eq!(Eval::new(counting(49), 50, 1, 16, None, 0).unwrap().len(), 3);
        assert_eq!(Eval::new(counting(48), 50, 1, 16, None, 0).unwrap().len(), 2);
        assert_eq!(Eval::new(counting(17), 50, 4, 16, None, 0).unwrap().len(), 1);
    }

    #[test]
    fn evaluation_can_be_capped() {
        let new = |limit, seed| Eval::new(counting(500), 500, 2, 16, limit, seed).unwrap();
        let all = |eval: &Eval| eval.batches().map(Result::unwrap).collect::<Vec<_>>();
        let capped = new(Some(3), 1);
        assert_eq!((capped.len(), all(&capped)), (3, all(&new(Some(3), 1))));
        assert_ne!(all(&capped), all(&new(Some(3), 2)));
        assert_eq!(all(&new(Some(100), 1)), all(&new(None, 1)));
    }

    #[test]
    fn mistakes_are_named() {
        let message = |result: Result<Batch>| result.unwrap_err().to_string();
        let loader = Loader::new(counting(17), 9, 1, 16, 1).unwrap();
        assert!(
            message(loader.batch(Position::default())).contains("token 9 is 9, but the vocabulary has 9")
        );
        for (batch, context, accum, part) in [
            (0, 1, 1, "--batch"),
            (1, 0, 1, "--context"),
            (1, 1, 0, "--grad-accum"),
            (1, 17, 1, "17 tokens are fewer than"),
        ] {
            let message = Loader::new(counting(17), 99, batch, context, accum).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(Eval::new(counting(17), 99, 1, 4, Some(0), 0).is_err());
    }
}
