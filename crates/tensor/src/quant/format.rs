//! A block format: its name, the size of a block, and the conversion of blocks to and from numbers.

use super::pieces::Pieces;
use netcl_device::{Error, Result};
use std::num::NonZero;

/// A format of quantized (or plain) weights, with its number in ggml and GGUF files. Rows are divided into blocks of `block` elements, which are
/// consecutive and have `bytes` bytes each. A row whose length is not a multiple of `block` cannot be stored.
pub struct Format {
    /// Name in ggml: `Q4_K`.
    pub name: &'static str,
    /// Number in GGUF files (`ggml_type`).
    pub number: u32,
    /// Elements of a block.
    pub block: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// One block → its elements; for a plain format any number of elements. Both have exactly the sizes above.
    pub(super) dequantise: fn(&[u8], &mut [f32]),
    /// Elements of a block and the weights of their squared errors → the block; for a plain format any number of elements. `None`: netcl only reads
    /// this format.
    pub(super) quantise: Option<Quantise>,
    /// Blocks on devices. `None`: they are dequantized on the host during loading.
    pub(super) kernels: Option<Kernels>,
}

/// Blocks of a format in kernels.
pub(super) struct Kernels {
    /// The format's OpenCL source, after the sources that it shares with others. unpack.cl, codes.cl and planes.cl state their requirements.
    pub text: &'static str,
    /// Units of a block in panels, in order: their number, and bytes of each.
    pub units: &'static [(usize, usize)],
    /// Conversion of rows to planes, if kernels read planes.
    pub planes: Option<Pieces>,
}

/// Elements, weights of their squared errors → bytes.
pub(super) type Quantise = fn(&[f32], &[f32], &mut [u8]);

/// Minimum elements per thread: below this, starting a thread costs more than it saves.
const PER_THREAD: usize = 1 << 15;
/// Elements of the largest block.
pub(super) const LARGEST: usize = 256;

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Format {}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns the number of threads for `elements`, at most the number of blocks.
fn threads(elements: usize, blocks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    cores.min(elements / PER_THREAD).min(blocks).max(1)
}

impl Format {
    /// Returns whether netcl can write blocks of this format.
    pub fn can_quantise(&self) -> bool {
        self.quantise.is_some()
    }

    /// Returns whether kernels read the format's blocks, so that [`Blocks`](super::Blocks) can have it.
    pub fn on_devices(&self) -> bool {
        self.kernels.is_some()
    }

    /// Returns whether each element has separate bits: no scale is shared.
    pub fn is_plain(&self) -> bool {
        self.block == 1
    }

    /// Returns the bits per element, including scales.
    pub fn bits(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.block as f64
    }

    /// Returns the bytes of `elements` in rows of whole blocks; `None` if these are not a multiple of blocks, or if the bytes exceed `usize`.
    pub fn size(&self, elements: usize) -> Option<usize> {
        elements.is_multiple_of(self.block).then(|| (elements / self.block).checked_mul(self.bytes)).flatten()
    }

    /// Checks that `bytes` is the size of `elements`.
    fn check(&self, elements: usize, bytes: usize) -> Result<()> {
        match self.size(elements) {
            Some(size) if size == bytes => Ok(()),
            Some(size) => {
                Err(Error::shape(format!("{elements} elements of {self} take {size} bytes, found {bytes}")))
            }
            None => Err(Error::shape(format!(
                "{elements} elements of {self}, expected a multiple of its block size {}",
                self.block
            ))),
        }
    }

    /// Converts blocks to f32, bit for bit like ggml, on all cores.
    ///
    /// # Errors
    /// `Shape` if `bytes` and `out` do not have the same number of blocks.
    pub fn dequantise(&self, bytes: &[u8], out: &mut [f32]) -> Result<()> {
        self.check(out.len(), bytes.len())?;
        let blocks = out.len() / self.block;
        let each = blocks.div_ceil(threads(out.len(), blocks)).max(1);
        let one = |bytes: &[u8], out: &mut [f32]| {
            if self.is_plain() {
                return (self.dequantise)(bytes, out);
            }
            for (block, out) in bytes.chunks_exact(self.bytes).zip(out.chunks_exact_mut(self.block)) {
                (self.dequantise)(block, out);
            }
        };
        if each >= blocks {
            one(bytes, out);
            return Ok(());
        }
        std::thread::scope(|scope| {
            for (bytes, out) in bytes.chunks(each * self.bytes).zip(out.chunks_mut(each * self.block)) {
                scope.spawn(move || one(bytes, out));
            }
        });
        Ok(())
    }

