//! TensorBoard event files: TFRecords (masked CRC-32C) with protocol buffers, encoded here without a library.

use super::{append::Appender, metrics::Record};
use netcl_device::{Error, Result};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Part of the file name by which TensorBoard recognizes event files.
const MARK: &str = "events.out.tfevents.";

/// An open event file.
#[derive(Debug)]
pub struct EventWriter(Appender);

impl EventWriter {
    /// Creates the event file of a run in `dir` with the earlier steps `done`. An existing file is replaced, so that no step appears twice; a
    /// running TensorBoard reloads it.
    pub fn create<M: Record>(dir: &Path, done: &[M]) -> Result<Self> {
        let old = event_files(dir)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // TensorBoard reads files in the order of their names and does not return to earlier ones.
        let mut seconds = now.as_secs();
        let path_at = |seconds| dir.join(format!("{MARK}{seconds:010}.netcl"));
        while path_at(seconds).exists() {
            seconds += 1;
        }
        let path = path_at(seconds);
        let file = File::create(&path).map_err(|e| Error::io("creating", &path, &e))?;
        let mut writer = Self(Appender::new(&path, file)?);
        let mut start = Vec::new();
        proto::double(&mut start, 1, now.as_secs_f64());
        let mut version = start.clone();
        proto::bytes(&mut version, 3, b"brain.Event:2");
        // A session log with status START makes readers discard events from its step (0) on.
        proto::bytes(&mut start, 7, &[0x08, 1]);
        let mut all = record(&version);
        all.extend(record(&start));
        done.iter().for_each(|metrics| all.extend(record(&event(metrics))));
        writer.0.push(&all)?;
        for path in old {
            fs::remove_file(&path).map_err(|e| Error::io("removing", &path, &e))?;
        }
        Ok(writer)
    }

    /// Appends a record.
    pub fn push(&mut self, metrics: &impl Record) -> Result<()> {
        self.0.push(&record(&event(metrics)))
    }

    /// Writes pending records.
    pub fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

fn event_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).map_err(|e| Error::io("reading", dir, &e))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(MARK)))
        .collect())
}

/// Encodes `Event { wall_time = 1, step = 2, summary = 5 }`.
fn event(metrics: &impl Record) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in metrics.scalars() {
        if let Some(value) = value {
            proto::bytes(&mut summary, 1, &scalar(tag, value as f32));
        }
    }
    if let Some(sample) = metrics.sample() {
        proto::bytes(&mut summary, 1, &text("sample", sample));
    }
    let mut event = Vec::new();
    proto::double(&mut event, 1, metrics.time());
    proto::int(&mut event, 2, metrics.step());
    proto::bytes(&mut event, 5, &summary);
    event
}

/// Encodes `Summary.Value { tag = 1, simple_value = 2 }`.
fn scalar(tag: &str, value: f32) -> Vec<u8> {
    let mut out = Vec::new();
    proto::bytes(&mut out, 1, tag.as_bytes());
    proto::float(&mut out, 2, value);
    out
}

/// Encodes `Summary.Value { tag = 1, tensor = 8, metadata = 9 }` for the text plug-in. It renders Markdown, so the text is indented as a code block.
fn text(tag: &str, text: &str) -> Vec<u8> {
    let indented: String = text.lines().map(|line| format!("    {line}\n")).collect();
    let mut plugin = Vec::new();
    proto::bytes(&mut plugin, 1, b"text");
    let mut metadata = Vec::new();
    proto::bytes(&mut metadata, 1, &plugin);
    // TensorProto { dtype = 1: DT_STRING, tensor_shape = 2: one axis of 1, string_val = 8 }
    let mut tensor = Vec::new();
    proto::int(&mut tensor, 1, 7);
    proto::bytes(&mut tensor, 2, &[0x12, 2, 0x08, 1]);
    proto::bytes(&mut tensor, 8, indented.as_bytes());
    let mut out = Vec::new();
    proto::bytes(&mut out, 1, tag.as_bytes());
    proto::bytes(&mut out, 8, &tensor);
    proto::bytes(&mut out, 9, &metadata);
    out
}

