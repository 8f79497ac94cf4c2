//! Convolutions of 16-bit images on NVIDIA's sm_90 tensor cores: the product's kernel, whose rows are boxes of pixels that TMA copies directly from
//! the image.

use super::super::super::matmul::Tree;
use super::super::super::matmul::warpgroups::{
    MODEL, NARROW, Speeds, SplitK, TILES, Tile, Unused, proof_of_expression,
};
use super::super::geometry::ConvAxis;
use super::{
    ConvAlgorithm, ConvPlan, ConvRequest, ConvWeights, EPILOGUE, FUNCTIONS, PixelPosition, Work, int, tile,
};
use crate::Layout;
use crate::ops::prelude::*;
use netcl_kernel::Launch;
use netcl_kernel::vendors::nvidia::{MatrixStack, SM90A, TensorMap, address, tensor_maps, wgmma_macros};

const TEXT: &str = concat!(
    cl_file!("../../matmul/algorithms/matmul_wgmma_sm90_tiles.cl"),
    cl_file!("conv_wgmma_sm90.cl"),
    cl_file!("../../matmul/algorithms/matmul_wgmma_sm90_reduction.cl"),
    cl_file!("../../matmul/algorithms/matmul_wgmma_sm90_epilogue.cl"),
    cl_file!("../../matmul/algorithms/matmul_wgmma_sm90.cl")
);

pub(super) static KERNEL: Kernel = kernel("conv_wgmma_sm90", INCLUDES);
static TREE: Kernel = kernel("conv_wgmma_tree_sm90", TREE_INCLUDES);
pub(super) const KERNELS: WgmmaKernels = WgmmaKernels { plain: &KERNEL, tree: &TREE };

/// A kernel without and with an expression as its epilogue.
#[derive(Clone, Copy)]
pub(super) struct WgmmaKernels {
    pub plain: &'static Kernel,
    pub tree: &'static Kernel,
}

/// Sources that the kernel includes, without and with the functions for expressions.
pub(super) const INCLUDES: &[&str] = &[
    cl_file!("../../include/sm90.cl"),
    cl_file!("../../matmul/algorithms/matmul_sm90.cl"),
    cl_file!("../../include/gelu_sm90.cl"),
    EPILOGUE,
    cl_file!("../../matmul/algorithms/matmul_wgmma_sm90_schedule.cl"),
];
pub(super) const TREE_INCLUDES: &[&str] = &[
    FUNCTIONS,
    cl_file!("../../include/sm90.cl"),
    cl_file!("../../matmul/algorithms/matmul_sm90.cl"),
    EPILOGUE,
    cl_file!("../../matmul/algorithms/matmul_wgmma_sm90_schedule.cl"),
];

/// Builds the kernel under a name.
pub(super) const fn kernel(name: &'static str, includes: &'static [&'static str]) -> Kernel {
    Kernel::new(name, TEXT)
        .include(includes)
        .generate(wgmma_macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90))
}

pub(super) static ALGORITHM: ConvAlgorithm = ConvAlgorithm {
    kernel: &KERNEL,
    supports: supported,
    models: &[&MODEL],
    estimate,
    run: |r, plan| run_with(KERNELS, r, plan),
    self_test: Some(|device| proven(device, &KERNEL, supported, |r| run_with(KERNELS, r, &estimate(r).1))),
};

/// Channels of a block (of x along the sum, or rows of a weight gradient), and pixels of a box (rows of a tile, or steps of a sum).
const BLOCK: usize = 64;
/// Maximum number of taps that have tensor maps.
const TAPS: usize = 64;
/// Elements in 16 bytes, the alignment that copies need.
pub(super) const LANES: usize = 8;

/// Returns the tiles of products, and one for few channels.
fn tiles() -> impl Iterator<Item = Tile> {
    TILES.into_iter().chain([NARROW])
}

