//! Ids in files of other programs: NumPy arrays, Megatron datasets, and shards whose ids do not have 16 bits.

use super::files::FoundFile;
use netcl_device::{Error, Result};
use serde_json::{Map, Value};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Number of ids from which their width can be judged.
const MIN_IDS_FOR_WIDTH: usize = 16;
/// High halves of 32-bit ids are below this: no vocabulary has more than two million tokens.
const HIGH: u16 = 32;

/// Position of the ids in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Array {
    /// Byte of the first id.
    pub offset: u64,
    /// Bytes per id.
    pub width: u64,
    /// Number of ids.
    pub count: u64,
}

/// Refuses collections of shards.
///
/// # Errors
/// `Format` if a folder holds a collection of shards whose index is a text file, from litdata (litgpt), MosaicML's streaming, or Hugging Face
/// datasets.
pub(super) fn no_collection(files: &[FoundFile], anyway: bool) -> Result<()> {
    if anyway {
        return Ok(());
    }
    for found in files {
        let name = found.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let keys: &[(&[&str], &str)] = match &*name {
            "index.json" => &[
                (&["chunks", "config"], "a litdata dataset, as litgpt writes it"),
                (&["shards", "version"], "a dataset of MosaicML streaming"),
            ],
            "state.json" => &[(&["_data_files", "_fingerprint"], "a dataset of Hugging Face's save_to_disk")],
            _ => continue,
        };
        // An index without the files it lists is ordinary text.
        let read = std::fs::File::open(&found.path).map_err(|e| Error::io("opening", &found.path, &e))?;
        let Ok(index) = serde_json::from_reader::<_, Map<String, Value>>(BufReader::new(read)) else {
            continue;
        };
        if let Some((_, what)) = keys.iter().find(|(keys, _)| keys.iter().all(|key| index.contains_key(*key)))
        {
            let folder = found.path.parent().unwrap_or(Path::new("."));
            return Err(Error::format(format!(
                "{}: {what}, which netcl does not read ({name} lists its files). {}",
                folder.display(),
                super::format::ADVICE
            )));
        }
    }
    Ok(())
}

