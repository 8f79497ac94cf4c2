//! A block format: its name, its block size, and the conversions to and from numbers.

use super::pieces::Pieces;
use netcl_device::{Error, Result};
use std::num::NonZero;

/// Format of quantized (or plain) weights, as numbered by ggml and GGUF files. Rows are divided into blocks of `block` elements, stored
/// consecutively in `bytes` bytes each. The length of a row must be a multiple of `block`.
pub struct Format {
    /// Name in ggml, such as `Q4_K`.
    pub name: &'static str,
    /// Number in GGUF files (`ggml_type`).
    pub number: u32,
    /// Elements per block.
    pub block: usize,
    /// Bytes per block.
    pub bytes: usize,
    /// Converts one block to its elements; for a plain format, any number of elements. Both have exactly the sizes above.
    pub(super) dequantise: fn(&[u8], &mut [f32]),
    /// Converts the elements of a block, with weights of their squared errors, to the block; for a plain format, any number of elements.
    /// `None` if netcl only reads this format.
    pub(super) quantise: Option<Quantise>,
    /// Kernel source for its blocks. `None`: blocks are dequantized on the host when they are loaded.
    pub(super) kernels: Option<FormatKernels>,
}

/// Kernel source for blocks of a format.
pub(super) struct FormatKernels {
    /// Its source, after the source that it shares with others. unpack.cl, codes.cl and planes.cl state the requirements.
    pub text: &'static str,
    /// Units of a block in panels, in order: number of units, and bytes per unit.
    pub units: &'static [(usize, usize)],
    /// Conversion of rows to planes, if kernels read those.
    pub planes: Option<Pieces>,
}

/// Converts elements, with weights of their squared errors, to bytes.
pub(super) type Quantise = fn(&[f32], &[f32], &mut [u8]);

/// Minimum number of elements per thread. For fewer, starting a thread costs more than it saves.
const PER_THREAD: usize = 1 << 15;
/// Number of elements of the largest block.
pub(super) const MAX_BLOCK_ELEMENTS: usize = 256;

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

    /// Returns whether kernels can read its blocks, so that [`Blocks`](super::Blocks) supports it.
    pub fn on_devices(&self) -> bool {
        self.kernels.is_some()
    }

    /// Returns whether each element has its own bits, without a shared scale.
    pub fn is_plain(&self) -> bool {
        self.block == 1
    }

    /// Returns the bits per element, including scales.
    pub fn bits(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.block as f64
    }

    /// Returns the bytes of `elements` in rows of whole blocks. `None` if they are not whole blocks, or the bytes exceed `usize`.
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
                "{elements} elements are not a whole number of {self}'s blocks of {}",
                self.block
            ))),
        }
    }

    /// Dequantizes blocks to f32 on all cores, with the same bits as ggml.
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

    /// Dequantizes blocks into new memory.
    ///
    /// # Errors
    /// `Shape` if `bytes` are not whole blocks of `elements`.
    pub fn dequantised(&self, bytes: &[u8], elements: usize) -> Result<Vec<f32>> {
        self.check(elements, bytes.len())?;
        let mut out = vec![0.0; elements];
        self.dequantise(bytes, &mut out)?;
        Ok(out)
    }

    /// Quantizes f32 values to blocks with a small squared error, on all cores. `values` are rows of `row` elements. `importance` has the
    /// weight of each column's error (an importance matrix) [default: 1].
    ///
    /// # Errors
    /// `Unsupported` for formats that netcl only reads; `Shape` for rows that are not whole blocks and for wrong sizes; `Format` for values
    /// that are not finite (in block formats, because a NaN would spoil its whole block) and for negative weights.
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
                "got {} values in rows of {row}: {self} needs whole rows with a multiple of {} elements",
                values.len(),
                self.block
            )));
        }
        let importance = self.importance(row, importance)?;
        if let Some(at) = values.iter().position(|v| !v.is_finite()).filter(|_| !self.is_plain()) {
            return Err(Error::format(format!(
                "value {} of row {} is {}: {self} only stores finite numbers",
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
                // If all weights of a block are 0, its errors count equally.
                let weights = weights.filter(|weights| weights.iter().any(|w| *w > 0.0));
                quantise(values, weights.unwrap_or(&[1.0; MAX_BLOCK_ELEMENTS][..self.block]), out);
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

    /// Returns the weights of a row's columns, if any is positive. A row of zeros is ignored.
    fn importance<'a>(&self, row: usize, given: Option<&'a [f32]>) -> Result<Option<&'a [f32]>> {
        let Some(weights) = given else { return Ok(None) };
        if weights.len() != row {
            return Err(Error::shape(format!("got {} column weights, expected {row}", weights.len())));
        }
        if let Some(bad) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            return Err(Error::format(format!(
                "the weight of column {bad} is {}, expected a finite nonnegative number",
                weights[bad]
            )));
        }
        Ok(weights.iter().any(|w| *w > 0.0).then_some(weights))
    }
}

/// Reads the f16 at byte `at`.
pub(super) fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes `value` as f16 at byte `at`.
pub(super) fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// Reads the u16 at byte `at`.
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Reads the u32 at byte `at`.
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
