//! Overlapping windows (strided evaluation), so that every token is predicted from a long context.

use super::{Batch, IGNORED_TARGET, Tokens};
use netcl_device::{Error, Result};
use std::ops::Range;

/// A batch of windows of which only some targets are scored.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Inputs and targets.
    pub batch: Batch,
    /// For each row, the range of scored targets.
    pub counted: Vec<Range<usize>>,
}

impl Scored {
    /// Returns the number of scored targets: ignored ones do not count.
    pub fn targets(&self) -> usize {
        self.ids().count()
    }
    /// Returns the ids of the scored targets, row after row.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        let rows = self.batch.y.chunks(self.batch.context.max(1)).zip(&self.counted);
        rows.flat_map(|(row, counted)| {
            row[counted.clone()].iter().copied().filter(|id| *id != IGNORED_TARGET)
        })
    }
}

impl From<Batch> for Scored {
    /// Returns a batch with all targets scored.
    fn from(batch: Batch) -> Self {
        let counted = vec![0..batch.context; batch.rows];
        Self { batch, counted }
    }
}

/// The windows of a text: every token except the first is scored once, in the first window that contains it.
///
/// Windows begin every `stride` tokens and span `context` tokens, inputs and targets together. The first window predicts all of its tokens except the
/// first. Each later one predicts the tokens after the window before it, at most the last `stride`; these have at least `context - stride` tokens of
/// context. The last window ends with the text. These are the windows of the perplexity guide of Hugging Face `transformers` (fixed-length models).
/// Adjacent windows (`stride` = `context`) do not predict their first tokens.
#[derive(Clone, Debug)]
pub struct Strided {
    tokens: Tokens,
    vocab: usize,
    context: usize,
    stride: usize,
    batch: usize,
}

impl Strided {
    /// Creates windows of `context` tokens (or of the whole text if it is shorter), `batch` per batch.
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
        if context < 2 {
            return Err(Error::format("--context 1: a window of one token predicts nothing; use at least 2"));
        }
        if tokens.len() < 2 {
            return Err(Error::format("nothing to predict: the data has fewer than 2 tokens"));
        }
        let context = context.min(tokens.len());
        Ok(Self { tokens, vocab, context, stride: stride.min(context), batch })
    }

    /// Returns the length of a window in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the distance between the beginnings of two windows.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the number of targets; each is scored once.
    pub fn targets(&self) -> usize {
        // The first token of a window is predicted by the one before it, if they overlap.
        let apart = if self.stride == self.context { self.windows() } else { 1 };
        let rest = (self.tokens.len() - self.context) % self.stride;
        let alone = usize::from(self.stride == self.context && rest == 1);
        self.tokens.len() - apart - alone
    }

    /// Returns the number of windows.
    pub fn windows(&self) -> usize {
        let behind = self.tokens.len() - self.context;
        // With adjacent windows, a last window of one token predicts nothing.
        let behind =
            if self.stride == self.context && behind % self.stride == 1 { behind - 1 } else { behind };
        1 + behind.div_ceil(self.stride)
    }

    /// Returns the number of batches.
    pub fn len(&self) -> usize {
        self.windows().div_ceil(self.batch)
    }

    /// Always returns false, because there is at least one window.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns all batches in order. An incomplete last window is padded at its end with a token that is not scored.
    pub fn batches(&self) -> impl Iterator<Item = Result<Scored>> + '_ {
        let all = self.windows();
        (0..all).step_by(self.batch).map(move |first| self.of(first..(first + self.batch).min(all)))
    }

    fn of(&self, windows: Range<usize>) -> Result<Scored> {
        // The token after a window is outside of it.
        let (context, rows) = (self.context - 1, windows.len());
        let (mut x, mut y) = (Vec::with_capacity(rows * context), Vec::with_capacity(rows * context));
        let mut counted = Vec::with_capacity(rows);
        for number in windows {
            let start = number * self.stride;
            let length = context.min(self.tokens.len() - 1 - start);
            let mut window = vec![0; length + 1];
            self.tokens.read(start, &mut window)?;
            if let Some(bad) = window.iter().position(|&id| id as usize >= self.vocab) {
                return Err(self.tokens.unknown(start + bad, window[bad], self.vocab));
            }
            let before = if number == 0 { 0 } else { context.saturating_sub(self.stride) };
            counted.push(before..length);
            for (side, ids) in [(&mut x, &window[..length]), (&mut y, &window[1..])] {
                side.extend_from_slice(ids);
                side.resize(side.len() + context - length, 0);
            }
        }
        let batch = Batch { x, y, rows, context, step_targets: None, positions: None, values: Vec::new() };
        Ok(Scored { batch, counted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strided(len: u32, context: usize, stride: usize, batch: usize) -> Strided {
        Strided::new(Tokens::from((0..len).collect::<Vec<_>>()), 1000, context, stride, batch).unwrap()
    }

    /// Returns the scored targets in order, each with the length of its context.
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

    /// Returns targets and the number of tokens before each, as in the guide's loop.
    fn guide(len: usize, context: usize, stride: usize) -> Vec<(u32, usize)> {
        let (mut out, mut before) = (Vec::new(), 0);
        for begin in (0..len).step_by(stride) {
            let end = (begin + context).min(len);
            // The model shifts the labels: it predicts nothing for the first token of a window.
            out.extend((before.max(begin + 1)..end).map(|at| (at as u32, at - begin)));
            before = end;
            if end == len {
                break;
            }
        }
        out
    }

    #[test]
    fn windows_span_as_many_tokens_as_those_of_the_perplexity_guide() {
        for (len, context, stride) in [
            (2, 8, 3),
            (2, 2, 2),
            (3, 2, 1),
            (9, 8, 8),
            (10, 8, 8),
            (16, 8, 8),
            (17, 8, 8),
            (18, 8, 8),
            (17, 8, 4),
            (30, 8, 1),
            (30, 8, 7),
            (31, 8, 3),
            (33, 8, 8),
            (100, 99, 50),
            (100, 200, 50),
            (64, 16, 5),
        ] {
            for batch in [1, 3, 100] {
                let all = strided(len, context, stride, batch);
                let seen = seen(&all);
                assert_eq!(seen, guide(len as usize, context, stride), "{len} {context} {stride}");
                assert_eq!(
                    (seen.len(), all.batches().count()),
                    (all.targets(), all.len()),
                    "{len} {context} {stride}"
                );
                assert!(
                    all.batches().all(|scored| scored.unwrap().counted.iter().all(|row| !row.is_empty()))
                );
            }
        }
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
        assert!(message(new(9, 1, 1, 1)).contains("--context 1: a window of one token"));
        assert!(message(new(1, 4, 4, 1)).contains("nothing to predict"));
        let tokens = Tokens::from(vec![1, 2, 9]);
        let all = Strided::new(tokens, 9, 4, 4, 1).unwrap();
        let error = all.batches().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("token 2 is 9, but the vocabulary has 9"), "{error}");
    }
}
