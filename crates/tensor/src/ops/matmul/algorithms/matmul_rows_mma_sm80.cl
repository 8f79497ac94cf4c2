/* Product of few rows of A by the lines of B on tensor cores, with B along k: a decoding step of several texts, a short prompt, any product with
 * few rows or few columns. B is of T, or of quantized rows in planes (quant/planes.cl).
 *
 *   C = act(alpha * A B + bias) (* value) (+ C) (+ residual),   A (M, K), B (K, N), C (M, N); sums in f32
 *
 * With SORTED each tile of rows has its own matrix (matmul_gemv_ends.cl). B is the first operand of mma.sync.m16n8k16 and A the second, so a
 * tile is 16 columns of C by 8 rows. A warp has TILES tiles of columns (with GATED of 8 gates and their 8 values) and all ROWS rows of A. ACROSS
 * warps are adjacent along the columns. The WARPS / ACROSS sets of them process chunks of 128 steps in turn. Dimension 2 of the groups splits
 * the sum further.
 *
 * A goes through local memory, SLICE chunks at a time, in the order in which lanes read it. In a chunk, lane t of a quad holds 32 steps of each
 * of its columns, in eight pieces of four. The mapping of steps to an instruction's slots is free as long as both operands agree:
 *
 *   instruction s of a chunk, lane t: slots 2t, 2t + 1, 2t + 8, 2t + 9     are steps
 *     of planes (lane t has group t of 32 steps whole: one scale)          32 t + 4 s .. 32 t + 4 s + 3
 *     of T (a quad reads 64 bytes that follow each other)                  32 (s / 2) + 8 t + 4 (s % 2) .. + 3
 *
 * Quantized weights become T in registers. In f16 they are 64 times as large, so that scales of small weights are not subnormal. PIPELINED: a
 * chunk of B is loaded to registers while the one before is multiplied, if the sums leave enough registers. Prefetches to the L2 cache four
 * chunks ahead made products 20 to 30 % slower on an H200. A ring of chunks of A with a barrier for each had the same effect.
 *
 * a         T; row i starts at a_off + i*a_rs, a multiple of 8 elements
 * b         lines b_rs bytes apart from byte b_off on, both multiples of 16; with GATED the values' lines follow the gates'
 * bias      T (N), or (2N) with GATED; read when flags has BIAS. With SWAPPED it has one element per row of A.
 * c         T; element (i, j) at c_off + i*c_rs + j*c_cs
 * part      float (splits, 1 + GATED, M, N), with SPLIT: sums of k_part steps. The last group of a tile adds them in order.
 * residual  T, elements at the positions of C, with RESIDUAL
 * tickets   int, with SPLIT: one for each tile of C, 0 before and after
 * Groups    dimension 0: ceil(m / ROWS) of rows, 1: ceil(n / LINES) of columns, 2: splits, of k_part steps each, a multiple of 128; 32 WARPS
 *           items. K is a multiple of 8, with planes of 128. With SORTED, dimension 0 counts parts of ROWS rows of tiles, and nothing is split.
 *
 * Defines: ROWS (8, 16 or 32), TILES (1, 2), ACROSS (1, 2, 4, 8; 32 rows from 2 on), SPLIT, ACT, GATED, RESIDUAL, SWAPPED, QUANT. Needs an
 * NVIDIA_CC of 80 or more.
 * QUANT 1: B is quantized, in planes of FORMAT; 0: it is of T.
 *
 * Design: products of weights that are dequantized in registers, as in Marlin (Frantar et al. 2024); split-K with tickets (tickets.cl).
 * Ceiling: memory bandwidth, with B read once for each ROWS rows.
 */
