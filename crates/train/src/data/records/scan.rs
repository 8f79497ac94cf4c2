//! The ends of JSON values in a text that arrives in blocks.

/// State within a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueScan {
    /// Bytes looked at.
    at: usize,
    /// Open brackets.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueScan {
    /// Returns the end of the JSON value at the beginning of `text`, of which more may follow; `None` if the text ends within it. The value is not
    /// checked. A number or a name ends before a comma, a bracket or white space.
    pub fn end(&mut self, text: &str) -> Option<usize> {
        for (i, byte) in text.bytes().enumerate().skip(self.at) {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return Some(i + 1);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' if self.depth == 0 => return Some(i),
                b']' | b'}' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(i + 1);
                    }
                }
                b',' | b' ' | b'\n' | b'\r' | b'\t' if self.depth == 0 => return Some(i),
                _ => {}
            }
        }
        self.at = text.len();
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_end_where_they_do_in_json() {
        for (text, end) in [
            (r#"{"a": "}", "b": [1, {"c": "\"]"}]}, {"#, 34),
            ("12, 3", 2),
            ("true]", 4),
            (r#""a\"b" x"#, 6),
            ("[[], []]\n[", 8),
        ] {
            for cut in 0..text.len() {
                let mut scan = ValueScan::default();
                let early = scan.end(&text[..cut]);
                assert_eq!(early.or_else(|| scan.end(text)), Some(end), "{text} {cut}");
            }
        }
        assert_eq!(ValueScan::default().end(r#"{"a": 1"#), None);
    }
}
