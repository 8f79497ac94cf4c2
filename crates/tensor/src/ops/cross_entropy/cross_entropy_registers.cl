/* Cross entropy and its gradient from one read of the logits: loss and formulas as in cross_entropy.cl, with dy = 1.
 *
 * x (R, N) T, as vectors of 16 bytes; dx (R, N) T, which may be x itself; targets (R) int; scale (1) float; loss (R) float.
 * count  one work-group: scale = 1 / number of targets that are not ignored.
 * held   work-group r owns row r and holds it: vector l + j WG belongs to item l. The first IN_REGISTERS of an item are in registers, KEPT more
 *        in local memory: with registers alone a multiprocessor would hold one group, and local memory would stay unused. An
 *        item reads and writes only its own vectors, and all are read before the first is written.
 *        A target outside 0 … classes - 1, where classes is at most N, makes loss and gradient NaN.
 * scale  dx *= dy; does nothing if dy is 1.
 * With u = x log2(e), top = max u, e = 2^(u - top): dx = (e / sum(e) - s / N - (1 - s) [k = t]) scale. Sums are float, in a fixed order.
 *
 * The argument zero is 0, which compilers cannot know. Without it they keep the unpacked lanes and powers of a vector from one use to the next.
 * That takes two to four times the registers, which then spill.
 * Defines: DTYPE (0 or 2), WG (at least 32), VECTORS per row, IN_REGISTERS, KEPT (IN_REGISTERS + KEPT vectors per item hold the row), SMOOTH (s
 * > 0), NATIVE. Tuned: GROUP, the largest WG for rows that it can hold.
 *
 * Design: loss and gradient in one kernel, with the gradient replacing the logits, as in Liger Kernel (arXiv:2410.10989); here the row stays in
 * registers and local memory between its two uses.
 * Ceiling: reads and writes the logits once: 3.1 to 3.5 of 4.8 TB/s on an H200 (bf16, 50304 classes).
 */
#ifndef VECTORS
#define VECTORS 100
#define IN_REGISTERS 4
#define KEPT 1
#define SMOOTH 1
#endif
#if WG < 32
#undef WG
#define WG 32
#endif
#define LANES (16 / sizeof(T))
#define LOG2_E 1.44269504f
#define LN_2 0.69314718f
/* -infinity in every lane: it adds nothing to a sum of exponentials and is never the maximum. */
#if DTYPE == 0
#define NOTHING 0xff800000u
#else
#define NOTHING 0xff80ff80u
#endif

/* Lanes of a vector as floats: for 16-bit types the even lanes and the odd lanes. */
#if DTYPE == 0
#define LOW(v) as_float4(v)
#else
#define LOW(v) as_float4((v) << 16)
#define HIGH(v) as_float4((v) & 0xffff0000u)
#endif

static inline float max4(float4 v) { return fmax(fmax(v.x, v.z), fmax(v.y, v.w)); }
static inline float sum4(float4 v) { return (v.x + v.z) + (v.y + v.w); }
/* NATIVE: native_exp2 is exact for infinities and within 2 ulp, which OpenCL does not guarantee. */
#if defined(NATIVE) && NATIVE
#define EXP2 native_exp2
#else
#define EXP2 exp2
#endif
static inline float4 power(float4 x, float top) { return EXP2(fma(x, (float4)(LOG2_E), (float4)(-top))); }

/* Rounds to bf16 without a check for NaN: rows with a NaN are filled with NaN beforehand. */
static inline uint4 rounded(float4 v) {
  const uint4 u = as_uint4(v);
  return u + 0x7fffu + ((u >> 16) & 1u);
}
static inline uint4 gradient(uint4 v, float top, float factor, float even) {
  const float4 low = fma(power(LOW(v), top), (float4)(factor), (float4)(-even));
#if DTYPE == 0
  return as_uint4(low);
#else
  const float4 high = fma(power(HIGH(v), top), (float4)(factor), (float4)(-even));
  return (rounded(low) >> 16) | (rounded(high) & 0xffff0000u);
#endif
}

/* Reductions over the group in two steps with two barriers; each scratch serves one reduction. */
#define JOIN(name, op)                                                            \
  static inline float name(__local float *s, float v) {                           \
    const uint l = get_local_id(0);                                               \
    s[l] = v;                                                                     \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    if (l < 32) {                                                                 \
      for (uint k = l + 32; k < WG; k += 32) v = op(v, s[k]);                     \
      s[l] = v;                                                                   \
    }                                                                             \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    float all = s[0];                                                             \
    for (uint k = 1; k < 32; k++) all = op(all, s[k]);                            \
    return all;                                                                   \
  }
JOIN(join_max, fmax)
JOIN(join_sum, PLUS)

/* Vectors of this item. Only the vector of the last j may be missing, depending on the item. The compiler does not know this. */
#define EACH_IN_REGISTERS _Pragma("unroll") for (uint j = 0; j < IN_REGISTERS; j++)
#define EACH_KEPT _Pragma("unroll") for (uint j = IN_REGISTERS; j < IN_REGISTERS + KEPT; j++)
#define KEPT_AT(j) kept[((j) - IN_REGISTERS) * WG + l]
#define HAS(j) (((j) + 1) * WG <= VECTORS || l + (j) * WG < VECTORS)

