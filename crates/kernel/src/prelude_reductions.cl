/* Second part of the prelude of every kernel. Values are float.
 *
 * GROUP_SUM(s, v), GROUP_MAX(s, v)  reduce v over a work-group of WG items, all of which must call it; GROUP_SCRATCH(s) declares s
 * COLUMN_SUM(s, v)                  sums of a vector over dimension 1 of a group of (X, Y) items; COLUMN_SCRATCH(s) declares s
 * EXP(x)                            exponential, as accurate as results of the type OUT need
 * softmax_share(x, n)               an item's share of the maximum and the sum of a softmax row of n elements
 *
 * Defines: WG, VW, OUT and NVIDIA_CC of prelude.cl.
 */

/* Reductions over a work-group of WG items with a fixed tree; every item receives the result. */
#define PLUS(a, b) ((a) + (b))
#if WG == 1
#define GROUP_SCRATCH(name)
#define GROUP_SUM(name, v) (v)
#define GROUP_MAX(name, v) (v)
#define COLUMN_SCRATCH(name)
#define COLUMN_SUM(name, v) (v)
#else
/* The same over dimension 1 of a group of (X, Y) items, for vectors: one sum per x. */
#define COLUMN_SCRATCH(name) __local FV name[WG]
#define COLUMN_SUM(name, v) column_sum(name, v)
static inline FV column_sum(__local FV *s, FV v) {
  const int across = get_local_size(0), at = get_local_id(1) * across + get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  s[at] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = get_local_size(1) / 2; h > 0; h >>= 1) {
    if (get_local_id(1) < h) s[at] += s[at + h * across];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return s[get_local_id(0)];
}
#define GROUP_SUM(name, v) group_sum(name, v)
#define GROUP_MAX(name, v) group_max(name, v)
#if NVIDIA_CC >= 70 && WG >= 32
/* Reduces a hardware group's 32 items by shuffles, then the results of all such groups the same way: two barriers, or none. Both
 * items of a pair compute the same result, so every item gets the same bits. */
#define JOINS (WG / 32)
#define GROUP_SCRATCH(name) __local float name[JOINS]
static inline float from_lane(float v, uint other) {
  float r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=f"(r) : "f"(v), "r"(other));
  return r;
}
#define REDUCTION(name, op)                                                          \
  static inline float name(__local float *s, float v) {                              \
    _Pragma("unroll") for (uint h = 16; h > 0; h >>= 1) v = op(v, from_lane(v, h));  \
    if (JOINS == 1) return v;                                                        \
    const uint l = get_local_id(0);                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                    \
    if (l % 32 == 0) s[l / 32] = v;                                                  \
    barrier(CLK_LOCAL_MEM_FENCE);                                                    \
    v = s[l % JOINS];                                                                \
    _Pragma("unroll") for (uint h = JOINS / 2; h > 0; h >>= 1) v = op(v, from_lane(v, h)); \
    return v;                                                                        \
  }
REDUCTION(group_sum, PLUS)
REDUCTION(group_max, fmax)
#else
#define GROUP_SCRATCH(name) __local float name[WG]
static inline float group_sum(__local float *s, float v) {
  int l = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  s[l] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = WG / 2; h > 0; h >>= 1) {
    if (l < h) s[l] += s[l + h];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return s[0];
}
static inline float group_max(__local float *s, float v) {
  int l = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  s[l] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int h = WG / 2; h > 0; h >>= 1) {
    if (l < h) s[l] = fmax(s[l], s[l + h]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  return s[0];
}
#endif
#endif

/* Exponentials whose results are rounded to 16 bits. NVIDIA uses the hardware function, within 2^-18 for every x that does not overflow.
 * Its results below 2^-126 may be 0. */
#if NVIDIA_CC && (OUT == 1 || OUT == 2)
#define EXP(x) native_exp2((x) * 1.44269504f)
#else
#define EXP(x) exp(x)
#endif

/* CPUs keep one maximum per lane: one more vector of exponentials costs them less than a reduction across lanes. */
#if WG == 1
typedef FV TOP;
#define TOP_OF(v) (v)
#define ONE_TOP(top) max_lanes(top)
#else
typedef float TOP;
#define TOP_OF(v) max_lanes(v)
#define ONE_TOP(top) (top)
#endif
/* This item's share of a row's softmax: x the maximum, y the sum of exp(v - maximum), in one pass over vectors l, l + WG, …
 * The sum is rescaled to a new maximum once every four vectors. An empty share is (-FLT_MAX, 0). A NaN or +infinity makes y NaN. */
static inline float2 softmax_share(__global const T *x, ulong n) {
  const ulong step = WG * VW;
  TOP top = (TOP)(-FLT_MAX);
  FV sum = (FV)(0.0f);
  ulong i = get_local_id(0) * VW;
  for (; i + 3 * step + VW <= n; i += 4 * step) {
    const FV a = LDV(x, i), b = LDV(x, i + step), c = LDV(x, i + 2 * step), d = LDV(x, i + 3 * step);
    const TOP t = fmax(top, TOP_OF(fmax(fmax(a, b), fmax(c, d))));
    sum = sum * EXP(top - t) + ((EXP(a - t) + EXP(b - t)) + (EXP(c - t) + EXP(d - t)));
    top = t;
  }
  for (; i + VW <= n; i += step) {
    const FV a = LDV(x, i);
    const TOP t = fmax(top, TOP_OF(a));
    sum = sum * EXP(top - t) + EXP(a - t);
    top = t;
  }
  float2 share;
  share.x = ONE_TOP(top);
  share.y = sum_lanes(sum * EXP(top - share.x));
  for (ulong k = i; k < n && k < i + VW; k++) {
    const float a = LD(x, k), t = fmax(share.x, a);
    share.y = share.y * EXP(share.x - t) + EXP(a - t);
    share.x = t;
  }
  return share;
}
