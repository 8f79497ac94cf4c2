//! Launches of the attention kernels: which text on which device, its sizes and its arguments.

use super::{bf16x3, proof, sm90};
use crate::ops::prelude::*;
use crate::random::DropMask;
use netcl_device::{Capabilities, ErrorKind};
use netcl_kernel::{Launch, Variants};

static VECTOR: Kernel = Kernel::new("attention_vector", include_str!("attention_vector.cl"))
    .include(&[include_str!("../include/philox.cl"), include_str!("attention_lanes.cl")])
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static VECTOR_BWD: Kernel = Kernel::new("attention_vector_bwd", include_str!("attention_vector_bwd.cl"))
    .include(&[include_str!("../include/philox.cl"), include_str!("attention_lanes.cl")])
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static TILE: Kernel = Kernel::new("attention_tile", include_str!("attention_tile.cl"))
    .include(&[include_str!("../include/philox.cl"), include_str!("attention_grid.cl")])
    .requires(|device| device.max_group >= 8)
    .tune(&[("WG", &[128])]);
static TILE_BWD: Kernel = Kernel::new("attention_tile_bwd", include_str!("attention_tile_bwd.cl"))
    .include(&[include_str!("../include/philox.cl"), include_str!("attention_grid.cl")])
    .requires(|device| device.max_group >= 8);
/// The two agree on what lies between them, so that any forward goes with any backward.
static FORWARD: Variants = Variants::new("attention_fwd", &[&VECTOR, &sm90::WGMMA, &bf16x3::BF16X3, &TILE]);
static BACKWARD: Variants = Variants::new(
    "attention_bwd",
    &[&VECTOR_BWD, &sm90::ORDERED_BWD, &sm90::WGMMA_BWD, &bf16x3::BF16X3_BWD, &TILE_BWD],
);

/// Query rows and keys of a forward tile, rows and work-items of a backward tile: the first that fits is taken, from the
/// second on for heads above 64, from the third above 128, where registers are short.
const FORWARD_TILES: [(usize, usize); 5] = [(64, 64), (64, 32), (32, 32), (16, 16), (16, 8)];
const BACKWARD_TILES: [(usize, usize); 4] = [(64, 128), (32, 128), (16, 128), (8, 64)];

/// Vectors of queries in a block of the vector kernels (`QV`).
const QUERY_VECTORS: usize = 2;

/// What a problem fixes.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Queries (T).
    pub queries: usize,
    /// Keys (S).
    pub keys: usize,
    /// Head size (D).
    pub size: usize,
    pub causal: bool,
    /// Keys that a query sees at most; less than `keys`.
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub scale: f32,
    pub mask: Option<DropMask>,
    pub dtype: DType,
}

/// Local memory that two groups can have on a multiprocessor. NVIDIA's OpenCL reports 48 KiB, which binds kernel arguments only: on
/// sm_90 arrays of a kernel may take 227 KiB.
fn local_room(device: &Capabilities) -> usize {
    let bytes = if device.sm() == Some(90) { 113 << 10 } else { device.local_mem };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A tensor seen as (B, heads, rows, D) with a last stride of 1, wherever it lies.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub tensor: &'a Tensor,
    pub offset: usize,
    /// Elements between batches, heads and rows.
    pub strides: [usize; 3],
}

impl<'a> View<'a> {
    /// Whether each group of four elements along D starts at a multiple of four.
    fn fours(&self) -> bool {
        self.offset.is_multiple_of(4) && self.strides.iter().all(|s| s.is_multiple_of(4))
    }
    /// A (B, H, T, D) tensor.
    pub fn heads(tensor: &'a Tensor) -> Self {
        let layout = tensor.layout();
        let at = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0);
        Self { tensor, offset: layout.offset, strides: [at(0), at(1), at(2)] }
    }
    /// The heads from `first` on in a (B, T, heads * D) tensor.
    pub fn packed(tensor: &'a Tensor, first: usize, size: usize) -> Self {
        let layout = tensor.layout();
        let at = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0);
        Self { tensor, offset: layout.offset + first * size, strides: [at(0), size, at(1)] }
    }
}

