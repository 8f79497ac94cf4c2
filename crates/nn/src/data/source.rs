//! Resolution of `--data`: text files, or token shards that are already split into training and validation.

use super::encoding::TextEncoding;
use super::files::{All, Found};
use super::progress::{Stage, Watch, Watcher};
use super::text::{NotText, TextFile};
use super::{Tokens, files, shard};
use netcl_device::{Error, Result};
use std::path::{Path, PathBuf};

/// Number of files listed in a message; others are counted.
const NAMED: usize = 8;

/// Training data before it is encoded.
#[derive(Debug)]
pub enum Source {
    /// Text files, ordered by path.
    Text(Vec<TextFile>),
    /// Token shards in the format of nanoGPT or llm.c.
    Shards {
        /// Training shards.
        train: Tokens,
        /// Validation shards, by name: `val.bin`, `fineweb_val_000000.bin`.
        val: Option<Tokens>,
    },
}

impl Source {
    /// Opens files, folders and patterns. Files named `*.bin` are token shards, all others text. A folder is read as shards if it has any with
    /// `train` or `val` in the name, or nothing but shards; otherwise its text files are read, and binary files, hidden files and build
    /// products are skipped.
    ///
    /// # Errors
    /// `Io` for unreadable files; `Format` for an explicitly named file that is empty or not text, or if no file is left.
    pub fn open(specs: &[impl AsRef<Path>]) -> Result<Self> {
        Self::open_with(specs, None, &mut |_| true)
    }

    /// The same with an `encoding` for text that is not UTF-8. Skipped files are listed in a warning.
    pub fn open_with(
        specs: &[impl AsRef<Path>],
        encoding: Option<TextEncoding>,
        watch: &mut Watch<'_>,
    ) -> Result<Self> {
        if specs.is_empty() {
            return Err(Error::format("no data given; name a file, a folder or a pattern with --data"));
        }
        let All { files, special } = files::find(specs)?;
        let (shards, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_shard);
        let named_role = shards.iter().any(|shard| shard.named || Role::of(shard).is_some());
        if !shards.is_empty() && (named_role || others.is_empty()) {
            if let Some(text) = others.iter().find(|file| file.named) {
                return Err(Error::format(format!(
                    "--data mixes token shards ({}) and text ({}); give one kind",
                    shards[0].path.display(),
                    text.path.display()
                )));
            }
            return Self::from_shards(&shards);
        }
        let (texts, left_out) = look_through(&others, encoding, watch)?;
        left_out.tell(&special, &texts);
        match (texts.is_empty(), shards.is_empty()) {
            (false, _) => Ok(Self::Text(texts)),
            (true, false) => Self::from_shards(&shards),
            (true, true) => Err(left_out.nothing(specs[0].as_ref(), others.len())),
        }
    }

    /// The text files; empty for shards.
    pub fn files(&self) -> &[TextFile] {
        match self {
            Self::Text(files) => files,
            Self::Shards { .. } => &[],
        }
    }

    /// Bytes of the text files.
    pub fn bytes(&self) -> u64 {
        self.files().iter().map(|file| file.bytes).sum()
    }

    /// Shards sorted by path. If some have `train` in their name, those with neither `train` nor `val` are left out.
    fn from_shards(shards: &[Found]) -> Result<Self> {
        let some_train = shards.iter().any(|shard| Role::of(shard) == Some(Role::Train));
        let (mut train, mut val) = (Tokens::default(), Tokens::default());
        for found in shards {
            match Role::of(found) {
                Some(Role::Val) => val.append(shard::open(&found.path)?),
                None if some_train && !found.named => {}
                _ => train.append(shard::open(&found.path)?),
            }
        }
        // Only validation shards were named: the user wants to train on them.
        if train.is_empty() {
            return Ok(Self::Shards { train: val, val: None });
        }
        Ok(Self::Shards { train, val: Some(val).filter(|val| !val.is_empty()) })
    }
}

fn is_shard(found: &Found) -> bool {
    found.path.extension().is_some_and(|extension| extension == "bin")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Train,
    Val,
}

