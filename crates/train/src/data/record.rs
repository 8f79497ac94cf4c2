//! Record of the training data in checkpoints: a resumed run detects files that changed.

use super::{DataSource, id_file::IdFile, id_file::read_at};
use netcl_device::{Error, Result, counted, human};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Name of the record's file in a checkpoint.
pub const DATA_FILE: &str = "data.json";
/// Format version; raised when older versions of netcl could misread a file.
const FORMAT: u32 = 1;
/// Bytes of each sampled block of a token shard.
const BLOCK: u64 = 64 << 10;
/// Number of sampled blocks of a token shard.
const PLACES: u64 = 16;

/// Number of files listed in a message; others are counted.
const MAX_NAMED_FILES: usize = 8;

/// The files of `--data`, in training order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRecord {
    files: Vec<FileState>,
    sampled: bool,
    /// Number of text files of the validation part, which are the last ones; unknown for shards.
    val: Option<usize>,
}

/// A file in its present state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileState {
    path: PathBuf,
    bytes: u64,
    sum: String,
}

/// The stored form of the record. Names are relative to the common folder of all files, because checkpoints are published and absolute paths are
/// private.
#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    /// Checksums cover sampled blocks of each file, not all of it.
    sampled: bool,
    files: Vec<WrittenFile>,
    /// Number of text files of the validation part. Absent in files of earlier versions, which had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    val: Option<usize>,
}

#[derive(Serialize, Deserialize)]
struct WrittenFile {
    name: String,
    bytes: u64,
    /// BLAKE3 checksum.
    sum: String,
}

impl Written {
    fn read(text: &[u8]) -> Result<Self> {
        let read: Self =
            serde_json::from_slice(text).map_err(|e| Error::format(format!("{DATA_FILE}: {e}")))?;
        if read.format > FORMAT {
            return Err(Error::format(format!(
                "{DATA_FILE} has format {}, this netcl supports up to {FORMAT}; use the netcl version that wrote it",
                read.format
            )));
        }
        Ok(read)
    }
}

impl DataSource {
    /// Records the present state of the data. Token shards, which may have hundreds of gigabytes, are represented by 16 blocks each.
    ///
    /// # Errors
    /// `Io`.
    pub fn record(&self) -> Result<DataRecord> {
        let whole = |file: &super::TextFile| FileState {
            path: file.path().to_owned(),
            bytes: file.bytes,
            sum: file.sum.to_hex().to_string(),
        };
        Ok(match self {
            Self::Text { files, val } | Self::Records { files, val, .. } => {
                DataRecord { files: files.iter().map(whole).collect(), sampled: false, val: Some(*val) }
            }
            Self::Shards { train, val } => {
                let shards = train.files().chain(val.iter().flat_map(super::Tokens::files));
                DataRecord { files: shards.map(of_shard).collect::<Result<_>>()?, sampled: true, val: None }
            }
        })
    }
}

fn of_shard(shard: &IdFile) -> Result<FileState> {
    let path = shard.path();
    let file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
    let bytes = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
    let sum = sum(&file, bytes, true).map_err(|e| Error::io("reading", path, &e))?;
    Ok(FileState { path: path.to_owned(), bytes, sum })
}

