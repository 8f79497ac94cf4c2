//! Launches of the sm_90 kernels: which problems they take, tensor maps, sizes of tiles and sets of heads.

use super::kernels::{Known, Problem, View, write};
use super::wgmma;
use crate::ops::counters::zeroed;
use crate::ops::prelude::*;
use netcl_device::Buffer;
use netcl_kernel::Launch;
use netcl_kernel::vendors::nvidia::{Element, MatrixStack, SM90A, TensorMap, address, tensor_maps};

pub(super) static WGMMA: Kernel =
    Kernel::new("attention_wgmma_sm90", include_str!("attention_wgmma_sm90.cl"))
        .include(&[
            include_str!("../include/philox.cl"),
            include_str!("../include/sm90.cl"),
            include_str!("attention_sm90.cl"),
        ])
        .generate(wgmma::macros)
        .reload(&SM90A)
        .requires(|device| device.sm() == Some(90));
const BWD_TEXT: &str = concat!(
    include_str!("attention_wgmma_sm90_bwd.cl"),
    include_str!("attention_wgmma_sm90_bwd_kv.cl"),
    include_str!("attention_wgmma_sm90_bwd_q.cl")
);
const ORDERED_TEXT: &str = concat!(
    include_str!("attention_wgmma_sm90_bwd.cl"),
    include_str!("attention_wgmma_sm90_bwd_ordered.cl"),
    include_str!("attention_wgmma_sm90_bwd_kv.cl")
);
pub(super) static WGMMA_BWD: Kernel = Kernel::new("attention_wgmma_sm90_bwd", BWD_TEXT)
    .include(&[
        include_str!("../include/philox.cl"),
        include_str!("../include/sm90.cl"),
        include_str!("attention_sm90.cl"),
    ])
    .generate(wgmma::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

/// Both gradients in one pass, for heads of more than 64: fewer products, and f32 sums of dq in memory.
pub(super) static ORDERED_BWD: Kernel = Kernel::new("attention_ordered_sm90_bwd", ORDERED_TEXT)
    .include(&[
        include_str!("../include/philox.cl"),
        include_str!("../include/sm90.cl"),
        include_str!("attention_sm90.cl"),
    ])
    .generate(wgmma::macros)
    .reload(&SM90A)
    .requires(|device| device.sm() == Some(90));

/// Elements of 16 bytes: rows start at multiples of it, for copies and for stores.
const ALIGNED: usize = 8;
/// Keys of a block in the forward and in dk and dv.
const KEYS: usize = 128;
/// Keys of a block in dq.
const DQ_KEYS: usize = 64;
/// Rows of the statistics of a head are padded to this.
const PADDED: usize = 256;
/// What of the L2 cache (50 MB) the keys and values, or queries and their gradients, of the heads in progress may take.
/// Measured at B16 H12 T1024 D64: 16 MB 324, 4 MB 308 TFLOP/s; B4 H32 T4096 D128: 32 MB 580, 16 MB 571.
const L2_SHARE: usize = 24 << 20;

/// Whether the kernels take this problem: 16-bit storage, heads that local memory holds, blocks as [`blocks_fit`].
fn takes(p: &Problem) -> bool {
    matches!(p.dtype, DType::F16 | DType::Bf16)
        && p.size.is_multiple_of(ALIGNED)
        && p.size <= 128
        && blocks_fit(p)
}

/// Whether causality's diagonal stays in one block of keys for 64 rows, and rows can be counted; no window, no soft-capping.
pub(super) fn blocks_fit(p: &Problem) -> bool {
    p.scale > 0.0
        && p.window.is_none()
        && p.softcap.is_none()
        && (!p.causal || (p.keys >= p.queries && (p.keys - p.queries).is_multiple_of(64)))
        && p.batch * p.heads * p.queries.max(p.keys).next_multiple_of(PADDED) < 1 << 31
}

/// Whether a map describes the view, and 16 bytes of a row are aligned.
fn aligned(view: &View<'_>, [batch, heads, rows]: [usize; 3]) -> bool {
    let axis = |(n, stride): (usize, usize)| n == 1 || (stride > 0 && stride.is_multiple_of(ALIGNED));
    view.offset.is_multiple_of(ALIGNED) && [batch, heads, rows].into_iter().zip(view.strides).all(axis)
}

pub(super) fn fits_forward(p: &Problem, [q, k, v]: &[View<'_>; 3], o: &Tensor) -> bool {
    let (queries, keys) = (p.query_dims(), p.key_dims());
    let o_starts = o.layout().offset.is_multiple_of(ALIGNED);
    takes(p) && o_starts && aligned(q, queries) && aligned(k, keys) && aligned(v, keys)
}

pub(super) fn fits_backward(p: &Problem, known: &Known<'_>, [dq, dk, dv]: &[View<'_>; 3]) -> bool {
    let queries = [dq, &known.dy].into_iter().all(|view| aligned(view, p.query_dims()));
    let keys = [dk, dv].into_iter().all(|view| aligned(view, p.key_dims()));
    queries && keys && fits_forward(p, &[known.q, known.k, known.v], known.o)
}

/// The same for [`ORDERED_BWD`], whose sums may take a sixteenth of the device's memory.
pub(super) fn fits_ordered(p: &Problem, known: &Known<'_>, grads: &[View<'_>; 3]) -> bool {
    let bytes = 4 * p.query_blocks() * 64 * WIDE;
    let room = bytes as u64 <= known.o.device().capabilities().global_mem / 16;
    !p.small() && room && fits_backward(p, known, grads)
}

