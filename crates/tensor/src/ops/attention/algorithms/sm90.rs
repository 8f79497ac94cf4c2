//! Shared parts of the sm_90 algorithms: supported problems, tensor maps, sizes of tiles and sets of heads.

use super::super::problem::{AttentionProblem, View, read};
use super::{AttentionBackward, Forward};
use crate::ops::counters::zeroed;
use crate::ops::prelude::*;
use netcl_device::Buffer;
use netcl_kernel::Launch;
use netcl_kernel::tune::Constant;
use netcl_kernel::tune::model::{DEVICE, Model};
use netcl_kernel::vendors::nvidia::{MatrixStack, TensorMap, address, tensor_maps};

/// Sources that 16-bit forwards include.
pub(super) const FORWARD_INCLUDES: &[&str] = &[
    cl_file!("../../include/philox.cl"),
    cl_file!("../../include/sm90.cl"),
    cl_file!("attention_sm90.cl"),
    cl_file!("attention_sm90_fragments.cl"),
    cl_file!("attention_sm90_fwd.cl"),
];
/// Sources that 16-bit gradients include.
pub(super) const BACKWARD_INCLUDES: &[&str] = &[
    cl_file!("../../include/philox.cl"),
    cl_file!("../../include/sm90.cl"),
    cl_file!("attention_sm90.cl"),
    cl_file!("attention_sm90_fragments.cl"),
    cl_file!("attention_sm90_bwd.cl"),
];
/// Sources that f32 attention includes.
pub(super) const BF16X3_INCLUDES: &[&str] = &[
    cl_file!("../../include/philox.cl"),
    cl_file!("../../include/sm90.cl"),
    cl_file!("../../include/bf16x3.cl"),
    cl_file!("attention_sm90.cl"),
    cl_file!("attention_sm90_fragments.cl"),
];

/// Elements in 16 bytes. Rows must start at multiples of this for copies and for stores.
const ALIGNED: usize = 8;
/// Keys of a block in the forward and in dk and dv.
pub(super) const KEYS: usize = 128;
/// Multiple to which the rows of a head's statistics are padded.
const PADDED: usize = 256;

/// Model constants that the estimates share.
pub(super) static MODEL: Model = Model {
    name: "attention_sm90",
    constants: &[
        Constant::new("launch_us", "a launch", 5.5),
        Constant::new("maps_us", "tensor maps made for one", 2.5),
    ],
};

/// Returns the bytes of the last-level cache for keys and values, or for queries and their gradients, of the heads in progress. Measured on an
/// H200, whose cache has 50 MB, at B16 H12 T1024 D64: 16 MB 324, 4 MB 308 TFLOP/s; B4 H32 T4096 D128: 32 MB 580, 16 MB 571.
pub(super) fn cache_share(device: &Device) -> usize {
    let [_, bytes] = DEVICE.on(device);
    bytes as usize
}

/// Returns the number of compute units of a device.
pub(super) fn units(device: &Device) -> usize {
    device.capabilities().compute_units.max(1) as usize
}

/// Checks that scores are only scaled, that the first query sees a key, and that a launch can count the rows.
pub(super) fn plain(p: &AttentionProblem) -> Result<(), &'static str> {
    match () {
        () if p.scale.is_nan() || p.scale <= 0.0 => Err("a scale that is not positive"),
        () if p.softcap.is_some() => Err("soft-capped scores"),
        () if p.docs.is_some() => Err("rows of several documents"),
        () if p.causal && p.keys < p.queries => Err("causal queries before the first key"),
        () if p.batch * p.heads * p.queries.max(p.keys).next_multiple_of(PADDED) >= 1 << 31 => {
            Err("too many rows for one launch")
        }
        () => Ok(()),
    }
}

