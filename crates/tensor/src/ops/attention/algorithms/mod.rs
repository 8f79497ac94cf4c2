//! The ways to compute attention and its gradients: a row of either table in a file of its own, with its kernel. How rows are chosen:
//! [`Table`]. To add a variant: a file here and its line in `rows!`. All forwards leave the same behind, so that any goes with any backward.

use super::problem::{Known, Problem, View};
use crate::ops::algorithms::{Algorithm, Job, Table, kernels};
use crate::ops::prelude::*;

mod macros;
pub(super) mod proof;
mod sm90;

/// `file [ROWS of the forward] [ROWS of the gradients];` → the module, and its rows in the two tables. Among equal estimates the first is
/// taken.
macro_rules! rows {
    ($($module:ident [$($forward:ident),*] [$($backward:ident),*];)*) => {
        $(pub(super) mod $module;)*
        static FORWARDS: [&ForwardRow; [$($(stringify!($forward),)*)*].len()] = [$($(&$module::$forward,)*)*];
        static BACKWARDS: [&BackwardRow; [$($(stringify!($backward),)*)*].len()] = [$($(&$module::$backward,)*)*];
    };
}

rows! {
    vector [FORWARD] [BACKWARD];
    ordered [] [BACKWARD];
    wgmma [FORWARD] [BACKWARD];
    wide [FORWARD] [BACKWARD];
    bf16x3 [FORWARD] [BACKWARD];
    tile [FORWARD] [BACKWARD];
}
static FORWARD_KERNELS: [&Kernel; FORWARDS.len()] = kernels(&FORWARDS);
static BACKWARD_KERNELS: [&Kernel; BACKWARDS.len()] = kernels(&BACKWARDS);
/// Fills o and lse.
pub(super) static FORWARD: Table<Forwards> = Table::new("attention_fwd", &FORWARDS, &FORWARD_KERNELS);
/// Fills dq, dk and dv, every element of them.
pub(super) static BACKWARD: Table<Backwards> = Table::new("attention_bwd", &BACKWARDS, &BACKWARD_KERNELS);

/// Attention, [`Forward`].
pub(super) struct Forwards;
/// Its gradients, [`Backward`].
pub(super) struct Backwards;
/// A way to compute attention.
pub(super) type ForwardRow = Algorithm<Forwards>;
/// A way to compute its gradients.
pub(super) type BackwardRow = Algorithm<Backwards>;

/// How a row shares its work out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plan {
    /// All of it follows from the problem.
    Direct,
    /// Groups of so many query rows, which walk so many keys at a time.
    Tile { rows: usize, keys: usize },
    /// Groups of so many work-items with tiles of as many rows as keys.
    Square { rows: usize, items: usize },
    /// Groups of so many warpgroups that multiply.
    Warpgroups(usize),
    /// The query rows of a key head in so many parts.
    Parts(usize),
    /// So many key heads at a time.
    KeyHeads(usize),
}

/// `o = softmax(scale * q kᵀ + mask) v` and the logarithms of the softmax's sums.
pub(super) struct Forward<'a> {
    pub p: &'a Problem,
    /// q, k, v.
    pub inputs: [View<'a>; 3],
    /// (B,T,H,D) contiguous.
    pub o: &'a Tensor,
    /// (B,H,T).
    pub lse: &'a Tensor,
}

impl<'a> Forward<'a> {
    pub fn device(&self) -> &'a Device {
        self.o.device()
    }
}

/// The gradients of q, k and v.
pub(super) struct Backward<'a> {
    pub p: &'a Problem,
    pub known: &'a Known<'a>,
    /// dq, dk, dv.
    pub grads: [View<'a>; 3],
}

impl<'a> Backward<'a> {
    pub fn device(&self) -> &'a Device {
        self.known.o.device()
    }
}

/// Work of the compute unit that is busy the longest, where `all` is shared out in pieces of at most `longest`.
fn shared_out(all: f64, longest: f64, units: usize) -> f64 {
    (all / units as f64).max(longest)
}

/// Elements whose multiples an offset is compared with: 16 bytes of the narrowest type, and more.
const ALIGNED: usize = 64;

/// See [`Job::Signature`]: what of a problem is a number, what of it is only there or not, and where operands and results lie.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Signature {
    dtype: DType,
    sizes: [usize; 6],
    window: Option<usize>,
    /// Causal, soft-capped, with dropout, of a positive scale.
    flags: [bool; 4],
    places: [(usize, [usize; 3]); 7],
    o: usize,
}

fn signature(p: &Problem, views: &[&View<'_>], o: &Tensor) -> Signature {
    let mut places = [(0, [0; 3]); 7];
    for (place, view) in places.iter_mut().zip(views) {
        *place = (view.offset % ALIGNED, view.strides);
    }
    Signature {
        dtype: p.dtype,
        sizes: [p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.size],
        window: p.window,
        flags: [p.causal, p.softcap.is_some(), p.mask.is_some(), p.scale > 0.0],
        places,
        o: o.layout().offset % ALIGNED,
    }
}

/// Storage type, options, and the sizes' powers of two.
fn class(p: &Problem) -> u64 {
    let log = |n: usize| u64::from(n.max(1).next_power_of_two().ilog2().min(31));
    let sizes = log(p.batch * p.heads) | log(p.queries) << 5 | log(p.keys) << 10 | log(p.size) << 15;
    let flags = [p.causal, p.window.is_some(), p.softcap.is_some(), p.mask.is_some(), p.group() > 1];
    let flags = flags.iter().fold(0, |all, flag| all << 1 | u64::from(*flag));
    1 + (sizes | u64::from(p.dtype.code() as u32) << 19 | flags << 23)
}

fn describe(p: &Problem) -> String {
    let Problem { batch, heads, kv_heads, queries, keys, size, dtype, .. } = p;
    format!("q ({batch}, {heads}, {queries}, {size}) and k ({batch}, {kv_heads}, {keys}, {size}) in {dtype}")
}

impl Job for Forwards {
    type Request<'a> = Forward<'a>;
    type Plan = Plan;
    type Output = ();
    type Signature = Signature;
    fn device<'r>(request: &'r Forward<'_>) -> &'r Device {
        request.device()
    }
    fn class(request: &Forward<'_>) -> u64 {
        class(request.p)
    }
    fn signature(Forward { p, inputs: [q, k, v], o, .. }: &Forward<'_>) -> Signature {
        signature(p, &[q, k, v], o)
    }
    fn describe(request: &Forward<'_>) -> String {
        describe(request.p)
    }
}

impl Job for Backwards {
    type Request<'a> = Backward<'a>;
    type Plan = Plan;
    type Output = ();
    type Signature = Signature;
    fn device<'r>(request: &'r Backward<'_>) -> &'r Device {
        request.device()
    }
    fn class(request: &Backward<'_>) -> u64 {
        class(request.p)
    }
    fn signature(Backward { p, known, grads: [dq, dk, dv] }: &Backward<'_>) -> Signature {
        signature(p, &[&known.q, &known.k, &known.v, &known.dy, dq, dk, dv], known.o)
    }
    fn describe(request: &Backward<'_>) -> String {
        describe(request.p)
    }
}
