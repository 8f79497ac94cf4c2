//! Convolutions on CPUs, and on devices that cannot run a tile: pointers to rows of pixels instead of a matrix of patches.

use super::{ConvAlgorithm, ConvPlan, ConvRequest, EPILOGUE, FUNCTIONS, Work, bias, int, with_tree};
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

pub(super) static KERNEL: Kernel = Kernel::new("conv_vector", cl_file!("conv_vector.cl"))
    .include(&[PANELS, EPILOGUE])
    .tune(&[("VW", &[0])])
    .requires(|device| device.is_cpu() || !super::tile::fits(device));
/// The same kernel with expressions.
static TREE: Kernel = Kernel::new("conv_vector", cl_file!("conv_vector.cl"))
    .include(&[FUNCTIONS, PANELS, EPILOGUE])
    .tune(&[("VW", &[0])]);

const PANELS: &str = cl_file!("../../matmul/algorithms/matmul_panels.cl");

static MODEL: Model = Model {
    name: "conv_vector",
    constants: &[
        Constant::new("launch_us", "a launch", 4.0),
        Constant::new("cycles_per_us", "cycles of a core, each of two vectors of multiply-adds", 2000.0),
        Constant::new("tap_cycles", "a tap of a register tile, without its multiply-adds", 30.0),
    ],
};

pub(super) static ALGORITHM: ConvAlgorithm = ConvAlgorithm {
    kernel: &KERNEL,
    supports: |_| Ok(()),
    models: &[&MODEL],
    estimate,
    run,
    self_test: None,
};

/// Sizes of the register tile: vector lanes, rows and vectors of a convolution, rows of the gradient of weights.
struct Tile {
    lanes: usize,
    mr: usize,
    nv: usize,
    wr: usize,
}

impl Tile {
    /// Returns the tile for the registers: 32 of 16 lanes (AVX-512), 16 of 8 (AVX2), 16 of 4 (8 lanes are then two registers).
    fn of(device: &Device) -> Self {
        let capabilities = device.capabilities();
        let lanes = capabilities.vector_lanes();
        let (mr, wr) = if lanes == 16 { (12, 8) } else { (6, 4) };
        Self { lanes, mr, nv: if capabilities.float_lanes < 8 { 1 } else { 2 }, wr }
    }
    fn width(&self) -> usize {
        self.nv * self.lanes
    }
}

/// Maximum bytes of the input for a group's block of pixels, so that it stays in a core's cache for all panels.
const BLOCK_BYTES: usize = 256 << 10;

fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let [launch, per_us, tap] = MODEL.on(r.x.device());
    let tile = Tile::of(r.x.device());
    let panels = r.o.div_ceil(tile.width());
    let tasks = 4 * r.units();
    let across = tasks.div_ceil(r.groups).max(1);
    let cached = BLOCK_BYTES / (4 * r.groups * r.c * r.axes[0].step * r.axes[1].step).max(1);
    let pixels = r.pixels().div_ceil(across).min(cached.max(8 * tile.mr)).next_multiple_of(tile.mr);
    let blocks = r.pixels().div_ceil(pixels.max(1)).max(1);
    let wide = panels.div_ceil(across.div_ceil(blocks)).max(1);
    let lines = match r.work {
        Work::Weights { parts, .. } => {
            let others = panels * r.groups * parts;
            r.terms().div_ceil(tasks.div_ceil(others.max(1)).max(1)).next_multiple_of(tile.wr)
        }
        Work::Gather { .. } => 0,
    };
    let tiles = (r.pixels().div_ceil(tile.mr) * panels * r.groups) as f64;
    let steps = r.terms() as f64 * tile.mr as f64 * tile.nv as f64 / 2.0;
    let cycles = tiles * (steps + tap * (r.axes[0].taps * r.axes[1].taps) as f64);
    let plan = ConvPlan::Blocks { pixels, panels: wide, lines };
    (launch + cycles / r.units() as f64 / per_us, plan)
}

fn run(r: &ConvRequest<'_>, plan: &ConvPlan) -> Result<()> {
    let ConvPlan::Blocks { pixels, panels, lines } = *plan else {
        return Err(ConvAlgorithm::foreign(&KERNEL));
    };
    match r.work {
        Work::Gather { .. } => gather(r, pixels, panels),
        Work::Weights { .. } => weights(r, lines),
    }
}

fn gather(r: &ConvRequest<'_>, block: usize, wide: usize) -> Result<()> {
    let Work::Gather { w, bias: added, tree, y, place } = &r.work else {
        return Err(ConvAlgorithm::foreign(&KERNEL));
    };
    let tile = Tile::of(r.x.device());
    let panels = r.o.div_ceil(tile.width());
    let packed = r.x.empty_f32([r.groups * panels * r.terms() * tile.width() + r.c])?;
    // One program has both kernels: drivers take longer to compile the source than to run it a few times.
    let kernel = if tree.is_some() { &TREE } else { &KERNEL };
    let shape =
        |entry| r.launch(kernel, entry).define("MR", tile.mr).define("NV", tile.nv).define("WR", tile.wr);
    let launch = shape("conv_pack");
    let launch = match tree {
        Some(tree) => tree.define(launch),
        None => launch,
    };
    let launch = launch.flops(0).read_base(&w.tensor).write(&packed).scalar(w.offset);
    let launch = w.strides.into_iter().fold(launch, |launch, stride| launch.scalar(stride));
    let sizes = [r.groups, r.o, r.c, r.axes[0].taps, r.axes[1].taps];
    let launch = sizes.into_iter().fold(launch, |launch, v| launch.scalar(int(v)));
    launch.groups(r.groups * panels).run()?;
    let launch = shape("conv_vector");
    let (launch, flags) = bias(launch.read(r.x).read(&packed), *added, r.x);
    let launch = launch.write_base(*y).scalar(place.offset);
    let launch = place.strides.into_iter().fold(launch, |launch, stride| launch.scalar(stride));
    let launch = launch.scalar(r.pixels());
    let launch = [r.groups, r.o, r.c].into_iter().fold(launch, |launch, v| launch.scalar(int(v)));
    let launch = with_tree(r.axes(launch).scalar(block).scalar(int(wide)).scalar(flags), *tree);
    launch.groups3([r.pixels().div_ceil(block), panels.div_ceil(wide), r.groups]).run()
}

fn weights(r: &ConvRequest<'_>, lines: usize) -> Result<()> {
    let Work::Weights { dy, part, parts } = r.work else { return Err(ConvAlgorithm::foreign(&KERNEL)) };
    let tile = Tile::of(r.x.device());
    let zeros = Tensor::zeros(r.x.device(), [r.c], r.x.dtype())?;
    let launch = r.launch(&KERNEL, "conv_vector_weights").define("MR", tile.mr);
    let launch = launch.define("NV", tile.nv).define("WR", tile.wr);
    let launch = launch.read(r.x).read(dy).read(&zeros).write(part).scalar(r.pixels());
    let launch = [r.groups, r.o, r.c].into_iter().fold(launch, |launch, v| launch.scalar(int(v)));
    let launch = r.axes(launch).scalar(r.pixels_of_part(parts)).scalar(int(parts)).scalar(int(lines));
    let groups = [r.terms().div_ceil(lines), r.o.div_ceil(tile.width()), r.groups * parts];
    launch.groups3(groups).run()
}
