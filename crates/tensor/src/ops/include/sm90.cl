/* Building blocks of kernels for NVIDIA's sm_90: barriers in local memory that count bytes (mbarrier), rings of stages, named barriers, transfer
 * of registers between warpgroups, descriptors of operands, and pairs of 16-bit floats. A value of type uint is an address in local memory.
 * Instructions after `//@` exist on sm_90a only; the build uncovers them (Kernel::reload).
 *
 * A ring of stages is a sequence of equal buffers in local memory with two barriers each, `full` and `free`. The producer waits for `free`,
 * announces the number of bytes (mbar_expect) and starts the copies, which complete `full` as they arrive. Each consumer waits for `full`,
 * reads, and arrives at `free`. Both cycle through the stages and count with NEXT_STAGE:
 *
 *               stage 0            stage 1            stage 2            stage 0 again
 *   producer    wait free, copy -> wait free, copy -> wait free, copy -> wait free ...
 *                      \ full             \ full             \ full          ^
 *   consumers           wait full, read ->  wait full, read ->  ...     ______/ free, once all consumers have arrived
 *
 * A barrier completes phase after phase; a wait names the parity of the phase that it waits for. Consumers start with parity 0. The producer
 * starts with 1, the parity of the phase before the first, which counts as complete, so its first round does not wait.
 *
 * Design: the pipelines of CUTLASS (PipelineTmaAsync); the operations of its cute/arch and of ThunderKittens (arXiv:2410.20399) as inline
 * functions of OpenCL C.
 * Defines: DTYPE, the elements of products: 1 f16, 2 bf16, 0 f32 taken as tf32.
 */
/* A call would store the registers of products in flight to memory. */
#define INLINE static inline __attribute__((always_inline))
#if DTYPE == 0
#define WGMMA_TYPES ".f32.tf32.tf32"
#elif DTYPE == 1
#define WGMMA_TYPES ".f32.f16.f16"
#define PAIR_TYPE "f16x2"
#else
#define WGMMA_TYPES ".f32.bf16.bf16"
#define PAIR_TYPE "bf16x2"
#endif

static inline void mbar_init(uint bar, uint arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
static inline void mbar_wait(uint bar, uint parity) {
  asm volatile("{\n\t.reg .pred done;\n\tWAIT:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
               "@done bra DONE;\n\tbra WAIT;\n\tDONE:\n\t}" ::"r"(bar), "r"(parity) : "memory");
}
/* Arrives and announces the bytes that copies will complete. */
static inline void mbar_expect(uint bar, uint bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static inline void mbar_arrive(uint bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Arrives without a branch, which would diverge the warp. */
INLINE void mbar_arrive_if(uint bar, int yes) {
  asm volatile("{\n\t.reg .pred yes;\n\tsetp.ne.s32 yes, %1, 0;\n\t@yes mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(bar),
               "r"(yes) : "memory");
}
/* Makes initialized barriers visible to the whole group after its next barrier, and to copies. */
static inline void barriers_ready(void) {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
/* Named barriers, for `items` of the group. */
static inline void bar_sync(int id, int items) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(items) : "memory"); }
static inline void bar_arrive(int id, int items) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(items) : "memory"); }

/* Advances to the next stage of a ring: `s` its number, `parity` that of the phase to wait for. It is a macro, because a function would get them
 * by pointer, and the compiler would see too late that a stage is below `stages`. Descriptors then cost 25 more instructions per block in
 * attention of D = 128 (clang 15, ptxas 12.9). */
#define NEXT_STAGE(s, parity, stages)                                                                                  \
  if (++s == (stages)) {                                                                                               \
    s = 0;                                                                                                             \
    parity ^= 1;                                                                                                       \
  }
/* Initializes the barriers of a ring: full has one arrival with its bytes, free has one per consumer. */
INLINE void ring_init(uint full, uint free, int stages, int consumers) {
  for (int s = 0; s < stages; ++s) {
    mbar_init(full + s * 8, 1);
    mbar_init(free + s * 8, consumers);
  }
}
/* Transfers registers of work-items from the copying warpgroup to the multiplying ones; all items of a warpgroup call it. */
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define GIVE_REGISTERS(n) asm volatile("//@setmaxnreg.dec.sync.aligned.u32 " TEXT(n) ";")
#define TAKE_REGISTERS(n) asm volatile("//@setmaxnreg.inc.sync.aligned.u32 " TEXT(n) ";")
/* Waits until all but the last `n` groups of products that this warpgroup committed are done. */
#define WAIT_PRODUCTS(n) asm volatile("//@wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
/* Copies `bytes`, a multiple of 16, from global to local memory; `bar` counts them. */
INLINE void copy_bytes(uint to, __global const void *from, uint bytes, uint bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar) : "memory");
}
/* Returns a tensor map after making ordinary writes to it visible. */
static inline ulong use_map(ulong map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
  return map;
}

#if DTYPE != 0
static inline uint pack(float low, float high) {
  uint r;
  asm("cvt.rn." PAIR_TYPE ".f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
static inline float2 unpack(uint pair) {
  float2 r;
#if DTYPE == 1
  float x, y;
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}" : "=f"(x), "=f"(y) : "r"(pair));
  r.x = x;
  r.y = y;
#else
  r.x = as_float(pair << 16);
  r.y = as_float(pair & 0xffff0000u);
#endif
  return r;
}
#endif
static inline uint swap_u(uint v, int lanes) {
  uint r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lanes));
  return r;
}
