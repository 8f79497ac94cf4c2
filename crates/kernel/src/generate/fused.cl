/* A tree of expressions as one kernel. Contains what a generated source needs in addition to functions.cl; TEXT is the kernel itself.
 *
 * ITEM_RANGE      flat kernels: the elements [begin, end) of this item, one vector per `step`.
 * DEEP            number of rows that a column-wise kernel loads at a time.
 * GROUP_ROWS      rows of a kernel with reductions: one work-group per row; on CPUs (WG 1) a run of consecutive rows per item.
 * SVd, S1d        stores of a vector and of one value by storage type, the counterparts of IN_Vd and IN_1d.
 * FIRST           the first lane.
 * ROW_SUM         sum over a work-group of the vectors v and of the values `rest` after the last whole vector; `site` numbers the
 *                 reductions of a row.
 * TAKE_MAX        accumulates v into the maximum s and into q, the largest magnitude, where NaN counts as larger than infinity.
 * ROW_MAX         maximum over a work-group of the results of TAKE_MAX; NaN if one is NaN.
 */
#ifndef TEXT
#define TEXT __kernel void fused(__global float *y) { y[get_global_id(0)] = 0.0f; }
#endif

#if CHUNKED
#define ITEM_RANGE                                                                                   \
  const ulong items = get_global_size(0), per = (n + items * VW - 1) / (items * VW) * VW, step = VW; \
  const ulong begin = min(n, get_global_id(0) * per), end = min(n, begin + per);
#else
#define ITEM_RANGE const ulong begin = get_global_id(0) * VW, end = n, step = get_global_size(0) * VW;
#endif
#if WG == 1
#define GROUP_ROWS(row, rows) FOR_ROWS(row, rows, 0)
#else
#define GROUP_ROWS(row, rows) for (ulong row = get_group_id(0); row < (rows); row += get_num_groups(0))
#endif

#if ALIGNED_VECTORS && VW > 1
#define SV0(p, i, v) STVA_F32((p) + (i), (v))
#define SV1(p, i, v) STVA_F16((p) + (i), (v))
#define SV2(p, i, v) STVA_BF16((p) + (i), (v))
#define SV5(p, i, v) STVA_MASK((p) + (i), (v))
#else
#define SV0(p, i, v) STV_F32((p) + (i), (v))
#define SV1(p, i, v) STV_F16((p) + (i), (v))
#define SV2(p, i, v) STV_BF16((p) + (i), (v))
#define SV5(p, i, v) STV_MASK((p) + (i), (v))
#endif
/* Integer operations on values that are whole numbers. */
#define SV3(p, i, v) STV_F32((p) + (i), TO_IV(v))
#define SV4(p, i, v) STV_F32((p) + (i), TO_UV(v))
#define S13(p, i, v) ((p)[i] = (int)(v))
#define S14(p, i, v) ((p)[i] = (uint)(v))
#define S10(p, i, v) ((p)[i] = (v))
#define S11(p, i, v) vstore_half_rte((v), (i), (p))
#define S12(p, i, v) ((p)[i] = bf16_of(v))
#define S15(p, i, v) ((p)[i] = mask_of(v))

#if VW == 1
#define FIRST(v) (v)
#else
#define FIRST(v) ((v).s0)
#endif

/* A scale factor for a row's divisor before the reciprocal, and for the dividend: both stay within the range of floats. */
#define DIVISOR_SCALE(v) (fabs(v) < 0x1p-64f ? 0x1p64f : fabs(v) > 0x1p64f ? 0x1p-64f : 1.0f)
/* Sums over a row, one or two at a time. On NVIDIA each reduction of a row has a separate slot in local memory, which two rows use
 * alternately. Every writer has passed a barrier since the last read of the slot, so one barrier is enough. */
#if NVIDIA_CC >= 70 && WG >= 32
#define ROW_SCRATCH(name, sites)              \
  __local float2 name[2 * (sites) * JOINS];   \
  uint turn = 0
#define ROW_DONE turn ^= 1;
#define PLACE(scratch, site) ((scratch) + (2 * (site) + turn) * JOINS)
#define PLUS_2(a, b) ((float2)((a).x + (b).x, (a).y + (b).y))
#define JOINED(name, op)                                                                                             \
  static inline float2 name(__local float2 *s, float2 v) {                                                           \
    _Pragma("unroll") for (uint h = 16; h > 0; h >>= 1) v = op(v, (float2)(from_lane(v.x, h), from_lane(v.y, h)));   \
    if (JOINS == 1) return v;                                                                                        \
    const uint l = get_local_id(0);                                                                                  \
    if (l % 32 == 0) s[l / 32] = v;                                                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                    \
    v = s[l % JOINS];                                                                                                \
    _Pragma("unroll") for (uint h = JOINS / 2; h > 0; h >>= 1) v = op(v, (float2)(from_lane(v.x, h), from_lane(v.y, h))); \
    return v;                                                                                                        \
  }
