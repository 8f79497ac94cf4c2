/* Shared parts of attention_tile.cl and attention_tile_bwd.cl: tiles in local memory, each computed by a grid of items.
 *
 * Rows: the G = H / KH query heads of a key head form one list, row = t*G + g, as in attention_lanes.cl. Items form TY rows and TX = 8 columns;
 * item (ty, tx) owns rows ty + i*TY of a tile. The rows of a tile are an odd number of float4 apart, so that eight rows that are read at once
 * are in different banks.
 *
 * Design: FlashAttention-2 (Dao 2023, arXiv:2307.08691) with register tiles as in "Efficient GEMM in CUDA" (CUTLASS).
 * Defines: D head size (1..256), GROUP (G), CAUSAL, WINDOW, DOCS and SOFTCAP (attention_lanes.cl), DROPOUT, DTYPE, WG (64 or 128), VEC (four elements
 * of q, k, v and the gradients can be moved at once: D, strides and starts are multiples of 4).
 */
#if WG < 8
#undef WG
#define WG 64
#endif
#ifndef D
#define D 64
#endif
#ifndef CAUSAL
#define CAUSAL 0
#endif
#ifndef DROPOUT
#define DROPOUT 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef DOCS
#define DOCS 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0
#endif
#ifndef GROUP
#define GROUP 1
#endif
#ifndef VEC
#define VEC 0
#endif
#define UNROLL _Pragma("unroll")
#define TX 8
#define TY (WG / TX)
#define CHUNKS ((D + 31) / 32)
#define ROW4 (CHUNKS * 8 + 1)
#define D4 ((D + 3) / 4)
/* Score of a masked key. */
#define NEG (-FLT_MAX)
#define LOG2_E 1.44269504f

/* Element (row, d) of a tile with rows of ROW4 float4. */
#define TILE_AT(tile, row, d) ((__local float *)(tile))[(row) * ROW4 * 4 + (d)]

/* Returns the query t of row r of the list, and writes its head g within the group. */
static inline uint row_of(uint r, uint *g) {
  const uint t = r / GROUP;
  *g = r - t * GROUP;
  return t;
}

/* Loads n rows of x into a tile of `size` rows, with zeros beyond n and D; row i starts at x + the offset of row r0 + i. */
#define LOAD_TILE(tile, size, n, from)                                                                                 \
  for (int e = get_local_id(0); e < (size) * CHUNKS * 32 / (VEC ? 4 : 1); e += WG) {                                   \
    const int row = e / (CHUNKS * 32 / (VEC ? 4 : 1)), d = (e - row * (CHUNKS * 32 / (VEC ? 4 : 1))) * (VEC ? 4 : 1);  \
    const int inside = row < (n) && d < D;                                                                             \
    if (VEC) (tile)[row * ROW4 + d / 4] = inside ? load4(from) : (float4)(0.0f);                                       \
    else TILE_AT(tile, row, d) = inside ? LD(from, 0) : 0.0f;                                                          \
  }
/* Loads queries: rows r0 + i of the list. */
static inline void load_queries(__local float4 *tile, int size, __global const T *x, uint r0, int n, ulong xh, ulong xt) {
  LOAD_TILE(tile, size, n, x + (r0 + row) % GROUP * xh + (r0 + row) / GROUP * xt + d)
}
/* Loads keys s0 + i. */
static inline void load_keys(__local float4 *tile, int size, __global const T *x, int s0, int n, ulong xt) {
  LOAD_TILE(tile, size, n, x + (ulong)(s0 + row) * xt + d)
}

/* Computes s[i][j] = row y + i*TY of a times row x + j*TX of b. */
#define DOT_TILE(s, ni, nj, a, b, y, x)                                                                                \
  UNROLL for (int i = 0; i < ni; ++i)                                                                                  \
    UNROLL for (int j = 0; j < nj; ++j) s[i][j] = 0.0f;                                                                       \
  for (int d = 0; d < D4; ++d) {                                                                                       \
    float4 u[ni], w[nj];                                                                                               \
    UNROLL for (int i = 0; i < ni; ++i) u[i] = (a)[((y) + i * TY) * ROW4 + d];                              \
    UNROLL for (int j = 0; j < nj; ++j) w[j] = (b)[((x) + j * TX) * ROW4 + d];                              \
    UNROLL for (int i = 0; i < ni; ++i) UNROLL for (int j = 0; j < nj; ++j) s[i][j] =            \
        fma(u[i].x, w[j].x, fma(u[i].y, w[j].y, fma(u[i].z, w[j].z, fma(u[i].w, w[j].w, s[i][j]))));                   \
  }

