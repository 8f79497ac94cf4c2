//! Names and signatures of the functions of the language, as data.
//!
//! A signature is the result and then the parameters; `|` stands between overloads. Letters, each one type throughout:
//!
//! | letter | type |
//! |---|---|
//! | `F` `f` | `half`, `float`, `double` or vectors of them; one element of that |
//! | `S` | `float` or vectors of it |
//! | `G` `g` | as `F` with one to four lanes; one element |
//! | `P` `p` | as `S` with one to four lanes; one element |
//! | `H` | as `F` with three or four lanes |
//! | `I` | integers or vectors of them |
//! | `M` | `int`, `uint` or vectors of them |
//! | `A` `a` | as `I` or `F`; one element |
//! | `K` | a 32- or 64-bit integer or a float, scalar |
//! | `Q` | any integer or float, scalar |
//! | `J` `j` | `int` with `F`'s lanes; `int` |
//! | `U` | unsigned integers as wide as `I` |
//! | `V` | unsigned integers as wide as `F` |
//! | `X` | integers twice as wide as `I` |
//! | `C` `D` | signed and unsigned integers as wide as `A` |
//! | `R` | what comparing `F`s gives: `int`, or signed integers of the same width |
//! | `*T` | a pointer to a `T` that can be written |
//! | `u` `z` `i32` `u4` `v` | `uint`, `size_t`, `int`, `uint4`, `void` |
//!
//! Functions whose names hold types (`vload4`, `convert_int4_sat`), that take pointers to anything, or any number of
//! arguments, are in [`super::memory`], [`super::atomic`] and [`super::special`].

use crate::hir::Builtin::{self, *};
use crate::hir::{CompareOp, Reduction, Scan};

/// Result of resolving a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// The function itself.
    B(Builtin),
    /// A comparison, as `int` for scalars.
    Compare(CompareOp),
    /// `select`.
    Choose,
}

use Action::{B, Choose, Compare};

/// Name, meaning, signature.
pub(super) type Row = (&'static str, Action, &'static str);

