//! Rows of tables: fields in quotes may hold separators, quotes and line breaks (RFC 4180).

/// State at a position of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RowScan {
    /// Bytes looked at.
    at: usize,
    quoted: bool,
}

impl RowScan {
    /// Returns the end of the row at the beginning of `text`, before its line break; `None` if the text ends within the row.
    pub fn end(&mut self, text: &str) -> Option<usize> {
        for (i, byte) in text.bytes().enumerate().skip(self.at) {
            match byte {
                b'"' => self.quoted = !self.quoted,
                b'\n' if !self.quoted => return Some(i),
                _ => {}
            }
        }
        self.at = text.len();
        None
    }
}

/// Returns the separator of a table by the ending of its name and its first line.
pub(super) fn separator(ending: &str, first: &str) -> char {
    match ending {
        "csv" if !first.contains(',') && first.contains(';') => ';',
        "csv" => ',',
        "psv" => '|',
        _ => '\t',
    }
}

/// Returns the fields of a row; an error for quotes that do not end, or text after them.
pub(super) fn fields(row: &str, separator: char) -> Result<Vec<String>, String> {
    let (mut all, mut rest) = (Vec::new(), row.strip_suffix('\r').unwrap_or(row));
    loop {
        let field = match rest.strip_prefix('"') {
            None => {
                let end = rest.find(separator).unwrap_or(rest.len());
                let field = rest[..end].to_owned();
                rest = &rest[end..];
                field
            }
            Some(quoted) => {
                let (mut field, mut left) = (String::new(), quoted);
                loop {
                    let end = left.find('"').ok_or("a field in quotes does not end")?;
                    field += &left[..end];
                    left = &left[end + 1..];
                    let Some(more) = left.strip_prefix('"') else { break };
                    field.push('"');
                    left = more;
                }
                rest = left;
                field
            }
        };
        all.push(field);
        match rest.strip_prefix(separator) {
            Some(more) => rest = more,
            None if rest.is_empty() => return Ok(all),
            None => return Err("text after a field in quotes".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_everything() {
        let row = "a,\"b, \"\"c\"\"\nd\",,e\r";
        assert_eq!(fields(row, ',').unwrap(), ["a", "b, \"c\"\nd", "", "e"]);
        assert_eq!(fields("", ',').unwrap(), [""]);
        assert_eq!(fields("x\ty", '\t').unwrap(), ["x", "y"]);
        assert!(fields("\"a", ',').is_err() && fields("\"a\"b", ',').is_err());
        let text = "a,\"b\nc\"\nnext";
        for cut in 0..text.len() {
            let mut scan = RowScan::default();
            let early = scan.end(&text[..cut]);
            let end = early.or_else(|| scan.end(text));
            assert_eq!(end, Some(7), "{cut}");
        }
        assert_eq!(
            (separator("csv", "a;b"), separator("csv", "a;b,c"), separator("tsv", "")),
            (';', ',', '\t')
        );
    }
}
