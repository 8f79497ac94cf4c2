//! Convolutions of few channels on NVIDIA's sm_90 tensor cores: adjacent taps of a line become channels of one tap. Lines are copied with zeros
//! before and after them, and channels are padded to a multiple of eight. In the copy, the taps of a row of the kernel are adjacent in memory for
//! every pixel, so one box contains them all.

use super::super::geometry::ConvAxis;
use super::wgmma;
use super::{ConvAlgorithm, ConvPlan, ConvRequest, ConvWeights, Work, int};
use crate::Layout;
use crate::ops::matmul::warpgroups::MODEL;
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

/// The same kernel under a separate name, by which it is chosen, disabled and tested.
pub(super) static KERNEL: Kernel = wgmma::kernel("conv_lines_sm90", wgmma::INCLUDES);
static TREE: Kernel = wgmma::kernel("conv_lines_tree_sm90", wgmma::TREE_INCLUDES);
const KERNELS: wgmma::WgmmaKernels = wgmma::WgmmaKernels { plain: &KERNEL, tree: &TREE };
static LINES: Kernel = Kernel::new("conv_lines", cl_file!("conv_lines.cl")).tune(&[("WG", &[256, 128])]);

static COPY: Model = Model {
    name: "conv_lines",
    constants: &[
        Constant::new("copy_us", "copying lines and weights", 25.0),
        Constant::new("copy_bytes_per_us", "bytes of lines that are read and written", 1.5e6),
    ],
};

pub(super) static ALGORITHM: ConvAlgorithm = ConvAlgorithm {
    kernel: &KERNEL,
    supports,
    models: &[&MODEL, &COPY],
    estimate,
    run,
    self_test: Some(|device| wgmma::proven(device, &KERNEL, supports, run_planned)),
};

/// Maximum number of elements in a line's taps. With this limit a tap has one block of the sum or a few.
const MAX_TAP_ELEMENTS: usize = 256;

/// Returns the channels of a copied line.
fn padded(c: usize) -> usize {
    c.next_multiple_of(wgmma::LANES)
}

/// Returns the request with a row of taps as one tap, over lines `(N, H, W', taps * channels)` that overlap in memory.
fn folded<'a>(r: &ConvRequest<'_>, x: &'a Tensor, work: Work<'a>) -> ConvRequest<'a> {
    let [down, across] = r.axes;
    let whole =
        ConvAxis { input: across.output, output: across.output, taps: 1, step: 1, dilation: 1, origin: 0 };
    ConvRequest {
        x,
        batch: r.batch,
        groups: 1,
        c: across.taps * padded(r.c),
        o: r.o,
        axes: [down, whole],
        work,
    }
}

fn supports(r: &ConvRequest<'_>) -> Result<(), &'static str> {
    let across = r.axes[1];
    match () {
        () if r.x.dtype() == DType::F32 => Err("f32"),
        () if r.groups != 1 => Err("several groups"),
        () if across.dilation != 1 => Err("taps that are not adjacent"),
        () if across.taps < 2 || across.taps * padded(r.c) > MAX_TAP_ELEMENTS => {
            Err("too many channels in a row of taps, or a single tap")
        }
        () if r.pixels() == 0 || r.c == 0 => Err("an empty sum"),
        () => wgmma::supported(&folded(r, r.x, r.work)),
    }
}

fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let [start, speed] = COPY.on(r.x.device());
    let columns = columns(r.axes[1]);
    let lines = r.batch * r.axes[0].input;
    let bytes = 2 * lines * (columns * padded(r.c) + r.axes[1].input * r.c);
    let (micros, plan) = wgmma::estimate(&folded(r, r.x, r.work));
    (micros + start + bytes as f64 / speed, plan)
}

/// Returns the columns of a copied line.
fn columns(across: ConvAxis) -> usize {
    (across.output.max(1) - 1) * across.step + across.taps
}

/// Copies the lines with zeros around them, in the layout that [`folded`] describes.
fn lines(r: &ConvRequest<'_>) -> Result<Tensor> {
    let (c, across, height) = (padded(r.c), r.axes[1], r.axes[0].input);
    let columns = columns(across);
    let copy = Tensor::empty(r.x.device(), [r.batch, height, columns, c], r.x.dtype())?;
    let launch = LINES.launch("conv_lines").define("DTYPE", r.x.dtype().code()).read(r.x).write(&copy);
    let items = copy.count() / wgmma::LANES;
    let origin = i32::try_from(across.origin).unwrap_or(i32::MAX);
    let launch = launch.scalar(items).scalar(int(across.input)).scalar(int(r.c)).scalar(int(columns));
    launch.scalar(int(c / wgmma::LANES)).scalar(origin).items(items).run()?;
    let shape = Shape::from([r.batch, height, across.output, across.taps * c]);
    let strides = vec![height * columns * c, columns * c, across.step * c, 1];
    Ok(Tensor::from_parts(copy.storage().clone(), Layout { shape, strides, offset: 0 }, r.x.dtype(), None))
}

