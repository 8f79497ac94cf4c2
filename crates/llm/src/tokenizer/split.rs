//! Splitting a text into words before BPE: the published patterns, in time that grows with the text.
//!
//! The patterns are regular but for the look-ahead of `\s+(?!\S)` and of digits that are grouped from the right. Those parts
//! are computed here, everything else runs in an automaton without backtracking.

use netcl_tensor::{Error, Result};
use regex_automata::{Input, meta::Regex};

/// White space up to the last one before a word, then what is left: how almost every pattern ends.
const BLANKS: &str = r"|\s+(?!\S)|\s+";
/// The same where the single space that is left is a piece because nothing took it.
const BLANKS_ONLY: &str = r"|\s+(?!\S)";
/// White space in runs of powers of two.
pub(super) const CASCADE: &str = r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Digits in groups of three from the right, where a word ends with them.
pub(super) const THOUSANDS_OF_A_WORD: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Places in front of groups of three digits, up to the last digit.
pub(super) const BEFORE_THOUSANDS: &str = r"(?=(\d{3})+(?!\d))";
/// Numbers in groups of three from the right.
pub(super) const THOUSANDS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))";

/// Splits a text by patterns one after the other, each within the pieces of the one before. What a pattern does not take is a
/// piece as well.
#[derive(Clone, Debug)]
pub(super) struct Splitter(Vec<Stage>);

#[derive(Clone, Debug)]
enum Stage {
    Words {
        regex: Regex,
        blanks: Blanks,
    },
    /// Runs of digits, in groups of three from the right.
    Groups {
        run: Regex,
        only: Groups,
    },
}

/// What becomes of white space that nothing before took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blanks {
    /// The pattern says all.
    Pattern,
    /// The last one goes with the word behind it.
    UpToWord,
    /// As [`CASCADE`].
    Cascade,
}

/// Where runs of digits are cut.
#[derive(Clone, Debug)]
enum Groups {
    /// On both sides of every group.
    All,
    /// As `All`, where what follows the run is not of a word, which this finds.
    AtWordEnd(Regex),
    /// In front of whole groups alone.
    Whole,
}

impl Splitter {
    /// # Errors
    /// `Format` for a pattern that cannot be compiled.
    pub fn new(patterns: &[&str]) -> Result<Self> {
        patterns.iter().map(|pattern| Stage::new(pattern)).collect::<Result<_>>().map(Self)
    }

    /// The pieces of `text`, in order; together they are the text.
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = if text.is_empty() { vec![] } else { vec![text] };
        for stage in &self.0 {
            let mut next = Vec::with_capacity(pieces.len());
            for piece in pieces {
                stage.split(piece, &mut next);
            }
            pieces = next;
        }
        pieces
    }
}

impl Stage {
    fn new(pattern: &str) -> Result<Self> {
        let groups = |run, only| Ok(Self::Groups { run: compile(&[run])?, only });
        match pattern {
            THOUSANDS => return groups(r"\p{N}+", Groups::All),
            THOUSANDS_OF_A_WORD => return groups(r"\d+", Groups::AtWordEnd(compile(&[r"^\w"])?)),
            BEFORE_THOUSANDS => return groups(r"\d+", Groups::Whole),
            _ => {}
        }
        let ends = [(BLANKS, Blanks::UpToWord), (BLANKS_ONLY, Blanks::UpToWord), (CASCADE, Blanks::Cascade)];
        let found = ends.iter().find_map(|(end, blanks)| Some((pattern.strip_suffix(end)?, *blanks)));
        Ok(match found {
            Some((head, blanks)) => Self::Words { regex: compile(&[head, r"\s+"])?, blanks },
            None => Self::Words { regex: compile(&[pattern])?, blanks: Blanks::Pattern },
        })
    }

    fn split<'t>(&self, text: &'t str, out: &mut Vec<&'t str>) {
        let (mut begin, mut at, mut cuts) = (0, 0, Vec::new());
        let (Self::Words { regex, .. } | Self::Groups { run: regex, .. }) = self;
        while let Some(found) = regex.search(&Input::new(&text[at..])) {
            let (start, mut end) = (at + found.start(), at + found.end());
            if start == end {
                // No pattern of the table matches nothing. One that did would not come to an end.
                break;
            }
            match self {
                Self::Words { blanks, .. } => {
                    if found.pattern().as_usize() == 1 {
                        end = start + blanks.take(&text[start..end], end == text.len());
                    }
                    cuts.extend([start, end]);
                }
                Self::Groups { only, .. } => only.cut(text, start, end, &mut cuts),
            }
            for cut in cuts.drain(..).filter(|cut| *cut > 0) {
                if begin < cut {
                    out.push(&text[begin..cut]);
                }
                begin = cut;
            }
            at = end;
        }
        if begin < text.len() {
            out.push(&text[begin..]);
        }
    }
}

impl Blanks {
    /// How many bytes of `run`, all white space, are one piece; `last` where the text ends with it.
    fn take(self, run: &str, last: bool) -> usize {
        let kept = match run.char_indices().next_back() {
            Some((at, _)) if !last && at > 0 => at,
            _ => run.len(),
        };
        if self != Self::Cascade {
            return kept;
        }
        // Enough to see which power of two it is.
        let ends = run[..kept].char_indices().map(|(i, c)| i + c.len_utf8()).take(512).collect::<Vec<_>>();
        let sizes = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
        sizes.iter().find_map(|size| ends.get(size - 1).copied()).unwrap_or(kept)
    }
}

impl Groups {
    /// Where to cut for the run of digits `start..end` of `text`.
    fn cut(&self, text: &str, start: usize, end: usize, cuts: &mut Vec<usize>) {
        if matches!(self, Self::AtWordEnd(word) if word.is_match(&text[end..])) {
            return;
        }
        let digits: Vec<usize> = text[start..end].char_indices().map(|(i, _)| start + i).collect();
        let first = digits.len() % 3;
        let groups = digits[first..].iter().step_by(3).copied();
        if matches!(self, Self::Whole) {
            cuts.extend(groups);
        } else {
            cuts.push(start);
            cuts.extend(groups);
            cuts.push(end);
        }
    }
}

fn compile(patterns: &[&str]) -> Result<Regex> {
    Regex::new_many(patterns)
        .map_err(|e| Error::format(format!("pattern {patterns:?} of the tokenizer: {e}")))
}
