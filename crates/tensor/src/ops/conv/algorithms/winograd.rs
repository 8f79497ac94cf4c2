//! Convolutions with 3 x 3 adjacent taps on CPUs, by Winograd's minimal filtering. It needs a quarter, or 4 of 9, of the multiply-adds, but its
//! intermediate values are larger than the result. The gradient of the images is such a convolution too.
//!
//! Errors of F(4 x 4, 3 x 3) in f32 are a few times those of a sequential sum, relative to the sum of the terms' magnitudes. A value that is not
//! finite in an image affects all pixels of its tiles.

use super::super::super::matmul::{Epilogue, MatmulProblem, Matrix, run as product};
use super::{
    ConvAlgorithm, ConvPlan, ConvRequest, ConvWeights, EPILOGUE, FUNCTIONS, Work, bias, int, with_tree,
};
use crate::ops::map::row_grid;
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

pub(super) static KERNEL: Kernel = Kernel::new("conv_winograd", cl_file!("conv_winograd.cl"))
    .include(&[EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[0])])
    .requires(|device| device.is_cpu());
/// The same kernel with expressions.
static TREE: Kernel = Kernel::new("conv_winograd", cl_file!("conv_winograd.cl"))
    .include(&[FUNCTIONS, EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[0])]);

static MODEL: Model = Model {
    name: "conv_winograd",
    constants: &[
        Constant::new("launch_us", "a launch", 4.0),
        Constant::new("cycles_per_us", "cycles of a core, each of two vectors of multiply-adds", 1700.0),
        Constant::new(
            "bytes_per_us",
            "bytes of tile transforms that a core reads and writes, mostly in its cache",
            30_000.0,
        ),
        Constant::new("weight_bytes_per_us", "bytes of weight transforms, in memory", 6000.0),
    ],
};

pub(super) static ALGORITHM: ConvAlgorithm =
    ConvAlgorithm { kernel: &KERNEL, supports, models: &[&MODEL], estimate, run, self_test: None };

/// Pixels of a tile along an axis, for the two supported forms.
const TILES: [usize; 2] = [4, 2];
/// Bytes of a block of tiles between the transforms, which stay in a CPU's cache.
const BLOCK_BYTES: usize = 4 << 20;
/// Minimum number of tiles in a block, which are the rows of its products.
const ROWS: usize = 96;
/// Cost of starting and storing a product, in steps of its sum.
const BEGIN: usize = 24;

fn supports(r: &ConvRequest<'_>) -> Result<(), &'static str> {
    let Work::Gather { .. } = r.work else { return Err("the gradient of weights") };
    let lanes = r.x.device().capabilities().vector_lanes();
    match () {
        () if r.groups != 1 => Err("several groups"),
        () if r.axes.iter().any(|a| a.taps != 3) => Err("other than 3 x 3 taps"),
        () if r.axes.iter().any(|a| a.step != 1 || a.dilation.abs() != 1) => {
            Err("taps or pixels that are not adjacent")
        }
        () if !r.c.is_multiple_of(lanes) || !r.o.is_multiple_of(lanes) => {
            Err("channels not a multiple of a vector")
        }
        () if r.pixels() == 0 || r.c == 0 => Err("an empty sum"),
        () => Ok(()),
    }
}

/// Returns the tiles along both axes, and of all images.
fn tiles(r: &ConvRequest<'_>, side: usize) -> [usize; 3] {
    let [down, across] = r.axes.map(|axis| axis.output.div_ceil(side));
    [down, across, r.batch * down * across]
}

/// Returns the bytes of a tile between the transforms.
fn tile_bytes(r: &ConvRequest<'_>, side: usize) -> usize {
    4 * (side + 2) * (side + 2) * (r.c + r.o)
}

fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let [launch, per_us, bytes_per_us, weight_bytes_per_us] = MODEL.on(r.x.device());
    let lanes = 2 * r.x.device().capabilities().vector_lanes();
    let of = |side: usize| {
        let [.., all] = tiles(r, side);
        let points = (side + 2) * (side + 2);
        let block = (BLOCK_BYTES / tile_bytes(r, side)).max(ROWS).min(all);
        let cycles = (points * all * (r.c + BEGIN) * r.o.next_multiple_of(lanes)) as f64 / lanes as f64;
        // Everything between the transforms is written and read once, and so are images and weights.
        let weights = 4 * points * r.c * r.o * 3;
        let images = 4 * (r.batch * r.axes[0].input * r.axes[1].input * r.c + r.pixels() * r.o);
        let bytes = 2 * all * tile_bytes(r, side) + images;
        let work = cycles / per_us + bytes as f64 / bytes_per_us + weights as f64 / weight_bytes_per_us;
        (
            launch * (1 + 3 * all.div_ceil(block)) as f64 + work / r.units() as f64,
            ConvPlan::Winograd { side, block },
        )
    };
    let all = TILES.map(of).into_iter();
    all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, ConvPlan::Direct))
}

