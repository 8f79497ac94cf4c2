//! A matrix of quantized blocks on a device: a model's weights as its file stores them.
//!
//! Linear maps with it ([`fused_linear_of_blocks`](crate::ops::fused_linear::fused_linear_of_blocks)) and few rows unpack blocks while
//! reading them, so that a token takes the time of reading the file's bytes. Maps with more rows unpack the matrix once, into memory that
//! is freed after the product. The rounding of the map's input is a property of the matrix ([`Activations`]). With bytes, codes are
//! multiplied by codes, and on CPUs the matrix is stored in panels ([`super::panels`]) for this.

use super::panels::{PANEL, packed, unpacked};
use super::planes;
use super::texts::{CODES, FORMAT, PLANES, UNPACK, of_format, texts};
use super::{FORMATS, Format};
use crate::Tensor;
use crate::ops::prelude::*;
use std::borrow::Cow;

static DEQUANTISE: Kernel = Kernel::new("dequantise", cl_file!("dequantise.cl"))
    .include(&UNPACK)
    .choose(FORMAT, texts)
    .tune(GROUPS)
    .tune_cpu(&[]);
static PLANE_ROWS: Kernel = Kernel::new("rows_in_planes", cl_file!("planes_rows.cl"))
    .include(&PLANES)
    .choose(FORMAT, texts)
    .tune(GROUPS)
    .tune_cpu(&[]);

static ROWS: Kernel = Kernel::new("rows_of_blocks", cl_file!("rows.cl"))
    .include(&CODES)
    .choose(FORMAT, texts)
    .tune(GROUPS)
    .tune_cpu(&[]);

/// Work-items per group, on GPUs.
const GROUPS: &[(&str, &[i64])] = &[("WG", &[256, 128])];

/// Rounding of the input of a linear map with a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    /// No rounding: products are in f32.
    Float,
    /// Rounding to bytes in groups of 32 with a common scale. Each element is off by at most half a step of max/127. Products and sums of a
    /// group are exact.
    Int8,
}

impl Activations {
    /// All values with the names that users give.
    pub const NAMES: [(&'static str, Self); 2] = [("float", Self::Float), ("int8", Self::Int8)];

    /// Returns the default: bytes on CPUs, which multiply them several times as fast, and on devices where a decoding step is one launch
    /// ([`decode_step`](crate::ops::decode_step)).
    pub fn usual(device: &Device) -> Self {
        if device.capabilities().is_cpu() || crate::ops::decode_step::kernel::runs_on(device) {
            Self::Int8
        } else {
            Self::Float
        }
    }
}

impl std::str::FromStr for Activations {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        found.ok_or_else(|| {
            Error::unsupported(format!("unknown type of activations {name:?}; expected float or int8"))
        })
    }
}

impl std::fmt::Display for Activations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Float => "float",
            Self::Int8 => "int8",
        })
    }
}

/// Order of a matrix's bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BlockOrder {
    /// By row, as in the file.
    File,
    /// Interleaved by 16 rows ([`super::panels`]).
    Panels,
    /// By row, codes before scales ([`super::planes`]).
    Planes,
}

/// Storage of a matrix's blocks, and the rounding of its input.
#[derive(Clone, Copy)]
pub(crate) struct Stored {
    pub format: &'static Format,
    pub order: BlockOrder,
    pub activations: Activations,
}

/// Elements of a vector in [`DEQUANTISE`]; divides the group size of every format.
const LANES: usize = 8;
/// Bytes of rows that are reordered at a time: below the size at which allocators request fresh pages for each allocation.
const RUN: usize = 16 << 20;

/// Quantized weights (N, K) on a device: N rows of whole blocks.
#[derive(Clone)]
pub struct Blocks {
    stored: Stored,
    rows: usize,
    columns: usize,
    /// Bytes of rows, panels or planes, as u32, padded with zeros.
    words: Tensor,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {}) {}", self.rows, self.columns, self.stored.format)
    }
}

impl Blocks {
    /// Copies `bytes`, the concatenated rows, to the device. Linear maps use f32 inputs.
    ///
    /// # Errors
    /// `Unsupported` for a format that kernels do not support ([`Format::on_devices`]); `Shape` if `bytes` has another number of blocks; `Memory`.
    pub fn new(device: &Device, format: &'static Format, dims: [usize; 2], bytes: &[u8]) -> Result<Self> {
        Self::with_activations(device, format, dims, bytes, Activations::Float)
    }

