/* Attention, step 6 of 6: register tiles, causal. A small version of netcl's attention_tile.cl.
 *
 * Changed    A group of 8 by 8 items owns 32 queries and loops over the keys, 32 at a time. Item (y, x) computes 4 by 4 scores, of queries
 *            y + 8 i and keys x + 8 j. It then computes the same rows of o, and four columns from 4 x + 32 c on. Both are register
 *            tiles as in step 4 of the matmul ladder. The probabilities go through local memory, because an item needs those of
 *            other items for its columns of o. Causal: a query sees the keys up to itself; later groups of keys are skipped.
 * Why        A float4 of q, k or v that is read from local memory serves four rows or keys instead of one. Sums need 4 D / 8 registers
 *            per item instead of D, and q needs none. Half of the work is skipped.
 * Bound by   local memory and issue slots, with four barriers per 32 keys, if products are f32 multiply-adds. On tensor
 *            cores (attention_wgmma_sm90.cl, the design of FlashAttention-3), exponentials take about as long as products, and are
 *            computed while another warpgroup multiplies.
 *
 * PAD shifts the rows of q and k, of which eight are read at a time, to different banks. Rows without a query compute with zeros.
 *
 * Arguments  q, k, v, o (H,T,D): f32, contiguous; scale: 1 / sqrt(D); t: tokens, at least 1
 * Defines    D: head size, at least 1
 * Launch     groups (ceil(t / 32), H) of 64 items
 */
#ifndef D
#define D 64
#endif
#define SIDE 8
#define OWN 4
#define ROWS (SIDE * OWN) /* queries of a group, and keys in local memory */
#define D4 ((D + 3) / 4)
#define CHUNKS ((D4 + SIDE - 1) / SIDE)
#define PAD 1
#define LINE (CHUNKS * SIDE + PAD)
#define P_LINE (ROWS + 4)
#define UNROLL _Pragma("unroll")

/* Loads ROWS rows from `row0` on. Rows from t on and columns from D on are zeros. */
static inline void load_rows(__local float4 *tile, __global const float *from, uint row0, uint t, float by) {
  for (uint e = get_local_id(0); e < ROWS * LINE * 4; e += SIDE * SIDE) {
    const uint row = row0 + e / (LINE * 4), d = e % (LINE * 4);
    ((__local float *)tile)[e] = row < t && d < D ? from[(size_t)row * D + d] * by : 0.0f;
  }
}

__kernel __attribute__((reqd_work_group_size(SIDE *SIDE, 1, 1))) void attention(__global const float *q, __global const float *k,
                                                                               __global const float *v, __global float *o, uint t,
                                                                               float scale) {
  __local float4 tq[ROWS * LINE], tk[ROWS * LINE]; /* tk: keys, then their values */
  __local float p[ROWS * P_LINE], red[ROWS * (SIDE + 1)];
  const uint x = get_local_id(0) % SIDE, y = get_local_id(0) / SIDE;
  const uint query0 = (get_num_groups(0) - 1 - get_group_id(0)) * ROWS; /* those with most keys first */
  const size_t head = get_group_id(1) * (size_t)t * D;
  load_rows(tq, q + head, query0, t, scale);
  float4 sum[OWN][CHUNKS];
  float top[OWN], total[OWN];
  UNROLL for (uint i = 0; i < OWN; i++) {
    top[i] = -FLT_MAX;
    total[i] = 0.0f;
    UNROLL for (uint c = 0; c < CHUNKS; c++) sum[i][c] = (float4)(0.0f);
  }

  for (uint key0 = 0; key0 < min(query0 + ROWS, t); key0 += ROWS) {
    load_rows(tk, k + head, key0, t, 1.0f);
    barrier(CLK_LOCAL_MEM_FENCE);
    float score[OWN][OWN];
    UNROLL for (uint e = 0; e < OWN * OWN; e++) score[e / OWN][e % OWN] = 0.0f;
    for (uint d = 0; d < D4; d++) {
      float4 vq[OWN], vk[OWN];
      UNROLL for (uint i = 0; i < OWN; i++) vq[i] = tq[(y + i * SIDE) * LINE + d];
      UNROLL for (uint j = 0; j < OWN; j++) vk[j] = tk[(x + j * SIDE) * LINE + d];
      UNROLL for (uint e = 0; e < OWN * OWN; e++) {
        const float4 a = vq[e / OWN], b = vk[e % OWN];
        score[e / OWN][e % OWN] = fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, score[e / OWN][e % OWN]))));
      }
    }
    UNROLL for (uint i = 0; i < OWN; i++) {
      float high = -FLT_MAX;
      UNROLL for (uint j = 0; j < OWN; j++) {
        if (key0 + x + j * SIDE > query0 + y + i * SIDE) score[i][j] = -FLT_MAX;
        high = fmax(high, score[i][j]);
      }
      red[(y + i * SIDE) * (SIDE + 1) + x] = high;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    load_rows(tk, v + head, key0, t, 1.0f); /* nobody reads the keys any more */
    UNROLL for (uint i = 0; i < OWN; i++) {
      const uint row = y + i * SIDE;
      float high = top[i];
      for (uint j = 0; j < SIDE; j++) high = fmax(high, red[row * (SIDE + 1) + j]);
      const float by = exp(top[i] - high);
      top[i] = high;
      total[i] *= by;
      UNROLL for (uint c = 0; c < CHUNKS; c++) sum[i][c] *= by;
      UNROLL for (uint j = 0; j < OWN; j++) {
        const float e = exp(score[i][j] - high);
        total[i] += e;
        p[row * P_LINE + x + j * SIDE] = e;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j = 0; j < ROWS; j++)
      UNROLL for (uint c = 0; c < CHUNKS; c++) {
        const float4 value = tk[j * LINE + x + c * SIDE];
        UNROLL for (uint i = 0; i < OWN; i++) sum[i][c] = fma((float4)(p[(y + i * SIDE) * P_LINE + j]), value, sum[i][c]);
      }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  UNROLL for (uint i = 0; i < OWN; i++) red[(y + i * SIDE) * (SIDE + 1) + x] = total[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL for (uint i = 0; i < OWN; i++) {
    const uint row = y + i * SIDE;
    float all = 0.0f;
    for (uint j = 0; j < SIDE; j++) all += red[row * (SIDE + 1) + j];
    UNROLL for (uint c = 0; c < CHUNKS; c++) {
      const float4 value = sum[i][c] / all;
      const float each[4] = {value.x, value.y, value.z, value.w};
      UNROLL for (uint e = 0; e < 4; e++) {
        const uint d = 4 * (x + c * SIDE) + e;
        if (query0 + row < t && d < D) o[head + (size_t)(query0 + row) * D + d] = each[e];
      }
    }
  }
}
