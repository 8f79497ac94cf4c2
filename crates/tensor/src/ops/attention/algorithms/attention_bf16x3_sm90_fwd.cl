/* The forward of attention_bf16x3_sm90.cl, with the images, sizes and helpers of that file: o = softmax(scale * q kᵀ + mask) v in f32.
 *
 * Groups are persistent and take tiles of 128 queries of a head, longest first. One item copies. Two consumer warpgroups compute 64 rows each,
 * 64 keys at a time: S = q kᵀ, the softmax to base 2, P split in registers, O = O * by + P v. While one computes its exponentials, the other
 * multiplies.
 *
 *   local memory   q, two blocks | k and v, STAGES of two blocks | barriers | tile
 *   producer       q(t) -> k(0), v(0) -> k(1), v(1) -> ... q(t+1) ...
 *   consumer       S(0) | softmax, P split | P v(0) | O += | S(1) | ...
 *
 *   barrier          id      items   arrives                           waits
 *   q_full           -       bytes   the copy of a tile's queries      consumers, at the start of a tile
 *   q_free           -       2       consumers, at its end             the producer, before the next tile
 *   kv_full          -       bytes   the copies of k and v             consumers, before products
 *   kv_free          -       2       consumers, after them             the producer, before the next copies
 *   ALONE + c        8, 9    128     the items of consumer c, when no product keeps its warps together
 *
 * q k v     images
 * o         (B,T,H,D) contiguous f32; lse (B,H,T) f32, ln of the sum of exp(scale * score)
 * next, together, groups: as in attention_wgmma_sm90.cl; 384 items
 *
 * Reached on an H200 in a GPT-2 step (B 4, T 1024, D 64, causal, half of the pairs): 71 TFLOP/s; attention_tile on f32 units: 20.
 */
#define STAGES 3
#define LOCAL_BYTES (2 * BLOCK + STAGES * 2 * BLOCK + BARRIER_BYTES)
typedef struct {
  uint q, kv;                              /* first blocks in local memory; a stage is a block of k, then of v */
  uint q_full, q_free, kv_full, kv_free;   /* first barriers */
  __local int *tile;                       /* head and pair of blocks of q */
} Place;

/* Layout of `local_`, LOCAL_BYTES of it. */
INLINE Place forward_place(__local uchar *local_) {
  Place at;
  at.q = (uint)(size_t)local_;
  at.kv = at.q + 2 * BLOCK;
  at.kv_full = at.kv + STAGES * 2 * BLOCK;
  at.kv_free = at.kv_full + STAGES * 8;
  at.q_full = at.kv_free + STAGES * 8;
  at.q_free = at.q_full + 8;
  at.tile = (__local int *)(local_ + LOCAL_BYTES - BARRIER_BYTES + SLOT_BYTES);
  return at;
}