/// The four numbers that follow each strided argument.
fn place<'l>(launch: Launch<'l>, view: &View<'_>) -> Launch<'l> {
    let [b, h, t] = view.strides;
    launch.scalar(view.offset).scalar(b).scalar(h).scalar(t)
}
pub(super) fn read<'l>(launch: Launch<'l>, view: &View<'_>) -> Launch<'l> {
    place(launch.read_base(view.tensor), view)
}
pub(super) fn write<'l>(launch: Launch<'l>, view: &View<'_>) -> Launch<'l> {
    place(launch.write_base(view.tensor), view)
}

impl Problem {
    fn pairs(&self) -> usize {
        self.batch * self.kv_heads
    }
    /// Query rows that share a key head.
    fn rows(&self) -> usize {
        self.queries * (self.heads / self.kv_heads)
    }
    /// Tiles of `tiles` this head size may use, whose `rows` of D and `scores` tables fit the device's local memory.
    fn tile<const N: usize>(
        &self,
        device: &Device,
        tiles: [(usize, usize); N],
        bytes: impl Fn(&Self, (usize, usize)) -> usize,
    ) -> Option<(usize, usize)> {
        let first = usize::from(self.size > 64) + usize::from(self.size > 128);
        let room = local_room(device.capabilities());
        tiles.into_iter().skip(first).find(|tile| bytes(self, *tile) <= room)
    }
    /// Bytes of `rows` rows of D in a tile, and of a table of `scores` floats, dropout's mask among them.
    fn tile_bytes(&self, rows: usize, tables: usize, scores: usize) -> usize {
        rows * (self.size.div_ceil(32) * 8 + 1) * 16
            + (tables + usize::from(self.mask.is_some())) * scores * 4
    }
    pub(super) fn forward_tile(&self, device: &Device) -> Option<(usize, usize)> {
        let bytes = |p: &Self, (q, k): (usize, usize)| p.tile_bytes(q + k, 1, q * (k + 4)) + q * 36;
        self.tile(device, FORWARD_TILES, bytes)
    }
    pub(super) fn backward_tile(&self, device: &Device) -> Option<(usize, usize)> {
        let bytes = |p: &Self, (t, _): (usize, usize)| p.tile_bytes(4 * t, 2, t * (t + 4));
        self.tile(device, BACKWARD_TILES, bytes)
    }
    /// Floating-point operations of one of the products, causality counted.
    pub(super) fn product_flops(&self) -> u64 {
        let all = 2 * self.batch * self.heads * self.queries * self.keys * self.size;
        match self.window {
            Some(window) => all as u64 / self.keys.max(1) as u64 * window as u64,
            None if self.causal => all as u64 / 2,
            None => all as u64,
        }
    }
    fn start(
        &self,
        kernel: &'static Kernel,
        entry: &'static str,
        blocks: usize,
        products: u64,
    ) -> Launch<'static> {
        self.defined(kernel.launch(entry))
            .groups3([blocks, self.kv_heads, self.batch])
            .flops(products * self.product_flops())
    }
    /// The defines that all texts take.
    pub(super) fn defined<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = match &self.mask {
            Some(mask) => mask.define(launch),
            None => launch,
        };
        let launch = self.window.into_iter().fold(launch, |launch, window| launch.define("WINDOW", window));
        let launch = self.softcap.iter().fold(launch, |launch, _| launch.define("SOFTCAP", 1));
        launch
            .define("D", self.size)
            .define("CAUSAL", self.causal)
            .define("DROPOUT", self.mask.is_some())
            .define("DTYPE", self.dtype.code())
    }
    /// The defines of the tiled texts: heads that share a key, and whether four elements can be moved at once.
    fn grouped<'l>(&self, launch: Launch<'l>, views: &[View<'_>]) -> Launch<'l> {
        let fours = self.size.is_multiple_of(4) && views.iter().all(View::fours);
        launch.define("GROUP", self.heads / self.kv_heads).define("VEC", fours)
    }
    /// The scalars that end the lists of the sm_90 kernels: one more before the others.
    pub(super) fn end_with<'l>(&self, launch: Launch<'l>, together: usize) -> Launch<'l> {
        self.end(launch.scalar(together as u32))
    }
    /// The scalars that end most argument lists.
    fn end<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.sizes(launch, &[self.heads, self.kv_heads, self.queries, self.keys])
    }
    /// Those of the tiled texts, which know the key heads from `GROUP`.
    fn end_grouped<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.sizes(launch, &[self.heads, self.queries, self.keys])
    }
    /// These sizes, the scale, and the arguments of dropout where there is one.
    fn sizes<'l>(&self, launch: Launch<'l>, sizes: &[usize]) -> Launch<'l> {
        let launch = sizes.iter().fold(launch, |launch, n| launch.scalar(*n as u32)).scalar(self.scale);
        let launch = self.softcap.into_iter().fold(launch, Launch::scalar);
        match &self.mask {
            Some(mask) => mask.bind(launch),
            None => launch,
        }
    }
}