    /// Like [`new`](Self::new), for maps whose input is rounded according to `activations`.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub fn with_activations(
        device: &Device,
        format: &'static Format,
        dims: [usize; 2],
        bytes: &[u8],
        activations: Activations,
    ) -> Result<Self> {
        Self::of_parts(device, format, dims, &[bytes], activations)
    }

    /// Like [`with_activations`](Self::with_activations), for a matrix of several parts, one above the other.
    ///
    /// # Errors
    /// Errors of [`new`](Self::new).
    pub fn of_parts(
        device: &Device,
        format: &'static Format,
        [rows, columns]: [usize; 2],
        parts: &[&[u8]],
        activations: Activations,
    ) -> Result<Self> {
        if !format.on_devices() {
            let all =
                FORMATS.iter().filter(|f| f.on_devices()).map(|f| f.name).collect::<Vec<_>>().join(", ");
            return Err(Error::unsupported(format!(
                "{format} is not supported on devices; supported are {all}"
            )));
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let fits = |row: &usize| {
            row.checked_mul(rows) == Some(bytes)
                && parts.iter().all(|p| p.len().is_multiple_of((*row).max(1)))
        };
        let Some(row) = format.size(columns).filter(fits) else {
            return Err(Error::shape(format!(
                "cannot make a matrix ({rows}, {columns}) of {format} from {bytes} bytes: rows must be whole blocks of {} elements and {} bytes",
                format.block, format.bytes
            )));
        };
        let int8 = activations == Activations::Int8;
        let order = match () {
            () if int8 && format.has_panels() && device.capabilities().is_cpu() => BlockOrder::Panels,
            // If a decoding step is one launch; tensor cores can read planes too.
            () if int8 && has_planes(device, format, columns) => BlockOrder::Planes,
            () => BlockOrder::File,
        };
        Self::stored_so(device, [rows, columns], row, parts, Stored { format, order, activations })
    }

    /// Builds rows in planes on any device.
    #[cfg(test)]
    pub(crate) fn of_planes(
        device: &Device,
        format: &'static Format,
        [rows, columns]: [usize; 2],
        bytes: &[u8],
    ) -> Result<Self> {
        let stored = Stored { format, order: BlockOrder::Planes, activations: Activations::Int8 };
        Self::stored_so(device, [rows, columns], bytes.len() / rows, &[bytes], stored)
    }

    fn stored_so(
        device: &Device,
        [rows, columns]: [usize; 2],
        row: usize,
        parts: &[&[u8]],
        stored: Stored,
    ) -> Result<Self> {
        let format = stored.format;
        let (size, unit) = match stored.order {
            BlockOrder::File => (rows * row, 1),
            BlockOrder::Panels => (rows.next_multiple_of(PANEL) * row, PANEL),
            BlockOrder::Planes => (rows * format.plane_row(columns), 1),
        };
        let words = Tensor::empty(device, [size.div_ceil(4)], DType::U32)?;
        // The rows of a panel must come from one part.
        let torn = |part: &&[u8]| !part.len().is_multiple_of((unit * row).max(1));
        let joined = match parts.split_last() {
            Some((_, above)) if above.iter().any(torn) => Some(parts.concat()),
            _ => None,
        };
        let whole = joined.as_deref().map(|all| [all]);
        let run = (RUN / row.max(1)).next_multiple_of(unit).max(unit) * row.max(1);
        let mut at = 0;
        for part in whole.as_ref().map_or(parts, |all| all.as_slice()) {
            for rows in part.chunks(if stored.order == BlockOrder::File { part.len().max(1) } else { run }) {
                let ordered = match stored.order {
                    BlockOrder::File => Cow::Borrowed(rows),
                    BlockOrder::Panels => Cow::Owned(packed(format, row, rows)),
                    BlockOrder::Planes => Cow::Owned(planes::packed(format, columns, rows)),
                };
                words.write_bytes(at, &ordered)?;
                at += ordered.len();
            }
        }
        words.write_bytes(at, &[0; 4][..4 * words.count() - at])?;
        Ok(Self { stored, rows, columns, words })
    }

    /// Reads the original bytes back from the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = self.words.to_bytes()?;
        if self.stored.order == BlockOrder::Planes {
            return Ok(planes::unpacked(self.stored.format, self.columns, &bytes));
        }
        if self.stored.order == BlockOrder::Panels {
            bytes.truncate(self.rows.next_multiple_of(PANEL) * self.row_bytes());
            return Ok(unpacked(self.stored.format, self.row_bytes(), self.rows, &bytes));
        }
        bytes.truncate(self.rows * self.row_bytes());
        Ok(bytes)
    }

    /// Returns the format of the blocks.
    pub fn format(&self) -> &'static Format {
        self.stored.format
    }
    /// Returns the rounding of the maps' input.
    pub fn activations(&self) -> Activations {
        self.stored.activations
    }
    /// Returns how kernels address its blocks.
    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }
    /// Returns rows and columns (N, K).
    pub fn dims(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }
    /// Returns whether it is stored in planes.
    pub(crate) fn in_planes(&self) -> bool {
        self.stored.order == BlockOrder::Planes
    }
    /// Returns whether it is stored in panels.
    pub(crate) fn in_panels(&self) -> bool {
        self.stored.order == BlockOrder::Panels
    }
    /// Returns the bytes between rows.
    pub(crate) fn row_bytes(&self) -> usize {
        if self.stored.order == BlockOrder::Planes {
            return self.stored.format.plane_row(self.columns);
        }
        self.columns / self.stored.format.block * self.stored.format.bytes
    }
    /// Returns the bytes on the device.
    pub fn bytes(&self) -> usize {
        4 * self.words.count()
    }

    /// Returns the memory, as u32.
    pub(crate) fn words(&self) -> &Tensor {
        &self.words
    }

    /// Looks up rows by index and multiplies them by `by`: ids u32 of any shape → the ids' shape with a last axis of size K. An index out
    /// of range gives NaN.
    ///
    /// # Errors
    /// `DType` if ids are not u32; `Memory`, and errors of launches.
    pub fn gather(&self, ids: &Tensor, by: f32, dtype: DType) -> Result<Tensor> {
        if ids.dtype() != DType::U32 || !dtype.is_float() {
            return Err(Error::dtype(format!(
                "cannot gather rows of blocks: ids are {}, expected u32; the result is {dtype}, expected a floating-point type",
                ids.dtype()
            )));
        }
        let ids = if ids.is_dense() { ids.clone() } else { ids.contiguous()? };
        let y = Tensor::empty(ids.device(), [ids.dims(), &[self.columns]].concat(), dtype)?;
        if y.count() == 0 {
            return Ok(y);
        }
        if self.rows == 0 {
            return Err(Error::shape("cannot gather rows of a matrix without rows"));
        }
        if self.stored.order == BlockOrder::Planes {
            let launch =
                self.plane_rows("gather", dtype).read_base(&ids).write(&y).scalar(ids.layout().offset);
            let launch = launch.scalar(ids.count()).scalar(self.rows).scalar(self.columns);
            launch.scalar(self.row_bytes()).scalar(by).items(ids.count() * (self.columns / 8)).run()?;
            return Ok(y);
        }
        let launch = of_format(ROWS.launch("gather"), self.stored.format);
        let launch =
            launch.define("DTYPE", dtype.code()).define("PANELS", self.stored.order == BlockOrder::Panels);
        let launch = launch.read_base(&self.words).read_base(&ids).write(&y).scalar(ids.layout().offset);
        let launch = launch.scalar(ids.count()).scalar(self.rows).scalar(self.columns).scalar(by);
        launch.items(ids.count() * (self.columns / 32)).run()?;
        Ok(y)
    }

    fn plane_rows(&self, entry: &'static str, dtype: DType) -> netcl_kernel::Launch<'static> {
        let launch = PLANE_ROWS.launch(entry).define(FORMAT, self.stored.format.name);
        let launch = launch.define("DTYPE", dtype.code()).define("VW", LANES);
        launch.define("ALIGNED_VECTORS", true).read_base(&self.words)
    }

    /// Dequantizes all elements (N, K).
    ///
    /// # Errors
    /// `Memory`, and errors of launches.
    pub fn dense(&self, dtype: DType) -> Result<Tensor> {
        let out = Tensor::empty(self.words.device(), [self.rows, self.columns], dtype)?;
        if out.count() == 0 {
            return Ok(out);
        }
        if self.stored.order == BlockOrder::Planes {
            let launch =
                self.plane_rows("dequantise", dtype).write(&out).scalar(self.rows).scalar(self.columns);
            launch.scalar(self.row_bytes()).items(self.rows * (self.columns / 8)).run()?;
            return Ok(out);
        }
        let kernel = if self.stored.order == BlockOrder::Panels { &ROWS } else { &DEQUANTISE };
        let launch = of_format(kernel.launch("dequantise"), self.stored.format);
        let launch = launch.define("DTYPE", dtype.code()).read_base(&self.words).write(&out);
        match self.stored.order == BlockOrder::Panels {
            true => {
                let items = self.rows.div_ceil(PANEL) * (self.columns / 32);
                launch.define("PANELS", 1).scalar(self.rows).scalar(self.columns).items(items).run()?;
            }
            false => launch
                .define("VW", LANES)
                .define("ALIGNED_VECTORS", true)
                .scalar(out.count())
                .items(out.count() / LANES)
                .run()?,
        }
        Ok(out)
    }
}