#define JOINED_1(name, op)                                                                      \
  static inline float name(__local float2 *s, float v) {                                        \
    _Pragma("unroll") for (uint h = 16; h > 0; h >>= 1) v = op(v, from_lane(v, h));             \
    if (JOINS == 1) return v;                                                                   \
    const uint l = get_local_id(0);                                                             \
    if (l % 32 == 0) s[l / 32].x = v;                                                           \
    barrier(CLK_LOCAL_MEM_FENCE);                                                               \
    v = s[l % JOINS].x;                                                                         \
    _Pragma("unroll") for (uint h = JOINS / 2; h > 0; h >>= 1) v = op(v, from_lane(v, h));      \
    return v;                                                                                   \
  }
JOINED(row_sum_2, PLUS_2)
JOINED_1(row_sum, PLUS)
#define ROW_SUM(scratch, site, v, rest) row_sum(PLACE(scratch, site), sum_lanes(v) + (rest))
#define ROW_SUM_2(scratch, site, v, rest, w, more) \
  row_sum_2(PLACE(scratch, site), (float2)(sum_lanes(v) + (rest), sum_lanes(w) + (more)))
#else
#define ROW_SCRATCH(name, sites) GROUP_SCRATCH(name)
#define ROW_DONE
#define ROW_SUM(scratch, site, v, rest) GROUP_SUM(scratch, sum_lanes(v) + (rest))
#define ROW_SUM_2(scratch, site, v, rest, w, more) \
  (float2)(ROW_SUM(scratch, site, v, rest), ROW_SUM(scratch, site, w, more))
#endif
#if NVIDIA_CC >= 80 && WG >= 32
/* One instruction whose result is NaN if an operand is NaN. */
static inline float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#if VW == 1
#define JOIN_MAX(a, b) max_or_nan(a, b)
static inline float lanes_max_or_nan(FV v) { return v; }
#else
static inline FV JOIN_MAX(FV a, FV b) {
  float x[VW], y[VW];
  STOREN(a, x);
  STOREN(b, y);
  UNROLL for (int k = 0; k < VW; k++) x[k] = max_or_nan(x[k], y[k]);
  return LOADN(x);
}
static inline float lanes_max_or_nan(FV v) {
  float x[VW];
  STOREN(v, x);
  UNROLL for (int h = VW / 2; h > 0; h >>= 1)
    UNROLL for (int k = 0; k < h; k++) x[k] = max_or_nan(x[k], x[k + h]);
  return x[0];
}
#endif
JOINED_1(row_max, max_or_nan)
#define TAKE_MAX(s, q, v) s = JOIN_MAX(s, v);
#define TAKE_MAX_1(s, q, v) s = max_or_nan(s, v);
#define ROW_MAX(name, scratch, site, s, q, rest, rest_q) \
  const float name = row_max(PLACE(scratch, site), max_or_nan(lanes_max_or_nan(s), rest));
#else
#define JOIN_MAX(a, b) fmax(a, b)
/* The larger of s and v. One instruction finds it where NaN need not be kept; magnitudes as unsigned integers order NaN on top. */
#define TAKE_MAX(s, q, v)                      \
  s = (v) > s ? (v) : s;                       \
  q = max(q, AS_UV(v) & (UV)(0x7fffffffu));
#define TAKE_MAX_1(s, q, v)                    \
  {                                            \
    s = (v) > s ? (v) : s;                     \
    q = max(q, as_uint(v) & 0x7fffffffu);      \
  }
/* A sum of magnitudes is NaN if one of them is. Only an infinite maximum requires a second reduction over the group. */
#define ROW_MAX(name, scratch, site, s, q, rest, rest_q)                                                       \
  float name = fmax(max_lanes(s), (rest));                                                                    \
  {                                                                                                           \
    const float sizes = sum_lanes(AS_FV(q)) + as_float(rest_q);                                               \
    const int lost = sizes != sizes;                                                                          \
    name = GROUP_MAX(scratch, lost ? INFINITY : name);                                                        \
    if (name == INFINITY && GROUP_MAX(scratch, lost ? 1.0f : 0.0f) != 0.0f) name = NAN;                       \
  }
#endif

TEXT