/// Work-items, groups and sub-groups: 6.13.1 and 6.13.15.
const WORK_ITEM: &[Row] = &[
    ("get_work_dim", B(GetWorkDim), "u"),
    ("get_global_size", B(GetGlobalSize), "z u"),
    ("get_global_id", B(GetGlobalId), "z u"),
    ("get_local_size", B(GetLocalSize), "z u"),
    ("get_enqueued_local_size", B(GetEnqueuedLocalSize), "z u"),
    ("get_local_id", B(GetLocalId), "z u"),
    ("get_num_groups", B(GetNumGroups), "z u"),
    ("get_group_id", B(GetGroupId), "z u"),
    ("get_global_offset", B(GetGlobalOffset), "z u"),
    ("get_global_linear_id", B(GetGlobalLinearId), "z"),
    ("get_local_linear_id", B(GetLocalLinearId), "z"),
    ("get_sub_group_size", B(GetSubGroupSize), "u"),
    ("get_max_sub_group_size", B(GetMaxSubGroupSize), "u"),
    ("get_num_sub_groups", B(GetNumSubGroups), "u"),
    ("get_enqueued_num_sub_groups", B(GetEnqueuedNumSubGroups), "u"),
    ("get_sub_group_id", B(GetSubGroupId), "u"),
    ("get_sub_group_local_id", B(GetSubGroupLocalId), "u"),
    ("work_group_all", B(WorkGroupAll), "i32 i32"),
    ("work_group_any", B(WorkGroupAny), "i32 i32"),
    ("work_group_reduce_add", B(WorkGroupReduce(Reduction::Add, Scan::Reduce)), "K K"),
    ("work_group_scan_inclusive_add", B(WorkGroupReduce(Reduction::Add, Scan::Inclusive)), "K K"),
    ("work_group_scan_exclusive_add", B(WorkGroupReduce(Reduction::Add, Scan::Exclusive)), "K K"),
    ("work_group_reduce_min", B(WorkGroupReduce(Reduction::Min, Scan::Reduce)), "K K"),
    ("work_group_scan_inclusive_min", B(WorkGroupReduce(Reduction::Min, Scan::Inclusive)), "K K"),
    ("work_group_scan_exclusive_min", B(WorkGroupReduce(Reduction::Min, Scan::Exclusive)), "K K"),
    ("work_group_reduce_max", B(WorkGroupReduce(Reduction::Max, Scan::Reduce)), "K K"),
    ("work_group_scan_inclusive_max", B(WorkGroupReduce(Reduction::Max, Scan::Inclusive)), "K K"),
    ("work_group_scan_exclusive_max", B(WorkGroupReduce(Reduction::Max, Scan::Exclusive)), "K K"),
    ("sub_group_all", B(SubGroupAll), "i32 i32"),
    ("sub_group_any", B(SubGroupAny), "i32 i32"),
    ("sub_group_reduce_add", B(SubGroupReduce(Reduction::Add, Scan::Reduce)), "K K"),
    ("sub_group_scan_inclusive_add", B(SubGroupReduce(Reduction::Add, Scan::Inclusive)), "K K"),
    ("sub_group_scan_exclusive_add", B(SubGroupReduce(Reduction::Add, Scan::Exclusive)), "K K"),
    ("sub_group_reduce_min", B(SubGroupReduce(Reduction::Min, Scan::Reduce)), "K K"),
    ("sub_group_scan_inclusive_min", B(SubGroupReduce(Reduction::Min, Scan::Inclusive)), "K K"),
    ("sub_group_scan_exclusive_min", B(SubGroupReduce(Reduction::Min, Scan::Exclusive)), "K K"),
    ("sub_group_reduce_max", B(SubGroupReduce(Reduction::Max, Scan::Reduce)), "K K"),
    ("sub_group_scan_inclusive_max", B(SubGroupReduce(Reduction::Max, Scan::Inclusive)), "K K"),
    ("sub_group_scan_exclusive_max", B(SubGroupReduce(Reduction::Max, Scan::Exclusive)), "K K"),
    ("work_group_broadcast", B(WorkGroupBroadcast), "K K z | K K z z | K K z z z"),
    ("sub_group_broadcast", B(SubGroupBroadcast), "K K u"),
    ("sub_group_broadcast_first", B(SubGroupBroadcastFirst), "K K"),
    ("sub_group_elect", B(SubGroupElect), "i32"),
    ("sub_group_ballot", B(SubGroupBallot), "u4 i32"),
    ("sub_group_shuffle", B(SubGroupShuffle), "Q Q u"),
    ("sub_group_shuffle_xor", B(SubGroupShuffleXor), "Q Q u"),
    ("sub_group_shuffle_up", B(SubGroupShuffleUp), "Q Q u"),
    ("sub_group_shuffle_down", B(SubGroupShuffleDown), "Q Q u"),
];