/// Reads the header of a `.npy` file of `bytes` bytes from its beginning.
///
/// # Errors
/// `Format` for anything except a vector of little-endian integers.
pub(super) fn npy(head: &[u8], bytes: u64) -> Result<Array> {
    let fail = |what: &str| {
        let expected = "expected a vector of uint16, uint32, int32 or int64, as written by numpy.save";
        Err(Error::format(format!("{what}; {expected}")))
    };
    if !head.starts_with(b"\x93NUMPY") {
        return fail("the file does not start like a NumPy array");
    }
    let length = |at: usize, size: usize| {
        let bytes = head.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (begin, length): (usize, _) = match head.get(6) {
        Some(1) => (10, length(8, 2)),
        _ => (12, length(8, 4)),
    };
    let text = length.and_then(|length| head.get(begin..begin.checked_add(length)?));
    let Some(text) = text.and_then(|text| std::str::from_utf8(text).ok()) else {
        return fail("its header cannot be read");
    };
    let value = |key: &str| {
        let (_, rest) = text.split_once(key)?;
        Some(rest.trim_start_matches(['\'', '"', ':', ' ']))
    };
    let kind = value("descr").map_or("", |rest| rest.split(['\'', '"']).next().unwrap_or_default());
    let width = match kind {
        "|u1" => 1,
        "<u2" | "<i2" => 2,
        "<u4" | "<i4" => 4,
        "<u8" | "<i8" => 8,
        other => return fail(&format!("it has elements of type {other}")),
    };
    let shape = value("shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
    let sizes: Vec<&str> =
        shape.unwrap_or_default().split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
    let [count] = sizes.as_slice() else {
        return fail(&format!("it has {} dimensions", sizes.len()));
    };
    let Ok(count) = count.parse::<u64>() else { return fail("its shape cannot be read") };
    let offset = (begin + length.unwrap_or(0)) as u64;
    let promised = count.checked_mul(width).and_then(|size| size.checked_add(offset));
    if promised != Some(bytes) {
        return Err(Error::format(format!(
            "the header announces {count} ids of {width} bytes, but the file has {bytes} bytes; the shard is truncated"
        )));
    }
    Ok(Array { offset, width, count })
}

/// Returns the width and number of the ids of a Megatron dataset with this index and `bytes` bytes of data.
///
/// # Errors
/// `Format` for an index of another format, for elements that are not ids, and for data that does not match its index; `Io`.
pub(super) fn megatron(index: &Path, bytes: u64) -> Result<(u64, u64)> {
    let mut head = Vec::new();
    let file = std::fs::File::open(index).map_err(|e| Error::io("opening", index, &e))?;
    file.take(34).read_to_end(&mut head).map_err(|e| Error::io("reading", index, &e))?;
    let fail = |what: String| Err(Error::format(what));
    let number = |at: usize| {
        let bytes = head.get(at..at + 8).and_then(|b| <[u8; 8]>::try_from(b).ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    if !head.starts_with(b"MMIDIDX\0\0") || head.len() < 34 {
        return fail("not the index of a Megatron dataset, which starts with MMIDIDX; the .bin file of the same name needs it".into());
    }
    if number(9) != 1 {
        return fail(format!("an index of version {}, expected 1", number(9)));
    }
    let width = match head[17] {
        1 => 1,
        3 | 8 => 2,
        4 => 4,
        5 => 8,
        code => {
            return fail(format!(
                "elements of type {code}, expected ids: 1 (uint8), 3 (int16), 4 (int32), 5 (int64) or 8 (uint16)"
            ));
        }
    };
    let sequences = number(18);
    let lengths = lengths_of(index, sequences)?;
    let expected = lengths.checked_mul(width);
    if expected != Some(bytes) {
        return fail(format!(
            "{sequences} texts with {lengths} ids of {width} bytes, but the .bin file of the same name has {bytes} bytes; one of the two is truncated"
        ));
    }
    Ok((width, lengths))
}

/// Returns the sum of the lengths in an index.
fn lengths_of(index: &Path, sequences: u64) -> Result<u64> {
    let io = |e: std::io::Error| Error::io("reading", index, &e);
    let mut file = std::fs::File::open(index).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    if sequences.checked_mul(4).is_none_or(|size| size > bytes) {
        return Err(Error::format(format!(
            "the index announces {sequences} texts, but has {bytes} bytes; it is truncated"
        )));
    }
    file.seek(SeekFrom::Start(34)).map_err(io)?;
    let mut file = BufReader::new(file);
    let mut sum = 0u64;
    let mut one = [0; 4];
    for _ in 0..sequences {
        file.read_exact(&mut one).map_err(io)?;
        sum += u64::from(u32::from_le_bytes(one));
    }
    Ok(sum)
}

/// Returns why blocks of a file without a header are not 16-bit ids; `None` if they may be.
pub(super) fn other_than_u16(blocks: &[Vec<u8>]) -> Option<String> {
    let halves = |part: usize, of: usize| {
        let whole = blocks.iter().flat_map(move |block| block.as_chunks::<2>().0.chunks_exact(of));
        whole.map(move |group| u16::from_le_bytes(group[part]))
    };
    let bytes = || blocks.iter().flatten();
    if bytes().count() >= 2 * MIN_IDS_FOR_WIDTH
        && bytes().all(|b| matches!(b, b' '..=b'~' | b'\n' | b'\r' | b'\t'))
    {
        return Some("the file contains text: use another extension than .bin, as in text.txt".into());
    }
    let count = halves(0, 2).count();
    if count < MIN_IDS_FOR_WIDTH {
        return None;
    }
    let zero = |part, of| halves(part, of).all(|half| half == 0);
    let width = if zero(2, 4) && zero(3, 4) { 64 } else { 32 };
    if zero(1, 2) && !zero(0, 2) {
        return Some(format!("every second 16-bit number is 0: these are {width}-bit ids"));
    }
    // Ids above 65535: the high halves are few small numbers; the low halves vary.
    let low = halves(0, 2).map(u64::from).sum::<u64>() / count as u64;
    let high = halves(1, 2).all(|half| half < HIGH) && low >= 8 * u64::from(HIGH);
    high.then(|| format!("every second 16-bit number is below {HIGH}: these are {width}-bit ids"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(kind: &str, shape: &str, body: &[u8]) -> Vec<u8> {
        let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
        while (10 + header.len() + 1) % 64 != 0 {
            header.push(' ');
        }
        header.push('\n');
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [&b"\x93NUMPY\x01\0"[..], &length, header.as_bytes(), body].concat()
    }

    #[test]
    fn vectors_of_numpy_are_read_and_others_refused() {
        let file = saved("<u4", "(2,)", &[1, 0, 0, 0, 2, 0, 0, 0]);
        let array = npy(&file, file.len() as u64).unwrap();
        assert_eq!((array.width, array.count, array.offset), (4, 2, file.len() as u64 - 8));
        for (kind, shape, part) in [
            ("<f4", "(2,)", "elements of type <f4"),
            (">u2", "(2,)", "elements of type >u2"),
            ("<u2", "(2, 3)", "2 dimensions"),
            ("<u2", "(9,)", "announces 9 ids"),
        ] {
            let file = saved(kind, shape, &[0; 8]);
            let message = npy(&file, file.len() as u64).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(npy(&[1, 2, 3], 3).is_err() && npy(b"\x93NUMPY\x01\0\xff\xff", 12).is_err());
    }

    #[test]
    fn ids_of_other_widths_are_noticed() {
        let ids: Vec<u32> = (0..500u32).map(|i| i * 7919 % 50_257).collect();
        let large: Vec<u32> = (0..500u32).map(|i| i * 7919 % 151_000).collect();
        let bytes = |ids: &[u32], width: usize| -> Vec<u8> {
            ids.iter().flat_map(|id| u64::from(*id).to_le_bytes()[..width].to_vec()).collect()
        };
        let of = |bytes: Vec<u8>| other_than_u16(&[bytes]).unwrap_or_default();
        assert_eq!(of(bytes(&ids, 2)), "");
        assert!(of(bytes(&ids, 4)).contains("32-bit ids"), "{}", of(bytes(&ids, 4)));
        assert!(of(bytes(&ids, 8)).contains("64-bit ids"), "{}", of(bytes(&ids, 8)));
        assert!(of(bytes(&large, 4)).contains("32-bit ids"));
        assert!(of(bytes(&large, 8)).contains("64-bit ids"));
        assert!(of(b"Just some plain English text, in a file of another name.".to_vec()).contains("text"));
        for quiet in
            [vec![0; 100], bytes(&[3; 200], 2), bytes(&[1, 0, 2], 2), bytes(&(0..65).collect::<Vec<_>>(), 2)]
        {
            assert_eq!(of(quiet), "");
        }
    }
}