/// Returns the checksum of the first `bytes` of a file.
fn sum(file: &File, bytes: u64, sampled: bool) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut take = |from: u64, to: u64| -> std::io::Result<()> {
        let mut block = vec![0; BLOCK as usize];
        for at in (from..to).step_by(BLOCK as usize) {
            let block = &mut block[..(to - at).min(BLOCK) as usize];
            read_at(file, at, block)?;
            hasher.update(block);
        }
        Ok(())
    };
    if sampled && bytes > PLACES * BLOCK {
        // The first and the last block, and others at equal distances between them.
        for place in 0..PLACES {
            let at = u128::from(bytes - BLOCK) * u128::from(place) / u128::from(PLACES - 1);
            take(at as u64, at as u64 + BLOCK)?;
        }
    } else {
        take(0, bytes)?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

impl DataRecord {
    /// Returns the stored form for a checkpoint.
    ///
    /// # Errors
    /// `Internal`.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let root = self.root();
        let name =
            |file: &FileState| file.path.strip_prefix(&root).unwrap_or(&file.path).to_string_lossy().into();
        let file =
            |file: &FileState| WrittenFile { name: name(file), bytes: file.bytes, sum: file.sum.clone() };
        let files = self.files.iter().map(file).collect();
        let written =
            Written { format: FORMAT, sampled: self.sampled, files, val: self.val.filter(|n| *n > 0) };
        serde_json::to_vec(&written).map_err(|e| Error::internal(format!("{DATA_FILE}: {e}")))
    }

    /// Returns the common folder of all files.
    fn root(&self) -> PathBuf {
        let mut parents = self.files.iter().filter_map(|file| file.path.parent());
        let mut root = parents.next().unwrap_or(Path::new("")).to_owned();
        for parent in parents {
            while !parent.starts_with(&root) && root.pop() {}
        }
        root
    }

    /// Describes what was added since `written`; `None` if the data is the same.
    ///
    /// # Errors
    /// `Format` with the names of edited or missing files: a resumed run must not train on other text unnoticed.
    pub fn since(&self, written: &[u8]) -> Result<Option<String>> {
        let before = Written::read(written)?;
        let same = |a: &WrittenFile, b: &FileState| (a.bytes, &a.sum) == (b.bytes, &b.sum);
        let comparable = before.sampled == self.sampled;
        if comparable {
            same_split(before.val.unwrap_or(0) > 0, self.val.unwrap_or(0) > 0)?;
        }
        if comparable
            && before.files.len() == self.files.len()
            && before.files.iter().zip(&self.files).all(|(a, b)| same(a, b))
        {
            return Ok(None);
        }
        let mut by_content: HashMap<(u64, &str), Vec<usize>> = HashMap::new();
        for (at, file) in self.files.iter().enumerate().filter(|_| comparable) {
            by_content.entry((file.bytes, &file.sum)).or_default().push(at);
        }
        let mut left: Vec<Option<&FileState>> = self.files.iter().map(Some).collect();
        let named = |at: usize, old: &WrittenFile| self.files[at].path.ends_with(&old.name);
        // The present file with the same content under any name; among copies, the one with the same name.
        let mut missing = Vec::new();
        for old in &before.files {
            let same = by_content.get_mut(&(old.bytes, old.sum.as_str())).filter(|same| !same.is_empty());
            let Some(same) = same else {
                missing.push(old);
                continue;
            };
            let which = same.iter().position(|&at| named(at, old)).unwrap_or(0);
            left[same.remove(which)] = None;
        }
        let (mut grown, mut wrong) = (Vec::new(), Vec::new());
        for old in missing {
            let found = (0..left.len()).find(|&at| left[at].is_some() && named(at, old));
            let Some(new) = found.and_then(|at| left[at].take()) else {
                wrong.push(format!("{} ({}) is missing", old.name, human(old.bytes)));
                continue;
            };
            let path = new.path.display();
            if new.bytes > old.bytes && begins_with(&new.path, old, before.sampled) {
                grown.push(format!("{path} ({} more)", human(new.bytes - old.bytes)));
            } else {
                let (old, new) = (old.bytes, new.bytes);
                wrong.push(format!("{path} was edited ({old} bytes, now {new})"));
            }
        }
        if !wrong.is_empty() {
            return Err(Error::format(format!(
                "the data differs from what the run has learned from: {}. Restore that, or start another run with --out",
                some(&wrong)
            )));
        }
        let added = left.into_iter().flatten();
        let added: Vec<_> =
            added.map(|file| format!("{} ({})", file.path.display(), human(file.bytes))).collect();
        let said: Vec<_> = [(&added, "added"), (&grown, "grown")]
            .into_iter()
            .filter(|(files, _)| !files.is_empty())
            .map(|(files, how)| format!("{} {how}: {}", counted(files.len(), "file"), some(files)))
            .collect();
        Ok(Some(if said.is_empty() { "its files are in another order".into() } else { said.join("; ") }))
    }
}

/// Checks that the validation part still has the same source as when the run began: separate files or the end of the text.
///
/// # Errors
/// `Format` if the source has changed: the run would be validated on text that it was trained on.
fn same_split(then: bool, now: bool) -> Result<()> {
    if then == now {
        return Ok(());
    }
    let word = |own: bool| if own { "separate files" } else { "the end of the text" };
    Err(Error::format(format!(
        "the validation part is now {} (by the names of the data), and was {} when the run started: the run would be validated on text that it has \
         learned from. Start another run with --out",
        word(now),
        word(then)
    )))
}

/// Formats the first entries of a list for messages.
fn some(all: &[String]) -> String {
    let names = all[..all.len().min(MAX_NAMED_FILES)].join(", ");
    if all.len() > MAX_NAMED_FILES {
        format!("{names} and {} more", all.len() - MAX_NAMED_FILES)
    } else {
        names
    }
}

