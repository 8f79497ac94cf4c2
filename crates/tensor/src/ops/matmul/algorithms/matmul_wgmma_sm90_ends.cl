/* What surrounds the main loop of matmul_wgmma_sm90.cl, whose arguments and defines these are: sizes of blocks, the steps of an
 * epilogue, and the kernels that add parts up.
 */
#define UNROLL _Pragma("unroll")
#if PP
#define BM (64 * MT)
#else
#define BM (128 * MT)
#endif
#define BK (DTYPE == 0 ? 32 : 64) /* 128 bytes */
#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
#if DTYPE == 0
#define WGMMA_DEPTH "8"
#define WGMMA_TAIL ""
#elif A_ALONG_K && B_ALONG_K
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 0, 0"
#elif A_ALONG_K
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 0, 1"
#elif B_ALONG_K
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 1, 0"
#else
#define WGMMA_DEPTH "16"
#define WGMMA_TAIL ", 1, 1"
#endif
#define WGMMA CAT(WGMMA_N, BN)
/* The epilogue stores eight neighbours of a row at a time, STEPS times for a block of 64 rows; it may read as many of C or aux. */
#define STEPS (BN / 16)
#ifndef EARLY
#define EARLY 4
#endif
#define READS (ADD_C || RESIDUAL || GELU_GRAD)
#define READ_FROM (ADD_C ? c : aux)
/* Step s of a row's epilogue: where it starts in the tile's row, and whether that is inside. */
#define AT(s) ((s) / 2 * 32)
#define INSIDE(s) (((s) % 2 ? row0 + 8 : row0) < m && col0 + AT(s) < n)
#if SPLIT == 3
#define SUM8 add8
#else
#define SUM8 store8
#endif
/* Blocks of 64 columns that a warp of three adds up. */
#define COLUMN_BLOCKS ((BN / 64 + 2) / 3)
#define READ(s) load16(READ_FROM + ((s) % 2 ? below : above) + AT(s), INSIDE(s))
#if C_LANES == 1
#define load_pair load_ones
#define store_pair store_ones
#else
#define load_pair(from, left) load_word(from, (left) > 0)
#define store_pair(to, left, v) store_word(to, (left) > 0, v)
#endif
#if STAGED
#if STAGED == 1
#error "a box is asked for while the one before it is on its way out: two at least"
#endif
#define BOX_BYTES (BOX_ROWS * 128)
#define STAGING_BYTES (8 * STAGED * BOX_BYTES)
/* wgmma leaves a warp 16 rows of a block: HALVES boxes. Those of one column of boxes follow each other, for they share a bias. */
#define HALVES (16 / BOX_ROWS)
#define COLUMN (MT * HALVES)
#define BOXES (BN / 64 * COLUMN)
/* Boxes that leave for one of the tile. */
#define SENT (1 + GELU)
#define BOX(b, o) (boxes + ((b) * SENT + (o)) % STAGED * BOX_BYTES)
#define BOX_X(b) (work.bn * BN + (b) / COLUMN * 64)
#define BOX_Y(b) (work.bm * BM + (row_block + (b) / HALVES % MT) * 64 + warp * 16 + (b) % HALVES * 8)
/* How often a tile fills the place of box b, and which time b is, counted over `tiles` before it. */
#define FILLS(b) ((BOXES - (b) % STAGED + STAGED - 1) / STAGED)
#define FILL(b) ((b) / STAGED + FILLS(b) * tiles)
/* Where this warp's boxes lie, and the barriers that count what arrives there: made where they are used, for registers are short. */
#define BOXES_OF(id) (base + STAGES * STAGE_BYTES + ((id) / 32 - 4) * (STAGED * BOX_BYTES))
#define LOADED_OF(id) (empty + STAGES * 8 + ((id) / 32 - 4) * (STAGED * 8))
#define ASK(b) ask(BOX(b, 0), ADD_C ? map_c : map_c + 128, BOX_X(b), BOX_Y(b), loaded + (b) % STAGED * 8, BOX_BYTES)
/* Four matrices of 8 by 8 at a time: 16 rows by 16 columns or 8 by 32. Step t's addresses are those of step 0, some bits changed. */
#define MATRICES (BOX_ROWS / 4)
#define STEP(t) ((t) * (HALVES == 1 ? 32 : 64))
#else
#define STAGING_BYTES 0
#endif

/* Descriptors of blocks in local memory: swizzle 128 bytes, eight rows 1024 apart; blocks of 64 rows of m or n follow each
 * other where k is not contiguous. */
#define ALONG_K_BITS ((ulong)1 << 62 | (ulong)(1024 >> 4) << 32 | (ulong)1 << 16)
#define ACROSS_K_BITS ((ulong)1 << 62 | (ulong)(1024 >> 4) << 32 | (ulong)(BK * 128 >> 4) << 16)

/* What becomes of two neighbours' sum. `pair` is that of aux or C there; with GELU, what aux gets. */
#if ADD_C || RESIDUAL
#define FINISH(sum, pair) sum += unpack(pair)
#elif GELU_GRAD
#define FINISH(sum, pair)                                                                                              \
  const float2 at_x = unpack(pair);                                                                                    \
  sum.x *= gelu_grad(at_x.x), sum.y *= gelu_grad(at_x.y)
#elif GELU
/* Of the rounded value, which is what the backward sees. */
#define FINISH(sum, pair)                                                                                              \
  pair = pack(sum.x, sum.y);                                                                                           \
  sum = unpack(pair);                                                                                                  \
  sum.x = gelu(sum.x), sum.y = gelu(sum.y)
#else
#define FINISH(sum, pair)
#endif

#if DTYPE != 0
__attribute__((reqd_work_group_size(256, 1, 1)))
__kernel void matmul_wgmma_sum(__global const float *part, __global const T *bias, __global T *c, const ulong count,
                               const int n, const int splits, const float alpha) {
  const size_t i = get_global_id(0) * 4;
  if (i >= count) return;
  float4 y = (float4)(0.0f);
  for (int s = 0; s < splits; s++) y += *(__global const float4 *)(part + s * count + i);
  y *= alpha;
#if BIAS
  const size_t col = i % (size_t)n;
  y += (float4)(unpack(*(__global const uint *)(bias + col)), unpack(*(__global const uint *)(bias + col + 2)));
#endif
#if ADD_C
  y += (float4)(unpack(*(__global const uint *)(c + i)), unpack(*(__global const uint *)(c + i + 2)));
#endif
  *(__global uint2 *)(c + i) = (uint2)(pack(y.x, y.y), pack(y.z, y.w));
}
#endif

#if COLUMN_SUMS
/* Slices that the items of a group's column share. */
#define SLICES 8

__attribute__((reqd_work_group_size(32, SLICES, 1)))
__kernel void matmul_wgmma_columns(__global const float *sums, __global T *out, const int n, const int parts) {
  __local float shares[SLICES][32];
  const int col = get_global_id(0), lane = get_local_id(0), slice = get_local_id(1);
  float sum = 0.0f;
  if (col < n) {
#pragma unroll 8
    for (int s = slice; s < parts; s += SLICES) sum += sums[(size_t)s * n + col];
  }
  shares[slice][lane] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (slice > 0 || col >= n) return;
  for (int s = 1; s < SLICES; s++) sum += shares[s][lane];
  *(__global ushort *)(out + col) = (ushort)pack(sum, 0.0f);
}
#endif
