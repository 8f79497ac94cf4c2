//! GPT-2's letters for bytes: a printable byte is itself, the others follow from U+0100 (Radford et al., "Language models are unsupervised multitask
//! learners", 2019).

use std::collections::HashMap;
use std::sync::LazyLock;

/// Returns true for bytes that represent themselves.
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

/// Returns the letter of a byte.
pub(super) fn letter(byte: u8) -> char {
    LETTERS[usize::from(byte)]
}

/// Returns the bytes of a token; for a token outside this alphabet, those of its text.
pub(super) fn bytes(token: &str) -> Vec<u8> {
    let known: Option<Vec<u8>> = token.chars().map(|c| BYTES.get(&c).copied()).collect();
    known.unwrap_or_else(|| token.as_bytes().to_vec())
}
