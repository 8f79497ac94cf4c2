//! GPT-2's letters for bytes: a byte that can be printed is itself, the others follow from U+0100 on (Radford et al., "Language
//! models are unsupervised multitask learners", 2019).

use std::collections::HashMap;
use std::sync::LazyLock;

/// Bytes that stand for themselves.
fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

static LETTERS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100u32;
    std::array::from_fn(|i| {
        let byte = i as u8;
        if printable(byte) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
});

static BYTES: LazyLock<HashMap<char, u8>> =
    LazyLock::new(|| LETTERS.iter().zip(0..=255).map(|(letter, byte)| (*letter, byte)).collect());

/// The letter of a byte.
pub(super) fn letter(byte: u8) -> char {
    LETTERS[usize::from(byte)]
}

/// The bytes of a token; of one that is not written in these letters, those of its text.
pub(super) fn bytes(token: &str) -> Vec<u8> {
    let known: Option<Vec<u8>> = token.chars().map(|c| BYTES.get(&c).copied()).collect();
    known.unwrap_or_else(|| token.as_bytes().to_vec())
}
