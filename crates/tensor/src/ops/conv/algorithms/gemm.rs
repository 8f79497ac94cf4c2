//! Convolutions on GPUs as implicit products with 8 x 8 registers per work-item: f32 on any GPU, and 16 bits on GPUs without suitable tensor cores.

use super::{
    ConvAlgorithm, ConvPlan, ConvRequest, ConvWeights, EPILOGUE, FUNCTIONS, Work, bias, int, with_tree,
};
use crate::ops::prelude::*;
use netcl_device::Capabilities;
use netcl_kernel::tune::{Constant, Model};

/// Work-items of a tile's group.
const ITEMS: usize = 256;
/// Steps of a sum in local memory at a time.
const BK: usize = 16;

pub(super) static KERNEL: Kernel = Kernel::new("conv_gemm", cl_file!("conv_gemm.cl"))
    .include(&[EPILOGUE])
    .requires(|device| device.max_group >= ITEMS && TILES.iter().any(|tile| tile.fits(device)))
    .options(registers);
/// The same kernel with expressions.
static TREE: Kernel =
    Kernel::new("conv_gemm", cl_file!("conv_gemm.cl")).include(&[FUNCTIONS, EPILOGUE]).options(registers);

fn registers(device: &Capabilities) -> &'static str {
    if device.sm().is_some() { "-cl-nv-maxrregcount=128" } else { "" }
}

/// A group's tile: rows (pixels, or taps and channels), columns (channels of the result), and sums per item.
#[derive(Debug)]
struct Tile {
    rows: usize,
    columns: usize,
    item: [usize; 2],
}

static TILES: [Tile; 3] = [
    Tile { rows: 128, columns: 128, item: [8, 8] },
    Tile { rows: 256, columns: 64, item: [8, 8] },
    Tile { rows: 128, columns: 64, item: [8, 4] },
];

impl Tile {
    /// Returns whether two slices and the pixels' positions fit in local memory.
    fn fits(&self, device: &Capabilities) -> bool {
        let slice = 4 * BK * (self.rows + 4 + self.columns);
        device.local_mem >= (2 * slice + 16 * self.rows) as u64
    }
    fn count(&self, r: &ConvRequest<'_>) -> usize {
        let rows = match r.work {
            Work::Gather { .. } => r.pixels(),
            Work::Weights { .. } => r.terms(),
        };
        rows.div_ceil(self.rows) * r.o.div_ceil(self.columns)
    }
}

static MODEL: Model = Model {
    name: "conv_gemm",
    constants: &[
        Constant::new("launch_us", "a launch", 8.0),
        // A CPU runs the items of a group one after the other.
        Constant::new("step_us", "a step of the sum of 128 x 128, while two groups share a unit", 0.19)
            .cpu(19.0),
        Constant::new("small", "slowdown of the same area in tiles of half the size", 1.2),
        Constant::new("single", "slowdown of channels that are read one by one", 1.5).cpu(1.0),
        Constant::new("start_steps", "cost of starting a group and storing its tile, in steps", 24.0),
        // A group of 256 uses about half of the local memory and registers of a GPU's unit; measured on an H200. A CPU runs one group after the
        // other.
        Constant::new("together", "groups that share a unit", 2.0).cpu(1.0),
        Constant::new(
            "alone",
            "time of a step of a group alone on its unit, relative to one of two groups",
            0.67,
        )
        .cpu(1.0),
    ],
};

pub(super) static ALGORITHM: ConvAlgorithm =
    ConvAlgorithm { kernel: &KERNEL, supports, models: &[&MODEL], estimate, run, self_test: None };