/// Checks whether boxes of its pixels can be copied. x may have any strides except along its channels.
pub(super) fn supported(r: &ConvRequest<'_>) -> Result<(), &'static str> {
    let taps = r.axes[0].taps * r.axes[1].taps;
    let lanes = |n: usize| n.is_multiple_of(LANES);
    match () {
        () if r.x.dtype() == DType::F32 => Err("f32"),
        () if r.groups != 1 => Err("several groups"),
        () if !lanes(r.c) || !lanes(r.o) => Err("channels not a multiple of 8"),
        () if !lanes(r.x.layout().offset) => Err("an image that does not start at a multiple of 16 bytes"),
        () if taps > TAPS => Err("more than 64 taps"),
        () if r.axes.iter().any(|axis| (0..axis.taps).any(|tap| UsedPixels::of(axis, tap).is_none())) => {
            Err("a tap that is always outside of the image")
        }
        () if taps == 0 || r.pixels() == 0 || r.c == 0 || r.o == 0 => Err("an empty sum"),
        // Rows are counted in 32 bits, including those of boxes beyond the last pixel.
        () if r.pixels() > 1 << 29 || taps * r.c > 1 << 29 => Err("more than 2^29 pixels"),
        () => match r.work {
            Work::Gather { place, .. } if !place.strides.into_iter().chain([place.offset]).all(lanes) => {
                Err("pixels of the result that do not start at multiples of 16 bytes")
            }
            Work::Weights { dy, .. } if !lanes(dy.layout().offset) => {
                Err("a gradient that does not start at a multiple of 16 bytes")
            }
            _ => Ok(()),
        },
    }
}

/// The pixels of an axis that a tap uses: every `step`-th from `first` on, `count` of them, up to the result's last pixel.
struct UsedPixels {
    first: usize,
    step: usize,
    count: usize,
}

impl UsedPixels {
    fn of(axis: &ConvAxis, tap: usize) -> Option<Self> {
        let step = axis.step.cast_signed();
        let at = tap.cast_signed() * axis.dilation + axis.origin;
        let first = at.rem_euclid(step).cast_unsigned();
        let there = axis.input.checked_sub(first)?.div_ceil(axis.step).cast_signed();
        // Pixel y of the result uses the tap's pixel number y + before.
        let before = at.div_euclid(step);
        let count = there.min(axis.output.cast_signed() + before);
        (count > 0 && before < there).then(|| Self { first, step: axis.step, count: count.cast_unsigned() })
    }
    /// Returns all `count` pixels of an axis.
    fn all(count: usize) -> Self {
        Self { first: 0, step: 1, count }
    }
}

/// Pixels of a box along W and H, and images.
type Sides = [usize; 3];

/// Returns the number of boxes along each axis.
fn boxes(r: &ConvRequest<'_>, sides: Sides) -> [usize; 3] {
    let all = [r.axes[1].output, r.axes[0].output, r.batch];
    std::array::from_fn(|i| all[i].div_ceil(sides[i]))
}

/// Returns the box shape of at most 64 pixels that needs the fewest boxes; ties are decided for long lines.
fn boxes_of_rows(r: &ConvRequest<'_>) -> Sides {
    let [w, h] = [r.axes[1].output.min(BLOCK), r.axes[0].output.min(BLOCK)];
    let all = (1..=w).flat_map(|w| (1..=h.min(BLOCK / w)).map(move |h| [w, h, BLOCK / (w * h)]));
    let all = all.map(|[w, h, n]| [w, h, n.min(r.batch)]);
    let cost = |sides: &Sides| (boxes(r, *sides).iter().product::<usize>(), usize::MAX - sides[0], sides[2]);
    all.min_by_key(cost).unwrap_or([1; 3])
}

/// Returns the box shape of 64 pixels that needs the fewest boxes: pixels beyond the result are also steps of the sum.
fn boxes_of_steps(r: &ConvRequest<'_>) -> Sides {
    let all = (0..7).flat_map(|w| (0..7 - w).map(move |h| [1 << w, 1 << h, BLOCK >> (w + h)]));
    let cost = |sides: &Sides| (boxes(r, *sides).iter().product::<usize>(), usize::MAX - sides[0], sides[2]);
    all.min_by_key(cost).unwrap_or([1, 1, BLOCK])
}

/// Returns the estimated microseconds and the plan.
pub(super) fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let all = plans(r).map(|(_, micros, plan)| (micros, plan));
    all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, ConvPlan::Direct))
}

