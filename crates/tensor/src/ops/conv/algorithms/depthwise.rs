//! Depthwise convolutions, in which every channel has its own filter.

use super::{ConvAlgorithm, ConvPlan, ConvRequest, EPILOGUE, FUNCTIONS, Work, bias, int, with_tree};
use crate::ops::map::row_grid;
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

pub(super) static KERNEL: Kernel = Kernel::new("conv_depthwise", cl_file!("conv_depthwise.cl"))
    .include(&[EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);
/// The same kernel with expressions.
static TREE: Kernel = Kernel::new("conv_depthwise", cl_file!("conv_depthwise.cl"))
    .include(&[FUNCTIONS, EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

/// Kernel for GPUs: several pixels per item.
static LINES: Kernel = Kernel::new("conv_depthwise_lines", cl_file!("conv_depthwise_lines.cl"))
    .include(&[EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[4])]);
/// The same kernel with expressions.
static LINES_TREE: Kernel = Kernel::new("conv_depthwise_lines", cl_file!("conv_depthwise_lines.cl"))
    .include(&[FUNCTIONS, EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[4])]);
/// Gradients of weights on GPUs.
static WEIGHTS: Kernel = Kernel::new("conv_depthwise_weights", cl_file!("conv_depthwise_weights.cl"))
    .tune(&[("WG", &[256]), ("VW", &[4])]);

/// Maximum pixels of a line that an item of [`LINES`] reads, and the items per compute unit below which an item computes fewer pixels.
const SPAN: usize = 12;
const ITEMS: usize = 2048;

/// Maximum sums per work-item of [`WEIGHTS`], vectors of channels per group, and pixels (exclusive).
const SUMS: usize = 12;
const LANES: usize = 32;
const PIXELS: usize = 1 << 31;

static MODEL: Model = Model {
    name: "conv_depthwise",
    constants: &[
        Constant::new("launch_us", "a launch", 8.0).cpu(4.0),
        Constant::new("macs_per_us", "multiply-adds of a compute unit", 10_000.0).cpu(8_000.0),
    ],
};

pub(super) static ALGORITHM: ConvAlgorithm =
    ConvAlgorithm { kernel: &KERNEL, supports, models: &[&MODEL], estimate, run, self_test: None };

fn supports(r: &ConvRequest<'_>) -> Result<(), &'static str> {
    let neighbours = match &r.work {
        // Stride of a group, which is its one channel.
        Work::Gather { w, .. } => w.strides[0] == 1 || r.groups == 1,
        Work::Weights { .. } => true,
    };
    match (r.c, r.o, neighbours) {
        (1, 1, true) => Ok(()),
        (1, 1, false) => Err("weights whose channels are not adjacent"),
        _ => Err("groups of more than one channel"),
    }
}

fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let [launch, per_us] = MODEL.on(r.x.device());
    (launch + r.macs() / (per_us * r.units() as f64), ConvPlan::Direct)
}

/// Returns the pixels of a line per item on a GPU. Returns `None` on CPUs, and if a pixel and the taps of a line do not fit in registers.
fn pixels_of_an_item(r: &ConvRequest<'_>) -> Option<usize> {
    let across = r.axes[1];
    let reach = across.taps.checked_sub(1)? * usize::try_from(across.dilation).ok()?;
    let fits = |pixels: &usize| (pixels - 1) * across.step + reach < SPAN;
    let vectors = r.groups.div_ceil(Tuning::value(r.x.device(), &KERNEL, 0, "VW").max(1));
    let enough = |pixels: &usize| {
        *pixels == 1 || r.pixels() * vectors / pixels >= ITEMS * r.units() || across.output <= *pixels
    };
    let gpu = !r.x.device().capabilities().is_cpu();
    [4, 2, 1].into_iter().filter(|_| gpu).find(|pixels| fits(pixels) && enough(pixels))
}

/// Returns whether work-groups divide the pixels of a part of the weight gradient between their items.
fn grouped(r: &ConvRequest<'_>) -> bool {
    let capabilities = r.x.device().capabilities();
    let wg = Tuning::value(r.x.device(), &WEIGHTS, 0, "WG");
    !capabilities.is_cpu() && capabilities.max_group >= wg && r.axes[1].taps <= SUMS && r.pixels() < PIXELS
}

/// Channels per group of [`WEIGHTS`], if there are enough.
pub(in super::super) const GROUP_CHANNELS: usize = 4 * LANES;

fn run(r: &ConvRequest<'_>, _: &ConvPlan) -> Result<()> {
    match &r.work {
        Work::Gather { .. } => gather(r),
        Work::Weights { dy, part, parts } if grouped(r) => grouped_weights(r, dy, part, *parts),
        Work::Weights { dy, part, parts } => {
            let (device, channels) = (r.x.device(), r.groups);
            let lines = parts * r.terms();
            let each = r.pixels_of_part(*parts);
            // On CPUs, a row of work has all pixels of a part.
            let row = if device.capabilities().is_cpu() { channels * each } else { channels };
            let (local, groups) = row_grid(device, tuned(r, "WG"), tuned(r, "VW"), lines, row);
            let launch = r.launch(&KERNEL, "conv_depthwise_weights").local(local).groups3(groups);
            let launch = launch.read(r.x).read(*dy).write(*part).scalar(r.pixels()).scalar(int(channels));
            r.axes(launch).scalar(each).scalar(int(*parts)).run()
        }
    }
}

fn tuned(r: &ConvRequest<'_>, name: &str) -> usize {
    Tuning::value(r.x.device(), &KERNEL, 0, name)
}

fn gather(r: &ConvRequest<'_>) -> Result<()> {
    let Work::Gather { w, bias: added, tree, y, place } = &r.work else {
        return Err(ConvAlgorithm::foreign(&KERNEL));
    };
    let (across, grid) =
        (r.axes[1], |rows: usize| row_grid(r.x.device(), tuned(r, "WG"), tuned(r, "VW"), rows, r.groups));
    let (launch, rows) = match pixels_of_an_item(r) {
        Some(pixels) => {
            let lines = r.batch * r.axes[0].output;
            let (local, groups) = grid(lines * across.output.div_ceil(pixels));
            let kernel = if tree.is_some() { &LINES_TREE } else { &LINES };
            let launch = r.launch(kernel, "conv_depthwise_lines").define("PX", pixels);
            let launch = launch.define("COLUMNS", across.taps).define("STEP", across.step);
            (launch.define("APART", across.dilation as i64).local(local).groups3(groups), lines)
        }
        None => {
            let (local, groups) = grid(r.pixels());
            let kernel = if tree.is_some() { &TREE } else { &KERNEL };
            (r.launch(kernel, "conv_depthwise").local(local).groups3(groups), r.pixels())
        }
    };
    let (launch, flags) = bias(launch.read(r.x).read_base(&w.tensor), *added, r.x);
    let launch = launch.write_base(*y);
    let [.., down, along] = w.strides;
    let longs = [w.offset, down, along, place.offset].into_iter().chain(place.strides);
    let launch = longs.fold(launch, |launch, v| launch.scalar(v)).scalar(rows).scalar(int(r.groups));
    with_tree(r.axes(launch).scalar(flags), *tree).run()
}

fn grouped_weights(r: &ConvRequest<'_>, dy: &Tensor, part: &Tensor, parts: usize) -> Result<()> {
    let value = |name| Tuning::value(r.x.device(), &WEIGHTS, 0, name);
    let (wg, vectors) = (value("WG"), r.groups.div_ceil(value("VW")));
    let across = vectors.next_power_of_two().min(LANES).min(wg);
    let [down, columns] = r.axes.map(|axis| axis.taps);
    let rows = if down * columns <= SUMS { down } else { 1 };
    let launch = r.launch(&WEIGHTS, "conv_depthwise_weights").define("LANES", across);
    let launch = launch.define("ROWS", rows).define("COLUMNS", columns).local([across, wg / across, 1]);
    let launch = launch.groups3([vectors.div_ceil(across), parts, down / rows]);
    let launch = launch.read(r.x).read(dy).write(part).scalar(r.pixels() as u32).scalar(int(r.groups));
    r.axes(launch).scalar(r.pixels_of_part(parts) as u32).run()
}
