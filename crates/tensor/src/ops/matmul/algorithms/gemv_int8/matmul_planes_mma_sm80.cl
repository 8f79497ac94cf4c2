/* Product of some rows of A by quantised rows in planes (quant/planes.cl) on tensor cores: a step of several texts, or a short prompt.
 *
 *   C = act(alpha * A B + bias) (* value) (+ residual),   A (M, K), B (K, N) as rows of K elements, C (M, N); sums in f32
 *
 * B is the first operand of mma.sync.m16n8k16, A the second, so a tile is 16 columns of C by 8 rows. A group has TILES tiles of columns (with
 * GATED one of gates and one of values) and ROWS rows of A; each of its warps takes every WARPS'th chunk of 128 steps, and the warps' sums join in
 * local memory, in order. In a chunk lane t of a quad holds group t of 32 steps whole: one load of codes and one scale for each of its
 * columns, and the eight products of a chunk take four steps from each lane of a quad. Which steps of the sum a product's slots are makes no
 * difference as long as both operands agree:
 *
 *   product s, lane t:   slots 2t, 2t + 1, 2t + 8, 2t + 9   are steps   32 t + 4 s .. 32 t + 4 s + 3
 *
 * Weights become T in registers. Of f16 they are 64 times as large, so that scales of small ones are not subnormal.
 *
 * a         T; row i begins at a_off + i*a_rs, a multiple of 8 elements
 * blocks    rows in planes, b_rs bytes apart; with GATED the values' behind the gates'
 * bias      T (N), or (2N) with GATED; read when flags has BIAS
 * c         T; element (i, j) at c_off + i*c_rs + j
 * residual  T (M, N), dense, with RESIDUAL
 * Groups    dimension 0: ceil(n / LINES) of columns, 1: ceil(m / ROWS) of rows; 32 WARPS items. K is a multiple of 128.
 *
 * Defines: ROWS (8, 16 or 32), TILES (1, 2), ACT, GATED, RESIDUAL, QUANT (the format), FORMATS (its bit). Needs NVIDIA_CC of 80 or more.
 *
 * Design: products of weights that are dequantised in registers, as Marlin (Frantar et al. 2024).
 * Ceiling: B read once for each ROWS rows, the memory's bandwidth.
 */
#define WARPS 8
#define LINES (GATED ? 16 : 16 * TILES)
#define N_TILES (ROWS / 8)
#define CODES_OF CAT(codes_, QUANT)
#define SCALES_OF CAT(scales_, QUANT)
#define SIGNED_CODES (QUANT == 8 || QUANT == 14)
/* Local sums of a warp: ROWS by 16 * TILES, rows apart by one more. */
#define PITCH (16 * TILES + 1)

#if DTYPE == 1
#define LARGER 64.0f
#define MMA_OF "f16"
static inline uint twice(float x) {
  uint r;
  asm("{.reg .f16 h;\n cvt.rn.f16.f32 h, %1;\n mov.b32 %0, {h, h};}" : "=r"(r) : "f"(x));
  return r;
}
/* Four codes as elements: 1024 + code has the code in its last bits. */
static inline uint2 elements(uint codes, uint scale, uint offset) {
  uint2 r;
  const uint from = SIGNED_CODES ? 0x64806480u : 0x64006400u, bytes = SIGNED_CODES ? codes ^ 0x80808080u : codes;
  asm("{.reg .b32 p, q;\n prmt.b32 p, %2, 0x64646464, 0x4140;\n prmt.b32 q, %2, 0x64646464, 0x4342;\n"
      " sub.rn.f16x2 p, p, %3;\n sub.rn.f16x2 q, q, %3;\n fma.rn.f16x2 %0, p, %4, %5;\n fma.rn.f16x2 %1, q, %4, %5;}"
      : "=r"(r.x), "=r"(r.y)
      : "r"(bytes), "r"(from), "r"(scale), "r"(offset));
  return r;
}
typedef uint Factor;
#define FACTOR(x) twice(x)
#else
#define LARGER 1.0f
#define MMA_OF "bf16"
static inline uint2 elements(uint codes, float scale, float offset) {
#if SIGNED_CODES
  const float4 v = convert_float4(as_char4(codes)) * scale + offset;
#else
  const float4 v = convert_float4(as_uchar4(codes)) * scale + offset;
#endif
  uint2 r;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r.x) : "f"(v.x), "f"(v.y));
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(r.y) : "f"(v.z), "f"(v.w));
  return r;
}
typedef float Factor;
#define FACTOR(x) (x)
#endif

static inline void mma(float4 *c, uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_OF "." MMA_OF ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c->x), "+f"(c->y), "+f"(c->z), "+f"(c->w)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

