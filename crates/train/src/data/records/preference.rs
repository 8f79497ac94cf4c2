//! Rows of records whose answers are compared.
//!
//! The rows of a batch of P records are the P chosen answers and then the P rejected ones. For answers with labels they are the P answers and then the
//! P prompts with another record's answer. The loss of a batch also reads [`VALUES`] numbers per record.

use super::kind::{RecordKind, ReferenceLogProbs};
use super::set::{RecordSet, Word};
use crate::data::{Batch, IGNORED_TARGET};
use netcl_device::Result;
use std::ops::Range;

/// Numbers per record that a loss reads, (VALUES, P) of a batch.
pub(crate) const VALUES: usize = 9;

/// Places of the numbers of a record.
pub(crate) mod value {
    /// 1, or 0 for an empty row.
    pub(crate) const PRESENT: usize = 0;
    /// Log probabilities of both rows under the reference model.
    pub(crate) const REFERENCE: [usize; 2] = [1, 2];
    /// Inverse numbers of the tokens of both answers.
    pub(crate) const INVERSE_LENGTH: [usize; 2] = [3, 4];
    /// Positions of the first target of both answers.
    pub(crate) const START: [usize; 2] = [5, 6];
    /// Factor of the sum of the negative log likelihoods of a chosen row: records of the step over targets of its chosen rows.
    pub(crate) const LIKELIHOOD: usize = 7;
    /// 1 for a desirable answer.
    pub(crate) const DESIRABLE: usize = 8;
}

impl RecordSet {
    /// Returns the same records with their log probabilities under the reference model.
    #[must_use]
    pub(crate) fn with_reference(self, reference: ReferenceLogProbs) -> Self {
        Self { reference: Some(reference), ..self }
    }

    /// Returns the targets of a record whose likelihood a loss may include.
    pub(in crate::data) fn likelihood_targets(&self, record: usize) -> u64 {
        let chosen = self.span(record, 0);
        chosen.map_or(0, |span| {
            if self.includes_prompts() { u64::from(span.len.max(1)) - 1 } else { span.trained.into() }
        })
    }

    fn includes_prompts(&self) -> bool {
        matches!(self.kind, RecordKind::Pairs { prompts: true })
    }

    /// Returns both rows of a record.
    ///
    /// # Errors
    /// Errors of reading the tokens.
    pub(crate) fn both(&self, record: usize) -> Result<[Vec<Word>; 2]> {
        let RecordKind::Labeled { block } = self.kind else {
            return Ok([self.sequence(record, 0)?, self.sequence(record, 1)?]);
        };
        // The answer before it in its block; the first one gets the last one's.
        let (first, block) = (record - record % block.max(1), block.max(1));
        let last = (first + block).min(self.len()) - 1;
        let other = if record == first { last } else { record - 1 };
        let own = self.sequence(record, 0)?;
        let prompt = own.iter().copied().take_while(|(_, trained)| !trained);
        let answer = self.sequence(other, 0)?;
        let mixed = prompt.chain(answer.into_iter().skip_while(|(_, trained)| !trained)).collect();
        Ok([own, mixed])
    }

    /// Returns the rows of records in order, with their answers as the only targets.
    ///
    /// # Errors
    /// `Format` for an id outside the vocabulary; errors of reading the tokens.
    pub(crate) fn answers(&self, records: Range<usize>, [context, vocab]: [usize; 2]) -> Result<Batch> {
        self.compared(records.map(Some), [context, vocab], 0.0)
    }

    /// Returns the rows of some records, `None` for an empty one, and their numbers. `likelihood` is the factor for likelihoods.
    ///
    /// # Errors
    /// `Format` for an id outside `vocab`; errors of reading the tokens.
    pub(super) fn compared(
        &self,
        records: impl ExactSizeIterator<Item = Option<usize>>,
        [context, vocab]: [usize; 2],
        likelihood: f32,
    ) -> Result<Batch> {
        let count = records.len();
        let (mut x, mut y) = (vec![0; 2 * count * context], vec![IGNORED_TARGET; 2 * count * context]);
        let mut values = vec![0.0; VALUES * count];
        for (at, record) in records.enumerate() {
            let mut set = |place: usize, value: f32| values[place * count + at] = value;
            set(value::LIKELIHOOD, likelihood);
            let Some(record) = record else { continue };
            set(value::PRESENT, 1.0);
            let reference =
                self.reference.as_ref().and_then(|all| all.get(record)).copied().unwrap_or_default();
            set(value::DESIRABLE, f32::from(self.span(record, 0).is_some_and(|span| span.desirable)));
            for (side, mut words) in self.both(record)?.into_iter().enumerate() {
                words.truncate(context);
                let from = (side * count + at) * context;
                let row = from..from + context;
                let all = self.includes_prompts();
                super::set::fill(&words, all, vocab, (&mut x[row.clone()], &mut y[row]))?;
                let answer = words.iter().filter(|(_, trained)| *trained).count();
                set(value::REFERENCE[side], reference[side]);
                set(value::INVERSE_LENGTH[side], 1.0 / answer.max(1) as f32);
                set(value::START[side], (words.len() - answer).saturating_sub(1) as f32);
            }
        }
        Ok(Batch { x, y, rows: 2 * count, context, step_targets: None, positions: None, values })
    }
}