/// Returns every tile with its estimate and plan.
pub(super) fn plans(r: &ConvRequest<'_>) -> impl Iterator<Item = (Tile, f64, ConvPlan)> {
    let on = Speeds::on(r.x.device());
    let blocks = r.axes[0].taps * r.axes[1].taps * r.c.div_ceil(BLOCK);
    let sides = match r.work {
        Work::Gather { .. } => boxes_of_rows(r),
        Work::Weights { .. } => boxes_of_steps(r),
    };
    let pixels = boxes(r, sides).into_iter().product::<usize>() * BLOCK;
    let ([m, k], split) = match r.work {
        Work::Gather { .. } => ([pixels, blocks * BLOCK], SplitK::None),
        Work::Weights { parts, .. } => ([blocks * BLOCK, pixels], SplitK::Workspace(parts)),
    };
    let n = r.o;
    tiles().enumerate().map(move |(tile, shape)| {
        (shape, on.launch + shape.estimate([m, n, k], split, &on), ConvPlan::Boxes { tile, sides })
    })
}

/// Runs the plan by one of these kernels. If the kernel for expressions is not available, the expression is computed separately.
pub(super) fn run_with(kernels: WgmmaKernels, r: &ConvRequest<'_>, plan: &ConvPlan) -> Result<()> {
    match r.work {
        Work::Gather { w, bias, tree: Some(tree), place, .. }
            if !takes_expressions(r.x.device(), kernels) =>
        {
            let work = Work::Gather { w, bias, tree: None, y: tree.product, place };
            launch(kernels, &ConvRequest { work, ..*r }, plan)?;
            (tree.apart)()
        }
        _ => launch(kernels, r, plan),
    }
}

fn launch(kernels: WgmmaKernels, r: &ConvRequest<'_>, plan: &ConvPlan) -> Result<()> {
    let ConvPlan::Boxes { tile, sides } = *plan else { return Err(ConvAlgorithm::foreign(kernels.plain)) };
    let shape = tiles().nth(tile).ok_or_else(|| ConvAlgorithm::foreign(kernels.plain))?;
    match r.work {
        Work::Gather { .. } => gather(kernels, r, shape, sides),
        Work::Weights { .. } => weights(kernels.plain, r, shape, sides),
    }
}

/// Builds the map for boxes of `sides` pixels by 64 channels of images `(N, H, W, C)`; `seen` selects lines and columns.
fn map(x: &Tensor, seen: [UsedPixels; 2], [w, h, n]: Sides) -> Result<MatrixStack> {
    let [images, _, _, channels] = x.dims4()?;
    let [image, line, column, _] = x.layout().strides[..] else {
        return Err(Error::internal("conv_wgmma_sm90: expected an image of four axes"));
    };
    let (size, [lines, columns]) = (x.dtype().size(), seen);
    let first = x.layout().offset + lines.first * line + columns.first * column;
    let bytes = |elements: usize| (elements * size) as u64;
    Ok(MatrixStack {
        matrix: TensorMap {
            dtype: x.dtype(),
            address: address(x.storage())? + bytes(first),
            dims: [channels as u64, columns.count as u64],
            stride: bytes(columns.step * column),
            block: [BLOCK as u32, w as u32],
        },
        counts: [lines.count as u64, images as u64],
        strides: [bytes(lines.step * line), bytes(image)],
        depth: [h as u32, n as u32],
    })
}

/// Builds the maps of x for each tap.
fn taps(r: &ConvRequest<'_>, sides: Sides) -> Result<Vec<MatrixStack>> {
    let [down, across] = r.axes;
    let all = (0..down.taps).flat_map(|i| (0..across.taps).map(move |j| (i, j)));
    all.map(|(i, j)| match (UsedPixels::of(&down, i), UsedPixels::of(&across, j)) {
        (Some(lines), Some(columns)) => map(r.x, [lines, columns], sides),
        _ => Err(Error::internal("conv_wgmma_sm90: a tap that uses no pixel")),
    })
    .collect()
}