fn supports(r: &ConvRequest<'_>) -> Result<(), &'static str> {
    let small = |x: &Tensor| i32::try_from(x.count()).is_ok();
    let other = match r.work {
        Work::Gather { y, .. } => y,
        Work::Weights { dy, .. } => dy,
    };
    match () {
        () if r.terms() == 0 || r.pixels() == 0 || r.o == 0 => Err("an empty sum"),
        () if !small(r.x) || !small(other) || i32::try_from(r.terms() * r.o).is_err() => {
            Err("more than 2^31 - 1 elements")
        }
        () => Ok(()),
    }
}

/// Returns the channels of x, and of the result, that are read at once.
fn vectors(r: &ConvRequest<'_>) -> [usize; 2] {
    let fours = |channels: usize, x: &Tensor| {
        if channels.is_multiple_of(4) && x.layout().offset.is_multiple_of(4) { 4 } else { 1 }
    };
    let other = match r.work {
        // Weights are packed.
        Work::Gather { y, .. } => y,
        Work::Weights { dy, .. } => dy,
    };
    [fours(r.c, r.x), fours(r.o, other)]
}

fn estimate(r: &ConvRequest<'_>) -> (f64, ConvPlan) {
    let [launch, step, small, single, start, together, alone] = MODEL.on(r.x.device());
    let (terms, parts) = match r.work {
        Work::Gather { .. } => (r.terms(), 1),
        Work::Weights { parts, .. } => (r.pixels_of_part(parts), parts),
    };
    let slower = if vectors(r)[0] == 4 { 1.0 } else { single };
    let of = |tile: &Tile| {
        let groups = tile.count(r) * r.groups * parts;
        let area = (tile.rows * tile.columns) as f64 / (128.0 * 128.0);
        let longer = if area < 1.0 { small } else { 1.0 };
        let rounds = (groups as f64 / (together * r.units() as f64)).ceil();
        let shared = if groups <= r.units() { alone } else { 1.0 };
        launch + rounds * shared * slower * longer * area * step * (start + terms as f64)
    };
    let capabilities = r.x.device().capabilities();
    let fitting = TILES.iter().enumerate().filter(|(_, tile)| tile.fits(capabilities));
    let costs = fitting.map(|(i, tile)| (of(tile), ConvPlan::Tile(i)));
    costs.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, ConvPlan::Tile(0)))
}

/// Copies weights to `(G, I, J, C, O)`.
fn packed(r: &ConvRequest<'_>, w: &ConvWeights) -> Result<Tensor> {
    let [group, o, c, i, j] = w.strides;
    let [h, width] = r.axes;
    let shape = Shape::from([r.groups, h.taps, width.taps, r.c, r.o]);
    let layout = Layout { shape, strides: vec![group, i, j, c, o], offset: w.offset };
    Tensor::from_parts(w.tensor.storage().clone(), layout, w.tensor.dtype(), None).contiguous()
}

