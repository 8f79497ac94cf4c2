//! Cutting long text where no token can span: for less memory, and for all cores at once.

use serde_json::Value;

/// Long enough that the library's cost per call vanishes, short enough for many at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// True where the ids of the [chunks](of) are the ids of the whole: GPT-2's byte-level pre-tokenizer, nothing before it.
///
/// Its pattern looks at words, numbers, signs and white space in runs. A line break between two characters that are no
/// white space is a run of its own, with or without what follows.
pub(super) fn cuttable(json: &Value) -> bool {
    let split = &json["pre_tokenizer"];
    let plain_added = json["added_tokens"].as_array().is_none_or(|added| {
        added.iter().all(|token| {
            token["lstrip"] != true
                && token["rstrip"] != true
                && token["content"].as_str().is_none_or(|c| !c.contains('\n'))
        })
    });
    json["normalizer"].is_null()
        && split["type"] == "ByteLevel"
        && split["add_prefix_space"] == false
        && split["use_regex"] != false
        && plain_added
}

/// `text` in pieces of about 64 KiB, each but the last ending with a lone line break.
pub(super) fn of(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (chunk, tail) = rest.split_at(cut(rest));
        rest = tail;
        Some(chunk)
    })
}

fn cut(text: &str) -> usize {
    let lone = |&at: &usize| {
        let (before, after) = (&text[..at], &text[at + 1..]);
        before.chars().next_back().is_some_and(|c| !c.is_whitespace())
            && after.chars().next().is_some_and(|c| !c.is_whitespace())
    };
    // A line break is one byte, so the byte's position is a character's.
    let mut breaks = (CHUNK_BYTES..text.len()).filter(|&at| text.as_bytes()[at] == b'\n');
    breaks.find(lone).map_or(text.len(), |at| at + 1)
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
    }
}
