//! The algorithms for convolutions, one file per table row, with its kernel. [`Table`] explains how rows are chosen. To add a variant, add a file
//! here and its line in `rows!`. A convolution with single-pixel kernels is a product and does not use this table.

use super::super::algorithms::{self, Job, Table, kernels};
use super::super::matmul::Tree;
use super::super::prelude::*;
use super::geometry::ConvAxis;
use netcl_kernel::Launch;

mod depthwise;
mod gemm;
mod lines;
#[cfg(test)]
mod sweep;
mod tile;
mod vector;
mod wgmma;
mod winograd;

pub(super) use depthwise::GROUP_CHANNELS;

static ALGORITHMS: [&ConvAlgorithm; 7] = [
    &depthwise::ALGORITHM,
    &winograd::ALGORITHM,
    &vector::ALGORITHM,
    &wgmma::ALGORITHM,
    &lines::ALGORITHM,
    &gemm::ALGORITHM,
    &tile::ALGORITHM,
];
static KERNELS: [&Kernel; ALGORITHMS.len()] = kernels(&ALGORITHMS);
pub(super) static CONV: Table<Convolutions> = Table::new("conv", &ALGORITHMS, &KERNELS);

/// The job of convolutions, [`ConvRequest`].
pub(super) struct Convolutions;
/// An algorithm for a convolution.
pub(super) type ConvAlgorithm = algorithms::Algorithm<Convolutions>;

/// Weights in a tensor's memory: the offset, and the strides of group, output channel, input channel, row and column of taps, in elements.
#[derive(Clone)]
pub(super) struct ConvWeights {
    pub tensor: Tensor,
    pub offset: usize,
    pub strides: [usize; 5],
}

/// Position of pixel `(n, y, x)` of a result: `offset + n * strides[0] + y * strides[1] + x * strides[2]`; its channels are adjacent.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PixelPosition {
    pub offset: usize,
    pub strides: [usize; 3],
}

/// The computation of a request.
#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// `y` at `place`: the sum over taps and input channels, or an expression of it, which requires a contiguous `y`.
    Gather {
        w: &'a ConvWeights,
        bias: Option<&'a Tensor>,
        tree: Option<&'a Tree<'a>>,
        y: &'a Tensor,
        place: PixelPosition,
    },
    /// f32 (parts, G, I, J, C, O): sums over the pixels of each part of x by dy, the gradient of weights.
    Weights { dy: &'a Tensor, part: &'a Tensor, parts: usize },
}

/// A convolution, or the gradient of its weights; see [`ConvAxis`] for the mapping of pixels and taps.
pub(super) struct ConvRequest<'a> {
    /// Image `(N, H, W, G * c)`, contiguous.
    pub x: &'a Tensor,
    pub batch: usize,
    pub groups: usize,
    /// Input and output channels per group.
    pub c: usize,
    pub o: usize,
    pub axes: [ConvAxis; 2],
    pub work: Work<'a>,
}

impl ConvRequest<'_> {
    /// Returns the number of pixels of the result.
    pub fn pixels(&self) -> usize {
        self.batch * self.axes[0].output * self.axes[1].output
    }
    /// Returns the number of terms in a sum of the convolution.
    pub fn terms(&self) -> usize {
        self.axes[0].taps * self.axes[1].taps * self.c
    }
    fn macs(&self) -> f64 {
        (self.pixels() * self.groups * self.o) as f64 * self.terms() as f64
    }
    fn units(&self) -> usize {
        self.x.device().capabilities().compute_units.max(1) as usize
    }
    /// Returns the pixels per part of a sum over pixels.
    fn pixels_of_part(&self, parts: usize) -> usize {
        self.pixels().div_ceil(parts.max(1)).max(1)
    }

    /// Starts a launch of one of the kernels with their common defines.
    fn launch(&self, kernel: &'static Kernel, entry: &'static str) -> Launch<'static> {
        let launch = kernel.launch(entry).define("DTYPE", self.x.dtype().code());
        launch.flops((2.0 * self.macs()) as u64)
    }
    /// Binds the scalars of the axes.
    fn axes<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        let [h, w] = self.axes;
        let signed = |v: isize| i32::try_from(v).unwrap_or(i32::MAX);
        let pairs = [[h.input, w.input], [h.output, w.output], [h.taps, w.taps], [h.step, w.step]];
        let launch = pairs.into_iter().flatten().fold(launch, |launch, v| launch.scalar(int(v)));
        let signs = [h.dilation, w.dilation, h.origin, w.origin];
        signs.into_iter().fold(launch, |launch, v| launch.scalar(signed(v)))
    }
}