    /// Does the same as [`dequantise`](Self::dequantise) into new memory.
    ///
    /// # Errors
    /// `Shape` if `bytes` are not whole blocks of `elements`.
    pub fn dequantised(&self, bytes: &[u8], elements: usize) -> Result<Vec<f32>> {
        self.check(elements, bytes.len())?;
        let mut out = vec![0.0; elements];
        self.dequantise(bytes, &mut out)?;
        Ok(out)
    }

    /// Converts f32 to blocks with a small squared error, on all cores. `values` are rows of `row` elements. `importance` has the weight of each
    /// column's error (an importance matrix) [default: 1].
    ///
    /// # Errors
    /// `Unsupported` for formats that netcl only reads; `Shape` for rows that are not whole blocks, and sizes that do not fit; `Format` for values
    /// that are not finite (in formats with blocks: a NaN would invalidate its whole block) and negative weights.
    pub fn quantise(
        &self,
        values: &[f32],
        row: usize,
        importance: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<()> {
        let Some(quantise) = self.quantise else {
            return Err(Error::unsupported(format!(
                "{self} is a format that netcl reads but does not write"
            )));
        };
        self.check(values.len(), out.len())?;
        if row == 0 || !values.len().is_multiple_of(row) || !row.is_multiple_of(self.block) {
            return Err(Error::shape(format!(
                "{} values in rows of {row}: {self} needs complete rows whose length is a multiple of {}",
                values.len(),
                self.block
            )));
        }
        let importance = self.importance(row, importance)?;
        if let Some(at) = values.iter().position(|v| !v.is_finite()).filter(|_| !self.is_plain()) {
            return Err(Error::format(format!(
                "value {} of row {} is {}: {self} can store only finite numbers",
                at % row,
                at / row,
                values[at]
            )));
        }
        let blocks = values.len() / self.block;
        let each = blocks.div_ceil(threads(values.len(), blocks)).max(1);
        let one = |first: usize, values: &[f32], out: &mut [u8]| {
            if self.is_plain() {
                return quantise(values, &[], out);
            }
            let pairs = values.chunks_exact(self.block).zip(out.chunks_exact_mut(self.bytes));
            for (i, (values, out)) in pairs.enumerate() {
                let column = (first + i) * self.block % row;
                let weights = importance.map(|weights| &weights[column..column + self.block]);
                // If all weights of a block are 0, they count as equal.
                let weights = weights.filter(|weights| weights.iter().any(|w| *w > 0.0));
                quantise(values, weights.unwrap_or(&[1.0; LARGEST][..self.block]), out);
            }
        };
        if each >= blocks {
            one(0, values, out);
            return Ok(());
        }
        std::thread::scope(|scope| {
            let parts = values.chunks(each * self.block).zip(out.chunks_mut(each * self.bytes));
            for (i, (values, out)) in parts.enumerate() {
                scope.spawn(move || one(i * each, values, out));
            }
        });
        Ok(())
    }

    /// Returns the weights of a row's columns if any is above 0; a row of zeros gives no weights.
    fn importance<'a>(&self, row: usize, given: Option<&'a [f32]>) -> Result<Option<&'a [f32]>> {
        let Some(weights) = given else { return Ok(None) };
        if weights.len() != row {
            return Err(Error::shape(format!("{} column weights, expected {row}", weights.len())));
        }
        if let Some(bad) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            return Err(Error::format(format!(
                "the weight of column {bad} is {}, expected a finite number of at least 0",
                weights[bad]
            )));
        }
        Ok(weights.iter().any(|w| *w > 0.0).then_some(weights))
    }
}

/// Returns the f16 at byte `at`.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes `value` as f16 at byte `at`.
pub(super) fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// Returns the u16 at byte `at`.
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Returns the u32 at byte `at`.
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
