/* reduce: y[o, p, i] = scale * OP over part p of a of x[o, a, i]; OP is SUM or MAX, accumulated in float.
 *
 * x (outer, axis, inner) T, y (outer, parts, inner) OUT_T. Part p of an axis is its elements p * per ….
 * reduce_rows (inner 1)  work-group g owns block g of the rows (outer, parts); items process vectors l, l + WG, …;
 *                        lanes and items are combined in a fixed tree.
 * reduce_columns         group (o * parts + p) * blocks + c of (X, Y) items: item (x, y) owns VW columns of block c and processes
 *                        rows y, y + Y, … of part p; the Y results are combined in a fixed tree. ALIGNED 1: VW elements are 16
 *                        bytes and inner is a multiple of VW; four rows are loaded at once.
 * reduce_streamed        the same for one item: COLUMNS adjacent columns, rows read whole, four at a time, into sums
 *                        that stay in the first-level cache. For CPUs, whose prefetchers follow rows and not columns.
 *
 * Design: tree reductions within a group (Harris 2007, "Optimizing Parallel Reduction in CUDA"), a second launch over the parts.
 * Ceiling: reads x once: H200, 16384 x 1024 f32: rows 2.6, columns 2.9 of 4.8 TB/s.
 */
#ifndef OP
#define OP SUM
#endif
#ifndef ALIGNED
#define ALIGNED 0
#endif
#define COLUMNS 2048
#define SUM_START 0.0f
#define SUM_JOIN(a, b) ((a) + (b))
#define SUM_JOIN_1(a, b) ((a) + (b))
#define SUM_LANES(v) sum_lanes(v)
#define SUM_GROUP(s, v) GROUP_SUM(s, v)
#define MAX_START (-INFINITY)
#define MAX_JOIN(a, b) larger(a, b)
#define MAX_JOIN_1(a, b) larger_of_two(a, b)
#define MAX_LANES(v) larger_lanes(v)
/* All items must call it. NaN is reduced separately, because the group's maximum drops it. */
#define MAX_GROUP(s, v) (GROUP_MAX(s, isnan(v) ? 1.0f : 0.0f) > 0.0f ? NAN : GROUP_MAX(s, v))
#define START CAT(OP, _START)
/* Combines vectors, and single elements. */
#define JOIN(a, b) CAT(OP, _JOIN)(a, b)
#define JOIN_1(a, b) CAT(OP, _JOIN_1)(a, b)

/* Returns the larger value, or NaN if one is NaN; fmax would drop it. */
static inline FV larger(FV a, FV b) { return (a > b) | isnan(a) ? a : b; }
static inline float larger_of_two(float a, float b) { return a > b || isnan(a) ? a : b; }
static inline float larger_lanes(FV v) {
#if VW == 1
  return v;
#else
  return any(isnan(v)) ? NAN : max_lanes(v);
#endif
}

__kernel void reduce_rows(__global const T *restrict x, __global OUT_T *restrict y, ulong rows, ulong axis, ulong parts,
                          ulong per, float scale) {
  GROUP_SCRATCH(scratch);
  const ulong l = get_local_id(0) * VW;
  const ulong each = (rows + get_num_groups(0) - 1) / get_num_groups(0), first = get_group_id(0) * each;
  for (ulong row = first; row < min(rows, first + each); row++) {
    __global const T *r = x + row / parts * axis;
    const ulong begin = row % parts * per, end = min(axis, begin + per);
    FV acc = (FV)(START), acc2 = (FV)(START);
    ulong i = begin + l;
    for (; i + (WG + 1) * VW <= end; i += 2 * WG * VW) {
      acc = JOIN(acc, LDV(r, i));
      acc2 = JOIN(acc2, LDV(r, i + WG * VW));
    }
    for (; i + VW <= end; i += WG * VW) acc = JOIN(acc, LDV(r, i));
    acc = JOIN(acc, acc2);
    float total = CAT(OP, _LANES)(acc);
    for (ulong k = i; k < end && k < i + VW; k++) total = JOIN_1(total, LD(r, k));
    total = CAT(OP, _GROUP)(scratch, total);
    if (l == 0) OUT_1(y, row, total * scale);
  }
}