/// Encodes a TFRecord: length, CRC of the length, data, CRC of the data.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), data, &masked_crc(data).to_le_bytes()].concat()
}

/// Returns the masked CRC-32C (rotated, plus a constant), as TFRecord requires.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the reflected CRC with Castagnoli's polynomial, bytewise with a table that the compiler fills.
fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = (byte as u32, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

/// The four field types of protocol buffers that events use.
mod proto {
    pub(super) fn int(out: &mut Vec<u8>, field: u64, value: u64) {
        varint(out, field << 3);
        varint(out, value);
    }
    pub(super) fn double(out: &mut Vec<u8>, field: u64, value: f64) {
        varint(out, field << 3 | 1);
        out.extend(value.to_le_bytes());
    }
    pub(super) fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
        varint(out, field << 3 | 2);
        varint(out, value.len() as u64);
        out.extend(value);
    }
    pub(super) fn float(out: &mut Vec<u8>, field: u64, value: f32) {
        varint(out, field << 3 | 5);
        out.extend(value.to_le_bytes());
    }
    fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::super::StepMetrics;
    use super::*;

    #[test]
    fn the_sum_is_castagnolis() {
        // The check value of the CRC catalog, and RFC 3720 B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    /// Decodes the fields of a message: number, and the bytes or the number's bits.
    fn fields(mut data: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(data: &mut &[u8]) -> u64 {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = data[0];
                *data = &data[1..];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        }
        let mut found = Vec::new();
        while !data.is_empty() {
            let key = varint(&mut data);
            let length = match key & 7 {
                0 => {
                    found.push((key >> 3, varint(&mut data).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                5 => 4,
                2 => varint(&mut data) as usize,
                other => panic!("wire type {other}"),
            };
            found.push((key >> 3, data[..length].to_vec()));
            data = &data[length..];
        }
        found
    }

    fn records(mut data: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while !data.is_empty() {
            let length = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
            assert_eq!(data[8..12], masked_crc(&data[..8]).to_le_bytes());
            let body = &data[12..12 + length];
            assert_eq!(data[12 + length..16 + length], masked_crc(body).to_le_bytes());
            found.push(body.to_vec());
            data = &data[16 + length..];
        }
        found
    }

    #[test]
    fn events_are_read_back_and_replaced_on_resume() {
        let dir = tempfile::tempdir().unwrap();
        let step = |step| StepMetrics {
            step,
            time: 9.0,
            loss: 2.5,
            sample: (step == 300).then(|| "hi\nho".into()),
            ..Default::default()
        };
        let mut writer = EventWriter::create::<StepMetrics>(dir.path(), &[]).unwrap();
        writer.push(&step(1)).unwrap();
        let mut writer = EventWriter::create(dir.path(), &[step(1), step(2)]).unwrap();
        writer.push(&step(300)).unwrap();
        let files = event_files(dir.path()).unwrap();
        assert_eq!(files.len(), 1);
        let records = records(&fs::read(&files[0]).unwrap());
        assert_eq!(fields(&records[0])[1], (3, b"brain.Event:2".to_vec()));
        assert_eq!(fields(&records[1])[1], (7, vec![8, 1]));
        let steps: Vec<_> = records[2..].iter().map(|r| fields(r)[1].1[..2].to_vec()).collect();
        assert_eq!(steps, [[1, 0], [2, 0], [44, 1]]);
        let last = fields(&records[4]);
        let values = fields(&last[2].1);
        let loss = fields(&values[0].1);
        assert_eq!(loss, [(1, b"loss/train".to_vec()), (2, 2.5f32.to_le_bytes().to_vec())]);
        let sample = fields(&values.last().unwrap().1);
        assert_eq!(sample[0].1, b"sample");
        assert_eq!(fields(&sample[1].1)[2].1, b"    hi\n    ho\n");
    }
}
