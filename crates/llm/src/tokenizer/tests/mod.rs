mod cases;
mod memory;
mod peers;
mod read;
mod rules;

use netcl_test_data::test_data;
use std::path::PathBuf;

/// Returns the path of test data.
fn shared(path: &str) -> PathBuf {
    test_data!().join(path)
}

/// Strings that cover all cases of splitting.
const PARTS: [&str; 64] = [
    "a",
    "the",
    "Hello",
    " world",
    "'s",
    "'S",
    "'ll",
    "'RE",
    "'ſ",
    "don't",
    "1",
    "12",
    "345",
    "6789012",
    "½",
    "٣",
    "Ⅷ",
    " ",
    "  ",
    "     ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\u{85}",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{200b}",
    "\u{feff}",
    ".",
    ",",
    "!?",
    "…",
    "--",
    "/",
    "//",
    "_",
    "$",
    "+=",
    "(",
    "])",
    "\\",
    "\"",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<0x41>",
    "é",
    "e\u{301}",
    "ÄÖ",
    "ß",
    "日本語",
    "ひらカナ",
    "한국어",
    "мир",
    "العربية",
    "हिन्दी",
    "ไทย",
    "😀",
    "👩‍👩‍👧",
    "ǅ",
    "K",
];

/// Numbers for tests.
struct Random(u64, u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        netcl_tensor::random::draw(self.0, 0, self.1)[0] as usize % n
    }

    /// Returns texts of all cases of splitting, and of arbitrary characters.
    fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.below(24) {
            match self.below(8) {
                0 => text.extend(char::from_u32(self.below(0x11_0000) as u32)),
                1 => text.extend(char::from_u32(self.below(0x3000) as u32)),
                2 => text.push(char::from(self.below(128) as u8)),
                _ => text.push_str(PARTS[self.below(PARTS.len())]),
            }
        }
        text
    }
}
