//! The built-in functions of the language, after overload resolution.
//!
//! The operands determine the element type and the lanes of an implementation; one variant serves all overloads. Operands have been converted. If the
//! language permits mixed operands such as `fmax(float4, float)`, the scalar has become a vector ([`super::ExprKind::Splat`]), and integers given for
//! floats have been converted. Functions that are only notation for another expression do not appear: `convert_*`, `as_*`, `select`, `isequal` and
//! the other plain comparisons, `vec_step`.
//!
//! `F` is `half`, `float`, `double` or a vector of them, `I` an integer scalar or vector, `n` the lanes, `f`, `i` an element; all `F`s of a line are
//! the same type.

/// Rounding of a conversion or a half store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
    /// The language's default.
    Default,
    /// `_rte`: to the nearest, ties to even.
    Even,
    /// `_rtz`: toward zero.
    Zero,
    /// `_rtp`: toward positive infinity.
    Up,
    /// `_rtn`: toward negative infinity.
    Down,
}

/// Operation that combines the values of a group's work-items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// Least.
    Min,
    /// Greatest.
    Max,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

/// The values that a work-item's result of a reduction includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// All values of the group: `reduce`.
    Reduce,
    /// Values of lower index and its own.
    Inclusive,
    /// Values of lower index; the first work-item gets the neutral element.
    Exclusive,
}

/// Property in an image query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageQuery {
    /// Texels along x.
    Width,
    /// Along y.
    Height,
    /// Along z.
    Depth,
    /// Layers.
    Layers,
    /// `CLK_R` and similar.
    Order,
    /// `CLK_UNORM_INT8` and similar.
    Channel,
    /// Width and height; for a volume also depth and 0.
    Size,
}

