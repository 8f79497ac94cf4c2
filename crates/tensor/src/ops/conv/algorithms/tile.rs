//! Convolutions on GPUs, by tiles in local memory.

use super::{ConvAlgorithm, ConvPlan, ConvRequest, EPILOGUE, FUNCTIONS, Work, bias, int, with_tree};
use crate::ops::prelude::*;
use netcl_device::Capabilities;
use netcl_kernel::tune::{Constant, Model};

pub(super) static KERNEL: Kernel = Kernel::new("conv_tile", cl_file!("conv_tile.cl"))
    .include(&[EPILOGUE])
    .requires(|device| !device.is_cpu() && fits(device))
    .options(registers);
/// The same kernel with expressions.
static TREE: Kernel =
    Kernel::new("conv_tile", cl_file!("conv_tile.cl")).include(&[FUNCTIONS, EPILOGUE]).options(registers);

fn registers(device: &Capabilities) -> &'static str {
    if device.sm().is_some() { "-cl-nv-maxrregcount=128" } else { "" }
}

/// Returns whether a tile's group and local memory fit a device.
pub(super) fn fits(device: &Capabilities) -> bool {
    device.local_mem >= 9 << 10 && device.max_group >= ITEMS
}

static MODEL: Model = Model {
    name: "conv_tile",
    constants: &[
        Constant::new("launch_us", "a launch", 8.0),
        Constant::new("step_us", "16 steps of a tile's sum", 1.6),
        Constant::new("start_steps", "cost of starting a group and storing its tile, in such steps", 4.0),
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

const ITEMS: usize = 256;
/// Rows and columns of a tile.
const SIDE: usize = 64;

fn groups(r: &ConvRequest<'_>) -> [usize; 3] {
    let columns = r.o.div_ceil(SIDE);
    match r.work {
        Work::Gather { .. } => [r.pixels().div_ceil(SIDE), columns, r.groups],
        Work::Weights { parts, .. } => [r.terms().div_ceil(SIDE), columns, r.groups * parts],
    }
}

fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let [launch, step, start] = MODEL.on(r.x.device());
    let terms = match r.work {
        Work::Gather { .. } => r.terms(),
        Work::Weights { parts, .. } => r.pixels_of_part(parts),
    };
    let tiles = groups(r).into_iter().product::<usize>();
    let rounds = tiles.div_ceil(2 * r.units()) as f64;
    (launch + rounds * step * (start + terms as f64 / 16.0), ConvPlan::Direct)
}

pub(super) fn run(r: &ConvRequest<'_>, _: &ConvPlan) -> Result<()> {
    let sizes = [r.groups, r.o, r.c];
    match &r.work {
        Work::Gather { w, bias: added, tree, y, place } => {
            let launch = match tree {
                Some(_) => r.launch(&TREE, "conv_tile").define("VW", 4),
                None => r.launch(&KERNEL, "conv_tile"),
            };
            let launch = launch.define("WG", ITEMS);
            let (launch, flags) = bias(launch.read(r.x).read_base(&w.tensor), *added, r.x);
            let launch = launch.write_base(*y).scalar(w.offset);
            let strides = w.strides.into_iter().chain([place.offset]).chain(place.strides);
            let launch = strides.fold(launch, |launch, stride| launch.scalar(stride)).scalar(r.pixels());
            let launch = sizes.into_iter().fold(launch, |launch, v| launch.scalar(int(v)));
            with_tree(r.axes(launch).scalar(flags), *tree).groups3(groups(r)).run()
        }
        Work::Weights { dy, part, parts } => {
            let launch = r.launch(&KERNEL, "conv_tile_weights").define("WG", ITEMS);
            let launch = launch.read(r.x).read(*dy).write(*part).scalar(r.pixels());
            let launch = sizes.into_iter().fold(launch, |launch, v| launch.scalar(int(v)));
            let launch = r.axes(launch).scalar(r.pixels_of_part(*parts)).scalar(int(*parts));
            launch.groups3(groups(r)).run()
        }
    }
}