__kernel void cross_entropy_registers(__global const uint4 *x, __global const int *restrict targets,
                                 __global const float *restrict scale, __global float *restrict loss, __global uint4 *dx,
                                 long ignored, float smoothing, int classes, uint zero) {
  __local float tops[WG], sums[WG], chosen;
#if SMOOTH
  __local float totals[WG];
#endif
#if KEPT
  __local uint4 kept[KEPT * WG];
#endif
  const uint l = get_local_id(0);
  const ulong row = get_group_id(0);
  const int target = targets[row];
  __global const T *logits = (__global const T *)(x + row * VECTORS);
  __global T *gradients = (__global T *)(dx + row * VECTORS);
  x += row * VECTORS + l;
  dx += row * VECTORS + l;
  const bool keep = target != ignored, inside = target >= 0 && target < classes;
  const uint owner = inside ? (uint)target / (uint)LANES % WG : WG;
  uint4 in_registers[IN_REGISTERS];
  EACH_IN_REGISTERS in_registers[j] = keep && HAS(j) ? x[j * WG] : (uint4)(NOTHING);
#if KEPT
  EACH_KEPT KEPT_AT(j) = keep && HAS(j) ? x[j * WG] : (uint4)(NOTHING);
#endif
  if (l == owner) chosen = LD(logits, target);

  float4 high = (float4)(-FLT_MAX);
#if DTYPE == 0
#define HIGHEST(v) high = fmax(high, LOW(v))
#else
#define HIGHEST(v) high = fmax(high, fmax(LOW(v), HIGH(v)))
#endif
  EACH_IN_REGISTERS HIGHEST(in_registers[j]);
#if KEPT
  EACH_KEPT HIGHEST(KEPT_AT(j));
#endif
  const float largest = join_max(tops, max4(high)), top = largest * LOG2_E;

  float4 acc = (float4)(0.0f);
#if DTYPE == 0
#define ADD(v) acc += power(LOW(v), top)
#else
#define ADD(v) acc += power(LOW(v), top) + power(HIGH(v), top)
#endif
  EACH_IN_REGISTERS ADD(in_registers[j] ^ zero);
#if KEPT
  EACH_KEPT ADD(KEPT_AT(j));
#endif
  const float sum = join_sum(sums, sum4(acc));
  /* Adds back what rounding took from the maximum in units of log2(e), so that losses of large logits keep their digits. */
  const float rest = LN_2 * (log2(sum) + fma(-largest, LOG2_E, top)), all = largest + rest;

#if SMOOTH
  float4 plain = (float4)(0.0f);
#if DTYPE == 0
#define TOTAL(v) plain += LOW(v) - largest
#else
#define TOTAL(v) plain += (LOW(v) - largest) + (HIGH(v) - largest)
#endif
  EACH_IN_REGISTERS if (HAS(j)) TOTAL(in_registers[j] + zero);
#if KEPT
  EACH_KEPT if (HAS(j)) TOTAL(KEPT_AT(j));
#endif
  const float mean = join_sum(totals, sum4(plain)) / (float)(VECTORS * LANES);
#endif

  /* Rows that are ignored, that have an invalid target, or that contain a NaN or infinity. */
  if (!keep || !inside || !(fabs(all) <= FLT_MAX)) {
#if DTYPE == 0
    const uint fill = keep ? 0x7fc00000u : 0u;
#else
    const uint fill = keep ? 0x7fc07fc0u : 0u;
#endif
    for (uint k = 0; k + l < VECTORS; k += WG) dx[k] = (uint4)(fill);
    if (l == 0) loss[row] = !keep ? 0.0f : inside ? all : NAN;
    return;
  }
  const float by = scale[0], factor = by / sum, even = smoothing / (float)(VECTORS * LANES) * by;
  EACH_IN_REGISTERS if (HAS(j)) dx[j * WG] = gradient(in_registers[j] | zero, top, factor, even);
#if KEPT
  EACH_KEPT if (HAS(j)) dx[j * WG] = gradient(KEPT_AT(j), top, factor, even);
#endif
  if (l == owner) {
    const float e = EXP2(fma(chosen, LOG2_E, -top));
    /* The item that owns the target's element writes it again. */
    ST(gradients, target, fma(e, factor, -even) - (1.0f - smoothing) * by);
#if SMOOTH
    loss[row] = (1.0f - smoothing) * (largest - chosen + rest) + smoothing * (rest - mean);
#else
    loss[row] = largest - chosen + rest;
#endif
  }
}

__kernel void cross_entropy_count(__global const int *restrict targets, __global float *restrict scale, ulong rows,
                                  long ignored) {
  __local float counts[WG];
  uint count = 0;
  for (ulong row = get_local_id(0); row < rows; row += WG) count += targets[row] != ignored;
  const float all = join_sum(counts, (float)count);
  if (get_local_id(0) == 0) scale[0] = 1.0f / all;
}

__kernel void cross_entropy_scale(__global uint4 *restrict dx, __global const float *restrict dy, ulong vectors) {
  const float by = dy[0];
  if (by == 1.0f) return;
  for (ulong k = get_global_id(0); k < vectors; k += get_global_size(0)) {
    const uint4 v = dx[k];
    const float4 low = LOW(v) * by;
#if DTYPE == 0
    dx[k] = as_uint4(low);
#else
    const float4 high = HIGH(v) * by;
    dx[k] = (uint4)(bf16_of(low.x) | (uint)bf16_of(high.x) << 16, bf16_of(low.y) | (uint)bf16_of(high.y) << 16,
                    bf16_of(low.z) | (uint)bf16_of(high.z) << 16, bf16_of(low.w) | (uint)bf16_of(high.w) << 16);
#endif
  }
}
