/* Instructions of sm_90 for matrix products, as functions: copies of blocks by tensor maps (TMA), exchanges between lanes, and guarded loads and
 * stores. include/sm90.cl, which precedes this file, has barriers, rings and pairs.
 *
 * Values of type uint are addresses in local memory. A `map` is the address of a tensor map; x and y count elements and rows of the matrix.
 * Define: DTYPE (for T). The kernels matmul_wgmma_sm90 and conv_wgmma_sm90 include it.
 */
/* Copies the block at column x, row y of a matrix to local memory; `bar` counts its bytes. */
INLINE void fetch(uint to, ulong map, int x, int y, uint bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
/* Copies the same, and adds `bytes` to the bytes that `bar` expects. */
INLINE void ask(uint to, ulong map, int x, int y, uint bar, uint bytes) {
  mbar_expect(bar, bytes);
  fetch(to, map, x, y, bar);
}
/* Copies a block from local to global memory; elements outside of the matrix are skipped. One lane sends all blocks of a warp. */
INLINE void send(ulong map, int x, int y, uint from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n\tcp.async.bulk.commit_group;"
               ::"l"(map), "r"(x), "r"(y), "r"(from) : "memory");
}
/* Waits until all but the last `n` blocks that this lane sent have left local memory. */
#define BOXES_LEFT(n) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(n) : "memory")
/* Makes this work-item's writes to local memory visible to copies that begin after the next barrier. */
INLINE void box_written(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* Returns get_local_id(0), read again so that it does not occupy a register. */
INLINE uint local_id(void) {
  uint id;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
  return id;
}
INLINE void warp_sync(void) { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
/* Loads four matrices of 8 by 8 16-bit elements in the layout of wgmma's accumulators: a lane holds two adjacent elements of row lane / 4 of
 * each. Lane l passes the address of row l % 8 of matrix l / 8, 16 bytes. */
INLINE void matrices_load(uint *v, uint row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(row) : "memory");
}
INLINE void matrices_store(uint row, const uint *v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(row), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
/* Stores 16 bytes if `inside`, without a branch, which would diverge the warp. */
INLINE void store16(__global T *to, int inside, const uint *v) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.v4.b32 [%0], {%2, %3, %4, %5};\n\t}"
               ::"l"(to), "r"(inside), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
/* Loads that are volatile, so that they stay in program order: registers are scarce. Returns zeros outside. */
INLINE uint load_word(__global const T *from, int inside) {
  uint v;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b32 %0, 0;\n\t@p ld.global.nc.b32 %0, [%1];\n\t}"
               : "=r"(v) : "l"(from), "r"(inside));
  return v;
}
INLINE uint4 load16(__global const T *from, int inside) {
  uint4 v;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
               "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "r"(inside));
  return v;
}
INLINE void store_word(__global T *to, int inside, uint v) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.b32 [%0], %2;\n\t}" ::"l"(to), "r"(inside), "r"(v) : "memory");
}
/* Loads two adjacent elements at any address, of which `left` are inside. */
INLINE uint load_ones(__global const T *from, int left) {
  uint v;
  asm volatile("{\n\t.reg .pred p;\n\t.reg .b16 low, high;\n\tmov.b16 low, 0;\n\tmov.b16 high, 0;\n\tsetp.gt.s32 p, %2, 0;\n\t"
               "@p ld.global.b16 low, [%1];\n\tsetp.gt.s32 p, %2, 1;\n\t@p ld.global.b16 high, [%1 + 2];\n\tmov.b32 %0, {low, high};\n\t}"
               : "=r"(v) : "l"(from), "r"(left));
  return v;
}
INLINE void store_ones(__global T *to, int left, uint v) {
  asm volatile("{\n\t.reg .pred p;\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tsetp.gt.s32 p, %1, 0;\n\t"
               "@p st.global.b16 [%0], low;\n\tsetp.gt.s32 p, %1, 1;\n\t@p st.global.b16 [%0 + 2], high;\n\t}"
               ::"l"(to), "r"(left), "r"(v) : "memory");
}
/* Hides an address from the compiler's bit analysis. If the compiler sees that an offset causes no carry, it adds it by `or`, which the
 * assembler does not fold into loads. */
INLINE uint opaque(uint at) {
  asm("" : "+r"(at));
  return at;
}
INLINE uint local4(uint at) {
  uint v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
/* Four lanes hold four pairs each of four vectors of eight. After the exchange, each lane holds one vector, or the other way round. */
INLINE void exchange(uint *v, int quad) {
  uint low = quad & 1 ? v[0] : v[1], high = quad & 1 ? v[2] : v[3];
  low = swap_u(low, 1), high = swap_u(high, 1);
  if (quad & 1) v[0] = low, v[2] = high;
  else v[1] = low, v[3] = high;
  low = quad & 2 ? v[0] : v[2], high = quad & 2 ? v[1] : v[3];
  low = swap_u(low, 2), high = swap_u(high, 2);
  if (quad & 2) v[0] = low, v[1] = high;
  else v[2] = low, v[3] = high;
}
INLINE void store8(__global float *to, int inside, float a, float b) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.v2.f32 [%0], {%2, %3};\n\t}"
               ::"l"(to), "r"(inside), "f"(a), "f"(b) : "memory");
}
INLINE void add8(__global float *to, int inside, float a, float b) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p red.relaxed.gpu.global.add.v2.f32 [%0], {%2, %3};\n\t}"
               ::"l"(to), "r"(inside), "f"(a), "f"(b) : "memory");
}
/* Stores and loads partial sums for other multiprocessors, through the L2 cache only. */
INLINE void part_store(__global float *to, float a, float b, float c, float d) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
INLINE float4 part_load(__global const float *from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
INLINE int turn_of(__global const int *turn) {
  int v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(turn) : "memory");
  return v;
}
INLINE void turn_set(__global int *turn, int v) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(v) : "memory");
}
