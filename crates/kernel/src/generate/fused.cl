/* A tree of expressions as one kernel. What a generated text needs beside functions.cl; TEXT is the kernel itself.
 *
 * ITEM_RANGE      a flat kernel: the elements [begin, end) of this item, a vector each `step`.
 * GROUP_ROWS      rows of a kernel with reductions: a work-group each; on CPUs (WG 1) a run of neighbours for each item.
 * SVd, S1d        stores of a vector and of one value by storage type, as IN_Vd and IN_1d load.
 * FIRST           the first lane.
 * ROW_SUM         the sum over a work-group of vectors v and of the values `rest` from behind the last whole vector.
 * TAKE_MAX        takes v into the maximum s and into q, the largest of all sizes, NaN counted as above infinity.
 * ROW_MAX         the maximum over a work-group of what TAKE_MAX made; NaN where one is.
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

/* Rows that a kernel walks down: on GPUs several are asked for at a time. */
#if CHUNKED
#define UNROLL_DEEP
#else
#define UNROLL_DEEP _Pragma("unroll 4")
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
/* Integers, of values that are whole. */
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

#define ROW_SUM(scratch, v, rest) GROUP_SUM(scratch, sum_lanes(v) + (rest))
/* The larger of s and v, which one instruction finds where NaN need not be kept; sizes as unsigned numbers order NaN on top. */
#define TAKE_MAX(s, q, v)                      \
  s = (v) > s ? (v) : s;                       \
  q = max(q, AS_UV(v) & (UV)(0x7fffffffu));
#define TAKE_MAX_1(s, q, v)                    \
  {                                            \
    s = (v) > s ? (v) : s;                     \
    q = max(q, as_uint(v) & 0x7fffffffu);      \
  }
/* A sum of sizes is NaN where one of them is. A second look at the group is for an infinite maximum alone. */
#define ROW_MAX(name, scratch, s, q, rest, rest_q)                                                            \
  float name = fmax(max_lanes(s), (rest));                                                                    \
  {                                                                                                           \
    const float sizes = sum_lanes(AS_FV(q)) + as_float(rest_q);                                               \
    const int lost = sizes != sizes;                                                                          \
    name = GROUP_MAX(scratch, lost ? INFINITY : name);                                                        \
    if (name == INFINITY && GROUP_MAX(scratch, lost ? 1.0f : 0.0f) != 0.0f) name = NAN;                       \
  }

TEXT
