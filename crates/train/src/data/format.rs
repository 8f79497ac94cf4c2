//! Formats of files that are not plain text: recognized by their first bytes, or by the records in their text.

use serde_json::{Map, Value};
use std::path::Path;

/// Field names of training data, the format that they imply, and how it is read if it is. The first row whose fields are all present applies.
const FORMAT_FIELDS: [(&[&str], &str, Option<ExampleFormat>); 18] = [
    (&["chosen", "rejected"], "preference pairs", Some(ExampleFormat::Pair)),
    (&["prompt", "completion", "label"], "completions with labels (KTO)", Some(ExampleFormat::Labeled)),
    (&["messages"], "chat messages", Some(ExampleFormat::Chat)),
    (&["conversations"], "ShareGPT conversations", Some(ExampleFormat::Chat)),
    (&["conversation"], "conversations", None),
    (&["instruction", "output"], "Alpaca instructions", Some(ExampleFormat::Alpaca)),
    (&["instruction", "response"], "instructions with responses", None),
    (&["prompt", "completion"], "prompts with completions", Some(ExampleFormat::Completion)),
    (&["prompt", "response"], "prompts with responses", None),
    (&["question", "answer"], "questions with answers", None),
    (&["question", "answers"], "questions with answers", None),
    (&["input", "output"], "inputs with outputs", None),
    (&["source", "target"], "pairs of texts", None),
    (&["translation"], "translations", None),
    (&["text"], "records with a `text`", Some(ExampleFormat::Text)),
    (&["content"], "records with a `content`", None),
    (&["input_ids"], "records with token ids", None),
    (&["prompt"], "prompts without completions", None),
];
/// Fields named in a message.
const MAX_NAMED_FIELDS: usize = 6;

/// Advice for data in an unsupported format.
pub(super) const ADVICE: &str = "Write the text to .txt files, or its tokens to .bin or .npy shards";

/// Formats of records that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExampleFormat {
    /// `messages`, or `conversations`.
    Chat,
    /// `instruction`, `input` and `output`.
    Alpaca,
    /// `prompt` and `completion`.
    Completion,
    /// `text`.
    Text,
    /// `chosen` and `rejected`.
    Pair,
    /// `prompt`, `completion` and `label`.
    Labeled,
}

/// Text that consists of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Records {
    /// The format, for messages.
    pub what: String,
    /// Whether the fields are those of training data.
    pub known: bool,
    /// Whether netcl reads the fields.
    pub readable: bool,
}

/// Returns the format of a binary file by its first bytes, or by its name if the bytes are ambiguous; `None` if it may be text or ids.
pub(super) fn binary(head: &[u8], path: &Path) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 22] = [
        (b"PAR1", "a Parquet table"),
        (b"ARROW1", "an Arrow table"),
        (b"FEA1", "a Feather table"),
        (b"ORC", "an ORC table"),
        (b"Obj\x01", "an Avro file"),
        (b"\x93NUMPY", "a NumPy array"),
        (b"\x1f\x8b", "compressed with gzip"),
        (b"\x28\xb5\x2f\xfd", "compressed with Zstandard"),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"\x04\x22\x4d\x18", "compressed with LZ4"),
        (b"BZh", "compressed with bzip2"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!\x1a", "a RAR archive"),
        (b"%PDF", "a PDF document"),
        (b"%!PS", "a PostScript document"),
        (b"{\\rtf", "an RTF document"),
        (b"\xd0\xcf\x11\xe0", "a document of an old office program"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"GGUF", "a GGUF model"),
        (b"LITPKDS", "a packed dataset of an early litgpt version"),
        (b"MMIDIDX\0", "the index of a Megatron dataset"),
    ];
    let ends = |all: &[&str]| {
        path.extension().is_some_and(|e| all.iter().any(|known| e.eq_ignore_ascii_case(known)))
    };
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Some(if ends(&["npz"]) {
            "a NumPy archive"
        } else if ends(&["docx", "odt", "epub", "xlsx", "ods", "pptx"]) {
            "a document in a zip archive"
        } else if ends(&["pt", "pth", "bin", "ckpt"]) {
            "a PyTorch file"
        } else {
            "a zip archive"
        });
    }
    // `BZh` and `ORC` are also words: the bytes after them tell text from data.
    let certain = |magic: &[u8]| match magic {
        b"BZh" => head.get(4..10) == Some(b"1AY&SY"),
        b"ORC" => head.contains(&0),
        _ => true,
    };
    if let Some((_, what)) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic) && certain(magic)) {
        return Some(what);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Some("a tar archive");
    }
    let is_binary = head.contains(&0);
    match () {
        () if is_binary && head.starts_with(&[0xff; 4]) && ends(&["arrow", "feather"]) => {
            Some("an Arrow stream, as in Hugging Face datasets")
        }
        () if is_binary && ends(&["mds"]) => Some("a shard of MosaicML streaming"),
        () if is_binary && ends(&["tfrecord", "tfrecords"]) => Some("a TFRecord file"),
        () if is_binary && ends(&["safetensors"]) => Some("a safetensors file"),
        () if head.first() == Some(&0x80) && ends(&["pkl", "pickle", "pt", "pth"]) => Some("a Python pickle"),
        () => None,
    }
}

