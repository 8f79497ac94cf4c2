//! Character encodings of text files: UTF-8, the one of a byte order mark, or the one that the user names.

use encoding_rs::{DecoderResult, Encoding, ISO_2022_JP, UTF_8};
use netcl_device::{Error, Result};

/// A named encoding as the WHATWG Encoding Standard defines it (there `latin1` is windows-1252).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextEncoding(pub(super) &'static Encoding);

impl TextEncoding {
    /// Returns the encoding with this name. `Format` with a list of common ones if it is unknown.
    pub fn of(name: &str) -> Result<Self> {
        let plain = name.trim().to_ascii_lowercase().replace('_', "-");
        let plain = match plain.as_str() {
            "latin-1" => "latin1",
            "utf16" => "utf-16",
            "utf16le" => "utf-16le",
            "utf16be" => "utf-16be",
            other => other,
        };
        let found = Encoding::for_label(plain.as_bytes()).filter(|e| *e != encoding_rs::REPLACEMENT);
        found.map(Self).ok_or_else(|| {
            Error::format(format!(
                "--encoding {name} is unknown; common names are utf-8, utf-16le, utf-16be, latin1, windows-1252, cp1251, koi8-r, iso-8859-2, \
                 shift_jis, euc-jp, gb18030, gbk, big5, euc-kr (all names: encoding.spec.whatwg.org)"
            ))
        })
    }

    /// Returns its name in that standard.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Returns whether a file that is valid UTF-8 is read as UTF-8 in spite of this encoding. ASCII is the same in both, and text with bytes above
    /// 127 in another encoding is hardly ever valid UTF-8. ISO-2022-JP is an exception, because it uses ASCII bytes only.
    pub(super) fn yields_to_utf8(self) -> bool {
        self.0 != ISO_2022_JP
    }

    /// Returns the encoding of the byte order mark at the beginning of a file, and the length of the mark.
    pub(super) fn of_mark(head: &[u8]) -> Option<(Self, usize)> {
        Encoding::for_bom(head).map(|(encoding, bytes)| (Self(encoding), bytes))
    }
}

pub(super) const UTF8: TextEncoding = TextEncoding(UTF_8);

/// Incremental decoder of bytes into text.
pub(super) struct Decoder {
    decoder: encoding_rs::Decoder,
    /// Bytes decoded so far.
    position: u64,
}

/// Invalid bytes and their position.
pub(super) struct Malformed {
    pub at: u64,
    pub byte: Option<u8>,
}

impl Decoder {
    pub fn new(encoding: TextEncoding) -> Self {
        Self { decoder: encoding.0.new_decoder_without_bom_handling(), position: 0 }
    }

    /// Appends the text of `bytes` to `text`; `last` marks the last block.
    pub fn decode(&mut self, bytes: &[u8], last: bool, text: &mut String) -> Result<(), Malformed> {
        let mut rest = bytes;
        loop {
            let room = self.decoder.max_utf8_buffer_length_without_replacement(rest.len());
            text.reserve(room.unwrap_or(rest.len() * 3 + 16));
            let (result, read) = self.decoder.decode_to_string_without_replacement(rest, text, last);
            let before = self.position;
            self.position += read as u64;
            match result {
                DecoderResult::InputEmpty => return Ok(()),
                DecoderResult::OutputFull => rest = &rest[read..],
                DecoderResult::Malformed(length, after) => {
                    let at = self.position.saturating_sub(u64::from(length) + u64::from(after));
                    let byte =
                        at.checked_sub(before).and_then(|i| rest.get(usize::try_from(i).ok()?)).copied();
                    return Err(Malformed { at, byte });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names_are_known_and_others_are_refused() {
        for (name, expected) in [
            ("latin1", "windows-1252"),
            ("Latin-1", "windows-1252"),
            ("ISO-8859-1", "windows-1252"),
            ("CP1251", "windows-1251"),
            ("utf16le", "UTF-16LE"),
            ("UTF-8", "UTF-8"),
            ("shift_jis", "Shift_JIS"),
            ("koi8-r", "KOI8-R"),
        ] {
            let label = TextEncoding::of(name).map(TextEncoding::name);
            assert_eq!(label.unwrap(), expected, "{name}");
        }
        let message = TextEncoding::of("ebcdic").unwrap_err().to_string();
        assert!(message.contains("--encoding ebcdic is unknown") && message.contains("cp1251"), "{message}");
    }

    #[test]
    fn blocks_may_end_anywhere() {
        let whole = "Größe, Привет, 日本語 🦀\n";
        let mut utf16 = Vec::new();
        whole.encode_utf16().for_each(|unit| utf16.extend(unit.to_le_bytes()));
        for (encoding, bytes) in
            [(UTF8, whole.as_bytes().to_vec()), (TextEncoding(encoding_rs::UTF_16LE), utf16)]
        {
            for size in 1..9 {
                let (mut decoder, mut text) = (Decoder::new(encoding), String::new());
                for block in bytes.chunks(size) {
                    assert!(decoder.decode(block, false, &mut text).is_ok());
                }
                assert!(decoder.decode(&[], true, &mut text).is_ok());
                assert_eq!(text, whole);
            }
        }
    }

    #[test]
    fn the_first_wrong_byte_is_found() {
        for (bytes, at, byte) in
            [(&b"ab\x89PNG"[..], 2, Some(0x89)), (b"caf\xc3", 3, None), (b"\xe4x", 0, Some(0xe4))]
        {
            let wrong = Decoder::new(UTF8).decode(bytes, true, &mut String::new()).unwrap_err();
            assert_eq!(wrong.at, at);
            assert!(byte.is_none() || wrong.byte == byte);
        }
    }
}