/* Group u of a row, ready for elements(): its codes, and the factors of both halves. */
typedef struct {
  uint4 first, second;
  Factor scale[2], offset;
} Group;
static inline Group group_of(RowBytes row, int u, int k) {
  Group g;
  CODES_OF(row, u, k, &g.first, &g.second);
  const float3 d = SCALES_OF(row, u, k) * LARGER;
  g.scale[0] = FACTOR(d.x), g.scale[1] = FACTOR(d.y), g.offset = FACTOR(d.z);
  return g;
}
/* Elements 8 q .. 8 q + 7, four and four. */
#define EIGHT(g, q, low, high)                                                                     \
  const uint4 CAT(w_, low) = (q) < 2 ? (g).first : (g).second;                                     \
  const uint2 low = elements((q) & 1 ? CAT(w_, low).z : CAT(w_, low).x, (g).scale[(q) / 2], (g).offset); \
  const uint2 high = elements((q) & 1 ? CAT(w_, low).w : CAT(w_, low).y, (g).scale[(q) / 2], (g).offset)

__kernel __attribute__((reqd_work_group_size(32 * WARPS, 1, 1))) void matmul_planes(
    __global const T *restrict a, __global const uchar *restrict blocks, __global const T *restrict bias, __global T *restrict c, long a_off,
    long c_off, int m, int n, int k, long a_rs, long b_rs, long c_rs, float alpha, int flags RESIDUAL_ARG) {
  __local float sums[WARPS * ROWS * PITCH];
  const int item = get_local_id(0), warp = item / 32, g = item % 32 / 4, t = item % 4;
  const int n0 = get_group_id(0) * LINES, m0 = get_group_id(1) * ROWS, last = (GATED ? 2 : 1) * n - 1;
  RowBytes lines[2 * TILES];
  UNROLL for (int i = 0; i < 2 * TILES; ++i) {
    const int line = GATED ? (i / 2) * n + min(n0 + i % 2 * 8 + g, n - 1) : n0 + i * 8 + g;
    lines[i] = blocks + min(line, last) * b_rs;
  }
  __global const uint4 *rows[N_TILES];
  UNROLL for (int j = 0; j < N_TILES; ++j) rows[j] = (__global const uint4 *)(a + a_off + min(m0 + 8 * j + g, m - 1) * a_rs);

  float4 acc[TILES][N_TILES];
  UNROLL for (int i = 0; i < TILES; ++i) {
    UNROLL for (int j = 0; j < N_TILES; ++j) acc[i][j] = (float4)(0.0f);
  }
  for (int chunk = warp; chunk < k / 128; chunk += WARPS) {
    const int u = 4 * chunk + t;
    Group groups[2 * TILES];
    UNROLL for (int i = 0; i < 2 * TILES; ++i) groups[i] = group_of(lines[i], u, k);
    UNROLL for (int q = 0; q < 4; ++q) {
      uint4 x[N_TILES];
      UNROLL for (int j = 0; j < N_TILES; ++j) x[j] = rows[j][4 * u + q];
      UNROLL for (int i = 0; i < TILES; ++i) {
        EIGHT(groups[2 * i], q, low, high);
        EIGHT(groups[2 * i + 1], q, low_8, high_8);
        const uint4 first = (uint4)(low.x, low_8.x, low.y, low_8.y), second = (uint4)(high.x, high_8.x, high.y, high_8.y);
        UNROLL for (int j = 0; j < N_TILES; ++j) {
          mma(&acc[i][j], first, x[j].xy);
          mma(&acc[i][j], second, x[j].zw);
        }
      }
    }
  }

  /* sums[warp][row of A][column] */
  UNROLL for (int i = 0; i < TILES; ++i) {
    UNROLL for (int j = 0; j < N_TILES; ++j) {
      __local float *to = sums + (warp * ROWS + 8 * j + 2 * t) * PITCH + 16 * i + g;
      to[0] = acc[i][j].x, to[PITCH] = acc[i][j].y, to[8] = acc[i][j].z, to[PITCH + 8] = acc[i][j].w;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  c += c_off;
  alpha /= LARGER;
  for (int e = item; e < ROWS * LINES; e += 32 * WARPS) {
    const int row = e / LINES, of = e % LINES, column = n0 + of;
    if (m0 + row >= m || column >= n) continue;
    float sum = 0.0f, value = 0.0f;
    UNROLL for (int w = 0; w < WARPS; ++w) {
      __local const float *from = sums + (w * ROWS + row) * PITCH + of;
      sum += from[0];
      if (GATED) value += from[16];
    }
    const ulong at = (m0 + row) * c_rs + column;
    END_ELEMENT(sum, value, m0 + row, column, at);
  }
}
