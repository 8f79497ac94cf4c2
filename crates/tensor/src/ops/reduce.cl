/* reduce: y[o, i] = OP over a of x[o, a, i]; OP is SUM or MAX, accumulated in float.
 *
 * x (outer, axis, inner) T, y (outer, inner) T.
 * reduce_rows (inner 1): work-group o owns row o; item l takes vectors l, l + WG, …; lanes and items join in a fixed tree.
 * reduce_columns: work-item (x, y) owns VW neighbouring columns x of slab y and walks the axis in order.
 */
#ifndef OP
#define OP SUM
#endif
#define SUM_START 0.0f
#define SUM_JOIN(a, b) ((a) + (b))
#define SUM_LANES(v) sum_lanes(v)
#define SUM_GROUP(s, v) GROUP_SUM(s, v)
#define MAX_START (-INFINITY)
#define MAX_JOIN(a, b) fmax((a), (b))
#define MAX_LANES(v) max_lanes(v)
#define MAX_GROUP(s, v) GROUP_MAX(s, v)
#define START CAT(OP, _START)
#define JOIN(a, b) CAT(OP, _JOIN)(a, b)

__kernel void reduce_rows(__global const T *restrict x, __global T *restrict y, ulong axis, ulong inner) {
  GROUP_SCRATCH(scratch);
  const ulong row = get_group_id(0);
  const int l = get_local_id(0);
  x += row * axis;
  FV acc = (FV)(START), acc2 = (FV)(START);
  ulong i = l * VW;
  for (; i + (WG + 1) * VW <= axis; i += 2 * WG * VW) {
    acc = JOIN(acc, LDV(x, i));
    acc2 = JOIN(acc2, LDV(x, i + WG * VW));
  }
  for (; i + VW <= axis; i += WG * VW) acc = JOIN(acc, LDV(x, i));
  acc = JOIN(acc, acc2);
  float total = CAT(OP, _LANES)(acc);
  for (ulong k = i; k < axis && k < i + VW; k++) total = JOIN(total, LD(x, k));
  total = CAT(OP, _GROUP)(scratch, total);
  if (l == 0) ST(y, row, total);
}

__kernel void reduce_columns(__global const T *restrict x, __global T *restrict y, ulong axis, ulong inner) {
  const ulong column = get_global_id(0) * VW, slab = get_global_id(1);
  if (column >= inner) return;
  x += slab * axis * inner + column;
  y += slab * inner + column;
  if (column + VW <= inner) {
    FV acc = (FV)(START);
    for (ulong a = 0; a < axis; a++) acc = JOIN(acc, LDV(x, a * inner));
    STV(y, 0, acc);
    return;
  }
  for (ulong k = 0; k < inner - column; k++) {
    float acc = START;
    for (ulong a = 0; a < axis; a++) acc = JOIN(acc, LD(x, a * inner + k));
    ST(y, k, acc);
  }
}