/// Which query vectors and key rows the vector kernels work on at once: lanes, rows of a block, `MR`.
fn vector_sizes(device: &Device, kernel: &'static Kernel) -> (usize, usize, usize) {
    let lanes = Tuning::value(device, kernel, 0, "VW");
    (lanes, QUERY_VECTORS * lanes, if lanes == 8 { 6 } else { 12 })
}

/// o (B,T,H,D) contiguous and lse (B,H,T) f32 from q, k, v.
pub(super) fn forward(p: &Problem, [q, k, v]: [View<'_>; 3], o: &Tensor, lse: &Tensor) -> Result<()> {
    let device = o.device();
    let tile = p.forward_tile(device);
    // What is only slower is no reason against the one that is being tried.
    let pays = |yes: bool, kernel| yes || Tuning::tries(device, &FORWARD, kernel);
    let kernel = FORWARD.choose_where(device, 0, |kernel| match kernel.name {
        name if name == sm90::WGMMA.name => sm90::fits_forward(p, &[q, k, v], o) && proof::forward(device),
        name if name == bf16x3::BF16X3.name => {
            bf16x3::fits_forward(p, o)
                && pays(bf16x3::pays(p), &bf16x3::BF16X3)
                && proof::bf16x3_forward(device)
        }
        name => name == VECTOR.name || tile.is_some(),
    })?;
    if [sm90::WGMMA.name, bf16x3::BF16X3.name].contains(&kernel.name) {
        let run = if kernel.name == bf16x3::BF16X3.name { bf16x3::forward } else { sm90::forward };
        return match run(p, [q, k, v], o, lse) {
            // One of its many texts that the driver's assembler does not like: another kernel takes the problem.
            Err(e) if e.kind() == ErrorKind::Build => {
                Tuning::of(device).retire(device, kernel, e.message());
                forward(p, [q, k, v], o, lse)
            }
            outcome => outcome,
        };
    }
    if let (Some(tile), true) = (tile, kernel.name == TILE.name) {
        return forward_tile(p, [q, k, v], o, lse, tile);
    }
    let launch = p.start(kernel, "attention_fwd", p.rows().div_ceil(vector_sizes(device, &VECTOR).1), 2);
    let launch = read(read(read(launch, &q), &k), &v).write(o).write(lse);
    p.end(launch).run()
}

/// The forward that runs on any GPU.
pub(super) fn forward_tile(
    p: &Problem,
    [q, k, v]: [View<'_>; 3],
    o: &Tensor,
    lse: &Tensor,
    (rows, keys): (usize, usize),
) -> Result<()> {
    let launch = p.start(&TILE, "attention_fwd", p.rows().div_ceil(rows), 2);
    let launch = launch.define("BQ", rows).define("BK", keys);
    let launch = p.grouped(launch, &[q, k, v]);
    let launch = read(read(read(launch, &q), &k), &v).write(o).write(lse);
    p.end_grouped(launch).run()
}

/// What the forward leaves and the gradient of its result.
pub(super) struct Known<'a> {
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    /// (B,T,H,D) contiguous.
    pub o: &'a Tensor,
    /// (B,H,T).
    pub lse: &'a Tensor,
    /// dO, strided like q.
    pub dy: View<'a>,
}

/// dq, dk, dv, every element written.
pub(super) fn backward(p: &Problem, known: &Known<'_>, grads: [View<'_>; 3]) -> Result<()> {
    let device = known.o.device();
    let tile = p.backward_tile(device);
    let pays = |yes: bool, kernel| yes || Tuning::tries(device, &BACKWARD, kernel);
    let kernel = BACKWARD.choose_where(device, 0, |kernel| match kernel.name {
        name if name == sm90::ORDERED_BWD.name => {
            sm90::fits_ordered(p, known, &grads)
                && pays(sm90::ordered_pays(p), &sm90::ORDERED_BWD)
                && proof::ordered_backward(device)
        }
        name if name == sm90::WGMMA_BWD.name => {
            sm90::fits_backward(p, known, &grads) && proof::backward(device)
        }
        name if name == bf16x3::BF16X3_BWD.name => {
            bf16x3::fits_backward(p, known, &grads)
                && pays(bf16x3::pays(p), &bf16x3::BF16X3_BWD)
                && proof::bf16x3_backward(device)
        }
        name => name == VECTOR_BWD.name || tile.is_some(),
    })?;
    let run: Option<proof::Backward> = match kernel.name {
        name if name == sm90::ORDERED_BWD.name => Some(sm90::ordered_backward),
        name if name == sm90::WGMMA_BWD.name => Some(sm90::backward),
        name if name == bf16x3::BF16X3_BWD.name => Some(bf16x3::backward),
        _ => None,
    };
    if let Some(run) = run {
        return match run(p, known, grads) {
            Err(e) if e.kind() == ErrorKind::Build => {
                Tuning::of(device).retire(device, kernel, e.message());
                backward(p, known, grads)
            }
            outcome => outcome,
        };
    }
    match tile {
        Some(tile) if kernel.name == TILE_BWD.name => backward_tile(p, known, grads, tile),
        _ => backward_vector(p, known, grads),
    }
}