/// Checks [`plain`], that the window is unlimited, and that the causal diagonal stays in one block of keys for 64 rows.
pub(super) fn blocks_fit(p: &AttentionProblem) -> Result<(), &'static str> {
    let diagonal = !p.causal || (p.keys >= p.queries && (p.keys - p.queries).is_multiple_of(64));
    match () {
        () if p.window.is_some() => Err("a window"),
        () if !diagonal => Err("a causal diagonal that does not start at a block of 64 keys"),
        () => plain(p),
    }
}

/// Checks that elements have 16 bits and rows a multiple of 16 bytes.
pub(super) fn stored_in_16_bits(p: &AttentionProblem) -> Result<(), &'static str> {
    match () {
        () if !matches!(p.dtype, DType::F16 | DType::Bf16) => Err("storage other than f16 and bf16"),
        () if !p.size.is_multiple_of(ALIGNED) => Err("heads of a size that is not a multiple of 8"),
        () => Ok(()),
    }
}

/// Checks 16-bit storage, a head size that local memory holds, and [`blocks_fit`].
fn takes(p: &AttentionProblem) -> Result<(), &'static str> {
    stored_in_16_bits(p)?;
    if p.size > WIDE { Err("heads of more than 128") } else { blocks_fit(p) }
}

/// Returns whether a tensor map can describe the view, with rows aligned to 16 bytes.
fn aligned(view: &View<'_>, [batch, heads, rows]: [usize; 3]) -> bool {
    let axis = |(n, stride): (usize, usize)| n == 1 || (stride > 0 && stride.is_multiple_of(ALIGNED));
    view.offset.is_multiple_of(ALIGNED) && [batch, heads, rows].into_iter().zip(view.strides).all(axis)
}

const UNALIGNED: &str = "rows that do not start at multiples of 16 bytes";

