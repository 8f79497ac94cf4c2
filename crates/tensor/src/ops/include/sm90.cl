/* What kernels for NVIDIA's sm_90 share: barriers in local memory that count bytes (mbarrier), named barriers, and pairs of 16-bit
 * floats. A number of type uint is an address in local memory. Instructions behind `//@` exist on sm_90a only; the build
 * uncovers them (Kernel::reload).
 *
 * Design: the vocabulary of CUTLASS's cute/arch and of ThunderKittens (arXiv:2410.20399) as inline functions of OpenCL C.
 * Defines: DTYPE, the elements of products: 1 f16, 2 bf16, 0 f32 taken as tf32.
 */
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
/* What was initialised is seen by all of the group after its next barrier, and by copies. */
static inline void barriers_ready(void) {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
/* Named barriers, for `items` of the group. */
static inline void bar_sync(int id, int items) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(items) : "memory"); }
static inline void bar_arrive(int id, int items) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(items) : "memory"); }
/* A tensor map that was written through ordinary memory. */
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
