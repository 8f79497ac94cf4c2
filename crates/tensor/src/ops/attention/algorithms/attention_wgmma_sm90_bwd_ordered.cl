/* Sums of dq over key blocks in their order: the code that ORDERED adds to attention_wgmma_sm90_bwd.cl. Consumers of attention_bwd_kv compute
 * and store parts of dq, and the copiers add them in the order of the tickets. attention_bwd_round then writes dq.
 *
 * attention_bwd_round  dq = scale * sums, rounded to T
 *   sums               f32 (B,H,PADDED(T)/64), each a block of 64 queries in the registers' order: DP/8 float4 of 128 items each
 *   dq                 T (B,H,T,D), strided: first element dq0, strides dqb, dqh, dqt in elements; every element is written once
 *   groups             B*H*PADDED(T)/64, of 128 items; a group owns 64 queries of a head
 *
 * Defines: those of attention_sm90.cl, ORDERED 1. Launched by `run` of ordered.rs, after attention_bwd_kv.
 */
/* Computes c = aᵀ b over the 128 rows of a key block: a and b are halves of 64 columns, as copied. */
#define PRODUCT_Q_PART(c, a, b) BY_BY_N64_K8(c, BY_COLUMNS(KV_BK) | (ulong)(a), BY_COLUMNS(KV_BK) | (ulong)(b), 0)

/* Stores a packed fragment of 64 keys x 64 queries to local memory as the A operand of PRODUCT_Q_PART, 128 bytes per key, swizzled. `to` is the
 * block's first byte. `row` is the item's row for stmatrix: lanes 8 i to 8 i + 7 pass the rows of matrix i of four. */
INLINE void store_transposed(uint to, const uint *p, int row, int lane) {
#pragma unroll
  for (int j = 0; j < KV_BQ / 8; j += 2)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + row * 128 + ((j + (lane >> 4) ^ (lane & 7)) << 4)),
                 "r"(p[j * 2]), "r"(p[j * 2 + 1]), "r"(p[j * 2 + 2]), "r"(p[j * 2 + 3]) : "memory");
}
/* Stores a consumer's part of dq, fragments of 64 x 64, for its copier; four elements of every item are adjacent. */
INLINE void keep_part(uint to, const float *c) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to + (get_local_id(0) & 127) * 16 + i * 2048), "f"(c[i * 4]),
                 "f"(c[i * 4 + 1]), "f"(c[i * 4 + 2]), "f"(c[i * 4 + 3]) : "memory");
}
/* Makes this item's writes to local memory visible to copies and products that begin after the next barrier. */
INLINE void local_written(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Returns the offset of warpgroup `half_`'s part of dq for 64 queries, for query block `at` of all heads. */
INLINE size_t part_of(size_t at, int half_) { return (at * 2 + half_) * (PART_BYTES / 4); }

/* Adds warpgroup `half_`'s parts to dq_sums, key block after key block. All heads of the group process a block of queries before the next block.
 * Otherwise a causal tile of late keys, which sees few queries, would wait until earlier keys have processed whole heads. */
INLINE void add_parts(const KvPlace *at, const Sizes *n, int half_, __global float *sums, __global int *tickets) {
  const int queries = (n->t_len + KV_BQ - 1) / KV_BQ, padded = PADDED(n->t_len) / 64;
  const uint from = at->part + half_ * PART_BYTES;
  uint parity = 0, ks = 0, k_parity = 0;
  for (;;) {
    mbar_wait(at->k_full + ks * 8, k_parity);
    const int head = at->tile[2 * ks], block = at->tile[2 * ks + 1];
    if (head < 0) break;
    mbar_arrive(at->k_free + ks * 8);
    NEXT_STAGE(ks, k_parity, KV_STAGES)
    const int b = head / n->kv_heads, kh = head - b * n->kv_heads;
    EACH_QUERIES(m, first_queries(n, KV_BQ, block * KV_BK), queries)
      for (int h = kh * n->group; h < (kh + 1) * n->group; ++h) {
        const size_t place = (size_t)(b * n->heads + h) * padded + m;
        const ulong to = (ulong)(sums + part_of(place, half_));
        __global int *turn = tickets + place * 2 + half_;
        mbar_wait(at->part_full + half_ * 8, parity);
        parity ^= 1;
        int added;
        do {
          asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(added) : "l"(turn) : "memory");
        } while (added != block);
        if (block == 0)
          asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16384;" ::"l"(to), "r"(from) : "memory");
        else
          asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 16384;" ::"l"(to), "r"(from)
                       : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        mbar_arrive(at->part_free + half_ * 8);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        asm volatile("fence.proxy.async.global;" ::: "memory");
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(turn) : "memory");
      }
  }
}

__kernel __attribute__((reqd_work_group_size(128, 1, 1))) void attention_bwd_round(
    __global const float4 *sums, __global T *dq, ulong dq0, ulong dqb, ulong dqh, ulong dqt, uint heads, uint t_len, float scale) {
  const int item = get_local_id(0), blocks = PADDED((int)t_len) / 64, head = (int)get_group_id(0) / blocks;
  const int b = head / (int)heads, h = head - b * (int)heads;
  const int row = ((int)get_group_id(0) - head * blocks) * 64 + item / 32 * 16 + (item & 31) / 4;
  if (((int)get_group_id(0) - head * blocks) * 64 >= (int)t_len) return;
  float c[DP / 2];
#pragma unroll
  for (int i = 0; i < DP / 8; ++i) {
    const float4 v = sums[((size_t)get_group_id(0) * (DP / 8) + i) * 128 + item];
    c[i * 4] = v.x, c[i * 4 + 1] = v.y, c[i * 4 + 2] = v.z, c[i * 4 + 3] = v.w;
  }
  store_rows(c, dq + dq0 + b * dqb + h * dqh + row * dqt, dqt, row < (int)t_len, row + 8 < (int)t_len, scale, scale, item & 3);
}