/* Computes acc[i][c] += sum over k < nk of p[y + i*TY][k] * rows[k][4x + 32c ..]; p has rows of PS floats. */
#define ACC_TILE(acc, ni, p, ps, rows, nk, y, x)                                                                       \
  for (int k = 0; k < nk; ++k) {                                                                                       \
    float4 w[CHUNKS];                                                                                                  \
    UNROLL for (int c = 0; c < CHUNKS; ++c) w[c] = (rows)[k * ROW4 + (x) + 8 * c];                          \
    UNROLL for (int i = 0; i < ni; ++i) {                                                                   \
      const float u = (p)[((y) + i * TY) * (ps) + k];                                                                  \
      UNROLL for (int c = 0; c < CHUNKS; ++c) acc[i][c] = fma((float4)(u), w[c], acc[i][c]);                \
    }                                                                                                                  \
  }

/* Stores the four columns from 4x + 32c on of a row. */
#define STORE_ROW(p, row, by, x)                                                                                       \
  UNROLL for (int c = 0; c < CHUNKS; ++c) {                                                                            \
    const float4 w = (row)[c] * (by);                                                                                  \
    const int d = 4 * (x) + 32 * c;                                                                                    \
    if (VEC) {                                                                                                         \
      if (d < D) store4((p) + d, w);                                                                                   \
      continue;                                                                                                        \
    }                                                                                                                  \
    if (d < D) ST((p), d, w.x);                                                                                        \
    if (d + 1 < D) ST((p), d + 1, w.y);                                                                                \
    if (d + 2 < D) ST((p), d + 2, w.z);                                                                                \
    if (d + 3 < D) ST((p), d + 3, w.w);                                                                                \
  }

#if DROPOUT
#define DROP_ARGS COUNTER_ARG, ulong seed, ulong site, uint drop, float keep
#define DROP_START const ulong offset = STREAM_START(site);
/* Writes the dropout factor of each probability (row r0 + i, key s0 + j) to m[i * si + j * sj]; s0 % 4 == 0. */
static inline void drop_tile(__local float *m, int si, int sj, int ni, int nj, uint r0, uint s0, ulong head,
                      ulong t_len, uint s_len, ulong seed, ulong offset, uint drop, float keep) {
  for (int e = get_local_id(0); e < ni * nj / 4; e += WG) {
    const int i = e / (nj / 4), j = (e - i * (nj / 4)) * 4;
    uint g, t = row_of(r0 + i, &g);
    uint c[4];
    philox_counter(c, offset, ((head + g) * t_len + t) * (ulong)((s_len + 3) / 4) + (s0 + j) / 4);
    philox(c, (uint2)((uint)seed, (uint)(seed >> 32)));
    for (int w = 0; w < 4; ++w) m[i * si + (j + w) * sj] = c[w] < drop ? 0.0f : keep;
  }
}
#else
#define DROP_ARGS
#define DROP_START
#endif

/* Converts the product of a query and a key to a score in powers of two. SLOPE is the derivative with respect to that product, over LOG2_E. */
#if SOFTCAP
#define CAP_ARG , float cap
#define SCORE(dot) ((cap * LOG2_E) * tanh((dot) * (scale / cap)))
static inline float softcap_slope(float score, float scale, float cap) {
  const float y = score / (cap * LOG2_E);
  return scale * (1.0f - y * y);
}
#define SLOPE(score) softcap_slope(score, scale, cap)
#else
#define CAP_ARG
#define SCORE(dot) ((dot) * (scale * LOG2_E))
#define SLOPE(score) scale
#endif

/* Whether a row whose last key is `last` does not see key s. */
#if WINDOW
#define UNSEEN(s, last) ((s) > (last) || (s) <= (last) - WINDOW)
#else
#define UNSEEN(s, last) ((s) > (last))
#endif

/* Returns the first key that row r0 of the list, and thus any later row, sees, rounded down to a tile of `size`. */
static inline int first_key(uint r0, uint t_len, uint s_len, int size) {
#if WINDOW
  return max(0, (int)(r0 / GROUP) + (int)s_len - (int)t_len + 1 - WINDOW) / size * size;
#else
  return 0;
#endif
}

/* Returns the last key that row r sees; -1 past the end. */
static inline int last_key(uint r, uint rows, uint t_len, uint s_len) {
#if CAUSAL
  return r < rows ? (int)(r / GROUP) + (int)s_len - (int)t_len : -1;
#else
  return r < rows ? (int)s_len - 1 : -1;
#endif
}

/* Documents, as in attention_lanes.cl. FIRST_OF_DOC is the first key of the document of row r of the list; rows past the end have the last row's. */
#if DOCS
#define DOC_ARG , __global const uint *docs
#define DOC_START docs += b * t_len;
#define FIRST_OF_DOC(r) first_of_doc(r, rows, t_len, s_len, docs)
#define OUT_OF_DOC(s, first) ((s) < (first))
static inline int first_of_doc(uint r, uint rows, uint t_len, uint s_len, __global const uint *docs) {
  const uint t = min(r, rows - 1) / GROUP;
  return (int)t + (int)s_len - (int)t_len - (int)docs[t];
}
#else
#define DOC_ARG
#define DOC_START
#define FIRST_OF_DOC(r) 0
#define OUT_OF_DOC(s, first) 0
#endif