/// A built-in function. Every variant documents its operands and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// `uint get_work_dim()`.
    GetWorkDim,
    /// `ulong get_global_size(uint)`; above the last dimension 1.
    GetGlobalSize,
    /// `ulong get_global_id(uint)`; above the last dimension 0.
    GetGlobalId,
    /// `ulong get_local_size(uint)`; above the last dimension 1.
    GetLocalSize,
    /// `ulong get_enqueued_local_size(uint)`; above the last dimension 1.
    GetEnqueuedLocalSize,
    /// `ulong get_local_id(uint)`; above the last dimension 0.
    GetLocalId,
    /// `ulong get_num_groups(uint)`; above the last dimension 1.
    GetNumGroups,
    /// `ulong get_group_id(uint)`; above the last dimension 0.
    GetGroupId,
    /// `ulong get_global_offset(uint)`; above the last dimension 0.
    GetGlobalOffset,
    /// `ulong get_global_linear_id()`.
    GetGlobalLinearId,
    /// `ulong get_local_linear_id()`.
    GetLocalLinearId,
    /// `uint get_sub_group_size()`.
    GetSubGroupSize,
    /// `uint get_max_sub_group_size()`.
    GetMaxSubGroupSize,
    /// `uint get_num_sub_groups()`.
    GetNumSubGroups,
    /// `uint get_enqueued_num_sub_groups()`.
    GetEnqueuedNumSubGroups,
    /// `uint get_sub_group_id()`.
    GetSubGroupId,
    /// `uint get_sub_group_local_id()`.
    GetSubGroupLocalId,
    /// `F acos(F)`.
    Acos,
    /// `F acosh(F)`.
    Acosh,
    /// `F acospi(F)`.
    Acospi,
    /// `F asin(F)`.
    Asin,
    /// `F asinh(F)`.
    Asinh,
    /// `F asinpi(F)`.
    Asinpi,
    /// `F atan(F)`.
    Atan,
    /// `F atanh(F)`.
    Atanh,
    /// `F atanpi(F)`.
    Atanpi,
    /// `F cbrt(F)`.
    Cbrt,
    /// `F ceil(F)`.
    Ceil,
    /// `F cos(F)`.
    Cos,
    /// `F cosh(F)`.
    Cosh,
    /// `F cospi(F)`.
    Cospi,
    /// `F erfc(F)`.
    Erfc,
    /// `F erf(F)`.
    Erf,
    /// `F exp(F)`.
    Exp,
    /// `F exp2(F)`.
    Exp2,
    /// `F exp10(F)`.
    Exp10,
    /// `F expm1(F)`.
    Expm1,
    /// `F fabs(F)`.
    Fabs,
    /// `F floor(F)`.
    Floor,
    /// `F lgamma(F)`.
    Lgamma,
    /// `F log(F)`.
    Log,
    /// `F log2(F)`.
    Log2,
    /// `F log10(F)`.
    Log10,
    /// `F log1p(F)`.
    Log1p,
    /// `F logb(F)`.
    Logb,
    /// `F rint(F)`.
    Rint,
    /// `F round(F)`.
    Round,
    /// `F rsqrt(F)`.
    Rsqrt,
    /// `F sin(F)`.
    Sin,
    /// `F sinh(F)`.
    Sinh,
    /// `F sinpi(F)`.
    Sinpi,
    /// `F sqrt(F)`.
    Sqrt,
    /// `F tan(F)`.
    Tan,
    /// `F tanh(F)`.
    Tanh,
    /// `F tanpi(F)`.
    Tanpi,
    /// `F tgamma(F)`.
    Tgamma,
    /// `F trunc(F)`.
    Trunc,
    /// `F atan2(F, F)`.
    Atan2,
    /// `F atan2pi(F, F)`.
    Atan2pi,
    /// `F copysign(F, F)`.
    Copysign,
    /// `F fdim(F, F)`.
    Fdim,
    /// `F fmax(F, F)`.
    Fmax,
    /// `F fmin(F, F)`.
    Fmin,
    /// `F fmod(F, F)`.
    Fmod,
    /// `F hypot(F, F)`.
    Hypot,
    /// `F maxmag(F, F)`.
    Maxmag,
    /// `F minmag(F, F)`.
    Minmag,
    /// `F nextafter(F, F)`.
    Nextafter,
    /// `F pow(F, F)`.
    Pow,
    /// `F powr(F, F)`.
    Powr,
    /// `F remainder(F, F)`.
    Remainder,
    /// `F fma(F, F, F)`, rounded once.
    Fma,
    /// `F mad(F, F, F)`, rounded once or twice.
    Mad,
    /// `F fract(F, F *whole)`.
    Fract,
    /// `F frexp(F, intn *exponent)`.
    Frexp,
    /// `F modf(F, F *whole)`.
    Modf,
    /// `F sincos(F, F *cosine)`.
    Sincos,
    /// `F remquo(F, F, intn *quotient)`.
    Remquo,
    /// `F lgamma_r(F, intn *sign)`.
    LgammaR,
    /// `intn ilogb(F)`.
    Ilogb,
    /// `F ldexp(F, intn)`.
    Ldexp,
    /// `F pown(F, intn)`.
    Pown,
    /// `F rootn(F, intn)`.
    Rootn,
    /// `F nan(unsigned integers as wide as F)`.
    Nan,
    /// `F native_cos(F)`, `float` only.
    NativeCos,
    /// `F native_exp(F)`, `float` only.
    NativeExp,
    /// `F native_exp2(F)`, `float` only.
    NativeExp2,
    /// `F native_exp10(F)`, `float` only.
    NativeExp10,
    /// `F native_log(F)`, `float` only.
    NativeLog,
    /// `F native_log2(F)`, `float` only.
    NativeLog2,
    /// `F native_log10(F)`, `float` only.
    NativeLog10,
    /// `F native_recip(F)`, `float` only.
    NativeRecip,
    /// `F native_rsqrt(F)`, `float` only.
    NativeRsqrt,
    /// `F native_sin(F)`, `float` only.
    NativeSin,
    /// `F native_sqrt(F)`, `float` only.
    NativeSqrt,
    /// `F native_tan(F)`, `float` only.
    NativeTan,
    /// `F native_divide(F, F)`, `float` only.
    NativeDivide,
    /// `F native_powr(F, F)`, `float` only.
    NativePowr,
    /// `F half_cos(F)`, `float` only.
    HalfCos,
    /// `F half_exp(F)`, `float` only.
    HalfExp,
    /// `F half_exp2(F)`, `float` only.
    HalfExp2,
    /// `F half_exp10(F)`, `float` only.
    HalfExp10,
    /// `F half_log(F)`, `float` only.
    HalfLog,
    /// `F half_log2(F)`, `float` only.
    HalfLog2,
    /// `F half_log10(F)`, `float` only.
    HalfLog10,
    /// `F half_recip(F)`, `float` only.
    HalfRecip,
    /// `F half_rsqrt(F)`, `float` only.
    HalfRsqrt,
    /// `F half_sin(F)`, `float` only.
    HalfSin,
    /// `F half_sqrt(F)`, `float` only.
    HalfSqrt,
    /// `F half_tan(F)`, `float` only.
    HalfTan,
    /// `F half_divide(F, F)`, `float` only.
    HalfDivide,
    /// `F half_powr(F, F)`, `float` only.
    HalfPowr,
    /// `unsigned I abs(I)`.
    Abs,
    /// `unsigned I abs_diff(I, I)`.
    AbsDiff,
    /// `I add_sat(I, I)`.
    AddSat,
    /// `I hadd(I, I)`.
    Hadd,
    /// `I rhadd(I, I)`.
    Rhadd,
    /// `I mul_hi(I, I)`.
    MulHi,
    /// `I rotate(I, I)`.
    Rotate,
    /// `I sub_sat(I, I)`.
    SubSat,
    /// `I clz(I)`.
    Clz,
    /// `I ctz(I)`.
    Ctz,
    /// `I popcount(I)`.
    Popcount,
    /// `I mad_hi(I, I, I)`.
    MadHi,
    /// `I mad_sat(I, I, I)`.
    MadSat,
    /// `twice as wide upsample(I high, unsigned I low)`.
    Upsample,
    /// `I mul24(I, I)`, `int` or `uint`.
    Mul24,
    /// `I mad24(I, I, I)`, `int` or `uint`.
    Mad24,
    /// `max(x, y)` of integers, or of floats as `x < y ? y : x`.
    Max,
    /// `min(x, y)` of integers, or of floats as `y < x ? y : x`.
    Min,
    /// `clamp(x, low, high)` of integers or floats.
    Clamp,
    /// `F degrees(F)`.
    Degrees,
    /// `F radians(F)`.
    Radians,
    /// `F sign(F)`.
    Sign,
    /// `F mix(F x, F y, F a)`.
    Mix,
    /// `F step(F edge, F x)`.
    Step,
    /// `F smoothstep(F low, F high, F x)`.
    Smoothstep,
    /// `F cross(F, F)` of three or four lanes.
    Cross,
    /// `f dot(F, F)`, one to four lanes.
    Dot,
    /// `f distance(F, F)`, one to four lanes.
    Distance,
    /// `f fast_distance(F, F)`, one to four lanes.
    FastDistance,
    /// `f length(F)`, one to four lanes.
    Length,
    /// `f fast_length(F)`, one to four lanes.
    FastLength,
    /// `F normalize(F)`, one to four lanes.
    Normalize,
    /// `F fast_normalize(F)`, one to four lanes.
    FastNormalize,
    /// `isfinite(F)`: 1 or 0 as `int`; of vectors -1 or 0 as integers of the same width.
    Isfinite,
    /// `isinf(F)`: 1 or 0 as `int`; of vectors -1 or 0 as integers of the same width.
    Isinf,
    /// `isnan(F)`: 1 or 0 as `int`; of vectors -1 or 0 as integers of the same width.
    Isnan,
    /// `isnormal(F)`: 1 or 0 as `int`; of vectors -1 or 0 as integers of the same width.
    Isnormal,
    /// `signbit(F)`: 1 or 0 as `int`; of vectors -1 or 0 as integers of the same width.
    Signbit,
    /// `islessgreater(F, F)`: results as for `isnan`.
    Islessgreater,
    /// `isordered(F, F)`: results as for `isnan`.
    Isordered,
    /// `isunordered(F, F)`: results as for `isnan`.
    Isunordered,
    /// `int any(I)`: 1 if the most significant bit of some lane is set.
    Any,
    /// `int all(I)`: 1 if the most significant bits of all lanes are set.
    All,
    /// `T bitselect(T a, T b, T c)`: bits of `b` where `c` has a 1, else of `a`; integers or floats.
    Bitselect,
    /// `vloadN(ulong offset, const e *p)`: the result's lanes from `p + offset * N`, aligned to the element only.
    Vload,
    /// `void vstoreN(data, ulong offset, e *p)`.
    Vstore,
    /// `vload_halfN(ulong offset, const half *p)`: `float`s, from `p + offset * N`; also of one lane.
    VloadHalf,
    /// `vloada_halfN(ulong offset, const half *p)`: same as above, except that three lanes are at `p + offset * 4`; aligned to the vector.
    VloadaHalf,
    /// `void vstore_halfN(float or double data, ulong offset, half *p)`.
    VstoreHalf(Rounding),
    /// `void vstorea_halfN(float or double data, ulong offset, half *p)`.
    VstoreaHalf(Rounding),
    /// `void barrier(uint flags)`, `work_group_barrier`. Flags: 1 local, 2 global, 4 image.
    Barrier,
    /// `void sub_group_barrier(uint flags)`.
    SubGroupBarrier,
    /// `void mem_fence(uint flags)`, also read and write fences and `atomic_work_item_fence`; the last operand is a
    /// [`super::MemoryOrder`].
    MemFence,
    /// `void prefetch(const __global e *p, ulong elements)`.
    Prefetch,
    /// `event async_work_group_copy(e *to, const e *from, ulong elements, event)`.
    AsyncCopy,
    /// `event async_work_group_strided_copy(e *to, const e *from, ulong elements, ulong stride, event)`; the stride counts elements of the global side.
    AsyncStridedCopy,
    /// `void wait_group_events(int count, event *list)`.
    WaitGroupEvents,
    /// `T atomic_add(T *p, T)`: returns the old value, the same as all read-modify-write functions here. `T` is a 32- or 64-bit integer, or a float
    /// where noted. Also `atom_add`, `atomic_fetch_add`. The last operand of all of them is a [`super::MemoryOrder`]. Floats too.
    AtomicAdd,
    /// `T atomic_sub(T *p, T)`. Floats too.
    AtomicSub,
    /// `T atomic_xchg(T *p, T)`, `atomic_exchange`. Floats too.
    AtomicXchg,
    /// `T atomic_inc(T *p)`.
    AtomicInc,
    /// `T atomic_dec(T *p)`.
    AtomicDec,
    /// `T atomic_cmpxchg(T *p, T expected, T desired)`.
    AtomicCmpxchg,
    /// `T atomic_min(T *p, T)`. Floats too.
    AtomicMin,
    /// `T atomic_max(T *p, T)`. Floats too.
    AtomicMax,
    /// `T atomic_and(T *p, T)`.
    AtomicAnd,
    /// `T atomic_or(T *p, T)`.
    AtomicOr,
    /// `T atomic_xor(T *p, T)`.
    AtomicXor,
    /// `T atomic_load(T *p)`. Floats too.
    AtomicLoad,
    /// `void atomic_store(T *p, T)`, `atomic_init`. Floats too.
    AtomicStore,
    /// `bool atomic_compare_exchange(T *p, T *expected, T desired)`, strong and weak: if `*p` differs, it is written to `*expected`.
    AtomicCompareExchange,
    /// `bool atomic_flag_test_and_set(int *p)`.
    AtomicFlagTestAndSet,
    /// `void atomic_flag_clear(int *p)`.
    AtomicFlagClear,
    /// `shuffle(vector, mask)`: the result has the lanes of the mask; indices are taken modulo the vector's lanes.
    Shuffle,
    /// `shuffle2(vector, vector, mask)`.
    Shuffle2,
    /// `T4 read_image*(image, sampler, coordinate)`, of `float`, `int`, `uint` or `half`; of integers without a sampler too.
    ReadImage,
    /// `void write_image*(image, int coordinate, T4)`.
    WriteImage,
    /// `get_image_*(image)`: `int`, `int2`, `int4`; of layers `size_t`.
    ImageQuery(ImageQuery),
    /// `int work_group_all(int)`.
    WorkGroupAll,
    /// `int work_group_any(int)`.
    WorkGroupAny,
    /// `T work_group_broadcast(T, ulong x, [ulong y, [ulong z]])`.
    WorkGroupBroadcast,
    /// `T work_group_reduce_*(T)`, `work_group_scan_*`: 32- and 64-bit integers, floats.
    WorkGroupReduce(Reduction, Scan),
    /// `int sub_group_all(int)`.
    SubGroupAll,
    /// `int sub_group_any(int)`.
    SubGroupAny,
    /// `int sub_group_elect()`: 1 in the active item of lowest index.
    SubGroupElect,
    /// `T sub_group_broadcast(T, uint index)`.
    SubGroupBroadcast,
    /// `T sub_group_broadcast_first(T)`.
    SubGroupBroadcastFirst,
    /// `T sub_group_reduce_*(T)`, `sub_group_scan_*`.
    SubGroupReduce(Reduction, Scan),
    /// `T sub_group_shuffle(T, uint index)`.
    SubGroupShuffle,
    /// `T sub_group_shuffle_xor(T, uint mask)`.
    SubGroupShuffleXor,
    /// `T sub_group_shuffle_up(T, uint delta)`.
    SubGroupShuffleUp,
    /// `T sub_group_shuffle_down(T, uint delta)`.
    SubGroupShuffleDown,
    /// `uint4 sub_group_ballot(int)`.
    SubGroupBallot,
    /// `void __builtin_trap()`, `__builtin_unreachable()`.
    Trap,
}
