//! The algorithms for attention and its gradients, one file per table row, with its kernel. [`Table`] explains how rows are chosen. To add a
//! variant, add a file here and its line in `rows!`. All forwards store the same results, so any forward works with any backward.

use super::problem::{AttentionProblem, ForwardResults, View};
use crate::ops::algorithms::{Algorithm, Job, Table, kernels};
use crate::ops::prelude::*;

mod macros;
pub(super) mod proof;
mod sm90;

/// Declares modules and their rows in the two tables: `file [ROWS of the forward] [ROWS of the gradients];`. If estimates are equal, the first row is
/// chosen.
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
/// Fills every element of dq, dk and dv.
pub(super) static BACKWARD: Table<Backwards> = Table::new("attention_bwd", &BACKWARDS, &BACKWARD_KERNELS);

/// The job of attention, [`Forward`].
pub(super) struct Forwards;
/// The job of its gradients, [`AttentionBackward`].
pub(super) struct Backwards;
/// An algorithm for attention.
pub(super) type ForwardRow = Algorithm<Forwards>;
/// An algorithm for its gradients.
pub(super) type BackwardRow = Algorithm<Backwards>;

/// An algorithm's division of the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AttentionPlan {
    /// No parameters: the division follows from the problem.
    Direct,
    /// Groups of `rows` query rows, which process `keys` keys at a time.
    Tile { rows: usize, keys: usize },
    /// Groups of `items` work-items with tiles of `rows` rows and keys.
    Square { rows: usize, items: usize },
    /// Groups with this number of multiplying warpgroups.
    Warpgroups(usize),
    /// The query rows of a key head in this number of parts.
    Parts(usize),
    /// This number of key heads at a time.
    KeyHeads(usize),
}

/// The problem `o = softmax(scale * q kᵀ + mask) v`, with the logarithms of the softmax's sums.
pub(super) struct Forward<'a> {
    pub p: &'a AttentionProblem,
    /// q, k, v.
    pub inputs: [View<'a>; 3],
    /// Result (B,T,H,D), contiguous.
    pub o: &'a Tensor,
    /// Logarithms of the sums of exponentials (B,H,T).
    pub lse: &'a Tensor,
}

impl<'a> Forward<'a> {
    pub fn device(&self) -> &'a Device {
        self.o.device()
    }
}

/// The problem of the gradients of q, k and v.
pub(super) struct AttentionBackward<'a> {
    pub p: &'a AttentionProblem,
    pub known: &'a ForwardResults<'a>,
    /// dq, dk, dv.
    pub grads: [View<'a>; 3],
}

impl<'a> AttentionBackward<'a> {
    pub fn device(&self) -> &'a Device {
        self.known.o.device()
    }
}

/// Returns the work of the busiest compute unit if `all` is divided into pieces of at most `longest`.
fn shared_out(all: f64, longest: f64, units: usize) -> f64 {
    (all / units as f64).max(longest)
}

/// Alignment in elements that offsets are classified by: at least 16 bytes in the narrowest type.
const ALIGNED: usize = 64;

/// Properties of a problem that a decision depends on: sizes, the presence of options, and the layouts of operands and results. See
/// [`Job::Signature`].
#[derive(PartialEq, Eq, Hash)]
pub(super) struct AttentionSignature {
    dtype: DType,
    sizes: [usize; 6],
    window: Option<usize>,
    /// Causal, soft-capped, with dropout, with a positive scale, with documents.
    flags: [bool; 5],
    places: [(usize, [usize; 3]); 7],
    o: usize,
}

fn signature(p: &AttentionProblem, views: &[&View<'_>], o: &Tensor) -> AttentionSignature {
    let mut places = [(0, [0; 3]); 7];
    for (place, view) in places.iter_mut().zip(views) {
        *place = (view.offset % ALIGNED, view.strides);
    }
    AttentionSignature {
        dtype: p.dtype,
        sizes: [p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.size],
        window: p.window,
        flags: [p.causal, p.softcap.is_some(), p.mask.is_some(), p.scale > 0.0, p.docs.is_some()],
        places,
        o: o.layout().offset % ALIGNED,
    }
}

/// Returns the class from the storage type, the options, and the powers of two of the sizes.
fn class(p: &AttentionProblem) -> u64 {
    let log = |n: usize| u64::from(n.max(1).next_power_of_two().ilog2().min(31));
    let sizes = log(p.batch * p.heads) | log(p.queries) << 5 | log(p.keys) << 10 | log(p.size) << 15;
    let flags = [
        p.docs.is_some(),
        p.causal,
        p.window.is_some(),
        p.softcap.is_some(),
        p.mask.is_some(),
        p.group() > 1,
    ];
    let flags = flags.iter().fold(0, |all, flag| all << 1 | u64::from(*flag));
    1 + (sizes | u64::from(p.dtype.code() as u32) << 19 | flags << 23)
}

fn describe(p: &AttentionProblem) -> String {
    let AttentionProblem { batch, heads, kv_heads, queries, keys, size, dtype, .. } = p;
    format!("q ({batch}, {heads}, {queries}, {size}) and k ({batch}, {kv_heads}, {keys}, {size}) in {dtype}")
}

impl Job for Forwards {
    type Request<'a> = Forward<'a>;
    type Plan = AttentionPlan;
    type Output = ();
    type Signature = AttentionSignature;
    fn device<'r>(request: &'r Forward<'_>) -> &'r Device {
        request.device()
    }
    fn class(request: &Forward<'_>) -> u64 {
        class(request.p)
    }
    fn signature(Forward { p, inputs: [q, k, v], o, .. }: &Forward<'_>) -> AttentionSignature {
        signature(p, &[q, k, v], o)
    }
    fn describe(request: &Forward<'_>) -> String {
        describe(request.p)
    }
}

impl Job for Backwards {
    type Request<'a> = AttentionBackward<'a>;
    type Plan = AttentionPlan;
    type Output = ();
    type Signature = AttentionSignature;
    fn device<'r>(request: &'r AttentionBackward<'_>) -> &'r Device {
        request.device()
    }
    fn class(request: &AttentionBackward<'_>) -> u64 {
        class(request.p)
    }
    fn signature(
        AttentionBackward { p, known, grads: [dq, dk, dv] }: &AttentionBackward<'_>,
    ) -> AttentionSignature {
        signature(p, &[&known.q, &known.k, &known.v, &known.dy, dq, dk, dv], known.o)
    }
    fn describe(request: &AttentionBackward<'_>) -> String {
        describe(request.p)
    }
}
