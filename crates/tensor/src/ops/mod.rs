//! Operations. Each has its own file; `ops!` at the end of this file is the only list.
//!
//! There are three ways to add one; use the simplest that fits. An element-wise operation is a row in `elementwise.rs`. A composition of other
//! operations is a function. An operation with its own kernel has `<op>/mod.rs`, `<op>/<op>.cl` and its name below.

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
pub mod linear_of_blocks;
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

/// Returns the work-items that share a row of `n` elements: one on CPUs; on GPUs enough for about four vectors each, at least a hardware group
/// and at most 512.
pub fn row_group(kernel: &'static Kernel, device: &Device, n: usize) -> usize {
    if device.capabilities().is_cpu() {
        return 1;
    }
    let vectors = n.div_ceil(Tuning::value(device, kernel, 0, "VW"));
    vectors.div_ceil(4).next_power_of_two().clamp(32, 512).min(largest_group(device))
}

/// Sets 16-byte vectors, each one access, for kernels over rows of `n` elements of x whose tuned vectors are shorter. Applies to GPUs, if all rows
/// start at multiples of 16 bytes.
pub fn vectors_of_16_bytes<'a>(launch: Launch<'a>, x: &Tensor, n: usize) -> Launch<'a> {
    match has_vectors_of_16_bytes(x, n) {
        true => launch.define("ALIGNED_VECTORS", 1).define("VW", 16 / x.dtype().size()),
        false => launch,
    }
}

/// Returns whether [`vectors_of_16_bytes`] sets such vectors.
pub fn has_vectors_of_16_bytes(x: &Tensor, n: usize) -> bool {
    !x.device().capabilities().is_cpu() && (n * x.dtype().size()).is_multiple_of(16)
}

/// Returns the largest power of two that a work-group of this device may have.
pub fn largest_group(device: &Device) -> usize {
    1 << device.capabilities().max_group.max(1).ilog2()
}

/// Resident work-items of a GPU's compute unit, which OpenCL does not report: 2048 on NVIDIA's 8.0 and 9.0 (CUDA C++ Programming Guide, technical
/// specifications), 40 waves of 64 or 32 of 64 on AMD's. Work is divided into parts for this number on each unit.
pub(crate) const RESIDENT: usize = 2048;

/// Returns the work-groups for `rows` of `n` elements: on GPUs one per row, on CPUs a few per core.
pub fn row_groups(device: &Device, rows: usize, n: usize) -> usize {
    let capabilities = device.capabilities();
    if !capabilities.is_cpu() {
        return rows.min(1 << 20);
    }
    (rows * n).div_ceil(map::CPU_CHUNK).clamp(1, 4 * capabilities.compute_units.max(1) as usize).min(rows)
}

/// Returns the parts of a sum over `elements` with too few results to keep a device busy. Their number determines the order of additions. On CPUs
/// it is therefore not the number of cores, which a user can change with one variable: results have the same bits for any number of threads. Eight
/// parts suffice for a small machine. Larger sums, where parts add little cost, have up to 64, for a server.
pub fn sum_parts(device: &Device, elements: usize) -> usize {
    let capabilities = device.capabilities();
    if capabilities.is_cpu() {
        return (elements / map::CPU_CHUNK).clamp(1, 8).max(elements / (8 * map::CPU_CHUNK)).min(64);
    }
    4 * capabilities.compute_units.max(1) as usize
}

/// Returns whether `y` is too large to be useful in a CPU's caches, so that stores may bypass them.
pub fn streaming_stores(y: &Tensor) -> bool {
    let capabilities = y.device().capabilities();
    let bytes = (y.count() * y.dtype().size()) as u64;
    let cache = y.device().settings().last_cache.unwrap_or(capabilities.cache);
    capabilities.is_cpu() && cache > 0 && 2 * bytes > cache
}

/// An entry of [`OPS`].
#[derive(Clone, Copy)]
pub struct OpEntry {
    /// Module and type of the operation.
    pub name: &'static str,
    /// Builds the cases that the suite runs; [`OpEntry::cases`] omits those of other samples.
    pub make: CasesFn,
    /// Name of the selected samples; `None` selects all.
    pub sample: Option<&'static str>,
    /// Visits its benchmark cases.
    pub bench: BenchFn,
    /// Its calls by name; [`calls`] has those of all operations.
    pub calls: fn() -> Vec<call::Call>,
}

/// Declares `pub mod`, an entry in [`OPS`] for each type, and a test named after it: `module: Type, Type;`.
macro_rules! ops {
    ($($module:ident: $($op:ident),+;)*) => {
        $(pub mod $module;)*
        /// Every operation with its own gradient, and the optimizers.
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