/// Checks that the rows of a forward's operands and result are aligned.
pub(super) fn aligned_forward(r: &Forward<'_>) -> Result<(), &'static str> {
    aligned_inputs(r.p, &r.inputs, r.o)
}

fn aligned_inputs(p: &AttentionProblem, [q, k, v]: &[View<'_>; 3], o: &Tensor) -> Result<(), &'static str> {
    let (queries, keys) = (p.query_dims(), p.key_dims());
    let starts = o.layout().offset.is_multiple_of(ALIGNED);
    match starts && aligned(q, queries) && aligned(k, keys) && aligned(v, keys) {
        true => Ok(()),
        false => Err(UNALIGNED),
    }
}

/// Checks the same for the gradients.
pub(super) fn aligned_backward(r: &AttentionBackward<'_>) -> Result<(), &'static str> {
    let (p, known, [dq, dk, dv]) = (r.p, r.known, &r.grads);
    aligned_inputs(p, &[known.q, known.k, known.v], known.o)?;
    let queries = [dq, &known.dy].into_iter().all(|view| aligned(view, p.query_dims()));
    let keys = [dk, dv].into_iter().all(|view| aligned(view, p.key_dims()));
    if queries && keys { Ok(()) } else { Err(UNALIGNED) }
}

pub(super) fn supports_forward(r: &Forward<'_>) -> Result<(), &'static str> {
    takes(r.p)?;
    aligned_forward(r)
}

pub(super) fn supports_backward(r: &AttentionBackward<'_>) -> Result<(), &'static str> {
    takes(r.p)?;
    aligned_backward(r)
}

/// Columns that heads of more than 64 are padded to.
pub(super) const WIDE: usize = 128;

impl AttentionProblem {
    /// Returns the number of blocks of 64 queries of all heads, by which statistics are stored.
    pub(super) fn query_blocks(&self) -> usize {
        self.batch * self.heads * self.queries.next_multiple_of(PADDED) / 64
    }
    pub(super) fn query_dims(&self) -> [usize; 3] {
        [self.batch, self.heads, self.queries]
    }
    pub(super) fn key_dims(&self) -> [usize; 3] {
        [self.batch, self.kv_heads, self.keys]
    }
    /// Returns whether D ≤ 64: two heads then fit in a product's width, and four warpgroups in the registers.
    pub(super) fn small(&self) -> bool {
        self.size <= 64
    }
    /// Returns the number of key heads whose shared blocks, two tensors of `rows` rows, fit in the L2 cache at the same time.
    pub(super) fn together(&self, device: &Device, rows: usize) -> usize {
        (cache_share(device) / (4 * self.size * rows)).clamp(1, self.batch * self.kv_heads)
    }
}

/// Builds the tensor map of a view, with copies of `block` rows of D.
pub(super) fn map(
    p: &AttentionProblem,
    view: &View<'_>,
    [batch, heads, rows]: [usize; 3],
    block: usize,
) -> Result<MatrixStack> {
    let bytes = p.dtype.size();
    let [b, h, t] = view.strides;
    let of = |n: usize, stride: usize| if n == 1 { 16 } else { (stride * bytes) as u64 };
    let matrix = TensorMap {
        dtype: p.dtype,
        address: address(view.tensor.storage())? + (view.offset * bytes) as u64,
        dims: [p.size as u64, rows as u64],
        stride: of(rows, t),
        block: [64, block as u32],
    };
    Ok(MatrixStack {
        matrix,
        counts: [heads as u64, batch as u64],
        strides: [of(heads, h), of(batch, b)],
        depth: [1; 2],
    })
}

/// Returns the two counters that assign tiles to groups, 0 between launches. Launches of one queue run one after the other and share them.
pub(super) fn counters(device: &Device) -> Result<Buffer> {
    zeroed(device, "attention", 2)
}

pub(super) fn start(
    p: &AttentionProblem,
    kernel: &'static Kernel,
    entry: &'static str,
    warpgroups: usize,
    groups: usize,
    products: u64,
) -> Launch<'static> {
    p.defined(kernel.launch(entry))
        .local([128 * warpgroups, 1, 1])
        .groups(groups)
        .flops(products * p.product_flops())
}

pub(super) fn with_maps<'l>(launch: Launch<'l>, device: &Device, maps: &[MatrixStack]) -> Result<Launch<'l>> {
    let (table, at) = tensor_maps(device, maps)?;
    Ok(launch.read_base(&table).scalar(at))
}

/// Runs a forward in tiles of 64 queries per warpgroup, with blocks of `keys` keys.
pub(super) fn forward(
    r: &Forward<'_>,
    kernel: &'static Kernel,
    warpgroups: usize,
    keys: usize,
) -> Result<()> {
    let (p, [q, k, v], device) = (r.p, &r.inputs, r.device());
    let rows = 64 * warpgroups;
    let tiles = p.queries.div_ceil(rows) * p.heads * p.batch;
    let launch = start(p, kernel, "attention_fwd", warpgroups + 1, units(device).min(tiles), 2);
    let maps =
        [map(p, q, p.query_dims(), rows)?, map(p, k, p.key_dims(), keys)?, map(p, v, p.key_dims(), keys)?];
    let launch = with_maps(launch.define("CW", warpgroups), device, &maps)?;
    let launch = launch.read_base(q.tensor).read_base(k.tensor).read_base(v.tensor);
    let launch = launch.write(r.o).write(r.lse).write(&counters(device)?).scalar(p.batch as u32);
    p.end_with(launch, p.together(device, p.keys) * p.group()).run()
}

/// Computes the statistics of each query row for the gradients: see `attention_sm90_bwd.cl`.
pub(super) fn statistics(r: &AttentionBackward<'_>, kernel: &'static Kernel) -> Result<Tensor> {
    let (p, known) = (r.p, r.known);
    let blocks = p.query_blocks();
    let stats = known.o.empty_f32([blocks, 2, 64])?;
    let launch = start(p, kernel, "attention_bwd_stats", 2, blocks, 0).read(known.o).read(known.lse);
    let launch = read(launch, &known.dy).write(&stats);
    launch.scalar(p.heads as u32).scalar(p.queries as u32).run()?;
    Ok(stats)
}