impl Role {
    /// Part of a shard by its name: `train.bin`, `tiny_shakespeare_val.bin`, `fineweb_train_000001.bin`.
    fn of(found: &Found) -> Option<Self> {
        let stem = found.path.file_stem()?.to_string_lossy().to_ascii_lowercase();
        stem.split(|c: char| !c.is_alphanumeric()).find_map(|word| match word {
            "train" | "training" => Some(Self::Train),
            "val" | "valid" | "validation" => Some(Self::Val),
            _ => None,
        })
    }
}

/// Skipped files, by reason.
#[derive(Default)]
struct LeftOut {
    /// With the problem of each.
    foreign: Vec<(PathBuf, String)>,
    binary: Vec<PathBuf>,
    empty: Vec<PathBuf>,
}

/// Selects the text files.
fn look_through(
    found: &[Found],
    encoding: Option<TextEncoding>,
    watch: &mut Watch<'_>,
) -> Result<(Vec<TextFile>, LeftOut)> {
    let size = |found: &Found| std::fs::metadata(&found.path).map_or(0, |meta| meta.len());
    let mut watcher = Watcher::new(watch, Stage::Reading, found.iter().map(size).sum());
    let (mut texts, mut left_out) = (Vec::new(), LeftOut::default());
    for file in found {
        let path = file.path.clone();
        match TextFile::open(file, encoding, &mut watcher)? {
            Ok(text) => texts.push(text),
            Err(wrong) if file.named => {
                return Err(Error::format(format!("{}: {}", path.display(), wrong.what())));
            }
            Err(wrong) => {
                tracing::debug!(path = %path.display(), what = wrong.what(), "left out");
                match wrong {
                    NotText::Foreign(what) => left_out.foreign.push((path, what)),
                    NotText::Binary(_) => left_out.binary.push(path),
                    NotText::Empty => left_out.empty.push(path),
                }
            }
        }
    }
    Ok((texts, left_out))
}

impl LeftOut {
    /// Warns about skipped files, with reasons.
    fn tell(&self, special: &[(PathBuf, &'static str)], texts: &[TextFile]) {
        if let Some(text) = self.foreign_in_words() {
            tracing::warn!("{text}");
        }
        if !special.is_empty() {
            let all = special.iter().map(|(path, what)| format!("{} is {what}", path.display()));
            tracing::warn!("{} left out that are no regular files: {}", count(special.len()), some(all));
        }
        for (what, paths) in [("binary", &self.binary), ("empty", &self.empty)] {
            if !paths.is_empty() {
                let all = paths.iter().map(|path| path.display().to_string());
                tracing::info!("{} left out as {what}: {}", count(paths.len()), some(all));
            }
        }
        let mut other: Vec<_> = texts.iter().map(|t| t.encoding().name()).filter(|n| *n != "UTF-8").collect();
        other.sort_unstable();
        for name in other.chunk_by(|a, b| a == b) {
            tracing::info!("{} read as {}", count(name.len()), name[0]);
        }
    }

    fn foreign_in_words(&self) -> Option<String> {
        let (path, what) = self.foreign.first()?;
        let all = self.foreign.iter().map(|(path, _)| path.display().to_string());
        Some(format!(
            "{} left out whose text is in another encoding: {} ({}: {what})",
            count(self.foreign.len()),
            some(all),
            path.display()
        ))
    }

    /// The error if no text file is left.
    fn nothing(&self, spec: &Path, files: usize) -> Error {
        let foreign = self.foreign_in_words().map(|text| format!("; {text}")).unwrap_or_default();
        let what = if files == self.foreign.len() {
            "not one is UTF-8".to_owned()
        } else {
            format!("{} binary, {} empty", self.binary.len(), self.empty.len())
        };
        Error::format(format!("{}: no text in it; of {} {what}{foreign}", spec.display(), count(files)))
    }
}

fn count(files: usize) -> String {
    if files == 1 { "1 file".into() } else { format!("{files} files") }
}

/// The first entries of a list, for messages.
fn some(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = all.len().saturating_sub(NAMED);
    let names = all.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{names} and {more} more (RUST_LOG=debug names all)") } else { names }
}

#[cfg(test)]
mod tests {
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
        Source::open(specs).unwrap_err().to_string()
    }

    fn text(file: &TextFile) -> String {
        let (mut reader, mut text) = (file.read().unwrap(), String::new());
        while !reader.ended {
            reader.next(&mut text).unwrap();
        }
        text
    }

    fn texts(source: &Source) -> Vec<String> {
        source.files().iter().map(text).collect()
    }

    fn utf16(text: &str, big: bool) -> Vec<u8> {
        let bytes = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
        text.encode_utf16().flat_map(bytes).collect()
    }

    /// Text files of a folder in other encodings are listed in a warning (they used to be skipped silently).
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
        let (read, left_out) = look_through(&all, None, &mut |_| true).unwrap();
        assert_eq!((read.len(), left_out.foreign.len(), left_out.binary.len()), (1, 2, 1));
        let words = left_out.foreign_in_words().unwrap();
        for part in
            ["2 files left out", "b.txt, ", "c.txt", "byte 0xcf at offset 0 is not UTF-8", "--encoding"]
        {
            assert!(words.contains(part), "{words}");
        }
        let named =
            |name| Source::open_with(&[dir.path()], Some(TextEncoding::of(name).unwrap()), &mut |_| true);
        assert_eq!(texts(&named("cp1251").unwrap()), ["für", "Привет, мир", "Привет, мир"]);
        assert_eq!(texts(&named("latin1").unwrap())[1], "Ïðèâåò, ìèð");
        assert_eq!(texts(&named("utf-8").unwrap()), ["für"]);
        let only = message(&[dir.path().join("b.txt")]);
        assert!(only.contains("b.txt: byte 0xcf at offset 0 is not UTF-8; --encoding names"), "{only}");
        fs::remove_file(dir.path().join("a.txt")).unwrap();
        let none = message(&[dir.path()]);
        assert!(none.contains("2 files left out") && none.contains("--encoding"), "{none}");
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
        assert!(texts(&Source::open(&[dir.path()]).unwrap()).iter().all(|text| *text == whole));
        let bare = dir.path().join("bare.txt");
        fs::write(&bare, utf16("plain words\n", false)).unwrap();
        let unmarked = message(&[&bare]);
        assert!(
            unmarked.contains("looks like UTF-16") && unmarked.contains("--encoding utf-16le"),
            "{unmarked}"
        );
        let named = Source::open_with(&[&bare], Some(TextEncoding::of("utf-16le").unwrap()), &mut |_| true);
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
        assert_eq!(texts(&Source::open(&[dir.path()]).unwrap()), ["ä", "b"]);
    }