fn int(v: usize) -> i32 {
    i32::try_from(v).unwrap_or(i32::MAX)
}

/// Binds the bias, or `other` as a placeholder without a bias. Also returns the kernels' flags.
fn bias<'a>(launch: Launch<'a>, bias: Option<&Tensor>, other: &Tensor) -> (Launch<'a>, i32) {
    match bias {
        Some(bias) => (launch.read(bias), 2),
        None => (launch.read_base(other), 0),
    }
}

/// Source of the generated epilogue, for kernels that support it, without and with the functions for expressions.
const EPILOGUE: &str = cl_file!("../../include/epilogue.cl");
const FUNCTIONS: &str = netcl_kernel::generate::FUNCTIONS;

/// Binds a convolution's expression, if there is one: the last of its arguments.
fn with_tree<'a>(launch: Launch<'a>, tree: Option<&Tree<'_>>) -> Launch<'a> {
    match tree {
        Some(tree) => tree.bind(launch),
        None => launch,
    }
}

/// An algorithm's division of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ConvPlan {
    /// No parameters: the division follows from the request.
    Direct,
    /// A CPU's blocks per group: pixels and panels, or lines of the gradient of weights.
    Blocks { pixels: usize, panels: usize, lines: usize },
    /// Index of a tile in local memory.
    Tile(usize),
    /// Pixels of a tile along an axis, and tiles of a block.
    Winograd { side: usize, block: usize },
    /// Index of a tensor-core tile, and pixels of a box along W, H and N.
    Boxes { tile: usize, sides: [usize; 3] },
}

impl Job for Convolutions {
    type Request<'a> = ConvRequest<'a>;
    type Plan = ConvPlan;
    type Output = ();
    type Signature = ConvSignature;

    fn device<'r>(request: &'r ConvRequest<'_>) -> &'r Device {
        request.x.device()
    }
    fn class(request: &ConvRequest<'_>) -> u64 {
        let log = |n: usize| u64::from(n.max(1).next_power_of_two().ilog2().min(31));
        let weights = u64::from(matches!(request.work, Work::Weights { .. }));
        let sizes = log(request.pixels()) | log(request.o) << 5 | log(request.terms()) << 10;
        1 + (sizes | log(request.groups) << 15 | weights << 20 | (request.x.dtype().code() as u64) << 21)
    }
    fn signature(request: &ConvRequest<'_>) -> ConvSignature {
        let ConvRequest { x, batch, groups, c, o, axes, work } = request;
        let work = match work {
            Work::Gather { w, bias, tree, place, .. } => {
                Some((w.strides, bias.is_some(), tree.is_some(), *place))
            }
            Work::Weights { .. } => None,
        };
        ConvSignature { dtype: x.dtype(), sizes: [*batch, *groups, *c, *o], axes: *axes, work }
    }
    fn describe(request: &ConvRequest<'_>) -> String {
        format!(
            "{} pixels of {} groups of {} channels, sums of {} terms in {}",
            request.pixels(),
            request.groups,
            request.o,
            request.terms(),
            request.x.dtype()
        )
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct ConvSignature {
    dtype: DType,
    sizes: [usize; 4],
    axes: [ConvAxis; 2],
    work: Option<([usize; 5], bool, bool, PixelPosition)>,
}
