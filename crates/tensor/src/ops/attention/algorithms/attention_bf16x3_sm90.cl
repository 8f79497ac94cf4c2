/* Scaled dot-product attention in f32 on sm_90's tensor cores with f32's accuracy: each f32 operand of a product is split into three bf16, and
 * six of the nine products are computed (include/bf16x3.cl). Scores, P and sums are f32. The tensor cores sum at most 64 terms, and f32 units
 * add the blocks. The forward is in _fwd.cl, the gradients are in _bwd.cl, _bwd_kv.cl and _bwd_q.cl; this file has their shared parts.
 *
 * attention_planes splits a tensor. The result, its image, has for each head blocks of 64 rows of 64 columns, with zeros past T and D. A block
 * is three planes, is an operand by rows and by columns, and is loaded by one copy.
 *   x         float (B,H,T,D), element (b,h,t,d) at x0 + b*xb + h*xh + t*xt + d
 *   planes    the image: (B,H,T/64 rounded up,3,8,64,8) bf16
 *   groups    (T / 64 rounded up, H, B) of 256 items
 *
 * Causal: query t sees keys up to t + S - T, where S - T >= 0 is a multiple of 64. scale > 0.
 *
 * Defines: those of attention_sm90.cl with DTYPE 2, D even, up to 64.
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) over products emulated by bf16x3 (Henry, Tang and Heinecke 2019,
 * arXiv:1904.06376).
 * Ceiling: a sixth of bf16's 989 TFLOP/s.
 */
#define PLANE 8192
#define BLOCK (3 * PLANE)
#define ALONE 8
/* Descriptors of a block as an operand. By rows: core matrices 128 bytes apart along rows, 1024 along columns. By columns: the reverse. */
#define ROWS_OF(at) (CORES(128, 1024) | (ulong)((at) >> 4))
#define COLUMNS_OF(at) (CORES(1024, 128) | (ulong)((at) >> 4))
#define BLOCKS(rows) (((rows) + 63) / 64)

/* Splits a fragment of 64 x 64 into three planes of A operands, each of 16 registers. */
INLINE void cut_up(uint *p, const float *s) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float x = s[2 * i], y = s[2 * i + 1];
    p[i] = upper_pair(x, y);
    x -= upper_part(x), y -= upper_part(y);
    p[16 + i] = upper_pair(x, y);
    x -= upper_part(x), y -= upper_part(y);
    p[32 + i] = upper_pair(x, y);
  }
}
INLINE void store2_if(__global float *to, int yes, float a, float b) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes st.global.v2.f32 [%0], {%2, %3};\n\t}" ::"l"(to), "r"(yes),
               "f"(a), "f"(b) : "memory");
}
/* Stores a 64 x 64 product: row `to` times by0 if ok0, the row 8 below times by8 if ok8. */
INLINE void store_floats(const float *c, __global float *to, ulong stride, int ok0, int ok8, float by0, float by8, int q) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int inside = j * 8 + 2 * q < D;
    store2_if(to + j * 8 + 2 * q, ok0 && inside, c[j * 4] * by0, c[j * 4 + 1] * by0);
    store2_if(to + 8 * stride + j * 8 + 2 * q, ok8 && inside, c[j * 4 + 2] * by8, c[j * 4 + 3] * by8);
  }
}
/* Masks the keys of block i that rows `row` (the item's upper row) and 8 below do not see. row0 is the consumer's first row. */
INLINE void mask_keys(float *s, const Sizes *n, int i, int row0, int row) {
  const int column = i * 64 + first_column(get_local_id(0));
#if CAUSAL
  if (i * 64 + 64 > row0 + n->s_len - n->t_len)
    hide_after(s, 64, column, row + n->s_len - n->t_len, row + 8 + n->s_len - n->t_len);
#else
  if (i * 64 + 64 > n->s_len) hide_after(s, 64, column, n->s_len - 1, n->s_len - 1);
#endif
}
/* Skips a stage that consumer `me` does not need. Without a product, a barrier must keep its warps together. */
INLINE void skip_stage(uint full, uint free, uint parity, int me) {
  mbar_wait(full, parity);
  bar_sync(ALONE + me, 128);
  release_together(free);
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_planes(
    __global const float *x, ulong x0, ulong xb, ulong xh, ulong xt, __global uint4 *planes, uint t_len) {
  const int item = get_local_id(0), row = item / 4, t = (int)get_group_id(0) * 64 + row;
  __global const float *from = x + x0 + get_group_id(2) * xb + get_group_id(1) * xh + t * xt;
  __global uint4 *to = planes + ((get_group_id(2) * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0)) * (BLOCK / 16);
#pragma unroll
  for (int eight = item & 3; eight < 8; eight += 4) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int d = eight * 8 + i, inside = t < (int)t_len && d < D;
      v[i] = inside ? from[d] : 0.0f;
      v[i + 1] = inside ? from[d + 1] : 0.0f;
    }
#pragma unroll
    for (int p = 0; p < 3; ++p) {
      to[p * (PLANE / 16) + eight * 64 + row] = eight_parts(v);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] -= upper_part(v[i]);
    }
  }
}
