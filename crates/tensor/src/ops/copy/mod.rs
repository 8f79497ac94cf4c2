//! Contiguous copies of views. Views with contiguous rows are copied by rows, transposed views by tiles.

use super::map::row_grid;
use super::prelude::*;
use super::streaming_stores;
use netcl_kernel::Launch;

static TRANSPOSE: Kernel = Kernel::new("transpose", cl_file!("transpose.cl"))
    .tune(&[("WG", &[256])])
    .tune_cpu(&[("WG", &[1]), ("TILE", &[32, 64]), ("TALL", &[64, 128])]);
static ROWS: Kernel =
    Kernel::new("copy_rows", cl_file!("copy_rows.cl")).tune(&[("WG", &[256, 128])]).tune_cpu(&[("WG", &[1])]);

/// Copies a view to a contiguous tensor. Integers are moved as the bits of floats, masks as bytes.
pub(crate) fn copy(x: &Tensor) -> Result<Tensor> {
    let y = x.empty_like()?;
    if y.count() == 0 {
        return Ok(y);
    }
    match Transposed::of(x.layout()) {
        Some(view) => view.copy(x, &y)?,
        None => match Rows::of(x.layout()) {
            Some(view) => view.copy(x, &y)?,
            None => map_into("x0", &[&as_bits(x)], &[], &as_bits(&y))?,
        },
    }
    Ok(y)
}

/// Returns the same bits as a type of the same size that kernels can move: a float or a mask.
pub(super) fn as_bits(x: &Tensor) -> Tensor {
    Tensor::from_parts(x.storage().clone(), x.layout().clone(), storage(x.dtype()), None)
}

/// Returns the type as which elements are moved. For kernels that only move elements, integers are the bits of floats.
pub(super) fn storage(dtype: DType) -> DType {
    match dtype {
        DType::I32 | DType::U32 => DType::F32,
        same => same,
    }
}

/// One axis of a view and of its contiguous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    /// Stride in the view.
    from: usize,
    /// Stride in the copy.
    to: usize,
}

impl Axis {
    const NONE: Self = Self { size: 1, from: 0, to: 0 };
}

/// A view whose last axis is strided while another one is contiguous.
#[derive(Debug, PartialEq, Eq)]
struct Transposed {
    rows: Axis,
    columns: Axis,
    batch: [Axis; 3],
}

/// Returns the axes of a view, outermost first, without those of size 1. Axes with a common stride in the view are merged.
fn axes(layout: &Layout) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    let to = layout.shape.strides();
    for (i, size) in layout.shape.dims().iter().enumerate().filter(|(_, n)| **n != 1) {
        let axis = Axis { size: *size, from: layout.strides[i], to: to[i] };
        match axes.last_mut() {
            Some(last) if last.from == axis.from * size => {
                *last = Axis { size: last.size * size, ..axis };
            }
            _ => axes.push(axis),
        }
    }
    axes
}

/// Binds sizes, strides in the view and strides in the copy, in this order.
fn bind<'a>(launch: Launch<'a>, axes: &[Axis]) -> Launch<'a> {
    let fields = [|a: &Axis| a.size, |a: &Axis| a.from, |a: &Axis| a.to];
    fields
        .iter()
        .fold(launch, |launch, field| axes.iter().fold(launch, |launch, axis| launch.scalar(field(axis))))
}

/// Returns the code by which elements of this type move: as 4, 2 or 1 bytes.
fn code(x: &Tensor) -> i64 {
    match x.dtype().size() {
        4 => DType::F32,
        2 => DType::Bf16,
        _ => DType::Bool,
    }
    .code()
}

/// Returns whether a kernel that counts to `largest`, in steps of a launch's size, needs 64 bits.
fn wide(largest: usize) -> bool {
    i32::try_from(largest).is_err()
}

/// Returns a number that is a multiple of a power of two if all of these are.
fn multiples(values: impl IntoIterator<Item = usize>) -> usize {
    values.into_iter().fold(0, |all, value| all | value)
}

/// A view whose last axis is contiguous.
#[derive(Debug, PartialEq, Eq)]
struct Rows {
    length: usize,
    /// The other axes, in order of decreasing strides in the view.
    batch: [Axis; 4],
}

impl Rows {
    fn of(layout: &Layout) -> Option<Self> {
        let mut axes = axes(layout);
        let length = axes.pop().filter(|a| a.from == 1)?.size;
        axes.sort_by_key(|a| std::cmp::Reverse(a.from));
        let mut batch = [Axis::NONE; 4];
        let first = batch.len().checked_sub(axes.len()).filter(|first| *first < batch.len())?;
        batch[first..].copy_from_slice(&axes);
        Some(Self { length, batch })
    }

