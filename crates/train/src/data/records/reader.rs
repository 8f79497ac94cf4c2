//! Divides a file into records: lines, elements of an array, values after each other, or rows of a table. Only one record is in memory.

use super::scan::ValueScan;
use super::table::{RowScan, fields, separator};
use crate::data::TextFile;
use crate::data::format::example_format;
use crate::data::text::TextReader;
use netcl_device::Result;
use serde_json::{Map, Value};

/// Maximum bytes of a record.
const MAX_RECORD_BYTES: usize = 64 << 20;
/// Bytes of text that were read before they are dropped from the buffer.
const DROPPED_BYTES: usize = 1 << 20;

/// A record of a file: an object, or why it cannot be read.
pub(super) struct FoundRecord {
    /// The line on which it begins, from 1.
    pub line: usize,
    pub content: Result<Map<String, Value>, String>,
}

/// Form of a file.
#[derive(Clone, Debug)]
enum Form {
    /// One value per line.
    Lines,
    /// Values after each other.
    Values,
    /// Elements of an array.
    Array,
    /// Rows of a table, with the separator and the columns.
    Table(char, Vec<String>),
    /// No record follows.
    Ended,
}

/// The records of a file, in order.
pub(super) struct RecordReader<'a> {
    file: &'a TextFile,
    reader: TextReader<'a>,
    text: String,
    /// Bytes of `text` before the next record.
    at: usize,
    line: usize,
    form: Option<Form>,
    /// Records of an object that only frames them.
    framed: std::vec::IntoIter<Value>,
}