/// Mathematics: 6.13.2.
const MATH: &[Row] = &[
    ("acos", B(Acos), "F F"),
    ("acosh", B(Acosh), "F F"),
    ("acospi", B(Acospi), "F F"),
    ("asin", B(Asin), "F F"),
    ("asinh", B(Asinh), "F F"),
    ("asinpi", B(Asinpi), "F F"),
    ("atan", B(Atan), "F F"),
    ("atanh", B(Atanh), "F F"),
    ("atanpi", B(Atanpi), "F F"),
    ("cbrt", B(Cbrt), "F F"),
    ("ceil", B(Ceil), "F F"),
    ("cos", B(Cos), "F F"),
    ("cosh", B(Cosh), "F F"),
    ("cospi", B(Cospi), "F F"),
    ("erfc", B(Erfc), "F F"),
    ("erf", B(Erf), "F F"),
    ("exp", B(Exp), "F F"),
    ("exp2", B(Exp2), "F F"),
    ("exp10", B(Exp10), "F F"),
    ("expm1", B(Expm1), "F F"),
    ("fabs", B(Fabs), "F F"),
    ("floor", B(Floor), "F F"),
    ("lgamma", B(Lgamma), "F F"),
    ("log", B(Log), "F F"),
    ("log2", B(Log2), "F F"),
    ("log10", B(Log10), "F F"),
    ("log1p", B(Log1p), "F F"),
    ("logb", B(Logb), "F F"),
    ("rint", B(Rint), "F F"),
    ("round", B(Round), "F F"),
    ("rsqrt", B(Rsqrt), "F F"),
    ("sin", B(Sin), "F F"),
    ("sinh", B(Sinh), "F F"),
    ("sinpi", B(Sinpi), "F F"),
    ("sqrt", B(Sqrt), "F F"),
    ("tan", B(Tan), "F F"),
    ("tanh", B(Tanh), "F F"),
    ("tanpi", B(Tanpi), "F F"),
    ("tgamma", B(Tgamma), "F F"),
    ("trunc", B(Trunc), "F F"),
    ("atan2", B(Atan2), "F F F"),
    ("atan2pi", B(Atan2pi), "F F F"),
    ("copysign", B(Copysign), "F F F"),
    ("fdim", B(Fdim), "F F F"),
    ("fmod", B(Fmod), "F F F"),
    ("hypot", B(Hypot), "F F F"),
    ("maxmag", B(Maxmag), "F F F"),
    ("minmag", B(Minmag), "F F F"),
    ("nextafter", B(Nextafter), "F F F"),
    ("pow", B(Pow), "F F F"),
    ("powr", B(Powr), "F F F"),
    ("remainder", B(Remainder), "F F F"),
    ("fmax", B(Fmax), "F F F | F F f"),
    ("fmin", B(Fmin), "F F F | F F f"),
    ("fma", B(Fma), "F F F F"),
    ("mad", B(Mad), "F F F F"),
    ("fract", B(Fract), "F F *F"),
    ("modf", B(Modf), "F F *F"),
    ("sincos", B(Sincos), "F F *F"),
    ("frexp", B(Frexp), "F F *J"),
    ("lgamma_r", B(LgammaR), "F F *J"),
    ("remquo", B(Remquo), "F F F *J"),
    ("ilogb", B(Ilogb), "J F"),
    ("ldexp", B(Ldexp), "F F J | F F j"),
    ("pown", B(Pown), "F F J"),
    ("rootn", B(Rootn), "F F J"),
    ("nan", B(Nan), "F V"),
    ("native_cos", B(NativeCos), "S S"),
    ("native_exp", B(NativeExp), "S S"),
    ("native_exp2", B(NativeExp2), "S S"),
    ("native_exp10", B(NativeExp10), "S S"),
    ("native_log", B(NativeLog), "S S"),
    ("native_log2", B(NativeLog2), "S S"),
    ("native_log10", B(NativeLog10), "S S"),
    ("native_recip", B(NativeRecip), "S S"),
    ("native_rsqrt", B(NativeRsqrt), "S S"),
    ("native_sin", B(NativeSin), "S S"),
    ("native_sqrt", B(NativeSqrt), "S S"),
    ("native_tan", B(NativeTan), "S S"),
    ("native_divide", B(NativeDivide), "S S S"),
    ("native_powr", B(NativePowr), "S S S"),
    ("half_cos", B(HalfCos), "S S"),
    ("half_exp", B(HalfExp), "S S"),
    ("half_exp2", B(HalfExp2), "S S"),
    ("half_exp10", B(HalfExp10), "S S"),
    ("half_log", B(HalfLog), "S S"),
    ("half_log2", B(HalfLog2), "S S"),
    ("half_log10", B(HalfLog10), "S S"),
    ("half_recip", B(HalfRecip), "S S"),
    ("half_rsqrt", B(HalfRsqrt), "S S"),
    ("half_sin", B(HalfSin), "S S"),
    ("half_sqrt", B(HalfSqrt), "S S"),
    ("half_tan", B(HalfTan), "S S"),
    ("half_divide", B(HalfDivide), "S S S"),
    ("half_powr", B(HalfPowr), "S S S"),
];

