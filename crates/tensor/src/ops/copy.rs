//! Contiguous copies of views. Views whose rows are rows in memory are copied by rows; those that were transposed, by tiles.

use super::past_caches;
use super::prelude::*;

static TRANSPOSE: Kernel = Kernel::new("transpose", include_str!("transpose.cl"))
    .tune(&[("WG", &[256]), ("TILE", &[32])])
    .tune_cpu(&[("WG", &[1]), ("TILE", &[64, 128]), ("TALL", &[128, 64])]);

/// A contiguous copy. Integers move as the bits of floats.
pub(super) fn copy(x: &Tensor) -> Result<Tensor> {
    let y = x.empty_like()?;
    match Transposed::of(x.layout()) {
        Some(view) => view.copy(x, &y)?,
        None => map_into("x0", &[&as_bits(x)], &[], &as_bits(&y))?,
    }
    Ok(y)
}

/// The same bits under a float type of the same size.
pub(super) fn as_bits(x: &Tensor) -> Tensor {
    let dtype = if x.dtype().is_float() { x.dtype() } else { DType::F32 };
    Tensor::from_parts(x.storage().clone(), x.layout().clone(), dtype, None)
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

/// A view whose last axis is strided while another has neighbours for neighbours.
#[derive(Debug, PartialEq, Eq)]
struct Transposed {
    rows: Axis,
    columns: Axis,
    batch: [Axis; 3],
}

impl Transposed {
    fn of(layout: &Layout) -> Option<Self> {
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
        let columns = axes.pop().filter(|a| a.from > 1)?;
        let rows = axes.remove(axes.iter().position(|a| a.from == 1)?);
        let mut batch = [Axis { size: 1, from: 0, to: 0 }; 3];
        batch.get_mut(..axes.len())?.copy_from_slice(&axes);
        Some(Self { rows, columns, batch })
    }

    fn copy(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let (device, bytes) = (x.device(), x.dtype().size());
        let value = |name| Tuning::value(device, &TRANSPOSE, 0, name);
        let (wg, tile) = (value("WG"), value("TILE"));
        let (tall, tile, local) = match wg {
            // `DOWN` and `ACROSS` in the kernel.
            1 => (value("TALL") * (4 / bytes).pow(2), tile * 4 / bytes, [1, 1, 1]),
            _ => (tile, tile, [32, wg / 32, 1]),
        };
        let across = self.rows.size.div_ceil(tall) * self.columns.size.div_ceil(tile);
        let tiles = across * self.batch.iter().map(|a| a.size).product::<usize>();
        let groups = row_groups(device, tiles, tall * tile);
        let starts = self.batch.iter().chain([&self.rows]).fold(y.layout().offset, |all, axis| all | axis.to);
        let past = wg == 1 && past_caches(y) && starts.is_multiple_of(8);
        let code = if x.dtype().size() == 4 { DType::F32 } else { DType::Bf16 }.code();
        let mut launch = TRANSPOSE
            .launch("transpose")
            .define("DTYPE", code)
            .define("PAST", past)
            .local(local)
            .groups(groups);
        launch = launch.read_base(x).scalar(x.layout().offset).write_base(y).scalar(y.layout().offset);
        for value in [self.rows.size, self.columns.size, self.rows.to, self.columns.from] {
            launch = launch.scalar(value);
        }
        for field in [|a: &Axis| a.size, |a: &Axis| a.from, |a: &Axis| a.to] {
            launch = self.batch.iter().fold(launch, |launch, axis| launch.scalar(field(axis)));
        }
        launch.run()
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
    fn every_size_and_order_of_axes_copies_exactly() {
        let device = crate::suite::test_device().unwrap();
        let shape = [3, 41, 2, 37];
        let data: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i % 250) as f32).collect();
        let host = Array::new(shape, data.iter().map(|v| f64::from(*v)).collect());
        for dtype in [DType::F32, DType::Bf16, DType::U32] {
            let x = Tensor::from_f32(&device, shape, &data, dtype).unwrap();
            for axes in [[3, 2, 1, 0], [0, 3, 2, 1], [1, 3, 0, 2], [3, 0, 1, 2], [0, 2, 3, 1]] {
                let got = x.permute(&axes).unwrap().to_vec().unwrap();
                let expected: Vec<f32> = host.permute(&axes).data.iter().map(|v| *v as f32).collect();
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
