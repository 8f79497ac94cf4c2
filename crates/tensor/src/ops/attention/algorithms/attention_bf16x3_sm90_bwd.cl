/* Gradients of attention in f32 for sm_90, with the images, sizes and helpers of attention_bf16x3_sm90.cl.
 *
 *   delta = sum_d dO*o,  P = 2^(scale*s - stat),  dS = P * (dO vᵀ - delta),  dq = scale * dS k,  dk = scale * dSᵀ q,  dv = Pᵀ dO
 * Two passes without atomics on results; the shapes determine the order of every sum.
 * attention_bwd_stats  stats (B,H,T/64 rounded up,2,64) f32: for 64 rows lse to base 2, +infinity past T (P = 0 there), then delta;
 *                      groups of 256 items, one per block. g is dO, strided
 * attention_bwd_kv     in _kv.cl. A tile is 128 keys of a key head. Two consumers of 64 keys hold dk and dv in registers and process the query
 *                      blocks of all heads of the group. Sᵀ = k qᵀ and dPᵀ = v dOᵀ, so that Pᵀ and dSᵀ are A operands
 * attention_bwd_q      in _q.cl. A tile is 128 queries of a head, 64 per consumer, which process the keys like the forward
 *   q g k v  images; dq, dk, dv strided f32, every element written; all others as in the forward
 *
 * In both passes, two operands stay in local memory for a tile (held), and two stream through a ring: k, v and q, dO; or q, dO and k, v.
 *
 *   local memory   held, two blocks of each | ring, STAGES of a block of each | statistics, STAGES (kv pass) | barriers | tile
 *   producer       held(t) -> ring(0) -> ring(1) -> ... held(t+1) ...
 *   consumer       S, dP of ring(0) | P, dS split | sums += | S, dP of ring(1) | ...
 *
 *   barrier                 id      items   arrives                                   waits
 *   held_full, ring_full    -       bytes   the producer's copies                     consumers, before products
 *   held_free, ring_free    -       2       consumers, at a tile's end, after products  the producer, before the next copies
 *   ALONE + c               8, 9    128     the items of consumer c, when no product keeps its warps together
 *
 * Design: FlashAttention-2's gradients (Dao 2023, arXiv:2307.08691) in two passes, one that owns keys and one that owns queries, instead of
 * atomics; products by bf16x3 emulation.
 * Ceiling: a sixth of bf16's 989 TFLOP/s. Reached on an H200 in a GPT-2 step (B 4, T 1024, D 64, causal): dk and dv 71, dq 75, with all seven
 * computed products counted.
 */
#define STAGES 2
#define LOCAL_BYTES (4 * BLOCK + STAGES * (2 * BLOCK + 512) + BARRIER_BYTES)

/* Local memory: two blocks of each held operand (`held`), and a ring with one block of each streamed operand (`ring`). */
typedef struct {
  uint held, ring, stats;
  uint held_full, held_free, ring_full, ring_free;
  __local int *tile;
} Place;
INLINE Place place(__local uchar *local_) {
  Place at;
  at.held = (uint)(size_t)local_;
  at.ring = at.held + 4 * BLOCK;
  at.stats = at.ring + STAGES * 2 * BLOCK;
  at.ring_full = at.stats + STAGES * 512;
  at.ring_free = at.ring_full + STAGES * 8;
  at.held_full = at.ring_free + STAGES * 8;
  at.held_free = at.held_full + 8;
  at.tile = (__local int *)(local_ + LOCAL_BYTES - BARRIER_BYTES + SLOT_BYTES);
  return at;
}
/* Initializes the rings. One item calls it, before the group's barrier. */
INLINE void rings(const Place *at) {
  ring_init(at->ring_full, at->ring_free, STAGES, 2);
  ring_init(at->held_full, at->held_free, 1, 2);
  barriers_ready();
}
/* Copies the one or two blocks from `block` on of two images with `blocks` blocks per head. */
INLINE void hold(const Place *at, __global const uchar *x, __global const uchar *y, long head, int blocks, int block) {
  const uint bytes = min(blocks - block, 2) * BLOCK;
  const long from = (head * blocks + block) * BLOCK;
  mbar_expect(at->held_full, 2 * bytes);
  copy_bytes(at->held, x + from, bytes, at->held_full);
  copy_bytes(at->held + 2 * BLOCK, y + from, bytes, at->held_full);
}

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void attention_bwd_stats(
    __global const float *o, __global const float *lse, __global const float *g, ulong g0, ulong gb, ulong gh, ulong gt,
    __global float *stats, uint heads, uint t_len) {
  const int item = get_local_id(0), blocks = BLOCKS((int)t_len);
  const int head = (int)get_group_id(0) / blocks, row = ((int)get_group_id(0) - head * blocks) * 64 + item / 4;
  const int b = head / (int)heads, h = head - b * (int)heads;
  float sum = 0.0f;
  if (row < (int)t_len) {
    __global const float *x = o + (((size_t)b * t_len + row) * heads + h) * D, *y = g + g0 + b * gb + h * gh + row * gt;
    for (int i = (item & 3) * 2; i < D; i += 8) sum += x[i] * y[i] + x[i + 1] * y[i + 1];
  }
  sum += swap_f(sum, 1);
  sum += swap_f(sum, 2);
  if ((item & 3) == 0) {
    const size_t to = (size_t)get_group_id(0) * 128 + item / 4;
    stats[to] = row < (int)t_len ? lse[(size_t)head * t_len + row] * LOG2_E : INFINITY;
    stats[to + 64] = sum;
  }
}