/// Returns the records that a text consists of, judged by its beginning; `None` for plain text.
pub(super) fn records(text: &str, path: &Path) -> Option<Records> {
    let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    match (text.chars().next()?, ending.as_str()) {
        (_, "csv" | "tsv" | "tab" | "psv") => Some(table(text, &ending)),
        ('{', _) => objects(text, lines_are_records(&ending)),
        ('[', "ipynb") => None,
        ('[', _) => array(text, lines_are_records(&ending)),
        (_, ending) if lines_are_records(ending) => Some(Records::broken("JSON Lines")),
        _ => None,
    }
}

fn lines_are_records(ending: &str) -> bool {
    matches!(ending, "jsonl" | "ndjson" | "jsonlines")
}

/// Returns the values at the beginning of a text that may be cut off, and whether more text follows them.
fn values(text: &str, most: usize) -> (Vec<Value>, bool) {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let found: Vec<_> = stream.by_ref().take(most).map_while(Result::ok).collect();
    let rest = text.get(stream.byte_offset()..).unwrap_or_default();
    (found, !rest.trim().is_empty())
}

/// Recognizes JSON Lines, or one object.
fn objects(text: &str, by_name: bool) -> Option<Records> {
    let (found, more) = values(text, 2);
    let Some(Value::Object(first)) = found.first() else {
        // The first line is too long to be read completely, or not JSON.
        return by_name.then(|| Records::broken("JSON Lines"));
    };
    let several = found.get(1).is_some_and(Value::is_object);
    // Another object starts here and is cut off.
    let cut = !several && more && found.len() == 1 && next_object(text);
    let known = known_of(first);
    if several || cut || by_name {
        let records = Records::of("JSON Lines", first);
        return Some(Records { known: records.known || by_name, ..records });
    }
    if more {
        return None;
    }
    // One object is recognized by its own fields, or as a frame around an array of records.
    let framed = || {
        let records = first.values().find_map(|value| {
            value.as_array()?.first()?.as_object().filter(|record| known_of(record).is_some())
        });
        records.map(|record| Records::of("JSON", record))
    };
    let own = known
        .filter(|_| ["messages", "conversations", "conversation"].iter().any(|k| first.contains_key(*k)));
    own.map(|_| Records::of("JSON", first)).or_else(framed)
}

fn next_object(text: &str) -> bool {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let _ = stream.next();
    text.get(stream.byte_offset()..).is_some_and(|rest| rest.trim_start().starts_with("{\""))
}

/// Recognizes an array of records, or lines of arrays.
fn array(text: &str, by_name: bool) -> Option<Records> {
    if by_name {
        return Some(Records { what: "JSON Lines of arrays".into(), known: true, readable: false });
    }
    let inner = text.strip_prefix('[')?.trim_start();
    match values(inner, 1).0.first() {
        Some(Value::Object(first)) => Some(Records::of("a JSON array", first)),
        Some(Value::Array(first)) => {
            let what = first.first()?.as_object().and_then(|message| {
                (message.contains_key("role") || message.contains_key("from")).then(|| "chats".to_owned())
            })?;
            Some(Records { what: format!("a JSON array: {what}"), known: true, readable: false })
        }
        Some(Value::String(_)) => {
            Some(Records { what: "a JSON array of strings".into(), known: false, readable: false })
        }
        _ => None,
    }
}

/// Returns the format that the fields of a record imply, and how it is read.
fn row_of(record: &Map<String, Value>) -> Option<(&'static str, Option<ExampleFormat>)> {
    let has = |field: &&str| record.keys().any(|key| key.eq_ignore_ascii_case(field));
    FORMAT_FIELDS.iter().find(|(fields, ..)| fields.iter().all(has)).map(|(_, what, read)| (*what, *read))
}

fn known_of(record: &Map<String, Value>) -> Option<&'static str> {
    row_of(record).map(|(what, _)| what)
}

/// Returns how a record with these fields is read; `None` if it is not.
pub(super) fn example_format(record: &Map<String, Value>) -> Option<ExampleFormat> {
    row_of(record)?.1
}

impl Records {
    /// Describes records by the first one.
    fn of(form: &str, first: &Map<String, Value>) -> Self {
        let known = known_of(first);
        let fields = known.map_or_else(|| fields_of(first), str::to_owned);
        let readable = example_format(first).is_some();
        Self { what: format!("{form}: {fields}"), known: known.is_some(), readable }
    }

    /// Describes records of which the first one cannot be read.
    fn broken(form: &str) -> Self {
        Self { what: form.into(), known: true, readable: true }
    }
}

fn fields_of(record: &Map<String, Value>) -> String {
    in_words(record.keys().map(String::as_str))
}

fn in_words<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = fields.collect();
    let more = if all.len() > MAX_NAMED_FIELDS { ", …" } else { "" };
    match all.as_slice() {
        [] => "records without fields".to_owned(),
        [one] => format!("records with the field {one}"),
        _ => format!("records with the fields {}{more}", all[..all.len().min(MAX_NAMED_FIELDS)].join(", ")),
    }
}