#ifndef SPLIT
#define SPLIT 0
#endif
#ifndef PIPELINED
#define PIPELINED (TILES == 1 || QUANT && ROWS < 32)
#endif
#define WARPS 8
#define SETS (WARPS / ACROSS)
/* Columns of a warp's tiles and of C, and columns of C per group. */
#define TILED (16 * TILES)
#define COLUMNS (GATED ? TILED / 2 : TILED)
#define LINES (ACROSS * COLUMNS)
#define N_TILES (ROWS / 8)
/* Position of the sum of a column of C among those of tiles; its value's sum is 8 further. */
#define TILED_OF(column) (GATED ? (column) / 8 * 16 + (column) % 8 : (column))
/* Chunks of A in local memory: 32 KB. */
#define SLICE (128 / ROWS)
/* Pieces of 8 elements that an item loads to local memory, and the number at a time, which must fit in registers together with the sums. */
#define PIECES 8
#define AT_ONCE (ROWS > 16 ? 4 : 8)
/* Row and chunk of an item's piece e, relative to its first piece: 16 rows at a time, or several chunks. */
#define ROW_OF(e) (ROWS > 16 ? 16 * ((e) % (ROWS / 16)) : 0)
#define CHUNK_OF(e) (ROWS > 16 ? (e) / (ROWS / 16) : (e) * (16 / ROWS))
/* Sums of a set of warps in local memory: ROWS rows, PITCH apart. */
#define PITCH (ACROSS * TILED + 1)
#if SPLIT
#define TICKETS_ARG , __global int *tickets
#else
#define TICKETS_ARG
#endif

#if DTYPE == 1
#define MMA_OF "f16"
#else
#define MMA_OF "bf16"
#endif
static inline void mma(float4 *c, uint4 a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_OF "." MMA_OF ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c->x), "+f"(c->y), "+f"(c->z), "+f"(c->w)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
#if QUANT
typedef RowBytes Line;
#define SIGNED_CODES CAT(SIGNED_, FORMAT)
#if DTYPE == 1
#define LARGER 64.0f
static inline uint twice(float x) {
  uint r;
  asm("{.reg .f16 h;\n cvt.rn.f16.f32 h, %1;\n mov.b32 %0, {h, h};}" : "=r"(r) : "f"(x));
  return r;
}
/* Converts four codes to elements: 1024 + code has the code in its low bits. */
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
/* Lane t's part of a chunk of a line: its codes, and the factors of both halves. */
typedef struct {
  uint4 first, second;
  Factor scale[2], offset;
} Steps;
static inline Stored stored_of(Line line, int chunk, int t, int k, int k_last) { return CAT(stored_, FORMAT)(line, 4 * chunk + t, k); }
static inline Steps steps_of(Stored stored, int chunk, int t) {
  Steps g;
  CAT(codes_, FORMAT)(stored, &g.first, &g.second);
  const float3 d = CAT(scales_, FORMAT)(stored, 4 * chunk + t) * LARGER;
  g.scale[0] = FACTOR(d.x), g.scale[1] = FACTOR(d.y), g.offset = FACTOR(d.z);
  return g;
}
/* Elements that instructions 2 q and 2 q + 1 multiply. */
#define EIGHT(g, q, low, high)                                                                           \
  const uint4 CAT(w_, low) = (q) < 2 ? (g).first : (g).second;                                           \
  const uint2 low = elements((q) & 1 ? CAT(w_, low).z : CAT(w_, low).x, (g).scale[(q) / 2], (g).offset); \
  const uint2 high = elements((q) & 1 ? CAT(w_, low).w : CAT(w_, low).y, (g).scale[(q) / 2], (g).offset)
/* Piece p, of 8 steps, of a chunk: instructions 2 Q and 2 Q + 1 of lane T. */
#define Q_OF(p) ((p) % 4)
#define T_OF(p) ((p) / 4)
#else
#define LARGER 1.0f
typedef __global const uchar *Line;
typedef struct {
  uint4 w[4];
} Stored;
typedef Stored Steps;
#define steps_of(stored, chunk, t) (stored)
static inline Stored stored_of(Line line, int chunk, int t, int k, int k_last) {
  Stored g;
  UNROLL for (int q = 0; q < 4; ++q) {
    const int at = 128 * chunk + 32 * q + 8 * t;
    g.w[q] = at < k_last ? *(__global const uint4 *)(line + 2 * at) : (uint4)(0u);
  }
  return g;
}
#define EIGHT(g, q, low, high) const uint2 low = (g).w[q].xy, high = (g).w[q].zw
#define Q_OF(p) ((p) / 4)
#define T_OF(p) ((p) % 4)
#endif

