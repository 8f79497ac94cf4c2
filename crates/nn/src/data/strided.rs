//! Overlapping windows (strided evaluation), so that every token is predicted from a long context.

use super::{Batch, Tokens};
use netcl_device::{Error, Result};
use std::ops::Range;

/// A batch of windows of which only some targets are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scored {
    /// Inputs and targets.
    pub batch: Batch,
    /// For each row, the range of scored targets.
    pub counted: Vec<Range<usize>>,
}

impl Scored {
    /// Number of scored targets.
    pub fn targets(&self) -> usize {
        self.counted.iter().map(Range::len).sum()
    }
    /// Ids of the scored targets, row after row.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let rows = self.batch.y.chunks(self.batch.context.max(1)).zip(&self.counted);
        rows.flat_map(|(row, counted)| row[counted.clone()].iter().copied())
    }
}

impl From<Batch> for Scored {
    /// A batch with all targets scored.
    fn from(batch: Batch) -> Self {
        let counted = vec![0..batch.context; batch.rows];
        Self { batch, counted }
    }
}

/// The windows of a text: every token except the first is scored once, in the first window that contains it.
///
/// Windows begin every `stride` tokens. All targets of the first window are scored, and the last `stride` targets of each later one, which
/// have at least `context - stride` tokens of context; the last window ends with the text. Method of the perplexity guide of Hugging Face
/// `transformers` (fixed-length models).
#[derive(Clone, Debug)]
pub struct Strided {
    tokens: Tokens,
    vocab: usize,
    context: usize,
    stride: usize,
    batch: usize,
}

impl Strided {
    /// Windows of `context` tokens (or of the whole text if it is shorter), `batch` per batch.
    ///
    /// # Errors
    /// `Format` if a number is 0, the stride is above the context, or the text has fewer than two tokens.
    pub fn new(tokens: Tokens, vocab: usize, context: usize, stride: usize, batch: usize) -> Result<Self> {
        if context == 0 || stride == 0 || batch == 0 {
            return Err(Error::format("--context, --stride and --batch must be at least 1"));
        }
        if stride > context {
            return Err(Error::format(format!(
                "--stride {stride} is above --context {context}: tokens between two windows would not count"
            )));
        }
        if tokens.len() < 2 {
            return Err(Error::format("there is nothing to predict: the data has fewer than 2 tokens"));
        }
        let context = context.min(tokens.len() - 1);
        Ok(Self { tokens, vocab, context, stride: stride.min(context), batch })
    }

    /// Length of a window in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Distance between the beginnings of two windows.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Number of targets; each is scored once.
    pub fn targets(&self) -> usize {
        self.tokens.len() - 1
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        1 + (self.targets() - self.context).div_ceil(self.stride)
    }

    /// Number of batches.
    pub fn len(&self) -> usize {
        self.windows().div_ceil(self.batch)
    }

    /// Always false: there is at least one window.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All batches in order. An incomplete last window is padded at its end with a token that is not scored.
    pub fn batches(&self) -> impl Iterator<Item = Result<Scored>> + '_ {
        let all = self.windows();
        (0..all).step_by(self.batch).map(move |first| self.of(first..(first + self.batch).min(all)))
    }

    fn of(&self, windows: Range<usize>) -> Result<Scored> {
        let (context, rows) = (self.context, windows.len());
        let (mut x, mut y) = (Vec::with_capacity(rows * context), Vec::with_capacity(rows * context));
        let mut counted = Vec::with_capacity(rows);
        for number in windows {
            let start = number * self.stride;
            let length = context.min(self.targets() - start);
            let mut window = vec![0; length + 1];
            self.tokens.read(start, &mut window)?;
            if let Some(bad) = window.iter().position(|&id| id as usize >= self.vocab) {
                return Err(self.tokens.unknown(start + bad, window[bad], self.vocab));
            }
            let before = if number == 0 { 0 } else { context - self.stride };
            counted.push(before..length);
            for (side, ids) in [(&mut x, &window[..length]), (&mut y, &window[1..])] {
                side.extend_from_slice(ids);
                side.resize(side.len() + context - length, 0);
            }
        }
        Ok(Scored { batch: Batch { x, y, rows, context }, counted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(len: u32, context: usize, stride: usize, batch: usize) -> Strided {
        Strided::new(Tokens::from((0..len).collect::<Vec<_>>()), 1000, context, stride, batch).unwrap()
    }

    /// Scored targets in order, each with the length of its context.
    fn seen(all: &Strided) -> Vec<(u32, usize)> {
        let mut out = Vec::new();
        for scored in all.batches() {
            let Scored { batch, counted } = scored.unwrap();
            assert_eq!(
                (batch.x.len(), batch.y.len(), counted.len()),
                (batch.rows * batch.context, batch.x.len(), batch.rows)
            );
            for (row, counted) in counted.iter().enumerate() {
                for at in counted.clone() {
                    let place = row * batch.context + at;
                    assert_eq!(batch.x[place] + 1, batch.y[place]);
                    out.push((batch.y[place], at + 1));
                }
            }
        }
        out
    }

    #[test]
    fn every_token_but_the_first_counts_once_with_as_much_before_it_as_there_is() {
        for (len, context, stride) in [
            (2, 8, 3),
            (9, 8, 8),
            (10, 8, 8),
            (17, 8, 4),
            (30, 8, 1),
            (31, 8, 3),
            (33, 8, 8),
            (100, 99, 50),
            (64, 16, 5),
        ] {
            for batch in [1, 3, 100] {
                let all = strided(len, context, stride, batch);
                let seen = seen(&all);
                let expected: Vec<_> = (1..len).collect();
                assert_eq!(
                    seen.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
                    expected,
                    "{len} {context} {stride}"
                );
                assert_eq!((seen.len(), all.batches().count()), (all.targets(), all.len()));
                for (id, before) in seen {
                    let least = (context + 1 - stride).min(id as usize);
                    assert!(
                        before >= least && before <= context,
                        "{id}: {before} of {least} tokens before it"
                    );
                }
            }
        }
        // Side by side the windows of evaluation in training, and the rest of the text.
        assert_eq!(strided(50, 16, 16, 1).windows(), 4);
        assert_eq!(strided(49, 16, 16, 1).windows(), 3);
    }

    #[test]
    fn mistakes_are_named() {
        let new = |len: u32, context, stride, batch| {
            let tokens = Tokens::from((0..len).collect::<Vec<_>>());
            Strided::new(tokens, 9, context, stride, batch)
                .map(|all| all.batches().map(Result::unwrap).count())
        };
        let message = |result: Result<usize>| result.unwrap_err().to_string();
        assert!(message(new(9, 4, 5, 1)).contains("--stride 5 is above --context 4"));
        assert!(message(new(9, 4, 0, 1)).contains("--stride"));
        assert!(message(new(1, 4, 4, 1)).contains("nothing to predict"));
        let tokens = Tokens::from(vec![1, 2, 9]);
        let all = Strided::new(tokens, 9, 4, 4, 1).unwrap();
        let error = all.batches().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("token 2 is 9, but the vocabulary has 9"), "{error}");
    }
}
