/* Scaled dot-product attention in f32 on sm_90's tensor cores, with f32's own accuracy: each f32 operand of a product is three
 * bf16, six of whose nine products are made (matmul_bf16x3_sm90.cl says why that is exact enough). Scores, P and sums are f32. The
 * tensor cores cut sums off where f32 units round, so they sum 64 terms at most, and f32 units add the blocks.
 *
 * attention_planes cuts a tensor up. Its image: for each head, blocks of 64 rows of 64 columns, zeros past T and D; a block is three
 * planes, and in a plane eight columns of all rows follow the other, 16 bytes a row. Eight rows of eight columns are one of the hardware's
 * core matrices, so a block is an operand by rows and by columns, and one copy brings it.
 *
 * attention_fwd: a group stays for the whole launch and takes tiles of 128 queries of a head, longest first. One item copies, two
 * warpgroups compute 64 rows each, 64 keys at a time: S = q kᵀ, the softmax to base 2, P cut up in registers, O = O * by + P v. While one
 * takes its exponentials the other multiplies.
 *
 * attention_planes
 * x         float (B,H,T,D), element (b,h,t,d) at x0 + b*xb + h*xh + t*xt + d
 * planes    the image: (B,H,T/64 rounded up,3,8,64,8) bf16
 * groups    (T / 64 rounded up, H, B) of 256 items
 * attention_fwd
 * q k v     images
 * o         (B,T,H,D) contiguous f32; lse (B,H,T) f32, ln of the sum of exp(scale * score)
 * next, together, groups: as in attention_wgmma_sm90.cl; 384 items
 * Causal: query t sees keys up to t + S - T, where S - T >= 0 is a multiple of 64. scale > 0.
 *
 * Defines: those of attention_sm90.cl with DTYPE 2, D even, up to 64.
 * Design: FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) over products emulated by bf16x3 (Henry, Tang and Heinecke 2019,
 * arXiv:1904.06376).
 * Ceiling: a sixth of bf16's 989 TFLOP/s. Reached on an H200 in a GPT-2 step (B 4, T 1024, D 64, causal, half of the pairs): 71;
 * attention_tile, by f32 units: 20.
 */
#define PLANE 8192
#define BLOCK (3 * PLANE)
#define ALONE 8
/* Descriptors, in units of 16 bytes: no swizzle. By rows: core matrices 128 bytes apart along rows, 1024 along columns. By
 * columns the two change places. */
#define CORES(along_rows, along_k) ((ulong)((along_rows) >> 4) << 32 | (ulong)((along_k) >> 4) << 16)
#define ROWS_OF(at) (CORES(128, 1024) | (ulong)((at) >> 4))
#define COLUMNS_OF(at) (CORES(1024, 128) | (ulong)((at) >> 4))

static inline float upper_part(float x) { return as_float(as_uint(x) & 0xffff0000u); }
static inline uint upper_pair(float low, float high) { return as_uint(low) >> 16 | as_uint(high) & 0xffff0000u; }

/* Registers of a 64 x 64 product to three planes of A operands. */
#define CUT_UP(p, s)                                                                                                   \
  _Pragma("unroll") for (int i_ = 0; i_ < 16; ++i_) {                                                                  \
    float x_ = (s)[2 * i_], y_ = (s)[2 * i_ + 1];                                                                      \
    p[i_] = upper_pair(x_, y_);                                                                                        \
    x_ -= upper_part(x_), y_ -= upper_part(y_);                                                                        \
    p[16 + i_] = upper_pair(x_, y_);                                                                                   \
    x_ -= upper_part(x_), y_ -= upper_part(y_);                                                                        \
    p[32 + i_] = upper_pair(x_, y_);                                                                                   \
  }

static inline void copy_block(uint to, __global const uchar *from, uint bytes, uint bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar) : "memory");
}
static inline void store2_if(__global float *to, int yes, float a, float b) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes st.global.v2.f32 [%0], {%2, %3};\n\t}" ::"l"(to), "r"(yes),
               "f"(a), "f"(b) : "memory");
}
/* A 64 x 64 product to memory: row `to` times by0 where ok0, the row 8 below times by8 where ok8. */
static inline void store_floats(const float *c, __global float *to, ulong stride, int ok0, int ok8, float by0, float by8, int q) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const int inside = j * 8 + 2 * q < D;
    store2_if(to + j * 8 + 2 * q, ok0 && inside, c[j * 4] * by0, c[j * 4 + 1] * by0);
    store2_if(to + 8 * stride + j * 8 + 2 * q, ok8 && inside, c[j * 4 + 2] * by8, c[j * 4 + 3] * by8);
  }
}