/// Integers: 6.13.3.
const INTEGER: &[Row] = &[
    ("abs", B(Abs), "U I"),
    ("abs_diff", B(AbsDiff), "U I I"),
    ("add_sat", B(AddSat), "I I I"),
    ("hadd", B(Hadd), "I I I"),
    ("rhadd", B(Rhadd), "I I I"),
    ("mul_hi", B(MulHi), "I I I"),
    ("rotate", B(Rotate), "I I I"),
    ("sub_sat", B(SubSat), "I I I"),
    ("clz", B(Clz), "I I"),
    ("ctz", B(Ctz), "I I"),
    ("popcount", B(Popcount), "I I"),
    ("mad_hi", B(MadHi), "I I I I"),
    ("mad_sat", B(MadSat), "I I I I"),
    ("upsample", B(Upsample), "X I U"),
    ("mul24", B(Mul24), "M M M"),
    ("mad24", B(Mad24), "M M M M"),
    ("max", B(Max), "A A A | A A a"),
    ("min", B(Min), "A A A | A A a"),
    ("clamp", B(Clamp), "A A A A | A A a a"),
];

/// Common and geometric functions: 6.13.4 and 6.13.5.
const COMMON: &[Row] = &[
    ("degrees", B(Degrees), "F F"),
    ("radians", B(Radians), "F F"),
    ("sign", B(Sign), "F F"),
    ("mix", B(Mix), "F F F F | F F F f"),
    ("step", B(Step), "F F F | F f F"),
    ("smoothstep", B(Smoothstep), "F F F F | F f f F"),
    ("cross", B(Cross), "H H H"),
    ("dot", B(Dot), "g G G"),
    ("distance", B(Distance), "g G G"),
    ("length", B(Length), "g G"),
    ("normalize", B(Normalize), "G G"),
    ("fast_distance", B(FastDistance), "p P P"),
    ("fast_length", B(FastLength), "p P"),
    ("fast_normalize", B(FastNormalize), "P P"),
];

/// Relations and choices: 6.13.6.
const RELATIONAL: &[Row] = &[
    ("isequal", Compare(CompareOp::Eq), "R F F"),
    ("isnotequal", Compare(CompareOp::Ne), "R F F"),
    ("isgreater", Compare(CompareOp::Gt), "R F F"),
    ("isgreaterequal", Compare(CompareOp::Ge), "R F F"),
    ("isless", Compare(CompareOp::Lt), "R F F"),
    ("islessequal", Compare(CompareOp::Le), "R F F"),
    ("islessgreater", B(Islessgreater), "R F F"),
    ("isordered", B(Isordered), "R F F"),
    ("isunordered", B(Isunordered), "R F F"),
    ("isfinite", B(Isfinite), "R F"),
    ("isinf", B(Isinf), "R F"),
    ("isnan", B(Isnan), "R F"),
    ("isnormal", B(Isnormal), "R F"),
    ("signbit", B(Signbit), "R F"),
    ("any", B(Any), "i32 I"),
    ("all", B(All), "i32 I"),
    ("bitselect", B(Bitselect), "A A A A"),
    ("select", Choose, "A A A C | A A A D"),
];

/// Barriers and fences: 6.13.8 and 6.13.9. Orders and scopes after a barrier's flags are dropped: it orders the work-group.
const SYNC: &[Row] = &[
    ("barrier", B(Barrier), "v u | v u i32"),
    ("work_group_barrier", B(Barrier), "v u | v u i32"),
    ("sub_group_barrier", B(SubGroupBarrier), "v u | v u i32"),
    ("mem_fence", B(MemFence), "v u"),
    ("read_mem_fence", B(MemFence), "v u"),
    ("write_mem_fence", B(MemFence), "v u"),
    ("atomic_work_item_fence", B(MemFence), "v u i32 i32"),
    ("__builtin_trap", B(Trap), "v"),
    ("__builtin_unreachable", B(Trap), "v"),
];

/// Every table.
pub(super) const TABLES: [&[Row]; 6] = [WORK_ITEM, MATH, INTEGER, COMMON, RELATIONAL, SYNC];