__kernel __attribute__((reqd_work_group_size(32 * WARPS, 1, 1))) void matmul_rows(
    __global const T *restrict a, __global const uchar *restrict b, __global const T *restrict bias, __global T *restrict c,
    __global float *restrict part, long a_off, long b_off, long c_off, int m, int n, int k, long a_rs, long b_rs, long c_rs, long c_cs, int k_part,
    float alpha, int flags RESIDUAL_ARG SORTED_ARGS TICKETS_ARG) {
  /* xs[chunk][q][tile of rows][lane], later sums[set][row][column of a tile] */
  __local uint4 xs[SETS * ROWS * PITCH / 4 + 1 > SLICE * ROWS * 16 ? SETS * ROWS * PITCH / 4 + 1 : SLICE * ROWS * 16];
  __local float *sums = (__local float *)xs;
  const int item = get_local_id(0), warp = item / 32, lane = item % 32, g = lane / 4, t = lane % 4;
  const int across = warp % ACROSS, set = warp / ACROSS;
#if SORTED
  const int tile = get_group_id(0) / (TILE_ROWS / ROWS), n0 = get_group_id(1) * LINES, last = (GATED ? 2 : 1) * n - 1;
  const uint matrix = tiles[2 * tile];
  if (matrix == ~0u) return;
  const int tile_0 = tiles[2 * tile + 1], m0 = tile_0 + get_group_id(0) % (TILE_ROWS / ROWS) * ROWS;
  m = min(tile_0 + TILE_ROWS, matrix < (uint)matrices ? (int)offsets[matrix + 1] : m);
  if (m0 >= m) return;
  if (matrix == (uint)matrices) {
    for (int e = item; e < ROWS * LINES; e += 32 * WARPS) {
      const int row = m0 + e / LINES, column = n0 + e % LINES;
      if (row < m && column < n) ST(c, c_off + row * c_rs + column * c_cs, 0.0f);
    }
    return;
  }
  b += (long)matrix * (last + 1) * b_rs;
#else
  const int m0 = get_group_id(0) * ROWS, n0 = get_group_id(1) * LINES, last = (GATED ? 2 : 1) * n - 1;
#endif
  const int k_first = SPLIT ? get_group_id(2) * k_part : 0, k_last = SPLIT ? min(k, k_first + k_part) : k;
  Line lines[2 * TILES];
  UNROLL for (int i = 0; i < 2 * TILES; ++i) {
    const int column = n0 + across * COLUMNS + (GATED ? i / 2 : i) * 8 + g;
    const int line = GATED ? (i % 2) * n + min(column, n - 1) : column;
    lines[i] = b + b_off + min(line, last) * b_rs;
  }
  const int chunks = (k_last + 127) / 128;
  const int piece = item % 16, row_0 = item / 16 % ROWS, chunk_0 = item / 16 / ROWS;
  __local uint4 *to = xs + ((chunk_0 * 4 + Q_OF(piece)) * N_TILES + row_0 / 8) * 32 + row_0 % 8 * 4 + T_OF(piece);
  /* The rows of A that the item loads. */
  __global const T *row_of_a[ROWS > 16 ? ROWS / 16 : 1];
  UNROLL for (int i = 0; i < (ROWS > 16 ? ROWS / 16 : 1); ++i) {
    const int row = m0 + row_0 + 16 * i;
    row_of_a[i] = row < m ? a + a_off + LINE_OF_A(row) * a_rs : 0;
  }

  float4 acc[TILES][N_TILES];
  UNROLL for (int i = 0; i < TILES; ++i) {
    UNROLL for (int j = 0; j < N_TILES; ++j) acc[i][j] = (float4)(0.0f);
  }
#if PIPELINED
  Stored next[2 * TILES];
  if (k_first / 128 + set < chunks) {
    UNROLL for (int i = 0; i < 2 * TILES; ++i) next[i] = stored_of(lines[i], k_first / 128 + set, t, k, k_last);
  }
#endif
  for (int first = k_first / 128; first < chunks; first += SLICE) {
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL for (int e0 = 0; e0 < PIECES; e0 += AT_ONCE) {
      uint4 pieces[AT_ONCE];
      UNROLL for (int e = 0; e < AT_ONCE; ++e) {
        const int at = 128 * (first + chunk_0 + CHUNK_OF(e0 + e)) + 8 * piece;
        __global const T *row = row_of_a[ROW_OF(e) / 16];
        pieces[e] = row && at < k_last ? *(__global const uint4 *)(row + at) : (uint4)(0u);
      }
      UNROLL for (int e = 0; e < AT_ONCE; ++e) to[CHUNK_OF(e0 + e) * 4 * N_TILES * 32 + ROW_OF(e) * 4] = pieces[e];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int here = min(SLICE, chunks - first);
    for (int i0 = set; i0 < here; i0 += SETS) {
      Steps steps[2 * TILES];
#if PIPELINED
      UNROLL for (int i = 0; i < 2 * TILES; ++i) steps[i] = steps_of(next[i], first + i0, t);
      if (first + i0 + SETS < chunks) {
        UNROLL for (int i = 0; i < 2 * TILES; ++i) next[i] = stored_of(lines[i], first + i0 + SETS, t, k, k_last);
      }
#else
      UNROLL for (int i = 0; i < 2 * TILES; ++i) steps[i] = steps_of(stored_of(lines[i], first + i0, t, k, k_last), first + i0, t);
#endif
      __local const uint4 *from = xs + i0 * 4 * N_TILES * 32 + lane;
      UNROLL for (int q = 0; q < 4; ++q) {
        uint4 x[N_TILES];
        UNROLL for (int j = 0; j < N_TILES; ++j) x[j] = from[(q * N_TILES + j) * 32];
        UNROLL for (int i = 0; i < TILES; ++i) {
          EIGHT(steps[2 * i], q, low, high);
          EIGHT(steps[2 * i + 1], q, low_8, high_8);
          const uint4 one = (uint4)(low.x, low_8.x, low.y, low_8.y), two = (uint4)(high.x, high_8.x, high.y, high_8.y);
          UNROLL for (int j = 0; j < N_TILES; ++j) {
            mma(&acc[i][j], one, x[j].xy);
            mma(&acc[i][j], two, x[j].zw);
          }
        }
      }
    }
  }

  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL for (int i = 0; i < TILES; ++i) {
    UNROLL for (int j = 0; j < N_TILES; ++j) {
      __local float *to = sums + (set * ROWS + 8 * j + 2 * t) * PITCH + across * TILED + 16 * i + g;
      to[0] = acc[i][j].x, to[PITCH] = acc[i][j].y, to[8] = acc[i][j].z, to[PITCH + 8] = acc[i][j].w;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  c += c_off;
  alpha /= LARGER;
#if SPLIT
  __local int is_last;
  const ulong plane = (ulong)m * n;
#endif
  for (int e = item; e < ROWS * LINES; e += 32 * WARPS) {
    const int row = e / LINES, of = e % LINES, column = n0 + of;
    if (m0 + row >= m || column >= n) continue;
    float sum = 0.0f, value = 0.0f;
    UNROLL for (int s = 0; s < SETS; ++s) {
      __local const float *from = sums + (s * ROWS + row) * PITCH + TILED_OF(of);
      sum += from[0];
      if (GATED) value += from[8];
    }
#if SPLIT
    __global float *to = part + get_group_id(2) * PARTS * plane + (ulong)(m0 + row) * n + column;
    to[0] = sum;
    if (GATED) to[plane] = value;
#else
    const ulong at = (m0 + row) * c_rs + column * c_cs;
    END_ELEMENT(sum, value, m0 + row, column, at);
#endif
  }
#if SPLIT
  barrier(CLK_GLOBAL_MEM_FENCE);
  if (item == 0) {
    __global int *turn = tickets + get_group_id(1) * get_num_groups(0) + get_group_id(0);
    is_last = turn_taken(turn) == (int)get_num_groups(2) - 1;
    if (is_last) *turn = 0;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!is_last) return;
  for (int e = item; e < ROWS * LINES; e += 32 * WARPS) {
    const int row = m0 + e / LINES, column = n0 + e % LINES;
    if (row >= m || column >= n) continue;
    __global const float *from = part + (ulong)row * n + column;
    float sum = 0.0f, value = 0.0f;
    _Pragma("unroll 8") for (int s = 0; s < (int)get_num_groups(2); ++s) {
      sum += part_1_of(from + s * PARTS * plane);
      if (GATED) value += part_1_of(from + (s * PARTS + 1) * plane);
    }
    const ulong at = row * c_rs + column * c_cs;
    END_ELEMENT(sum, value, row, column, at);
  }
#endif
}