typedef struct {
  int heads, kv_heads, group, t_len, s_len, together;
} Sizes;
static inline Sizes sizes(uint heads, uint kv_heads, uint t_len, uint s_len, uint together) {
  Sizes n;
  n.heads = heads;
  n.kv_heads = kv_heads;
  n.group = heads / kv_heads;
  n.t_len = t_len;
  n.s_len = s_len;
  n.together = together;
  return n;
}
#define BLOCKS(rows) (((rows) + 63) / 64)
/* Key blocks that rows first.. up to `rows` more see. */
static inline int key_blocks(const Sizes *n, int first, int rows) {
#if CAUSAL
  return BLOCKS(min(min(first + rows, n->t_len) + n->s_len - n->t_len, n->s_len));
#else
  return BLOCKS(n->s_len);
#endif
}
/* Scores of keys past the last that the upper or lower row sees become -infinity; `key` is the item's first. */
static inline void hide_keys(float *s, int key, int last0, int last8) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (key + j * 8 > last0) s[j * 4] = -INFINITY;
    if (key + j * 8 + 1 > last0) s[j * 4 + 1] = -INFINITY;
    if (key + j * 8 > last8) s[j * 4 + 2] = -INFINITY;
    if (key + j * 8 + 1 > last8) s[j * 4 + 3] = -INFINITY;
  }
}
/* Hides what rows `row` and 8 below do not see of key block i; the first of the warpgroup's rows is row0. */
#if CAUSAL
#define HIDE(s, i)                                                                                                     \
  if ((i) * 64 + 64 > row0 + n.s_len - n.t_len)                                                                        \
    hide_keys(s, (i) * 64 + 2 * q, row + n.s_len - n.t_len, row + 8 + n.s_len - n.t_len);
#else
#define HIDE(s, i)                                                                                                     \
  if ((i) * 64 + 64 > n.s_len) hide_keys(s, (i) * 64 + 2 * q, n.s_len - 1, n.s_len - 1);
#endif

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
      to[p * (PLANE / 16) + eight * 64 + row] =
          (uint4)(upper_pair(v[0], v[1]), upper_pair(v[2], v[3]), upper_pair(v[4], v[5]), upper_pair(v[6], v[7]));
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] -= upper_part(v[i]);
    }
  }
}

#ifndef BACKWARD
#define STAGES 3
#define LOCAL_BYTES (2 * BLOCK + STAGES * 2 * BLOCK + BARRIER_BYTES)
typedef struct {
  uint q, kv;                              /* first blocks in local memory; a stage is a block of k, then of v */
  uint q_full, q_free, kv_full, kv_free;   /* first barriers */
  __local int *tile;                       /* head and pair of blocks of q */
} Place;

static inline void produce(const Place *at, const Sizes *n, int batch, __global const uchar *q_, __global const uchar *k_,
                           __global const uchar *v_, __global int *next) {
  const int q_blocks = BLOCKS(n->t_len), k_blocks = BLOCKS(n->s_len), pairs = (q_blocks + 1) / 2, all_heads = batch * n->heads;
  uint s = 0, parity = 1, q_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->q_free, q_parity);
    q_parity ^= 1;
    if (t >= pairs * all_heads) {
      at->tile[0] = -1;
      mbar_arrive(at->q_full);
      break;
    }
    const int after = take(next) + (int)get_num_groups(0);
    const int2 tile = tile_of(t, pairs, n->together, all_heads);
    const int pair = pairs - 1 - tile.y, b = tile.x / n->heads, kh = b * n->kv_heads + (tile.x - b * n->heads) / n->group;
    const uint bytes = min(q_blocks - 2 * pair, 2) * BLOCK;
    at->tile[0] = tile.x;
    at->tile[1] = pair;
    mbar_expect(at->q_full, bytes);
    copy_block(at->q, q_ + ((long)tile.x * q_blocks + 2 * pair) * BLOCK, bytes, at->q_full);
    const int all = key_blocks(n, pair * 128, 128);
    for (int i = 0; i < all; ++i) {
      const uint to = at->kv + s * 2 * BLOCK, bar = at->kv_full + s * 8;
      mbar_wait(at->kv_free + s * 8, parity);
      mbar_expect(bar, 2 * BLOCK);
      copy_block(to, k_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      copy_block(to + BLOCK, v_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      NEXT_STAGE(s, parity, STAGES)
    }
    t = after;
  }
  leave(next);
}

