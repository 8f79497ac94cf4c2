//! Tensor maps: 128 bytes that describe a matrix in memory to the bulk copies of sm_90 (`cp.async.bulk.tensor`).
//!
//! The vendor does not document the layout. It was determined by comparing maps, and by reading the assembler's output for `tensormap.replace`. The
//! self-tests of the kernels that use it check it. Elements outside the matrix read as 0.

use crate::dtype::DType;
use netcl_device::driver::QueueKind;
use netcl_device::{Buffer, Device, Result};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

const MAP_BYTES: usize = 128;
/// Number of maps per table; a full table is followed by another.
const TABLE_MAPS: usize = 2048;

/// Returns the map's code for a type. f32 is rounded to tf32 during the copy, because matrix instructions accept nothing wider. `None` for
/// integers.
fn code(dtype: DType) -> Option<u32> {
    match dtype {
        DType::F16 => Some(6 << 7),
        DType::F32 => Some(7 << 7 | 1 << 16),
        DType::Bf16 => Some(10 << 7),
        DType::I32 | DType::U32 | DType::Bool => None,
    }
}

/// A matrix in device memory and the block of it that one copy moves to local memory with 128-byte swizzle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Type of the elements, a float.
    pub dtype: DType,
    /// Device address of the first element, a multiple of 16.
    pub address: u64,
    /// Elements per row, and number of rows.
    pub dims: [u64; 2],
    /// Bytes from one row to the next, a multiple of 16.
    pub stride: u64,
    /// Elements (128 bytes at most) and rows (256 at most) of a block.
    pub block: [u32; 2],
}

impl TensorMap {
    /// Returns true if the hardware can describe this matrix.
    pub fn fits(&self) -> bool {
        let [inner, rows] = self.block;
        code(self.dtype).is_some()
            && self.address.is_multiple_of(16)
            && self.stride.is_multiple_of(16)
            && self.stride < 1 << 36
            && (1..=128 / self.element_bytes()).contains(&inner)
            && (1..=256).contains(&rows)
            && self.dims.iter().all(|n| (1..=1 << 32).contains(n))
    }

    fn element_bytes(&self) -> u32 {
        self.dtype.size() as u32
    }

    /// Returns the words of a map. The matrix must satisfy [`fits`](Self::fits).
    fn words(&self) -> [u32; MAP_BYTES / 4] {
        let mut words = [0u32; MAP_BYTES / 4];
        words[0] = self.address as u32;
        words[1] = (self.address >> 32) as u32;
        // Rank 2; type; 128-byte swizzle; the L2 fetches 128 bytes at a time.
        words[2] = 1 << 4 | code(self.dtype).unwrap_or_default() | 3 << 13 | 2 << 17;
        words[3] = (self.stride >> 4) as u32;
        words[8] = (self.dims[0] - 1) as u32;
        words[9] = (self.dims[1] - 1) as u32;
        words[13] = (self.block[0] - 1) << 24;
        words[14] = self.block[1] - 1;
        words[16] = self.block[0] * self.block[1] * self.element_bytes();
        // Period of the swizzle in bytes.
        words[18] = 1024;
        words
    }
}

/// Matrices of one shape in two more dimensions (heads and batches, rows of images and images). A copy moves a block of several matrices, rows before
/// matrices. Rows past the end of a matrix read as 0, even if the next matrix follows in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixStack {
    /// The first matrix.
    pub matrix: TensorMap,
    /// Number of matrices in each of the two dimensions.
    pub counts: [u64; 2],
    /// Bytes from one matrix to the next, a multiple of 16.
    pub strides: [u64; 2],
    /// Matrices per block in each dimension, at most 256.
    pub depth: [u32; 2],
}

impl MatrixStack {
    /// Returns true if the hardware can describe this stack.
    pub fn fits(&self) -> bool {
        let axis = |(n, stride): (u64, u64)| {
            (1..=1 << 32).contains(&n)
                && (n == 1 || (stride.is_multiple_of(16) && (16..1 << 36).contains(&stride)))
        };
        self.matrix.fits()
            && self.counts.into_iter().zip(self.strides).all(axis)
            && self.depth.iter().all(|n| (1..=256).contains(n))
    }

    fn words(&self) -> [u32; MAP_BYTES / 4] {
        let mut words = self.matrix.words();
        words[2] |= 3 << 4; // rank 4
        for (i, (n, stride)) in self.counts.into_iter().zip(self.strides).enumerate() {
            words[4 + i] = (if n == 1 { 16 } else { stride } >> 4) as u32;
            words[10 + i] = (n - 1) as u32;
            words[14] |= (self.depth[i] - 1) << (8 * (i + 1));
            words[16] *= self.depth[i];
        }
        words
    }
}

/// The object that a map describes: a [`TensorMap`] or a [`MatrixStack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Described {
    /// Rank 2.
    Matrix(TensorMap),
    /// Rank 4.
    Stack(MatrixStack),
}

impl From<TensorMap> for Described {
    fn from(map: TensorMap) -> Self {
        Self::Matrix(map)
    }
}
impl From<MatrixStack> for Described {
    fn from(map: MatrixStack) -> Self {
        Self::Stack(map)
    }
}

