//! SentencePiece BPE for `llama` vocabularies. The pair whose token has the best score is merged first, and text without a token becomes bytes (Kudo
//! and Richardson, "SentencePiece", EMNLP 2018).

use super::vocab::{TokenKind, Vocab, wrong};
use netcl_tensor::Result;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// Tokens by text.
#[derive(Clone, Debug)]
pub(super) struct Spm {
    ids: HashMap<Box<str>, (u32, f32)>,
    /// The id of each byte.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    longest: usize,
    /// Whether a space is added before a text, also after a control token.
    pub space_before: bool,
}

/// A character or a merged piece; length 0 if it was merged into the previous one.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    before: usize,
    after: usize,
}

/// No symbol.
const NONE: usize = usize::MAX;

/// Two adjacent symbols whose concatenation is a token.
#[derive(Clone, Copy, PartialEq)]
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both, used to detect an outdated pair.
    len: usize,
}

impl Eq for Pair {}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pair {
    /// Orders by score, then by position (first wins).
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(self.len.cmp(&other.len))
    }
}

impl Spm {
    /// # Errors
    /// `Format` without scores, or if neither byte tokens nor an unknown token exist.
    pub fn new(vocab: &Vocab) -> Result<Self> {
        if vocab.scores.is_empty() {
            return Err(wrong("scores", "absent; a llama vocabulary needs them"));
        }
        let text = |kind| matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
        let by_text = vocab.by_text(text)?;
        let ids: HashMap<Box<str>, _> =
            by_text.into_iter().map(|(text, id)| (text.into(), (id, vocab.scores[id as usize]))).collect();
        let bytes = byte_ids(vocab);
        if vocab.unknown.is_none() && bytes.contains(&None) {
            return Err(wrong("tokens", "some bytes do not have a token, and the unknown token is missing"));
        }
        Ok(Self {
            longest: ids.keys().map(|text| text.len()).max().unwrap_or(0),
            ids,
            bytes,
            unknown: vocab.unknown,
            space_before: vocab.add_space_prefix.unwrap_or(true),
        })
    }

    /// Appends the ids of `text`, which is at the start or follows a control token.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = match self.space_before && !text.is_empty() {
            true => format!(" {text}").replace(' ', "▁"),
            false => text.replace(' ', "▁"),
        };
        let symbols = self.joined(&text);
        let mut at = if symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = symbols[at];
            self.push(&text[symbol.start..symbol.start + symbol.len], ids);
            at = symbol.after;
        }
    }

    fn joined(&self, text: &str) -> Vec<Symbol> {
        let mut symbols: Vec<Symbol> = (text.char_indices().enumerate())
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                before: i.wrapping_sub(1),
                after: i + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.after = NONE;
        }
        let mut open = BinaryHeap::new();
        for right in 1..symbols.len() {
            self.offer(text, &symbols, right - 1, right, &mut open);
        }
        while let Some(pair) = open.pop() {
            let (left, right) = (symbols[pair.left], symbols[pair.right]);
            if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
                continue;
            }
            symbols[pair.left].len = pair.len;
            symbols[pair.left].after = right.after;
            symbols[pair.right].len = 0;
            if right.after != NONE {
                symbols[right.after].before = pair.left;
                self.offer(text, &symbols, pair.left, right.after, &mut open);
            }
            if left.before != NONE {
                self.offer(text, &symbols, left.before, pair.left, &mut open);
            }
        }
        symbols
    }

    fn offer(&self, text: &str, symbols: &[Symbol], left: usize, right: usize, open: &mut BinaryHeap<Pair>) {
        let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
        if len > self.longest {
            return;
        }
        if let Some((_, score)) = self.ids.get(&text[start..start + len]) {
            open.push(Pair { score: *score, left, right, len });
        }
    }

    /// Appends the token, or the bytes, or the unknown token.
    fn push(&self, text: &str, ids: &mut Vec<u32>) {
        if let Some((id, _)) = self.ids.get(text) {
            ids.push(*id);
            return;
        }
        let bytes: Option<Vec<u32>> = text.bytes().map(|b| self.bytes[usize::from(b)]).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unknown),
        }
    }
}

/// Returns the token of each byte, `<0x41>`, if it exists.
fn byte_ids(vocab: &Vocab) -> Vec<Option<u32>> {
    let mut bytes = vec![None; 256];
    for (id, token) in vocab.tokens.iter().enumerate() {
        if vocab.kind(id) == TokenKind::Byte
            && let Some(byte) = byte_of(token)
        {
            bytes[usize::from(byte)] = Some(id as u32);
        }
    }
    bytes
}

/// Returns the byte of a token such as `<0x41>`.
pub(super) fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}
