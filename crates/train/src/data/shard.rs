//! Token shards: files of ids without header (nanoGPT), with llm.c's header, with Megatron's index, or arrays of NumPy.

use super::{
    Tokens, foreign, format,
    id_file::{IdFile, read_at},
};
use netcl_device::{Error, Result};
use std::{
    fs::File,
    path::{Path, PathBuf},
};

/// llm.c's header is 256 little-endian i32: magic, version, number of ids, then zeros.
const HEADER_BYTES: u64 = 1024;
/// Magic number and version of llm.c's formats, with the bytes per id: 2 for GPT-2, 4 for Llama 3.
const FORMATS: [(u32, u32, u64); 2] = [(20_240_520, 1, 2), (20_240_801, 7, 4)];

/// Number of blocks inspected in a shard without a header.
const PLACES: u64 = 16;
/// Bytes of each block.
const BLOCK: u64 = 4096;

/// Returns whether a file is a token shard by its name.
pub(super) fn is_named_so(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "bin" || extension == "npy")
}

/// Returns the file that describes a shard, as Megatron writes it.
pub(super) fn index_of(path: &Path) -> Option<PathBuf> {
    let index = path.with_extension("idx");
    (path.extension().is_some_and(|e| e == "bin") && index.is_file()).then_some(index)
}

/// Opens the shard at `path`. `Format` if it is empty, truncated, of an unknown version, or does not contain ids of its format.
pub(super) fn open(path: &Path) -> Result<Tokens> {
    let io = |e: std::io::Error| Error::io("reading", path, &e);
    let file = File::open(path).map_err(|e| Error::io("opening", path, &e))?;
    let bytes = file.metadata().map_err(io)?.len();
    let fail = |what: String| Err(Error::format(format!("{}: {what}", path.display())));
    if bytes == 0 {
        return fail(
            "the file is empty; a token shard contains 16-bit ids, or llm.c's header and ids".into(),
        );
    }
    let mut head = vec![0; bytes.min(512) as usize];
    read_at(&file, 0, &mut head).map_err(io)?;
    let ids = |file, offset, width: u64, count: u64| {
        Ok(Tokens::of_file(IdFile::new(file, path, offset, width as usize), count as usize))
    };
    if path.extension().is_some_and(|e| e == "npy") {
        let array = foreign::npy(&head, bytes).map_err(|e| e.context(path.display()))?;
        return ids(file, array.offset, array.width, array.count);
    }
    let word = |at: usize| head.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let [magic, version, count] = [0, 4, 8].map(word);
    if let Some((_, expected, width)) = FORMATS.into_iter().find(|format| format.0 == magic) {
        if expected != version {
            return fail(format!(
                "token shard of version {version}, expected {expected}; write it again with a known version of llm.c"
            ));
        }
        let promised = HEADER_BYTES + u64::from(count) * width;
        if bytes != promised {
            return fail(format!(
                "the header announces {count} ids of {width} bytes, {promised} bytes in all, but the file has {bytes}; the shard is truncated"
            ));
        }
        return ids(file, HEADER_BYTES, width, count.into());
    }
    if let Some(index) = index_of(path) {
        let (width, count) = foreign::megatron(&index, bytes).map_err(|e| e.context(index.display()))?;
        return ids(file, 0, width, count);
    }
    if let Some(what) = format::binary(&head, path) {
        return fail(format!("is {what}, expected a token shard: 16-bit ids, or llm.c's header and ids"));
    }
    match foreign::other_than_u16(&sampled(&file, bytes).map_err(io)?) {
        Some(what) => fail(format!(
            "{what}, but a shard without a header contains 16-bit ids. Write it again with 16-bit ids, `numpy.fromfile(old, \
             dtype).astype('uint16').tofile(new)`; larger ids require llm.c's header, or a .npy file: `numpy.save('train.npy', \
             ids.astype('uint32'))`"
        )),
        None if bytes % 2 != 0 => fail(format!(
            "{bytes} bytes are not a whole number of 16-bit ids; the shard is truncated, or the file is not a shard"
        )),
        None => ids(file, 0, 2, bytes / 2),
    }
}

/// Reads blocks of a file at equal distances, including the first and the last; each starts at a multiple of eight.
fn sampled(file: &File, bytes: u64) -> std::io::Result<Vec<Vec<u8>>> {
    let places = if bytes <= PLACES * BLOCK { bytes.div_ceil(BLOCK) } else { PLACES };
    let block = |place: u64| {
        let last = bytes.saturating_sub(BLOCK);
        let at = if places > 1 { last / (places - 1) * place / 8 * 8 } else { 0 };
        let mut block = vec![0; (bytes - at).min(BLOCK) as usize];
        read_at(file, at, &mut block)?;
        Ok(block)
    };
    (0..places).map(block).collect()
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

    /// A shard truncated after it was opened causes an error (a memory-mapped file would end the process with SIGBUS).
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
                "announces 3 ids of 2 bytes, 1030 bytes in all, but the file has 1026",
            ),
            (with_header(20_240_801, 7, 1, &[1, 0, 0, 0])[..12].to_vec(), "the file has 12"),
        ] {
            let message = read(&bytes).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
