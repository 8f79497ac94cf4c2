/* Matrix product, step 8 of 9: tensor cores. Requires NVIDIA sm_80 or later (mma.sync, ldmatrix, cp.async).
 *
 * Changed    A and B are bf16. A warp multiplies 16 by 16 of A with 16 by 8 of B in one instruction, which adds to sums in f32. cp.async
 *            copies tiles of 128 by 32 and 32 by 128 into a ring of three local buffers; ldmatrix loads fragments, which are
 *            registers in the order that mma.sync needs. There are 8 warps; each computes 64 by 32 of the group's 128 by 128.
 * Why        2048 multiply-adds per instruction and warp instead of 32, with operands of half the size.
 * Bound by   loading fragments: 6 ldmatrix per 16 mma.sync, and all warps wait for each other before each tile. mma.sync itself
 *            reaches about 60 % of the tensor cores of sm_90; the rest needs wgmma (step 9).
 *
 * Fragments  of mma.m16n8k16, lane = 4 g + t (PTX ISA, "Matrix fragments for mma.m16n8k16"), two adjacent values per register:
 *            A: rows g, g+8, g, g+8 at k 2t, 2t, 2t+8, 2t+8; B: column g at k 2t and 2t+8; C: rows g, g, g+8, g+8, columns 2t, 2t+1, …
 * Swizzle    ldmatrix reads eight rows of 16 bytes at a time. Chunk q of row r is at position q ^ f(r), so that they use all banks.
 *
 * Arguments  a (M,K), b (K,N), c (M,N): bf16, row-major, at 16-byte addresses; m, n, k: their sizes, at least 1
 * Defines    NVIDIA_CC: compute capability, at least 80; DTYPE 2 and ST of netcl's prelude, which rounds to bf16
 * Launch     groups (ceil(n / 128), ceil(m / 128)) of 256 items
 */
#define TILE 128
#define BK 32
#define ITEMS 256
#define STAGES 3
#define A_BYTES (TILE * BK * 2)
#define STAGE (2 * A_BYTES)
#define UNROLL _Pragma("unroll")
#define PLACE_A(row, chunk) ((row) * 64 + (((chunk) ^ ((row) >> 1 & 3)) << 4))
#define PLACE_B(step, chunk) ((step) * 256 + (((chunk) ^ ((step) & 7)) << 4))

/* Copies eight elements of a row at p, of which `left` are inside, to local address `to`; the rest are zeros. */
static inline void copy8(uint to, __global const ushort *p, int left, int aligned) {
  if (aligned) {
    const int bytes = clamp(left, 0, 8) * 2;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(p), "r"(bytes) : "memory");
    return;
  }
  uint v[4];
  UNROLL for (int i = 0; i < 4; i++)
    v[i] = (2 * i < left ? p[2 * i] : 0u) | (2 * i + 1 < left ? (uint)p[2 * i + 1] << 16 : 0u);
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
static inline void load_a(uint *r, uint at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static inline void load_b(uint *r, uint at) { /* transposed by the load: B is stored row by row */
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static inline void mma(float *c, const uint *a, const uint *b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void matmul(__global const ushort *a, __global const ushort *b,
                                                                        __global ushort *c, uint m, uint n, uint k) {
  __local uchar ring[STAGES * STAGE] __attribute__((aligned(128)));
  const uint base = (uint)(size_t)ring, item = get_local_id(0), lane = item & 31, warp = item >> 5;
  const uint column0 = get_group_id(0) * TILE, row0 = get_group_id(1) * TILE;
  const uint my_row = (warp >> 2) * 64, my_column = (warp & 3) * 32;
  const int a_aligned = k % 8 == 0, b_aligned = n % 8 == 0;

  /* Request the tiles from step l0 on, into buffer s. A group is committed even if nothing is left, so that waiting can count groups. */
#define ASK(s, l0)                                                                                           \
  {                                                                                                          \
    UNROLL for (uint e = item; e < 512 && (l0) < k; e += ITEMS) {                                            \
      const uint row = e >> 2, la = (l0) + (e & 3) * 8, step = e >> 4, column = column0 + (e & 15) * 8;      \
      copy8(base + (s) * STAGE + PLACE_A(row, e & 3), a + (size_t)(row0 + row) * k + la,                     \
            row0 + row < m ? (int)k - (int)la : 0, a_aligned);                                               \
      copy8(base + (s) * STAGE + A_BYTES + PLACE_B(step, e & 15), b + (size_t)((l0) + step) * n + column,    \
            (l0) + step < k ? (int)n - (int)column : 0, b_aligned);                                          \
    }                                                                                                        \
    asm volatile("cp.async.commit_group;" ::: "memory");                                                     \
  }
  float sum[4][4][4]; /* four times 16 rows and four times 8 columns */
  UNROLL for (uint i = 0; i < 64; i++) sum[i >> 4][i >> 2 & 3][i & 3] = 0.0f;
  ASK(0, 0u)
  ASK(1, (uint)BK)
  uint now = 0, next = 2;
  for (uint l0 = 0; l0 < k; l0 += BK) {
    asm volatile("cp.async.wait_group 1;" ::: "memory"); /* all but the newest: this tile is complete */
    barrier(CLK_LOCAL_MEM_FENCE);                         /* for all items, and all have read buffer `next` */
    ASK(next, l0 + 2 * BK)
    const uint ta = base + now * STAGE, tb = ta + A_BYTES;
    UNROLL for (uint half_k = 0; half_k < 2; half_k++) {
      uint fa[4][4], fb[2][4];
      UNROLL for (uint i = 0; i < 4; i++) load_a(fa[i], ta + PLACE_A(my_row + i * 16 + (lane & 15), half_k * 2 + (lane >> 4)));
      UNROLL for (uint j = 0; j < 2; j++) load_b(fb[j], tb + PLACE_B(half_k * 16 + (lane & 15), my_column / 8 + j * 2 + (lane >> 4)));
      UNROLL for (uint i = 0; i < 4; i++) UNROLL for (uint j = 0; j < 4; j++) mma(sum[i][j], fa[i], fb[j >> 1] + (j & 1) * 2);
    }
    now = now == STAGES - 1 ? 0 : now + 1;
    next = next == STAGES - 1 ? 0 : next + 1;
  }

  UNROLL for (uint i = 0; i < 4; i++) UNROLL for (uint j = 0; j < 4; j++) UNROLL for (uint e = 0; e < 4; e++) {
    const uint row = row0 + my_row + i * 16 + (lane >> 2) + (e >> 1) * 8, column = column0 + my_column + j * 8 + (lane & 3) * 2 + (e & 1);
    if (row < m && column < n) ST(c, (size_t)row * n + column, sum[i][j][e]);
  }
}