/// Returns, for an axis, the first input pixel that the tile at 0 needs, its first tap, and the step to the next tap, in strides.
fn first(axis: super::ConvAxis) -> (i32, i64, i64) {
    let (least, tap, step) = if axis.dilation < 0 { (axis.origin - 2, 2, -1) } else { (axis.origin, 0, 1) };
    (i32::try_from(least).unwrap_or(i32::MIN), tap, step)
}

/// Transforms weights to matrices (points, C, O).
fn transformed(r: &ConvRequest<'_>, w: &ConvWeights, side: usize) -> Result<Tensor> {
    let points = (side + 2) * (side + 2);
    let u = r.x.empty_f32([points, r.c, r.o])?;
    let [_, o, c, i, j] = w.strides.map(|stride| i64::try_from(stride).unwrap_or(i64::MAX));
    let [(_, tap_i, step_i), (_, tap_j, step_j)] = r.axes.map(first);
    let offset = i64::try_from(w.offset).unwrap_or(i64::MAX) + tap_i * i + tap_j * j;
    let (local, groups) = grid(r, r.c, r.o);
    let launch = r.launch(&KERNEL, "conv_winograd_weights").define("M", side).flops(0);
    let launch = launch.read_base(&w.tensor).write(&u).scalar(offset).scalar(o).scalar(c);
    let launch = launch.scalar(step_i * i).scalar(step_j * j).scalar(int(r.c)).scalar(int(r.o));
    launch.local(local).groups3(groups).run()?;
    Ok(u)
}

fn grid(r: &ConvRequest<'_>, rows: usize, channels: usize) -> ([usize; 3], [usize; 3]) {
    let device = r.x.device();
    let value = |name| Tuning::value(device, &KERNEL, 0, name);
    row_grid(device, value("WG"), value("VW"), rows, channels)
}

