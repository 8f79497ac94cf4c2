//! Cutting long text where no token can span: for less memory, and for all cores at once.

use serde_json::Value;

/// Long enough that the library's cost per call vanishes, short enough for many at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// True where the ids of the [chunks](of) are the ids of the whole: GPT-2's byte-level pre-tokenizer, nothing before it.
///
/// Its pattern looks at words, numbers, signs and white space in runs. A line break between two characters that are no
/// white space is a run of its own; a space between two such begins a run with what follows.
pub(super) fn cuttable(json: &Value) -> bool {
    let split = &json["pre_tokenizer"];
    let mixed = |content: &str| {
        content.contains(char::is_whitespace) && content.contains(|c: char| !c.is_whitespace())
    };
    let plain_added = json["added_tokens"].as_array().is_none_or(|added| {
        added.iter().all(|token| {
            token["lstrip"] != true
                && token["rstrip"] != true
                && token["content"].as_str().is_none_or(|c| !c.contains('\n') && !mixed(c))
        })
    });
    json["normalizer"].is_null()
        && split["type"] == "ByteLevel"
        && split["add_prefix_space"] == false
        && split["use_regex"] != false
        && plain_added
}

/// Where text may be cut so that the ids of the pieces are the ids of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cuts {
    /// Between any two characters.
    Anywhere,
    /// After a lone line break, and before a lone space.
    Words,
    /// Nowhere.
    Never,
}

impl Cuts {
    /// Where the first piece of `text` ends. `Err` says how much was looked through in vain, where more text may follow: `whole`
    /// is false. The next search begins there.
    pub fn first(self, text: &str, searched: usize, whole: bool) -> Result<usize, usize> {
        let found = match self {
            Self::Anywhere => (text.len() > CHUNK_BYTES).then(|| floor_boundary(text, CHUNK_BYTES)),
            Self::Words => cut(text, searched),
            Self::Never => None,
        };
        match found {
            Some(at) => Ok(at),
            None if whole => Ok(text.len()),
            None => Err(text.len().saturating_sub(8)),
        }
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// `text` in pieces of about 64 KiB, cut between words.
pub(super) fn of(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (chunk, tail) = rest.split_at(cut(rest, 0).unwrap_or(rest.len()));
        rest = tail;
        Some(chunk)
    })
}

/// The first cut from `searched` on that makes a piece long enough. Line breaks are looked for first; text that has none for
/// long is cut at a space, which begins a word.
fn cut(text: &str, searched: usize) -> Option<usize> {
    let lone = |at: usize| {
        let (before, after) = (&text[..at], &text[at + 1..]);
        before.chars().next_back().is_some_and(|c| !c.is_whitespace())
            && after.chars().next().is_some_and(|c| !c.is_whitespace())
    };
    // Both are one byte, so the byte's position is a character's.
    text.bytes().enumerate().skip(searched.max(CHUNK_BYTES)).find_map(|(at, byte)| match byte {
        b'\n' if lone(at) => Some(at + 1),
        b' ' if at > 2 * CHUNK_BYTES && lone(at) => Some(at),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_the_text_and_end_at_lone_line_breaks() {
        let text = "ein Wort äöü\n\n  und\nmehr \nnoch\n".repeat(20_000);
        let chunks: Vec<_> = of(&text).collect();
        assert!(chunks.len() > 5 && chunks.iter().all(|c| c.len() < CHUNK_BYTES + 100));
        assert_eq!(chunks.concat(), text);
        for chunk in &chunks[..chunks.len() - 1] {
            assert!(chunk.ends_with("und\n") || chunk.ends_with("noch\n"), "{:?}", &chunk[chunk.len() - 9..]);
        }
        assert_eq!(of("").count(), 0);
        assert_eq!(of(&" \n".repeat(100_000)).count(), 1);
        let line = "one two  three ".repeat(40_000);
        let words: Vec<_> = of(&line).collect();
        assert!(words.len() > 3 && words.concat() == line);
        assert!(
            words[1..].iter().all(|w| w.starts_with(" two") || w.starts_with(" one")),
            "{:?}",
            &words[1][..9]
        );
    }
}
