//! Token shards: a file of ids, headerless as nanoGPT writes it or with llm.c's header.

use super::Tokens;
use netcl_device::{Error, MappedFile, Result};
use std::path::Path;

/// llm.c's header is 256 little-endian i32: magic, version, number of ids, then zeros.
const HEADER_BYTES: usize = 1024;
/// Magic and version of llm.c's data formats, with the bytes of one id: GPT-2's fit 16 bits, Llama 3's do not.
const FORMATS: [(u32, u32, usize); 2] = [(20_240_520, 1, 2), (20_240_801, 7, 4)];

/// The ids of the shard at `path`. `Format` when it is empty, torn, or of an unknown version.
pub(super) fn open(path: &Path) -> Result<Tokens> {
    let map = MappedFile::open(path)?;
    let fail = |what: String| Err(Error::format(format!("{}: {what}", path.display())));
    if map.is_empty() {
        return fail("the file is empty; a token shard holds 16-bit ids, or llm.c's header and ids".into());
    }
    let word = |index: usize| {
        map.get(index * 4..)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |&bytes| u32::from_le_bytes(bytes))
    };
    let Some((_, version, width)) = FORMATS.into_iter().find(|format| format.0 == word(0)) else {
        if map.len() % 2 != 0 {
            return fail(format!(
                "{} bytes are not a whole number of 16-bit ids; the shard is torn, or no shard",
                map.len()
            ));
        }
        return Ok(Tokens::mapped(map, path, 0, 2));
    };
    if word(1) != version {
        return fail(format!(
            "token shard of version {}, expected {version}; write it again with a known llm.c",
            word(1)
        ));
    }
    let (count, body) = (word(2) as usize, map.len().saturating_sub(HEADER_BYTES));
    if map.len() < HEADER_BYTES || body != count * width {
        return fail(format!(
            "the header promises {count} ids of {width} bytes, {} bytes in all, but the file has {}; the shard is torn",
            HEADER_BYTES + count * width,
            map.len()
        ));
    }
    Ok(Tokens::mapped(map, path, HEADER_BYTES, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_header(magic: u32, version: u32, count: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        for (slot, value) in bytes.chunks_exact_mut(4).zip([magic, version, count]) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        bytes.extend(body);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<u32>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        open(file.path()).map(|tokens| tokens.to_vec()).inspect_err(|e| {
            assert!(e.message().starts_with(&file.path().display().to_string()));
        })
    }

    #[test]
    fn reads_the_three_formats() {
        assert_eq!(read(&[1, 0, 0, 1, 255, 255]).unwrap(), [1, 256, 65_535]);
        assert_eq!(read(&with_header(20_240_520, 1, 2, &[7, 0, 8, 1])).unwrap(), [7, 264]);
        assert_eq!(read(&with_header(20_240_801, 7, 1, &[1, 2, 3, 0])).unwrap(), [0x0003_0201]);
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