impl<'a> RecordReader<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(file: &'a TextFile) -> Result<Self> {
        let framed = Vec::new().into_iter();
        Ok(Self { file, reader: file.read()?, text: String::new(), at: 0, line: 1, form: None, framed })
    }

    /// Returns the bytes of the file that were read.
    pub fn bytes(&self) -> u64 {
        self.reader.read
    }

    /// Returns the next record; `None` at the end of the file.
    ///
    /// # Errors
    /// `Io`; `Format` if the file changed.
    pub fn next(&mut self) -> Result<Option<FoundRecord>> {
        loop {
            if let Some(value) = self.framed.next() {
                return Ok(Some(FoundRecord { line: self.line, content: object(value) }));
            }
            self.skip_blank()?;
            let form = match self.form.take() {
                Some(form) => form,
                None => self.detect()?,
            };
            if self.at == self.text.len() {
                let cut = matches!(form, Form::Array);
                self.form = Some(Form::Ended);
                let content = Err("the array does not end: the file was cut short".into());
                return Ok(cut.then_some(FoundRecord { line: self.line, content }));
            }
            let (form, found) = match form {
                Form::Ended => return Ok(None),
                Form::Lines => (Form::Lines, Some(self.line_record()?)),
                Form::Values => (Form::Values, Some(self.value_record(false)?)),
                Form::Array => self.element()?,
                Form::Table(separator, columns) => {
                    let row = self.row_record(separator, &columns)?;
                    (Form::Table(separator, columns), Some(row))
                }
            };
            self.form = Some(form);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Reads more of the file; returns whether there was more.
    fn more(&mut self) -> Result<bool> {
        if self.reader.ended {
            return Ok(false);
        }
        if self.at > DROPPED_BYTES {
            self.text.drain(..self.at);
            self.at = 0;
        }
        self.reader.next(&mut self.text)?;
        Ok(true)
    }

    /// Skips white space and byte order marks, and counts lines.
    fn skip_blank(&mut self) -> Result<()> {
        loop {
            let rest = &self.text[self.at..];
            let kept = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            self.skip(rest.len() - kept.len());
            if self.at < self.text.len() || !self.more()? {
                return Ok(());
            }
        }
    }

    /// Skips bytes, and counts their lines.
    fn skip(&mut self, bytes: usize) {
        self.line += self.text[self.at..self.at + bytes].bytes().filter(|b| *b == b'\n').count();
        self.at += bytes;
    }

    /// Takes `bytes` of text.
    fn take(&mut self, bytes: usize) -> String {
        let text = self.text[self.at..self.at + bytes].to_owned();
        self.skip(bytes);
        text
    }

    fn detect(&mut self) -> Result<Form> {
        let ending = self.file.path().extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        let ending = ending.unwrap_or_default();
        if matches!(&*ending, "csv" | "tsv" | "tab" | "psv") {
            let header = self.row()?;
            let separator = separator(&ending, &header);
            let columns = fields(&header, separator).unwrap_or_default();
            self.skip_blank()?;
            return Ok(Form::Table(separator, columns));
        }
        if matches!(&*ending, "jsonl" | "ndjson" | "jsonlines") {
            return Ok(Form::Lines);
        }
        if self.text[self.at..].starts_with('[') {
            self.skip(1);
            self.skip_blank()?;
            return Ok(Form::Array);
        }
        // The first value of a file with one per line ends on its line.
        let mut scan = ValueScan::default();
        let end = loop {
            match scan.end(&self.text[self.at..]) {
                Some(end) => break Some(end),
                None if self.text.len() - self.at > MAX_RECORD_BYTES || !self.more()? => break None,
                None => {}
            }
        };
        let first = end.map(|end| &self.text[self.at..self.at + end]);
        Ok(if first.is_some_and(|first| !first.contains('\n')) { Form::Lines } else { Form::Values })
    }

    /// Returns the next line as a record.
    fn line_record(&mut self) -> Result<FoundRecord> {
        let line = self.line;
        let end = self.find(|text| text.find('\n'))?;
        Ok(match end {
            Err(long) => FoundRecord { line, content: Err(long) },
            Ok(end) => {
                let text = self.take(end);
                self.parsed(line, &text)
            }
        })
    }

    /// Returns the next value as a record; `element` if it is that of an array, which frames no others.
    fn value_record(&mut self, element: bool) -> Result<FoundRecord> {
        let line = self.line;
        let mut scan = ValueScan::default();
        Ok(match self.find(|text| scan.end(text))? {
            Err(long) => FoundRecord { line, content: Err(long) },
            Ok(end) => {
                // A bracket that closes nothing is skipped.
                let text = self.take(end.max(1));
                match element {
                    true => FoundRecord { line, content: parse(&text).and_then(object) },
                    false => self.parsed(line, &text),
                }
            }
        })
    }

    /// Returns the next element of an array, and the form of what follows.
    fn element(&mut self) -> Result<(Form, Option<FoundRecord>)> {
        match self.text[self.at..].chars().next() {
            Some(']') => {
                self.skip(1);
                self.skip_blank()?;
                let rest = self.at < self.text.len();
                let line = self.line;
                let content = Err("text after the end of the array".into());
                Ok((Form::Ended, rest.then_some(FoundRecord { line, content })))
            }
            Some(',') => {
                self.skip(1);
                Ok((Form::Array, None))
            }
            _ => Ok((Form::Array, Some(self.value_record(true)?))),
        }
    }

    /// Returns the next row of a table.
    fn row(&mut self) -> Result<String> {
        let mut scan = RowScan::default();
        let end = self.find(|text| scan.end(text))?;
        Ok(end.map_or(String::new(), |end| self.take(end)))
    }

    fn row_record(&mut self, separator: char, columns: &[String]) -> Result<FoundRecord> {
        let line = self.line;
        let row = self.row()?;
        let content = fields(&row, separator).and_then(|values| match values.len() == columns.len() {
            true => Ok(columns.iter().cloned().zip(values.into_iter().map(Value::from)).collect()),
            false => Err(format!(
                "the row has {} fields, but the table has {} columns",
                values.len(),
                columns.len()
            )),
        });
        Ok(FoundRecord { line, content })
    }

    /// Returns the end that `find` finds in the text after the last record, or the end of the file. A record that is too long is skipped, and its
    /// error returned.
    fn find(&mut self, mut find: impl FnMut(&str) -> Option<usize>) -> Result<Result<usize, String>> {
        loop {
            if let Some(end) = find(&self.text[self.at..]) {
                return Ok(Ok(end));
            }
            if self.text.len() - self.at > MAX_RECORD_BYTES {
                while self.more()? {
                    self.at = self.text.len();
                }
                self.at = self.text.len();
                return Ok(Err(format!("the record has more than {} MiB", MAX_RECORD_BYTES >> 20)));
            }
            if !self.more()? {
                return Ok(Ok(self.text.len() - self.at));
            }
        }
    }

    /// Parses a record; an object that only frames an array of records is replaced by them.
    fn parsed(&mut self, line: usize, text: &str) -> FoundRecord {
        let content = parse(text).and_then(object);
        let framed = |object: &Map<String, Value>| {
            let frame = example_format(object).is_none();
            let records = |value: &Value| {
                value.as_array()?.first()?.as_object().and_then(example_format)?;
                value.as_array().cloned()
            };
            object.values().find_map(records).filter(|_| frame)
        };
        match content.as_ref().ok().and_then(framed) {
            Some(records) => {
                self.framed = records.into_iter();
                let content = self.framed.next().ok_or_else(|| "an empty array".to_owned()).and_then(object);
                FoundRecord { line, content }
            }
            None => FoundRecord { line, content },
        }
    }
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| format!("not valid JSON: {e}"))
}

fn object(value: Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(map) => Ok(map),
        Value::Array(_) => Err("expected an object, found a list".into()),
        Value::String(_) => Err("expected an object, found a text".into()),
        other => Err(format!("expected an object, found {other}")),
    }
}