fn run(r: &ConvRequest<'_>, plan: &ConvPlan) -> Result<()> {
    run_folded(r, &|folded| wgmma::run_with(KERNELS, folded, plan))
}

/// Makes the copies and then runs the folded request by `with`.
fn run_folded(r: &ConvRequest<'_>, with: &dyn Fn(&ConvRequest<'_>) -> Result<()>) -> Result<()> {
    let x = lines(r)?;
    let ([down, across], c) = (r.axes, padded(r.c));
    match &r.work {
        Work::Gather { w, bias, tree, y, place } => {
            // Weights (O, I, J, C), with padded channels.
            let shape = Shape::from([r.o, down.taps, across.taps, r.c]);
            let strides = vec![w.strides[1], w.strides[3], w.strides[4], w.strides[2]];
            let layout = Layout { shape, strides, offset: w.offset };
            let given = Tensor::from_parts(w.tensor.storage().clone(), layout, r.x.dtype(), None);
            let all = Tensor::zeros(r.x.device(), [r.o, down.taps, across.taps, c], r.x.dtype())?;
            all.write_slice(3, 0, &given)?;
            let n = across.taps * c;
            let weights = ConvWeights { tensor: all, offset: 0, strides: [0, down.taps * n, 1, n, n] };
            let work = Work::Gather { w: &weights, bias: *bias, tree: *tree, y, place: *place };
            with(&folded(r, &x, work))
        }
        Work::Weights { dy, part, parts } => {
            let all = r.x.empty_f32([*parts, down.taps, across.taps, c, r.o])?;
            let work = Work::Weights { dy, part: &all, parts: *parts };
            with(&folded(r, &x, work))?;
            let own = all.slice(3, 0..r.c)?;
            part.reshape([*parts, down.taps, across.taps, r.c, r.o])?.write_slice(0, 0, &own)
        }
    }
}

fn run_planned(r: &ConvRequest<'_>) -> Result<()> {
    run(r, &estimate(r).1)
}

#[cfg(test)]
mod tests {
    use super::super::super::geometry::Side;
    use super::super::{PixelPosition, tile};
    use super::*;
    use crate::Generator;
    use netcl_device::Settings;

    /// Tests that the results from copied lines equal those from the image.
    #[test]
    fn rows_of_taps_are_channels() {
        let device = Device::open("sim", &Settings::from_env()).unwrap();
        let mut from = Generator::new(3);
        let mut draw =
            |dims: &[usize]| Tensor::normal(&device, dims, 0.0, 1.0, DType::F16, &mut from).unwrap();
        for (c, stride, padding, [taps_h, taps_w]) in
            [(3, 2, 3, [7, 7]), (8, 1, 0, [1, 2]), (5, 3, 1, [2, 3])]
        {
            let side = |image: usize, taps: usize| {
                let places = Side::places(image, taps, stride, padding, 1).unwrap();
                Side { image, places, taps, stride, padding, dilation: 1 }.forward()
            };
            let axes = [side(9, taps_h), side(11, taps_w)];
            let ([h, w], o) = (axes.map(|axis| axis.output), 8);
            let (x, dy) = (draw(&[2, 9, 11, c]), draw(&[2, h, w, o]));
            let (kernel, bias) = (draw(&[o, c, taps_h, taps_w]), draw(&[o]));
            let taps = taps_h * taps_w;
            let weights = ConvWeights { tensor: kernel, offset: 0, strides: [0, c * taps, taps, taps_w, 1] };
            let place = PixelPosition { offset: 0, strides: [h * w * o, w * o, o] };
            let both = [true, false].map(|here| {
                let y = Tensor::full(&device, [2, h, w, o], f32::NAN, DType::F16).unwrap();
                let part = Tensor::full(&device, [2, 1, taps_h, taps_w, c, o], f32::NAN, DType::F32).unwrap();
                let of = |work| ConvRequest { x: &x, batch: 2, groups: 1, c, o, axes, work };
                for work in [
                    Work::Gather { w: &weights, bias: Some(&bias), tree: None, y: &y, place },
                    Work::Weights { dy: &dy, part: &part, parts: 2 },
                ] {
                    let request = of(work);
                    let plain = |r: &ConvRequest<'_>| {
                        let x = r.x.contiguous()?;
                        tile::run(&ConvRequest { x: &x, ..*r }, &ConvPlan::Direct)
                    };
                    match here {
                        true => run_folded(&request, &plain).unwrap(),
                        false => plain(&request).unwrap(),
                    }
                }
                [y.to_vec().unwrap(), part.to_vec().unwrap()]
            });
            for (a, b) in both[0].iter().zip(&both[1]).flat_map(|(a, b)| a.iter().zip(b)) {
                assert!((a - b).abs() <= 4e-3 * (1.0 + b.abs()), "{c} channels: {a}, expected {b}");
            }
        }
    }
}
