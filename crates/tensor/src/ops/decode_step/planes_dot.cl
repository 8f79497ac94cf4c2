/* Rows of weights times activations in local memory: quantised weights in planes (planes.cl) by integer dot products, and dense ones.
 *
 * A lane takes every 32nd unit of a row: 32 elements of quantised weights, 16 bytes of dense ones. The activations lie so that neighbouring
 * lanes read neighbouring 16 bytes:
 *   codes   for each block of 32: bytes of elements 0 .. 15 in the first half, 16 .. 31 in the second; blocks one behind the other
 *   scales  for each block: the scale s, and s times the sum of the codes
 *   floats  (dense, 16 bits) for each unit of 8: elements 0 .. 3 in the first half, 4 .. 7 in the second; (dense, f32) as they come
 *
 * Defines: FORMATS as planes.cl, and bit 0 for dense rows of T.
 *
 * Design: 8-bit activations in blocks of 32 as llama.cpp's Q8_1, codes multiplied by dp4a.
 */
#define QUANTISED ((FORMATS) >> 1 != 0)

/* Activations of a stage. */
typedef struct {
  __local uint *codes;
  __local float2 *scales;
  __local float4 *floats;
} Input;

/* c plus the sum of four products of signed bytes. */
static inline int dot4(uint a, uint b, int c) {
#if NVIDIA_CC >= 61
  int r;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
#else
  const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return c + p.x + p.y + p.z + p.w;
#endif
}
static inline int dot16(uint4 a, uint4 b) {
  return dot4(a.w, b.w, dot4(a.y, b.y, 0)) + dot4(a.z, b.z, dot4(a.x, b.x, 0));
}
/* Group u of a row: codes times codes, s the scale of the activations and that times their sum. The format has one scale, or one for each half. */
#define GROUP(format, row, u, k, x0, x1, s, sum)                                                             \
  {                                                                                                            \
    uint4 first, second;                                                                                       \
    const Stored stored = stored_##format(row, u, k);                                                          \
    codes_##format(stored, &first, &second);                                                                   \
    const float3 d = scales_##format(stored, u);                                                               \
    if (format == 14) sum += (s).x * (d.x * (float)dot16(first, x0) + d.y * (float)dot16(second, x1));         \
    else sum += d.x * ((s).x * (float)(dot16(first, x0) + dot16(second, x1))) + d.z * (s).y;                   \
  }

#if HAS(0) && DTYPE != 0
static inline float2 pair_of(uint v) {
#if DTYPE == 2
  return (float2)(as_float(v << 16), as_float(v & 0xffff0000u));
#else
  return (float2)(f16_value(v & 0xffffu), f16_value(v >> 16));
#endif
}
static inline float unit_0(RowBytes row, int u, float4 first, float4 second) {
  const uint4 q = *(const ROWS_IN uint4 *)(row + 16 * u);
  const float2 a = pair_of(q.x), b = pair_of(q.y), c = pair_of(q.z), d = pair_of(q.w);
  return a.x * first.x + a.y * first.y + b.x * first.z + b.y * first.w + c.x * second.x + c.y * second.y + d.x * second.z + d.y * second.w;
}
#endif

/* A lane's share of the row at `row`, and of the one `next` bytes behind it where that is not 0. */
#define DOT(format)                                                                                              \
  static inline float2 dot_##format(const Input *x, RowBytes row, int next, int k, int lane) {                  \
    float2 sum = (float2)(0.0f);                                                                                 \
    const int units = k / 32;                                                                                    \
    _Pragma("unroll 2") for (int u = lane; u < units; u += 32) {                                                 \
      const uint4 x0 = *(__local const uint4 *)(x->codes + 4 * u);                                               \
      const uint4 x1 = *(__local const uint4 *)(x->codes + k / 8 + 4 * u);                                       \
      const float2 s = x->scales[u];                                                                             \
      GROUP(format, row, u, k, x0, x1, s, sum.x)                                                                 \
      if (next) GROUP(format, row + next, u, k, x0, x1, s, sum.y)                                                \
    }                                                                                                            \
    return sum;                                                                                                  \
  }
#if HAS(2)
DOT(2)
#endif
#if HAS(3)
DOT(3)
#endif
#if HAS(6)
DOT(6)
#endif
#if HAS(7)
DOT(7)
#endif
#if HAS(8)
DOT(8)
#endif
#if HAS(12)
DOT(12)
#endif
#if HAS(13)
DOT(13)
#endif
#if HAS(14)
DOT(14)
#endif
#if HAS(0) && DTYPE == 0
static inline float unit_0(RowBytes row, int u, float4 x) {
  const float4 w = *(const ROWS_IN float4 *)(row + 16 * u);
  return w.x * x.x + w.y * x.y + w.z * x.z + w.w * x.w;
}
static inline float2 dot_0(const Input *x, RowBytes row, int next, int k, int lane) {
  float2 sum = (float2)(0.0f);
  const int units = k / 4;
  _Pragma("unroll 4") for (int u = lane; u < units; u += 32) {
    const float4 v = x->floats[u];
    sum.x += unit_0(row, u, v);
    if (next) sum.y += unit_0(row + next, u, v);
  }
  return sum;
}
#elif HAS(0)
static inline float2 dot_0(const Input *x, RowBytes row, int next, int k, int lane) {
  float2 sum = (float2)(0.0f);
  const int units = k / 8;
  _Pragma("unroll 4") for (int u = lane; u < units; u += 32) {
    const float4 first = x->floats[u], second = x->floats[units + u];
    sum.x += unit_0(row, u, first, second);
    if (next) sum.y += unit_0(row + next, u, first, second);
  }
  return sum;
}
#endif

static inline float2 dot_rows(uint format, const Input *x, RowBytes row, int next, int k, int lane) {
#define OF(number) if (format == number) return dot_##number(x, row, next, k, lane);
#if HAS(2)
  OF(2)
#endif
#if HAS(3)
  OF(3)
#endif
#if HAS(6)
  OF(6)
#endif
#if HAS(7)
  OF(7)
#endif
#if HAS(8)
  OF(8)
#endif
#if HAS(12)
  OF(12)
#endif
#if HAS(13)
  OF(13)
#endif
#if HAS(14)
  OF(14)
#endif
#if HAS(0)
  OF(0)
#endif
  return (float2)(0.0f);
}