/// Whether [`ORDERED_BWD`] is the faster of the two.
pub(super) fn ordered_pays(p: &Problem) -> bool {
    // Measured: two passes take 1.21 of its time at D 128, T 4096, but 0.94 and 0.97 at D 80 and 96, T 1024, whose products over D are
    // shorter, while key blocks wait for each other all the same. Longer sequences of those were not tried.
    p.size > 96
}

/// Columns that heads of more than 64 are padded to.
const WIDE: usize = 128;

impl Problem {
    /// Blocks of 64 queries of all heads, in which statistics lie.
    fn query_blocks(&self) -> usize {
        self.batch * self.heads * self.queries.next_multiple_of(PADDED) / 64
    }
    fn query_dims(&self) -> [usize; 3] {
        [self.batch, self.heads, self.queries]
    }
    fn key_dims(&self) -> [usize; 3] {
        [self.batch, self.kv_heads, self.keys]
    }
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
    /// Two of D ≤ 64 fit in a product's width, four warpgroups in the registers.
    fn small(&self) -> bool {
        self.size <= 64
    }
    /// Key heads whose shared blocks, two tensors of `rows`, stay in the L2 cache together.
    fn together(&self, rows: usize) -> usize {
        (L2_SHARE / (4 * self.size * rows)).clamp(1, self.batch * self.kv_heads)
    }
}

/// The map of a view whose copies move `block` rows of D.
fn map(p: &Problem, view: &View<'_>, [batch, heads, rows]: [usize; 3], block: usize) -> Result<MatrixStack> {
    let bytes = p.dtype.size();
    let [b, h, t] = view.strides;
    let of = |n: usize, stride: usize| if n == 1 { 16 } else { (stride * bytes) as u64 };
    let matrix = TensorMap {
        element: if p.dtype == DType::F16 { Element::F16 } else { Element::Bf16 },
        address: address(view.tensor.storage())? + (view.offset * bytes) as u64,
        dims: [p.size as u64, rows as u64],
        stride: of(rows, t),
        block: [64, block as u32],
    };
    Ok(MatrixStack { matrix, counts: [heads as u64, batch as u64], strides: [of(heads, h), of(batch, b)] })
}

/// The two counters that hand out tiles, 0 between launches. Launches of one queue run one after the other and share them.
pub(super) fn counters(device: &Device) -> Result<Buffer> {
    zeroed(device, "attention", 2)
}

fn start(
    p: &Problem,
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

fn with_maps<'l>(launch: Launch<'l>, device: &Device, maps: &[MatrixStack]) -> Result<Launch<'l>> {
    let (table, at) = tensor_maps(device, maps)?;
    Ok(launch.read_base(&table).scalar(at))
}

