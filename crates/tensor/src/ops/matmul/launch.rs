//! One product onto the device: which kernel, which blocks, how many groups.

use super::super::elementwise::UNARY;
use super::super::map::map_into;
use super::super::prelude::*;
use super::algorithms::tile::{ITEMS, TILE, TILE_SMALL};
use super::algorithms::wgmma::WGMMA;
use super::algorithms::{self, MATMUL, Request, gemv};
use super::split_k::SplitKSchedule;
use super::view::Problem;
use netcl_device::Buffer;
use netcl_kernel::Launch;

/// Bits of the kernels' `flags`.
const ADD_C: i32 = 1;
const BIAS: i32 = 2;
pub(super) const COLUMN_SUMS: i32 = 4;

/// What happens to a sum on its way into C.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Epilogue<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Added to each row: `(n)`, of C's type.
    pub bias: Option<&'a Tensor>,
    /// Add to what C holds.
    pub add: bool,
    /// What else is done: on the way where the kernel can, after it where not.
    pub aux: Aux<'a>,
}

/// What an epilogue does with another matrix of C's shape and type, dense.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Aux<'a> {
    /// Nothing.
    None,
    /// Adds it.
    Residual(&'a Tensor),
    /// C becomes GELU (tanh) of the sum, and the matrix the sum.
    Gelu(&'a Tensor),
    /// C is multiplied by the derivative of GELU (tanh) there.
    GeluGrad(&'a Tensor),
}

impl<'a> Aux<'a> {
    /// The other matrix.
    pub(super) fn tensor(&self) -> Option<&'a Tensor> {
        match self {
            Self::None => None,
            Self::Residual(x) | Self::Gelu(x) | Self::GeluGrad(x) => Some(x),
        }
    }
}

impl Epilogue<'_> {
    /// C is the product.
    pub(in crate::ops) const NONE: Epilogue<'static> =
        Epilogue { alpha: 1.0, bias: None, add: false, aux: Aux::None };

    pub(super) fn flags(&self) -> i32 {
        (if self.add { ADD_C } else { 0 }) | (if self.bias.is_some() { BIAS } else { 0 })
    }
}

/// An argument that this launch does not touch.
pub(super) struct Unused<'a>(pub &'a Tensor);

impl Operand for Unused<'_> {
    fn buffer(&self) -> &Buffer {
        self.0.storage()
    }
    fn bytes(&self) -> usize {
        0
    }
}

/// `c = epilogue(a b)`; `c` is dense and has as many elements as the product. Returns the sums of the columns of `b`
/// (summed in f32) where they were asked for and this device's kernel makes them on the way.
pub(in crate::ops) fn run(
    c: &Tensor,
    p: &Problem,
    epilogue: &Epilogue<'_>,
    column_sums: bool,
) -> Result<Option<Tensor>> {
    let largest = i32::MAX.cast_unsigned() as usize;
    if p.m.max(p.n).max(p.k).max(p.batch()) > largest {
        return Err(Error::shape(format!(
            "matmul: {} products of ({}, {}) and ({}, {}) have an axis above {largest}; split it",
            p.batch(),
            p.m,
            p.k,
            p.k,
            p.n
        )));
    }
    MATMUL.run(&Request { c, p, e: epilogue, column_sums })
}

/// What an epilogue does with another matrix, after the product: `c` holds the sum, or for [`Aux::Gelu`] that matrix does.
pub(super) fn finish(c: &Tensor, aux: &Aux<'_>) -> Result<()> {
    match aux {
        Aux::None => Ok(()),
        Aux::Residual(x) => map_into("x0 + x1", &[*x, c], &[], c),
        Aux::Gelu(before) => map_into(gelu()?.0, &[*before], &[], c),
        Aux::GeluGrad(before) => map_into(gelu()?.1, &[*before, c], &[], c),
    }
}

/// `sum = a b`, or `sum += a b` where it is not the first of several products; `sum` (m, n) is f32, whatever a and b are.
pub(in crate::ops) fn accumulate(sum: &Tensor, p: &Problem, first: bool) -> Result<()> {
    let epilogue = Epilogue { add: !first, ..Epilogue::NONE };
    let request = Request { c: sum, p, e: &epilogue, column_sums: false };
    if !request.widens() || MATMUL.choose(&request).is_ok() {
        return run(sum, p, &epilogue, false).map(drop);
    }
    // Each part is rounded once before it is added: what their sum is rounded to in the end.
    let part = Tensor::empty(sum.device(), [p.m, p.n], request.dtype())?;
    run(&part, p, &Epilogue::NONE, false)?;
    match first {
        true => map_into("x0", &[&part], &[], sum),
        false => map_into("x0 + x1", &[sum, &part], &[], sum),
    }
}

/// Expressions of GELU (tanh) and of its gradient, as the element-wise op has them.
fn gelu() -> Result<(&'static str, &'static str)> {
    let row = UNARY.iter().find(|row| row.name == "gelu_tanh");
    row.map(|row| (row.y, row.dx)).ok_or_else(|| Error::internal("no element-wise op gelu_tanh"))
}

static GELU_RECOMPUTED: Kernel = Kernel::new("gelu_sm90", cl_file!("gelu_sm90.cl"));