    #[test]
    fn named_files_must_be_text() {
        let dir = dir(&[("png", b"ab\x89PNG"), ("empty", b""), ("nul", b"ab\0"), ("cut", b"caf\xc3")]);
        for (name, part) in [
            ("png", "byte 0x89 at offset 2 is not UTF-8; --encoding"),
            ("empty", "the file is empty"),
            ("nul", "byte 0x00 at offset 2"),
            ("cut", "byte 0xc3 at offset 3"),
            ("missing", "there is no such file; --data takes files"),
        ] {
            let path = dir.path().join(name);
            let message = message(&[&path]);
            assert!(message.contains(part) && message.contains(&path.display().to_string()), "{message}");
        }
        let none = message(&[dir.path()]);
        assert!(none.contains("no text in it; of 4 files 1 binary, 1 empty; 2 files left out"), "{none}");
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
        let Source::Shards { train, val } = Source::open(&[dir.path()]).unwrap() else {
            panic!("not shards")
        };
        assert_eq!((train.to_vec().unwrap(), val.unwrap().to_vec().unwrap()), (vec![1, 2], vec![9]));
        let only_val = Source::open(&[dir.path().join("fineweb_val_000000.bin")]).unwrap();
        assert!(matches!(only_val, Source::Shards { train, val: None } if train.to_vec().unwrap() == [9]));
        let mixed = message(&[dir.path().join("other.bin"), dir.path().join("prepare.py")]);
        assert!(mixed.contains("mixes token shards") && mixed.contains("prepare.py"), "{mixed}");
    }

    #[test]
    fn a_folder_of_text_may_hold_other_bin_files() {
        let dir = dir(&[("a.txt", b"text"), ("firmware.bin", &[1, 0])]);
        assert_eq!(texts(&Source::open(&[dir.path()]).unwrap()), ["text"]);
        fs::write(dir.path().join("a.txt"), b"\0").unwrap();
        assert!(
            matches!(Source::open(&[dir.path()]).unwrap(), Source::Shards { train, .. } if train.len() == 1)
        );
    }
}
