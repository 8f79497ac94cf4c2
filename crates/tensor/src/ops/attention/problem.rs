//! An attention problem, the layouts of its operands, and the arguments that its kernels share.

use crate::ops::prelude::*;
use crate::random::DropMask;
use netcl_kernel::Launch;

/// Sizes and options of a problem.
#[derive(Clone, Debug)]
pub(super) struct AttentionProblem {
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
    /// Maximum number of keys that a query sees; less than `keys`.
    pub window: Option<usize>,
    pub softcap: Option<f32>,
    pub scale: f32,
    pub mask: Option<DropMask>,
    /// Position of each query in its document, u32 (B,T), contiguous.
    pub docs: Option<Tensor>,
    pub dtype: DType,
}

/// A view of a tensor as (B, heads, rows, D) with a last stride of 1.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub tensor: &'a Tensor,
    pub offset: usize,
    /// Strides of batches, heads and rows in elements.
    pub strides: [usize; 3],
}

impl<'a> View<'a> {
    /// Returns whether each group of four elements along D starts at a multiple of four.
    fn fours(&self) -> bool {
        self.offset.is_multiple_of(4) && self.strides.iter().all(|s| s.is_multiple_of(4))
    }
    /// Views a (B, H, T, D) tensor.
    pub fn heads(tensor: &'a Tensor) -> Self {
        let layout = tensor.layout();
        let at = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0);
        Self { tensor, offset: layout.offset, strides: [at(0), at(1), at(2)] }
    }
    /// Views the heads from `first` on in a (B, T, heads * D) tensor.
    pub fn packed(tensor: &'a Tensor, first: usize, size: usize) -> Self {
        let layout = tensor.layout();
        let at = |axis: usize| layout.strides.get(axis).copied().unwrap_or(0);
        Self { tensor, offset: layout.offset + first * size, strides: [at(0), size, at(1)] }
    }
}

/// Binds the offset and the three strides that follow each strided argument.
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

impl AttentionProblem {
    /// Returns the number of key heads in all sequences.
    pub(super) fn pairs(&self) -> usize {
        self.batch * self.kv_heads
    }
    /// Returns the query rows that share a key head.
    pub(super) fn rows(&self) -> usize {
        self.queries * self.group()
    }
    /// Returns the floating-point operations of one of the products, excluding masked pairs.
    pub(super) fn product_flops(&self) -> u64 {
        let all = 2 * self.batch * self.heads * self.queries * self.keys * self.size;
        match self.window {
            Some(window) => all as u64 / self.keys.max(1) as u64 * window as u64,
            None if self.causal => all as u64 / 2,
            None => all as u64,
        }
    }
    /// Returns the query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
    /// Returns the number of pairs of a query and a key that it sees, for one head.
    pub(super) fn seen(&self) -> f64 {
        // The last query sees `keys` keys, and each query before it one key less.
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
    /// Returns the number of pairs that blocks of `queries` and `keys` compute for one head. These are the visible pairs, and the masked rest of
    /// blocks on the causal diagonal and at the edges.
    pub(super) fn computed(&self, queries: usize, keys: usize) -> f64 {
        let whole = (self.queries * self.keys) as f64;
        let diagonal = if self.causal { self.queries * (queries + keys) / 2 } else { 0 };
        let edges = self.queries.next_multiple_of(queries) * self.keys.next_multiple_of(keys);
        (self.seen() + diagonal as f64).min(whole) * edges as f64 / whole
    }
    /// Returns the number of keys that the last query sees, which is the maximum.
    pub(super) fn most_keys(&self) -> usize {
        self.window.unwrap_or(self.keys)
    }
    /// Starts a launch whose groups are blocks of rows, key heads and sequences.
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
    /// Adds the defines of all kernels.
    pub(super) fn defined<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = match &self.mask {
            Some(mask) => mask.define(launch),
            None => launch,
        };
        let launch = self.window.into_iter().fold(launch, |launch, window| launch.define("WINDOW", window));
        let launch = self.softcap.iter().fold(launch, |launch, _| launch.define("SOFTCAP", 1));
        let launch = self.docs.iter().fold(launch, |launch, _| launch.define("DOCS", 1));
        launch
            .define("D", self.size)
            .define("CAUSAL", self.causal)
            .define("DROPOUT", self.mask.is_some())
            .define("DTYPE", self.dtype.code())
    }
    /// Adds the defines of the tile kernels: heads that share a key head, and whether four elements can be moved at once.
    pub(super) fn grouped<'l>(&self, launch: Launch<'l>, views: &[View<'_>]) -> Launch<'l> {
        let fours = self.size.is_multiple_of(4) && views.iter().all(View::fours);
        launch.define("GROUP", self.group()).define("VEC", fours)
    }
    /// Binds the last scalars of the sm_90 kernels: the key heads per set, then those of [`Self::end`].
    pub(super) fn end_with<'l>(&self, launch: Launch<'l>, together: usize) -> Launch<'l> {
        self.end(launch.scalar(together as u32))
    }
    /// Binds the last scalars of most kernels.
    pub(super) fn end<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.sizes(launch, &[self.heads, self.kv_heads, self.queries, self.keys])
    }
    /// Binds the last scalars of the tile kernels, which derive the key heads from `GROUP`.
    pub(super) fn end_grouped<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.sizes(launch, &[self.heads, self.queries, self.keys])
    }
    /// Binds these sizes, the scale, and the arguments of dropout and of documents if they are used.
    fn sizes<'l>(&self, launch: Launch<'l>, sizes: &[usize]) -> Launch<'l> {
        let launch = sizes.iter().fold(launch, |launch, n| launch.scalar(*n as u32)).scalar(self.scale);
        let launch = self.softcap.into_iter().fold(launch, Launch::scalar);
        let launch = match &self.mask {
            Some(mask) => mask.bind(launch),
            None => launch,
        };
        self.docs.iter().fold(launch, |launch, docs| launch.read(docs))
    }
}

/// The results of the forward and the gradient of its output.
pub(super) struct ForwardResults<'a> {
    pub q: View<'a>,
    pub k: View<'a>,
    pub v: View<'a>,
    /// Result (B,T,H,D), contiguous.
    pub o: &'a Tensor,
    /// Logarithms of the sums of exponentials, (B,H,T).
    pub lse: &'a Tensor,
    /// Gradient dO, in the axes of q.
    pub dy: View<'a>,
}
