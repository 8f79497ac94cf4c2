//! Launches of the attention kernels: which text on which device, its sizes and its arguments.

use crate::ops::prelude::*;
use crate::random::DropMask;
use netcl_kernel::{Launch, Variants};

static VECTOR: Kernel = Kernel::new("attention_vector", include_str!("../attention_vector.cl"))
    .include(&[include_str!("../philox.cl"), include_str!("../attention_lanes.cl")])
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static VECTOR_BWD: Kernel = Kernel::new("attention_vector_bwd", include_str!("../attention_vector_bwd.cl"))
    .include(&[include_str!("../philox.cl"), include_str!("../attention_lanes.cl")])
    .requires(|device| device.is_cpu())
    .tune(&[("VW", &[0])]);
static TILE: Kernel = Kernel::new("attention_tile", include_str!("../attention_tile.cl"))
    .include(&[include_str!("../philox.cl"), include_str!("../attention_grid.cl")])
    .requires(|device| device.max_group >= 128 && device.local_mem >= LOCAL_MEMORY)
    .tune(&[("WG", &[128])]);
static TILE_BWD: Kernel = Kernel::new("attention_tile_bwd", include_str!("../attention_tile_bwd.cl"))
    .include(&[include_str!("../philox.cl"), include_str!("../attention_grid.cl")])
    .requires(|device| device.max_group >= 128 && device.local_mem >= LOCAL_MEMORY);
/// The two agree on what lies between them, so that any forward goes with any backward.
static FORWARD: Variants = Variants::new("attention_fwd", &[&VECTOR, &TILE]);
static BACKWARD: Variants = Variants::new("attention_bwd", &[&VECTOR_BWD, &TILE_BWD]);

/// Bytes that the tiles take at most.
const LOCAL_MEMORY: u64 = 48 << 10;

/// Vectors of queries in a block of the vector kernels (`QV`).
const QUERY_VECTORS: usize = 2;

/// What a problem fixes.
#[derive(Clone, Copy, Debug)]
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
    pub scale: f32,
    pub mask: Option<DropMask>,
    pub dtype: DType,
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
fn read<'l>(launch: Launch<'l>, view: &View<'_>) -> Launch<'l> {
    place(launch.read_base(view.tensor), view)
}
fn write<'l>(launch: Launch<'l>, view: &View<'_>) -> Launch<'l> {
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
    /// Floating-point operations of one of the products, causality counted.
    fn product_flops(&self) -> u64 {
        let all = 2 * self.batch * self.heads * self.queries * self.keys * self.size;
        if self.causal { all as u64 / 2 } else { all as u64 }
    }
    fn start(
        &self,
        kernel: &'static Kernel,
        entry: &'static str,
        groups: usize,
        products: u64,
    ) -> Launch<'static> {
        kernel
            .launch(entry)
            .define("D", self.size)
            .define("CAUSAL", self.causal)
            .define("DROPOUT", self.mask.is_some())
            .define("DTYPE", self.dtype.code())
            .groups(groups)
            .flops(products * self.product_flops())
    }
    /// The scalars that end most argument lists; `parts` only where a kernel takes it.
    fn end<'l>(&self, mut launch: Launch<'l>, parts: Option<usize>) -> Launch<'l> {
        for n in [self.heads, self.kv_heads, self.queries, self.keys].into_iter().chain(parts) {
            launch = launch.scalar(n as u32);
        }
        launch = launch.scalar(self.scale);
        match self.mask {
            Some(m) => launch.scalar(m.seed).scalar(m.offset).scalar(m.threshold()).scalar(m.keep()),
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
    let kernel = FORWARD.choose(device, 0)?;
    let launch = if kernel.name == VECTOR.name {
        let (_, block, _) = vector_sizes(device, &VECTOR);
        p.start(kernel, "attention_fwd", p.pairs() * p.rows().div_ceil(block), 2)
    } else {
        let block = if p.size <= 64 {
            64
        } else if p.size <= 128 {
            32
        } else {
            16
        };
        p.start(kernel, "attention_fwd", p.pairs() * p.rows().div_ceil(block), 2).define("BQ", block)
    };
    let launch = read(read(read(launch, &q), &k), &v).write(o).write(lse);
    p.end(launch, None).run()
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
    let kernel = BACKWARD.choose(known.o.device(), 0)?;
    let run = if kernel.name == VECTOR_BWD.name { backward_vector } else { backward_tile };
    run(p, known, grads)
}

fn backward_vector(p: &Problem, known: &Known<'_>, [dq, dk, dv]: [View<'_>; 3]) -> Result<()> {
    let device = known.o.device();
    let (lanes, block, keys) = vector_sizes(device, &VECTOR_BWD);
    let units = device.capabilities().compute_units.max(1) as usize;
    // Few key heads on many cores: the query rows are dealt out too, and their sums added in order.
    let parts = (4 * units).div_ceil(p.pairs()).min(p.rows().div_ceil(block)).max(1);
    let acc = [parts, p.pairs(), 2, p.keys.next_multiple_of(keys), p.size.next_multiple_of(lanes)];
    let acc = known.o.empty_f32(acc)?;
    let launch = p.start(&VECTOR_BWD, "attention_bwd", parts * p.pairs(), 5);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.o).read(known.lse);
    let launch = write(write(write(read(launch, &known.dy), &dq), &dk), &dv).write(&acc);
    p.end(launch, Some(parts)).run()?;
    if parts == 1 {
        return Ok(());
    }
    let launch = p.start(&VECTOR_BWD, "attention_bwd_sum", p.pairs() * p.keys.div_ceil(keys), 0).read(&acc);
    let launch = write(write(launch, &dk), &dv).scalar(p.batch as u32).scalar(p.kv_heads as u32);
    launch.scalar(p.keys as u32).scalar(parts as u32).run()
}

fn backward_tile(p: &Problem, known: &Known<'_>, [dq, dk, dv]: [View<'_>; 3]) -> Result<()> {
    let (tile, items) = if p.size <= 64 {
        (32, 128)
    } else if p.size <= 128 {
        (16, 128)
    } else {
        (8, 64usize)
    };
    let delta = known.lse.empty_like()?;
    let start = |entry, groups, products| {
        p.start(&TILE_BWD, entry, groups, products).define("BT", tile).define("WG", items)
    };
    let launch = start("attention_bwd_q", p.pairs() * p.rows().div_ceil(tile), 3);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.o).read(known.lse);
    p.end(write(read(launch, &known.dy), &dq).write(&delta), None).run()?;
    let launch = start("attention_bwd_kv", p.pairs() * p.keys.div_ceil(tile), 4);
    let launch = read(read(read(launch, &known.q), &known.k), &known.v).read(known.lse);
    p.end(write(write(read(launch, &known.dy), &dk), &dv).read(&delta), None).run()
}