/// Describes a table by its file name; its first line names the columns.
fn table(text: &str, ending: &str) -> Records {
    let first = text.lines().next().unwrap_or_default();
    let separator = match ending {
        "csv" if first.contains(',') => ',',
        "csv" if first.contains(';') => ';',
        "csv" => ',',
        "psv" => '|',
        _ => '\t',
    };
    let columns: Vec<&str> = first.split(separator).map(|c| c.trim().trim_matches('"')).collect();
    let record: Map<String, Value> = columns.iter().map(|c| ((*c).to_owned(), Value::Null)).collect();
    let known = known_of(&record);
    let shown = columns[..columns.len().min(MAX_NAMED_FIELDS)].join(", ");
    let shown: String = shown.chars().take(80).collect();
    Records {
        what: format!("a table ({}) with the columns {shown}", ending.to_ascii_uppercase()),
        known: known.is_some(),
        readable: example_format(&record).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, text: &str) -> Option<(String, bool)> {
        records(text, Path::new(name)).map(|records| (records.what, records.known))
    }

    #[test]
    fn records_are_told_from_text_that_looks_like_them() {
        let chat = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
        let long = format!("{{\"text\": \"{}\"}}\n{{\"text\": \"cut o", "x".repeat(1000));
        for (name, text, part) in [
            ("a.jsonl", format!("{chat}\n{chat}\n"), "chat messages"),
            ("a.txt", format!("\n{chat}\n{chat}"), "JSON Lines: chat messages"),
            ("a.txt", long, "JSON Lines: records with a `text`"),
            ("a.json", chat.to_owned(), "JSON: chat messages"),
            ("a.jsonl", "{\"x\": 1}".into(), "records with the field x"),
            ("a.ndjson", "[1, 2]\n[3, 4]\n".into(), "JSON Lines of arrays"),
            ("a.jsonl", "\"one\"\n\"two\"\n".into(), "JSON Lines"),
            ("a.jsonl", format!("{{\"text\": \"{}", "x".repeat(1000)), "JSON Lines"),
            (
                "alpaca.json",
                "[\n  {\n    \"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"\n  }, {\"inst".into(),
                "a JSON array: Alpaca instructions",
            ),
            (
                "s.json",
                "[{\"id\": 1, \"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}]".into(),
                "ShareGPT",
            ),
            (
                "squad.json",
                "{\"version\": 1, \"data\": [{\"question\": \"a\", \"answers\": []}]}".into(),
                "questions",
            ),
            ("c.json", "[[{\"role\": \"user\", \"content\": \"a\"}]]".into(), "chats"),
            ("w.json", "[\"one\", \"two\"]".into(), "array of strings"),
            ("a.csv", "text,label\nfine,1\n".into(), "a table (CSV) with the columns text, label"),
            ("a.tsv", "id\tTEXT\n1\tfine\n".into(), "a table (TSV)"),
            ("a.csv", "just words\n".into(), "just words"),
        ] {
            let found = of(name, &text).unwrap_or_else(|| panic!("{name}: {text}"));
            assert!(found.0.contains(part), "{name}: {found:?}");
        }
        for (name, text) in [
            ("package.json", "{\n  \"name\": \"x\",\n  \"content\": \"y\"\n}\n"),
            ("a.txt", "{ braces } and words"),
            ("a.txt", "[1] A footnote.\n[2] Another.\n"),
            ("a.tex", "{\\bf x} {y}"),
            ("a.txt", "Text with \"messages\": [] in it."),
            ("a.rs", "{ let x = 1; }"),
            ("grid.json", "[1, 2, 3]"),
            ("a.txt", ""),
        ] {
            assert_eq!(of(name, text), None, "{name}: {text}");
        }
        assert!(!of("a.csv", "a,b\n1,2\n").unwrap().1 && of("a.csv", "\"prompt\";completion\n").unwrap().1);
    }

    #[test]
    fn binary_formats_are_known_by_their_bytes() {
        let tar = [&[b'a'; 257][..], b"ustar\0"].concat();
        for (name, head, part) in [
            ("x", &b"PAR1\x15\0"[..], "Parquet"),
            ("x.arrow", b"\xff\xff\xff\xff\x10\0", "Arrow stream"),
            ("x.gz", b"\x1f\x8b\x08", "gzip"),
            ("x.zst", b"\x28\xb5\x2f\xfd\0", "Zstandard"),
            ("x.docx", b"PK\x03\x04", "document"),
            ("x.npz", b"PK\x03\x04", "NumPy archive"),
            ("pytorch_model.bin", b"PK\x03\x04", "PyTorch"),
            ("x.pdf", b"%PDF-1.7\n", "PDF"),
            ("x.bz2", b"BZh91AY&SY", "bzip2"),
            ("x.tar", &tar, "tar"),
        ] {
            assert!(binary(head, Path::new(name)).is_some_and(|what| what.contains(part)), "{name}");
        }
        for text in ["BZh is a word", "ORC and ELF", "PAR", "%P", ""] {
            assert_eq!(binary(text.as_bytes(), Path::new("x.txt")), None, "{text}");
        }
    }
}