fn backward_vector(p: &Problem, known: &Known<'_>, [dq, dk, dv]: [View<'_>; 3]) -> Result<()> {
    let device = known.o.device();
    let (lanes, block, keys) = vector_sizes(device, &VECTOR_BWD);
    // Few key heads on many cores: the query rows are dealt out too, two blocks at least, and their sums added in order.
    let parts = sum_parts(device, usize::MAX).div_ceil(p.pairs()).min(p.rows().div_ceil(2 * block)).max(1);
    let acc = [parts, p.pairs(), 2, p.keys.next_multiple_of(keys), p.size.next_multiple_of(lanes)];
    let acc = known.o.empty_f32(acc)?;
    let launch = p.start(&VECTOR_BWD, "attention_bwd", parts, 5);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.o).read(known.lse);
    let launch = write(write(write(read(launch, &known.dy), &dq), &dk), &dv).write(&acc);
    p.end(launch).run()?;
    if parts == 1 {
        return Ok(());
    }
    let launch = p.start(&VECTOR_BWD, "attention_bwd_sum", p.keys.div_ceil(keys), 0).read(&acc);
    write(write(launch, &dk), &dv).scalar(p.keys as u32).scalar(parts as u32).run()
}

/// The backward that runs on any GPU.
pub(super) fn backward_tile(
    p: &Problem,
    known: &Known<'_>,
    [dq, dk, dv]: [View<'_>; 3],
    (tile, items): (usize, usize),
) -> Result<()> {
    let most = known.o.device().capabilities().max_group.max(1);
    let delta = known.lse.empty_like()?;
    let views = [known.q, known.k, known.v, known.dy, dq, dk, dv];
    let start = |entry, groups, products| {
        p.grouped(p.start(&TILE_BWD, entry, groups, products), &views)
            .define("BT", tile)
            .define("WG", items.min(1 << most.ilog2()))
    };
    let launch = start("attention_bwd_q", p.rows().div_ceil(tile), 3);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.o).read(known.lse);
    p.end_grouped(write(read(launch, &known.dy), &dq).write(&delta)).run()?;
    let launch = start("attention_bwd_kv", p.keys.div_ceil(tile), 4);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.lse);
    p.end_grouped(write(write(read(launch, &known.dy), &dk), &dv).read(&delta)).run()
}