/// Starts both launches and binds the scalars of a product `(m, n)` with this number of blocks, in `splits` parts.
fn begun(
    launch: Launch<'static>,
    shape: Tile,
    [conv, split, bias]: [usize; 3],
    r: &ConvRequest<'_>,
) -> Launch<'static> {
    let launch =
        shape.defines(None).into_iter().fold(launch, |launch, (name, value)| launch.define(name, value));
    let along_k = conv == 1;
    let launch = launch.define("CONV", conv).define("SPLIT", split).define("BIAS", bias);
    let launch = launch.define("A_ALONG_K", along_k).define("B_ALONG_K", along_k).define("C_LANES", LANES);
    let none = ["STREAM_K", "COLUMN_SUMS", "ADD_C", "RESIDUAL", "GELU", "GELU_GRAD"];
    none.into_iter().fold(launch, |launch, name| launch.define(name, false)).read_indirect(r.x)
}

/// Binds the scalars: the product's sizes, and the mapping of its rows and steps to pixels and taps.
fn sizes(
    launch: Launch<'static>,
    r: &ConvRequest<'_>,
    sides: Sides,
    [m, n, k, splits]: [usize; 4],
) -> Launch<'static> {
    let [down, across] = r.axes;
    let [wide, high, _] = boxes(r, sides);
    let launch = [m, n, k, splits].into_iter().fold(launch, |launch, v| launch.scalar(int(v))).scalar(1.0f32);
    let taps = [down.taps * across.taps, across.taps, r.c, r.c.div_ceil(BLOCK), across.step, down.step];
    let all = [wide, high].into_iter().chain(sides).chain([across.output, down.output, r.batch]).chain(taps);
    let launch = all.fold(launch, |launch, v| launch.scalar(int(v)));
    let signed = |v: isize| i32::try_from(v).unwrap_or(i32::MAX);
    let meet = [across.dilation, down.dilation, across.origin, down.origin];
    let launch = meet.into_iter().fold(launch, |launch, v| launch.scalar(signed(v)));
    let place = match r.work {
        Work::Gather { place, .. } => [place.offset, place.strides[0], place.strides[1], place.strides[2]],
        Work::Weights { .. } => [0; 4],
    };
    place.into_iter().fold(launch, |launch, v| launch.scalar(v))
}

fn gather(kernels: WgmmaKernels, r: &ConvRequest<'_>, shape: Tile, sides: Sides) -> Result<()> {
    let Work::Gather { w, bias, tree, y, .. } = &r.work else {
        return Err(ConvAlgorithm::foreign(kernels.plain));
    };
    let kernel = if tree.is_some() { kernels.tree } else { kernels.plain };
    let (device, size, [down, across]) = (r.x.device(), r.x.dtype().size(), r.axes);
    // (O, taps, C), along the sum.
    let dims = Shape::from([r.o, down.taps, across.taps, r.c]);
    let strides = vec![w.strides[1], w.strides[3], w.strides[4], w.strides[2]];
    let layout = Layout { shape: dims, strides, offset: w.offset };
    let weights = Tensor::from_parts(w.tensor.storage().clone(), layout, r.x.dtype(), None);
    let weights = match weights.is_contiguous() && w.offset.is_multiple_of(LANES) {
        true => weights,
        false => weights.contiguous()?,
    };
    let count = down.taps * across.taps;
    let of_weights = MatrixStack {
        matrix: TensorMap {
            dtype: r.x.dtype(),
            address: address(weights.storage())? + (weights.layout().offset * size) as u64,
            dims: [r.c as u64, r.o as u64],
            stride: (count * r.c * size) as u64,
            block: [BLOCK as u32, shape.columns() as u32],
        },
        counts: [count as u64, 1],
        strides: [(r.c * size) as u64, 16],
        depth: [1; 2],
    };
    let maps: Vec<MatrixStack> = std::iter::once(of_weights).chain(taps(r, sides)?).collect();
    let (table, at) = tensor_maps(device, &maps)?;
    let rows = boxes(r, sides).into_iter().product::<usize>() * BLOCK;
    let (groups, splits) = SplitK::None.groups(shape.count(rows, r.o), 1, r.units());
    let launch = begun(r.launch(kernel, "matmul_wgmma"), shape, [1, 0, usize::from(bias.is_some())], r);
    let launch = launch.read_base(&table).read_indirect(&weights);
    let launch = match bias {
        Some(bias) => launch.read(*bias),
        None => launch.read_base(&Unused(y)),
    };
    let unused = |launch: Launch<'static>| launch.write_base(&Unused(y));
    let launch = unused(unused(unused(launch).write_base(*y))).scalar(at);
    let k = count * r.c.next_multiple_of(BLOCK);
    let launch = sizes(launch, r, sides, [rows, r.o, k, splits]);
    let launch = match tree {
        Some(tree) => tree.bind(launch.define("VW", 4)),
        None => launch,
    };
    launch.local([384, 1, 1]).groups(groups).run()
}