    fn copy(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (device, bytes) = (x.device(), x.dtype().size());
        let rows: usize = self.batch.iter().map(|a| a.size).product();
        let wg = Tuning::value(device, &ROWS, 0, "WG");
        let to = multiples(self.batch.iter().map(|a| a.to).chain([y.layout().offset]));
        let from = multiples(self.batch.iter().map(|a| a.from).chain([x.layout().offset, self.length]));
        let whole = wg > 1 && (to | from).is_multiple_of(16 / bytes);
        let streaming = wg == 1 && streaming_stores(y) && to.is_multiple_of(64 / bytes);
        let (local, groups) = match wg {
            1 => ([1; 3], [row_groups(device, rows, self.length), 1, 1]),
            _ => row_grid(device, wg, if whole { 16 / bytes } else { 1 }, rows, self.length),
        };
        let launch = ROWS.launch("copy_rows").define("DTYPE", code(x)).define("STREAMING", streaming);
        let launch = launch.define("WHOLE", whole).define("WIDE", wide(rows)).local(local).groups3(groups);
        let launch = launch.read_base(x).scalar(x.layout().offset).write_base(y).scalar(y.layout().offset);
        bind(launch.scalar(self.length).scalar(rows), &self.batch).run()
    }
}

impl Transposed {
    fn of(layout: &Layout) -> Option<Self> {
        let mut axes = axes(layout);
        let columns = axes.pop().filter(|a| a.from > 1)?;
        let rows = axes.remove(axes.iter().position(|a| a.from == 1)?);
        let mut batch = [Axis::NONE; 3];
        batch.get_mut(..axes.len())?.copy_from_slice(&axes);
        Some(Self { rows, columns, batch })
    }