fn run(r: &ConvRequest<'_>, plan: &ConvPlan) -> Result<()> {
    let ConvPlan::Tile(tile) = *plan else { return Err(ConvAlgorithm::foreign(&KERNEL)) };
    let tile = TILES.get(tile).ok_or_else(|| ConvAlgorithm::foreign(&KERNEL))?;
    let entry = match r.work {
        Work::Gather { .. } => "conv_gemm",
        Work::Weights { .. } => "conv_gemm_weights",
    };
    let launch = match r.work {
        Work::Gather { tree: Some(_), .. } => r.launch(&TREE, entry).define("VW", 4),
        _ => r.launch(&KERNEL, entry),
    };
    let launch = launch.define("WG", ITEMS);
    let [va, vb] = vectors(r);
    let launch = launch.define("BM", tile.rows).define("BN", tile.columns).define("BK", BK);
    let launch = launch.define("TM", tile.item[0]).define("TN", tile.item[1]);
    let launch = launch.define("VA", va).define("VB", vb);
    let sizes = [r.groups, r.o, r.c];
    match &r.work {
        Work::Gather { w, bias: added, tree, y, place } => {
            let w = packed(r, w)?;
            let (launch, flags) = bias(launch.read(r.x).read(&w), *added, r.x);
            let strides = [place.offset].into_iter().chain(place.strides);
            let launch = strides.fold(launch.write_base(*y), |launch, stride| launch.scalar(stride));
            let launch = sizes.into_iter().fold(launch.scalar(r.pixels()), |launch, v| launch.scalar(int(v)));
            let launch = with_tree(r.axes(launch).scalar(flags), *tree);
            launch.groups3([tile.count(r), 1, r.groups]).run()
        }
        Work::Weights { dy, part, parts } => {
            let launch = launch.read(r.x).read(*dy).write(*part).scalar(r.pixels());
            let launch = sizes.into_iter().fold(launch, |launch, v| launch.scalar(int(v)));
            let launch = r.axes(launch).scalar(r.pixels_of_part(*parts)).scalar(int(*parts));
            launch.groups3([tile.count(r), 1, r.groups * parts]).run()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // tests
mod tests {
    use super::super::super::geometry::{Conv2dOptions, Geometry, Side};
    use super::super::{PixelPosition, tile};
    use super::*;

    fn drawn(device: &Device, shape: &[usize], seed: u64) -> Tensor {
        let values = crate::Generator::new(seed).uniform(shape.iter().product(), -1.0, 1.0);
        Tensor::from_f32(device, shape.to_vec(), &values, DType::F32).unwrap()
    }

    /// Compares every tile with the plain kernel: several tiles along both sides, edges, vectors and single channels, groups.
    #[test]
    fn tiles_are_the_plain_kernels_sums() {
        // The simulated GPU supports both kernels.
        let device = Device::open("sim", &crate::Settings::from_env()).unwrap();
        for (i, (n, c, o, groups, size, taps, options)) in [
            (2, 8, 132, 1, [13, 12], [3, 3], Conv2dOptions::default().padding(1)),
            (1, 3, 20, 1, [23, 17], [5, 2], Conv2dOptions::default().stride(2).padding(2)),
            (1, 20, 10, 2, [11, 15], [3, 1], Conv2dOptions::default().dilation(2)),
        ]
        .into_iter()
        .enumerate()
        {
            let side = |a: usize| {
                let (stride, padding, dilation) =
                    (options.stride[a], options.padding[a], options.dilation[a]);
                let places = Side::places(size[a], taps[a], stride, padding, dilation).unwrap();
                Side { image: size[a], places, taps: taps[a], stride, padding, dilation }
            };
            let g = Geometry { batch: n, groups, image: c, places: o, sides: [side(0), side(1)] };
            let [h, width] = g.sides;
            let x = drawn(&device, &[n, size[0], size[1], groups * c], 1 + i as u64);
            let w = drawn(&device, &[groups * o, c, taps[0], taps[1]], 100 + i as u64);
            let added = drawn(&device, &[groups * o], 200 + i as u64);
            let dy = drawn(&device, &[n, h.places, width.places, groups * o], 300 + i as u64);
            let strides = &w.layout().strides;
            let weights = ConvWeights {
                tensor: w.clone(),
                offset: 0,
                strides: [o * strides[0], strides[0], strides[1], strides[2], strides[3]],
            };
            let axes = g.sides.map(|side| side.forward());
            let all = |y: &Tensor, part: &Tensor, go: &dyn Fn(&ConvRequest<'_>)| {
                let s = &y.layout().strides;
                let place = PixelPosition { offset: 0, strides: [s[0], s[1], s[2]] };
                let of = |work| ConvRequest { x: &x, batch: n, groups, c, o, axes, work };
                go(&of(Work::Gather { w: &weights, bias: Some(&added), tree: None, y, place }));
                go(&of(Work::Weights { dy: &dy, part, parts: 3 }));
            };
            let results = |go: &dyn Fn(&ConvRequest<'_>)| {
                let y = Tensor::zeros(&device, dy.shape(), DType::F32).unwrap();
                let part = Tensor::zeros(&device, [3, groups, taps[0], taps[1], c, o], DType::F32).unwrap();
                all(&y, &part, go);
                [y.to_vec().unwrap(), part.to_vec().unwrap()]
            };
            let expected = results(&|r| tile::run(r, &ConvPlan::Direct).unwrap());
            for (at, tile) in TILES.iter().enumerate() {
                let got = results(&|r| {
                    supports(r).unwrap();
                    run(r, &ConvPlan::Tile(at)).unwrap();
                });
                for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                    assert!((got - expected).abs() < 1e-4, "case {i}, {tile:?}: {got}, expected {expected}");
                }
            }
        }
    }
}
