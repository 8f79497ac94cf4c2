/* optimizer: one step of an optimizer over many parameters at once, the norm of all gradients, and the values that all elements of a step share.
 *
 * p            parameters, T: windows of one buffer. master: the same in float if T is narrower; it is updated, and p is its rounding.
 * m, v, w      state of the optimizer, float.
 * table        one row of ROW ulongs per parameter: START its first element in p, GRAD the first element of its gradient in
 *              the gradient's buffer, LENGTH elements, FIRST number of its first work-group, STATE its first element in
 *              master and state, HYPER weight decay and learning-rate factor (two floats).
 * g0 … g31     gradients, G: gk is that of row `first` + k. Arguments from `count` on repeat the last one and are not read.
 * control      uints that persist between steps, floats as their bits: see CONTROL below. The host writes LR and MAX_NORM.
 *
 * Work-group w owns CHUNK adjacent elements of one parameter. No element is written twice, and no group spans two parameters.
 * optimizer_norm     partial[at + w] = sum of squares of the group's gradient elements. Float, in a fixed order.
 * optimizer_prepare  one group: norm = sqrt(sum of partial) / scale, clip = min(1, max_norm / (norm + 1e-6)), coefficient =
 *                    clip / scale, bias corrections 1 / (1 - beta^t) as -1 / expm1(t log beta), which keeps the digits that
 *                    1 - 0.999f loses. growth > 0: loss scaling; a norm that is not finite skips the step and halves the
 *                    scale, `growth` good steps in a row double it.
 * optimizer_update   g = coefficient * gradient, then `advance` of the optimizer's source in rules/, with lr and decay of the row.
 * Defines: RULE (the optimizer's number), STATES (its arrays of state, 0 … 3), DTYPE of p, GTYPE of gradients, ALIGNED: START, STATE
 * and GRAD of all rows are multiples of VW, so that GPUs move whole vectors; vload guarantees no alignment and is split there.
 * Tuned: WG (1 on CPUs), VW, CHUNK (a multiple of WG VW).
 *
 * Design: all parameters in one launch by a table of chunks, like Apex's multi_tensor_apply; loss scaling (Micikevicius et
 * al. 2017, arXiv:1710.03740).
 * Ceiling: each parameter's state read and written once: with AdamW 28 bytes per parameter in f32. H200, GPT-2 in bf16: 0.96 ms for 124 million.
 */
#ifndef GTYPE
#define GTYPE DTYPE
#endif
#ifndef ALIGNED
#define ALIGNED 0
#endif
#ifndef CHUNK
#define CHUNK 4096
#endif

enum { START, GRAD, LENGTH, FIRST, STATE, HYPER, ROW };
enum CONTROL { LR, MAX_NORM, STEP, SCALE, GOOD, ATTEMPT, COEFFICIENT, SKIP, CORRECT1, CORRECT2, REPORTS = 16 };
/* The last RING reports: norm, steps done, scale used, whether it was skipped. */
#define RING 8
#define LARGEST_SCALE 16777216.0f

/* Vectors at p + i: F of floats, G of gradients, P of parameters. */
#if ALIGNED && WG > 1 && VW > 1
#define LDF(p, i) (*(__global const FV *)((p) + (i)))
#define STF(p, i, v) (*(__global FV *)((p) + (i)) = (v))
#define LD_HALVES(p, i) (*(__global const HV *)((p) + (i)))
#define LDGV_F16(p, i) aligned_f16((__global const HV *)((p) + (i)))
#define LDGV_BF16(p, i) AS_FV(TO_UV(LD_HALVES(p, i)) << 16)
static inline FV aligned_f16(__global const HV *p) {
  const HV h = *p;
  return CAT(vload_half, VW)(0, (const half *)&h);
}
#if DTYPE == 0
#define STP(p, i, v) STF(p, i, v)
#elif DTYPE == 1
#define STP(p, i, v) aligned_store((__global HV *)((p) + (i)), (v))
static inline void aligned_store(__global HV *p, FV v) { *p = f16_rounded(v); }
#else
#define STP(p, i, v) aligned_store((__global HV *)((p) + (i)), (v))
static inline void aligned_store(__global HV *p, FV v) {
  const UV u = AS_UV(v);
  const UV r = (u + (UV)(0x7fffu) + ((u >> 16) & (UV)(1u))) >> 16;
  *p = CAT(convert_ushort, VW)(isnan(v) ? ((u >> 16) | (UV)(64u)) : r);
}
#endif
#else
#define LDF(p, i) LDV_F32((p) + (i))
#define STF(p, i, v) STV_F32((p) + (i), (v))
#define LDGV_F16(p, i) LDV_F16((p) + (i))
#define LDGV_BF16(p, i) LDV_BF16((p) + (i))
#define STP(p, i, v) STV(p, i, v)
#endif