INLINE void produce(const Place *at, const Sizes *n, int batch, __global const uchar *q_, __global const uchar *k_,
                           __global const uchar *v_, __global int *next) {
  const int q_blocks = BLOCKS(n->t_len), k_blocks = BLOCKS(n->s_len), pairs = (q_blocks + 1) / 2, all_heads = batch * n->heads;
  uint s = 0, parity = 1, q_parity = 1;
  for (int t = get_group_id(0);;) {
    mbar_wait(at->q_free, q_parity);
    q_parity ^= 1;
    if (t >= pairs * all_heads) {
      announce_end(at->tile, at->q_full);
      break;
    }
    const int after = take_tile(next);
    const int2 tile = tile_of(t, pairs, n->together, all_heads);
    const int pair = pairs - 1 - tile.y, b = tile.x / n->heads, kh = b * n->kv_heads + (tile.x - b * n->heads) / n->group;
    const uint bytes = min(q_blocks - 2 * pair, 2) * BLOCK;
    announce(at->tile, tile.x, pair);
    mbar_expect(at->q_full, bytes);
    copy_bytes(at->q, q_ + ((long)tile.x * q_blocks + 2 * pair) * BLOCK, bytes, at->q_full);
    const int all = key_blocks(n, 64, pair * 128, 128);
    for (int i = 0; i < all; ++i) {
      const uint to = at->kv + s * 2 * BLOCK, bar = at->kv_full + s * 8;
      mbar_wait(at->kv_free + s * 8, parity);
      mbar_expect(bar, 2 * BLOCK);
      copy_bytes(to, k_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      copy_bytes(to + BLOCK, v_ + ((long)kh * k_blocks + i) * BLOCK, BLOCK, bar);
      NEXT_STAGE(s, parity, STAGES)
    }
    t = after;
  }
  leave(next);
}

/* Processes the tiles of consumer `me`, 64 queries of each. */
INLINE void consume(const Place *at, const Sizes *n, int me, __global float *o, __global float *lse, float scale, const Dropout *drop) {
  const int item = get_local_id(0), q = item & 3;
  uint s = 0, parity = 0, q_parity = 0;
  for (;;) {
    mbar_wait(at->q_full, q_parity);
    q_parity ^= 1;
    const int head = at->tile[0], pair = at->tile[1];
    if (head < 0) break;
    const int row0 = pair * 128 + me * 64, row = row0 + upper_row(item), all = key_blocks(n, 64, pair * 128, 128);
    const int mine = row0 < n->t_len ? key_blocks(n, 64, row0, 64) : 0;
    const ulong aq = ROWS_OF(at->q + me * BLOCK), across = draws_of_row(n), draw = ((ulong)head * (uint)n->t_len + row) * across;
    float O[32], high0 = -INFINITY, high8 = -INFINITY, sum0 = 0.0f, sum8 = 0.0f;
    zero(O, 64);
    for (int i = 0; i < mine; ++i) {
      float S[32], part[32];
      uint P[48], kept[1];
      const uint k = at->kv + s * 2 * BLOCK;
      mbar_wait(at->kv_full + s * 8, parity);
      BF16X3_SS(S, aq, ROWS_OF(k));
      kept_by_rows(kept, 64, draw + i * 16, across * 8, q, drop);
      WAIT_PRODUCTS(0);
      HOLD_F32(S);
      mask_keys(S, n, i, row0, row);
      const float new0 = row_max(S, 64, high0), new8 = row_max(S + 2, 64, high8);
      const float by0 = power2((high0 - new0) * scale), by8 = power2((high8 - new8) * scale);
      high0 = new0;
      high8 = new8;
      sum0 *= by0;
      sum8 *= by8;
      exponentials(S, 64, scale, high0, high8, &sum0, &sum8);
#pragma unroll
      for (int j = 0; j < 32; ++j) S[j] = dropped(kept, j, S[j]);
      cut_up(P, S);
      HOLD_U48(P);
      BF16X3_RS(part, P, COLUMNS_OF(k + BLOCK));
      WAIT_PRODUCTS(0);
      HOLD_F32(part);
      HOLD_U48(P);
      release_together(at->kv_free + s * 8);
      scale_rows_and_add(O, 64, by0, by8, part);
      NEXT_STAGE(s, parity, STAGES)
    }
    for (int i = mine; i < all; ++i) { /* key blocks that none of these 64 rows sees */
      skip_stage(at->kv_full + s * 8, at->kv_free + s * 8, parity, me);
      NEXT_STAGE(s, parity, STAGES)
    }
    bar_sync(ALONE + me, 128); /* all items have read the tile's number */
    release_together(at->q_free);
    if (mine == 0) continue;
    sum0 = row_sum(sum0);
    sum8 = row_sum(sum8);
    const int b = head / n->heads, h = head - b * n->heads, ok0 = row < n->t_len, ok8 = row + 8 < n->t_len;
    const ulong stride = (ulong)n->heads * D;
    store_floats(O, o + ((ulong)b * n->t_len + row) * stride + (ulong)h * D, stride, ok0, ok8, drop->keep / sum0, drop->keep / sum8, q);
    __global float *to = lse + (size_t)head * n->t_len + row;
    store_if(to, q == 0 && ok0, (high0 * scale + log2(sum0)) * LN_2);
    store_if(to + 8, q == 0 && ok8, (high8 * scale + log2(sum8)) * LN_2);
  }
}

__kernel __attribute__((reqd_work_group_size(384, 1, 1))) void attention_fwd(
    __global const uchar *q_, __global const uchar *k_, __global const uchar *v_, __global float *o, __global float *lse,
    __global int *next, uint batch, uint together, uint heads, uint kv_heads, uint t_len, uint s_len, float scale DROP_ARGS) {
  __local uchar local_[LOCAL_BYTES] __attribute__((aligned(1024)));
  const Place at = forward_place(local_);
  const Sizes n = sizes(heads, kv_heads, t_len, s_len, together);
  const Dropout drop_ = DROP_OF_ARGS;
  const int item = get_local_id(0);
  if (item == 0) {
    ring_init(at.kv_full, at.kv_free, STAGES, 2);
    ring_init(at.q_full, at.q_free, 1, 2);
    barriers_ready();
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 128) {
    GIVE_REGISTERS(24);
    if (item == 0) produce(&at, &n, batch, q_, k_, v_, next);
  } else {
    TAKE_REGISTERS(240);
    consume(&at, &n, (item >> 7) - 1, o, lse, scale * LOG2_E, &drop_);
  }
}
