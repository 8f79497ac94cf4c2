//! Operations. One file an op; `ops!` at the end of this file is the only list.
//!
//! Three doors to add one, the cheapest that fits:
//! element by element: a row in `elementwise.rs`; made of other ops: a function; own kernel: `<op>/mod.rs`, `<op>/<op>.cl` and its
//! name below.

use crate::suite::{BenchFn, CasesFn};
use crate::{Device, Tensor};
use netcl_kernel::tune::Tuning;
use netcl_kernel::{Kernel, Launch};

mod algorithms;
pub use algorithms::Row;
pub mod call;
pub mod check;
mod copy;
mod counters;
pub mod decode_step;
pub mod einsum;
mod integer;
pub mod losses;
pub mod map;
mod norm;
pub(crate) mod observe;
mod op;
pub use op::{MultiOp, Op};
pub mod optimizer;
pub mod prelude;
pub mod rearrange;
mod registry;
pub use registry::{call, calls, find};
#[cfg(test)]
mod special_values;
#[cfg(test)]
mod threads;

pub(crate) use copy::copy as copied;

/// Work-items that share a row of `n` elements: one on CPUs; on GPUs as many as have about four vectors each, from one
/// hardware group to 512.
pub fn row_group(kernel: &'static Kernel, device: &Device, n: usize) -> usize {
    if device.capabilities().is_cpu() {
        return 1;
    }
    let vectors = n.div_ceil(Tuning::value(device, kernel, 0, "VW"));
    vectors.div_ceil(4).next_power_of_two().clamp(32, 512).min(largest_group(device))
}

/// For kernels over rows of `n` elements of x whose tuned vectors are shorter: on GPUs vectors of 16 bytes, each one access, where
/// all rows start at such.
pub fn vectors_of_16_bytes<'a>(launch: Launch<'a>, x: &Tensor, n: usize) -> Launch<'a> {
    match has_vectors_of_16_bytes(x, n) {
        true => launch.define("ALIGNED_VECTORS", 1).define("VW", 16 / x.dtype().size()),
        false => launch,
    }
}

/// Whether that gives such vectors.
pub fn has_vectors_of_16_bytes(x: &Tensor, n: usize) -> bool {
    !x.device().capabilities().is_cpu() && (n * x.dtype().size()).is_multiple_of(16)
}

/// The largest power of two that a work-group of this device may have.
pub fn largest_group(device: &Device) -> usize {
    1 << device.capabilities().max_group.max(1).ilog2()
}

/// Work-items that a GPU's compute unit has at once, which OpenCL does not tell: 2048 on NVIDIA's 8.0 and 9.0 (CUDA C++ Programming Guide, technical
/// specifications), 40 waves of 64 or 32 of 64 on AMD's. Work is cut into parts for so many on each unit.
pub(crate) const RESIDENT: usize = 2048;

/// Work-groups that `rows` of `n` elements are dealt to: on GPUs one a row, on CPUs a few for each core.
pub fn row_groups(device: &Device, rows: usize, n: usize) -> usize {
    let capabilities = device.capabilities();
    if !capabilities.is_cpu() {
        return rows.min(1 << 20);
    }
    (rows * n).div_ceil(map::CPU_CHUNK).clamp(1, 4 * capabilities.compute_units.max(1) as usize).min(rows)
}

/// Parts that a sum over `elements` is taken in where it has too few results to keep a device busy. Their number decides the
/// order of additions, so on CPUs it is not that of the cores, which a user changes with one variable: results have the same bits
/// for any number of threads. Eight parts are for the cores of a small machine, up to 64, where that adds little, for a server's.
pub fn sum_parts(device: &Device, elements: usize) -> usize {
    let capabilities = device.capabilities();
    if capabilities.is_cpu() {
        return (elements / map::CPU_CHUNK).clamp(1, 8).max(elements / (8 * map::CPU_CHUNK)).min(64);
    }
    4 * capabilities.compute_units.max(1) as usize
}

/// Whether writing `y` leaves nothing of use in a CPU's caches, so that its stores may go past them.
pub fn streaming_stores(y: &Tensor) -> bool {
    let capabilities = y.device().capabilities();
    let bytes = (y.count() * y.dtype().size()) as u64;
    let cache = y.device().settings().last_cache.unwrap_or(capabilities.cache);
    capabilities.is_cpu() && cache > 0 && 2 * bytes > cache
}

/// One line of [`OPS`].
#[derive(Clone, Copy)]
pub struct OpEntry {
    /// Module and type of the op.
    pub name: &'static str,
    /// Makes the cases that the suite runs; [`OpEntry::cases`] leaves those of other samples out.
    pub make: CasesFn,
    /// The name of the samples that are meant, where it is not all of them.
    pub sample: Option<&'static str>,
    /// Visits its benchmark cases.
    pub bench: BenchFn,
    /// What of it can be called by name: [`calls`] has those of all.
    pub calls: fn() -> Vec<call::Call>,
}

/// `module: Type, Type;` → `pub mod`, an entry in [`OPS`] for each type and a test named after it.
macro_rules! ops {
    ($($module:ident: $($op:ident),+;)*) => {
        $(pub mod $module;)*
        /// Every op with a gradient of its own, and the optimizers.
        pub static OPS: &[OpEntry] = &[$($(OpEntry {
            name: concat!(stringify!($module), "::", stringify!($op)),
            make: crate::suite::cases::<$module::$op, _, _>,
            sample: None,
            bench: crate::suite::bench::<$module::$op, _, _>,
            calls: op::calls::<$module::$op, _, _>,
        },)+)* optimizer::ENTRY];
        #[cfg(test)]
        #[allow(non_snake_case)]
        mod suite {
            $(mod $module { $(#[test] fn $op() { crate::suite::test(concat!(stringify!($module), "::", stringify!($op))); })+ })*
        }
    };
}

ops! {
    elementwise: Unary, Binary;
    view: Reshape, Permute, Slice, Expand;
    cast: Cast;
    reduce: Sum, Max;
    layer_norm: LayerNorm;
    rms_norm: RmsNorm;
    residual_norm: ResidualLayerNorm, ResidualRmsNorm;
    embedding: Embedding;
    cross_entropy: CrossEntropy;
    linear_cross_entropy: LinearCrossEntropy;
    softmax: Softmax, LogSoftmax;
    logsumexp: LogSumExp;
    mask: Where, MaskedFill;
    join: Cat;
    argmax: ArgMax;
    topk: TopK;
    sort: Sort;
    cumsum: CumSum;
    gather: Gather, Scatter, ScatterAdd;
    multinomial: Multinomial;
    choose: Choose;
    dropout: Dropout;
    attention: Attention, AttentionQkv;
    decode_attention: DecodeAttention;
    decode_embedding: DecodeEmbedding;
    paged_cache: CacheAppend, CacheGather;
    rope: Rope;
    gated: Gated;
    route: Route;
    balance_loss: BalanceLoss;
    experts: Experts;
    matmul: MatMul, Linear;
    conv: Conv2d, ConvTranspose2d;
    pool: MaxPool2d, AvgPool2d;
    batch_norm: BatchNorm, BatchStatistics;
    add_relu: AddRelu;
    feed_forward: LinearAdd, LinearResidual, FeedForward;
    fused_linear: FusedLinear;
}