    fn copy(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (device, bytes) = (x.device(), x.dtype().size());
        let value = |name| Tuning::value(device, &TRANSPOSE, 0, name);
        // `DOWN` and `ACROSS`, or `SIDE`, of the kernel.
        let wg = value("WG");
        let (tall, tile) = if wg == 1 { (value("TALL"), value("TILE") * 4 / bytes) } else { (64, 64) };
        let (down, across) = (self.rows.size.div_ceil(tall), self.columns.size.div_ceil(tile));
        let batch = self.batch.iter().map(|a| a.size).product::<usize>();
        let tiles = down * across * batch;
        let (local, groups) = match wg {
            1 => ([1; 3], [row_groups(device, tiles, tall * tile), 1, 1]),
            // Limits of a grid's axes on NVIDIA's GPUs.
            _ => ([32, wg / 32, 1], [down.min(1 << 20), across.min(65_535), batch.min(65_535)]),
        };
        let starts =
            multiples(self.batch.iter().chain([&self.rows]).map(|a| a.to).chain([y.layout().offset]));
        let streaming: i64 = match local == [1; 3] && streaming_stores(y) {
            true if starts.is_multiple_of(64 / bytes) => 2,
            true if starts.is_multiple_of(8) => 1,
            _ => 0,
        };
        let launch = TRANSPOSE.launch("transpose").define("DTYPE", code(x)).define("STREAMING", streaming);
        let launch =
            launch.define("WIDE", wide(tiles)).define("BATCH", batch > 1).local(local).groups3(groups);
        let launch = launch.read_base(x).scalar(x.layout().offset).write_base(y).scalar(y.layout().offset);
        let launch = [self.rows.size, self.columns.size, self.rows.to, self.columns.from]
            .into_iter()
            .fold(launch, |launch, value| launch.scalar(value));
        bind(launch, &self.batch).run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposed_views_are_found_and_others_are_not() {
        let view = |dims: &[usize], axes: &[usize]| {
            let full = Layout::contiguous(dims.into());
            let pick = |from: &[usize]| axes.iter().map(|a| from[*a]).collect::<Vec<_>>();
            let shape = Shape::from(pick(dims));
            Transposed::of(&Layout { shape, strides: pick(&full.strides), offset: 0 })
        };
        let matrix = view(&[5, 7], &[1, 0]).unwrap();
        assert_eq!(matrix.rows, Axis { size: 7, from: 1, to: 5 });
        assert_eq!(matrix.columns, Axis { size: 5, from: 7, to: 1 });
        // (B, T, H, D) -> (B, H, T, D) has whole rows; (B, H, D, T) does not.
        assert_eq!(view(&[2, 3, 4, 5], &[0, 2, 1, 3]), None);
        let keys = view(&[2, 3, 4, 5], &[0, 2, 3, 1]).unwrap();
        assert_eq!((keys.rows.size, keys.columns.size, keys.batch[0].size), (20, 3, 2));
        assert_eq!(view(&[2, 3, 4], &[0, 1, 2]), None);
    }

    #[test]
    fn rows_are_found_and_taken_in_the_order_of_the_view() {
        let view = |dims: &[usize], strides: &[usize]| {
            Rows::of(&Layout { shape: dims.into(), strides: strides.to_vec(), offset: 0 })
        };
        let axis = |size, from, to| Axis { size, from, to };
        // (B, T, H, D) as (B, H, T, D): T has a larger stride than H.
        let heads = view(&[2, 4, 3, 5], &[60, 5, 20, 1]).unwrap();
        assert_eq!(heads.length, 5);
        assert_eq!(heads.batch, [Axis::NONE, axis(2, 60, 60), axis(3, 20, 5), axis(4, 5, 15)]);
        let window = view(&[6, 3], &[9, 1]).unwrap();
        assert_eq!((window.length, window.batch[3]), (3, axis(6, 9, 3)));
        let repeated = view(&[4, 3], &[0, 1]).unwrap();
        assert_eq!(repeated.batch[3], axis(4, 0, 3));
        assert_eq!(view(&[6, 3], &[3, 1]), None, "one run of elements");
        assert_eq!(view(&[5, 7], &[1, 5]), None, "no rows");
        assert_eq!(view(&[3; 5], &[9, 81, 3, 27, 1]).unwrap().batch.map(|a| a.from), [81, 27, 9, 3]);
        assert_eq!(view(&[3; 6], &[9, 81, 3, 243, 27, 1]), None, "more axes than the kernel takes");
    }

    /// Tests rows of every alignment and length, in windows, permutations and repetitions.
    #[test]
    fn rows_of_every_view_copy_exactly() {
        let device = crate::suite::test_device().unwrap();
        let data: Vec<f32> = (0..6 * 7 * 5 * 48)
            .map(|i: usize| if i.is_multiple_of(3) { 0.0 } else { (i % 250) as f32 })
            .collect();
        for dtype in [DType::F32, DType::Bf16, DType::U32, DType::Bool] {
            for (size, window) in [(48, 0..48), (48, 16..48), (48, 3..20), (48, 8..9), (40, 8..40), (5, 0..5)]
            {
                let shape = [6, 7, 5, size];
                let count = shape.iter().product();
                let host = Array::new(shape, data[..count].iter().map(|v| f64::from(*v)).collect());
                let x = Tensor::from_f32(&device, shape, &data[..count], dtype).unwrap();
                for axes in [[0, 2, 1, 3], [2, 1, 0, 3], [0, 1, 2, 3], [1, 2, 0, 3]] {
                    let view = x.permute(&axes).unwrap().slice(3, window.clone()).unwrap();
                    let full = host.permute(&axes).data;
                    let rows = full.chunks(size).flat_map(|row| &row[window.clone()]);
                    let expected: Vec<f32> = rows.map(|v| dtype.round(*v) as f32).collect();
                    let got = view.contiguous().unwrap().to_vec().unwrap();
                    assert_eq!(got, expected, "{dtype} {shape:?} {axes:?} {window:?}");
                }
            }
        }
        let x = Tensor::from_f32(&device, [3, 1, 20], &data[..60], DType::F32).unwrap();
        let got = x.expand([3, 4, 20]).unwrap().contiguous().unwrap().to_vec().unwrap();
        assert!(got.chunks(20).enumerate().all(|(i, row)| row == &data[i / 4 * 20..][..20]));
    }

    #[test]
    fn every_size_and_order_of_axes_copies_exactly() {
        let device = crate::suite::test_device().unwrap();
        let shape = [3, 41, 2, 37];
        let data: Vec<f32> = (0..shape.iter().product())
            .map(|i: usize| if i.is_multiple_of(3) { 0.0 } else { (i % 250) as f32 })
            .collect();
        let host = Array::new(shape, data.iter().map(|v| f64::from(*v)).collect());
        for dtype in [DType::F32, DType::Bf16, DType::U32, DType::Bool] {
            let x = Tensor::from_f32(&device, shape, &data, dtype).unwrap();
            for axes in [[3, 2, 1, 0], [0, 3, 2, 1], [1, 3, 0, 2], [3, 0, 1, 2], [0, 2, 3, 1]] {
                let got = x.permute(&axes).unwrap().to_vec().unwrap();
                let moved = host.permute(&axes).data;
                let expected: Vec<f32> = moved.iter().map(|v| dtype.round(*v) as f32).collect();
                assert_eq!(got, expected, "{dtype} {axes:?}");
            }
        }
        let x = Tensor::from_f32(&device, [111, 82], &data[..111 * 82], DType::F32).unwrap();
        let window = x.slice(0, 3..103).unwrap().slice(1, 5..80).unwrap().transpose(0, 1).unwrap();
        let got = window.to_vec().unwrap();
        for (i, v) in got.iter().enumerate() {
            assert_eq!(*v, data[(3 + i % 100) * 82 + 5 + i / 100]);
        }
    }
}
