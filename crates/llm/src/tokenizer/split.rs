//! Splits a text into words before BPE with the published patterns, in linear time.
//!
//! The patterns are regular except for the look-ahead of `\s+(?!\S)` and of digits that are grouped from the right. Those parts are computed here;
//! everything else runs in an automaton without backtracking.

use netcl_tensor::{Error, Result};
use regex_automata::{Input, meta::Regex};

/// White space up to the last one before a word, then the rest: the end of almost every pattern.
const BLANKS: &str = r"|\s+(?!\S)|\s+";
/// The same, where a single remaining space becomes a piece because no pattern matches it.
const BLANKS_ONLY: &str = r"|\s+(?!\S)";
/// White space in runs of powers of two.
pub(super) const CASCADE: &str = r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Digits in groups of three from the right, if a word ends with them.
pub(super) const THOUSANDS_OF_A_WORD: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
/// Positions before groups of three digits, up to the last digit.
pub(super) const BEFORE_THOUSANDS: &str = r"(?=(\d{3})+(?!\d))";
/// Numbers in groups of three from the right.
pub(super) const THOUSANDS: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))";

/// Splits a text with patterns in order, each within the pieces of the previous one. Unmatched text is also a piece.
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

/// Treatment of white space that no pattern matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blanks {
    /// The pattern handles it.
    Pattern,
    /// The last space belongs to the following word.
    UpToWord,
    /// The rule of [`CASCADE`].
    Cascade,
}

/// Positions at which runs of digits are cut.
#[derive(Clone, Debug)]
enum Groups {
    /// On both sides of every group.
    All,
    /// Same as `All` if the text after the run, which this regex checks, is not part of a word.
    AtWordEnd(Regex),
    /// Only before whole groups.
    Whole,
}

impl Splitter {
    /// # Errors
    /// `Format` for a pattern that cannot be compiled.
    pub fn new(patterns: &[&str]) -> Result<Self> {
        patterns.iter().map(|pattern| Stage::new(pattern)).collect::<Result<_>>().map(Self)
    }

    /// Returns the pieces of `text` in order; concatenated they give the text.
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
                // No pattern of the table matches an empty string. Such a pattern would loop forever.
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
    /// Returns the bytes of `run`, all white space, that form one piece; `last` if the text ends with it.
    fn take(self, run: &str, last: bool) -> usize {
        let kept = match run.char_indices().next_back() {
            Some((at, _)) if !last && at > 0 => at,
            _ => run.len(),
        };
        if self != Self::Cascade {
            return kept;
        }
        // Enough to determine the power of two.
        let ends = run[..kept].char_indices().map(|(i, c)| i + c.len_utf8()).take(512).collect::<Vec<_>>();
        let sizes = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
        sizes.iter().find_map(|size| ends.get(size - 1).copied()).unwrap_or(kept)
    }
}

impl Groups {
    /// Cuts the run of digits `start..end` of `text`.
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