/// o and lse; see `attention_wgmma_sm90.cl`.
pub(super) fn forward(p: &Problem, [q, k, v]: [View<'_>; 3], o: &Tensor, lse: &Tensor) -> Result<()> {
    let device = o.device();
    let units = device.capabilities().compute_units.max(1) as usize;
    let tiles = |rows: usize| p.queries.div_ceil(rows) * p.heads * p.batch;
    // Three warpgroups share a block of keys where there are tiles enough to balance; dropout takes their registers.
    let warpgroups = if p.small() && p.mask.is_none() && tiles(192) >= 2 * units { 3 } else { 2 };
    let rows = 64 * warpgroups;
    let launch = start(p, &WGMMA, "attention_fwd", warpgroups + 1, units.min(tiles(rows)), 2);
    let maps =
        [map(p, &q, p.query_dims(), rows)?, map(p, &k, p.key_dims(), KEYS)?, map(p, &v, p.key_dims(), KEYS)?];
    let launch = with_maps(launch.define("CW", warpgroups), device, &maps)?;
    let launch = launch.read_base(q.tensor).read_base(k.tensor).read_base(v.tensor);
    let launch = launch.write(o).write(lse).write(&counters(device)?).scalar(p.batch as u32);
    p.end_with(launch, p.together(p.keys) * p.group()).run()
}

/// dq, dk, dv in three launches; see `attention_wgmma_sm90_bwd.cl`.
pub(super) fn backward(p: &Problem, known: &Known<'_>, [dq, dk, dv]: [View<'_>; 3]) -> Result<()> {
    let device = known.o.device();
    let units = device.capabilities().compute_units.max(1) as usize;
    let next = counters(device)?;
    let Known { q, k, v, o, lse, dy } = known;
    let blocks = p.query_blocks();
    let stats = o.empty_f32([blocks, 2, 64])?;
    let launch = start(p, &WGMMA_BWD, "attention_bwd_stats", 2, blocks, 0).read(*o).read(*lse);
    let launch = super::kernels::read(launch, dy).write(&stats);
    launch.scalar(p.heads as u32).scalar(p.queries as u32).run()?;

    let bound = |launch: Launch<'static>, maps: &[MatrixStack]| -> Result<Launch<'static>> {
        let launch = with_maps(launch, device, maps)?.read_base(q.tensor).read_base(dy.tensor);
        Ok(launch.read_base(k.tensor).read_base(v.tensor).read(&stats))
    };
    let rows = if p.small() { 128 } else { 64 };
    let maps = |rows: usize, keys: usize| -> Result<[MatrixStack; 4]> {
        Ok([
            map(p, q, p.query_dims(), rows)?,
            map(p, dy, p.query_dims(), rows)?,
            map(p, k, p.key_dims(), keys)?,
            map(p, v, p.key_dims(), keys)?,
        ])
    };
    let tiles = p.keys.div_ceil(KEYS) * p.kv_heads * p.batch;
    let launch = start(p, &WGMMA_BWD, "attention_bwd_kv", 3, units.min(tiles), 4);
    let launch =
        write(write(bound(launch, &maps(rows, KEYS)?)?, &dk), &dv).write(&next).scalar(p.batch as u32);
    p.end_with(launch, p.together(p.queries * p.group())).run()?;

    let warpgroups = if p.small() { 3 } else { 2 };
    let tiles = p.queries.div_ceil(64 * warpgroups) * p.heads * p.batch;
    let launch = start(p, &WGMMA_BWD, "attention_bwd_q", warpgroups + 1, units.min(tiles), 3);
    let launch =
        write(bound(launch, &maps(64 * warpgroups, DQ_KEYS)?)?, &dq).write(&next).scalar(p.batch as u32);
    p.end_with(launch, p.together(p.keys) * p.group()).run()
}

/// The same in one pass, for problems that [`fits_ordered`] takes.
pub(super) fn ordered_backward(p: &Problem, known: &Known<'_>, [dq, dk, dv]: [View<'_>; 3]) -> Result<()> {
    let device = known.o.device();
    let units = device.capabilities().compute_units.max(1) as usize;
    let Known { q, k, v, o, lse, dy } = known;
    let blocks = p.query_blocks();
    let (stats, sums) = (o.empty_f32([blocks, 2, 64])?, o.empty_f32([blocks, 64, WIDE])?);
    let tickets = Tensor::empty(device, [blocks, 2], DType::I32)?;
    let start = |entry, warpgroups, groups, products| {
        start(p, &ORDERED_BWD, entry, warpgroups, groups, products).define("ORDERED", 1)
    };
    let launch = super::kernels::read(start("attention_bwd_stats", 2, blocks, 0).read(*o).read(*lse), dy);
    launch.write(&stats).write(&tickets).scalar(p.heads as u32).scalar(p.queries as u32).run()?;

    let maps = [
        map(p, q, p.query_dims(), 64)?,
        map(p, dy, p.query_dims(), 64)?,
        map(p, k, p.key_dims(), KEYS)?,
        map(p, v, p.key_dims(), KEYS)?,
    ];
    let tiles = p.keys.div_ceil(KEYS) * p.kv_heads * p.batch;
    let launch = with_maps(start("attention_bwd_kv", 3, units.min(tiles), 5), device, &maps)?;
    let launch = launch.read_base(q.tensor).read_base(dy.tensor).read_base(k.tensor).read_base(v.tensor);
    let launch = write(write(launch.read(&stats), &dk), &dv).write(&sums).write(&tickets);
    let launch = launch.write(&counters(device)?).scalar(p.batch as u32);
    p.end_with(launch, p.together(p.queries * p.group())).run()?;

    let launch = write(start("attention_bwd_round", 1, blocks, 0).read(&sums), &dq);
    launch.scalar(p.heads as u32).scalar(p.queries as u32).scalar(p.scale).run()
}
