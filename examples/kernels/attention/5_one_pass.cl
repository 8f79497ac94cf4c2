/* Attention, step 5 of 6: one pass, without storing the scores (FlashAttention: Dao et al., 2022; the outer loop is over queries, as in
 * FlashAttention-2, 2023).
 *
 * Changed    One kernel. An item owns a query row: its q, its sums o, and the pair (maximum, sum) of online softmax. The group loops over
 *            the keys, 32 at a time, whose k and v are in local memory. Scores are computed 8 at a time. A new maximum rescales o
 *            by exp(old - new), as it rescales the sum.
 * Why        The (H,T,T) scores are neither written nor read. Memory traffic falls from O(T T) to O(T D) per head and group.
 * Bound by   local memory and registers: each float4 of k or v that is read serves one row, with four multiply-adds. q and o need 2 D
 *            registers per item, so few warps are resident, and from D = 128 on the registers do not suffice.
 *
 * Rows of local memory are padded with zeros to a multiple of four. Keys after the last one get the score -FLT_MAX, whose
 * exponential is 0, because each row's first key exists.
 *
 * Arguments  q, k, v, o (H,T,D): f32, contiguous; scale: 1 / sqrt(D); t: tokens, at least 1
 * Defines    D: head size, at least 1
 * Launch     groups (ceil(t / 64), H) of 64 items, one item per query
 */
#ifndef D
#define D 64
#endif
#define ITEMS 64
#define BK 32    /* keys in local memory */
#define AT_ONCE 8
#define D4 ((D + 3) / 4)
#define UNROLL _Pragma("unroll")

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void attention(__global const float *q, __global const float *k,
                                                                           __global const float *v, __global float *o, uint t,
                                                                           float scale) {
  __local float4 tk[BK * D4], tv[BK * D4];
  const uint item = get_local_id(0), query = get_global_id(0);
  const size_t head = get_group_id(1);
  k += head * t * D;
  v += head * t * D;

  float4 own[D4], sum[D4];
  UNROLL for (uint d = 0; d < D4; d++) {
    float each[4];
    UNROLL for (uint e = 0; e < 4; e++) each[e] = query < t && 4 * d + e < D ? q[(head * t + query) * D + 4 * d + e] * scale : 0.0f;
    own[d] = (float4)(each[0], each[1], each[2], each[3]);
    sum[d] = (float4)(0.0f);
  }
  float top = -FLT_MAX, total = 0.0f;

  for (uint key0 = 0; key0 < t; key0 += BK) {
    for (uint e = item; e < BK * D4 * 4; e += ITEMS) {
      const uint key = key0 + e / (D4 * 4), d = e % (D4 * 4);
      const int inside = key < t && d < D;
      ((__local float *)tk)[e] = inside ? k[(size_t)key * D + d] : 0.0f;
      ((__local float *)tv)[e] = inside ? v[(size_t)key * D + d] : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j0 = 0; j0 < BK; j0 += AT_ONCE) {
      float score[AT_ONCE], high = top;
      UNROLL for (uint j = 0; j < AT_ONCE; j++) {
        float4 dot4 = (float4)(0.0f);
        UNROLL for (uint d = 0; d < D4; d++) dot4 = fma(own[d], tk[(j0 + j) * D4 + d], dot4);
        score[j] = key0 + j0 + j < t ? (dot4.x + dot4.y) + (dot4.z + dot4.w) : -FLT_MAX;
        high = fmax(high, score[j]);
      }
      const float by = exp(top - high);
      top = high;
      total *= by;
      UNROLL for (uint d = 0; d < D4; d++) sum[d] *= by;
      UNROLL for (uint j = 0; j < AT_ONCE; j++) {
        const float p = exp(score[j] - high);
        total += p;
        UNROLL for (uint d = 0; d < D4; d++) sum[d] = fma((float4)(p), tv[(j0 + j) * D4 + d], sum[d]);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads these keys any more */
  }

  if (query >= t) return;
  UNROLL for (uint d = 0; d < D4; d++) {
    const float4 y = sum[d] / total;
    const float each[4] = {y.x, y.y, y.z, y.w};
    UNROLL for (uint e = 0; e < 4; e++)
      if (4 * d + e < D) o[(head * t + query) * D + 4 * d + e] = each[e];
  }
}
