//! Converts bytes that arrive in parts to text without splitting a character.

/// Holds the start of a character until its last byte arrives.
#[derive(Clone, Debug, Default)]
pub struct Utf8Buffer {
    held: Vec<u8>,
}

impl Utf8Buffer {
    /// Returns the text that `bytes` complete. Invalid UTF-8 becomes U+FFFD, the same as in [`String::from_utf8_lossy`].
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut at = 0;
        while at < self.held.len() {
            match std::str::from_utf8(&self.held[at..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    at = self.held.len();
                }
                Err(error) => {
                    let end = at + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.held[at..end]));
                    at = end;
                    // Without a length, the bytes may be an incomplete character.
                    let Some(len) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    at += len;
                }
            }
        }
        self.held.drain(..at);
        text
    }

    /// Returns the rest at the end: U+FFFD for an incomplete character.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole_wherever_they_are_cut() {
        let texts: [&[u8]; 5] = [
            "a😀é\u{fffd}日本".as_bytes(),
            b"\xf0\x9f\x98",
            b"a\xff\xc3(\xe2\x82b\xf0\x9f\x98\x80",
            b"\xf0\x9f\xf0\x9f\x98\x80",
            b"",
        ];
        for bytes in texts {
            for size in 1..=bytes.len().max(1) {
                let mut buffer = Utf8Buffer::default();
                let mut text: String = bytes.chunks(size).map(|part| buffer.push(part)).collect();
                text += &buffer.finish();
                assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?} by {size}");
            }
        }
    }

    #[test]
    fn a_character_comes_with_its_last_byte() {
        let mut buffer = Utf8Buffer::default();
        let parts: Vec<_> = "é😀".bytes().map(|b| buffer.push(&[b])).collect();
        assert_eq!(parts, ["", "é", "", "", "", "😀"]);
    }
}