/// Returns whether a file begins with the earlier content of another.
fn begins_with(path: &Path, old: &WrittenFile, sampled: bool) -> bool {
    File::open(path).and_then(|file| sum(&file, old.bytes, sampled)).is_ok_and(|sum| sum == old.sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn record(specs: &[PathBuf]) -> DataRecord {
        DataSource::open(specs).unwrap().record().unwrap()
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn additions_are_said_and_other_changes_refused_by_name() {
        let dir = folder(&[("a/one.txt", "first text"), ("b/one.txt", "second text"), ("c.txt", "third")]);
        let all = [dir.path().to_owned()];
        let path = |name: &str| dir.path().join(name);
        let before = record(&all).to_json().unwrap();
        assert!(!String::from_utf8_lossy(&before).contains(&*dir.path().to_string_lossy()));
        assert_eq!(record(&all).since(&before).unwrap(), None);
        let said = || record(&all).since(&before).unwrap().unwrap();
        let refused = || record(&all).since(&before).unwrap_err().message().to_owned();

        fs::write(path("b/two.txt"), "more").unwrap();
        assert_eq!(said(), format!("1 file added: {} (4 B)", path("b/two.txt").display()));
        fs::write(path("b/one.txt"), "second text, longer").unwrap();
        let text = said();
        assert!(text.contains("; 1 file grown: ") && text.contains("b/one.txt (8 B more)"), "{text}");
        // Edited in place with the same length; and shortened.
        fs::write(path("a/one.txt"), "First text").unwrap();
        let text = refused();
        for part in
            ["differs from what the run has learned from", "a/one.txt was edited (10 bytes, now 10)", "--out"]
        {
            assert!(text.contains(part), "{text} lacks: {part}");
        }
        assert!(!text.contains("b/one.txt") && !text.contains("two"), "{text}");
        fs::remove_file(path("c.txt")).unwrap();
        assert!(refused().contains("c.txt (5 B) is missing"), "{}", refused());
        fs::write(path("a/one.txt"), "first text").unwrap();
        fs::write(path("c.txt"), "third").unwrap();
        fs::remove_file(path("b/two.txt")).unwrap();
        fs::write(path("b/one.txt"), "second text").unwrap();
        assert_eq!(record(&all).since(&before).unwrap(), None);
        // Moved or renamed files are the same text. In another order they are a different stream.
        fs::rename(path("c.txt"), path("d.txt")).unwrap();
        assert_eq!(record(&all).since(&before).unwrap(), None);
        fs::rename(path("d.txt"), path("Z.txt")).unwrap();
        assert_eq!(said(), "its files are in another order");
        // Data elsewhere changes the common folder, and files are still found by name.
        let more = folder(&[("e.txt", "fifth")]);
        let both = [all[0].clone(), more.path().to_owned()];
        assert!(record(&both).since(&before).unwrap().unwrap().starts_with("1 file added: "));
        fs::write(path("a/one.txt"), "fürst text").unwrap();
        let text = record(&both).since(&before).unwrap_err().message().to_owned();
        assert!(text.contains("a/one.txt was edited (10 bytes, now 11)"), "{text}");
    }

    #[test]
    fn of_shards_a_few_blocks_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.bin");
        let mut ids: Vec<u8> = (0..4_000_000u32).flat_map(|i| ((i * 7 % 500) as u16).to_le_bytes()).collect();
        fs::write(&path, &ids).unwrap();
        let specs = [path.clone()];
        let before = record(&specs).to_json().unwrap();
        assert_eq!(record(&specs).since(&before).unwrap(), None);
        for at in [0, ids.len() - 1] {
            ids[at] ^= 1;
            fs::write(&path, &ids).unwrap();
            let text = record(&specs).since(&before).unwrap_err().message().to_owned();
            assert!(text.contains("train.bin was edited"), "{text}");
            ids[at] ^= 1;
        }
        ids.extend([1; 4096]);
        fs::write(&path, &ids).unwrap();
        let text = record(&specs).since(&before).unwrap().unwrap();
        assert!(text.contains("train.bin (4.0 KiB more)"), "{text}");
        // Text instead of shards is different data, regardless of its name.
        let text = folder(&[("train.txt", "text")]);
        let refused = record(&[text.path().to_owned()]).since(&before).unwrap_err().message().to_owned();
        assert!(refused.contains("train.bin (7.6 MiB) is missing"), "{refused}");
        let newer = String::from_utf8(before).unwrap().replace("\"format\":1", "\"format\":2");
        assert!(record(&specs).since(newer.as_bytes()).unwrap_err().message().contains("has format 2"));
    }
}
