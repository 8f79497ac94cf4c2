//! Convolutions in which every channel has a filter of its own.

use super::{Algorithm, EPILOGUE, FUNCTIONS, Plan, Request, Work, bias, int, with_tree};
use crate::ops::map::row_grid;
use crate::ops::prelude::*;
use netcl_kernel::tune::{Constant, Model};

pub(super) static KERNEL: Kernel = Kernel::new("conv_depthwise", cl_file!("conv_depthwise.cl"))
    .include(&[EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);
/// The same with expressions.
static TREE: Kernel = Kernel::new("conv_depthwise", cl_file!("conv_depthwise.cl"))
    .include(&[FUNCTIONS, EPILOGUE])
    .tune(&[("WG", &[128]), ("VW", &[4])])
    .tune_cpu(&[("VW", &[0])]);

static MODEL: Model = Model {
    name: "conv_depthwise",
    constants: &[
        Constant::new("launch_us", "a launch", 8.0).cpu(4.0),
        Constant::new("macs_per_us", "multiply-adds of a compute unit", 10_000.0).cpu(8_000.0),
    ],
};

pub(super) static ALGORITHM: Algorithm =
    Algorithm { kernel: &KERNEL, supports, models: &[&MODEL], estimate, run, self_test: None };

fn supports(r: &Request<'_>) -> Result<(), &'static str> {
    let neighbours = match &r.work {
        // Stride of a group: its one channel.
        Work::Gather { w, .. } => w.strides[0] == 1 || r.groups == 1,
        Work::Weights { .. } => true,
    };
    match (r.c, r.o, neighbours) {
        (1, 1, true) => Ok(()),
        (1, 1, false) => Err("weights of which channels are no neighbours"),
        _ => Err("groups of more than one channel"),
    }
}

fn estimate(r: &Request<'_>) -> (f64, Plan) {
    let [launch, per_us] = MODEL.on(r.x.device());
    (launch + r.macs() / (per_us * r.units() as f64), Plan::Direct)
}

fn run(r: &Request<'_>, _: &Plan) -> Result<()> {
    let device = r.x.device();
    let value = |name| Tuning::value(device, &KERNEL, 0, name);
    let channels = r.groups;
    match &r.work {
        Work::Gather { w, bias: added, tree, y, place } => {
            let (local, groups) = row_grid(device, value("WG"), value("VW"), r.pixels(), channels);
            let kernel = if tree.is_some() { &TREE } else { &KERNEL };
            let launch = r.launch(kernel, "conv_depthwise").local(local).groups3(groups);
            let (launch, flags) = bias(launch.read(r.x).read_base(&w.tensor), *added, r.x);
            let launch = launch.write_base(*y);
            let [.., rows, columns] = w.strides;
            let longs = [w.offset, rows, columns, place.offset].into_iter().chain(place.strides);
            let launch = longs.fold(launch, |launch, v| launch.scalar(v));
            let launch = launch.scalar(r.pixels()).scalar(int(channels));
            with_tree(r.axes(launch).scalar(flags), *tree).run()
        }
        Work::Weights { dy, part, parts } => {
            let lines = parts * r.terms();
            let each = r.pixels_of_part(*parts);
            // On processors a row of work is all pixels of a part.
            let row = if device.capabilities().is_cpu() { channels * each } else { channels };
            let (local, groups) = row_grid(device, value("WG"), value("VW"), lines, row);
            let launch = r.launch(&KERNEL, "conv_depthwise_weights").local(local).groups3(groups);
            let launch = launch.read(r.x).read(*dy).write(*part).scalar(r.pixels()).scalar(int(channels));
            r.axes(launch).scalar(each).scalar(int(*parts)).run()
        }
    }
}