/* The larger of high and a row's scores, over the four items of the row. */
static inline float row_max(const float *s, float high) {
#pragma unroll
  for (int j = 0; j < 8; ++j) high = max_f(high, max_f(s[j * 4], s[j * 4 + 1]));
  high = max_f(high, swap_f(high, 1));
  return max_f(high, swap_f(high, 2));
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_fwd(
    __global const uchar *q_, __global const uchar *k_, __global const uchar *v_, __global float *o_, __global float *lse,
    __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale_ DROP_ARGS) {
  DROP_START
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  Place at;
  at.q = (uint)(size_t)local_;
  at.kv = at.q + 2 * BLOCK;
  at.kv_full = at.kv + STAGES * 2 * BLOCK;
  at.kv_free = at.kv_full + STAGES * 8;
  at.q_full = at.kv_free + STAGES * 8;
  at.q_free = at.q_full + 8;
  at.tile = (__local int *)(local_ + LOCAL_BYTES - BARRIER_BYTES + SLOT_BYTES);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const int item = get_local_id(0), warpgroup = item >> 7;
  if (item == 0) {
    ring_init(at.kv_full, at.kv_free, STAGES, 2);
    ring_init(at.q_full, at.q_free, 1, 2);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warpgroup == 0) {
    GIVE_REGISTERS(24);
    if (item == 0) produce(&at, &n, batch, q_, k_, v_, next);
    return;
  }

  TAKE_REGISTERS(240);
  const float scale = scale_ * LOG2_E;
  const int me = warpgroup - 1, q = item & 3, g = (item & 31) >> 2, warp = item >> 5 & 3, first = (item & 127) == 0;
  uint s = 0, parity = 0, q_parity = 0;
  for (;;) {
    mbar_wait(at.q_full, q_parity);
    q_parity ^= 1;
    const int head = at.tile[0], pair = at.tile[1];
    if (head < 0) break;
    const int row0 = pair * 128 + me * 64, row = row0 + warp * 16 + g, all = key_blocks(&n, pair * 128, 128);
    const int mine = row0 < n.t_len ? key_blocks(&n, row0, 64) : 0;
    const ulong aq = ROWS_OF(at.q + me * BLOCK);
    float O[32];
#pragma unroll
    for (int j = 0; j < 32; ++j) O[j] = 0.0f;
    float high0 = -INFINITY, high8 = -INFINITY, sum0 = 0.0f, sum8 = 0.0f;
#if DROPOUT
    const ulong across = (s_len + 3) / 4, draw = ((ulong)head * t_len + row) * across;
#endif
    for (int i = 0; i < mine; ++i) {
      float S[32], part[32];
      uint P[48];
      const uint k = at.kv + s * 2 * BLOCK;
      mbar_wait(at.kv_full + s * 8, parity);
      BF16X3_SS(S, aq, ROWS_OF(k));
#if DROPOUT
      uint bits[1];
      kept_by_rows(bits, 64, draw + i * 16, across * 8, q, seed, offset, drop);
#endif
      WAIT_PRODUCTS(0);
      HOLD_F32(S);
      HIDE(S, i)
      const float new0 = row_max(S, high0), new8 = row_max(S + 2, high8);
      const float by0 = power2((high0 - new0) * scale), by8 = power2((high8 - new8) * scale);
      const float a0 = -new0 * scale, a8 = -new8 * scale;
      high0 = new0;
      high8 = new8;
      sum0 *= by0;
      sum8 *= by8;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        S[j * 4] = power2(fma(S[j * 4], scale, a0));
        S[j * 4 + 1] = power2(fma(S[j * 4 + 1], scale, a0));
        sum0 += S[j * 4] + S[j * 4 + 1];
        S[j * 4 + 2] = power2(fma(S[j * 4 + 2], scale, a8));
        S[j * 4 + 3] = power2(fma(S[j * 4 + 3], scale, a8));
        sum8 += S[j * 4 + 2] + S[j * 4 + 3];
      }
#if DROPOUT
#pragma unroll
      for (int j = 0; j < 32; ++j) S[j] = KEPT(bits, j) ? S[j] : 0.0f;
#endif
      CUT_UP(P, S)
      HOLD_U48(P);
      BF16X3_RS(part, P, COLUMNS_OF(k + BLOCK));
      WAIT_PRODUCTS(0);
      HOLD_F32(part);
      HOLD_U48(P);
      mbar_arrive_if(at.kv_free + s * 8, first);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        O[j * 4] = fma(O[j * 4], by0, part[j * 4]);
        O[j * 4 + 1] = fma(O[j * 4 + 1], by0, part[j * 4 + 1]);
        O[j * 4 + 2] = fma(O[j * 4 + 2], by8, part[j * 4 + 2]);
        O[j * 4 + 3] = fma(O[j * 4 + 3], by8, part[j * 4 + 3]);
      }
      NEXT_STAGE(s, parity, STAGES)
    }
    for (int i = mine; i < all; ++i) { /* key blocks that none of these 64 rows sees */
      mbar_wait(at.kv_full + s * 8, parity);
      bar_sync(ALONE + me, 128);
      mbar_arrive_if(at.kv_free + s * 8, first);
      NEXT_STAGE(s, parity, STAGES)
    }
    bar_sync(ALONE + me, 128); /* all have read the tile's number */
    mbar_arrive_if(at.q_free, first);
    if (mine == 0) continue;
    sum0 += swap_f(sum0, 1);
    sum0 += swap_f(sum0, 2);
    sum8 += swap_f(sum8, 1);
    sum8 += swap_f(sum8, 2);
    const int b = head / n.heads, h = head - b * n.heads;
    const ulong stride = (ulong)heads * D;
    const int ok0 = row < n.t_len, ok8 = row + 8 < n.t_len;
#if DROPOUT
    const float kept = keep;
#else
    const float kept = 1.0f;
#endif
    store_floats(O, o_ + ((ulong)b * t_len + row) * stride + (ulong)h * D, stride, ok0, ok8, kept / sum0, kept / sum8, q);
    __global float *to = lse + (size_t)head * t_len + row;
    store_if(to, q == 0 && ok0, (high0 * scale + log2(sum0)) * LN_2);
    store_if(to + 8, q == 0 && ok8, (high8 * scale + log2(sum8)) * LN_2);
  }
}
#endif