impl Described {
    fn fits(&self) -> bool {
        match self {
            Self::Matrix(m) => m.fits(),
            Self::Stack(s) => s.fits(),
        }
    }
    fn encode(&self) -> [u8; MAP_BYTES] {
        let words = match self {
            Self::Matrix(m) => m.words(),
            Self::Stack(s) => s.words(),
        };
        let mut out = [0; MAP_BYTES];
        out.chunks_exact_mut(4).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        out
    }
}

#[derive(Default)]
struct Tables {
    known: HashMap<Vec<Described>, (Buffer, usize)>,
    table: Option<(Buffer, usize)>,
}

impl Tables {
    /// Adds maps on the device and returns their table and the index of the first one.
    fn add(&mut self, device: &Device, maps: &[Described]) -> Result<(Buffer, usize)> {
        let (table, used) = match self.table.take() {
            Some((table, used)) if used + maps.len() <= TABLE_MAPS => (table, used),
            _ => {
                let _tag = device.tag("tensor maps");
                (device.allocate(TABLE_MAPS * MAP_BYTES)?, 0)
            }
        };
        let bytes: Vec<u8> = maps.iter().flat_map(Described::encode).collect();
        device.upload(&table, used * MAP_BYTES, &bytes)?;
        // Shapes that change with every step must not fill the device with tables: forget full tables.
        if used == 0 {
            self.known.clear();
        }
        self.table = Some((table.clone(), used + maps.len()));
        Ok((table, used))
    }
}

/// Returns the maps of one launch in device memory: their table, and the byte offset of the first map; the others follow it. Maps that were requested
/// before are reused, because every training step uses the same ones.
///
/// # Errors
/// `Unsupported` for a matrix that no map can describe ([`TensorMap::fits`]); errors of the upload.
pub fn tensor_maps(device: &Device, maps: &[impl Copy + Into<Described>]) -> Result<(Buffer, usize)> {
    let maps: Vec<Described> = maps.iter().map(|map| (*map).into()).collect();
    // Use one table per queue: a map uploaded in another queue may not have arrived when this queue's launch runs.
    let tables = device.extension(|_| Mutex::<HashMap<QueueKind, Tables>>::default());
    let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
    let tables = tables.entry(device.queue()).or_default();
    if let Some(found) = tables.known.get(&maps) {
        return Ok(found.clone());
    }
    if let Some(bad) = maps.iter().find(|map| !map.fits()) {
        return Err(netcl_device::Error::unsupported(format!("no tensor map can describe {bad:?}")));
    }
    if device.is_dry_run() {
        // The maps are never read, and their addresses are invalid.
        return Ok((device.outside_capture(|| device.allocate(MAP_BYTES))?, 0));
    }
    // The table outlives the current recording.
    let (table, used) = device.outside_capture(|| tables.add(device, &maps))?;
    tables.known.insert(maps, (table.clone(), used * MAP_BYTES));
    Ok((table, used * MAP_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: TensorMap = TensorMap {
        dtype: DType::Bf16,
        address: 0x7_0000_1000,
        dims: [768, 16_384],
        stride: 1536,
        block: [64, 128],
    };

    #[test]
    fn words_say_what_the_hardware_reads() {
        let bytes = Described::from(MAP).encode();
        let word = |i: usize| {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        };
        assert_eq!((word(0), word(1)), (0x1000, 7));
        assert_eq!(word(2), 1 << 4 | 10 << 7 | 3 << 13 | 2 << 17);
        assert_eq!((word(3), word(8), word(9)), (96, 767, 16_383));
        assert_eq!((word(13), word(14), word(16), word(18)), (63 << 24, 127, 64 * 128 * 2, 1024));
    }

    #[test]
    fn stacks_are_rank_4() {
        let stack = MatrixStack { matrix: MAP, counts: [12, 1], strides: [128, 0], depth: [1; 2] };
        let words = stack.words();
        assert_eq!(words[2], 3 << 4 | 10 << 7 | 3 << 13 | 2 << 17);
        assert_eq!((words[3], words[4], words[5]), (96, 8, 1));
        assert_eq!(words[8..12], [767, 16_383, 11, 0]);
        assert_eq!((words[14], words[16]), (127, 64 * 128 * 2));
        assert!(stack.fits());
        assert!(!MatrixStack { strides: [0, 0], ..stack }.fits());
        // Boxes of 8 by 4 pixels of 2 images.
        let matrix = TensorMap { block: [64, 8], ..MAP };
        let boxes = MatrixStack { matrix, depth: [4, 2], ..stack };
        assert_eq!((boxes.words()[14], boxes.words()[16]), (7 | 3 << 8 | 1 << 16, 64 * 64 * 2));
        assert!(boxes.fits() && !MatrixStack { depth: [0, 1], ..boxes }.fits());
    }

    #[test]
    fn what_no_map_describes_is_seen() {
        assert!(MAP.fits());
        assert!(!TensorMap { stride: 1538, ..MAP }.fits());
        assert!(!TensorMap { address: 8, ..MAP }.fits());
        assert!(!TensorMap { dtype: DType::I32, block: [32, 128], ..MAP }.fits());
        assert!(TensorMap { dtype: DType::F32, block: [32, 128], ..MAP }.fits());
        assert!(!TensorMap { block: [128, 128], ..MAP }.fits());
        assert!(!TensorMap { dims: [768, 0], ..MAP }.fits());
    }
}