__kernel void reduce_columns(__global const T *restrict x, __global OUT_T *restrict y, ulong axis, ulong inner, ulong parts,
                             ulong per, ulong blocks, float scale) {
  const ulong slab = get_group_id(0) / blocks;
  const ulong column = (get_group_id(0) % blocks * get_local_size(0) + get_local_id(0)) * VW;
  const ulong begin = slab % parts * per, end = min(axis, begin + per);
  const ulong lanes = column < inner ? min(inner - column, (ulong)VW) : 0;
  x += slab / parts * axis * inner + column;
  FV acc = (FV)(START);
#if ALIGNED
  const ulong step = get_local_size(1), next = step * inner / VW;
  ulong a = begin + get_local_id(1);
  __global const uint4 *v = (__global const uint4 *)(x + a * inner);
  if (lanes == 0) a = end;
  for (; a + 3 * step < end; a += 4 * step, v += 4 * next) {
    const uint4 v0 = v[0], v1 = v[next], v2 = v[2 * next], v3 = v[3 * next];
    acc = JOIN(acc, JOIN(JOIN(unpack(v0), unpack(v1)), JOIN(unpack(v2), unpack(v3))));
  }
  for (; a < end; a += step, v += next) acc = JOIN(acc, unpack(v[0]));
#else
  if (lanes == VW) {
    for (ulong a = begin + get_local_id(1); a < end; a += get_local_size(1)) acc = JOIN(acc, LDV(x, a * inner));
  } else if (lanes > 0) {
    for (ulong a = begin + get_local_id(1); a < end; a += get_local_size(1)) acc = JOIN(acc, load_part(x + a * inner, lanes));
  }
#endif
#if WG > 1
  __local FV scratch[WG];
  const int across = get_local_size(0), at = get_local_id(1) * across + get_local_id(0);
  scratch[at] = acc;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = get_local_size(1) / 2; h > 0; h >>= 1) {
    if (get_local_id(1) < h) scratch[at] = JOIN(scratch[at], scratch[at + h * across]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  acc = scratch[at];
#endif
  if (get_local_id(1) > 0) return;
  y += slab * inner + column;
  if (lanes == VW) {
    OUT_V(y, 0, acc * scale);
  } else {
    float part[VW];
    STV_F32(part, acc * scale);
    for (uint k = 0; k < lanes; k++) OUT_1(y, k, part[k]);
  }
}

__kernel void reduce_streamed(__global const T *restrict x, __global OUT_T *restrict y, ulong axis, ulong inner, ulong parts,
                              ulong per, ulong blocks, float scale) {
  const ulong slab = get_group_id(0) / blocks, column = get_group_id(0) % blocks * COLUMNS;
  const ulong begin = slab % parts * per, end = min(axis, begin + per);
  const ulong width = min(inner - column, (ulong)COLUMNS);
  float acc[COLUMNS];
  for (ulong i = 0; i < width; i++) acc[i] = START;
  x += slab / parts * axis * inner + column;
  ulong a = begin;
  for (; a + 4 <= end; a += 4) {
    __global const T *r0 = x + a * inner, *r1 = r0 + inner, *r2 = r1 + inner, *r3 = r2 + inner;
    ulong i = 0;
    for (; i + VW <= width; i += VW) {
      const FV four = JOIN(JOIN(LDV(r0, i), LDV(r1, i)), JOIN(LDV(r2, i), LDV(r3, i)));
      STV_F32(acc + i, JOIN(LDV_F32(acc + i), four));
    }
    for (; i < width; i++) acc[i] = JOIN_1(acc[i], JOIN_1(JOIN_1(LD(r0, i), LD(r1, i)), JOIN_1(LD(r2, i), LD(r3, i))));
  }
  for (; a < end; a++) {
    __global const T *r = x + a * inner;
    ulong i = 0;
    for (; i + VW <= width; i += VW) STV_F32(acc + i, JOIN(LDV_F32(acc + i), LDV(r, i)));
    for (; i < width; i++) acc[i] = JOIN_1(acc[i], LD(r, i));
  }
  y += slab * inner + column;
  ulong i = 0;
  for (; i + VW <= width; i += VW) OUT_V(y, i, LDV_F32(acc + i) * scale);
  for (; i < width; i++) OUT_1(y, i, acc[i] * scale);
}
