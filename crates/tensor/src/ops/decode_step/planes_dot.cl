/* Rows of weights times activations in local memory: quantized weights in planes (planes.cl) by integer dot products, and dense weights.
 *
 * A lane processes every 32nd unit of a row: 32 elements of quantized weights, 16 bytes of dense ones. Activations are stored so that adjacent
 * lanes read adjacent 16-byte words:
 *   codes   for each block of 32: bytes of elements 0 .. 15 in the first half, 16 .. 31 in the second; blocks follow one another
 *   scales  for each block: the scale s, and s times the sum of the codes
 *   floats  (dense, 16 bits) for each unit of 8: elements 0 .. 3 in the first half, 4 .. 7 in the second; (dense, f32) in order
 *
 * Defines: FORMATS(OF), a list of OF(name, number) for each format of planes.cl in use, where number is the rows' format number. QUANTISED:
 * whether any rows are quantized. DENSE: whether any rows are dense, of type T.
 *
 * Design: 8-bit activations in blocks of 32 as in llama.cpp's Q8_1, codes multiplied by dp4a.
 */
/* Format number of dense rows. */
#define DENSE_ROWS 0

/* Activations of a stage. */
typedef struct {
  __local uint *codes;
  __local float2 *scales;
  __local float4 *floats;
} Input;

/* Returns c plus the sum of four products of signed bytes. */
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
/* A lane's sums for each text: of a row, and of the next one. */
typedef struct {
  float2 of[TEXTS];
} Sums;
static inline Sums no_sums(void) {
  Sums sum;
  UNROLL for (int t = 0; t < TEXTS; ++t) sum.of[t] = (float2)(0.0f);
  return sum;
}

/* Loads group u of a row: its codes and scales. The format has one scale, or one for each half. */
#define GROUP(format, row, u, k, first, second, d)           \
  uint4 first, second;                                       \
  float3 d;                                                  \
  {                                                          \
    const Stored stored = stored_##format(row, u, k);        \
    codes_##format(stored, &first, &second);                 \
    d = scales_##format(stored, u);                          \
  }
/* Adds codes times codes; s has the scale of the activations, and the scale times the sum of their codes. */
#define ADD_GROUP(format, first, second, d, x0, x1, s, sum)                                                   \
  if (HALVES_##format) sum += (s).x * ((d).x * (float)dot16(first, x0) + (d).y * (float)dot16(second, x1)); \
  else sum += (d).x * ((s).x * (float)(dot16(first, x0) + dot16(second, x1))) + (d).z * (s).y;

#if DENSE && DTYPE != 0
static inline float2 pair_of(uint v) {
#if DTYPE == 2
  return (float2)(as_float(v << 16), as_float(v & 0xffff0000u));
#else
  return (float2)(f16_value(v & 0xffffu), f16_value(v >> 16));
#endif
}
static inline float dense_unit(RowBytes row, int u, float4 first, float4 second) {
  const uint4 q = *(const ROWS_IN uint4 *)(row + 16 * u);
  const float2 a = pair_of(q.x), b = pair_of(q.y), c = pair_of(q.z), d = pair_of(q.w);
  return a.x * first.x + a.y * first.y + b.x * first.z + b.y * first.w + c.x * second.x + c.y * second.y + d.x * second.z + d.y * second.w;
}
#endif

/* Computes a lane's share of the row at `row`, and of the row `next` bytes further if `next` is not 0. */
#define CODES_OF(x, t, u, k)                                                                             \
  const uint4 x0 = *(__local const uint4 *)((x)->codes + (t) * CODES + 4 * (u));                         \
  const uint4 x1 = *(__local const uint4 *)((x)->codes + (t) * CODES + (k) / 8 + 4 * (u));               \
  const float2 s = (x)->scales[(t) * SCALES + (u)];
#if TEXTS == 1
#define DOT(format, number)                                                                              \
  static inline Sums dot_##format(const Input *x, RowBytes row, int next, int k, int lane) {             \
    Sums sum = no_sums();                                                                                \
    const int units = k / 32;                                                                            \
    _Pragma("unroll 2") for (int u = lane; u < units; u += 32) {                                         \
      CODES_OF(x, 0, u, k)                                                                               \
      {                                                                                                  \
        GROUP(format, row, u, k, first, second, d)                                                       \
        ADD_GROUP(format, first, second, d, x0, x1, s, sum.of[0].x)                                      \
      }                                                                                                  \
      if (next) {                                                                                        \
        GROUP(format, row + next, u, k, first, second, d)                                                \
        ADD_GROUP(format, first, second, d, x0, x1, s, sum.of[0].y)                                      \
      }                                                                                                  \
    }                                                                                                    \
    return sum;                                                                                          \
  }
