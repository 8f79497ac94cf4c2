/* Attention for sm_90: operations on fragments, the parts of a 64 x n product that the items of a warpgroup hold in registers.
 *
 * A fragment of 64 x n floats is n / 2 registers per item. Item l (0 to 31) of warp w (0 to 3):
 *
 *   register      row                 column
 *   c[4j]         16 w + l / 4        8 j + 2 (l % 4)
 *   c[4j + 1]     16 w + l / 4        8 j + 2 (l % 4) + 1
 *   c[4j + 2]     16 w + l / 4 + 8    8 j + 2 (l % 4)
 *   c[4j + 3]     16 w + l / 4 + 8    8 j + 2 (l % 4) + 1      for j from 0 to n / 8 - 1
 *
 * So an item has parts of two rows, the upper row and the lower row 8 below. The four items of a row (q = l % 4) are adjacent in a warp. Packed
 * in pairs of 16 bits, a fragment is the A operand of a product over its columns: p[2j] of the upper, p[2j + 1] of the lower row. Every n below
 * is a constant. The operations are unrolled, so that the values stay in registers.
 *
 * Source: PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16".
 */
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
/* Row (of 64) of an item's upper row, and its first column (of 8). */
INLINE int upper_row(int item) { return (item >> 5 & 3) * 16 + ((item & 31) >> 2); }
INLINE int first_column(int item) { return 2 * (item & 3); }

INLINE float swap_f(float v, int lanes) { return as_float(swap_u(as_uint(v), lanes)); }
INLINE float max_f(float a, float b) {
  float r;
  asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
INLINE float power2(float a) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
INLINE float over1(float a) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
  return r;
}
INLINE float2 local_pair(uint at) {
  float2 r;
  float x, y;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(at));
  r.x = x;
  r.y = y;
  return r;
}
/* Stores as one predicated instruction. A branch would split the unrolled code. */
INLINE void store4_if(__global T *to, int yes, uint a, uint b, uint c, uint d) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes st.global.v4.b32 [%0], {%2, %3, %4, %5};\n\t}" ::"l"(to),
               "r"(yes), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
INLINE void store_if(__global float *to, int yes, float a) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes st.global.f32 [%0], %2;\n\t}" ::"l"(to), "r"(yes), "f"(a)
               : "memory");
}
/* w[i] is this item's pair in chunk i of four chunks of 8 columns; the four items of a row have adjacent pairs. Returns the whole chunk `q`, 16
 * bytes in order. */
INLINE uint4 whole_chunk(const uint *w, int q) {
  const uint a = swap_u(q & 1 ? w[0] : w[1], 1), b = swap_u(q & 1 ? w[2] : w[3], 1);
  const uint x0 = q & 1 ? a : w[0], x1 = q & 1 ? w[1] : a, x2 = q & 1 ? b : w[2], x3 = q & 1 ? w[3] : b;
  const uint e = swap_u(q & 2 ? x0 : x2, 2), f = swap_u(q & 2 ? x1 : x3, 2);
  uint4 r;
  r.x = q & 2 ? e : x0;
  r.y = q & 2 ? f : x1;
  r.z = q & 2 ? x2 : e;
  r.w = q & 2 ? x3 : f;
  return r;
}
/* Stores a 64 x DP product: row `to` times by0 if ok0, the row 8 below times by8 if ok8. The four items of a row exchange pairs so that each
 * stores 16 bytes. */
INLINE void store_rows(const float *c, __global T *to, ulong stride, int ok0, int ok8, float by0, float by8, int q) {
#pragma unroll
  for (int j = 0; j < DP / 8; j += 4)
#pragma unroll
    for (int low = 0; low < 2; ++low) {
      const float by = low ? by8 : by0;
      uint w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = pack(c[(j + i) * 4 + low * 2] * by, c[(j + i) * 4 + low * 2 + 1] * by);
      const uint4 x = whole_chunk(w, q);
      store4_if(to + low * 8 * stride + (j + q) * 8, (low ? ok8 : ok0) && (j + q) * 8 < D, x.x, x.y, x.z, x.w);
    }
}

/* Sets masked scores to -infinity: columns after the last, or before the first, that the upper and the lower row see. `column` is the item's
 * first column. */
