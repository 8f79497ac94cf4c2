//! Token shards: files of ids without header (nanoGPT) or with llm.c's header.

use super::{
    Tokens,
    id_file::{IdFile, read_at},
};
use netcl_device::{Error, Result};
use std::{fs::File, path::Path};

/// llm.c's header is 256 little-endian i32: magic, version, number of ids, then zeros.
const HEADER_BYTES: u64 = 1024;
/// Magic number and version of llm.c's formats with the bytes per id: 2 for GPT-2, 4 for Llama 3.
const FORMATS: [(u32, u32, u64); 2] = [(20_240_520, 1, 2), (20_240_801, 7, 4)];

/// Opens the shard at `path`. `Format` if it is empty, truncated, or of an unknown version.
pub(super) fn open(path: &Path) -> Result<Tokens> {
    let file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
    let bytes = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
    let fail = |what: String| Err(Error::format(format!("{}: {what}", path.display())));
    if bytes == 0 {
        return fail("the file is empty; a token shard holds 16-bit ids, or llm.c's header and ids".into());
    }
    let mut head = [0; 12];
    let there = bytes.min(12) as usize;
    read_at(&file, 0, &mut head[..there]).map_err(|e| Error::io("reading", path, &e))?;
    let [magic, version, count] =
        [0, 4, 8].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let Some((_, expected, width)) = FORMATS.into_iter().find(|format| format.0 == magic) else {
        if bytes % 2 != 0 {
            return fail(format!(
                "{bytes} bytes are not a whole number of 16-bit ids; the shard is torn, or no shard"
            ));
        }
        return Ok(Tokens::of_file(IdFile::new(file, path, 0, 2), (bytes / 2) as usize));
    };
    if expected != version {
        return fail(format!(
            "token shard of version {version}, expected {expected}; write it again with a known llm.c"
        ));
    }
    let promised = HEADER_BYTES + u64::from(count) * width;
    if bytes != promised {
        return fail(format!(
            "the header promises {count} ids of {width} bytes, {promised} bytes in all, but the file has {bytes}; the shard is torn"
        ));
    }
    Ok(Tokens::of_file(IdFile::new(file, path, HEADER_BYTES, width as usize), count as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_header(magic: u32, version: u32, count: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES as usize];
        for (slot, value) in bytes.chunks_exact_mut(4).zip([magic, version, count]) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<u32>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        open(file.path()).and_then(|tokens| tokens.to_vec()).inspect_err(|e| {
            assert!(e.message().starts_with(&file.path().display().to_string()));
        })
    }

    #[test]
    fn reads_the_three_formats() {
        assert_eq!(read(&[1, 0, 0, 1, 255, 255]).unwrap(), [1, 256, 65_535]);
        assert_eq!(read(&with_header(20_240_520, 1, 2, &[7, 0, 8, 1])).unwrap(), [7, 264]);
        assert_eq!(read(&with_header(20_240_801, 7, 1, &[1, 2, 3, 0])).unwrap(), [0x0003_0201]);
    }

    /// A shard truncated after it was opened is an error (a memory-mapped file would end the process with SIGBUS).
    #[test]
    fn a_shard_that_is_cut_short_in_use_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for bytes in [vec![3; 40_000], with_header(20_240_801, 7, 10_000, &[1; 40_000])] {
            std::fs::write(file.path(), &bytes).unwrap();
            let tokens = open(file.path()).unwrap();
            let mut ids = [0; 100];
            tokens.read(9000, &mut ids).unwrap();
            std::fs::OpenOptions::new().write(true).open(file.path()).unwrap().set_len(5000).unwrap();
            let message = tokens.read(9000, &mut ids).unwrap_err().to_string();
            assert!(message.contains("was cut short while it was in use: it has 5000 bytes"), "{message}");
            assert!(message.contains(&file.path().display().to_string()), "{message}");
            assert!(
                tokens.max_id().is_err() && tokens.check_vocab(1 << 31).is_err() && tokens.to_vec().is_err()
            );
            tokens.read(0, &mut ids).unwrap();
        }
    }

    #[test]
    fn says_what_is_wrong() {
        for (bytes, part) in [
            (vec![], "is empty"),
            (vec![1, 2, 3], "3 bytes are not a whole number"),
            (with_header(20_240_520, 2, 1, &[1, 0]), "version 2, expected 1"),
            (
                with_header(20_240_520, 1, 3, &[1, 0]),
                "promises 3 ids of 2 bytes, 1030 bytes in all, but the file has 1026",
            ),
            (with_header(20_240_801, 7, 1, &[1, 0, 0, 0])[..12].to_vec(), "the file has 12"),
        ] {
            let message = read(&bytes).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