fn weights(kernel: &'static Kernel, r: &ConvRequest<'_>, shape: Tile, sides: Sides) -> Result<()> {
    let Work::Weights { dy, part, parts } = r.work else { return Err(ConvAlgorithm::foreign(kernel)) };
    let [down, across] = r.axes;
    let of_dy = map(dy, [UsedPixels::all(down.output), UsedPixels::all(across.output)], sides)?;
    let maps: Vec<MatrixStack> = std::iter::once(of_dy).chain(taps(r, sides)?).collect();
    let (table, at) = tensor_maps(r.x.device(), &maps)?;
    let m = down.taps * across.taps * r.c.next_multiple_of(BLOCK);
    let k = boxes(r, sides).into_iter().product::<usize>() * BLOCK;
    let (groups, splits) = SplitK::Workspace(parts).groups(shape.count(m, r.o), k, r.units());
    let launch = begun(r.launch(kernel, "matmul_wgmma"), shape, [2, 2, 0], r);
    let launch = launch.read_base(&table).read_indirect(dy).read_base(&Unused(dy));
    let launch = launch.write_base(&Unused(part)).write_base(&Unused(part)).write(part);
    let launch = launch.write_base(&Unused(part)).scalar(at);
    sizes(launch, r, sides, [m, r.o, k, splits]).local([384, 1, 1]).groups(groups).run()
}