/// Returns whether matrices of a format with this many columns are stored in planes on a device, which is the case if kernels multiply
/// planes.
fn has_planes(device: &Device, format: &Format, columns: usize) -> bool {
    crate::ops::decode_step::kernel::runs_on(device) && format.has_planes(columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::fused_linear::{FusedOps, PreNorm, fused_linear, fused_linear_of_blocks};
    use crate::ops::gated::Gate;
    use crate::random::Generator;
    use crate::suite::test_device;

    fn formats() -> impl Iterator<Item = &'static Format> {
        FORMATS.into_iter().filter(|f| f.on_devices())
    }

    /// Creates rows of normal values as blocks of a format on the device, and their dequantized values.
    fn matrix(device: &Device, format: &'static Format, dims: [usize; 2], seed: u64) -> (Blocks, Tensor) {
        let mut generator = Generator::new(seed);
        let values =
            Tensor::normal(device, dims, 0.0, 1.0, DType::F32, &mut generator).unwrap().to_vec().unwrap();
        let mut bytes = vec![0; format.size(values.len()).unwrap()];
        format.quantise(&values, dims[1], None, &mut bytes).unwrap();
        let mut dense = vec![0.0; values.len()];
        format.dequantise(&bytes, &mut dense).unwrap();
        let dense = Tensor::from_f32(device, dims, &dense, DType::F32).unwrap();
        (Blocks::new(device, format, dims, &bytes).unwrap(), dense)
    }

    fn near(got: &Tensor, expected: &Tensor, scale: f32, what: &str) {
        assert_eq!(got.dims(), expected.dims(), "{what}");
        for (i, (a, b)) in got.to_vec().unwrap().iter().zip(expected.to_vec().unwrap()).enumerate() {
            assert!((a - b).abs() <= scale * (1.0 + b.abs()), "{what}: element {i} is {a}, expected {b}");
        }
    }

    /// Compares blocks on the device and on the host. A device may fuse a multiplication and a subtraction, so the last bit may differ.
    #[test]
    fn blocks_are_unpacked_as_on_the_host() {
        let device = test_device().unwrap();
        for format in formats() {
            let (blocks, dense) = matrix(&device, format, [3, 512], u64::from(format.number));
            near(&blocks.dense(DType::F32).unwrap(), &dense, 1e-6, format.name);
            let halves = blocks.dense(DType::Bf16).unwrap();
            near(&halves, &dense.to_dtype(DType::Bf16).unwrap(), 0.01, format.name);
        }
    }

    /// Joins parts with whole and incomplete panels, and more rows than are reordered at a time.
    #[test]
    fn parts_are_one_matrix() {
        let device = test_device().unwrap();
        let q8 = Format::named("Q8_0").unwrap();
        let draw = |bytes: usize| (0..bytes).map(|i| (i * 131 + i / 251) as u8).collect::<Vec<u8>>();
        for (rows, columns) in
            [(&[7, 9, 20][..], 96), (&[16, 32, 5], 96), (&[0, 3, 0], 64), (&[1_600, 500], 8192)]
        {
            let row = q8.size(columns).unwrap();
            let all = draw(rows.iter().sum::<usize>() * row);
            let mut left = all.as_slice();
            let parts: Vec<&[u8]> = rows.iter().map(|n| left.split_off(..n * row).unwrap()).collect();
            for activations in [Activations::Float, Activations::Int8] {
                let dims = [rows.iter().sum(), columns];
                let blocks = Blocks::of_parts(&device, q8, dims, &parts, activations).unwrap();
                assert!(blocks.to_bytes().unwrap() == all, "{rows:?} rows of {columns}, {activations}");
            }
        }
        let wrong = Blocks::of_parts(&device, q8, [2, 32], &[&[0; 33], &[0; 35]], Activations::Float);
        assert!(wrong.unwrap_err().message().contains("from 68 bytes"));
    }

    /// Tests scales of small weights, which are subnormal in f16.
    #[test]
    fn scales_of_every_size_are_read() {
        let device = test_device().unwrap();
        let q8 = Format::named("Q8_0").unwrap();
        let scales: [u16; 8] = [0x0001, 0x03ff, 0x0400, 0x8001, 0x83ff, 0x3c00, 0xfbff, 0x0000];
        let block = |d: &u16| {
            d.to_le_bytes().into_iter().chain((0..32).map(|i| (3 * i + 1) as u8)).collect::<Vec<u8>>()
        };
        let bytes: Vec<u8> = scales.iter().flat_map(block).collect();
        let mut expected = vec![0.0; 256];
        q8.dequantise(&bytes, &mut expected).unwrap();
        let blocks = Blocks::new(&device, q8, [1, 256], &bytes).unwrap();
        assert_eq!(blocks.dense(DType::F32).unwrap().to_vec().unwrap(), expected);
    }

    /// Compares maps for one row and several, with and without the surrounding operations, and with more rows than the kernels for few rows support.
    #[test]
    fn maps_by_blocks_agree_with_maps_by_what_they_stand_for() {
        let device = test_device().unwrap();
        let mut generator = Generator::new(5);
        let mut draw =
            |dims: &[usize]| Tensor::normal(&device, dims, 0.0, 1.0, DType::F32, &mut generator).unwrap();
        for (format, (n, k)) in formats().zip([(70, 512), (33, 256), (130, 1024)].into_iter().cycle()) {
            let (blocks, dense) = matrix(&device, format, [2 * n, k], 9);
            let dense = dense.transpose(0, 1).unwrap();
            let (gamma, bias) = (draw(&[k]), draw(&[2 * n]));
            // The number of rows is a define, so each needs a separate kernel; the handling of elements does not depend on the format.
            let all: &[usize] = if format.name == "Q4_K" { &[1, 3, 8, 11] } else { &[1] };
            for rows in all {
                let (x, residual) = (draw(&[*rows, k]), draw(&[*rows, n]));
                let norm = PreNorm { gamma: &gamma, beta: None, unit_offset: false, eps: 1e-5 };
                let around = FusedOps {
                    norm: Some(norm),
                    bias: Some(&bias),
                    activation: Some((Gate::Silu, true)),
                    residual: Some(&residual),
                };
                let expected = fused_linear(&x, &dense, around).unwrap();
                let what = format!("{format} ({n}, {k}), {rows} rows");
                near(&fused_linear_of_blocks(&x, &blocks, around).unwrap(), &expected, 2e-4, &what);
                let plain = fused_linear_of_blocks(&x, &blocks, FusedOps::default()).unwrap();
                near(&plain, &fused_linear(&x, &dense, FusedOps::default()).unwrap(), 2e-4, &what);
            }
        }
    }

    #[test]
    fn what_is_no_whole_block_and_what_no_kernel_unpacks_is_an_error() {
        let device = test_device().unwrap();
        let q4 = Format::named("Q4_0").unwrap();
        let wrong = Blocks::new(&device, q4, [2, 48], &[0; 54]).unwrap_err();
        assert!(wrong.message().contains("(2, 48) of Q4_0 from 54 bytes"), "{wrong}");
        assert!(Blocks::new(&device, q4, [2, 64], &[0; 71]).is_err());
        let grid = Format::named("IQ2_XXS").unwrap();
        let wrong = Blocks::new(&device, grid, [1, 256], &[0; 66]).unwrap_err();
        assert!(wrong.message().contains("Q4_K"), "{wrong}");
        let (blocks, _) = matrix(&device, q4, [4, 64], 1);
        let x = Tensor::zeros(&device, [1, 96], DType::F32).unwrap();
        assert!(
            fused_linear_of_blocks(&x, &blocks, FusedOps::default())
                .unwrap_err()
                .message()
                .contains("expected x (.., 64)")
        );
    }
}