#if GTYPE == 0
typedef float G;
#define LDG(p, i) ((p)[i])
#define LDGV(p, i) LDF(p, i)
#elif GTYPE == 1
typedef half G;
#define LDG(p, i) vload_half((i), (p))
#define LDGV(p, i) LDGV_F16(p, i)
#else
typedef ushort G;
#define LDG(p, i) of_bf16((p)[i])
#define LDGV(p, i) LDGV_BF16(p, i)
#endif

#if VW == 1
#define FIRST_LANE(v) (v)
#else
#define FIRST_LANE(v) ((v).s0)
#endif

#define EACH16(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define EACH32(X) \
  EACH16(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define GRADIENT(k) , __global const G *g##k
#define PICK(k) \
  case k: g = g##k; break;

/* Returns the row among first … first + count - 1 that contains work-group `group`. */
static inline uint row_of(__global const ulong *table, uint first, uint count, ulong group) {
  uint low = first, high = first + count;
  while (high - low > 1) {
    const uint middle = (low + high) / 2;
    if (table[middle * ROW + FIRST] <= group) low = middle;
    else high = middle;
  }
  return low;
}

/* Finds the row of this group, its gradient from the parameter's first element on, and the group's elements [begin, end). */
#define FIND_GROUP                                                          \
  const uint at_row = row_of(table, first, count, get_group_id(0));         \
  __global const ulong *row = table + (ulong)at_row * ROW;                  \
  const ulong begin = (get_group_id(0) - row[FIRST]) * CHUNK;               \
  const ulong end = min(row[LENGTH], begin + CHUNK);                        \
  __global const G *g;                                                      \
  switch (at_row - first) { EACH32(PICK) default: g = g0; }                 \
  g += row[GRAD];

__kernel void optimizer_norm(__global float *restrict partial, ulong at, __global const ulong *restrict table, uint first,
                             uint count EACH32(GRADIENT)) {
  GROUP_SCRATCH(scratch);
  FIND_GROUP
  FV a = (FV)(0.0f), b = (FV)(0.0f);
  ulong i = begin + get_local_id(0) * VW;
#if WG > 1
  /* Keeps four loads in flight: a warp's share of bandwidth times latency. */
  for (; i + (3 * WG + 1) * VW <= end; i += 4 * WG * VW) {
    const FV x = LDGV(g, i), y = LDGV(g, i + WG * VW), z = LDGV(g, i + 2 * WG * VW), w = LDGV(g, i + 3 * WG * VW);
    a = fma(z, z, fma(x, x, a));
    b = fma(w, w, fma(y, y, b));
  }
#endif
  for (; i + (WG + 1) * VW <= end; i += 2 * WG * VW) {
    const FV x = LDGV(g, i), y = LDGV(g, i + WG * VW);
    a = fma(x, x, a);
    b = fma(y, y, b);
  }
  for (; i + VW <= end; i += WG * VW) {
    const FV x = LDGV(g, i);
    a = fma(x, x, a);
  }
  float sum = sum_lanes(a + b);
  for (ulong k = i; k < end && k < i + VW; k++) sum = fma(LDG(g, k), LDG(g, k), sum);
  sum = GROUP_SUM(scratch, sum);
  if (get_local_id(0) == 0) partial[at + get_group_id(0)] = sum;
}

__kernel void optimizer_prepare(__global uint *restrict control, __global const float *restrict partial, ulong parts,
                                float log_beta1, float log_beta2, uint growth) {
  GROUP_SCRATCH(scratch);
  float sum = 0.0f;
  for (ulong i = get_local_id(0); i < parts; i += WG) sum += partial[i];
  sum = GROUP_SUM(scratch, sum);
  if (get_local_id(0) != 0) return;

  const float scale = as_float(control[SCALE]), max_norm = as_float(control[MAX_NORM]);
  const float norm = sqrt(sum) / scale, ratio = max_norm / (norm + 1e-6f);
  /* A NaN propagates to the parameters, where it becomes visible, as in PyTorch. */
  const float clip = max_norm > 0.0f && !(ratio >= 1.0f) ? ratio : 1.0f;
  const uint skip = growth > 0 && !(sum <= FLT_MAX);
  const uint step = control[STEP] + 1 - skip, good = control[GOOD] + 1;
  control[STEP] = step;
  control[SKIP] = skip;
  control[COEFFICIENT] = as_uint(clip / scale);
  control[CORRECT1] = as_uint(-1.0f / expm1((float)step * log_beta1));
  control[CORRECT2] = as_uint(sqrt(-1.0f / expm1((float)step * log_beta2)));
  if (growth > 0) {
    control[GOOD] = skip || good >= growth ? 0 : good;
    if (skip) control[SCALE] = as_uint(max(scale * 0.5f, 1.0f));
    else if (good >= growth) control[SCALE] = as_uint(min(scale * 2.0f, LARGEST_SCALE));
  }
  const uint attempt = control[ATTEMPT];
  __global uint *report = control + REPORTS + attempt % RING * 4;
  report[0] = as_uint(norm);
  report[1] = step;
  report[2] = as_uint(scale);
  report[3] = skip;
  control[ATTEMPT] = attempt + 1;
}

/* Arguments that only some variants have. */
#if DTYPE == 0
#define LEAD(p) (p)
#define MASTER_ARGUMENT
#else
#define LEAD(p) master
#define MASTER_ARGUMENT __global float *restrict master,
#endif
#if STATES == 0
#define EACH_STATE(X)
#elif STATES == 1
#define EACH_STATE(X) X(m)
#elif STATES == 2
#define EACH_STATE(X) X(m) X(v)
#else
#define EACH_STATE(X) X(m) X(v) X(w)
#endif
#define STATE_ARGUMENT(s) __global float *restrict s,
#define STATE_SHIFT(s) s += row[STATE];
#define STATE_LOAD(s) FV s##i = LDF(s, i);
#define STATE_LOAD_ONE(s) FV s##i = (FV)(s[k]);
#define STATE_ADDRESS(s) &s##i,
#define STATE_STORE(s) STF(s, i, s##i);
#define STATE_STORE_ONE(s) s[k] = FIRST_LANE(s##i);

__kernel void optimizer_update(__global T *restrict p, MASTER_ARGUMENT EACH_STATE(STATE_ARGUMENT)
                               __global const uint *restrict control, float h0, float h1, float h2, float h3,
                               __global const ulong *restrict table, uint first, uint count EACH32(GRADIENT)) {
  if (control[SKIP]) return;
  FIND_GROUP
  const float2 hyper = as_float2(row[HYPER]);
  const float coefficient = as_float(control[COEFFICIENT]);
  const Common s = {as_float(control[LR]) * hyper.y, hyper.x, as_float(control[CORRECT1]), as_float(control[CORRECT2]),
                    h0, h1, h2, h3, control[STEP] == 1};
  p += row[START];
#if DTYPE != 0
  master += row[STATE];
#endif
  EACH_STATE(STATE_SHIFT)
  ulong i = begin + get_local_id(0) * VW;
  for (; i + VW <= end; i += WG * VW) {
    EACH_STATE(STATE_LOAD)
    FV gi = LDGV(g, i);
    gi *= coefficient;
    const FV y = advance(LDF(LEAD(p), i), gi, EACH_STATE(STATE_ADDRESS) s);
    EACH_STATE(STATE_STORE)
#if DTYPE != 0
    STF(master, i, y);
#endif
    STP(p, i, y);
  }
  /* The end of a parameter: one lane at a time through the same vector arithmetic. */
  for (ulong k = i; k < end && k < i + VW; k++) {
    EACH_STATE(STATE_LOAD_ONE)
    FV gi = (FV)(LDG(g, k));
    gi *= coefficient;
    const float y = FIRST_LANE(advance((FV)(LEAD(p)[k]), gi, EACH_STATE(STATE_ADDRESS) s));
    EACH_STATE(STATE_STORE_ONE)
#if DTYPE != 0
    master[k] = y;
#endif
    ST(p, k, y);
  }
}