/// Checks that `run` computes small convolutions and gradients of weights, if `supports` accepts them, with the same bits as [`tile`]. They consist
/// of integers, whose sums are exact.
pub(super) fn proven(
    device: &Device,
    kernel: &'static Kernel,
    supports: fn(&ConvRequest<'_>) -> Result<(), &'static str>,
    run: fn(&ConvRequest<'_>) -> Result<()>,
) -> bool {
    Tuning::of(device).proven(device, kernel, || {
        let all = [(1, 1), (2, 1), (1, 2)];
        all.into_iter().try_for_each(|(step, dilation)| proof(device, step, dilation, supports, run))
    })
}

/// A small convolution of integers, whose sums are exact.
struct Small {
    x: Tensor,
    dy: Tensor,
    weights: ConvWeights,
    bias: Tensor,
    axes: [ConvAxis; 2],
}

impl Small {
    const SIZES: [usize; 3] = [3, 72, 136];

    fn new(device: &Device, step: usize, dilation: isize) -> Result<Self> {
        let ([batch, c, o], input) = (Self::SIZES, 13);
        let whole = |dims: [usize; 4], every: usize| {
            let count = dims.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|i| ((i * every + i / 7) % 3) as f32 - 1.0).collect();
            Tensor::from_f32(device, dims, &values, DType::Bf16)
        };
        let axis = |taps: usize| {
            let reach = dilation.cast_unsigned() * (taps - 1);
            let output = (input + 2 - reach - 1) / step + 1;
            ConvAxis { input, output, taps, step, dilation, origin: -1 }
        };
        let axes = [axis(3), axis(2)];
        let [h, w] = axes.map(|axis| axis.output);
        let (x, dy) = (whole([batch, input, input, c], 5)?, whole([batch, h, w, o], 7)?);
        let (kernel, bias) = (whole([o, c, 3, 2], 11)?, whole([1, 1, 1, o], 5)?);
        let weights = ConvWeights { tensor: kernel, offset: 0, strides: [0, c * 6, 6, 2, 1] };
        Ok(Self { x, dy, weights, bias, axes })
    }
    /// Allocates an image for the result.
    fn result(&self) -> Result<Tensor> {
        Tensor::full(self.x.device(), self.dy.shape(), f32::NAN, DType::Bf16)
    }
    fn of<'a>(&'a self, work: Work<'a>) -> ConvRequest<'a> {
        let [batch, c, o] = Self::SIZES;
        ConvRequest { x: &self.x, batch, groups: 1, c, o, axes: self.axes, work }
    }
    fn forth<'a>(&'a self, y: &'a Tensor, tree: Option<&'a Tree<'a>>) -> ConvRequest<'a> {
        let [_, _, o] = Self::SIZES;
        let [h, w] = self.axes.map(|axis| axis.output);
        let place = PixelPosition { offset: 0, strides: [h * w * o, w * o, o] };
        self.of(Work::Gather { w: &self.weights, bias: Some(&self.bias), tree, y, place })
    }
}

fn proof(
    device: &Device,
    step: usize,
    dilation: isize,
    supports: fn(&ConvRequest<'_>) -> Result<(), &'static str>,
    run: fn(&ConvRequest<'_>) -> Result<()>,
) -> Result<()> {
    let (small, [_, c, o]) = (Small::new(device, step, dilation)?, Small::SIZES);
    let both = [true, false].map(|here| -> Result<[Vec<f32>; 2]> {
        let y = small.result()?;
        let part = Tensor::full(device, [2, 1, 3, 2, c, o], f32::NAN, DType::F32)?;
        let forth = small.forth(&y, None);
        let back = small.of(Work::Weights { dy: &small.dy, part: &part, parts: 2 });
        for request in [&forth, &back].into_iter().filter(|r| supports(r).is_ok()) {
            match here {
                true => run(request)?,
                false => tile::run(request, &ConvPlan::Direct)?,
            }
        }
        Ok([y.to_vec()?, part.sum(&[0], false)?.to_vec()?])
    });
    let [here, there] = both;
    let (here, there) = (here?, there?);
    // Unsupported results are NaN on both sides.
    let differ = |(a, b): (&f32, &f32)| a != b && !(a.is_nan() && b.is_nan());
    let at = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).position(differ);
    match here.iter().zip(&there).find_map(at) {
        Some(at) if !device.settings().no_results => {
            Err(Error::launch(format!("element {at} of a small convolution differs from that of conv_tile")))
        }
        _ => Ok(()),
    }
}

/// Checks that an expression after a small convolution is exact; see [`proven`].
fn takes_expressions(device: &Device, kernels: WgmmaKernels) -> bool {
    let tuning = Tuning::of(device);
    tuning.allows(device, kernels.tree)
        && tuning.proven(device, kernels.tree, || {
            let small = Small::new(device, 1, 1)?;
            let y = small.result()?;
            let run = |r: &ConvRequest<'_>| launch(kernels, r, &estimate(r).1);
            run(&small.forth(&y, None))?;
            proof_of_expression(&y, |got, tree| run(&small.forth(got, Some(tree))))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::conv::geometry::Side;
    use netcl_kernel::Value;

    fn axes(image: usize, taps: usize, stride: usize, padding: usize) -> [ConvAxis; 2] {
        let places = Side::places(image, taps, stride, padding, 1).unwrap();
        [Side { image, places, taps, stride, padding, dilation: 1 }.forward(); 2]
    }

    /// Tests that each pixel that a tap uses is in its map, and that pixels beyond the result read no pixel of the image.
    #[test]
    fn maps_have_the_pixels_that_taps_meet() {
        for (image, taps, stride, padding) in
            [(7, 3, 1, 1), (8, 3, 2, 1), (9, 1, 2, 0), (11, 5, 3, 2), (6, 2, 4, 0)]
        {
            let axis = axes(image, taps, stride, padding)[0];
            for tap in 0..taps {
                let seen = UsedPixels::of(&axis, tap).unwrap();
                let at = tap.cast_signed() - padding.cast_signed();
                let before = at.div_euclid(stride.cast_signed());
                for y in 0..axis.output + 4 {
                    let h = (y * stride).cast_signed() + at;
                    let number = y.cast_signed() + before;
                    let inside = (0..seen.count.cast_signed()).contains(&number);
                    let expected = y < axis.output && (0..image.cast_signed()).contains(&h);
                    assert_eq!(inside, expected, "{axis:?}, tap {tap}, pixel {y}");
                    if inside {
                        assert_eq!((seen.first + number.cast_unsigned() * stride).cast_signed(), h);
                    }
                }
            }
        }
        // Its only pixel is outside of the image.
        assert!(UsedPixels::of(&axes(1, 3, 1, 1)[0], 0).is_none());
    }

    #[test]
    fn boxes_waste_little() {
        let device = crate::suite::test_device().unwrap();
        let x = Tensor::zeros(&device, [1, 1, 1, 8], DType::F32).unwrap();
        let weights = ConvWeights { tensor: x.clone(), offset: 0, strides: [0; 5] };
        for (batch, image, most) in
            [(128, 56, 1.0), (128, 28, 1.0), (128, 14, 1.0), (128, 7, 1.07), (3, 31, 1.2)]
        {
            let place = PixelPosition { offset: 0, strides: [0; 3] };
            let r = ConvRequest {
                x: &x,
                batch,
                groups: 1,
                c: 8,
                o: 8,
                axes: axes(image, 3, 1, 1),
                work: Work::Gather { w: &weights, bias: None, tree: None, y: &x, place },
            };
            let share = |sides: Sides, rows: usize| {
                (boxes(&r, sides).iter().product::<usize>() * rows) as f64 / r.pixels() as f64
            };
            let sides = boxes_of_rows(&r);
            assert!(sides.iter().product::<usize>() <= BLOCK);
            assert!(share(sides, BLOCK) <= most, "{batch} images of {image}: {sides:?}");
            let sides = boxes_of_steps(&r);
            assert_eq!(sides.iter().product::<usize>(), BLOCK);
            assert!(share(sides, BLOCK) <= most + 0.2, "{batch} images of {image}: {sides:?}");
        }
    }

    /// Returns the defines of an epilogue that adds a residual and clamps to 0, in the form of a generated one.
    fn expression() -> Vec<(&'static str, Value)> {
        let tree = "static inline FV tree_v(FV sum, ulong row, ulong column, ulong n TREE_PARAMETERS) \
                    { return fmax(sum + LDV_BF16(e0 + f0 + row * n + column), (FV)(0.0f)); }";
        let texts = [
            ("TREE", tree),
            ("TREE_PARAMETERS", ", __global const ushort *e0, ulong f0"),
            ("TREE_ARGUMENTS", ", e0, f0"),
        ];
        let texts = texts.map(|(name, text)| (name, Value::from(text)));
        std::iter::once(("VW", 4.into())).chain(texts).collect()
    }

    /// Writes the kernels' sources for `tools/ptx_check.sh`, like those of products.
    #[test]
    #[ignore = "writes files for a tool"]
    fn texts_for_the_assembler() {
        let folder = std::env::temp_dir().join("netcl-texts");
        std::fs::create_dir_all(&folder).unwrap();
        for (i, shape) in tiles().enumerate() {
            let forms = [("gather", 1, 0, true), ("weights", 2, 2, false), ("tree", 1, 0, false)];
            for (name, conv, split, bias) in forms {
                let mut defines = shape.defines(None);
                let flags = [("CONV", conv), ("SPLIT", split), ("BIAS", i32::from(bias)), ("C_LANES", 8)];
                defines.extend(flags.map(|(flag, value)| (flag, value.into())));
                let lies = ["A_ALONG_K", "B_ALONG_K"].map(|flag| (flag, (conv == 1).into()));
                defines.extend(lies);
                defines.push(("DTYPE", DType::Bf16.code().into()));
                let none = ["STREAM_K", "COLUMN_SUMS", "ADD_C", "RESIDUAL", "GELU", "GELU_GRAD"];
                defines.extend(none.map(|flag| (flag, false.into())));
                let kernel = if name == "tree" { &TREE } else { &KERNEL };
                if name == "tree" {
                    defines.extend(expression());
                }
                let text = format!("// items matmul_wgmma=384\n{}", kernel.text(&defines));
                std::fs::write(folder.join(format!("conv_{i}_{name}.cl")), text).unwrap();
            }
        }
        eprintln!("{}", folder.display());
    }
}