INLINE void hide_after(float *s, int n, int column, int last0, int last8) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    if (column + j * 8 > last0) s[j * 4] = -INFINITY;
    if (column + j * 8 + 1 > last0) s[j * 4 + 1] = -INFINITY;
    if (column + j * 8 > last8) s[j * 4 + 2] = -INFINITY;
    if (column + j * 8 + 1 > last8) s[j * 4 + 3] = -INFINITY;
  }
}
INLINE void hide_before(float *s, int n, int column, int first0, int first8) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    if (column + j * 8 < first0) s[j * 4] = -INFINITY;
    if (column + j * 8 + 1 < first0) s[j * 4 + 1] = -INFINITY;
    if (column + j * 8 < first8) s[j * 4 + 2] = -INFINITY;
    if (column + j * 8 + 1 < first8) s[j * 4 + 3] = -INFINITY;
  }
}
/* Sets all scores of the upper or the lower row to -infinity. */
INLINE void hide_rows(float *s, int n, int upper, int lower) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    if (upper) s[j * 4] = s[j * 4 + 1] = -INFINITY;
    if (lower) s[j * 4 + 2] = s[j * 4 + 3] = -INFINITY;
  }
}
/* Returns the maximum of `high` and a row's scores over the row's four items: of the upper row of s, or of the lower row for s + 2. */
INLINE float row_max(const float *s, int n, float high) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) high = max_f(high, max_f(s[j * 4], s[j * 4 + 1]));
  high = max_f(high, swap_f(high, 1));
  return max_f(high, swap_f(high, 2));
}
/* Returns a row's sum from the partial sums of its four items. */
INLINE float row_sum(float share) {
  share += swap_f(share, 1);
  return share + swap_f(share, 2);
}
/* Computes s = 2^(scale * s + shift) by rows; or by columns, with the shifts subtracted and read from local memory at `at`, the position of the
 * item's first column. Statistics come in sets of 64 columns. */
INLINE void power2_rows(float *s, int n, float scale, float shift0, float shift8) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    s[j * 4] = power2(fma(s[j * 4], scale, shift0));
    s[j * 4 + 1] = power2(fma(s[j * 4 + 1], scale, shift0));
    s[j * 4 + 2] = power2(fma(s[j * 4 + 2], scale, shift8));
    s[j * 4 + 3] = power2(fma(s[j * 4 + 3], scale, shift8));
  }
}
/* Converts scores to 2^(scale * (score - high)) by rows, and adds them to this item's partial sums of the rows. */
INLINE void exponentials(float *s, int n, float scale, float high0, float high8, float *sum0, float *sum8) {
  const float a0 = -high0 * scale, a8 = -high8 * scale;
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    s[j * 4] = power2(fma(s[j * 4], scale, a0));
    s[j * 4 + 1] = power2(fma(s[j * 4 + 1], scale, a0));
    *sum0 += s[j * 4] + s[j * 4 + 1];
    s[j * 4 + 2] = power2(fma(s[j * 4 + 2], scale, a8));
    s[j * 4 + 3] = power2(fma(s[j * 4 + 3], scale, a8));
    *sum8 += s[j * 4 + 2] + s[j * 4 + 3];
  }
}
INLINE uint column_statistic(uint at, int j) { return at + (j / 8) * 512 + (j & 7) * 32; }
INLINE void power2_columns(float *s, int n, float scale, uint at) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    const float2 of = local_pair(column_statistic(at, j));
    s[j * 4] = power2(fma(s[j * 4], scale, -of.x));
    s[j * 4 + 1] = power2(fma(s[j * 4 + 1], scale, -of.y));
    s[j * 4 + 2] = power2(fma(s[j * 4 + 2], scale, -of.x));
    s[j * 4 + 3] = power2(fma(s[j * 4 + 3], scale, -of.y));
  }
}
/* Computes c = 0; c += x; rows of c times by0 and by8; c = c * by + x by rows. */
INLINE void zero(float *c, int n) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) c[i] = 0.0f;
}
INLINE void add(float *c, int n, const float *x) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) c[i] += x[i];
}
INLINE void scale_rows(float *c, int n, float by0, float by8) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    c[j * 4] *= by0;
    c[j * 4 + 1] *= by0;
    c[j * 4 + 2] *= by8;
    c[j * 4 + 3] *= by8;
  }
}
INLINE void scale_rows_and_add(float *c, int n, float by0, float by8, const float *x) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) {
    c[j * 4] = fma(c[j * 4], by0, x[j * 4]);
    c[j * 4 + 1] = fma(c[j * 4 + 1], by0, x[j * 4 + 1]);
    c[j * 4 + 2] = fma(c[j * 4 + 2], by8, x[j * 4 + 2]);
    c[j * 4 + 3] = fma(c[j * 4 + 3], by8, x[j * 4 + 3]);
  }
}

/* Dropout of the scores' weights, by draws of Philox (include/philox.cl). DROP_ARGS are a kernel's last arguments, DROP_OF_ARGS builds the
 * struct from them. Without DROPOUT nothing is drawn. `keep` is the factor of kept weights. */
