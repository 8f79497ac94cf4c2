//! Tests of what `--data` names: text, shards, their parts, and what is refused.

use super::*;
use std::fs;

fn dir(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn message(specs: &[impl AsRef<Path>]) -> String {
    DataSource::open(specs).unwrap_err().to_string()
}

fn encoded(name: &str) -> Reading {
    Reading { encoding: Some(TextEncoding::of(name).unwrap()), as_text: false, records: false }
}

fn text(file: &TextFile) -> String {
    let (mut reader, mut text) = (file.read().unwrap(), String::new());
    while !reader.ended {
        reader.next(&mut text).unwrap();
    }
    text
}

fn texts(source: &DataSource) -> Vec<String> {
    source.files().iter().map(text).collect()
}

fn utf16(text: &str, big: bool) -> Vec<u8> {
    let bytes = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
    text.encode_utf16().flat_map(bytes).collect()
}

/// Text files of a folder in other encodings are listed in a warning (formerly they were skipped silently).
#[test]
fn text_in_another_encoding_is_counted_named_and_read_when_the_encoding_is() {
    let (cyrillic, _, _) = encoding_rs::WINDOWS_1251.encode("Привет, мир");
    let dir = dir(&[
        ("a.txt", "für".as_bytes()),
        ("b.txt", &cyrillic),
        ("c.txt", &cyrillic),
        ("d.png", b"\x89P\0"),
    ]);
    let all: Vec<_> = files::find(&[dir.path()]).unwrap().files;
    let mut left_out = LeftOut::default();
    let read = look_through(&all, Reading::default(), &mut |_| true, &mut left_out).unwrap();
    assert_eq!((read.texts.len(), left_out.foreign.len(), left_out.binary.len()), (1, 2, 1));
    let words = left_out.foreign_in_words().unwrap();
    for part in ["2 files skipped", "b.txt, ", "c.txt", "byte 0xcf at offset 0 is not UTF-8", "--encoding"] {
        assert!(words.contains(part), "{words}");
    }
    let named = |name| DataSource::open_with(&[dir.path()], encoded(name), &mut |_| true);
    assert_eq!(texts(&named("cp1251").unwrap()), ["für", "Привет, мир", "Привет, мир"]);
    assert_eq!(texts(&named("latin1").unwrap())[1], "Ïðèâåò, ìèð");
    assert_eq!(texts(&named("utf-8").unwrap()), ["für"]);
    let only = message(&[dir.path().join("b.txt")]);
    assert!(only.contains("b.txt: byte 0xcf at offset 0 is not UTF-8; use --encoding to name"), "{only}");
    fs::remove_file(dir.path().join("a.txt")).unwrap();
    let none = message(&[dir.path()]);
    assert!(none.contains("2 files skipped") && none.contains("--encoding"), "{none}");
}

#[test]
fn utf16_is_read_by_its_mark_and_without_one_by_its_name() {
    let whole = "Größe 日本 🦀\n".repeat(40_000);
    let marked = format!("\u{feff}{whole}");
    let dir = dir(&[
        ("be.txt", &utf16(&marked, true)),
        ("le.txt", &utf16(&marked, false)),
        ("utf8.txt", marked.as_bytes()),
    ]);
    assert!(texts(&DataSource::open(&[dir.path()]).unwrap()).iter().all(|text| *text == whole));
    let bare = dir.path().join("bare.txt");
    fs::write(&bare, utf16("plain words\n", false)).unwrap();
    let unmarked = message(&[&bare]);
    assert!(unmarked.contains("looks like UTF-16") && unmarked.contains("--encoding utf-16le"), "{unmarked}");
    let named = DataSource::open_with(&[&bare], encoded("utf-16le"), &mut |_| true);
    assert_eq!(texts(&named.unwrap()), ["plain words\n"]);
    // A lone surrogate, and half a unit at the end.
    for wrong in [&[0xff, 0xfe, b'a', 0, 0, 0xd8, b'b', 0][..], &[0xff, 0xfe, b'a', 0, b'b']] {
        fs::write(&bare, wrong).unwrap();
        assert!(message(&[&bare]).contains("is not UTF-16LE"), "{}", message(&[&bare]));
    }
    fs::write(&bare, b"\xff\xfe\0\0a\0\0\0").unwrap();
    assert!(message(&[&bare]).contains("UTF-32"));
}

#[test]
fn folders_skip_what_is_no_text() {
    let dir = dir(&[
        ("b.txt", b"b"),
        ("a.txt", "\u{feff}ä".as_bytes()),
        ("c.png", b"\x89PNG"),
        ("d", b""),
        ("e", b"x\0y"),
    ]);
    assert_eq!(texts(&DataSource::open(&[dir.path()]).unwrap()), ["ä", "b"]);
}

#[test]
fn named_files_must_be_text() {
    let dir = dir(&[("png", b"ab\x89PNG"), ("empty", b""), ("nul", b"ab\0"), ("cut", b"caf\xc3")]);
    for (name, part) in [
        ("png", "byte 0x89 at offset 2 is not UTF-8; use --encoding"),
        ("empty", "the file is empty"),
        ("nul", "byte 0x00 at offset 2"),
        ("cut", "byte 0xc3 at offset 3"),
        ("missing", "no such file; --data takes files"),
    ] {
        let path = dir.path().join(name);
        let message = message(&[&path]);
        assert!(message.contains(part) && message.contains(&path.display().to_string()), "{message}");
    }
    let none = message(&[dir.path()]);
    assert!(none.contains("no text found; of 4 files 1 binary, 1 empty; 2 files skipped"), "{none}");
    assert!(message(&Vec::<PathBuf>::new()).contains("no data given"));
}

#[test]
fn shards_are_split_by_name() {
    let dir = dir(&[
        ("fineweb_train_000002.bin", &[2, 0]),
        ("fineweb_train_000001.bin", &[1, 0]),
        ("fineweb_val_000000.bin", &[9, 0]),
        ("meta.pkl", b"\x80"),
        ("prepare.py", b"text"),
        ("other.bin", &[7, 0]),
    ]);
    let DataSource::Shards { train, val } = DataSource::open(&[dir.path()]).unwrap() else {
        panic!("not shards")
    };
    assert_eq!((train.to_vec().unwrap(), val.unwrap().to_vec().unwrap()), (vec![1, 2], vec![9]));
    let only_val = DataSource::open(&[dir.path().join("fineweb_val_000000.bin")]).unwrap();
    assert!(matches!(only_val, DataSource::Shards { train, val: None } if train.to_vec().unwrap() == [9]));
    let mixed = message(&[dir.path().join("other.bin"), dir.path().join("prepare.py")]);
    assert!(mixed.contains("mixes token shards") && mixed.contains("prepare.py"), "{mixed}");
}

#[test]
fn a_folder_of_text_may_hold_other_bin_files() {
    let dir = dir(&[("a.txt", b"text"), ("firmware.bin", &[1, 0])]);
    assert_eq!(texts(&DataSource::open(&[dir.path()]).unwrap()), ["text"]);
    fs::write(dir.path().join("a.txt"), b"\0").unwrap();
    assert!(
        matches!(DataSource::open(&[dir.path()]).unwrap(), DataSource::Shards { train, .. } if train.len() == 1)
    );
}

fn names(files: &[TextFile]) -> Vec<String> {
    files.iter().map(|f| f.path().file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// Formerly both parts were used for training, so the validation loss was measured on known text.
#[test]
fn train_and_val_by_name_are_the_two_parts() {
    let dir = dir(&[("README.md", b"about"), ("test.txt", b"c"), ("train.txt", b"a"), ("val.txt", b"b")]);
    let source = DataSource::open(&[dir.path()]).unwrap();
    let (train, val) = source.parts();
    assert_eq!((names(train), names(val)), (vec!["train.txt".to_owned()], vec!["val.txt".to_owned()]));
    let named = ["val.txt", "train.txt"].map(|name| dir.path().join(name));
    assert_eq!(names(DataSource::open(&named).unwrap().parts().1), ["val.txt"]);
    assert!(DataSource::open(&named[..1]).unwrap().parts().1.is_empty());
    for folder in ["train", "validation"] {
        fs::create_dir(dir.path().join(folder)).unwrap();
        fs::write(dir.path().join(folder).join("1.txt"), folder).unwrap();
    }
    let folders = ["train", "validation"].map(|name| dir.path().join(name));
    let source = DataSource::open(&folders).unwrap();
    let tokenizer = source.char_tokenizer(&mut |_| true).unwrap();
    let corpus = source.into_corpus(Some(&tokenizer)).unwrap();
    let text = |tokens: &Tokens| tokenizer.decode(&tokens.to_vec().unwrap()).unwrap();
    assert_eq!((text(&corpus.train), text(&corpus.val.unwrap())), ("train".into(), "validation".into()));
}

/// Formerly such files were used with their markup.
#[test]
fn records_are_refused_by_their_format_and_read_as_text_on_request() {
    let chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n".repeat(3);
    let files = [
        ("chat.jsonl", chat.as_str(), "JSON Lines: chat messages"),
        ("alpaca.json", "[{\"instruction\": \"a\", \"output\": \"b\"}]", "Alpaca"),
        ("share.json", "[{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}]", "ShareGPT"),
        ("text.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "records with a `text`"),
        ("table.csv", "text,label\na,1\n", "a table (CSV) with the columns text, label"),
    ];
    for (name, content, part) in files {
        let dir = dir(&[(name, content.as_bytes()), ("notes.txt", b"plain text that is not a record")]);
        for spec in [dir.path().to_owned(), dir.path().join(name), dir.path().join("*")] {
            let message = message(&[&spec]);
            assert!(message.contains(part) && message.contains("--as-text"), "{name}: {message}");
            let how = Reading { as_text: true, ..Reading::default() };
            assert!(!DataSource::open_with(&[&spec], how, &mut |_| true).unwrap().files().is_empty());
        }
    }
    // Other records are refused if the file is named or is most of the text.
    let dir = dir(&[
        ("log.jsonl", b"{\"t\": 1}\n{\"t\": 2}\n"),
        ("grid.csv", b"x,y\n1,2\n"),
        ("a.txt", &[b'a'; 500]),
    ]);
    let message = message(&[dir.path().join("grid.csv")]);
    assert!(message.contains("columns x, y"), "{message}");
    fs::remove_file(dir.path().join("log.jsonl")).unwrap();
    assert_eq!(DataSource::open(&[dir.path()]).unwrap().files().len(), 2);
    fs::write(dir.path().join("a.txt"), "a").unwrap();
    assert!(DataSource::open(&[dir.path()]).is_err());
}

/// Formerly only the readme or the index in the same folder was used for training.
#[test]
fn data_in_a_format_that_is_not_read_is_named() {
    let parquet = [b"PAR1".to_vec(), vec![0; 4000]].concat();
    let gzip = [vec![0x1f, 0x8b, 8, 0], vec![7; 4000]].concat();
    let mut array = vec![0xff; 4];
    array.extend(vec![0; 4000]);
    for (name, bytes, part) in [
        ("data.parquet", &parquet, "a Parquet table"),
        ("text.txt.gz", &gzip, "compressed with gzip"),
        ("data.arrow", &array, "an Arrow stream"),
    ] {
        let dir = dir(&[("README.md", b"about this data"), (name, bytes)]);
        for spec in [dir.path().to_owned(), dir.path().join(name)] {
            let message = message(&[&spec]);
            assert!(message.contains(part) && message.contains(name), "{message}");
        }
        // If there is much more text, netcl only warns.
        fs::write(dir.path().join("book.txt"), "word ".repeat(2000)).unwrap();
        assert_eq!(DataSource::open(&[dir.path()]).unwrap().files().len(), 2);
    }
    let index =
        br#"{"chunks": [{"filename": "chunk-0-0.bin"}], "config": {"data_format": ["no_header_tensor:16"]}}"#;
    let litdata = dir(&[("index.json", index), ("chunk-0-0.bin", &[0; 400])]);
    let text = message(&[litdata.path()]);
    assert!(text.contains("a litdata dataset, as litgpt writes it"), "{text}");
    let other = dir(&[("meta.json", b"{}"), ("0.bin", &[1; 400])]);
    assert!(message(&[other.path()]).contains("0.bin (a token shard)"), "{}", message(&[other.path()]));
}

/// Formerly every second token was 0.
#[test]
fn shards_of_other_widths_are_refused_or_read_by_their_header() {
    let ids: Vec<u32> = (0..300u32).map(|i| i * 977 % 50_000).collect();
    let bytes = |width: usize| -> Vec<u8> {
        ids.iter().flat_map(|id| u64::from(*id).to_le_bytes()[..width].to_vec()).collect()
    };
    let dir =
        dir(&[("u16.bin", &bytes(2)), ("u32.bin", &bytes(4)), ("i64.bin", &bytes(8)), ("m.bin", &bytes(4))]);
    let read = |name: &str| match DataSource::open(&[dir.path().join(name)]) {
        Ok(DataSource::Shards { train, .. }) => Ok(train.to_vec().unwrap()),
        Ok(DataSource::Text { .. }) => panic!("{name} is text"),
        Ok(DataSource::Records { .. }) => panic!("records"),
        Err(e) => Err(e.to_string()),
    };
    assert_eq!(read("u16.bin").unwrap(), ids);
    assert!(read("u32.bin").unwrap_err().contains("these are 32-bit ids"), "{:?}", read("u32.bin"));
    assert!(read("i64.bin").unwrap_err().contains("these are 64-bit ids"), "{:?}", read("i64.bin"));
    // Megatron's index gives the width.
    let index = |code: u8, lengths: &[u32]| {
        let mut out = b"MMIDIDX\0\0".to_vec();
        out.extend(1u64.to_le_bytes());
        out.push(code);
        out.extend((lengths.len() as u64).to_le_bytes());
        out.extend((lengths.len() as u64 + 1).to_le_bytes());
        lengths.iter().for_each(|n| out.extend(n.to_le_bytes()));
        out
    };
    fs::write(dir.path().join("m.idx"), index(4, &[100, 200])).unwrap();
    assert_eq!(read("m.bin").unwrap(), ids);
    fs::write(dir.path().join("m.idx"), index(4, &[100])).unwrap();
    assert!(read("m.bin").unwrap_err().contains("one of the two is truncated"));
    fs::write(dir.path().join("m.idx"), index(7, &[300])).unwrap();
    assert!(read("m.bin").unwrap_err().contains("elements of type 7"));
    let mut array = b"\x93NUMPY\x01\0\x46\0".to_vec();
    array.extend(format!("{:<69}\n", "{'descr': '<u4', 'fortran_order': False, 'shape': (300,), }").bytes());
    array.extend(bytes(4));
    fs::write(dir.path().join("train.npy"), array).unwrap();
    assert_eq!(read("train.npy").unwrap(), ids);
    fs::write(dir.path().join("text.bin"), "Just words, in a file that has another name than it should.")
        .unwrap();
    assert!(read("text.bin").unwrap_err().contains("the file contains text"));
    fs::write(dir.path().join("pytorch_model.bin"), b"PK\x03\x04 and more of it").unwrap();
    assert!(read("pytorch_model.bin").unwrap_err().contains("a PyTorch file"));
}

#[test]
fn a_test_shard_is_never_trained_on_beside_others() {
    let dir = dir(&[("train.bin", &[1, 0]), ("test.bin", &[9, 0])]);
    let parts = |names: &[&str]| {
        let specs: Vec<_> = names.iter().map(|name| dir.path().join(name)).collect();
        let DataSource::Shards { train, val } = DataSource::open(&specs).unwrap() else { panic!("text") };
        (train.to_vec().unwrap(), val.map(|val| val.to_vec().unwrap()))
    };
    assert_eq!(parts(&["train.bin", "test.bin"]), (vec![1], Some(vec![9])));
    fs::write(dir.path().join("val.bin"), [5, 0]).unwrap();
    assert_eq!(parts(&["train.bin", "val.bin", "test.bin"]), (vec![1], Some(vec![5])));
    assert_eq!(parts(&["test.bin"]), (vec![9], None));
}
