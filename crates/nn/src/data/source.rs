//! What `--data` leads to: text files, or token shards already split into training and validation.

use super::{Tokens, files, files::Found, shard};
use netcl_device::{Error, MappedFile, Result};
use std::path::{Path, PathBuf};

/// Opened training data, before it is tokens.
#[derive(Debug)]
pub enum Source {
    /// UTF-8 text, in the order of the paths.
    Text(Vec<TextFile>),
    /// Ids as nanoGPT or llm.c wrote them.
    Shards {
        /// Every shard that is not for validation.
        train: Tokens,
        /// The shards named so: `val.bin`, `fineweb_val_000000.bin`.
        val: Option<Tokens>,
    },
}

/// A mapped text file.
#[derive(Debug)]
pub struct TextFile {
    path: PathBuf,
    map: MappedFile,
}

impl Source {
    /// Opens files, folders and patterns. Names ending in `.bin` are token shards, everything else is text. A folder is
    /// read as shards when it holds any with `train` or `val` in the name, or nothing but shards; otherwise its text
    /// files are taken and what is binary, hidden or built is skipped.
    ///
    /// `Io` for what cannot be read; `Format` for a named file that is empty or no text, or where nothing is left.
    pub fn open(specs: &[impl AsRef<Path>]) -> Result<Self> {
        if specs.is_empty() {
            return Err(Error::format("no data given; name a file, a folder or a pattern with --data"));
        }
        let (shards, others): (Vec<_>, Vec<_>) = files::find(specs)?.into_iter().partition(is_shard);
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
        let texts =
            others.iter().filter_map(|file| TextFile::open(file).transpose()).collect::<Result<Vec<_>>>()?;
        match (texts.is_empty(), shards.is_empty()) {
            (false, _) => Ok(Self::Text(texts)),
            (true, false) => Self::from_shards(&shards),
            (true, true) => Err(Error::format(format!(
                "{}: no text in it; all {} files are binary or empty",
                specs[0].as_ref().display(),
                others.len()
            ))),
        }
    }

    /// Shards sorted by path. Where some say `train`, those that say nothing are left out.
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
        // Only validation shards named: the user means to train on them.
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
    /// What a word of the file's name says: `train.bin`, `tiny_shakespeare_val.bin`, `fineweb_train_000001.bin`.
    fn of(found: &Found) -> Option<Self> {
        let stem = found.path.file_stem()?.to_string_lossy().to_ascii_lowercase();
        stem.split(|c: char| !c.is_alphanumeric()).find_map(|word| match word {
            "train" | "training" => Some(Self::Train),
            "val" | "valid" | "validation" => Some(Self::Val),
            _ => None,
        })
    }
}

impl TextFile {
    /// The file as text; `None` for a skipped one: met in a folder, and binary or empty.
    fn open(found: &Found) -> Result<Option<Self>> {
        let map = MappedFile::open(&found.path)?;
        let wrong = if map.is_empty() { Some("the file is empty".to_owned()) } else { binary(&map) };
        match wrong {
            None => Ok(Some(Self { path: found.path.clone(), map })),
            Some(what) if found.named => Err(Error::format(format!("{}: {what}", found.path.display()))),
            Some(what) => {
                tracing::debug!(path = %found.path.display(), what, "skipped");
                Ok(None)
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text, without a byte order mark. `Format` when the file changed meanwhile and is text no longer.
    pub fn text(&self) -> Result<&str> {
        let text = std::str::from_utf8(&self.map)
            .map_err(|_| Error::format(format!("{}: changed while it was read", self.path.display())))?;
        Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
    }
}

/// Why `bytes` are not text, with the offset of the first byte that says so.
fn binary(bytes: &[u8]) -> Option<String> {
    let valid = std::str::from_utf8(bytes).map_or_else(|e| e.valid_up_to(), str::len);
    let bad = bytes[..valid].iter().position(|&byte| byte == 0).or((valid < bytes.len()).then_some(valid))?;
    Some(format!(
        "not text: byte 0x{:02x} at offset {bad}; --data takes UTF-8 text, or token shards named *.bin",
        bytes[bad]
    ))
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

    fn texts(source: &Source) -> Vec<&str> {
        let Source::Text(files) = source else { panic!("not text") };
        files.iter().map(|file| file.text().unwrap()).collect()
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
            ("png", "byte 0x89 at offset 2"),
            ("empty", "the file is empty"),
            ("nul", "byte 0x00 at offset 2"),
            ("cut", "byte 0xc3 at offset 3"),
            ("missing", "there is no such file; --data takes files"),
        ] {
            let path = dir.path().join(name);
            let message = message(&[&path]);
            assert!(message.contains(part) && message.contains(&path.display().to_string()), "{message}");
        }
        assert!(message(&[dir.path()]).contains("all 4 files are binary or empty"));
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
        assert_eq!((train.to_vec(), val.unwrap().to_vec()), (vec![1, 2], vec![9]));
        let only_val = Source::open(&[dir.path().join("fineweb_val_000000.bin")]).unwrap();
        assert!(matches!(only_val, Source::Shards { train, val: None } if train.to_vec() == [9]));
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