pub(super) fn run(r: &ConvRequest<'_>, plan: &ConvPlan) -> Result<()> {
    let ConvPlan::Winograd { side, block } = *plan else { return Err(ConvAlgorithm::foreign(&KERNEL)) };
    let Work::Gather { w, bias: added, tree, y, place } = &r.work else {
        return Err(ConvAlgorithm::foreign(&KERNEL));
    };
    let u = transformed(r, w, side)?;
    let (points, [down, across, all]) = ((side + 2) * (side + 2), tiles(r, side));
    let [(top, ..), (left, ..)] = r.axes.map(first);
    let [h, width] = r.axes;
    for at in (0..all).step_by(block.max(1)) {
        let count = block.min(all - at);
        let (v, m) = (r.x.empty_f32([points, count, r.c])?, r.x.empty_f32([points, count, r.o])?);
        let (local, groups) = grid(r, count, r.c);
        let launch = r.launch(&KERNEL, "conv_winograd_input").define("M", side).flops(0);
        let launch = launch.read(r.x).write(&v).scalar(at).scalar(count);
        let sizes = [down, across, r.c, h.input, width.input];
        let launch = sizes.into_iter().fold(launch, |launch, n| launch.scalar(int(n)));
        launch.scalar(top).scalar(left).local(local).groups3(groups).run()?;
        let of = |name, x: &Tensor| Matrix::of("conv_winograd", name, x);
        product(&m, &MatmulProblem::new(of("v", &v)?, of("u", &u)?, &[points])?, &Epilogue::NONE, false)?;
        let (local, groups) = grid(r, count, r.o);
        let kernel = if tree.is_some() { &TREE } else { &KERNEL };
        let launch = r.launch(kernel, "conv_winograd_output").define("M", side).flops(0).read(&m);
        let (launch, flags) = bias(launch, *added, r.x);
        let launch = launch.write_base(*y).scalar(at).scalar(count);
        let sizes = [down, across, r.o, h.output, width.output];
        let launch = sizes.into_iter().fold(launch, |launch, n| launch.scalar(int(n)));
        let strides = [place.offset].into_iter().chain(place.strides);
        let launch = strides.fold(launch, |launch, stride| launch.scalar(stride)).scalar(flags);
        with_tree(launch, *tree).local(local).groups3(groups).run()?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests
mod tests {
    use super::super::super::geometry::Side;
    use super::super::PixelPosition;
    use super::*;
    use crate::suite::test_device;
    use crate::{Generator, Settings};

    fn drawn(device: &Device, shape: &[usize], seed: u64) -> (Tensor, Vec<f32>) {
        let values = Generator::new(seed).normal(shape.iter().product(), 0.0, 1.0);
        (Tensor::from_f32(device, shape.to_vec(), &values, DType::F32).unwrap(), values)
    }

    /// Compares both forms with sums in f64: images that are not a multiple of tiles, forward and backward, in blocks. The error of an element is
    /// at most `BOUND` of the sum of its terms' magnitudes; a sum in order has 1.2e-7 times the square root of their number.
    #[test]
    fn errors_are_within_the_bound() {
        const BOUND: f64 = 4e-6;
        let sim = Device::open("sim", &Settings::default()).unwrap();
        for device in [test_device().unwrap(), sim] {
            for (n, c, o, [rows, columns], padding) in [(2, 32, 16, [9, 6], 1), (1, 16, 48, [5, 11], 0)] {
                let side = |image: usize| {
                    let places = Side::places(image, 3, 1, padding, 1).unwrap();
                    Side { image, places, taps: 3, stride: 1, padding, dilation: 1 }
                };
                let sides = [side(rows), side(columns)];
                let forth = sides.map(|side| side.forward());
                let back = sides.map(|side| side.backward()[0].axis);
                for (axes, [c, o], strides) in
                    [(forth, [c, o], [0, 9 * c, 9, 3, 1]), (back, [o, c], [0, 9, 9 * c, 3, 1])]
                {
                    let (x, xs) = drawn(&device, &[n, axes[0].input, axes[1].input, c], 1);
                    let (w, ws) = drawn(&device, &[9 * o * c], 2);
                    let (added, bs) = drawn(&device, &[o], 3);
                    let weights = ConvWeights { tensor: w, offset: 0, strides };
                    let [h, width] = axes.map(|axis| axis.output);
                    for m in TILES {
                        let y = Tensor::full(&device, [n, h, width, o], f32::NAN, DType::F32).unwrap();
                        let place = PixelPosition { offset: 0, strides: [h * width * o, width * o, o] };
                        let work = Work::Gather { w: &weights, bias: Some(&added), tree: None, y: &y, place };
                        let request = ConvRequest { x: &x, batch: n, groups: 1, c, o, axes, work };
                        supports(&request).unwrap();
                        run(&request, &ConvPlan::Winograd { side: m, block: 4 }).unwrap();
                        for (at, got) in y.to_vec().unwrap().into_iter().enumerate() {
                            let (p, to) = (at / o, at % o);
                            let (image, at) = (p / width / h, [p / width % h, p % width]);
                            let (mut sum, mut size) = (f64::from(bs[to]), f64::from(bs[to].abs()));
                            for tap in 0..9 {
                                let taps: [usize; 2] = [tap / 3, tap % 3];
                                let from = [0, 1].map(|d| {
                                    at[d].cast_signed()
                                        + taps[d].cast_signed() * axes[d].dilation
                                        + axes[d].origin
                                });
                                if (0..2).any(|d| from[d] < 0 || from[d] >= axes[d].input.cast_signed()) {
                                    continue;
                                }
                                let from = from.map(isize::cast_unsigned);
                                for channel in 0..c {
                                    let pixel = (image * axes[0].input + from[0]) * axes[1].input + from[1];
                                    let weight =
                                        to * strides[1] + channel * strides[2] + taps[0] * 3 + taps[1];
                                    let term = f64::from(xs[pixel * c + channel]) * f64::from(ws[weight]);
                                    (sum, size) = (sum + term, size + term.abs());
                                }
                            }
                            let error = (f64::from(got) - sum).abs() / size;
                            assert!(error <= BOUND, "F({m}, 3), {c} to {o} channels: {got}, expected {sum}");
                        }
                    }
                }
            }
        }
    }
}
