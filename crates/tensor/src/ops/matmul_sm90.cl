/* Instructions of sm_90 that the matrix product is made of, as functions: barriers that count bytes, copies of blocks, exchanges
 * between lanes, guarded loads and stores. Numbers of type uint are addresses in local memory. DTYPE 1 or 2.
 */
#if DTYPE == 1
#define PAIR "f16x2"
#else
#define PAIR "bf16x2"
#endif

static inline void barrier_init(uint at, uint count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
static inline void barrier_wait(uint at, uint phase) {
  asm volatile("{\n\t.reg .pred p;\n\tAGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@p bra DONE;\n\t"
               "bra AGAIN;\n\tDONE:\n\t}" ::"r"(at), "r"(phase) : "memory");
}
static inline void barrier_expect(uint at, uint bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
static inline void barrier_arrive(uint at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/* Copies the block at column x, row y of a matrix to local memory; `bar` counts its bytes. */
static inline void fetch(uint to, ulong map, int x, int y, uint bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
/* Named barriers of two warpgroups, or of the 128 items of one. */
static inline void meet(int id, int items) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(items) : "memory"); }
static inline void pass(int id, int items) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(items) : "memory"); }

static inline uint pack(float low, float high) {
  uint r;
  asm("cvt.rn." PAIR ".f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
static inline float2 unpack(uint v) {
#if DTYPE == 1
  return vload_half2(0, (const half *)&v);
#else
  return (float2)(as_float(v << 16), as_float(v & 0xffff0000u));
#endif
}
static inline uint from_lane(uint v, int across) {
  uint r;
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(across));
  return r;
}
/* 16 bytes where `inside`; without a branch, which would part the warp. */
static inline void store16(__global T *to, int inside, const uint *v) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.v4.b32 [%0], {%2, %3, %4, %5};\n\t}"
               ::"l"(to), "r"(inside), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
/* Volatile, so that they stay where they were written: registers are short. Zeros outside. */
static inline uint load4(__global const T *from, int inside) {
  uint v;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b32 %0, 0;\n\t@p ld.global.nc.b32 %0, [%1];\n\t}"
               : "=r"(v) : "l"(from), "r"(inside));
  return v;
}
static inline uint4 load16(__global const T *from, int inside) {
  uint4 v;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %5, 0;\n\tmov.b32 %0, 0;\n\tmov.b32 %1, 0;\n\tmov.b32 %2, 0;\n\tmov.b32 %3, 0;\n\t"
               "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "r"(inside));
  return v;
}
static inline uint local4(uint at) {
  uint v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
/* Four lanes hold four pairs each of four vectors of eight; afterwards each lane holds one vector, or the other way round. */
static inline void exchange(uint *v, int quad) {
  uint low = quad & 1 ? v[0] : v[1], high = quad & 1 ? v[2] : v[3];
  low = from_lane(low, 1), high = from_lane(high, 1);
  if (quad & 1) v[0] = low, v[2] = high;
  else v[1] = low, v[3] = high;
  low = quad & 2 ? v[0] : v[2], high = quad & 2 ? v[1] : v[3];
  low = from_lane(low, 2), high = from_lane(high, 2);
  if (quad & 2) v[0] = low, v[1] = high;
  else v[2] = low, v[3] = high;
}
static inline void store8(__global float *to, int inside, float a, float b) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p st.global.v2.f32 [%0], {%2, %3};\n\t}"
               ::"l"(to), "r"(inside), "f"(a), "f"(b) : "memory");
}
static inline void add8(__global float *to, int inside, float a, float b) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %1, 0;\n\t@p red.relaxed.gpu.global.add.v2.f32 [%0], {%2, %3};\n\t}"
               ::"l"(to), "r"(inside), "f"(a), "f"(b) : "memory");
}
/* Sums on their way between multiprocessors: through the L2 only. */
static inline void part_store(__global float *to, float a, float b, float c, float d) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
static inline float4 part_load(__global const float *from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
static inline int turn_of(__global const int *turn) {
  int v;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(turn) : "memory");
  return v;
}
static inline void turn_set(__global int *turn, int v) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(v) : "memory");
}

/* GELU by tanh (Hendrycks and Gimpel 2016) and its derivative. */
static inline float tanh_fast(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
static inline float gelu(float x) {
  return 0.5f * x * (1.0f + tanh_fast(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}
static inline float gelu_grad(float x) {
  const float t = tanh_fast(0.7978845608028654f * (x + 0.044715f * x * x * x));
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * x * x);
}