#else
/* Each load of a row serves all texts, and each load of a text serves both rows. */
#define DOT(format, number)                                                                              \
  static inline Sums dot_##format(const Input *x, RowBytes row, int next, int k, int lane) {             \
    Sums sum = no_sums();                                                                                \
    const int units = k / 32;                                                                            \
    _Pragma("unroll 1") for (int u = lane; u < units; u += 32) {                                         \
      GROUP(format, row, u, k, first, second, d)                                                         \
      if (next) {                                                                                        \
        GROUP(format, row + next, u, k, third, fourth, e)                                                \
        UNROLL for (int t = 0; t < TEXTS; ++t) {                                                         \
          CODES_OF(x, t, u, k)                                                                           \
          ADD_GROUP(format, first, second, d, x0, x1, s, sum.of[t].x)                                    \
          ADD_GROUP(format, third, fourth, e, x0, x1, s, sum.of[t].y)                                    \
        }                                                                                                \
      } else {                                                                                           \
        UNROLL for (int t = 0; t < TEXTS; ++t) {                                                         \
          CODES_OF(x, t, u, k)                                                                           \
          ADD_GROUP(format, first, second, d, x0, x1, s, sum.of[t].x)                                    \
        }                                                                                                \
      }                                                                                                  \
    }                                                                                                    \
    return sum;                                                                                          \
  }
#endif
FORMATS(DOT)
#if DENSE && DTYPE == 0
#define UNITS 4
static inline float dense_unit(RowBytes row, int u, float4 x) {
  const float4 w = *(const ROWS_IN float4 *)(row + 16 * u);
  return w.x * x.x + w.y * x.y + w.z * x.z + w.w * x.w;
}
#elif DENSE
#define UNITS 8
#endif
#if TEXTS == 1
#define UNROLL_UNITS _Pragma("unroll 4")
#else
#define UNROLL_UNITS _Pragma("unroll 1")
#endif
#if DENSE
static inline Sums dot_dense(const Input *x, RowBytes row, int next, int k, int lane) {
  Sums sum = no_sums();
  const int units = k / UNITS;
  UNROLL_UNITS for (int u = lane; u < units; u += 32) {
    UNROLL for (int t = 0; t < TEXTS; ++t) {
      const float4 first = x->floats[t * FLOATS + u];
#if DTYPE == 0
      sum.of[t].x += dense_unit(row, u, first);
      if (next) sum.of[t].y += dense_unit(row + next, u, first);
#else
      const float4 second = x->floats[t * FLOATS + units + u];
      sum.of[t].x += dense_unit(row, u, first, second);
      if (next) sum.of[t].y += dense_unit(row + next, u, first, second);
#endif
    }
  }
  return sum;
}
#endif

static inline Sums dot_rows(uint format, const Input *x, RowBytes row, int next, int k, int lane) {
#define OF(name, number) if (format == number) return dot_##name(x, row, next, k, lane);
  FORMATS(OF)
#if DENSE
  OF(dense, DENSE_ROWS)
#endif
  return no_sums();
}