/// GELU of what [`Aux::Gelu`] left in `before` for the product `p`, with the bits of the launch that left it.
pub(in crate::ops) fn gelu_recomputed(before: &Tensor, p: &Problem) -> Result<Tensor> {
    // Only the warpgroup kernel has the GELU of 16-bit results within.
    let epilogue = Epilogue { aux: Aux::Gelu(before), ..Epilogue::NONE };
    let request = Request { c: before, p, e: &epilogue, column_sums: false };
    let within = before.dtype() != DType::F32
        && before.count() > 0
        && MATMUL.choose(&request)?.0.kernel.name == WGMMA.name;
    if !within {
        return map(gelu()?.0, &[before], &[], before.shape(), before.dtype());
    }
    let y = before.empty_like()?;
    let launch =
        GELU_RECOMPUTED.launch("gelu_recomputed").define("DTYPE", before.dtype().code()).local([256, 1, 1]);
    launch.items(before.count().div_ceil(2)).read(before).write(&y).scalar(before.count()).run()?;
    Ok(y)
}

/// `c (M, N)` of few rows with all that `fused` says, in one launch; `false` where no kernel here takes it.
pub(in crate::ops) fn run_few_rows(c: &Tensor, p: &Problem, fused: &gemv::Fused<'_>) -> Result<bool> {
    let request = Request { c, p, e: &Epilogue::NONE, column_sums: false };
    match algorithms::few_rows(&request) {
        Some(kernel) => gemv::run_fused(kernel, c, p, fused).map(|()| true),
        None => Ok(false),
    }
}

pub(super) fn bind<'a>(launch: Launch<'a>, c: &Tensor, p: &Problem, e: &Epilogue<'_>) -> Result<Launch<'a>> {
    let launch = launch.flops((2 * p.m * p.n * p.k * p.batch()) as u64);
    let launch = launch.define("DTYPE", c.dtype().code()).read_base(&p.a.tensor).read_base(&p.b.tensor);
    Ok(bind_bias(launch, e, &p.b.tensor)?.write(c))
}

/// The bias, or `other` in its place where there is none.
fn bind_bias<'a>(launch: Launch<'a>, e: &Epilogue<'_>, other: &Tensor) -> Result<Launch<'a>> {
    Ok(match e.bias {
        Some(bias) => launch.read(&bias.detach().contiguous()?),
        None => launch.read_base(&Unused(other)),
    })
}

/// The scalars that both kernels begin with.
pub(super) fn geometry<'a>(launch: Launch<'a>, p: &Problem) -> Launch<'a> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = launch.scalar(p.a.offset()).scalar(p.b.offset());
    let launch = launch.scalar(int(p.m)).scalar(int(p.n)).scalar(int(p.k)).scalar(int(p.z[1].max(1)));
    let [a0, a1] = p.a_strides;
    let [b0, b1] = p.b_strides;
    let strides = [a0, a1, b0, b1, p.a.row_stride, p.a.col_stride, p.b.row_stride, p.b.col_stride];
    strides.into_iter().fold(launch, |launch, stride| launch.scalar(stride))
}

/// [`add_tail`] for parts of tiles of 128 x 128 that another kernel left.
pub(super) fn add_tail_of_128(
    part: &Tensor,
    c: &Tensor,
    p: &Problem,
    e: &Epilogue<'_>,
    schedule: SplitKSchedule,
) -> Result<()> {
    let launch = TILE.launch("matmul_tile_sum").define("WG", ITEMS);
    let launch = launch.define("BM", 128).define("BN", 128).define("TM", 8).define("TN", 8);
    add_tail(launch, part, c, p, e, schedule, 128)
}

/// The last tiles, `side` x `side` each, of `c = epilogue(sum of the parts)`: `part` (splits, tail, side, side). `launch` is of
/// matmul_tile_sum and knows the shape of its tiles.
pub(super) fn add_tail(
    launch: Launch<'static>,
    part: &Tensor,
    c: &Tensor,
    p: &Problem,
    e: &Epilogue<'_>,
    schedule: SplitKSchedule,
    side: usize,
) -> Result<()> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = bind_bias(launch.define("DTYPE", c.dtype().code()).read(part), e, c)?;
    let launch = launch.write(c).scalar(int(p.m)).scalar(int(p.n));
    let launch = launch.scalar(int(schedule.full)).scalar(int(schedule.tail)).scalar(int(schedule.splits));
    launch.scalar(e.alpha).scalar(e.flags()).items(schedule.tail * side * side / 4).run()
}

/// `c = epilogue(sum of the parts)`, each as large as `c`, in their order.
pub(super) fn add_parts(
    part: &Tensor,
    c: &Tensor,
    p: &Problem,
    e: &Epilogue<'_>,
    splits: usize,
) -> Result<()> {
    let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
    let launch = TILE_SMALL.launch("matmul_parts_sum").define("DTYPE", c.dtype().code()).define("WG", ITEMS);
    let launch = bind_bias(launch.read(part), e, c)?;
    let launch = launch.write(c).scalar(c.count()).scalar(int(p.n)).scalar(int(splits));
    launch.scalar(e.alpha).scalar(e.flags()).items(c.count()).run()
}
