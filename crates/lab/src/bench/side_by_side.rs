//! Batches of texts in pages of one cache, as the engine runs them.

use netcl::model::decoder::{CacheType, Decoder, Line, Paged};
use netcl::prelude::*;
use netcl::tensor::ops::choose::Rules;

/// Tokens of a page.
const PAGE: usize = 32;

/// Steps enqueued at once if each uses the token of the previous one.
const RUN: usize = 16;

/// Texts of the same length with their pages.
pub struct SideBySide<'a> {
    paged: Paged<'a>,
    pages: Vec<Vec<u32>>,
}

impl<'a> SideBySide<'a> {
    /// Creates `texts` texts with room for `tokens` tokens each.
    pub fn new(decoder: &'a Decoder, texts: usize, tokens: usize) -> Result<Self> {
        let each = tokens.div_ceil(PAGE);
        let paged = Paged::new(decoder, texts * each, PAGE, CacheType::Weights, None)?;
        let pages = (0..texts).map(|b| (b * each..(b + 1) * each).map(|page| page as u32).collect());
        Ok(Self { paged, pages: pages.collect() })
    }

    /// Generates `tokens` tokens from an empty context, or fewer if `done` returns true for their number. Token i of text b is `token(b, i)`; with
    /// `greedy` only the first one is, and each further one is sampled from the previous step. With `wait`, waits for every step.
    pub fn run(
        &mut self,
        tokens: usize,
        greedy: bool,
        wait: bool,
        token: &dyn Fn(usize, usize) -> u32,
        done: &dyn Fn(usize) -> bool,
    ) -> Result<()> {
        let rules = Rules::greedy();
        let mut next: Vec<[u32; 1]> = (0..self.pages.len()).map(|b| [token(b, 0)]).collect();
        let (mut made, run) = (0, if greedy && !wait { RUN } else { 1 });
        let words = [0; RUN];
        while made < tokens && !done(made) {
            let steps = run.min(tokens - made);
            let lines = next.iter().zip(&self.pages).map(|(tokens, pages)| Line {
                tokens,
                position: made,
                pages,
                rules: &rules,
                words: if greedy { &words[..steps] } else { &[] },
            });
            let pending = self.paged.queue(&lines.collect::<Vec<_>>(), steps)?;
            made += steps;
            if wait && !greedy {
                self.paged.decoder().finish()?;
            }
            if greedy {
                let sampled = self.paged.sampled(&pending)?;
                next = sampled.iter().map(|tokens| [tokens.last().copied().unwrap_or(0)]).collect();
            }
            if !greedy {
                next = (0..self.pages.len()).map(|b| [token(b, made)]).collect();
            }
        }
        Ok(())
    }

    /// Returns the launches of a captured step.
    pub fn launches(&self) -> Option<usize> {
        self.paged.launches(self.pages.len())
    }
}