typedef struct {
  ulong seed, offset;
  uint drop;
  float keep;
} Dropout;
INLINE Dropout dropout_of(ulong seed, ulong offset, uint drop, float keep) {
  Dropout d;
  d.seed = seed;
  d.offset = offset;
  d.drop = drop;
  d.keep = keep;
  return d;
}
#if DROPOUT
#define DROP_ARGS COUNTER_ARG, ulong seed, ulong site, uint drop, float keep
#define DROP_OF_ARGS dropout_of(seed, STREAM_START(site), drop, keep)
/* Returns four bits that mark which of the four words of draw n are kept. */
INLINE uint kept_words(ulong n, const Dropout *d) {
  uint c[4];
  philox_counter(c, d->offset, n);
  philox(c, (uint2)((uint)d->seed, (uint)(d->seed >> 32)));
  return (c[0] >= d->drop ? 1u : 0u) | (c[1] >= d->drop ? 2u : 0u) | (c[2] >= d->drop ? 4u : 0u) | (c[3] >= d->drop ? 8u : 0u);
}
/* Sets bit i % 32 of bits[i / 32] if element c[i] of a fragment of 64 queries x n keys is kept. n0 is the draw of the item's upper row and the
 * block's first key; `below` is the number of draws to the row 8 below. Even items draw for the upper row, odd items for the lower one, four keys
 * each, and then exchange. */
INLINE void kept_by_rows(uint *bits, int n, ulong n0, ulong below, int q, const Dropout *d) {
  n0 += (q & 1 ? below : 0) + (q >> 1);
#pragma unroll
  for (int w = 0; w < n / 64; ++w) {
    uint own = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) own |= kept_words(n0 + (w * 8 + j) * 2, d) << 4 * j;
    const uint other = swap_u(own, 1), up = q & 1 ? other : own, low = q & 1 ? own : other;
    bits[w] = (up >> 2 * (q & 1) & 0x33333333u) | (low >> 2 * (q & 1) & 0x33333333u) << 2;
  }
}
/* Does the same for a fragment of 64 keys x n queries. n0 is the draw of the block's first query + 2 * (item % 4) and of the item's upper key /
 * 4, `next` the number of draws between queries. If four items share four keys, item r draws for query r & 1 and the upper or lower four keys. */
INLINE void kept_by_columns(uint *bits, int n, ulong n0, ulong next, int g, const Dropout *d) {
  const int r = g & 3;
  n0 += (r & 1) * next + (r >> 1) * 2;
#pragma unroll
  for (int w = 0; w < n / 64; ++w) {
    uint own = 0;
#pragma unroll 1
    for (int j = 0; j < 8; ++j) own |= kept_words(n0 + (w * 8 + j) * 8 * next, d) << 4 * j;
    const uint a = swap_u(own, 4), b = swap_u(own, 8), c = swap_u(own, 12);
    const uint u0 = r == 0 ? own : r == 1 ? a : r == 2 ? b : c, u1 = r == 1 ? own : r == 0 ? a : r == 3 ? b : c;
    const uint u2 = r == 2 ? own : r == 3 ? a : r == 0 ? b : c, u3 = r == 3 ? own : r == 2 ? a : r == 1 ? b : c;
    const uint every4 = 0x11111111u;
    bits[w] = (u0 >> r & every4) | (u1 >> r & every4) << 1 | (u2 >> r & every4) << 2 | (u3 >> r & every4) << 3;
  }
}
/* Returns element i of a fragment, x, or 0 if it is dropped. */
INLINE float dropped(const uint *bits, int i, float x) { return bits[i / 32] >> (i & 31) & 1 ? x : 0.0f; }
#else
#define DROP_ARGS
#define DROP_OF_ARGS dropout_of(0, 0, 0, 1.0f)
INLINE void kept_by_rows(uint *bits, int n, ulong n0, ulong below, int q, const Dropout *d) {}
INLINE void kept_by_columns(uint *bits, int n, ulong n0, ulong next, int g, const Dropout *d) {}
INLINE float dropped(const uint *bits, int i, float x) { return x; }
#endif
/* Returns the number of draws per query's row of weights; a draw covers four weights. */
INLINE ulong draws_of_row(const Sizes *n) { return (ulong)(((uint)n->s_len + 3) / 4); }
/* Packs weights into pairs of 16 bits, the A operand of a product over their columns: all of them, or the kept ones of 8 columns or of all. */
INLINE void pack_weights(uint *p, int n, const float *s) {
#pragma unroll
  for (int i = 0; i < n / 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1]);
}
INLINE void pack_kept_of(uint *p, int j, const float *s, const uint *bits) {
  p[j * 2] = pack(dropped(bits, j * 4, s[j * 4]), dropped(bits, j * 4 + 1, s[j * 4 + 1]));
  p[j * 2 + 1] = pack(dropped(bits, j * 4 + 2, s[j * 4 + 2]), dropped(bits, j * 4 + 3, s[j * 4 + 3]));
}
INLINE void pack_kept(uint *p, int n, const float *s, const uint *bits) {
#pragma unroll
  for (int j = 0; j < n / 8; ++j) pack_kept_of(p, j, s, bits);
}
