//! What an attention computes and where its operands lie, and the arguments that its kernels have in common.

use crate::ops::prelude::*;
use crate::random::DropMask;
use netcl_kernel::Launch;

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
    /// Key heads of all sequences.
    pub(super) fn pairs(&self) -> usize {
        self.batch * self.kv_heads
    }
    /// Query rows that share a key head.
    pub(super) fn rows(&self) -> usize {
        self.queries * self.group()
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
    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
    /// Pairs of a query and a key that it sees, of one head.
    pub(super) fn seen(&self) -> f64 {
        // Of the last query, that sees so many keys, and those before it, each one key less.
        let staircase = |keys: usize| {
            let (steps, keys) = (self.queries.min(keys) as f64, keys as f64);
            steps * keys - steps * (steps - 1.0) / 2.0
        };
        match self.window {
            _ if !self.causal => self.queries as f64 * self.keys as f64,
            Some(window) => staircase(self.keys) - staircase(self.keys.saturating_sub(window)),
            None => staircase(self.keys),
        }
    }
    /// Pairs that blocks of so many queries and keys compute, of one head: those that are seen, and what is left of blocks on the causal
    /// diagonal and at the edges.
    pub(super) fn computed(&self, queries: usize, keys: usize) -> f64 {
        let whole = (self.queries * self.keys) as f64;
        let diagonal = if self.causal { self.queries * (queries + keys) / 2 } else { 0 };
        let edges = self.queries.next_multiple_of(queries) * self.keys.next_multiple_of(keys);
        (self.seen() + diagonal as f64).min(whole) * edges as f64 / whole
    }
    /// Keys that the last query sees: the most of all.
    pub(super) fn most_keys(&self) -> usize {
        self.window.unwrap_or(self.keys)
    }
    /// A launch of a text whose groups are blocks of rows, key heads and sequences.
    pub(super) fn start(
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
    pub(super) fn grouped<'l>(&self, launch: Launch<'l>, views: &[View<'_>]) -> Launch<'l> {
        let fours = self.size.is_multiple_of(4) && views.iter().all(View::fours);
        launch.define("GROUP", self.group()).define("VEC", fours)
    }
    /// The scalars that end the lists of the sm_90 kernels: one more before the others.
    pub(super) fn end_with<'l>(&self, launch: Launch<'l>, together: usize) -> Launch<'l> {
        self.end(launch.scalar(together as u32))
    }
    /// The scalars that end most argument lists.
    pub(super) fn end<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.sizes(launch, &[self.heads, self.kv_heads, self.queries, self.keys])
    }
    /// Those of the tiled texts, which know the key heads from `GROUP`.
    pub(super) fn end_grouped<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
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
